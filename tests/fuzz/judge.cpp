#include "tests/fuzz/judge.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "engine/graph/compare.h"
#include "engine/graph/npz.h"
#include "engine/graph/operator_name.h"
#include "engine/interpreter/interpreter.h"
#include "engine/onnx/export.h"
#include "engine/rewrite/replacement.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/registry.h"
#include "tests/fuzz/beyond.h"
#include "tests/fuzz/noise.h"

namespace ferrule::fuzz {
namespace {

const char* const kOpen = "NaN, or a number out of its range, that becomes an integer";

/// What the stub libraries stand for.
const std::string kGpu = "sm_90";

/// The float type with the widest tolerance that numbers are rounded to on the way.
DType coarsest(const Graph& g) {
  auto coarser = [](DType a, DType b) {
    return model_tolerance(a).relative > model_tolerance(b).relative;
  };
  DType found = DType::f64;
  for (size_t k = 0; k < g.value_slots(); ++k) {
    const auto& v = g.value(ValueId{static_cast<uint32_t>(k)});
    if (!v.dead && (v.type.dtype == DType::f16 || v.type.dtype == DType::bf16) &&
        coarser(v.type.dtype, found))
      found = v.type.dtype;
  }
  auto has = [&](const auto& values, DType t) {
    return std::ranges::any_of(values, [&](ValueId v) { return v && g.value(v).type.dtype == t; });
  };
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (has(n.inputs, DType::f64) && has(n.outputs, DType::f32) && coarser(DType::f32, found))
      found = DType::f32;
    for (const auto& [name, nested] : n.subgraphs)
      if (const DType t = coarsest(*nested); coarser(t, found)) found = t;
  }
  return found;
}

Tolerance tolerance_of(DType result, DType coarsest) {
  const Tolerance own = model_tolerance(result), other = model_tolerance(coarsest);
  return is_float(result) && other.relative > own.relative ? other : own;
}

/// A factor that becomes part of weights rounds them once more, to a neighbour in their type.
void round_weights(Graph& g, Draw& noise) {
  for (size_t k = 0; k < g.value_slots(); ++k) {
    const ValueId v{static_cast<uint32_t>(k)};
    if (const Tensor* t = g.constant(v);
        t && !g.value(v).dead && is_float(t->dtype()) && t->rank() >= 2)
      g.set_constant(v, converted(off_by_rounding(*t, t->dtype(), noise), t->dtype()));
  }
}

/// Finite floats no further from 0 than `most`.
Tensor clamped(const Tensor& t, double most) {
  if (!is_float(t.dtype())) return t;
  std::vector<double> values = t.to_f64();
  for (double& v : values)
    if (std::isfinite(v)) v = std::clamp(v, -most, most);
  return converted(Tensor::of<double>(DType::f64, t.dims(), values), t.dtype());
}

/// `exact`, and `otherwise` in its place where that is not finite; both in f64.
Tensor finite_or(const Tensor& exact, const Tensor& otherwise) {
  std::vector<double> values = exact.to_f64();
  for (size_t k = 0; k < values.size() && exact.dims() == otherwise.dims(); ++k)
    if (!std::isfinite(values[k])) values[k] = otherwise.at_f64(static_cast<int64_t>(k));
  return Tensor::of<double>(DType::f64, exact.dims(), values);
}

/// Whether floats become integers: what NaN becomes then, ONNX leaves open.
bool rounds_to_integers(const Graph& g) {
  return std::ranges::any_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    return !n.inputs.empty() && n.inputs[0] && is_float(g.value(n.inputs[0]).type.dtype) &&
           std::ranges::any_of(n.outputs,
                               [&](ValueId v) { return v && is_int(g.value(v).type.dtype); });
  });
}

bool has_empty(const Graph& g) {
  for (size_t k = 0; k < g.value_slots(); ++k) {
    const auto& v = g.value(ValueId{static_cast<uint32_t>(k)});
    if (!v.dead && v.type.shape &&
        std::ranges::any_of(*v.type.shape, [](const Dim& d) { return d.constant() == 0; }))
      return true;
  }
  return false;
}

std::string warned(const std::vector<std::string>& lines) {
  std::string out;
  for (const std::string& line : lines) out += "warning: " + line + "\n";
  return out;
}

/// Asked in a child: a driver of NVIDIA's that was begun here would be lost to the workers, which
/// are children, too.
bool there(const char* backend) {
  const pid_t child = fork();
  if (child == 0) _exit(find_backend(backend) ? 0 : 1);
  int status = 1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

}  // namespace

