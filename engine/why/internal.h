// What the files of this folder share: the kept graphs with the nodes of the model in them,
// attempts of one rule at one or two nodes, what would unlock a refusal, and fusing the model again
// to see whether it does.
#pragma once
#include <unordered_map>

#include "engine/group/region.h"
#include "engine/match/index.h"
#include "engine/why/why.h"

namespace ferrule::why {

/// Which nodes of a graph stand for which node of the model, answered by name.
class OriginIndex {
 public:
  explicit OriginIndex(const Graph& g);
  const std::vector<NodeId>& of(const std::string& name) const;

 private:
  std::unordered_map<std::string, std::vector<NodeId>> nodes_;
};

/// The nodes asked about: one, or a pair, each as the nodes that hold it in the graph at hand.
using Subjects = std::vector<std::vector<NodeId>>;

/// Whether each of the subjects has a node among these.
bool all_meet(const Subjects& subjects, std::span<const NodeId> nodes);

/// One rule against the subjects in one graph: the nearest thing that happened.
struct Found {
  const Graph* graph = nullptr;
  NodeId root;
  std::optional<Match> match;  ///< it matches, with all subjects inside
  Rejection rejection;         ///< else
  MatchTrace trace;
  int failures = 0;  ///< what is not as wanted; structure counts most
  int others = 0;    ///< nodes matched beside those asked about
  std::vector<NodeId>
      path;  ///< from the node that the pattern wants, which is near, to the one it found
};

/// Attempts, with what is found once per rule and graph kept.
class Attempts {
 public:
  explicit Attempts(const Observed& o);
  /// nullopt: the rule has nothing to do with them.
  std::optional<Found> at(const Rule& rule, const Graph& g, const Subjects& subjects);
  /// A rule that has nothing to do with the node: the nearest place in front of it where the rule
  /// could start.
  Found far(const Rule& rule, const Graph& g, const std::vector<NodeId>& subject);
  MatchContext context(const Graph& g) const;
  const OriginIndex& origin_index(const Graph& g);
  Subjects subjects(const Graph& g, const std::vector<std::string>& names);

 private:
  struct Regions {
    std::vector<Match> matches;
    std::vector<Rejection> misses;
    MatchTrace trace;
    EdgeRefusal edges;  ///< rules without `around:`
  };
  std::optional<Found> pattern(const Rule& rule, const Graph& g, const Subjects& subjects);
  std::optional<Found> region(const Rule& rule, const Graph& g, const Subjects& subjects);
  std::optional<Found> placement(const Rule& rule, const Graph& g, const Subjects& subjects);
  std::optional<Found> siblings(const Rule& rule, const Graph& g, const Subjects& subjects);
  std::optional<Found> try_root(const Rule& rule, const Graph& g, NodeId root,
                                const Subjects& subjects) const;
  const Regions& regions(const Rule& rule, const Graph& g);
  bool possible(const Rule& rule, const Node& n);

  const Observed& o_;
  std::map<const Rule*, RuleIndex> roots_;
  std::map<const Graph*, OriginIndex> origin_indices_;
  std::map<std::pair<const Rule*, const Graph*>, Regions> regions_;
};

/// The node where the structure failed; none: at no computed value.
NodeId failed_at(const Found& f);
/// How much is not as the rule wants it; a structure that does not fit counts most.
int failures(const Rule& rule, const Rejection& r, const MatchTrace& t);
/// From where the pattern looked, up to the nearest node of the kind it wants; that node first.
/// Empty: none is near.
std::vector<NodeId> path_to(const Graph& g, const Found& f, const Semantics& ops);
/// Contracts whose kernels are built around one operator that computes more than it moves.
bool anchored(std::string_view contract);
/// Whether the pattern's expression may be such a node, what is optional left out.
bool may_be(const Rule& rule, const PatternExpr& e, const Node& n, const Semantics& ops);
/// Whether one of the pattern's calls, the outermost aside or not, is of the node's operator.
bool calls(const PatternExpr& e, const Node& n, const Semantics& ops);
/// Whether one of the pattern's calls may be `then`, with `first` as an operand.
bool feeds(const Rule& rule, const PatternExpr& e, const Node& first, const Node& then,
           const Semantics& ops);
/// Calls of the pattern that a match cannot do without.
int pattern_nodes(const Rule& rule);
/// Names of the model's nodes that these stand for, each once.
std::vector<std::string> origins(const Graph& g, std::span<const NodeId> nodes);
std::string joined(const std::vector<std::string>& names, size_t most = 8);
/// What `of:` names, as the rule writes it, and in words.
std::string head_of(const RegionSpec& spec);
std::string words_of(const RegionSpec& spec, bool article = true);

/// Bytes of values; sizes that are open get likely ones, so that values can be compared.
class Sizes {
 public:
  explicit Sizes(const Graph& g);
  Type sized(Type t) const;            ///< with all sizes known
  int64_t bytes(const Type& t) const;  ///< -1: the rank or the element type is not known
  const std::string& assumed() const { return assumed_; }

