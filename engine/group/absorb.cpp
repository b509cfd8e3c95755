// Absorb rules: an anchor takes the operators behind it. The tail grows from the anchor's result in
// topological order and is cut back to the last point where exactly one value leaves. Then nothing
// inside can be reached again from outside: every inner value is read inside only, so every path
// goes through the value that leaves, and that one is last. Convexity (D3) needs no search.
#include "engine/group/absorb.h"

#include <algorithm>
#include <queue>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/graph/open_sizes.h"
#include "engine/group/group.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/match/trace.h"

namespace ferrule {
namespace {

class Tail {
 public:
  Tail(const Rule& rule, const Match& m, const MatchContext& ctx)
      : rule_(rule),
        spec_(rule.region),
        m_(m),
        ctx_(ctx),
        g_(ctx.graph),
        result_(m.outputs.at(0)) {}

  /// Lengths of the tail at which exactly one value left, rising.
  std::vector<size_t> grow() {
    std::vector<size_t> valid;
    leave(result_);
    while (!pending_.empty() && !blocked_ && nodes_.size() < static_cast<size_t>(spec_.max_ops)) {
      NodeId c = pending_.top().second;
      pending_.pop();
      if (member(c)) continue;
      if (!allowed(c)) {  // what it reads is needed outside for good
        if (ctx_.trace) trace(c, valid);
        return valid;
      }
      take(c);
      if (open_.size() == 1) valid.push_back(nodes_.size());
    }
    if (ctx_.trace) trace({}, valid);
    return valid;
  }

  const std::vector<NodeId>& nodes() const { return nodes_; }

  /// Why there is no tail at all.
  Rejection why() {
    Rejection r = refused_ ? *refused_ : Rejection{};
    r.rule = &rule_;
    r.root = m_.root;
    const Value& v = g_.value(result_);
    auto guarantee = [&](const char* id, auto&& text) {
      r.stage = Rejection::Stage::guarantee;
      r.id = id;
      r.hint.clear();
      if (ctx_.explain) r.why = text();
    };
    if (v.is_output && !v.uses.empty()) {
      guarantee("D2", [&] {
        return value_text(g_, result_) +
               " is an output of the model, so it has to be written to memory";
      });
    } else if (NodeId n = captured_by(v)) {
      guarantee("D2", [&] {
        return value_text(g_, result_) + " is read by a nested graph of " + node_text(g_, n);
      });
    } else if (!nodes_.empty() || (v.uses.size() > 1 && !refused_ && any_candidate(v))) {
      guarantee("D1", [&] { return readers(v); });
    } else if (!refused_) {
      r.id = "structure";
      r.stage = Rejection::Stage::structure;
      if (ctx_.explain)
        r.why = v.uses.empty()
                    ? fmt::format("{} is {}read by no node", value_text(g_, result_),
                                  v.is_output ? "an output of the model and " : "")
                    : fmt::format("found {} after {} where the rule takes {}",
                                  node_text(g_, v.uses[0].node), value_text(g_, result_), wanted());
    }
    return r;
  }

 private:
  bool member(NodeId n) const {
    return std::ranges::find(nodes_, n) != nodes_.end() ||
           std::ranges::find(m_.nodes, n) != m_.nodes.end();
  }
  bool inside(ValueId v) const { return g_.value(v).producer && member(g_.value(v).producer); }

  static NodeId captured_by(const Value& v) {
    for (const Use& u : v.uses)
      if (u.slot == Use::kCapture) return u.node;
    return {};
  }
  bool any_candidate(const Value& v) const {
    return std::ranges::any_of(v.uses, [&](const Use& u) { return head(u.node); });
  }
  std::string wanted() const {
    PatternExpr e;
    e.ops = spec_.ops, e.classes = spec_.classes;
    return head_words(e);
  }
  std::string readers(const Value& v) const {
    std::string out = fmt::format(
        "{} has {} that do not meet again in one value, so it has to be written to memory:",
        value_text(g_, result_), counted(v.uses.size(), "reader"));
    for (size_t i = 0; i < v.uses.size() && i < 4; ++i)
      out += (i ? ", " : " ") + node_text(g_, v.uses[i].node);
    return out;
  }

