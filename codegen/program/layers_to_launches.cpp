#include "codegen/program/layers_to_launches.h"

#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "codegen/program/role_formula.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/anchored.h"
#include "engine/contract/attention.h"
#include "engine/contract/library_tail.h"
#include "engine/contract/region_pieces.h"
#include "engine/contract/stages.h"
#include "engine/rule/contract.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/operator_kinds.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

/// Lowers one layer. Body values are translated to the plan's: a body input is the node's input.
class LayerLowering {
 public:
  LayerLowering(const Plan& plan, const Layer& layer, const Semantics& ops, const Target& target,
                const LowerOptions& options)
      : plan_(plan),
        layer_(layer),
        ops_(ops),
        target_(target),
        options_(options),
        node_(plan.graph.node(layer.node)) {
    if (node_.body) outside_ = around_body(node_);
  }

  Result<LoweredLayer> run() {
    const auto said = ops_.contracts() ? ops_.contracts()->find(layer_.contract) : nullptr;
    if (node_.roles) {
      FERRULE_TRY(joint());
    } else if (node_.body && said && !said->stages.empty()) {
      FERRULE_TRY(chain());
    } else if (node_.body && layer_.contract == "copy") {
      FERRULE_TRY(placed());
    } else if (said && said->generated == Generated::rows) {
      FERRULE_TRY(rows());
    } else if (said && said->generated == Generated::boxes) {
      FERRULE_TRY(pointwise());
    } else if (node_.body) {
      FERRULE_TRY(anchored());
    } else {
      FERRULE_TRY(single());
    }
    return std::move(out_);
  }

 private:
  const Graph& graph() const { return node_.body ? *node_.body : plan_.graph; }

  /// The plan's value (or the layer's temporary) for a value of the graph the layer's nodes live
  /// in.
  ValueId outer(ValueId v) const {
    if (!node_.body || !v) return v;
    if (auto it = between_.find(v); it != between_.end()) return it->second;
    auto it = outside_.find(v);
    return it == outside_.end() ? ValueId{} : it->second;
  }

  std::vector<ValueId> outer(const std::vector<ValueId>& vs) const {
    std::vector<ValueId> r;
    for (ValueId v : vs) r.push_back(outer(v));
    return r;
  }

  Launch launch(Launch::Kind kind, Work work, std::string called, NodeId node) const {
    Launch l;
    l.kind = kind;
    l.work = kind == Launch::Kind::library && work == Work::other ? Work::own : work;
    l.called = std::move(called);
    l.graph = &graph();
    l.roles = node_.roles.get();
    l.node = node;
    return l;
  }

  Status add(Launch l) {
    out_.launches.push_back(std::move(l));
    return {};
  }

  /// The nodes of the layer, and what is wanted of them.
  std::pair<std::vector<NodeId>, std::vector<ValueId>> lowered() const {
    if (node_.body) return {node_.body->order(), node_.body->outputs()};
    return {{layer_.node}, {node_.outputs[0]}};
  }

  Status pointwise() {
    const auto [nodes, outputs] = lowered();
    const bool pieces = any_movement(graph(), nodes);
    FERRULE_ASSIGN(LoweredRegion region,
                   required(pieces ? lower_pieces(ops_, graph(), nodes, outputs)
                                   : lower_region(ops_, graph(), nodes, outputs)));
    auto inputs = outer(region.inputs), results = outer(region.outputs);
    return generated(std::move(region), std::move(inputs), std::move(results));
  }

  /// Row operators and their pointwise neighbours: one kernel.
  Status rows() {
    const auto [nodes, outputs] = lowered();
    FERRULE_ASSIGN(RowRegion region, required(lower_rows(ops_, graph(), nodes, outputs)));
    Launch l = launch(Launch::Kind::generated, Work::other, "row_reduce", {});
    for (const RowOperand& o : region.inputs) l.inputs.push_back(outer(o.value));
    for (const RowOperand& o : region.outputs) l.outputs.push_back(outer(o.value));
    l.rows = std::make_shared<const RowRegion>(std::move(region));
    return add(std::move(l));
  }

  Status generated(LoweredRegion region, std::vector<ValueId> inputs,
                   std::vector<ValueId> outputs) {
    Launch l = launch(Launch::Kind::generated, Work::other, "pointwise", {});
    l.inputs = std::move(inputs);
    l.outputs = std::move(outputs);
    l.region = std::move(region);
    return add(std::move(l));
  }

