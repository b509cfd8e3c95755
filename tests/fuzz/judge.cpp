#include "tests/fuzz/judge.h"

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/graph/compare.h"
#include "engine/graph/interpreter.h"
#include "engine/graph/npz.h"
#include "engine/onnx/export.h"
#include "runtime/registry.h"

namespace ferrule::fuzz {
namespace {

/// What the stub libraries stand for.
const std::string kGpu = "sm_90";

/// A wider result in the element type that the plan has.
double rounded(double value, DType dtype) {
  if (dtype == DType::f32) return static_cast<float>(value);
  if (dtype == DType::f16) return f16_to_float(float_to_f16(static_cast<float>(value)));
  if (dtype == DType::bf16) return bf16_to_float(float_to_bf16(static_cast<float>(value)));
  return value;
}

bool same_kind(double a, double b) {
  return (std::isfinite(a) && std::isfinite(b)) || (std::isnan(a) && std::isnan(b)) || a == b;
}

/// As beyond(), of all elements together: -1, or the furthest off.
int64_t beyond_together(const Tensor& got, const Tensor& want, const Tensor& exact, const Tolerance& allowed) {
  double ours = 0, theirs = 0, size = 0, worst = -1;
  int64_t at = -1;
  for (int64_t k = 0; k < got.numel(); ++k) {
    const double g = got.at_f64(k), w = want.at_f64(k), e = rounded(exact.at_f64(k), got.dtype());
    if (!std::isfinite(g) || !std::isfinite(w) || !std::isfinite(e)) continue;
    ours = std::hypot(ours, g - e), theirs = std::hypot(theirs, w - e), size = std::hypot(size, e);
    if (std::abs(g - e) > worst) worst = std::abs(g - e), at = k;
  }
  const double bound = allowed.norm * size + allowed.least * std::sqrt(static_cast<double>(got.numel()));
  return ours > std::max(bound, kReducedFactor * theirs) ? at : -1;
}

/// The plan's result where it and the interpreter's disagree: -1 where it is no further from f64 than the interpreter's,
/// times the factor of tolerance.h, or within the tolerance; else the first element that is. What overflows on the way
/// may do so in either.
int64_t beyond(const Tensor& got, const Tensor& want, const Tensor& exact, const Tolerance& allowed) {
  double largest = 1, off = 0;
  for (int64_t k = 0; k < got.numel(); ++k) {
    const double e = rounded(exact.at_f64(k), got.dtype()), w = want.at_f64(k);
    if (!std::isfinite(e)) continue;
    largest = std::max(largest, std::abs(e));
    if (std::isfinite(w)) off = std::max(off, std::abs(w - e));
  }
  for (int64_t k = 0; k < got.numel(); ++k) {
    const double g = got.at_f64(k), w = want.at_f64(k), e = rounded(exact.at_f64(k), got.dtype());
    if (!same_kind(g, w) && !same_kind(g, e)) return k;
    if (!std::isfinite(g) || g == w) continue;
    const double bound = allowed.relative * std::abs(e) + allowed.absolute * largest;
    if (std::isfinite(e) && std::abs(g - e) > std::max(bound, kReducedFactor * off)) return k;
  }
  return beyond_together(got, want, exact, allowed);
}

/// Whether floats become integers: what NaN becomes then, ONNX leaves open.
bool rounds_to_integers(const Graph& g) {
  return std::ranges::any_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    return !n.inputs.empty() && n.inputs[0] && is_float(g.value(n.inputs[0]).type.dtype) &&
           std::ranges::any_of(n.outputs, [&](ValueId v) { return v && is_int(g.value(v).type.dtype); });
  });
}

bool has_empty(const Graph& g) {
  for (size_t k = 0; k < g.value_slots(); ++k) {
    const auto& v = g.value(ValueId{static_cast<uint32_t>(k)});
    if (!v.dead && v.type.shape && std::ranges::any_of(*v.type.shape, [](const Dim& d) { return d.constant() == 0; })) return true;
  }
  return false;
}

std::string warned(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "warning: " + line + "\n";
  return out;
}

}  // namespace

std::string Configuration::text() const {
  std::string out = fmt::format("--backend {} --target {} --threads {}", backend, target, threads);
  for (const auto& [on, option] : {std::pair{strict, " --strict"}, {fast_math, " --fast-math"}, {functions, " --functions"}})
    if (on) out += option;
  return out;
}

