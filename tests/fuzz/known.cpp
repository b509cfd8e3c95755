#include "tests/fuzz/known.h"
#include "engine/graph/operator_name.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>

#include "engine/graph/text.h"
#include "engine/interpreter/interpreter.h"
#include "engine/onnx/export.h"

namespace ferrule::fuzz {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kSmallFile = 64 << 10;
constexpr int64_t kMostElements = 200'000;  ///< of any value
constexpr auto kPatience = std::chrono::seconds(1);

class Changing {
 public:
  Changing(Draw& draw, Graph g) : d_(draw), g_(std::move(g)) {}

  /// What was done; "": there was nothing to do it to.
  std::string change() {
    switch (d_.below(8)) {
      case 0:
      case 1:
      case 2:
      case 3:
        return insert();
      case 4:
        return output();
      case 5:
        return retype();
      default:
        return resize();
    }
  }
  /// Sizes and inner types are to be inferred again.
  Graph finish() {
    for (size_t k = 0; k < g_.value_slots(); ++k) {
      const ValueId v{static_cast<uint32_t>(k)};
      const Value& value = g_.value(v);
      if (!value.dead && !value.is_input && !value.constant)
        g_.set_type(v, {value.type.dtype, std::nullopt}), g_.set_contents(v, {});
    }
    return std::move(g_);
  }

 private:
  using Fits = std::function<bool(const ferrule::Value&)>;
  using Value = ferrule::Value;

  std::optional<ValueId> some(const Fits& fits) {
    std::vector<ValueId> all;
    for (size_t k = 0; k < g_.value_slots(); ++k)
      if (const ValueId v{static_cast<uint32_t>(k)};
          !g_.value(v).dead && g_.value(v).type.shape && fits(g_.value(v)))
        all.push_back(v);
    return all.empty() ? std::nullopt : std::optional(d_.of(all));
  }

  /// A node of `v` in front of one of its readers, or of all.
  std::string insert() {
    const auto v = some(
        [](const Value& x) { return is_float(x.type.dtype) && !x.uses.empty() && !x.constant; });
    if (!v) return "";
    const std::vector<Use> uses = g_.value(*v).uses;
    const bool all = d_.chance(50);
    const Use one = d_.of(uses);
    const std::string op = d_.of(Strings{"Relu", "Neg", "Identity", "Sigmoid", "Abs", "Transpose",
                                         "Add", "Mul", "Cast", "Unsqueeze", "Tanh"});
    const ValueId y = behind(op, *v);
    for (const Use& u : uses)
      if ((all || u == one) && u.slot != Use::kCapture)
        g_.set_input(u.node, static_cast<size_t>(u.slot), y);
    return op + " behind " + g_.value(*v).name;
  }

  /// What is inserted; some go there and back.
  ValueId behind(const std::string& op, ValueId v) {
    const Type type = g_.value(v).type;
    if (op == "Add" || op == "Mul") return node(op, {v, operand(type)}, type.dtype);
    if (op == "Transpose") return node(op, {v}, type.dtype, {{"perm", perm(type.rank())}});
    if (op == "Cast") {
      const DType to = type.dtype == DType::f16 ? DType::f32 : DType::f16;
      return node(op, {node(op, {v}, to, {{"to", static_cast<int64_t>(to)}})}, type.dtype,
                  {{"to", static_cast<int64_t>(type.dtype)}});
    }
    if (op == "Unsqueeze") {
      const ValueId axes =
          g_.add_constant(g_.fresh_name("axes"), Tensor::of_i64({1}, {d_.between(0, type.rank())}));
      return node("Squeeze", {node(op, {v, axes}, type.dtype), axes}, type.dtype);
    }
    return node(op, {v}, type.dtype);
  }
  ValueId node(const std::string& op, std::vector<ValueId> inputs, DType dtype,
               const std::map<std::string, Attr>& attrs = {}) {
    Node n;
    n.op = op;
    n.inputs = std::move(inputs);
    for (const auto& [name, value] : attrs) n.attrs.set(name, value);
    const ValueId y = g_.add_value(g_.fresh_name("changed"), {dtype, std::nullopt});
    n.outputs = {y};
    g_.add_node(std::move(n));
    return y;
  }
  ValueId operand(const Type& type) {
    Dims dims;
    for (const Dim& dim : *type.shape) dims.push_back(d_.chance(40) ? dim.value_or(1) : 1);
    if (d_.chance(40))
      dims.erase(dims.begin(), dims.begin() + d_.between(0, static_cast<int64_t>(dims.size())));
    return g_.add_constant(g_.fresh_name("operand"),
                           draw_values(d_, type.dtype, dims, Mood::plain));
  }
  /// Two axes of the same size change places, where there are such; else none does.
  Attr perm(int rank) {
    std::vector<int64_t> p;
    for (int a = 0; a < rank; ++a) p.push_back(a);
    if (d_.chance(70)) d_.shuffle(p);
    return p;
  }

