#include <unistd.h>

#include <chrono>
#include <future>

#include "codegen/annotate_plan.h"
#include "codegen/cache.h"
#include "engine/base/diagnostics.h"
#include "engine/onnx/index_inputs.h"
#include "engine/onnx/schema.h"
#include "engine/semantics/infer.h"
#include "runtime/registry.h"
#include "runtime/session.h"
#include "runtime/shared_knowledge.h"
#include "runtime/staged.h"

namespace ferrule {
namespace {

using Clock = std::chrono::steady_clock;

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

std::string shape_text(DType dtype, const std::vector<int64_t>& dims) {
  return str(Type{dtype, Shape(dims.begin(), dims.end())});
}

/// Whether a concrete shape can be the declared one (symbols take any size).
bool fits(const Type& declared, const std::vector<int64_t>& dims) {
  if (!declared.shape) return true;
  if (declared.shape->size() != dims.size()) return false;
  for (size_t k = 0; k < dims.size(); ++k)
    if (auto d = (*declared.shape)[k].constant(); d && *d != dims[k]) return false;
  return true;
}

/// What a backend cannot do at all, another may.
bool cannot_run(const Refusal& why) {
  const Error* e = why.error();
  return !e || e->code == Code::size_unknown || e->code == Code::unsupported_type;
}

}  // namespace

namespace {

class SessionOfStage final : public StagePlan {
 public:
  SessionOfStage(Session session, std::shared_ptr<Compiled> compiled)
      : session_(std::move(session)), compiled_(std::move(compiled)) {}
  Result<std::vector<Tensor>> run(std::span<const Tensor> inputs, int64_t& launches) override {
    FERRULE_ASSIGN(const Compiled::Lease on, compiled_->lease());
    FERRULE_ASSIGN(auto results, on->run_tensors(inputs));
    launches += on->launches();
    return results;
  }
  std::vector<std::string> interpreted() override {
    std::vector<std::string> out;
    for (size_t layer : compiled_->executable().interpreted())
      std::ranges::copy(compiled_->plan().layers[layer].nodes, std::back_inserter(out));
    return out;
  }

 private:
  Session session_;
  std::shared_ptr<Compiled> compiled_;
};

}  // namespace

struct Session::State {
  SessionOptions options;
  std::shared_ptr<const Knowledge> knowledge;
  Fused canonical;  ///< every plan starts from a copy
  std::map<std::string, Tensor> defaults;
  std::vector<std::string> notes;
  ModelInfo info;
  std::vector<Port> inputs, outputs;
  std::map<std::string, size_t, std::less<>> input_by_name;
  Backend* backend = nullptr;
  double load_ms = 0;
  bool own_weights = false;  ///< the constants are nobody's but this session's
  std::optional<Tuning> tuning;
  std::unique_ptr<Graph>
      original;  ///< kept until a GPU has run the model that another backend may have to run
  std::shared_ptr<const Knowledge>
      left;          ///< of that GPU: who asked for it before may still look at it
  std::mutex mutex;  ///< of `plans`, and of what leave_gpu changes
  struct Kept {
    std::shared_ptr<Compiled> plan;
    uint64_t used = 0;  ///< counts requests
  };
  std::map<Shapes, Kept> plans;
  uint64_t requests = 0;

  void log(LogLevel level, std::string_view text) const {
    if (options.log) options.log(level, text);
  }

  /// Who will run the plans, and so what they are made for.
  Status choose(const std::string& target) {
    if (options.strict && options.fast_math)
      return error(Code::usage, "options", "strict and fast_math exclude each other");
    FERRULE_ASSIGN(BackendChoice choice,
                   choose_backend(options.backend, target, options.require_device,
                                  target_names(options.engine.rule_dirs)));
    if (!choice.warning.empty()) log(LogLevel::warning, choice.warning);
    backend = choice.backend;
    options.engine.target = std::move(choice.target);
    return {};
  }

  ImportOptions import_options() const {
    ImportOptions o;
    o.limits = &options.engine.limits;
    o.overridable = options.engine.overridable;
    o.ops = knowledge ? &knowledge->ops : nullptr;
    return o;
  }
  /// A model of this session's alone.
  Status take(Imported imported) {
    FERRULE_TRY(load_tuning());
    defaults = std::move(imported.defaults);
    notes = std::move(imported.notes);
    info = std::move(imported.info);
    for (const std::string& note : notes) log(LogLevel::info, note);
    own_weights = true;
    return take(std::move(imported.graph));
  }

