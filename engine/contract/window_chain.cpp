#include "engine/contract/window_chain.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/contract/anchored.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {

using answer::no, answer::unknown, answer::yes;

namespace {

class TileReader {
 public:
  TileReader(const Graph& g, const Semantics& ops) : g_(g), ops_(ops) {}

  Applicable<std::vector<WindowStage>> run(std::span<const NodeId> nodes) {
    for (NodeId id : nodes) {
      if (slides(g_.node(id))) {
        if (!stages_.empty()) {
          FERRULE_TRY(finish());
          if (g_.node(id).inputs[0] != stages_.back().result)
            return refuse(id, "does not slide over the result before it");
        }
        stages_.push_back({id, {}, g_.node(id).outputs[0], {}, {}});
      } else if (stages_.empty()) {
        return refuse(id, "stands in front of the first window");
      } else {
        stages_.back().tail.push_back(id);
      }
    }
    if (stages_.size() != 2)
      return refuse(nodes.back(), fmt::format("ends {} windows, not two", stages_.size()));
    FERRULE_TRY(finish());
    return std::move(stages_);
  }

 private:
  tl::unexpected<NotApplicable> refuse(NodeId n, std::string why) const {
    return not_applicable(escape(g_.node(n).name), "a chain of windows",
                          fmt::format("{} {}", g_.node(n).op.text(), why));
  }

  /// The tail of the last stage as an epilogue.
  Applicable<> finish() {
    WindowStage& s = stages_.back();
    if (s.tail.empty()) return {};
    const ValueId from = s.result;
    s.result = g_.node(s.tail.back()).outputs[0];
    const std::array<ValueId, 1> outputs{s.result};
    FERRULE_ASSIGN(LoweredRegion region, lower_region(ops_, g_, s.tail, outputs));
    const auto at = std::ranges::find(region.inputs, from);
    if (at == region.inputs.end())
      return refuse(s.tail[0], "does not read the window in front of it");
    auto ops = to_post_ops(region.program, static_cast<uint32_t>(at - region.inputs.begin()),
                           Deviations::all);
    if (!ops) return refuse(s.tail[0], "is not done in a library's epilogue");
    s.post_ops = std::move(*ops);
    s.operands = region.inputs;
    return {};
  }

  const Graph& g_;
  const Semantics& ops_;
  std::vector<WindowStage> stages_;
};

const Type& tile_type(const Graph& g, ValueId v) { return g.value(v).type; }

/// Element types that the contract takes, the same in front, between and behind; images of two
/// spatial axes.
Accept check_types(const Graph& g, const std::vector<WindowStage>& stages,
                   std::string_view contract, const Target& target) {
  const auto facts = target.contracts.find(std::string(contract));
  if (facts == target.contracts.end())
    return no(fmt::format("{} has no {} kernels", target.name, contract));
  const ValueId x = g.node(stages[0].anchor).inputs[0];
  const DType t = tile_type(g, x).dtype;
  if (t == DType::undefined) return unknown("element type");
  if (std::ranges::find(facts->second.types, t) == facts->second.types.end())
    return no(fmt::format("{} has no {} kernel for {}", target.name, contract, name(t)));
  for (ValueId v : {x, stages[0].result, stages[1].result}) {
    const Type& type = tile_type(g, v);
    if (type.dtype != t)
      return no(
          fmt::format("{} is {}, not {}", escape(g.value(v).name), name(type.dtype), name(t)));
    if (!type.shape) return unknown(fmt::format("rank of {}", escape(g.value(v).name)));
    if (type.rank() != 4)
      return no(fmt::format("rank {}, tiles are rows of images (rank 4)", type.rank()));
  }
  return yes();
}

/// A size of a convolution's constant weights; 0 where there is none.
int64_t weights_dim(const Graph& g, const Node& n, size_t axis) {
  const Weighted* kind = weighted(n);
  const Tensor* w =
      kind && kind->slot < n.inputs.size() ? g.constant(n.inputs[kind->slot]) : nullptr;
  return w && axis < w->dims().size() ? w->dims()[axis] : 0;
}

/// A stage on its own, under the contract of its anchor.
Accept check_stage(const Graph& g, const WindowStage& s, std::string_view contract,
                   const Target& target, const Semantics& ops) {
  std::vector<NodeId> nodes{s.anchor};
  nodes.insert(nodes.end(), s.tail.begin(), s.tail.end());
  return accepts_anchored(g, nodes, s.anchor, contract, target, ops);
}

/// Strips have rows of their own; a constant that differs between rows would have to be cut as
/// well.
Accept check_operands(const Graph& g, const std::vector<WindowStage>& stages) {
  for (const WindowStage& s : stages)
    for (ValueId v : s.operands) {
      const Tensor* t = g.constant(v);
      const size_t rank = t ? t->dims().size() : 0;
      if (rank >= 2 && t->dims()[rank - 2] != 1)
        return no(fmt::format("the constant {} differs from row to row", escape(g.value(v).name)));
    }
  return yes();
}

/// Sizes, strides and pads along the rows, as far as they are known.
struct Rows {
  int64_t kernel = 1, stride = 1, reach = 1, pad_begin = 0, pad_end = 0;
};
std::optional<Rows> rows_of(const Graph& g, const Node& n) {
  std::vector<int64_t> kernel = n.attrs.ints("kernel_shape");
  if (kernel.empty()) kernel = {weights_dim(g, n, 2), weights_dim(g, n, 3)};
  if (kernel.size() != 2 || kernel[0] < 1) return std::nullopt;
  Rows r;
  auto first = [&](std::string_view key) {
    auto v = n.attrs.ints(key);
    return v.empty() ? int64_t{1} : v[0];
  };
  r.kernel = kernel[0];
  r.stride = first("strides");
  r.reach = (r.kernel - 1) * first("dilations") + 1;
  const Shape& x = *tile_type(g, n.inputs[0]).shape;
  auto pads = resolved_pads(n, Shape(x.begin() + 2, x.end()), kernel);
  if (!pads) return std::nullopt;
  r.pad_begin = (*pads)[0];
  r.pad_end = (*pads)[2];
  return r;
}

/// A strip needs some real row to work on, and its rows between the stages must stay in the cache,
/// but where the stages are executed one by one.
Accept check_rows(const Graph& g, const std::vector<WindowStage>& stages, std::string_view contract,
                  const Target& target) {
  const Node &first = g.node(stages[0].anchor), &second = g.node(stages[1].anchor);
  const auto a = rows_of(g, first), b = rows_of(g, second);
  if (!a) return unknown(fmt::format("the pads of {}", escape(first.name)));
  if (!b) return unknown(fmt::format("the pads of {}", escape(second.name)));
  if (a->pad_begin >= a->reach || a->pad_end >= a->reach)
    return no(fmt::format("some windows of {} lie in the padding alone", escape(first.name)));
  const Shape &t = *tile_type(g, stages[0].result).shape,
              &y = *tile_type(g, stages[1].result).shape;
  const auto height = t[2].constant(), out = y[2].constant();
  if (b->pad_begin >= b->kernel ||
      (height && out && (*out - 1) * b->stride - b->pad_begin >= *height))
    return no(fmt::format("some windows of {} lie in the padding alone", escape(second.name)));
  const auto channels = t[1].constant(), width = t[3].constant();
  if (!channels || !width) return yes();
  const int64_t bytes =
      b->kernel * *channels * *width * size_bytes(tile_type(g, stages[0].result).dtype, 1);
  if (!target.facts_of(contract).staged && bytes > target.l2_bytes / 2)
    return no(fmt::format("{} rows of {} are {} bytes, more than half of the L2 cache ({} bytes)",
                          b->kernel, escape(g.value(stages[0].result).name), bytes,
                          target.l2_bytes));
  return yes();
}

/// One filter a channel.
Accept check_depthwise(const Graph& g, const Node& n) {
  const auto channels = (*tile_type(g, n.inputs[0]).shape)[1].constant();
  if (!channels)
    return unknown(fmt::format("the channels of {}", escape(g.value(n.inputs[0]).name)));
  if (n.attrs.i("group", 1) != *channels || weights_dim(g, n, 0) != *channels)
    return no(fmt::format("{} has {} groups and {} filters for {} channels", escape(n.name),
                          n.attrs.i("group", 1), weights_dim(g, n, 0), *channels));
  return yes();
}

/// A product of channels and filters, pixel by pixel.
Accept check_pointwise(const Graph& g, const Node& n) {
  const auto strides = n.attrs.ints("strides"), pads = n.attrs.ints("pads");
  const bool dense = std::ranges::all_of(strides, [](int64_t s) { return s == 1; }) &&
                     std::ranges::all_of(pads, [](int64_t p) { return p == 0; });
  if (n.attrs.i("group", 1) != 1 || weights_dim(g, n, 2) != 1 || weights_dim(g, n, 3) != 1 ||
      !dense)
    return no(fmt::format("{} is not a 1x1 convolution without groups, strides and pads",
                          escape(n.name)));
  return yes();
}

}  // namespace