  std::string output() {
    const auto v = some([](const Value& x) { return x.producer && !x.is_output; });
    if (!v) return "";
    g_.add_output(*v);
    return "output " + g_.value(*v).name;
  }

  /// All of one float type become another.
  std::string retype() {
    const auto v =
        some([](const Value& x) { return is_float(x.type.dtype) && (x.is_input || x.constant); });
    if (!v) return "";
    const DType from = g_.value(*v).type.dtype,
                to = d_.of(std::vector<DType>{DType::f16, DType::f32, DType::f64, DType::bf16});
    for (NodeId n : g_.order())
      if (g_.node(n).subgraphs.empty() && g_.node(n).op == "Cast" &&
          g_.node(n).attrs.i("to") == static_cast<int64_t>(from))
        g_.set_attr(n, "to", static_cast<int64_t>(to));
    for (size_t k = 0; k < g_.value_slots(); ++k) {
      const ValueId id{static_cast<uint32_t>(k)};
      const Value& value = g_.value(id);
      if (value.dead || value.type.dtype != from) continue;
      if (value.constant) g_.set_constant(id, converted(*value.constant, to));
      g_.set_type(id, {to, value.type.shape});
    }
    return fmt::format("{} becomes {}", name(from), name(to));
  }
  static Tensor converted(const Tensor& t, DType to) {
    auto [out, bytes] = Tensor::allocate(to, t.dims());
    const auto size = static_cast<size_t>(size_bytes(to, 1));
    for (int64_t k = 0; k < t.numel(); ++k)
      std::memcpy(static_cast<char*>(bytes) + static_cast<size_t>(k) * size,
                  Tensor::scalar(to, t.at_f64(k)).data(), size);
    return out;
  }

  /// What nested graphs declare is of the sizes that were.
  static void forget_sizes_inside(const Graph& g) {
    for (NodeId n : g.order())
      for (const auto& [name, nested] : g.node(n).subgraphs) {
        for (uint32_t k = 0; k < nested->value_slots(); ++k)
          if (const Value& v = nested->value({k}); !v.dead && !v.constant && !v.outer)
            nested->set_type({k}, {v.type.dtype, std::nullopt});
        forget_sizes_inside(*nested);
      }
  }

  std::string resize() {
    const auto v = some([](const Value& x) { return x.is_input && x.type.rank() > 0; });
    if (!v) return "";
    Type type = g_.value(*v).type;
    const auto axis = static_cast<size_t>(d_.below(type.rank()));
    const Dim before = (*type.shape)[axis];
    const Dim after = d_.of({1, 1, 2, 3, 5, 7, before.value_or(4) + 1, 2 * before.value_or(4)});
    const bool everywhere = d_.chance(50);  // of all inputs, what was as large
    for (ValueId in : std::vector<ValueId>(g_.inputs())) {
      Type t = g_.value(in).type;
      if (!t.shape || (in != *v && !everywhere)) continue;
      for (size_t a = 0; a < t.shape->size(); ++a)
        if ((in == *v && a == axis) || (everywhere && (*t.shape)[a] == before))
          (*t.shape)[a] = after;
      g_.set_type(in, t);
    }
    forget_sizes_inside(g_);
    return fmt::format("{} of {} becomes {}", before.str(), g_.value(*v).name, after.str());
  }

