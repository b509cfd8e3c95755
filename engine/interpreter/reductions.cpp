// Reductions over any axes. Floats are accumulated in double whatever their type, integers in 64
// bits.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

/// Smallest or largest value of a type: what the maximum or minimum of nothing is.
template <class C>
C extreme(DType t, bool smallest) {
  if constexpr (std::is_floating_point_v<C>) {
    return smallest ? -std::numeric_limits<C>::infinity() : std::numeric_limits<C>::infinity();
  } else {
    if (t == DType::boolean) return smallest ? 0 : 1;
    const int bits = size_bits(t);
    if (bits == 64) return smallest ? std::numeric_limits<C>::min() : std::numeric_limits<C>::max();
    if (is_unsigned_int(t)) return smallest ? 0 : static_cast<C>((uint64_t{1} << bits) - 1);
    const auto half = static_cast<C>(uint64_t{1} << (bits - 1));
    return smallest ? static_cast<C>(-static_cast<int64_t>(half)) : static_cast<C>(half - 1);
  }
}

/// `f(values)` for each set of elements that becomes one result.
template <class F>
Outputs reduce(const Call& c, F&& f) {
  FERRULE_TRY(c.need(1));
  const Tensor& x = *c.input(0);
  Dims all(static_cast<size_t>(x.rank()));
  std::iota(all.begin(), all.end(), 0);
  FERRULE_ASSIGN(Dims axes, c.axes(1, x.rank(), {}));
  if (axes.empty() && !c.n.attrs.i("noop_with_empty_axes")) axes = all;
  const bool keep = c.n.attrs.i("keepdims", 1) != 0;
  const Dims own = strides(x.dims());
  Dims out, kept, kept_steps, reduced, reduced_steps;
  for (size_t k = 0; k < x.dims().size(); ++k) {
    const bool goes = std::find(axes.begin(), axes.end(), static_cast<int64_t>(k)) != axes.end();
    (goes ? reduced : kept).push_back(x.dims()[k]);
    (goes ? reduced_steps : kept_steps).push_back(own[k]);
    if (!goes || keep) out.push_back(goes ? 1 : x.dims()[k]);
  }
  FERRULE_TRY(c.fits(x.dtype(), out));
  auto run = [&]<class C>() {
    const View<C> in(x);
    const auto starts = positions(kept, kept_steps), steps = positions(reduced, reduced_steps);
    std::vector<C> y, set(steps.size());
    y.reserve(starts.size());
    for (int64_t start : starts) {
      for (size_t i = 0; i < steps.size(); ++i) set[i] = in[start + steps[i]];
      y.push_back(f(std::span<const C>(set), x.dtype()));
    }
    return one(store(x.dtype(), out, y));
  };
  if (is_float(x.dtype())) return run.template operator()<double>();
  return with_number(c, x, run);
}

template <class C>
C sum(std::span<const C> v) {
  C s = 0;
  for (C e : v) s = add(s, e);
  return s;
}
template <class C>
C sum_square(std::span<const C> v) {
  C s = 0;
  for (C e : v) s = add(s, mul(e, e));
  return s;
}

Outputs reduce_sum(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) { return sum(v); });
}
Outputs reduce_mean(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    if constexpr (std::is_integral_v<C>)
      return v.empty() ? C{0} : static_cast<C>(sum(v) / static_cast<C>(v.size()));
    else
      return sum(v) / static_cast<C>(v.size());
  });
}
Outputs reduce_prod(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    C p = 1;
    for (C e : v) p = mul(p, e);
    return p;
  });
}
template <bool kMax>
Outputs reduce_extreme(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType t) {
    C best = extreme<C>(t, kMax);
    for (C e : v) {
      if (kMax ? e > best : e < best) best = e;
      if (is_nan(e)) return e;
    }
    return best;
  });
}
Outputs reduce_l1(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    C s = 0;
    for (C e : v) s = add(s, e < C{0} ? mul(static_cast<C>(-1), e) : e);
    return s;
  });
}
Outputs reduce_l2(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    return from_real<C>(std::sqrt(static_cast<double>(sum_square(v))));
  });
}
Outputs reduce_sum_square(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) { return sum_square(v); });
}
Outputs reduce_log_sum(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    return from_real<C>(std::log(static_cast<double>(sum(v))));
  });
}
Outputs reduce_log_sum_exp(const Call& c) {
  return reduce(c, []<class C>(std::span<const C> v, DType) {
    double m = -std::numeric_limits<double>::infinity(), s = 0;
    for (C e : v) m = is_nan(e) ? static_cast<double>(e) : std::max(m, static_cast<double>(e));
    if (std::isinf(m)) return from_real<C>(m);
    for (C e : v) s += std::exp(static_cast<double>(e) - m);
    return from_real<C>(m + std::log(s));
  });
}

constexpr Entry kReduce[] = {
    {"ReduceSum", reduce_sum},
    {"ReduceMean", reduce_mean},
    {"ReduceProd", reduce_prod},
    {"ReduceMax", reduce_extreme<true>},
    {"ReduceMin", reduce_extreme<false>},
    {"ReduceL1", reduce_l1},
    {"ReduceL2", reduce_l2},
    {"ReduceSumSquare", reduce_sum_square},
    {"ReduceLogSum", reduce_log_sum},
    {"ReduceLogSumExp", reduce_log_sum_exp},
};

}  // namespace

std::span<const Entry> reduce_table() { return kReduce; }

}  // namespace ferrule::interp
