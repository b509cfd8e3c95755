#include "runtime/ablate.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/rule/selection.h"

namespace ferrule {
namespace {

class Ablate {
 public:
  Ablate(const Graph& model, const Knowledge& knowledge, const EngineOptions& options,
         const LowerOptions& lowering)
      : model_(model),
        all_(knowledge),
        changed_(knowledge),
        options_(options),
        lowering_(lowering) {
    options_.near_misses = options_.snapshots = false;
  }

  Result<Ablation> run(const std::string& only) {
    if (!only.empty() && !all_.rules.find(only))
      return error(Code::rule_unknown, "--rule", escape(only));
    FERRULE_ASSIGN(canonical_, canonicalize(std::move(*model_.clone()), all_, options_));
    FERRULE_ASSIGN(const Fused fused, fuse_shape(canonical_, all_, options_));
    Ablation out;
    FERRULE_ASSIGN(out.with, cost_of(fused.graph, all_, lowering_));
    if (only.empty())
      rules(fused.journal, out);
    else
      instances(fused.journal, only, out);
    std::ranges::stable_sort(out.rules, [&](const Worth& a, const Worth& b) {
      auto rank = [&](const Worth& w) {
        return std::pair(-w.bytes_saved(out.with), -w.kernels_saved(out.with));
      };
      return rank(a) != rank(b) ? rank(a) < rank(b) : a.rule < b.rule;
    });
    return out;
  }

 private:
  void rules(const Journal& journal, Ablation& out) {
    for (const auto& [id, count] : journal.fired()) {
      const Rule* r = all_.rules.find(id);
      if (!r) continue;
      auto off = std::make_shared<Rule>(*r);
      off->enabled = false;
      out.rules.push_back(worth(*r, std::move(off)));
      out.rules.back().fired = count;
    }
  }

  void instances(const Journal& journal, const std::string& only, Ablation& out) {
    const Rule& r = *all_.rules.find(only);
    for (const Instances::Line& l : instances_of(journal, "", "").lines) {
      if (l.rule != only) continue;
      out.rules.push_back(worth(r, without_instance(r, l)));
      out.rules.back().root = l.root, out.rules.back().nodes = l.nodes, out.rules.back().fired = 1;
    }
  }

  /// The plan with `instead` in the place of `r`.
  Worth worth(const Rule& r, std::shared_ptr<const Rule> instead) {
    auto place =
        std::ranges::find_if(changed_.rules.rules, [&](const auto& x) { return x->id == r.id; });
    const std::shared_ptr<const Rule> before = std::exchange(*place, std::move(instead));
    auto cost = [&]() -> Result<Cost> {
      FERRULE_ASSIGN(const Fused fused, planned(r));
      return cost_of(fused.graph, changed_, lowering_);
    }();
    *place = before;
    Worth w;
    w.rule = r.id, w.reason = r.may_raise_kernels;
    if (cost)
      w.without = *cost;
    else
      w.error = cost.error().message;
    return w;
  }

  /// Rules that form groups come after what holds for all of them.
  Result<Fused> planned(const Rule& r) const {
    const auto& phases = all_.rules.phases;
    const auto phase = std::ranges::find(phases, r.phase, &Phase::id) - phases.begin();
    if (static_cast<size_t>(phase) >= canonical_.journal.phases.size())
      return fuse_shape(canonical_, changed_, options_);
    return fuse(std::move(*model_.clone()), changed_, options_);
  }

  const Graph& model_;
  const Knowledge& all_;
  Knowledge changed_;
  EngineOptions options_;
  LowerOptions lowering_;
  Fused canonical_;
};

}  // namespace

Result<Ablation> ablate(const Graph& model, const Knowledge& knowledge,
                        const EngineOptions& options, const LowerOptions& lowering,
                        const std::string& rule) {
  return Ablate(model, knowledge, options, lowering).run(rule);
}

}  // namespace ferrule