std::string Configuration::text() const {
  std::string out = fmt::format("--backend {} --target {} --threads {}", backend, target, threads);
  for (const auto& [on, option] :
       {std::pair{strict, " --strict"}, {fast_math, " --fast-math"}, {functions, " --functions"}})
    if (on) out += option;
  return out;
}

Result<Judge> Judge::load(const JudgeOptions& o) {
  Judge j;
  j.options_ = o;
  std::vector<std::string> targets{"cpu-avx2"};
  if (__builtin_cpu_supports("avx512f")) targets.push_back("cpu-avx512");
  if (there("cuda")) targets.push_back(kGpu);
  for (const std::string& target : targets) {
    EngineOptions options;
    options.rule_dirs = {o.rules};
    options.target = target;
    options.cache.clear();
    if (o.allow_unproven || target != targets.front())
      options.allow_unproven = {"*"};  // they are the same for every target
    FERRULE_ASSIGN(j.fused_[target], load_knowledge(options));
    options.selection.disable = {"*"};
    FERRULE_ASSIGN(j.plain_[target], load_knowledge(options));
  }
  const Semantics* ops = &j.fused_.begin()->second->ops;
  j.language_.ops = ops;
  j.language_.import.ops = ops;
  if (!o.python.empty())
    j.onnx_runtime_ =
        std::make_shared<OnnxRuntime>(o.python, o.rules + "/../tests/fuzz/elsewhere.py", o.scratch);
  return j;
}

Configuration Judge::draw(Draw& draw) const {
  std::vector<std::string> targets;
  for (const auto& [name, knowledge] : fused_)
    if (name != kGpu) targets.push_back(name);
  Configuration c{"cpu",           draw.of(targets), static_cast<int>(draw.of({1, 2, 4})),
                  draw.chance(33), draw.chance(20),  draw.chance(50)};
  c.fast_math = c.fast_math && !c.strict;
  if (const int64_t kind = draw.below(100); kind < 4)
    c.backend = "cuda", c.target = kGpu, c.threads = 1;
  else if (kind < 16)
    c.backend = "export", c.strict = c.fast_math = false;
  c.functions = c.functions && c.backend == "export";
  return c;
}

Result<Graph> Judge::graph(const Case& c) const {
  FERRULE_ASSIGN(Imported imported, c.model.empty() ? import_text(c.text, language_.import)
                                                    : import_bytes(c.model, language_.import));
  return std::move(imported.graph);
}

Result<Named> Judge::interpreted(const Graph& g, const Case& c, InterpreterOptions options) const {
  options.ops = language_.ops;
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) inputs.push_back(c.inputs.at(g.value(v).name));
  FERRULE_ASSIGN(auto results, interpret(g, inputs, options));
  Named named;
  for (size_t k = 0; k < results.size(); ++k) named[g.value(g.outputs()[k]).name] = results[k];
  return named;
}

namespace {

/// In which kernels compute the node's formula.
DType type_of_steps(const Graph& g, const Node& n) {
  return g.value(n.outputs[0]).type.dtype == DType::f64 ? DType::f64 : DType::f32;
}

}  // namespace

Result<Named> Judge::interpreted(const Graph& g, const Case& c, bool f64, Draw* noise) const {
  InterpreterOptions options;
  options.f64 = f64;
  auto round_steps = [&](const Graph& of, const Node& n, Program& p) {
    p = with_rounding(p, type_of_steps(of, n), *noise);
  };
  auto round_results = [&](const Graph& of, NodeId id, std::vector<Tensor>& results) {
    const Node& n = of.node(id);
    for (size_t k = 0; k < n.outputs.size() && k < results.size(); ++k) {
      if (!n.outputs[k] || results[k].dtype() != DType::f64) continue;
      const DType t = of.value(n.outputs[k]).type.dtype;
      const bool by_last_step = language_.ops->pointwise(n) && t != DType::f16 && t != DType::bf16;
      if (!by_last_step) results[k] = off_by_rounding(results[k], t, *noise);
    }
  };
  if (noise) options.on_program = round_steps, options.on_node = round_results;
  return interpreted(g, c, std::move(options));
}

Result<Named> Judge::overflowing(const Graph& g, const Case& c) const {
  InterpreterOptions options;
  options.f64 = true;
  options.on_program = [](const Graph& of, const Node& n, Program& p) {
    p = computed_in(p, type_of_steps(of, n));
  };
  options.on_node = [](const Graph& of, NodeId id, std::vector<Tensor>& results) {
    const Node& n = of.node(id);
    for (size_t k = 0; k < n.outputs.size() && k < results.size(); ++k)
      if (n.outputs[k] && results[k].dtype() == DType::f64)
        results[k] = overflowing_early(results[k], of.value(n.outputs[k]).type.dtype);
  };
  return interpreted(g, c, std::move(options));
}