  /// Tells of the candidate that ended the tail (none: the tail ended by itself), of what waited
  /// behind it, and of the nodes that were given back because more than one value left.
  void trace(NodeId ended, const std::vector<size_t>& valid) {
    auto refuse = [&](NodeId n, Rejection r) {
      r.rule = &rule_;
      r.root = n;
      r.matched_nodes = static_cast<int>(m_.nodes.size() + nodes_.size());
      ctx_.trace->refuse(std::move(r));
    };
    auto text = [&](NodeId n, const char* id, std::string why) {
      Rejection r = structure(n, std::move(why));
      r.id = id;
      if (id[0] == 'D') r.stage = Rejection::Stage::guarantee;
      refuse(n, std::move(r));
    };
    if (ended && refused_)
      refuse(ended, *refused_);
    else if (ended)
      text(ended, "structure",
           fmt::format("found {} after {} where the rule takes {}", node_text(g_, ended),
                       node_text(g_, nodes_.empty() ? m_.nodes.back() : nodes_.back()), wanted()));
    for (size_t k = valid.empty() ? 0 : valid.back(); k < nodes_.size(); ++k)
      text(nodes_[k], "D1",
           fmt::format("{} values would leave the layer instead of one: {}", open_.size(),
                       open_values()));
    for (const auto& [v, _] : open_)
      for (const Use& u : g_.value(v).uses) {
        if (u.slot == Use::kCapture || member(u.node) || u.node == ended ||
            ctx_.trace->refused_at(u.node))
          continue;
        if (blocked_)
          text(u.node, "D2", needed(g_.value(blocked_), blocked_));
        else if (nodes_.size() >= static_cast<size_t>(spec_.max_ops))
          text(u.node, "structure",
               fmt::format("the layer already has {} after the first, as many as the rule takes",
                           counted(spec_.max_ops, "node")));
        else if (ended)
          text(u.node, "D1", beside(v, ended));
      }
  }

  /// Of a value that waits for more readers: that another leaves the layer for `ended`.
  std::string beside(ValueId v, NodeId ended) const {
    auto read = [&](ValueId x) {
      return std::ranges::any_of(g_.value(x).uses, [&](const Use& u) { return u.node == ended; });
    };
    if (read(v))
      return fmt::format("{} is also read by {}, which cannot join", value_text(g_, v),
                         node_text(g_, ended));
    for (const auto& [other, _] : open_)
      if (read(other))
        return fmt::format("{} would leave the layer, too: it is read by {}, which cannot join",
                           value_text(g_, other), node_text(g_, ended));
    return fmt::format("{} values would leave the layer instead of one: {}", open_.size(),
                       open_values());
  }

  /// Why a value cannot stay inside.
  std::string needed(const Value& value, ValueId v) const {
    const std::string name = value_text(g_, v);
    if (value.is_output)
      return name + " is an output of the model, so it has to be written to memory";
    if (NodeId n = captured_by(value))
      return name + " is read by a nested graph of " + node_text(g_, n) +
             ", so it has to be written to memory";
    return fmt::format(
        "{} has {} readers, too many for one layer, so it has to be written to memory", name,
        value.uses.size());
  }

  /// "c" (read by "pool" (MaxPool)), "y"
  std::string open_values() const {
    std::string out;
    for (const auto& [v, _] : open_) {
      out += (out.empty() ? "" : ", ") + value_text(g_, v);
      for (const Use& u : g_.value(v).uses)
        if (!member(u.node)) {
          out += fmt::format(" (read by {})", node_text(g_, u.node));
          break;
        }
    }
    return out;
  }

