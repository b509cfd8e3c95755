// Who runs a library launch: a table of implementations for each work, best first, each with
// the rule of thumb that says when it is taken. A tuning file overrides the rules problem by
// problem. Choosing never measures; every implementation refuses what it cannot do, and then the
// next one is asked.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "engine/base/applicable.h"
#include "runtime/cpu/kernel.h"
#include "runtime/tuning.h"

namespace ferrule::cpu {

struct Implementation {
  std::string_view name;
  Factory make;
  /// Whether it is taken without being measured; null: whenever it can.
  bool (*usual)(const Context&, const KernelCall&) = nullptr;
  bool slices = false;  ///< operands may be slices of larger tensors
};
/// Whether the implementation may be asked for this call at all.
inline bool suits(const Implementation& c, const KernelCall& call) {
  return c.slices || call.dense();
}

/// The implementations of a work, best first; the last one is the library's. Empty: no
/// kernel.
std::span<const Implementation> implementations(Work work);

/// Everything that the speed of a launch depends on, as text: operator, types, dims, layouts,
/// attributes, tail, threads, target.
std::string problem_text(const Context& context, const KernelCall& call, int threads);

struct Chosen {
  KernelPtr kernel;
  std::string_view name;
};
/// The implementation that the tuning file names, else the first whose rule holds. Not applicable
/// when all refuse; errors: those of the factories. `note`: why an entry was ignored.
Applicable<Chosen> choose(Context& context, const KernelCall& call, int threads,
                          std::string* note = nullptr);
/// The same as a factory; an ignored entry is logged.
Applicable<KernelPtr> make_chosen(Context& context, const KernelCall& call);

}  // namespace ferrule::cpu
