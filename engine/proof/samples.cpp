#include "engine/proof/samples.h"

#include <algorithm>
#include <limits>
#include <random>

#include "engine/base/diagnostics.h"
#include "engine/proof/agree.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/edit.h"
#include "engine/proof/goals.h"
#include "engine/proof/lengthen.h"
#include "engine/proof/node_draw.h"

namespace ferrule {
namespace {

/// Pairs of changes tried for one rule, over all its cases.
constexpr size_t kPairs = 4000;
/// Draws for one rule, those without a new kind of firing graph after which there are no more, and
/// what is kept of one kind and of one condition.
constexpr int kDraws = 60000, kWithoutNew = 20000, kOfKind = 2, kOfCondition = 150;
/// Steps from a graph that a condition declines towards one on which the rule fires.
constexpr int kSteps = 10;
/// Percent of the graphs that are made of ones on which the rule fires; a rule is rare that needs
/// so many draws for one.
constexpr int kRelatives = 40, kRelativesOfRare = 75, kRare = 15;

/// For one goal: graphs that are looked for, at first and while there is time, steps until it is
/// given up and at a time, and those of the samples that are asked how near they are.
constexpr int kOfGoal = 120, kMostOfGoal = 8 * kOfGoal, kGoalSteps = 4000, kStepsAtOnce = 60,
              kBeginnings = 40;
/// Graphs of one kind that steps start from.
constexpr size_t kNear = 6;
constexpr uint64_t kAll = ~uint64_t{0};
constexpr int kCondition = 1 << 10;  // of nearness()
/// Percent of the steps that start from nothing.
constexpr int kAfresh = 25;

/// A tensor of so many rows takes its time even if they are empty, unless only its sizes are read.
bool too_large(const Graph& g, const Value& v) {
  constexpr double kMost = 1 << 22;
  double rows = 1;
  for (size_t k = 0; v.type.shape && k < v.type.shape->size(); ++k)
    rows *= static_cast<double>(std::max<int64_t>((*v.type.shape)[k].value_or(1), 1));
  return rows > kMost && !only_measured(g, v);
}

/// Whether a window is so long that moving it over an image takes a proof's time.
bool has_long_window(const Graph& g) {
  constexpr int64_t kLong = 2500;
  return std::ranges::any_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    const OperatorSchema* schema = operator_schema(n);
    if (!schema || std::ranges::find(schema->attributes, "kernel_shape", &AttributeSchema::name) ==
                       schema->attributes.end())
      return false;
    const std::vector<int64_t> kernel = n.attrs.ints("kernel_shape");
    if (std::ranges::any_of(kernel, [](int64_t k) { return k > kLong; })) return true;
    for (size_t slot = 1; slot < n.inputs.size(); ++slot) {
      const ValueId w = n.inputs[slot];
      const auto* shape = w && g.value(w).type.shape ? &*g.value(w).type.shape : nullptr;
      for (size_t k = 2; shape && k < shape->size(); ++k)
        if ((*shape)[k].value_or(0) > kLong) return true;
    }
    return false;
  });
}

bool typed(const Graph& g) {
  return std::ranges::all_of(
             g.outputs(), [&](ValueId v) { return g.value(v).type.dtype != DType::undefined; }) &&
         std::ranges::none_of(g.values(), [&](ValueId v) { return too_large(g, g.value(v)); }) &&
         !has_long_window(g) && well_typed(g);
}

std::unique_ptr<Graph> changed(const Graph& g, std::initializer_list<const Mutation*> how) {
  auto out = g.clone();
  for (const Mutation* m : how) m->apply(*out);
  return out;
}

