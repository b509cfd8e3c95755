#include "engine/plan/plan.h"

#include <map>

#include "engine/base/applicable.h"
#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "engine/plan/choose_layouts.h"

namespace ferrule {
namespace {

/// What the layouts say, written down: a layer for each node, and one for each reorder in front of
/// its first reader.
class PlanWriter {
 public:
  PlanWriter(Plan& plan, Layouts& layouts) : plan_(plan), g_(plan.graph), layouts_(layouts) {
    for (size_t k = 0; k < g_.outputs().size(); ++k) outputs_[g_.outputs()[k]].push_back(k);
  }

  void run() {
    auto next = layouts_.reorders.begin();
    auto reorders_before = [&](NodeId reader) {
      for (; next != layouts_.reorders.end() && next->before == reader; ++next) reorder(*next);
    };
    for (NodeId id : g_.order()) {
      reorders_before(id);
      const Node& n = g_.node(id);
      Layer layer;
      layer.name = n.name;
      layer.contract = layouts_.contract[id.index];
      // Control flow runs step by step where its graphs could be planned.
      if (!n.subgraphs.empty() && !plan_.nested.contains(id)) layer.contract = "interpret";
      layer.node = id;
      layer.nodes = n.origins;
      layer.rule = n.rule;
      plan_.layers.push_back(std::move(layer));
    }
    reorders_before({});
  }

 private:
  void reorder(const Layouts::Reorder& r) {
    const std::string made = g_.value(r.value).name;
    // The output keeps its name; what the kernel writes gets another.
    if (r.output) g_.rename(r.value, g_.fresh_name(made + "." + std::string(name(r.from()))));
    const std::string& from = g_.value(r.value).name;
    const ValueId out =
        g_.add_value(g_.fresh_name(from + "." + std::string(name(r.to))), g_.value(r.value).type);
    Node n = reorder_node();
    n.name = g_.fresh_name("reorder(" + from + ")");
    n.inputs = {r.value};
    n.outputs = {out};
    const NodeId id = g_.add_node(std::move(n));
    for (const Use& u : r.readers) g_.set_input(u.node, static_cast<size_t>(u.slot), out);
    if (r.output) {
      for (size_t k : outputs_[r.value]) g_.set_output(k, out);
      g_.rename(out, made);
    }
    layouts_.of.resize(g_.value_slots(), r.to);
    layouts_.copy.resize(g_.value_slots(), Layouts::kNone);
    Layer layer;
    layer.name = g_.node(id).name;
    layer.contract = "copy";
    layer.node = id;
    layer.reorder_from = r.value;
    layer.reorder_to = out;
    plan_.layers.push_back(std::move(layer));
  }

  Plan& plan_;
  Graph& g_;
  Layouts& layouts_;
  std::map<ValueId, std::vector<size_t>> outputs_;  // where in the graph's outputs each stands
};

}  // namespace

std::optional<StridedView> strided_view(const Plan& plan, ValueId v) {
  return strided_view(plan.graph, plan.layouts, plan.slices, v);
}

Result<Plan> make_plan(Graph fused, const Target& target, const Semantics& ops,
                       NestedGraphs nested) {
  Plan plan;
  plan.graph = std::move(fused);
  plan.target = target.name;
  FERRULE_TRY(plan.graph.sort());
  for (auto& [node, graphs] : nested)
    for (NestedGraph& n : graphs) {
      FERRULE_ASSIGN(Plan inner, make_plan(std::move(n.graph), target, ops, std::move(n.nested)));
      plan.nested[node].push_back({std::move(n.attribute), std::make_shared<Plan>(std::move(inner)),
                                   std::move(n.captured)});
    }
  Layouts layouts = layouts_of(plan.graph, target, ops);
  PlanWriter(plan, layouts).run();
  FERRULE_TRY(plan.graph.sort());
  plan.slices = read_slices(plan.graph, layouts, ops);
  plan.layouts = std::move(layouts.of);
  return plan;
}

namespace {

void lacking(const Graph& g, NodeId id, const Semantics& ops, ErrorOfEach& all) {
  const Node& n = g.node(id);
  if (!interpretable(n, ops)) {
    const std::string op = n.domain.empty() ? n.op.text() : n.domain + "::" + n.op.text();
    all.add(op, [&] {
      return required(
          Refusal(not_applicable(fmt::format("node \"{}\"", escape(n.name)),
                                 fmt::format("{} (opset {})", escape(op), n.since_opset),
                                 "neither a kernel nor the interpreter knows it")
                      .value()));
    });
  }
  for (const auto& [_, sub] : n.subgraphs)
    for (NodeId inner : sub->order()) lacking(*sub, inner, ops, all);
}

}  // namespace

Status runnable(const Plan& plan, const Semantics& ops) {
  ErrorOfEach all;
  for (const Layer& l : plan.layers)
    if (l.node && !l.reorder_from) lacking(plan.graph, l.node, ops, all);
  return all.status();
}

}  // namespace ferrule
