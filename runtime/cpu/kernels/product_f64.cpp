// MatMul and Gemm in f64, which oneDNN has no kernels for: panels of the right operand's columns,
// packed (once where it is constant), times a few rows at a time in registers. Long sums are made
// in parts, so that a panel's part stays in the first cache.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kF64Depth = 256;  ///< of a part of a sum
constexpr int64_t kF64Rows = 64;    ///< of a piece of work
constexpr int kF64Most = 8;         ///< rows at once

/// Rows of A (at `a`, `row` and `step` apart) times `depth` rows of a panel: added to `sums`, or
/// written there. sums[row][column], as wide as a panel.
using F64Multiply = void (*)(const double* a, int64_t row, int64_t step, const double* panel,
                             int64_t depth, bool add, double* sums);

template <int kRows>
__attribute__((target("avx512f"))) void f64_avx512(const double* a, int64_t row, int64_t step,
                                                   const double* panel, int64_t depth, bool add,
                                                   double* sums) {
  __m512d s[kRows][2];
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < 2; ++v)
      s[m][v] = add ? _mm512_loadu_pd(sums + m * 16 + v * 8) : _mm512_setzero_pd();
  for (int64_t k = 0; k < depth; ++k, panel += 16, a += step) {
    const __m512d b0 = _mm512_loadu_pd(panel), b1 = _mm512_loadu_pd(panel + 8);
#pragma GCC unroll 8
    for (int m = 0; m < kRows; ++m) {
      const __m512d x = _mm512_set1_pd(a[m * row]);
      s[m][0] = _mm512_fmadd_pd(x, b0, s[m][0]);
      s[m][1] = _mm512_fmadd_pd(x, b1, s[m][1]);
    }
  }
#pragma GCC unroll 8
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < 2; ++v) _mm512_storeu_pd(sums + m * 16 + v * 8, s[m][v]);
}

template <int kRows>
__attribute__((target("avx2,fma"))) void f64_avx2(const double* a, int64_t row, int64_t step,
                                                  const double* panel, int64_t depth, bool add,
                                                  double* sums) {
  __m256d s[kRows][2];
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < 2; ++v)
      s[m][v] = add ? _mm256_loadu_pd(sums + m * 8 + v * 4) : _mm256_setzero_pd();
  for (int64_t k = 0; k < depth; ++k, panel += 8, a += step) {
    const __m256d b0 = _mm256_loadu_pd(panel), b1 = _mm256_loadu_pd(panel + 4);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      const __m256d x = _mm256_set1_pd(a[m * row]);
      s[m][0] = _mm256_fmadd_pd(x, b0, s[m][0]);
      s[m][1] = _mm256_fmadd_pd(x, b1, s[m][1]);
    }
  }
#pragma GCC unroll 4
  for (int m = 0; m < kRows; ++m)
    for (int v = 0; v < 2; ++v) _mm256_storeu_pd(sums + m * 8 + v * 4, s[m][v]);
}

struct F64Functions {
  int columns, most;  ///< of a panel; rows at once
  F64Multiply by_rows[kF64Most];
};
constexpr F64Functions kF64Avx512{16,
                                  8,
                                  {f64_avx512<1>, f64_avx512<2>, f64_avx512<3>, f64_avx512<4>,
                                   f64_avx512<5>, f64_avx512<6>, f64_avx512<7>, f64_avx512<8>}};
constexpr F64Functions kF64Avx2{8, 4, {f64_avx2<1>, f64_avx2<2>, f64_avx2<3>, f64_avx2<4>}};

struct F64Shape {
  int64_t m = 0, k = 0, n = 0;
  int64_t a_row = 0, a_step = 0, b_row = 0, b_step = 0, y_row = 0, c_row = 0, c_step = 0;
  std::vector<int64_t> a, b, y;  ///< where the matrices of a batch begin; b: one for each different
  std::vector<size_t> which_b;   ///< of each matrix of y
  double alpha = 1, beta = 0;
};