/// Whether all results of a graph with kCounted elements are short, and what is read of those takes
/// little time: 8-bit numbers, or how many they are.
bool counts(const Graph& g) {
  const auto is_short = [&](ValueId v) {
    const auto dims = g.value(v).type.shape ? constant_shape(*g.value(v).type.shape) : std::nullopt;
    return dims && std::ranges::none_of(*dims, [](int64_t d) { return d > kMostElements; });
  };
  const auto takes_little = [&](ValueId v) {
    const DType t = g.value(v).type.dtype;
    return is_short(v) || (t != DType::string && only_measured(g, g.value(v))) ||
           (is_int(t) && size_bits(t) == 8);
  };
  return well_typed(g) && std::ranges::all_of(g.outputs(), is_short) &&
         std::ranges::all_of(g.inputs(), takes_little);
}

/// Whether an input has no elements: what computes nothing is right.
bool empty(const Graph& g) {
  return std::ranges::any_of(g.inputs(), [&](ValueId v) {
    const auto& s = g.value(v).type.shape;
    return s && contains(*s, Dim(0));
  });
}

size_t highest_rank(const Graph& g) {
  size_t out = 0;
  for (ValueId v : g.inputs())
    if (const auto& s = g.value(v).type.shape) out = std::max(out, s->size());
  return out;
}

/// As std::shuffle, but the same with every standard library.
template <class It>
void shuffle(It begin, It end, std::mt19937& random) {
  for (auto n = end - begin; n > 1; --n)
    std::swap(begin[n - 1], begin[static_cast<int64_t>(random() % static_cast<uint64_t>(n))]);
}

}  // namespace

Samples::Samples(const Rule& rule, const ProofContext& ctx, RewriteProof& counts, double deadline)
    : rule_(rule), bare_(rule), ctx_(ctx), counts_(counts), deadline_(deadline) {
  bare_.where.clear();
  scope_.types = rule.types;
  for (const PatternLine& l : rule.match.lines)
    each_expr(*l.expr, [&](const PatternExpr& e) { scope(e); });
}

bool Samples::in_time() const { return thread_seconds() < deadline_; }

/// What the pattern says about the changes worth trying.
void Samples::scope(const PatternExpr& e) {
  scope_.near |= e.near;
  std::set<std::string> set(e.ops.begin(), e.ops.end());
  for (const auto& [key, f] : ctx_.ops->all())
    if (std::ranges::any_of(e.classes,
                            [&](const std::string& c) { return contains(f.classes, c); }))
      set.insert(key);
  if (e.kind == PatternExpr::Kind::call && e.optional && !e.args.empty() && e.args.size() <= 2) {
    // Of a class a few: what is passed over is lost whichever it is.
    constexpr size_t kOfClass = 3;
    std::set<std::string>& optional =
        e.args.size() == 1 ? scope_.optional_unary : scope_.optional_binary;
    const size_t apart = (set.size() + kOfClass - 1) / kOfClass;
    size_t k = 0;
    for (const std::string& op : set)
      if (k++ % apart == 0 && op.find("::") == op.npos) optional.insert(op);
  }
  if (set.size() > 1) scope_.siblings.push_back(std::move(set));
}

/// The graph with as few different sizes as can be, and with as many images as those are: what is
/// turned or exchanged then still fits. Only those on which the rule fires.
std::vector<std::unique_ptr<Graph>> Samples::squared(const Graph& g) const {
  std::vector<std::unique_ptr<Graph>> out;
  auto keep = [&](std::unique_ptr<Graph> made) {
    if (infer_again(*ctx_.ops, *made) && typed(*made) &&
        attempt_rule(rule_, *made, ctx_.target, ctx_).fired)
      out.push_back(std::move(made));
    return !out.empty();
  };
  for (const bool all : {true, false}) {
    std::set<int64_t> sizes;
    for (ValueId v : g.values()) {
      const auto& shape = g.value(v).type.shape;
      if (!shape || (!g.constant(v) && !(all && g.value(v).is_input))) continue;
      for (size_t k = 0; k < shape->size() && (all || k < 2); ++k)
        if (const int64_t d = (*shape)[k].value_or(0); d > 1 && (shape->size() > 1 || all))
          sizes.insert(d);
    }
    if (sizes.size() < 2) continue;
    auto square = g.clone();
    for (int64_t from : sizes)
      if (from != *sizes.begin()) resize(*square, from, *sizes.begin());
    auto images = square->clone();
    if (!keep(std::move(square))) continue;
    for (ValueId v : images->inputs()) {
      Type t = images->value(v).type;
      if (!t.shape || t.shape->empty() || (*t.shape)[0] != Dim(1)) continue;
      (*t.shape)[0] = Dim(*sizes.begin());
      images->set_type(v, std::move(t));
    }
    keep(std::move(images));
    break;
  }
  return out;
}

