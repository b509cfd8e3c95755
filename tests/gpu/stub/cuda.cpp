// libcuda.so.1 for tests: the part of the driver API that ferrule uses, over the host's memory.
// What a real driver would refuse is refused here, and what it would let pass to harm later is
// complained about (state.h).
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstring>

#include "tests/gpu/stub/work.h"

#define API extern "C" __attribute__((visibility("default"))) int

namespace ferrule::stub {
extern thread_local void* current_context;
namespace {

int number(const char* name, const char* otherwise) { return std::stoi(setting(name, otherwise)); }
uint64_t memory_bytes() { return std::stoull(setting("FERRULE_STUB_MEMORY", "1073741824")); }

/// A copy of pageable memory is taken at once, as the driver does; pinned memory is read when the
/// copy is its turn.
std::function<int()> copy_in(uint64_t to, const void* from, size_t size) {
  const auto at = reinterpret_cast<uint64_t>(from);
  if (state().memory.find(at, size))
    return [=] { return std::memcpy(reinterpret_cast<void*>(to), from, size), 0; };
  std::string bytes(static_cast<const char*>(from), size);
  return [to, bytes = std::move(bytes)] {
    return std::memcpy(reinterpret_cast<void*>(to), bytes.data(), bytes.size()), 0;
  };
}

/// Whether the range is memory of the device.
bool inside(const char* what, uint64_t at, size_t size) {
  const Allocation* a = state().memory.find(at, size);
  if (a && !a->host) return true;
  state().wrong(fmt::format("{}: {} bytes at {} are not inside an allocation of the device", what,
                            size, state().memory.text(at)));
  return false;
}

/// The bytes of the arguments, with addresses as the log writes them.
std::string arguments_text(const std::string& arguments) {
  std::string out;
  size_t k = 0;
  for (; k + 8 <= arguments.size(); k += 8) {
    uint64_t word = 0;
    std::memcpy(&word, arguments.data() + k, 8);
    out += (k ? " " : "") + state().memory.text(word);
  }
  for (; k < arguments.size(); ++k)
    out += fmt::format(" {:02x}", static_cast<unsigned char>(arguments[k]));
  return out;
}

}  // namespace
}  // namespace ferrule::stub

using namespace ferrule::stub;
using ferrule::test::Dim3;

/// For tests in the same process: the next call of the function fails.
extern "C" __attribute__((visibility("default"))) void ferrule_stub_fail_next(const char* function,
                                                                              int code) {
  std::lock_guard lock(state().mutex);
  state().failures[function][state().calls[function] + 1] = code;
}

/// For the stubs of the libraries: what the driver knows of the calling thread and of the device.
extern "C" __attribute__((visibility("default"))) int ferrule_stub_context_is_current() {
  return current_context == &state();
}
extern "C" __attribute__((visibility("default"))) int ferrule_stub_is_lost() {
  std::lock_guard lock(state().mutex);
  return state().lost;
}
/// For the stubs of the libraries: whether these are bytes of the device, and work that is theirs
/// on a stream.
extern "C" __attribute__((visibility("default"))) int ferrule_stub_is_memory(const void* at,
                                                                             uint64_t bytes) {
  std::lock_guard lock(state().mutex);
  const Allocation* a = state().memory.find(reinterpret_cast<uint64_t>(at), bytes);
  return a && !a->host;
}
extern "C" __attribute__((visibility("default"))) void ferrule_stub_put(
    CUstream_st* stream, const char* text, const std::function<void()>& work) {
  std::lock_guard lock(state().mutex);
  stream = real(stream);
  if (check(stream, text)) put(stream, {text, [work] { return work(), 0; }});
}

// --- without a context

