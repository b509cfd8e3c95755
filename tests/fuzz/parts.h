// What random graphs are put together from: operators that have kernels of their own ("anchors"),
// operands that fit a value somehow, and steps behind a value. Each draws on from the builder's
// seed.
#pragma once
#include "tests/fuzz/builder.h"

namespace ferrule::fuzz {

using Made = std::optional<Value>;  ///< nullopt: what was drawn is not valid there

/// Percent of the values that say nothing (values.h) which stay: behind them nothing wrong can be
/// seen.
constexpr int kDull = 2;

std::string ints(const std::vector<int64_t>& v);  ///< "[1,2]"

/// An anchor's result, and what it was made of: operands of steps behind it may be its own.
struct Anchor {
  std::string op, attributes;
  std::vector<Value> operands;
  Value result;
};

/// Conv, ConvTranspose, MatMul, Gemm, a pool or a norm, on graph inputs or on what is computed of
/// them.
Anchor draw_anchor(Builder& b);
/// The same operator with the same shapes on other numbers; nullopt: there are none.
std::optional<Value> another(Builder& b, const Anchor& anchor);

/// What operands of steps may be drawn from.
struct Scene {
  Anchor anchor;
  std::vector<Value> values;  ///< what is computed so far; the last one goes on
};

/// Dims that broadcast with `dims`; some widen the result.
Dims operand_dims(Draw& draw, const Dims& dims);
/// A second operand of a step on `value`: a constant, a graph input or something computed, of any
/// rank that fits. `mood`: where the step cares what its elements are like.
Value draw_operand(Builder& b, const Scene& scene, const Value& value,
                   std::optional<Mood> mood = std::nullopt);

/// One step behind the scene's last value; false: what was drawn is not valid there or says
/// nothing, and nothing has changed.
bool draw_step(Builder& b, Scene& scene);

// --- what whole graphs are made of, besides; all read `v`

/// A convolution, product, pool, norm or Resize.
Made draw_layer(Builder& b, const Value& v);
/// What several operators spell together: softmax, norms, Gelu and its kin, gates of channels,
/// attention.
Made draw_idiom(Builder& b, const Value& v);
/// A convolution or product between QuantizeLinear and DequantizeLinear, with a tail. All of it is
/// exact.
Made draw_quantized(Builder& b, const Value& v);
/// If, Loop or Scan, with steps in their bodies.
Made draw_nested(Builder& b, const Scene& scene, const Value& v);
/// One of the operators that nothing above draws.
Made draw_other(Builder& b, const Value& v);

}  // namespace ferrule::fuzz
