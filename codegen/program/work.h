// What a library call or a copy computes, as a closed type: a backend's table is a switch over it,
// so that the compiler lists what a backend lacks. It comes from the contract; where that covers
// several works, engine/semantics tells them apart. Backends look at no operator.
#pragma once
#include <cstdint>
#include <string_view>

#include "engine/graph/graph.h"

namespace ferrule {

enum class Work : uint8_t {
  convolution,
  deconvolution,
  product,         ///< of stacks of matrices
  affine_product,  ///< of two matrices, transposed or not, with factors and an addend
  max_pool,
  average_pool,
  global_max_pool,  ///< of the whole image
  global_average_pool,
  resize,
  norm,
  attention,
  softmax_topk,
  lstm,
  gru,
  rnn,
  window_chain,  ///< windows that slide over each other's results
  transpose,
  gather,   ///< one axis' places are read from a tensor
  reorder,  ///< the same axes, laid out in another way
  own,      ///< of one contract alone, by whose name a backend finds its kernel
  other,    ///< what the launch's kind, region or rows say
};

inline bool is_product(Work w) { return w == Work::product || w == Work::affine_product; }

/// The work of a node that runs under `contract`; joint contracts' nodes are their groups.
Work work_of(std::string_view contract, const Node& n);

}  // namespace ferrule
