#include "runtime/registry.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <chrono>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <filesystem>
#include <map>
#include <mutex>

#include "engine/base/diagnostics.h"
#include "engine/base/environment.h"
#include "runtime/abi.h"
#include "runtime/null/backend.h"
#include "runtime/reference/backend.h"

namespace ferrule {
namespace {

/// Folder of the library or program this code is in; backends lie beside it.
std::string own_folder() {
  Dl_info info{};
  static const char anchor = 0;
  if (!dladdr(&anchor, &info) || !info.dli_fname) return ".";
  std::error_code ec;
  auto path = std::filesystem::weakly_canonical(info.dli_fname, ec);
  return ec ? "." : path.parent_path().string();
}

/// Rounds of libgomp's waiting loop in 50 microseconds: one takes 10 to 40 nanoseconds, by the
/// processor.
int64_t spin_rounds() {
#ifdef __x86_64__
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 64;
  double least = 1e9;
  for (int k = 0; k < 16; ++k) {
    const auto start = Clock::now();
    for (int n = 0; n < kRounds; ++n) __builtin_ia32_pause();
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count() / kRounds);
  }
  return std::clamp<int64_t>(static_cast<int64_t>(50e-6 / std::max(least, 1e-10)), 1000, 10000);
#else
  return 1000;
#endif
}

/// How long libgomp's idle threads spin before they sleep. Its default is milliseconds: whoever
/// waits at a barrier for a thread that another program keeps off its core then holds the core that
/// thread could run on, and a run takes a hundred times as long. Tens of microseconds bridge the
/// gap between two layers just as well; less than that does not (on a virtual machine a thread that
/// sleeps takes as long to wake up). libgomp reads it once, when the backend brings it in; the
/// user's own choice stays.
void limit_spinning() {
  if (!environment(Variable::spin_count).empty() || !environment(Variable::wait_policy).empty())
    return;
  setenv("GOMP_SPINCOUNT", std::to_string(spin_rounds()).c_str(), 0);
}

Result<std::unique_ptr<Backend>> open_library(const std::string& name) {
  limit_spinning();
  const std::string file = "libferrule_" + name + ".so";
  std::string path = own_folder() + "/" + file;
  if (std::error_code ec; !std::filesystem::exists(path, ec))
    path = file;  // then the system's search path
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return error(Code::library_missing, "backend " + name, file, dlerror());
  auto open = reinterpret_cast<ferrule_backend_open_fn>(dlsym(handle, "ferrule_backend_open"));
  if (!open)
    return error(Code::library_missing, "backend " + name, path, "it has no ferrule_backend_open");
  const ferrule_backend_entry* entry = open(backend_abi_hash());
  if (!entry || entry->abi_hash != backend_abi_hash())
    return error(Code::library_missing, "backend " + name, path,
                 "it belongs to another build of ferrule");
  return std::unique_ptr<Backend>(entry->create());
}

/// Opened libraries stay open until the process ends: their code may be in use.
Result<Backend*> open_once(const std::string& name) {
  static std::mutex mutex;
  static auto* backends = new std::map<std::string, std::unique_ptr<Backend>>();
  std::lock_guard lock(mutex);
  if (auto it = backends->find(name); it != backends->end()) return it->second.get();
  std::unique_ptr<Backend> b;
  if (name == "reference") {
    b = make_reference_backend();
  } else if (name == "null") {
    b = make_null_backend();
  } else {
    FERRULE_ASSIGN(b, open_library(name));
  }
  return ((*backends)[name] = std::move(b)).get();
}

/// "sm_86" -> 86; 0 for what is no GPU's target.
int compute_capability(std::string_view target) {
  int cc = 0;
  if (!target.starts_with("sm_")) return 0;
  std::from_chars(target.data() + 3, target.data() + target.size(), cc);
  return cc;
}

/// The device's own target, else the newest of its generation that it runs; for a generation that
/// came after them all, the newest.
std::string nearest_target(const std::string& device, const std::vector<std::string>& known) {
  const int own = compute_capability(device);
  int best = 0, newest = 0;
  for (const std::string& name : known) {
    const int cc = compute_capability(name);
    newest = std::max(newest, cc);
    if (cc <= own && cc / 10 == own / 10) best = std::max(best, cc);
  }
  if (!best && newest / 10 < own / 10) best = newest;
  return best ? fmt::format("sm_{}", best) : device;
}

/// A plan for another generation than the device's is a mistake, where a target is of the device's.
Status fits_device(const Backend& cuda, const std::string& target,
                   const std::vector<std::string>& known) {
  const std::string device = cuda.device_target(), nearest = nearest_target(device, known);
  if (compute_capability(target) / 10 == compute_capability(nearest) / 10) return {};
  return error(Code::wrong_device, "backend cuda", escape(target), device, cuda.device_name());
}

constexpr const char* kBackends[] = {"cpu", "cuda", "reference", "null"};

}  // namespace

Status check_backend(std::string_view name) {
  if (name == "auto" || std::ranges::find(kBackends, name) != std::end(kBackends)) return {};
  return error(Code::usage, "--backend",
               "no backend " + escape(name) + "; there are auto, cpu, cuda, reference, null");
}

Result<Backend*> open_backend(std::string_view name) {
  FERRULE_TRY(check_backend(name));
  return open_once(std::string(name));
}

Result<Backend*> find_backend(std::string_view name) {
  if (name == "auto") {
    if (auto cpu = find_backend("cpu")) return cpu;
    return find_backend("reference");
  }
  FERRULE_ASSIGN(Backend * b, open_backend(name));
  FERRULE_TRY(b->available());
  return b;
}

Result<BackendChoice> choose_backend(std::string_view name, const std::string& target,
                                     bool require_device, const std::vector<std::string>& known) {
  BackendChoice choice{nullptr, target, ""};
  const bool automatic = name == "auto", for_gpu = compute_capability(target) > 0;
  if (require_device && !automatic && name != "cuda")
    return error(Code::usage, "--require-device", "backend " + escape(name) + " runs on no GPU");
  if (require_device && !target.empty() && !for_gpu)
    return error(Code::usage, "--require-device", "target " + escape(target) + " is no GPU's");
  if (name == "cuda" || (automatic && (target.empty() || for_gpu))) {
    auto cuda = find_backend("cuda");
    if (cuda) {
      choice.backend = *cuda;
      if (for_gpu) FERRULE_TRY(fits_device(**cuda, target, known));
      if (target.empty()) choice.target = nearest_target((*cuda)->device_target(), known);
      return choice;
    }
    if (!automatic || require_device) return fail(cuda.error());
    // Most machines have no GPU, and nobody asked for one.
    auto opened = open_backend("cuda");
    const bool there = opened && !(*opened)->device_name().empty();
    const bool none =
        cuda.error().code == Code::library_missing || cuda.error().code == Code::no_device;
    if (for_gpu || there || !none)
      choice.warning = fmt::format("no GPU runs the model: {}", cuda.error().message);
  }
  FERRULE_ASSIGN(choice.backend, find_backend(name));
  if (choice.warning.empty()) return choice;
  choice.target.clear();
  choice.warning +=
      fmt::format("; backend {} runs it, planned for this processor", choice.backend->name());
  return choice;
}

std::vector<BackendState> backend_states() {
  std::vector<BackendState> states;
  for (const char* name : kBackends) {
    auto b = find_backend(name);
    states.push_back({name, b ? Status{} : Status(fail(b.error()))});
  }
  return states;
}

}  // namespace ferrule
