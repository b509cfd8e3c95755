#include "engine/plan/place.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/contract/region_pieces.h"
#include "engine/group/budget.h"
#include "engine/group/group.h"
#include "engine/match/index.h"
#include "engine/match/pattern_matcher.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

SliceForm form_of(const StridedView& at, const std::vector<int64_t>& dims, Layout layout) {
  const size_t inner = layout == Layout::channels_last && dims.size() >= 3 ? 1 : dims.size() - 1;
  const std::vector<int64_t> own = strides_of(dims, layout);
  if (dims.empty() || std::ranges::count(dims, 0) > 0 || at.strides[inner] != 1)
    return SliceForm::other;
  int64_t distance = 0;
  for (size_t k = 0; k < dims.size(); ++k) {
    if (k == inner || dims[k] == 1) continue;
    const int64_t steps = own[k] / dims[inner];  // pixels, or rows
    if (at.strides[k] % steps || (distance && at.strides[k] / steps != distance))
      return SliceForm::other;
    distance = at.strides[k] / steps;
  }
  return layout == Layout::channels_last ? SliceForm::pixels : SliceForm::rows;
}

/// How the values of a graph would lie.
struct Placement {
  Layouts layouts;
  std::map<ValueId, SliceOf> slices;
};

class Places {
 public:
  /// `placement`: asked here if it is not there yet.
  Places(const Rule& rule, const MatchContext& ctx, std::vector<Rejection>* misses,
         std::optional<Placement>& placement)
      : rule_(rule), ctx_(ctx), g_(ctx.graph), misses_(misses), shared_(placement) {}

  std::vector<PlaceMatch> run() {
    if (!ctx_.target) return {};
    const Rule* one = &rule_;
    RuleIndex index({&one, 1}, ctx_.ops);
    std::vector<NodeId> roots;
    for (NodeId n : ctx_.graph.order())
      if (!index.ranks_at(ctx_.graph.node(n)).empty()) roots.push_back(n);
    if (roots.empty()) return {};
    if (!shared_) {
      Layouts layouts = layouts_of(g_, *ctx_.target, ctx_.ops);
      auto slices = read_slices(g_, layouts, ctx_.ops);
      shared_ = Placement{std::move(layouts), std::move(slices)};
    }
    for (const auto& [v, s] : slices())
      if (g_.value(s.whole).producer != g_.value(v).producer) wholes_.insert(s.whole);
    std::vector<PlaceMatch> out;
    for (size_t k = roots.size(); k-- > 0;)
      one_of(roots[k], out);  // what is around before what is inside
    std::ranges::reverse(out);
    return out;
  }

 private:
  const Layouts& layouts() const { return shared_->layouts; }
  std::map<ValueId, SliceOf>& slices() const { return shared_->slices; }

  void one_of(NodeId root, std::vector<PlaceMatch>& out) {
    Attempt a = match_structure(rule_, root, ctx_);
    if (auto* r = std::get_if<Rejection>(&a)) {
      if (misses_) misses_->push_back(std::move(*r));
      return;
    }
    PlaceMatch p;
    p.match = std::move(std::get<Match>(a));
    const Node& n = g_.node(root);
    if (p.match.nodes.size() != 1 || n.body || !is_movement(n))
      return miss(root, "structure", node_text(g_, root) + " does not only move elements");
    const ValueId whole = value(p.match, rule_.place.whole);
    const std::set<ValueId> parts = values(p.match, rule_.place.parts);
    p.writes = whole == g_.output(root);
    const auto& around = p.writes ? n.inputs : n.outputs;
    const std::vector<std::optional<SliceOf>> cut = slices_of(g_, root, p.writes);
    size_t moved = 0;
    for (size_t slot = 0; slot < around.size(); ++slot) {
      if (!around[slot] || !parts.contains(around[slot])) continue;
      ++moved;
      if (placed(p, root, cut[slot], around[slot], whole))
        p.slots.push_back(static_cast<int64_t>(slot));
    }
    if (p.slots.empty()) return;
    const size_t left =
        moved - p.slots.size();  // a result that is not whole is looked at as a whole
    if ((p.writes && left ? moved : left) > kMaxPieces) {
      for (int64_t slot : p.slots) slices().erase(around[static_cast<size_t>(slot)]);
      return miss(root, "structure",
                  fmt::format("{} of {} parts would be left to move, too many for one kernel", left,
                              moved));
    }
    p.all = p.slots.size() == moved;
    p.match.bindings.attrs["slots"] = p.slots;
    if (!p.writes) wholes_.insert(whole);
    out.push_back(std::move(p));
  }

