// Winograd convolutions against the direct sum in double: shapes that fit no tile or vector, every
// tail, both instruction sets, any number of threads, values that are not finite.
#include "engine/base/tolerance.h"
#include "runtime/cpu/implementations.h"
#include "runtime/cpu/kernels/winograd_weights.h"
#include "runtime/parallel.h"
#include "tests/unit/codegen/post_op_meaning.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct WinogradCase {
  int64_t images, c, h, w, k;
  Dims pads{1, 1, 1, 1};  // top, left, bottom, right
  Dims y() const { return {images, k, h + pads[0] + pads[2] - 2, w + pads[1] + pads[3] - 2}; }
};

std::vector<double> sums_of(const WinogradCase& c, const Tensor& x, const Tensor& w,
                            const Tensor* bias) {
  return direct_sum(x, w, bias, c.y(), c.pads);
}

template <int Tile>
Applicable<KernelPtr> make(Context& context, const KernelCall& call) {
  return make_winograd(context, call, Tile);
}
Factory factory(int tile) { return tile == 2 ? make<2> : make<4>; }

Target target_with(std::vector<std::string> isa) {
  Target t;
  t.isa = std::move(isa);
  t.l2_bytes = 1 << 20;
  return t;
}
const Target kAvx2 = target_with({"avx2", "fma"}),
             kAvx512 = target_with({"avx2", "fma", "avx512f"});

/// Each tile with each instruction set; on a machine without AVX-512, AVX2 twice.
void each_kernel(const std::function<void(int tile, const Target& target)>& f) {
  for (int tile : {2, 4})
    for (const Target* t : {&kAvx2, &kAvx512}) {
      CAPTURE(tile);
      CAPTURE(t->isa.size());
      f(tile, *t);
    }
}

void set_up(Harness& h, const WinogradCase& c, const Tensor& x, const Tensor& w, const Tensor* bias,
            const Target& target) {
  h.target = &target;
  h.node.attrs.set("pads", c.pads);
  h.input(x, Layout::channels_last);
  h.constant(w);
  if (bias) h.constant(*bias);
}

/// By the tolerance of the element type: of sums over as many products as these it is relative to
/// the largest.
void check_sums(const Tensor& got, const std::vector<double>& want) {
  const Tolerance t = model_tolerance(DType::f32);
  double largest = 1;
  for (double v : want) largest = std::max(largest, std::abs(v));
  REQUIRE(got.numel() == static_cast<int64_t>(want.size()));
  int64_t wrong = 0;
  for (size_t k = 0; k < want.size(); ++k)
    wrong += !(std::abs(got.as<float>()[k] - want[k]) <=
               t.relative * std::abs(want[k]) + t.absolute * largest);
  CHECK(wrong == 0);
}

struct Threads {
  int before = threads();
  explicit Threads(int n) { set_threads(n); }
  ~Threads() { set_threads(before); }
};

}  // namespace

TEST_CASE("winograd on images that fit no tile, vector or group") {
  std::mt19937 random(11);
  auto pick = [&](std::initializer_list<int64_t> v) { return v.begin()[random() % v.size()]; };
  for (int n = 0; n < 40; ++n) {
    WinogradCase c{pick({1, 1, 2, 3}), pick({1, 3, 8, 16, 17, 32, 33, 40, 70}),
                   pick({3, 4, 5, 7, 9, 13}), pick({3, 4, 6, 7, 11}),
                   pick({1, 5, 8, 16, 24, 33, 48, 64, 80})};
    for (int64_t& p : c.pads) p = pick({0, 1, 1, 2});
    CAPTURE(str(Type{DType::f32, Shape{c.images, c.c, c.h, c.w, c.k, c.pads[0], c.pads[1],
                                       c.pads[2], c.pads[3]}}));
    const auto seed = static_cast<unsigned>(3 * n);
    const Tensor x = random_tensor({c.images, c.c, c.h, c.w}, seed),
                 w = random_tensor({c.k, c.c, 3, 3}, seed + 1);
    const Tensor b = random_tensor({c.k}, seed + 2);
    const Tensor* bias = n % 3 ? &b : nullptr;
    const auto want = sums_of(c, x, w, bias);
    each_kernel([&](int tile, const Target& target) {
      Harness h("Conv");
      set_up(h, c, x, w, bias, target);
      h.output(DType::f32, c.y(), Layout::channels_last);
      check_sums(h.run(factory(tile)), want);
    });
  }
}