class F64Product final : public Kernel {
 public:
  F64Product(Context& context, const KernelCall& call, F64Shape shape, const F64Functions& f)
      : s_(std::move(shape)), f_(f) {
    const Operand* operands[] = {&call.inputs[0], &call.inputs[1], call.own_input(2)};
    for (size_t k = 0; k < 3; ++k) {
      if (!operands[k] || (k == 2 && s_.beta == 0)) continue;
      slots_[k] = operands[k]->slot;
      if (operands[k]->constant) in_[k] = operands[k]->constant->data();
    }
    y_slot_ = call.outputs[0].slot;
    if (const Tensor* b = call.inputs[1].constant)
      packed_ = context.library.derive(
          *b, fmt::format("product_f64:{}:{}:{}", f_.columns, s_.b_row, s_.n), packed_bytes(),
          [&](void* to) { pack(static_cast<double*>(to)); });
  }
  int64_t scratch_bytes() const override { return packed_.data ? 0 : packed_bytes(); }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < 3; ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &in_[k]);
    binder.cell(y_slot_, &y_);
    scratch_ = static_cast<double*>(binder.scratch());
  }
  std::string text() const override {
    return fmt::format("product_f64:{}", f_.columns == 16 ? "avx512" : "avx2");
  }

  Status run() override {
    const OneKernel whole;
    if (!packed_.data) pack(scratch_);
    const auto* b = static_cast<const double*>(packed_.data ? packed_.data : scratch_);
    const int64_t pieces = parts(s_.m, kF64Rows), all = std::ssize(s_.y) * panels() * pieces;
    const int64_t work = 1 + s_.k * f_.columns * std::min(s_.m, kF64Rows);
    parallel_for(all, 1 + kGrain / work, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const auto matrix = static_cast<size_t>(i / pieces / panels());
        const int64_t panel = i / pieces % panels(), first = i % pieces * kF64Rows;
        piece(matrix, panel, first, std::min(first + kF64Rows, s_.m),
              b + (static_cast<int64_t>(s_.which_b[matrix]) * panels() + panel) * panel_size());
      }
    });
    return {};
  }

 private:
  int64_t panels() const { return parts(s_.n, f_.columns); }
  int64_t panel_size() const { return s_.k * f_.columns; }
  int64_t packed_bytes() const {
    return std::ssize(s_.b) * panels() * panel_size() * int64_t{sizeof(double)};
  }

  void pack(double* to) const {
    const auto* b = static_cast<const double*>(in_[1]);
    parallel_for(
        std::ssize(s_.b) * panels(), 1 + 16384 / panel_size(), [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t first = i % panels() * f_.columns,
                          count = std::min<int64_t>(f_.columns, s_.n - first);
            const double* from = b + s_.b[static_cast<size_t>(i / panels())] + first * s_.b_step;
            double* p = to + i * panel_size();
            for (int64_t k = 0; k < s_.k; ++k, from += s_.b_row, p += f_.columns) {
              for (int64_t c = 0; c < count; ++c) p[c] = from[c * s_.b_step];
              std::fill(p + count, p + f_.columns, 0.0);
            }
          }
        });
  }

  void piece(size_t matrix, int64_t panel, int64_t begin, int64_t end, const double* b) const {
    const auto* a = static_cast<const double*>(in_[0]) + s_.a[matrix];
    double sums[kF64Rows * 16];
    for (int64_t k = 0; k < s_.k; k += kF64Depth) {
      const int64_t depth = std::min(kF64Depth, s_.k - k);
      for (int64_t r = begin; r < end; r += f_.most) {
        const auto count = static_cast<size_t>(std::min<int64_t>(f_.most, end - r));
        f_.by_rows[count - 1](a + r * s_.a_row + k * s_.a_step, s_.a_row, s_.a_step,
                              b + k * f_.columns, depth, k > 0, sums + (r - begin) * f_.columns);
      }
    }
    const int64_t first = panel * f_.columns, count = std::min<int64_t>(f_.columns, s_.n - first);
    const auto* c = static_cast<const double*>(in_[2]);
    for (int64_t r = begin; r < end; ++r) {
      const double* from = sums + (r - begin) * f_.columns;
      double* y = static_cast<double*>(y_) + s_.y[matrix] + r * s_.y_row + first;
      if (s_.alpha == 1)
        std::copy_n(from, count, y);
      else
        for (int64_t k = 0; k < count; ++k) y[k] = s_.alpha * from[k];
      if (c)
        for (int64_t k = 0; k < count; ++k)
          y[k] += s_.beta * c[r * s_.c_row + (first + k) * s_.c_step];
    }
  }

  F64Shape s_;
  const F64Functions& f_;
  int slots_[3] = {-1, -1, -1}, y_slot_ = -1;
  const void* in_[3] = {};
  void* y_ = nullptr;
  double* scratch_ = nullptr;
  Packed packed_;
};

/// Sizes and strides of the last two axes; a vector is one row, or one column.
struct F64Matrix {
  std::vector<int64_t> dims, strides;
  F64Matrix(const Operand& o, bool column) : dims(o.dims), strides(o.plain_strides()) {
    if (dims.size() != 1) return;
    const auto at = column ? dims.end() : dims.begin();
    const int64_t step = strides[0];
    dims.insert(at, 1);
    strides = {step, step};
  }
  int64_t last(size_t k) const { return dims[dims.size() - k]; }
  int64_t apart(size_t k) const { return strides[strides.size() - k]; }
};

