// Which attentions are cuDNN's: decided from their form and the target's facts, without a GPU and
// without cuDNN, so that plans, `explain` and the backends agree. Operands come as cuDNN wants
// them, [batch, heads, rows, columns] with strides, so that the transposes around cost nothing.
// What is not cuDNN's is the generated kernel's (codegen/cuda/attention.h), which takes every form
// that the contract accepts. tests/unit/cudnn asks cuDNN whether it has engines for what this
// claims.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "codegen/cuda/plan_launch.h"
#include "engine/target/target.h"

namespace ferrule {

struct LibraryAttention {
  /// Axes of one element are there for each axis that the operand has not.
  struct Part {
    size_t operand = 0;                  ///< of the launch: its inputs, then its output
    std::vector<int64_t> dims, strides;  ///< four, in elements
  };
  Part q;                    ///< queries x size
  Part k;                    ///< keys x size
  Part v;                    ///< keys x width
  Part y;                    ///< queries x width
  std::optional<Part> mask;  ///< queries x keys, added to the scaled scores
  float scale = 1;
};

struct AttentionChoice {
  std::optional<LibraryAttention> library;
  std::string
      why;  ///< why it is not, although the target's library has attention of that element type
};

/// `operands`: of the launch's inputs, then its outputs; `aligned`: all begin at multiples of 16
/// bytes; `strict`: no kernel that deviates from the formula (attention_deviation). Launches that
/// are no attention: neither.
AttentionChoice choose_attention(const Launch& launch, std::span<const CudaOperand> operands,
                                 bool aligned, const Target& target, bool strict);

}  // namespace ferrule
