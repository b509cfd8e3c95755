#include "runtime/staged.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <mutex>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "engine/rewrite/branches.h"
#include "engine/semantics/deciding_inputs.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

constexpr int64_t kMostDeciding = 64;  ///< elements of a tensor that may decide sizes

std::optional<std::vector<int64_t>> whole_dims(const Type& t) {
  return t.shape ? constant_shape(*t.shape) : std::nullopt;
}

/// Whether kernels can hold it.
bool held_by_kernels(const Type& t) {
  return is_float(t.dtype) || is_int(t.dtype) || t.dtype == DType::boolean;
}

}  // namespace

class Stage {
 public:
  /// What all stages of a graph have in common.
  struct Common {
    StageOptions options;
    std::mutex mutex;                   ///< of `interpreted`
    std::set<std::string> interpreted;  ///< ONNX names of nodes, of all stages so far
    Draws draws;
  };
  static Result<std::shared_ptr<Stage>> make(std::shared_ptr<Common> common, Graph graph) {
    auto stage = std::make_shared<Stage>();
    stage->common_ = std::move(common);
    FERRULE_TRY(infer_all(stage->common_->options.knowledge->ops, graph));
    FERRULE_ASSIGN(Fused fused, canonicalize(std::move(graph), *stage->common_->options.knowledge,
                                             stage->common_->options.engine, stage->cancel()));
    stage->graph_ = std::move(fused.graph);
    FERRULE_TRY(stage->graph_.sort());
    FERRULE_TRY(stage->split());
    stage->note_interpreted();
    return stage;
  }
  Common& common() const { return *common_; }

  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, int64_t& launches) {
    std::vector<std::optional<Tensor>> values(graph_.value_slots());
    for (size_t k = 0; k < inputs.size(); ++k) values[graph_.inputs()[k].index] = inputs[k];
    const auto at = [&](ValueId v) -> const Tensor* {
      if (!v) return nullptr;
      if (const auto& t = values[v.index]) return &*t;
      return graph_.constant(v);
    };
    if (plan_) {
      std::vector<Tensor> given;
      for (ValueId v : fed_) given.push_back(*at(v));
      FERRULE_ASSIGN(auto made, plan_->run(given, launches));
      for (size_t k = 0; k < made.size(); ++k) values[made_[k].index] = std::move(made[k]);
    }
    for (NodeId id : hosted_) {
      const Node& n = graph_.node(id);
      std::vector<const Tensor*> operands;
      for (ValueId v : n.inputs) operands.push_back(at(v));
      for (ValueId v : captures(n)) operands.push_back(at(v));
      FERRULE_ASSIGN(auto made, interpret_node(graph_, n, operands, interpreter()));
      ++launches;
      for (size_t k = 0; k < n.outputs.size() && k < made.size(); ++k)
        if (n.outputs[k]) values[n.outputs[k].index] = std::move(made[k]);
    }
    std::vector<Tensor> rest;
    if (rest_) {
      std::vector<Tensor> given;
      for (ValueId v : rest_->inputs) given.push_back(*at(v));
      FERRULE_ASSIGN(const std::shared_ptr<Stage> next, next_for(given));
      std::vector<Tensor> open;
      for (size_t k = 0; k < given.size(); ++k)
        if (!rest_->decides[k]) open.push_back(given[k]);
      FERRULE_ASSIGN(rest, next->run(open, launches));
    }
    std::vector<Tensor> results;
    size_t later = 0;
    for (ValueId v : graph_.outputs()) results.push_back(late_[v.index] ? rest[later++] : *at(v));
    return results;
  }

 private:
  const Cancel* cancel() const { return common_->options.cancel.get(); }
  InterpreterOptions interpreter() const {
    InterpreterOptions out;
    out.ops = &common_->options.knowledge->ops;
    out.limits = &common_->options.engine.limits;
    out.cancel = cancel();
    out.draws = &common_->draws;
    return out;
  }

  void note_interpreted() {
    const std::lock_guard lock(common_->mutex);
    std::set<std::string>& all = common_->interpreted;
    for (NodeId id : hosted_)
      all.insert(graph_.node(id).origins.begin(), graph_.node(id).origins.end());
    if (!plan_) return;
    for (std::string& name : plan_->interpreted()) all.insert(std::move(name));
  }

  bool kernels_hold(ValueId v) const {
    const Type& t = graph_.value(v).type;
    return held_by_kernels(t) && whole_dims(t).has_value();
  }

  /// Inputs of known size that decide how large a node's results are, and are no constants yet.
  std::vector<ValueId> deciding(const Node& n) const {
    std::vector<ValueId> out = deciding_inputs(n);
    std::erase_if(out, [&](ValueId v) {
      const auto dims = whole_dims(graph_.value(v).type);
      return !dims || !held_by_kernels(graph_.value(v).type) || graph_.constant(v) ||
             product_of(*dims) > kMostDeciding;
    });
    return out;
  }
  static int64_t product_of(const std::vector<int64_t>& dims) {
    int64_t n = 1;
    for (int64_t d : dims) n = d && n > kMostDeciding / d ? kMostDeciding + 1 : n * d;
    return n;
  }

  Status split() {
    late_.assign(graph_.value_slots(), false);
    std::vector<NodeId> now, later;
    std::vector<bool> decides(graph_.value_slots(), false);
    for (NodeId id : graph_.order()) {
      const Node& n = graph_.node(id);
      std::vector<ValueId> read = n.inputs;
      std::ranges::copy(captures(n), std::back_inserter(read));
      std::erase(read, ValueId{});
      const bool waits = std::ranges::any_of(read, [&](ValueId v) { return late_[v.index]; });
      std::vector<ValueId> made = n.outputs;
      std::erase(made, ValueId{});
      const auto holds = [&](ValueId v) { return kernels_hold(v); };
      if (!waits && std::ranges::all_of(read, holds) && std::ranges::all_of(made, holds)) {
        now.push_back(id);
        continue;
      }
      const std::vector<ValueId> by = waits ? std::vector<ValueId>{} : deciding(n);
      for (ValueId v : by) decides[v.index] = true;
      (waits || !by.empty() ? later : hosted_).push_back(id);
      for (ValueId v : made) late_[v.index] = true;
    }
    // What the interpreter makes is there before the rest is planned.
    for (NodeId id : hosted_)
      for (ValueId v : graph_.node(id).outputs)
        if (v) late_[v.index] = false;
    if (common_->options.no_interpreter && !hosted_.empty()) {
      const Node& n = graph_.node(hosted_[0]);
      return fail(required(
          Refusal(not_applicable(escape(n.name), escape(n.op), "it is interpreted").value())));
    }
    take_rest(later, decides);
    return compile(now);
  }

  /// What nodes read that none of them makes, without constants, in the order of first use.
  std::vector<ValueId> read_from_outside(std::span<const NodeId> nodes) const {
    std::vector<ValueId> out;
    std::vector<bool> seen(graph_.value_slots(), false);
    for (NodeId id : nodes)
      for (ValueId v : graph_.node(id).outputs)
        if (v) seen[v.index] = true;
    for (NodeId id : nodes) {
      std::vector<ValueId> read = graph_.node(id).inputs;
      std::ranges::copy(captures(graph_.node(id)), std::back_inserter(read));
      for (ValueId v : read)
        if (v && !seen[v.index] && !(graph_.constant(v) && !graph_.value(v).is_input)) {
          seen[v.index] = true;
          out.push_back(v);
        }
    }
    return out;
  }

  void take_rest(const std::vector<NodeId>& later, const std::vector<bool>& decides) {
    if (later.empty()) return;
    rest_.emplace();
    rest_->inputs = read_from_outside(later);
    for (ValueId v : rest_->inputs) rest_->decides.push_back(decides[v.index]);
    std::vector<ValueId> results;
    for (ValueId v : graph_.outputs())
      if (late_[v.index]) results.push_back(v);
    rest_->graph = excerpt(graph_, later, rest_->inputs, results);
  }

  /// A plan of the nodes whose sizes are known; those that the backend does not take are
  /// interpreted like the others.
  Status compile(const std::vector<NodeId>& now) {
    if (now.empty()) return {};
    std::vector<bool> wanted(graph_.value_slots(), false);
    for (ValueId v : graph_.outputs()) wanted[v.index] = true;
    for (const auto* nodes : {&hosted_}) {
      for (ValueId v : read_from_outside(*nodes)) wanted[v.index] = true;
    }
    if (rest_)
      for (ValueId v : rest_->inputs) wanted[v.index] = true;
    fed_ = read_from_outside(now);
    for (NodeId id : now)
      for (ValueId v : graph_.node(id).outputs)
        if (v && wanted[v.index]) made_.push_back(v);
    auto plan = common_->options.plan(excerpt(graph_, now, fed_, made_));
    if (plan) {
      plan_ = std::move(*plan);
      return {};
    }
    if (exit_code(plan.error().code) != Exit::unsupported || common_->options.no_interpreter)
      return fail(plan.error());
    hosted_.insert(hosted_.begin(), now.begin(), now.end());
    return {};
  }

  /// The sizes of what the rest reads, and the elements of what decides others.
  std::string key_of(const std::vector<Tensor>& given) const {
    std::string key;
    for (size_t k = 0; k < given.size(); ++k) {
      key += fmt::format("{}:{};", static_cast<int>(given[k].dtype()),
                         fmt::join(given[k].dims(), ","));
      if (rest_->decides[k])
        key.append(static_cast<const char*>(given[k].data()),
                   static_cast<size_t>(given[k].bytes()));
    }
    return key;
  }

  Result<std::shared_ptr<Stage>> next_for(const std::vector<Tensor>& given) {
    const std::string key = key_of(given);
    const std::lock_guard lock(mutex_);
    const auto known = std::ranges::find(next_, key, &std::pair<std::string, Next>::first);
    if (known != next_.end()) {
      next_.splice(next_.begin(), next_, known);
      return next_.front().second;
    }
    std::vector<ValueId> open;
    Graph g = std::move(*rest_->graph.clone());
    for (size_t k = 0; k < given.size(); ++k) {
      const ValueId v = rest_->graph.inputs()[k];
      if (rest_->decides[k])
        g.set_constant(v, given[k]);
      else
        open.push_back(v);
      Type t = g.value(v).type;
      if (!is_tensor(t.dtype) || !given[k].is_tensor()) continue;  // of which nothing is known
      t.dtype = given[k].dtype();
      t.shape = Shape(given[k].dims().begin(), given[k].dims().end());
      g.set_type(v, std::move(t));
    }
    const std::vector<NodeId> nodes = g.order();
    const std::vector<ValueId> outputs = g.outputs();
    FERRULE_ASSIGN(Next made, make(common_, excerpt(g, nodes, open, outputs)));
    const auto most =
        static_cast<size_t>(std::max<int64_t>(1, common_->options.engine.limits.plans));
    while (next_.size() >= most) next_.pop_back();
    next_.emplace_front(key, std::move(made));
    return next_.front().second;
  }

  struct Rest {
    Graph graph;                  ///< its inputs are these, in this order
    std::vector<ValueId> inputs;  ///< of graph_
    std::vector<bool> decides;
  };
  using Next = std::shared_ptr<Stage>;

  std::shared_ptr<Common> common_;
  Graph graph_;
  std::unique_ptr<StagePlan> plan_;
  std::vector<ValueId> fed_, made_;  ///< by the plan's inputs and outputs
  std::vector<NodeId> hosted_;
  std::vector<bool> late_;  ///< by value: the rest makes it
  std::optional<Rest> rest_;
  std::mutex mutex_;                              ///< of what follows
  std::list<std::pair<std::string, Next>> next_;  ///< what was used last stands first
};

