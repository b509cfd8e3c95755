// Times every plan that a library has for a launch, and every shape of a generated one, for
// `ferrule tune`: on the values that a run left, at the addresses that the run uses, plan after
// plan, because to change a plan may compile one. The fastest of many launches between two events
// counts: everything else on the machine only adds.
#include <algorithm>
#include <chrono>
#include <limits>
#include <set>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/executable.h"
#include "runtime/cuda/kernels/generated.h"

namespace ferrule::cuda {
namespace {

using Clock = std::chrono::steady_clock;
constexpr int kLaunches = 5;  // at least, of each plan
constexpr double kUnknown = std::numeric_limits<double>::infinity();

/// A plan may want more scratch than the one that the arena was planned for.
class OtherScratch final : public Binder {
 public:
  OtherScratch(Binder& slots, Address scratch) : slots_(slots), scratch_(scratch) {}
  Address slot(int slot) override { return slots_.slot(slot); }
  Address scratch() override { return scratch_; }

 private:
  Binder& slots_;
  Address scratch_;
};

}  // namespace

Status CudaExecutable::rebind(Step& step, Address scratch) {
  SlotBinder own(*this, step.step);
  OtherScratch other(own, scratch);
  FERRULE_TRY(step.kernel->bind(scratch ? static_cast<Binder&>(other) : own));
  return std::move(own.problem);
}

/// Microseconds of the step as it is bound, for about so many seconds.
Result<double> CudaExecutable::fastest(Step& step, double seconds) {
  const Driver& api = device_.api();
  FERRULE_TRY(step.kernel->enqueue(stream_));
  double best = kUnknown;
  const auto begin = Clock::now();
  for (int n = 0;
       n < kLaunches || std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
       ++n) {
    float ms = 0;
    FERRULE_TRY(device_.check(api.cuEventRecord(started_, stream_), "cuEventRecord", "measuring"));
    FERRULE_TRY(step.kernel->enqueue(stream_));
    FERRULE_TRY(device_.check(api.cuEventRecord(stopped_, stream_), "cuEventRecord", "measuring"));
    FERRULE_TRY(device_.wait(stream_, "measuring"));
    FERRULE_TRY(device_.check(api.cuEventElapsedTime(&ms, started_, stopped_), "cuEventElapsedTime",
                              "measuring"));
    best = std::min(best, double{ms} * 1e3);
  }
  return best;
}

/// Every plan that can be built and runs; the first is the one that is taken without a tuning file.
Status CudaExecutable::measure(Step& step, Tunable& tunable, double seconds, Measured& out) {
  const std::vector<std::string> names = tunable.candidates();
  for (const std::string& name : names) {
    if (cancel_ && cancel_->stopped()) return error(Code::cancelled, "measuring", "time is up");
    if (!tunable.choose(name)) continue;
    auto scratch =
        Buffer::make(device_, step.kernel->scratch_bytes() + kScratchAlignment, "measuring");
    if (!scratch && scratch.error().code == Code::device_memory) continue;
    if (!scratch) return fail(scratch.error());
    FERRULE_TRY(rebind(step, scratch->address()));
    auto us = fastest(step, seconds / static_cast<double>(names.size()));
    // A plan that the library does not run after all is no choice; its work must be over before its
    // scratch is.
    FERRULE_TRY(device_.wait(stream_, "measuring"));
    if (!us) continue;
    out.microseconds.emplace_back(name, *us);
  }
  return {};
}

Result<std::vector<Measured>> CudaExecutable::measure(std::span<const void* const> inputs,
                                                      std::span<void* const> outputs,
                                                      double seconds) {
  Entered entered(device_);
  FERRULE_TRY(std::move(entered.status));
  FERRULE_TRY(run(inputs, outputs, nullptr));
  struct Row {
    size_t layer = 0;
    Step* step = nullptr;
    Tunable* tunable = nullptr;
  };
  std::vector<Row> todo;
  std::set<std::string> seen;
  for (size_t layer = 0; layer < layers_.size(); ++layer)
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k)
      if (auto* t = dynamic_cast<Tunable*>(steps_[k].kernel.get());
          t && t->candidates().size() > 1 && seen.insert(t->problem()).second)
        todo.push_back({layer, &steps_[k], t});
  on_compilers(todo.size(), [&](size_t k) { todo[k].tunable->prepare_choices(); });
  std::vector<Measured> rows;
  for (const Row& r : todo) {
    const std::string chosen = r.tunable->chosen();
    Measured m{r.layer, r.tunable->problem(), "", {}};
    Status status = measure(*r.step, *r.tunable, seconds / static_cast<double>(todo.size()), m);
    // As it was, whatever happened: graphs that were captured use its addresses.
    FERRULE_TRY(required(r.tunable->choose(chosen)));
    FERRULE_TRY(rebind(*r.step, 0));
    // Another layer's values may lie where its indices did: what it says of them is nothing.
    (void)r.step->kernel->finish();
    FERRULE_TRY(std::move(status));
    if (m.microseconds.size() < 2) continue;
    m.usual = m.microseconds[0].first;
    rows.push_back(std::move(m));
  }
  return rows;
}

}  // namespace ferrule::cuda
