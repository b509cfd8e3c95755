// Structural matching: walks a pattern backwards from a root node, with backtracking over
// alternatives, optional nodes and operand orders. Goals are a linked list on the stack, bindings a
// log that is cut back on a wrong choice, so that a failed attempt costs no allocation worth
// mentioning. What a match must guarantee beyond its structure (leaks, convexity, conditions) is
// match_rule.cpp's business, asked through a callback for each complete embedding until one is
// accepted.
#pragma once
#include <functional>
#include <list>

#include "engine/match/attempt.h"

namespace ferrule {

/// One complete embedding of the pattern.
struct Embedding {
  Bindings bindings;             ///< every name of the pattern; those not taken part are none
  std::vector<NodeId> nodes;     ///< topological order, each once
  std::vector<ValueId> outputs;  ///< by Pattern::outputs
};

/// How the operands of one commutative call are tried: `order` is most constrained first.
struct Assignment {
  const PatternExpr* call = nullptr;
  NodeId node;
  std::vector<uint32_t> order;        ///< into call->args, the variadic one left out
  const PatternExpr* rest = nullptr;  ///< the variadic one
};

class Matcher {
 public:
  Matcher(const Rule& rule, const MatchContext& ctx);

  /// Calls `accept` for embeddings at `root` until it returns true. False: none was accepted;
  /// failure() then describes the attempt that came furthest.
  bool run(NodeId root, const std::function<bool(Embedding&)>& accept);

  struct Failure {
    enum class Kind : uint8_t {
      none,
      op,
      absent,
      constant,
      number,
      rank,
      type,
      extra_input,
      missing_input,
      attribute,
      default_attribute,
      extra_output,
      other_value,
      shape,
      unknown_shape,
      random,
      inner_value,
      gave_up,
    } kind = Kind::none;
    const PatternExpr* expr = nullptr;
    ValueId value;
    NodeId node;
    std::string_view name;  ///< attribute, dimension symbol
    int matched = -1;       ///< pattern nodes found before it failed
  };
  const Failure& failure() const { return best_; }
  /// Whether run() failed everywhere for reasons that sizes and types have no part in.
  bool structural() const { return structural_; }
  /// The failure as a rejection: "D4" … "D8" or "structure", with values got and wanted.
  void describe(Rejection& r) const;

 private:
  /// What is still to be matched: a pattern expression against a value, or (call set) operand
  /// `next_arg` of a commutative call against whichever input is still free.
  struct Goal {
    const PatternExpr* expr = nullptr;
    ValueId value;
    NodeId parent;  ///< the node that reads the value
    const Goal* next = nullptr;
    const Assignment* assignment = nullptr;
    size_t next_arg = 0;
    uint64_t taken = 0;
  };
  template <class T>
  using Log = std::vector<std::pair<const std::string*, T>>;
  /// A constant that is another number than the pattern's.
  struct OtherNumber {
    const PatternExpr* expr = nullptr;
    ValueId value;
    NodeId reader;
  };
  struct Mark {
    size_t values, nodes, lists, attrs, dims, tags, matched, goals, assignments;
    OtherNumber other_number;
  };

  bool solve(const Goal* g);
  bool reference(const Goal& g);
  bool line(const Goal& g, const PatternLine& l);
  bool call(const Goal& g, const std::vector<std::string>* results, size_t slot);
  bool matched_call(const PatternExpr& e, NodeId id, const std::vector<std::string>* results,
                    const Goal* next);
  bool operands(const PatternExpr& e, NodeId id, const Goal* next);
  bool ordered(const PatternExpr& e, NodeId id, const std::vector<size_t>& lists, const Goal* next);
  bool list(const PatternExpr& e, std::vector<ValueId> values, NodeId id, const Goal*& next);
  bool assign(const Goal& g);
  bool number(const Goal& g);
  bool attributes(const PatternExpr& e, NodeId id);
  bool results_fit(const PatternExpr& e, NodeId id, const std::vector<std::string>* results);
  bool marks(const PatternExpr& e, ValueId v);
  bool shape(const PatternExpr& e, ValueId v);
  bool dim(const PatternExpr& e, const DimPattern& p, const Dim& d, ValueId v);
  bool complete();
  int looseness(const PatternExpr& e) const;

  bool bind_value(const PatternExpr& e, const std::string& name, ValueId v);
  const ValueId* bound(const std::string& name) const;
  bool same_value(ValueId a, ValueId b) const;
  const PatternLine* line_of(const std::string& name) const;
  const PatternLine* line_of_list(const std::string& name) const;
  Mark mark() const;
  void undo(const Mark& m);
  bool fail(Failure::Kind kind, const PatternExpr* e, ValueId v, NodeId n = {},
            std::string_view name = {});
  void trace(bool complete);

  const Rule& rule_;
  const Pattern& pattern_;
  const MatchContext& ctx_;
  const Graph& g_;
  const std::function<bool(Embedding&)>* accept_ = nullptr;
  int64_t steps_ = 0, budget_ = 0;
  bool gave_up_ = false, structural_ = true;
  Failure best_;
  Log<ValueId> values_;
  Log<NodeId> nodes_;
  Log<std::vector<ValueId>> lists_;
  Log<Attr> attrs_;
  Log<Dim> dims_;
  std::vector<const std::string*> tags_;
  /// For reports alone: what is around it is matched all the same, and where all of that fits, the
  /// number is the reason.
  OtherNumber other_number_;
  std::vector<NodeId> matched_;
  std::vector<const PatternExpr*> calls_;  // beside matched_; only when traced
  std::list<Goal> goals_;  // addresses stay, cut back with the log; most attempts need none
  std::list<Assignment> assignments_;
};

/// A call's head in words: "Add, Sum or a pointwise operator", "a gemm layer"; without articles
/// behind "no".
std::string head_words(const PatternExpr& e, bool article = true);
/// A call's head as the rule wrote it (an operator, a set of them, a class).
std::string head_text(const PatternExpr& e);
/// `"name" (Op)` for messages.
std::string node_text(const Graph& g, NodeId n);
/// A rejection by structure: the rule has nothing to say at `root`.
Rejection no_match(const Rule& rule, NodeId root, std::string why, int matched_nodes = 0);
std::string value_text(const Graph& g, ValueId v);

}  // namespace ferrule
