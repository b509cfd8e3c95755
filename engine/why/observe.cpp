// The model's way through the pipeline, kept, and what became of each of its nodes.
#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/base/suggest.h"
#include "engine/rule/text.h"
#include "engine/why/inquiry.h"

namespace ferrule::why {
namespace {

/// Names of the nodes of nested graphs, with the node of the model that holds them.
void nested_names(const Graph& g, const std::string& owner,
                  std::map<std::string, std::pair<std::string, std::string>>& out) {
  for (NodeId n : g.order())
    for (const auto& [_, sub] : g.node(n).subgraphs) {
      const std::string& top = owner.empty() ? g.node(n).name : owner;
      for (NodeId inner : sub->order())
        out.try_emplace(sub->node(inner).name, sub->node(inner).op.text(), top);
      nested_names(*sub, top, out);
    }
}

/// "step 3"
std::string step_text(size_t k) { return fmt::format("step {}", k + 1); }

std::string with_op(const Outcome& f) {
  return f.op.empty() ? escape(f.name) : fmt::format("{} ({})", escape(f.name), escape(f.op));
}

/// What a rewrite made of the node, as a sentence; empty: it is still itself.
std::string became(const Outcome& f, const Step& s, size_t k, const RuleSet& rules) {
  const Rule* rule = rules.find(s.rule);
  std::string doc = rule ? rule->doc : "";
  if (doc.ends_with('.')) doc.pop_back();
  const std::string by = fmt::format(" by rule {} ({}: {})", s.rule, step_text(k), doc);
  std::vector<std::string> others;
  for (const std::string& a : s.after)
    if (a != f.name) others.push_back(a);
  const bool taken = contains(s.before, f.name);
  if (s.after.empty()) return taken ? "was removed" + by : "";
  if (others.empty()) return "";
  const bool merged =
      std::ranges::any_of(others, [&](const std::string& a) { return contains(s.before, a); });
  return (!merged             ? "became "
          : s.phase == "fold" ? "was folded into "
                              : "went into ") +
         joined(others) + by;
}

}  // namespace

Result<Observed> observe(Imported imported, std::shared_ptr<const Knowledge> knowledge,
                         EngineOptions options) {
  Observed o;
  o.knowledge = std::move(knowledge);
  o.options = std::move(options);
  o.options.snapshots = o.options.near_misses = true;
  o.constants = std::move(imported.constants);
  o.model = imported.graph.clone();
  FERRULE_ASSIGN(o.fused, fuse(std::move(imported.graph), *o.knowledge, o.options));
  FERRULE_ASSIGN(o.plan, make_plan(std::move(o.fused.graph), o.knowledge->target, o.knowledge->ops,
                                   std::move(o.fused.nested)));
  o.fused.notes.insert(o.fused.notes.begin(), imported.notes.begin(), imported.notes.end());
  return o;
}

Inquiry::State::State(const Observed& observed)
    : o(observed), sizes(observed.plan.graph), attempts(observed) {
  for (NodeId n : o.model->order()) {
    const Node& node = o.model->node(n);
    for (const std::string& name : node.origins)
      if (auto [it, fresh] = ops.try_emplace(name, node.op.text()); fresh)
        names.push_back(name);
      else if (node.origins.size() == 1 && node.name != name)
        it->second += " + " + node.op.text();  // the model's opset defines it so
    if (ops.try_emplace(node.name, node.op.text()).second) names.push_back(node.name);
  }
  nested_names(*o.model, "", nested);
  for (const auto& [name, _] : o.constants)
    if (!ops.contains(name)) names.push_back(name);
  for (const auto& [name, _] : nested)
    if (!ops.contains(name) && !o.constants.contains(name)) names.push_back(name);
  for (size_t k = 0; k < o.plan.layers.size(); ++k)
    for (const std::string& n : o.plan.layers[k].nodes) layers[n].push_back(k);
}

Inquiry::Inquiry(const Observed& observed) : state_(std::make_unique<State>(observed)) {}
Inquiry::~Inquiry() = default;
const std::vector<std::string>& Inquiry::names() const { return state_->names; }

Result<std::string> Inquiry::resolve(std::string_view name) const {
  const State& s = *state_;
  std::string text(name);
  if (s.ops.contains(text) || s.o.constants.contains(text) || s.nested.contains(text)) return text;
  if (ValueId v = s.o.model->find_value(name)) {
    if (const Node* p = s.o.model->producer(v))
      return p->origins.empty() ? p->name : p->origins.front();
    return error(
        Code::usage, escape(name),
        fmt::format("it is {}, not a node",
                    s.o.model->value(v).is_input ? "an input of the model" : "a constant"));
  }
  std::vector<std::string> inside;
  for (const std::string& n : s.names)
    if (n.starts_with(text + "/")) inside.push_back(n);
  if (!inside.empty())
    return error(Code::usage, escape(name),
                 "it is a function or a scope, not one node; its nodes are " + joined(inside));
  Error e;
  e.code = Code::usage;
  e.place = escape(name);
  e.message = "the model has no node and no value of that name";
  e.hint = did_you_mean(name, s.names);
  if (e.hint.empty())
    e.hint = fmt::format("it has {}: {}", counted(s.names.size(), "node"), joined(s.names, 6));
  return fail(std::move(e));
}

Result<Outcome> Inquiry::outcome(std::string_view asked) const {
  FERRULE_ASSIGN(std::string name, resolve(asked));
  return state_->outcome(name);
}

namespace {

const Layer* layer_in(const std::map<NodeId, std::vector<NestedPlan>>& nested,
                      const std::string& name) {
  for (const auto& [_, graphs] : nested)
    for (const NestedPlan& n : graphs) {
      for (const Layer& l : n.plan->layers)
        if (contains(l.nodes, name)) return &l;
      if (const Layer* l = layer_in(n.plan->nested, name)) return l;
    }
  return nullptr;
}

}  // namespace

const Layer* Inquiry::State::nested_layer(const std::string& name) const {
  return layer_in(o.plan.nested, name);
}

Outcome Inquiry::State::outcome(const std::string& name) const {
  Outcome f;
  f.name = name;
  auto op = ops.find(name);
  if (op != ops.end()) f.op = op->second;
  if (op == ops.end() && o.constants.contains(name)) {
    f.kind = Outcome::Kind::constant;
    f.text = fmt::format("{} is a constant ({}), not a computation", escape(name),
                         escape(o.constants.at(name)));
    return f;
  }
  std::set<std::string> known{name};  // what it is called on its way
  for (size_t k = 0; k < o.fused.journal.steps.size(); ++k) {
    const Step& s = o.fused.journal.steps[k];
    if (std::ranges::none_of(s.before, [&](const std::string& n) { return known.contains(n); }))
      continue;
    if (s.kind == "broken") continue;
    f.steps.push_back(k);
    known.insert(s.after.begin(), s.after.end());
  }
  if (op == ops.end()) {
    const auto& [inner, owner] = nested.at(name);
    f.kind = Outcome::Kind::nested;
    f.op = inner;
    f.text = fmt::format("{} is in a nested graph of {}, and kernels do not cross its border",
                         with_op(f), escape(owner));
    if (const Layer* l = nested_layer(name))
      f.text += l->nodes.size() == 1
                    ? fmt::format("; there it is a separate layer ({})", l->contract)
                    : fmt::format("; there it is part of layer \"{}\" ({}){}", escape(l->name),
                                  l->contract, l->rule.empty() ? "" : " by rule " + l->rule);
    else
      f.text += "; that graph is interpreted node by node, because not all of its sizes are known";
    return f;
  }
  std::string way;
  for (size_t k : f.steps)
    if (const Step& s = o.fused.journal.steps[k]; s.kind == "rewrite")
      if (std::string text = became(f, s, k, o.knowledge->rules); !text.empty())
        way += (way.empty() ? "" : ", ") + text;
  if (auto it = layers.find(name); it != layers.end()) f.layers = it->second;
  f.kind = f.layers.empty() ? Outcome::Kind::removed : Outcome::Kind::layer;
  if (f.layers.empty()) {
    const Step* last = f.steps.empty() ? nullptr : &o.fused.journal.steps[f.steps.back()];
    const Step* first = f.steps.empty() ? nullptr : &o.fused.journal.steps[f.steps.front()];
    if (first && first->kind == "share" && contains(first->before, name)) {
      f.text = fmt::format("{} computes the same as {}, which is kept for both (step {})",
                           with_op(f), joined(first->after), f.steps.front() + 1);
    } else if (last && last->kind == "fold") {
      f.kind = Outcome::Kind::folded;
      f.text =
          fmt::format("{} was computed when the model was loaded ({}): all its inputs are constant",
                      with_op(f), step_text(f.steps.back()));
    } else if (!way.empty()) {
      f.text = with_op(f) + " " + way;
      if (last && !last->after.empty()) f.text += ", which left nothing to compute";
    } else {
      f.text = with_op(f) + " was removed: nothing reads its result";
    }
    return f;
  }
  std::vector<std::string> places;
  for (size_t k : f.layers) {
    const Layer& l = o.plan.layers[k];
    const bool own = l.nodes.size() == 1 && f.layers.size() == 1;
    std::string text = own ? fmt::format("a separate layer ({})", l.contract)
                           : fmt::format("part of layer \"{}\" ({})", escape(l.name), l.contract);
    if (!l.rule.empty()) text += " by rule " + l.rule;
    if (places.size() < 4) places.push_back(std::move(text));
  }
  if (f.layers.size() > places.size())
    places.push_back(fmt::format("part of {} more", f.layers.size() - places.size()));
  f.text = with_op(f) + " " + (way.empty() ? "" : way + "; it ") + "is ";
  for (size_t k = 0; k < places.size(); ++k) f.text += (k ? ", and " : "") + places[k];
  return f;
}

}  // namespace ferrule::why