/// Whether some value on the way is NaN.
bool Judge::makes_nan(const Case& c) const {
  auto g = graph(c);
  bool found = false;
  auto look = [&](const Tensor& t) {
    for (int64_t k = 0; is_float(t.dtype()) && k < t.numel() && !found; ++k)
      found = std::isnan(t.at_f64(k));
  };
  InterpreterOptions options;
  options.ops = language_.ops;
  options.on_node = [&](const Graph&, NodeId, const std::vector<Tensor>& results) {
    std::ranges::for_each(results, look);
  };
  std::vector<Tensor> inputs;
  for (ValueId v : g->inputs()) inputs.push_back(c.inputs.at(g->value(v).name));
  std::ranges::for_each(inputs, look);
  (void)interpret(*g, inputs, options);
  return found;
}

/// Whether some number becomes an integer that ONNX leaves open: NaN, and by Cast what the
/// integer's type does not reach to.
bool Judge::leaves_integers_open(const Graph& g, const Case& c) const {
  if (!rounds_to_integers(g)) return false;
  if (makes_nan(c)) return true;
  bool found = false;
  Named values = c.inputs;
  auto look = [&](const Graph& of, NodeId id, const std::vector<Tensor>& results) {
    const Node& n = of.node(id);
    for (size_t k = 0; k < n.outputs.size() && k < results.size(); ++k)
      if (n.outputs[k]) values[of.value(n.outputs[k]).name] = results[k];
    const DType to = results[0].dtype();
    auto number = [&](ValueId v) {
      const Tensor* t = of.constant(v);
      const auto held = values.find(of.value(v).name);
      return t || held == values.end() ? t : &held->second;
    };
    if (n.op == "QuantizeLinear") {  // by 0, an infinity or NaN
      const Tensor* scale = number(n.inputs[1]);
      for (int64_t k = 0; scale && k < scale->numel(); ++k)
        found = found || !(std::abs(1 / scale->at_f64(k)) > 0 && scale->at_f64(k) != 0);
    }
    if (n.op != "Cast" || !is_int(to)) return;
    const Tensor* from = number(n.inputs[0]);
    const double most = std::ldexp(1.0, size_bits(to) - is_signed_int(to)),
                 least = is_signed_int(to) ? -most : 0;
    for (int64_t k = 0; from && is_float(from->dtype()) && k < from->numel(); ++k)
      found = found || std::trunc(from->at_f64(k)) < least || std::trunc(from->at_f64(k)) >= most;
  };
  InterpreterOptions options;
  options.ops = language_.ops;
  options.on_node = look;
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) inputs.push_back(c.inputs.at(g.value(v).name));
  (void)interpret(g, inputs, options);
  return found;
}

/// Results in f64 that are off by what rounding on the way may do.
std::vector<Named> Judge::moved(const Graph& g, const Case& c) const {
  constexpr int kEvaluations = 8;
  Draw noise(1);
  std::vector<Named> all;
  for (int n = 0; n < kEvaluations; ++n) {
    auto rounded = g.clone();
    round_weights(*rounded, noise);
    if (auto m = interpreted(*rounded, c, true, &noise)) all.push_back(std::move(*m));
  }
  return all;
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
  FERRULE_ASSIGN(Session session,
                 Session::from_graph(std::move(g),
                                     (fused ? fused_ : plain_).at(configuration.target), options));
  FERRULE_ASSIGN(ran.outputs, session.run(c.inputs));
  Shapes shapes;
  for (const auto& [name, tensor] : c.inputs) shapes[name] = tensor.dims();
  FERRULE_ASSIGN(Compiled * compiled, session.compile(shapes));
  for (const Layer& layer : compiled->plan().layers)
    ran.layers += fmt::format("  {}  [{}] {}\n", layer.name, layer.contract, layer.rule);
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
  for (NodeId n : fused.graph.order())
    ran.layers += fmt::format("  {}  {}\n", fused.graph.node(n).name, fused.graph.node(n).rule);
  ExportOptions how;
  how.functions = configuration.functions;
  FERRULE_ASSIGN(ran.model, export_bytes(fused.graph, how));
  FERRULE_ASSIGN(Imported read, import_bytes(ran.model, language_.import));
  FERRULE_ASSIGN(ran.outputs, interpreted(read.graph, c, false));
  return ran;
}

