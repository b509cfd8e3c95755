#include "codegen/program/role_formula.h"

#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

/// The program with f32 outside of its input and output type.
Program over_f32(const Program& p) {
  ProgramBuilder b;
  const uint32_t x = b.cast(b.input(DType::f32), p.inputs[0]);
  std::vector<uint32_t> made;
  for (Inst inst : p.insts) {
    for (uint32_t& a : inst.args) a = a < made.size() ? made[a] : 0;
    made.push_back(inst.op == Prim::load ? x : b.append(inst));
  }
  b.output(b.cast(made[p.outputs[0]], DType::f32));
  return b.take();
}

}  // namespace

Applicable<Program> role_formula(const Semantics& ops, const Graph& formula,
                                 const std::string& layer) {
  FERRULE_ASSIGN(const LoweredRegion region,
                 lower_region(ops, formula, formula.order(), std::vector(formula.outputs())));
  if (region.program.inputs.size() != 1 || region.program.outputs.size() != 1)
    return not_applicable(layer, "formula", "it does not make one tensor of one");
  return over_f32(region.program);
}

}  // namespace ferrule
