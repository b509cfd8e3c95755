// The graphs that a rewrite's proof tries: its author's cases and changes of them, alone and in
// pairs, and graphs drawn from its pattern. Each says where it came from.
#pragma once
#include <set>

#include "engine/proof/edit.h"
#include "engine/proof/generate.h"

namespace ferrule {

struct Sample {
  std::string text;  ///< "case 1: size 2 becomes 3", "drawn 17"
  std::unique_ptr<Graph> graph;
  bool valid = false;            ///< inference takes it
  std::string declined_by = {};  ///< by the whole rule; empty: it fires, or was not asked
  Truth truth = Truth::no;
};

class Samples {
 public:
  /// `rule`: with its sound conditions only.
  Samples(const Rule& rule, const ProofContext& ctx, RewriteProof& counts, double deadline);

  /// The cases and single changes of them; `lengthened`: with one long axis, too, which takes
  /// kernels that are emulated too long.
  void cases(bool lengthened);
  /// Draws from the pattern until so many distinct graphs more on which the rule fires have been
  /// found, or nothing new comes up. Keeps those that fit the pattern; the others say nothing.
  void draw(int distinct);
  /// Graphs that meet the conditions in each of their ways (goals.h), a few steps towards one of
  /// them at a time. Whether there is more to look for.
  bool aim();
  /// Two changes of a case at once: a mistake often needs an attribute and a size that go together.
  void pairs();

  /// The rule fires on this sample, and its graph runs: others are made of it.
  void ran(size_t sample);

  std::vector<Sample>& all() { return all_; }
  /// What the pattern leaves open, after cases().
  const Hints& hints() const { return hints_; }
  bool in_time() const;
  /// Another deadline.
  void until(double deadline) { deadline_ = deadline; }

 private:
  void scope(const PatternExpr& e);
  void edited(const RuleTest& t, const std::string& where);
  void lengthen();
  bool fires_or_nearly(const Graph& g) const;
  void add(std::string text, std::unique_ptr<Graph> g);
  std::unique_ptr<Graph> bared(const Graph& g) const;
  std::vector<std::unique_ptr<Graph>> squared(const Graph& g) const;
  void pairs_of(size_t sample);
  std::unique_ptr<Graph> candidate();
  void towards(std::unique_ptr<Graph> g);
  void drawn(std::unique_ptr<Graph> g, const Trial& t);

  /// A graph on the way to a goal, steps since it came nearer, and its changes.
  struct Near {
    std::unique_ptr<Graph> graph;
    int nearness = 0, steps = 0;
    uint64_t kind = 0;
    std::vector<Mutation> changes = {};
  };
  struct Aim {
    Rule rule;
    std::vector<int64_t> numbers;
    /// By the conditions they meet and the highest rank.
    std::map<std::pair<uint64_t, size_t>, std::vector<Near>> near = {};
    int found = 0, steps = 0;
  };
  void start_aims();
  struct Approach {
    Trial trial;
    bool there = false, fits = false;  ///< the rule fires; its pattern fits
    uint64_t met = 0;
    int nearness = 0;
  };
  Approach approach(const Aim& a, const Graph& g) const;
  void step_towards(Aim& a);
  Near* from(Aim& a);
  void towards(Aim& a, std::unique_ptr<Graph> g, const Near* from);
  void keep(Aim& a, uint64_t met, Near g);

  const Rule& rule_;
  Rule bare_;  ///< without conditions
  const ProofContext& ctx_;
  RewriteProof& counts_;
  double deadline_;
  std::vector<Sample> all_;
  size_t cases_ = 0;
  std::map<uint64_t, std::vector<size_t>>
      firing_;  ///< graphs on which the rule fires, and which run, by operators, modes and types
  MutationScope scope_;
  Hints hints_;
  std::map<uint64_t, int> kinds_;        ///< drawn graphs on which the rule fires, by kind
  std::map<std::string, int> declined_;  ///< drawn graphs kept, by the condition that declines them
  std::optional<Generator> generator_;
  std::optional<std::vector<Aim>> aims_;
  size_t next_aim_ = 0;
  int distinct_ = 0, drawn_ = 0;  ///< drawn graphs: kinds on which the rule fires, all
};

}  // namespace ferrule