API cuInit(unsigned) {
  StubCall call("cuInit", false);
  static char caller;
  if (!setting("FERRULE_STUB_CALLER", "").empty()) current_context = &caller;
  return call.code ? call.code : number("FERRULE_STUB_DEVICES", "1") ? 0 : kNoDevice;
}
API cuDriverGetVersion(int* version) {
  StubCall call("cuDriverGetVersion", false);
  *version = number("FERRULE_STUB_DRIVER", "13000");
  return call.code;
}
API cuGetErrorName(int code, const char** text) {
  static const std::map<int, const char*> kNames = {{1, "CUDA_ERROR_INVALID_VALUE"},
                                                    {2, "CUDA_ERROR_OUT_OF_MEMORY"},
                                                    {100, "CUDA_ERROR_NO_DEVICE"},
                                                    {200, "CUDA_ERROR_INVALID_IMAGE"},
                                                    {201, "CUDA_ERROR_INVALID_CONTEXT"},
                                                    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU"},
                                                    {500, "CUDA_ERROR_NOT_FOUND"},
                                                    {700, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                                                    {719, "CUDA_ERROR_LAUNCH_FAILED"},
                                                    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED"},
                                                    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED"},
                                                    {999, "CUDA_ERROR_UNKNOWN"}};
  auto it = kNames.find(code);
  *text = it == kNames.end() ? nullptr : it->second;
  return *text ? 0 : kInvalidValue;
}
API cuGetErrorString(int code, const char** text) {
  static const std::map<int, const char*> kTexts = {
      {1, "invalid argument"},
      {2, "out of memory"},
      {100, "no CUDA-capable device is detected"},
      {200, "device kernel image is invalid"},
      {201, "invalid device context"},
      {209, "no kernel image is available for execution on the device"},
      {500, "named symbol not found"},
      {700, "an illegal memory access was encountered"},
      {719, "unspecified launch failure"},
      {900, "operation not permitted when stream is capturing"},
      {901, "operation failed due to a previous error during capture"},
      {999, "unknown error"}};
  auto it = kTexts.find(code);
  *text = it == kTexts.end() ? nullptr : it->second;
  return *text ? 0 : kInvalidValue;
}
API cuDeviceGetCount(int* count) {
  StubCall call("cuDeviceGetCount", false);
  *count = number("FERRULE_STUB_DEVICES", "1");
  return call.code;
}
API cuDeviceGet(int* device, int ordinal) {
  StubCall call("cuDeviceGet", false);
  *device = ordinal;
  return call.code;
}
API cuDeviceGetName(char* name, int size, int) {
  StubCall call("cuDeviceGetName", false);
  std::snprintf(name, static_cast<size_t>(size), "Stub GPU");
  return call.code;
}
API cuDeviceGetAttribute(int* value, int attribute, int) {
  StubCall call("cuDeviceGetAttribute", false);
  const int cc = number("FERRULE_STUB_CC", "90");
  *value = attribute == 75 ? cc / 10 : attribute == 76 ? cc % 10 : attribute == 16 ? 4 : 0;
  return call.code;
}
API cuDeviceTotalMem_v2(size_t* bytes, int) {
  StubCall call("cuDeviceTotalMem_v2", false);
  *bytes = memory_bytes();
  return call.code;
}
API cuDevicePrimaryCtxRetain(void** context, int) {
  StubCall call("cuDevicePrimaryCtxRetain", false);
  *context = &state();
  return call.code;
}
API cuCtxSetCurrent(void* context) {
  StubCall call("cuCtxSetCurrent", false);
  if (!call.code) current_context = context;
  return call.code;
}
API cuCtxGetCurrent(void** context) {
  StubCall call("cuCtxGetCurrent", false);
  if (!call.code) *context = current_context;
  return call.code;
}

// --- memory

API cuMemGetInfo_v2(size_t* available, size_t* all) {
  StubCall call("cuMemGetInfo_v2");
  *all = memory_bytes();
  *available = *all - state().memory.used();
  return call.code;
}
API cuMemAlloc_v2(uint64_t* at, size_t bytes) {
  StubCall call("cuMemAlloc_v2");
  if (call.code) return call.code;
  if (bytes == 0) return kInvalidValue;
  if (spoils_capture("cuMemAlloc_v2")) return kCaptureUnsupported;
  if (state().memory.used() + bytes > memory_bytes()) return kOutOfMemory;
  *at = state().memory.allocate(bytes, false);
  return 0;
}
API cuMemFree_v2(uint64_t at) {
  StubCall call("cuMemFree_v2");
  if (call.code) return call.code;
  for (CUstream_st* s : alive<CUstream_st>()) drain(s);  // it waits for the device
  if (state().memory.release(at, false)) return 0;
  state().wrong("cuMemFree_v2 of what is no allocation");
  return kInvalidValue;
}
API cuMemHostAlloc(void** at, size_t bytes, unsigned) {
  StubCall call("cuMemHostAlloc");
  if (call.code) return call.code;
  if (spoils_capture("cuMemHostAlloc")) return kCaptureUnsupported;
  *at = reinterpret_cast<void*>(state().memory.allocate(bytes, true));
  state().check_alive("pinned allocations", state().memory.pinned());
  return 0;
}
API cuMemFreeHost(void* at) {
  StubCall call("cuMemFreeHost");
  if (call.code) return call.code;
  for (CUstream_st* s : alive<CUstream_st>()) drain(s);
  if (state().memory.release(reinterpret_cast<uint64_t>(at), true)) return 0;
  state().wrong("cuMemFreeHost of what is no allocation");
  return kInvalidValue;
}
API cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, CUstream_st* stream) {
  StubCall call("cuMemcpyHtoDAsync_v2");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(stream, "cuMemcpyHtoDAsync_v2") || !inside("cuMemcpyHtoDAsync_v2", to, bytes))
    return kInvalidValue;
  put(stream, {fmt::format("copy in {} bytes to {}", bytes, state().memory.text(to)),
               copy_in(to, from, bytes)});
  return 0;
}
API cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, CUstream_st* stream) {
  StubCall call("cuMemcpyDtoHAsync_v2");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(stream, "cuMemcpyDtoHAsync_v2") || !inside("cuMemcpyDtoHAsync_v2", from, bytes))
    return kInvalidValue;
  put(stream, {fmt::format("copy out {} bytes from {}", bytes, state().memory.text(from)),
               [=] { return std::memcpy(to, reinterpret_cast<const void*>(from), bytes), 0; }});
  return 0;
}
API cuMemsetD8Async(uint64_t at, unsigned char value, size_t bytes, CUstream_st* stream) {
  StubCall call("cuMemsetD8Async");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(stream, "cuMemsetD8Async") || !inside("cuMemsetD8Async", at, bytes))
    return kInvalidValue;
  put(stream, {fmt::format("set {} bytes at {}", bytes, state().memory.text(at)),
               [=] { return std::memset(reinterpret_cast<void*>(at), value, bytes), 0; }});
  return 0;
}

