// Our convolution with few filters against plain loops: every number of filters, border, stride and
// dilation, rows and images, tails, slices, and the same bits whatever the number of threads.
#include "runtime/parallel.h"
#include "tests/unit/cpu/image_case.h"

namespace ferrule::cpu::test {
namespace {

ImageCase random_case(std::mt19937& engine) {
  auto one_of = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine);
  };
  const size_t spatial = one_of(0, 3) ? 2 : 1;
  ImageCase c{{one_of(1, 3), one_of(1, 19)}, {one_of(1, 8)}, {}, {}, {}};
  c.w.push_back(c.x[1]);
  for (size_t k = 0; k < spatial; ++k) {
    const bool row = k + 1 == spatial;
    c.w.push_back(one_of(1, row ? 9 : 4));
    c.strides.push_back(one_of(0, 2) ? 1 : one_of(2, row ? 5 : 4));
    c.dilations.push_back(one_of(0, 2) ? 1 : one_of(2, 4));
    c.x.push_back((c.w.back() - 1) * c.dilations.back() + one_of(1, row ? 90 : 20));
  }
  for (size_t k = 0; k < 2 * spatial; ++k)
    c.pads.push_back(one_of(0, 1) ? 0 : one_of(0, c.w[2 + k % spatial] * c.dilations[k % spatial]));
  c.bias = one_of(0, 3) != 0;
  return c;
}

}  // namespace

TEST_CASE("convolutions with few filters, of random sizes") {
  std::mt19937 engine(11);
  for (const Target& target : targets())
    for (int k = 0; k < 250; ++k) {
      const ImageSetup s(random_case(engine));
      CAPTURE(k);
      CAPTURE(str(Type{DType::f32, Shape(s.c.x.begin(), s.c.x.end())}));
      CAPTURE(str(Type{DType::f32, Shape(s.c.w.begin(), s.c.w.end())}));
      Harness h("Conv");
      h.target = &target;
      s.start(h);
      h.output(DType::f32, s.c.out(), Layout::channels_last);
      const Tensor got = h.run(make_few_filters);
      check_close(got, s.sums());
      CHECK(h.text == (target.name == "cpu-avx2" ? "few_filters:avx2" : "few_filters:avx512"));
    }
}

TEST_CASE("few filters: long rows, many channels, pads and slices of rows, any number of threads") {
  for (const Target& target : targets())
    for (const ImageCase& c : std::vector<ImageCase>{
             {{1, 1, 9001}, {1, 1, 64}, {2}, {1}, {0, 0}},
             {{2, 3, 4000}, {2, 3, 33}, {3}, {5}, {40, 7}},
             {{1, 1, 1, 20000}, {1, 1, 1, 16}, {1, 1}, {1, 1}, {0, 0, 0, 15}},
             {{1, 300, 9, 700}, {3, 300, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
             {{2, 8, 60, 300}, {8, 8, 3, 5}, {1, 1}, {2, 1}, {2, 2, 2, 2}},
             {{1, 4, 30, 1000}, {5, 4, 2, 3}, {4, 8}, {1, 2}, {3, 900, 0, 2}},
             {{1, 2, 3, 40}, {1, 2, 2, 2}, {1, 1}, {9, 1}, {20, 0, 20, 0}},
         }) {
      const ImageSetup s(c);
      std::vector<Tensor> results;
      for (int threads : {1, 2, 5}) {
        set_threads(threads);
        Harness h("Conv");
        h.target = &target;
        s.start(h);
        h.output(DType::f32, c.out(), Layout::channels_last);
        results.push_back(h.run(make_few_filters));
      }
      set_threads(0);
      check_close(results[0], s.sums());
      for (const Tensor& r : results)
        CHECK(std::memcmp(r.data(), results[0].data(), static_cast<size_t>(r.numel()) * 4) == 0);
    }
}

TEST_CASE("tails of few filters") {
  for (const int64_t filters : {1, 3, 8}) {
    const ImageSetup s({{2, 5, 11, 37}, {filters, 5, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}});
    const Dims y = s.c.out();
    const Tensor full = random_tensor(y, 4),
                 channel = random_tensor({1, filters, 1, 1}, 5, 0.5f, 2),
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
      check_close(h.run(make_few_filters), want);
    };
    for (const Target& t : targets()) {
      check(
          t, [](Harness& h) { h.eltwise("logistic"); }, false,
          [](double v, auto&, auto) { return 1 / (1 + std::exp(-v)); });
      check(
          t,
          [&](Harness& h) {
            h.binary("mul", h.operand(channel));
            h.binary("sub", h.operand(one));
            h.binary("max", h.operand(full, Layout::channels_last));
            h.eltwise("clip", -0.5f, 0.75f);
          },
          false,
          [&](double v, const Dims& i, int64_t k) {
            return std::clamp(std::max(v * channel.at_f64(i[1]) - one.at_f64(0), full.at_f64(k)),
                              -0.5, 0.75);
          });
      for (bool in_place : {false, true})
        check(
            t,
            [&](Harness& h) {
              h.binary("add", h.operand(full, Layout::channels_last));
              h.eltwise("relu");
            },
            in_place,
            [&](double v, auto&, int64_t k) { return std::max(v + full.at_f64(k), 0.0); });
    }
  }
}

TEST_CASE("few filters refuse what they cannot do") {
  auto declines = [](Harness& h) {
    auto made = h.make(make_few_filters);
    REQUIRE_FALSE(made.has_value());
    return made.error().not_applicable();
  };
  auto conv = [](Harness& h, const Dims& x, const Dims& w, Layout layout = Layout::channels_last) {
    h.input(random_tensor(x, 1), layout);
    h.constant(random_tensor(w, 2));
    h.output(DType::f32, {x[0], w[0], x[2] - w[2] + 1, x[3] - w[3] + 1}, Layout::channels_last);
  };
  SUBCASE("many filters") {
    Harness h("Conv");
    conv(h, {1, 4, 9, 40}, {9, 4, 3, 3});
    CHECK(declines(h));
  }
  SUBCASE("groups") {
    Harness h("Conv");
    h.node.attrs.set("group", int64_t{2});
    conv(h, {1, 4, 9, 40}, {4, 2, 3, 3});
    CHECK(declines(h));
  }
  SUBCASE("an image in the plain layout") {
    Harness h("Conv");
    conv(h, {1, 4, 9, 40}, {4, 4, 3, 3}, Layout::plain);
    CHECK(declines(h));
  }
  SUBCASE("weights that are not finite, which would meet the zeros of a pad") {
    Harness h("Conv");
    h.input(random_tensor({1, 1, 9, 40}, 1), Layout::channels_last);
    h.constant(Tensor::of_f32({1, 1, 1, 3}, {1, std::numeric_limits<float>::infinity(), 1}));
    h.output(DType::f32, {1, 1, 9, 38}, Layout::channels_last);
    CHECK(declines(h));
  }
  SUBCASE("a tail that is none of its steps") {
    Harness h("Conv");
    h.input(random_tensor({1, 4, 9, 40}, 1), Layout::channels_last);
    h.constant(random_tensor({2, 4, 3, 3}, 2));
    h.eltwise("tanh");
    h.output(DType::f32, {1, 2, 7, 38}, Layout::channels_last);
    CHECK(declines(h));
  }
}

}  // namespace ferrule::cpu::test