  /// An anchor with a tail: one library call if its epilogue takes all of the tail, else the call
  /// and a generated kernel for the tail (two kernels, and counted as two).
  Status anchored() {
    const Graph& body = *node_.body;
    NodeId anchor;
    std::vector<NodeId> tail;
    for (NodeId id : body.order()) {
      if (!anchor && contract_of(body.node(id), ops_) == layer_.contract)
        anchor = id;
      else
        tail.push_back(id);
    }
    if (!anchor)
      return error(Code::rule_broken, layer_.name, escape(layer_.rule),
                   "made a group without its anchor");
    return anchored(anchor, tail, node_.outputs);
  }

  /// `to`: where the tail's result goes, or the anchor's where there is no tail.
  Status anchored(NodeId anchor, const std::vector<NodeId>& tail, const std::vector<ValueId>& to) {
    const Graph& body = *node_.body;
    const Node& a = body.node(anchor);
    Launch l = launch(Launch::Kind::library, work_of(contract_of(a, ops_), a), a.op.text(), anchor);
    l.inputs = outer(a.inputs);
    if (tail.empty()) {
      l.outputs = to;
      FERRULE_TRY(over_rows(l));
      return add(std::move(l));
    }
    const std::array<ValueId, 1> outputs{body.node(tail.back()).outputs[0]};
    FERRULE_ASSIGN(LoweredRegion region, required(lower_region(ops_, body, tail, outputs)));
    if (epilogue(l, region, a.outputs[0], operators_of(body, tail))) {
      l.outputs = to;
      Launch own = launch(Launch::Kind::generated, Work::other, "pointwise", {});
      for (ValueId v : region.inputs) own.inputs.push_back(v == a.outputs[0] ? to[0] : outer(v));
      own.outputs = to;
      own.region = std::move(region);
      l.tail = std::make_shared<const Launch>(std::move(own));
      return add(std::move(l));
    }
    const ValueId result = temporary(a.outputs[0]);
    l.outputs = {result};
    out_.launches.push_back(std::move(l));
    std::vector<ValueId> inputs;
    for (ValueId v : region.inputs) inputs.push_back(v == a.outputs[0] ? result : outer(v));
    return generated(std::move(region), std::move(inputs), to);
  }

  /// Memory for a value of the body, laid out as the layer's result is.
  ValueId temporary(ValueId v) {
    const ValueId t{kTemporary + static_cast<uint32_t>(out_.temporaries.size())};
    out_.temporaries.push_back({node_.body->value(v).type, plan_.layout(node_.outputs[0])});
    return t;
  }

  /// A movement some or all of whose parts lie where they belong (place rules): a view of those,
  /// and pieces that copy the rest.
  Status placed() {
    const Graph& body = *node_.body;
    const NodeId id = body.order()[0];
    auto lies_in = [&](ValueId part, ValueId whole) {
      auto s = plan_.slices.find(outer(part));
      return s != plan_.slices.end() && s->second.whole == outer(whole);
    };
    const ValueId x = body.input(id, 0), y = body.output(id);
    const bool joined =
        std::ranges::all_of(body.node(id).inputs, [&](ValueId v) { return v && lies_in(v, y); });
    std::vector<ValueId>
        moved;  // results that somebody reads and that are no slices, nor made of them
    for (ValueId v : body.node(id).outputs)
      if (v && outer(v) && !lies_in(v, x) && !joined) moved.push_back(v);
    Launch view = launch(Launch::Kind::view, Work::other, node_.op.text(), id);
    view.inputs = node_.inputs;
    view.outputs = node_.outputs;
    std::set<ValueId> others;
    for (ValueId v : moved) others.insert(outer(v));
    std::erase_if(view.outputs, [&](ValueId v) { return !v || others.contains(v); });
    const std::array<NodeId, 1> one{id};
    LoweredRegion region;
    if (!moved.empty()) {
      FERRULE_ASSIGN(region, required(lower_pieces(ops_, body, one, moved)));
      std::erase_if(region.pieces, [&](const RegionPiece& p) {
        return p.inputs.size() == 1 && lies_in(region.inputs[p.inputs[0].operand], y);
      });
      if (region.pieces.empty()) view.outputs = node_.outputs;
    }
    if (!view.outputs.empty()) out_.launches.push_back(std::move(view));
    if (region.pieces.empty()) return {};
    Launch l = launch(Launch::Kind::copy, Work::other, body.node(id).op.text(), id);
    l.inputs = outer(region.inputs);
    l.outputs = outer(region.outputs);
    l.region = std::move(region);
    return add(std::move(l));
  }

