#include "engine/contract/contracts.h"

#include <algorithm>
#include <array>
#include <set>

#include "engine/contract/attention.h"
#include "engine/contract/channel_gate.h"
#include "engine/contract/epilogue.h"
#include "engine/semantics/lower.h"
#include "engine/semantics/row.h"
#include "engine/semantics/infer.h"
#include "engine/contract/library_tail.h"
#include "engine/semantics/movement.h"
#include "engine/contract/pieces.h"
#include "engine/contract/quantized.h"
#include "engine/contract/softmax_topk.h"
#include "engine/contract/spread.h"
#include "engine/contract/tiles.h"

namespace ferrule {
namespace {

Accept yes() { return {Truth::yes, {}}; }
Accept no(std::string reason) { return {Truth::no, std::move(reason)}; }
Accept unknown(std::string fact) { return {Truth::unknown, std::move(fact)}; }

const Type& type_of(const Graph& g, ValueId v) { return g.value(v).type; }

bool empty(const Graph& g, ValueId v) { return v && g.value(v).type.shape && std::ranges::count(*g.value(v).type.shape, Dim(0)) > 0; }

/// Whatever slides a window: of rank 3 to 5, with elements to compute and to compute them from.
Accept windowed(const Graph& g, const Node& n) {
  const Type& x = type_of(g, n.inputs[0]);
  if (!x.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (x.rank() < 3 || x.rank() > 5) return no(fmt::format("rank {} (3 to 5 have kernels)", x.rank()));
  if (std::ranges::any_of(n.attrs.ints("pads"), [](int64_t p) { return p < 0; })) return no("negative pads");
  for (const List<ValueId>* values : {&n.inputs, &n.outputs})
    for (ValueId v : *values)
      if (empty(g, v)) return no(escape(g.value(v).name) + " has no elements");
  return yes();
}

Accept check_conv(const Graph& g, const Node& n, const Target&) {
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  const std::vector<int64_t> further = n.attrs.ints("output_padding"), strides = n.attrs.ints("strides");
  for (size_t k = 0; k < further.size(); ++k)
    if (further[k] >= (k < strides.size() ? strides[k] : 1)) return no("output_padding as large as a stride");
  if (n.inputs.size() < 2 || !g.constant(n.inputs[1])) return no("the weights are not constant");
  if (n.inputs.size() > 2 && n.inputs[2] && !g.constant(n.inputs[2])) return no("the bias is not constant");
  return yes();
}

Accept check_gemm(const Graph& g, const Node& n, const Target&) {
  for (size_t k = 0; k < 2; ++k) {
    const Type& t = type_of(g, n.inputs[k]);
    if (!t.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[k]).name)));
    if (t.rank() < 1) return no("an operand has rank 0");
  }
  if (n.inputs.size() > 2 && n.inputs[2] && !type_of(g, n.inputs[2]).shape)
    return unknown("shape of the bias");
  return yes();
}

Accept check_pool(const Graph& g, const Node& n, const Target& target) {
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  if (n.outputs.size() > 1) return no("Indices are wanted");
  if (target.device == "gpu") return yes();
  for (int64_t d : n.attrs.ints("dilations"))
    if (d != 1) return no("dilated");
  // The library has no maximum and no mean of nothing.
  const std::vector<int64_t> kernel = n.attrs.ints("kernel_shape"), pads = n.attrs.ints("pads");
  for (size_t k = 0; k < pads.size() && !kernel.empty() && !n.attrs.i("count_include_pad"); ++k)
    if (pads[k] >= kernel[k % kernel.size()]) return no("pads as wide as its windows");
  return yes();
}

/// Tables of positions and weights make every mode one kernel on GPUs (codegen/cuda/resize.h).
Accept check_resize(const Graph& g, const Node& n, const Target& target) {
  const bool gpu = target.device == "gpu";
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  std::string mode = n.attrs.s("mode", "nearest");
  if (mode != "nearest" && mode != "linear" && !(gpu && mode == "cubic")) return no("mode " + escape(mode));
  if (n.attrs.i("antialias") && !gpu) return no("antialias");
  if (!n.attrs.ints("axes").empty()) return no("a subset of axes");
  std::string transform = n.attrs.s("coordinate_transformation_mode", "half_pixel");
  if (transform == "tf_crop_and_resize") return no("coordinate_transformation_mode tf_crop_and_resize");
  if (n.attrs.s("keep_aspect_ratio_policy", "stretch") != "stretch") return no("keep_aspect_ratio_policy");
  for (size_t k = 2; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k])) return no("scales or sizes are not constant");
  const Type& x = type_of(g, n.inputs[0]);
  const Type& y = type_of(g, n.outputs[0]);
  if (!y.shape) return unknown("output shape");
  for (int k = 0; k < 2; ++k)
    if (!((*x.shape)[k] == (*y.shape)[k]) && !gpu) return no("the batch or channel axis is resized");
  return yes();
}

