#include "tests/fuzz/builder.h"

#include <algorithm>
#include <cstring>

#include "engine/interpreter/interpreter.h"

namespace ferrule::fuzz {
namespace {

std::string written(const std::vector<std::string>& ins, const std::vector<std::string>& outs,
                    const std::vector<std::string>& constants,
                    const std::vector<std::string>& lines) {
  std::string out = fmt::format(
      "<ir_version: 10, opset_import: [\"\" : 23, \"com.microsoft\" : 1]>\ng ({}) => ({})",
      fmt::join(ins, ", "), fmt::join(outs, ", "));
  if (!constants.empty()) out += fmt::format("\n  <{}>", fmt::join(constants, ",\n   "));
  return out + fmt::format(" {{\n  {}\n}}\n", fmt::join(lines, "\n  "));
}

}  // namespace

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
  Stored s{{fresh("x"), type, dims, how == Mood::exact, how == Mood::positive},
           draw_values(draw, type, dims, how),
           {}};
  for (int64_t d : dims) s.sizes.push_back(std::to_string(d));
  inputs_.push_back(s);
  elements_[s.value.name] = s.elements;
  return s.value;
}

Value Builder::constant(DType type, const Dims& dims, Mood how) {
  return stored({{fresh("c"), type, dims, how == Mood::exact, how == Mood::positive},
                 draw_values(draw, type, dims, how),
                 {}});
}

Value Builder::literal(const std::vector<int64_t>& values) {
  return literal_as({static_cast<int64_t>(values.size())}, values);
}

Value Builder::literal_as(const Dims& dims, const std::vector<int64_t>& values) {
  return stored({{fresh("k"), DType::i64, dims, true, false}, Tensor::of_i64(dims, values), {}});
}

Value Builder::literal_of(DType type, const Dims& dims, double value) {
  Stored s{{fresh("k"), type, dims, true, value > 0}, Tensor::scalar(type, value, {}), {}};
  if (s.value.numel() != 1) {
    auto [all, to] = Tensor::allocate(type, dims);
    const size_t bytes = static_cast<size_t>(size_bytes(type, 1));
    for (int64_t k = 0; k < s.value.numel(); ++k)
      std::memcpy(static_cast<char*>(to) + static_cast<size_t>(k) * bytes,
                  s.elements.as<uint8_t>().data(), bytes);
    s.elements = all;
  } else {
    s.elements = Tensor::scalar(type, value, dims);
  }
  return stored(std::move(s));
}

Value Builder::stored(Stored constant) {
  elements_[constant.value.name] = constant.elements;
  constants_.push_back(std::move(constant));
  return constants_.back().value;
}

Result<std::vector<Tensor>> Builder::computed(const Graph& probed) const {
  InterpreterOptions options;
  options.ops = language_.ops;
  std::vector<Tensor> inputs;
  for (ValueId v : probed.inputs()) inputs.push_back(elements_.at(probed.value(v).name));
  return interpret(probed, inputs, options);
}

std::optional<std::vector<Value>> Builder::nodes(const std::string& op,
                                                 const std::vector<Value>& operands,
                                                 const std::string& attributes,
                                                 std::vector<DType> dtypes,
                                                 const std::vector<Dims>& known) {
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
  lines_.push_back(left + " = " + op + (attributes.empty() ? "" : " <" + attributes + ">") + " (" +
                   right + ")");
  auto refuse = [&](const std::string& why) {
    ++refused[op + ": " + why];
    lines_.pop_back();
    names_ = named;
    return std::nullopt;
  };
  auto imported = import_text(probe(operands, results), language_.import);
  if (!imported) return refuse(imported.error().message);
  const Graph& g = imported->graph;
  for (size_t k = 0; k < results.size(); ++k) {
    const Type& type = g.value(g.outputs()[k]).type;
    auto dims = k < known.size() ? std::optional(known[k])
                : type.shape     ? constant_shape(*type.shape)
                                 : std::nullopt;
    if (!dims || type.dtype != results[k].dtype) return refuse("its shape is not known");
    results[k].dims = *dims;
    if (results[k].numel() > largest) return refuse("it is too large");
  }
  auto elements = computed(g);
  if (!elements) return refuse("the interpreter: " + elements.error().message);
  for (size_t k = 0; k < results.size(); ++k) elements_[results[k].name] = (*elements)[k];
  for (const Value& v : operands) read_.insert(v.name);
  return results;
}

std::optional<Value> Builder::node(const std::string& op, const std::vector<Value>& operands,
                                   const std::string& attributes, DType type) {
  auto all =
      nodes(op, operands, attributes, {type == DType::undefined ? operands.at(0).dtype : type});
  return all ? std::optional(all->front()) : std::nullopt;
}

void Builder::back_to(const Mark& mark) {
  lines_.resize(mark.lines);
  outputs_.resize(mark.outputs);
  read_ = mark.read;
}

std::vector<std::string> Builder::take(size_t from) {
  std::vector<std::string> taken(lines_.begin() + static_cast<std::ptrdiff_t>(from), lines_.end());
  lines_.resize(from);
  return taken;
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

std::string Builder::probe(const std::vector<Value>& operands,
                           const std::vector<Value>& results) const {
  bool alone = lines_.back().find('{') == std::string::npos;  // nested graphs read what they like
  std::set<std::string> listed;
  std::vector<std::string> ins, outs, constants;
  for (const Value& v : operands) {
    if (v.name.empty() || !listed.insert(v.name).second) continue;
    const auto at = std::find_if(constants_.begin(), constants_.end(),
                                 [&](const Stored& s) { return s.value.name == v.name; });
    const bool constant = at != constants_.end() && (!is_float(v.dtype) || v.numel() <= 8);
    if (constant)
      constants.push_back(type_text(v.dtype, v.dims) + " " + v.name + " = " +
                          elements_text(at->elements));
    else
      ins.push_back(type_text(v.dtype, v.dims) + " " + v.name);
    alone = alone && (constant || v.dtype != DType::i64);  // an i64 may be sizes that were computed
  }
  if (!alone) return text(results, true);
  for (const Value& v : results) outs.push_back(type_text(v.dtype, Dims{}) + "[] " + v.name);
  return written(ins, outs, constants, {lines_.back()});
}

std::string Builder::text(const std::vector<Value>& outputs, bool unfinished) const {
  auto listed = [&](const Stored& s) { return unfinished || read_.contains(s.value.name); };
  std::vector<std::string> ins, outs, constants;
  for (const Stored& s : inputs_)
    if (listed(s)) ins.push_back(type_text(s.value.dtype, s.sizes) + " " + s.value.name);
  for (const Value& v : outputs) {
    std::vector<std::string> sizes;
    for (int a = 0; open_ && a < v.rank(); ++a)
      sizes.push_back(fmt::format("O{}_{}", outs.size(), a));
    const std::string type = unfinished ? type_text(v.dtype, Dims{}) + "[]"
                             : open_    ? type_text(v.dtype, sizes)
                                        : type_text(v.dtype, v.dims);
    outs.push_back(type + " " + v.name);
  }
  for (const Stored& s : constants_)
    if (listed(s))
      constants.push_back(type_text(s.value.dtype, s.value.dims) + " " + s.value.name + " = " +
                          elements_text(s.elements));
  return written(ins, outs, constants, lines_);
}

Case Builder::finish() const {
  Case c;
  c.text = text(outputs_, false);
  for (const Stored& s : inputs_)
    if (read_.contains(s.value.name)) c.inputs[s.value.name] = s.elements;
  return c;
}

}  // namespace ferrule::fuzz
