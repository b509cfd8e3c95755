// Brings every node to the newest ONNX version's view of its operator: attributes that became
// inputs are inputs, defaults are filled in, absent slots at the end are trimmed. A table, one row
// per operator and range of versions; after it nobody asks for an opset. Types are inferred on the
// way, because some rows need a rank. Negative axes are kept as they are.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Normalises and infers all nodes in topological order, nested graphs included. Node::since_opset
/// is the opset of the node's domain. errors: unsupported_operator (a meaning that newer versions
/// dropped), bad_shape, bad_attribute. `notes`: declared shapes that turned out wrong, and were
/// dropped.
Status normalize(Graph& g, const Semantics& ops, std::vector<std::string>* notes = nullptr);

}  // namespace ferrule