TEST_CASE("winograd uses the instruction set of the target, not of the machine") {
  const WinogradCase c{1, 16, 8, 8, 16};
  Harness h("Conv");
  set_up(h, c, random_tensor({1, 16, 8, 8}, 1), random_tensor({16, 16, 3, 3}, 2), nullptr, kAvx2);
  h.output(DType::f32, c.y(), Layout::channels_last);
  h.run(factory(2));
  CHECK(h.text.starts_with("winograd_2x2:avx2"));
}

TEST_CASE("winograd is no less accurate than twice the direct sum of the library") {
  for (int64_t channels : {16, 24, 48, 64, 160, 256}) {
    CAPTURE(channels);
    const WinogradCase c{1, channels, 20, 20, 32};
    const Tensor x = random_tensor({1, channels, 20, 20}, 1, -0.5f, 1),
                 w = random_tensor({32, channels, 3, 3}, 2, -0.1f, 0.1f);
    const auto want = sums_of(c, x, w, nullptr);
    double norm = 0;
    for (double v : want) norm += v * v;
    auto relative_rms = [&](Factory f, const Target& target) {
      Harness h("Conv");
      set_up(h, c, x, w, nullptr, target);
      h.output(DType::f32, c.y(), Layout::channels_last);
      const Tensor got = h.run(f);
      double square = 0;
      for (size_t k = 0; k < want.size(); ++k)
        square += std::pow(got.at_f64(static_cast<int64_t>(k)) - want[k], 2);
      return std::sqrt(square / norm);
    };
    const double direct = relative_rms(make_convolution, kAvx512),
                 epsilon = std::numeric_limits<float>::epsilon();
    each_kernel([&](int tile, const Target& target) {
      const double rms = relative_rms(factory(tile), target);
      CHECK(rms <= 2 * direct + epsilon);
      CHECK(rms * rms <= 1e-10);
    });
  }
}

