#include "codegen/annotate_plan.h"

#include <algorithm>

#include "codegen/cuda/operands.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/library_tail.h"

namespace ferrule {
namespace {

/// A kernel whose factors may be rounded to tf32: a call of a library for one convolution or
/// product. Joint kernels are generated, in f32.
bool rounds_to_tf32(const Launch& l) {
  const bool multiplies =
      l.work == Work::convolution || l.work == Work::deconvolution || is_product(l.work);
  return l.kind == Launch::Kind::library && multiplies && allows_tf32(l.graph->node(l.node));
}

/// What `explain` says of a layer's arithmetic.
std::string numerics_of(const Layer& layer, const LoweredLayer& l) {
  std::string out = layer.contract == "quantized" ? "executed in float" : "";
  auto note = [&](std::string_view what) {
    out += fmt::format("{}{}", out.empty() ? "" : ", ", what);
  };
  auto some = [&](auto&& holds) { return std::ranges::any_of(l.launches, holds); };
  auto says = [](std::string_view what) {
    return [what](const Launch& a) { return a.deviation.find(what) != std::string::npos; };
  };
  const auto zero = text(Deviation::Nan::zero), bound = text(Deviation::Nan::bound);
  if (some(says(zero)))
    note(fmt::format("library ({})", zero));
  else if (some(says(bound)))
    note(fmt::format("library ({})", bound));
  else if (some([](const Launch& a) { return !a.deviation.empty(); }))
    note("library");
  if (some(rounds_to_tf32)) note("tf32");
  return out;
}

}  // namespace

Result<Lowered> lower(Plan& plan, const Semantics& ops, const Target& target,
                      const LowerOptions& options) {
  FERRULE_ASSIGN(Lowered lowered, lower_layers(plan, ops, target, options));
  for (size_t k = 0; k < plan.layers.size(); ++k) {
    for (Launch& launch : lowered.layers[k].launches)
      launch.passes = cuda_passes(plan, lowered.layers[k], launch, target);
    plan.layers[k].kernels = lowered.layers[k].kernels();
    plan.layers[k].numerics = numerics_of(plan.layers[k], lowered.layers[k]);
  }
  for (auto& [_, graphs] : plan.nested)
    for (NestedPlan& n : graphs) FERRULE_TRY(lower(*n.plan, ops, target, options));
  return lowered;
}

}  // namespace ferrule
