#include "codegen/cuda/direct.h"

#include <algorithm>
#include <numeric>

#include "codegen/cuda/shape.h"
#include "codegen/cuda/text.h"
#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

using Kind = CudaDirect::Kind;
constexpr size_t kMostAxes = 8;

int64_t farthest(const RowLayout& l) {
  int64_t at = 0;
  for (size_t k = 0; k < l.dims.size(); ++k)
    at += std::max<int64_t>(0, l.dims[k] - 1) * l.strides[k];
  return at;
}

class DirectSource {
 public:
  DirectSource(const CudaDirect& d, int threads, bool wide)
      : d_(d), rank_(d.y.dims.size()), threads_(threads), wide_(wide) {}

  std::string text(std::string_view entry) {
    static constexpr std::string_view kNames[] = {"convolution", "transposed convolution",
                                                  "product"};
    out_ = cuda_head("", fmt::format("{}, {}", kNames[static_cast<size_t>(d_.kind)], name(d_.type)),
                     wide_);
    const bool narrow = size_bits(d_.type) == 16;
    line(0, "typedef {} T;\ntypedef {} Wide;", cuda_storage(d_.type),
         d_.type == DType::f64 ? "double" : "float");
    line(0, "__device__ __forceinline__ Wide widened(T x) {{ return {}; }}",
         narrow ? fmt::format("{}_to_float(x)", name(d_.type)) : "x");
    line(0, "__device__ __forceinline__ T narrowed(Wide x) {{ return {}; }}\n",
         narrow ? fmt::format("to_{}(x)", name(d_.type)) : "x");
    line(0, "struct Arguments {{\n  const T *a, *b, *c;\n  T* y;\n  Index threads, depth;");
    line(1, "Index out[{0}], a_stride[{0}], b_stride[{0}], c_stride[{0}], y_stride[{0}];", rank_);
    if (windows())
      line(1,
           "Index per_group, channels, in[{0}], window[{0}], stride[{0}], dilation[{0}], "
           "begin[{0}];",
           windows());
    line(0, "}};\n");
    line(0, "extern \"C\" __global__ void __launch_bounds__({}) {}(const Arguments a) {{", threads_,
         entry);
    line(1, "Index rest = (Index)blockIdx.x * {} + threadIdx.x;\n  if (rest >= a.threads) return;",
         threads_);
    for (size_t k = rank_; k-- > 0;)
      line(1, "const Index at{0} = rest % a.out[{0}];\n  rest /= a.out[{0}];", k);
    line(1, "Wide sum = 0;");
    windows() ? window() : product();
    std::string y = "a.y[0";
    for (size_t k = 0; k < rank_; ++k) y += fmt::format(" + at{0} * a.y_stride[{0}]", k);
    line(1, "{}] = narrowed(sum);\n}}", y);
    return std::move(out_);
  }

 private:
  template <class... A>
  void line(size_t indent, fmt::format_string<A...> text, A&&... args) {
    out_ += std::string(indent * 2, ' ') + fmt::format(text, std::forward<A>(args)...) + "\n";
  }
  size_t windows() const { return d_.strides.size(); }
  /// The addend, where there is one.
  std::string addend() const {
    std::string c = "widened(a.c[0";
    for (size_t k = 0; k < rank_; ++k) c += fmt::format(" + at{0} * a.c_stride[{0}]", k);
    return c + "])";
  }
  std::string number(float v) const {
    Scalar s;
    s.f = double{v};
    return fmt::format("(Wide){}", cuda_literal(DType::f32, s));
  }

  void product() {
    std::string x = "const T *x = a.a", w = "*w = a.b";
    for (size_t k = 0; k < rank_; ++k) {
      if (k + 1 < rank_) x += fmt::format(" + at{0} * a.a_stride[{0}]", k);
      if (k + 2 != rank_) w += fmt::format(" + at{0} * a.b_stride[{0}]", k);
    }
    line(1, "{}, {};", x, w);
    line(1, "for (Index k = 0; k < a.depth; ++k)");
    line(2, "sum += widened(x[k * a.a_stride[{}]]) * widened(w[k * a.b_stride[{}]]);", rank_ - 1,
         rank_ - 2);
    if (d_.alpha != 1) line(1, "sum *= {};", number(d_.alpha));
    if (d_.c.dims.empty()) return;
    line(1, "sum += {}{};", d_.beta == 1 ? "" : number(d_.beta) + " * ", addend());
  }

