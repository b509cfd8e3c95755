// What our kernels over vectors of output channels (winograd_functions.h, product.h) share: the
// steps of a tail, and how output channels are grouped. Included where nothing but such headers may
// be (winograd_functions.h says why).
#pragma once
#include <stdint.h>

namespace ferrule::cpu {

/// A step of the tail on a vector of results; see PostOp for alpha and beta.
struct Step {
  enum class Kind : uint8_t {
    relu,
    leaky_relu,
    clip,
    linear,
    hardswish,
    hardsigmoid,
    logistic,
    swish,
    abs,
    square,
    add,
    sub,
    mul,
    div,
    max,
    min,
  };
  enum class Operand : uint8_t { none, scalar, channel, full };
  Kind kind = Kind::relu;
  Operand operand = Operand::none;
  float alpha = 0, beta = 0;
  const float* data = nullptr;  ///< set when the kernel is bound
};

/// Output channels of a block: this many vectors at most.
inline constexpr int kBlockVectors = 3;
/// Blocks of output channels are as wide as can be, but a last one of one vector takes another from
/// its neighbour.
inline int64_t block_width(int64_t vectors_left) {
  if (vectors_left == 4 || vectors_left < kBlockVectors) return vectors_left < 2 ? vectors_left : 2;
  return kBlockVectors;
}

}  // namespace ferrule::cpu