// --- modules and launches

API cuModuleLoadData(CUmod_st** module, const void* image) {
  StubCall call("cuModuleLoadData");
  if (call.code) return call.code;
  if (spoils_capture("cuModuleLoadData")) return kCaptureUnsupported;
  std::string wrong;
  int code = 0;
  auto opened = open_image(image, wrong, code);
  if (!opened && !wrong.empty()) state().wrong("cuModuleLoadData: " + wrong);
  if (!opened) return code;
  alive<CUfunc_st>().insert(&opened->function);
  alive<CUmod_st>().insert(*module = opened.release());
  state().check_alive("modules", alive<CUmod_st>().size());
  return 0;
}
API cuModuleUnload(CUmod_st* module) {
  StubCall call("cuModuleUnload");
  if (call.code || !check(module, "cuModuleUnload")) return call.code ? call.code : kInvalidValue;
  alive<CUfunc_st>().erase(&module->function);
  alive<CUmod_st>().erase(module);
  if (module->library) dlclose(module->library), close(module->file);  // the handle is not reused
  return 0;
}
API cuModuleGetFunction(CUfunc_st** function, CUmod_st* module, const char* name) {
  StubCall call("cuModuleGetFunction");
  if (call.code) return call.code;
  if (!check(module, "cuModuleGetFunction")) return kInvalidValue;
  if (module->function.name != name) return kNotFound;
  *function = &module->function;
  return 0;
}
API cuLaunchKernel(CUfunc_st* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, CUstream_st* stream, void** parameters,
                   void** extra) {
  StubCall call("cuLaunchKernel");
  if (call.code) return call.code;
  stream = real(stream);
  State& s = state();
  if (!check(f, "cuLaunchKernel") || !check(stream, "cuLaunchKernel")) return kInvalidValue;
  const uint64_t threads = uint64_t{bx} * by * bz;
  if (!gx || !gy || !gz || gx > 0x7fffffffu || gy > 65535 || gz > 65535 || !threads ||
      threads > 1024 || bz > 64 || shared) {
    s.wrong(fmt::format("cuLaunchKernel of {}x{}x{} blocks of {}x{}x{} threads with {} bytes", gx,
                        gy, gz, bx, by, bz, shared));
    return kInvalidValue;
  }
  if (parameters || !extra || extra[0] != reinterpret_cast<void*>(1) ||
      extra[2] != reinterpret_cast<void*>(2) || extra[4]) {
    s.wrong("cuLaunchKernel without a block of arguments");
    return kInvalidValue;
  }
  std::string arguments(static_cast<const char*>(extra[1]), *static_cast<const size_t*>(extra[3]));
  if (f->kernel.run && arguments.size() != f->argument_bytes) {
    s.wrong(fmt::format("an argument block of {} bytes for a kernel that declares {}",
                        arguments.size(), f->argument_bytes));
    return kInvalidValue;
  }
  std::string text = fmt::format("launch {} {}x{}x{} of {}x{}x{}: {}", f->name, gx, gy, gz, bx, by,
                                 bz, arguments_text(arguments));
  put(stream, {std::move(text), [=, &s] {
                 const int nth = ++s.calls["kernel"];
                 if (auto it = s.failures.find("kernel"); it != s.failures.end())
                   if (auto at = it->second.find(nth); at != it->second.end()) return at->second;
                 if (!f->kernel.run) return 0;
                 const std::string wrong = run_kernel(*f, arguments, {gx, gy, gz}, {bx, by, bz});
                 if (!wrong.empty()) s.wrong(wrong);
                 return wrong.empty() ? 0 : 719;
               }});
  return 0;
}

