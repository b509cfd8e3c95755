// Normalisations and softmax. All arithmetic is in double, rounded once to the result's type.
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

/// Mean and variance (of the whole population); about 0 instead of the mean unless `centre`.
struct Moments {
  double mean = 0, variance = 0;
};
Moments moments(const double* v, int64_t n, bool centre = true) {
  Moments m;
  for (int64_t i = 0; centre && i < n; ++i) m.mean += v[i];
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
      return c.bad("input {} of shape {} for {} channels", i, text(c.input(i)->dims()), channels);
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
    const Moments m = moments(all.data(), static_cast<int64_t>(all.size()));
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
        y[static_cast<size_t>(p)] = (in[p] - mean[at]) * factor + bias[k];
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

/// Groups of channels normalised over their planes; scale and bias per channel.
Outputs group_norm(const Call& c, int64_t groups) {
  const Tensor& x = *c.input(0);
  const int64_t channels = x.dims()[1], plane = count(x.dims(), 2), batch = x.dims()[0];
  if (groups < 1 || channels % groups != 0)
    return c.bad_attr("num_groups", "{} does not divide the channels {}", groups, channels);
  for (size_t i = 1; i < 3; ++i) {
    if (c.input(i)->dims() != Dims{channels})
      return c.bad("input {} of shape {} for {} channels", i, text(c.input(i)->dims()), channels);
  }
  const View<double> in(x), scale(*c.input(1)), bias(*c.input(2));
  const double epsilon = c.n.attrs.f("epsilon", 1e-5);
  const int64_t size = channels / groups * plane;
  Row y(static_cast<size_t>(x.numel()));
  for (int64_t g = 0; g < batch * groups && size > 0; ++g) {
    const Moments m = moments(in.data() + g * size, size);
    const double factor = 1 / std::sqrt(m.variance + epsilon);
    for (int64_t i = 0; i < size; ++i) {
      const int64_t p = g * size + i, k = p / plane % channels;
      y[static_cast<size_t>(p)] = (in[p] - m.mean) * factor * scale[k] + bias[k];
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

Outputs group_normalization(const Call& c) {
  FERRULE_TRY(need_float(c, 3));
  if (c.input(0)->rank() < 2) return c.bad("input {} has no channels", text(c.input(0)->dims()));
  return group_norm(c, c.n.attrs.i("num_groups"));
}

Outputs instance_normalization(const Call& c) {
  FERRULE_TRY(need_float(c, 3));
  if (c.input(0)->rank() < 2) return c.bad("input {} has no channels", text(c.input(0)->dims()));
  if (c.input(0)->dims()[1] == 0) return one(*c.input(0));
  return group_norm(c, c.input(0)->dims()[1]);
}

/// Rows of the axes from `axis` on: normalised by their root mean square (about the mean, if
/// `centre`).
Outputs row_norm(const Call& c, bool centre) {
  FERRULE_TRY(need_float(c, 2));
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", -1), x.rank()));
  const Dims normalised(x.dims().begin() + axis, x.dims().end());
  const int64_t rows = count(x.dims(), 0, static_cast<size_t>(axis)), size = count(normalised);
  const Tensor* bias_in = centre ? c.input(2) : nullptr;
  for (const Tensor* t : {c.input(1), bias_in}) {
    if (t && broadcast(t->dims(), x.dims()) != x.dims())
      return c.bad("{} does not broadcast to {}", text(t->dims()), text(x.dims()));
  }
  const View<double> in(x), scale(*c.input(1)), bias(bias_in ? *bias_in : *c.input(1));
  const auto scale_at = positions(x.dims(), broadcast_strides(c.input(1)->dims(), x.dims()));
  const auto bias_at =
      bias_in ? positions(x.dims(), broadcast_strides(bias_in->dims(), x.dims())) : scale_at;
  const double epsilon = c.n.attrs.f("epsilon", 1e-5);
  Row y(static_cast<size_t>(x.numel())), means, inverses;
  for (int64_t r = 0; r < rows; ++r) {
    const double* row = in.data() + r * size;
    const Moments m = moments(row, size, centre);
    const double inverse = 1 / std::sqrt(m.variance + epsilon);
    means.push_back(m.mean), inverses.push_back(inverse);
    for (int64_t i = 0; i < size; ++i) {
      const auto at = static_cast<size_t>(r * size + i);
      y[at] = (row[i] - m.mean) * inverse * scale[scale_at[at]] + (bias_in ? bias[bias_at[at]] : 0);
    }
  }
  auto out = one(store(x.dtype(), x.dims(), y));
  Dims reduced = x.dims();
  std::fill(reduced.begin() + axis, reduced.end(), 1);
  const DType stash = x.dtype() == DType::f64 ? DType::f64 : DType::f32;
  for (const Row* v : {&means, &inverses}) {
    if (centre) out->push_back(store(stash, reduced, *v));
  }
  return out;
}
Outputs layer_normalization(const Call& c) { return row_norm(c, true); }
Outputs rms_normalization(const Call& c) { return row_norm(c, false); }

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
        y[static_cast<size_t>(p)] =
            in[p] / std::pow(k + alpha / static_cast<double>(size) * sum, beta);
      }
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

/// `f` rewrites each line of elements along the axis.
template <class F>
Outputs along(const Call& c, int64_t default_axis, F&& f) {
  FERRULE_TRY(need_float(c, 1));
  const Tensor& x = *c.input(0);
  if (x.rank() == 0) {
    Row line{View<double>(x)[0]};
    f(line);
    return one(store(x.dtype(), x.dims(), line));
  }
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", default_axis), x.rank()));
  const int64_t length = x.dims()[static_cast<size_t>(axis)],
                step = count(x.dims(), static_cast<size_t>(axis) + 1);
  const View<double> in(x);
  Row y(static_cast<size_t>(x.numel())), line(static_cast<size_t>(length));
  for (int64_t start = 0; start < x.numel(); start += length * step) {
    for (int64_t s = 0; s < step; ++s) {
      for (int64_t i = 0; i < length; ++i) line[static_cast<size_t>(i)] = in[start + s + i * step];
      f(line);
      for (int64_t i = 0; i < length; ++i)
        y[static_cast<size_t>(start + s + i * step)] = line[static_cast<size_t>(i)];
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

Outputs softmax(const Call& c) {
  return along(c, -1, [](Row& v) {
    const double m = *std::max_element(v.begin(), v.end());
    double sum = 0;
    for (double& e : v) sum += e = std::exp(e - m);
    for (double& e : v) e /= sum;
  });
}
Outputs log_softmax(const Call& c) {
  return along(c, -1, [](Row& v) {
    const double m = *std::max_element(v.begin(), v.end());
    double sum = 0;
    for (double e : v) sum += std::exp(e - m);
    for (double& e : v) e = e - m - std::log(sum);
  });
}
Outputs hardmax(const Call& c) {
  return along(c, -1, [](Row& v) {
    const auto first = std::max_element(v.begin(), v.end()) - v.begin();
    std::fill(v.begin(), v.end(), 0);
    v[static_cast<size_t>(first)] = 1;
  });
}
Outputs lp_normalization(const Call& c) {
  const int64_t p = c.n.attrs.i("p", 2);
  if (p != 1 && p != 2) return c.bad_attr("p", "{} is neither 1 nor 2", p);
  return along(c, -1, [&](Row& v) {
    double norm = 0;
    for (double e : v) norm += p == 1 ? std::fabs(e) : e * e;
    if (p == 2) norm = std::sqrt(norm);
    for (double& e : v) e = norm == 0 ? 0 : e / norm;
  });
}

Outputs mean_variance_normalization(const Call& c) {
  FERRULE_TRY(need_float(c, 1));
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const Dims axes, c.axes(SIZE_MAX, x.rank(), Dims{0, 2, 3}));
  const Dims own = strides(x.dims());
  Dims kept, kept_steps, reduced, reduced_steps;
  for (int64_t a : axes) {
    if (a >= x.rank()) return c.bad_attr("axes", "{} is out of range for rank {}", a, x.rank());
  }
  for (size_t k = 0; k < x.dims().size(); ++k) {
    const bool goes = std::find(axes.begin(), axes.end(), static_cast<int64_t>(k)) != axes.end();
    (goes ? reduced : kept).push_back(x.dims()[k]);
    (goes ? reduced_steps : kept_steps).push_back(own[k]);
  }
  const View<double> in(x);
  const auto steps = positions(reduced, reduced_steps);
  Row y(static_cast<size_t>(x.numel())), set(steps.size());
  for (int64_t start : positions(kept, kept_steps)) {
    for (size_t i = 0; i < steps.size(); ++i) set[i] = in[start + steps[i]];
    const Moments m = moments(set.data(), static_cast<int64_t>(set.size()));
    for (size_t i = 0; i < steps.size(); ++i) {
      y[static_cast<size_t>(start + steps[i])] = (set[i] - m.mean) / (std::sqrt(m.variance) + 1e-9);
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

constexpr Entry kNorm[] = {
    {"BatchNormalization", batch_normalization},
    {"GroupNormalization", group_normalization},
    {"InstanceNormalization", instance_normalization},
    {"LayerNormalization", layer_normalization},
    {"RMSNormalization", rms_normalization},
    {"LRN", lrn},
    {"LpNormalization", lp_normalization},
    {"MeanVarianceNormalization", mean_variance_normalization},
    {"Softmax", softmax},
    {"LogSoftmax", log_softmax},
    {"Hardmax", hardmax},
};

}  // namespace

std::span<const Entry> norm_table() { return kNorm; }

}  // namespace ferrule::interp
