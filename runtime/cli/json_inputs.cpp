// Inputs as the Open Inference Protocol (KServe v2) writes them in JSON:
// {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [0.5, 1]}]}.
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

const std::map<std::string_view, DType> kTypes = {
    {"BOOL", DType::boolean}, {"UINT8", DType::u8},    {"UINT16", DType::u16},
    {"UINT32", DType::u32},   {"UINT64", DType::u64},  {"INT8", DType::i8},
    {"INT16", DType::i16},    {"INT32", DType::i32},   {"INT64", DType::i64},
    {"FP16", DType::f16},     {"FP32", DType::f32},    {"FP64", DType::f64},
    {"BF16", DType::bf16},    {"BYTES", DType::string}};

/// The elements in row-major order: data is flat, or lists as deep as the tensor.
bool flatten(const json& data, int depth, std::vector<const json*>& out) {
  if (!data.is_array()) return out.push_back(&data), true;
  if (depth == 0) return false;
  for (const json& part : data)
    if (!flatten(part, depth - 1, out)) return false;
  return true;
}

/// One element's bytes; whether it is of the type and fits into it.
bool write(DType t, const json& value, void* to) {
  const auto bits = static_cast<unsigned>(size_bits(t));
  if (is_float(t)) {
    if (!value.is_number()) return false;
    const Tensor one = Tensor::scalar(t, value.get<double>());
    std::memcpy(to, one.data(), bits / 8);
    return true;
  }
  uint64_t element = 0;
  if (t == DType::boolean && value.is_boolean()) {
    element = value.get<bool>();
  } else if (value.is_number_unsigned()) {
    element = value.get<uint64_t>();
    const unsigned magnitude = t == DType::boolean ? 1 : bits - is_signed_int(t);
    if (magnitude < 64 && element >> magnitude) return false;
  } else if (value.is_number_integer() && is_signed_int(t)) {  // below 0
    const auto negative = value.get<int64_t>();
    if (negative >> (bits - 1) != -1) return false;
    element = static_cast<uint64_t>(negative);
  } else {
    return false;
  }
  std::memcpy(to, &element, bits / 8);  // little-endian, as this machine is
  return true;
}

Result<Tensor> tensor_of(const json& input, const std::string& place) {
  const auto wrong = [&](const std::string& what) {
    return error(Code::usage, "--inputs", place + what);
  };
  const auto shape = input.find("shape"), type = input.find("datatype"), data = input.find("data");
  if (shape == input.end() || !shape->is_array()) return wrong(" has no list \"shape\"");
  if (data == input.end() || !data->is_array()) return wrong(" has no list \"data\"");
  const auto known = type == input.end() || !type->is_string()
                         ? kTypes.end()
                         : kTypes.find(type->get_ref<const std::string&>());
  if (known == kTypes.end())
    return wrong(
        " has no \"datatype\" of the protocol (BOOL, UINT8 … UINT64, INT8 … INT64, FP16, FP32, "
        "FP64, BF16, BYTES)");
  const DType t = known->second;
  std::vector<int64_t> dims;
  for (const json& d : *shape) {
    if (!d.is_number_unsigned() || d.get<uint64_t>() > (uint64_t{1} << 40))
      return wrong(" has a \"shape\" that is no list of sizes");
    dims.push_back(d.get<int64_t>());
  }
  std::vector<const json*> elements;
  const int rank = static_cast<int>(dims.size());
  if (!flatten(*data, std::max(1, rank), elements)) return wrong(" has \"data\" in too many lists");
  double wanted = 1;
  for (int64_t d : dims) wanted *= static_cast<double>(d);
  if (wanted != static_cast<double>(elements.size()))
    return wrong(fmt::format(" has {} elements, its shape wants {}", elements.size(), wanted));
  if (t == DType::string) {
    std::vector<std::string> texts;
    for (const json* e : elements) {
      if (!e->is_string()) return wrong(" has data that is no text");
      texts.push_back(e->get<std::string>());
    }
    return Tensor(std::move(dims), std::move(texts));
  }
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  for (size_t k = 0; k < elements.size(); ++k)
    if (!write(t, *elements[k],
               static_cast<char*>(bytes) + k * static_cast<size_t>(size_bits(t)) / 8))
      return wrong(fmt::format(" has {} as element {}, which is no {}",
                               elements[k]->dump().substr(0, 40), k, known->first));
  return tensor;
}

}  // namespace

Result<Tensors> read_json_inputs(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(Code::file_not_found, "--inputs", escape(path), std::strerror(errno));
  const auto wrong = [&](const std::string& what) {
    return error(Code::usage, "--inputs", escape(path) + what);
  };
  json request;
  try {
    request = json::parse(in);
  } catch (const json::exception& e) {  // a number beyond f64, too
    const std::string text = e.what();  // "[json.exception.parse_error.101] parse error at line …"
    return wrong(" cannot be read as JSON: " + escape(text.substr(text.find("] ") + 2)));
  }
  const auto inputs = request.is_object() ? request.find("inputs") : request.end();
  if (inputs == request.end() || !inputs->is_array())
    return wrong(" has no list \"inputs\" (a request of the Open Inference Protocol)");
  Tensors out;
  for (const json& input : *inputs) {
    const auto name = input.is_object() ? input.find("name") : input.end();
    if (name == input.end() || !name->is_string()) return wrong(": an input has no \"name\"");
    const std::string& n = name->get_ref<const std::string&>();
    if (out.contains(n)) return wrong(": input " + escape(n) + " is there twice");
    FERRULE_ASSIGN(out[n], tensor_of(input, escape(path) + ": input " + escape(n)));
  }
  return out;
}

}  // namespace ferrule::cli