Result<Judge> Judge::load(const JudgeOptions& o) {
  Judge j;
  j.options_ = o;
  std::vector<std::string> targets{"cpu-avx2"};
  if (__builtin_cpu_supports("avx512f")) targets.push_back("cpu-avx512");
  if (find_backend("cuda")) targets.push_back(kGpu);
  for (const std::string& target : targets) {
    EngineOptions options;
    options.rule_dirs = {o.rules};
    options.target = target;
    options.cache.clear();
    if (o.allow_unproven || target != targets.front()) options.allow_unproven = {"*"};  // they are the same for every target
    FERRULE_ASSIGN(j.fused_[target], load_knowledge(options));
    options.selection.disable = {"*"};
    FERRULE_ASSIGN(j.plain_[target], load_knowledge(options));
  }
  const OpTable* ops = &j.fused_.begin()->second->ops;
  j.language_.ops = ops;
  j.language_.import.known_operator = [ops](std::string_view domain, std::string_view op) { return ops->find(domain, op) != nullptr; };
  if (!o.python.empty()) j.onnx_runtime_ = std::make_shared<OnnxRuntime>(o.python, o.rules + "/../tests/fuzz/elsewhere.py", o.scratch);
  return j;
}

Configuration Judge::draw(Draw& draw) const {
  std::vector<std::string> targets;
  for (const auto& [name, knowledge] : fused_)
    if (name != kGpu) targets.push_back(name);
  Configuration c{"cpu", draw.of(targets), static_cast<int>(draw.of({1, 2, 4})), draw.chance(33), draw.chance(20), draw.chance(50)};
  c.fast_math = c.fast_math && !c.strict;
  if (const int64_t kind = draw.below(100); kind < 4) c.backend = "cuda", c.target = kGpu, c.threads = 1;
  else if (kind < 16) c.backend = "export", c.strict = c.fast_math = false;
  c.functions = c.functions && c.backend == "export";
  return c;
}

Result<Graph> Judge::graph(const Case& c) const {
  FERRULE_ASSIGN(Imported imported, c.model.empty() ? import_text(c.text, language_.import) : import_bytes(c.model, language_.import));
  return std::move(imported.graph);
}

Result<Named> Judge::interpreted(const Graph& g, const Case& c, bool f64) const {
  InterpreterOptions options;
  options.ops = language_.ops;
  options.f64 = f64;
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) inputs.push_back(c.inputs.at(g.value(v).name));
  FERRULE_ASSIGN(auto results, interpret(g, inputs, options));
  Named named;
  for (size_t k = 0; k < results.size(); ++k) named[g.value(g.outputs()[k]).name] = results[k];
  return named;
}

/// Whether some value on the way is NaN.
bool Judge::makes_nan(const Case& c) const {
  auto g = graph(c);
  bool found = false;
  auto look = [&](const Tensor& t) {
    for (int64_t k = 0; is_float(t.dtype()) && k < t.numel() && !found; ++k) found = std::isnan(t.at_f64(k));
  };
  InterpreterOptions options;
  options.ops = language_.ops;
  options.on_node = [&](const Graph&, NodeId, const std::vector<Tensor>& results) { std::ranges::for_each(results, look); };
  std::vector<Tensor> inputs;
  for (ValueId v : g->inputs()) inputs.push_back(c.inputs.at(g->value(v).name));
  std::ranges::for_each(inputs, look);
  (void)interpret(*g, inputs, options);
  return found;
}

Result<Judge::Ran> Judge::run(const Case& c, const Configuration& configuration, bool fused) const {
  if (configuration.backend == "export" && fused) return exported(c, configuration);
  if (!options_.program.empty() && fused) return by_program(c, configuration);
  FERRULE_ASSIGN(Graph g, graph(c));
  Ran ran;
  SessionOptions options;
  options.engine.rule_dirs = {options_.rules};
  options.engine.target = configuration.target;
  options.engine.cache.clear();
  options.backend = configuration.backend == "cuda" ? "cuda" : "cpu";
  options.threads = configuration.threads;
  options.strict = configuration.strict;
  options.fast_math = configuration.fast_math;
  options.log = [&](LogLevel level, std::string_view text) {
    if (level <= LogLevel::warning) ran.warnings.emplace_back(text);
  };
  FERRULE_ASSIGN(Session session, Session::from_graph(std::move(g), (fused ? fused_ : plain_).at(configuration.target), options));
  FERRULE_ASSIGN(ran.outputs, session.run(c.inputs));
  Shapes shapes;
  for (const auto& [name, tensor] : c.inputs) shapes[name] = tensor.dims();
  FERRULE_ASSIGN(Compiled * compiled, session.compile(shapes));
  for (const Layer& layer : compiled->plan().layers) ran.layers += fmt::format("  {}  [{}] {}\n", layer.name, layer.contract, layer.rule);
  return ran;
}

