// Operators that draw random numbers, with Philox 4x32-10 (Salmon et al., Parallel Random Numbers:
// As Easy as 1, 2, 3; 2011). Its key is the node's seed or, where it has none, a hash of its name;
// its counter is the number of the block and how often the node has drawn before. So a session
// repeats itself whatever else runs, no two nodes without a seed draw the same numbers, and turns
// of a loop, as runs of a session, draw new ones.
#include <xxhash.h>

#include <array>
#include <bit>
#include <numbers>

#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

class Philox {
 public:
  Philox(uint64_t key, uint64_t draw) : key_(key), draw_(draw) {}

  /// In [0, 1), with 53 bits.
  double next() {
    if (at_ == 2) fill();
    return values_[at_++];
  }

 private:
  void fill() {
    std::array<uint32_t, 4> c{low(block_), high(block_), low(draw_), high(draw_)};
    uint32_t k0 = low(key_), k1 = high(key_);
    for (int round = 0; round < 10; ++round) {
      const uint64_t p0 = uint64_t{0xD2511F53} * c[0], p1 = uint64_t{0xCD9E8D57} * c[2];
      c = {high(p1) ^ c[1] ^ k0, low(p1), high(p0) ^ c[3] ^ k1, low(p0)};
      k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    for (size_t k = 0; k < 2; ++k) {
      const uint64_t bits = uint64_t{c[2 * k]} << 32 | c[2 * k + 1];
      values_[k] = static_cast<double>(bits >> 11) * 0x1p-53;
    }
    ++block_, at_ = 0;
  }
  static uint32_t low(uint64_t v) { return static_cast<uint32_t>(v); }
  static uint32_t high(uint64_t v) { return static_cast<uint32_t>(v >> 32); }

  uint64_t key_, draw_, block_ = 0;
  size_t at_ = 2;
  std::array<double, 2> values_{};
};

Philox generator(const Call& c) {
  const uint64_t key = c.n.attrs.find("seed") ? std::bit_cast<uint64_t>(c.n.attrs.f("seed"))
                                              : XXH3_64bits(c.n.name.data(), c.n.name.size());
  return {key, c.options.draws->next(c.n.name)};
}

/// What `dtype` says, else the input's type.
Result<DType> result_type(const Call& c) {
  const DType t = c.n.attrs.find("dtype") ? static_cast<DType>(c.n.attrs.i("dtype"))
                  : c.input(0)            ? c.input(0)->dtype()
                                          : DType::f32;
  if (!is_float(t) || size_bits(t) < 16)
    return c.bad_attr("dtype", "{} is no floating point type", name(t));
  return t;
}

Result<Dims> result_dims(const Call& c) {
  Dims dims = c.input(0) ? c.input(0)->dims() : c.n.attrs.ints("shape");
  for (int64_t d : dims)
    if (d < 0) return c.bad_attr("shape", "{} has a negative size", text(dims));
  return dims;
}

/// `draw()` for each element.
template <class F>
Outputs filled(const Call& c, DType t, F&& draw) {
  FERRULE_ASSIGN(const Dims dims, result_dims(c));
  FERRULE_TRY(c.fits(t, dims));
  std::vector<double> out(static_cast<size_t>(count(dims)));
  std::ranges::generate(out, draw);
  return one(store(t, dims, out));
}

Outputs random_uniform(const Call& c) {
  FERRULE_ASSIGN(const DType t, result_type(c));
  const double low = c.n.attrs.f("low", 0), high = c.n.attrs.f("high", 1);
  // As many bits as the type has: rounded up, the result could be `high`.
  const double steps = t == DType::f64   ? 0x1p53
                       : t == DType::f32 ? 0x1p24
                       : t == DType::f16 ? 0x1p11
                                         : 0x1p8;
  Philox g = generator(c);
  return filled(c, t, [&] { return low + std::floor(g.next() * steps) / steps * (high - low); });
}

Outputs random_normal(const Call& c) {
  FERRULE_ASSIGN(const DType t, result_type(c));
  const double mean = c.n.attrs.f("mean", 0), scale = c.n.attrs.f("scale", 1);
  Philox g = generator(c);
  double second = 0;
  bool there = false;
  return filled(c, t, [&] {  // Box and Muller
    if (!there) {
      const double radius = std::sqrt(-2 * std::log1p(-g.next())),
                   angle = 2 * std::numbers::pi * g.next();
      second = radius * std::sin(angle);
      there = true;
      return mean + scale * radius * std::cos(angle);
    }
    there = false;
    return mean + scale * second;
  });
}

Outputs bernoulli(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  const DType t = c.n.attrs.find("dtype") ? static_cast<DType>(c.n.attrs.i("dtype")) : x.dtype();
  if (!is_float(t) && !is_integral(t))
    return c.bad_attr("dtype", "{} is no type of a number", name(t));
  Philox g = generator(c);
  const View<double> p(x);
  int64_t k = 0;
  return filled(c, t, [&] { return g.next() < p[k++] ? 1.0 : 0.0; });
}

Outputs multinomial(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype())) return c.unsupported_type(x);
  if (x.rank() != 2) return c.bad("its input is {}, not [batch,classes]", text(x.dims()));
  const int64_t rows = x.dims()[0], classes = x.dims()[1], samples = c.n.attrs.i("sample_size", 1);
  const auto t = static_cast<DType>(c.n.attrs.i("dtype", static_cast<int64_t>(DType::i32)));
  if (t != DType::i32 && t != DType::i64)
    return c.bad_attr("dtype", "{} is neither int32 nor int64", c.n.attrs.i("dtype"));
  if (samples < 0) return c.bad_attr("sample_size", "{} is negative", samples);
  FERRULE_TRY(c.fits(t, {rows, samples}));
  Philox g = generator(c);
  const View<double> logits(x);
  std::vector<int64_t> out;
  std::vector<double> sums(static_cast<size_t>(classes));
  for (int64_t r = 0; r < rows; ++r) {
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (int64_t k = 0; k < classes; ++k) most = std::max(most, logits[r * classes + k]);
    for (int64_t k = 0; k < classes; ++k)
      sums[static_cast<size_t>(k)] = sum += std::exp(logits[r * classes + k] - most);
    if (!(sum > 0) || !std::isfinite(sum)) return c.bad("row {} has no probabilities", r);
    for (int64_t k = 0; k < samples; ++k)  // the product may be rounded up
      out.push_back(
          std::ranges::upper_bound(sums, std::min(g.next() * sum, std::nextafter(sum, 0.0))) -
          sums.begin());
  }
  return one(store(t, {rows, samples}, out));
}

}  // namespace

std::vector<Entry> random_table() {
  return {
      {"Bernoulli", bernoulli, 1},       {"Multinomial", multinomial, 1},
      {"RandomNormal", random_normal},   {"RandomNormalLike", random_normal, 1},
      {"RandomUniform", random_uniform}, {"RandomUniformLike", random_uniform, 1},
  };
}

}  // namespace ferrule::interp
