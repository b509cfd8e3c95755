// Times the implementations of every launch where they will run: in the order of the model, on its
// own values, in the memory that the plan gives them. Each pass runs all of them once, beginning
// with another one each time; the fastest of the passes counts, because everything else on the
// machine only adds.
#include <algorithm>
#include <chrono>

#include "runtime/cpu/executable.h"
#include "runtime/cpu/implementations.h"
#include "runtime/parallel.h"
#include "runtime/scoped_threads.h"

namespace ferrule::cpu {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kPasses = 5;  // at least

}  // namespace

/// Every implementation of the launch that does not refuse it; none if there is no choice.
Applicable<> CpuExecutable::add_candidates(Context& context, size_t layer, const Launch& l,
                                           Step& step) {
  const auto all =
      l.kind == Launch::Kind::library ? implementations(l.work) : std::span<const Implementation>{};
  if (all.size() < 2) return {};
  FERRULE_ASSIGN(KernelCall call, call_of(plan_, lowered_, storage_, layer, l));
  for (const Implementation& c : all) {
    if (!suits(c, call)) continue;
    auto made = c.make(context, call);
    if (made)
      step.others.emplace_back(c.name, std::move(*made));
    else if (!made.error().not_applicable())
      return fail(made.error());
  }
  if (step.others.size() < 2) {
    step.others.clear();
    return {};
  }
  Context untuned = context;
  untuned.tuning = nullptr;
  FERRULE_ASSIGN(Chosen usual, choose(untuned, call, threads()));
  step.usual = usual.name;
  step.problem = problem_text(context, call, threads());
  return {};
}

Status CpuExecutable::measure_pass(std::vector<Measured>& rows, size_t turn) {
  size_t row = 0;
  for (Step& s : steps_) {
    use_team_of(s);
    if (s.others.empty()) {
      FERRULE_TRY(s.kernel->run());
      continue;
    }
    Measured& m = rows[row++];
    for (size_t k = 0; k < s.others.size(); ++k) {
      const size_t at = (k + turn) % s.others.size();
      const auto start = Clock::now();
      FERRULE_TRY(s.others[at].second->run());
      const double us = std::chrono::duration<double, std::micro>(Clock::now() - start).count();
      m.microseconds[at].second = std::min(m.microseconds[at].second, us);
    }
  }
  return {};
}

Result<std::vector<Measured>> CpuExecutable::measure(std::span<const void* const> inputs,
                                                     std::span<void* const> outputs,
                                                     double seconds) {
  FERRULE_TRY(run(inputs, outputs, nullptr));  // puts the addresses in place, warms up
  std::vector<Measured> rows;
  for (size_t layer = 0; layer < layers_.size(); ++layer)
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k) {
      const Step& s = steps_[k];
      if (s.others.empty()) continue;
      Measured m{layer, s.problem, s.usual, {}};
      for (const auto& [name, kernel] : s.others)
        m.microseconds.emplace_back(name, std::numeric_limits<double>::infinity());
      rows.push_back(std::move(m));
    }
  if (rows.empty()) return rows;
  const ScopedThreads scope(team_);  // scratch is for these
  serial_ = false;
  const auto begin = Clock::now();
  for (size_t turn = 0;
       turn < kPasses || std::chrono::duration<double>(Clock::now() - begin).count() < seconds;
       ++turn)
    FERRULE_TRY(measure_pass(rows, turn));
  return rows;
}

}  // namespace ferrule::cpu
