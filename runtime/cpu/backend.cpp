// The CPU backend's one C entry: oneDNN for the heavy operators, generated kernels for the rest.
#include "runtime/abi.h"
#include "runtime/cpu/executable.h"

namespace ferrule::cpu {
namespace {

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  Applicable<std::unique_ptr<Executable>> prepare(const PrepareContext& context) override {
    return CpuExecutable::make(context, packs_);
  }

 private:
  PackCache packs_;
};

}  // namespace

std::unique_ptr<Backend> make_cpu_backend() { return std::make_unique<CpuBackend>(); }

}  // namespace ferrule::cpu

extern "C" __attribute__((visibility("default"))) const ferrule_backend_entry* ferrule_backend_open(
    uint64_t abi_hash) {
  static const ferrule_backend_entry entry{ferrule::backend_abi_hash(), []() -> ferrule::Backend* {
                                             return ferrule::cpu::make_cpu_backend().release();
                                           }};
  return abi_hash == entry.abi_hash ? &entry : nullptr;
}
