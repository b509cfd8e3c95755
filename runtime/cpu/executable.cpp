#include "runtime/cpu/executable.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>

#include "codegen/cpu/row_nest.h"
#include "runtime/cpu/implementations.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/in_place.h"
#include "runtime/parallel.h"
#include "runtime/scoped_threads.h"

namespace ferrule::cpu {
namespace {

/// Pairs that may share memory: generated results over an operand of the same elements (a
/// normalisation is one to the CPU), a library result over the operand that its last step adds.
std::vector<std::pair<int, int>> in_place_pairs(const Plan& plan, const Lowered& lowered,
                                                size_t layer, const Launch& l) {
  auto pairs = generated_in_place(plan, lowered, layer, l);
  if (l.outputs.size() != 1 || l.region || l.rows) return pairs;
  if (l.kind != Launch::Kind::generated && l.work == Work::norm)
    for (size_t k = 0; k < l.inputs.size(); ++k)
      if (l.inputs[k] && same_elements(plan, lowered, layer, l.inputs[k], l.outputs[0]))
        pairs.emplace_back(static_cast<int>(k), 0);
  if (l.kind == Launch::Kind::library)
    for (const PostOp& op : l.post_ops)
      if (adds_operand(op) &&
          same_elements(plan, lowered, layer, l.inputs[static_cast<size_t>(op.operand)],
                        l.outputs[0]))
        pairs.emplace_back(op.operand, 0);
  return pairs;
}

/// Multiply-adds, twice, of a convolution or product; 0 for what only moves or compares.
double flops(const Launch& l, const KernelCall& call) {
  if (call.inputs.size() < 2 || !call.inputs[1].present() || call.outputs.empty()) return 0;
  const Operand &x = call.inputs[0], &w = call.inputs[1], &y = call.outputs[0];
  if (l.work == Work::convolution && w.rank() > 2)
    return 2.0 * static_cast<double>(y.numel()) * static_cast<double>(w.numel()) /
           static_cast<double>(std::max<int64_t>(1, w.dims[0]));
  if (l.work == Work::deconvolution && w.rank() > 2)
    return 2.0 * static_cast<double>(x.numel()) * static_cast<double>(w.numel()) /
           static_cast<double>(std::max<int64_t>(1, w.dims[0]));
  // (MK)(KN)(MN) is (MNK) squared.
  return 2.0 * std::sqrt(static_cast<double>(x.numel()) * static_cast<double>(w.numel()) *
                         static_cast<double>(y.numel()));
}

/// Whether waking a second thread costs more than it saves: about five microseconds of work.
bool too_small_to_split(const Launch& l, const KernelCall& call) {
  constexpr double kFlops = 1 << 19;
  constexpr int64_t kBytes = 128 << 10;
  if (l.kind != Launch::Kind::library || call.nested || flops(l, call) > kFlops) return false;
  int64_t bytes = 0;
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const Operand& o : *operands) bytes += o.present() ? o.bytes() : 0;
  return bytes <= kBytes;
}

int64_t available_memory() {
  return static_cast<int64_t>(sysconf(_SC_AVPHYS_PAGES)) *
         static_cast<int64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace

/// Gives one kernel its addresses; those that are the caller's are remembered for each run.
class CpuExecutable::SlotBinder final : public Binder {
 public:
  SlotBinder(CpuExecutable& e, int step) : e_(e), step_(step) {}
  void cell(int slot, const void** where) override { cell(slot, const_cast<void**>(where)); }
  void cell(int slot, void** where) override {
    if (External* x = external(slot))
      x->cells.push_back({where, nullptr, offset(slot)});
    else
      *where = e_.address(slot);
  }
  void memory(int slot, dnnl_memory* m) override {
    if (External* x = external(slot))
      x->cells.push_back({nullptr, m, offset(slot)});
    else
      dnnl_memory_set_data_handle(m, e_.address(slot));
  }
  void* scratch() override {
    return static_cast<char*>(e_.arena_.get()) +
           e_.storage_.scratch[static_cast<size_t>(step_)].offset;
  }

 private:
  const Slot& at(int slot) const { return e_.storage_.slots[static_cast<size_t>(slot)]; }
  int64_t offset(int slot) const {
    return at(slot).kind == Slot::Kind::slice ? at(slot).offset : 0;
  }
  External* external(int slot) const {
    const Slot& s = at(slot).kind == Slot::Kind::slice ? at(at(slot).index) : at(slot);
    if (s.kind == Slot::Kind::input) return &e_.inputs_[static_cast<size_t>(s.index)];
    if (s.kind == Slot::Kind::output) return &e_.outputs_[static_cast<size_t>(s.index)];
    return nullptr;
  }
  CpuExecutable& e_;
  int step_;
};

CpuExecutable::CpuExecutable(const PrepareContext& context, PackCache& packs)
    : Executable(context.plan),
      lowered_(context.lowered),
      threads_(context.threads),
      cancel_(context.cancel),
      library_(&packs) {
  library_.runs_once = context.runs_once;
  if (!lowered_.notices_nan()) return;
  noticing_ = std::make_unique<Noticing>(context, packs);
  noticing_->context.log = nullptr;  // what it refers to may be gone when it would be called
}

void CpuExecutable::External::set(void* p) {
  if (p == last) return;
  last = p;
  for (const Cell& c : cells) {
    void* at = static_cast<char*>(p) + c.offset;
    if (c.where)
      *c.where = at;
    else
      dnnl_memory_set_data_handle(c.memory, at);
  }
}

Applicable<std::unique_ptr<Executable>> CpuExecutable::make(const PrepareContext& context,
                                                            PackCache& packs) {
  try {
    if (!limit_library(context.target) && context.log)
      context.log(LogLevel::info, "oneDNN was in use before a plan for " + context.target.name +
                                      ": it keeps the processor's instructions");
    std::unique_ptr<CpuExecutable> e(new CpuExecutable(context, packs));
    FERRULE_TRY(e->build(context));
    return e;
  } catch (const std::exception& x) {  // what guard() did not expect; never out of here
    return error(Code::library_failed, "backend cpu", "oneDNN", x.what());
  }
}

Applicable<> CpuExecutable::build(const PrepareContext& context) {
  ScopedThreads scope(threads_);
  team_ = threads();
  auto pairs = [this](size_t layer, const Launch& l) {
    return in_place_pairs(plan_, lowered_, layer, l);
  };
  FERRULE_ASSIGN(storage_, plan_storage(plan_, lowered_, pairs));
  Context kernels{library_,        &context.ops,   &context.target, &context.limits,
                  lowered_.strict, context.tuning, &context.log};
  RowSplits splits;
  kernels.cancel = context.cancel, kernels.cache = context.cache, kernels.splits = &splits;
  FERRULE_ASSIGN(const auto compiled, compile_generated(kernels, context.cache));
  hold_weights();
  std::vector<int64_t> scratch(static_cast<size_t>(storage_.steps), 0);
  int step = 0;
  for (size_t layer = 0; layer < lowered_.layers.size(); ++layer) {
    LayerSteps range{steps_.size(), steps_.size()};
    for (const Launch& l : lowered_.layers[layer].launches) {
      const int at = step++;
      if (l.kind == Launch::Kind::view) continue;
      FERRULE_ASSIGN(const KernelCall call, call_of(plan_, lowered_, storage_, layer, l));
      // oneDNN decides the split when the primitive is made.
      const bool serial = too_small_to_split(l, call);
      set_threads(serial ? 1 : team_);
      FERRULE_ASSIGN(KernelPtr kernel, make_kernel(kernels, layer, l, context.log));
      scratch[static_cast<size_t>(at)] = kernel->scratch_bytes();
      Step& s = steps_.emplace_back();
      s.kernel = std::move(kernel);
      s.step = at;
      s.serial = serial;
      s.hides_nan = l.hides_nan;
      if (s.hides_nan && !serial) noticing_->team = team_;
      if (context.all_candidates)
        FERRULE_TRY(add_candidates(kernels, layer, l, s));
      else if (context.own_weights)
        give_back_weights(l);
      for (const auto& [name, other] : s.others)
        scratch[static_cast<size_t>(at)] =
            std::max(scratch[static_cast<size_t>(at)], other->scratch_bytes());
    }
    range.end = steps_.size();
    layers_.push_back(range);
  }
  set_threads(team_);
  if (auto last =
          std::find_if(steps_.rbegin(), steps_.rend(), [](const Step& s) { return s.hides_nan; });
      last != steps_.rend())
    last->last_to_hide = true;
  FERRULE_TRY(allocate_arena(context.limits, scratch));
  inputs_.resize(plan_.graph.inputs().size());
  outputs_.resize(plan_.graph.outputs().size());
  for (Step& s : steps_) {
    SlotBinder binder(*this, s.step);
    s.kernel->bind(binder);
    for (const auto& [name, other] : s.others) other->bind(binder);
  }
  return {};
}

/// Every large constant stays as long as this executable, but for those given back below. Values
/// may share their memory: each holds it.
void CpuExecutable::hold_weights() {
  const Graph& g = plan_.graph;
  for (uint32_t v = 0; v < g.value_slots(); ++v)
    if (const Tensor* t = g.value(ValueId{v}).dead ? nullptr : g.constant(ValueId{v});
        t && t->residence())
      weights_.emplace(v, t->residence());
  for (ValueId v : g.outputs())  // a run copies them
    if (auto it = weights_.find(v.index); it != weights_.end()) ++it->second.readers;
  for (const LoweredLayer& layer : lowered_.layers)
    for (const Launch& l : layer.launches) {
      for (ValueId v : l.inputs)
        if (auto it = v ? weights_.find(v.index) : weights_.end(); it != weights_.end())
          ++it->second.readers;
      if (!l.node || !l.graph) continue;
      const std::vector<ValueId>& own = l.graph->node(l.node).inputs;
      for (size_t k = 0; k < own.size(); ++k)  // those that call_of finds in the group's body
        if (const Tensor* t =
                k < l.inputs.size() && l.inputs[k] ? nullptr : l.graph->constant(own[k]);
            t && t->residence())
          body_weights_.emplace_back(t->residence());
    }
}

/// Weights that this launch alone reads, and reads packed: the model's own go, one after the other,
/// so that a model is never in memory twice. The next plan that asks for them finds them, or has
/// them written again.
void CpuExecutable::give_back_weights(const Launch& l) {
  for (ValueId v : l.inputs) {
    auto it = v ? weights_.find(v.index) : weights_.end();
    if (it == weights_.end() || it->second.readers != 1) continue;
    const Tensor& t = *plan_.graph.constant(v);
    auto packed = library_.reversible.find(t.address());
    if (packed == library_.reversible.end()) continue;
    it->second.let_go();
    t.residence()->give_back(std::move(packed->second));
    weights_.erase(it);
  }
  library_.reversible.clear();
}

/// All machine code at once, on all threads; make_pointwise finds it compiled, as long as the
/// results are held. Errors show up there.
Result<CpuJit::Compiled> CpuExecutable::compile_generated(Context& context, DiskCache* cache) {
  std::vector<CpuJit::Request> requests;
  for (size_t layer = 0; layer < lowered_.layers.size(); ++layer)
    for (const Launch& l : lowered_.layers[layer].launches) {
      if (l.roles)
        for (const auto& [_, formula] : l.roles->formulas)
          if (auto r = formula_request(context, *formula, plan_.layers[layer].name))
            requests.push_back(std::move(*r));
      const bool library = l.kind == Launch::Kind::library;
      if (!library && l.kind != Launch::Kind::generated &&
          !(l.kind == Launch::Kind::copy && l.region))
        continue;
      FERRULE_ASSIGN(KernelCall call, call_of(plan_, lowered_, storage_, layer, l));
      if (auto r = library     ? recurrent_requests(context, call)
                   : call.rows ? row_requests(context, call)
                               : pointwise_requests(context, call))
        for (CpuJit::Request& request : *r) requests.push_back(std::move(request));
    }
  return CpuJit::instance().compile_many(requests, threads(), cache);
}

Status CpuExecutable::allocate_arena(const Limits& limits, const std::vector<int64_t>& scratch) {
  place(storage_, scratch);
  const int64_t allowed = limits.memory_bytes ? limits.memory_bytes : available_memory() / 5 * 4;
  if (storage_.arena_bytes > allowed)
    return error(Code::out_of_memory, "memory plan", "the run", storage_.arena_bytes, allowed);
  arena_ = allocate(storage_.arena_bytes);
  if (!arena_)
    return error(Code::out_of_memory, "memory plan", "the run", storage_.arena_bytes, allowed);
  return {};
}

Applicable<KernelPtr> CpuExecutable::make_kernel(Context& context, size_t layer, const Launch& l,
                                                 const LogCallback& log) {
  FERRULE_ASSIGN(KernelCall call, call_of(plan_, lowered_, storage_, layer, l));
  Applicable<KernelPtr> made = [&]() -> Applicable<KernelPtr> {
    switch (l.kind) {
      case Launch::Kind::generated:
        return call.rows ? make_rows(context, call) : make_pointwise(context, call);
      case Launch::Kind::copy:
        return call.region ? make_pieces(context, call) : make_copy(context, call);
      case Launch::Kind::library:
        if (Factory f = l.work == Work::own ? own_factory(plan_.layers[layer].contract)
                        : implementations(l.work).empty() ? library_factory(l.work)
                                                          : make_chosen)
          return call.dense() ? make_library_kernel(context, call, f)
                              : make_sliced(context, call, f, takes_slices(l.work));
        return not_applicable(escape(call.layer), escape(l.called), "no kernel");
      default:
        return make_interpreted(context, call);
    }
  }();
  const bool whole_layer = lowered_.layers[layer].launches.size() == 1;
  if (made || !made.error().not_applicable()) return made;
  if (l.kind == Launch::Kind::generated && !whole_layer) return made;
  // No such kernel after all: the interpreter runs it, with its tail if the launch had one.
  if (log)
    log(LogLevel::warning,
        fmt::format("{}: {}; the interpreter runs it", escape(call.layer), made.error().reason()));
  const NodeId node = plan_.layers[layer].node;
  const bool group = node && plan_.graph.node(node).body && whole_layer;
  if (l.post_ops.empty() && !l.region && !l.rows && !group) return make_interpreted(context, call);
  FERRULE_ASSIGN(KernelCall whole, node_call(plan_, lowered_, storage_, layer));
  return make_interpreted(context, whole);
}

void* CpuExecutable::address(int slot) const {
  const Slot& s = storage_.slots[static_cast<size_t>(slot)];
  switch (s.kind) {
    case Slot::Kind::arena:
      return static_cast<char*>(arena_.get()) + s.offset;
    case Slot::Kind::input:
      return inputs_[static_cast<size_t>(s.index)].last;
    case Slot::Kind::output:
      return outputs_[static_cast<size_t>(s.index)].last;
    case Slot::Kind::slice:
      return static_cast<char*>(address(s.index)) + s.offset;
    case Slot::Kind::constant:
      return const_cast<void*>(
          plan_.graph.constant(ValueId{static_cast<uint32_t>(s.index)})->data());
  }
  return nullptr;
}

Status CpuExecutable::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                          RunObserver* observer) {
  if (!noticing_) return run_launches(inputs, outputs, observer);
  Noticing& n = *noticing_;
  if (n.left > 0 || overwrites_input(inputs, outputs)) {
    n.left = std::max(0, n.left - 1);
    return run_exact(inputs, outputs, observer);
  }
  // Who looks at every layer's result looks at the right ones only.
  const bool looks = observer && observer->wants_results();
  FERRULE_ASSIGN(const bool hidden, run_noticing(inputs, outputs, looks ? nullptr : observer));
  if (hidden) {
    n.left = n.penalty = std::clamp(2 * n.penalty, 1, 64);
    return run_exact(inputs, outputs, observer);
  }
  n.penalty = 0;
  return looks ? run_launches(inputs, outputs, observer) : Status{};
}

/// Whether the run may have hidden a NaN.
Result<bool> CpuExecutable::run_noticing(std::span<const void* const> inputs,
                                         std::span<void* const> outputs, RunObserver* observer) {
  Noticing& n = *noticing_;
  n.seen = false;
  if (n.team <= 2) n.watch.begin(n.team);
  FERRULE_TRY(run_launches(inputs, outputs, observer));
  return n.seen;
}

Status CpuExecutable::run_exact(std::span<const void* const> inputs, std::span<void* const> outputs,
                                RunObserver* observer) {
  Noticing& n = *noticing_;
  if (!n.exact) {
    FERRULE_ASSIGN(n.lowered,
                   lower_layers(plan_, n.context.ops, n.context.target, {.keep_nan = true}));
    const PrepareContext& c = n.context;
    PrepareContext context{c.plan,    n.lowered, c.ops,   c.target, c.limits,
                           c.threads, {},        nullptr, c.tuning};
    context.cancel = c.cancel;
    FERRULE_ASSIGN(n.exact, required(make(context, n.packs)));
  }
  const Status status = n.exact->run(inputs, outputs, observer);
  launches_ = n.exact->launches();
  return status;
}

/// A result that lies where an input does may have overwritten it when the run is to be done again.
bool CpuExecutable::overwrites_input(std::span<const void* const> inputs,
                                     std::span<void* const> outputs) const {
  const Graph& g = plan_.graph;
  auto range = [&](ValueId v, const void* p) {
    const Type& t = g.value(v).type;
    const auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
    int64_t elements = 1;
    for (int64_t d : dims.value_or(std::vector<int64_t>{})) elements *= d;
    const auto* begin = static_cast<const char*>(p);
    return std::pair{begin, begin + size_bytes(t.dtype, elements)};
  };
  for (size_t y = 0; y < outputs.size(); ++y) {
    const auto [begin, end] = range(g.outputs()[y], outputs[y]);
    for (size_t x = 0; x < inputs.size(); ++x)
      if (const auto [from, to] = range(g.inputs()[x], inputs[x]); from < end && begin < to)
        return true;
  }
  return false;
}

Status CpuExecutable::run_launches(std::span<const void* const> inputs,
                                   std::span<void* const> outputs, RunObserver* observer) {
  ScopedThreads scope(team_);
  for (size_t k = 0; k < inputs_.size(); ++k) inputs_[k].set(const_cast<void*>(inputs[k]));
  for (size_t k = 0; k < outputs_.size(); ++k) outputs_[k].set(outputs[k]);
  launches_ = 0;
  serial_ = false;
  Status status = observer ? run_observed(*observer) : cancel_ ? run_until_stopped() : run_steps();
  if (!status) return status;
  for (const Storage::Copy& c : storage_.copies)
    std::memcpy(outputs[static_cast<size_t>(c.to_output)], address(c.from_slot),
                static_cast<size_t>(c.bytes));
  return {};
}

void CpuExecutable::use_team_of(const Step& s) {
  if (s.serial == serial_) [[likely]]
    return;
  serial_ = s.serial;
  set_threads(serial_ ? 1 : team_);
}

Status CpuExecutable::run_step(Step& s) {
  use_team_of(s);
  return s.hides_nan ? run_hiding(s) : call(s);
}

/// Kernels count themselves.
Status CpuExecutable::call(Step& s) {
  const int64_t before = kernels_called();
  Status status = s.kernel->run();
  launches_ += kernels_called() - before;
  return status;
}

/// The flags are looked at behind the last launch that hides NaN, while its threads are awake, or
/// around each.
Status CpuExecutable::run_hiding(Step& s) {
  Noticing& n = *noticing_;
  const int team = s.serial ? 1 : team_;
  const bool each = n.team > 2;
  if (each) n.watch.begin(team);
  Status status = call(s);
  if (each)
    n.seen |= n.watch.end(team);
  else if (s.last_to_hide)
    n.seen = n.watch.end(n.team);
  return status;
}

Status CpuExecutable::run_steps() {
  for (Step& s : steps_)
    if (Status status = run_step(s); !status) [[unlikely]]
      return status;
  return {};
}

Status CpuExecutable::run_until_stopped() {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (cancel_->stopped())
      return error(Code::cancelled, escape(plan_.layers[layer].name), "time is up");
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k)
      FERRULE_TRY(run_step(steps_[k]));
  }
  return {};
}