  /// One kernel that reads the whole body.
  Status joint() {
    Launch l = whole();
    for (const auto& [role, formula] : node_.roles->formulas) {
      FERRULE_ASSIGN(l.formulas[role], required(role_formula(ops_, *formula, layer_.name)));
    }
    if (l.work == Work::attention && !options_.strict) return attention(std::move(l));
    return add(std::move(l));
  }
  Launch whole() const {
    Launch l = launch(Launch::Kind::library, work_of(layer_.contract, node_), layer_.contract,
                      node_.body->order()[0]);
    l.inputs = node_.inputs;
    l.outputs = node_.outputs;
    return l;
  }

  /// The same of windows; where the target has none, or a stage's epilogue is not taken (`strict`),
  /// each stage as it would run on its own.
  Status chain() {
    FERRULE_ASSIGN(auto stages, required(read_stages(graph(), graph().order(), ops_)));
    if (target_.facts_of(layer_.contract).takes("staged")) return staged(stages);
    FERRULE_TRY(required(read_epilogues(graph(), stages, ops_)));
    Launch l = whole();
    for (const GroupStage& s : stages)
      for (const PostOp& op : s.post_ops) {
        if (!allows(allowed(), op.deviation)) return staged(stages);
        add_deviation(l, "conv", op, graph().value(s.result).type.dtype);
      }
    return add(std::move(l));
  }

  /// The library does not define the result of a query whose keys are all masked: where the model
  /// makes zeros of it, a kernel behind the library's does, too.
  Status attention(Launch l) {
    const Graph& body = *node_.body;
    const Attention a = attention_of(*node_.roles);
    const ValueId result = body.outputs()[a.y.slot];
    l.deviation = attention_deviation(body, a, target_);
    const bool safe = (a.zero_if_nan || a.zero_if_masked) &&
                      library_attends(body, a, target_).truth == Truth::yes;
    if (safe) l.outputs = {temporary(result)};
    const ValueId attended = l.outputs[0];
    out_.launches.push_back(std::move(l));
    if (!safe) return {};
    return generated(zero_if_nan(body, result), {attended}, node_.outputs);
  }

  static LoweredRegion zero_if_nan(const Graph& body, ValueId v) {
    const DType type = body.value(v).type.dtype;
    ProgramBuilder b;
    const uint32_t x = b.cast(b.input(type), DType::f32);
    b.output(b.cast(b.op(Prim::select, DType::f32,
                         {b.op(Prim::isnan, DType::boolean, {x}), b.constant(DType::f32, 0, 0), x}),
                    type));
    LoweredRegion region;
    region.program = b.take();
    region.inputs = region.outputs = {v};
    return region;
  }

  Status staged(const std::vector<GroupStage>& stages) {
    ValueId from = node_.inputs[0];
    for (const GroupStage& s : stages) {
      const ValueId to = &s == &stages.back() ? node_.outputs[0] : temporary(s.result);
      if (s.conversion && out_.temporaries.size() == 1)
        out_.temporaries[0].layout = plan_.layout(from);
      FERRULE_TRY(s.conversion ? generated(lower_conversion(graph(), s.node), {from}, {to})
                               : anchored(s.node, s.tail, {to}));
      between_[s.result] = from = to;
    }
    return {};
  }

  Deviations allowed() const {
    return options_.strict     ? Deviations::none
           : options_.keep_nan ? Deviations::rounding
                               : Deviations::all;
  }

  static void add_deviation(Launch& l, std::string_view what) {
    if (!what.empty() && l.deviation.find(what) == std::string::npos)
      l.deviation += fmt::format("{}{}", l.deviation.empty() ? "" : "; ", what);
  }

  void add_deviation(Launch& l, std::string_view contract, const PostOp& op, DType type) const {
    const Deviation::Nan nan = nan_in(target_, contract, op);
    if (nan == Deviation::Nan::kept || options_.fast_math || !target_.notices_nan)
      add_deviation(l, text(nan));
    else
      l.hides_nan = true;
    add_deviation(l, op.deviation.rounding);
    add_deviation(l, infinity_in(target_, contract, op, type));
  }

