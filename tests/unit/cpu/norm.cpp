// BatchNormalization against the interpreter: ranks 2 to 5, both layouts, in place, channels that
// are no multiple of anything, and parameters for which the kernel has no finite numbers.
#include "engine/interpreter/interpreter.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

/// x, then scale, bias, mean, variance.
std::vector<Tensor> operands(const Dims& dims) {
  const Dims c{dims[1]};
  return {random_tensor(dims, 1, -4, 4), random_tensor(c, 2, -2, 2), random_tensor(c, 3),
          random_tensor(c, 4, -3, 3), random_tensor(c, 5, 0.01f, 4)};
}

void set_up(Harness& h, const std::vector<Tensor>& tensors, double epsilon, Layout layout,
            bool in_place = false) {
  h.target = &host();
  h.node.attrs.set("epsilon", epsilon);
  h.input(tensors[0], layout);
  for (size_t k = 1; k < 5; ++k) h.constant(tensors[k]);
  h.output(DType::f32, tensors[0].dims(), layout, in_place ? 0 : -1);
}

std::vector<double> interpreted_in_f64(const Harness& h, const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& t : tensors) pointers.push_back(&t);
  auto y = interpret_node(h.graph, h.node, pointers, {});
  REQUIRE_MESSAGE(y.has_value(), (y ? "" : y.error().message));
  return (*y)[0].to_f64();
}

}  // namespace

TEST_CASE("batch normalisation: ranks and layouts") {
  for (const Dims& d : std::vector<Dims>{{7, 19},
                                         {2, 5, 33},
                                         {3, 19, 5, 7},
                                         {1, 64, 24, 24},
                                         {2, 6, 3, 4, 5},
                                         {2, 1, 4, 4},
                                         {3, 8, 1, 1},
                                         {0, 8, 3, 3}})
    for (Layout layout : {Layout::plain, Layout::channels_last}) {
      if (layout == Layout::channels_last && d.size() < 3) continue;
      for (bool in_place : {false, true})
        for (double epsilon : {1e-5, 0.5}) {
          CAPTURE(d.size());
          CAPTURE(d[1]);
          CAPTURE(name(layout));
          CAPTURE(in_place);
          const auto tensors = operands(d);
          Harness h("BatchNormalization");
          set_up(h, tensors, epsilon, layout, in_place);
          const auto want = interpreted_in_f64(h, tensors);
          check_close(h.run(make_norm), want);
          CHECK(h.text.starts_with("norm:generated:"));
        }
    }
}

TEST_CASE("batch normalisation: operands of two layouts") {
  const auto tensors = operands({2, 19, 5, 7});
  Harness h("BatchNormalization");
  set_up(h, tensors, 1e-5, Layout::channels_last);
  h.call.outputs[0].layout = Layout::plain;
  const auto want = interpreted_in_f64(h, tensors);
  check_close(h.run(make_norm), want);
}

TEST_CASE("batch normalisation: what the kernel cannot do is refused") {
  using Change = std::function<void(std::vector<Tensor>&, Harness&)>;
  auto refused = [](const Change& before, const Change& after) {
    auto tensors = operands({2, 3, 4});
    Harness h("BatchNormalization");
    before(tensors, h);
    set_up(h, tensors, 0.0, Layout::plain);
    after(tensors, h);
    auto kernel = h.make(make_norm);
    return !kernel && kernel.error().not_applicable();
  };
  const Change nothing = [](auto&, auto&) {};
  auto with = [](size_t k, std::vector<float> v) -> Change {
    return [k, v](auto& t, auto&) { t[k] = Tensor::of_f32({static_cast<int64_t>(v.size())}, v); };
  };
  CHECK_FALSE(refused(nothing, nothing));
  CHECK(refused(with(4, {1, 0, 1}), nothing));   // division by zero
  CHECK(refused(with(4, {1, 1, -1}), nothing));  // root of a negative number
  CHECK(refused(with(1, {1, 1}), nothing));      // two numbers for three channels
  CHECK(refused(nothing, [](auto&, Harness& h) { h.node.attrs.set("training_mode", int64_t{1}); }));
  CHECK(refused(nothing, [](auto&, Harness& h) { h.call.inputs[3].constant = nullptr; }));
}

}  // namespace ferrule::cpu::test
