#include "runtime/cpu/kernels/winograd_weights.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/parallel.h"

namespace ferrule::cpu::winograd {
namespace {

using Matrix = std::vector<std::array<double, 3>>;

/// G of F(tile x tile, 3 x 3), row by row.
Matrix weight_transform(int tile) {
  const double a = kPointA, b = kPointB;
  const std::vector<double> points =
      tile == 2 ? std::vector<double>{0, 1, -1} : std::vector<double>{0, a, -a, b, -b};
  Matrix rows;
  for (double p : points) {
    double scale = 1;
    for (double q : points)
      if (q != p) scale *= p - q;
    rows.push_back({1 / scale, p / scale, p * p / scale});
  }
  rows.push_back({0, 0, 1});
  return rows;
}

/// U = G g G^T of one input channel and `lanes` output channels, in double: element e goes to to[e
/// * stride + lane]. The lanes are the inner loops, which the compiler turns into vectors; it fuses
/// no products (CMakeLists.txt).
template <int lanes>
[[gnu::always_inline]] inline void transform_vector(const Matrix& g, const double (&w)[9][lanes],
                                                    float* to, int64_t stride) {
  double half[6][3][lanes];
  const size_t t = g.size();
  for (size_t i = 0; i < t; ++i)
    for (size_t j = 0; j < 3; ++j)
      for (int l = 0; l < lanes; ++l)
        half[i][j][l] = g[i][0] * w[j][l] + g[i][1] * w[3 + j][l] + g[i][2] * w[6 + j][l];
  for (size_t i = 0; i < t; ++i)
    for (size_t j = 0; j < t; ++j, to += stride)
      for (int l = 0; l < lanes; ++l)
        to[l] = static_cast<float>(g[j][0] * half[i][0][l] + g[j][1] * half[i][1][l] +
                                   g[j][2] * half[i][2][l]);
}

// --- the model's own weights, from U
// ---------------------------------------------------------------

/// Bits of floats as integers in the order of the floats, and back.
inline int32_t ordered(int32_t bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }
/// Modulo 2^32.
inline int32_t minus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
inline int32_t plus(int32_t a, int32_t b) {
  return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}

/// Channels that are transformed together: `count` lanes of a vector of output channels, all input
/// channels.
struct Part {
  int64_t vector, channels;  ///< number of the vector; of input channels
  int count;
  int64_t step, stride;  ///< floats of U from an input channel, from an element to the next
};

/// What the weights differ from what U tells of them, in steps of the float format; those that
/// differ by more as they are.
struct Differences {
  struct Wide {
    uint32_t at;
    int32_t bits;
  };
  int16_t* small;
  std::atomic_ref<uint32_t> count;
  Wide* wide;
  uint32_t room;
};

template <int lanes>
void note_wide(const int32_t (&bits)[9][lanes], const int32_t (&nine)[9][lanes], int64_t at,
               Differences& d) {
  for (int e = 0; e < 9; ++e)
    for (int l = 0; l < lanes; ++l) {
      const int32_t difference = minus(bits[e][l], nine[e][l]);
      if (difference == static_cast<int16_t>(difference)) continue;
      const uint32_t k = d.count.fetch_add(1, std::memory_order_relaxed);
      if (k < d.room) d.wide[k] = {static_cast<uint32_t>(at + e * lanes + l), bits[e][l]};
    }
}

/// The nine weights as U tells them, which is but for its rounding: `nine` as ordered integers. The
/// points 0, p and -p come first, infinity is last: of each row or column of G g G^T, the first is
/// a multiple of the first weight, the difference of the next two one of the second, and the last
/// is the third.
template <int lanes>
[[gnu::always_inline]] inline void guess(const Matrix& g, const float* u, int64_t stride,
                                         int32_t (&nine)[9][lanes]) {
  const size_t t = g.size();
  const double one = 1 / g[0][0], two = 0.5 / g[1][1];
  const size_t plus[3] = {0, 1, t - 1}, minus[3] = {t, 2, t};  // t: none
  const double scale[3] = {one, two, 1};
  for (size_t i = 0; i < 3; ++i)
    for (size_t j = 0; j < 3; ++j)
      for (int l = 0; l < lanes; ++l) {
        auto at = [&](size_t e, size_t f) {
          return static_cast<double>(u[static_cast<int64_t>(e * t + f) * stride + l]);
        };
        double sum = at(plus[i], plus[j]);
        if (minus[j] < t) sum -= at(plus[i], minus[j]);
        if (minus[i] < t) sum -= at(minus[i], plus[j]);
        if (minus[i] < t && minus[j] < t) sum += at(minus[i], minus[j]);
        nine[i * 3 + j][l] =
            ordered(std::bit_cast<int32_t>(static_cast<float>(sum * (scale[i] * scale[j]))));
      }
}

/// All input channels of one vector of output channels; `count` of its lanes are channels.
template <int lanes>
[[gnu::always_inline]] inline void transform_channels(const Matrix& g, const Part& part,
                                                      const float* from, float* to,
                                                      Differences& d) {
  double w[9][lanes] = {};
  int32_t bits[9][lanes] = {}, nine[9][lanes];
  for (int64_t c = 0; c < part.channels; ++c, to += part.step) {
    for (int l = 0; l < part.count; ++l)
      for (int e = 0; e < 9; ++e) {
        const float weight = from[(l * part.channels + c) * 9 + e];
        w[e][l] = weight;
        bits[e][l] = ordered(std::bit_cast<int32_t>(weight));
      }
    transform_vector<lanes>(g, w, to, part.stride);
    guess<lanes>(g, to, part.stride, nine);
    const int64_t at = (part.vector * part.channels + c) * 9 * lanes;
    int wide = 0;
    for (int e = 0; e < 9; ++e)
      for (int l = 0; l < lanes; ++l) {
        const int32_t difference = minus(bits[e][l], nine[e][l]);
        d.small[at + e * lanes + l] = static_cast<int16_t>(difference);
        wide += difference != static_cast<int16_t>(difference);
      }
    if (wide) note_wide<lanes>(bits, nine, at, d);
  }
}

using TransformChannels = void (*)(const Matrix&, const Part&, const float*, float*, Differences&);

[[gnu::target("avx2")]] void transform_8(const Matrix& g, const Part& part, const float* from,
                                         float* to, Differences& d) {
  transform_channels<8>(g, part, from, to, d);
}

[[gnu::target("avx512f")]] void transform_16(const Matrix& g, const Part& part, const float* from,
                                             float* to, Differences& d) {
  transform_channels<16>(g, part, from, to, d);
}

// --- what is packed: U, differences, wide ones
// ------------------------------------------------------

struct Packing {
  Packing(const Shape& shape, int vector_lanes)
      : s(shape),
        lanes(vector_lanes),
        vectors(parts(s.k, lanes)),
        padded(up(s.c, lanes)),
        u_bytes(s.elements() * vectors * lanes * padded * 4),
        small_bytes(up(vectors * lanes * s.c * 9 * 2, 64)),
        room(static_cast<uint32_t>(s.k * s.c * 9 / 32)) {}
  int64_t bytes() const {
    return u_bytes + small_bytes + 64 + static_cast<int64_t>(room * sizeof(Differences::Wide));
  }
  Differences differences(void* packed) const {
    char* at = static_cast<char*>(packed) + u_bytes;
    auto* count = reinterpret_cast<uint32_t*>(at + small_bytes);
    return {reinterpret_cast<int16_t*>(at), std::atomic_ref<uint32_t>(*count),
            reinterpret_cast<Differences::Wide*>(at + small_bytes + 64), room};
  }
  /// visit(part, offset of its U), for each vector of output channels.
  template <class Visit>
  void each(Visit&& visit) const {
    const std::vector<int64_t> blocks = channel_blocks(vectors);
    parallel_for(vectors, 1, [&](int64_t begin, int64_t end) {
      for (int64_t v = begin; v < end; ++v) {
        const auto next = std::ranges::upper_bound(blocks, v);
        const int64_t first = *(next - 1), step = (*next - first) * lanes;
        visit(Part{v, s.c, static_cast<int>(std::min<int64_t>(lanes, s.k - v * lanes)), step,
                   step * padded},
              first * lanes * padded * s.elements() + (v - first) * lanes);
      }
    });
  }

