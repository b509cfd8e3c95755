// Resize against numbers from the operator's page and against a plain loop, in both layouts.
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

}  // namespace ferrule::cpu::test