/// What `ferrule fuse` writes, read again.
Result<Judge::Ran> Judge::exported(const Case& c, const Configuration& configuration) const {
  FERRULE_ASSIGN(Graph g, graph(c));
  EngineOptions options;
  options.rule_dirs = {options_.rules};
  options.target = configuration.target;
  options.cache.clear();
  FERRULE_ASSIGN(Fused fused, fuse(std::move(g), *fused_.at(configuration.target), options));
  Ran ran;
  for (NodeId n : fused.graph.order()) ran.layers += fmt::format("  {}  {}\n", fused.graph.node(n).name, fused.graph.node(n).rule);
  ExportOptions how;
  how.functions = configuration.functions;
  FERRULE_ASSIGN(ran.model, export_bytes(fused.graph, how));
  FERRULE_ASSIGN(Imported read, import_bytes(ran.model, language_.import));
  FERRULE_ASSIGN(ran.outputs, interpreted(read.graph, c, false));
  return ran;
}

Result<Judge::Ran> Judge::by_program(const Case& c, const Configuration& configuration) const {
  const std::string stem = options_.scratch->file("case"), out = options_.scratch->file("results.npz");
  FERRULE_TRY(keep(c, stem));
  const Ended ended = run_command(fmt::format("timeout -s KILL 15 {} run {}.onnx --inputs {}.npz --outputs {} --force {}", options_.program, stem, stem, out,
                                              configuration.text()));
  if (ended.status != 0) return error(Code::usage, fmt::format("status {}", ended.status), ended.errors.substr(0, 300));
  Ran ran;
  std::istringstream lines(ended.errors);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("warning")) ran.warnings.push_back(line);
  FERRULE_ASSIGN(ran.outputs, read_npz(out));
  return ran;
}

void Judge::compare(const Named& got, const Named& want, const Case& c, Verdict& verdict) const {
  std::optional<Named> exact;
  for (const auto& [name, w] : want) {
    const auto it = got.find(name);
    if (it == got.end()) {
      verdict = {Verdict::failed, fmt::format("no output {}", name)};
      return;
    }
    const Tolerance allowed = model_tolerance(is_float(w.dtype()) && c.coarsest != DType::f32 ? c.coarsest : w.dtype());
    const Difference d = ferrule::compare(it->second, w, allowed);
    verdict.says_nothing = verdict.says_nothing || says_nothing(w);
    if (d.ok) continue;
    int64_t at = d.at;
    if (d.at >= 0 && is_float(w.dtype())) {
      if (!exact) {
        auto g = graph(c);
        if (auto e = g ? interpreted(*g, c, true) : fail(g.error())) exact = *e;
      }
      if (exact) at = beyond(it->second, w, exact->at(name), allowed);
      verdict.arbitrated = at < 0;
      if (at < 0) continue;
    }
    verdict.kind = Verdict::failed;
    verdict.text = fmt::format("output {}: {}", name, d.text);
    if (exact) verdict.text += fmt::format("; element {} is {}, {} in f64", at, it->second.at_f64(at), exact->at(name).at_f64(at));
    return;
  }
}