Status CpuExecutable::run_observed(RunObserver& observer) {
  using Clock = std::chrono::steady_clock;
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    if (cancel_ && cancel_->stopped())
      return error(Code::cancelled, escape(plan_.layers[layer].name), "time is up");
    const auto start = Clock::now();
    const int64_t before = launches_;
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k)
      FERRULE_TRY(run_step(steps_[k]));
    const auto time = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
    observer.layer_done(layer, static_cast<int>(launches_ - before), time.count());
    if (observer.wants_results()) report_results(layer, observer);
  }
  return {};
}

void CpuExecutable::report_results(size_t layer, RunObserver& observer) const {
  std::vector<ValueId> values;
  std::vector<Tensor> tensors;
  if (!plan_.layers[layer].node) return;
  for (ValueId v : plan_.graph.node(plan_.layers[layer].node).outputs) {
    if (!v || storage_.slot(v, layer) < 0) continue;
    auto o = operand_of(plan_, lowered_, storage_, layer, v);
    if (!o) continue;
    auto [t, p] = Tensor::allocate(o->dtype, o->dims);
    const void* at = address(storage_.slot(v, layer));
    // Elements smaller than a byte lie plain; a copy knows bytes.
    if (o->lies(Layout::plain) && o->dense())
      std::memcpy(p, at, static_cast<size_t>(t.bytes()));
    else
      StridedCopy(o->dims, o->strides(), strides_of(o->dims, Layout::plain),
                  size_bits(o->dtype) / 8)
          .run(at, p);
    values.push_back(v);
    tensors.push_back(t);
  }
  observer.layer_results(layer, values, tensors);
}

std::string CpuExecutable::text() const {
  std::string out = fmt::format("arena {} bytes, packed constants {} bytes\n", storage_.arena_bytes,
                                library_.packed_bytes);
  for (size_t layer = 0; layer < layers_.size(); ++layer)
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k)
      out += fmt::format("{}: {}\n", escape(plan_.layers[layer].name), steps_[k].kernel->text());
  return out;
}

}  // namespace ferrule::cpu
