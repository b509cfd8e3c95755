#include "runtime/answers/explain.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <variant>

#include "engine/contract/roles.h"
#include "engine/graph/open_sizes.h"
#include "engine/why/near_misses.h"

namespace ferrule {

using nlohmann::json;

Result<std::unique_ptr<Explained>> explain(Imported imported,
                                           std::shared_ptr<const Knowledge> knowledge,
                                           const EngineOptions& options,
                                           const LowerOptions& lowering) {
  auto out = std::make_unique<Explained>();
  Explained& e = *out;
  e.knowledge = std::move(knowledge);
  e.model_nodes = imported.graph.live_nodes();
  FERRULE_ASSIGN(e.fused, fuse(std::move(imported.graph), *e.knowledge, options));
  e.fused.notes.insert(e.fused.notes.begin(), imported.notes.begin(), imported.notes.end());
  FERRULE_ASSIGN(e.plan, make_plan(std::move(e.fused.graph), e.knowledge->target, e.knowledge->ops,
                                   std::move(e.fused.nested)));
  FERRULE_ASSIGN(e.lowered, lower(e.plan, e.knowledge->ops, e.knowledge->target, lowering));
  return out;
}

std::string tail_apart(const LoweredLayer& layer) {
  std::string out;
  for (const Launch& l : layer.launches)
    if (!l.tail_apart.empty()) out += (out.empty() ? "" : "; ") + l.tail_apart;
  return out;
}

json phase_to_json(const std::string& line) {
  size_t colon = line.rfind(": ");
  int layers = colon == std::string::npos ? 0 : std::atoi(line.c_str() + colon + 2);
  return {{"name", line.substr(0, colon)}, {"layers", layers}};
}

int declined(const Explained& e, const OverrideNote& note) {
  return static_cast<int>(std::ranges::count_if(e.fused.near_misses, [&](const Rejection& r) {
    return r.id == note.condition && r.why.find("(" + note.from + ")") != r.why.npos;
  }));
}

std::string operand_text(const Graph& g, const Node& n, const RoleTensor& t) {
  const ValueId v = t.result ? n.outputs[t.slot] : n.inputs[t.slot];
  return escape(g.value(v).name, 100) + text(t.axes);
}

std::string formula_text(const Graph& f) {
  std::string out;
  for (NodeId n : f.order()) out += (out.empty() ? "" : " + ") + escape(f.node(n).name, 100);
  return out;
}

std::string sizes_text(const Explained& e) {
  const Graph& g = e.plan.graph;
  std::string fixed;
  for (ValueId v : g.inputs()) {
    const Value& value = g.value(v);
    if (value.constant || !value.type.shape || !constant_shape(*value.type.shape)) continue;
    std::string dims;
    for (const Dim& d : *value.type.shape) dims += (dims.empty() ? "" : "x") + d.str();
    fixed += fmt::format(" {}:{}", escape(value.name), dims.empty() ? "scalar" : dims);
  }
  const std::string open = open_sizes(g);
  if (open.empty()) return fixed.empty() ? "" : "for" + fixed;
  return fmt::format("for any {} ({} plans for one size; a run plans for its own)", open,
                     shapes_flag(g));
}

namespace {

/// The operators that a layer computes, as rewriting left them: "Conv", "com.microsoft::Gelu".
void write_operators(const Graph& g, NodeId id, JsonStream& out) {
  const Node& n = g.node(id);
  if (!n.body)
    return out.text(escape(
        n.domain.empty() || n.domain == "ferrule" ? n.op.text() : n.domain + "::" + n.op.text(),
        4096));
  for (NodeId inner : n.body->order()) write_operators(*n.body, inner, out);
}

void write_roles(const Graph& g, const Node& n, JsonStream& out) {
  std::map<std::string, std::variant<double, std::string>> all;
  for (const auto& [name, value] : n.roles->numbers) all[name] = value;
  for (const auto& [name, t] : n.roles->tensors) all[name] = operand_text(g, n, t);
  for (const auto& [name, f] : n.roles->formulas) all[name] = formula_text(*f);
  out.begin_object();
  for (const auto& [name, value] : all) {
    out.key(name);
    if (const double* number = std::get_if<double>(&value))
      std::isfinite(*number) ? out.tree(*number) : out.text(fmt::format("{}", *number));
    else if (const std::string* operand = std::get_if<std::string>(&value))
      out.text(*operand);
  }
  out.end_object();
}

/// The layers of the graphs that a layer runs step by step, in short.
void write_nested(const std::vector<NestedPlan>& graphs, JsonStream& out) {
  out.begin_array();
  for (const NestedPlan& n : graphs)
    for (const Layer& l : n.plan->layers) {
      out.begin_object();
      out.key("contract"), out.text(l.contract);
      out.key("graph"), out.text(escape(n.attribute));
      out.key("kernels"), out.number(l.kernels);
      out.key("name"), out.text(escape(l.name, 4096));
      if (const auto own = n.plan->nested.find(l.node); own != n.plan->nested.end())
        out.key("nested"), write_nested(own->second, out);
      out.end_object();
    }
  out.end_array();
}

void write_layer(const Explained& e, size_t layer, JsonStream& out) {
  const Layer& l = e.plan.layers[layer];
  out.begin_object();
  out.key("contract"), out.text(l.contract);
  out.key("kernels"), out.number(l.kernels);
  out.key("name"), out.text(escape(l.name, 4096));
  if (const auto graphs = e.plan.nested.find(l.node); graphs != e.plan.nested.end())
    out.key("nested"), write_nested(graphs->second, out);
  out.key("nodes"), out.begin_array();
  for (const std::string& n : l.nodes) out.text(escape(n, 4096));
  out.end_array();
  if (!l.numerics.empty()) out.key("numerics"), out.text(l.numerics);
  out.key("operators"), out.begin_array();
  if (l.node) write_operators(e.plan.graph, l.node, out);
  out.end_array();
  const Node* n = l.node ? &e.plan.graph.node(l.node) : nullptr;
  if (n && n->roles) out.key("roles"), write_roles(e.plan.graph, *n, out);
  out.key("rule");
  l.rule.empty() ? out.null() : out.text(l.rule);
  if (const std::string why = tail_apart(e.lowered.layers[layer]); !why.empty())
    out.key("tail_apart"), out.text(escape(why, 400));
  out.end_object();
}

void write_step(const Step& s, JsonStream& out) {
  out.begin_object();
  out.key("kind"), out.text(s.kind);
  out.key("phase"), out.text(s.phase);
  out.key("rule"), out.text(s.rule);
  out.key("text"), out.text(escape(s.text, 4096));
  out.end_object();
}

void write_near_misses(const Explained& e, JsonStream& out) {
  out.begin_array();
  for (const why::NearMiss& m : why::near_misses(e.fused, e.plan.graph)) {
    const Rejection& r = *m.first;
    out.begin_object();
    out.key("bytes"), out.number(m.bytes);
    out.key("condition"), out.text(r.id);
    out.key("detail"), out.text(escape(r.detail, 4096));
    out.key("hint"), out.text(escape(r.hint, 4096));
    out.key("nodes"), out.begin_array();
    for (const std::string& n : m.nodes) out.text(escape(n, 4096));
    out.end_array();
    out.key("rule"), out.text(r.rule->id);
    out.key("undecided"), out.tree(r.truth == Truth::unknown);
    out.key("why"), out.text(escape(r.why, 4096));
    out.end_object();
  }
  out.end_array();
}

/// What `run` would refuse, all of it.
json cannot_run_json(const Explained& e) {
  json out = json::array();
  const Status s = runnable(e.plan, e.knowledge->ops);
  if (s) return out;
  auto add = [&](const Error& x) { out.push_back({{"place", x.place}, {"message", x.message}}); };
  add(s.error());
  for (const Error& x : s.error().more) add(x);
  return out;
}

}  // namespace

void write_explained(const Explained& e, const json& ranges, JsonStream& out) {
  json phases = json::array();
  for (const std::string& p : e.fused.journal.phases) phases.push_back(phase_to_json(p));
  json overrides = json::array();
  for (const OverrideNote& n :
       override_notes(e.knowledge->rules, e.knowledge->overrides, e.knowledge->target))
    overrides.push_back(
        {{"text", escape(n.text, 4096)}, {"condition", n.condition}, {"declined", declined(e, n)}});
  out.begin_object();
  out.key("cannot_run"), out.tree(cannot_run_json(e));
  out.key("layers"), out.begin_array();
  for (size_t k = 0; k < e.plan.layers.size(); ++k) write_layer(e, k, out);
  out.end_array();
  out.key("model_nodes"), out.number(static_cast<int64_t>(e.model_nodes));
  out.key("near_misses"), write_near_misses(e, out);
  out.key("notes"), out.tree(e.fused.notes);
  out.key("overrides"), out.tree(overrides);
  out.key("phases"), out.tree(phases);
  out.key("profile"), out.text(e.profile());
  if (!ranges.is_null()) out.key("ranges"), out.tree(ranges);
  out.key("rules"), out.tree(e.fused.journal.fired());
  out.key("schema_version"), out.tree(kSchemaVersion);
  out.key("sizes"), out.text(sizes_text(e));
  out.key("steps"), out.begin_array();
  for (const Step& s : e.fused.journal.steps) write_step(s, out);
  out.end_array();
  out.key("target"), out.text(e.plan.target);
  out.key("unproved"), out.tree(e.knowledge->unproved);
  out.key("warnings"), out.tree(e.fused.warnings);
  out.end_object();
}

}  // namespace ferrule
