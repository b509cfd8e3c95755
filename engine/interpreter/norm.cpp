// Normalisations beyond formulas of rows: running statistics, windows over channels, further
// results. All arithmetic is in double, rounded once to the result's type.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

using Row = std::vector<double>;

Status need_float(const Call& c, size_t inputs) {
  FERRULE_TRY(c.need(inputs));
  for (size_t i = 0; i < inputs; ++i) {
    if (!is_float(c.input(i)->dtype())) return c.unsupported_type(*c.input(i));
  }
  return {};
}

/// Mean and variance (of the whole population).
struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(const double* v, int64_t n) {
  Moments m;
  for (int64_t i = 0; i < n; ++i) m.mean += v[i];
  m.mean /= static_cast<double>(n);
  for (int64_t i = 0; i < n; ++i) m.variance += (v[i] - m.mean) * (v[i] - m.mean);
  m.variance /= static_cast<double>(n);
  return m;
}

Outputs batch_normalization(const Call& c) {
  FERRULE_TRY(need_float(c, 5));
  const Tensor& x = *c.input(0);
  if (x.rank() < 1) return c.bad("a scalar has no channels");
  const int64_t channels = x.rank() > 1 ? x.dims()[1] : 1, batch = x.dims()[0],
                plane = count(x.dims(), 2);
  for (size_t i = 1; i < 5; ++i) {
    if (c.input(i)->dims() != Dims{channels})
      return c.bad("input {} of shape {} for {}", i, text(c.input(i)->dims()),
                   counted(channels, "channel"));
  }
  const double epsilon = c.n.attrs.f("epsilon", 1e-5), momentum = c.n.attrs.f("momentum", 0.9);
  const View<double> in(x), scale(*c.input(1)), bias(*c.input(2)), mean_in(*c.input(3)),
      variance_in(*c.input(4));
  Row mean(mean_in.data(), mean_in.data() + channels),
      variance(variance_in.data(), variance_in.data() + channels);
  Row running_mean = mean, running_variance = variance, y(static_cast<size_t>(x.numel()));
  const bool training = c.n.attrs.i("training_mode") != 0;
  for (int64_t k = 0; training && k < channels; ++k) {
    Row all;
    for (int64_t b = 0; b < batch; ++b) {
      const double* from = in.data() + (b * channels + k) * plane;
      all.insert(all.end(), from, from + plane);
    }
    const Moments m = moments(all.data(), std::ssize(all));
    const auto at = static_cast<size_t>(k);
    mean[at] = m.mean, variance[at] = m.variance;
    running_mean[at] = running_mean[at] * momentum + m.mean * (1 - momentum);
    running_variance[at] = running_variance[at] * momentum + m.variance * (1 - momentum);
  }
  for (int64_t b = 0; b < batch; ++b) {
    for (int64_t k = 0; k < channels; ++k) {
      const auto at = static_cast<size_t>(k);
      const double factor = scale[k] / std::sqrt(variance[at] + epsilon);
      for (int64_t i = 0; i < plane; ++i) {
        const int64_t p = (b * channels + k) * plane + i;
        y[p] = (in[p] - mean[at]) * factor + bias[k];
      }
    }
  }
  auto out = one(store(x.dtype(), x.dims(), y));
  if (training) {
    out->push_back(store(c.input(3)->dtype(), {channels}, running_mean));
    out->push_back(store(c.input(4)->dtype(), {channels}, running_variance));
  }
  return out;
}

/// By its formula, which has one result; here are the two others, a row's mean and 1 / deviation.
Outputs layer_normalization(const Call& c) {
  const OpFormula* f = c.options.ops ? c.options.ops->find(c.n) : nullptr;
  if (!f) return c.unsupported("the interpreter does not know it");
  FERRULE_ASSIGN(auto out, row_by_formula(c, *f));
  if (!c.wants(1) && !c.wants(2)) return out;
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", -1), x.rank()));
  const int64_t size = count(x.dims(), static_cast<size_t>(axis));
  const double epsilon = c.n.attrs.f("epsilon", 1e-5);
  Dims reduced = x.dims();
  std::fill(reduced.begin() + axis, reduced.end(), 1);
  const View<double> in(x);
  Row means, inverses;
  for (int64_t r = 0; r < count(reduced); ++r) {
    const Moments m = moments(in.data() + r * size, size);
    means.push_back(m.mean), inverses.push_back(1 / std::sqrt(m.variance + epsilon));
  }
  const DType stash = c.options.f64                        ? DType::f64
                      : c.n.attrs.i("stash_type", 1) == 16 ? DType::bf16
                                                           : DType::f32;
  for (const Row* v : {&means, &inverses}) out.push_back(store(stash, reduced, *v));
  return out;
}

Outputs lrn(const Call& c) {
  FERRULE_TRY(need_float(c, 1));
  const Tensor& x = *c.input(0);
  const int64_t size = c.n.attrs.i("size");
  if (x.rank() < 2) return c.bad("input {} has no channels", text(x.dims()));
  if (size < 1) return c.bad_attr("size", "{} is not positive", size);
  const double alpha = c.n.attrs.f("alpha", 1e-4), beta = c.n.attrs.f("beta", 0.75),
               k = c.n.attrs.f("bias", 1);
  const int64_t channels = x.dims()[1], plane = count(x.dims(), 2);
  const View<double> in(x);
  Row y(static_cast<size_t>(x.numel()));
  for (int64_t b = 0; b < x.dims()[0]; ++b) {
    for (int64_t ch = 0; ch < channels; ++ch) {
      const int64_t lo = std::max<int64_t>(0, ch - (size - 1) / 2);
      const int64_t hi =
          std::min(channels - 1, size / 2 >= channels ? channels - 1 : ch + size / 2);
      for (int64_t i = 0; i < plane; ++i) {
        double sum = 0;
        for (int64_t q = lo; q <= hi; ++q)
          sum += in[(b * channels + q) * plane + i] * in[(b * channels + q) * plane + i];
        const int64_t p = (b * channels + ch) * plane + i;
        y[p] = in[p] / std::pow(k + alpha / static_cast<double>(size) * sum, beta);
      }
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

}  // namespace

std::vector<Entry> norm_table() {
  return {
      {"BatchNormalization", batch_normalization},
      {"LayerNormalization", layer_normalization},
      {"LRN", lrn},
  };
}

}  // namespace ferrule::interp
