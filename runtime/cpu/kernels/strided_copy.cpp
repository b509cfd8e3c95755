#include "runtime/cpu/kernels/strided_copy.h"

#include <immintrin.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Elements of any size up to 16 bytes are moved as one of these.
struct Wide {
  uint64_t low, high;
};

constexpr int64_t kCopyTile = 64;
constexpr int64_t kUnitBytes = 16384;   // of a row that is split
constexpr int64_t kGrainBytes = 65536;  // worth a thread

/// Three planes to pixels of three, 16 pixels at a time: what every image input needs.
__attribute__((target("avx512f"))) int64_t interleave3(const uint32_t* s, uint32_t* t, int64_t n,
                                                       int64_t plane) {
  // Position p of the 48 results is element p / 3 of plane p % 3; planes 0 and 1 first, then plane
  // 2 over them.
  alignas(64) uint32_t first[3][16], second[3][16];
  for (uint32_t v = 0; v < 3; ++v)
    for (uint32_t k = 0; k < 16; ++k) {
      const uint32_t p = v * 16 + k;
      first[v][k] = p / 3 + (p % 3 == 1 ? 16 : 0);
      second[v][k] = p % 3 == 2 ? 16 + p / 3 : k;
    }
  __m512i a[3], b[3];
  for (int v = 0; v < 3; ++v)
    a[v] = _mm512_load_si512(first[v]), b[v] = _mm512_load_si512(second[v]);
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    const __m512i x = _mm512_loadu_si512(s + k), y = _mm512_loadu_si512(s + plane + k),
                  z = _mm512_loadu_si512(s + 2 * plane + k);
    for (int v = 0; v < 3; ++v)
      _mm512_storeu_si512(t + 3 * k + 16 * v, _mm512_permutex2var_epi32(
                                                  _mm512_permutex2var_epi32(x, a[v], y), b[v], z));
  }
  return k;
}

/// Square blocks in registers: dense rows in, `from` apart; dense columns out, `to` apart. Every
/// target has AVX.
template <class T>
constexpr int64_t kSide = sizeof(T) == 8 ? 4 : 8;

// In registers only if the loops are gone, also where the compiler would leave them.
#define FERRULE_UNROLL _Pragma("GCC unroll 8")
__attribute__((target("avx"))) void block(const uint32_t* s, int64_t from, uint32_t* t,
                                          int64_t to) {
  __m256 r[8], u[8];
  FERRULE_UNROLL for (int k = 0; k < 8; ++k) r[k] =
      _mm256_loadu_ps(reinterpret_cast<const float*>(s + k * from));
  FERRULE_UNROLL for (int k = 0; k < 8; k += 2) u[k] = _mm256_unpacklo_ps(r[k], r[k + 1]),
                                                u[k + 1] = _mm256_unpackhi_ps(r[k], r[k + 1]);
  FERRULE_UNROLL for (int h = 0; h < 8; h += 4) FERRULE_UNROLL for (int k = 0; k < 2; ++k) {
    r[h + 2 * k] = _mm256_shuffle_ps(u[h + k], u[h + k + 2], 0x44);
    r[h + 2 * k + 1] = _mm256_shuffle_ps(u[h + k], u[h + k + 2], 0xee);
  }
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) {
    _mm256_storeu_ps(reinterpret_cast<float*>(t + k * to),
                     _mm256_permute2f128_ps(r[k], r[k + 4], 0x20));
    _mm256_storeu_ps(reinterpret_cast<float*>(t + (k + 4) * to),
                     _mm256_permute2f128_ps(r[k], r[k + 4], 0x31));
  }
}

__attribute__((target("avx"))) void block(const uint64_t* s, int64_t from, uint64_t* t,
                                          int64_t to) {
  __m256d r[4], u[4];
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) r[k] =
      _mm256_loadu_pd(reinterpret_cast<const double*>(s + k * from));
  FERRULE_UNROLL for (int k = 0; k < 4; k += 2) u[k] = _mm256_unpacklo_pd(r[k], r[k + 1]),
                                                u[k + 1] = _mm256_unpackhi_pd(r[k], r[k + 1]);
  FERRULE_UNROLL for (int k = 0; k < 2; ++k) {
    _mm256_storeu_pd(reinterpret_cast<double*>(t + k * to),
                     _mm256_permute2f128_pd(u[k], u[k + 2], 0x20));
    _mm256_storeu_pd(reinterpret_cast<double*>(t + (k + 2) * to),
                     _mm256_permute2f128_pd(u[k], u[k + 2], 0x31));
  }
}

