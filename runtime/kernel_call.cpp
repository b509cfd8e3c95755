#include "runtime/kernel_call.h"

#include <algorithm>

namespace ferrule {
namespace {
/// The distance of neighbours along all axes but `inner`, counted in the order of the layout.
int64_t distance(const Operand& o, size_t inner) {
  const std::vector<int64_t> own = strides_of(o.dims, o.layout);
  if (o.dims[inner] != 1 && o.apart[inner] != 1) return -1;
  int64_t out = 0;
  for (size_t k = 0; k < o.dims.size(); ++k) {
    if (k == inner || o.dims[k] == 1) continue;
    const int64_t steps = own[k] / std::max<int64_t>(1, o.dims[inner]);
    if (o.apart[k] % steps || (out && o.apart[k] / steps != out)) return -1;
    out = o.apart[k] / steps;
  }
  return out ? out : o.dims[inner];
}
}  // namespace

int64_t Operand::pixel() const {
  if (dense()) return dims[1];
  return rank() >= 3 && lies(Layout::channels_last) ? distance(*this, 1) : -1;
}

int64_t Operand::row() const {
  if (dense()) return dims.back();
  return rank() >= 1 && lies(Layout::plain) ? distance(*this, dims.size() - 1) : -1;
}

bool adds_operand(const PostOp& op) {
  return op.operand >= 0 &&
         (op.kind == PostOp::Kind::sum || (op.kind == PostOp::Kind::binary && op.alg == "add"));
}

Result<Operand> operand_of(const Plan& plan, const Lowered& lowered, const Storage& storage,
                           size_t layer, ValueId v) {
  Operand o;
  if (!v) return o;
  FERRULE_ASSIGN(o.dims, dims_of(plan, lowered, layer, v));
  o.dtype = type_of(plan, lowered, layer, v).dtype;
  o.layout = layout_of(plan, lowered, layer, v);
  if (v.index < kTemporary) o.constant = plan.graph.constant(v);
  if (!o.constant) o.slot = storage.slot(v, layer);
  if (o.slot >= 0 && storage.slots[static_cast<size_t>(o.slot)].kind == Slot::Kind::slice)
    o.offset = storage.slots[static_cast<size_t>(o.slot)].offset;
  if (v.index < kTemporary && plan.slices.contains(v))
    if (auto at = strided_view(plan, v); at && !at->dense) o.apart = std::move(at->strides);
  return o;
}

Result<KernelCall> call_of(const Plan& plan, const Lowered& lowered, const Storage& storage,
                           size_t layer, const Launch& l) {
  KernelCall call;
  call.layer = plan.layers[layer].name;
  call.work = l.work;
  call.graph = l.graph;
  call.roles = l.roles;
  if (l.node && l.graph) call.node = &l.graph->node(l.node);
  if (auto it = plan.nested.find(l.node); it != plan.nested.end() && l.graph == &plan.graph)
    call.nested = &it->second;
  call.post_ops = l.post_ops;
  if (l.region) call.region = &*l.region;
  call.rows = l.rows.get();
  for (ValueId v : l.inputs) {
    FERRULE_ASSIGN(Operand o, operand_of(plan, lowered, storage, layer, v));
    call.inputs.push_back(std::move(o));
  }
  // A constant that lives in the group's body has no value in the plan. A region's inputs are not
  // the node's.
  for (size_t k = 0;
       call.node && !call.region && k < call.node->inputs.size() && k < call.inputs.size(); ++k) {
    const Tensor* t = call.inputs[k].present() ? nullptr : l.graph->constant(call.node->inputs[k]);
    if (t) call.inputs[k] = {t->dtype(), t->dims(), Layout::plain, -1, t};
  }
  for (ValueId v : l.outputs) {
    FERRULE_ASSIGN(Operand o, operand_of(plan, lowered, storage, layer, v));
    call.outputs.push_back(std::move(o));
  }
  if (l.kind == Launch::Kind::library)
    for (const PostOp& op : l.post_ops)
      if (adds_operand(op) &&
          call.inputs[static_cast<size_t>(op.operand)].slot == call.outputs[0].slot)
        call.sum_input = op.operand;
  return call;
}

Result<KernelCall> node_call(const Plan& plan, const Lowered& lowered, const Storage& storage,
                             size_t layer) {
  KernelCall call;
  const Node& n = plan.graph.node(plan.layers[layer].node);
  call.layer = plan.layers[layer].name;
  call.node = &n;
  call.graph = &plan.graph;
  for (ValueId v : n.inputs) {
    FERRULE_ASSIGN(Operand o, operand_of(plan, lowered, storage, layer, v));
    call.inputs.push_back(std::move(o));
  }
  for (ValueId v : n.outputs) {
    FERRULE_ASSIGN(Operand o, operand_of(plan, lowered, storage, layer, v));
    call.outputs.push_back(std::move(o));
  }
  return call;
}

}  // namespace ferrule
