#include "codegen/cuda/operands.h"

#include "codegen/cuda/row_plan.h"
#include "codegen/program/operands.h"

namespace ferrule {

Applicable<CudaOperands> cuda_operands(const Plan& plan, const LoweredLayer& layer,
                                       const Launch& launch) {
  CudaOperands out;
  for (const auto* values : {&launch.inputs, &launch.outputs})
    for (ValueId id : *values) {
      if (!id) {  // left out
        out.operands.emplace_back();
        continue;
      }
      FERRULE_ASSIGN(OperandValue v, operand_value(plan, layer, id));
      CudaOperand o{v.dtype, v.dims, strides_of(v.dims, v.layout)};
      if (id.index < kTemporary && plan.slices.contains(id))
        if (auto at = strided_view(plan, id)) {
          out.aligned = out.aligned && at->offset * size_bits(v.dtype) / 8 % 16 == 0;
          o.strides = std::move(at->strides);
        }
      out.operands.push_back(std::move(o));
    }
  return out;
}

int cuda_passes(const Plan& plan, const LoweredLayer& layer, const Launch& launch,
                const Target& target) {
  if (!launch.rows || target.device != "gpu") return 1;
  const auto rows = row_operands(plan, layer, launch);
  if (!rows) return 1;
  const auto planned = plan_cuda_rows(*launch.rows, *rows, true, target.cores);
  return planned ? planned->kernel.passes : 1;
}

}  // namespace ferrule
