// cuDNN's backend API for the operations that ferrule uses, on plain loops: descriptors are kept as
// they are set, checked when they are finalized, and a plan computes its operation graph. It finds
// what cuDNN would refuse (dims that do not fit, uids without an address, unaligned memory) and
// what no refusal would show (an engine that rounds more than was asked). Three engines: 0 and 1
// (with a workspace) compute in f32; 2, for f32 alone, rounds factors to tf32 and says so.
#include <cudnn.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "tests/gpu/stub/library_work.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

using namespace ferrule::stub;

struct Descriptor;
using DescriptorPtr = std::shared_ptr<Descriptor>;
struct Attribute {
  cudnnBackendAttributeType_t type{};
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<DescriptorPtr> children;
};
struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Attribute> attributes;
  template <class T>
  std::vector<T> values(int name) const {
    auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<T> v(it->second.bytes.size() / sizeof(T));
    std::memcpy(v.data(), it->second.bytes.data(), v.size() * sizeof(T));
    return v;
  }
  template <class T>
  T value(int name, T otherwise) const {
    auto v = values<T>(name);
    return v.empty() ? otherwise : v[0];
  }
  DescriptorPtr child(int name) const {
    auto it = attributes.find(name);
    return it == attributes.end() || it->second.children.empty() ? nullptr : it->second.children[0];
  }
  std::vector<DescriptorPtr> all(int name) const {
    auto it = attributes.find(name);
    return it == attributes.end() ? std::vector<DescriptorPtr>{} : it->second.children;
  }
};
struct Handle {
  DescriptorPtr d;
};
thread_local std::string last_error;

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}
cudnnStatus_t wrong(const std::string& why) {
  wrong_use(why);
  return refuse(CUDNN_STATUS_BAD_PARAM, why);
}
#define FAULT(name)                     \
  if (int code = ordered_failure(name)) \
  return refuse(static_cast<cudnnStatus_t>(code), "ordered by the test")

size_t element_size(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:
      return 4;
  }
}

// --- tensors

struct Tensor {
  int64_t uid = 0, alignment = 1;
  Number number = Number::f32;
  std::vector<int64_t> dims, strides;
  bool is_virtual = false;
  std::vector<char> constant;
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  int64_t span() const {
    int64_t last = 0;
    for (size_t k = 0; k < dims.size(); ++k) last += (dims[k] - 1) * strides[k];
    return (last + 1) * size_of(number);
  }
};

std::string read_tensor(const Descriptor& d, Tensor& t) {
  t.uid = d.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  t.dims = d.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  t.strides = d.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  t.alignment = d.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
  t.is_virtual = d.value<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
  const auto type = d.value<int>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (type == CUDNN_DATA_FLOAT)
    t.number = Number::f32;
  else if (type == CUDNN_DATA_HALF)
    t.number = Number::f16;
  else if (type == CUDNN_DATA_BFLOAT16)
    t.number = Number::bf16;
  else
    return "a tensor of type " + std::to_string(type);
  if (t.dims.empty() || t.dims.size() != t.strides.size())
    return "a tensor with another number of strides than dims";
  for (size_t k = 0; k < t.dims.size(); ++k)
    if (t.dims[k] < 1 || t.strides[k] < 1) return "a tensor with a dim or stride below 1";
  // Distinct elements in distinct places: ordered by stride, each axis must step over the one
  // before.
  std::vector<size_t> order;
  for (size_t k = 0; k < t.dims.size(); ++k)
    if (t.dims[k] > 1) order.push_back(k);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return t.strides[a] < t.strides[b]; });
  for (size_t k = 1; k < order.size(); ++k)
    if (t.strides[order[k]] < t.strides[order[k - 1]] * t.dims[order[k - 1]])
      return "a tensor whose elements overlap";
  return {};
}

// --- operations

using Values = std::vector<float>;  ///< dense, in the order of dims
struct Run {
  std::map<int64_t, void*> addresses;
  std::map<int64_t, Values> values;
  bool tf32 = false;
};

int64_t each(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
             const std::function<void(int64_t, int64_t)>& f) {
  std::vector<int64_t> at(dims.size(), 0);
  int64_t n = 1, offset = 0;
  for (int64_t d : dims) n *= d;
  for (int64_t k = 0; k < n; ++k) {
    f(k, offset);
    for (size_t a = dims.size(); a-- > 0;) {
      offset += strides[a];
      if (++at[a] < dims[a]) break;
      offset -= strides[a] * dims[a];
      at[a] = 0;
    }
  }
  return n;
}

