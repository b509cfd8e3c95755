// "Why not?": for any node of the model, which layer it became part of and by which rules, and for
// every other rule that came near, what stood in the way, with the values found, and what would
// remove it. Answers are made after the fact: the graphs between the phases are kept
// (Fused::snapshots) and rules are matched on them again, with a trace; the pipeline itself does
// nothing for it. Unlocks that can be tried are tried, by fusing the model again. Plain values; the
// command line prints them. Names are those of the model's nodes, as origins carry them through
// every rewrite.
#pragma once
#include <functional>
#include "engine/match/trace.h"
#include "engine/onnx/import.h"
#include "engine/pipeline.h"

namespace ferrule::why {

/// A model, and its whole way through the pipeline.
struct Observed {
  std::shared_ptr<const Knowledge> knowledge;
  EngineOptions options;
  std::unique_ptr<Graph> model;                  ///< as imported; every node its own origin
  std::map<std::string, std::string> constants;  ///< nodes that only held a constant -> its value
  Fused fused;                                   ///< its graph is the plan's
  Plan plan;
  /// ONNX node names by layer and kernel, where a layer is several
  /// (codegen/program/kernel_nodes.h); empty: not known.
  std::vector<std::vector<std::vector<std::string>>> kernels;
  std::vector<std::string> apart;  ///< by layer: why it is several kernels; empty: not known
  /// Bytes that all kernels of a fused graph read and write, weights aside, with sizes as `sized`
  /// has them (runtime/cost.h); nullopt: it cannot be planned.
  std::function<std::optional<int64_t>(const Graph& fused, const Knowledge& knowledge,
                                       const std::function<Type(const Type&)>& sized)>
      traffic;
};
/// `imported` with ImportOptions::own_origins.  errors: those of fuse and make_plan.
Result<Observed> observe(Imported imported, std::shared_ptr<const Knowledge> knowledge,
                         EngineOptions options);

/// What became of a node of the model.
struct Outcome {
  std::string name, op;  ///< op: empty for constants
  enum class Kind : uint8_t { layer, constant, folded, removed, nested } kind = Kind::layer;
  std::vector<size_t> layers;  ///< of the plan
  std::vector<size_t> steps;   ///< of the journal, that touched it or what it became
  std::string text;            ///< as sentences
};

/// One line of a pattern, the tail of an absorb rule, or what a region may be made of.
struct SeenLine {
  std::string text;
  enum class State : uint8_t { ok, failed, unseen } state = State::unseen;
  std::vector<std::string> nodes;  ///< those it took
};
struct SeenCondition {
  std::string id;
  ConditionClass cls = ConditionClass::sound;
  Truth truth = Truth::unknown;
  std::string text;    ///< why it is not true, with the values found
  std::string detail;  ///< the parts of the expression that decided, for those who write rules
};

/// What would remove an obstacle, cheapest kind first.
struct Unlock {
  enum class Kind : uint8_t { flag, fact, edit, impossible } kind = Kind::flag;
  std::string text;  ///< "--enable conv_pool", "move q_1, dq_1 behind MaxPool_2"
  std::string because;
  bool tried = false;  ///< the model was fused again with it …
  std::string gives;   ///< … and this layer came out; empty: it does not help by itself
  int64_t saves = 0;   ///< … and so many bytes less are written and read between layers
};

/// A rule that came near, and did not make the layer.
struct Considered {
  const Rule* rule = nullptr;
  enum class State : uint8_t {
    off,      ///< it matches, but is switched off
    lost,     ///< it matched; another rule was there first
    refused,  ///< something stood in the way
  } state = State::refused;
  Rejection rejection;             ///< what stood in the way first
  std::vector<std::string> nodes;  ///< of the partial match
  int matched_nodes = 0, pattern_nodes = 0, passed_conditions = 0, total_conditions = 0;
  std::vector<SeenLine> lines;
  std::vector<SeenCondition> conditions;
  std::vector<std::string>
      path;  ///< from the node that the pattern wants to where it looked, with what lies between
  std::string lost_to, lost_rule;  ///< "step 3 (conv_residual): Fusing Conv_3 with Add_4"
  std::string taken_by;            ///< refused: the step that took its nodes after it had declined
  int64_t bytes = 0;    ///< that go through memory between layers which the rule would make one
  bool level = false;   ///< it would win about as much as the first
  std::string history;  ///< "would have matched before step 14 (rule …)"
  std::vector<Unlock> unlocks;
};

/// What stood in the way, as one sentence: "attention declined: …; then gemm_activation took …".
std::string reason(const Considered& c);

struct NodeAnswer {
  Outcome outcome;
  std::vector<Considered> considered;  ///< that which would win most first
  std::string otherwise;               ///< why it is not more, where no rule came near
  std::vector<Unlock> unlocks;         ///< that belong to no single rule
};

struct PairAnswer {
  Outcome a, b;  ///< a before b where a path leads from one to the other
  enum class Kind : uint8_t {
    same,           ///< one layer already
    apart,          ///< one layer, but kernels of their own in it
    gone,           ///< one of them is no part of any layer
    adjacent,       ///< one layer reads the other
    between,        ///< other layers lie on the path
    common_reader,  ///< a third node reads both
    siblings,       ///< they read the same value
    unrelated,
  } kind = Kind::unrelated;
  std::string text;
  std::vector<std::string> path;      ///< nodes of the model from a to b, both included
  std::vector<std::string> blockers;  ///< those of them that other layers hold
  std::vector<Considered> considered;
  std::vector<Unlock> unlocks;
  std::string otherwise;  ///< as NodeAnswer's
};

/// An edge that stays in memory between two layers.
struct MissedEdge {
  std::string from, to;            ///< layers' names
  std::string producer, consumer;  ///< nodes of the model
  std::string value, type;
  std::string sized;         ///< the type, with likely sizes in place of open ones
  int64_t bytes = 0;         ///< of the value, once; -1: not even its rank is known
  bool open = false;         ///< … with the sizes that Inquiry::assumed names
  std::string rule, reason;  ///< the rule that would own the edge, and what stood in its way
  std::string cls;           ///< sound, kernel, profit, or structure
  std::vector<Unlock> unlocks;
};

/// Edges of a plan, and what the list leaves out.
struct Missed {
  std::vector<MissedEdge> edges;  ///< the most bytes first
  size_t all = 0;                 ///< edges there are, listed or not
  size_t copies = 0;  ///< layers that write a value in another layout: looked through, too
  size_t views = 0;   ///< layers that only show a value in another shape: looked through
  size_t placed = 0;  ///< values that lie in the memory of another one: nothing is copied
};

/// Asks one model. Keeps what several questions need.
class Inquiry {
 public:
  explicit Inquiry(const Observed& observed);
  ~Inquiry();
  /// Names of the model's nodes, in order.
  const std::vector<std::string>& names() const;
  /// The node of that name, else the one that makes the value of that name. errors: usage, with a
  /// suggestion.
  Result<std::string> resolve(std::string_view name) const;
  Result<Outcome> outcome(std::string_view name) const;
  /// `rule`: only this one (errors: rule_unknown). `tries`: how often the model may be fused again
  /// to check unlocks.
  Result<NodeAnswer> node(std::string_view name, std::string_view rule, int tries);
  Result<PairAnswer> pair(std::string_view a, std::string_view b, std::string_view rule, int tries);
  /// Edges between layers, the most bytes first. `tries` as node's.
  Missed missed(size_t top, int tries);
  /// The sizes that bytes are for where the model's are open: "x:1x3x224x224"; empty: none is.
  const std::string& assumed() const;

  struct State;

 private:
  std::unique_ptr<State> state_;
};

}  // namespace ferrule::why