  /// Inputs and outputs as the model declares them, then everything that holds for all shapes.
  Status take(Graph graph) {
    const auto indices = index_inputs(graph);
    for (ValueId v : graph.inputs()) {
      input_by_name.emplace(graph.value(v).name, inputs.size());
      const std::string& name = graph.value(v).name;
      const Type& type = graph.value(v).type;
      inputs.push_back({name, type, defaults.contains(name) || type.dtype == DType::optional});
      if (auto it = indices.find(v); it != indices.end()) inputs.back().below = it->second;
    }
    for (ValueId v : graph.outputs()) outputs.push_back({graph.value(v).name, graph.value(v).type});
    if (options.backend == "auto" && !options.require_device && backend->name() == "cuda")
      original = graph.clone();
    FERRULE_ASSIGN(canonical, canonicalize(std::move(graph), *knowledge, options.engine,
                                           options.cancel.get()));
    return {};
  }

  /// The libraries that a model needs of a GPU are known when it is compiled: without them the CPU
  /// runs it, where nobody asked for more.
  bool may_leave_gpu(const Error& e) const { return original && e.code == Code::library_missing; }
  Status leave_gpu(const Error& why) {
    FERRULE_ASSIGN(backend, find_backend("auto"));
    log(LogLevel::warning,
        fmt::format("no GPU runs the model: {}: {}; backend {} runs it, planned for this processor",
                    why.place, why.message, backend->name()));
    options.engine.target.clear();
    left = knowledge;
    FERRULE_ASSIGN(knowledge, shared_knowledge(options.engine));
    plans.clear();
    FERRULE_ASSIGN(canonical, canonicalize(std::move(*original), *knowledge, options.engine,
                                           options.cancel.get()));
    original = nullptr;
    return {};
  }

  /// Who runs it still has it until then.
  void forget_oldest() {
    plans.erase(
        std::ranges::min_element(plans, {}, [](const auto& entry) { return entry.second.used; }));
  }

  const Port* input(std::string_view name) const {
    auto it = input_by_name.find(name);
    return it == input_by_name.end() ? nullptr : &inputs[it->second];
  }

  Status unknown(const std::string& name) const {
    std::string all;
    for (const Port& p : inputs) all += (all.empty() ? "" : ", ") + escape(p.name);
    return error(Code::unknown_input, "inputs", escape(name), all);
  }

  /// Concrete dims of every input, from the caller or the model.
  Result<Shapes> complete(const Shapes& given) const {
    Shapes all;
    for (const auto& [name, dims] : given) {
      const Port* p = input(name);
      if (!p) return fail(unknown(name).error());
      if (!fits(p->type, dims))
        return error(Code::input_mismatch, "inputs", escape(name), shape_text(p->type.dtype, dims),
                     str(p->type));
      all[name] = dims;
    }
    for (const Port& p : inputs) {
      if (all.contains(p.name)) continue;
      if (!is_tensor(p.type.dtype)) {
        all[p.name] = {};  // it has no sizes
        continue;
      }
      if (auto it = defaults.find(p.name); it != defaults.end()) {
        all[p.name] = it->second.dims();
        continue;
      }
      auto dims = p.type.shape ? constant_shape(*p.type.shape) : std::nullopt;
      if (!dims) return error(Code::missing_input, "inputs", escape(p.name), str(p.type));
      all[p.name] = *dims;
    }
    return all;
  }

  /// What measures: the GPU, else the processor.
  std::string machine() const {
    return backend->device_name().empty() ? machine_name() : backend->device_name();
  }

  /// Reads the tuning file; one of another machine is used as far as its problems are ours.
  Status load_tuning() {
    if (options.tuning.empty()) return {};
    FERRULE_ASSIGN(tuning, read_tuning(options.tuning, options.engine.limits));
    if (tuning->machine != machine() || tuning->target != knowledge->target.name)
      log(LogLevel::warning,
          fmt::format("{} was measured on {} for {}, this is {} and {}", escape(options.tuning),
                      escape(tuning->machine), escape(tuning->target), machine(),
                      knowledge->target.name));
    return {};
  }

