#include "engine/plan/slices.h"

#include "engine/contract/accepts.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

class Slices {
 public:
  Slices(const Graph& g, NodeId node, bool writes)
      : by_slot_(writes ? g.node(node).inputs.size() : g.node(node).outputs.size()) {
    const std::vector<Applicable<Movement>> movements = movements_of(g, g.node(node));
    for (size_t k = 0; k < movements.size(); ++k) {
      const auto& m = movements[k];
      if (!m || m->steps.size() != 1 || m->steps[0].kind != IndexStep::Kind::walk) continue;
      SliceOf at;
      at.axis = static_cast<int>(m->steps[0].axis);
      at.whole = writes ? g.output(node) : g.input(node, 0);
      if (!writes)
        read(k, at, m->steps[0].segments);
      else if (k == 0)
        write(at, m->steps[0].segments);
    }
  }

  std::vector<std::optional<SliceOf>> take() { return std::move(by_slot_); }

 private:
  void read(size_t slot, SliceOf at, const std::vector<Segment>& segments) {
    if (segments.size() != 1 || segments[0].operand != 0 || segments[0].step < 1) return;
    at.start = segments[0].start;
    at.step = segments[0].step;
    by_slot_[slot] = at;
  }
  void write(SliceOf at, const std::vector<Segment>& segments) {
    std::vector<bool> seen(by_slot_.size());
    for (const Segment& s : segments) {
      if (s.operand < 0) continue;
      const auto slot = static_cast<size_t>(s.operand);
      at.start = s.begin;
      if (seen[slot] || s.start != 0 || s.step != 1)
        by_slot_[slot].reset();
      else
        by_slot_[slot] = at;
      seen[slot] = true;
    }
  }

  std::vector<std::optional<SliceOf>> by_slot_;
};

}  // namespace

std::vector<std::optional<SliceOf>> slices_of(const Graph& g, NodeId node, bool writes) {
  return Slices(g, node, writes).take();
}

std::map<ValueId, SliceOf> read_slices(const Graph& g, const Layouts& layouts,
                                       const Semantics& ops) {
  std::map<ValueId, SliceOf> out;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (!n.body || contract_of(n, ops) != "copy") continue;
    const bool writes = n.attrs.find(kSlicesWritten) != nullptr;
    const std::vector<NodeId> inside = n.body->order();
    if (inside.size() != 1) continue;
    const Graph& body = *n.body;
    std::map<ValueId, ValueId> outer = around_body(n);
    const auto slices = slices_of(body, inside[0], writes);
    for (int64_t slot : n.attrs.ints(writes ? kSlicesWritten : kSlicesRead)) {
      const auto at = static_cast<size_t>(slot);
      std::optional<SliceOf> slice = slices[at];
      const ValueId part = outer[writes ? body.input(inside[0], at) : body.output(inside[0], at)];
      if (!slice || !part) continue;
      slice->whole = outer[slice->whole];
      // A reorder in between, or a layout of its own: then it is copied after all.
      if (!slice->whole || layouts[part] != layouts[slice->whole]) continue;
      if (writes && (!g.value(part).producer || layouts.escapes(g, part))) continue;
      out[part] = *slice;
    }
  }
  return out;
}

std::optional<StridedView> strided_view(const Graph& g, std::span<const Layout> layouts,
                                        const std::map<ValueId, SliceOf>& slices, ValueId v) {
  const Type& type = g.value(v).type;
  const auto dims = type.shape ? constant_shape(*type.shape) : std::nullopt;
  if (!dims) return std::nullopt;
  const std::vector<int64_t> own = strides_of(*dims, layouts[v.index]);
  const auto slice = slices.find(v);
  if (slice == slices.end()) return StridedView{v, 0, own};
  auto out = strided_view(g, layouts, slices, slice->second.whole);
  if (!out) return std::nullopt;
  const auto axis = static_cast<size_t>(slice->second.axis);
  out->offset += slice->second.start * out->strides[axis];
  out->strides[axis] *= slice->second.step;
  out->dense = true;
  for (size_t k = 0; k < own.size(); ++k)
    out->dense = out->dense && ((*dims)[k] == 1 || own[k] == out->strides[k]);
  return out;
}

size_t layers_of(const Graph& g) {
  size_t layers = g.live_nodes();
  for (uint32_t k = 0; k < g.node_slots(); ++k) {
    const Node& n = g.node(NodeId{k});
    if (!n.dead && n.body && n.attrs.find(kNothingToMove)) --layers;
  }
  return layers;
}

}  // namespace ferrule