  ValueId value(const Match& m, const std::string& name) const {
    auto it = m.bindings.values.find(name);
    return it == m.bindings.values.end() ? ValueId{} : it->second;
  }
  std::set<ValueId> values(const Match& m, const std::string& name) const {
    if (auto it = m.bindings.value_lists.find(name); it != m.bindings.value_lists.end())
      return {it->second.begin(), it->second.end()};
    if (ValueId v = value(m, name)) return {v};
    return {};
  }

  bool placed(PlaceMatch& p, NodeId root, const std::optional<SliceOf>& slice, ValueId v,
              ValueId whole) {
    if (std::string why = no_slice(root, v, whole, p.writes); !why.empty())
      return miss(root, "structure", why), false;
    if (!slice)
      return miss(root, "structure", value_text(g_, v) + " is no slice of constant steps"), false;
    slices()[v] = *slice;
    if (judged(p, root, v)) return true;
    slices().erase(v);
    return false;
  }

  std::string other_layout(ValueId v, ValueId whole) const {
    auto order = [&](ValueId x) {
      return layouts()[x] == Layout::channels_last ? "channels last (NHWC)" : "as ONNX does (NCHW)";
    };
    return fmt::format("{} is stored {}, {} {}", value_text(g_, v), order(v), value_text(g_, whole),
                       order(whole));
  }

  /// Whose memory may be a part of another one's at all.
  std::string no_slice(NodeId root, ValueId v, ValueId whole, bool writes) const {
    const Value &part = g_.value(v), &all = g_.value(whole);
    const std::string name = value_text(g_, v);
    if (!part.type.shape || !constant_shape(*part.type.shape))
      return "the size of " + name + " is not known";
    if (part.type.dtype != all.type.dtype || size_bits(part.type.dtype) < 8)
      return name + " has another element type";
    if (part.constant || part.is_input || layouts().escapes(g_, v) || !part.producer)
      return name + " is the caller's memory, or a constant";
    if (slices().contains(v)) return name + " is a part of something else already";
    if (wholes_.contains(v)) return "parts of " + name + " are read where they lie";
    if (layouts()[v] != layouts()[whole]) return other_layout(v, whole);
    for (size_t reads = 0; const Use& u : part.uses) {
      if (u.slot == Use::kCapture) return name + " is used by a nested graph";
      if (u.node == root && layouts().copy_for(v, u))
        return name + " has to be copied into another layout first";
      if (writes && u.node == root && ++reads > 1) return name + " is read twice";
    }
    if (!writes) return all.constant ? value_text(g_, whole) + " is a constant" : "";
    if (contract_of(g_.node(part.producer), ctx_.ops) == "view")
      return name + " is another value's memory under other sizes";
    return "";
  }

  bool judged(PlaceMatch& p, NodeId root, ValueId v) {
    auto at = strided_view(g_, layouts().of, slices(), v);
    if (!at) return false;
    const auto dims = constant_shape(*g_.value(v).type.shape);
    auto accepts = [&] {
      if (at->dense &&
          (ctx_.target->alignment <= 1 ||
           at->offset * size_bits(g_.value(v).type.dtype) / 8 % ctx_.target->alignment == 0))
        return answer::yes();
      const SliceForm form = form_of(*at, *dims, layouts()[v]);
      return all_accept(root, v, form, p.writes);
    };
    Match& m = p.match;
    m.bindings.values["part"] = v;
    m.bindings.nodes["maker"] = g_.value(v).producer;
    m.bindings.attrs["contiguous"] = int64_t{at->dense};
    Judgement j = judge(rule_, rule_.where, m, ctx_, accepts);
    m.let = std::move(j.let);
    auto& r = j.refused;
    if (!r) return true;
    if (r->id == "slices") {
      const int64_t begins = at->offset * size_bits(g_.value(v).type.dtype) / 8;
      const ValueId whole = value(m, rule_.place.whole);
      r->why = at->dense
                   ? fmt::format(
                         "{} would begin {} bytes after the start of {}, which is not a multiple "
                         "of the {} bytes that the kernels of {} need ({})",
                         value_text(g_, v), begins, value_text(g_, whole), ctx_.target->alignment,
                         ctx_.target->name, r->why)
                   : fmt::format("{} would be a slice of a larger tensor: {}", value_text(g_, v),
                                 r->why);
    }
    r->rule = &rule_;
    r->root = root;
    r->matched_nodes = 1;
    if (misses_) misses_->push_back(std::move(*r));
    return false;
  }

