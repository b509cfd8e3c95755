// Resize against numbers from the operator's page and against a plain loop, in both layouts; any
// axes and types against the interpreter.
#include "engine/interpreter/interpreter.h"
#include "runtime/scoped_threads.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor resize(const Tensor& x, const Dims& y, std::string mode, std::string coordinates,
              std::string nearest, Layout layout, std::vector<float> scales = {}) {
  Harness h("Resize");
  h.node.attrs.set("mode", std::move(mode));
  h.node.attrs.set("coordinate_transformation_mode", std::move(coordinates));
  h.node.attrs.set("nearest_mode", std::move(nearest));
  h.input(x, layout);
  h.absent();
  if (scales.empty())
    h.absent();
  else
    h.constant(Tensor::of_f32({static_cast<int64_t>(scales.size())}, scales));
  h.output(DType::f32, y, layout);
  return h.run(make_resize);
}

}  // namespace

TEST_CASE("the operator page's examples") {
  const Tensor x = Tensor::of_f32({1, 1, 2, 2}, {1, 2, 3, 4});
  check_close(resize(x, {1, 1, 4, 6}, "nearest", "half_pixel", "round_prefer_floor", Layout::plain,
                     {1, 1, 2, 3}),
              {1, 1, 1, 2, 2, 2, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4, 4, 4, 3, 3, 3, 4, 4, 4});
  check_close(resize(x, {1, 1, 4, 4}, "linear", "half_pixel", "", Layout::plain, {1, 1, 2, 2}),
              {1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4});
  check_close(resize(x, {1, 1, 4, 4}, "linear", "align_corners", "", Layout::plain, {1, 1, 2, 2}),
              {1, 4 / 3.0, 5 / 3.0, 2, 5 / 3.0, 2, 7 / 3.0, 8 / 3.0, 7 / 3.0, 8 / 3.0, 3, 10 / 3.0,
               3, 10 / 3.0, 11 / 3.0, 4});
  const Tensor row = Tensor::of_f32({1, 1, 2, 4}, {1, 2, 3, 4, 5, 6, 7, 8});
  check_close(resize(row, {1, 1, 1, 2}, "nearest", "half_pixel", "round_prefer_floor",
                     Layout::plain, {1, 1, 0.6f, 0.6f}),
              {1, 3});
  check_close(
      resize(row, {1, 1, 1, 2}, "linear", "half_pixel", "", Layout::plain, {1, 1, 0.6f, 0.6f}),
      {2.6666665, 4.3333331});
}

