#include "engine/contract/channel_gate.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {
namespace {

constexpr std::array<std::string_view, 6> kActivations = {"relu",        "leaky_relu", "clip",
                                                          "hardsigmoid", "hardswish",  "logistic"};

class GateReader {
 public:
  GateReader(const Graph& g, const Semantics& ops) : g_(g), ops_(ops) {}

  Applicable<ChannelGate> run(std::span<const NodeId> nodes) {
    if (nodes.empty() || !is(nodes[0], "GlobalAveragePool"))
      return refuse("it does not begin with the channels' means");
    gate_.pool = nodes[0];
    at_ = g_.node(nodes[0]).outputs[0];
    for (size_t k = 1; k < nodes.size();) {
      FERRULE_TRY(dense(nodes[k++]));
      std::vector<NodeId> tail;
      while (k < nodes.size() && !is(nodes[k], "Conv")) tail.push_back(nodes[k++]);
      if (!tail.empty()) FERRULE_TRY(activation(tail));
    }
    if (gate_.layers.empty()) return refuse("no convolution follows the means");
    return std::move(gate_);
  }

 private:
  bool is(NodeId n, std::string_view op) const {
    return g_.node(n).domain.empty() && g_.node(n).op == op;
  }

  tl::unexpected<NotApplicable> refuse(std::string why) const {
    return not_applicable(at_ ? g_.value(at_).name : "", "channel_gate", why);
  }

  Applicable<> dense(NodeId id) {
    const Node& n = g_.node(id);
    if (!is(id, "Conv") || n.inputs[0] != at_)
      return refuse("a layer does not read the one before");
    const Tensor* w = g_.constant(n.inputs[1]);
    const bool biased = n.inputs.size() > 2 && n.inputs[2];
    const Tensor* b = biased ? g_.constant(n.inputs[2]) : nullptr;
    if (!w || (biased && !b)) return refuse("the weights are not constant");
    for (size_t k = 2; k < w->dims().size(); ++k)
      if (w->dims()[k] != 1) return refuse("a window is larger than 1x1");
    auto pads = n.attrs.ints("pads");
    if (n.attrs.i("group", 1) != 1 ||
        std::any_of(pads.begin(), pads.end(), [](int64_t p) { return p != 0; }))
      return refuse("a convolution has groups or pads");
    gate_.layers.push_back({w, b, {}});
    at_ = n.outputs[0];
    return {};
  }

  Applicable<> activation(const std::vector<NodeId>& tail) {
    const std::array<ValueId, 1> outputs{g_.node(tail.back()).outputs[0]};
    FERRULE_ASSIGN(LoweredRegion region, lower_region(ops_, g_, tail, outputs));
    if (region.inputs.size() != 1 || region.inputs[0] != at_)
      return refuse("an activation reads another tensor");
    auto ops = to_post_ops(region.program, 0, Deviations::all);
    if (!ops) return refuse("an activation is not in the table");
    for (const PostOp& op : *ops)
      if (std::find(kActivations.begin(), kActivations.end(), op.alg) == kActivations.end())
        return refuse("no gate has the activation " + op.alg);
    gate_.layers.back().tail = std::move(*ops);
    at_ = outputs[0];
    return {};
  }

  const Graph& g_;
  const Semantics& ops_;
  ChannelGate gate_;
  ValueId at_;
};

}  // namespace

std::span<const std::string_view> gate_activations() { return kActivations; }

Applicable<ChannelGate> read_channel_gate(const Graph& g, std::span<const NodeId> nodes,
                                          const Semantics& ops) {
  return GateReader(g, ops).run(nodes);
}

}  // namespace ferrule