void Samples::add(std::string text, std::unique_ptr<Graph> g) {
  Sample s{std::move(text), std::move(g), false};
  s.valid = infer_again(*ctx_.ops, *s.graph) && typed(*s.graph);
  ++counts_.graphs;
  counts_.valid += s.valid;
  all_.push_back(std::move(s));
}

// --- the author's cases

void Samples::cases(bool lengthened) {
  int number = 0;
  for (const RuleTest& t : rule_.tests) {
    const std::string where = fmt::format("case {}", ++number);
    if (t.model.empty()) {
      edited(t, where);
      continue;
    }
    auto g = case_graph(t.model, ctx_);
    if (g && t.edits.empty()) add(where, std::make_unique<Graph>(std::move(*g)));
  }
  cases_ = all_.size();
  std::vector<const Graph*> graphs;
  for (const Sample& s : all_) graphs.push_back(s.graph.get());
  hints_ = hints_of(rule_, graphs, *ctx_.ops);
  if (lengthened) lengthen();
  for (size_t i = 0; i < cases_; ++i)
    for (const Mutation& m : mutations(*all_[i].graph, scope_)) {
      if (!in_time()) return;
      add(all_[i].text + ": " + m.text, changed(*all_[i].graph, {&m}));
    }
  for (size_t i = 0; i < cases_; ++i)
    for (const auto& square : squared(*all_[i].graph)) {
      const std::string text = all_[i].text + " with sizes that are equal";
      add(text, square->clone());
      for (const Mutation& m : mutations(*square, scope_)) {
        if (!in_time()) return;
        if (m.of_operator) add(text + ": " + m.text, changed(*square, {&m}));
      }
    }
}

/// The cases with one long axis. Whether a sum or a count fits its type shows there alone, and
/// seldom by chance.
void Samples::lengthen() {
  std::set<int64_t> lengths(hints_.long_sizes.begin(), hints_.long_sizes.end());
  lengths.insert(hints_.longest_sizes.begin(), hints_.longest_sizes.end());
  for (size_t i = 0; i < cases_; ++i) {
    if (!all_[i].valid) continue;
    const std::string text = all_[i].text + " with an axis of ";
    std::set<uint64_t> seen;
    for (const int64_t to : lengths)
      for (auto& g : lengthened(*all_[i].graph, to, kMostElements)) {
        if (!in_time()) return;
        if (!infer_again(*ctx_.ops, *g) || !typed(*g) || !seen.insert(kind_of_instance(*g)).second)
          continue;
        if (fires_or_nearly(*g)) add(fmt::format("{}{}", text, to), std::move(g));
      }
  }
  // Where rounding is allowed the arbiter decides, which takes its time.
  const bool counted = hints_.converts && numerics_of(rule_) < Numerics::reassociating;
  for (size_t i = 0; i < cases_ && counted; ++i)
    for (auto& g : lengthened(*all_[i].graph, kCounted, kCounted)) {
      if (!in_time()) return;
      if (!infer_again(*ctx_.ops, *g) || !counts(*g) || has_long_window(*g) ||
          !attempt_rule(rule_, *g, ctx_.target, ctx_).fired)
        continue;
      all_.push_back(
          {fmt::format("{} with an axis of {}", all_[i].text, kCounted), std::move(g), true});
      ++counts_.graphs, ++counts_.valid;
      return;
    }
}

