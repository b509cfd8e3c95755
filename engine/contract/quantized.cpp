#include "engine/contract/quantized.h"

#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/operator_kinds.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

const Tensor* scale(const Graph& g, NodeId n) { return g.constant(g.input(n, 1)); }
double zero_point(const Graph& g, NodeId n) {
  const Tensor* z = g.constant(g.input(n, 2));
  return z ? z->at_f64(0) : 0;
}

/// One constant scale and zero point; floats of 32 bits on the one side, integers of 8 or 16 on the
/// other.
std::string refusal(const Graph& g, NodeId n) {
  const Tensor* s = scale(g, n);
  if (!s || s->numel() != 1 || s->dtype() != DType::f32) return "a scale is not one constant f32";
  if (ValueId z = g.input(n, 2); z && (!g.constant(z) || g.constant(z)->numel() != 1))
    return "a zero point is not one constant";
  const DType x = g.value(g.input(n, 0)).type.dtype, y = g.value(g.output(n)).type.dtype;
  const bool down = quantizes(g.node(n));
  const DType wide = down ? x : y, narrow = down ? y : x;
  if (wide != DType::f32) return fmt::format("{} is converted, not f32", name(wide));
  const DType kNarrow[] = {DType::i8, DType::u8, DType::i16, DType::u16};
  return std::ranges::find(kNarrow, narrow) == std::end(kNarrow)
             ? fmt::format("{} has no conversion", name(narrow))
             : "";
}

}  // namespace

Applicable<std::vector<QuantizedStep>> read_quantized(const Graph& g, std::span<const NodeId> nodes,
                                                      const Semantics& ops) {
  auto refuse = [&](std::string why) {
    return not_applicable(nodes.empty() ? "" : g.node(nodes[0]).name, "quantized", std::move(why));
  };
  if (nodes.empty() || !dequantizes(g.node(nodes[0])))
    return refuse("it does not begin with a DequantizeLinear");
  std::vector<QuantizedStep> steps;
  for (NodeId n : nodes) {
    if (!steps.empty() && ops.pointwise(g.node(n)) && !steps.back().conversion) {
      steps.back().tail.push_back(n);
      continue;
    }
    if (!steps.empty() && g.input(n, 0) != g.output(steps.back().last()))
      return refuse(fmt::format("{} does not read what stands before it", escape(g.node(n).op)));
    const bool conversion = quantizes(g.node(n)) || dequantizes(g.node(n));
    if (conversion)
      if (std::string why = refusal(g, n); !why.empty()) return refuse(why);
    steps.push_back({n, conversion, {}});
  }
  if (std::ranges::all_of(steps, &QuantizedStep::conversion))
    return refuse("nothing stands between the conversions");
  return steps;
}

LoweredRegion lower_conversion(const Graph& g, NodeId n) {
  const ValueId x = g.input(n, 0), y = g.output(n);
  const DType from = g.value(x).type.dtype, to = g.value(y).type.dtype;
  ProgramBuilder b;
  auto f32 = [&](double v) { return b.constant(DType::f32, v, 0); };
  uint32_t v = b.input(from, "x");
  const uint32_t s = f32(scale(g, n)->at_f64(0)), z = f32(zero_point(g, n));
  if (dequantizes(g.node(n))) {
    v = b.op(Prim::mul, DType::f32, {b.op(Prim::sub, DType::f32, {b.cast(v, DType::f32), z}), s});
  } else {
    // As the interpreter: rounded half to even, shifted, saturated by the cast.
    v = b.op(Prim::rint, DType::f32, {b.op(Prim::div, DType::f32, {v, s})});
    v = b.cast(b.op(Prim::add, DType::f32, {v, z}), to);
  }
  b.output(v);
  LoweredRegion region;
  region.program = b.take();
  region.inputs = {x};
  region.outputs = {y};
  return region;
}

}  // namespace ferrule
