#include "codegen/program/operands.h"

#include "engine/base/diagnostics.h"
#include "engine/contract/region_pieces.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {
namespace {

constexpr int64_t kUnknownSize = 16;  // of many axes still one grid

}  // namespace

Applicable<OperandValue> operand_value(const Plan& plan, const LoweredLayer& layer, ValueId v) {
  auto unsupported = [](const char* why) { return not_applicable("", "a generated kernel", why); };
  if (!v) return unsupported("an operand lies inside the group");
  const bool temporary = v.index >= kTemporary;
  const Type& type =
      temporary ? layer.temporaries.at(v.index - kTemporary).type : plan.graph.value(v).type;
  if (!type.known()) return unsupported("the rank of an operand is unknown");
  OperandValue out;
  out.layout = temporary ? layer.temporaries.at(v.index - kTemporary).layout : plan.layout(v);
  out.dtype = type.dtype;
  for (const Dim& d : *type.shape) out.dims.push_back(d.value_or(kUnknownSize));
  return out;
}

namespace {

Applicable<RegionOperands> piece_operands(const Plan& plan, const LoweredLayer& layer,
                                          const Launch& launch, const RegionPiece& p) {
  RegionOperands out;
  out.dims = p.dims;
  for (const auto* operands : {&p.inputs, &p.outputs})
    for (const PieceOperand& o : *operands) {
      const auto& values = operands == &p.inputs ? launch.inputs : launch.outputs;
      FERRULE_ASSIGN(OperandValue v, operand_value(plan, layer, values[o.operand]));
      PieceStrides s = piece_strides(o, strides_of(v.dims, v.layout));
      out.offset |= s.offset != 0;
      out.strides.push_back(std::move(s.strides));
      out.element_bytes.push_back(size_bits(v.dtype) / 8);
    }
  return out;
}

}  // namespace

Applicable<RegionOperands> region_operands(const Plan& plan, const LoweredLayer& layer,
                                           const Launch& launch, size_t piece) {
  if (launch.region && launch.region->pieced)
    return piece_operands(plan, layer, launch, launch.region->pieces.at(piece));
  auto unsupported = [](const char* why) { return not_applicable("", "a generated kernel", why); };
  RegionOperands out;
  FERRULE_ASSERT(!launch.outputs.empty(), "a launch without results");
  FERRULE_ASSIGN(OperandValue result, operand_value(plan, layer, launch.outputs[0]));
  out.dims = result.dims;
  for (const auto* values : {&launch.inputs, &launch.outputs})
    for (ValueId id : *values) {
      FERRULE_ASSIGN(OperandValue v, operand_value(plan, layer, id));
      if (v.dims.size() > out.dims.size())
        return unsupported("an operand has more axes than the result");
      if (values == &launch.outputs && v.dims != out.dims)
        return unsupported("results of several sizes");
      std::vector<int64_t> own = strides_of(v.dims, v.layout), strides(out.dims.size(), 0);
      const size_t extra = out.dims.size() - own.size();
      for (size_t d = 0; d < own.size(); ++d) {
        if (v.dims[d] == out.dims[d + extra])
          strides[d + extra] = own[d];
        else if (v.dims[d] != 1)
          return unsupported("operands that do not broadcast");
      }
      out.strides.push_back(std::move(strides));
      out.element_bytes.push_back(size_bits(v.dtype) / 8);
    }
  return out;
}

Applicable<std::vector<RowLayout>> row_operands(const Plan& plan, const LoweredLayer& layer,
                                                const Launch& launch) {
  std::vector<RowLayout> out;
  for (const auto* values : {&launch.inputs, &launch.outputs})
    for (ValueId id : *values) {
      FERRULE_ASSIGN(OperandValue v, operand_value(plan, layer, id));
      std::vector<int64_t> strides = strides_of(v.dims, v.layout);
      out.push_back({std::move(v.dims), std::move(strides)});
    }
  return out;
}

}  // namespace ferrule