/// Whether the rule fires, or a condition alone declines.
bool Samples::fires_or_nearly(const Graph& g) const {
  const Trial t = attempt_rule(rule_, g, ctx_.target, ctx_);
  return t.fired || !t.broken.empty() || t.nearest.stage == Rejection::Stage::condition;
}

void Samples::edited(const RuleTest& t, const std::string& where) {
  for (const RuleTest& base : rule_.tests) {
    if (!base.fires || base.model.empty() || (!t.of.empty() && base.name != t.of)) continue;
    auto g = case_graph(base.model, ctx_);
    if (!g) return;
    Trial trial = attempt_rule(rule_, *g, ctx_.target, ctx_);
    Bindings bound;
    if (trial.fired) bound = trial.match.bindings;
    if (apply_edits(*ctx_.ops, *g, t.edits, bound, where))
      add(where, std::make_unique<Graph>(std::move(*g)));
    return;
  }
}

/// The case without what follows the match: operators behind it allow fewer changes. Null where
/// there are none.
std::unique_ptr<Graph> Samples::bared(const Graph& g) const {
  Trial t = attempt_rule(rule_, g, ctx_.target, ctx_);
  if (!t.fired) return nullptr;
  const Node& root = g.node(t.match.root);
  if (root.outputs.size() != 1 || g.escapes(root.outputs[0])) return nullptr;
  auto out = g.clone();
  out->set_output(0, root.outputs[0]);
  out->remove_dead();
  Trial again = attempt_rule(rule_, *out, ctx_.target, ctx_);
  return again.fired ? std::move(out) : nullptr;
}

void Samples::pairs() {
  for (size_t i = 0; i < cases_ && in_time(); ++i) pairs_of(i);
}

/// Pairs with a change of an operator come first (most conditions are about operators), then the
/// rest, both in an order drawn once, as many as kPairs allow. Only graphs that are valid, and on
/// which the rule without its conditions fires, are kept: the others say nothing.
void Samples::pairs_of(size_t sample) {
  auto alone = bared(*all_[sample].graph);
  const std::string text = all_[sample].text;
  const auto base = alone ? std::move(alone) : all_[sample].graph->clone();
  const std::vector<Mutation> single = mutations(*base, scope_);
  std::vector<std::pair<uint32_t, uint32_t>> order;
  for (uint32_t a = 0; a < single.size(); ++a)
    for (uint32_t b = a + 1; b < single.size(); ++b)
      if (!single[a].last && !single[b].last) order.emplace_back(a, b);
  auto first = std::partition(order.begin(), order.end(),
                              [&](const auto& p) { return single[p.first].of_operator; });
  std::mt19937 random(static_cast<uint32_t>(sample) + 1);
  shuffle(order.begin(), first, random);
  shuffle(first, order.end(), random);
  order.resize(std::min(order.size(), kPairs / cases_));
  for (auto [a, b] : order) {
    if (!in_time()) return;
    auto g = changed(*base, {&single[a], &single[b]});
    ++counts_.graphs;
    if (!infer_again(*ctx_.ops, *g) || !typed(*g)) continue;
    ++counts_.valid;
    Trial t = attempt_rule(bare_, *g, ctx_.target, ctx_);
    if (!t.fired && t.broken.empty()) continue;
    all_.push_back(
        {fmt::format("{}: {}, {}", text, single[a].text, single[b].text), std::move(g), true});
  }
}

// --- drawn from the pattern

void Samples::ran(size_t sample) {
  firing_[kind_of_operators(*all_[sample].graph)].push_back(sample);
}

