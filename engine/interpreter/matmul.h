// The matrix product, shared with the quantised products (quantize.cpp) and LSTM & co.
#pragma once
#include "engine/interpreter/internal.h"

namespace ferrule::interp {

/// Shapes of a NumPy matmul: batch dims broadcast, 1-D operands get and lose a dim.
struct MatMulShape {
  Dims batch, a_batch, b_batch;  ///< broadcast batch dims; strides into a and b, in matrices
  int64_t m = 1, k = 1, n = 1;
  Dims out;
};
Result<MatMulShape> matmul_shape(const Call& c, const Dims& a, const Dims& b);

template <class C>
std::vector<C> matmul(const MatMulShape& s, const C* a, const C* b) {
  std::vector<C> y(count(s.out));
  if (y.empty()) return y;
  const auto at_a = positions(s.batch, s.a_batch), at_b = positions(s.batch, s.b_batch);
  for (size_t p = 0; p < at_a.size(); ++p) {
    for (int64_t i = 0; i < s.m; ++i) {
      C* out = y.data() + (static_cast<int64_t>(p) * s.m + i) * s.n;
      const C* left = a + at_a[p] * s.m * s.k + i * s.k;
      const C* right = b + at_b[p] * s.k * s.n;
      for (int64_t k = 0; k < s.k; ++k) add_row(out, right + k * s.n, left[k], s.n, 1);
    }
  }
  return y;
}

}  // namespace ferrule::interp
