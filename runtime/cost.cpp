#include "runtime/cost.h"

#include <algorithm>
#include <set>

namespace ferrule {
namespace {

/// Activations that the launches of a layer read and write.
class Traffic {
 public:
  Traffic(const Plan& plan, const LoweredLayer& layer,
          const std::function<Type(const Type&)>& sized)
      : plan_(plan), layer_(layer), sized_(sized) {}
  int64_t bytes() {
    int64_t total = 0;
    for (const Launch& l : layer_.launches) {
      if (l.kind == Launch::Kind::view) continue;
      std::set<uint32_t> read;
      for (ValueId v : l.inputs)
        if (v && read.insert(v.index).second) total += size(v);
      for (ValueId v : l.outputs)
        if (v) total += size(v);
    }
    return total;
  }
  bool open = false;

 private:
  int64_t size(ValueId v) {
    if (v.index >= kTemporary) return size(layer_.temporaries[v.index - kTemporary].type);
    return plan_.graph.constant(v) ? 0 : size(plan_.graph.value(v).type);
  }
  int64_t size(const Type& t) {
    if (!t.shape) return 0;
    int64_t elements = 1;
    const Shape known = sized_ ? *sized_(t).shape : *t.shape;
    for (const Dim& d : known) {
      open = open || !d.constant();
      elements *= std::max<int64_t>(0, d.value_or(1));
    }
    return size_bytes(t.dtype, elements);
  }
  const Plan& plan_;
  const LoweredLayer& layer_;
  const std::function<Type(const Type&)>& sized_;
};

}  // namespace

Result<Cost> cost_of(const Graph& fused, const Knowledge& knowledge, const LowerOptions& lowering,
                     const std::function<Type(const Type&)>& sized) {
  Cost c;
  c.nodes = fused.live_nodes();
  FERRULE_ASSIGN(Plan plan, make_plan(std::move(*fused.clone()), knowledge.target, knowledge.ops));
  FERRULE_ASSIGN(Lowered lowered, lower(plan, knowledge.ops, knowledge.target, lowering));
  c.layers = plan.layers.size();
  for (size_t k = 0; k < lowered.layers.size(); ++k) {
    c.kernels += lowered.layers[k].kernels();
    Traffic t(plan, lowered.layers[k], sized);
    c.bytes += t.bytes();
    c.open = c.open || t.open;
  }
  return c;
}

}  // namespace ferrule