TEST_CASE("winograd tails are the formulas of the post-ops") {
  const WinogradCase c{2, 20, 7, 9, 19};
  const Tensor x = random_tensor({2, 20, 7, 9}, 1), w = random_tensor({19, 20, 3, 3}, 2),
               b = random_tensor({19}, 3);
  const auto base = sums_of(c, x, w, &b);
  SUBCASE("functions of one value") {
    for (auto [alg, alpha, beta] :
         std::vector<std::tuple<const char*, float, float>>{{"relu", 0, 0},
                                                            {"leaky_relu", 0.1f, 0},
                                                            {"clip", -0.5f, 1.5f},
                                                            {"linear", 1.5f, -2},
                                                            {"abs", 0, 0},
                                                            {"hardswish", 1.0f / 6, 0.5f},
                                                            {"hardsigmoid", 0.2f, 0.5f},
                                                            {"square", 0, 0},
                                                            {"logistic", 0, 0},
                                                            {"swish", 1, 0},
                                                            {"swish", 1.7f, 0}}) {
      CAPTURE(alg);
      each_kernel([&](int tile, const Target& target) {
        Harness h("Conv");
        set_up(h, c, x, w, &b, target);
        h.eltwise(alg, alpha, beta);
        h.output(DType::f32, c.y(), Layout::channels_last);
        auto want = base;
        for (double& v : want) v = apply_post_op(h.post_ops[0], v, 0);
        check_sums(h.run(factory(tile)), want);
      });
    }
  }
  SUBCASE("with a scalar, one value a channel, and a whole image; then a function") {
    const Tensor scalar = Tensor::of_f32({1}, std::vector<float>{1.25f}),
                 channel = random_tensor({1, 19, 1, 1}, 4, 0.5f, 2);
    const Tensor full = random_tensor(c.y(), 5, 0.5f, 2);
    for (const char* alg : {"add", "sub", "mul", "div", "max", "min"}) {
      CAPTURE(alg);
      each_kernel([&](int tile, const Target& target) {
        Harness h("Conv");
        set_up(h, c, x, w, &b, target);
        h.constant(channel);
        h.node.inputs.pop_back();
        h.binary(alg, 3);
        h.binary(alg, h.operand(full, Layout::channels_last));
        h.binary(alg, h.operand(scalar));
        h.eltwise("leaky_relu", 0.25f);
        h.output(DType::f32, c.y(), Layout::channels_last);
        auto want = base;
        each_index(c.y(), [&](const Dims& i, int64_t k) {
          double& v = want[static_cast<size_t>(k)];
          v = apply_post_op(h.post_ops[0], v, channel.at_f64(i[1]));
          v = apply_post_op(h.post_ops[1], v, full.at_f64(k));
          v = apply_post_op(h.post_ops[2], v, 1.25);
          v = apply_post_op(h.post_ops[3], v, 0);
        });
        check_sums(h.run(factory(tile)), want);
      });
    }
  }
  SUBCASE("residual in the result's memory, then relu") {
    const Tensor residual = random_tensor(c.y(), 6);
    each_kernel([&](int tile, const Target& target) {
      Harness h("Conv");
      set_up(h, c, x, w, &b, target);
      const int r = h.operand(residual, Layout::channels_last);
      h.binary("add", r);
      h.eltwise("relu");
      h.output(DType::f32, c.y(), Layout::channels_last, r);
      auto want = base;
      for (size_t k = 0; k < want.size(); ++k)
        want[k] = std::max(want[k] + residual.at_f64(static_cast<int64_t>(k)), 0.0);
      check_sums(h.run(factory(tile)), want);
    });
  }
}

TEST_CASE("winograd's sigmoid at the ends of the range") {
  // Images of one pixel, and a weight of 1 in the middle: with the points 0 and +-1 the result is
  // the pixel exactly.
  std::vector<float> one(9, 0.0f), values{0,      -0.0f, 1,    -1,   20,    -20,  87,    -87, 88.8f,
                                          -88.8f, 103,   -103, 1000, -1000, kInf, -kInf, kNan};
  one[4] = 1;
  const auto n = static_cast<int64_t>(values.size());
  const WinogradCase c{n, 1, 1, 1, 1};
  const Tensor x = Tensor::of_f32({n, 1, 1, 1}, values), w = Tensor::of_f32({1, 1, 3, 3}, one);
  for (const Target* target : {&kAvx2, &kAvx512}) {
    Harness h("Conv");
    set_up(h, c, x, w, nullptr, *target);
    h.eltwise("logistic");
    h.output(DType::f32, c.y(), Layout::channels_last);
    const Tensor got = h.run(factory(2));
    for (size_t k = 0; k < values.size(); ++k) {
      CAPTURE(values[k]);
      const double want = 1 / (1 + std::exp(-static_cast<double>(values[k])));
      const float g = got.as<float>()[k];
      if (std::isnan(values[k]))
        CHECK(std::isnan(g));
      else
        CHECK(std::abs(g - want) <= 4e-7 * want + 2e-45);
    }
  }
}

TEST_CASE("winograd gives the same bits for any number of threads, whichever way the work is cut") {
  // Few tiles and many channels: output channels are split; many tiles: rows are.
  for (const WinogradCase& c : std::vector<WinogradCase>{{1, 40, 4, 4, 320}, {2, 24, 40, 33, 40}}) {
    const Tensor x = random_tensor({c.images, c.c, c.h, c.w}, 1),
                 w = random_tensor({c.k, c.c, 3, 3}, 2);
    const auto want = sums_of(c, x, w, nullptr);
    each_kernel([&](int tile, const Target& target) {
      std::vector<Tensor> results;
      std::vector<std::string> texts;
      for (int n : {1, 2, 3}) {
        const Threads threads(n);
        Harness h("Conv");
        set_up(h, c, x, w, nullptr, target);
        h.output(DType::f32, c.y(), Layout::channels_last);
        results.push_back(h.run(factory(tile)));
        texts.push_back(h.text);
      }
      check_sums(results[0], want);
      CHECK(texts[1].ends_with(":channels") == (c.k == 320));
      for (size_t k = 1; k < 3; ++k)
        CHECK(std::memcmp(results[0].data(), results[k].data(),
                          static_cast<size_t>(numel(c.y())) * 4) == 0);
    });
  }
}

