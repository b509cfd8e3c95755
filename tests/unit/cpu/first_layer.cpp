// First layers (a few planes in, channels-last out) and the reorder inside other convolutions'
// launches, against plain loops: borders, strides, dilations, remainders of filters, tails,
// threads.
#include "runtime/parallel.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct FirstCase {
  int64_t images, planes, height, width, filters;
  Dims kernel, strides, pads, dilations{1, 1};
  int64_t groups = 1;
  Dims out() const {
    auto size = [&](int64_t in, size_t k) {
      return (in + pads[k] + pads[k + 2] - (kernel[k] - 1) * dilations[k] - 1) / strides[k] + 1;
    };
    return {images, filters, size(height, 0), size(width, 1)};
  }
};

std::vector<double> sums_of(const FirstCase& c, const Tensor& x, const Tensor& w, const Tensor& b) {
  return direct_sum(x, w, &b, c.out(), c.pads, c.strides, c.dilations, c.groups);
}

struct FirstSetup {
  FirstCase c;
  Tensor x, w, b;
  explicit FirstSetup(const FirstCase& c)
      : c(c),
        x(random_tensor({c.images, c.planes, c.height, c.width}, 1)),
        w(random_tensor({c.filters, c.planes / c.groups, c.kernel[0], c.kernel[1]}, 2)),
        b(random_tensor({c.filters}, 3)) {}
  void start(Harness& h) const {
    h.node.attrs.set("group", c.groups);
    h.node.attrs.set("strides", c.strides);
    h.node.attrs.set("pads", c.pads);
    h.node.attrs.set("dilations", c.dilations);
    h.input(x);
    h.constant(w);
    h.constant(b);
  }
};

FirstCase random_first(std::mt19937& engine) {
  auto one_of = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  FirstCase c{one_of(1, 2),
              one_of(1, 8),
              one_of(1, 24),
              one_of(1, 40),
              one_of(1, 70),
              {one_of(1, 7), one_of(1, 7)},
              {one_of(1, 3), one_of(1, 2)},
              {}};
  if (one_of(0, 3) == 0) c.dilations = {one_of(1, 2), one_of(1, 3)};
  for (size_t k = 0; k < 4; ++k)
    c.pads.push_back(one_of(0, (c.kernel[k % 2] - 1) * c.dilations[k % 2]));
  c.height += std::max<int64_t>(
      0, (c.kernel[0] - 1) * c.dilations[0] + 1 - c.height - c.pads[0] - c.pads[2]);
  c.width += std::max<int64_t>(
      0, (c.kernel[1] - 1) * c.dilations[1] + 1 - c.width - c.pads[1] - c.pads[3]);
  return c;
}

}  // namespace

TEST_CASE("first layers of random sizes") {
  std::mt19937 engine(11);
  for (const Target& target : targets())
    for (int k = 0; k < 120; ++k) {
      const FirstSetup s(random_first(engine));
      CAPTURE(k);
      Harness h("Conv");
      h.target = &target;
      s.start(h);
      h.output(DType::f32, s.c.out(), Layout::channels_last);
      check_close(h.run(make_first), sums_of(s.c, s.x, s.w, s.b));
      CHECK(h.text == (target.name == "cpu-avx2" ? "first:avx2" : "first:avx512"));
    }
}

TEST_CASE("first layers take their tail along, and any number of threads gives the same bits") {
  const FirstSetup s({2, 3, 48, 64, 40, {3, 3}, {2, 2}, {1, 1, 1, 1}});
  const Dims y = s.c.out();
  const Tensor full = random_tensor(y, 4), channel = random_tensor({40, 1, 1}, 5);
  std::vector<double> want = sums_of(s.c, s.x, s.w, s.b);
  each_index(y, [&](const Dims& i, int64_t k) {
    double& v = want[static_cast<size_t>(k)];
    v = std::max(v, 0.0) * channel.at_f64(i[1]) + full.at_f64(k);
    v *= std::clamp(v / 6 + 0.5, 0.0, 1.0);
  });
  for (const Target& target : targets()) {
    std::vector<Tensor> results;
    for (int threads : {1, 2, 5}) {
      set_threads(threads);
      Harness h("Conv");
      h.target = &target;
      s.start(h);
      h.eltwise("relu");
      h.binary("mul", h.operand(channel));
      h.binary("add", h.operand(full, Layout::channels_last));
      h.eltwise("hardswish", 1.0f / 6, 0.5f);
      h.output(DType::f32, y, Layout::channels_last);
      results.push_back(h.run(make_first));
    }
    set_threads(0);
    check_close(results[0], want);
    for (const Tensor& r : results)
      CHECK(std::memcmp(r.data(), results[0].data(), static_cast<size_t>(r.numel()) * 4) == 0);
  }
}

TEST_CASE(
    "a plain image that the first layer's kernel cannot take is reordered inside the launch") {
  for (const FirstCase& c :
       std::vector<FirstCase>{{1, 3, 14, 15, 8, {3, 3}, {2, 3}, {1, 1, 1, 1}},
                              {2, 4, 9, 9, 8, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 2},
                              {1, 20, 9, 9, 16, {1, 1}, {1, 1}, {0, 0, 0, 0}}}) {
    const FirstSetup s(c);
    Harness refused("Conv"), h("Conv");
    s.start(refused);
    refused.output(DType::f32, c.out(), Layout::channels_last);
    auto made = refused.make(make_first);
    REQUIRE_FALSE(made.has_value());
    CHECK(made.error().not_applicable());
    s.start(h);
    h.output(DType::f32, c.out(), Layout::channels_last);
    check_close(h.run(make_convolution), sums_of(c, s.x, s.w, s.b));
    CHECK(h.text.starts_with("reorder+"));
    CHECK(h.text.find("ref") == std::string::npos);
  }
}

TEST_CASE("an operand of the tail is no bias") {
  const Tensor x = random_tensor({1, 1, 12, 12}, 1), w = random_tensor({8, 1, 3, 3}, 2),
               channel = random_tensor({8, 1, 1}, 3);
  const FirstCase first{1, 1, 12, 12, 8, {3, 3}, {1, 1}, {1, 1, 1, 1}};
  for (const Target& target : targets()) {
    Harness h("Conv");
    h.target = &target;
    h.node.attrs.set("pads", first.pads);
    h.input(x);
    h.constant(w);
    h.binary("add", h.operand(channel));
    h.output(DType::f32, first.out(), Layout::channels_last);
    check_close(h.run(make_first), sums_of(first, x, w, channel));
  }
  const Tensor deep = random_tensor({1, 8, 12, 12}, 4);
  const FirstCase wise{1, 8, 12, 12, 8, {3, 3}, {1, 1}, {1, 1, 1, 1}, {1, 1}, 8};
  for (const Target& target : targets()) {
    Harness h("Conv");
    h.target = &target;
    h.node.attrs.set("pads", wise.pads);
    h.node.attrs.set("group", wise.groups);
    h.input(deep, Layout::channels_last);
    h.constant(w);
    h.binary("add", h.operand(channel));
    h.output(DType::f32, wise.out(), Layout::channels_last);
    check_close(h.run(make_depthwise), sums_of(wise, deep, w, channel));
  }
}

}  // namespace ferrule::cpu::test
