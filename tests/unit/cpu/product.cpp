// Convolutions along a line as products, against plain loops in f64: windows of every length, pads,
// strides, runs that reach beyond their line, numbers of filters around the vectors, long sums, and
// the same bits whatever the number of threads. (Slices: slices.cpp. Tails: tail_operands.cpp.)
#include "runtime/parallel.h"
#include "tests/unit/cpu/image_case.h"

namespace ferrule::cpu::test {
namespace {

/// Laid out as rows, as images that such lines are the rows of, or as images one column wide.
enum class Lines : uint8_t { rows, images, columns };

class RandomLine {
 public:
  explicit RandomLine(unsigned seed) : engine_(seed) {}

  ImageCase draw() {
    const auto lines = static_cast<Lines>(one_of(0, 2));
    // Long sums now and then: parts of 128 products.
    const int64_t channels = one_of(0, 4) ? one_of(1, 40) : one_of(100, 300);
    const int64_t taps = one_of(0, 5) ? one_of(2, 9) : 1,
                  stride = one_of(0, 1) ? 1 : one_of(2, taps + 2);
    const int64_t dilation = taps == 1 ? one_of(1, 3) : 1;
    // Also lines that are shorter than their window.
    const int64_t begin = taps == 1 ? 0 : one_of(0, taps), end = taps == 1 ? 0 : one_of(0, taps);
    const int64_t least = std::max<int64_t>(1, taps - begin - end);
    const int64_t length = one_of(0, 5) ? one_of(least, 45) : one_of(least, least + 2);
    ImageCase c{{one_of(1, 3), channels}, {filters(), channels}, {}, {}, {}, one_of(0, 3) != 0};
    const int64_t height = one_of(1, 5), down = one_of(1, 3);
    switch (lines) {
      case Lines::rows:
        add(c, length, taps, stride, dilation);
        c.pads = {begin, end};
        break;
      case Lines::images:
        add(c, height, 1, down, 1), add(c, length, taps, stride, dilation);
        c.pads = {0, begin, 0, end};
        break;
      case Lines::columns:
        add(c, length, taps, stride, dilation), add(c, 1, 1, 1, 1);
        c.pads = {begin, 0, end, 0};
        break;
    }
    return c;
  }

  int64_t one_of(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }

 private:
  /// Around one to a dozen vectors of 8 or 16.
  int64_t filters() {
    return std::max<int64_t>(1, 8 * one_of(0, one_of(0, 2) ? 6 : 24) + one_of(-1, 1));
  }
  static void add(ImageCase& c, int64_t length, int64_t taps, int64_t stride, int64_t dilation) {
    c.x.push_back(length), c.w.push_back(taps);
    c.strides.push_back(stride), c.dilations.push_back(dilation);
  }

