// What one attempt found on its way, beyond the first thing that stood in it: which part of the
// pattern took which node, every condition with its verdict, and the nodes that a tail or a region
// left out, each with the reason. Only `why` asks for it; matching costs the same when nobody does.
#pragma once
#include "engine/match/attempt.h"

namespace ferrule {

struct MatchTrace {
  /// Pattern calls and the nodes they took, of the attempt that the rejection tells of.
  std::vector<std::pair<const PatternExpr*, NodeId>> nodes;
  const PatternExpr* failed = nullptr;  ///< where the structure failed; null: it did not
  ValueId value;                        ///< what stood there …
  NodeId node;                          ///< … or which node was wrong

  struct Asked {
    const Condition* condition = nullptr;
    Truth truth = Truth::unknown;
    std::string text;         ///< why it is not true, with the values found
    std::string id;           ///< the condition's, or of what its contract asks: "conv.rank"
    std::string detail = {};  ///< as Rejection's
  };
  std::vector<Asked> conditions;  ///< of the rule, in order; empty: they were not reached
  std::vector<NodeId> members;    ///< the nodes that the conditions were asked about

  /// Absorb and region rules: what was left out, `root` being that node, in the order in which it
  /// was asked.
  std::vector<Rejection> refused;
  void refuse(Rejection r) { refused.push_back(std::move(r)); }
  const Rejection* refused_at(NodeId n) const {
    for (const Rejection& r : refused)
      if (r.root == n) return &r;
    return nullptr;
  }
};

}  // namespace ferrule