void block(const uint16_t* s, int64_t from, uint16_t* t, int64_t to) {
  __m128i r[8], u[8];
  FERRULE_UNROLL for (int k = 0; k < 8; ++k) r[k] =
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + k * from));
  FERRULE_UNROLL for (int k = 0; k < 4;
                      ++k)  // rows k and k + 4 interleaved, three times over: the columns
      u[2 * k] = _mm_unpacklo_epi16(r[k], r[k + 4]),
            u[2 * k + 1] = _mm_unpackhi_epi16(r[k], r[k + 4]);
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) r[2 * k] = _mm_unpacklo_epi16(u[k], u[k + 4]),
                                                   r[2 * k + 1] =
                                                       _mm_unpackhi_epi16(u[k], u[k + 4]);
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) u[2 * k] = _mm_unpacklo_epi16(r[k], r[k + 4]),
                                                   u[2 * k + 1] =
                                                       _mm_unpackhi_epi16(r[k], r[k + 4]);
  FERRULE_UNROLL for (int k = 0; k < 8; ++k)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(t + k * to), u[k]);
}

void block(const uint8_t* s, int64_t from, uint8_t* t, int64_t to) {
  __m128i r[8], u[4], v[4];
  FERRULE_UNROLL for (int k = 0; k < 8; ++k) r[k] =
      _mm_loadl_epi64(reinterpret_cast<const __m128i*>(s + k * from));
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) u[k] = _mm_unpacklo_epi8(r[k], r[k + 4]);
  FERRULE_UNROLL for (int k = 0; k < 2; ++k) v[2 * k] = _mm_unpacklo_epi8(u[k], u[k + 2]),
                                                   v[2 * k + 1] = _mm_unpackhi_epi8(u[k], u[k + 2]);
  FERRULE_UNROLL for (int k = 0; k < 2; ++k) u[2 * k] = _mm_unpacklo_epi8(v[k], v[k + 2]),
                                                   u[2 * k + 1] = _mm_unpackhi_epi8(v[k], v[k + 2]);
  FERRULE_UNROLL for (int k = 0; k < 4; ++k) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(t + 2 * k * to), u[k]);
    _mm_storel_epi64(reinterpret_cast<__m128i*>(t + (2 * k + 1) * to),
                     _mm_unpackhi_epi64(u[k], u[k]));
  }
}

#undef FERRULE_UNROLL

/// Few dense planes, `plane` apart, to pixels `pixel` apart. False: not for this shape.
bool interleave(const uint32_t* s, uint32_t* t, int64_t pixels, int64_t planes, int64_t plane,
                int64_t pixel) {
  if (planes > 4) return false;
  int64_t k = 0;
  if (planes == 3 && pixel == 3 && __builtin_cpu_supports("avx512f"))
    k = interleave3(s, t, pixels, plane);
  for (; k < pixels; ++k)
    for (int64_t c = 0; c < planes; ++c) t[k * pixel + c] = s[k + c * plane];
  return true;
}

/// Dense pixels of three bytes to planes, 16 pixels at a time. Returns how many are done.
__attribute__((target("ssse3"))) int64_t deinterleave3(const uint8_t* s, uint8_t* t, int64_t n,
                                                       int64_t plane) {
  alignas(16) uint8_t order[3][3][16];  // by plane and load: byte 3 k + plane is the k-th
  for (int c = 0; c < 3; ++c)
    for (int v = 0; v < 3; ++v)
      for (int k = 0; k < 16; ++k) {
        const int at = 3 * k + c - 16 * v;
        order[c][v][k] = static_cast<uint8_t>(at >= 0 && at < 16 ? at : 0x80);
      }
  __m128i o[3][3];
  for (int c = 0; c < 3; ++c)
    for (int v = 0; v < 3; ++v) o[c][v] = _mm_load_si128(reinterpret_cast<__m128i*>(order[c][v]));
  int64_t k = 0;
  for (; k + 16 <= n; k += 16) {
    __m128i x[3];
    for (int v = 0; v < 3; ++v)
      x[v] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(s + 3 * k + 16 * v));
    for (int c = 0; c < 3; ++c)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(t + c * plane + k),
                       _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(x[0], o[c][0]),
                                                 _mm_shuffle_epi8(x[1], o[c][1])),
                                    _mm_shuffle_epi8(x[2], o[c][2])));
  }
  return k;
}

}  // namespace

