#include "engine/contract/anchored.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/contract/broadcast.h"
#include "engine/contract/epilogue.h"
#include "engine/contract/library_tail.h"
#include "engine/graph/operator_name.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {

using answer::no, answer::unknown, answer::yes;

namespace {

const Type& type_of(const Graph& g, ValueId v) { return g.value(v).type; }

bool empty(const Graph& g, ValueId v) {
  return v && g.value(v).type.shape && std::ranges::count(*g.value(v).type.shape, Dim(0)) > 0;
}

}  // namespace

Accept windowed(const Graph& g, const Node& n) {
  const Type& x = type_of(g, n.inputs[0]);
  if (!x.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (x.rank() < 3 || x.rank() > 5)
    return no(fmt::format("rank {} (3 to 5 have kernels)", x.rank()));
  if (std::ranges::any_of(n.attrs.ints("pads"), [](int64_t p) { return p < 0; }))
    return no("negative pads");
  for (const List<ValueId>* values : {&n.inputs, &n.outputs})
    for (ValueId v : *values)
      if (empty(g, v)) return no(escape(g.value(v).name) + " has no elements");
  return yes();
}

namespace {

Accept check_conv(const Graph& g, const Node& n, const ContractFacts&) {
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  const std::vector<int64_t> further = n.attrs.ints("output_padding"),
                             strides = n.attrs.ints("strides");
  for (size_t k = 0; k < further.size(); ++k)
    if (further[k] >= (k < strides.size() ? strides[k] : 1))
      return no("output_padding as large as a stride");
  if (n.inputs.size() < 2 || !g.constant(n.inputs[1])) return no("the weights are not constant");
  if (n.inputs.size() > 2 && n.inputs[2] && !g.constant(n.inputs[2]))
    return no("the bias is not constant");
  return yes();
}

Accept check_gemm(const Graph& g, const Node& n, const ContractFacts&) {
  for (size_t k = 0; k < 2; ++k) {
    const Type& t = type_of(g, n.inputs[k]);
    if (!t.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[k]).name)));
    if (t.rank() < 1) return no("an operand has rank 0");
  }
  if (n.inputs.size() > 2 && n.inputs[2] && !type_of(g, n.inputs[2]).shape)
    return unknown("shape of the bias");
  return yes();
}

Accept check_pool(const Graph& g, const Node& n, const ContractFacts& facts) {
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  if (n.outputs.size() > 1) return no("Indices are wanted");
  for (int64_t d : n.attrs.ints("dilations"))
    if (d != 1 && !facts.takes("dilated")) return no("dilated");
  if (facts.takes("wide_pads")) return yes();
  // Windows that lie in the pads alone: libraries have no maximum and no mean of nothing.
  const std::vector<int64_t> kernel = n.attrs.ints("kernel_shape"), pads = n.attrs.ints("pads");
  for (size_t k = 0; k < pads.size() && !kernel.empty() && !n.attrs.i("count_include_pad"); ++k)
    if (pads[k] >= kernel[k % kernel.size()]) return no("pads as wide as its windows");
  return yes();
}

Accept check_resize(const Graph& g, const Node& n, const ContractFacts& facts) {
  if (Accept a = windowed(g, n); a.truth != Truth::yes) return a;
  std::string mode = n.attrs.s("mode", "nearest");
  if (mode != "nearest" && mode != "linear" && !(mode == "cubic" && facts.takes("cubic")))
    return no("mode " + escape(mode));
  if (n.attrs.i("antialias") && !facts.takes("antialias")) return no("antialias");
  if (!n.attrs.ints("axes").empty()) return no("a subset of axes");
  std::string transform = n.attrs.s("coordinate_transformation_mode", "half_pixel");
  if (transform == "tf_crop_and_resize")
    return no("coordinate_transformation_mode tf_crop_and_resize");
  if (n.attrs.s("keep_aspect_ratio_policy", "stretch") != "stretch")
    return no("keep_aspect_ratio_policy");
  for (size_t k = 2; k < n.inputs.size(); ++k)
    if (n.inputs[k] && !g.constant(n.inputs[k])) return no("scales or sizes are not constant");
  const Type& x = type_of(g, n.inputs[0]);
  const Type& y = type_of(g, n.outputs[0]);
  if (!y.shape) return unknown("output shape");
  for (int k = 0; k < 2; ++k)
    if (!((*x.shape)[k] == (*y.shape)[k]) && !facts.takes("any_axis"))
      return no("the batch or channel axis is resized");
  return yes();
}

