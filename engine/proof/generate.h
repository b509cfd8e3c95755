// Graphs made from a rule's pattern alone: every alternative, optional parts there and not,
// operators of a set, operands of commutative ones in any order, ranks and sizes, element types,
// attributes that the pattern leaves open, one value for two names, and producers in front of the
// match where conditions ask about them. What inference refuses is drawn again. Deterministic: the
// numbers are drawn from the rule's text.
#pragma once
#include <set>

#include "engine/proof/edit.h"
#include "engine/proof/propose.h"
#include "engine/proof/trial.h"

namespace ferrule {

class Generator {
 public:
  Generator(const Rule& rule, const ProofContext& ctx, const Hints& hints);
  /// The next graph; null: this draw was none.
  std::unique_ptr<Graph> next();
  /// `g` with one constant or one attribute drawn again; null: that is no valid graph.
  std::unique_ptr<Graph> varied(const Graph& g);
  /// `g` with one of its sizes, or its element type, another one wherever it stands, or an axis
  /// more; null: that is no valid graph.
  std::unique_ptr<Graph> resized(const Graph& g);
  /// `g` with up to three changes of all these kinds at once; null: that is no valid graph.
  std::unique_ptr<Graph> moved(const Graph& g, const std::vector<Mutation>& changes);
  /// What is drawn from here on is about these numbers; none: as the rule's text says.
  void aim(const std::vector<int64_t>& numbers) { propose_.aim(numbers); }
  /// `g` with the flags and numbers of one operator drawn again; null: that is no valid graph.
  std::unique_ptr<Graph> reset(const Graph& g);
  /// `g` with up to three of these changes, those of operators first of all; null: that is no valid
  /// graph.
  std::unique_ptr<Graph> changed(const Graph& g, const std::vector<Mutation>& changes);
  /// One of `n`.
  size_t pick(size_t n) { return static_cast<size_t>(draw_.below(static_cast<int64_t>(n))); }
  bool chance(int percent) { return draw_.chance(percent); }

 private:
  std::unique_ptr<Graph> valid(std::unique_ptr<Graph> g) const;
  bool vary(Graph& g);
  bool vary_element(Graph& g, ValueId v);
  bool rescale_one(Graph& g);
  bool reset_one(Graph& g);

  const Rule& rule_;
  const ProofContext& ctx_;
  Draw draw_;
  Proposer propose_;
  bool asks_producers_ = false;
  const Hints& hints_;
};

/// What two instances are told apart by: structure, attributes, types and sizes; no numbers.
uint64_t kind_of_instance(const Graph& g);
/// The same for operators, their modes and element types alone.
uint64_t kind_of_operators(const Graph& g);

}  // namespace ferrule
