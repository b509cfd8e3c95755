#include "runtime/group_proof.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "engine/graph/compare.h"
#include "engine/graph/text.h"
#include "engine/interpreter/interpreter.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/edit.h"
#include "engine/proof/samples.h"
#include "engine/proof/values.h"
#include "engine/rule/contract.h"
#include "engine/rule/number_class.h"
#include "runtime/place_proof.h"
#include "runtime/registry.h"
#include "runtime/session.h"

namespace ferrule {

/// What a case is planned for.
struct ProofSetting {
  std::string target, profile;
  auto operator<=>(const ProofSetting&) const = default;
};

namespace {

/// The case's inputs, its open sizes fixed; nothing where it has some that cannot be run.
std::optional<std::vector<Tensor>> inputs_of(const Graph& g, int64_t size, Magnitudes magnitudes,
                                             Draw& draw) {
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) {
    const Type& t = g.value(v).type;
    if (!t.shape || size_bits(t.dtype) < 8) return std::nullopt;
    std::vector<int64_t> dims;
    for (const Dim& d : *t.shape) dims.push_back(d.value_or(size));
    inputs.push_back(drawn_tensor(t.dtype, dims, draw, magnitudes));
  }
  return inputs;
}

/// `rule` in the place of the one with its id, and no other that is on.
std::shared_ptr<const Knowledge> alone(const Knowledge& all, const Rule& rule) {
  auto out = std::make_shared<Knowledge>(all);
  for (auto& r : out->rules.rules) {
    auto copy = std::make_shared<Rule>(r->id == rule.id ? rule : *r);
    copy->enabled = r->id == rule.id;
    r = std::move(copy);
  }
  return out;
}

/// Whether the rule has a condition of class kernel with this id that its author wrote; with roles,
/// whether its contract has.
bool has_kernel_condition(const Rule& r, const std::string& id) {
  const auto& own = r.kernel ? r.kernel->conditions : r.where;
  return std::ranges::any_of(std::array{&own, &r.region.where}, [&](const auto* list) {
    return std::ranges::any_of(*list, [&](const Condition& c) {
      return c.cls == ConditionClass::kernel && !c.asks_contract && c.id == id;
    });
  });
}

/// One of the author's cases as it stands.
bool own_case(const Sample& s) {
  return s.text.find(':') == std::string::npos && s.text.starts_with("case");
}

Rule without(const Rule& rule, const std::string& condition) {
  Rule out = rule;
  for (auto* list : {&out.where, &out.region.where})
    std::erase_if(*list, [&](const Condition& c) { return c.id == condition; });
  if (out.kernel) {
    auto kernel = std::make_shared<Contract>(*out.kernel);
    std::erase_if(kernel->conditions, [&](const Condition& c) { return c.id == condition; });
    out.kernel = std::move(kernel);
  }
  return out;
}

/// Whether a library's step differs from its formula.
bool deviates(const Lowered& l) {
  const auto differs = [](const Launch& a) { return !a.deviation.empty(); };
  return std::ranges::any_of(l.layers, [&](const LoweredLayer& layer) {
    return std::ranges::any_of(layer.launches, differs);
  });
}

bool same_backend(const std::string& asked, bool gpu) {
  return asked == "auto" || (asked == "cuda") == gpu;
}

}  // namespace

struct GroupProver::State {
  EngineOptions options;
  std::string backend;
  int graphs = 0;
  std::map<ProofSetting, std::shared_ptr<const Knowledge>> known;

  Result<std::shared_ptr<const Knowledge>> knowledge(const ProofSetting& s) {
    auto it = known.find(s);
    if (it != known.end()) return it->second;
    EngineOptions o = options;
    o.target = s.target, o.profile = s.profile;
    FERRULE_ASSIGN(auto k, load_knowledge(o));
    return known[s] = std::move(k);
  }

  /// Of cases that name none.
  std::string own_target() const {
    auto cuda = backend == "cuda" ? find_backend("cuda") : Result<Backend*>(nullptr);
    return cuda && *cuda ? (*cuda)->device_target() : host_target().value_or("");
  }

