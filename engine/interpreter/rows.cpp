// The loops over rows that have to be fast, for the instruction sets that processors have. Every
// copy rounds alike: no product is fused with a sum (CMakeLists.txt).
#include "engine/interpreter/internal.h"

// gcc 12 vectorises loops of any length only at this level; files behind this one are compiled with
// it.
#pragma GCC push_options
#pragma GCC optimize("O3")

namespace ferrule::interp {
namespace {

template <class C>
[[gnu::always_inline]] inline void row(C* __restrict out, const C* __restrict in, C w, int64_t n,
                                       int64_t step) {
  if (step == 1) {
    for (int64_t i = 0; i < n; ++i) out[i] = add(out[i], mul(w, in[i]));
  } else {
    for (int64_t i = 0; i < n; ++i) out[i] = add(out[i], mul(w, in[i * step]));
  }
}

template <class C>
[[gnu::always_inline]] inline void four(C* __restrict out, const FourRows<C>& rows, const C* x,
                                        int64_t n) {
  const C *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
  const C xa = x[0], xb = x[1], xc = x[2], xd = x[3];
  for (int64_t i = 0; i < n; ++i)
    out[i] = add(add(add(add(out[i], mul(xa, a[i])), mul(xb, b[i])), mul(xc, c[i])), mul(xd, d[i]));
}

template <class C>
[[gnu::always_inline]] inline void all(C* __restrict out, const C* __restrict rows, const C* x,
                                       int64_t count, int64_t n) {
  int64_t e = 0;
  for (; e + 8 <= count; e += 8, rows += 8 * n) {
    const C x0 = x[e], x1 = x[e + 1], x2 = x[e + 2], x3 = x[e + 3], x4 = x[e + 4], x5 = x[e + 5],
            x6 = x[e + 6], x7 = x[e + 7];
    for (int64_t i = 0; i < n; ++i) {
      C sum = add(add(out[i], mul(x0, rows[i])), mul(x1, rows[n + i]));
      sum = add(add(sum, mul(x2, rows[2 * n + i])), mul(x3, rows[3 * n + i]));
      sum = add(add(sum, mul(x4, rows[4 * n + i])), mul(x5, rows[5 * n + i]));
      out[i] = add(add(sum, mul(x6, rows[6 * n + i])), mul(x7, rows[7 * n + i]));
    }
  }
  for (; e < count; ++e, rows += n) row(out, rows, x[e], n, 1);
}

}  // namespace

#define FERRULE_COPIES __attribute__((target_clones("avx512f", "avx2", "default")))
#define X(C)                                                                                  \
  FERRULE_COPIES void add_row(C* out, const C* in, C w, int64_t n, int64_t step) {            \
    row(out, in, w, n, step);                                                                 \
  }                                                                                           \
  FERRULE_COPIES void add_four(C* out, const FourRows<C>& rows, const C* x, int64_t n) {      \
    four(out, rows, x, n);                                                                    \
  }                                                                                           \
  FERRULE_COPIES void add_rows(C* out, const C* rows, const C* x, int64_t count, int64_t n) { \
    all(out, rows, x, count, n);                                                              \
  }
X(float)
X(double)
X(int64_t)
X(uint64_t)
#undef X
#undef FERRULE_COPIES

}  // namespace ferrule::interp
#pragma GCC pop_options