  /// The writer of the part and all its readers, but the movement itself.
  Accept all_accept(NodeId root, ValueId v, SliceForm form, bool writes) const {
    const Value& part = g_.value(v);
    if (writes)
      if (Accept a =
              accepts_strided(g_, g_.node(part.producer), kResult, form, *ctx_.target, ctx_.ops);
          a.truth != Truth::yes)
        return a;
    auto takes = [&](const Node& n, int slot) {
      return accepts_strided(g_, n, slot, form, *ctx_.target, ctx_.ops);
    };
    const Node reorder = reorder_node();
    for (const Use& u : part.uses)
      if (u.node != root)
        if (Accept a =
                layouts().copy_for(v, u) ? takes(reorder, 0) : takes(g_.node(u.node), u.slot);
            a.truth != Truth::yes)
          return a;
    return part.is_output ? takes(reorder, 0) : answer::yes();
  }

  void miss(NodeId root, const char* id, std::string why) {
    if (!misses_) return;
    misses_->push_back(no_match(rule_, root, std::move(why), 1));
    misses_->back().id = id;
  }

  const Rule& rule_;
  const MatchContext& ctx_;
  const Graph& g_;
  std::vector<Rejection>* misses_;
  std::optional<Placement>& shared_;  // with the slices found so far
  std::set<ValueId> wholes_;          // of which parts are read where they lie
};

Status fire(const PhaseContext& ctx, std::string_view phase, const Rule& rule,
            const PlaceMatch& p) {
  Graph& g = ctx.graph;
  const NodeId root = p.match.root;
  const std::string name = g.node(root).name, contract = contract_of(g.node(root), ctx.ops);
  Step step{std::string(phase), rule.id, "place", {}, {}, {}};
  step.root = name;
  std::string makers;
  for (int64_t slot : p.slots) {
    const auto at = static_cast<size_t>(slot);
    const ValueId v = p.writes ? g.input(root, at) : g.output(root, at);
    const std::string who = p.writes ? g.node(g.value(v).producer).name : g.value(v).name;
    step.before.push_back(who);
    makers += (makers.empty() ? "" : ", ") + who;
  }
  const std::array<NodeId, 1> one{root};
  FERRULE_ASSIGN(NodeId made, make_group(g, one, contract, rule.id, name));
  g.set_attr(made, std::string(p.writes ? kSlicesWritten : kSlicesRead), p.slots);
  if (p.all) g.set_attr(made, std::string(kNothingToMove), int64_t{1});
  step.after.push_back(g.node(made).name);
  step.text = p.writes ? fmt::format("Retargeting {} to {}", makers, name)
                       : fmt::format("Reading {} where {} would copy from", makers, name);
  ctx.journal.steps.push_back(std::move(step));
  return {};
}

}  // namespace

std::vector<PlaceMatch> match_places(const Rule& rule, const MatchContext& ctx,
                                     std::vector<Rejection>* misses) {
  std::optional<Placement> placement;
  return Places(rule, ctx, misses, placement).run();
}

Attempt match_place(const Rule& rule, NodeId node, const MatchContext& ctx) {
  std::vector<Rejection> misses;
  for (PlaceMatch& p : match_places(rule, ctx, &misses))
    if (p.match.root == node) return std::move(p.match);
  Rejection best = no_match(rule, node, node_text(ctx.graph, node) + " is not what the rule moves");
  bool any = false;
  for (Rejection& r : misses)
    if (r.root == node && (!any || nearness(r) > nearness(best))) best = std::move(r), any = true;
  return best;
}

Status place_phase(const PhaseContext& ctx, std::string_view phase) {
  Graph& g = ctx.graph;
  bool any = false;
  GroupBudget budget(ctx, phase);
  std::optional<Placement> placement;  // until a rule fires; what finds nothing leaves it as it was
  for (const auto& rule : ctx.rules.rules) {
    if (!rule->enabled || rule->phase != phase || rule->kind != RuleKind::place) continue;
    FERRULE_TRY(budget.more());
    any = true;
    if (!placement) FERRULE_TRY(g.sort());
    const MatchContext mc = ctx.match_context(g, budget.steps);
    std::vector<Rejection> misses;
    const std::vector<PlaceMatch> found =
        Places(*rule, mc, ctx.near_misses ? &misses : nullptr, placement).run();
    for (const PlaceMatch& p : found) FERRULE_TRY(fire(ctx, phase, *rule, p));
    if (!found.empty()) placement.reset();
    if (ctx.near_misses) std::ranges::move(misses, std::back_inserter(*ctx.near_misses));
  }
  return any ? g.sort() : Status{};
}

}  // namespace ferrule
