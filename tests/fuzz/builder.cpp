#include "tests/fuzz/builder.h"

#include <algorithm>

namespace ferrule::fuzz {

int64_t Value::numel() const {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  return n;
}

int64_t Builder::size() {
  if (square) return side;
  if (empty && draw.chance(10)) return 0;
  return draw.of({1, 1, 1, 2, 2, 3, 3, 4, 4, 5, 6, 7, 8, 8, 9, 16, 17});
}

Value Builder::input(DType type, const Dims& dims, Mood how) {
  Stored s{{fresh("x"), type, dims, how == Mood::exact, how == Mood::positive}, draw_values(draw, type, dims, how), {}};
  for (int64_t d : dims) s.sizes.push_back(std::to_string(d));
  inputs_.push_back(s);
  return s.value;
}

Value Builder::constant(DType type, const Dims& dims, Mood how) {
  constants_.push_back({{fresh("c"), type, dims, how == Mood::exact, how == Mood::positive}, draw_values(draw, type, dims, how), {}});
  return constants_.back().value;
}

Value Builder::literal(const std::vector<int64_t>& values) {
  const Dims dims{static_cast<int64_t>(values.size())};
  constants_.push_back({{fresh("k"), DType::i64, dims, true, false}, Tensor::of_i64(dims, values), {}});
  return constants_.back().value;
}

Value Builder::literal_of(DType type, const Dims& dims, double value) {
  constants_.push_back({{fresh("k"), type, dims, true, value > 0}, Tensor::scalar(type, value, dims), {}});
  return constants_.back().value;
}

std::optional<std::vector<Value>> Builder::nodes(const std::string& op, const std::vector<Value>& operands, const std::string& attributes,
                                                 std::vector<DType> dtypes) {
  if (dtypes.empty()) dtypes = {operands.at(0).dtype};
  const int named = names_;
  std::vector<Value> results;
  std::string left, right;
  for (DType type : dtypes) {
    results.push_back({fresh("v"), type, {}, true, false});
    left += (left.empty() ? "" : ", ") + results.back().name;
  }
  for (const Value& v : operands) {
    right += (right.empty() ? "" : ", ") + (v.name.empty() ? "\"\"" : v.name);
    for (Value& r : results) r.exact = r.exact && (v.exact || v.name.empty());
  }
  lines_.push_back(left + " = " + op + (attributes.empty() ? "" : " <" + attributes + ">") + " (" + right + ")");
  auto refuse = [&](const std::string& why) {
    ++refused[op + ": " + why];
    lines_.pop_back();
    names_ = named;
    return std::nullopt;
  };
  auto imported = import_text(text(results, true), options_);
  if (!imported) return refuse(imported.error().message);
  const Graph& g = imported->graph;
  for (size_t k = 0; k < results.size(); ++k) {
    const Type& type = g.value(g.outputs()[k]).type;
    auto dims = type.shape ? constant_shape(*type.shape) : std::nullopt;
    if (!dims || type.dtype != results[k].dtype) return refuse("its shape is not known");
    results[k].dims = *dims;
    if (results[k].numel() > kLargest) return refuse("it is too large");
  }
  for (const Value& v : operands) read_.insert(v.name);
  return results;
}

std::optional<Value> Builder::node(const std::string& op, const std::vector<Value>& operands, const std::string& attributes, DType type) {
  auto all = nodes(op, operands, attributes, {type == DType::undefined ? operands.at(0).dtype : type});
  return all ? std::optional(all->front()) : std::nullopt;
}

void Builder::output(const Value& value) {
  for (const Value& o : outputs_)
    if (o.name == value.name) return;
  for (const Stored& s : constants_)
    if (s.value.name == value.name) return;
  outputs_.push_back(value);
}

void Builder::open_sizes() {
  open_ = true;
  int next = 0;
  const bool shared = draw.chance(60);  // equal sizes have the same symbol
  for (Stored& s : inputs_)
    for (std::string& size : s.sizes)
      if (draw.chance(50)) size = shared ? "S" + size : "D" + std::to_string(next++);
}

std::string Builder::text(const std::vector<Value>& outputs, bool unfinished) const {
  auto listed = [&](const Stored& s) { return unfinished || read_.contains(s.value.name); };
  std::vector<std::string> ins, outs, constants;
  for (const Stored& s : inputs_)
    if (listed(s)) ins.push_back(type_text(s.value.dtype, s.sizes) + " " + s.value.name);
  for (const Value& v : outputs) {
    std::vector<std::string> sizes;
    for (int a = 0; open_ && a < v.rank(); ++a) sizes.push_back(fmt::format("O{}_{}", outs.size(), a));
    const std::string type = unfinished ? type_text(v.dtype, Dims{}) + "[]" : open_ ? type_text(v.dtype, sizes) : type_text(v.dtype, v.dims);
    outs.push_back(type + " " + v.name);
  }
  for (const Stored& s : constants_)
    if (listed(s)) constants.push_back(type_text(s.value.dtype, s.value.dims) + " " + s.value.name + " = " + elements_text(s.elements));
  std::string out = fmt::format("<ir_version: 10, opset_import: [\"\" : 23]>\ng ({}) => ({})", fmt::join(ins, ", "), fmt::join(outs, ", "));
  if (!constants.empty()) out += fmt::format("\n  <{}>", fmt::join(constants, ",\n   "));
  return out + fmt::format(" {{\n  {}\n}}\n", fmt::join(lines_, "\n  "));
}

Case Builder::finish() const {
  Case c;
  c.text = text(outputs_, false);
  for (const Stored& s : inputs_)
    if (read_.contains(s.value.name)) c.inputs[s.value.name] = s.elements;
  if (c.text.find("float16") != std::string::npos || c.text.find("to = 10") != std::string::npos) c.coarsest = DType::f16;
  return c;
}

}  // namespace ferrule::fuzz
