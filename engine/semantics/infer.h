// Types, shapes (as Dim expressions) and small integer contents, node by node. Shapes of the
// operators that change them are computed here, those of formulas by their formulas; every other
// operator is asked of its schema (onnx/infer_onnx.h; this file knows no protobuf).
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Types of the node's outputs (one per entry of Node::outputs), from its inputs and attributes.
/// `contents` receives known integer contents of outputs where there are any.
/// errors: bad_shape (names node and shapes), bad_attribute, unknown_operator.
Result<Inferred> infer_node(const Semantics& ops, const Graph& g, const Node& n);

/// Infers `n` and stores the result in its output values. A declared type is refined, never
/// contradicted silently (errors: bad_shape).
Status infer(const Semantics& ops, Graph& g, NodeId n);
/// All nodes in topological order (nested graphs included). Used once, after import and after
/// shapes are fixed; rewrites call the per-node form.
Status infer_all(const Semantics& ops, Graph& g);

/// As infer_all for the body of an If, Loop or Scan, which may never run: a node in it that
/// contradicts itself keeps what is declared of its outputs, and is no error.
Status infer_nested(const Semantics& ops, Graph& g);

/// Gives the values that the node's nested graphs capture the types and contents they have outside.
void bind_captures(const Graph& g, const Node& n);

/// Replaces symbols in all shapes and contents (a plan per concrete input shape), then infers
/// again. `inputs`: graph input name -> concrete dims.  errors: input_mismatch.
Status fix_shapes(const Semantics& ops, Graph& g,
                  const std::map<std::string, std::vector<int64_t>>& inputs);

/// Output dims of a sliding window along one axis: floor((in + pads - ((k-1)*dil+1)) / stride) + 1.
Dim window_out(const Dim& in, int64_t pad_begin, int64_t pad_end, int64_t kernel, int64_t stride,
               int64_t dilation, bool ceil_mode);
/// Explicit pads [begin..., end...] of a conv / pool node from pads or auto_pad; nullopt: not known
/// yet. `spatial`: the input's spatial dims; `kernel`: kernel dims.
std::optional<std::vector<int64_t>> resolved_pads(const Node& n, const Shape& spatial,
                                                  const std::vector<int64_t>& kernel);

}  // namespace ferrule