TEST_CASE(
    "winograd keeps infinities and NaN where the direct sum has them, and overflows no sooner") {
  const WinogradCase c{1, 18, 11, 10, 20};
  const Tensor w = random_tensor({20, 18, 3, 3}, 2);
  for (float special : {kInf, -kInf, kNan, 3e37f}) {
    CAPTURE(special);
    std::vector<float> values(18 * 11 * 10);
    std::mt19937 random(5);
    for (float& v : values) v = std::uniform_real_distribution<float>(-1, 1)(random);
    values[3 * 110 + 5 * 10 + 4] = special;
    values[7 * 110 + 0 * 10 + 9] = special;
    const Tensor x = Tensor::of_f32({1, 18, 11, 10}, values);
    const auto want = sums_of(c, x, w, nullptr);
    each_kernel([&](int tile, const Target& target) {
      Harness h("Conv");
      set_up(h, c, x, w, nullptr, target);
      h.output(DType::f32, c.y(), Layout::channels_last);
      const Tensor got = h.run(factory(tile));
      const Tolerance allowed = model_tolerance(DType::f32);
      int64_t wrong = 0, finite = 0;
      for (size_t k = 0; k < want.size(); ++k) {
        const float g = got.as<float>()[k];
        finite += std::isfinite(g);
        if (std::isnan(want[k]))
          wrong += !std::isnan(g);
        else if (std::isinf(want[k]))
          wrong += g != want[k];
        else
          wrong +=
              !(std::abs(g - want[k]) <= allowed.relative * std::abs(want[k]) +
                                             allowed.absolute * (special == 3e37f ? 3e37 : 1.0));
      }
      CHECK(wrong == 0);
      CHECK(finite > 1000);
    });
  }
}

TEST_CASE("winograd refuses what it cannot do") {
  const Tensor x = random_tensor({1, 16, 9, 9}, 1), w = random_tensor({16, 16, 3, 3}, 2);
  auto refused = [&](Harness& h) {
    auto kernel = h.make(factory(4));
    return !kernel.has_value() && kernel.error().not_applicable();
  };
  auto start = [&](Harness& h, const Tensor& weights, const Dims& y,
                   Layout layout = Layout::channels_last) {
    h.input(x, layout);
    h.constant(weights);
    h.output(DType::f32, y, layout);
  };
  SUBCASE("strides") {
    Harness h("Conv");
    h.node.attrs.set("strides", Dims{2, 2});
    start(h, w, {1, 16, 4, 4});
    CHECK(refused(h));
  }
  SUBCASE("dilations") {
    Harness h("Conv");
    h.node.attrs.set("dilations", Dims{2, 2});
    start(h, w, {1, 16, 5, 5});
    CHECK(refused(h));
  }
  SUBCASE("groups") {
    Harness h("Conv");
    h.node.attrs.set("group", int64_t{2});
    start(h, random_tensor({16, 8, 3, 3}, 2), {1, 16, 7, 7});
    CHECK(refused(h));
  }
  SUBCASE("another window") {
    Harness h("Conv");
    start(h, random_tensor({16, 16, 5, 5}, 2), {1, 16, 5, 5});
    CHECK(refused(h));
  }
  SUBCASE("channels first") {
    Harness h("Conv");
    start(h, w, {1, 16, 7, 7}, Layout::plain);
    CHECK(refused(h));
  }
  SUBCASE("strictness") {
    Harness h("Conv");
    h.strict = true;
    start(h, w, {1, 16, 7, 7});
    CHECK(refused(h));
  }
  SUBCASE("a tail that it does not have") {
    Harness h("Conv");
    h.eltwise("tanh");
    start(h, w, {1, 16, 7, 7});
    CHECK(refused(h));
  }
  SUBCASE("weights that are not constant") {
    Harness h("Conv");
    h.input(x, Layout::channels_last);
    h.input(w);
    h.output(DType::f32, {1, 16, 7, 7}, Layout::channels_last);
    CHECK(refused(h));
  }
}

