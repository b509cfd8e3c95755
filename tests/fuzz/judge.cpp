#include "tests/fuzz/judge.h"

#include <algorithm>
#include <cmath>

#include "engine/graph/compare.h"
#include "engine/graph/interpreter.h"
#include "engine/graph/npz.h"
#include "engine/onnx/export.h"

namespace ferrule::fuzz {
namespace {

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

std::string warned(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "warning: " + line + "\n";
  return out;
}

}  // namespace

std::string Configuration::text() const { return fmt::format("--target {} --threads {}{}", target, threads, strict ? " --strict" : fast_math ? " --fast-math" : ""); }

Result<Judge> Judge::load(const std::string& rules) {
  Judge j;
  j.rules_ = rules;
  for (const char* target : {"cpu-avx2", "cpu-avx512"}) {
    if (target == std::string_view("cpu-avx512") && !__builtin_cpu_supports("avx512f")) continue;
    EngineOptions options;
    options.rule_dirs = {rules};
    options.target = target;
    options.cache.clear();
    options.allow_unproven = true;  // proofs are another test's; without stamps they would be made here, each time
    FERRULE_ASSIGN(j.fused_[target], load_knowledge(options));
    options.selection.disable = {"*"};
    FERRULE_ASSIGN(j.plain_[target], load_knowledge(options));
  }
  const OpTable* ops = &j.fused_.begin()->second->ops;
  j.import_.known_operator = [ops](std::string_view domain, std::string_view op) { return ops->find(domain, op) != nullptr; };
  return j;
}

Configuration Judge::draw(Draw& draw) const {
  std::vector<std::string> targets;
  for (const auto& [name, knowledge] : fused_) targets.push_back(name);
  return {draw.of(targets), static_cast<int>(draw.of({1, 2, 4})), draw.chance(33)};
}

Result<Graph> Judge::graph(const Case& c) const {
  FERRULE_ASSIGN(Imported imported, import_text(c.text, import_));
  return std::move(imported.graph);
}

Result<Judge::Named> Judge::interpreted(const Graph& g, const Case& c, bool f64) const {
  InterpreterOptions options;
  options.ops = &fused_.begin()->second->ops;
  options.f64 = f64;
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) inputs.push_back(c.inputs.at(g.value(v).name));
  FERRULE_ASSIGN(auto results, interpret(g, inputs, options));
  Named named;
  for (size_t k = 0; k < results.size(); ++k) named[g.value(g.outputs()[k]).name] = results[k];
  return named;
}

Result<Judge::Ran> Judge::run(const Case& c, const Configuration& configuration, bool fused) const {
  FERRULE_ASSIGN(Graph g, graph(c));
  Ran ran;
  SessionOptions options;
  options.engine.rule_dirs = {rules_};
  options.engine.target = configuration.target;
  options.engine.cache.clear();
  options.backend = "cpu";
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

void Judge::compare(const Named& got, const Named& want, const Case& c, Verdict& verdict) const {
  std::optional<Named> exact;
  for (const auto& [name, w] : want) {
    const auto it = got.find(name);
    if (it == got.end()) {
      verdict = {Verdict::failed, fmt::format("no output {}", name)};
      return;
    }
    const Tolerance allowed = model_tolerance(is_float(w.dtype()) && c.coarsest == DType::f16 ? DType::f16 : w.dtype());
    const Difference d = ferrule::compare(it->second, w, allowed);
    verdict.says_nothing = verdict.says_nothing || d.mistrusted;
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

Verdict Judge::judge(const Case& c, const Configuration& configuration) const {
  auto g = graph(c);
  if (!g) return {Verdict::failed, "import: " + g.error().message};
  auto want = interpreted(*g, c, false);
  auto got = run(c, configuration, true);
  if (!want && !got) return {Verdict::skipped, want.error().message};
  // What comes out of a Loop may have any size, as far as ONNX's inference knows: plans do not take it, and say so.
  if (want && !got && got.error().message.ends_with("it must be known before a run")) return {Verdict::skipped, "sizes that only a run knows"};
  if (!want || !got) {
    const Error& e = want ? got.error() : want.error();
    return {Verdict::failed, fmt::format("{}, the other does not: {}: {}", want ? "the backend refuses it" : "the interpreter refuses it", e.place, e.message)};
  }
  Verdict verdict;
  compare(got->outputs, *want, c, verdict);
  verdict.warnings = got->warnings;
  // What `explain` counts as a kernel is one; only of an empty operand there is nothing to compute.
  auto refused = [](const std::string& text) {
    return text.find("the interpreter runs it") != text.npos && text.find("an empty operand") == text.npos;
  };
  if (auto w = std::ranges::find_if(got->warnings, refused); w != got->warnings.end() && verdict.kind == Verdict::passed)
    verdict.kind = Verdict::failed, verdict.text = *w;
  return verdict;
}

std::string Judge::explain(const Case& c, const Configuration& configuration) const {
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