StridedCopy::StridedCopy(std::vector<int64_t> dims, std::vector<int64_t> source,
                         std::vector<int64_t> target, int element_bytes, int64_t source_offset,
                         int64_t target_offset)
    : element_(element_bytes), source_offset_(source_offset), target_offset_(target_offset) {
  for (int64_t d : dims)
    if (d == 0) return;
  // Outermost first in the target's memory, so that it is written in order.
  std::vector<size_t> order;
  for (size_t k = 0; k < dims.size(); ++k)
    if (dims[k] != 1) order.push_back(k);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return target[a] > target[b]; });
  for (size_t k : order) {
    const bool joins = !dims_.empty() && source_.back() == source[k] * dims[k] &&
                       target_.back() == target[k] * dims[k];
    if (joins) {
      dims_.back() *= dims[k];
      source_.back() = source[k];
      target_.back() = target[k];
      continue;
    }
    dims_.push_back(dims[k]);
    source_.push_back(source[k]);
    target_.push_back(target[k]);
  }
  auto take = [&](size_t at, int64_t& count, int64_t& s, int64_t& t) {
    count = dims_[at], s = source_[at], t = target_[at];
    auto erase = [&](std::vector<int64_t>& v) { v.erase(v.begin() + static_cast<int64_t>(at)); };
    erase(dims_), erase(source_), erase(target_);
  };
  kind_ = Kind::rows;
  if (!dims_.empty()) {
    take(dims_.size() - 1, count_, source_step_, target_step_);
    kind_ = source_step_ == 1 && target_step_ == 1   ? Kind::rows
            : source_step_ == 0 && target_step_ == 1 ? Kind::fill
                                                     : Kind::elements;
  }
  if (!dims_.empty()) {
    const auto dense = std::find(source_.begin(), source_.end(), 1);
    if (kind_ == Kind::elements && dense != source_.end()) {
      take(static_cast<size_t>(dense - source_.begin()), rows_, source_row_, target_row_);
      kind_ = Kind::tiles;
    } else {
      take(dims_.size() - 1, rows_, source_row_, target_row_);
    }
  }
  for (int64_t d : dims_) outer_ *= d;
  if (outer_ == 1 && rows_ < 4) {
    unit_count_ = std::max<int64_t>(1, kUnitBytes / element_);
    row_units_ = (count_ + unit_count_ - 1) / unit_count_;
    return;
  }
  unit_rows_ =
      kind_ == Kind::tiles ? kCopyTile : std::max<int64_t>(1, kUnitBytes / 4 / (count_ * element_));
  row_units_ = (rows_ + unit_rows_ - 1) / unit_rows_;
}

const char* StridedCopy::text() const {
  static const char* const kNames[] = {"nothing", "rows", "fill", "tiles", "elements"};
  return kNames[static_cast<int>(kind_)];
}

template <class T>
void StridedCopy::inner(const T* source, T* target, int64_t rows, int64_t count) const {
  constexpr int64_t kShort = 128 / sizeof(T);  // elements that a loop moves sooner than a call does
  switch (kind_) {
    case Kind::rows:
      if (count > kShort) {
        for (int64_t r = 0; r < rows; ++r, source += source_row_, target += target_row_)
          std::memcpy(target, source, static_cast<size_t>(count) * sizeof(T));
      } else if (count == 1) {
        for (int64_t r = 0; r < rows; ++r) target[r * target_row_] = source[r * source_row_];
      } else if (count == 2) {
        for (int64_t r = 0; r < rows; ++r, source += source_row_, target += target_row_)
          target[0] = source[0], target[1] = source[1];
      } else if (const int64_t bytes = count * static_cast<int64_t>(sizeof(T)); bytes % 16 == 0) {
        for (int64_t r = 0; r < rows; ++r, source += source_row_, target += target_row_)
          for (int64_t b = 0; b < bytes; b += 16)
            __builtin_memcpy(reinterpret_cast<char*>(target) + b,
                             reinterpret_cast<const char*>(source) + b, 16);
      } else {
        for (int64_t r = 0; r < rows; ++r, source += source_row_, target += target_row_)
          for (int64_t k = 0; k < count; ++k) target[k] = source[k];
      }
      break;
    case Kind::fill:
      for (int64_t r = 0; r < rows; ++r)
        std::fill_n(target + r * target_row_, count, source[r * source_row_]);
      break;
    case Kind::elements:
      for (int64_t r = 0; r < rows; ++r, source += source_row_, target += target_row_)
        for (int64_t k = 0; k < count; ++k) target[k * target_step_] = source[k * source_step_];
      break;
    case Kind::tiles:
      tiles(source, target, rows, count);
      break;
    case Kind::nothing:
      break;
  }
}