Result<std::unique_ptr<Executable>> StagedExecutable::make(const Plan& plan, Graph graph,
                                                           StageOptions options) {
  auto common = std::make_shared<Stage::Common>();
  common->options = std::move(options);
  common->options.engine.shapes.clear();
  common->options.engine.near_misses = common->options.engine.snapshots = false;
  FERRULE_ASSIGN(auto first, Stage::make(std::move(common), std::move(graph)));
  return std::unique_ptr<Executable>(new StagedExecutable(plan, std::move(first)));
}

std::unique_ptr<Executable> StagedExecutable::another() const {
  return std::unique_ptr<Executable>(new StagedExecutable(plan_, first_));
}

Result<std::vector<Tensor>> StagedExecutable::run_tensors(std::span<const Tensor> inputs,
                                                          RunObserver*) {
  launches_ = 0;
  return first_->run(inputs, launches_);
}

Status StagedExecutable::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                             RunObserver* observer) {
  const Graph& g = plan_.graph;
  std::vector<Tensor> given;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const Type& t = g.value(g.inputs()[k]).type;
    const auto dims = whole_dims(t);
    if (!dims) return error(Code::bad_shape, "run", "an input's size is not known");
    given.emplace_back(t.dtype, *dims, nullptr, inputs[k]);
  }
  FERRULE_ASSIGN(const auto results, run_tensors(given, observer));
  for (size_t k = 0; k < results.size(); ++k) {
    const Value& v = g.value(g.outputs()[k]);
    if (whole_dims(v.type) != results[k].dims() || !held_by_kernels(v.type))
      return error(Code::size_unknown, "run",
                   fmt::format("the size of output {} is {}", escape(v.name), str(v.type)));
    std::memcpy(outputs[k], results[k].data(), static_cast<size_t>(results[k].bytes()));
  }
  return {};
}

std::vector<size_t> StagedExecutable::interpreted() const {
  Stage::Common& common = first_->common();
  const std::lock_guard lock(common.mutex);
  std::vector<size_t> out;
  for (size_t k = 0; k < plan_.layers.size(); ++k)
    if (std::ranges::any_of(plan_.layers[k].nodes,
                            [&](const std::string& n) { return common.interpreted.contains(n); }))
      out.push_back(k);
  return out;
}

}  // namespace ferrule
