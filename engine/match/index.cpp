#include "engine/match/index.h"

#include <algorithm>

#include "engine/match/facts.h"

namespace ferrule {
namespace {

using Kind = PatternExpr::Kind;

/// The calls one of which must make the operand; false: it need not be made by any.
bool makers(const Rule& rule, const PatternExpr& e, std::vector<const PatternExpr*>& out,
            int depth) {
  if (depth > 8 || e.optional || e.variadic) return false;
  if (e.kind == Kind::call) return out.push_back(&e), true;
  if (e.kind == Kind::reference) {
    const PatternLine* l = rule.match.line_of(e.name);
    return l && makers(rule, *l->expr, out, depth + 1);
  }
  if (e.kind != Kind::alternatives) return false;
  return std::ranges::all_of(
      e.choices, [&](const auto& c) { return makers(rule, *c.second, out, depth + 1); });
}

}  // namespace

RuleIndex::RuleIndex(std::span<const Rule* const> rules, const Semantics& ops)
    : rules_(rules.begin(), rules.end()), ops_(ops) {
  spellings_.resize(rules_.size());
}

const std::vector<RuleIndex::Spelling>& RuleIndex::spellings(uint32_t rank) const {
  auto& known = spellings_[rank];
  if (known) return *known;
  auto& all = known.emplace();
  const Rule& r = *rules_[rank];
  bool open = r.match.lines.empty();
  if (!open) collect(r, *r.match.root().expr, all, open);
  if (open) all.clear();
  return all;
}

void RuleIndex::collect(const Rule& rule, const PatternExpr& e, std::vector<Spelling>& out,
                        bool& open) {
  if (e.kind == Kind::alternatives) {
    for (const auto& [_, choice] : e.choices) collect(rule, *choice, out, open);
    return;
  }
  if (e.kind != Kind::call || e.optional) {
    open = true;
    return;
  }
  out.push_back(spelling(rule, e, 0));
}

RuleIndex::Spelling RuleIndex::spelling(const Rule& rule, const PatternExpr& e, int depth) {
  constexpr int kDepth = 3;
  Spelling s;
  s.root = &e;
  for (const auto& a : e.args) {
    s.constant |= a->kind == Kind::number ||
                  (a->kind == Kind::reference && a->constant && !a->optional && !a->variadic);
    std::vector<const PatternExpr*> calls;
    if (depth == kDepth || !makers(rule, *a, calls, 0)) continue;
    auto& made = s.operands.emplace_back();
    for (const PatternExpr* c : calls) made.push_back(spelling(rule, *c, depth + 1));
  }
  return s;
}

bool RuleIndex::fits(const Spelling& s, const Graph& g, const Node& n) const {
  if (!has_head(n, s.root->ops, s.root->classes, ops_)) return false;
  if (s.constant &&
      std::ranges::none_of(n.inputs, [&](ValueId v) { return g.constant(v) != nullptr; }))
    return false;
  return std::ranges::all_of(s.operands, [&](const std::vector<Spelling>& makers) {
    return std::ranges::any_of(n.inputs, [&](ValueId v) {
      const Node* p = g.producer(v);
      return p && std::ranges::any_of(makers, [&](const Spelling& m) { return fits(m, g, *p); });
    });
  });
}

bool RuleIndex::promising(uint32_t rank, const Graph& g, NodeId id) const {
  const std::vector<Spelling>& all = spellings(rank);
  return all.empty() ||
         std::ranges::any_of(all, [&](const Spelling& s) { return fits(s, g, g.node(id)); });
}

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
      if (const PatternLine* l = rule.match.line_of(e.name))
        return possible(rule, *l->expr, n, depth + 1);
      return false;
    default:
      return false;
  }
}

const std::vector<uint32_t>& RuleIndex::ranks_at(const Node& n) const {
  if (n.domain.empty())
    if (auto known = by_op_.find(std::string_view(n.op.text())); known != by_op_.end())
      return known->second;
  std::string key = n.domain.empty() ? n.op.text() : n.domain + "::" + n.op.text();
  auto [it, fresh] = by_op_.try_emplace(std::move(key));
  if (fresh)
    for (uint32_t i = 0; i < rules_.size(); ++i)
      if (!rules_[i]->match.lines.empty() &&
          possible(*rules_[i], *rules_[i]->match.root().expr, n, 0))
        it->second.push_back(i);
  return it->second;
}

}  // namespace ferrule
