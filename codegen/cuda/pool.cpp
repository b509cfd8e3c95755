#include "codegen/cuda/pool.h"

#include <algorithm>
#include <numeric>

#include "codegen/cuda/text.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

/// Windows up to this size are written out.
constexpr int64_t kMostUnrolled = 27;

int64_t product(std::span<const int64_t> v) {
  return std::accumulate(v.begin(), v.end(), int64_t{1}, std::multiplies<>());
}

std::vector<int64_t> per_axis(const Node& n, std::string_view key, size_t count) {
  auto v = n.attrs.ints(key);
  v.resize(count, 1);
  return v;
}

int64_t farthest(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
  int64_t at = 0;
  for (size_t k = 0; k < dims.size(); ++k) at += std::max<int64_t>(0, dims[k] - 1) * strides[k];
  return at;
}

/// As many channels a thread as lie side by side in whole packs of at most 16 bytes, everywhere.
int whole_pack(const CudaPoolGeometry& g, DType type) {
  if (g.x[1] != 1 || g.y[1] != 1) return 1;
  int v = 128 / size_bits(type);
  auto whole = [&](const std::vector<int64_t>& dims, const std::vector<int64_t>& strides) {
    for (size_t k = 0; k < dims.size(); ++k)
      if (k != 1 && dims[k] > 1 && strides[k] % v != 0) return false;
    return dims[1] % v == 0;
  };
  while (v > 1 && !(whole(g.in, g.x) && whole(g.out, g.y))) v /= 2;
  return v;
}

}  // namespace

int64_t CudaPoolGeometry::packs(const CudaPoolKernel& kernel) const {
  return product(out) / kernel.vector;
}

Applicable<CudaPoolPlan> plan_cuda_pool(const Node& n, DType type, const RowLayout& x,
                                        const RowLayout& y, bool aligned) {
  auto refuse = [&](std::string_view why) {
    return not_applicable("CUDA kernel", escape(n.op), why);
  };
  CudaPoolPlan plan;
  CudaPoolKernel& kernel = plan.kernel;
  CudaPoolGeometry& g = plan.geometry;
  const size_t spatial = x.dims.size() - std::min<size_t>(2, x.dims.size());
  kernel.window = n.attrs.ints("kernel_shape");
  if (spatial < 1 || spatial > 3 || y.dims.size() != x.dims.size() ||
      kernel.window.size() != spatial)
    return refuse("the image's rank");
  kernel.type = type;
  const auto pooling = pooling_of(n);
  if (!pooling) return refuse("no pooling");
  kernel.maximum = pooling->maximum;
  if (!(kernel.maximum && is_int(type) && size_bits(type) >= 8) && type != DType::f32 &&
      type != DType::f16 && type != DType::bf16)
    return error(Code::unsupported_type, "CUDA kernel", name(type));
  kernel.counts_pads = !kernel.maximum && n.attrs.i("count_include_pad") != 0;
  g.in = x.dims, g.out = y.dims, g.x = x.strides, g.y = y.strides;
  g.strides = per_axis(n, "strides", spatial), g.dilations = per_axis(n, "dilations", spatial);
  for (const auto* list : {&kernel.window, &g.strides, &g.dilations})
    if (std::ranges::any_of(*list, [](int64_t v) { return v < 1 || v > kMostNarrowIndex; }))
      return refuse("a size below 1");
  const auto pads = resolved_pads(n, Shape(x.dims.begin() + 2, x.dims.end()), kernel.window);
  if (!pads || pads->size() != 2 * spatial) return refuse("its pads");
  g.begin.assign(pads->begin(), pads->begin() + static_cast<int64_t>(spatial));
  g.end.assign(pads->begin() + static_cast<int64_t>(spatial), pads->end());
  kernel.channels_inner = g.out[1] > 1 && g.y[1] < g.y.back();
  kernel.vector = aligned && kernel.channels_inner ? whole_pack(g, type) : 1;
  int64_t most = std::max({farthest(g.in, g.x), farthest(g.out, g.y), g.packs(kernel)});
  for (size_t k = 0; k < spatial; ++k)
    most = std::max(most, g.in[k + 2] + g.out[k + 2] * g.strides[k] +
                              kernel.window[k] * g.dilations[k] +
                              std::max(std::abs(g.begin[k]), std::abs(g.end[k])));
  kernel.wide_index = most > kMostNarrowIndex;
  return plan;
}

namespace {

class PoolSource {
 public:
  explicit PoolSource(const CudaPoolKernel& k) : k_(k), spatial_(k.window.size()) {}

  std::string text(std::string_view entry, std::string_view comment) {
    out_ = cuda_head(comment,
                     fmt::format("{} of windows of {}, {}", k_.maximum ? "maximum" : "average",
                                 fmt::join(k_.window, " x "), name(k_.type)),
                     k_.wide_index);
    conversions();
    line(0, "struct Arguments {{");
    line(1, "const T* x;\n  T* y;\n  Index threads, channels;  // packs of channels");
    line(1, "Index in[{0}], out[{0}], stride[{0}], dilation[{0}], begin[{0}], end[{0}];", spatial_);
    line(1, "Index x_stride[{0}], y_stride[{0}];", spatial_ + 2);
    line(0, "}};\n");
    // Half the threads of a multiprocessor are enough: without the number some compilers save
    // registers until they spill.
    line(0, "extern \"C\" __global__ void __launch_bounds__({}, {}) {}(const Arguments a) {{",
         k_.threads, std::max(1, 1024 / k_.threads), entry);
    position();
    walk();
    store();
    line(0, "}}");
    return std::move(out_);
  }