  /// Why the tail is no epilogue, and what would make it one.
  std::string no_epilogue(const std::string& operators, bool otherwise) const {
    if (!otherwise)
      return fmt::format("the library has no epilogue for {}: a generated kernel computes it",
                         operators);
    return options_.strict
               ? "--strict leaves out the library's epilogue for " + operators
               : "the library's epilogue loses NaN in " + operators + "; --fast-math takes it";
  }

  bool epilogue(Launch& l, const LoweredRegion& region, ValueId result,
                const std::string& operators) {
    auto at = std::find(region.inputs.begin(), region.inputs.end(), result);
    l.tail_apart = no_epilogue(operators, false);
    if (region.outputs.size() != 1 || at == region.inputs.end()) return false;
    const auto own = static_cast<uint32_t>(at - region.inputs.begin());
    auto ops = to_post_ops(region.program, own, allowed());
    l.tail_apart = no_epilogue(
        operators, ops || to_post_ops(region.program, own, Deviations::all).has_value());
    if (!ops) return false;
    const std::string contract = contract_of(graph().node(l.node), ops_);
    const DType type = graph().value(result).type.dtype;
    const std::string_view zero = zero_in(target_, contract, *ops);
    if (options_.strict && (!zero.empty() || std::ranges::any_of(*ops, [&](const PostOp& op) {
          return !infinity_in(target_, contract, op, type).empty();
        })))
      return false;
    const bool last = plan_.layout(node_.outputs[0]) == Layout::channels_last;
    if (Accept a = library_takes({&target_, contract, &graph(), l.node, last, *ops, region.inputs});
        a.truth != Truth::yes) {
      l.tail_apart = a.reason;
      return false;
    }
    l.tail_apart.clear();
    add_deviation(l, zero);
    for (PostOp& op : *ops) {
      add_deviation(l, contract, op, type);
      if (op.operand < 0) continue;
      l.inputs.push_back(outer(region.inputs[static_cast<size_t>(op.operand)]));
      op.operand = static_cast<int>(l.inputs.size()) - 1;
    }
    l.post_ops = std::move(*ops);
    return true;
  }

  Status single() {
    Launch::Kind kind = Launch::Kind::library;
    Work work = work_of(layer_.contract, node_);
    if (layer_.contract == "interpret") kind = Launch::Kind::interpret;
    if (layer_.contract == "copy") kind = moves_nothing() ? Launch::Kind::view : Launch::Kind::copy;
    if (layer_.contract == "view") kind = Launch::Kind::view;
    Launch l = launch(kind, work, node_.op.text(), layer_.node);
    l.inputs = node_.inputs;
    // Nested graphs read them: they have to be there, and not to go before.
    for (ValueId v : captures(node_)) l.inputs.push_back(v);
    l.outputs = node_.outputs;
    if (kind == Launch::Kind::copy) copy_pieces(l);
    FERRULE_TRY(over_rows(l));
    return add(std::move(l));
  }

  /// The pooling of whole images may be a mean or maximum over rows, whose kernels share a long row
  /// out.
  Status over_rows(Launch& l) const {
    if (l.kind != Launch::Kind::library || !target_.facts_of("pool").images_as_rows) return {};
    const Node& n = l.graph->node(l.node);
    const auto pooling = pooling_of(n);
    if (!pooling || !(pooling->global || window_is_image(*l.graph, n)) || n.outputs.size() != 1)
      return {};
    Graph g;
    const ValueId x = g.add_input("x", l.graph->value(n.inputs[0]).type);
    Node reduce = image_reduction(g, *pooling, x);
    const std::array<ValueId, 1> y{g.add_value("y", l.graph->value(n.outputs[0]).type)};
    reduce.outputs = {y[0]};
    const std::array<NodeId, 1> node{g.add_node(std::move(reduce))};
    FERRULE_ASSIGN(RowRegion region, required(lower_rows(ops_, g, node, y)));
    l.inputs = {l.inputs[0]};
    l.rows = std::make_shared<const RowRegion>(std::move(region));
    return {};
  }