  /// A member's value: open until all its readers are members.
  void leave(ValueId v) {
    const Value& value = g_.value(v);
    size_t outside = 0;
    for (const Use& u : value.uses) outside += u.slot == Use::kCapture || !member(u.node);
    open_.emplace_back(v, outside);
    if (value.is_output || captured_by(value) || outside > 4 * static_cast<size_t>(spec_.max_ops) ||
        outside == 0) {
      blocked_ = v;
      return;
    }
    for (const Use& u : value.uses)
      if (!member(u.node)) pending_.emplace(std::pair(g_.node(u.node).order, u.node.index), u.node);
  }

  bool head(NodeId c) const { return has_head(g_.node(c), spec_.ops, spec_.classes, ctx_.ops); }

  bool allowed(NodeId c) {
    const Node& n = g_.node(c);
    if (!head(c) || !n.subgraphs.empty() || !deterministic(n)) return false;
    if (n.outputs.size() != 1 || !n.outputs[0]) return false;
    if (!same_shape(g_.value(n.outputs[0]).type, g_.value(result_).type)) {
      if (!refused_) refused_ = shapes(c, n.outputs[0]);
      return false;
    }
    std::vector<ValueId> operands;
    for (ValueId v : n.inputs)
      if (v && !inside(v) && std::ranges::find(operands, v) == operands.end())
        operands.push_back(v);
    size_t read = read_.size();
    for (ValueId v : operands)
      if (std::ranges::find(read_, v) == read_.end() && !single(v)) ++read;
    if (read > static_cast<size_t>(spec_.max_inputs)) {
      if (!refused_) {
        refused_ =
            structure(c, fmt::format("the operators after it would read {} than it does; the "
                                     "rule allows {} (its parameter max_inputs)",
                                     counted(read, "more tensor"), spec_.max_inputs));
        refused_->of_tail = true;
      }
      return false;
    }
    return conditions(c, operands);
  }

  bool single(ValueId v) const { return g_.constant(v) && g_.constant(v)->numel() == 1; }

  Rejection structure(NodeId, std::string text) const {
    Rejection r;
    r.why = std::move(text);
    r.id = "structure";
    r.matched_nodes = static_cast<int>(m_.nodes.size());
    return r;
  }

  /// The candidate's result has another shape than the anchor's, or perhaps has.
  Rejection shapes(NodeId c, ValueId y) const {
    const Type &have = g_.value(y).type, &want = g_.value(result_).type;
    Rejection r = structure(
        c, fmt::format("{} is {}, but {} is {}: what is fused after it must keep the shape",
                       value_text(g_, y), str(have), value_text(g_, result_), str(want)));
    r.of_tail = true;
    bool differ = have.shape && want.shape && have.shape->size() != want.shape->size();
    for (size_t k = 0; !differ && have.shape && want.shape && k < have.shape->size(); ++k)
      differ = equal((*have.shape)[k], (*want.shape)[k]) == Truth::no;
    if (!differ) {
      r.truth = Truth::unknown;
      r.detail = "whether they have one shape: " + r.why;
      r.why = undecided(g_, r.detail);
    }
    return r;
  }

  bool conditions(NodeId c, const std::vector<ValueId>& operands) {
    if (spec_.where.empty()) return true;
    Match m = m_;  // the conditions see the match with the tail so far
    auto& b = m.bindings;
    b.nodes["node"] = c;
    if (auto a = b.nodes.find(rule_.anchor); a != b.nodes.end()) b.nodes["anchor"] = a->second;
    b.value_lists["operands"] = operands;
    m.nodes.insert(m.nodes.end(), nodes_.begin(), nodes_.end());
    m.nodes.push_back(c);
    auto r = judge(rule_, spec_.where, m, ctx_).refused;
    if (!r) return true;
    if (!refused_) {
      r->matched_nodes = static_cast<int>(m_.nodes.size()) + 1;
      refused_ = std::move(*r);
    }
    return false;
  }