  /// "" or why nothing here runs what is planned for this target.
  std::string absent(const Target& t) const {
    if (t.device == "gpu") {
      auto cuda = find_backend("cuda");
      if (!cuda) return cuda.error().message;
      return (*cuda)->device_target() == t.name ? "" : "the GPU is " + (*cuda)->device_target();
    }
    const auto host = host_target();
    if (!host) return host.error().message;
    return t.name == *host || t.name == "cpu-avx2" ? "" : "this processor is " + *host;
  }
};

/// The graphs of one rule in one setting.
class GroupProver::Trials {
 public:
  Trials(const State& state, const Rule& rule, const ProofContext& context,
         std::shared_ptr<const Knowledge> all, GroupProof& proof)
      : state_(state),
        rule_(rule),
        context_(context),
        all_(std::move(all)),
        proof_(proof),
        draw_(Draw::of(rule.text)) {
    context_.ops = &all_->ops;
    context_.target = &all_->target;
  }

  /// Until `end` of the thread's time, half of what is left for making graphs.
  void run(double end) {
    RewriteProof counts;
    Samples samples(rule_, context_, counts, (thread_seconds() + end) / 2);
    samples.cases(false);
    if (!rule_.match.lines.empty()) draw(samples, counts);
    const bool all_made = samples.in_time();
    std::vector<const Sample*> order;
    for (const Sample& s : samples.all()) order.push_back(&s);
    const auto changed =
        std::ranges::stable_partition(order, [](const Sample* s) { return own_case(*s); });
    std::vector<const Sample*> others(changed.begin(), changed.end());
    draw_.shuffle(others);
    std::ranges::copy(others, changed.begin());
    std::set<uint64_t> kinds;
    int more = state_.graphs;
    for (const Sample* s : order) {
      const bool own = own_case(*s);
      if (!s->valid || (!own && more <= 0) || !kinds.insert(kind_of_instance(*s->graph)).second)
        continue;
      if (!own && thread_seconds() >= end) break;
      Trial t = attempt_rule(rule_, *s->graph, context_.target, context_);
      const int before = proof_.instances;
      if (t.fired)
        fired(rule_, *s, own);
      else
        declined(t.nearest.id, *s);
      if (!own) more -= proof_.instances > before;
    }
    proof_.in_time = proof_.in_time && (more <= 0 || (all_made && thread_seconds() < end));
  }

 private:
  /// From the pattern, and from graphs on which the rule fires: the cases, and what was drawn
  /// before.
  void draw(Samples& samples, const RewriteProof& counts) {
    constexpr int kBatch = 10;
    size_t seen = 0;
    for (int drawn = 0; drawn < state_.graphs && samples.in_time(); drawn += kBatch) {
      for (; seen < samples.all().size(); ++seen) {
        const Sample& s = samples.all()[seen];
        if (s.valid && (own_case(s) || s.text.starts_with("drawn")) &&
            attempt_rule(rule_, *s.graph, context_.target, context_).fired)
          samples.ran(seen);
      }
      samples.draw(std::min(kBatch, state_.graphs - drawn));
      if (counts.exhausted) return;
    }
  }

  void fired(const Rule& rule, const Sample& s, bool own) {
    const std::vector<std::pair<int64_t, Magnitudes>> all{
        {3, Magnitudes::small}, {17, Magnitudes::few}, {1, Magnitudes::special}};
    for (size_t n = 0; n < (own ? all.size() : 1); ++n) {
      std::string problem = ran(rule, *s.graph, all[n].first, all[n].second);
      if (problem.empty()) continue;
      proof_.wrong.push_back(fmt::format("{}, for {}: {}\n{}", s.text, context_.target->name,
                                         problem, to_text(*s.graph, {.max_elements = 64})));
      return;
    }
  }

  void declined(const std::string& id, const Sample& s) {
    if (rule_.kind == RuleKind::merge)
      return;  // makes other operators, as a rewrite does: what it asks for is meaning
    if (!has_kernel_condition(rule_, id)) return;
    auto it = std::ranges::find(proof_.conditions, id, &KernelCondition::id);
    if (it == proof_.conditions.end()) it = proof_.conditions.insert(it, {id});
    if (it->refused + it->computed >= kPerCondition) return;
    const Rule bare = without(rule_, id);
    Trial t = attempt_rule(bare, *s.graph, context_.target, context_);
    if (!t.fired) {
      it->refused += t.nearest.stage == Rejection::Stage::condition;
      return;
    }
    const int before = proof_.instances, interpreted = proof_.interpreted;
    const std::string problem = ran(bare, *s.graph, 3, Magnitudes::small);
    if (!problem.empty())
      proof_.wrong.push_back(fmt::format("{}, for {}, without its condition {}: {}", s.text,
                                         context_.target->name, id, problem));
    else
      it->computed += proof_.instances > before;
    proof_.instances = before, proof_.interpreted = interpreted;
  }