TEST_CASE("channels-last gives what plain gives") {
  const Tensor x = random_tensor({2, 17, 5, 6}, 1);
  for (const char* mode : {"nearest", "linear"})
    for (const char* coordinates : {"asymmetric", "half_pixel", "align_corners",
                                    "pytorch_half_pixel", "half_pixel_symmetric"})
      for (const char* nearest : {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"})
        for (Dims y :
             std::vector<Dims>{{2, 17, 10, 12}, {2, 17, 40, 48}, {2, 17, 3, 4}, {2, 17, 5, 9}}) {
          const Tensor a = resize(x, y, mode, coordinates, nearest, Layout::plain);
          const Tensor b = resize(x, y, mode, coordinates, nearest, Layout::channels_last);
          check_close(a, b.to_f64(), {});
        }
}

TEST_CASE("nearest, asymmetric, floor by a whole factor repeats pixels") {
  const Tensor x = random_tensor({1, 24, 6, 8}, 1);
  for (int64_t factor : {2, 4, 8}) {
    std::vector<double> want;
    const Dims y{1, 24, 6 * factor, 8 * factor};
    each_index(y, [&](const Dims& i, int64_t) {
      want.push_back(x.at_f64((i[1] * 6 + i[2] / factor) * 8 + i[3] / factor));
    });
    check_close(resize(x, y, "nearest", "asymmetric", "floor", Layout::channels_last), want, {});
  }
}

TEST_CASE("one and three spatial axes") {
  check_close(resize(Tensor::of_f32({1, 1, 4}, {1, 2, 3, 4}), {1, 1, 7}, "linear", "align_corners",
                     "", Layout::plain),
              {1, 1.5, 2, 2.5, 3, 3.5, 4});
  const Tensor x = random_tensor({1, 2, 2, 3, 4}, 1);
  const Tensor y = resize(x, {1, 2, 4, 3, 4}, "nearest", "asymmetric", "floor", Layout::plain);
  CHECK(y.at_f64(12) == x.at_f64(0));
  CHECK(y.at_f64(24) == x.at_f64(12));
}

TEST_CASE("resize: any axes and types, the bits of the interpreter for integers") {
  std::mt19937 rng(3);
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(rng);
  };
  const DType types[] = {DType::f32, DType::f64, DType::i8,  DType::u8,
                         DType::i16, DType::u16, DType::i32, DType::i64};
  const char* coordinates[] = {"asymmetric", "half_pixel", "align_corners", "half_pixel_symmetric"};
  const char* rounding[] = {"floor", "ceil", "round_prefer_floor", "round_prefer_ceil"};
  for (int round = 0; round < 150; ++round) {
    const ScopedThreads threads(static_cast<int>(pick(1, 3)));
    Dims in, out;
    const int64_t rank = pick(3, 5), first = pick(0, rank - 1), end = first + pick(1, 3);
    for (int64_t k = 0; k < rank; ++k) {
      in.push_back(pick(1, k + 1 == rank ? 20 : 6));
      out.push_back(k < first || k >= end ? in.back() : pick(0, 1) ? 2 * in.back() : pick(1, 12));
    }
    const bool linear = pick(0, 1) == 1;
    const DType type = types[pick(0, linear ? 6 : 7)];
    std::vector<int64_t> numbers(static_cast<size_t>(numel(in)));
    for (int64_t& v : numbers) v = pick(is_unsigned_int(type) ? 0 : -100, 100);
    std::vector<double> reals(numbers.begin(), numbers.end());
    const Tensor x = type == DType::f64   ? Tensor::of<double>(type, in, reals)
                     : type == DType::f32 ? random_tensor(in, static_cast<unsigned>(round))
                                          : Tensor::of_ints(type, in, numbers);
    const Tensor sizes = Tensor::of_i64({rank}, out);
    Harness h("Resize");
    h.node.attrs.set("mode", linear ? "linear" : "nearest");
    h.node.attrs.set("coordinate_transformation_mode", coordinates[pick(0, 3)]);
    h.node.attrs.set("nearest_mode", rounding[pick(0, 3)]);
    h.input(x, pick(0, 1) ? Layout::plain : Layout::channels_last);
    h.absent(), h.absent();
    h.constant(sizes);
    h.output(type, out, h.call.inputs[0].layout);
    const std::vector<const Tensor*> operands{&x, nullptr, nullptr, &sizes};
    const auto want = interpret_node(h.graph, h.node, operands, InterpreterOptions());
    REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));
    auto kernel = h.make(make_resize);
    if (!kernel) {  // axes that are not neighbours in that layout
      CHECK(h.call.inputs[0].layout == Layout::channels_last);
      continue;
    }
    REQUIRE((*kernel)->run().has_value());
    CAPTURE(round);
    CAPTURE(name(type));
    if (type == DType::f32) {
      const Difference d = compare(h.result(0), (*want)[0], model_tolerance(type));
      CHECK_MESSAGE(d.ok, d.text);
    } else {
      CHECK(h.result(0).identical((*want)[0]));
    }
  }
}

TEST_CASE("resize: pixels without weight are not read") {
  for (const int64_t channels : {1, 3, 20}) {
    const Dims in{1, 4, 5, channels}, out{1, 7, 9, channels};
    std::vector<float> v(static_cast<size_t>(numel(in)), 1.0f);
    for (int64_t c = 0; c < channels; ++c)
      v[static_cast<size_t>((2 * 5 + 2) * channels + c)] = kNan;
    const Tensor x = Tensor::of_f32(in, v);
    const Tensor y = resize(x, out, "linear", "align_corners", "", Layout::plain);
    int64_t nan = 0;
    for (double e : y.to_f64()) nan += std::isnan(e);
    CHECK(nan == 9 * channels);
  }
}

}  // namespace ferrule::cpu::test