/// The elements of the first operand under other sizes, and nothing else: no Dropout's mask, none that may be training.
Accept check_view(const Graph& g, const Node& n, const Target&) {
  if (!type_of(g, n.inputs[0]).shape)
    return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (n.outputs.size() > 1) return no("a second result is wanted");
  if (n.inputs.size() < 3 || !n.inputs[2]) return yes();
  const Tensor* training = g.constant(n.inputs[2]);
  return training && training->numel() == 1 && training->at_i64(0) == 0 ? yes() : no("training_mode is not known to be off");
}

/// Inference: one factor and one addend a channel; on GPUs they may be computed by the model.
Accept check_norm(const Graph& g, const Node& n, const Target& target) {
  const Type& x = type_of(g, n.inputs[0]);
  if (!x.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (x.rank() < 2 || x.rank() > 5) return no(fmt::format("rank {} (2 to 5 have kernels)", x.rank()));
  if (n.attrs.i("training_mode")) return no("training_mode");
  if (n.outputs.size() > 1) return no("running statistics are wanted");
  for (size_t k = 1; k < 5; ++k)
    if (k >= n.inputs.size() || !n.inputs[k] || (target.device != "gpu" && !g.constant(n.inputs[k]))) return no(fmt::format("input {} is not constant", k));
  return yes();
}

/// No kernel looks tuples up: the places must be regular.
Accept check_few_boxes(const Graph& g, const Node& n) {
  constexpr size_t kMostSegments = 16;
  const auto m = movement_of(g, n, 0);
  if (!m) return no(m.error().message);
  for (const IndexStep& s : m->steps)
    if (s.segments.size() > kMostSegments) return no(fmt::format("its indices make {} runs, {} are taken", s.segments.size(), kMostSegments));
  return yes();
}

/// Copies whose parameters are all constant: pure index arithmetic with fixed strides. (Gather reads its indices.)
Accept check_copy(const Graph& g, const Node& n, const Target&) {
  if (n.outputs.empty() || !type_of(g, n.outputs[0]).shape) return unknown("output shape");
  if (n.op == "GatherND") return check_few_boxes(g, n);
  size_t first = n.op == "Concat" || n.op == "Gather" ? n.inputs.size() : 1;
  for (size_t k = first; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k])) {
      if (n.op == "Expand") continue;  // only its output shape matters, which is known
      return no(fmt::format("input {} is not constant", k));
    }
  return yes();
}

struct Row {
  std::string_view contract;
  std::vector<std::string_view> ops;  ///< anchors, ai.onnx
  Accept (*check)(const Graph&, const Node&, const Target&);
  bool tail;                          ///< may carry an epilogue
  bool any_type;                      ///< element type does not matter (bytes are moved)
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"conv", {"Conv"}, check_conv, true, false},
      {"deconv", {"ConvTranspose"}, check_conv, true, false},
      {"gemm", {"MatMul", "Gemm"}, check_gemm, true, false},
      {"pool", {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"}, check_pool, false, false},
      {"resize", {"Resize"}, check_resize, false, false},
      {"norm", {"BatchNormalization"}, check_norm, false, false},
      {"copy",
        {"Transpose", "Concat", "Slice", "Split", "Pad", "Expand", "Tile", "Gather", "GatherND", "DepthToSpace", "SpaceToDepth"},
        check_copy, false, true},
      {"view", {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"}, check_view, false, true},
  };
  return kRows;
}

const Row* row_of(std::string_view contract) {
  for (const Row& r : rows())
    if (r.contract == contract) return &r;
  return nullptr;
}

const Row* row_of(const Node& n) {
  if (!n.domain.empty()) return nullptr;
  for (const Row& r : rows())
    if (std::find(r.ops.begin(), r.ops.end(), n.op) != r.ops.end()) return &r;
  return nullptr;
}

Accept check_type(const ContractFacts& facts, const Type& t, std::string_view contract, const Target& target) {
  if (t.dtype == DType::undefined) return unknown("element type");
  if (std::find(facts.types.begin(), facts.types.end(), t.dtype) == facts.types.end())
    return no(fmt::format("{} has no {} kernel for {}", target.name, contract, name(t.dtype)));
  return yes();
}

/// With movements: whether all of it can be written as boxes with constant strides.
Accept accepts_pieces(const Graph& g, std::span<const NodeId> nodes, const OpTable& ops) {
  std::vector<ValueId> results;
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).outputs)
      if (v && (g.value(v).is_output || nodes.size() == 1)) results.push_back(v);
  auto region = lower_pieces(ops, g, nodes, results);
  return region ? yes() : no(region.error().message);
}

