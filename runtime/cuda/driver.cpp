#include "runtime/cuda/driver.h"

#include <dlfcn.h>

#include "engine/base/diagnostics.h"

namespace ferrule::cuda {
namespace {

constexpr const char* kPlace = "backend cuda";

/// dlopen fails for a file that is not there, or is no library of this machine; everything else is
/// the driver's word.
Result<Driver> open_driver() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    const char* why = dlerror();
    return error(Code::library_missing, kPlace, "NVIDIA's driver (libcuda.so.1)",
                 escape(why ? why : "no reason given"));
  }
  Driver d;
  std::string missing;
  auto take = [&](auto& f, const char* symbol) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, symbol));
    if (!f && missing.empty()) missing = symbol;
  };
#define FERRULE_CUDA_TAKE(name, suffix, parameters) take(d.name, #name suffix);
  FERRULE_CUDA_DRIVER(FERRULE_CUDA_TAKE)
#undef FERRULE_CUDA_TAKE
  if (!d.cuDriverGetVersion || d.cuDriverGetVersion(&d.version) != kSuccess)
    return error(Code::library_missing, kPlace, "NVIDIA's driver (libcuda.so.1)",
                 "it does not say its version");
  if (d.version < kLeastDriver)
    return error(Code::driver_old, kPlace, version_text(d.version), "ferrule",
                 version_text(kLeastDriver));
  if (!missing.empty())
    return error(Code::library_missing, kPlace, "NVIDIA's driver (libcuda.so.1)",
                 "it has no " + missing);
  const int code = d.cuInit(0);
  if (code == kNoDevice) return error(Code::no_device, kPlace, "cuInit says " + d.text(code));
  if (code) return error(Code::library_failed, kPlace, "cuInit", d.text(code));
  return d;
}

}  // namespace

const Result<Driver>& Driver::get() {
  static const auto* driver = new Result<Driver>(open_driver());
  return *driver;
}

std::string Driver::text(int code) const {
  const char *name = nullptr, *words = nullptr;
  if (cuGetErrorName(code, &name) != kSuccess || !name) name = "CUDA error";
  if (cuGetErrorString(code, &words) != kSuccess || !words) return fmt::format("{} {}", name, code);
  return fmt::format("{} ({})", name, words);
}

std::string version_text(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

bool device_is_lost(int code) {
  switch (code) {
    case 4:    // deinitialized
    case 201:  // invalid context
    case 214:  // uncorrectable ECC error
    case 220:  // uncorrectable NVLink error
    case 226:  // an error that the GPU contained
    case 700:  // illegal address
    case 702:  // launch timeout
    case 709:  // context is destroyed
    case 710:  // assertion
    case 714:  // hardware stack error
    case 715:  // illegal instruction
    case 716:  // misaligned address
    case 717:  // invalid address space
    case 718:  // invalid program counter
    case 719:  // launch failed
    case 721:  // tensor memory that was not given back
    case 810:  // the MPS client is ended
    case 911:  // a device outside of CUDA
    case 999:  // unknown
      return true;
    default:
      return false;
  }
}

}  // namespace ferrule::cuda