  Draw& d_;
  Graph g_;
};

/// Values for the inputs; a symbol has one size everywhere.
std::optional<std::map<std::string, Tensor>> inputs_of(Draw& d, const Graph& g) {
  std::map<std::string, Tensor> all;
  std::map<std::string, int64_t> symbols;
  const auto mood = static_cast<Mood>(d.of({0, 1, 1, 1, 2, 3}));
  for (ValueId v : g.inputs()) {
    const auto& value = g.value(v);
    if (!value.type.known() || value.type.dtype == DType::string || size_bits(value.type.dtype) < 8)
      return std::nullopt;
    Dims dims;
    int64_t elements = 1;
    for (const Dim& dim : *value.type.shape) {
      if (!dim.is_constant() && !symbols.contains(dim.str()))
        symbols[dim.str()] = d.of({1, 2, 3, 5, 8});
      dims.push_back(dim.is_constant() ? dim.value_or(0) : symbols[dim.str()]);
      elements *= dims.back();
    }
    if (elements > kMostElements) return std::nullopt;
    all[value.name] = draw_values(d, value.type.dtype, dims, mood);
  }
  return all;
}

/// What the interpreter makes of it; nullopt: nothing in time, or nothing that could tell right
/// from wrong.
bool tells(const Graph& g, const std::map<std::string, Tensor>& inputs, const Language& language,
           std::string& why) {
  Cancel cancel;
  cancel.deadline(std::chrono::steady_clock::now() + kPatience);
  InterpreterOptions options;
  options.ops = language.ops;
  options.cancel = &cancel;
  std::vector<Tensor> in;
  for (ValueId v : g.inputs()) in.push_back(inputs.at(g.value(v).name));
  auto out = interpret(g, in, options);
  why = out ? "its results say nothing" : out.error().message;
  return out && std::ranges::none_of(*out, [](const Tensor& t) {
           return t.dtype() == DType::string || t.numel() > kMostElements || says_nothing(t);
         });
}

Result<Graph> read(const Known& known, const Language& language) {
  FERRULE_ASSIGN(Imported imported, known.path.empty() ? import_text(known.text, language.import)
                                                       : import_file(known.path, language.import));
  return std::move(imported.graph);
}

/// nullopt: none of these changes give a model.
std::optional<Case> changed(Draw& d, const Language& language, const Known& known,
                            std::map<std::string, int>& refused) {
  auto refuse = [&](const std::string& why) {
    ++refused[why];
    return std::nullopt;
  };
  auto original = read(known, language);
  if (!original) return refuse(known.name + ": " + original.error().message);
  if (original->live_nodes() > 150) return refuse(known.name + ": too many nodes");
  Changing changing(d, std::move(*original));
  Case c;
  c.text = "# " + known.name;
  for (int64_t n = d.between(1, 3); n > 0; --n)
    if (const std::string what = changing.change(); !what.empty()) c.text += "; " + what;
  auto bytes = export_bytes(changing.finish());
  auto imported = bytes ? import_bytes(*bytes, language.import) : fail(bytes.error());
  if (!imported) return refuse("changed: " + imported.error().message.substr(0, 60));
  auto inputs = inputs_of(d, imported->graph);
  if (!inputs) return refuse("its inputs");
  std::string why;
  if (!tells(imported->graph, *inputs, language, why))
    return refuse("changed: " + why.substr(0, 60));
  c.model = *bytes;
  c.inputs = std::move(*inputs);
  c.text += "\n" + to_text(imported->graph) + "\n";
  return c;
}

}  // namespace

std::vector<Known> known_models(const RuleSet& rules, const std::vector<std::string>& folders) {
  std::vector<Known> all;
  for (const auto& rule : rules.rules)
    for (const RuleTest& test : rule->tests)
      if (!test.model.empty())
        all.push_back({fmt::format("rule {}, {}", rule->id, test.name), "", test.model});
  const size_t cases = all.size();
  for (const std::string& folder : folders)
    for (const auto& entry : fs::recursive_directory_iterator(folder))
      if (entry.path().extension() == ".onnx" && entry.file_size() < kSmallFile)
        all.push_back({entry.path().string(), entry.path().string(), ""});
  std::sort(all.begin() + static_cast<std::ptrdiff_t>(cases), all.end(),
            [](const Known& a, const Known& b) { return a.path < b.path; });
  return all;
}

Case draw_known(Draw& draw, const Language& language, const std::vector<Known>& models,
                std::map<std::string, int>& refused) {
  for (int tries = 0; tries < 200 && !models.empty(); ++tries)
    if (auto c = changed(draw, language, draw.of(models), refused)) return *c;
  Builder b(draw, language);  // no models, or none that can be changed
  b.output(*b.node("Neg", {b.input(DType::f32, {4}, Mood::plain)}));
  return b.finish();
}

}  // namespace ferrule::fuzz