/// Generated kernels take a bounded number of tensors; more than a rule's max_inputs only where one node reads so many.
Accept few_operands(const Graph& g, std::span<const NodeId> nodes) {
  constexpr size_t kMost = 128;  // codegen/program/loop.h's
  size_t slots = nodes.size();
  for (NodeId id : nodes) {
    const size_t own = g.node(id).inputs.size();  // each is a step of its formula, be they the same value
    if (own > kMost) return no(fmt::format("{} has {} operands, a kernel takes {}", escape(g.node(id).op), own, kMost));
    slots += own;
  }
  if (slots <= kMost) return yes();
  std::set<ValueId> operands;
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).inputs)
      if (const Tensor* c = g.constant(v); v && !(c && c->numel() == 1)) operands.insert(v);
  for (NodeId id : nodes)
    for (ValueId v : g.node(id).outputs) {
      const bool result = v && (g.value(v).is_output || std::ranges::any_of(g.value(v).uses, [&](const Use& u) {
                                  return std::ranges::find(nodes, u.node) == nodes.end();
                                }));
      if (result || (v && g.value(v).uses.empty())) operands.insert(v);
      else operands.erase(v);
    }
  return operands.size() <= kMost ? yes() : no(fmt::format("{} operands, a kernel takes {}", operands.size(), kMost));
}

/// Pointwise: every node a formula, element types known, bounded operands.
Accept accepts_pointwise(const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable& ops) {
  auto it = target.contracts.find("pointwise");
  if (it == target.contracts.end()) return no(target.name + " has no pointwise kernels");
  if (Accept a = few_operands(g, nodes); a.truth != Truth::yes) return a;
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    if (!ops.pointwise(n) && !is_movement(n)) return no(fmt::format("{} is not pointwise", escape(n.op)));
    for (size_t k = 0; k < n.inputs.size(); ++k)
      if (ValueId v = n.inputs[k]; v && (!is_movement(n) || moves_input(n, k)))
        if (Accept a = check_type(it->second, type_of(g, v), "pointwise", target); a.truth != Truth::yes) return a;
    for (ValueId v : n.outputs)
      if (v)
        if (Accept a = check_type(it->second, type_of(g, v), "pointwise", target); a.truth != Truth::yes) return a;
  }
  return any_movement(g, nodes) ? accepts_pieces(g, nodes, ops) : yes();
}

/// Channel means and dense layers on them.
Accept accepts_channel_gate(const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable& ops) {
  auto it = target.contracts.find("channel_gate");
  if (it == target.contracts.end()) return no(target.name + " has no channel_gate kernels");
  auto gate = read_channel_gate(g, nodes, ops);
  if (!gate) return no(gate.error().message);
  const Node& pool = g.node(gate->pool);
  if (Accept a = check_type(it->second, type_of(g, pool.inputs[0]), "channel_gate", target); a.truth != Truth::yes) return a;
  return windowed(g, pool);
}

/// Row operators over the same axes with pointwise neighbours: what can be lowered has a kernel.
Accept accepts_rows(const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable& ops) {
  auto it = target.contracts.find("row_reduce");
  if (it == target.contracts.end()) return no(target.name + " has no row_reduce kernels");
  if (Accept a = few_operands(g, nodes); a.truth != Truth::yes) return a;
  std::vector<ValueId> outputs;
  for (NodeId id : nodes) {
    const Node& n = g.node(id);
    const OpFormula* f = ops.find(n);
    if (!f) return no(fmt::format("{} has no formula", escape(n.op)));
    for (size_t k = 0; k < n.inputs.size() + n.outputs.size(); ++k) {
      const bool input = k < n.inputs.size();
      const ValueId v = input ? n.inputs[k] : n.outputs[k - n.inputs.size()];
      if (!v || (input && !f->reads(k))) continue;
      if (Accept a = check_type(it->second, type_of(g, v), "row_reduce", target); a.truth != Truth::yes) return a;
    }
    const Value& y = g.value(n.outputs[0]);
    auto member = [&](const Use& u) { return std::find(nodes.begin(), nodes.end(), u.node) != nodes.end(); };
    if (nodes.size() == 1 || y.is_output || !std::all_of(y.uses.begin(), y.uses.end(), member))
      outputs.push_back(n.outputs[0]);
  }
  auto region = lower_rows(ops, g, nodes, outputs);
  return region ? yes() : no(region.error().message);
}

}  // namespace

