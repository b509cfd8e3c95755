// DynamicQuantizeLinear against the interpreter: lengths around those of vectors, signs, values
// beyond a range, NaN.
#include "engine/interpreter/interpreter.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {

TEST_CASE("dynamic quantize: as the interpreter, whatever the range") {
  std::mt19937 rng(3);
  const float inf = std::numeric_limits<float>::infinity();
  for (const int64_t n : {0, 1, 15, 16, 17, 1000, 100003})
    for (const auto& [low, high] : {std::pair{-1.0f, 1.0f},
                                    {0.0f, 0.0f},
                                    {2.0f, 3.0f},
                                    {-9.0f, -4.0f},
                                    {-1e-40f, 1e-40f},
                                    {-3e38f, 3e38f}})
      for (const float special : {0.0f, std::nanf(""), inf}) {
        CAPTURE(n);
        CAPTURE(low);
        CAPTURE(special);
        std::vector<float> v(static_cast<size_t>(n));
        for (float& e : v) e = std::uniform_real_distribution<float>(low, high)(rng);
        // An infinite range leaves nothing of the rest: no NaN there, which has no place in 8 bits.
        if (n > 20 && special == special && special < inf) v[3] = special;
        if (n > 20 && special != special) v[5] = special;
        const Tensor x = Tensor::of<float>(DType::f32, {n}, v);
        Harness h("DynamicQuantizeLinear");
        h.input(x);
        InterpreterOptions options;
        const Tensor* operands[] = {&x};
        auto want = interpret_node(h.graph, h.node, operands, options);
        REQUIRE(want.has_value());
        for (const Tensor& t : *want) h.output(t.dtype(), t.dims());
        auto kernel = h.make(own_factory("dynamic_quantize"));
        REQUIRE(kernel.has_value());
        REQUIRE((*kernel)->run().has_value());
        for (size_t k = 0; k < 3; ++k) {
          CAPTURE(k);
          const Difference d = compare(h.result(k), (*want)[k], {});
          CHECK_MESSAGE(d.ok, d.text);
        }
      }
}

}  // namespace ferrule::cpu::test
