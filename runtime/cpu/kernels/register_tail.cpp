#include "runtime/cpu/kernels/register_tail.h"

#include <limits>
#include <map>

#include "runtime/cpu/tail_operand.h"

namespace ferrule::cpu {
namespace {

using Kind = RegisterOp::Kind;

std::optional<Kind> kind_of(const PostOp& op) {
  static const std::map<std::string_view, Kind> kOne = {
      {"relu", Kind::relu},
      {"leaky_relu", Kind::leaky_relu},
      {"clip", Kind::clip},
      {"linear", Kind::linear},
      {"hardswish", Kind::hardswish},
      {"hardsigmoid", Kind::hardsigmoid},
      {"abs", Kind::abs},
  };
  static const std::map<std::string_view, Kind> kTwo = {
      {"add", Kind::add}, {"sub", Kind::sub}, {"mul", Kind::mul},
      {"div", Kind::div}, {"max", Kind::max}, {"min", Kind::min},
  };
  if (op.kind == PostOp::Kind::sum) return Kind::add;
  const auto& table = op.operand < 0 ? kOne : kTwo;
  auto it = table.find(op.alg);
  return it == table.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace

Applicable<> RegisterTail::build(Context& context, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "this tail", why);
  };
  for (const PostOp& p : call.post_ops) {
    auto kind = kind_of(p);
    if (!kind) return refuse("not done in registers");
    RegisterOp op;
    op.kind = *kind;
    op.alpha = p.alpha;
    op.beta = p.beta;
    int slot = -1;
    const void* data = nullptr;
    if (p.operand >= 0) {
      const Operand& o = call.inputs[static_cast<size_t>(p.operand)];
      FERRULE_TRY(add_operand(context, call, o, p.operand == call.sum_input, op));
      slot = o.constant ? -1 : o.slot;
      data = op.operand;
    }
    ops_.push_back(op);
    slots_.push_back(slot);
    cells_.push_back(data);
  }
  return {};
}

Applicable<> RegisterTail::add_operand(Context& context, const KernelCall& call, const Operand& o,
                                       bool sum, RegisterOp& op) {
  const Operand& y = call.outputs[0];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "this tail", why);
  };
  if (o.dtype != DType::f32) return refuse(name(o.dtype));
  const Broadcast spread = sum ? Broadcast::full : broadcast_of(o, y);
  if (spread == Broadcast::other)
    return refuse("an operand is neither one value, nor one a channel, nor of the result's size");
  if (spread == Broadcast::full) {
    op.spread = RegisterOp::Broadcast::full;
    if (!o.constant)
      return lies_like(o, y) ? Applicable<>{} : refuse("an operand lies in another order");
    return guard(call, "reorder", [&]() -> Applicable<> {
      packed_.push_back(context.library.pack(*o.constant, desc_of(o, y.rank()), image_desc(y)));
      op.operand = static_cast<const float*>(packed_.back().data);
      return {};
    });
  }
  op.spread = o.numel() == 1 ? RegisterOp::Broadcast::scalar : RegisterOp::Broadcast::channel;
  if (o.constant) op.operand = o.constant->as<float>().data();
  return {};
}

bool RegisterTail::take_clip(float& low, float& high) {
  if (ops_.empty() || (ops_[0].kind != Kind::relu && ops_[0].kind != Kind::clip)) return false;
  const bool relu = ops_[0].kind == Kind::relu;
  low = relu ? 0 : ops_[0].alpha;
  high = relu ? std::numeric_limits<float>::infinity() : ops_[0].beta;
  ops_.erase(ops_.begin());
  slots_.erase(slots_.begin());
  cells_.erase(cells_.begin());
  return true;
}

void RegisterTail::bind(Binder& binder) {
  for (size_t k = 0; k < slots_.size(); ++k)
    if (slots_[k] >= 0) binder.cell(slots_[k], &cells_[k]);
}

void RegisterTail::refresh(std::vector<RegisterOp>& ops) const {
  for (size_t k = 0; k < ops.size(); ++k) ops[k].operand = static_cast<const float*>(cells_[k]);
}

}  // namespace ferrule::cpu
