#include "codegen/cuda/nvrtc.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <charconv>
#include <iterator>
#include <map>
#include <mutex>
#include <optional>
#include <regex>

#include "codegen/cache.h"
#include "codegen/cuda/library_places.h"
#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// The few functions used, declared here so that no CUDA header is needed to build.
struct Nvrtc {
  using Handle = void*;
  int (*version)(int*, int*);
  int (*arch_count)(int*);
  int (*archs)(int*);
  int (*create)(Handle*, const char*, const char*, int, const char* const*, const char* const*);
  int (*destroy)(Handle*);
  int (*compile)(Handle, int, const char* const*);
  int (*log_size)(Handle, size_t*);
  int (*log)(Handle, char*);
  int (*cubin_size)(Handle, size_t*);
  int (*cubin)(Handle, char*);
  int (*ptx_size)(Handle, size_t*);
  int (*ptx)(Handle, char*);
  const char* (*text)(int);
  NvrtcInfo info;
};

std::atomic<int> newest_wanted = 0;  ///< 0: any

/// errors: library_missing.
Result<Nvrtc> functions_of(void* library, const std::string& path) {
  Nvrtc n{};
  n.info.path = path;
  std::string missing;
  auto take = [&](auto& f, const char* symbol) {
    f = reinterpret_cast<std::remove_reference_t<decltype(f)>>(dlsym(library, symbol));
    if (!f) missing = symbol;
  };
  take(n.version, "nvrtcVersion");
  take(n.arch_count, "nvrtcGetNumSupportedArchs");
  take(n.archs, "nvrtcGetSupportedArchs");
  take(n.create, "nvrtcCreateProgram");
  take(n.destroy, "nvrtcDestroyProgram");
  take(n.compile, "nvrtcCompileProgram");
  take(n.log_size, "nvrtcGetProgramLogSize");
  take(n.log, "nvrtcGetProgramLog");
  take(n.cubin_size, "nvrtcGetCUBINSize");
  take(n.cubin, "nvrtcGetCUBIN");
  take(n.ptx_size, "nvrtcGetPTXSize");
  take(n.ptx, "nvrtcGetPTX");
  take(n.text, "nvrtcGetErrorString");
  if (!missing.empty())
    return error(Code::library_missing, "", path, fmt::format("it has no {}", missing));
  n.version(&n.info.major, &n.info.minor);
  int count = 0;
  if (n.arch_count(&count) == 0 && count > 0) {
    n.info.architectures.resize(count);
    n.archs(n.info.architectures.data());
  }
  return n;
}

