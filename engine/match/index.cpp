#include "engine/match/index.h"

#include "engine/match/facts.h"

namespace ferrule {

/// The root may be an optional node, an alternative, or the name of another line.
bool RuleIndex::possible(const Rule& rule, const PatternExpr& e, const Node& n, int depth) const {
  if (depth > 32) return true;
  switch (e.kind) {
    case PatternExpr::Kind::call:
      if (has_head(n, e.ops, e.classes, ops_)) return true;
      return e.optional && !e.args.empty() && possible(rule, *e.args[0], n, depth + 1);
    case PatternExpr::Kind::alternatives:
      for (const auto& [_, choice] : e.choices)
        if (possible(rule, *choice, n, depth + 1)) return true;
      return false;
    case PatternExpr::Kind::reference:
      if (const PatternLine* l = rule.match.line_of(e.name)) return possible(rule, *l->expr, n, depth + 1);
      return false;
    default: return false;
  }
}

const std::vector<uint32_t>& RuleIndex::ranks_at(const Node& n) const {
  if (n.domain.empty())
    if (auto known = by_op_.find(std::string_view(n.op)); known != by_op_.end()) return known->second;
  std::string key = n.domain.empty() ? n.op : n.domain + "::" + n.op;
  auto [it, fresh] = by_op_.try_emplace(std::move(key));
  if (fresh)
    for (uint32_t i = 0; i < rules_.size(); ++i)
      if (!rules_[i]->match.lines.empty() && possible(*rules_[i], *rules_[i]->match.root().expr, n, 0))
        it->second.push_back(i);
  return it->second;
}

std::vector<const Rule*> RuleIndex::at(const Node& n) const {
  std::vector<const Rule*> out;
  for (uint32_t i : ranks_at(n)) out.push_back(rules_[i]);
  return out;
}

}  // namespace ferrule