Tensor tensor_of(const DescriptorPtr& d) {
  Tensor t;
  if (d) read_tensor(*d, t);
  return t;
}

const Values& read(Run& run, const Tensor& t) {
  auto [it, fresh] = run.values.try_emplace(t.uid);
  if (fresh) {
    it->second.resize(static_cast<size_t>(t.numel()));
    const void* base = run.addresses.at(t.uid);
    each(t.dims, t.strides, [&](int64_t k, int64_t o) {
      it->second[static_cast<size_t>(k)] = load(t.number, base, o);
    });
  }
  return it->second;
}

void write(Run& run, const Tensor& t, Values v) {
  for (float& x : v) {  // what lies between operations has a type as well
    if (t.number == Number::f32) break;
    uint16_t rounded = 0;
    store(t.number, &rounded, 0, x);
    x = load(t.number, &rounded, 0);
  }
  if (!t.is_virtual) {
    void* base = run.addresses.at(t.uid);
    each(t.dims, t.strides,
         [&](int64_t k, int64_t o) { store(t.number, base, o, v[static_cast<size_t>(k)]); });
  }
  run.values[t.uid] = std::move(v);
}

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

/// What an operation reads and writes; what is wrong with it.
struct Operation {
  std::vector<Tensor> in;
  Tensor out;
  std::string problem;
};
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
  for (const auto& op : graph.all(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    const Operation o = inspect(*op);
    if (!o.problem.empty()) return o.problem;
    for (const Tensor& t : o.in)
      if (t.is_virtual && !made.contains(t.uid)) return "a virtual tensor that nothing makes";
    made.insert(o.out.uid);
  }
  return made.empty() ? "a graph without operations" : "";
}

bool computes_f32(const Descriptor& graph) {
  const auto ops = graph.all(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  return !ops.empty() && inspect(*ops[0]).in[0].number == Number::f32;
}

// --- engines, plans

DescriptorPtr config_of(const DescriptorPtr& graph, int64_t engine) {
  auto e = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, true, {}});
  e->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {
      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {graph}};
  Attribute index{CUDNN_TYPE_INT64, 1, std::vector<char>(8), {}};
  std::memcpy(index.bytes.data(), &engine, 8);
  e->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = index;
  auto c = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true, {}});
  c->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {e}};
  return c;
}

int64_t engine_of(const Descriptor& config) {
  const auto e = config.child(CUDNN_ATTR_ENGINECFG_ENGINE);
  return e ? e->value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) : 0;
}
int64_t workspace_of(int64_t engine) { return engine == 1 ? 4096 : 0; }

std::vector<DescriptorPtr> heuristic(const Descriptor& d) {
  const auto graph = d.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (!graph) return {};
  if (d.value<int>(CUDNN_ATTR_ENGINEHEUR_MODE, 0) == CUDNN_HEUR_MODE_FALLBACK)
    return {config_of(graph, 1)};
  std::vector<DescriptorPtr> out;
  if (computes_f32(*graph)) out.push_back(config_of(graph, 2));
  out.push_back(config_of(graph, 0));
  return out;
}