Result<Judge::Ran> Judge::by_program(const Case& c, const Configuration& configuration) const {
  const std::string stem = options_.scratch->file("case"),
                    out = options_.scratch->file("results.npz");
  FERRULE_TRY(keep(c, stem));
  const Ended ended = run_command(
      fmt::format("timeout -s KILL 15 {} run {}.onnx --inputs {}.npz --outputs {} --force {}",
                  options_.program, stem, stem, out, configuration.text()));
  if (ended.status != 0)
    return error(Code::usage, fmt::format("status {}", ended.status), ended.errors.substr(0, 300));
  Ran ran;
  std::istringstream lines(ended.errors);
  for (std::string line; std::getline(lines, line);)
    if (line.starts_with("warning")) ran.warnings.push_back(line);
  FERRULE_ASSIGN(ran.outputs, read_npz(out));
  return ran;
}

void Judge::compare(const Named& got, const Named& want, const Case& c, Verdict& verdict) const {
  const auto g = graph(c);
  const DType widest = g ? coarsest(*g) : DType::f64;
  std::optional<Named> exact;
  Named early;
  std::vector<Named> roundings;
  for (const auto& [name, w] : want) {
    const auto it = got.find(name);
    if (it == got.end()) {
      verdict = {Verdict::failed, fmt::format("no output {}", name)};
      return;
    }
    const Tolerance allowed = tolerance_of(w.dtype(), widest);
    const Difference d = ferrule::compare(it->second, w, allowed);
    verdict.says_nothing = verdict.says_nothing || says_nothing(w);
    if (d.ok && !d.doubtful) continue;
    int64_t at = d.at;
    if (d.at >= 0 && g && (is_float(w.dtype()) || rounds_to_integers(*g))) {
      if (!exact) {
        if (auto e = interpreted(*g, c, true)) exact = *e, roundings = moved(*g, c);
        if (auto e = overflowing(*g, c)) early = *e;
      }
      if (exact) {
        Exact e{exact->at(name), {w}};
        for (const Named& r : roundings) e.roundings.push_back(r.at(name));
        if (early.contains(name)) e.overflowing = &early.at(name);
        at = is_float(w.dtype()) ? beyond(it->second, w, e, allowed)
                                 : beyond_integers(it->second, w, e);
      }
      verdict.arbitrated = at < 0;
      if (at < 0) continue;
    }
    verdict.kind = Verdict::failed;
    verdict.text = fmt::format("output {}: {}", name, d.text);
    if (exact)
      verdict.text += fmt::format("; element {} is {}, {} in f64", at, it->second.at_f64(at),
                                  exact->at(name).at_f64(at));
    return;
  }
}

/// Whether results differ only where numbers leave the range of f64 on the way, which a rule may
/// keep from happening (the logarithm of an exponential): there the rewritten graph in f64 is what
/// they are held against, and everything is right once the inputs are of everyday size.
bool Judge::leaves_range(const Case& c, const Configuration& configuration, const Named& got,
                         const Named& want) const {
  Case tame = c;
  for (auto& [name, t] : tame.inputs) t = clamped(t, 50);
  auto g = graph(c);
  if (g && std::ranges::all_of(c.inputs, [&](const auto& input) {
        return tame.inputs.at(input.first).identical(input.second);
      }))
    return false;
  EngineOptions options;
  options.rule_dirs = {options_.rules};
  options.target = configuration.target;
  options.cache.clear();
  auto exact = g ? interpreted(*g, c, true) : fail(g.error());
  auto fused = g ? fuse(std::move(*g), *fused_.at(configuration.target), options) : fail(g.error());
  auto after = fused ? interpreted(fused->graph, c, true) : fail(fused.error());
  if (!exact || !after) return false;
  for (const auto& [name, w] : want) {
    const Tensor& result = got.at(name);
    const Tolerance allowed = tolerance_of(w.dtype(), coarsest(fused->graph));
    if (ferrule::compare(result, w, allowed).ok) continue;
    if (!is_float(w.dtype())) return false;
    const Tensor held = finite_or(exact->at(name), after->at(name));
    if (beyond(result, w, {held, {w}}, allowed) >= 0) return false;
  }
  return judge(tame, configuration).kind == Verdict::passed;
}

