// Generated kernels: the launch as codegen/cuda/launch plans it, its cubin, its arguments made
// once; in another shape where the tuning file names one or `tune` tries them. The source carries
// no names of the model here (`ferrule compile` writes them), so that equal kernels are compiled
// once.
#include "runtime/cuda/kernels/generated.h"

#include <algorithm>
#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/device.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
namespace {

constexpr size_t kCompilers = 16;

Result<CodePtr> compile(Device& device, const Target& target, const CudaLaunch& l,
                        DiskCache* cache) {
  FERRULE_ASSIGN(const NvrtcInfo nvrtc, nvrtc_info());
  const std::string architecture =
      loadable_architecture(target.name, device.info().capability(), nvrtc.architectures);
  return device.code(l.source, l.entry, architecture, cache);
}

/// A launch in one shape, loaded, with its memory.
struct Loaded {
  CudaLaunch launch;
  CodePtr code;
  Function function = nullptr;
  Buffer scratch;
  Pinned faults;
  std::string spill;  ///< a warning
  Address scratch_address() const {
    return launch.complaint ? faults.address() : scratch.address();
  }
};

class Generated final : public Kernel, public Tunable {
 public:
  Generated(Context& context, const Launch& launch, const KernelCall& call)
      : device_(context.device),
        target_(*context.target),
        launch_(launch),
        call_(call),
        layer_(escape(call.layer)) {}

  Applicable<> prepare(Context& context, CudaLaunch planned) {
    for (const auto* list : {&call_.inputs, &call_.outputs})
      for (const Operand& o : *list) {
        addresses_.push_back(0);
        if (!o.constant) continue;
        FERRULE_ASSIGN(addresses_.back(), context.constants.plain(*o.constant));
      }
    addresses_.resize(addresses_.size() + 2);
    FERRULE_TRY(load(std::move(planned), context.cache));
    if (!now_->spill.empty() && *context.log)
      (*context.log)(LogLevel::warning, layer_ + ": " + now_->spill);
    return {};
  }

  Status bind(Binder& binder) override {
    size_t k = 0;
    for (const auto* list : {&call_.inputs, &call_.outputs})
      for (const Operand& o : *list) {
        if (o.slot >= 0) addresses_[k] = binder.slot(o.slot);
        ++k;
      }
    addresses_[k] = now_->scratch_address();
    arguments_.clear();
    for (int pass = 0; pass < now_->launch.passes; ++pass) {
      addresses_.back() = static_cast<Address>(pass);
      arguments_.push_back(now_->launch.arguments(addresses_));
    }
    return {};
  }

  Status enqueue(Stream stream) override {
    const CudaLaunch& l = now_->launch;
    if (l.blocks == 0) return counted({});  // nothing to do, and one step of the plan all the same
    for (std::string& a : arguments_)
      FERRULE_TRY(counted(
          device_.launch(now_->function, l.blocks, l.threads_x, l.threads_y, a, stream, layer_)));
    return {};
  }

  Status finish() override {
    if (!now_->launch.complaint) return {};
    const auto size = static_cast<size_t>(now_->launch.scratch_bytes);
    const std::string what = now_->launch.complaint({now_->faults.data(), size});
    if (what.empty()) return {};
    std::fill_n(now_->faults.data(), size, 0);
    return error(Code::bad_shape, layer_, what);
  }

  std::string text() const override {
    const CudaLaunch& l = now_->launch;
    return fmt::format("generated {} {} <<<{}, {}x{}>>>{}{}{}", l.kind, l.shape, l.blocks,
                       l.threads_x, l.threads_y,
                       l.passes > 1 ? fmt::format(", {} times", l.passes) : "",
                       now_->spill.empty() ? "" : ", warning: ", now_->spill);
  }

  std::string problem() const override { return now_->launch.problem; }
  /// Nothing to do has one.
  std::vector<std::string> candidates() const override {
    return now_->launch.blocks ? now_->launch.shapes : std::vector{now_->launch.shape};
  }
  std::string chosen() const override { return now_->launch.shape; }

  Applicable<> choose(std::string_view candidate) override {
    if (auto it = loaded_.find(candidate); it != loaded_.end()) {
      now_ = &it->second;
      return {};
    }
    FERRULE_ASSIGN(CudaLaunch other, plan(candidate));
    return load(std::move(other), nullptr);
  }

  void prepare_choices() override {
    for (const std::string& shape : candidates()) {
      if (loaded_.contains(shape)) continue;
      auto l = plan(shape);
      if (!l) continue;
      if (auto code = compile(device_, target_, *l, nullptr)) prepared_.push_back(std::move(*code));
    }
  }

