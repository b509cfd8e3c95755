#include "tests/gpu/stub/library_work.h"

#include <dlfcn.h>

#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <sstream>

namespace ferrule::stub {
namespace {

/// Functions that the stub driver exports for us; null in a process without it.
template <class F>
F driver(const char* symbol) {
  static void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library ? reinterpret_cast<F>(dlsym(library, symbol)) : nullptr;
}

float from_half(uint16_t h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  const float sign = h & 0x8000 ? -1.0f : 1.0f;
  if (exponent == 31) return fraction ? NAN : sign * INFINITY;
  return sign * std::ldexp(static_cast<float>(exponent ? fraction + 1024 : fraction),
                           exponent ? exponent - 25 : -24);
}

uint16_t to_half(float f) {
  const auto sign = static_cast<uint16_t>(std::signbit(f) ? 0x8000 : 0);
  if (std::isnan(f)) return 0x7e00;
  const float a = std::fabs(f);
  if (a >= 65520) return static_cast<uint16_t>(sign | 0x7c00);
  int exponent = a == 0 ? -14 : std::max(std::ilogb(a), -14);
  const auto steps = static_cast<int>(
      std::nearbyint(std::ldexp(a, 10 - exponent)));  // a carry moves on to the exponent
  return static_cast<uint16_t>(sign |
                               (steps >= 1024 ? ((exponent + 15) << 10) + steps - 1024 : steps));
}

}  // namespace

int ordered_failure(const char* function) {
  static std::mutex mutex;
  static std::map<std::string, int> calls;
  const std::lock_guard lock(mutex);
  const int number = ++calls[function];
  const char* text = std::getenv("FERRULE_STUB_FAIL");
  std::istringstream orders(text ? text : "");
  for (std::string order; std::getline(orders, order, ',');) {
    const size_t colon = order.find(':'), equals = order.find('=');
    if (colon == std::string::npos || equals == std::string::npos ||
        order.substr(0, colon) != function)
      continue;
    if (std::atoi(order.c_str() + colon + 1) == number)
      return std::atoi(order.c_str() + equals + 1);
  }
  return 0;
}

void wrong_use(const std::string& what) {
  std::fprintf(stderr, "stub: wrong use: %s\n", what.c_str());
}

void check_alive(const char* what, size_t alive) {
  const char* text = std::getenv("FERRULE_STUB_ALIVE");
  if (text && *text && alive > std::strtoul(text, nullptr, 10))
    wrong_use(std::to_string(alive) + " " + what + " are alive");
}

void needs_context(const char* what) {
  static const auto current = driver<int (*)()>("ferrule_stub_context_is_current");
  if (current && !current()) wrong_use(std::string(what) + " without a current context");
}

void needs_device(const char* what) {
  static const auto lost = driver<int (*)()>("ferrule_stub_is_lost");
  if (lost && lost()) wrong_use(std::string(what) + " behind the device's end");
}

bool device_memory(const void* at, uint64_t bytes) {
  static const auto find = driver<int (*)(const void*, uint64_t)>("ferrule_stub_is_memory");
  return !find || find(at, bytes);
}

bool own_business(CUstream_st* stream) {
  const char* text = std::getenv("FERRULE_STUB_LIBRARY");
  const std::string what = text ? text : "";
  if (what == "waits") {
    static const auto wait = driver<int (*)(CUstream_st*)>("cuStreamSynchronize");
    return wait(stream) == 0;
  }
  if (what != "allocates") return true;
  static const auto make = driver<int (*)(uint64_t*, size_t)>("cuMemAlloc_v2");
  static const auto free = driver<int (*)(uint64_t)>("cuMemFree_v2");
  uint64_t at = 0;
  return make(&at, 4096) == 0 && free(at) == 0;
}

void put_work(CUstream_st* stream, const std::string& text, std::function<void()> work) {
  static const auto put =
      driver<void (*)(CUstream_st*, const char*, const std::function<void()>&)>("ferrule_stub_put");
  if (put)
    put(stream, text.c_str(), work);
  else
    work();
}

float load(Number n, const void* base, int64_t index) {
  if (n == Number::f32) return static_cast<const float*>(base)[index];
  const uint16_t bits = static_cast<const uint16_t*>(base)[index];
  return n == Number::f16 ? from_half(bits)
                          : std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
}

void store(Number n, void* base, int64_t index, float value) {
  if (n == Number::f32) {
    static_cast<float*>(base)[index] = value;
  } else if (n == Number::f16) {
    static_cast<uint16_t*>(base)[index] = to_half(value);
  } else {
    const auto bits = std::bit_cast<uint32_t>(value);
    const uint32_t rounded = std::isnan(value) ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1);
    static_cast<uint16_t*>(base)[index] = static_cast<uint16_t>(rounded >> 16);
  }
}

float to_tf32(float value) {
  return std::isfinite(value) ? std::bit_cast<float>(std::bit_cast<uint32_t>(value) & 0xffffe000u)
                              : value;
}

}  // namespace ferrule::stub
