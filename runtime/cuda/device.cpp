#include "runtime/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/base/diagnostics.h"

namespace ferrule::cuda {
namespace {

constexpr const char* kPlace = "backend cuda";
// Attributes of a device, and what starts and ends a kernel's arguments, as the driver numbers
// them.
constexpr int kMultiprocessors = 16, kMajor = 75, kMinor = 76;
constexpr unsigned kPortable = 1, kMapped = 2;
void* const kArgumentPointer = reinterpret_cast<void*>(1);
void* const kArgumentSize = reinterpret_cast<void*>(2);

}  // namespace

std::string Device::Info::target() const { return fmt::format("sm_{}{}", major, minor); }

const Result<Device*>& Device::get() {
  static const auto* device = new Result<Device*>(open());
  return *device;
}

Result<Device*> Device::open() {
  if (!Driver::get()) return fail(Driver::get().error());
  std::unique_ptr<Device> d(new Device(*Driver::get()));
  const Driver& api = d->api_;
  nvrtc_for_driver(api.version / 1000);
  int count = 0, device = 0;
  size_t memory = 0;
  char name[256] = {};
  FERRULE_TRY(d->check(api.cuDeviceGetCount(&count), "cuDeviceGetCount", kPlace));
  if (count < 1)
    return error(Code::no_device, kPlace,
                 "the driver lists none (does CUDA_VISIBLE_DEVICES hide it?)");
  FERRULE_TRY(d->check(api.cuDeviceGet(&device, 0), "cuDeviceGet", kPlace));
  FERRULE_TRY(
      d->check(api.cuDeviceGetName(name, sizeof name - 1, device), "cuDeviceGetName", kPlace));
  for (auto [number, where] : {std::pair{kMajor, &d->info_.major},
                               {kMinor, &d->info_.minor},
                               {kMultiprocessors, &d->info_.multiprocessors}})
    FERRULE_TRY(
        d->check(api.cuDeviceGetAttribute(where, number, device), "cuDeviceGetAttribute", kPlace));
  FERRULE_TRY(d->check(api.cuDeviceTotalMem(&memory, device), "cuDeviceTotalMem", kPlace));
  FERRULE_TRY(d->check(api.cuDevicePrimaryCtxRetain(&d->context_, device),
                       "cuDevicePrimaryCtxRetain", kPlace));
  d->info_.name = escape(name);
  d->info_.memory = static_cast<int64_t>(memory);
  d->info_.driver = api.version;
  return d.release();
}

Status Device::enter() {
  if (lost()) return check(0, "", "");
  return check_context(api_.cuCtxSetCurrent(context_), "cuCtxSetCurrent");
}

Status Device::check_context(int code, std::string_view call) {
  if (code == kOutOfMemory) return error(Code::library_failed, kPlace, call, api_.text(code));
  return check(code, call, kPlace);
}

Entered::Entered(Device& device) : device_(device) {
  CUctx_st* current = nullptr;
  status = device.check_context(device.lost() ? 0 : device.api_.cuCtxGetCurrent(&current),
                                "cuCtxGetCurrent");
  if (!status || current == device.context_) return;
  status = device.enter();
  if (status) before_ = current;
}

Entered::~Entered() {
  if (before_) (void)device_.api_.cuCtxSetCurrent(before_);
}

Status Device::check(int code, std::string_view call, std::string_view place) {
  if (code == kSuccess && !lost()) [[likely]]
    return {};
  std::lock_guard lock(mutex_);
  if (lost()) return fail(why_lost_);
  if (device_is_lost(code)) {
    why_lost_ = error(Code::device_lost, std::string(place), call, api_.text(code)).value();
    lost_.store(true, std::memory_order_release);
    return fail(why_lost_);
  }
  if (code != kOutOfMemory || !context_)
    return error(Code::library_failed, std::string(place), call, api_.text(code));
  size_t available = 0, all = 0;
  if (api_.cuMemGetInfo(&available, &all) != kSuccess)
    available = 0, all = static_cast<size_t>(info_.memory);
  return error(Code::device_memory, std::string(place), call, available, all);
}

Status Device::upload(Address to, const void* from, int64_t bytes, Stream stream,
                      std::string_view place) {
  if (bytes == 0) return {};
  FERRULE_TRY(check(api_.cuMemcpyHtoDAsync(to, from, static_cast<size_t>(bytes), stream),
                    "cuMemcpyHtoDAsync", place));
  return wait(stream, place);
}

Status Device::download(void* to, Address from, int64_t bytes, Stream stream,
                        std::string_view place) {
  if (bytes == 0) return {};
  FERRULE_TRY(check(api_.cuMemcpyDtoHAsync(to, from, static_cast<size_t>(bytes), stream),
                    "cuMemcpyDtoHAsync", place));
  return wait(stream, place);
}

Status Device::wait(Stream stream, std::string_view place) {
  return check(api_.cuStreamSynchronize(stream), "cuStreamSynchronize", place);
}

Result<std::shared_ptr<KernelCode>> Device::code(const std::string& source,
                                                 const std::string& entry,
                                                 const std::string& target, DiskCache* cache) {
  const std::string key = target + ' ' + entry + '\n' + source;
  {
    std::lock_guard lock(mutex_);
    if (auto it = codes_.find(key); it != codes_.end())
      if (auto kept = it->second.lock()) return kept;
  }
  FERRULE_ASSIGN(Cubin compiled, cached_cubin(source, entry, target, cache));
  auto made = std::make_shared<KernelCode>(*this, std::move(compiled), entry);
  std::lock_guard lock(mutex_);
  std::erase_if(codes_, [](const auto& c) { return c.second.expired(); });
  auto& slot = codes_[key];
  if (auto others = slot.lock()) return others;  // compiled meanwhile
  slot = made;
  return made;
}

Result<Function> KernelCode::function(std::string_view place) {
  const std::lock_guard lock(mutex_);
  if (function_) return function_;
  const Driver& api = device_.api();
  FERRULE_TRY(device_.check(api.cuModuleLoadData(&module_, cubin_.bytes.data()), "cuModuleLoadData",
                            place));
  if (const int problem = api.cuModuleGetFunction(&function_, module_, entry_.c_str())) {
    api.cuModuleUnload(std::exchange(module_, nullptr));
    return fail(device_.check(problem, "cuModuleGetFunction", place).error());
  }
  return function_;
}

KernelCode::~KernelCode() {
  if (!module_) return;
  if (const Entered entered(device_); entered.status) (void)device_.api().cuModuleUnload(module_);
}

Status Device::launch(Function function, int64_t blocks, int threads_x, int threads_y,
                      std::string& arguments, Stream stream, std::string_view place) {
  size_t size = arguments.size();
  void* extra[] = {kArgumentPointer, arguments.data(), kArgumentSize, &size, nullptr};
  return check(api_.cuLaunchKernel(function, static_cast<unsigned>(blocks), 1, 1,
                                   static_cast<unsigned>(threads_x),
                                   static_cast<unsigned>(threads_y), 1, 0, stream, nullptr, extra),
               "cuLaunchKernel", place);
}

Result<Buffer> Buffer::make(Device& device, int64_t bytes, std::string_view what, bool zero) {
  Buffer b;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 256));
  FERRULE_TRY(device.check(device.api().cuMemAlloc(&b.address_, size),
                           fmt::format("cuMemAlloc of {} bytes", bytes), what));
  b.device_ = &device;
  b.bytes_ = bytes;
  if (!zero) return b;
  FERRULE_TRY(device.check(device.api().cuMemsetD8Async(b.address_, 0, size, nullptr),
                           "cuMemsetD8Async", what));
  FERRULE_TRY(device.wait(nullptr, what));
  return b;
}