/// Integers first, and a kernel for every step between conversions.
static Accept accepts_quantized(const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable& ops) {
  auto it = target.contracts.find("quantized");
  if (it == target.contracts.end()) return no(target.name + " has no quantized kernels");
  auto steps = read_quantized(g, nodes, ops);
  if (!steps) return no(steps.error().message);
  if (Accept a = check_type(it->second, type_of(g, g.input(steps->front().node, 0)), "quantized", target); a.truth != Truth::yes)
    return a;
  for (const QuantizedStep& step : *steps) {
    if (step.conversion) continue;
    const std::string contract = contract_of(g, g.node(step.node), ops);
    if (!row_of(contract) || contract == "view" || contract == "copy") return no(fmt::format("{} is no anchor", escape(g.node(step.node).op)));
    std::vector<NodeId> inner = {step.node};
    inner.insert(inner.end(), step.tail.begin(), step.tail.end());
    if (Accept a = accepts(g, inner, step.node, contract, target, ops); a.truth != Truth::yes) return a;
  }
  return yes();
}

namespace {

/// Contracts that are made of all their nodes together.
struct Joint {
  std::string_view contract;
  Accept (*accepts)(const Graph&, std::span<const NodeId>, const Target&, const OpTable&);
};
constexpr Joint kJoint[] = {
    {"attention", [](const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable&) {
       return accepts_attention(g, nodes, target);
     }},
    {"channel_gate", accepts_channel_gate},
    {"conv_pool", accepts_conv_pool},
    {"depthwise_pointwise", accepts_depthwise_pointwise},
    {"quantized", accepts_quantized},
    {"softmax_topk", [](const Graph& g, std::span<const NodeId> nodes, const Target& target, const OpTable&) {
       return accepts_softmax_topk(g, nodes, target);
     }},
};
const Joint* joint_of(std::string_view contract) {
  for (const Joint& j : kJoint)
    if (j.contract == contract) return &j;
  return nullptr;
}

/// The axis of the anchor's result along which an operand of its tail may have one value each; -1: none. The product
/// with a vector has rows in its place.
int channel_axis(const Graph& g, const Node& anchor, std::string_view contract) {
  if (contract != "gemm") return 1;
  return type_of(g, anchor.inputs[1]).rank() > 1 ? type_of(g, anchor.outputs[0]).rank() - 1 : -1;
}

/// Whether a tail takes an operand that is spread so over the anchor's result: a library's epilogue one value, one a
/// channel or one an element; `generated`: any.
bool epilogue_operand(const Type& r, const Type& y, int channel, bool generated) {
  if (!r.shape || !y.shape || r.rank() > y.rank()) return false;
  if (spread_of(*r.shape, *y.shape, channel) != Spread::other) return true;
  const int missing = y.rank() - r.rank();
  for (int k = 0; k < r.rank(); ++k)
    if (const Dim& d = (*r.shape)[k]; !(d == Dim(1)) && !(d == (*y.shape)[k + missing])) return false;
  return generated;
}

/// Images lie channels-last; a computed value of fewer axes that has one value for each of their elements does not.
bool lies_plain(const Graph& g, ValueId v, const Type& y, std::string_view contract) {
  const Type& r = type_of(g, v);
  return contract != "gemm" && !g.constant(v) && r.rank() < y.rank() && spread_of(*r.shape, *y.shape, 1) == Spread::full;
}

/// The tail as one program must be a sequence of what the library's epilogue does. What the library would leave to a second
/// kernel is no tail: with what stands around it, that kernel may do more.
Accept accepts_tail(const Graph& g, NodeId anchor, std::span<const NodeId> tail, std::string_view contract,
                    const Target& target, const OpTable& ops) {
  if (tail.empty()) return yes();
  const ContractFacts& facts = target.contracts.at(std::string(contract));
  const ValueId from = g.node(anchor).outputs[0];
  const bool any_spread = facts.generated_tail || target.device == "gpu";  // library_takes looks closer
  if (facts.max_epilogue_ops < static_cast<int>(tail.size()))
    return no(fmt::format("{} operators behind the {}, {} are taken", tail.size(), contract, facts.max_epilogue_ops));
  ValueId last = g.node(tail.back()).outputs[0];
  std::array<ValueId, 1> outputs{last};
  auto region = lower_region(ops, g, tail, outputs);
  if (!region) return no(region.error().message);
  const Type& y = type_of(g, from);
  if (type_of(g, last).dtype != y.dtype) return no("the tail changes the element type");
  uint32_t result = 0xffffffffu;
  int operands = 0;
  for (size_t k = 0; k < region->inputs.size(); ++k) {
    if (region->inputs[k] == from) {
      result = static_cast<uint32_t>(k);
      continue;
    }
    ++operands;
    const Value& r = g.value(region->inputs[k]);
    if (r.type.dtype != y.dtype || !epilogue_operand(r.type, y, channel_axis(g, g.node(anchor), contract), any_spread))
      return no(fmt::format("operand {} {} cannot be spread over {} by the library", escape(r.name), str(r.type), str(y)));
    if (lies_plain(g, region->inputs[k], y, contract))
      return no(fmt::format("operand {} {} has fewer axes than {}, so that it does not lie channels-last", escape(r.name), str(r.type), str(y)));
  }
  if (result == 0xffffffffu) return no("the tail does not read the result");
  if (operands > facts.max_operands) return no(fmt::format("{} operands, {} are taken", operands, facts.max_operands));
  if (facts.generated_tail) return yes();
  const auto steps = to_post_ops(region->program, result, Deviations::all);
  if (!steps) return no("the library has no epilogue for " + std::string(tail.size() == 1 ? escape(g.node(tail[0]).op) : "this tail"));
  const bool image = y.rank() >= 3;  // windows slide over channels-last images
  return library_takes({&target, contract, &g, anchor, image, *steps, region->inputs});
}

}  // namespace