/// The elements of the first operand under other sizes, and nothing else: no Dropout's mask, none
/// that may be training.
Accept check_view(const Graph& g, const Node& n, const ContractFacts&) {
  if (!type_of(g, n.inputs[0]).shape)
    return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (n.outputs.size() > 1) return no("a second result is wanted");
  if (n.inputs.size() < 3 || !n.inputs[2]) return yes();
  const Tensor* training = g.constant(n.inputs[2]);
  return training && training->numel() == 1 && training->at_i64(0) == 0
             ? yes()
             : no("training_mode is not known to be off");
}

/// Inference: one factor and one addend a channel, which the model may compute where kernels take
/// that.
Accept check_norm(const Graph& g, const Node& n, const ContractFacts& facts) {
  const Type& x = type_of(g, n.inputs[0]);
  if (!x.shape) return unknown(fmt::format("rank of {}", escape(g.value(n.inputs[0]).name)));
  if (x.rank() < 2 || x.rank() > 5)
    return no(fmt::format("rank {} (2 to 5 have kernels)", x.rank()));
  if (n.attrs.i("training_mode")) return no("training_mode");
  if (n.outputs.size() > 1) return no("running statistics are wanted");
  for (size_t k = 1; k < 5; ++k)
    if (k >= n.inputs.size() || !n.inputs[k] ||
        (!facts.takes("computed") && !g.constant(n.inputs[k])))
      return no(fmt::format("input {} is not constant", k));
  return yes();
}

/// No kernel looks tuples up: the places must be regular.
Accept check_few_boxes(const Graph& g, const Node& n) {
  constexpr size_t kMostSegments = 16;
  const auto m = movement_of(g, n, 0);
  if (!m) return no(m.error().reason());
  for (const IndexStep& s : m->steps)
    if (s.segments.size() > kMostSegments)
      return no(
          fmt::format("its indices make {} runs, {} are taken", s.segments.size(), kMostSegments));
  return yes();
}

/// Copies whose parameters are all constant: pure index arithmetic with fixed strides. (Gather
/// reads its indices.)
Accept check_copy(const Graph& g, const Node& n, const ContractFacts&) {
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
  Accept (*check)(const Graph&, const Node&, const ContractFacts&);
  bool tail;      ///< may carry an epilogue
  bool any_type;  ///< element type does not matter (bytes are moved)
};

