// Which tails run inside a library's call, by the contract's `library` on the target: oneDNN's
// epilogue takes all that the epilogue table has; what cuDNN and cuBLASLt take is a fact of the
// target, too (`epilogues`, `exact_epilogues`), and of the form of their calls. Asked without any
// library, so that plans and counts of kernels are the same on every machine; the kernels do what
// this says.
#pragma once
#include <span>
#include <string>

#include "engine/base/accept.h"
#include "engine/contract/epilogue.h"
#include "engine/graph/graph.h"
#include "engine/target/target.h"

namespace ferrule {

/// Whether f32 operands of the node may be rounded to tf32 inside a kernel: what the rule `tf32`
/// says of a node.
bool allows_tf32(const Node& n);

struct LibraryTail {
  const Target* target = nullptr;
  std::string_view contract;     ///< "conv", "deconv", "gemm"
  const Graph* graph = nullptr;  ///< of the anchor
  NodeId anchor;
  bool channels_last = false;  ///< how the result lies
  std::span<const PostOp> steps;
  std::span<const ValueId> inputs;  ///< of the tail; a step's operand counts in them
};
/// Whether operands of a tail may be spread over the result in any way that ONNX has; library_takes
/// looks closer. Not cuDNN: of operands that are broadcast along some axes of images it reads the
/// wrong elements without a word (so on an H100, and in NVIDIA's cudnn-frontend, issue 107).
inline bool spreads_any(Library l) { return l == Library::cublaslt; }
/// no: the reason; the tail is then a generated kernel of its own.
Accept library_takes(const LibraryTail& tail);

/// Why the target's library computes the step too roughly to be asked for it; "" where it does not.
std::string_view too_rough(const Target& target, std::string_view contract, const PostOp& step);

/// What a step that the target's library runs makes of NaN; where the library's documentation does
/// not say that NaN stays, it does not.
Deviation::Nan nan_in(const Target& target, std::string_view contract, const PostOp& step);
/// The same of infinity in results of this type; "" where it stays.
std::string_view infinity_in(const Target& target, std::string_view contract, const PostOp& step,
                             DType type);
/// The same of -0 that the last step leaves.
std::string_view zero_in(const Target& target, std::string_view contract,
                         std::span<const PostOp> steps);

}  // namespace ferrule
