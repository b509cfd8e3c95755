#include "runtime/staged.h"

#include <algorithm>
#include <cstring>
#include <list>
#include <map>
#include <mutex>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "engine/match/facts.h"
#include "engine/plan/nested.h"
#include "engine/rewrite/branches.h"
#include "engine/semantics/deciding_inputs.h"
#include "engine/semantics/infer.h"
#include "runtime/turns.h"

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

/// What all stages of a graph have in common.
struct StageCommon {
  StageOptions options;
  std::mutex mutex;                   ///< of `interpreted`
  std::set<std::string> interpreted;  ///< ONNX names of nodes, of all stages so far
  Draws draws;

  InterpreterOptions interpreter() {
    InterpreterOptions out;
    out.ops = &options.knowledge->ops;
    out.limits = &options.engine.limits;
    out.cancel = options.cancel.get();
    out.draws = &draws;
    return out;
  }
};

/// Stages of one graph, by the sizes of its inputs and the elements of those that decide others.
///
/// In the body of a Loop sizes may differ from turn to turn, and planning takes longer than many a
/// turn: there a stage is planned when its sizes come for the second time, and interpreted before;
/// and none makes room for another, or a long Loop would plan all of them in each run.
class Stages {
 public:
  /// `loop`: ONNX names of the Loop in whose body this is; empty: in none.
  Stages(std::shared_ptr<StageCommon> common, Graph graph, std::vector<bool> decides,
         std::vector<std::string> loop)
      : common_(std::move(common)),
        graph_(std::move(graph)),
        decides_(std::move(decides)),
        loop_(std::move(loop)) {}

  Result<std::vector<Tensor>> run(const std::vector<Tensor>& given, StageRun& run);
  /// Null: to be interpreted, which only who `may_wait` is told.
  Result<std::shared_ptr<Stage>> find(const std::vector<Tensor>& given, bool may_wait);

 private:
  using Kept = std::shared_ptr<Stage>;
  std::string key_of(const std::vector<Tensor>& given) const;
  bool first_time(const std::string& key, size_t most);
  Result<Kept> make(const std::vector<Tensor>& given) const;

  std::shared_ptr<StageCommon> common_;
  Graph graph_;
  std::vector<bool> decides_;  ///< by input
  std::vector<std::string> loop_;
  std::mutex mutex_;                              ///< of what follows
  std::list<std::pair<std::string, Kept>> kept_;  ///< what was used last stands first
  std::set<std::string> seen_;                    ///< sizes that came once
};

