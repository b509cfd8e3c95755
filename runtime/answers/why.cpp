#include "runtime/answers/why.h"

#include <tuple>

#include "codegen/program/kernel_nodes.h"
#include "runtime/cost.h"

namespace ferrule {

using nlohmann::json;
using why::Considered;
using why::SeenLine;
using why::Unlock;

namespace {

std::string_view name(Unlock::Kind k) {
  constexpr std::string_view kNames[] = {"flag", "fact", "edit", "impossible"};
  return kNames[static_cast<size_t>(k)];
}
std::string_view name(Considered::State s) {
  constexpr std::string_view kNames[] = {"off", "lost", "refused"};
  return kNames[static_cast<size_t>(s)];
}
std::string_view name(SeenLine::State s) {
  constexpr std::string_view kNames[] = {"ok", "failed", "unseen"};
  return kNames[static_cast<size_t>(s)];
}
std::string_view name(why::Outcome::Kind k) {
  constexpr std::string_view kNames[] = {"layer", "constant", "folded", "removed", "nested"};
  return kNames[static_cast<size_t>(k)];
}
std::string_view name(Truth t) {
  return t == Truth::yes ? "true" : t == Truth::no ? "false" : "unknown";
}
std::string_view name(Rejection::Stage s) {
  constexpr std::string_view kNames[] = {"structure", "condition", "guarantee"};
  return kNames[static_cast<size_t>(s)];
}

std::string_view name(why::PairAnswer::Kind k) {
  constexpr std::string_view kNames[] = {"same",    "apart",         "gone",     "adjacent",
                                         "between", "common_reader", "siblings", "unrelated"};
  return kNames[static_cast<size_t>(k)];
}

}  // namespace

Result<why::Observed> observe(Imported imported, std::shared_ptr<const Knowledge> knowledge,
                              EngineOptions options, const LowerOptions& lowering) {
  FERRULE_ASSIGN(why::Observed o,
                 why::observe(std::move(imported), std::move(knowledge), std::move(options)));
  FERRULE_ASSIGN(const Lowered lowered,
                 lower(o.plan, o.knowledge->ops, o.knowledge->target, lowering));
  for (const LoweredLayer& layer : lowered.layers) {
    o.kernels.push_back(kernel_nodes(layer));
    o.apart.push_back(tail_apart(layer));
  }
  o.traffic = [lowering](const Graph& fused, const Knowledge& k, const auto& sized) {
    const auto cost = cost_of(fused, k, lowering, sized);
    return cost ? std::optional(cost->bytes) : std::nullopt;
  };
  return o;
}

Result<std::string> nearest_node(const why::Observed& o, why::Inquiry& inquiry,
                                 const std::string& rule) {
  std::string best;
  std::tuple<int, int, int, int64_t> furthest{-1, 0, 0, 0};  // 0: it fired there
  for (const std::string& name : inquiry.names()) {
    FERRULE_ASSIGN(why::NodeAnswer a, inquiry.node(name, rule, 0));
    auto came = decltype(furthest){-1, 0, 0, 0};
    for (const why::Considered& c : a.considered) {
      const bool structure =
          c.state == Considered::State::refused && c.rejection.stage == Rejection::Stage::structure;
      if (c.matched_nodes > 0)
        came = std::max(
            came, decltype(came){structure ? 1 : 2, c.matched_nodes, c.passed_conditions, c.bytes});
    }
    for (size_t s : a.outcome.steps)
      if (o.fused.journal.steps[s].rule == rule) came = std::max(came, decltype(came){0, 0, 0, 0});
    if (came > furthest) furthest = came, best = name;
  }
  if (best.empty()) {
    Error e =
        error(Code::usage, "why", fmt::format("{} comes near no node of the model", rule)).value();
    e.hint =
        "the model has none of its operators, or an earlier rule took them: --node NAME says "
        "what became of a node";
    return fail(std::move(e));
  }
  return best;
}

std::vector<std::string> made_by(const why::Observed& o, const std::string& rule) {
  std::vector<std::string> out;
  for (const Step& s : o.fused.journal.steps)
    if (s.rule == rule && s.kind != "broken")
      out.push_back(s.after.empty() ? s.text : s.after.back());
  return out;
}

json names_json(const std::vector<std::string>& names) {
  json out = json::array();
  for (const std::string& n : names) out.push_back(escape(n, 4096));
  return out;
}

json to_json(const Unlock& u) {
  json j{{"kind", name(u.kind)},
         {"text", escape(u.text, 4096)},
         {"because", escape(u.because, 4096)},
         {"tried", u.tried}};
  j["saves_bytes"] = u.saves;
  j["gives"] = u.gives.empty() ? json(nullptr) : json(escape(u.gives, 4096));
  return j;
}

json to_json(const std::vector<Unlock>& all) {
  json out = json::array();
  for (const Unlock& u : all) out.push_back(to_json(u));
  return out;
}

json to_json(const Considered& c) {
  json lines = json::array(), conditions = json::array();
  for (const SeenLine& l : c.lines)
    lines.push_back(
        {{"pattern", l.text}, {"state", name(l.state)}, {"nodes", names_json(l.nodes)}});
  for (const why::SeenCondition& s : c.conditions)
    conditions.push_back({{"id", s.id},
                          {"class", ferrule::name(s.cls)},
                          {"truth", name(s.truth)},
                          {"text", escape(s.text, 4096)},
                          {"detail", escape(s.detail, 4096)}});
  json j{{"rule", c.rule->id},
         {"reason", escape(why::reason(c), 4096)},
         {"bytes", c.bytes},
         {"kind", ferrule::name(c.rule->kind)},
         {"phase", c.rule->phase},
         {"enabled", c.rule->enabled},
         {"state", name(c.state)},
         {"matched_nodes", c.matched_nodes},
         {"pattern_nodes", c.pattern_nodes},
         {"passed_conditions", c.passed_conditions},
         {"total_conditions", c.total_conditions},
         {"nodes", names_json(c.nodes)},
         {"lines", lines},
         {"conditions", conditions},
         {"path", names_json(c.path)},
         {"unlock", to_json(c.unlocks)}};
  j["refused"] = nullptr;
  if (c.state == Considered::State::refused)
    j["refused"] = {{"by", c.rejection.id},
                    {"stage", name(c.rejection.stage)},
                    {"truth", name(c.rejection.truth)},
                    {"why", escape(c.rejection.why, 4096)},
                    {"hint", escape(c.rejection.hint, 4096)}};
  if (c.state == Considered::State::refused && c.rejection.stage == Rejection::Stage::condition)
    j["refused"]["class"] = ferrule::name(c.rejection.cls);
  j["taken_by"] = c.taken_by.empty() ? json(nullptr) : json(escape(c.taken_by, 4096));
  j["lost_to"] = c.lost_to.empty() ? json(nullptr) : json(escape(c.lost_to, 4096));
  j["history"] = c.history.empty() ? json(nullptr) : json(escape(c.history, 4096));
  return j;
}

json to_json(const why::Observed& o, const why::Outcome& f) {
  json layers = json::array(), steps = json::array();
  for (size_t k : f.layers) {
    const Layer& l = o.plan.layers[k];
    layers.push_back({{"name", escape(l.name, 4096)},
                      {"contract", l.contract},
                      {"rule", l.rule.empty() ? json(nullptr) : json(l.rule)},
                      {"nodes", names_json(l.nodes)}});
  }
  for (size_t k : f.steps) {
    const Step& s = o.fused.journal.steps[k];
    steps.push_back({{"step", k + 1},
                     {"phase", s.phase},
                     {"rule", s.rule.empty() ? json(nullptr) : json(s.rule)},
                     {"kind", s.kind},
                     {"text", escape(s.text, 4096)}});
  }
  return {{"name", escape(f.name, 4096)},
          {"op", f.op.empty() ? json(nullptr) : json(escape(f.op))},
          {"state", name(f.kind)},
          {"text", f.text},
          {"layers", layers},
          {"steps", steps}};
}

namespace {

json considered_json(const std::vector<why::Considered>& all) {
  json out = json::array();
  for (const why::Considered& c : all) out.push_back(to_json(c));
  return out;
}

json reason_json(const std::vector<why::Considered>& all, const std::string& otherwise) {
  if (!all.empty()) return escape(why::reason(all[0]), 4096);
  return otherwise.empty() ? json(nullptr) : json(escape(otherwise, 4096));
}

}  // namespace

json to_json(const why::Observed& o, const why::NodeAnswer& a) {
  json j = to_json(o, a.outcome);
  j["considered"] = considered_json(a.considered);
  j["unlock"] = to_json(a.unlocks);
  j["reason"] = reason_json(a.considered, a.otherwise);
  return j;
}

json to_json(const why::Observed& o, const why::PairAnswer& a) {
  return {{"relation", name(a.kind)},
          {"text", a.text},
          {"a", to_json(o, a.a)},
          {"b", to_json(o, a.b)},
          {"path", names_json(a.path)},
          {"blockers", names_json(a.blockers)},
          {"reason", reason_json(a.considered, a.otherwise)},
          {"considered", considered_json(a.considered)},
          {"unlock", to_json(a.unlocks)}};
}

json to_json(const why::Missed& all, const std::string& assumed) {
  json edges = json::array();
  for (const why::MissedEdge& e : all.edges)
    edges.push_back({{"from", escape(e.from, 4096)},
                     {"to", escape(e.to, 4096)},
                     {"producer", escape(e.producer, 4096)},
                     {"consumer", escape(e.consumer, 4096)},
                     {"value", escape(e.value, 4096)},
                     {"type", e.type},
                     {"bytes", e.bytes < 0 ? json(nullptr) : json(e.bytes)},
                     {"sizes_open", e.open},
                     {"rule", e.rule.empty() ? json(nullptr) : json(e.rule)},
                     {"class", e.cls},
                     {"reason", escape(e.reason, 4096)},
                     {"unlock", to_json(e.unlocks)}});
  return {{"edges", edges},
          {"edges_in_all", all.all},
          {"not_listed", {{"copies", all.copies}, {"views", all.views}, {"in_place", all.placed}}},
          {"assumed_sizes", assumed.empty() ? json(nullptr) : json(assumed)}};
}

}  // namespace ferrule
