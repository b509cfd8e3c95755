// A lowered plan bound to memory on the CPU: kernels in launch order with every address in place. A
// run puts the caller's pointers where they are read and calls the kernels one after the other.
// Where launches hide NaN (Launch::hides_nan) and one may have done so, the run is done again by
// another executable of the same plan, lowered without such launches; it is made when it is first
// needed.
#pragma once
#include <unordered_map>
#include <vector>

#include "engine/base/applicable.h"
#include "runtime/backend.h"
#include "runtime/cpu/library.h"
#include "runtime/cpu/nan_watch.h"
#include "runtime/memory_plan.h"

namespace ferrule::cpu {

class CpuExecutable final : public Executable {
 public:
  /// errors: as Backend::prepare.
  static Applicable<std::unique_ptr<Executable>> make(const PrepareContext& context,
                                                      PackCache& packs);

  Status run(std::span<const void* const> inputs, std::span<void* const> outputs,
             RunObserver* observer) override;
  Result<std::vector<Measured>> measure(std::span<const void* const> inputs,
                                        std::span<void* const> outputs, double seconds) override;
  int64_t launches() const override { return launches_; }
  int64_t arena_bytes() const override { return storage_.arena_bytes; }
  int64_t packed_bytes() const override { return library_.packed_bytes; }
  const Storage* storage() const override { return &storage_; }
  std::vector<size_t> interpreted() const override { return interpreted_layers(layers_, steps_); }
  std::string text() const override;

 private:
  /// A place that holds an external pointer: a kernel's cell or an argument of a primitive.
  struct Cell {
    void** where = nullptr;
    dnnl_memory* memory = nullptr;
    int64_t offset = 0;  ///< bytes, of a slice
  };
  struct External {
    void* last = nullptr;
    std::vector<Cell> cells;
    void set(void* p);
  };
  struct Step {
    KernelPtr kernel;
    std::vector<std::pair<std::string, KernelPtr>>
        others;                  ///< with all_candidates: every implementation, by name
    std::string problem, usual;  ///< with all_candidates
    int step = 0;                ///< number among all launches, views included
    bool serial = false;  ///< a library call too small to be split; others decide by their grain
    bool hides_nan = false, last_to_hide = false;
  };
  class SlotBinder;

  CpuExecutable(const PrepareContext& context, PackCache& packs);
  Applicable<> build(const PrepareContext& context);
  Applicable<KernelPtr> make_kernel(Context& context, size_t layer, const Launch& launch,
                                    const LogCallback& log);
  Applicable<> add_candidates(Context& context, size_t layer, const Launch& launch, Step& step);
  Status measure_pass(std::vector<Measured>& rows, size_t turn);
  void hold_weights();
  void give_back_weights(const Launch& launch);
  Result<CpuJit::Compiled> compile_generated(Context& context, DiskCache* cache);
  Status allocate_arena(const Limits& limits, const std::vector<int64_t>& scratch);
  Status run_launches(std::span<const void* const> inputs, std::span<void* const> outputs,
                      RunObserver* observer);
  Result<bool> run_noticing(std::span<const void* const> inputs, std::span<void* const> outputs,
                            RunObserver* observer);
  Status run_exact(std::span<const void* const> inputs, std::span<void* const> outputs,
                   RunObserver* observer);
  bool overwrites_input(std::span<const void* const> inputs, std::span<void* const> outputs) const;
  Status run_steps();
  Status run_until_stopped();
  void use_team_of(const Step& step);
  Status run_step(Step& step);
  Status call(Step& step);
  Status run_hiding(Step& step);
  Status run_observed(RunObserver& observer);
  void report_results(size_t layer, RunObserver& observer) const;
  void* address(int slot) const;

  /// One value of the plan whose bytes a kernel may read without asking; let go when they lie
  /// packed.
  struct Held {
    std::shared_ptr<Residence> residence;
    int readers = 0;  ///< launches, and the model's outputs
    Held(std::shared_ptr<Residence> r) : residence(std::move(r)) { residence->hold(); }
    Held(Held&& other) noexcept = default;
    ~Held() { let_go(); }
    void let_go() {
      if (auto r = std::move(residence)) r->let_go();
    }
  };

  const Lowered& lowered_;
  int threads_ = 0;
  int team_ = 1;         ///< the threads that `threads_` stands for
  bool serial_ = false;  ///< during a run: whether parallel work is off now
  const Cancel* cancel_ = nullptr;
  Library library_;
  Storage storage_;
  std::vector<Step> steps_;
  std::vector<LayerSteps> layers_;
  std::unordered_map<uint32_t, Held> weights_;  ///< by value of the plan
  std::vector<Held> body_weights_;              ///< of groups
  std::shared_ptr<void> arena_;
  std::vector<External> inputs_, outputs_;
  int64_t launches_ = 0;

  /// What is done where launches hide NaN.
  struct Noticing {
    Noticing(const PrepareContext& c, PackCache& p) : context(c), packs(p) {}
    PrepareContext context;  ///< for `exact`
    PackCache& packs;
    int team = 1;  ///< threads of the launches that hide NaN
    NanWatch watch;
    bool seen = false;  ///< in this run
    int penalty = 0,
        left = 0;     ///< runs by `exact` after a NaN, more each time; those still to come
    Lowered lowered;  ///< of `exact`
    std::unique_ptr<Executable> exact;  ///< the plan without launches that hide NaN
  };
  std::unique_ptr<Noticing> noticing_;
};

}  // namespace ferrule::cpu
