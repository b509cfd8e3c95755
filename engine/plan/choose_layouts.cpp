#include "engine/plan/choose_layouts.h"

#include <algorithm>
#include <array>
#include <optional>

#include "engine/contract/accepts.h"
#include "engine/contract/roles.h"
#include "engine/contract/stages.h"
#include "engine/rule/contract.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

/// As far as the sizes are known.
bool same_memory(const Type& t) {
  if (!t.shape || t.rank() < 3) return true;
  if ((*t.shape)[1] == Dim(1)) return true;
  for (int k = 2; k < t.rank(); ++k)
    if (!((*t.shape)[k] == Dim(1))) return false;
  return true;
}

bool can_be_channels_last(const Type& t) { return t.shape && t.rank() >= 3 && t.rank() <= 5; }

/// Chooses a layout for every value, forward.
class LayoutChoice {
 public:
  LayoutChoice(const Graph& g, const Target& target, const Semantics& ops)
      : g_(g), target_(target), ops_(ops) {}

  Layouts run() {
    out_.of.assign(g_.value_slots(), Layout::plain);
    out_.contract.resize(g_.node_slots());
    out_.copy.assign(g_.value_slots(), Layouts::kNone);
    const std::vector<NodeId> order = g_.order();
    for (NodeId id : order) out_.contract[id.index] = kernel_contract(id);
    for (NodeId id : order) place(id);
    for (ValueId v : g_.outputs())
      if (!has(v, Layout::plain)) copy_of(v, Layout::plain, {}).output = true;
    return std::move(out_);
  }

 private:
  Layout layout(ValueId v) const { return out_[v]; }
  void set(ValueId v, Layout l) { out_.of[v.index] = l; }
  const Type& type(ValueId v) const { return g_.value(v).type; }
  bool has(ValueId v, Layout l) const { return layout(v) == l || same_memory(type(v)); }

  void place(NodeId id) {
    if (const Roles* roles = g_.node(id).roles.get()) return by_roles(id, *roles);
    const std::string contract = laid_out_as(id);
    if (stays_plain(id)) {
      set_outputs(id, Layout::plain);
    } else if (slides(contract)) {
      sliding(id);
    } else if (contract == "pointwise") {
      for (ValueId v : g_.node(id).outputs) set_output(v, written(id, v));
    } else if (contract == "norm") {
      set_outputs(id, follows(id));
    } else if (contract == "row_reduce") {
      rows(id);
    } else if (contract == "copy") {
      copies(id);
    } else {
      for (size_t k = 0; k < g_.node(id).inputs.size(); ++k) require(id, k, Layout::plain);
    }
  }

  static bool slides(std::string_view contract) {
    constexpr std::array kSlide{"conv", "deconv", "pool", "resize", "conv_integer", "qlinear_conv"};
    return std::ranges::find(kSlide, contract) != kSlide.end();
  }

  /// A plain image whose result nobody wants channels-last, for a kernel that takes it so. Poolings
  /// of floats without gaps are the libraries', which want channels last.
  bool stays_plain(NodeId id) const {
    const Node& n = g_.node(id);
    if (n.body || !target_.facts_of(contract(id)).takes("any_layout")) return false;
    const DType t = type(n.inputs[0]).dtype;
    const bool floats = t == DType::f32 || t == DType::f16 || t == DType::bf16;
    const bool usual =
        contract(id) == "pool" && floats && n.outputs.size() == 1 &&
        std::ranges::all_of(n.attrs.ints("dilations"), [](auto d) { return d == 1; });
    return !usual && layout(n.inputs[0]) == Layout::plain &&
           wanted(n.outputs[0]).value_or(Layout::plain) == Layout::plain;
  }

  /// As the contract's file says.
  void by_roles(NodeId id, const Roles& roles) {
    for (const auto& [_, t] : roles.tensors) {
      if (t.result) {
        set_output(g_.output(id, t.slot), layout_of(t));
        continue;
      }
      const ValueId v = g_.input(id, t.slot);
      if (v && can_be_channels_last(type(v))) require(id, t.slot, layout_of(t), t.channels_last);
    }
  }
  static Layout layout_of(const RoleTensor& t) {
    return t.channels_last ? Layout::channels_last : Layout::plain;
  }
  /// The layout in which the group reads its input `slot`.
  static Layout read_by_roles(const Roles& roles, int slot) {
    const bool last = std::ranges::any_of(roles.tensors, [&](const auto& named) {
      const RoleTensor& t = named.second;
      return t.channels_last && !t.result && static_cast<int>(t.slot) == slot;
    });
    return last ? Layout::channels_last : Layout::plain;
  }

