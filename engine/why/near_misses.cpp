#include "engine/why/near_misses.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

bool forms_group(std::string_view kind) {
  return kind == "absorb" || kind == "window" || kind == "region" || kind == "merge" ||
         kind == "place";
}

/// What happened to each node of the journal from there on: the rules that took it, or what it
/// became.
class Outcomes {
 public:
  explicit Outcomes(const Journal& journal) {
    for (auto s = journal.steps.rbegin(); s != journal.steps.rend(); ++s) {
      if (s->kind == "broken") continue;
      std::set<std::string> all;
      for (const std::string& after : s->after)
        if (auto it = of_.find(after); it != of_.end())
          all.insert(it->second.begin(), it->second.end());
      all.insert(s->rule);
      if (forms_group(s->kind)) all.insert("=" + s->kind);
      for (const std::string& before : s->before) of_[before].insert(all.begin(), all.end());
    }
  }
  bool fired(const std::string& node, const Rule& rule) const {
    auto it = of_.find(node);
    if (it == of_.end()) return false;
    if (it->second.contains(rule.id)) return true;
    auto taken = [&](std::string_view kind) {
      return it->second.contains("=" + std::string(kind));
    };
    // What a rewrite would have prepared has been taken by an anchor all the same; another rule
    // took the tail.
    if (rule.kind == RuleKind::rewrite) return taken("absorb") || taken("window");
    const bool tail = !rule.region.ops.empty() || !rule.region.classes.empty();
    return tail && taken(name(rule.kind));
  }

 private:
  std::map<std::string, std::set<std::string>> of_;
};

bool noise(const Rejection& r) {
  if (r.stage == Rejection::Stage::structure) return true;
  if (r.rule->kind != RuleKind::rewrite) return false;
  if (r.stage == Rejection::Stage::guarantee) return r.id != "D1" && r.id != "D2" && r.id != "D9";
  return pattern_nodes(*r.rule) <= 1 && r.cls != ConditionClass::profit &&
         r.truth != Truth::unknown && r.hint.empty() && r.id != kOff;
}

/// What would help, cheapest first: a flag or a fact; another target; a change of the model;
/// nothing.
int remedy(const Rejection& r) {
  if (r.truth == Truth::unknown) return 0;
  if (r.stage != Rejection::Stage::condition) return 2;
  return r.cls == ConditionClass::profit ? 0 : r.cls == ConditionClass::kernel ? 1 : 3;
}

}  // namespace

std::vector<NearMiss> near_misses(const Fused& fused, const Graph& graph) {
  const Outcomes outcomes(fused.journal);
  const Sizes sizes(graph);
  std::map<std::pair<std::string, std::string>, size_t> seen;  // rule, condition -> its entry
  std::vector<NearMiss> out;
  std::vector<std::set<std::string>> nodes;
  for (const Rejection& r : fused.near_misses) {
    if (noise(r) || !r.root || r.root.index >= graph.node_slots()) continue;
    const Node& root = graph.node(r.root);
    if (r.id != kOff && outcomes.fired(root.name, *r.rule)) continue;
    auto [it, fresh] = seen.emplace(std::pair{r.rule->id, r.id}, out.size());
    if (fresh) out.push_back({&r, {}, 0}), nodes.emplace_back();
    NearMiss& miss = out[it->second];
    const std::string& name = root.origins.empty() ? root.name : root.origins.front();
    if (!nodes[it->second].insert(name).second) continue;
    miss.nodes.push_back(name);
    for (ValueId v : root.outputs)
      if (v) miss.bytes += std::max<int64_t>(sizes.bytes(graph.value(v).type), 0);
  }
  std::ranges::stable_sort(out, [](const NearMiss& a, const NearMiss& b) {
    return std::pair(remedy(*a.first), -a.bytes) < std::pair(remedy(*b.first), -b.bytes);
  });
  return out;
}

}  // namespace ferrule::why
