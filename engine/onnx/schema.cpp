#include "engine/onnx/schema.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "engine/graph/operator_name.h"
#include "engine/onnx/internal.h"

namespace ferrule {

std::optional<Attr> onnx_io::to_attr(const onnx::AttributeProto& a) {
  using P = onnx::AttributeProto;
  switch (a.type()) {
    case P::FLOAT:
      return Attr(static_cast<double>(a.f()));
    case P::INT:
      return Attr(static_cast<int64_t>(a.i()));
    case P::STRING:
      return Attr(a.s());
    case P::FLOATS:
      return Attr(std::vector<double>(a.floats().begin(), a.floats().end()));
    case P::INTS:
      return Attr(std::vector<int64_t>(a.ints().begin(), a.ints().end()));
    case P::STRINGS:
      return Attr(std::vector<std::string>(a.strings().begin(), a.strings().end()));
    default:
      return std::nullopt;
  }
}

namespace {

using onnx_io::to_attr;

const onnx::OpSchema* newest(std::string_view domain, std::string_view op) {
  return onnx::OpSchemaRegistry::Schema(std::string(operator_name(op)), std::string(domain));
}

AttributeSchema::Kind kind_of(onnx::AttributeProto::AttributeType t) {
  using P = onnx::AttributeProto;
  using Kind = AttributeSchema::Kind;
  static const std::map<P::AttributeType, Kind> kKinds = {
      {P::FLOAT, Kind::real},   {P::INT, Kind::integer},   {P::STRING, Kind::text},
      {P::FLOATS, Kind::reals}, {P::INTS, Kind::integers}, {P::STRINGS, Kind::texts}};
  const auto it = kKinds.find(t);
  return it == kKinds.end() ? Kind::other : it->second;
}

/// "tensor(float16)" as an element type; nullopt: no tensor of numbers or truth values.
std::optional<DType> element_type(std::string_view type) {
  constexpr std::string_view kTensor = "tensor(";
  if (!type.starts_with(kTensor) || !type.ends_with(")")) return std::nullopt;
  const auto t = parse_dtype(type.substr(kTensor.size(), type.size() - kTensor.size() - 1));
  return t && *t != DType::complex64 && *t != DType::complex128 ? t : std::nullopt;
}

OperandSchema operand_of(const onnx::OpSchema::FormalParameter& p) {
  OperandSchema out;
  out.name = p.GetName(), out.variable = p.GetTypeStr();
  for (const auto& type : p.GetTypes())
    if (auto t = element_type(*type)) out.types.push_back(*t);
  std::ranges::sort(out.types);
  out.texts = p.GetTypes().contains(onnx::Utils::DataTypeUtils::ToType("tensor(string)"));
  out.optional = p.GetOption() == onnx::OpSchema::Optional;
  out.variadic = p.GetOption() == onnx::OpSchema::Variadic;
  out.mixed = out.variadic && !p.GetIsHomogeneous();
  return out;
}

OperatorSchema described(const onnx::OpSchema& s) {
  OperatorSchema out;
  for (const auto& [name, a] : s.attributes())
    out.attributes.push_back({kind_of(a.type), name, to_attr(a.default_value), a.required});
  for (const auto& p : s.inputs()) out.inputs.push_back(operand_of(p));
  for (const auto& p : s.outputs()) out.outputs.push_back(operand_of(p));
  return out;
}

}  // namespace

const OperatorSchema* operator_schema(std::string_view domain, std::string_view op) {
  static std::mutex mutex;
  static std::map<std::string, std::optional<OperatorSchema>> known;
  std::lock_guard lock(mutex);
  auto [it, fresh] = known.try_emplace(std::string(domain) + "::" + std::string(op));
  if (fresh)
    if (const onnx::OpSchema* s = newest(domain, op)) it->second = described(*s);
  return it->second ? &*it->second : nullptr;
}

std::vector<std::string> operator_names(std::string_view domain) {
  std::vector<std::string> out;
  for (const onnx::OpSchema& s : onnx::OpSchemaRegistry::get_all_schemas())
    if (s.domain() == domain) out.push_back(s.Name());
  return out;
}

std::optional<Attr> schema_default(std::string_view domain, std::string_view op,
                                   std::string_view attribute) {
  const onnx::OpSchema* s = newest(domain, op);
  if (!s) return std::nullopt;
  auto it = s->attributes().find(std::string(attribute));
  return it == s->attributes().end() ? std::nullopt : to_attr(it->second.default_value);
}

std::optional<int64_t> window_default(std::string_view attribute) {
  if (attribute == "strides" || attribute == "dilations") return 1;
  if (attribute == "pads" || attribute == "output_padding") return 0;
  return std::nullopt;
}

void fill_schema_defaults(Node& n) {
  const onnx::OpSchema* s = newest(n.domain, n.op.text());
  if (!s) return;
  for (const auto& [name, a] : s->attributes())
    if (!n.attrs.find(name))
      if (auto value = to_attr(a.default_value)) n.attrs.set(name, std::move(*value));
}

}  // namespace ferrule
