// Which rules can match at a node at all: by its operator, found out once per operator.
#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <unordered_map>

#include "engine/match/match_rule.h"

namespace ferrule {

class RuleIndex {
 public:
  /// `rules` in firing order; those without a pattern (regions) are left out.
  RuleIndex(std::span<const Rule* const> rules, const Semantics& ops);
  /// Rules whose root may be `n`, as positions in rules(), in firing order.
  const std::vector<uint32_t>& ranks_at(const Node& n) const;
  /// Whether the operands of `n` are made by operators, and among them are constants, that the rule
  /// at this position of rules() cannot do without. Says no only where a match must fail by
  /// structure.
  bool promising(uint32_t rank, const Graph& g, NodeId n) const;
  const std::vector<const Rule*>& rules() const { return rules_; }
  bool empty() const { return rules_.empty(); }

 private:
  bool possible(const Rule& rule, const PatternExpr& e, const Node& n, int depth) const;
  /// One spelling of a call: its operator, and what it needs of its operands: each inner list is of
  /// calls, one of which must make some operand. A few operators deep.
  struct Spelling {
    const PatternExpr* root = nullptr;
    std::vector<std::vector<Spelling>> operands;
    bool constant = false;
  };
  static Spelling spelling(const Rule& rule, const PatternExpr& e, int depth);
  bool fits(const Spelling& s, const Graph& g, const Node& n) const;
  static void collect(const Rule& rule, const PatternExpr& e, std::vector<Spelling>& out,
                      bool& open);
  /// Empty: anything may match. Worked out when it is asked for first: most rules never are.
  const std::vector<Spelling>& spellings(uint32_t rank) const;
  mutable std::vector<std::optional<std::vector<Spelling>>> spellings_;  // by rank
  std::vector<const Rule*> rules_;
  const Semantics& ops_;
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  mutable std::unordered_map<std::string, std::vector<uint32_t>, Hash, std::equal_to<>> by_op_;
};

}  // namespace ferrule
