// One formula applied to operands that are already in a program being built: the common part of
// lower_node, lower_region, lower_rows and the check of formulas at load.
#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/yaml.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/op_formula.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {

/// `node "name" (Op)`, for errors.
std::string node_place(const Node& n);

struct LoweringOperand {
  DType type{};                   ///< storage type; undefined = absent
  std::function<uint32_t()> get;  ///< its instruction; asked for only when the formula reads it
  bool present() const { return type != DType::undefined; }
};

struct LoweringInput {
  const OpFormula* formula = nullptr;
  const Attrs* attrs = nullptr;           ///< the node's; null: defaults
  std::vector<LoweringOperand> operands;  ///< by node input slot
  DType result{};                         ///< storage type of the result
  DType compute{};                        ///< of known numbers that meet no typed value
  bool round_result = true;               ///< false: leave it in the compute type (inside a region)
  bool f64 = false;                       ///< casts to floats go to f64
  const Node* node = nullptr;             ///< whose place errors name; null: the formula's own
  /// Row operators: the reduction (rsum, …) of an instruction over the row, in the same type.
  std::function<uint32_t(Builtin, uint32_t)> fold;
  std::string place() const;
};
/// Types of all operands of a node (f64 for every float if `f64`), to be completed by `get` of
/// each. errors: unsupported_type, formula_invalid.
Result<LoweringInput> lowering_input(const OpFormula& f, const Node& n,
                                     std::span<const DType> types, bool f64);

/// Instruction of the result.  errors: formula_invalid.
Result<uint32_t> lower_formula(const LoweringInput& in, ProgramBuilder& out);

/// Element type of the node's output.
Result<DType> formula_result_type(const OpFormula& f, const Node& n, std::span<const DType> inputs);
/// A single-element constant as an instruction of its compute type.
uint32_t immediate(ProgramBuilder& out, const Tensor& t);

}  // namespace ferrule
