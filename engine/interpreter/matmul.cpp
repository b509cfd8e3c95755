// Products: MatMul, Gemm, Einsum, MatMulInteger, Det.
#include "engine/interpreter/matmul.h"

#include "engine/semantics/einsum.h"

namespace ferrule::interp {

Result<MatMulShape> matmul_shape(const Call& c, const Dims& a, const Dims& b) {
  if (a.empty() || b.empty())
    return c.bad("a product of {} and {}: neither may be a scalar", text(a), text(b));
  MatMulShape s;
  Dims left = a, right = b;
  if (a.size() == 1) left.insert(left.begin(), 1);
  if (b.size() == 1) right.push_back(1);
  s.m = left[left.size() - 2];
  s.k = left.back();
  s.n = right.back();
  if (right[right.size() - 2] != s.k)
    return c.bad("a product of {} and {}: the inner sizes differ", text(a), text(b));
  left.resize(left.size() - 2);
  right.resize(right.size() - 2);
  const auto both = broadcast(left, right);
  if (!both) return c.bad("a product of {} and {}: the batches do not broadcast", text(a), text(b));
  s.batch = *both;
  s.a_batch = broadcast_strides(left, s.batch);
  s.b_batch = broadcast_strides(right, s.batch);
  s.out = s.batch;
  if (a.size() > 1) s.out.push_back(s.m);
  if (b.size() > 1) s.out.push_back(s.n);
  FERRULE_TRY(c.fits(DType::f64, s.out));
  return s;
}

namespace {

Outputs mat_mul(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(1);
  FERRULE_ASSIGN(const auto s, matmul_shape(c, a.dims(), b.dims()));
  return with_number(c, a, [&]<class C>() {
    return one(store(a.dtype(), s.out, matmul(s, View<C>(a).data(), View<C>(b).data())));
  });
}

template <class C>
std::vector<C> maybe_transposed(const View<C>& v, const Dims& dims, bool yes) {
  std::vector<C> out(v.size());
  for (int64_t i = 0; i < v.size(); ++i) {
    out[yes ? i % dims[1] * dims[0] + i / dims[1] : i] = v[i];
  }
  return out;
}

Outputs gemm(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(1);
  if (a.rank() != 2 || b.rank() != 2)
    return c.bad("{} and {} are not matrices", text(a.dims()), text(b.dims()));
  const bool ta = c.n.attrs.i("transA") != 0, tb = c.n.attrs.i("transB") != 0;
  Dims da = a.dims(), db = b.dims();
  if (ta) std::swap(da[0], da[1]);
  if (tb) std::swap(db[0], db[1]);
  FERRULE_ASSIGN(const auto s, matmul_shape(c, da, db));
  const Tensor* bias = c.input(2);
  if (b.dtype() != a.dtype()) return c.unsupported_type(b);
  if (bias && bias->dtype() != a.dtype()) return c.unsupported_type(*bias);
  if (bias && broadcast(bias->dims(), s.out) != s.out) {
    return c.bad("bias {} does not broadcast to {}", text(bias->dims()), text(s.out));
  }
  return with_number(c, a, [&]<class C>() {
    const auto left = maybe_transposed(View<C>(a), a.dims(), ta);
    const auto right = maybe_transposed(View<C>(b), b.dims(), tb);
    std::vector<C> y = matmul(s, left.data(), right.data());
    const C alpha = from_real<C>(c.n.attrs.f("alpha", 1)),
            beta = from_real<C>(c.n.attrs.f("beta", 1));
    if (alpha != C{1}) {
      for (C& v : y) v = mul(alpha, v);
    }
    if (bias) {
      const View<C> add_to(*bias);
      const auto at = positions(s.out, broadcast_strides(bias->dims(), s.out));
      for (size_t i = 0; i < y.size(); ++i) y[i] = add(y[i], mul(beta, add_to[at[i]]));
    }
    return one(store(a.dtype(), s.out, y));
  });
}

/// Zero points subtracted.
Result<std::vector<int64_t>> shifted(const Call& c, const Tensor& t, const Tensor* zero,
                                     int64_t axis) {
  const View<int64_t> v(t);
  std::vector<int64_t> out(v.data(), v.data() + v.size());
  if (!zero) return out;
  const View<int64_t> z(*zero);
  FERRULE_ASSIGN(const Dims dims, of_product(c, *zero, t.dims(), axis));
  const auto at = positions(t.dims(), broadcast_strides(dims, t.dims()));
  for (size_t i = 0; i < out.size(); ++i) out[i] = add(out[i], mul<int64_t>(-1, z[at[i]]));
  return out;
}

Outputs matmul_integer(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(1);
  if (!is_int(a.dtype())) return c.unsupported_type(a);
  if (!is_int(b.dtype())) return c.unsupported_type(b);
  FERRULE_ASSIGN(const auto s, matmul_shape(c, a.dims(), b.dims()));
  FERRULE_ASSIGN(const auto left, shifted(c, a, c.input(2), -2));
  FERRULE_ASSIGN(const auto right, shifted(c, b, c.input(3), -1));
  return one(store(DType::i32, s.out, matmul(s, left.data(), right.data())));
}

// --- Einsum

Result<EinsumEquation> read_equation(const Call& c) {
  const std::string text = c.n.attrs.s("equation");
  auto e = EinsumEquation::of(text);
  if (!e) return c.bad_attr("equation", "{} in \"{}\"", e.error(), escape(text));
  if (e->terms.size() != c.in.size())
    return c.bad_attr("equation", "{} for {}", counted(e->terms.size(), "term"),
                      counted(c.in.size(), "input"));
  return std::move(*e);
}

/// Labels to sizes; the dims of the ellipsis are labelled 0x80, 0x81, … from the right.
struct Einsum {
  std::map<unsigned char, int64_t> sizes;
  std::vector<std::vector<unsigned char>> labels;  ///< of each input, one per dim
  std::vector<unsigned char> out, summed;
};

Result<Einsum> resolve(const Call& c, const EinsumEquation& e) {
  Einsum r;
  size_t widest = 0;
  for (size_t i = 0; i < e.terms.size(); ++i) {
    FERRULE_TRY(c.need(i + 1));
    const Dims& d = c.input(i)->dims();
    const bool dots = e.terms[i].find('.') != std::string::npos;
    const size_t named = e.terms[i].size() - (dots ? 1 : 0);
    if (d.size() < named || (!dots && d.size() != named) || d.size() - named > 64) {
      return c.bad("input {} of shape {} for the term \"{}\"", i, text(d), escape(e.terms[i]));
    }
    std::vector<unsigned char> labels;
    for (char ch : e.terms[i]) {
      if (ch != '.') {
        labels.push_back(static_cast<unsigned char>(ch));
        continue;
      }
      widest = std::max(widest, d.size() - named);
      for (size_t k = d.size() - named; k-- > 0;)
        labels.push_back(static_cast<unsigned char>(0x80 + k));
    }
    for (size_t k = 0; k < d.size(); ++k) {
      int64_t& size = r.sizes.try_emplace(labels[k], 1).first->second;
      if (d[k] != 1 && size != 1 && size != d[k])
        return c.bad("sizes {} and {} under one label", size, d[k]);
      if (d[k] != 1) size = d[k];
    }
    r.labels.push_back(std::move(labels));
  }
  for (char ch : e.out) {
    if (ch == '.') {
      for (size_t k = widest; k-- > 0;) r.out.push_back(static_cast<unsigned char>(0x80 + k));
    } else {
      r.out.push_back(static_cast<unsigned char>(ch));
    }
  }
  for (const auto& [label, size] : r.sizes) {
    if (!contains(r.out, label)) r.summed.push_back(label);
  }
  return r;
}

Outputs einsum(const Call& c) {
  FERRULE_ASSIGN(const EinsumEquation e, read_equation(c));
  FERRULE_ASSIGN(const Einsum r, resolve(c, e));
  Dims out, inner;
  for (auto l : r.out) out.push_back(r.sizes.at(l));
  for (auto l : r.summed) inner.push_back(r.sizes.at(l));
  FERRULE_TRY(c.fits(DType::f64, out));
  FERRULE_TRY(c.fits(DType::f64, inner));
  std::vector<std::vector<int64_t>> outer_at, inner_at;
  for (size_t i = 0; i < r.labels.size(); ++i) {
    const Dims& d = c.input(i)->dims();
    const Dims own = strides(d);
    auto along = [&](const std::vector<unsigned char>& labels) {
      Dims s;
      for (auto l : labels) {
        int64_t step = 0;  // a label twice in a term walks the diagonal
        for (size_t k = 0; k < d.size(); ++k) step += r.labels[i][k] == l && d[k] != 1 ? own[k] : 0;
        s.push_back(step);
      }
      return s;
    };
    outer_at.push_back(positions(out, along(r.out)));
    inner_at.push_back(positions(inner, along(r.summed)));
  }
  return with_number(c, *c.input(0), [&]<class C>() {
    std::vector<View<C>> in;
    for (const Tensor* t : c.in) in.emplace_back(*t);
    std::vector<C> y(count(out));
    for (size_t o = 0; o < y.size(); ++o) {
      for (size_t k = 0; k < inner_at[0].size(); ++k) {
        C product = 1;
        for (size_t i = 0; i < in.size(); ++i)
          product = mul(product, in[i][outer_at[i][o] + inner_at[i][k]]);
        y[o] = add(y[o], product);
      }
    }
    return one(store(c.input(0)->dtype(), out, y));
  });
}

Outputs det(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.rank() < 2 || x.dims()[x.dims().size() - 1] != x.dims()[x.dims().size() - 2]) {
    return c.bad("{} is no stack of square matrices", text(x.dims()));
  }
  const int64_t n = x.dims().back();
  const Dims out(x.dims().begin(), x.dims().end() - 2);
  return with_float(c, x, [&]<class C>() {
    const View<C> in(x);
    std::vector<C> y(count(out));
    for (size_t p = 0; p < y.size(); ++p) {
      std::vector<double> a(in.data() + static_cast<int64_t>(p) * n * n,
                            in.data() + static_cast<int64_t>(p + 1) * n * n);
      auto at = [&](int64_t i, int64_t j) -> double& { return a[i * n + j]; };
      double d = 1;
      for (int64_t k = 0; k < n; ++k) {  // Gauss with row pivots
        int64_t pivot = k;
        for (int64_t i = k; i < n; ++i) {
          if (std::fabs(at(i, k)) > std::fabs(at(pivot, k))) pivot = i;
        }
        if (at(pivot, k) == 0) {
          d = 0;
          break;
        }
        if (pivot != k) {
          d = -d;
          for (int64_t j = 0; j < n; ++j) std::swap(at(pivot, j), at(k, j));
        }
        d *= at(k, k);
        for (int64_t i = k + 1; i < n; ++i) {
          const double f = at(i, k) / at(k, k);
          for (int64_t j = k; j < n; ++j) at(i, j) -= f * at(k, j);
        }
      }
      y[p] = static_cast<C>(d);
    }
    return one(store(x.dtype(), out, y));
  });
}

}  // namespace

Result<Dims> of_product(const Call& c, const Tensor& p, const Dims& matrices, int64_t axis) {
  const auto rank = std::ssize(matrices);
  if (p.numel() == 1) return Dims{};
  Dims dims = p.dims();
  if (p.rank() == 1 && rank > 1) {  // one of each row or column
    dims.assign(static_cast<size_t>(rank), 1);
    dims[static_cast<size_t>(rank + axis)] = p.numel();
  }
  bool fits =
      std::ssize(dims) == rank && rank > 1 && dims[static_cast<size_t>(rank - 3 - axis)] == 1;
  for (int64_t k = 0; k < rank && fits; ++k)
    fits = dims[static_cast<size_t>(k)] == 1 ||
           dims[static_cast<size_t>(k)] == matrices[static_cast<size_t>(k)];
  if (!fits) return c.bad("a scale or zero point {} for {}", text(p.dims()), text(matrices));
  return dims;
}

std::vector<Entry> matmul_table() {
  return {
      {"MatMul", mat_mul, 2}, {"Gemm", gemm, 2}, {"MatMulInteger", matmul_integer, 2},
      {"Einsum", einsum},     {"Det", det, 1},
  };
}

}  // namespace ferrule::interp
