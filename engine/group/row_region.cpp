// Regions around row operators: each grows from one of them to what feeds it and what follows, as
// long as values are rows of one shape or their reductions, and no path leaves the region and comes
// back. A node in front joins if nothing else reads its result, or if the rule keeps such a result:
// the kernel then writes what it normalises, too, and nobody reads it a second time. Results may be
// read outside. Regions found earlier count as single nodes, so that all of them together stay free
// of cycles.
#include "engine/group/row_region.h"

#include <algorithm>
#include <map>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/group/group.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/match/trace.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/row.h"

namespace ferrule {
namespace {

std::string axes_text(const RowAxes& axes) {
  std::string out;
  size_t count = 0;
  for (size_t k = 0; k < axes.reduced.size(); ++k)
    if (axes.reduced[k]) out += fmt::format("{}{}", count++ ? ", " : "", k);
  if (axes.groups) return counted(axes.groups, "group") + " of axis 1";
  return (count == 1 ? "axis " : "axes ") + out;
}

class RowRegions {
 public:
  RowRegions(const Rule& rule, const MatchContext& ctx, std::vector<Rejection>* misses)
      : rule_(rule),
        spec_(rule.region),
        ctx_(ctx),
        g_(ctx.graph),
        misses_(misses),
        region_of_(g_.node_slots(), -1) {}

  std::vector<Match> run() {
    for (NodeId n : g_.order())
      if (region_of_[n.index] < 0 && seed(n)) grow(n);
    return std::move(found_);
  }

 private:
  bool seed(NodeId n) const {
    return has_head(g_.node(n), spec_.around_ops, spec_.around_classes, ctx_.ops);
  }
  bool plain(NodeId id) const {
    const Node& n = g_.node(id);
    return n.subgraphs.empty() && n.outputs.size() >= 1 && n.outputs[0] && deterministic(n) &&
           g_.value(n.outputs[0]).type.known();
  }

  void grow(NodeId seed) {
    refused_.reset();
    members_ = {seed};
    auto axes =
        plain(seed) ? row_axes(ctx_.ops, g_, g_.node(seed)) : Applicable<RowAxes>(RowAxes{});
    if (!axes || axes->reduced.empty()) {
      refuse(seed, "structure", [&] {
        return axes ? std::string("the type of its result is not known")
                    : fmt::format("{}: {}", node_text(g_, seed), cause_of(axes.error().reason()));
      });
      return miss(seed);
    }
    if (const size_t read = reads(seed); read > static_cast<size_t>(spec_.max_inputs)) {
      refuse(seed, "structure", [&] { return too_many_inputs(g_, seed, read, spec_.max_inputs); });
      return miss(seed);
    }
    axes_ = *axes;
    shapes(*g_.value(g_.node(seed).inputs[0]).type.shape);
    for (bool more = true; more;) {
      more = false;
      for (NodeId c : neighbours())
        if (members_.size() < static_cast<size_t>(spec_.max_ops) && joins(c)) {
          members_.push_back(c);
          more = true;
        }
    }
    finish(seed);
  }

  void shapes(const Shape& row) {
    row_ = reduced_ = row, squeezed_ = {};
    for (size_t k = 0; k < row.size(); ++k) {
      if (axes_.reduced[k])
        reduced_[k] = Dim(1);
      else
        squeezed_.push_back(row[k]);
    }
  }
  bool whole(ValueId v) const {
    const Type& t = g_.value(v).type;
    return t.shape && (*t.shape == row_ || *t.shape == reduced_);
  }
  bool squeezed(ValueId v) const {
    return g_.value(v).type.shape && !whole(v) && *g_.value(v).type.shape == squeezed_;
  }
  bool member(NodeId n) const { return contains(members_, n); }

