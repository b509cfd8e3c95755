// The part of a tail that our own convolution kernels apply in registers: every post-op must be one
// of RegisterOp's kinds, else the call is refused and the library takes it. Operands are one value,
// one a channel, or one an element of a channels-last result.
#pragma once
#include <vector>

#include "engine/base/applicable.h"
#include "runtime/cpu/kernels/convolution_rows.h"
#include "runtime/cpu/library.h"

namespace ferrule::cpu {

class RegisterTail {
 public:
  /// Not applicable.
  Applicable<> build(Context& context, const KernelCall& call);
  /// Where the operands are; `cell` of the operand's slot is written at each run.
  void bind(Binder& binder);
  /// The steps with the operands' addresses of this run.
  void refresh(std::vector<RegisterOp>& ops) const;
  /// Takes a relu or clip at the front out of the steps: most tails are that and nothing else.
  bool take_clip(float& low, float& high);
  const std::vector<RegisterOp>& ops() const { return ops_; }

 private:
  Applicable<> add_operand(Context& context, const KernelCall& call, const Operand& o, bool sum,
                           RegisterOp& op);
  std::vector<RegisterOp> ops_;
  std::vector<int> slots_;  ///< by step; -1: none, or a constant
  std::vector<const void*> cells_;
  std::vector<Packed> packed_;
};

}  // namespace ferrule::cpu
