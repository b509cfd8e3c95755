// What one inquiry keeps between questions: the model's names, where each ended, and the attempts
// made.
#pragma once
#include "engine/why/internal.h"

namespace ferrule::why {

struct Inquiry::State {
  explicit State(const Observed& observed);

  Outcome outcome(const std::string& name) const;
  /// The layer of a nested graph's plan that holds the node; none: that graph is not planned.
  const Layer* nested_layer(const std::string& name) const;
  /// All rules that have to do with the nodes together, nearest first; `only`: just that one.
  /// `path`: as concerns'.
  std::vector<Draft> candidates(const std::vector<std::string>& names, const Rule* only,
                                const std::vector<std::string>& path = {});
  /// Of two nodes that no rule takes together: what rules said at one of them, about the other or
  /// about what lies between; `bytes` go through memory on the path.
  std::vector<Draft> at_one_end(const std::vector<std::string>& names, const Rule* only,
                                const std::vector<std::string>& path, int64_t bytes);
  /// Of rules whose regions may hold all nodes of the path: what they said at the first edge of it
  /// that became none.
  std::vector<Draft> where_regions_end(const std::vector<std::string>& path);
  std::vector<Draft> far(const Rule& rule, const std::string& name);
  /// The first `most` of them with their history and tried unlocks.
  std::vector<Considered> detailed(std::vector<Draft> all, const std::vector<std::string>& names,
                                   size_t most, Trials& trials);
  /// Rewrites that would remove one of these nodes, which nothing else can run, and why they do
  /// not.
  std::vector<Draft> not_removed(const std::vector<std::string>& names, int64_t bytes);
  Result<const Rule*> rule(std::string_view id) const;

  /// Bytes that go through memory between layers of the plan, and would not if the rule had fired.
  int64_t bytes_between(const Draft& c, const std::vector<std::string>& names);
  /// Of the largest value that a node of the path makes for the next one.
  int64_t bytes_of(const std::vector<std::string>& path) const;
  /// Of a node, or of two: that no rule is for them.
  std::string otherwise(const std::vector<std::string>& names,
                        const std::vector<std::string>& between = {}) const;
  /// Of a rule that has nothing to do with the nodes: what it takes.
  std::string not_for(const Rule& rule, const std::vector<std::string>& names) const;
  /// "conv_activation (pointwise operators), conv_pool (MaxPool or AveragePool)": the rules that
  /// take something behind such a node, and what; empty: there is none. Left out: those that take
  /// what `reader` is, and did not take it for what stands elsewhere.
  std::string takers(const std::string& name, const std::string& reader) const;
  /// Rules that take both nodes, and others that the model does not have there: those that lack
  /// fewest.
  std::string with_more(const std::string& name, const std::string& reader) const;
  /// Whether nothing but the interpreter runs it.
  bool interpreted(const std::string& name) const;

  const Observed& o;
  const Sizes sizes;
  Attempts attempts;
  std::vector<std::string> names;                    ///< of the model's nodes
  std::unordered_map<std::string, std::string> ops;  ///< name -> operator
  std::map<std::string, std::pair<std::string, std::string>>
      nested;  ///< name -> operator, the node that holds the graph
  std::unordered_map<std::string, std::vector<size_t>> layers;

 private:
  std::optional<Draft> consider(const Rule& rule, const std::vector<std::string>& names,
                                bool fired);
  /// The step that took a node of the match away before the rule had its turn.
  const Step* lost_to(const Match& m, const Graph& g, size_t phase, std::string& text) const;
  std::string history(const Rule& rule, const std::vector<std::string>& names);
  bool declined(const Rule& rule, const Found& f, Rejection& why) const;
  /// Whether all that the rule took became one layer, which is built around another operator.
  bool in_own_layer(const Draft& c, const std::vector<std::string>& names) const;
  /// Of a rewrite of one node on the path: whether some rule takes what it makes together with a
  /// neighbour on the path.
  bool prepares(const Draft& c, const std::vector<std::string>& path) const;
  std::string meaning(const Found& f, const Rule& rule, const std::vector<std::string>& asked);
  std::string read_by(const Found& f) const;
  std::string stands_between(const Found& f, const Rule& rule) const;
  std::string overridden(const Rule& rule, const Rejection& r) const;
};

}  // namespace ferrule::why