  Result<std::shared_ptr<Compiled>> build(const Shapes& shapes) const {
    auto c = std::make_shared<Compiled>();
    const auto start = Clock::now();
    EngineOptions engine = options.engine;
    engine.shapes = shapes;
    FERRULE_ASSIGN(c->fused_, fuse_shape(canonical, *knowledge, engine, options.cancel.get()));
    for (const Step& s : c->fused_.journal.steps) log(LogLevel::verbose, s.text);
    for (const std::string& p : c->fused_.journal.phases) log(LogLevel::info, p);
    for (const std::string& w : c->fused_.warnings) log(LogLevel::warning, w);
    FERRULE_ASSIGN(c->plan_, make_plan(std::move(c->fused_.graph), knowledge->target,
                                       knowledge->ops, std::move(c->fused_.nested)));
    if (options.backend != "null") FERRULE_TRY(runnable(c->plan_, knowledge->ops));
    // From here on addresses inside the plan are kept: it stays where it is.
    auto lowered = lower(c->plan_, knowledge->ops, knowledge->target,
                         {.strict = options.strict, .fast_math = options.fast_math});
    if (lowered)
      c->lowered_ = std::move(*lowered);
    else if (!options.in_stages || lowered.error().code != Code::unsupported_type)
      return fail(lowered.error());
    else  // no program computes with texts
      c->lowered_.layers.resize(c->plan_.layers.size());
    FERRULE_TRY(check_plan(c->plan_));
    c->timings_.load_ms = load_ms;
    c->timings_.plan_ms = ms_since(start);
    FERRULE_TRY(prepare(*c, shapes, lowered ? nullptr : &lowered.error()));
    return c;
  }

  /// No value larger than memory: found here, where it has a name, and not by an allocation.
  Status check_plan(const Plan& plan) const {
    for (NodeId n : plan.graph.order())
      for (ValueId v : plan.graph.node(n).outputs) {
        if (!v) continue;
        const Value& value = plan.graph.value(v);
        auto dims = value.type.shape ? constant_shape(*value.type.shape) : std::nullopt;
        if (dims)
          FERRULE_TRY(check_bytes(value.type.dtype, *dims, "\"" + escape(value.name) + "\"",
                                  options.engine.limits.memory_bytes));
      }
    return {};
  }

  /// All layers without a kernel at once.
  Status no_interpreter(Compiled& c) const {
    std::string names;
    for (size_t layer : c.executable_->interpreted())
      names += (names.empty() ? "" : ", ") + escape(c.plan_.layers[layer].name);
    if (c.backend_ == "reference") names = "the whole model";
    if (names.empty()) return {};
    return fail(required(
        Refusal(not_applicable("backend " + c.backend_, names, "it is interpreted").value())));
  }

  PrepareContext context_of(const Compiled& c, DiskCache* cache) const {
    PrepareContext context{c.plan_,
                           c.lowered_,
                           knowledge->ops,
                           knowledge->target,
                           options.engine.limits,
                           options.threads,
                           options.log,
                           cache,
                           tuning ? &*tuning : nullptr,
                           options.all_candidates};
    context.runs_once = options.runs_once;
    context.cancel = options.cancel.get();
    return context;
  }

  /// One more, for a thread that runs beside others. They may be reading the constants: those are
  /// not given back.
  Result<std::unique_ptr<Executable>> prepare_another(const Compiled& c, Backend& by) const {
    auto cache = DiskCache::open(options.engine.cache, options.engine.limits.cache_bytes);
    return required(by.prepare(context_of(c, cache.get())));
  }

  /// What a backend cannot plan as a whole (a size that only a run finds out, texts) it runs by
  /// stages.
  Result<std::unique_ptr<Executable>> prepare_stages(const Compiled& c, const Backend& by,
                                                     const Shapes& shapes) const {
    Graph graph = std::move(*canonical.graph.clone());
    FERRULE_TRY(fix_shapes(knowledge->ops, graph, shapes));
    SessionOptions inner = options;
    inner.backend = by.name();
    inner.tuning.clear();
    inner.log = nullptr;
    inner.in_stages = false;
    StageOptions stages{knowledge, options.engine, options.cancel, options.no_interpreter, {}};
    if (knowledge->instances) {  // they chose the rules; no stage is the model that they are of
      auto own = std::make_shared<Knowledge>(*knowledge);
      own->instances.reset();
      stages.knowledge = std::move(own);
    }
    stages.plan = [known = stages.knowledge, inner](Graph g) -> Result<std::unique_ptr<StagePlan>> {
      FERRULE_ASSIGN(Session session, Session::from_graph(std::move(g), known, inner));
      FERRULE_ASSIGN(auto compiled, session.plan());
      return std::make_unique<SessionOfStage>(std::move(session), std::move(compiled));
    };
    return StagedExecutable::make(c.plan_, std::move(graph), std::move(stages));
  }

