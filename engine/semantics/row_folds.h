// Reductions inside a program being built: each becomes an operand of its own, which is the fold of
// one of the program's results over the row.
#pragma once
#include "engine/semantics/fold.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {

struct RowFolds {
  ProgramBuilder& program;
  std::vector<RowSource>& sources;  ///< of the program's inputs: gets a fold's or the row's length
  std::vector<Fold>& folds;
  std::vector<uint32_t> folded;   ///< instruction that each fold folds
  std::vector<uint32_t> results;  ///< its result

  /// What LoweringInput::fold wants; equal reductions are one.
  uint32_t operator()(Builtin kind, uint32_t v);
};

}  // namespace ferrule