  void window() {
    const bool turned = d_.kind == Kind::deconvolution;
    line(1, "const Index group = at1 / a.per_group;");
    line(1, "for (Index c = 0; c < a.channels; ++c) {{");
    line(2, "const T* x = a.a + at0 * a.a_stride[0] + (group * a.channels + c) * a.a_stride[1];");
    if (turned)
      line(2,
           "const T* w = a.b + (group * a.channels + c) * a.b_stride[0] + at1 % a.per_group * "
           "a.b_stride[1];");
    else
      line(2, "const T* w = a.b + at1 * a.b_stride[0] + c * a.b_stride[1];");
    std::string x = "x[0", w = "w[0";
    for (size_t k = 0; k < windows(); ++k) {
      const size_t in = k + 2;
      line(in, "for (Index k{0} = 0; k{0} < a.window[{0}]; ++k{0}) {{", k);
      if (turned) {
        line(in + 1, "Index i{0} = at{1} + a.begin[{0}] - k{0} * a.dilation[{0}];", k, k + 2);
        line(in + 1, "if (i{0} < 0 || i{0} % a.stride[{0}] != 0) continue;", k);
        line(in + 1, "i{0} /= a.stride[{0}];\n{1}if (i{0} >= a.in[{0}]) continue;", k,
             std::string(2 * in + 2, ' '));
      } else {
        line(in + 1,
             "const Index i{0} = at{1} * a.stride[{0}] + k{0} * a.dilation[{0}] - a.begin[{0}];", k,
             k + 2);
        line(in + 1, "if (i{0} < 0 || i{0} >= a.in[{0}]) continue;", k);
      }
      x += fmt::format(" + i{} * a.a_stride[{}]", k, k + 2);
      w += fmt::format(" + k{} * a.b_stride[{}]", k, k + 2);
    }
    line(windows() + 2, "sum += widened({}]) * widened({}]);", x, w);
    for (size_t k = windows() + 1; k-- > 0;) line(k + 1, "}}");
    if (!d_.c.dims.empty()) line(1, "sum += {};", addend());
  }

  const CudaDirect& d_;
  const size_t rank_;
  const int threads_;
  const bool wide_;
  std::string out_;
};

/// What the kernel's struct Arguments declares.
std::string arguments(const CudaDirect& d, bool wide, std::span<const uint64_t> at) {
  const size_t rank = d.y.dims.size(), windows = d.strides.size();
  auto pointer = [&](size_t k) { return reinterpret_cast<const void*>(at[k]); };
  CudaArguments out(wide);
  out.pointer(pointer(0));
  out.pointer(pointer(1));
  out.pointer(d.c.dims.empty() ? nullptr : pointer(d.at_c));
  out.pointer(pointer(d.at_y));
  out.index(std::accumulate(d.y.dims.begin(), d.y.dims.end(), int64_t{1}, std::multiplies<>()));
  out.index(windows ? 0 : d.a.dims.back());
  for (int64_t v : d.y.dims) out.index(v);
  std::vector<int64_t> c = d.c.strides;
  if (windows) {
    c.assign(rank, 0);
    if (!d.c.dims.empty()) c[1] = d.c.strides[0];
  }
  c.resize(rank);
  for (const auto* list : {&d.a.strides, &d.b.strides, &std::as_const(c), &d.y.strides})
    for (int64_t v : *list) out.index(v);
  if (!windows) return out.take();
  out.index(d.y.dims[1] / d.groups);
  out.index(d.a.dims[1] / d.groups);
  for (size_t k = 0; k < windows; ++k) out.index(d.a.dims[k + 2]);
  for (size_t k = 0; k < windows; ++k) out.index(d.b.dims[k + 2]);
  for (const auto* list : {&d.strides, &d.dilations, &d.begin})
    for (int64_t v : *list) out.index(v);
  return out.take();
}

}  // namespace

Applicable<CudaLaunch> plan_cuda_direct(const CudaDirect& d, std::string_view entry) {
  const size_t rank = d.y.dims.size();
  if (d.type != DType::f32 && d.type != DType::f16 && d.type != DType::bf16 && d.type != DType::f64)
    return error(Code::unsupported_type, "CUDA kernel", name(d.type));
  if (rank < 2 || rank > kMostAxes || d.a.dims.size() != rank || d.b.dims.size() != rank ||
      (!d.strides.empty() && (d.strides.size() != rank - 2 || d.groups < 1)))
    return not_applicable("CUDA kernel", "a plain sum", "its rank");
  const int64_t elements =
      std::accumulate(d.y.dims.begin(), d.y.dims.end(), int64_t{1}, std::multiplies<>());
  int64_t most = std::max({farthest(d.a), farthest(d.b), farthest(d.c), farthest(d.y), elements});
  for (size_t k = 0; k < d.strides.size(); ++k)
    most = std::max(most, d.y.dims[k + 2] * d.strides[k] + d.b.dims[k + 2] * d.dilations[k] +
                              d.a.dims[k + 2] * d.strides[k] + std::abs(d.begin[k]));
  const bool wide = most > kMostNarrowIndex;
  CudaLaunch out;
  out.entry = entry;
  out.kind = "direct";
  out.shape = CudaShape{}.text();
  out.shapes = {out.shape};
  out.source = DirectSource(d, out.threads_x, wide).text(entry);
  out.blocks = (elements + out.threads_x - 1) / out.threads_x;
  out.problem = "generated direct";
  out.arguments = [d, wide](std::span<const uint64_t> at) { return arguments(d, wide, at); };
  return out;
}

}  // namespace ferrule