/// What ONNX Runtime makes of what was written, against what it makes of the graph as it came.
void Judge::in_onnx_runtime(const Case& c, const std::string& model, const Named& want, Verdict& verdict) const {
  if (!onnx_runtime_) {
    verdict.aside = "ONNX Runtime is not here";
    return;
  }
  auto g = graph(c);
  if (g && has_empty(*g)) {  // its operators refuse them, each in its own way
    verdict.aside = "ONNX Runtime is not asked about values without elements";
    return;
  }
  auto plain = g ? export_bytes(*g) : fail(g.error());
  auto before = plain ? onnx_runtime_->run(*plain, c.inputs) : fail(plain.error());
  if (!before) {
    verdict.aside = "ONNX Runtime does not run the graph: " + before.error().message.substr(0, 90);
    return;
  }
  auto after = onnx_runtime_->run(model, c.inputs);
  if (after) compare(*after, *before, c, verdict);
  else verdict.kind = Verdict::failed, verdict.text = after.error().message;
  if (verdict.kind == Verdict::failed && rounds_to_integers(*g) && makes_nan(c)) {
    verdict = {Verdict::passed, "", "NaN that becomes an integer"};
    return;
  }
  if (verdict.kind == Verdict::failed && after) {
    // Its QuantizeLinear multiplies where the standard divides, say: what was written is right when the interpreter says so.
    Verdict right;
    compare(*after, want, c, right);
    if (right.kind == Verdict::passed) verdict = {}, verdict.aside = "ONNX Runtime differs from what its operators are made of";
  }
  if (verdict.kind == Verdict::failed) {
    verdict.text = "ONNX Runtime, what was written against the graph: " + verdict.text;
    return;
  }
  Verdict other;
  compare(*before, want, c, other);
  if (other.kind == Verdict::failed) verdict.aside = "ONNX Runtime and the interpreter differ: " + other.text;
}

Verdict Judge::judge(const Case& c, const Configuration& configuration) const {
  auto g = graph(c);
  if (!g) return {Verdict::failed, "import: " + g.error().message};
  if (!fused_.contains(configuration.target)) return {Verdict::skipped, "the stub GPU is not here"};
  auto want = interpreted(*g, c, false);
  auto got = run(c, configuration, true);
  if (!want && !got) return {Verdict::skipped, want.error().message};
  // What comes out of a Loop may have any size, as far as ONNX's inference knows: plans do not take it, and say so.
  if (want && !got && got.error().code == Code::size_unknown) return {Verdict::skipped, "sizes that only a run knows"};
  if (!want || !got) {
    const Error& e = want ? got.error() : want.error();
    return {Verdict::failed, fmt::format("{}, the other does not: {}: {}", want ? "the backend refuses it" : "the interpreter refuses it", e.place, e.message)};
  }
  Verdict verdict;
  compare(got->outputs, *want, c, verdict);
  if (verdict.kind == Verdict::failed && rounds_to_integers(*g) && makes_nan(c)) return {Verdict::passed, "", "NaN that becomes an integer"};
  const bool hides_nan = configuration.fast_math || (configuration.backend == "cuda" && !configuration.strict);
  if (verdict.kind == Verdict::failed && hides_nan && makes_nan(c)) {
    // Library tails make numbers of NaN then (explain says so), and anything may come of that; nothing else may differ.
    Configuration careful = configuration;
    careful.fast_math = false, careful.strict = configuration.backend == "cuda";
    verdict = judge(c, careful);
    verdict.aside = "NaN that a library's tail made a number of";
    return verdict;
  }
  verdict.warnings = got->warnings;
  if (configuration.backend == "export" && verdict.kind == Verdict::passed) in_onnx_runtime(c, got->model, *want, verdict);
  // What `explain` counts as a kernel is one; only of an empty operand or image there is nothing to compute.
  auto refused = [](const std::string& text) {
    return text.find("the interpreter runs it") != text.npos && text.find("cannot run here: an empty ") == text.npos;
  };
  if (auto w = std::ranges::find_if(got->warnings, refused); w != got->warnings.end() && verdict.kind == Verdict::passed)
    verdict.kind = Verdict::failed, verdict.text = *w;
  return verdict;
}

std::string Judge::explain(const Case& c, const Configuration& configuration) const {
  if (!fused_.contains(configuration.target)) return "";
  auto g = graph(c);
  auto want = g ? interpreted(*g, c, false) : fail(g.error());
  auto plain = run(c, configuration, false), fused = run(c, configuration, true);
  std::string out;
  if (fused) out += fused->layers + warned(fused->warnings);
  if (!want || !plain) return out + "without rules: " + (plain ? "runs" : plain.error().message) + "\n";
  Verdict verdict;
  compare(plain->outputs, *want, c, verdict);
  return out + "without rules: " + (verdict.kind == Verdict::passed ? "right" : "wrong, too: " + verdict.text) + "\n";
}

Status Judge::keep(const Case& c, const std::string& path) const {
  FERRULE_ASSIGN(Graph g, graph(c));
  ExportOptions options;
  options.force = true;
  FERRULE_TRY(export_file(g, path + ".onnx", options));
  return write_npz(path + ".npz", c.inputs, true);
}

}  // namespace ferrule::fuzz
