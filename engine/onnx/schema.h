// What ONNX's newest operator schemas say of attributes, without showing protobuf: used where nodes
// are matched (attributes that a pattern does not name) and made (attributes that a rule leaves
// out).
#pragma once
#include <optional>
#include <string_view>
#include <vector>

#include "engine/base/contains.h"
#include "engine/graph/graph.h"

namespace ferrule {

/// The default of an attribute; nullopt: none, or no such operator.
std::optional<Attr> schema_default(std::string_view domain, std::string_view op,
                                   std::string_view attribute);
/// Each element of a window's list that nobody writes, which the schemas leave to prose: strides,
/// dilations, pads, output_padding. nullopt: another attribute.
std::optional<int64_t> window_default(std::string_view attribute);
/// Sets the attributes that are missing and have a default.
void fill_schema_defaults(Node& n);

/// An attribute as the schema declares it. `usual` is its default; `required`: there is none and it
/// must be written.
struct AttributeSchema {
  enum class Kind : uint8_t {
    integer,
    real,
    text,
    integers,
    reals,
    texts,
    other
  } kind = Kind::other;
  std::string name;
  std::optional<Attr> usual;
  bool required = false;
};
/// An operand or a result. Those of one `variable` ("T") have one element type, one of `types`.
struct OperandSchema {
  std::string name, variable;
  std::vector<DType> types;  ///< numeric types and bool; empty: none of these
  bool texts = false;        ///< also of strings
  bool optional = false, variadic = false;
  bool mixed = false;  ///< variadic, each of a type of its own
  bool takes(DType t) const { return t == DType::string ? texts : contains(types, t); }
};
struct OperatorSchema {
  std::vector<AttributeSchema> attributes;
  std::vector<OperandSchema> inputs, outputs;
};
/// The newest version of an operator; null: ONNX has none of this name.
const OperatorSchema* operator_schema(std::string_view domain, std::string_view op);
/// ONNX's operators of a domain.
std::vector<std::string> operator_names(std::string_view domain);
inline const OperatorSchema* operator_schema(const Node& n) {
  return operator_schema(n.domain, n.op.text());
}

}  // namespace ferrule
