// Our depthwise convolution against plain loops: every border, stride, dilation and remainder of
// channels, tails, and the same bits whatever the number of threads.
#include "runtime/parallel.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct DepthwiseCase {
  int64_t images, channels, height, width;
  int64_t kernel_h, kernel_w, stride_h, stride_w;
  Dims pads;  ///< top, left, bottom, right
  int64_t dilation_h = 1, dilation_w = 1;
  bool bias = true;
  int64_t group = 1;  ///< channels of one
  Dims out() const {
    return {images, channels,
            (height + pads[0] + pads[2] - (kernel_h - 1) * dilation_h - 1) / stride_h + 1,
            (width + pads[1] + pads[3] - (kernel_w - 1) * dilation_w - 1) / stride_w + 1};
  }
};

struct DepthwiseSetup {
  DepthwiseCase c;
  Tensor x, w, b;
  explicit DepthwiseSetup(const DepthwiseCase& c)
      : c(c),
        x(random_tensor({c.images, c.channels, c.height, c.width}, 1)),
        w(random_tensor({c.channels, c.group, c.kernel_h, c.kernel_w}, 2)),
        b(random_tensor({c.channels}, 3)) {}
  void start(Harness& h) const {
    h.node.attrs.set("group", c.channels / c.group);
    h.node.attrs.set("strides", Dims{c.stride_h, c.stride_w});
    h.node.attrs.set("pads", c.pads);
    h.node.attrs.set("dilations", Dims{c.dilation_h, c.dilation_w});
    h.input(x, Layout::channels_last);
    h.constant(w);
    if (c.bias) h.constant(b);
  }
  std::vector<double> sums() const {
    return direct_sum(x, w, c.bias ? &b : nullptr, c.out(), c.pads, {c.stride_h, c.stride_w},
                      {c.dilation_h, c.dilation_w}, c.channels / c.group);
  }
};

DepthwiseCase random_depthwise(std::mt19937& engine) {
  auto one_of = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  DepthwiseCase c{one_of(1, 2),  one_of(1, 70), one_of(1, 24),
                  one_of(1, 40), one_of(1, 6),  one_of(1, 6),
                  one_of(1, 3),  one_of(1, 3),  {}};
  if (one_of(0, 2)) c.kernel_w = 1 + 2 * one_of(1, 3), c.stride_w = one_of(1, 2);
  if (one_of(0, 4) == 0) c.dilation_h = one_of(1, 3), c.dilation_w = one_of(1, 3);
  c.bias = one_of(0, 3) != 0;
  if (one_of(0, 2) == 0) c.group = 2 * one_of(1, 2), c.channels *= c.group;
  for (int k = 0; k < 4; ++k)
    c.pads.push_back(
        one_of(0, (k % 2 ? c.kernel_w * c.dilation_w : c.kernel_h * c.dilation_h) + 1));
  const int64_t missing_h = (c.kernel_h - 1) * c.dilation_h + 1 - c.height - c.pads[0] - c.pads[2];
  const int64_t missing_w = (c.kernel_w - 1) * c.dilation_w + 1 - c.width - c.pads[1] - c.pads[3];
  c.height += std::max<int64_t>(0, missing_h);
  c.width += std::max<int64_t>(0, missing_w);
  return c;
}

}  // namespace

TEST_CASE("depthwise convolutions of random sizes") {
  std::mt19937 engine(7);
  for (const Target& target : targets())
    for (int k = 0; k < 150; ++k) {
      const DepthwiseSetup s(random_depthwise(engine));
      CAPTURE(k);
      Harness h("Conv");
      h.target = &target;
      s.start(h);
      h.output(DType::f32, s.c.out(), Layout::channels_last);
      const Tensor got = h.run(make_depthwise);
      check_close(got, s.sums());
      CHECK(h.text == (s.c.group > 1 ? "grouped:" : "depthwise:") + target.name.substr(4));
    }
}

TEST_CASE(
    "depthwise convolutions: many channels, wide images, and the same bits on any number of "
    "threads") {
  for (const Target& target : targets())
    for (const DepthwiseCase& c : std::vector<DepthwiseCase>{
             {1, 600, 9, 17, 3, 3, 1, 1, {1, 1, 1, 1}},
             {2, 96, 40, 130, 3, 3, 2, 2, {1, 1, 0, 0}},
             {1, 264, 14, 100, 5, 5, 1, 1, {2, 2, 2, 2}},
             {1, 8, 64, 300, 5, 3, 2, 1, {2, 1, 2, 1}},
             {1, 160, 60, 61, 5, 5, 2, 2, {2, 2, 1, 2}},  // beyond the L2 cache: whole rows
             {1, 96, 20, 33, 7, 7, 1, 1, {3, 3, 3, 3}},
             {1, 128, 14, 28, 3, 3, 1, 1, {1, 1, 1, 1}, 1, 1, true, 4},
             {2, 24, 9, 40, 3, 3, 2, 2, {1, 1, 1, 1}, 1, 1, false, 2},
         }) {
      const DepthwiseSetup s(c);
      std::vector<Tensor> results;
      for (int threads : {1, 2, 5}) {
        set_threads(threads);
        Harness h("Conv");
        h.target = &target;
        s.start(h);
        h.output(DType::f32, c.out(), Layout::channels_last);
        results.push_back(h.run(make_depthwise));
      }
      set_threads(0);
      check_close(results[0], s.sums());
      for (const Tensor& r : results)
        CHECK(std::memcmp(r.data(), results[0].data(), static_cast<size_t>(r.numel()) * 4) == 0);
    }
}