Buffer& Buffer::operator=(Buffer&& b) noexcept {
  if (this == &b) return *this;
  free();
  device_ = std::exchange(b.device_, nullptr);
  address_ = std::exchange(b.address_, 0);
  bytes_ = std::exchange(b.bytes_, 0);
  return *this;
}

/// What goes wrong here shows up in the next call that can say so.
void Buffer::free() {
  if (device_)
    if (const Entered entered(*device_); entered.status) (void)device_->api().cuMemFree(address_);
  device_ = nullptr;
}

Result<Pinned> Pinned::make(Device& device, int64_t bytes, std::string_view what) {
  Pinned p;
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 256));
  if (const int code = device.api().cuMemHostAlloc(&p.data_, size, kPortable | kMapped)) {
    if (code == kOutOfMemory)  // the host's
      return error(Code::library_failed, std::string(what),
                   fmt::format("cuMemHostAlloc of {} bytes", bytes), device.api().text(code));
    return fail(device.check(code, fmt::format("cuMemHostAlloc of {} bytes", bytes), what).error());
  }
  p.device_ = &device;
  std::memset(p.data_, 0, size);
  return p;
}

Pinned& Pinned::operator=(Pinned&& p) noexcept {
  if (this == &p) return *this;
  free();
  device_ = std::exchange(p.device_, nullptr);
  data_ = std::exchange(p.data_, nullptr);
  return *this;
}

void Pinned::free() {
  if (device_)
    if (const Entered entered(*device_); entered.status) (void)device_->api().cuMemFreeHost(data_);
  device_ = nullptr;
}

}  // namespace ferrule::cuda
