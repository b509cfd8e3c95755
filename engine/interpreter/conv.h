// The convolution loop, shared with the quantised convolutions (quantize.cpp).
#pragma once
#include "engine/interpreter/internal.h"

namespace ferrule::interp {

struct ConvShape {
  int64_t group = 1;
  Window window;
  Dims out;  ///< [N, M, spatial...]
};
/// Checks input, weights and bias against each other.  errors: bad_shape, bad_attribute,
/// limit_exceeded.
Result<ConvShape> conv_shape(const Call& c, const Tensor& x, const Tensor& w, const Tensor* bias);

/// [N, M, out...] from x [N, C, spatial...] and weights [M, C / group, kernel...].
template <class C>
std::vector<C> convolve(const C* x, const Dims& xdims, const C* weights, int64_t out_channels,
                        const C* bias, int64_t group, Window w);

}  // namespace ferrule::interp