/// A graph from the pattern, or one on which the rule fires, with other sizes or attributes:
/// conditions that leave few graphs are seldom met by chance, and then say little about those.
/// Seldom types and modes are varied as often as usual ones.
std::unique_ptr<Graph> Samples::candidate() {
  Generator& generator = *generator_;
  if (firing_.empty() ||
      !generator.chance(drawn_ > kRare * distinct_ ? kRelativesOfRare : kRelatives))
    return generator.next();
  const std::vector<size_t>& alike =
      std::next(firing_.begin(), static_cast<long>(generator.pick(firing_.size())))->second;
  const Graph& g = *all_[alike[generator.pick(alike.size())]].graph;
  if (hints_.open_attributes && generator.chance(20)) return generator.reset(g);
  if (generator.chance(40)) return generator.resized(g);
  if (generator.chance(40)) return generator.varied(g);
  return generator.changed(g, mutations(g, scope_));
}

void Samples::draw(int distinct) {
  if (!generator_) generator_.emplace(rule_, ctx_, hints_);
  int without_new = 0;
  distinct += distinct_;
  for (int n = 0; n < kDraws && distinct_ < distinct && in_time(); ++n) {
    if (++without_new > kWithoutNew) break;
    auto g = candidate();
    ++counts_.graphs, ++drawn_;
    if (!g || !typed(*g)) continue;
    ++counts_.valid;
    const int before = distinct_;
    towards(std::move(g));
    if (distinct_ > before) without_new = 0;
  }
  counts_.exhausted = distinct_ < distinct && in_time();
}

/// Keeps the graph, or what it becomes by changes towards the conditions: a change that is no
/// worse is kept.
void Samples::towards(std::unique_ptr<Graph> g) {
  Trial t = attempt_rule(rule_, *g, ctx_.target, ctx_);
  for (int step = 0; step < kSteps; ++step) {
    if (t.fired || !t.broken.empty() || t.nearest.stage != Rejection::Stage::condition)
      return drawn(std::move(g), t);
    if (step == 0) drawn(g->clone(), t);
    auto next = generator_->varied(*g);
    if (!next || !typed(*next)) continue;
    Trial u = attempt_rule(rule_, *next, ctx_.target, ctx_);
    if (u.fired || nearness(u.nearest) >= nearness(t.nearest))
      g = std::move(next), t = std::move(u);
  }
}

// --- ways to meet conditions

void Samples::start_aims() {
  aims_.emplace();
  for (Goal& goal : goals_of(rule_)) {
    Aim a{rule_, std::move(goal.numbers)};
    a.rule.where = std::move(goal.where);
    aims_->push_back(std::move(a));
  }
  if (aims_->empty()) return;
  std::vector<const Graph*> firing, others;
  for (const auto& [_, alike] : firing_)
    for (size_t k : alike) firing.push_back(all_[k].graph.get());
  for (const Sample& s : all_)
    if (s.valid && !s.declined_by.empty()) others.push_back(s.graph.get());
  for (const auto& from : {firing, others})
    for (int n = 0; n < kBeginnings && !from.empty(); ++n) {
      const Graph& g = *from[generator_->pick(from.size())];
      if (empty(g)) continue;
      for (Aim& a : *aims_) {
        const Approach t = approach(a, g);
        a.found += t.there ? 2 * kOfGoal / kBeginnings : 0;  // half of them, and it is met anyway
        if (t.fits) keep(a, t.met, {g.clone(), t.nearness});
      }
    }
}

/// Whether a contract takes the nodes is a condition, too, which is not asked before the others are
/// met.
Samples::Approach Samples::approach(const Aim& a, const Graph& g) const {
  constexpr int kTaken = 62;
  Approach out{approach_rule(a.rule, g, ctx_.target, ctx_)};
  const Trial& t = out.trial;
  out.there = t.fired || !t.broken.empty();
  out.fits = out.there || t.nearest.stage == Rejection::Stage::condition;
  out.met = out.there ? kAll : t.met;
  out.nearness = out.there ? std::numeric_limits<int>::max() : nearness(t.nearest);
  if (out.there || !out.fits || !rule_.kernel) return out;
  if (!approach_rule(bare_, g, ctx_.target, ctx_).fired) return out;
  out.met |= uint64_t{1} << kTaken;
  out.nearness += kCondition;
  return out;
}