  /// What the value's readers want: the layout of those that need one, nullopt where all read any
  /// strides.
  std::optional<Layout> wanted(ValueId v) const {
    const Value& value = g_.value(v);
    std::optional<Layout> out;
    if (value.is_output) out = Layout::plain;
    for (const Use& u : value.uses) {
      if (const Roles* roles = g_.node(u.node).roles.get()) {
        if (read_by_roles(*roles, u.slot) == Layout::channels_last) return Layout::channels_last;
        out = out.value_or(Layout::plain);
        continue;
      }
      const std::string contract = laid_out_as(u.node);
      if (contract == "pointwise" || contract == "copy" || contract == "norm") continue;
      if (!slides(contract)) {
        out = out.value_or(Layout::plain);
      } else if (u.slot != Use::kCapture &&
                 type(v).rank() == type(g_.node(u.node).outputs[0]).rank()) {
        return Layout::channels_last;
      }
    }
    return out;
  }

  /// Generated kernels and copies write any strides: they write what is wanted, else what they
  /// read. Where rows of a few channels are too short to compute in, a reorder behind the kernel is
  /// the faster way.
  Layout written(NodeId id, ValueId v) const {
    if (!v || !can_be_channels_last(type(v))) return Layout::plain;
    const Layout read = follows(id), write = wanted(v).value_or(read);
    const Dim& channels = (*type(v).shape)[1];
    const int64_t least = target_.facts_of("pointwise").least_channels_last;
    const bool few = channels.value_or(least) < least;
    return few && read == Layout::plain && contract(id) == "pointwise" ? Layout::plain : write;
  }

  /// The contract that really runs the node: a single node whose contract refuses it is
  /// interpreted.
  std::string kernel_contract(NodeId id) const {
    const Node& n = g_.node(id);
    std::string contract = contract_of(n, ops_);
    if (n.body || n.domain == "ferrule") return contract;
    std::array<NodeId, 1> one{id};
    return accepts(g_, one, id, contract, target_, ops_, false).truth == Truth::yes ? contract
                                                                                    : "interpret";
  }
  const std::string& contract(NodeId id) const { return out_.contract[id.index]; }

  /// A group of stages is laid out as its first layer, what is generated as rows or boxes are.
  std::string laid_out_as(NodeId id) const {
    const std::string& contract = this->contract(id);
    const auto said = ops_.contracts() ? ops_.contracts()->find(contract) : nullptr;
    if (said && said->generated != Generated::none)
      return said->generated == Generated::rows ? "row_reduce" : "pointwise";
    if (!said || said->stages.empty()) return contract;
    const Graph& body = *g_.node(id).body;
    const auto stages = read_stages(body, body.order(), ops_);
    if (!stages) return contract;
    const auto layer = std::ranges::find(*stages, false, &GroupStage::conversion);
    return contract_of(body.node(layer->node), ops_);
  }

