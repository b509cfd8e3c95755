// Scaled dot-product attention: softmax(scale * q k^T + mask) v, as exporters spell it out, with
// the transposes around it. What such a group computes, operand by operand; the attention contract
// accepts what this can read, and cuDNN's kernel or the generated one
// (codegen/cuda/library_attention.h, cuda_attention.h) runs it without ever writing the scores. It
// knows nothing of tiles or layouts.
#pragma once
#include "engine/base/applicable.h"
#include "engine/contract/accept.h"
#include "engine/graph/graph.h"
#include "engine/target/target.h"

namespace ferrule {

/// An operand as the products see it: their axis k is axis `axes[k]` of the value.
struct AttentionOperand {
  ValueId value;
  std::vector<int> axes;
};

struct Attention {
  AttentionOperand q;  ///< [batch…, queries, size]
  AttentionOperand k;  ///< [batch…, size, keys]
  AttentionOperand v;  ///< [batch…, keys, width]
  AttentionOperand y;  ///< [batch…, queries, width]
  ValueId mask;        ///< added to the scores, broadcast; none: not there
  double scale = 1;
  bool zero_if_nan = false;  ///< rows of the softmax that are NaN (all keys masked) become 0
  int rank() const { return static_cast<int>(q.axes.size()); }
};

/// Reads `nodes` (topological order). Not applicable, with the reason.
Applicable<Attention> read_attention(const Graph& g, std::span<const NodeId> nodes);

/// Whether the target's library (cuDNN) has attention of these types, sizes and steps; how operands
/// have to lie is codegen/cuda/library_attention's. no without a reason: the target has none in
/// this type (`library_types`).
Accept library_attends(const Graph& g, const Attention& a, const Target& target);
/// How the library's kernel, if it has one, differs from the formula: where all keys of a query are
/// masked, or a value is NaN and the model makes zeros of scores that are. "" where it has none,
/// and where the mask is a constant that leaves each query a key.
std::string attention_deviation(const Graph& g, const Attention& a, const Target& target);

/// Sizes of a head (q and k, v) that a kernel keeps in shared memory.
inline constexpr int64_t kMostAttentionSize = 128;

/// Elements of 16 bytes, in which cuDNN reads heads; axes that it knows.
inline constexpr int64_t kLibraryPack = 8;
inline constexpr int kMostLibraryRank = 4;

/// contracts.h's `accepts` for it; `nodes` are all of the group's.
Accept accepts_attention(const Graph& g, std::span<const NodeId> nodes, const Target& target);

}  // namespace ferrule