void Samples::keep(Aim& a, uint64_t met, Near g) {
  std::vector<Near>& alike = a.near[{met, highest_rank(*g.graph)}];
  g.kind = kind_of_instance(*g.graph);
  if (std::ranges::find(alike, g.kind, &Near::kind) != alike.end()) return;
  if (alike.size() < kNear)
    alike.push_back(std::move(g));
  else
    alike[generator_->pick(kNear)] = std::move(g);
}

/// One that meets the goal, one of the nearest, or any that is kept.
Samples::Near* Samples::from(Aim& a) {
  if (a.near.empty()) return nullptr;
  const auto nearness = [](const auto& n) { return n->second.front().nearness; };
  std::vector<decltype(a.near.begin())> all;
  for (auto it = a.near.begin(); it != a.near.end(); ++it) all.push_back(it);
  if (generator_->chance(75)) {
    const int most = nearness(*std::ranges::max_element(all, {}, nearness));
    std::erase_if(all, [&](const auto& n) { return nearness(n) < most; });
  }
  std::vector<Near>& alike = all[generator_->pick(all.size())]->second;
  return &alike[generator_->pick(alike.size())];
}

bool Samples::aim() {
  if (!generator_) generator_.emplace(rule_, ctx_, hints_);
  if (!aims_) start_aims();
  for (int wanted = kOfGoal; wanted <= kMostOfGoal; wanted *= 2)
    for (size_t tried = 0; tried < aims_->size() && in_time(); ++tried) {
      Aim& a = (*aims_)[next_aim_++ % aims_->size()];
      const int steps = a.found ? kGoalSteps * (wanted / kOfGoal) : kGoalSteps / 2;
      if (a.found >= wanted || a.steps >= steps) continue;
      step_towards(a);
      return true;
    }
  return false;
}

void Samples::step_towards(Aim& a) {
  generator_->aim(a.numbers);
  for (int n = 0; n < kStepsAtOnce && in_time(); ++n) {
    ++a.steps, ++counts_.graphs;
    Near* near = generator_->chance(kAfresh) ? nullptr : from(a);
    if (near && near->changes.empty()) near->changes = mutations(*near->graph, scope_);
    towards(a, near ? generator_->moved(*near->graph, near->changes) : generator_->next(), near);
  }
  generator_->aim({});
}

/// What does not come nearer is kept for a few steps only: many small steps lead to graphs that
/// have nothing to do with the rule.
void Samples::towards(Aim& a, std::unique_ptr<Graph> g, const Near* from) {
  constexpr int kAside = 2;
  if (!g || !typed(*g) || empty(*g)) return;
  ++counts_.valid;
  Approach t = approach(a, *g);
  if (!t.fits) return;
  const int steps = from && t.nearness <= from->nearness ? from->steps + 1 : 0;
  if (steps <= kAside) keep(a, t.met, {g->clone(), t.nearness, steps});
  if (!t.there) return;
  const int before = distinct_;
  drawn(std::move(g), t.trial);
  a.found += distinct_ > before;
}

void Samples::drawn(std::unique_ptr<Graph> g, const Trial& t) {
  const std::string text = fmt::format("drawn {}", counts_.graphs);
  if (t.fired || !t.broken.empty()) {
    int& seen = kinds_[kind_of_instance(*g)];
    if (++seen > kOfKind) return;
    distinct_ += seen == 1;
  } else if (t.nearest.stage != Rejection::Stage::condition ||
             ++declined_[t.nearest.id] > kOfCondition) {
    return;
  }
  all_.push_back({text, std::move(g), true});
}

}  // namespace ferrule