// --- streams, graphs, events

API cuStreamCreate(CUstream_st** stream, unsigned) {
  StubCall call("cuStreamCreate");
  if (call.code) return call.code;
  alive<CUstream_st>().insert(*stream = new CUstream_st());
  state().check_alive("streams", alive<CUstream_st>().size());
  return 0;
}
API cuStreamDestroy_v2(CUstream_st* stream) {
  StubCall call("cuStreamDestroy_v2");
  if (call.code || !check(stream, "cuStreamDestroy_v2"))
    return call.code ? call.code : kInvalidValue;
  if (stream->capturing) state().wrong("cuStreamDestroy_v2 while it is captured");
  drain(stream);
  alive<CUstream_st>().erase(stream);
  delete stream;
  return 0;
}
API cuStreamSynchronize(CUstream_st* stream) {
  StubCall call("cuStreamSynchronize");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(stream, "cuStreamSynchronize")) return kInvalidValue;
  if (stream->capturing) return spoils_capture("cuStreamSynchronize"), kCaptureUnsupported;
  return drain(stream);
}
API cuStreamBeginCapture_v2(CUstream_st* stream, int) {
  StubCall call("cuStreamBeginCapture_v2");
  if (call.code) return call.code;
  if (!check(stream, "cuStreamBeginCapture_v2") || stream->capturing) return kInvalidValue;
  state().log("a stream captures");
  stream->capturing = true;
  stream->invalidated = false;
  stream->captured.clear();
  return 0;
}
API cuStreamEndCapture(CUstream_st* stream, CUgraph_st** graph) {
  StubCall call("cuStreamEndCapture");
  *graph = nullptr;
  if (!alive<CUstream_st>().contains(stream) || !stream->capturing)
    return call.code ? call.code : kInvalidValue;
  stream->capturing = false;
  if (call.code) return call.code;
  if (stream->invalidated) return kCaptureInvalidated;
  alive<CUgraph_st>().insert(*graph = new CUgraph_st{std::move(stream->captured)});
  state().check_alive("captured graphs", alive<CUgraph_st>().size());
  return 0;
}
API cuGraphInstantiateWithFlags(CUgraphExec_st** exec, CUgraph_st* graph, unsigned long long) {
  StubCall call("cuGraphInstantiateWithFlags");
  if (call.code) return call.code;
  if (!check(graph, "cuGraphInstantiateWithFlags")) return kInvalidValue;
  state().log(fmt::format("graph of {}", graph->work.size()));
  alive<CUgraphExec_st>().insert(*exec = new CUgraphExec_st{graph->work});
  state().check_alive("graphs", alive<CUgraphExec_st>().size());
  return 0;
}
API cuGraphDestroy(CUgraph_st* graph) {
  StubCall call("cuGraphDestroy");
  if (call.code || !check(graph, "cuGraphDestroy")) return call.code ? call.code : kInvalidValue;
  alive<CUgraph_st>().erase(graph);
  delete graph;
  return 0;
}
API cuGraphLaunch(CUgraphExec_st* exec, CUstream_st* stream) {
  StubCall call("cuGraphLaunch");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(exec, "cuGraphLaunch") || !check(stream, "cuGraphLaunch")) return kInvalidValue;
  put(stream, {fmt::format("graph launch of {}", exec->work.size()), [] { return 0; }});
  for (const Work& w : exec->work) put(stream, w);
  return 0;
}
API cuGraphExecDestroy(CUgraphExec_st* exec) {
  StubCall call("cuGraphExecDestroy");
  if (call.code || !check(exec, "cuGraphExecDestroy")) return call.code ? call.code : kInvalidValue;
  alive<CUgraphExec_st>().erase(exec);
  delete exec;
  return 0;
}
API cuEventCreate(CUevent_st** event, unsigned) {
  StubCall call("cuEventCreate");
  if (call.code) return call.code;
  alive<CUevent_st>().insert(*event = new CUevent_st());
  state().check_alive("pairs of events", alive<CUevent_st>().size() / 2);
  return 0;
}
API cuEventDestroy_v2(CUevent_st* event) {
  StubCall call("cuEventDestroy_v2");
  if (call.code || !check(event, "cuEventDestroy_v2")) return call.code ? call.code : kInvalidValue;
  alive<CUevent_st>().erase(event);
  delete event;
  return 0;
}
API cuEventRecord(CUevent_st* event, CUstream_st* stream) {
  StubCall call("cuEventRecord");
  if (call.code) return call.code;
  stream = real(stream);
  if (!check(event, "cuEventRecord") || !check(stream, "cuEventRecord")) return kInvalidValue;
  event->recorded = false;
  put(stream, {"event", [event] {
                 event->at = std::chrono::steady_clock::now();
                 event->recorded = true;
                 return 0;
               }});
  return 0;
}
API cuEventElapsedTime(float* ms, CUevent_st* from, CUevent_st* to) {
  StubCall call("cuEventElapsedTime");
  if (call.code) return call.code;
  if (!check(from, "cuEventElapsedTime") || !check(to, "cuEventElapsedTime")) return kInvalidValue;
  if (!from->recorded || !to->recorded) {
    state().wrong("cuEventElapsedTime of an event that was not waited for");
    return 600;  // not ready
  }
  *ms = std::chrono::duration<float, std::milli>(to->at - from->at).count();
  return 0;
}