  std::string not_run(const std::string& why) {
    std::string text = fmt::format("{}: {}", context_.target->name, why);
    if (std::ranges::find(proof_.not_run, text) == proof_.not_run.end())
      proof_.not_run.push_back(std::move(text));
    return {};
  }

  Result<Session> session_of(const Rule& rule, const Graph& g, bool strict) const {
    SessionOptions run;
    run.engine.rule_dirs = context_.rule_dirs;
    run.engine.limits = *context_.limits;
    run.backend = context_.target->device == "gpu" ? "cuda" : "cpu";
    run.strict = strict;
    return Session::from_graph(std::move(*g.clone()), alone(*all_, rule), run);
  }

  /// "" or what is wrong with the plan in which `rule` alone has fired.
  std::string ran(const Rule& rule, const Graph& g, int64_t size, Magnitudes magnitudes) {
    auto inputs = inputs_of(g, size, magnitudes, draw_);
    if (!inputs) return {};
    InterpreterOptions options;
    options.ops = context_.ops;
    options.limits = context_.limits;
    auto want = interpret(g, *inputs, options);
    if (!want) return {};  // a graph that these inputs do not fit
    Shapes shapes;
    std::map<std::string, Tensor> named;
    for (size_t n = 0; n < inputs->size(); ++n) {
      const std::string& name = g.value(g.inputs()[n]).name;
      shapes[name] = (*inputs)[n].dims();
      named[name] = (*inputs)[n];
    }
    auto session = session_of(rule, g, false);
    if (!session) return render(session.error());
    auto compiled = session->compile(shapes);
    // A library may make numbers of NaN and infinities where explain says so: the other plan is
    // asked what becomes of them.
    if (compiled && magnitudes == Magnitudes::special && context_.target->device == "gpu" &&
        deviates((*compiled)->lowered())) {
      session = session_of(rule, g, true);
      if (!session) return render(session.error());
      compiled = session->compile(shapes);
    }
    if (!compiled && compiled.error().code == Code::size_unknown)
      return {};  // sizes that only a run knows
    if (!compiled && compiled.error().code == Code::arch_unsupported)
      return not_run(compiled.error().message);
    if (!compiled) return render(compiled.error());
    // Known sizes, or what was folded, can make another graph of it.
    if (std::ranges::none_of((*compiled)->journal().steps,
                             [&](const Step& s) { return s.rule == rule.id; }))
      return {};
    if (rule.kind == RuleKind::place) {
      const Placed placed =
          check_places((*compiled)->plan(), (*compiled)->lowered(), rule.id, options);
      if (!placed.wrong.empty()) return placed.wrong;
      proof_.placed += placed.parts;
    }
    auto got = session->run(named);
    if (!got) return render(got.error());
    ++proof_.instances;
    proof_.interpreted += std::ranges::any_of(
        (*compiled)->executable().interpreted(),
        [&](size_t layer) { return (*compiled)->plan().layers[layer].rule == rule.id; });
    for (size_t n = 0; n < want->size(); ++n) {
      const std::string& output = g.value(g.outputs()[n]).name;
      Difference d = compare(got->at(output), (*want)[n], model_tolerance((*want)[n].dtype()));
      // Pads are zeros, and such a weight times them is NaN to some and nothing to others.
      if (!d.ok && weights_not_finite(g)) continue;
      if ((!d.ok && !as_near(g, *inputs, n, (*want)[n], got->at(output))) ||
          (d.doubtful && alike(g, *inputs, n, (*want)[n], got->at(output))))
        return fmt::format("output {}: {}", escape(output), d.text);
    }
    return {};
  }

  static bool weights_not_finite(const Graph& g) {
    for (uint32_t k = 0; k < g.value_slots(); ++k)
      if (const Tensor* t = g.constant(ValueId{k}); t && t->rank() >= 3 && !finite(*t)) return true;
    return false;
  }