 private:
  std::map<std::string, int64_t> symbols_;
  std::string assumed_;
};

/// What is different when the model is fused again.
struct Change {
  std::vector<const Rule*> enable;
  std::vector<std::string> disable;
  std::vector<std::string> ignore_profit;
  std::string target;
  std::vector<std::string> bypass;  ///< a chain of nodes of the model that is taken out …
  std::string behind;               ///< … and put behind this node, if it is named
  std::string alone;                ///< a value of the model that only `readers` read
  std::vector<std::string> readers;
};
/// Takes the chain out of the graph and, `behind` given, puts it behind that node. errors: usage
/// when it is no chain of nodes of one computed input and one result with one reader.
Status move_chain(const Semantics& ops, Graph& g, const std::vector<std::string>& chain,
                  const std::string& behind);

class Trials {
 public:
  Trials(const Observed& o, const Sizes& sizes, int budget);
  struct Tried {
    std::string layer;  ///< that then holds all of `names` (for a single one: with more nodes than
                        ///< now, or with less to move); empty: there is none
    int64_t saves = 0;
  };
  /// nullopt: it was not tried.
  std::optional<Tried> layer(const Change& change, const std::vector<std::string>& names);

 private:
  struct Outcome {
    Graph graph;
    int64_t traffic = -1;  ///< -1: not known
  };
  Result<Outcome> fused(const Change& change) const;
  int64_t traffic(const Graph& fused, const Knowledge& knowledge) const;
  const Observed& o_;
  const Sizes& sizes_;
  int budget_;
  std::optional<int64_t> now_;                                   ///< traffic as it is
  std::map<std::string, std::shared_ptr<const Outcome>> known_;  ///< null: no graph came out
};

/// An unlock and, where it can be tried, how.
struct Proposal {
  Unlock unlock;
  std::optional<Change> change;
};

/// A rule considered, while it is worked out.
struct Draft {
  Considered c;
  Found found;
  std::vector<Proposal> proposals;
  double worth = 0;      ///< bytes to win, the less the harder they are to have
  bool refuted = false;  ///< without the other readers it was tried, and does not fire either
};
/// Fills lines, conditions, counts and nodes from what was found.
void describe(Draft& c);
/// Whether an exporter might as well have put the node elsewhere: it moves or quantizes.
bool placed_freely(const Graph& g, NodeId id, const Semantics& ops);
/// What would remove the obstacle, untried; also the path to what the pattern wants, where other
/// nodes lie on it.
void propose(Draft& c, const Observed& o, Attempts& attempts);
/// Tries those that can be tried and moves all of them into the answer.
void try_unlocks(Draft& c, Trials& trials, const std::vector<std::string>& names);
/// Rules that are off, would match on the path or at the nodes, and unlock the pair or let the
/// node's layer grow.
std::vector<Unlock> rules_that_are_off(const Observed& o, Attempts& attempts, Trials& trials,
                                       const std::vector<std::string>& around,
                                       const std::vector<std::string>& names);
/// Whether the rule can be what the question is about: not where it only takes single nodes away,
/// nor where what it wants is nowhere near.
/// `path`: between two nodes, of which `subjects` is one: what the rule found there counts, too.
bool concerns(const Draft& c, const Observed& o, const Subjects& subjects,
              const std::vector<std::string>& path);
/// A rewrite that makes one operator of what it matches; the others only take nodes away.
bool recognises(const Rule& rule);
/// Refused for a number, a size or an attribute of the operators that the rule wants.
bool value_missed(const Draft& c, const Semantics& ops);
/// How much the rule would win, weighed by what has to change for it; little where the target has
/// no such kernel.
double worth(const Draft& c, const Target& target);
/// Whether `a` says more than `b`: what it would win, then how near it came.
bool leads(const Draft& a, const Draft& b);
/// Of two nodes: one, or an input of the model, is not the operator that the rule wants there, and
/// it took little else. It is a rule for others.
bool for_others(const Draft& c, const Subjects& subjects, const Semantics& ops);

/// The phase's place in the pipeline.
size_t phase_of(const RuleSet& rules, const Rule& rule);
/// Off, and about element types: no fusion waits for it, so it is shown only where it is asked for.
inline bool off_type(const Rule& r) { return !r.enabled && r.numerics == "reduced"; }

}  // namespace ferrule::why
