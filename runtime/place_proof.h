// Whether the parts that a place rule does not move lie where the movement would have put them: its
// body is interpreted on numbers that tell every element apart, and each part's memory, as the plan
// and the memory plan say it, is compared with the whole's, element by element. Results alone do
// not show a part that is copied all the same.
#pragma once
#include "codegen/program/layers_to_launches.h"
#include "engine/interpreter/interpreter.h"
#include "engine/plan/plan.h"

namespace ferrule {

struct Placed {
  int parts = 0;      ///< that lie in another value's memory
  std::string wrong;  ///< "" or what lies elsewhere, or is launched although nothing is to move
};
/// Of the groups that `rule` has made.
Placed check_places(const Plan& plan, const Lowered& lowered, const std::string& rule,
                    const InterpreterOptions& options);

}  // namespace ferrule