  static tl::unexpected<Error> text_value(const Plan& plan, ValueId v) {
    return error(Code::unsupported_type, "run",
                 fmt::format("{} of type {}", escape(plan.graph.value(v).name),
                             str(plan.graph.value(v).type)));
  }
  /// Kernels move bytes: none of them makes texts.
  static Status no_texts(const Plan& plan) {
    for (NodeId n : plan.graph.order())
      for (ValueId v : plan.graph.node(n).outputs)
        if (v && plan.graph.value(v).type.dtype == DType::string) return text_value(plan, v);
    for (ValueId v : plan.graph.outputs())
      if (plan.graph.value(v).type.dtype == DType::string) return text_value(plan, v);
    return {};
  }

  /// `not_lowered`: why not, where the plan has no programs.
  Status prepare(Compiled& c, const Shapes& shapes, const Error* not_lowered) const {
    const auto start = Clock::now();
    auto cache = DiskCache::open(options.engine.cache, options.engine.limits.cache_bytes);
    const DiskCache::Counts before = cache ? cache->counts() : DiskCache::Counts{};
    PrepareContext context = context_of(c, cache.get());
    context.own_weights = own_weights;
    Backend* by = backend;
    using Made = Applicable<std::unique_ptr<Executable>>;
    const bool staged = options.in_stages && by->name() != "reference" && by->name() != "null";
    const Status texts = staged ? no_texts(c.plan_) : Status{};
    if (!texts && !not_lowered) not_lowered = &texts.error();
    Made executable = not_lowered ? Made(fail(Refusal(*not_lowered))) : by->prepare(context);
    const StagedExecutable* stages = nullptr;
    if (!executable && staged && cannot_run(executable.error())) {
      FERRULE_ASSIGN(auto made, prepare_stages(c, *by, shapes));
      stages = static_cast<const StagedExecutable*>(made.get());
      executable = std::move(made);
    }
    // auto: what a backend cannot do at all (a size known only during the run) the reference does.
    if (!executable && options.backend == "auto" && !options.require_device &&
        by->name() != "reference" && cannot_run(executable.error())) {
      log(LogLevel::warning, fmt::format("backend {}: {}; the reference backend runs the model",
                                         by->name(), executable.error().reason()));
      FERRULE_ASSIGN(by, find_backend("reference"));
      executable = by->prepare(context);
    }
    if (!executable) return fail(required(std::move(executable).error()));
    if (tuning && !tuning->problems.empty() && *tuning->found == 0)
      log(LogLevel::warning,
          fmt::format("{} is of another model: none of its {} problems is one of this model's",
                      escape(options.tuning), tuning->problems.size()));
    c.executable_ = std::move(*executable);
    c.idle_ = {c.executable_.get()};
    c.most_ = static_cast<size_t>(std::max(0, options.concurrent_runs));
    if (stages)
      c.make_ = [stages]() -> Result<std::unique_ptr<Executable>> { return stages->another(); };
    else
      c.make_ = [this, &c, by] { return prepare_another(c, *by); };
    c.backend_ = by->name();
    c.device_ = by->device_name().empty()
                    ? host_target().value_or("")
                    : fmt::format("{}, {}", by->device_name(), by->device_target());
    c.timings_.compile_ms = ms_since(start);
    if (options.no_interpreter || options.require_device) FERRULE_TRY(no_interpreter(c));
    if (!cache) return {};
    c.timings_.cache_hits = cache->counts().hits - before.hits;
    c.timings_.cache_misses = cache->counts().misses - before.misses;
    if (std::string why = cache->complaint(); !why.empty()) log(LogLevel::warning, why);
    return {};
  }
};

Status check_bytes(DType dtype, const std::vector<int64_t>& dims, const std::string& what,
                   int64_t limit) {
  if (limit == 0) limit = static_cast<int64_t>(sysconf(_SC_PHYS_PAGES)) * sysconf(_SC_PAGESIZE);
  bool empty = false;
  for (int64_t d : dims) {
    if (d < 0) return error(Code::bad_shape, what, fmt::format("it has a size of {}", d));
    empty = empty || d == 0;
  }
  if (empty) return {};
  __int128 bytes = std::max(1, size_bits(dtype) / 8);
  for (int64_t d : dims) {
    bytes *= d;
    if (bytes > limit)
      return error(Code::out_of_memory, "memory", what,
                   bytes > INT64_MAX ? std::string("more than 2^63")
                                     : fmt::format("at least {}", static_cast<int64_t>(bytes)),
                   limit);
  }
  return {};
}

namespace {

Status refused(const std::string& port, DType type, std::string_view hint) {
  Error e = error(Code::no_tensor, "run", port, name(type)).value();
  e.hint = hint;
  return fail(std::move(e));
}

}  // namespace

Status tensor_input(const Port& p) {
  if (is_tensor(p.type.dtype) || p.type.dtype == DType::optional) return {};
  return refused("input " + escape(p.name), p.type.dtype,
                 "make its elements inputs, and the sequence in the model (SequenceConstruct)");
}

Status tensor_output(const std::string& output, DType type) {
  if (is_tensor(type)) return {};
  return refused("output " + escape(output), type,
                 "name the outputs that are tensors, or end the model with one (SequenceAt, "
                 "ConcatFromSequence, OptionalHasElement; without its ZipMap)");
}

Result<Compiled::Lease> Compiled::lease() {
  std::unique_lock lock(mutex_);
  auto may_make = [&] { return most_ == 0 || 1 + others_.size() + making_ < most_; };
  returned_.wait(lock, [&] { return !idle_.empty() || may_make(); });
  if (!idle_.empty()) {
    Executable* e = idle_.back();
    idle_.pop_back();
    return Lease(*this, *e);
  }
  ++making_;
  lock.unlock();
  auto made = make_();
  lock.lock();
  --making_;
  if (!made) {
    returned_.notify_one();  // somebody else may try
    return fail(made.error());
  }
  others_.push_back(std::move(*made));
  return Lease(*this, *others_.back());
}

void Compiled::give_back(Executable& e) {
  const std::lock_guard lock(mutex_);
  idle_.push_back(&e);
  returned_.notify_one();
}

Session::Session(std::unique_ptr<State> state) : state_(std::move(state)) {}
Session::Session(Session&&) noexcept = default;
Session& Session::operator=(Session&&) noexcept = default;
Session::~Session() = default;

Result<Session> Session::load(const std::string& path, SessionOptions options) {
  const auto start = Clock::now();
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  FERRULE_TRY(state->choose(state->options.engine.target));
  auto learn = [engine = &state->options.engine] {
    auto knowledge = shared_knowledge(*engine);
    (void)schema_default("", "", "");  // ONNX's schemas are registered at their first use
    return knowledge;
  };
  // Rules and schemas are read while the file is. Where no second thread can be had, the
  // result is made when it is asked for.
  std::shared_future<Result<std::shared_ptr<const Knowledge>>> knowledge =
      std::async(state->options.threads == 1 ? std::launch::deferred
                                             : std::launch::async | std::launch::deferred,
                 learn);
  ImportOptions import_options = state->import_options();
  import_options.file_read = [&knowledge] {
    return knowledge.get() ? &(*knowledge.get())->ops : nullptr;
  };
  auto import = import_file(path, import_options);
  FERRULE_ASSIGN(state->knowledge, knowledge.get());
  FERRULE_ASSIGN(Imported imported, std::move(import));
  FERRULE_TRY(state->take(std::move(imported)));
  state->load_ms = ms_since(start);
  return Session(std::move(state));
}

Result<Session> Session::load_bytes(std::string_view model, SessionOptions options) {
  const auto start = Clock::now();
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  FERRULE_TRY(state->choose(state->options.engine.target));
  FERRULE_ASSIGN(state->knowledge, shared_knowledge(state->options.engine));
  FERRULE_ASSIGN(Imported imported, import_bytes(model, state->import_options()));
  FERRULE_TRY(state->take(std::move(imported)));
  state->load_ms = ms_since(start);
  return Session(std::move(state));
}

Result<Session> Session::from_graph(Graph graph, std::shared_ptr<const Knowledge> knowledge,
                                    SessionOptions options) {
  const auto start = Clock::now();
  auto state = std::make_unique<State>();
  state->options = std::move(options);
  state->knowledge = std::move(knowledge);
  FERRULE_TRY(state->choose(state->knowledge->target.name));
  FERRULE_TRY(state->load_tuning());
  FERRULE_TRY(state->take(std::move(graph)));
  state->load_ms = ms_since(start);
  return Session(std::move(state));
}

const std::vector<Port>& Session::inputs() const { return state_->inputs; }
const std::vector<Port>& Session::outputs() const { return state_->outputs; }
const std::vector<std::string>& Session::notes() const { return state_->notes; }
const ModelInfo& Session::info() const { return state_->info; }
const Knowledge& Session::knowledge() const { return *state_->knowledge; }
std::string Session::machine() const { return state_->machine(); }

Result<std::shared_ptr<Compiled>> Session::plan(const Shapes& shapes) {
  FERRULE_ASSIGN(Shapes all, state_->complete(shapes));
  const std::lock_guard lock(state_->mutex);
  auto& plans = state_->plans;
  if (auto it = plans.find(all); it != plans.end()) {
    it->second.used = ++state_->requests;
    return it->second.plan;
  }
  const auto most = static_cast<size_t>(std::max<int64_t>(1, state_->options.engine.limits.plans));
  while (plans.size() >= most) state_->forget_oldest();
  auto compiled = state_->build(all);
  while (!compiled && compiled.error().code == Code::device_memory && !plans.empty()) {
    state_->forget_oldest();
    compiled = state_->build(all);
  }
  if (!compiled && state_->may_leave_gpu(compiled.error())) {
    FERRULE_TRY(state_->leave_gpu(compiled.error()));
    compiled = state_->build(all);
  }
  if (!compiled) return fail(compiled.error());
  state_->original = nullptr;
  return plans.emplace(std::move(all), State::Kept{std::move(*compiled), ++state_->requests})
      .first->second.plan;
}

Result<std::vector<Tensor>> Session::arrange(const std::map<std::string, Tensor>& inputs) const {
  for (const auto& [name, tensor] : inputs) {
    const Port* p = state_->input(name);
    if (!p) return fail(state_->unknown(name).error());
    const bool open = p->type.dtype == DType::optional;  // with a value, or without
    if (tensor.is_tensor()) FERRULE_TRY(tensor_input(*p));
    if ((!open && tensor.dtype() != p->type.dtype) || !fits(p->type, tensor.dims()))
      return error(Code::input_mismatch, "inputs", escape(name),
                   shape_text(tensor.dtype(), tensor.dims()), str(p->type));
  }
  std::vector<Tensor> ordered;
  for (const Port& p : state_->inputs) {
    if (auto it = inputs.find(p.name); it != inputs.end()) {
      ordered.push_back(it->second);
    } else if (auto def = state_->defaults.find(p.name); def != state_->defaults.end()) {
      ordered.push_back(def->second);
    } else if (p.type.dtype == DType::optional) {
      ordered.push_back(Tensor::absent());
    } else {
      FERRULE_TRY(tensor_input(p));
      return error(Code::missing_input, "inputs", escape(p.name), str(p.type));
    }
  }
  return ordered;
}

Result<std::map<std::string, Tensor>> Session::run(const std::map<std::string, Tensor>& inputs,
                                                   RunObserver* observer) {
  FERRULE_ASSIGN(auto ordered, arrange(inputs));
  Shapes shapes;
  for (size_t k = 0; k < ordered.size(); ++k) shapes[state_->inputs[k].name] = ordered[k].dims();
  FERRULE_ASSIGN(const auto compiled, plan(shapes));
  FERRULE_ASSIGN(auto results, compiled->run(ordered, observer));
  std::map<std::string, Tensor> named;
  for (size_t k = 0; k < results.size(); ++k) {
    const Port& p = state_->outputs[k];
    // What a sequence holds only a run knows: the model may have declared something else.
    if (p.type.dtype != DType::undefined && p.type.dtype != DType::optional &&
        results[k].dtype() != p.type.dtype)
      return error(Code::bad_shape, "run",
                   fmt::format("output {} is declared {} and is {}", escape(p.name), str(p.type),
                               shape_text(results[k].dtype(), results[k].dims())));
    named[p.name] = results[k];
  }
  return named;
}

}  // namespace ferrule
