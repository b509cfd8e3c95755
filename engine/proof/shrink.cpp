#include "engine/proof/shrink.h"

#include <algorithm>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/graph/text.h"
#include "engine/onnx/schema.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/edit.h"
#include "engine/proof/lengthen.h"
#include "engine/proof/trial.h"

namespace ferrule {
namespace {

class Shrinker {
 public:
  Shrinker(const Rule& rule, CounterExample found, const ProofContext& ctx, uint64_t seed,
           double seconds)
      : rule_(rule),
        ctx_(ctx),
        seed_(seed),
        deadline_(thread_seconds() + seconds),
        best_(std::move(found)) {}

  CounterExample run() {
    if (is_counted(*best_.graph)) return std::move(best_);  // with less it is none
    for (bool smaller = true; smaller && in_time();)
      smaller = surroundings() || sizes() || numbers();
    inputs();
    return std::move(best_);
  }

 private:
  bool in_time() const { return thread_seconds() < deadline_; }

  /// Takes the graph if it is a counter-example, too.
  bool take(std::unique_ptr<Graph> g) {
    if (!g || !in_time()) return false;
    g->remove_dead();
    if (!infer_again(*ctx_.ops, *g)) return false;
    Trial t = try_rule(rule_, *g, ctx_.target, ctx_);
    if (!t.fired || !t.broken.empty()) return false;
    Agreement a = agreement_of(rule_, *g, *t.after, ctx_.target, ctx_, seed_);
    if (!a.wrong) return false;
    best_ = {std::move(g), std::move(*a.wrong)};
    return true;
  }

  /// Values outside the match become inputs and outputs of the graph.
  bool surroundings() {
    const Trial t = attempt_rule(rule_, *best_.graph, ctx_.target, ctx_);
    if (!t.fired) return false;
    const Graph& g = *best_.graph;
    const std::set<NodeId> inside(t.match.nodes.begin(), t.match.nodes.end());
    if (g.outputs().size() > 1 ||
        (!t.match.outputs.empty() && g.outputs()[0] != t.match.outputs[0])) {
      auto less = g.clone();
      for (size_t k = 0; k < less->outputs().size(); ++k)
        if (t.match.outputs[0]) less->set_output(k, t.match.outputs[0]);
      if (g.outputs().size() == 1 && take(std::move(less))) return true;
    }
    for (NodeId n : g.order()) {
      if (inside.contains(n)) continue;
      auto less = g.clone();
      for (ValueId v : g.node(n).outputs)
        if (v && g.value(v).type.known() && !g.value(v).is_output)
          less->replace_uses(v, less->add_input(less->fresh_name("i"), g.value(v).type));
      if (take(std::move(less))) return true;
    }
    return false;
  }

  bool sizes() {
    std::set<int64_t> have;
    const Graph& g = *best_.graph;
    for (ValueId v : g.values())
      if (const Value& x = g.value(v); !x.producer && x.type.shape)
        for (const Dim& d : *x.type.shape) have.insert(d.value_or(-1));
    for (auto from = have.rbegin(); from != have.rend(); ++from)
      for (int64_t to : {int64_t{1}, int64_t{2}, int64_t{3}})
        if (*from < 0 || to < *from) {
          auto less = best_.graph->clone();
          resize(*less, *from, to);
          if (take(std::move(less))) return true;
        }
    return false;
  }

  /// Constants of one number.
  bool numbers() {
    const Graph& g = *best_.graph;
    for (ValueId v : g.constants()) {
      const Tensor* t = g.constant(v);
      if (t->numel() == 0 || !is_float(t->dtype())) continue;
      for (double to : {0.0, 1.0, 2.0}) {
        const Tensor all = filled(t->dtype(), t->dims(), {to});
        if (all.identical(*t)) break;
        auto less = g.clone();
        less->set_constant(v, all);
        if (take(std::move(less))) return true;
      }
    }
    return false;
  }

  /// Elements of the inputs, one after the other.
  void inputs() {
    const Trial t = try_rule(rule_, *best_.graph, ctx_.target, ctx_);
    if (!t.fired || !t.after) return;
    for (size_t k = 0; k < best_.mismatch.inputs.size(); ++k) {
      const Tensor was = best_.mismatch.inputs[k];
      if (was.dtype() == DType::string || size_bits(was.dtype()) % 8) continue;
      for (int64_t i = 0; i < std::min<int64_t>(was.numel(), 64) && in_time(); ++i)
        for (double to : {0.0, 1.0, 2.0, -1.0}) {
          std::vector<Tensor> in = best_.mismatch.inputs;
          if (in[k].at_f64(i) == to) break;
          in[k] = with(in[k], i, to);
          if (differs(*t.after, in)) break;
        }
    }
  }
  bool differs(const Graph& after, const std::vector<Tensor>& in) {
    std::string text = disagreement(*best_.graph, after, numerics_of(rule_), ctx_, in);
    if (text.empty()) return false;
    best_.mismatch = {std::move(text), in};
    return true;
  }
  static Tensor with(const Tensor& t, int64_t at, double to) {
    auto [out, bytes] = Tensor::allocate(t.dtype(), t.dims());
    std::copy_n(static_cast<const char*>(t.data()), static_cast<size_t>(t.bytes()),
                static_cast<char*>(bytes));
    Tensor::put(t.dtype(), bytes, at, to);
    return out;
  }

  const Rule& rule_;
  const ProofContext& ctx_;
  uint64_t seed_;
  double deadline_;
  CounterExample best_;
};

}  // namespace

CounterExample shrunk(const Rule& rule, CounterExample found, const ProofContext& ctx,
                      uint64_t seed, double seconds) {
  return Shrinker(rule, std::move(found), ctx, seed, seconds).run();
}

std::string to_text(const CounterExample& c) {
  // Attributes that have their default are nothing to look at.
  const auto plain = c.graph->clone();
  for (NodeId n : plain->order()) {
    Attrs attrs = plain->node(n).attrs;
    for (const auto& [key, value] : plain->node(n).attrs.items())
      if (auto usual = schema_default(plain->node(n).domain, plain->node(n).op.text(), key);
          usual && same_attr(*usual, value))
        attrs.erase(key);
    plain->set_operator(n, plain->node(n).op, std::move(attrs));
  }
  TextOptions options;
  options.max_elements = 64;
  std::string out = to_text(*plain, options);
  for (size_t k = 0; k < c.graph->inputs().size() && k < c.mismatch.inputs.size(); ++k)
    out += fmt::format("{} = {}\n", escape(c.graph->value(c.graph->inputs()[k]).name),
                       str(Attr(c.mismatch.inputs[k])));
  return out + c.mismatch.text + "\n";
}

}  // namespace ferrule
