#include "engine/onnx/schema.h"

#include <onnx/defs/schema.h>

namespace ferrule {
namespace {

std::optional<Attr> to_attr(const onnx::AttributeProto& a) {
  using P = onnx::AttributeProto;
  switch (a.type()) {
    case P::FLOAT: return Attr(static_cast<double>(a.f()));
    case P::INT: return Attr(static_cast<int64_t>(a.i()));
    case P::STRING: return Attr(a.s());
    case P::FLOATS: return Attr(std::vector<double>(a.floats().begin(), a.floats().end()));
    case P::INTS: return Attr(std::vector<int64_t>(a.ints().begin(), a.ints().end()));
    case P::STRINGS: return Attr(std::vector<std::string>(a.strings().begin(), a.strings().end()));
    default: return std::nullopt;
  }
}

const onnx::OpSchema* newest(std::string_view domain, std::string_view op) {
  return onnx::OpSchemaRegistry::Schema(std::string(op), std::string(domain));
}

}  // namespace

std::optional<Attr> schema_default(std::string_view domain, std::string_view op, std::string_view attribute) {
  const onnx::OpSchema* s = newest(domain, op);
  if (!s) return std::nullopt;
  auto it = s->attributes().find(std::string(attribute));
  return it == s->attributes().end() ? std::nullopt : to_attr(it->second.default_value);
}

void fill_schema_defaults(Node& n) {
  const onnx::OpSchema* s = newest(n.domain, n.op);
  if (!s) return;
  for (const auto& [name, a] : s->attributes())
    if (!n.attrs.find(name))
      if (auto value = to_attr(a.default_value)) n.attrs.set(name, std::move(*value));
}

}  // namespace ferrule