cudnnStatus_t give(cudnnBackendAttributeType_t type, const void* data, int64_t have, int64_t wanted,
                   int64_t* count, void* out) {
  if (count) *count = have;
  if (out) std::memcpy(out, data, static_cast<size_t>(std::min(have, wanted)) * element_size(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t give(const std::vector<DescriptorPtr>& all, int64_t wanted, int64_t* count,
                   void* out) {
  if (count) *count = static_cast<int64_t>(all.size());
  auto** handles = static_cast<Handle**>(out);
  for (int64_t k = 0; handles && k < std::min<int64_t>(wanted, static_cast<int64_t>(all.size()));
       ++k)
    handles[k]->d = all[static_cast<size_t>(k)];
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

API size_t cudnnGetVersion() { return 91900; }
API size_t cudnnGetCudartVersion() { return 13000; }
API const char* cudnnGetErrorString(cudnnStatus_t s) {
  switch (static_cast<int>(s) / 1000) {
    case 0:
      return s == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
    case 2:
      return "CUDNN_STATUS_BAD_PARAM";
    case 3:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
API void cudnnGetLastErrorString(char* message, size_t size) {
  if (!size) return;
  std::strncpy(message, last_error.c_str(), size - 1);
  message[size - 1] = 0;
}
API cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  FAULT("cudnnCreate");
  *handle = new cudnnContext();
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete handle;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  FAULT("cudnnSetStream");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                               cudnnBackendDescriptor_t* d) {
  FAULT("cudnnBackendCreateDescriptor");
  *d = new Handle{std::make_shared<Descriptor>(Descriptor{type, false, {}})};
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Handle*>(d);
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t count,
                                           const void* data) {
  FAULT("cudnnBackendSetAttribute");
  Descriptor& to = *static_cast<Handle*>(d)->d;
  if (to.finalized) return wrong("an attribute set after the descriptor was finalized");
  Attribute a{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t k = 0; k < count; ++k) {
      const auto* child = static_cast<Handle* const*>(data)[k];
      if (!child || !child->d->finalized) return wrong("a descriptor that is not finalized");
      a.children.push_back(child->d);
    }
  } else {
    a.bytes.assign(
        static_cast<const char*>(data),
        static_cast<const char*>(data) + static_cast<size_t>(count) * element_size(type));
  }
  to.attributes[name] = std::move(a);
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t wanted,
                                           int64_t* count, void* out) {
  FAULT("cudnnBackendGetAttribute");
  const Descriptor& from = *static_cast<Handle*>(d)->d;
  switch (static_cast<int>(name)) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      return give(heuristic(from), wanted, count, out);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: {
      const int64_t n = 3;
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      const cudnnBackendNumericalNote_t note = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      return give(type, &note, from.value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == 2, wanted,
                  count, out);
    }
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      if (count) *count = 0;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE: {
      const int64_t n = workspace_of(engine_of(from));
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: {
      const int32_t n = 0;
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: {
      const int64_t n =
          workspace_of(engine_of(*from.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)));
      return give(type, &n, 1, wanted, count, out);
    }
    default:
      break;
  }
  auto it = from.attributes.find(name);
  if (it == from.attributes.end()) {
    if (count) *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return give(it->second.children, wanted, count, out);
  return give(type, it->second.bytes.data(), it->second.count, wanted, count, out);
}

API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  FAULT("cudnnBackendFinalize");
  Descriptor& it = *static_cast<Handle*>(d)->d;
  std::string problem;
  if (it.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    Tensor t;
    problem = read_tensor(it, t);
  }
  if (it.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) problem = check_graph(it);
  if (!problem.empty()) return wrong(problem);
  it.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                      cudnnBackendDescriptor_t pack) {
  FAULT("cudnnBackendExecute");
  const DescriptorPtr p = static_cast<Handle*>(plan)->d, v = static_cast<Handle*>(pack)->d;
  if (!p->finalized || !v->finalized) return wrong("a plan or variant pack that is not finalized");
  const auto config = p->child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const int64_t engine = engine_of(*config);
  const auto graph =
      config->child(CUDNN_ATTR_ENGINECFG_ENGINE)->child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  Run run;
  run.tf32 = engine == 2;
  const auto uids = v->values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = v->values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() != pointers.size())
    return wrong("a variant pack with another number of uids than addresses");
  for (size_t k = 0; k < uids.size(); ++k) run.addresses[uids[k]] = pointers[k];
  void* workspace = v->value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (workspace_of(engine) > 0 &&
      (!workspace || !device_memory(workspace, static_cast<uint64_t>(workspace_of(engine)))))
    return wrong("a plan without its workspace");
  for (const auto& op : graph->all(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    Operation o = inspect(*op);
    o.in.push_back(o.out);
    for (const Tensor& t : o.in) {
      if (t.is_virtual) continue;
      auto at = run.addresses.find(t.uid);
      if (at == run.addresses.end() || !at->second)
        return wrong("uid " + std::to_string(t.uid) + " has no address");
      if (reinterpret_cast<uintptr_t>(at->second) % static_cast<uintptr_t>(t.alignment))
        return wrong("uid " + std::to_string(t.uid) + " is not aligned");
      if (t.uid < 1000 && !device_memory(at->second, static_cast<uint64_t>(t.span())))
        return wrong("uid " + std::to_string(t.uid) + " is no memory of the device");
      if (t.uid >= 1000)
        run.values[t.uid] = {
            load(t.number, at->second, 0)};  // numbers are read when the work is put
    }
  }
  put_work(reinterpret_cast<CUstream_st*>(handle->stream), "cudnn engine " + std::to_string(engine),
           [graph, run, workspace, engine]() mutable {
             if (workspace) std::memset(workspace, 0x5a, static_cast<size_t>(workspace_of(engine)));
             Run now = run;
             for (const auto& op : graph->all(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
               switch (op->type) {
                 case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
                   run_pointwise(*op, now);
                   break;
                 case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
                   run_product(*op, now);
                   break;
                 case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
                   run_reduction(*op, now);
                   break;
                 default:
                   run_convolution(*op, now);
               }
             }
           });
  return CUDNN_STATUS_SUCCESS;
}
