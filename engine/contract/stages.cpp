#include "engine/contract/stages.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/semantics/operator_kinds.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {

Applicable<std::vector<GroupStage>> read_stages(const Graph& g, std::span<const NodeId> nodes,
                                                const Semantics& ops) {
  std::vector<GroupStage> stages;
  for (NodeId n : nodes) {
    const Node& node = g.node(n);
    if (!stages.empty() && !stages.back().conversion && ops.pointwise(node)) {
      stages.back().tail.push_back(n);
      stages.back().result = g.output(n);
      continue;
    }
    if (!stages.empty() && g.input(n, 0) != stages.back().result)
      return not_applicable(escape(node.name), "a chain of layers",
                            fmt::format("{} does not read what stands before it", escape(node.op)));
    stages.push_back({n, quantizes(node) || dequantizes(node), {}, g.output(n)});
  }
  return stages;
}

Applicable<> read_epilogues(const Graph& g, std::vector<GroupStage>& stages, const Semantics& ops) {
  for (GroupStage& s : stages) {
    if (s.tail.empty()) continue;
    const std::array<ValueId, 1> outputs{s.result};
    FERRULE_ASSIGN(LoweredRegion region, lower_region(ops, g, s.tail, outputs));
    const auto at = std::ranges::find(region.inputs, g.output(s.node));
    auto steps =
        at == region.inputs.end()
            ? std::nullopt
            : to_post_ops(region.program, static_cast<uint32_t>(at - region.inputs.begin()),
                          Deviations::all);
    if (!steps)
      return not_applicable(escape(g.node(s.tail[0]).name), "a chain of layers",
                            "no library's epilogue does what follows the layer");
    s.post_ops = std::move(*steps), s.operands = region.inputs;
  }
  return {};
}

LoweredRegion lower_conversion(const Graph& g, NodeId n) {
  const ValueId x = g.input(n, 0), y = g.output(n);
  const DType from = g.value(x).type.dtype, to = g.value(y).type.dtype;
  auto number = [&](size_t slot) {
    const Tensor* t = g.constant(g.input(n, slot));
    return t ? t->at_f64(0) : 0;
  };
  ProgramBuilder b;
  auto f32 = [&](double v) { return b.constant(DType::f32, v, 0); };
  uint32_t v = b.input(from, "x");
  const uint32_t s = f32(number(1)), z = f32(number(2));
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