 private:
  Applicable<CudaLaunch> plan(std::string_view shape) const {
    Tuning one;
    one.problems[problem()].use = shape;
    return plan_gpu_launch(launch_, call_, target_, kGeneratedEntry, &one);
  }

  /// Whatever is loaded stays, its scratch too: graphs that were captured use it. The scratch is
  /// none of the arena's: what it holds must last from run to run. Faults are the host's memory,
  /// which no copy must fetch.
  Applicable<> load(CudaLaunch planned, DiskCache* cache) {
    Loaded l;
    l.launch = std::move(planned);
    if (l.launch.blocks) {
      FERRULE_ASSIGN(l.code, compile(device_, target_, l.launch, cache));
      FERRULE_ASSIGN(l.function, l.code->function(layer_));
      l.spill = spill_warning(l.code->cubin());
      if (l.launch.complaint) {
        FERRULE_ASSIGN(l.faults, Pinned::make(device_, l.launch.scratch_bytes, layer_));
      } else if (l.launch.scratch_bytes) {
        FERRULE_ASSIGN(l.scratch, Buffer::make(device_, l.launch.scratch_bytes, layer_, true));
      }
    } else {
      l.launch.complaint = nullptr;
    }
    const std::string shape = l.launch.shape;
    now_ = &loaded_.insert_or_assign(shape, std::move(l)).first->second;
    return {};
  }

  Device& device_;
  const Target& target_;
  const Launch& launch_;  ///< of the lowered plan, which outlives its executables
  const KernelCall call_;
  std::string layer_;
  std::map<std::string, Loaded, std::less<>> loaded_;  ///< by shape
  Loaded* now_ = nullptr;
  std::vector<CodePtr> prepared_;       ///< of other shapes, until they are loaded
  std::vector<Address> addresses_;      ///< of the operands, the scratch, then a pass
  std::vector<std::string> arguments_;  ///< of each pass
};

}  // namespace

namespace {

/// Codegen knows the kernel, not the layer.
template <class T>
Applicable<T> of_layer(Applicable<T> made, const KernelCall& call) {
  if (!made && (made.error().place().empty() || made.error().place() == kGeneratedEntry))
    made.error().set_place(escape(call.layer));
  return made;
}

}  // namespace

Applicable<PlannedLaunch> plan_generated(const Context& context, const Launch& launch,
                                         const KernelCall& call) {
  PlannedLaunch out;
  auto planned = of_layer(
      plan_gpu_launch(launch, call, *context.target, kGeneratedEntry, context.tuning, &out.note),
      call);
  FERRULE_ASSIGN(out.launch, std::move(planned));
  return out;
}

std::vector<CodePtr> compile_generated(Context& context,
                                       std::span<const CudaLaunch* const> launches) {
  std::set<std::string_view> seen;
  std::vector<const CudaLaunch*> todo;
  for (const CudaLaunch* l : launches)
    if (l->blocks && seen.insert(l->source).second) todo.push_back(l);
  std::vector<CodePtr> out(todo.size());
  on_compilers(todo.size(), [&](size_t k) {
    if (auto made = compile(context.device, *context.target, *todo[k], context.cache))
      out[k] = std::move(*made);
  });
  return out;
}

void on_compilers(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  auto turn = [&] {
    for (size_t k; (k = next++) < count;) work(k);
  };
  std::vector<std::thread> threads;
  const size_t wanted =
      std::min({count, kCompilers, size_t{std::max(1u, std::thread::hardware_concurrency())}});
  for (size_t k = 1; k < wanted; ++k) threads.emplace_back(turn);
  turn();
  for (std::thread& t : threads) t.join();
}

Applicable<KernelPtr> make_planned(Context& context, const Launch& launch, const KernelCall& call,
                                   PlannedLaunch planned) {
  if (context.log && *context.log && !planned.note.empty())
    (*context.log)(LogLevel::warning, fmt::format("{}: {}", escape(call.layer), planned.note));
  auto kernel = std::make_unique<Generated>(context, launch, call);
  FERRULE_TRY(of_layer(kernel->prepare(context, std::move(planned.launch)), call));
  return kernel;
}

Applicable<KernelPtr> make_generated(Context& context, const Launch& launch,
                                     const KernelCall& call) {
  FERRULE_ASSIGN(PlannedLaunch planned, plan_generated(context, launch, call));
  return make_planned(context, launch, call, std::move(planned));
}

}  // namespace ferrule::cuda
