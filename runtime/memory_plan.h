// Where values live during a run: which values share memory (views; slices of others; results
// written over an operand that dies), from which step to which, and at which offset of one arena.
// Graph inputs, outputs and constants are the caller's memory. Pure arithmetic on a lowered plan;
// it knows no device.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "codegen/program/layers_to_launches.h"
#include "engine/plan/plan.h"

namespace ferrule {

/// One piece of memory. `first` and `last` are steps: launches counted over all layers, views
/// included.
struct Slot {
  enum class Kind : uint8_t { arena, input, output, constant, slice } kind = Kind::arena;
  int index = -1;  ///< input / output: which one; constant: the value's index; slice: the slot it
                   ///< is a part of
  int64_t bytes = 0;
  int first = 0, last = 0;
  int64_t offset = -1;  ///< arena: set by place(); slice: bytes into the other slot, which is none
};

struct Storage {
  std::vector<Slot> slots;
  std::vector<int> by_value;  ///< slot of each value of the plan's graph; -1: never stored
  std::vector<std::vector<int>> temporaries;  ///< layer -> slot of each temporary
  /// Outputs that are somebody else's memory (an input, a constant, another output) and are copied
  /// at the end.
  struct Copy {
    int from_slot, to_output;
    int64_t bytes;
  };
  std::vector<Copy> copies;
  std::vector<Slot> scratch;  ///< what each step needs for itself, set by place()
  int64_t arena_bytes = 0;
  int64_t least_bytes =
      0;  ///< no arena can be smaller: the step with the most alive, set by place()
  int steps = 0;
  int slot(ValueId v, size_t layer) const {
    if (!v) return -1;
    return v.index >= kTemporary ? temporaries[layer][v.index - kTemporary] : by_value[v.index];
  }
};

/// (input, output) pairs of a launch that may be the same memory: every element of the output is
/// written after the last read of the same element of the input. Called for launches that are not
/// views.
using InPlace = std::function<std::vector<std::pair<int, int>>(size_t layer, const Launch&)>;

/// errors: size_unknown, naming the value whose size is not known.
Result<Storage> plan_storage(const Plan& plan, const Lowered& lowered, const InPlace& in_place);

/// Gives arena slots, and the scratch of each step (bytes, kept in Storage::scratch), their
/// offsets, 64-byte aligned: one after the other into the lowest gap that is free during the slot's
/// life, in several orders, the best kept; then the slot on top of the arena comes earlier, again
/// and again, until the arena is as small as it can be or the tries are used up. The same input
/// gives the same offsets.
void place(Storage& storage, const std::vector<int64_t>& scratch);

/// Dims and bytes of a value or temporary of `layer`.
const Type& type_of(const Plan& plan, const Lowered& lowered, size_t layer, ValueId v);
Layout layout_of(const Plan& plan, const Lowered& lowered, size_t layer, ValueId v);
Result<std::vector<int64_t>> dims_of(const Plan& plan, const Lowered& lowered, size_t layer,
                                     ValueId v);

}  // namespace ferrule
