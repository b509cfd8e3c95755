// Proof of the rules that form groups: on each graph where the rule fires, what the backend
// computes for the plan in which it alone has fired is compared with what the interpreter computes
// for the graph itself. The graphs are the author's cases, changes of them, and draws from the
// pattern; each case's target and profile are tried, wherever they run here. A case that names no
// target is the host's, or the GPU's where only cuda is asked for. A condition of class kernel says
// that there is no kernel: without it the contract must refuse, or the result be right.
#pragma once
#include <memory>

#include "engine/pipeline.h"
#include "engine/proof/proof.h"

namespace ferrule {

/// One condition of class kernel, left out where it alone declines.
struct KernelCondition {
  std::string id;
  int refused = 0;   ///< graphs that the contract refused in its place
  int computed = 0;  ///< graphs that were computed all the same, and rightly
};

struct GroupProof {
  int instances = 0;                 ///< fused graphs that were run
  int interpreted = 0;               ///< of them, those whose layer no kernel ran
  int placed = 0;                    ///< parts in them that lie in another value's memory
  std::vector<std::string> wrong;    ///< what differed
  std::vector<std::string> not_run;  ///< targets of the rule's cases that nothing here runs
  std::vector<KernelCondition> conditions;
  bool in_time = true;  ///< as many graphs were run as were asked for, or there were no more
  bool holds() const { return wrong.empty(); }
};

class GroupProver {
 public:
  /// `options`: rules and limits; the targets and profiles are the cases'. `backend`: cpu or cuda,
  /// only that one's targets are tried then; auto: all. `graphs`: how many to run for one rule,
  /// target and profile beside its cases.
  GroupProver(EngineOptions options, std::string backend, int graphs);
  ~GroupProver();
  /// Rewrites give an empty proof that holds. The cases are always run, changed and drawn graphs
  /// within `context.seconds` of computing.
  GroupProof prove(const Rule& rule, const ProofContext& context);

 private:
  class Trials;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ferrule