std::string contract_of(const Graph& g, const Node& n, const OpTable& ops) {
  if (n.body && n.op.starts_with("group.")) return n.op.substr(6);
  if (n.domain == "ferrule") return "copy";  // Reorder
  if (const Row* r = row_of(n)) return std::string(r->contract);
  if (ops.pointwise(n)) return "pointwise";
  if (ops.find(n)) return "row_reduce";
  (void)g;
  return "interpret";
}

bool is_joint_contract(std::string_view name) { return joint_of(name) != nullptr; }

std::span<const std::string_view> anchors_of(std::string_view contract) {
  if (const Row* row = row_of(contract)) return row->ops;
  return {};
}

Accept accepts(const Graph& g, std::span<const NodeId> nodes, NodeId anchor, std::string_view contract,
               const Target& target, const OpTable& ops) {
  if (contract == "interpret") return yes();
  if (contract == "pointwise") return accepts_pointwise(g, nodes, target, ops);
  if (const Joint* joint = joint_of(contract)) return joint->accepts(g, nodes, target, ops);
  if (contract == "row_reduce") return accepts_rows(g, nodes, target, ops);
  const Row* row = row_of(contract);
  if (!row) return no("there is no contract " + escape(contract));
  auto facts = target.contracts.find(std::string(contract));
  if (facts == target.contracts.end()) return no(fmt::format("{} has no {} kernels", target.name, contract));
  std::vector<NodeId> tail;
  for (NodeId n : nodes)
    if (n != anchor) tail.push_back(n);
  const Node& a = g.node(anchor);
  if (row_of(a) != row) return no(fmt::format("{} is not a {}", escape(a.op), contract));
  if (!row->any_type)
    if (Accept t = check_type(facts->second, type_of(g, a.inputs[0]), contract, target); t.truth != Truth::yes) return t;
  if (Accept c = row->check(g, a, target); c.truth != Truth::yes) return c;
  if (!row->tail && !tail.empty()) return no(fmt::format("a {} takes no tail", contract));
  return accepts_tail(g, anchor, tail, contract, target, ops);
}