  /// Windows slide over channels-last images; tail operands of the result's rank are read the same
  /// way, others as they are written down.
  void sliding(NodeId id) {
    const Node& n = g_.node(id);
    const Type& y = type(n.outputs[0]);
    const Layout images = can_be_channels_last(y) ? Layout::channels_last : Layout::plain;
    const bool image_first = slides_over_first(n);
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      if ((k == 0 && reads_plain(id)) || filters(id, k)) continue;
      const ValueId v = n.inputs[k];
      require(id, k, v && type(v).rank() == y.rank() ? images : Layout::plain,
              k == 0 && image_first);
    }
    set_outputs(id, images);
  }

  /// First layers: convolutions of a few planes may read the model's input as it lies.
  bool reads_plain(NodeId id) const {
    const Node& n = g_.node(id);
    const Type& x = type(n.inputs[0]);
    const auto planes = x.shape && x.rank() == 4 ? (*x.shape)[1].constant() : std::nullopt;
    if (x.dtype != DType::f32 || !planes ||
        *planes > target_.facts_of(contract(id)).most_plain_channels)
      return false;
    // An image that is also added to the result is read as the result is written.
    if (n.body && n.body->value(n.body->inputs()[0]).uses.size() > 1) return false;
    return slides_over_first(n);
  }

  /// Whether the node's first input is the image, and not an operand of something in front.
  bool slides_over_first(const Node& n) const {
    const Node* inner = sliding_node(n);
    return !n.body || (inner && inner->inputs[0] == n.body->inputs()[0]);
  }
  /// The node itself, or the one of its group.
  const Node* sliding_node(const Node& n) const {
    if (!n.body) return &n;
    for (NodeId b : n.body->order())
      if (const Node& inner = n.body->node(b); slides(contract_of(inner, ops_))) return &inner;
    return nullptr;
  }
  /// Whether the input is the filters of a convolution, which are packed whatever their strides.
  bool filters(NodeId id, size_t slot) const {
    if (contract(id) != "conv" && contract(id) != "deconv") return false;
    const Node& n = g_.node(id);
    const Node* inner = sliding_node(n);
    const Weighted* w = inner ? weighted(*inner) : nullptr;
    return w && inner->inputs[w->slot] == (n.body ? n.body->inputs()[slot] : n.inputs[slot]);
  }

  /// Generated kernels read and write any strides: the result is laid out as its largest operand
  /// is.
  Layout follows(NodeId id) const {
    const Node& n = g_.node(id);
    return n.outputs.empty() ? Layout::plain : follows(id, n.outputs[0]);
  }
  Layout follows(NodeId id, ValueId y) const {
    const Node& n = g_.node(id);
    if (!can_be_channels_last(type(y))) return Layout::plain;
    for (ValueId v : n.inputs) {
      if (!v || g_.constant(v) || layout(v) != Layout::channels_last) continue;
      if (same_memory(type(v)) || type(v).rank() != type(y).rank()) continue;
      return Layout::channels_last;
    }
    return Layout::plain;
  }

  /// Row kernels read and write any strides; each result follows the operands of its rank. One that
  /// a pointwise kernel would have written for others (a rule's `keeps`) is written as they want.
  void rows(NodeId id) {
    const std::vector<ValueId> outputs = g_.node(id).outputs;
    for (ValueId v : outputs) {
      if (!v) continue;
      const Layout same = can_be_channels_last(type(v)) ? follows(id, v) : Layout::plain;
      set(v, same != Layout::plain && outputs.size() > 1 ? wanted(v).value_or(same) : same);
    }
  }

  void copies(NodeId id) {
    const Node& n = g_.node(id);
    auto perm = n.attrs.ints("perm");
    if (perm.empty()) {
      for (ValueId v : n.outputs) set_output(v, written(id, v));
      return;
    }
    // A transpose between the two layouts moves nothing: the same memory under the other name.
    ValueId x = n.inputs[0], y = n.outputs[0];
    if (static_cast<int>(perm.size()) >= 3 && layout(x) == Layout::plain &&
        perm == from_channels_last(perm.size()))
      return set_output(y, Layout::channels_last);
    set_output(
        y, layout(x) == Layout::channels_last ? Layout::plain : wanted(y).value_or(Layout::plain));
  }
  static std::vector<int64_t> from_channels_last(size_t rank) {
    std::vector<int64_t> p(rank);
    p[0] = 0;
    p[1] = static_cast<int64_t>(rank) - 1;
    for (size_t k = 2; k < rank; ++k) p[k] = static_cast<int64_t>(k) - 1;
    return p;
  }

  void set_output(ValueId v, Layout l) {
    if (v) set(v, can_be_channels_last(type(v)) ? l : Layout::plain);
  }
  void set_outputs(NodeId id, Layout l) {
    for (ValueId v : g_.node(id).outputs) set_output(v, l);
  }

  /// Constants are packed by the kernels that read them, but for images.
  void require(NodeId id, size_t slot, Layout wanted, bool image = false) {
    ValueId v = g_.input(id, slot);
    if (!v || (g_.constant(v) && !image) || has(v, wanted)) return;
    copy_of(v, wanted, id).readers.push_back({id, static_cast<int>(slot)});
  }

  /// One a value, shared by all its readers.
  Layouts::Reorder& copy_of(ValueId v, Layout to, NodeId before) {
    size_t& at = out_.copy[v.index];
    if (at == Layouts::kNone) {
      at = out_.reorders.size();
      out_.reorders.push_back({v, to, before, {}, false});
    }
    return out_.reorders[at];
  }

  const Graph& g_;
  const Target& target_;
  const Semantics& ops_;
  Layouts out_;
};

}  // namespace

const Layouts::Reorder* Layouts::copy_for(ValueId v, const Use& reader) const {
  if (copy[v.index] == kNone) return nullptr;
  const Reorder& r = reorders[copy[v.index]];
  return std::ranges::find(r.readers, reader) == r.readers.end() ? nullptr : &r;
}

bool Layouts::escapes(const Graph& g, ValueId v) const {
  return g.value(v).is_output && (copy[v.index] == kNone || !reorders[copy[v.index]].output);
}

Layouts layouts_of(const Graph& g, const Target& target, const Semantics& ops) {
  return LayoutChoice(g, target, ops).run();
}

Node reorder_node() {
  Node n;
  n.op = "Reorder";
  n.domain = "ferrule";
  return n;
}

}  // namespace ferrule
