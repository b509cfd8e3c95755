// The tail of a kernel over vectors of output channels: its post-ops as steps (vector_step.h), with
// where their operands are. Operands are one value, one a channel, or one an element of a
// channels-last result.
#pragma once
#include <vector>

#include "engine/base/applicable.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/vector_step.h"

namespace ferrule::cpu {

/// f32 whose memory can be read as channels-last.
bool is_image(const Operand& o);

class VectorTail {
 public:
  /// Not applicable. `kernel`: who refuses.
  Applicable<> build(const KernelCall& call, std::string_view kernel);
  /// The operands' addresses are written into the steps before each run.
  void bind(Binder& binder);
  /// The steps with the addresses of this run.
  const std::vector<Step>& steps();

 private:
  std::vector<Step> steps_;
  std::vector<int> slots_;  ///< by step; -1: none, or a constant
  std::vector<const void*> cells_;
};

}  // namespace ferrule::cpu
