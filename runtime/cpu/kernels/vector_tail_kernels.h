// What kernels over vectors of an instruction set S share: the steps of a tail (vector_step.h), and
// the choice of a function by the size of its piece. Included like winograd_kernels.h.

inline int64_t up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

/// exp(x) for x <= 0: 2^n times the Taylor series of the rest, which is at most ln 2 / 2.
template <class S>
inline typename S::V exp_negative(typename S::V x) {
  using V = typename S::V;
  constexpr float kInverse[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                                1.0f / 6,    0.5f,       1,          1};
  x = S::max(S::set(-104), x);  // 0 from there on
  const V n = S::round(S::mul(x, S::set(1.44269504f)));
  const V rest = S::fnma(n, S::set(-2.12194440e-4f), S::fnma(n, S::set(0.693359375f), x));
  V sum = S::set(kInverse[0]);
#pragma GCC unroll 8
  for (int k = 1; k < 8; ++k) sum = S::fma(sum, rest, S::set(kInverse[k]));
  return S::scale(sum, n);
}

template <class S>
inline typename S::V sigmoid(typename S::V x) {
  const typename S::V one = S::set(1), e = exp_negative<S>(S::sub(S::zero(), S::abs(x))),
                      r = S::div(one, S::add(one, e));
  return S::negative(x, S::mul(e, r), r);
}

/// One step on all results of a tile. NaN stays NaN, as in the formulas.
template <class S, int Count, class Operand>
inline void apply(const Step& step, typename S::V* v, Operand&& operand) {
  using V = typename S::V;
  using Kind = Step::Kind;
  const V alpha = S::set(step.alpha), beta = S::set(step.beta), zero = S::zero(),
          one = S::set(1.0f);
  auto each = [&](auto&& f) {
    for (int i = 0; i < Count; ++i) v[i] = f(v[i], i);
  };
  auto clamp = [&](V x, V low, V high) { return S::min(high, S::max(low, x)); };
  switch (step.kind) {
    case Kind::relu:
      return each([&](V x, int) { return S::max(zero, x); });
    case Kind::leaky_relu:
      return each([&](V x, int) { return S::negative(x, S::mul(alpha, x), x); });
    case Kind::clip:
      return each([&](V x, int) { return clamp(x, alpha, beta); });
    case Kind::linear:
      return each([&](V x, int) { return S::add(S::mul(alpha, x), beta); });
    case Kind::hardsigmoid:
      return each([&](V x, int) { return clamp(S::add(S::mul(alpha, x), beta), zero, one); });
    case Kind::hardswish:
      return each(
          [&](V x, int) { return S::mul(x, clamp(S::add(S::mul(alpha, x), beta), zero, one)); });
    case Kind::logistic:
      return each([&](V x, int) { return sigmoid<S>(x); });
    case Kind::swish:
      return each([&](V x, int) { return S::mul(x, sigmoid<S>(S::mul(alpha, x))); });
    case Kind::abs:
      return each([&](V x, int) { return S::abs(x); });
    case Kind::square:
      return each([&](V x, int) { return S::mul(x, x); });
    case Kind::add:
      return each([&](V x, int i) { return S::add(x, operand(i)); });
    case Kind::sub:
      return each([&](V x, int i) { return S::sub(x, operand(i)); });
    case Kind::mul:
      return each([&](V x, int i) { return S::mul(x, operand(i)); });
    case Kind::div:
      return each([&](V x, int i) { return S::div(x, operand(i)); });
    case Kind::max:
      return each([&](V x, int i) { return S::max(operand(i), x); });
    case Kind::min:
      return each([&](V x, int i) { return S::min(operand(i), x); });
  }
}

/// The function for so many rows and vectors of those that `of`.operator()<Rows, N>() is.
template <int N, class Of, int... Rows>
inline auto of_rows(Of of, int64_t rows, Counts<Rows...>) {
  const decltype(of.template operator()<1, N>()) table[] = {
    of.template operator()<Rows + 1, N>()...
  };
  return table[rows - 1];
}
template <class S, class Of>
inline auto of_size(int64_t rows, int64_t vectors, Of of) {
  using All = typename S::RowCounts;
  if (vectors == 1) return of_rows<1>(of, rows, All{});
  return vectors == 2 ? of_rows<2>(of, rows, All{}) : of_rows<3>(of, rows, All{});
}

/// All steps on the results of `Count` pixels, of the vector of channels from `channel`. `load`
/// reads such a vector; `row`(i) is where the i-th pixel's channels are in an operand of the
/// result's size.
template <class S, int Count, class Load, class Row>
inline void apply_all(const Step* steps, int n, typename S::V* v, int64_t channel, Load&& load,
                      Row&& row) {
  for (int k = 0; k < n; ++k) {
    const Step& step = steps[k];
    typename S::V one = S::zero();
    if (step.operand == Step::Operand::scalar) one = S::set(*step.data);
    if (step.operand == Step::Operand::channel) one = load(step.data + channel);
    if (step.operand == Step::Operand::full)
      apply<S, Count>(step, v, [&](int i) { return load(step.data + row(i) + channel); });
    else
      apply<S, Count>(step, v, [&](int) { return one; });
  }
}
