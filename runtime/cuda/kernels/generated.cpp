// Generated kernels: the launch as codegen/cuda_launch plans it, its cubin, its arguments made once. The source carries no
// names of the model here (`ferrule compile` writes them), so that equal kernels are compiled once.
#include "runtime/cuda/kernels/generated.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/device.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
namespace {

constexpr const char* kEntry = "ferrule_kernel";
constexpr size_t kCompilers = 16;

class Generated final : public Kernel {
 public:
  Generated(Context& context, const Call& call, CudaLaunch launch)
      : device_(context.device), layer_(escape(call.layer)), launch_(std::move(launch)) {}

  Status prepare(Context& context, const Call& call) {
    for (const auto* list : {&call.inputs, &call.outputs})
      for (const Operand& o : *list) {
        slots_.push_back(o.slot);
        addresses_.push_back(0);
        if (!o.constant) continue;
        FERRULE_ASSIGN(addresses_.back(), context.constants.plain(*o.constant));
      }
    if (launch_.blocks == 0) return {};
    const int threads = launch_.threads_x * launch_.threads_y;
    FERRULE_ASSIGN(function_, device_.function(launch_.source, launch_.entry, context.target->name, threads, context.cache, layer_));
    FERRULE_ASSIGN(const Cubin* cubin, device_.cubin(launch_.source, launch_.entry, context.target->name, threads, context.cache));
    spill_ = spill_warning(*cubin);
    if (!spill_.empty() && *context.log) (*context.log)(LogLevel::warning, layer_ + ": " + spill_);
    if (launch_.scratch_bytes == 0) return {};
    // Not of the arena: what it holds must last from run to run. Faults are the host's memory, which no copy must fetch.
    if (launch_.complaint) {
      FERRULE_ASSIGN(faults_, Pinned::make(device_, launch_.scratch_bytes, layer_));
      addresses_.push_back(faults_.address());
    } else {
      FERRULE_ASSIGN(scratch_, Buffer::make(device_, launch_.scratch_bytes, layer_, true));
      addresses_.push_back(scratch_.address());
    }
    return {};
  }

  Status bind(Binder& binder) override {
    for (size_t k = 0; k < slots_.size(); ++k)
      if (slots_[k] >= 0) addresses_[k] = binder.slot(slots_[k]);
    arguments_ = launch_.arguments(addresses_);
    return {};
  }

  Status enqueue(Stream stream) override {
    if (launch_.blocks == 0) return {};
    return device_.launch(function_, launch_.blocks, launch_.threads_x, launch_.threads_y, arguments_, stream, layer_);
  }

  Status finish() override {
    if (!launch_.complaint) return {};
    const auto size = static_cast<size_t>(launch_.scratch_bytes);
    const std::string what = launch_.complaint({faults_.data(), size});
    if (what.empty()) return {};
    std::fill_n(faults_.data(), size, 0);
    return error(Code::bad_shape, layer_, what);
  }

  std::string text() const override {
    return fmt::format("generated {} <<<{}, {}x{}>>>{}{}", launch_.kind, launch_.blocks, launch_.threads_x, launch_.threads_y,
                       spill_.empty() ? "" : ", warning: ", spill_);
  }

 private:
  Device& device_;
  std::string layer_;
  CudaLaunch launch_;
  Function function_ = nullptr;
  std::string spill_;           ///< a warning
  std::vector<int> slots_;
  std::vector<Address> addresses_;
  std::string arguments_;
  Buffer scratch_;
  Pinned faults_;
};

}  // namespace

Result<CudaLaunch> plan_generated(const Context& context, const Launch& launch, const Call& call) {
  return plan_gpu_launch(launch, call, *context.target, kEntry);
}

void compile_generated(Context& context, std::span<const CudaLaunch> launches) {
  std::set<std::string_view> seen;
  std::vector<const CudaLaunch*> todo;
  for (const CudaLaunch& l : launches)
    if (l.blocks && seen.insert(l.source).second) todo.push_back(&l);
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t k; (k = next++) < todo.size();)
      (void)context.device.cubin(todo[k]->source, todo[k]->entry, context.target->name, todo[k]->threads_x * todo[k]->threads_y, context.cache);
  };
  std::vector<std::thread> threads;
  const size_t wanted = std::min({todo.size(), kCompilers, size_t{std::max(1u, std::thread::hardware_concurrency())}});
  for (size_t k = 1; k < wanted; ++k) threads.emplace_back(work);
  work();
  for (std::thread& t : threads) t.join();
}

Result<KernelPtr> make_generated(Context& context, const Launch& launch, const Call& call) {
  auto make = [&]() -> Result<KernelPtr> {
    FERRULE_ASSIGN(CudaLaunch planned, plan_generated(context, launch, call));
    auto kernel = std::make_unique<Generated>(context, call, std::move(planned));
    FERRULE_TRY(kernel->prepare(context, call));
    return kernel;
  };
  auto made = make();
  // Codegen knows the kernel, not the layer.
  if (!made && (made.error().place.empty() || made.error().place == kEntry)) made.error().place = escape(call.layer);
  return made;
}

}  // namespace ferrule::cuda