  std::mt19937 engine_;
};

/// A tail of the forms that are done where the sums are, or after them; its effect on a number.
using Tail = std::function<double(double, const Dims&, int64_t)>;
Tail draw_tail(RandomLine& draw, Harness& h, const Dims& y) {
  const int64_t kind = draw.one_of(0, 4);
  const Tensor full = random_tensor(y, 4);
  if (kind >= 2) h.binary("add", h.operand(full, Layout::channels_last));
  if (kind == 1 || kind == 3) h.eltwise("relu");
  if (kind == 4) h.eltwise("clip", -0.5f, 0.75f), h.eltwise("logistic");
  return [=](double v, const Dims&, int64_t k) {
    if (kind >= 2) v += full.at_f64(k);
    if (kind == 1 || kind == 3) v = std::max(v, 0.0);
    return kind == 4 ? 1 / (1 + std::exp(-std::clamp(v, -0.5, 0.75))) : v;
  };
}

Tensor run_on(const ImageSetup& s, const Target& target, int threads) {
  set_threads(threads);
  Harness h("Conv");
  h.target = &target;
  s.start(h);
  h.output(DType::f32, s.c.out(), Layout::channels_last);
  Tensor result = h.run(make_product);
  set_threads(0);
  return result;
}

/// The root mean square of what a result is off.
double off(const Tensor& got, const std::vector<double>& want) {
  double sum = 0;
  for (size_t k = 0; k < want.size(); ++k)
    sum += std::pow(got.at_f64(static_cast<int64_t>(k)) - want[k], 2);
  return std::sqrt(sum / static_cast<double>(want.size()));
}

}  // namespace

TEST_CASE("convolutions along a line, of random sizes") {
  RandomLine draw(21);
  int borders = 0, long_sums = 0;
  for (const Target& target : targets())
    for (int k = 0; k < 200; ++k) {
      const ImageSetup s(draw.draw());
      CAPTURE(k);
      CAPTURE(str(Type{DType::f32, Shape(s.c.x.begin(), s.c.x.end())}));
      CAPTURE(str(Type{DType::f32, Shape(s.c.w.begin(), s.c.w.end())}));
      const Dims y = s.c.out();
      borders += std::ranges::any_of(s.c.pads, [](int64_t p) { return p > 0; });
      long_sums += numel(s.c.w) / s.c.w[0] > 128;
      Harness h("Conv");
      h.target = &target;
      s.start(h);
      const Tail tail = draw_tail(draw, h, y);
      h.output(DType::f32, y, Layout::channels_last);
      std::vector<double> want = s.sums();
      each_index(y, [&](const Dims& i, int64_t n) {
        double& v = want[static_cast<size_t>(n)];
        v = tail(v, i, n);
      });
      check_close(h.run(make_product), want);
      CHECK(h.text == (target.name == "cpu-avx2" ? "product:avx2" : "product:avx512"));
    }
  CHECK(borders > 50);
  CHECK(long_sums > 50);
}

TEST_CASE("lines as products: whatever the number of threads, the same bits") {
  for (const Target& target : targets())
    for (const ImageCase& c : std::vector<ImageCase>{
             {{1, 30, 900}, {48, 30, 3}, {1}, {1}, {1, 1}},
             {{1, 150, 50}, {200, 150, 3}, {2}, {1}, {1, 1}},
             {{3, 5, 7, 33}, {200, 5, 1, 33}, {2, 1}, {1, 1}, {0, 32, 0, 32}},  // 64 runs a line
             {{2, 40, 1}, {100, 40, 1}, {1}, {1}, {0, 0}},                      // two rows in all
             {{1, 400, 1}, {150, 400, 1}, {1}, {1}, {0, 0}},
             {{2, 6, 500, 1}, {17, 6, 31, 1}, {7, 1}, {1, 1}, {15, 0, 15, 0}},
         }) {
      const ImageSetup s(c);
      const Tensor one = run_on(s, target, 1);
      check_close(one, s.sums());
      for (const int threads : {2, 5}) CHECK(one.identical(run_on(s, target, threads)));
    }
}

TEST_CASE("lines as products: long sums round less than a chain does") {
  ImageSetup s({{1, 200, 40}, {24, 200, 9}, {1}, {1}, {4, 4}, false});
  const std::vector<double> exact = s.sums();
  std::vector<float> chain;
  each_index(s.c.out(), [&](const Dims& i, int64_t) {
    float sum = 0;
    for (int64_t c = 0; c < 200; ++c)
      for (int64_t t = 0; t < 9; ++t)
        if (const int64_t at = i[2] + t - 4; at >= 0 && at < 40)
          sum = std::fma(s.x.as<float>()[static_cast<size_t>(c * 40 + at)],
                         s.w.as<float>()[static_cast<size_t>((i[1] * 200 + c) * 9 + t)], sum);
    chain.push_back(sum);
  });
  const double by_chain = off(Tensor::of_f32(s.c.out(), chain), exact);
  for (const Target& target : targets()) CHECK(off(run_on(s, target, 1), exact) < by_chain / 2);
}

TEST_CASE("lines as products: a NaN is in the windows that hold it, and in no others") {
  for (const Target& target : targets())
    for (const int64_t at : {0, 1, 17, 38, 39}) {
      CAPTURE(at);
      ImageSetup s({{2, 3, 40}, {20, 3, 5}, {2}, {1}, {2, 2}});
      std::vector<float> x(s.x.as<float>().begin(), s.x.as<float>().end());
      x[static_cast<size_t>(40 + at)] = kNan;
      s.x = Tensor::of_f32(s.c.x, x);
      check_close(run_on(s, target, 1), s.sums());
    }
}

TEST_CASE("lines as products: what is refused") {
  auto declines = [](const ImageCase& c, const std::function<void(Harness&)>& change = {}) {
    const ImageSetup s(c);
    Harness h("Conv");
    h.target = &host();
    s.start(h);
    h.output(DType::f32, c.out(), Layout::channels_last);
    if (change) change(h);
    auto made = h.make(make_product);
    return !made && made.error().not_applicable();
  };
  const ImageCase line{{1, 4, 40}, {6, 4, 3}, {1}, {1}, {1, 1}};
  CHECK_FALSE(declines(line));
  CHECK(declines({{1, 4, 40}, {6, 4, 3}, {1}, {2}, {2, 2}}));                       // dilated
  CHECK(declines({{1, 4, 9, 40}, {6, 4, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}}));     // of lines
  CHECK(declines({{1, 4, 9, 40}, {6, 4, 1, 3}, {1, 1}, {1, 1}, {1, 1, 0, 1}}));     // above
  CHECK(declines({{1, 4, 9, 40}, {6, 4, 1, 3}, {1, 1}, {1, 1}, {0, 1, 1, 1}}));     // below
  CHECK(declines({{1, 4, 9, 40}, {6, 4, 1, 1}, {1, 1}, {1, 1}, {0, 1, 0, 0}}));     // of a pixel
  CHECK(declines({{1, 4, 9, 40}, {6, 4, 1, 34}, {1, 1}, {1, 1}, {0, 32, 0, 33}}));  // 65 runs
  CHECK(declines({{1, 4, 40}, {6, 2, 3}, {1}, {1}, {1, 1}},
                 [](Harness& h) { h.node.attrs.set("group", int64_t{2}); }));
  // Infinity meets zeros beyond the line, but not within it.
  auto infinite = [](Harness& h) {
    static Tensor w = random_tensor({6, 4, 3}, 2);
    std::vector<float> values(w.as<float>().begin(), w.as<float>().end());
    values[5] = kInf;
    w = Tensor::of_f32(w.dims(), values);
    h.call.inputs[1].constant = &w;
  };
  CHECK(declines(line, infinite));
  CHECK_FALSE(declines({{1, 4, 40}, {6, 4, 3}, {1}, {1}, {0, 0}}, infinite));
  CHECK(declines(line, [](Harness& h) { h.call.inputs[0].layout = Layout::plain; }));
  CHECK(declines(line, [](Harness& h) { h.call.inputs[1].constant = nullptr; }));
  CHECK(declines(line, [](Harness& h) { h.call.inputs[0].dtype = DType::bf16; }));
}

}  // namespace ferrule::cpu::test