TEST_CASE("depthwise tails in registers") {
  const DepthwiseSetup s({2, 21, 11, 13, 3, 3, 1, 1, {1, 1, 1, 1}});
  const Dims y = s.c.out();
  const Tensor full = random_tensor(y, 4), channel = random_tensor({1, 21, 1, 1}, 5, 0.5f, 2),
               one = random_tensor({1}, 6, 0.5f, 2);
  const auto base = s.sums();
  auto check = [&](const Target& target, const std::function<void(Harness&)>& tail, bool in_place,
                   const std::function<double(double, const Dims&, int64_t)>& f) {
    Harness h("Conv");
    h.target = &target;
    s.start(h);
    tail(h);
    h.output(DType::f32, y, Layout::channels_last,
             in_place ? static_cast<int>(h.call.inputs.size()) - 1 : -1);
    std::vector<double> want = base;
    each_index(y, [&](const Dims& i, int64_t k) {
      want[static_cast<size_t>(k)] = f(want[static_cast<size_t>(k)], i, k);
    });
    check_close(h.run(make_depthwise), want);
  };
  for (const Target& t : targets()) {
    check(
        t, [](Harness& h) { h.eltwise("relu"); }, false,
        [](double v, auto&, auto) { return std::max(v, 0.0); });
    check(
        t, [](Harness& h) { h.eltwise("leaky_relu", 0.25f); }, false,
        [](double v, auto&, auto) { return v < 0 ? v / 4 : v; });
    check(
        t,
        [](Harness& h) {
          h.eltwise("abs");
          h.eltwise("clip", 0.1f, 0.6f);
        },
        false,
        [](double v, auto&, auto) { return std::clamp(std::abs(v), double{0.1f}, double{0.6f}); });
    check(
        t,
        [](Harness& h) {
          h.eltwise("linear", 2, -1);
          h.eltwise("hardsigmoid", 0.5f, 0.25f);
        },
        false, [](double v, auto&, auto) { return std::clamp((2 * v - 1) / 2 + 0.25, 0.0, 1.0); });
    check(
        t, [](Harness& h) { h.eltwise("hardswish", 1.0f / 6, 0.5f); }, false,
        [](double v, auto&, auto) { return v * std::clamp(v / 6 + 0.5, 0.0, 1.0); });
    check(
        t,
        [&](Harness& h) {
          h.binary("mul", h.operand(channel));
          h.binary("sub", h.operand(one));
          h.binary("div", h.operand(channel));
          h.binary("max", h.operand(full, Layout::channels_last));
          h.binary("min", h.operand(one));
        },
        false,
        [&](double v, const Dims& i, int64_t k) {
          const double c = channel.at_f64(i[1]), o = one.at_f64(0);
          return std::min(std::max((v * c - o) / c, full.at_f64(k)), o);
        });
    for (bool in_place : {false, true})
      check(
          t,
          [&](Harness& h) {
            h.binary("add", h.operand(full, Layout::channels_last));
            h.eltwise("relu");
          },
          in_place, [&](double v, auto&, int64_t k) { return std::max(v + full.at_f64(k), 0.0); });
    check(
        t,
        [&](Harness& h) {
          h.constant(full);
          h.node.inputs.pop_back();
          h.binary("add", 3);
        },
        false, [&](double v, auto&, int64_t k) { return v + full.at_f64(k); });
  }
}

TEST_CASE("depthwise refuses what it cannot do") {
  auto declines = [](Harness& h) {
    auto made = h.make(make_depthwise);
    REQUIRE_FALSE(made.has_value());
    return made.error().not_applicable();
  };
  const DepthwiseSetup s({1, 8, 6, 6, 3, 3, 1, 1, {1, 1, 1, 1}});
  SUBCASE("a tail that registers cannot take") {
    Harness h("Conv");
    s.start(h);
    h.eltwise("tanh");
    h.output(DType::f32, s.c.out(), Layout::channels_last);
    CHECK(declines(h));
  }
  SUBCASE("several filters a channel") {
    Harness h("Conv");
    h.node.attrs.set("group", int64_t{4});
    h.input(random_tensor({1, 4, 6, 6}, 1), Layout::channels_last);
    h.constant(random_tensor({8, 1, 3, 3}, 2));
    h.output(DType::f32, {1, 8, 4, 4}, Layout::channels_last);
    CHECK(declines(h));
  }
  SUBCASE("an image in the plain layout") {
    Harness h("Conv");
    h.node.attrs.set("group", int64_t{8});
    h.input(s.x);
    h.constant(s.w);
    h.output(DType::f32, {1, 8, 4, 4}, Layout::channels_last);
    CHECK(declines(h));
  }
}

}  // namespace ferrule::cpu::test