template <class T>
void StridedCopy::tiles(const T* source, T* target, int64_t rows, int64_t count) const {
  if constexpr (sizeof(T) == 4)
    if (target_step_ == 1 && interleave(source, target, rows, count, source_step_, target_row_))
      return;
  if constexpr (sizeof(T) == 1)
    if (rows == 3 && source_step_ == 3 && target_step_ == 1) {
      const int64_t done = deinterleave3(source, target, count, target_row_);
      for (int64_t r = 0; r < 3; ++r)
        for (int64_t c = done; c < count; ++c) target[r * target_row_ + c] = source[r + 3 * c];
      return;
    }
  for (int64_t j = 0; j < rows; j += kCopyTile)
    for (int64_t i = 0; i < count; i += kCopyTile)
      tile(source + j + i * source_step_, target + j * target_row_ + i * target_step_,
           std::min(kCopyTile, rows - j), std::min(kCopyTile, count - i));
}

template <class T>
void StridedCopy::tile(const T* source, T* target, int64_t rows, int64_t count) const {
  int64_t done_rows = 0, done = 0;
  if constexpr (sizeof(T) <= 8)
    if (target_step_ == 1) {
      constexpr int64_t n = kSide<T>;
      done_rows = rows / n * n, done = count / n * n;
      auto at = [&](int64_t r, int64_t c) {
        block(source + r + c * source_step_, source_step_, target + r * target_row_ + c,
              target_row_);
      };
      // Lines of the side with the wider steps are finished one after the other: they may share a
      // cache set.
      if (target_row_ > source_step_)
        for (int64_t r = 0; r < done_rows; r += n)
          for (int64_t c = 0; c < done; c += n) at(r, c);
      else
        for (int64_t c = 0; c < done; c += n)
          for (int64_t r = 0; r < done_rows; r += n) at(r, c);
    }
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = r < done_rows ? done : 0; c < count; ++c)
      target[r * target_row_ + c * target_step_] = source[r + c * source_step_];
}

template <class T>
void StridedCopy::run_as(const T* source, T* target, int64_t begin, int64_t end) const {
  source += source_offset_;
  target += target_offset_;
  if (unit_count_ > 0) {
    const int64_t first = begin * unit_count_, last = std::min(count_, end * unit_count_);
    return inner(source + first * source_step_, target + first * target_step_, rows_, last - first);
  }
  for (int64_t at = begin; at < end;) {
    int64_t rest = at / row_units_, s = 0, t = 0;
    const int64_t first = at % row_units_, last = std::min(row_units_, first + end - at);
    for (size_t axis = dims_.size(); axis-- > 0;) {
      const int64_t i = rest % dims_[axis];
      rest /= dims_[axis];
      s += i * source_[axis];
      t += i * target_[axis];
    }
    const int64_t row = first * unit_rows_, rows = std::min(rows_, last * unit_rows_) - row;
    inner(source + s + row * source_row_, target + t + row * target_row_, rows, count_);
    at += last - first;
  }
}

void StridedCopy::run(const void* source, void* target, int64_t begin, int64_t end) const {
  if (begin >= end) return;
  switch (element_) {
    case 1:
      return run_as(static_cast<const uint8_t*>(source), static_cast<uint8_t*>(target), begin, end);
    case 2:
      return run_as(static_cast<const uint16_t*>(source), static_cast<uint16_t*>(target), begin,
                    end);
    case 4:
      return run_as(static_cast<const uint32_t*>(source), static_cast<uint32_t*>(target), begin,
                    end);
    case 8:
      return run_as(static_cast<const uint64_t*>(source), static_cast<uint64_t*>(target), begin,
                    end);
    case 16:
      return run_as(static_cast<const Wide*>(source), static_cast<Wide*>(target), begin, end);
    default:
      std::abort();  // the factory refuses other sizes
  }
}

void StridedCopy::run(const void* source, void* target) const {
  const int64_t n = units();
  if (n == 0) return count_kernel();
  parallel_for(n, std::max<int64_t>(1, kGrainBytes / std::max<int64_t>(1, bytes() / n)),
               [&](int64_t begin, int64_t end) { run(source, target, begin, end); });
}

}  // namespace ferrule::cpu