 private:
  template <class... A>
  void line(size_t indent, fmt::format_string<A...> text, A&&... args) {
    out_ += std::string(indent * 2, ' ') + fmt::format(text, std::forward<A>(args)...) + "\n";
  }
  bool whole_numbers() const { return is_int(k_.type); }

  /// From memory to what is computed with, and back.
  void conversions() {
    std::string from = "x", to = "x";
    if (size_bits(k_.type) == 16 && !whole_numbers())
      from = fmt::format("{}_to_float(x)", name(k_.type)),
      to = fmt::format("to_{}(x)", name(k_.type));
    line(0, "typedef {} T;\ntypedef {} Wide;", cuda_storage(k_.type),
         whole_numbers() ? cuda_storage(k_.type) : "float");
    line(0, "__device__ __forceinline__ Wide widened(T x) {{ return {}; }}", from);
    line(0, "__device__ __forceinline__ T narrowed(Wide x) {{ return {}; }}", to);
    line(0, "typedef Pack<T, {}> Element;\n", k_.vector);
  }

  /// Which element of the result, where its window begins.
  void position() {
    line(1, "Index rest = (Index)blockIdx.x * {} + threadIdx.x;\n  if (rest >= a.threads) return;",
         k_.threads);
    if (k_.channels_inner)
      line(1, "const Index channel = rest % a.channels * {};\n  rest /= a.channels;", k_.vector);
    for (size_t k = spatial_; k-- > 0;)
      line(1,
           "const Index out{0} = rest % a.out[{0}], first{0} = out{0} * a.stride[{0}] - "
           "a.begin[{0}];\n  rest /= a.out[{0}];",
           k);
    if (!k_.channels_inner)
      line(1, "const Index channel = rest % a.channels;\n  rest /= a.channels;");
    line(1, "const T* x = a.x + rest * a.x_stride[0] + channel * a.x_stride[1];");
    std::string y = "T* y = a.y + rest * a.y_stride[0] + channel * a.y_stride[1]";
    for (size_t k = 0; k < spatial_; ++k) y += fmt::format(" + out{0} * a.y_stride[{1}]", k, k + 2);
    line(1, "{};", y);
    const std::string_view start = !k_.maximum       ? "0.0f"
                                   : whole_numbers() ? "Info<T>::low"
                                                     : "-__uint_as_float(0x7f800000u)";
    line(1, "Wide value[{0}];\n#pragma unroll\n  for (int j = 0; j < {0}; ++j) value[j] = {1};",
         k_.vector, start);
    if (!k_.maximum && !k_.counts_pads) line(1, "int taps = 0;");
  }

  void walk() {
    const bool small = product(k_.window) <= kMostUnrolled;
    std::string at = "x";
    for (size_t k = 0; k < spatial_; ++k) {
      out_ += small               ? "#pragma unroll\n"
              : k + 1 == spatial_ ? "#pragma unroll 4\n"
                                  : "#pragma unroll 1\n";
      line(k + 1, "for (int w{0} = 0; w{0} < {1}; ++w{0}) {{", k, k_.window[k]);
      line(k + 2,
           "const Index at{0} = first{0} + w{0} * a.dilation[{0}];\n{1}if (at{0} < 0 || at{0} >= "
           "a.in[{0}]) continue;",
           k, std::string(k * 2 + 4, ' '));
      at += fmt::format(" + at{} * a.x_stride[{}]", k, k + 2);
    }
    const size_t in = spatial_ + 1;
    line(in, "const Element e = *(const Element*)({});", at);
    out_ += "#pragma unroll\n";
    line(in, "for (int j = 0; j < {}; ++j) value[j] = {};", k_.vector,
         k_.maximum ? "larger(value[j], widened(e.v[j]))" : "value[j] + widened(e.v[j])");
    if (!k_.maximum && !k_.counts_pads) line(in, "++taps;");
    for (size_t k = spatial_; k-- > 0;) line(k + 1, "}}");
  }

  void store() {
    std::string result = "value[j]";
    if (k_.counts_pads) {
      line(1, "float count = 1.0f;");
      for (size_t k = 0; k < spatial_; ++k) {
        line(1, "const Index room{0} = a.in[{0}] + a.end[{0}] - first{0};", k);
        line(1,
             "count *= room{0} <= 0 ? 0.0f : (float)min((Index){1}, (room{0} + a.dilation[{0}] - "
             "1) / a.dilation[{0}]);",
             k, k_.window[k]);
      }
      result = "value[j] / count";
    } else if (!k_.maximum) {
      result = "value[j] / (float)taps";
    }
    line(1,
         "Element result;\n#pragma unroll\n  for (int j = 0; j < {}; ++j) result.v[j] = "
         "narrowed({});",
         k_.vector, result);
    line(1, "*(Element*)y = result;");
  }

  const CudaPoolKernel& k_;
  const size_t spatial_;
  std::string out_;
};

}  // namespace

std::string cuda_pool_source(const CudaPoolKernel& kernel, std::string_view entry,
                             std::string_view comment) {
  return PoolSource(kernel).text(entry, comment);
}

std::string cuda_pool_arguments(const CudaPoolKernel& k, const CudaPoolGeometry& g, const void* x,
                                void* y) {
  CudaArguments out(k.wide_index);
  out.pointer(x);
  out.pointer(y);
  out.index(g.packs(k));
  out.index(g.out[1] / k.vector);
  for (const auto* dims : {&g.in, &g.out})
    for (size_t d = 2; d < dims->size(); ++d) out.index((*dims)[d]);
  for (const auto* list : {&g.strides, &g.dilations, &g.begin, &g.end, &g.x, &g.y})
    for (int64_t v : *list) out.index(v);
  return out.take();
}

}  // namespace ferrule
