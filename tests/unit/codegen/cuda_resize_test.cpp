// Resize kernels on the host: every mode, way of coordinates and rounding, by scales and by sizes,
// larger and smaller, along any axes, every element type and layout, against the interpreter.
#include "codegen/cuda/resize.h"

#include "tests/unit/codegen/launch_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

struct Mode {
  std::string mode, coordinates, rounding = "round_prefer_floor";
  bool exclude = false, antialias = false;
};

void add_resize(LaunchCases& cases, const Mode& m, DType type, const Dims& from, const Dims& to,
                bool scales) {
  RowGraph r(type);
  const ValueId x = r.input(random_of(type, from, cases.rng));
  const auto rank = static_cast<int64_t>(from.size());
  std::vector<ValueId> in{x, {}, {}, {}};
  if (scales) {
    std::vector<float> s;
    for (size_t k = 0; k < from.size(); ++k)
      s.push_back((static_cast<float>(to[k]) + (to[k] == from[k] ? 0.0f : 0.25f)) /
                  static_cast<float>(from[k]));
    in[2] = r.graph.add_constant("scales", Tensor::of_f32({rank}, s));
    in.pop_back();
  } else {
    in[3] = r.graph.add_constant("sizes", Tensor::of_i64({rank}, to));
  }
  std::map<std::string, Attr> attrs{{"mode", m.mode},
                                    {"coordinate_transformation_mode", m.coordinates},
                                    {"nearest_mode", m.rounding},
                                    {"exclude_outside", static_cast<int64_t>(m.exclude)},
                                    {"antialias", static_cast<int64_t>(m.antialias)}};
  r.graph.add_output(r.node("Resize", in, attrs));
  cases.add(std::move(r.graph), std::move(r.tensors), call_of_node).exact = m.mode == "nearest";
}

}  // namespace

TEST_CASE("resizing in every mode equals the interpreter") {
  if (HostKernels::missing()) return;
  LaunchCases cases(51);
  std::vector<Mode> modes;
  for (const char* mode : {"linear", "cubic"})
    for (const char* coordinates : {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel",
                                    "align_corners", "asymmetric"})
      modes.push_back({mode, coordinates});
  for (const char* rounding : {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"})
    modes.push_back({"nearest", "half_pixel", rounding});
  modes.push_back({"cubic", "half_pixel", "floor", true});
  modes.push_back({"linear", "half_pixel", "floor", false, true});
  modes.push_back({"cubic", "align_corners", "floor", true, true});
  const std::vector<std::pair<Dims, Dims>> sizes{
      {{1, 8, 5, 7}, {1, 8, 10, 9}},      {{2, 3, 9, 8}, {2, 3, 4, 5}},
      {{1, 16, 4, 4}, {1, 16, 4, 11}},    {{2, 4, 6}, {2, 4, 15}},
      {{1, 2, 3, 4, 5}, {1, 2, 6, 3, 8}}, {{2, 8, 3, 1}, {3, 5, 1, 6}},
  };
  int packs = 0;
  size_t turn = 0;
  for (const Mode& m : modes)
    for (const auto& [from, to] : sizes) {
      const DType type = std::array{DType::f32, DType::f16, DType::bf16}[++turn % 3];
      add_resize(cases, m, type, from, to, turn % 2);
      packs += cases.last().planned.source.find("typedef Pack<T, 1> Element") == std::string::npos;
    }
  CHECK(cases.kinds["resize"] == static_cast<int>(turn));
  CHECK(packs > 3);
  cases.run();
}

TEST_CASE("what has no resize kernel is refused") {
  const RowLayout x{{1, 2, 4}, {8, 4, 1}}, y{{1, 2, 6}, {12, 6, 1}};
  const std::vector<ResizeAxis> axes{{1, 1}, {2, 2}, {4, 6, 1.5}};
  Resampling r{"linear", "half_pixel", "floor"};
  CHECK(plan_cuda_resize(r, axes, DType::f32, x, y, true).has_value());
  CHECK_FALSE(plan_cuda_resize(r, axes, DType::i32, x, y, true).has_value());
  CHECK_FALSE(plan_cuda_resize(r, axes, DType::f32, y, x, true).has_value());
  r.coordinates = "tf_crop_and_resize";
  CHECK_FALSE(plan_cuda_resize(r, axes, DType::f32, x, y, true).has_value());
}

TEST_CASE("resize kernels compile without a spill") {
  LaunchCases cases(52);
  for (const Mode& m :
       {Mode{"linear", "half_pixel"}, Mode{"cubic", "half_pixel"},
        Mode{"linear", "half_pixel", "floor", false, true}, Mode{"nearest", "asymmetric"}})
    for (DType type : {DType::f32, DType::f16})
      add_resize(cases, m, type, {1, 64, 23, 17}, {1, 64, 10, 31}, false);
  check_compiles(cases);
}