  /// Whether small elements differ in the same way from a run in f64, too, which shows how far the
  /// interpreter's own rounding goes.
  bool alike(const Graph& g, const std::vector<Tensor>& inputs, size_t output, const Tensor& want,
             const Tensor& got) const {
    InterpreterOptions options;
    options.ops = context_.ops;
    options.limits = context_.limits;
    options.f64 = true;
    const auto exact = interpret(g, inputs, options);
    if (!exact || (*exact)[output].numel() != got.numel()) return false;
    double off = 0;
    for (int64_t k = 0; k < want.numel(); ++k)
      if (const double by = std::abs(want.at_f64(k) - (*exact)[output].at_f64(k));
          std::isfinite(by))
        off = std::max(off, by);
    return wrong_alike(got, (*exact)[output], model_tolerance(want.dtype()), off) >= 0;
  }

  /// Whether the result errs no more than the interpreter does in the same types, by a run in f64.
  bool as_near(const Graph& g, const std::vector<Tensor>& inputs, size_t output, const Tensor& want,
               const Tensor& got) const {
    auto wide = g.clone();
    std::vector<Tensor> widened = inputs;
    bool any = false;
    for (DType t : {DType::f16, DType::bf16}) {
      retype(*wide, t, DType::f64);
      for (Tensor& in : widened)
        if (in.dtype() == t)
          in = Tensor::of<double>(DType::f64, in.dims(), in.to_f64()), any = true;
    }
    InterpreterOptions options;
    options.ops = context_.ops;
    options.limits = context_.limits;
    options.f64 = !any;  // terms of f32 that cancel leave their rounding, which quantizing shows
    if (any && !infer_again(*context_.ops, *wide)) return false;
    auto exact = any ? interpret(*wide, widened, options) : interpret(g, inputs, options);
    if (!exact || (*exact)[output].numel() != got.numel()) return false;
    double ours = 0, usual = 0;
    for (int64_t k = 0; k < got.numel(); ++k) {
      const double e = (*exact)[output].at_f64(k), have = got.at_f64(k);
      // Terms overflow on the way, or do not: their order decides, and a tail makes any number of
      // infinities.
      if (std::isfinite(e) && !std::isfinite(want.at_f64(k))) continue;
      ours = std::max(ours, std::abs(have - e));
      usual = std::max(usual, std::abs(want.at_f64(k) - e));
      if (std::isfinite(e) != std::isfinite(have)) return false;
    }
    return ours <= usual * kReducedFactor;
  }

  static constexpr int kPerCondition = 8;
  const State& state_;
  const Rule& rule_;
  ProofContext context_;
  std::shared_ptr<const Knowledge> all_;
  GroupProof& proof_;
  Draw draw_;
};

GroupProver::GroupProver(EngineOptions options, std::string backend, int graphs)
    : state_(std::make_unique<State>(State{std::move(options), std::move(backend), graphs, {}})) {}
GroupProver::~GroupProver() = default;

GroupProof GroupProver::prove(const Rule& rule, const ProofContext& context) {
  GroupProof proof;
  if (rule.kind == RuleKind::rewrite) return proof;
  std::set<ProofSetting> settings;
  for (const RuleTest& t : rule.tests)
    if (t.fires)
      settings.insert({t.target.empty() ? state_->own_target() : t.target,
                       t.profile.empty() ? std::string(kProfiles[0]) : t.profile});
  const double end = thread_seconds() + context.seconds;
  auto waiting = static_cast<double>(settings.size());
  for (const ProofSetting& s : settings) {
    const double begin = thread_seconds(), until = begin + (end - begin) / waiting--;
    auto knowledge = state_->knowledge(s);
    if (!knowledge) {
      proof.wrong.push_back(render(knowledge.error()));
      continue;
    }
    const Target& target = (*knowledge)->target;
    if (!same_backend(state_->backend, target.device == "gpu")) continue;
    if (std::string why = state_->absent(target); !why.empty())
      proof.not_run.push_back(fmt::format("{}: {}", s.target, why));
    else
      Trials(*state_, rule, context, *knowledge, proof).run(until);
  }
  if (rule.kind == RuleKind::place && proof.instances && !proof.placed && proof.holds())
    proof.wrong.push_back("no part lies in the memory of another value");
  return proof;
}

}  // namespace ferrule
