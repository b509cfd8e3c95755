// Running graphs: which function runs an operator, values and their life time, nested graphs.
#include "engine/interpreter/interpreter.h"

#include "engine/graph/operator_name.h"
#include "engine/interpreter/internal.h"
#include "engine/semantics/evaluate.h"

namespace ferrule {
namespace interp {
namespace {

const Entry* find_kernel(const Node& n) {
  static const auto kAll = [] {
    std::map<std::string_view, Entry> out;
    for (const auto& table :
         {conv_table(), pool_table(), matmul_table(), shape_table(), movement_table(),
          index_table(), order_table(), norm_table(), resize_table(), quantize_table(), rnn_table(),
          control_table(), attention_table(), container_table(), text_table(), signal_table(),
          learned_table(), random_table()})
      for (const Entry& e : table)
        FERRULE_ASSERT(out.emplace(e.op, e).second, "operator in two tables");
    return out;
  }();
  const auto it = n.domain.empty() || n.domain == "ai.onnx" ? kAll.find(operator_name(n.op))
                  : n.domain == "ai.onnx.ml"                ? kAll.find("ml." + operator_name(n.op))
                                                            : kAll.end();
  return it == kAll.end() ? nullptr : &it->second;
}

bool holds_containers(std::span<const Tensor* const> in) {
  return std::ranges::any_of(in, [](const Tensor* t) { return t && !t->is_tensor(); });
}

/// In f64 mode every float value is kept in double between the nodes.
Tensor promoted(Tensor t, const InterpreterOptions& options) {
  if (!options.f64 || !is_float(t.dtype()) || t.dtype() == DType::f64) return t;
  const View<double> v(t);
  return store<double>(DType::f64, t.dims(), std::vector<double>(v.data(), v.data() + v.size()));
}

Outputs run_node(const Call& c) {
  if (c.options.cancel && c.options.cancel->stopped()) {
    return error(Code::cancelled, c.place(), "time is up");
  }
  if (c.n.body) {
    Env env{*c.n.body, c.env};
    const auto& formals = c.n.body->inputs();
    for (size_t i = 0; i < formals.size(); ++i) {
      if (c.input(i)) env.values[formals[i].index] = *c.input(i);
    }
    return run_graph(env, c.options);
  }
  try {
    if (holds_containers(c.in)) {
      if (c.n.op == "Identity" && c.n.domain.empty()) return one(*c.in[0]);  // by formula else
      const Entry* e = find_kernel(c.n);
      if (!e || !e->containers) return c.unsupported("it does not take sequences or optionals");
      FERRULE_TRY(c.need(e->inputs));
      return e->run(c);
    }
    if (c.options.ops && c.options.ops->pointwise(c.n)) {
      for (const Tensor* t : c.in) {
        if (t) FERRULE_TRY(c.fits(t->dtype(), t->dims()));
      }
      FERRULE_TRY(pointwise_fits(c));
      if (has_texts(c)) return pointwise_texts(c);
      std::function<void(Program&)> change;
      if (c.options.on_program) change = [&](Program& p) { c.options.on_program(c.g, c.n, p); };
      FERRULE_ASSIGN(auto t, evaluate_node(*c.options.ops, c.n, c.in, c.options.f64, change));
      return one(std::move(t));
    }
    if (const Entry* e = find_kernel(c.n)) {
      FERRULE_TRY(c.need(e->inputs));
      return e->run(c);
    }
    if (const OpFormula* row = c.options.ops ? c.options.ops->find(c.n) : nullptr)
      return row_by_formula(c, *row);
    return c.unsupported("the interpreter does not know it");
  } catch (const std::exception&) {  // the standard library's: no memory, or a size beyond any
    return error(Code::out_of_memory, c.place(), "the result", "more free", "no more");
  }
}

}  // namespace

Status pointwise_fits(const Call& c) {
  Dims all;
  for (const Tensor* t : c.in) {
    if (!t) continue;
    auto both = broadcast(all, t->dims());
    if (!both) return {};  // evaluate_node knows which inputs are read, and complains if it must
    all = std::move(*both);
  }
  return c.fits(DType::f64, all);
}

const Tensor* Env::find(ValueId v) const {
  if (!v) return nullptr;
  if (const auto& t = values[v.index]) return &*t;
  if (const Tensor* t = g.constant(v)) return t;
  const ValueId outer = g.value(v).outer;
  return outer && parent ? parent->find(outer) : nullptr;
}

Outputs run_graph(Env& env, const InterpreterOptions& options) {
  const Graph& g = env.g;
  const std::vector<NodeId> order = g.order();
  std::map<NodeId, size_t> position;
  for (size_t k = 0; k < order.size(); ++k) position[order[k]] = k;
  std::vector<std::vector<ValueId>> dying(order.size());
  for (ValueId v : g.values()) {
    const Value& value = g.value(v);
    if (value.is_output || value.uses.empty()) continue;
    size_t last = 0;
    for (const Use& u : value.uses) {
      if (auto it = position.find(u.node); it != position.end()) last = std::max(last, it->second);
    }
    if (!order.empty()) dying[last].push_back(v);
  }
  if (options.f64) {  // constants and captures, once; inputs come promoted
    for (uint32_t v = 0; v < g.value_slots(); ++v) {
      if (const Tensor* t = g.constant(ValueId{v}); t && is_float(t->dtype())) {
        env.values[v] = promoted(*t, options);
      } else if (env.values[v]) {
        env.values[v] = promoted(std::move(*env.values[v]), options);
      }
    }
  }
  for (size_t k = 0; k < order.size(); ++k) {
    const Node& n = g.node(order[k]);
    std::vector<const Tensor*> in;
    for (ValueId v : n.inputs) {
      in.push_back(env.find(v));
    }
    Call call{g, n, in, options, &env, dying[k]};
    FERRULE_ASSIGN(auto out, run_node(call));
    for (size_t i = 0; i < n.outputs.size(); ++i) {
      if (!n.outputs[i]) continue;
      if (i >= out.size()) return call.bad("output {} was not computed", i);
      out[i] = promoted(std::move(out[i]), options);
    }
    if (options.on_node) options.on_node(g, order[k], out);
    for (size_t i = 0; i < n.outputs.size(); ++i)
      if (n.outputs[i]) env.values[n.outputs[i].index] = std::move(out[i]);
    for (ValueId v : dying[k]) env.values[v.index].reset();
  }
  std::vector<Tensor> results;
  for (ValueId v : g.outputs()) {
    const Tensor* t = env.find(v);
    if (!t)
      return error(Code::missing_input, "", escape(g.value(v).name), escape(str(g.value(v).type)));
    results.push_back(*t);
  }
  return results;
}

bool Call::dies(ValueId v) const {
  return contains(dying, v) && env->values[v.index] &&
         std::ranges::count(g.value(v).uses, &n, [&](const Use& u) { return &g.node(u.node); }) ==
             1;
}

Tensor Call::taken(size_t i) const {
  const ValueId v = i < n.inputs.size() ? n.inputs[i] : ValueId{};
  return dies(v) ? std::move(*env->values[v.index]) : *in[i];
}

Outputs run_subgraph(const Call& c, const Graph& body, std::vector<Tensor> inputs, bool once) {
  if (inputs.size() > body.inputs().size()) {
    return c.bad("its body has {}, given: {}", counted(body.inputs().size(), "input"),
                 inputs.size());
  }
  // A node run on its own (constant folding) has no environment: captured constants are still
  // known.
  Env alone{c.g};
  Env env{body, c.env ? c.env : &alone};
  for (size_t i = 0; i < inputs.size(); ++i)
    env.values[body.inputs()[i].index] = std::move(inputs[i]);
  if (once)
    each_capture(body, [&](ValueId id, const Value& v) {
      if (c.dies(v.outer)) env.values[id.index] = std::move(*c.env->values[v.outer.index]);
    });
  return run_graph(env, c.options);
}

namespace {

/// A node without the graph around it. What its nested graphs capture stands behind its own inputs,
/// where it is known.
Outputs run_alone(const Graph& g, const Node& n, std::span<const Tensor* const> inputs,
                  const InterpreterOptions& options, std::span<const Room> rooms = {}) {
  if (n.subgraphs.empty() || inputs.size() <= n.inputs.size())
    return run_node({g, n, inputs, options, nullptr, {}, rooms});
  Env around{g};
  const std::vector<ValueId> captured = captures(n);
  for (size_t k = n.inputs.size(); k < inputs.size(); ++k)
    if (inputs[k]) around.values[captured.at(k - n.inputs.size()).index] = *inputs[k];
  return run_node({g, n, inputs.first(n.inputs.size()), options, &around});
}

/// What `run` gives with draws that begin anew.
template <class F>
Outputs with_draws(InterpreterOptions options, F&& run) {
  Draws fresh;
  options.draws = &fresh;
  return run(options);
}

}  // namespace
}  // namespace interp

Result<std::vector<Tensor>> interpret_node(const Graph& g, const Node& n,
                                           std::span<const Tensor* const> inputs,
                                           const InterpreterOptions& options,
                                           std::span<const Room> rooms) {
  if (!options.draws)
    return interp::with_draws(
        options, [&](const auto& o) { return interpret_node(g, n, inputs, o, rooms); });
  if (!options.f64) return interp::run_alone(g, n, inputs, options, rooms);
  std::vector<Tensor> wide;
  std::vector<const Tensor*> in;
  for (const Tensor* t : inputs) wide.push_back(t ? interp::promoted(*t, options) : Tensor());
  for (size_t i = 0; i < wide.size(); ++i) in.push_back(inputs[i] ? &wide[i] : nullptr);
  FERRULE_ASSIGN(auto out, interp::run_alone(g, n, in, options));
  for (Tensor& t : out) t = interp::promoted(std::move(t), options);
  return out;
}

Result<std::vector<Tensor>> interpret(const Graph& g, std::span<const Tensor> inputs,
                                      const InterpreterOptions& options) {
  if (!options.draws)
    return interp::with_draws(options, [&](const auto& o) { return interpret(g, inputs, o); });
  interp::Env env{g};
  for (size_t i = 0; i < g.inputs().size(); ++i) {
    const Value& v = g.value(g.inputs()[i]);
    if (i < inputs.size())
      env.values[g.inputs()[i].index] = inputs[i];
    else if (!v.constant)
      return error(Code::missing_input, "", escape(v.name), str(v.type));
  }
  return interp::run_graph(env, options);
}

bool interpretable(const Node& n, const Semantics& ops) {
  return n.body || ops.find(n) || interp::find_kernel(n);
}

}  // namespace ferrule