class Stage {
 public:
  static Result<std::shared_ptr<Stage>> make(std::shared_ptr<StageCommon> common, Graph graph,
                                             std::vector<std::string> loop) {
    auto stage = std::make_shared<Stage>();
    stage->common_ = std::move(common);
    stage->loop_ = std::move(loop);
    FERRULE_TRY(infer_all(stage->common_->options.knowledge->ops, graph));
    FERRULE_ASSIGN(Fused fused, canonicalize(std::move(graph), *stage->common_->options.knowledge,
                                             stage->common_->options.engine, stage->cancel()));
    stage->graph_ = std::move(fused.graph);
    FERRULE_TRY(stage->graph_.sort());
    FERRULE_TRY(stage->split());
    stage->note_interpreted();
    return stage;
  }
  StageCommon& common() const { return *common_; }

  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, StageRun& run) {
    // Copies of tensors take longer than small kernels: only who must own one makes one.
    std::vector<const Tensor*> values(graph_.value_slots());
    std::vector<std::vector<Tensor>> owned;
    for (size_t k = 0; k < inputs.size(); ++k) values[graph_.inputs()[k].index] = &inputs[k];
    const auto at = [&](ValueId v) -> const Tensor* {
      if (!v) return nullptr;
      return values[v.index] ? values[v.index] : graph_.constant(v);
    };
    const auto copies = [&](const std::vector<ValueId>& of) {
      std::vector<Tensor> out;
      out.reserve(of.size());
      for (ValueId v : of) out.push_back(*at(v));
      return out;
    };
    if (plan_) {
      FERRULE_ASSIGN(auto made, plan_->run(copies(fed_), run.launches));
      for (size_t k = 0; k < made.size(); ++k) values[made_[k].index] = &made[k];
      owned.push_back(std::move(made));
    }
    for (NodeId id : hosted_) {
      const Node& n = graph_.node(id);
      std::vector<const Tensor*> operands;
      for (ValueId v : n.inputs) operands.push_back(at(v));
      for (ValueId v : captures(n)) operands.push_back(at(v));
      FERRULE_ASSIGN(auto made, host(id, operands, run));
      for (size_t k = 0; k < n.outputs.size() && k < made.size(); ++k)
        if (n.outputs[k]) values[n.outputs[k].index] = &made[k];
      owned.push_back(std::move(made));
    }
    std::vector<Tensor> rest;
    if (rest_) {
      FERRULE_ASSIGN(rest, rest_->stages->run(copies(rest_->inputs), run));
    }
    std::vector<Tensor> results;
    results.reserve(graph_.outputs().size());
    size_t later = 0;
    for (ValueId v : graph_.outputs())
      results.push_back(late_[v.index] ? std::move(rest[later++]) : *at(v));
    return results;
  }

 private:
  const Cancel* cancel() const { return common_->options.cancel.get(); }

  /// A Loop whose body is a graph of stages of its own.
  struct LoopBody {
    std::unique_ptr<Stages> stages;
    std::vector<size_t> captured;  ///< of the node's operands, those that the body captures last
  };

  /// One that the plan does not run.
  Result<std::vector<Tensor>> host(NodeId id, std::span<const Tensor* const> operands,
                                   StageRun& run) {
    const Node& n = graph_.node(id);
    if (const auto loop = loops_.find(id); loop != loops_.end()) {
      const LoopBody& body = loop->second;
      const auto turn = [&](std::vector<Tensor> given) {
        for (size_t k : body.captured) given.push_back(*operands[k]);
        return body.stages->run(given, run);
      };
      FERRULE_ASSIGN(auto made, turn_by_turn(n, operands.first(n.inputs.size()),
                                             common_->options.engine.limits, cancel(), turn));
      if (made) return std::move(*made);
    }
    ++run.launches;
    return interpret_node(graph_, n, operands, common_->interpreter());
  }

  /// Whether its turns run by stages. Of a body in which all sizes are known these are planned now.
  Result<bool> take_loop(NodeId id) {
    const Node& n = graph_.node(id);
    const Semantics& ops = common_->options.knowledge->ops;
    if (contract_of(n, ops) != "loop" || !turns_in_tensors(graph_, n)) return false;
    if (!deterministic(n)) return false;  // numbers are drawn in the sequence of the turns
    std::vector<ValueId> captured;
    Graph body = standalone(*subgraph(n, "body"), graph_, captured);
    std::vector<bool> decides(body.inputs().size(), false);
    decides[1] = true;  // in every turn it holds
    std::vector<std::string> outermost = loop_;
    if (loop_.empty()) outermost.assign(n.origins.begin(), n.origins.end());
    if (outermost.empty()) outermost.push_back(n.name);
    LoopBody made{std::make_unique<Stages>(common_, std::move(body), std::move(decides),
                                           std::move(outermost)),
                  {}};
    const std::vector<ValueId> all = captures(n);
    for (ValueId v : captured)
      made.captured.push_back(n.inputs.size() +
                              static_cast<size_t>(std::ranges::find(all, v) - all.begin()));
    if (auto graphs = graphs_of_their_own(ops, graph_, n, "loop")) {
      const Graph& known = (*graphs)[0].graph;
      std::vector<Tensor> like;
      for (ValueId v : known.inputs()) {
        const Type& t = known.value(v).type;
        like.emplace_back(t.dtype, *whole_dims(t), nullptr, nullptr);
      }
      like[1] = Tensor::scalar(DType::boolean, 1, like[1].dims());
      const auto planned = made.stages->find(like, false);
      if (!planned && (common_->options.no_interpreter || planned.error().code == Code::cancelled))
        return fail(planned.error());
      if (!planned) return false;
    }
    loops_.emplace(id, std::move(made));
    return true;
  }

  void note_interpreted() {
    const std::lock_guard lock(common_->mutex);
    std::set<std::string>& all = common_->interpreted;
    const auto note = [&](const auto& names) {
      if (loop_.empty()) all.insert(names.begin(), names.end());
      all.insert(loop_.begin(), loop_.end());
    };
    for (NodeId id : hosted_)
      if (!loops_.contains(id)) note(graph_.node(id).origins);
    if (const auto names = plan_ ? plan_->interpreted() : std::vector<std::string>{};
        !names.empty())
      note(names);
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

  /// Whether a node is run before sizes that its operands decide are known, which it then says: a
  /// Loop may turn as often as it likes; and what decides sizes in a body differs from turn to
  /// turn.
  bool hosts(const Node& n) const {
    const std::string contract = contract_of(n, common_->options.knowledge->ops);
    if (contract == "loop") return true;
    return !loop_.empty() && !common_->options.no_interpreter && contract != "branch";
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
      const std::vector<ValueId> by = waits || hosts(n) ? std::vector<ValueId>{} : deciding(n);
      for (ValueId v : by) decides[v.index] = true;
      (waits || !by.empty() ? later : hosted_).push_back(id);
      for (ValueId v : made) late_[v.index] = true;
    }
    // What the interpreter makes is there before the rest is planned.
    for (NodeId id : hosted_)
      for (ValueId v : graph_.node(id).outputs)
        if (v) late_[v.index] = false;
    for (NodeId id : hosted_) {
      FERRULE_ASSIGN(const bool taken, take_loop(id));
      if (taken || !common_->options.no_interpreter) continue;
      const Node& n = graph_.node(id);
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
    std::vector<bool> deciding;
    for (ValueId v : rest_->inputs) deciding.push_back(decides[v.index]);
    std::vector<ValueId> results;
    for (ValueId v : graph_.outputs())
      if (late_[v.index]) results.push_back(v);
    rest_->stages = std::make_unique<Stages>(
        common_, excerpt(graph_, later, rest_->inputs, results), std::move(deciding), loop_);
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

  struct Rest {
    std::vector<ValueId> inputs;  ///< of graph_
    std::unique_ptr<Stages> stages;
  };

  std::shared_ptr<StageCommon> common_;
  std::vector<std::string> loop_;  ///< ONNX names of the Loop in whose body it is
  Graph graph_;
  std::unique_ptr<StagePlan> plan_;
  std::vector<ValueId> fed_, made_;  ///< by the plan's inputs and outputs
  std::vector<NodeId> hosted_;
  std::map<NodeId, LoopBody> loops_;  ///< of those in hosted_
  std::vector<bool> late_;            ///< by value: the rest makes it
  std::optional<Rest> rest_;
};

Result<std::vector<Tensor>> Stages::run(const std::vector<Tensor>& given, StageRun& run) {
  FERRULE_ASSIGN(const Kept stage, find(given, !loop_.empty()));
  if (!stage) {
    run.interpreted.insert(loop_.begin(), loop_.end());
    run.launches += std::ssize(graph_.order());
    return interpret(graph_, given, common_->interpreter());
  }
  if (std::ranges::find(decides_, true) == decides_.end()) return stage->run(given, run);
  std::vector<Tensor> open;
  open.reserve(given.size());
  for (size_t k = 0; k < given.size(); ++k)
    if (!decides_[k]) open.push_back(given[k]);
  return stage->run(open, run);
}

Result<std::shared_ptr<Stage>> Stages::find(const std::vector<Tensor>& given, bool may_wait) {
  std::string key = key_of(given);
  const std::lock_guard lock(mutex_);
  const auto known = std::ranges::find(kept_, key, &std::pair<std::string, Kept>::first);
  if (known != kept_.end()) {
    kept_.splice(kept_.begin(), kept_, known);
    return kept_.front().second;
  }
  may_wait = may_wait && !common_->options.no_interpreter;
  const auto most = static_cast<size_t>(std::max<int64_t>(1, common_->options.engine.limits.plans));
  if (may_wait && (kept_.size() >= most || first_time(key, most))) return Kept{};
  auto made = make(given);
  if (!made && (!may_wait || made.error().code == Code::cancelled)) return fail(made.error());
  while (kept_.size() >= most) kept_.pop_back();
  kept_.emplace_front(std::move(key), made ? std::move(*made) : Kept{});
  return kept_.front().second;
}

/// The sizes of what is given, and the elements of what decides others.
std::string Stages::key_of(const std::vector<Tensor>& given) const {
  std::string key;
  const auto add = [&](const void* bytes, size_t n) {
    key.append(static_cast<const char*>(bytes), n);
  };
  for (size_t k = 0; k < given.size(); ++k) {
    const Tensor& t = given[k];
    const int form[] = {static_cast<int>(t.dtype()), t.rank()};
    add(form, sizeof form);
    add(t.dims().data(), t.dims().size() * sizeof(int64_t));
    if (decides_[k]) add(t.data(), static_cast<size_t>(t.bytes()));
  }
  return key;
}

bool Stages::first_time(const std::string& key, size_t most) {
  if (seen_.contains(key)) return false;
  if (seen_.size() >= 4 * most) seen_.clear();  // such sizes hardly ever come again
  seen_.insert(key);
  return true;
}

Result<std::shared_ptr<Stage>> Stages::make(const std::vector<Tensor>& given) const {
  std::vector<ValueId> open;
  Graph g = std::move(*graph_.clone());
  for (size_t k = 0; k < given.size(); ++k) {
    const ValueId v = graph_.inputs()[k];
    if (decides_[k])
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
  return Stage::make(common_, excerpt(g, nodes, open, outputs), loop_);
}

Result<std::unique_ptr<Executable>> StagedExecutable::make(const Plan& plan, Graph graph,
                                                           StageOptions options) {
  auto common = std::make_shared<StageCommon>();
  common->options = std::move(options);
  common->options.engine.shapes.clear();
  common->options.engine.near_misses = common->options.engine.snapshots = false;
  FERRULE_ASSIGN(auto first, Stage::make(std::move(common), std::move(graph), {}));
  return std::unique_ptr<Executable>(new StagedExecutable(plan, std::move(first)));
}

std::unique_ptr<Executable> StagedExecutable::another() const {
  return std::unique_ptr<Executable>(new StagedExecutable(plan_, first_));
}

Result<std::vector<Tensor>> StagedExecutable::run_tensors(std::span<const Tensor> inputs,
                                                          RunObserver*) {
  StageRun run;
  auto results = first_->run(inputs, run);
  const std::lock_guard lock(first_->common().mutex);
  last_ = std::move(run);
  return results;
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
  StageCommon& common = first_->common();
  const std::lock_guard lock(common.mutex);
  const auto is = [&](const std::string& n) {
    return common.interpreted.contains(n) || last_.interpreted.contains(n);
  };
  std::vector<size_t> out;
  for (size_t k = 0; k < plan_.layers.size(); ++k)
    if (std::ranges::any_of(plan_.layers[k].nodes, is)) out.push_back(k);
  return out;
}

}  // namespace ferrule