  /// What feeds the region, then what reads it, in topological order.
  std::vector<NodeId> neighbours() const {
    std::vector<NodeId> before, behind;
    for (NodeId m : members_) {
      for (ValueId v : g_.node(m).inputs)
        if (v && g_.value(v).producer) before.push_back(g_.value(v).producer);
      for (const Use& u : g_.value(g_.node(m).outputs[0]).uses) behind.push_back(u.node);
    }
    auto tidy = [&](std::vector<NodeId>& list) {
      std::erase_if(list, [&](NodeId n) { return member(n) || region_of_[n.index] >= 0; });
      std::ranges::sort(list, {}, [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
      list.erase(std::unique(list.begin(), list.end()), list.end());
    };
    tidy(before), tidy(behind);
    std::ranges::reverse(before);
    before.insert(before.end(), behind.begin(), behind.end());
    return before;
  }

  /// The first refusal that says something is kept for the report.
  template <class F>
  bool refuse(NodeId n, const char* id, F&& why) {
    if (ctx_.trace) traced(n, id, why());
    if (refused_ || !misses_) return false;
    refused_.emplace();
    refused_->id = id;
    refused_->stage = id[0] == 'D' ? Rejection::Stage::guarantee : Rejection::Stage::structure;
    refused_->why = why();
    return false;
  }

  void traced(NodeId n, const char* id, std::string why) {
    if (ctx_.trace->refused_at(n)) return;
    Rejection r;
    r.rule = &rule_;
    r.root = n;
    r.id = id;
    r.stage = id[0] == 'D' ? Rejection::Stage::guarantee : Rejection::Stage::structure;
    r.why = std::move(why);
    r.matched_nodes = static_cast<int>(members_.size());
    ctx_.trace->refuse(std::move(r));
  }

  bool joins(NodeId c) {
    const Node& n = g_.node(c);
    const bool row = seed(c);
    if (!row && !has_head(n, spec_.ops, spec_.classes, ctx_.ops)) return false;
    if (!plain(c) || n.outputs.size() != 1) return false;
    if (row && !same_rows(c)) return false;
    const ValueId y = n.outputs[0];
    if (!whole(y) && !squeezed(y))
      return refuse(c, "structure", [&] {
        return fmt::format("{} is {}, the rows are {}", value_text(g_, y), str(g_.value(y).type),
                           str(row_));
      });
    const bool feeds =
        std::ranges::any_of(g_.value(y).uses, [&](const Use& u) { return member(u.node); });
    if (feeds && !keeps(c) && !all_inside(c)) return false;
    for (ValueId v : n.inputs)
      if (v && g_.value(v).producer && member(g_.value(v).producer) && squeezed(v) != squeezed(y))
        return refuse(c, "structure", [&] {
          return fmt::format(
              "{} is {}: without the axis that was reduced (keepdims = 0) it would be spread along "
              "another axis of {} {}",
              value_text(g_, v), str(g_.value(v).type), value_text(g_, y), str(g_.value(y).type));
        });
    if (feeds && squeezed(y) && !(row_ == squeezed_)) return false;
    if (reads(c) > static_cast<size_t>(spec_.max_inputs))
      return refuse(c, "structure", [&] {
        return fmt::format("the region would read more than {} tensors", spec_.max_inputs);
      });
    members_.push_back(c);
    const bool ok = closed();
    members_.pop_back();
    if (!ok)
      return refuse(c, "D3", [&] {
        return node_text(g_, c) + " is also reached through a node outside of the layer";
      });
    return conditions(c);
  }

  bool same_rows(NodeId c) {
    auto axes = row_axes(ctx_.ops, g_, g_.node(c));
    const Type& x = g_.value(g_.node(c).inputs[0]).type;
    if (axes && *axes == axes_ && *x.shape == row_) return true;
    return refuse(c, "structure", [&] {
      if (!axes)
        return fmt::format("the rows of {} are not known: {}", node_text(g_, c),
                           cause_of(axes.error().reason()));
      return fmt::format("{} works along {} of {}, {} along {} of {}", node_text(g_, c),
                         axes_text(*axes), str(x), node_text(g_, members_[0]), axes_text(axes_),
                         str(g_.value(g_.node(members_[0]).inputs[0]).type));
    });
  }

  /// A node in front whose result may be needed elsewhere: a further one of the kernel. Not where
  /// it would be taken from a kernel that makes its operand, which then went through memory.
  bool keeps(NodeId c) const {
    if (!has_head(g_.node(c), spec_.kept_ops, spec_.kept_classes, ctx_.ops)) return false;
    return *g_.value(g_.node(c).outputs[0]).type.shape == row_ &&
           std::ranges::none_of(g_.node(c).inputs, [&](ValueId v) { return made_elsewhere(v); });
  }
  bool made_elsewhere(ValueId v) const {
    if (!v || !g_.value(v).producer || g_.value(v).is_output || g_.value(v).uses.size() != 1)
      return false;
    const Node& maker = g_.node(g_.value(v).producer);
    if (is_view(maker)) return made_elsewhere(maker.inputs[0]);
    return is_movement(maker) || (ctx_.ops.pointwise(maker) && !(g_.value(v).type.shape == row_));
  }

  /// A node in front: its result must not be needed elsewhere.
  bool all_inside(NodeId c) {
    const Value& v = g_.value(g_.node(c).outputs[0]);
    if (v.is_output)
      return refuse(c, "D2", [&] {
        return value_text(g_, g_.node(c).outputs[0]) +
               " is an output of the model, so it has to be written to memory";
      });
    for (const Use& u : v.uses)
      if (u.slot == Use::kCapture || !member(u.node))
        return refuse(c, "D1", [&] {
          return fmt::format("{} is also read by {}", value_text(g_, g_.node(c).outputs[0]),
                             node_text(g_, u.node));
        });
    return true;
  }

  /// Tensors that the members read, and the candidate.
  size_t reads(NodeId candidate) const {
    std::set<ValueId> read;
    auto add = [&](NodeId n) {
      for (ValueId v : g_.node(n).inputs) {
        if (!v || (g_.constant(v) && g_.constant(v)->numel() == 1)) continue;
        const NodeId p = g_.value(v).producer;
        if (!p || (p != candidate && !member(p))) read.insert(v);
      }
    };
    for (NodeId m : members_) add(m);
    add(candidate);
    return read.size();
  }

  template <class F>
  void readers(NodeId n, F&& f) const {
    for (ValueId v : g_.node(n).outputs)
      if (v)
        for (const Use& u : g_.value(v).uses) f(u.node);
  }

  /// No path leaves the members and comes back, regions found before taken as single nodes.
  bool closed() const {
    std::vector<bool> seen(g_.node_slots());
    std::vector<NodeId> work;
    bool back = false;
    auto leave = [&](NodeId n, bool from_member) {
      readers(n, [&](NodeId r) {
        if (member(r)) {
          back |= !from_member;
          return;
        }
        auto reach = [&](NodeId x) {
          if (!seen[x.index]) seen[x.index] = true, work.push_back(x);
        };
        if (region_of_[r.index] < 0) return reach(r);
        for (NodeId x : found_[region_of_[r.index]].nodes) reach(x);
      });
    };
    for (NodeId m : members_) leave(m, true);
    while (!work.empty() && !back) {
      const NodeId n = work.back();
      work.pop_back();
      leave(n, false);
    }
    return !back;
  }

  bool conditions(NodeId c) {
    if (spec_.where.empty()) return true;
    Match m = match_of(members_);
    m.nodes.push_back(c);
    m.bindings.nodes["node"] = c;
    m.bindings.value_lists["operands"] = g_.node(c).inputs;
    auto r = judge(rule_, spec_.where, m, ctx_).refused;
    if (r && ctx_.trace && !ctx_.trace->refused_at(c)) {
      r->rule = &rule_, r->root = c;
      ctx_.trace->refuse(*r);
    }
    if (r && !refused_ && misses_) refused_ = std::move(*r);
    return !r;
  }

  Match match_of(std::vector<NodeId> nodes) const {
    std::ranges::sort(nodes, {}, [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
    Match m{&rule_, nodes[0], {}, std::move(nodes), {}, {}};
    m.bindings.node_lists["region"] = m.nodes;
    m.outputs = leaving(g_, m.nodes);
    return m;
  }

  /// The region, or what is left of it when the last nodes that joined are dropped until a kernel
  /// takes it.
  void finish(NodeId seed) {
    for (; members_.size() >= static_cast<size_t>(std::max(spec_.min_ops, 1));
         members_.pop_back()) {
      Match m = match_of(members_);
      if (m.nodes.size() == 1 && g_.node(seed).body) break;
      if (m.outputs.empty() || (!spec_.multi_output && m.outputs.size() > 1)) continue;
      Judgement j = judge(rule_, rule_.where, m, ctx_,
                          [&] { return accepts_group(rule_, m.nodes, ctx_, &m.body); });
      auto& r = j.refused;
      if (!r) {
        for (NodeId n : m.nodes) region_of_[n.index] = static_cast<int>(found_.size());
        m.let = std::move(j.let);
        found_.push_back(std::move(m));
        return;
      }
      if (ctx_.trace) {  // the whole region, or with its last node
        r->rule = &rule_, r->root = members_.back();
        if (!ctx_.trace->refused_at(r->root)) ctx_.trace->refuse(*r);
      }
      if (misses_) refused_ = std::move(*r);
    }
    refuse(seed, "structure", [&] {
      return fmt::format("nothing beside {} could join its rows", node_text(g_, seed));
    });
    miss(seed);
  }

  void miss(NodeId seed) {
    if (!misses_ || !refused_) return;
    refused_->rule = &rule_;
    refused_->root = seed;
    refused_->matched_nodes = std::max(refused_->matched_nodes, static_cast<int>(members_.size()));
    misses_->push_back(std::move(*refused_));
    refused_.reset();
  }

  const Rule& rule_;
  const RegionSpec& spec_;
  const MatchContext& ctx_;
  const Graph& g_;
  std::vector<Rejection>* misses_;
  std::vector<int> region_of_;  // into found_, by node
  std::vector<Match> found_;
  std::vector<NodeId> members_;  // as they joined
  RowAxes axes_;
  Shape row_, reduced_, squeezed_;
  std::optional<Rejection> refused_;
};

}  // namespace

std::vector<Match> match_row_regions(const Rule& rule, const MatchContext& ctx,
                                     std::vector<Rejection>* misses) {
  return RowRegions(rule, ctx, misses).run();
}

}  // namespace ferrule
