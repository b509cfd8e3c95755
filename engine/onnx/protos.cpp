// Tensors and attributes back into protobuf: for inference by schema, and for export.
#include <google/protobuf/text_format.h>

#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

using P = onnx::AttributeProto;

struct Visitor {
  P& a;
  void operator()(int64_t v) { a.set_type(P::INT), a.set_i(v); }
  void operator()(double v) { a.set_type(P::FLOAT), a.set_f(static_cast<float>(v)); }
  void operator()(const std::string& v) { a.set_type(P::STRING), a.set_s(v); }
  void operator()(const std::vector<int64_t>& v) {
    a.set_type(P::INTS);
    for (int64_t i : v) a.add_ints(i);
  }
  void operator()(const std::vector<double>& v) {
    a.set_type(P::FLOATS);
    for (double f : v) a.add_floats(static_cast<float>(f));
  }
  void operator()(const std::vector<std::string>& v) {
    a.set_type(P::STRINGS);
    for (const auto& s : v) a.add_strings(s);
  }
  void operator()(const Tensor& v) { a.set_type(P::TENSOR), *a.mutable_t() = to_proto(v); }
};

}  // namespace

onnx::TensorProto to_proto(const Tensor& t) {
  onnx::TensorProto out;
  out.set_data_type(static_cast<int>(t.dtype()));
  for (int64_t d : t.dims()) out.add_dims(d);
  if (t.dtype() == DType::string)
    for (const std::string& s : t.strings()) out.add_string_data(s);
  else
    out.set_raw_data(t.data(), static_cast<size_t>(t.bytes()));
  return out;
}

onnx::AttributeProto to_proto(const std::string& name, const Attr& value) {
  P a;
  a.set_name(name);
  std::visit(Visitor{a}, value);
  // The element types of Optional and its like are kept as text (convert.cpp).
  const auto* text = std::get_if<std::string>(&value);
  onnx::TypeProto type;
  if (name == "type" && text && google::protobuf::TextFormat::ParseFromString(*text, &type)) {
    a.clear_s();
    a.set_type(P::TYPE_PROTO);
    *a.mutable_tp() = type;
  }
  return a;
}

}  // namespace ferrule::onnx_io
