// What was found, as the reader sees it: the pattern line by line with the nodes it took, and every
// condition.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/rule/pattern_parse.h"
#include "engine/why/internal.h"

namespace ferrule::why {
namespace {

bool within(const PatternExpr& e, const PatternExpr* wanted) {
  if (&e == wanted) return true;
  for (const auto& a : e.args)
    if (within(*a, wanted)) return true;
  for (const auto& [_, c] : e.choices)
    if (within(*c, wanted)) return true;
  return false;
}

/// As the rule's file has it; a pattern without a file is printed.
std::string line_text(const Rule& rule, const PatternLine& l) {
  std::string_view text = rule.text;
  for (int k = 1; k < l.place.line && !text.empty(); ++k)
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
  text = text.substr(0, text.find('\n'));
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  text = text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
  if (l.place.line > 0 && text.find('=') != text.npos) return std::string(text);
  return results_text(l) + " = " + to_text(*l.expr);
}

/// The pattern; `where`: the graph it was looked for in.
void pattern_lines(Draft& c, const Graph& g) {
  const MatchTrace& t = c.found.trace;
  const bool structure =
      t.failed || (c.found.rejection.stage == Rejection::Stage::structure && t.nodes.empty());
  for (const PatternLine& l : c.c.rule->match.lines) {
    SeenLine line;
    line.text = line_text(*c.c.rule, l);
    std::vector<NodeId> nodes;
    for (const auto& [call, n] : t.nodes)
      if (within(*l.expr, call)) nodes.push_back(n);
    line.nodes = origins(g, nodes);
    if (t.failed && within(*l.expr, t.failed))
      line.state = SeenLine::State::failed;
    else if (!structure || !nodes.empty())
      line.state = SeenLine::State::ok;
    c.c.lines.push_back(std::move(line));
  }
}

void condition_lines(Draft& c) {
  Considered& out = c.c;
  const Rejection& r = c.found.rejection;
  std::set<std::string> seen;
  for (const MatchTrace::Asked& a : c.found.trace.conditions) {
    seen.insert(a.id);
    out.conditions.push_back({a.id, a.condition->cls, a.truth, a.text, a.detail});
  }
  // A node that a tail or a region left out was asked apart from the rule's own conditions.
  if (r.stage == Rejection::Stage::condition && !seen.contains(r.id)) {
    out.conditions.clear();
    out.conditions.push_back({r.id, r.cls, r.truth, r.why, r.detail});
  }
  for (const SeenCondition& s : out.conditions) out.passed_conditions += s.truth == Truth::yes;
  out.total_conditions = static_cast<int>(std::max(out.conditions.size(), out.rule->where.size()));
}

}  // namespace

void describe(Draft& c) {
  const Graph& g = *c.found.graph;
  Considered& out = c.c;
  out.rejection = c.found.rejection;
  std::vector<NodeId> nodes;
  if (c.found.match)
    nodes = c.found.match->nodes;
  else
    for (const auto& [_, n] : c.found.trace.nodes) nodes.push_back(n);
  std::ranges::sort(nodes, {}, [&](NodeId n) { return std::pair(g.node(n).order, n.index); });
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  out.nodes = origins(g, nodes);
  pattern_lines(c, g);
  const bool has_of = !out.rule->region.ops.empty() || !out.rule->region.classes.empty();
  if (has_of) {
    SeenLine line;
    line.text =
        (out.rule->kind == RuleKind::region ? "region of " : "then ") + head_of(out.rule->region);
    const bool complete = std::ranges::all_of(
        out.lines, [](const SeenLine& l) { return l.state == SeenLine::State::ok; });
    if (c.found.match)
      line.state = SeenLine::State::ok;
    else if (complete && out.rejection.stage != Rejection::Stage::condition)
      line.state = SeenLine::State::failed;
    else if (complete)
      line.state = SeenLine::State::ok;
    out.lines.push_back(std::move(line));
  }
  out.pattern_nodes =
      pattern_nodes(*out.rule) + (has_of && out.rule->kind != RuleKind::region ? 1 : 0);
  out.matched_nodes = std::min(static_cast<int>(nodes.size()), out.pattern_nodes);
  if (out.rule->kind == RuleKind::region)
    out.pattern_nodes = std::max(out.rule->region.min_ops, 1), out.matched_nodes = 1;
  if (c.found.match) out.matched_nodes = out.pattern_nodes;
  condition_lines(c);
}

size_t phase_of(const RuleSet& rules, const Rule& rule) {
  for (size_t k = 0; k < rules.phases.size(); ++k)
    if (rules.phases[k].id == rule.phase) return k;
  return rules.phases.size();
}

}  // namespace ferrule::why