  void take(NodeId c) {
    const Node& n = g_.node(c);
    nodes_.push_back(c);
    for (ValueId v : n.inputs) {
      if (!v) continue;
      auto it = std::ranges::find_if(open_, [&](const auto& o) { return o.first == v; });
      if (it != open_.end()) {
        if (--it->second == 0) open_.erase(it);
      } else if (!single(v) && std::ranges::find(read_, v) == read_.end()) {
        read_.push_back(v);
      }
    }
    leave(n.outputs[0]);
  }

  const Rule& rule_;
  const RegionSpec& spec_;
  const Match& m_;
  const MatchContext& ctx_;
  const Graph& g_;
  ValueId result_;
  std::vector<NodeId> nodes_;
  std::vector<ValueId> read_;                     // operands from outside
  std::vector<std::pair<ValueId, size_t>> open_;  // values with readers outside, and how many
  ValueId blocked_;                               // the one of them that will stay open
  std::optional<Rejection> refused_;              // the first candidate that was not taken
  using Pending = std::pair<std::pair<int, uint32_t>, NodeId>;
  std::priority_queue<Pending, std::vector<Pending>, std::greater<>> pending_;
};

/// A cheap look before the match: whether some reader of the root's result could begin a tail.
bool may_have_tail(const Rule& rule, NodeId root, const MatchContext& ctx) {
  const std::vector<std::string>& results = rule.match.root().results;
  if (results.size() != 1 || (!rule.match.outputs.empty() && rule.match.outputs != results))
    return true;
  const ValueId v = ctx.graph.output(root);
  return !v || std::ranges::any_of(ctx.graph.value(v).uses, [&](const Use& u) {
    return has_head(ctx.graph.node(u.node), rule.region.ops, rule.region.classes, ctx.ops);
  });
}

}  // namespace

Attempt match_absorb(const Rule& rule, NodeId root, const MatchContext& ctx) {
  bool has_tail = !rule.region.ops.empty() || !rule.region.classes.empty();
  if (has_tail && !ctx.explain && !may_have_tail(rule, root, ctx)) return no_match(rule, root, "");
  Attempt a = match_structure(rule, root, ctx);
  if (std::holds_alternative<Rejection>(a)) return a;
  Match m = std::move(std::get<Match>(a));
  m.bindings.node_lists["tail"] = {};
  if (!has_tail) {
    if (m.nodes.size() == 1 && ctx.graph.node(m.nodes[0]).body)
      return no_match(rule, root, node_text(ctx.graph, root) + " is a group already");
    return judge_group(rule, std::move(m), ctx);
  }
  Tail tail(rule, m, ctx);
  std::vector<size_t> valid = tail.grow();
  const size_t longest = valid.empty() ? 0 : valid.back();
  std::erase_if(valid, [&](size_t k) { return k < static_cast<size_t>(rule.region.min_ops); });
  if (valid.empty() && longest > 0)
    return no_match(
        rule, root,
        fmt::format("{} can join {}, the rule takes {} or more", counted(longest, "node"),
                    node_text(ctx.graph, root), rule.region.min_ops),
        static_cast<int>(m.nodes.size() + longest));
  if (valid.empty()) return tail.why();
  std::vector<NodeId> anchor = m.nodes;
  std::optional<Rejection> first;
  for (auto k = valid.rbegin(); k != valid.rend(); ++k) {
    auto& list = m.bindings.node_lists["tail"];
    list.assign(tail.nodes().begin(), tail.nodes().begin() + static_cast<long>(*k));
    m.nodes = anchor;
    m.nodes.insert(m.nodes.end(), list.begin(), list.end());
    Attempt judged = judge_group(rule, m, ctx);
    if (auto* r = std::get_if<Rejection>(&judged)) {
      if (!first) first = std::move(*r);
      continue;
    }
    std::get<Match>(judged).outputs = {ctx.graph.output(list.back())};
    return judged;
  }
  return std::move(*first);
}

}  // namespace ferrule