const std::vector<Row>& rows() {
  static const std::vector<Row> kRows = {
      {"conv", {"Conv"}, check_conv, true, false},
      {"deconv", {"ConvTranspose"}, check_conv, true, false},
      {"gemm", {"MatMul", "Gemm"}, check_gemm, true, false},
      {"pool",
       {"MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool"},
       check_pool,
       false,
       false},
      {"resize", {"Resize"}, check_resize, false, false},
      {"norm", {"BatchNormalization"}, check_norm, false, false},
      {"copy",
       {"Transpose", "Concat", "Slice", "Split", "Pad", "Expand", "Tile", "Gather", "GatherND",
        "DepthToSpace", "SpaceToDepth"},
       check_copy,
       false,
       true},
      {"view",
       {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Dropout"},
       check_view,
       false,
       true},
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
    if (std::find(r.ops.begin(), r.ops.end(), operator_name(n.op)) != r.ops.end()) return &r;
  return nullptr;
}

}  // namespace

Accept check_type(const ContractFacts& facts, const Type& t, std::string_view contract,
                  const Target& target) {
  if (t.dtype == DType::undefined) return unknown("element type");
  if (std::find(facts.types.begin(), facts.types.end(), t.dtype) == facts.types.end())
    return no(fmt::format("{} has no {} kernel for {}", target.name, contract, name(t.dtype)));
  return yes();
}

namespace {

/// The axis of the anchor's result along which an operand of its tail may have one value each; -1:
/// none. The product with a vector has rows in its place.
int channel_axis(const Graph& g, const Node& anchor, std::string_view contract) {
  if (contract != "gemm") return 1;
  return type_of(g, anchor.inputs[1]).rank() > 1 ? type_of(g, anchor.outputs[0]).rank() - 1 : -1;
}

/// Whether a tail takes an operand that is spread so over the anchor's result: a library's epilogue
/// one value, one a channel or one an element; `generated`: any.
bool epilogue_operand(const Type& r, const Type& y, int channel, bool generated) {
  if (!r.shape || !y.shape || r.rank() > y.rank()) return false;
  if (broadcast_of(*r.shape, *y.shape, channel) != Broadcast::other) return true;
  const int missing = y.rank() - r.rank();
  for (int k = 0; k < r.rank(); ++k)
    if (const Dim& d = (*r.shape)[k]; !(d == Dim(1)) && !(d == (*y.shape)[k + missing]))
      return false;
  return generated;
}

/// Images lie channels-last; a computed value of fewer axes that has one value for each of their
/// elements does not.
bool lies_plain(const Graph& g, ValueId v, const Type& y, std::string_view contract) {
  const Type& r = type_of(g, v);
  return contract != "gemm" && !g.constant(v) && r.rank() < y.rank() &&
         broadcast_of(*r.shape, *y.shape, 1) == Broadcast::full;
}

/// The tail as one program must be a sequence of what the library's epilogue does. What the library
/// would leave to a second kernel is no tail: with what stands around it, that kernel may do more.
Accept accepts_tail(const Graph& g, NodeId anchor, std::span<const NodeId> tail,
                    std::string_view contract, const Target& target, const Semantics& ops) {
  if (tail.empty()) return yes();
  const ContractFacts& facts = target.contracts.at(std::string(contract));
  const ValueId from = g.node(anchor).outputs[0];
  const bool any_spread = facts.generated_tail || spreads_any(facts.library);
  if (facts.max_epilogue_ops < static_cast<int>(tail.size()))
    return no(fmt::format("{} operators behind the {}, {} are taken", tail.size(), contract,
                          facts.max_epilogue_ops));
  ValueId last = g.node(tail.back()).outputs[0];
  std::array<ValueId, 1> outputs{last};
  auto region = lower_region(ops, g, tail, outputs);
  if (!region) return no(region.error().reason());
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
    if (r.type.dtype != y.dtype ||
        !epilogue_operand(r.type, y, channel_axis(g, g.node(anchor), contract), any_spread))
      return no(fmt::format("operand {} {} cannot be spread over {} by the library", escape(r.name),
                            str(r.type), str(y)));
    if (lies_plain(g, region->inputs[k], y, contract))
      return no(
          fmt::format("operand {} {} has fewer axes than {}, so that it does not lie channels-last",
                      escape(r.name), str(r.type), str(y)));
  }
  if (result == 0xffffffffu) return no("the tail does not read the result");
  if (operands > facts.max_operands)
    return no(fmt::format("{} operands, {} are taken", operands, facts.max_operands));
  if (facts.generated_tail) return yes();
  const auto steps = to_post_ops(region->program, result, Deviations::all);
  if (!steps)
    return no("the library has no epilogue for " +
              std::string(tail.size() == 1 ? escape(g.node(tail[0]).op) : "this tail"));
  const bool image = y.rank() >= 3;  // windows slide over channels-last images
  return library_takes({&target, contract, &g, anchor, image, *steps, region->inputs});
}

}  // namespace

std::string_view anchored_contract(const Node& n) {
  const Row* row = row_of(n);
  return row ? row->contract : "";
}

std::span<const std::string_view> anchors_of(std::string_view contract) {
  if (const Row* row = row_of(contract)) return row->ops;
  return {};
}

Accept accepts_anchored(const Graph& g, std::span<const NodeId> nodes, NodeId anchor,
                        std::string_view contract, const Target& target, const Semantics& ops) {
  const Row* row = row_of(contract);
  if (!row) return no("there is no contract " + escape(contract));
  auto facts = target.contracts.find(std::string(contract));
  if (facts == target.contracts.end())
    return no(fmt::format("{} has no {} kernels", target.name, contract));
  std::vector<NodeId> tail;
  for (NodeId n : nodes)
    if (n != anchor) tail.push_back(n);
  const Node& a = g.node(anchor);
  if (row_of(a) != row) return no(fmt::format("{} is not a {}", escape(a.op), contract));
  if (!row->any_type)
    if (Accept t = check_type(facts->second, type_of(g, a.inputs[0]), contract, target);
        t.truth != Truth::yes)
      return t;
  if (Accept c = row->check(g, a, facts->second); c.truth != Truth::yes) return c;
  if (!row->tail && !tail.empty()) return no(fmt::format("a {} takes no tail", contract));
  return accepts_tail(g, anchor, tail, contract, target, ops);
}

}  // namespace ferrule
