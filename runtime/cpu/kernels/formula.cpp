// A role's formula as machine code over contiguous f32.
#include "codegen/cpu/jit.h"
#include "codegen/program/role_formula.h"
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {

Applicable<CpuJit::Request> formula_request(Context& context, const Graph& formula,
                                            const std::string& layer) {
  FERRULE_ASSIGN(Program program, role_formula(*context.ops, formula, layer));
  using enum InnerStride;
  return CpuJit::Request{{std::move(program), {contiguous, contiguous}, context.target->name},
                         layer};
}

}  // namespace ferrule::cpu