  /// Whether there is one window, and it is the image.
  static bool window_is_image(const Graph& g, const Node& n) {
    const auto &x = g.value(n.inputs[0]).type.shape, &y = g.value(n.outputs[0]).type.shape;
    const std::vector<int64_t> window = n.attrs.ints("kernel_shape");
    auto is_not = [](int64_t wanted) { return [wanted](int64_t v) { return v != wanted; }; };
    if (!x || !y || x->size() != window.size() + 2 || y->size() != x->size()) return false;
    const std::string pads = n.attrs.s("auto_pad", "NOTSET");
    if ((pads != "NOTSET" && pads != "VALID") ||
        std::ranges::any_of(n.attrs.ints("pads"), is_not(0)) ||
        std::ranges::any_of(n.attrs.ints("dilations"), is_not(1)))
      return false;
    for (size_t k = 0; k < window.size(); ++k)
      if (!((*x)[k + 2] == Dim(window[k])) || !((*y)[k + 2] == Dim(1))) return false;
    return true;
  }

  /// A copy as pieces, where its sizes and parameters are known and the pieces few; else it stays
  /// as it is.
  void copy_pieces(Launch& l) const {
    const DType t = plan_.graph.value(node_.inputs[0]).type.dtype;
    if (!is_movement(node_) || !(is_float(t) || is_int(t) || t == DType::boolean) ||
        size_bits(t) < 8)
      return;
    std::vector<ValueId> outputs;
    for (ValueId v : node_.outputs)
      if (v) outputs.push_back(v);
    const std::array<NodeId, 1> one{layer_.node};
    auto region = lower_pieces(ops_, plan_.graph, one, outputs);
    if (!region) return;
    l.inputs = region->inputs;
    l.outputs = region->outputs;
    l.region = std::move(*region);
  }

  /// A transpose from one layout to the other is the same memory; one that only moves axes of size
  /// 1, too.
  bool moves_nothing() const {
    auto perm = node_.attrs.ints("perm");
    const Type& x = plan_.graph.value(node_.inputs[0]).type;
    if (perm.empty() || !x.shape || !node_.domain.empty()) return false;
    if (plan_.graph.constant(node_.inputs[0])) return false;
    if (plan_.slices.contains(node_.outputs[0]))
      return false;  // its place is in another value, where it must be written
    if (plan_.slices.contains(
            node_.inputs[0]))  // a slice with gaps is not the memory of a value without
      if (const auto at = strided_view(plan_, node_.inputs[0]); !at || !at->dense) return false;
    std::vector<size_t> from = memory_order(*x.shape, plan_.layout(node_.inputs[0]));
    const Type& y = plan_.graph.value(node_.outputs[0]).type;
    std::vector<size_t> to = memory_order(*y.shape, plan_.layout(node_.outputs[0]));
    for (size_t& axis : to) axis = static_cast<size_t>(perm[axis]);
    return from == to;
  }

  /// Axes from outermost to innermost in memory, those of size 1 left out.
  static std::vector<size_t> memory_order(const Shape& s, Layout layout) {
    std::vector<size_t> order;
    bool last = layout == Layout::channels_last && s.size() >= 3;
    for (size_t k = 0; k < s.size(); ++k)
      if (!(last && k == 1) && !(s[k] == Dim(1))) order.push_back(k);
    if (last && !(s[1] == Dim(1))) order.push_back(1);
    return order;
  }

  const Plan& plan_;
  const Layer& layer_;
  const Semantics& ops_;
  const Target& target_;
  const LowerOptions& options_;
  const Node& node_;
  std::map<ValueId, ValueId> outside_;  ///< inputs and outputs of the body
  std::map<ValueId, ValueId> between_;  ///< values of the body that a launch leaves to the next
  LoweredLayer out_;
};

}  // namespace

int LoweredLayer::kernels() const {
  int n = 0;
  for (const Launch& l : launches) n += l.kind == Launch::Kind::view ? 0 : l.passes;
  return n;
}

bool Lowered::notices_nan() const {
  return std::ranges::any_of(layers, [](const LoweredLayer& l) {
    return std::ranges::any_of(l.launches, &Launch::hides_nan);
  });
}

Result<Lowered> lower_layers(const Plan& plan, const Semantics& ops, const Target& target,
                             const LowerOptions& options) {
  Lowered lowered;
  lowered.strict = options.strict;
  for (const Layer& layer : plan.layers) {
    FERRULE_ASSIGN(LoweredLayer l, LayerLowering(plan, layer, ops, target, options).run());
    lowered.layers.push_back(std::move(l));
  }
  return lowered;
}

}  // namespace ferrule