namespace {

bool all_are(const std::vector<int64_t>& v, int64_t wanted) {
  return std::all_of(v.begin(), v.end(), [&](int64_t x) { return x == wanted; });
}

/// The window as a target's `strided` names it; empty: none of them.
std::string window_kind(const Graph& g, const Node& conv) {
  const Type& w = type_of(g, conv.inputs[1]);
  auto dims = w.shape ? constant_shape(*w.shape) : std::nullopt;
  if (!dims || dims->size() < 3 || w.dtype != DType::f32) return {};
  if (!all_are(conv.attrs.ints("dilations"), 1)) return {};
  const int64_t group = conv.attrs.i("group", 1);
  if (group > 1) return group == (*dims)[0] && (*dims)[1] == 1 && dims->size() <= 4 ? "depthwise" : "";
  if (!all_are(conv.attrs.ints("strides"), 1)) return {};
  const std::vector<int64_t> window(dims->begin() + 2, dims->end());
  if (all_are(window, 1)) return all_are(conv.attrs.ints("pads"), 0) ? "1x1" : "";
  return window == std::vector<int64_t>{3, 3} ? "3x3" : "";
}

/// Whether each step of the tail is one of those named.
bool simple_tail(const Graph& g, std::span<const NodeId> nodes, NodeId anchor, const ContractFacts& facts, const OpTable& ops) {
  std::vector<NodeId> tail;
  for (NodeId n : nodes)
    if (n != anchor) tail.push_back(n);
  if (tail.empty()) return true;
  const std::array<ValueId, 1> last{g.node(tail.back()).outputs[0]};
  auto region = lower_region(ops, g, tail, last);
  if (!region) return false;
  auto at = std::find(region->inputs.begin(), region->inputs.end(), g.node(anchor).outputs[0]);
  if (at == region->inputs.end()) return false;
  auto steps = to_post_ops(region->program, static_cast<uint32_t>(at - region->inputs.begin()), Deviations::all);
  return steps && std::all_of(steps->begin(), steps->end(), [&](const PostOp& p) {
    const std::string name = p.kind == PostOp::Kind::sum ? "add" : std::string(p.alg);
    return std::find(facts.epilogues.begin(), facts.epilogues.end(), name) != facts.epilogues.end();
  });
}

}  // namespace

Accept accepts_strided(const Graph& g, const Node& n, int slot, std::optional<SliceForm> form, const Target& target, const OpTable& ops) {
  const std::string contract = contract_of(g, n, ops);
  auto facts = target.contracts.find(contract);
  auto refuse = [&](std::string_view what) {
    return no(fmt::format("{} \"{}\" takes no slices{}{}", contract, escape(n.name), what.empty() ? "" : ": ", what));
  };
  if (facts == target.contracts.end() || facts->second.strided.empty()) return refuse("");
  const auto has = [&](std::string_view what) {
    return std::find(facts->second.strided.begin(), facts->second.strided.end(), what) != facts->second.strided.end();
  };
  if (has("any")) return yes();
  if (slot > 0) return refuse("only its first operand may be one");
  for (size_t k = 1; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k])) return refuse("it reads two tensors");
  const Graph& body = n.body ? *n.body : g;
  std::vector<NodeId> nodes = n.body ? body.order() : std::vector<NodeId>{};
  NodeId anchor;
  for (NodeId id : nodes)
    if (!anchor && contract_of(body, body.node(id), ops) == contract) anchor = id;
  const Node& a = anchor ? body.node(anchor) : n;
  if (n.body && (!anchor || body.inputs().empty() || a.inputs[0] != body.inputs()[0])) return refuse("its anchor does not come first");
  if (type_of(body, a.inputs[0]).dtype != DType::f32) return refuse("only of f32");
  if (contract == "gemm") {
    if (form.value_or(SliceForm::rows) != SliceForm::rows || !has("rows")) return refuse("its rows must lie at one distance");
    if (a.attrs.i("transA") || !body.constant(a.inputs[1]) || type_of(body, a.inputs[1]).rank() != 2) return refuse("only rows times constants");
    return yes();
  }
  const std::string kind = window_kind(body, a);
  if (form.value_or(SliceForm::pixels) != SliceForm::pixels) return refuse("its pixels must lie at one distance");
  if (kind.empty() || !has(kind)) return refuse("a window of this kind");
  if (kind != "1x1" && anchor && !simple_tail(body, nodes, anchor, facts->second, ops)) return refuse("with this tail");
  return yes();
}

Accept accepts_strided(const Graph& g, ValueId v, const Target& target, const OpTable& ops) {
  const Value& value = g.value(v);
  if (value.is_output) return no(escape(value.name) + " is a graph output");
  for (const Use& u : value.uses) {
    if (u.slot == Use::kCapture) return no(escape(value.name) + " is read by a nested graph");
    if (Accept a = accepts_strided(g, g.node(u.node), u.slot, {}, target, ops); a.truth != Truth::yes) return a;
  }
  return yes();
}

}  // namespace ferrule
