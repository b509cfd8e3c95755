#include "runtime/cpu/kernels/vector_tail.h"

#include <map>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/tail_operand.h"

namespace ferrule::cpu {
namespace {

std::optional<Step::Kind> step_kind(std::string_view alg) {
  using K = Step::Kind;
  static const std::map<std::string_view, K> kKinds = {
      {"relu", K::relu},
      {"leaky_relu", K::leaky_relu},
      {"clip", K::clip},
      {"linear", K::linear},
      {"abs", K::abs},
      {"hardswish", K::hardswish},
      {"hardsigmoid", K::hardsigmoid},
      {"square", K::square},
      {"add", K::add},
      {"logistic", K::logistic},
      {"swish", K::swish},
      {"sub", K::sub},
      {"mul", K::mul},
      {"div", K::div},
      {"max", K::max},
      {"min", K::min},
  };
  auto it = kKinds.find(alg);
  return it == kKinds.end() ? std::nullopt : std::optional(it->second);
}

/// How the tail's operand lies against the result; nothing if it is none of the kinds.
std::optional<Step::Operand> operand_kind(const Operand& o, const Operand& y) {
  if (o.dtype != DType::f32) return std::nullopt;
  const Broadcast spread = broadcast_of(o, y);
  if (spread == Broadcast::other || (spread == Broadcast::full && (o.constant || !lies_like(o, y))))
    return std::nullopt;
  if (spread == Broadcast::full) return Step::Operand::full;
  return o.numel() == 1 ? Step::Operand::scalar : Step::Operand::channel;
}

}  // namespace

bool is_image(const Operand& o) {
  return o.rank() == 4 && o.dtype == DType::f32 && o.lies(Layout::channels_last);
}

Applicable<> VectorTail::build(const KernelCall& call, std::string_view kernel) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), kernel, why);
  };
  for (const PostOp& op : call.post_ops) {
    Step step{.alpha = op.alpha, .beta = op.beta};
    auto kind = op.kind == PostOp::Kind::sum ? Step::Kind::add : step_kind(op.alg);
    if (!kind) return refuse(op.alg);
    step.kind = *kind;
    int slot = -1;
    if (op.operand >= 0) {
      const Operand& o = call.inputs[static_cast<size_t>(op.operand)];
      auto operand = operand_kind(o, call.outputs[0]);
      if (!operand) return refuse("an operand of the tail");
      step.operand = *operand;
      if (o.constant)
        step.data = o.constant->as<float>().data();
      else
        slot = o.slot;
    }
    steps_.push_back(step);
    slots_.push_back(slot);
    cells_.push_back(step.data);
  }
  return {};
}

void VectorTail::bind(Binder& binder) {
  for (size_t k = 0; k < slots_.size(); ++k)
    if (slots_[k] >= 0) binder.cell(slots_[k], &cells_[k]);
}

const std::vector<Step>& VectorTail::steps() {
  for (size_t k = 0; k < steps_.size(); ++k) steps_[k].data = static_cast<const float*>(cells_[k]);
  return steps_;
}

}  // namespace ferrule::cpu
