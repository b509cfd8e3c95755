#include <algorithm>
#include <cmath>
#include <set>

#include "tests/gpu/stub/cudnn_graph.h"

namespace ferrule::stub::cudnn {
namespace {

/// A window over up to three spatial dims, those that there are not being 1 wide.
struct Window {
  int64_t kernel[3] = {1, 1, 1}, stride[3] = {1, 1, 1}, dilation[3] = {1, 1, 1},
          begin[3] = {0, 0, 0}, end[3] = {0, 0, 0};
};
struct Image {
  int64_t n = 1, c = 1, size[3] = {1, 1, 1};
  explicit Image(const std::vector<int64_t>& d) : n(d[0]), c(d[1]) {
    for (size_t k = 2; k < d.size(); ++k) size[k + 3 - d.size()] = d[k];
  }
  int64_t pixels() const { return size[0] * size[1] * size[2]; }
};

Window window_of(const Descriptor& conv, const std::vector<int64_t>& w) {
  Window out;
  const auto stride = conv.values<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES),
             dilation = conv.values<int64_t>(CUDNN_ATTR_CONVOLUTION_DILATIONS);
  const auto begin = conv.values<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS),
             end = conv.values<int64_t>(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
  for (size_t k = 0; k < stride.size(); ++k) {
    const size_t at = k + 3 - stride.size();
    out.kernel[at] = w[k + 2];
    out.stride[at] = stride[k];
    out.dilation[at] = dilation[k];
    out.begin[at] = begin[k];
    out.end[at] = end[k];
  }
  return out;
}

std::string check_window(const Window& w, const Image& x, const Image& y) {
  for (int k = 0; k < 3; ++k) {
    if (w.stride[k] < 1 || w.dilation[k] < 1 || w.begin[k] < 0 || w.end[k] < 0)
      return "a stride, dilation or pad out of range";
    const int64_t fits =
        (x.size[k] + w.begin[k] + w.end[k] - w.dilation[k] * (w.kernel[k] - 1) - 1) / w.stride[k] +
        1;
    if (fits != y.size[k])
      return "an image of " + std::to_string(y.size[k]) + " where the window gives " +
             std::to_string(fits);
  }
  return {};
}

/// Calls f(input pixel, output pixels, row of pixels): each run of output pixels along the last
/// axis that tap `t` reaches.
template <class F>
void taps(const Window& w, const Image& x, const Image& y, const int64_t t[3], F&& f) {
  for (int64_t d = 0; d < y.size[0]; ++d) {
    const int64_t xd = d * w.stride[0] - w.begin[0] + t[0] * w.dilation[0];
    if (xd < 0 || xd >= x.size[0]) continue;
    for (int64_t h = 0; h < y.size[1]; ++h) {
      const int64_t xh = h * w.stride[1] - w.begin[1] + t[1] * w.dilation[1];
      if (xh < 0 || xh >= x.size[1]) continue;
      const int64_t shift = t[2] * w.dilation[2] - w.begin[2];
      int64_t first = 0, last = y.size[2];
      while (first < last && first * w.stride[2] + shift < 0) ++first;
      while (last > first && (last - 1) * w.stride[2] + shift >= x.size[2]) --last;
      if (first < last)
        f((xd * x.size[1] + xh) * x.size[2] + first * w.stride[2] + shift,
          (d * y.size[1] + h) * y.size[2] + first, last - first);
    }
  }
}

/// y += w x, or (transposed) x += w y.
void convolve(const Window& w, const Image& x, const Image& y, const float* weights, float* xs,
              float* ys, bool transposed, int64_t channels) {
  const int64_t groups = x.c / channels, outs = y.c / groups,
                window = w.kernel[0] * w.kernel[1] * w.kernel[2];
  for (int64_t n = 0; n < x.n; ++n)
    for (int64_t k = 0; k < y.c; ++k)
      for (int64_t c = 0; c < channels; ++c) {
        float* xp = xs + (n * x.c + k / outs * channels + c) * x.pixels();
        float* yp = ys + (n * y.c + k) * y.pixels();
        const float* wp = weights + (k * channels + c) * window;
        int64_t t[3];
        for (t[0] = 0; t[0] < w.kernel[0]; ++t[0])
          for (t[1] = 0; t[1] < w.kernel[1]; ++t[1])
            for (t[2] = 0; t[2] < w.kernel[2]; ++t[2], ++wp) {
              const float factor = *wp;
              taps(w, x, y, t, [&](int64_t from, int64_t to, int64_t count) {
                const int64_t step = w.stride[2];
                if (transposed)
                  for (int64_t j = 0; j < count; ++j) xp[from + j * step] += factor * yp[to + j];
                else
                  for (int64_t j = 0; j < count; ++j) yp[to + j] += factor * xp[from + j * step];
              });
            }
      }
}

struct Convolution {
  Tensor x, w, y;
  Window window;
  bool backward = false;
};

Convolution convolution_of(const Descriptor& d) {
  Convolution c;
  c.backward = d.type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  auto pick = [&](int forward, int back) {
    return tensor_of(d.child(c.backward ? back : forward));
  };
  c.x = pick(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX);
  c.w =
      pick(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W);
  c.y = pick(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
             CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY);
  const auto conv = d.child(c.backward ? CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC
                                       : CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
  if (conv && !c.w.dims.empty()) c.window = window_of(*conv, c.w.dims);
  return c;
}

std::string check_convolution(const Convolution& c) {
  if (c.x.dims.size() < 4 || c.x.dims.size() != c.w.dims.size() ||
      c.x.dims.size() != c.y.dims.size())
    return "a convolution whose ranks differ, or below 4";
  if (c.x.dims[1] % c.w.dims[1] || c.w.dims[0] != c.y.dims[1] || c.x.dims[0] != c.y.dims[0])
    return "channels or images that do not fit";
  if (c.w.dims[0] % (c.x.dims[1] / c.w.dims[1])) return "channels that the groups do not divide";
  return check_window(c.window, Image(c.x.dims), Image(c.y.dims));
}

Values rounded(Values v, bool tf32) {
  if (tf32)
    for (float& f : v) f = to_tf32(f);
  return v;
}

void run_convolution(const Descriptor& d, Run& run) {
  const Convolution c = convolution_of(d);
  const Values w = rounded(read(run, c.w), run.tf32);
  const Tensor &from = c.backward ? c.y : c.x, &to = c.backward ? c.x : c.y;
  Values in = rounded(read(run, from), run.tf32), out(static_cast<size_t>(to.numel()), 0);
  Values &xs = c.backward ? out : in, &ys = c.backward ? in : out;
  convolve(c.window, Image(c.x.dims), Image(c.y.dims), w.data(), xs.data(), ys.data(), c.backward,
           c.w.dims[1]);
  write(run, to, std::move(out));
}

float pointwise(const Descriptor& d, float x, float b) {
  switch (d.value<int>(CUDNN_ATTR_POINTWISE_MODE, 0)) {
    case CUDNN_POINTWISE_ADD:
      return x + b;
    case CUDNN_POINTWISE_SUB:
      return x - b;
    case CUDNN_POINTWISE_MUL:
      return x * b;
    case CUDNN_POINTWISE_DIV:
      return x / b;
    case CUDNN_POINTWISE_MAX:
      return std::isnan(x) ? x : std::max(x, b);
    case CUDNN_POINTWISE_MIN:
      return std::isnan(x) ? x : std::min(x, b);
    case CUDNN_POINTWISE_POW:
      return std::pow(x, b);
    case CUDNN_POINTWISE_RELU_FWD: {
      const auto low = static_cast<float>(d.value<double>(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP, 0));
      const auto slope =
          static_cast<float>(d.value<double>(CUDNN_ATTR_POINTWISE_RELU_LOWER_CLIP_SLOPE, 0));
      const double high = d.value<double>(CUDNN_ATTR_POINTWISE_RELU_UPPER_CLIP, HUGE_VAL);
      return x < low    ? (slope == 0 ? low : low + slope * (x - low))
             : x > high ? static_cast<float>(high)
                        : x;
    }
    case CUDNN_POINTWISE_TANH_FWD:
      return std::tanh(x);
    case CUDNN_POINTWISE_SIGMOID_FWD:
      return 1 / (1 + std::exp(-x));
    case CUDNN_POINTWISE_ELU_FWD:
      return x < 0 ? static_cast<float>(d.value<double>(CUDNN_ATTR_POINTWISE_ELU_ALPHA, 1)) *
                         std::expm1(x)
                   : x;
    case CUDNN_POINTWISE_GELU_APPROX_TANH_FWD:
      return 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
    case CUDNN_POINTWISE_SOFTPLUS_FWD: {
      const auto beta = static_cast<float>(d.value<double>(CUDNN_ATTR_POINTWISE_SOFTPLUS_BETA, 1));
      return (std::max(beta * x, 0.0f) + std::log1p(std::exp(-std::fabs(beta * x)))) / beta;
    }
    case CUDNN_POINTWISE_SWISH_FWD:
      return x / (1 + std::exp(
                          -static_cast<float>(d.value<double>(CUDNN_ATTR_POINTWISE_SWISH_BETA, 1)) *
                          x));
    case CUDNN_POINTWISE_ABS:
      return std::fabs(x);
    case CUDNN_POINTWISE_SQRT:
      return std::sqrt(x);
    case CUDNN_POINTWISE_EXP:
      return std::exp(x);
    case CUDNN_POINTWISE_LOG:
      return std::log(x);
    default:
      wrong_use("a pointwise mode that the stub does not know");
      return NAN;
  }
}

std::string check_broadcast(const Tensor& b, const Tensor& y) {
  if (b.dims.size() != y.dims.size()) return "a pointwise operand of another rank";
  for (size_t k = 0; k < b.dims.size(); ++k)
    if (b.dims[k] != 1 && b.dims[k] != y.dims[k])
      return "a pointwise operand that does not broadcast";
  return {};
}

/// What the real one takes behind a window without a word and reads wrongly, as an H100 showed.
std::string check_image_operand(const Tensor& b, const Tensor& y) {
  for (size_t k = 0; k < y.dims.size(); ++k)
    if (b.dims != y.dims && k != 1 && b.dims[k] > 1)
      return "an operand of a convolution's tail that is broadcast along some axes of the image";
    else if (b.dims == y.dims && y.dims[k] > 1 && b.strides[k] != y.strides[k])
      return "an operand of a convolution's tail that lies otherwise than the result";
  return {};
}

void run_pointwise(const Descriptor& d, Run& run) {
  const Tensor x = tensor_of(d.child(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)),
               y = tensor_of(d.child(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
  const auto second = d.child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
  const Descriptor& mode = *d.child(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
  auto spread = [&](const Tensor& t) {
    std::vector<int64_t> steps(t.dims.size());
    int64_t step = 1;
    for (size_t k = t.dims.size(); k-- > 0;) {
      steps[k] = t.dims[k] == 1 ? 0 : step;
      step *= t.dims[k];
    }
    return steps;
  };
  Values out(static_cast<size_t>(y.numel()));
  const Values xs = read(run, x);
  each(y.dims, spread(x),
       [&](int64_t k, int64_t o) { out[static_cast<size_t>(k)] = xs[static_cast<size_t>(o)]; });
  if (second) {
    const Tensor b = tensor_of(second);
    const Values bs = read(run, b);
    each(y.dims, spread(b), [&](int64_t k, int64_t o) {
      out[static_cast<size_t>(k)] =
          pointwise(mode, out[static_cast<size_t>(k)], bs[static_cast<size_t>(o)]);
    });
  } else {
    for (float& f : out) f = pointwise(mode, f, 0);
  }
  write(run, y, std::move(out));
}

/// c = a b over the last two axes; along the others a stands for c, and each of b's matrices may
/// serve several of a's.
struct Product {
  Tensor a, b, c;
  int64_t rows() const { return a.dims.end()[-2]; }
  int64_t inner() const { return a.dims.end()[-1]; }
  int64_t columns() const { return b.dims.end()[-1]; }
};
Product product_of(const Descriptor& d) {
  return {tensor_of(d.child(CUDNN_ATTR_OPERATION_MATMUL_ADESC)),
          tensor_of(d.child(CUDNN_ATTR_OPERATION_MATMUL_BDESC)),
          tensor_of(d.child(CUDNN_ATTR_OPERATION_MATMUL_CDESC))};
}
std::string check_product(const Product& p) {
  const size_t rank = p.a.dims.size();
  if (rank < 3 || p.b.dims.size() != rank || p.c.dims.size() != rank)
    return "a product whose ranks differ, or below 3";
  for (size_t k = 0; k + 2 < rank; ++k)
    if (p.c.dims[k] != p.a.dims[k] || p.a.dims[k] % p.b.dims[k])
      return "a product whose batches do not fit";
  if (p.b.dims[rank - 2] != p.inner() || p.c.dims[rank - 2] != p.rows() ||
      p.c.dims[rank - 1] != p.columns())
    return "a product whose sizes do not fit";
  return {};
}

void run_product(const Descriptor& d, Run& run) {
  const Product p = product_of(d);
  const Values a = read(run, p.a), b = read(run, p.b);
  Values c(static_cast<size_t>(p.c.numel()), 0);
  const size_t axes = p.a.dims.size() - 2;
  const std::vector<int64_t> batch(p.a.dims.begin(), p.a.dims.end() - 2);
  const int64_t rows = p.rows(), inner = p.inner(), columns = p.columns();
  each(batch, std::vector<int64_t>(axes, 0), [&](int64_t n, int64_t) {
    int64_t rest = n, of_b = 0, step = 1;
    for (size_t k = axes; k-- > 0; rest /= batch[k], step *= p.b.dims[k])
      of_b += rest % batch[k] / (batch[k] / p.b.dims[k]) * step;
    const float *x = a.data() + n * rows * inner, *w = b.data() + of_b * inner * columns;
    float* y = c.data() + n * rows * columns;
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t k = 0; k < inner; ++k)
        for (int64_t j = 0; j < columns; ++j)
          y[i * columns + j] += x[i * inner + k] * w[k * columns + j];
  });
  write(run, p.c, std::move(c));
}

/// Over the axes along which the result has one element.
void run_reduction(const Descriptor& d, Run& run) {
  const Tensor x = tensor_of(d.child(CUDNN_ATTR_OPERATION_REDUCTION_XDESC)),
               y = tensor_of(d.child(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
  const int how =
      d.child(CUDNN_ATTR_OPERATION_REDUCTION_DESC)->value<int>(CUDNN_ATTR_REDUCTION_OPERATOR, -1);
  if (how != CUDNN_REDUCE_TENSOR_MAX && how != CUDNN_REDUCE_TENSOR_ADD)
    wrong_use("a reduction that the stub does not know");
  const bool most = how == CUDNN_REDUCE_TENSOR_MAX;
  const Values in = read(run, x);
  Values out(static_cast<size_t>(y.numel()), most ? -HUGE_VALF : 0);
  std::vector<int64_t> steps(y.dims.size());
  int64_t step = 1;
  for (size_t k = y.dims.size(); k-- > 0; step *= y.dims[k]) steps[k] = y.dims[k] == 1 ? 0 : step;
  each(x.dims, steps, [&](int64_t k, int64_t o) {
    float& to = out[static_cast<size_t>(o)];
    const float v = in[static_cast<size_t>(k)];
    to = most ? (std::isnan(v) || v > to ? v : to) : to + v;
  });
  write(run, y, std::move(out));
}

}  // namespace

Operation inspect(const Descriptor& d) {
  Operation o;
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR: {
      const Convolution c = convolution_of(d);
      o.in = {c.backward ? c.y : c.x, c.w};
      o.out = c.backward ? c.x : c.y;
      o.problem = check_convolution(c);
      break;
    }
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR: {
      o.in.push_back(tensor_of(d.child(CUDNN_ATTR_OPERATION_POINTWISE_XDESC)));
      o.out = tensor_of(d.child(CUDNN_ATTR_OPERATION_POINTWISE_YDESC));
      if (auto b = d.child(CUDNN_ATTR_OPERATION_POINTWISE_BDESC)) o.in.push_back(tensor_of(b));
      for (const Tensor& t : o.in)
        if (o.problem.empty()) o.problem = check_broadcast(t, o.out);
      break;
    }
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: {
      const Product p = product_of(d);
      o.in = {p.a, p.b};
      o.out = p.c;
      o.problem = check_product(p);
      break;
    }
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      o.in = {tensor_of(d.child(CUDNN_ATTR_OPERATION_REDUCTION_XDESC))};
      o.out = tensor_of(d.child(CUDNN_ATTR_OPERATION_REDUCTION_YDESC));
      o.problem = check_broadcast(o.out, o.in[0]);
      break;
    default:
      o.problem = "an operation that the stub does not know";
  }
  return o;
}

std::string check_graph(const Descriptor& graph) {
  std::set<int64_t> made;
  const auto operations = graph.all(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  const bool images = std::ranges::any_of(operations, [](const DescriptorPtr& op) {
    return op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR ||
           op->type == CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR;
  });
  const Tensor result = operations.empty() ? Tensor{} : inspect(*operations.back()).out;
  for (const auto& op : operations) {
    const Operation o = inspect(*op);
    if (!o.problem.empty()) return o.problem;
    if (images && op->type == CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR)
      for (const Tensor& t : o.in)
        if (const auto why = check_image_operand(t, result); !t.is_virtual && !why.empty())
          return why;
    for (const Tensor& t : o.in)
      if (t.is_virtual && !made.contains(t.uid)) return "a virtual tensor that nothing makes";
    made.insert(o.out.uid);
  }
  return made.empty() ? "a graph without operations" : "";
}

void run_operation(const Descriptor& d, Run& run) {
  switch (d.type) {
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      run_pointwise(d, run);
      break;
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      run_product(d, run);
      break;
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      run_reduction(d, run);
      break;
    default:
      run_convolution(d, run);
  }
}

}  // namespace ferrule::stub::cudnn