/// What ONNX Runtime makes of what was written, against what it makes of the graph as it came.
void Judge::in_onnx_runtime(const Case& c, const std::string& model, const Named& want,
                            Verdict& verdict) const {
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
  auto other_size = [&](const auto& output) {
    return !before->contains(output.first) ||
           before->at(output.first).dims() != output.second.dims();
  };
  if (std::ranges::any_of(want, other_size)) {  // it pads a pool of auto_pad as if it had no
                                                // dilations, say: constants of that size do not fit
    verdict.aside = "ONNX Runtime and the interpreter differ in a size";
    return;
  }
  auto after = onnx_runtime_->run(model, c.inputs);
  if (after)
    compare(*after, *before, c, verdict);
  else
    verdict.kind = Verdict::failed, verdict.text = after.error().message;
  if (verdict.kind == Verdict::failed && leaves_integers_open(*g, c)) {
    verdict = {Verdict::passed, "", kOpen};
    return;
  }
  if (verdict.kind == Verdict::failed && after) {
    // Its QuantizeLinear multiplies where the standard divides, say: what was written is right when
    // the interpreter says so.
    Verdict right;
    compare(*after, want, c, right);
    if (right.kind == Verdict::passed)
      verdict = {}, verdict.aside = "ONNX Runtime differs from what its operators are made of";
  }
  if (verdict.kind == Verdict::failed) {
    verdict.text = "ONNX Runtime, what was written against the graph: " + verdict.text;
    return;
  }
  Verdict other;
  compare(*before, want, c, other);
  if (other.kind == Verdict::failed)
    verdict.aside = "ONNX Runtime and the interpreter differ: " + other.text;
}

Verdict Judge::judge(const Case& c, const Configuration& configuration) const {
  auto g = graph(c);
  if (!g) return {Verdict::failed, "import: " + g.error().message};
  if (!fused_.contains(configuration.target)) return {Verdict::skipped, "the stub GPU is not here"};
  auto want = interpreted(*g, c, false);
  auto got = run(c, configuration, true);
  if (!want && !got) return {Verdict::skipped, want.error().message};
  // What comes out of a Loop may have any size, as far as ONNX's inference knows: plans do not take
  // it, and say so.
  if (want && !got && got.error().code == Code::size_unknown)
    return {Verdict::skipped, "sizes that only a run knows"};
  if (!want || !got) {
    const Error& e = want ? got.error() : want.error();
    return {Verdict::failed,
            fmt::format("{}, the other does not: {}: {}",
                        want ? "the backend refuses it" : "the interpreter refuses it", e.place,
                        e.message)};
  }
  Verdict verdict;
  compare(got->outputs, *want, c, verdict);
  if (verdict.kind == Verdict::failed && leaves_integers_open(*g, c))
    return {Verdict::passed, "", kOpen};
  if (verdict.kind == Verdict::failed && leaves_range(c, configuration, got->outputs, *want))
    return {Verdict::passed, "", "numbers that leave the range of f64 on the way"};
  const bool hides_nan =
      configuration.fast_math || (configuration.backend == "cuda" && !configuration.strict);
  if (verdict.kind == Verdict::failed && hides_nan && makes_nan(c)) {
    // Library tails make numbers of NaN then (explain says so), and anything may come of that;
    // nothing else may differ.
    Configuration careful = configuration;
    careful.fast_math = false, careful.strict = configuration.backend == "cuda";
    verdict = judge(c, careful);
    verdict.aside = "NaN that a library's tail made a number of";
    return verdict;
  }
  verdict.warnings = got->warnings;
  if (configuration.backend == "export" && verdict.kind == Verdict::passed)
    in_onnx_runtime(c, got->model, *want, verdict);
  // What `explain` counts as a kernel is one; only of an empty operand or image there is nothing to
  // compute.
  auto refused = [](const std::string& text) {
    return text.find("the interpreter runs it") != text.npos &&
           text.find("cannot run here: an empty ") == text.npos;
  };
  if (auto w = std::ranges::find_if(got->warnings, refused);
      w != got->warnings.end() && verdict.kind == Verdict::passed)
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
  if (!want || !plain)
    return out + "without rules: " + (plain ? "runs" : plain.error().message) + "\n";
  Verdict verdict;
  compare(plain->outputs, *want, c, verdict);
  return out + "without rules: " +
         (verdict.kind == Verdict::passed ? "right" : "wrong, too: " + verdict.text) + "\n";
}

Status Judge::keep(const Case& c, const std::string& path) const {
  FERRULE_ASSIGN(Graph g, graph(c));
  ExportOptions options;
  options.force = true;
  FERRULE_TRY(export_file(g, path + ".onnx", options));
  return write_npz(path + ".npz", c.inputs, true);
}

}  // namespace ferrule::fuzz