Applicable<std::vector<WindowStage>> read_window_chain(const Graph& g,
                                                       std::span<const NodeId> nodes,
                                                       const Semantics& ops) {
  return TileReader(g, ops).run(nodes);
}

Accept accepts_conv_pool(const Graph& g, std::span<const NodeId> nodes, const Target& target,
                         const Semantics& ops) {
  auto stages = read_window_chain(g, nodes, ops);
  if (!stages) return no(stages.error().reason());
  const WindowStage &conv = (*stages)[0], &pool = (*stages)[1];
  if (!pool.tail.empty()) return no("something follows the pooling");
  for (const Accept& a :
       {check_types(g, *stages, "conv_pool", target), check_stage(g, conv, "conv", target, ops),
        check_stage(g, pool, "pool", target, ops)})
    if (a.truth != Truth::yes) return a;
  if (Accept a = check_operands(g, *stages); a.truth != Truth::yes) return a;
  return check_rows(g, *stages, "conv_pool", target);
}

Accept accepts_depthwise_pointwise(const Graph& g, std::span<const NodeId> nodes,
                                   const Target& target, const Semantics& ops) {
  auto stages = read_window_chain(g, nodes, ops);
  if (!stages) return no(stages.error().reason());
  if (Accept a = check_types(g, *stages, "depthwise_pointwise", target); a.truth != Truth::yes)
    return a;
  for (const WindowStage& s : *stages) {
    const Node& n = g.node(s.anchor);
    if (!weights_dim(g, n, 0))
      return no(fmt::format("the weights of {} are not constant", escape(n.name)));
    const bool quantized = weighted(n)->slot != 1;
    if (quantized && !s.tail.empty()) return no("something follows a quantized convolution");
    if (quantized) continue;
    if (Accept a = check_stage(g, s, "conv", target, ops); a.truth != Truth::yes) return a;
  }
  if (Accept a = check_depthwise(g, g.node((*stages)[0].anchor)); a.truth != Truth::yes) return a;
  if (Accept a = check_pointwise(g, g.node((*stages)[1].anchor)); a.truth != Truth::yes) return a;
  if (Accept a = check_operands(g, *stages); a.truth != Truth::yes) return a;
  return check_rows(g, *stages, "depthwise_pointwise", target);
}

}  // namespace ferrule
