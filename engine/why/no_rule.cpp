// What to say where no rule takes the nodes asked about: what stands between them, what else rules
// would take beside one of them, and what is missing for those that take both.
#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"
#include "engine/rule/text.h"
#include "engine/why/inquiry.h"

namespace ferrule::why {
namespace {

bool takes_as_anchor(const Rule& rule, const Node& n, const Semantics& ops) {
  return !(rule.region.ops.empty() && rule.region.classes.empty()) &&
         calls(*rule.match.root().expr, n, ops);
}
/// Right in front of the pattern's last node.
bool takes_inside(const Rule& rule, const Node& n, const Semantics& ops) {
  return std::ranges::any_of(rule.match.root().expr->args,
                             [&](const auto& a) { return may_be(rule, *a, n, ops); });
}
/// The operators of the pattern's last line.
std::string root_words(const Rule& rule) {
  const PatternExpr& root = *rule.match.root().expr;
  return root.kind == PatternExpr::Kind::call ? head_words(root) : "";
}
}  // namespace

bool calls(const PatternExpr& e, const Node& n, const Semantics& ops) {
  if (e.kind == PatternExpr::Kind::call && !e.optional && has_head(n, e.ops, e.classes, ops))
    return true;
  auto inner = [&](const PatternExpr& x) { return calls(x, n, ops); };
  return std::ranges::any_of(e.args, [&](const auto& a) { return inner(*a); }) ||
         std::ranges::any_of(e.choices, [&](const auto& c) { return inner(*c.second); });
}

bool feeds(const Rule& rule, const PatternExpr& e, const Node& first, const Node& then,
           const Semantics& ops) {
  auto inner = [&](const PatternExpr& x) { return feeds(rule, x, first, then, ops); };
  if (e.kind == PatternExpr::Kind::call && has_head(then, e.ops, e.classes, ops) &&
      std::ranges::any_of(e.args, [&](const auto& a) { return may_be(rule, *a, first, ops); }))
    return true;
  return std::ranges::any_of(e.args, [&](const auto& a) { return inner(*a); }) ||
         std::ranges::any_of(e.choices, [&](const auto& c) { return inner(*c.second); });
}

std::string Inquiry::State::otherwise(const std::vector<std::string>& names,
                                      const std::vector<std::string>& between) const {
  auto contract = [&](const std::string& n) -> std::string {
    auto it = layers.find(n);
    return it == layers.end() ? "" : o.plan.layers[it->second[0]].contract;
  };
  auto with_op = [&](const std::string& n) {
    auto op = ops.find(n);
    return op == ops.end() ? escape(n) : fmt::format("{} ({})", escape(n), escape(op->second));
  };
  std::vector<std::string> interpreted_ones, fused;  // of what stands between
  std::set<size_t> told;                             // their layers
  for (const std::string& n : between)
    if (const std::string by = contract(n); by == "interpret")
      interpreted_ones.push_back(with_op(n));
    else if (const size_t l = by.empty() ? 0 : layers.find(n)->second[0];
             fused.size() < 2 && (by.empty() || told.insert(l).second))
      fused.push_back(fmt::format(
          "{} is {}, which no rule fuses with them", with_op(n),
          by.empty() || o.plan.layers[l].nodes.size() == 1
              ? fmt::format("a separate layer ({})", by)
              : fmt::format("part of layer \"{}\" ({})", escape(o.plan.layers[l].name), by)));
  if (!interpreted_ones.empty()) {
    const bool one = interpreted_ones.size() == 1;
    fused.insert(fused.begin(),
                 fmt::format("{} {} no kernel and no formula to generate one from: {} interpreted, "
                             "{} layer{} of {} own",
                             ferrule::joined(interpreted_ones, {}, ", ", " and "),
                             one ? "has" : "have", one ? "it is" : "they are", one ? "a" : "as",
                             one ? "" : "s", one ? "its" : "their"));
  }
  if (!fused.empty()) return ferrule::joined(fused, {}, "; ");
  if (names.size() == 2) {
    if (const std::string rules = with_more(names[0], names[1]); !rules.empty())
      return fmt::format("{} and {} are fused only together with what is missing here: {}",
                         with_op(names[0]), with_op(names[1]), rules);
    std::string text =
        fmt::format("no rule fuses {} into the layer of {}", with_op(names[1]), with_op(names[0]));
    if (interpreted(names[1])) text += "; it has no kernel and is interpreted";
    if (const std::string rules = takers(names[0], names[1]); !rules.empty())
      text += "; rules that take what follows such a node: " + rules;
    return text;
  }
  const NodeId id = o.model->find_node(names[0]);
  if (!id) return "";
  std::vector<std::string> beside;
  auto add = [&](NodeId n) {
    if (!n || beside.size() >= 4) return;
    const Node& node = o.model->node(n);
    const std::string& name = node.origins.empty() ? node.name : node.origins.front();
    auto mine = layers.find(names[0]), theirs = layers.find(name);
    if (mine != layers.end() && theirs != layers.end() && mine->second == theirs->second) return;
    std::string text = fmt::format("{} ({})", escape(name), escape(node.op));
    if (!contains(beside, text)) beside.push_back(std::move(text));
  };
  for (ValueId v : o.model->node(id).inputs)
    if (v) add(o.model->value(v).producer);
  for (ValueId v : o.model->node(id).outputs)
    if (v)
      for (const Use& u : o.model->value(v).uses) add(u.node);
  if (beside.empty()) return "nothing that is computed comes before or after it";
  return "no rule fuses it with its neighbours " + ferrule::joined(beside, {}, ", ", " or ");
}

std::string Inquiry::State::not_for(const Rule& rule, const std::vector<std::string>& asked) const {
  std::string what;
  if (rule.match.lines.empty())
    what = "joins several nodes, each " + words_of(rule.region);
  else if (const PatternExpr& root = *rule.match.root().expr;
           root.kind == PatternExpr::Kind::call && rule.region.ops.empty() &&
           rule.region.classes.empty())
    what = "ends in " + head_words(root);
  else if (!rule.region.ops.empty() || !rule.region.classes.empty())
    what = "takes " + words_of(rule.region) + " after " +
           (root_words(rule).empty() ? "its anchor" : root_words(rule));
  std::string nodes;
  for (const std::string& n : asked) {
    auto op = ops.find(n);
    nodes += (nodes.empty() ? "" : ", ") + escape(n) +
             (op == ops.end() ? "" : fmt::format(" is {}", escape(op->second)));
  }
  return fmt::format("{} is not for them: it {}; {}", rule.id,
                     what.empty() ? "has another pattern" : what, nodes);
}

bool Inquiry::State::interpreted(const std::string& name) const {
  auto it = layers.find(name);
  return it != layers.end() && std::ranges::all_of(it->second, [&](size_t k) {
           return o.plan.layers[k].contract == "interpret";
         });
}

std::string Inquiry::State::takers(const std::string& name, const std::string& reader) const {
  const NodeId id = o.model->find_node(name), then = o.model->find_node(reader);
  if (!id) return "";
  const Knowledge& k = *o.knowledge;
  auto means = [&](const auto& heads, const auto& classes) {
    return then && has_head(o.model->node(then), heads, classes, k.ops);
  };
  std::string out;
  for (const auto& rule : k.rules.rules) {
    const bool absorbs = rule->kind == RuleKind::absorb;
    if ((!absorbs && rule->kind != RuleKind::window) || !rule->enabled || off_type(*rule) ||
        !k.target.contracts.contains(rule->contract) || rule->match.lines.empty())
      continue;
    const PatternExpr& root = *rule->match.root().expr;
    std::string what;
    if (absorbs && takes_as_anchor(*rule, o.model->node(id), k.ops) &&
        !means(rule->region.ops, rule->region.classes))
      what = words_of(rule->region);
    else if (!absorbs && root.kind == PatternExpr::Kind::call &&
             takes_inside(*rule, o.model->node(id), k.ops) && !means(root.ops, root.classes))
      what = head_words(root);
    if (!what.empty()) out += fmt::format("{}{} ({})", out.empty() ? "" : ", ", rule->id, what);
  }
  return out;
}

std::string Inquiry::State::with_more(const std::string& name, const std::string& reader) const {
  const NodeId id = o.model->find_node(name), then = o.model->find_node(reader);
  if (!id || !then) return "";
  const Semantics& meanings = o.knowledge->ops;
  const std::vector<NodeId> nodes = o.model->order();
  std::vector<NodeId> behind;
  for (ValueId v : o.model->node(then).outputs)
    if (v)
      for (const Use& u : o.model->value(v).uses) behind.push_back(u.node);
  std::vector<std::string> out;
  size_t fewest = nodes.size();
  for (const auto& rule : o.knowledge->rules.rules) {
    if (!rule->enabled || off_type(*rule) ||
        std::ranges::none_of(rule->match.lines, [&](const PatternLine& l) {
          return feeds(*rule, *l.expr, o.model->node(id), o.model->node(then), meanings);
        }))
      continue;
    std::vector<std::string> lacking;
    size_t wanted = 0;
    const std::function<void(const PatternExpr&)> visit = [&](const PatternExpr& e) {
      if (e.kind != PatternExpr::Kind::call || e.optional) return;
      ++wanted;
      const bool reads = std::ranges::any_of(
          e.args, [&](const auto& a) { return may_be(*rule, *a, o.model->node(then), meanings); });
      if (std::ranges::none_of(reads ? behind : nodes, [&](NodeId n) {
            return has_head(o.model->node(n), e.ops, e.classes, meanings);
          }))
        lacking.push_back(head_words(e) + (reads ? " after " + escape(reader) : ""));
      for (const auto& a : e.args) visit(*a);
    };
    for (const PatternLine& l : rule->match.lines) visit(*l.expr);
    // Where much is missing the two are there for something else.
    if (lacking.empty() || lacking.size() > fewest || 3 * lacking.size() >= wanted) continue;
    if (lacking.size() < std::exchange(fewest, lacking.size())) out.clear();
    out.push_back(
        fmt::format("{} (takes {}, too)", rule->id, ferrule::joined(lacking, {}, ", ", " and ")));
  }
  return ferrule::joined(out, {}, ", ", " and ");
}

}  // namespace ferrule::why
