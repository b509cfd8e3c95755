#include "codegen/cpu/kernel.h"

#include <array>
#include <bit>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

constexpr auto kTargets = std::to_array<CpuIsa>({
    {"cpu-avx2", "x86-64-v3", 32},
    {"cpu-avx512", "x86-64-v4", 64},
});

template <class T>
void append(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

Result<CpuIsa> cpu_isa(std::string_view target) {
  std::string known;
  for (const CpuIsa& isa : kTargets) {
    if (isa.target == target) return isa;
    known += (known.empty() ? "" : ", ") + std::string(isa.target);
  }
  Error e = error(Code::unknown_target, "generated kernel", escape(target), known).value();
  e.message =
      fmt::format("{} is a target to plan for: code is made for {} alone", escape(target), known);
  e.hint = fmt::format(
      "to run it, call its file targets/{}.yaml: `like: {}` there takes over what it replaces",
      kTargets.back().target, kTargets.back().target);
  return tl::unexpected(std::move(e));
}

InnerStride inner_stride(int64_t step, int element_bytes) {
  if (step == 0) return InnerStride::broadcast;
  if (step == element_bytes) return InnerStride::contiguous;
  // Shorter elements have no masked stores everywhere.
  return step == 2 * element_bytes && element_bytes >= 4 ? InnerStride::second
                                                         : InnerStride::strided;
}

std::string identity(const Program& program) {
  std::string out;
  append(out, program.inputs.size());
  for (DType t : program.inputs) append(out, t);
  append(out, program.insts.size());
  for (const Inst& in : program.insts) {
    append(out, in.op);
    append(out, in.type);
    for (uint32_t a : in.args) append(out, a);
    append(out, in.index);
    append(out, std::bit_cast<uint64_t>(in.f));
    append(out, in.i);
  }
  append(out, program.outputs.size());
  for (uint32_t o : program.outputs) append(out, o);
  return out;
}

std::string identity(const KernelKey& key) {
  std::string out = key.target + (key.non_temporal ? "!" : ";") + identity(key.program);
  for (InnerStride s : key.inner) append(out, s);
  for (Fold f : key.folds) append(out, f);
  out += key.fold_outer ? "|" : "-";
  return out;
}

}  // namespace ferrule
