#include "runtime/reference/backend.h"

#include <chrono>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"

namespace ferrule {
namespace {

class ReferenceExecutable final : public Executable {
 public:
  explicit ReferenceExecutable(const PrepareContext& c) : Executable(c.plan), lowered_(c.lowered) {
    options_.ops = &c.ops;
    options_.limits = &c.limits;
    options_.cancel = c.cancel;
    options_.draws = &draws_;
    const Graph& g = plan_.graph;
    last_.assign(g.value_slots(), -1);
    for (size_t layer = 0; layer < plan_.layers.size(); ++layer)
      for (ValueId v : inputs_of(layer))
        if (v) last_[v.index] = static_cast<int>(layer);
    for (ValueId v : g.outputs()) last_[v.index] = static_cast<int>(plan_.layers.size());
  }

  Status run(std::span<const void* const> inputs, std::span<void* const> outputs,
             RunObserver* observer) override {
    std::vector<Tensor> tensors;
    for (size_t k = 0; k < plan_.graph.inputs().size(); ++k) {
      const Type& t = plan_.graph.value(plan_.graph.inputs()[k]).type;
      auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
      if (!dims) return error(Code::bad_shape, "backend reference", "an input's size is not known");
      tensors.emplace_back(t.dtype, *dims, nullptr, inputs[k]);
    }
    FERRULE_ASSIGN(auto results, run_tensors(tensors, observer));
    for (size_t k = 0; k < results.size(); ++k)
      std::memcpy(outputs[k], results[k].data(), static_cast<size_t>(results[k].bytes()));
    return {};
  }

  Result<std::vector<Tensor>> run_tensors(std::span<const Tensor> inputs,
                                          RunObserver* observer) override {
    const Graph& g = plan_.graph;
    std::vector<Tensor> values(g.value_slots());
    for (size_t k = 0; k < g.inputs().size(); ++k) values[g.inputs()[k].index] = inputs[k];
    launches_ = 0;
    for (size_t layer = 0; layer < plan_.layers.size(); ++layer) {
      FERRULE_TRY(run_layer(layer, values, observer));
      for (ValueId v : inputs_of(layer))
        if (v && last_[v.index] == static_cast<int>(layer)) values[v.index] = {};
    }
    std::vector<Tensor> results;
    for (ValueId v : g.outputs())
      results.push_back(g.constant(v) ? *g.constant(v) : values[v.index]);
    return results;
  }

  int64_t launches() const override { return launches_; }

 private:
  std::vector<ValueId> inputs_of(size_t layer) const {
    const Layer& l = plan_.layers[layer];
    if (!l.node) return {l.reorder_from};
    const Node& n = plan_.graph.node(l.node);
    std::vector<ValueId> all = n.inputs;
    for (ValueId v : captures(n)) all.push_back(v);
    return all;
  }

  Status run_layer(size_t layer, std::vector<Tensor>& values, RunObserver* observer) {
    const auto start = std::chrono::steady_clock::now();
    const Graph& g = plan_.graph;
    const Layer& l = plan_.layers[layer];
    std::vector<ValueId> outputs;
    std::vector<Tensor> results;
    if (l.reorder_from) {  // layouts mean nothing here
      outputs = {l.reorder_to};
      const Tensor* c = g.constant(l.reorder_from);
      results = {c ? *c : values[l.reorder_from.index]};
    } else {
      const Node& n = g.node(l.node);
      std::vector<const Tensor*> operands;
      for (ValueId v : inputs_of(layer))
        operands.push_back(!v ? nullptr : g.constant(v) ? g.constant(v) : &values[v.index]);
      outputs = n.outputs;
      FERRULE_ASSIGN(results, interpret_node(g, n, operands, options_));
    }
    std::vector<ValueId> present;
    std::vector<Tensor> kept;
    for (size_t k = 0; k < outputs.size() && k < results.size(); ++k) {
      if (!outputs[k]) continue;
      values[outputs[k].index] = results[k];
      present.push_back(outputs[k]);
      kept.push_back(results[k]);
    }
    const int count = lowered_.layers[layer].kernels();
    launches_ += count;
    if (!observer) return {};
    const auto time = std::chrono::steady_clock::now() - start;
    observer->layer_done(layer, count,
                         std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
    if (observer->wants_results()) observer->layer_results(layer, present, kept);
    return {};
  }

  const Lowered& lowered_;
  Draws draws_;
  InterpreterOptions options_;
  std::vector<int> last_;
  int64_t launches_ = 0;
};

class ReferenceBackend final : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  Applicable<std::unique_ptr<Executable>> prepare(const PrepareContext& context) override {
    return std::make_unique<ReferenceExecutable>(context);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace ferrule
