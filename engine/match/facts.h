// What the matcher must know of operators beyond their formulas: the value an attribute has when
// nobody writes it (D6), and whether an operator gives the same result twice (D8).
#pragma once
#include <optional>
#include <string_view>

#include "engine/graph/graph.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// The default in ONNX's schema, else the one of the operator's formula, else that of a list that a
/// window has (as long as the one written).
std::optional<Attr> default_attr(const Node& n, std::string_view attribute, const Semantics& ops);
/// Gives a new node all its attributes, as every node has them after normalisation.
void fill_defaults(Node& n, const Semantics& ops);
/// Provably the same shape; unknown shapes are not.
bool same_shape(const Type& a, const Type& b);
/// Whether running the node twice gives the same results; nested graphs count.
bool deterministic(const Node& n);
/// Whether an attribute has the value a rule's text means: 1 and 1.0 are the same, floats compare
/// as f32, which is how ONNX stores them.
bool attr_equals(const Attr& written, const Attr& actual);
/// Whether the node has this operator ("domain::op"; ai.onnx without a domain; a group by its
/// contract).
bool has_op(const Node& n, std::string_view written);
/// One of the operators or classes; "group", "group.<contract>" and "movement" (movement.h) are
/// classes, too.
bool has_head(const Node& n, const std::vector<std::string>& ops,
              const std::vector<std::string>& classes, const Semantics& table);

}  // namespace ferrule