TEST_CASE("a large 3x3 convolution takes Winograd, and not when results must be strict") {
  const WinogradCase c{1, 64, 28, 28, 64};
  const Tensor x = random_tensor({1, 64, 28, 28}, 1), w = random_tensor({64, 64, 3, 3}, 2);
  for (bool strict : {false, true}) {
    Harness h("Conv");
    set_up(h, c, x, w, nullptr, kAvx512);
    h.strict = strict;
    h.output(DType::f32, c.y(), Layout::channels_last);
    h.run(make_chosen);
    CHECK(h.text.starts_with("winograd") == !strict);
  }
}

TEST_CASE("transformed weights are shared") {
  const WinogradCase c{1, 32, 8, 8, 32};
  const Tensor w = random_tensor({32, 32, 3, 3}, 2);
  Harness h("Conv");
  set_up(h, c, random_tensor({1, 32, 8, 8}, 1), w, nullptr, kAvx2);
  h.output(DType::f32, c.y(), Layout::channels_last);
  auto first = h.make(factory(4));
  REQUIRE(first.has_value());
  int filled = 0;
  const auto& constant = *h.call.inputs[1].constant;
  const Packed a =
      h.library.derive(constant, "winograd_4:8", 36 * 32 * 32 * 4, [&](void*) { ++filled; });
  CHECK(filled == 0);
  const Packed b = h.library.derive(constant, "another", 64, [&](void*) { ++filled; });
  CHECK(filled == 1);
  CHECK(a.data != b.data);
}

/// What transformed_weights() says that writes the weights again; nothing where it does not.
std::optional<Tensor> turned_back(const Tensor& weights, int tile, int lanes) {
  PackCache cache;
  Library library(&cache);
  winograd::Shape s;
  s.tile = tile, s.k = weights.dims()[0], s.c = weights.dims()[1];
  const Packed packed = winograd::transformed_weights(library, weights, s, lanes);
  auto it = library.reversible.find(weights.address());
  if (it == library.reversible.end()) return std::nullopt;
  auto [out, bytes] = Tensor::allocate(DType::f32, weights.dims());
  it->second(bytes);
  return out;
}

TEST_CASE("Winograd: the model's weights are written again from the transformed ones, every bit") {
  const Dims dims{37, 19, 3, 3};
  for (int tile : {2, 4})
    for (int lanes : {8, 16}) {
      if (lanes == 16 && !__builtin_cpu_supports("avx512f")) continue;
      CAPTURE(tile);
      CAPTURE(lanes);
      Tensor w = random_tensor(dims, 7);
      auto* bits = const_cast<uint32_t*>(w.as<uint32_t>().data());
      const uint32_t special[] = {0x80000000, 0,          1,          0x807fffff, 0x7f800000,
                                  0xff800000, 0x7fc01234, 0xffc00001, 0x7f7fffff, 0xff7fffff};
      std::copy(std::begin(special), std::end(special), bits + 1000);
      for (int64_t k = 2000; k < 2060; ++k) bits[k] = 0;  // a few filters pruned in part
      auto back = turned_back(w, tile, lanes);
      REQUIRE(back);
      CHECK(std::memcmp(back->data(), w.data(), static_cast<size_t>(w.bytes())) == 0);
      // Every other weight far smaller than its neighbours: U does not tell it.
      for (int64_t k = 0; k < w.numel(); k += 2)
        const_cast<float*>(w.as<float>().data())[k] *= 1e-20f;
      CHECK_FALSE(turned_back(w, tile, lanes));
    }
}

}  // namespace ferrule::cpu::test
