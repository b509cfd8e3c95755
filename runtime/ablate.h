// What each rule is worth on a model: the plan with it against the plan without it. The other rules
// stay, and may take over what it did, so the figures of several rules do not add up.
#pragma once
#include "runtime/cost.h"

namespace ferrule {

struct Worth {
  std::string rule;
  std::string reason;  ///< why it may raise the number of kernels (its file says so); empty: it
                       ///< must not
  std::string root;    ///< of a single instance: where it matched; else empty
  std::vector<std::string> nodes;  ///< the same: its nodes
  int fired = 0;                   ///< how often, with everything on
  std::optional<Cost> without;     ///< none: `error` says why there is no plan
  std::string error;

  /// Kernels and bytes that it saves; below 0: it costs them.
  int64_t kernels_saved(const Cost& with) const {
    return without ? without->kernels - with.kernels : 0;
  }
  int64_t bytes_saved(const Cost& with) const { return without ? without->bytes - with.bytes : 0; }
  bool raises_kernels(const Cost& with) const { return kernels_saved(with) < 0; }
};

struct Ablation {
  Cost with;                 ///< everything on
  std::vector<Worth> rules;  ///< most bytes saved first, then most kernels, then by name
};

/// Every rule that fired is left out in turn; with `rule`, every instance of that one. `model`: as
/// imported. errors: those of fuse and cost_of, with everything on; rule_unknown.
Result<Ablation> ablate(const Graph& model, const Knowledge& knowledge,
                        const EngineOptions& options, const LowerOptions& lowering,
                        const std::string& rule = "");

}  // namespace ferrule