Applicable<F64Shape> f64_matmul(const KernelCall& call) {
  const Operand &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  const F64Matrix l(a, false), r(b, true);
  F64Shape s;
  s.m = l.last(2), s.k = l.last(1), s.n = r.last(1);
  s.a_row = l.apart(2), s.a_step = l.apart(1), s.b_row = r.apart(2), s.b_step = r.apart(1);
  const size_t rank = std::max(l.dims.size(), r.dims.size()) - 2;
  auto axis = [&](const F64Matrix& m, size_t k) {  // by batch axis, from the last
    const size_t at = m.dims.size() - 3 - k;
    return k + 2 < m.dims.size() && m.dims[at] > 1 ? std::pair(m.dims[at], m.strides[at])
                                                   : std::pair(int64_t{1}, int64_t{0});
  };
  // As y lies with its rows and columns written out.
  const std::vector<int64_t> apart = y.plain_strides();
  const size_t inner = (a.rank() > 1 ? 1 : 0) + (b.rank() > 1 ? 1 : 0);
  s.y_row = a.rank() == 1 ? s.n : apart[apart.size() - inner];
  s.a = {0}, s.b = {0}, s.y = {0}, s.which_b = {0};
  for (size_t k = rank; k-- > 0;) {
    const auto [la, sa] = axis(l, k);
    const auto [lb, sb] = axis(r, k);
    const int64_t count = std::max(la, lb), sy = apart[apart.size() - inner - 1 - k];
    std::vector<int64_t> na, ny, nb;
    std::vector<size_t> which;
    for (int64_t at : s.b)
      for (int64_t i = 0; i < lb; ++i) nb.push_back(at + i * sb);
    for (size_t m = 0; m < s.y.size(); ++m)
      for (int64_t i = 0; i < count; ++i) {
        na.push_back(s.a[m] + i * sa), ny.push_back(s.y[m] + i * sy);
        which.push_back(s.which_b[m] * static_cast<size_t>(lb) +
                        static_cast<size_t>(lb > 1 ? i : 0));
      }
    s.a = std::move(na), s.b = std::move(nb), s.y = std::move(ny), s.which_b = std::move(which);
  }
  // One matrix for all rows, which lie at one distance.
  if (s.b.size() == 1 && a.rank() > 2 && a.dense() && y.dense() && b.rank() > 1) {
    s.m *= std::ssize(s.y);
    s.a = {0}, s.y = {0}, s.which_b = {0};
  }
  return s;
}

Applicable<F64Shape> f64_gemm(const KernelCall& call) {
  const Operand &a = call.inputs[0], &b = call.inputs[1];
  const Attrs& attrs = call.node->attrs;
  const bool turned_a = attrs.i("transA") != 0, turned_b = attrs.i("transB") != 0;
  F64Shape s;
  const auto sa = a.plain_strides(), sb = b.plain_strides();
  s.m = a.dims[turned_a ? 1 : 0], s.k = a.dims[turned_a ? 0 : 1], s.n = b.dims[turned_b ? 0 : 1];
  s.a_row = sa[turned_a ? 1 : 0], s.a_step = sa[turned_a ? 0 : 1];
  s.b_row = sb[turned_b ? 1 : 0], s.b_step = sb[turned_b ? 0 : 1];
  s.y_row = call.outputs[0].plain_strides()[0];
  s.a = {0}, s.b = {0}, s.y = {0}, s.which_b = {0};
  s.alpha = static_cast<float>(attrs.f("alpha", 1));
  if (const Operand* c = call.own_input(2)) {
    s.beta = static_cast<float>(attrs.f("beta", 1));
    const auto strides = c->plain_strides();
    const size_t rank = c->dims.size();
    if (rank > 0 && c->dims[rank - 1] > 1) s.c_step = strides[rank - 1];
    if (rank > 1 && c->dims[rank - 2] > 1) s.c_row = strides[rank - 2];
  }
  return s;
}

}  // namespace

Applicable<KernelPtr> make_product_f64(Context& context, const KernelCall& call, bool affine) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  const VectorIsa isa = vector_isa(context);
  if (isa == VectorIsa::none) return refuse("a processor without AVX2");
  if (!call.post_ops.empty() || call.sum_input >= 0) return refuse("a tail in f64");
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const Operand& o : *operands) {
      if (!o.present()) continue;
      if (o.dtype != DType::f64 || !o.lies(Layout::plain)) return refuse("another type or layout");
      if (o.numel() == 0) return refuse("an empty operand");
    }
  if (const auto& y = call.outputs[0];
      y.rank() > 0 && y.plain_strides().back() != 1 && y.dims.back() != 1)
    return refuse("a result whose columns lie apart");
  FERRULE_ASSIGN(F64Shape s, affine ? f64_gemm(call) : f64_matmul(call));
  return std::make_unique<F64Product>(context, call, std::move(s),
                                      isa == VectorIsa::avx512 ? kF64Avx512 : kF64Avx2);
}

}  // namespace ferrule::cpu
