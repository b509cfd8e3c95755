#include "engine/graph/tensor.h"

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace ferrule {
namespace {

// --- 8-bit and 4-bit floats: sign, exponent, fraction, and how each format spells infinity and NaN
// -------

struct SmallFloat {
  int exponent_bits, fraction_bits, bias;
  bool infinity;  // all-ones exponent is infinity / NaN as in IEEE
  bool uz;        // the only NaN is 0x80, there is no negative zero
  bool nan;       // has NaN at all (fn: all ones)
};

std::optional<SmallFloat> small_float(DType t) {
  switch (t) {
    case DType::f8e4m3fn:
      return SmallFloat{4, 3, 7, false, false, true};
    case DType::f8e4m3fnuz:
      return SmallFloat{4, 3, 8, false, true, true};
    case DType::f8e5m2:
      return SmallFloat{5, 2, 15, true, false, true};
    case DType::f8e5m2fnuz:
      return SmallFloat{5, 2, 16, false, true, true};
    case DType::f4e2m1:
      return SmallFloat{2, 1, 1, false, false, false};
    default:
      return std::nullopt;
  }
}

double small_to_f64(const SmallFloat& f, unsigned bits) {
  int width = 1 + f.exponent_bits + f.fraction_bits;
  unsigned sign_bit = 1u << (width - 1);
  bool negative = bits & sign_bit;
  unsigned magnitude = bits & (sign_bit - 1);
  unsigned exponent = magnitude >> f.fraction_bits;
  unsigned fraction = magnitude & ((1u << f.fraction_bits) - 1);
  const double kNan = std::numeric_limits<double>::quiet_NaN();
  if (f.uz && bits == sign_bit) return kNan;
  if (f.infinity && exponent == (1u << f.exponent_bits) - 1)
    return fraction ? kNan : negative ? -HUGE_VAL : HUGE_VAL;
  if (f.nan && !f.infinity && !f.uz && magnitude == sign_bit - 1) return kNan;
  double v = exponent == 0 ? std::ldexp(fraction, 1 - f.bias - f.fraction_bits)
                           : std::ldexp(fraction + (1u << f.fraction_bits),
                                        static_cast<int>(exponent) - f.bias - f.fraction_bits);
  return negative ? -v : v;
}

/// Nearest value, ties to the even code; beyond the largest: the largest (ONNX's saturating cast).
unsigned f64_to_small(const SmallFloat& f, double value) {
  int width = 1 + f.exponent_bits + f.fraction_bits;
  unsigned sign_bit = 1u << (width - 1);
  if (std::isnan(value)) return f.uz ? sign_bit : f.nan ? sign_bit - 1 : 0;
  unsigned best = 0;
  // From a number beyond all of them every code's distance would round to the same.
  double best_error = HUGE_VAL, magnitude = std::min(std::fabs(value), 0x1p20);
  for (unsigned code = 0; code < sign_bit; ++code) {
    double v = small_to_f64(f, code);
    if (std::isnan(v)) continue;
    if (std::isinf(v)) continue;
    double e = std::fabs(v - magnitude);
    if (e < best_error || (e == best_error && code % 2 == 0)) best = code, best_error = e;
  }
  bool negative = std::signbit(value) && !(f.uz && best == 0);
  return best | (negative ? sign_bit : 0);
}

unsigned nibble(const void* data, int64_t i) {
  unsigned byte = static_cast<const uint8_t*>(data)[i / 2];
  return i % 2 ? byte >> 4 : byte & 15;
}

template <class T>
T load(const void* data, int64_t i) {
  T v;  // constants from a file need not be aligned
  std::memcpy(&v, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

/// Calls `f` with element `i` in its C type (small floats as double).
template <class F>
auto visit_element(DType t, const void* data, int64_t i, F&& f) {
  switch (t) {
    case DType::f32:
      return f(load<float>(data, i));
    case DType::f64:
      return f(load<double>(data, i));
    case DType::f16:
      return f(f16_to_float(load<uint16_t>(data, i)));
    case DType::bf16:
      return f(bf16_to_float(load<uint16_t>(data, i)));
    case DType::i8:
      return f(load<int8_t>(data, i));
    case DType::i16:
      return f(load<int16_t>(data, i));
    case DType::i32:
      return f(load<int32_t>(data, i));
    case DType::i64:
      return f(load<int64_t>(data, i));
    case DType::boolean:
      return f(static_cast<uint8_t>(load<uint8_t>(data, i) != 0));
    case DType::u8:
      return f(load<uint8_t>(data, i));
    case DType::u16:
      return f(load<uint16_t>(data, i));
    case DType::u32:
      return f(load<uint32_t>(data, i));
    case DType::u64:
      return f(load<uint64_t>(data, i));
    case DType::u4:
      return f(static_cast<uint8_t>(nibble(data, i)));
    case DType::i4:
      return f(static_cast<int8_t>(static_cast<int8_t>(nibble(data, i) << 4) >> 4));
    case DType::f4e2m1:
      return f(small_to_f64(*small_float(t), nibble(data, i)));
    default:
      if (auto s = small_float(t)) return f(small_to_f64(*s, load<uint8_t>(data, i)));
      bug("Tensor element of a type without a number", __FILE__, __LINE__);
  }
}

/// A double to an integer type the way C converts, without its undefined cases: saturated, NaN as
/// 0.
template <class T>
T to_integer(double v) {
  if (std::isnan(v)) return 0;
  if (v <= static_cast<double>(std::numeric_limits<T>::min())) return std::numeric_limits<T>::min();
  if (v >= static_cast<double>(std::numeric_limits<T>::max())) return std::numeric_limits<T>::max();
  return static_cast<T>(v);
}

/// One rounding from double to half precision: round to odd in f32 first.
float round_to_odd(double v) {
  float f = static_cast<float>(v);
  if (std::isnan(v) || std::isinf(f) || static_cast<double>(f) == v) return f;
  uint32_t bits = std::bit_cast<uint32_t>(f);
  if (bits & 1) return f;
  bool away = std::fabs(static_cast<double>(f)) > std::fabs(v);
  return std::bit_cast<float>(away ? bits - 1 : bits | 1);
}

void store(DType t, void* out, double v) {
  auto put = [&](auto x) { std::memcpy(out, &x, sizeof x); };
  switch (t) {
    case DType::f32:
      return put(static_cast<float>(v));
    case DType::f64:
      return put(v);
    case DType::f16:
      return put(float_to_f16(round_to_odd(v)));
    case DType::bf16:
      return put(float_to_bf16(round_to_odd(v)));
    case DType::i8:
      return put(to_integer<int8_t>(v));
    case DType::i16:
      return put(to_integer<int16_t>(v));
    case DType::i32:
      return put(to_integer<int32_t>(v));
    case DType::i64:
      return put(to_integer<int64_t>(v));
    case DType::u8:
      return put(to_integer<uint8_t>(v));
    case DType::u16:
      return put(to_integer<uint16_t>(v));
    case DType::u32:
      return put(to_integer<uint32_t>(v));
    case DType::u64:
      return put(to_integer<uint64_t>(v));
    case DType::boolean:
      return put(static_cast<uint8_t>(v != 0));
    case DType::u4:
      return put(static_cast<uint8_t>(std::min<uint8_t>(to_integer<uint8_t>(v), 15)));
    case DType::i4:
      return put(static_cast<uint8_t>(std::clamp<int>(to_integer<int8_t>(v), -8, 7) & 15));
    default:
      if (auto s = small_float(t)) return put(static_cast<uint8_t>(f64_to_small(*s, v)));
      bug("Tensor::scalar of a type without a number", __FILE__, __LINE__);
  }
}

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// Zeroed memory with room to begin at a multiple of 64 bytes; null if there is none. Large blocks
/// come as zero pages, and are touched only when they are filled: in huge pages as far as these are
/// whole (a fault for each small page costs more than filling it), the rest behind them at once.
std::shared_ptr<void> zeroed(size_t size) {
  constexpr size_t kMapped = size_t{512} << 10, kHuge = size_t{2} << 20, kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kMaps = false;  // it does not watch the borders of mapped memory
#else
  constexpr bool kMaps = true;
#endif
  if (kMaps && size >= kMapped) {
    const size_t bytes = (size + kPage - 1) / kPage * kPage,
                 slack = bytes >= kHuge ? kHuge - kPage : 0;
    void* p =
        ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    char* at = static_cast<char*>(p);
    if (slack) {
      const size_t head = (kHuge - reinterpret_cast<uintptr_t>(p) % kHuge) % kHuge;
      if (head) ::munmap(p, head);
      at += head;
      if (slack > head) ::munmap(at + bytes, slack - head);
    }
    const size_t whole = bytes / kHuge * kHuge;
    // Both only make it faster: without them pages are read one by one.
    if (whole) ::madvise(at, whole, MADV_HUGEPAGE);
    if (bytes > whole) ::madvise(at + whole, bytes - whole, MADV_POPULATE_WRITE);
    return {at, [bytes](void* q) { ::munmap(q, bytes); }};
  }
  return {std::calloc(1, size + 63), std::free};
}

}  // namespace

std::pair<Tensor, void*> Tensor::allocate(DType dtype, std::vector<int64_t> dims) {
  int64_t n = std::ranges::find(dims, 0) == dims.end()
                  ? 1
                  : 0;  // without elements whatever the other sizes are
  for (int64_t d : dims)
    FERRULE_ASSERT(d >= 0 && !__builtin_mul_overflow(n, d, &n) && n < (int64_t{1} << 56),
                   "Tensor::allocate: size out of range");
  size_t size = static_cast<size_t>(std::max<int64_t>(64, padded(size_bytes(dtype, n))));
  std::shared_ptr<void> owner = zeroed(size);
  if (!owner)
    throw std::bad_alloc();  // as vectors do: limits let the size pass, and the system has no more
  size_t space = size + 63;
  void* p = owner.get();
  std::align(64, size, p, space);  // at once where it was mapped
  return {over(dtype, std::move(dims), std::move(owner), p), p};
}

Tensor Tensor::over(DType dtype, std::vector<int64_t> dims, std::shared_ptr<void> owner,
                    void* bytes) {
  constexpr int64_t kWorthIt = 64 << 10;  // below, a system call and a lock are the dearer thing
  Tensor t(dtype, std::move(dims), std::move(owner), bytes);
  if (t.bytes() >= kWorthIt) t.residence_ = std::make_shared<Residence>(bytes, t.bytes());
  return t;
}

Tensor Tensor::scalar(DType dtype, double value, std::vector<int64_t> dims) {
  auto [t, p] = allocate(dtype, std::move(dims));
  FERRULE_ASSERT(t.numel() == 1, "Tensor::scalar of more than one element");
  store(dtype, p, value);
  return t;
}

double Tensor::at_f64(int64_t i) const {
  return visit_element(dtype_, data(), i, [](auto v) { return static_cast<double>(v); });
}

int64_t Tensor::at_i64(int64_t i) const {
  return visit_element(dtype_, data(), i, [](auto v) {
    if constexpr (std::is_floating_point_v<decltype(v)>)
      return to_integer<int64_t>(v);
    else
      return static_cast<int64_t>(v);
  });
}

std::vector<int64_t> Tensor::to_i64() const {
  std::vector<int64_t> out(static_cast<size_t>(numel()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = at_i64(static_cast<int64_t>(i));
  return out;
}

std::vector<double> Tensor::to_f64() const {
  std::vector<double> out(static_cast<size_t>(numel()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = at_f64(static_cast<int64_t>(i));
  return out;
}

Tensor Tensor::reshaped(std::vector<int64_t> dims) const {
  Tensor t = *this;
  t.dims_ = std::move(dims);
  FERRULE_ASSERT(t.numel() == numel(), "Tensor::reshaped: another number of elements");
  return t;
}

bool Tensor::identical(const Tensor& other) const {
  if (dtype_ != other.dtype_ || dims_ != other.dims_) return false;
  if (dtype_ == DType::string) return *strings_ == *other.strings_;
  if (data_ == other.data_) return true;
  return bytes() == 0 || std::memcmp(data(), other.data(), static_cast<size_t>(bytes())) == 0;
}

size_t Tensor::hash() const {
  size_t seed = static_cast<size_t>(dtype_);
  seed = XXH3_64bits_withSeed(dims_.data(), dims_.size() * sizeof(int64_t), seed);
  if (dtype_ == DType::string) {
    for (const std::string& s : *strings_) seed = XXH3_64bits_withSeed(s.data(), s.size(), seed);
    return seed;
  }
  return XXH3_64bits_withSeed(data(), static_cast<size_t>(bytes()), seed);
}

}  // namespace ferrule