/// The first that the driver takes, else the first that there is.
Result<Nvrtc> open_library() {
  std::string why;
  std::optional<Nvrtc> newer;
  for (const char* name : {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"})
    for (const std::string& place : library_places(name)) {
      void* library = dlopen(place.c_str(), RTLD_NOW | RTLD_LOCAL);
      if (!library) {
        const char* text = dlerror();
        if (why.empty() && text) why = text;
        continue;
      }
      FERRULE_ASSIGN(Nvrtc n, functions_of(library, place));
      if (newest_wanted == 0 || n.info.major <= newest_wanted) return n;
      if (!newer) newer = std::move(n);
    }
  if (newer) return std::move(*newer);
  return error(Code::library_missing, "", "NVRTC (libnvrtc.so.13 or .12)", why);
}

const Result<Nvrtc>& nvrtc() {
  static std::mutex mutex;
  static auto* by_driver = new std::map<int, Result<Nvrtc>>();
  const std::lock_guard lock(mutex);
  auto it = by_driver->find(newest_wanted);
  if (it == by_driver->end()) it = by_driver->emplace(newest_wanted.load(), open_library()).first;
  return it->second;
}

int number_before(const std::string& log, const char* pattern) {
  std::smatch m;
  return std::regex_search(log, m, std::regex(pattern)) ? std::stoi(m[1]) : 0;
}

/// "Used 16 registers, 48 bytes smem" and "0 bytes spill stores, 0 bytes spill loads", as ptxas
/// says it.
void read_log(Cubin& c) {
  c.registers = number_before(c.log, "Used ([0-9]+) registers");
  c.spill_bytes = number_before(c.log, "([0-9]+) bytes spill stores") +
                  number_before(c.log, "([0-9]+) bytes spill loads");
  c.stack_bytes = number_before(c.log, "([0-9]+) bytes stack frame");
  c.shared_bytes = number_before(c.log, "([0-9]+) bytes smem");
}

constexpr std::string_view kVirtual = "compute_";

/// "sm_90", "compute_90": 90; 0 for what is neither.
int capability(std::string_view target) {
  int cc = 0;
  const size_t name = target.starts_with("sm_") ? 3 : target.starts_with(kVirtual) ? 8 : 0;
  const char* end = target.data() + target.size();
  return name && std::from_chars(target.data() + name, end, cc).ptr == end ? cc : 0;
}

Status known_architecture(std::string_view target, const NvrtcInfo& info) {
  const int cc = capability(target);
  std::string known;
  for (int a : info.architectures) known += fmt::format("{}sm_{}", known.empty() ? "" : ", ", a);
  if (!cc) return error(Code::unknown_target, "CUDA kernel", escape(target), known);
  if (!info.architectures.empty() && !contains(info.architectures, cc))
    return error(Code::arch_unsupported, "CUDA kernel",
                 fmt::format("NVRTC {}.{}", info.major, info.minor), target, known);
  return {};
}

/// No contraction and no approximation: the same results as the CPU's kernels.
constexpr const char* kOptions[] = {"--std=c++17",     "--fmad=false",     "--ftz=false",
                                    "--prec-div=true", "--prec-sqrt=true", "--ptxas-options=-v"};

/// Everything that the machine code depends on.
std::string cache_key(const NvrtcInfo& info, std::string_view target, const std::string& entry,
                      const std::string& source) {
  std::string out = fmt::format("cubin by NVRTC {}.{} for {}\n", info.major, info.minor, target);
  for (const char* option : kOptions) out += fmt::format("{} ", option);
  return out + "\n" + entry + "\n" + source;
}

/// What ptxas said, then the code.
std::string to_payload(const Cubin& c) {
  return fmt::format("{}\n{}{}", c.log.size(), c.log, c.bytes);
}
std::optional<Cubin> from_payload(const std::string& payload) {
  Cubin out;
  size_t log = 0;
  const char* end = payload.data() + payload.size();
  const auto [at, wrong] = std::from_chars(payload.data(), end, log);
  if (wrong != std::errc() || at == end || *at != '\n' || static_cast<size_t>(end - at - 1) < log)
    return std::nullopt;
  out.log.assign(at + 1, log);
  out.bytes.assign(at + 1 + log, end);
  read_log(out);
  return out;
}

}  // namespace

int occupancy(const Cubin& c, const Target& target, int block_threads) {
  constexpr int kRegisters = 65536, kWarpGrain = 256, kWarp = 32;
  const int warps = (block_threads + kWarp - 1) / kWarp;
  const int per_warp =
      (std::max(c.registers, 1) * kWarp + kWarpGrain - 1) / kWarpGrain * kWarpGrain;
  int blocks = std::min({target.blocks_per_core, target.threads_per_core / block_threads,
                         kRegisters / (per_warp * warps)});
  if (c.shared_bytes > 0) blocks = std::min(blocks, target.shared_bytes_per_core / c.shared_bytes);
  return 100 * blocks * block_threads / std::max(target.threads_per_core, 1);
}

std::string spill_warning(const Cubin& c) {
  if (c.spill_bytes == 0) return {};
  return fmt::format(
      "its kernel has too few registers and moves {} bytes a thread to and from memory (spills)",
      c.spill_bytes);
}

std::string loadable_architecture(std::string_view target, int device,
                                  const std::vector<int>& known) {
  const int wanted = capability(target);
  const bool runs = wanted / 10 == device / 10 && wanted <= device;
  if (runs && (known.empty() || contains(known, wanted))) return std::string(target);
  int same = 0, older = 0;
  for (const int cc : known) {
    int& best = cc / 10 == device / 10 ? same : older;
    if (cc <= device) best = std::max(best, cc);
  }
  if (same) return fmt::format("sm_{}", same);
  return older ? fmt::format("{}{}", kVirtual, older) : std::string(target);
}

void nvrtc_for_driver(int cuda_major) { newest_wanted = cuda_major; }

Result<NvrtcInfo> nvrtc_info() {
  if (!nvrtc()) return fail(nvrtc().error());
  return nvrtc()->info;
}

Result<Cubin> compile_cuda(const std::string& source, const std::string& entry,
                           std::string_view target) {
  if (!nvrtc()) return fail(nvrtc().error());
  const Nvrtc& n = *nvrtc();
  FERRULE_TRY(known_architecture(target, n.info));
  auto failed = [&](int code, const std::string& log) {
    return error(Code::library_failed, entry, "NVRTC",
                 log.empty() ? std::string(n.text(code)) : log);
  };
  Nvrtc::Handle program = nullptr;
  if (int code = n.create(&program, source.c_str(), (entry + ".cu").c_str(), 0, nullptr, nullptr))
    return failed(code, "");
  std::string arch = fmt::format("--gpu-architecture={}", target);
  std::vector<const char*> options{arch.c_str()};
  options.insert(options.end(), std::begin(kOptions), std::end(kOptions));
  int code = n.compile(program, static_cast<int>(options.size()), options.data());
  Cubin out;
  size_t size = 0;
  if (n.log_size(program, &size) == 0 && size > 1) {
    out.log.resize(size);
    n.log(program, out.log.data());
    out.log.resize(size - 1);
  }
  const bool ptx = target.starts_with(kVirtual);
  if (code == 0 && (code = (ptx ? n.ptx_size : n.cubin_size)(program, &size)) == 0) {
    out.bytes.resize(size);
    code = (ptx ? n.ptx : n.cubin)(program, out.bytes.data());
  }
  n.destroy(&program);
  if (code) return failed(code, out.log);
  read_log(out);
  return out;
}

Result<Cubin> cached_cubin(const std::string& source, const std::string& entry,
                           std::string_view target, DiskCache* cache) {
  if (!cache) return compile_cuda(source, entry, target);
  FERRULE_ASSIGN(const NvrtcInfo info, nvrtc_info());
  FERRULE_TRY(known_architecture(target, info));
  const std::string key = cache_key(info, target, entry, source);
  if (const auto payload = cache->get(key))
    if (auto kept = from_payload(*payload)) return std::move(*kept);
  auto made = compile_cuda(source, entry, target);
  if (made) cache->put(key, to_payload(*made));
  return made;
}

}  // namespace ferrule