  Shape s;
  int lanes;
  int64_t vectors, padded, u_bytes, small_bytes;
  uint32_t room;  ///< for wide differences
};

void transform(const Packing& p, const float* weights, void* packed) {
  const Matrix g = weight_transform(p.s.tile);
  const TransformChannels channels = p.lanes == 16 ? transform_16 : transform_8;
  Differences d = p.differences(packed);
  d.count = 0;
  p.each([&](const Part& part, int64_t offset) {
    float* u = static_cast<float*>(packed) + offset;
    channels(g, part, weights + part.vector * p.lanes * p.s.c * 9, u, d);
    for (int64_t e = 0; e < p.s.elements(); ++e)
      for (int64_t c = p.s.c; c < p.padded; ++c)
        std::fill_n(u + e * part.stride + c * part.step, p.lanes, 0.0f);
  });
}

template <int lanes>
void write_back(const Packing& p, const void* packed, void* to) {
  const Matrix g = weight_transform(p.s.tile);
  const Differences d = p.differences(const_cast<void*>(packed));
  auto* weights = static_cast<int32_t*>(to);
  auto place = [&](int64_t vector, int64_t c, int64_t e, int64_t lane) {
    return ((vector * lanes + lane) * p.s.c + c) * 9 + e;
  };
  p.each([&](const Part& part, int64_t offset) {
    const float* u = static_cast<const float*>(packed) + offset;
    const int16_t* small = d.small + part.vector * p.s.c * 9 * lanes;
    for (int64_t c = 0; c < p.s.c; ++c, u += part.step) {
      int32_t nine[9][lanes];
      guess<lanes>(g, u, part.stride, nine);
      for (int e = 0; e < 9; ++e, small += lanes)
        for (int l = 0; l < part.count; ++l)
          weights[place(part.vector, c, e, l)] = ordered(plus(nine[e][l], small[l]));
    }
  });
  for (uint32_t k = 0; k < d.count; ++k) {
    const auto [at, bits] = d.wide[k];
    const int64_t lane = at % lanes, e = at / lanes % 9, pair = at / lanes / 9;
    weights[place(pair / p.s.c, pair % p.s.c, e, lane)] = ordered(bits);
  }
}

}  // namespace

Packed transformed_weights(Library& library, const Tensor& weights, const Shape& s, int lanes) {
  const Packing p(s, lanes);
  Packed packed = library.derive(weights, fmt::format("winograd_{}:{}", s.tile, lanes), p.bytes(),
                                 [&](void* to) { transform(p, weights.as<float>().data(), to); });
  if (packed.buffer && p.differences(packed.buffer.get()).count <= p.room)
    library.turns_back(weights, packed, [p](const void* from, void* to) {
      p.lanes == 16 ? write_back<16>(p, from, to) : write_back<8>(p, from, to);
    });
  return packed;
}

}  // namespace ferrule::cpu::winograd
