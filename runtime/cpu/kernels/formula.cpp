// A role's formula (engine/contract/roles.h) as machine code over contiguous f32: what a kernel
// applies to its own vectors. Where the model computes it in a shorter type, it is rounded to that
// type in between, as the model does.
#include "codegen/cpu/jit.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {
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

Applicable<CpuJit::Request> formula_request(Context& context, const Graph& formula,
                                            const std::string& layer) {
  FERRULE_ASSIGN(const LoweredRegion region, lower_region(*context.ops, formula, formula.order(),
                                                          std::vector(formula.outputs())));
  if (region.program.inputs.size() != 1 || region.program.outputs.size() != 1)
    return not_applicable(layer, "formula", "it does not make one tensor of one");
  using enum InnerStride;
  return CpuJit::Request{{over_f32(region.program), {contiguous, contiguous}, context.target->name},
                         layer};
}

}  // namespace ferrule::cpu
