#include "codegen/cuda/resize.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include "codegen/cuda/text.h"
#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// More taps than these are a loop.
constexpr int kMostUnrolledTaps = 4;

CudaResizeKernel::Axis table_of(const ResizeAxis& a, const Resampling& r) {
  CudaResizeKernel::Axis t;
  if (r.keeps(a)) return t;
  std::vector<std::vector<ResizeTap>> all;
  for (int64_t k = 0; k < a.out; ++k) {
    all.push_back(resize_taps(a, r, k));
    t.taps = std::max(t.taps, static_cast<int>(all.back().size()));
  }
  t.taps = std::max(t.taps, 1);
  bool ones = t.taps == 1;
  for (auto& taps : all) {
    // One more with no weight: the kernel passes over it.
    taps.resize(t.taps, {taps.empty() ? 0 : taps.back().at, 0});
    for (const ResizeTap& tap : taps)
      t.at.push_back(tap.at), t.weights.push_back(static_cast<float>(tap.weight)),
          ones = ones && tap.weight == 1;
  }
  if (ones) t.weights.clear();
  return t;
}

/// Elements a thread: whole packs of at most 16 bytes along the last axis, everywhere.
int whole_pack(const CudaResizeKernel& k, const CudaResizeGeometry& g) {
  if (k.axes.back().taps || g.x.back() != 1 || g.y.back() != 1) return 1;
  int v = 128 / size_bits(k.type);
  auto whole = [&] {
    for (size_t d = 0; d + 1 < g.sizes.size(); ++d)
      if (g.x[d] % v != 0 || g.y[d] % v != 0) return false;
    return g.sizes.back() % v == 0;
  };
  while (v > 1 && !whole()) v /= 2;
  return v;
}

}  // namespace

bool CudaResizeKernel::copies() const {
  return std::ranges::all_of(axes, [](const Axis& a) { return a.weights.empty(); });
}

int64_t CudaResizeGeometry::packs(const CudaResizeKernel& kernel) const {
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies<>()) /
         kernel.vector;
}

Applicable<CudaResizePlan> plan_cuda_resize(const Resampling& r, std::span<const ResizeAxis> axes,
                                            DType type, const RowLayout& x, const RowLayout& y,
                                            bool aligned) {
  auto refuse = [](std::string_view why) { return not_applicable("CUDA kernel", "resize", why); };
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    return error(Code::unsupported_type, "CUDA kernel", name(type));
  if (x.dims.size() != axes.size() || y.dims.size() != axes.size()) return refuse("its axes");
  if (r.coordinates == "tf_crop_and_resize") return refuse("it crops");
  std::vector<size_t> order;
  int64_t most = 0;
  for (size_t k = 0; k < axes.size(); ++k) {
    if (axes[k].in != x.dims[k] || axes[k].out != y.dims[k]) return refuse("sizes that do not fit");
    if (x.dims[k] == 0 && y.dims[k] != 0) return refuse("an empty image");
    if (y.dims[k] != 1 || x.dims[k] != 1) order.push_back(k);
    most += std::max(x.dims[k] * x.strides[k], y.dims[k] * y.strides[k]);
  }
  std::ranges::stable_sort(order, [&](size_t a, size_t b) { return y.strides[a] > y.strides[b]; });
  if (order.empty()) order.push_back(0);
  CudaResizePlan plan;
  plan.kernel.type = type;
  for (size_t k : order) {
    plan.kernel.axes.push_back(table_of(axes[k], r));
    plan.geometry.sizes.push_back(y.dims[k]);
    plan.geometry.x.push_back(x.strides[k]);
    plan.geometry.y.push_back(y.strides[k]);
  }
  if (aligned) plan.kernel.vector = whole_pack(plan.kernel, plan.geometry);
  plan.kernel.wide_index = std::max(most, plan.geometry.packs(plan.kernel)) > kMostNarrowIndex;
  return plan;
}

namespace {

std::string table_text(const CudaResizeKernel::Axis& a, size_t k) {
  if (!a.taps || a.at.empty()) return {};
  std::string out = fmt::format("__device__ const int at{}[{}] = {{{}}};\n", k, a.at.size(),
                                fmt::join(a.at, ","));
  if (a.weights.empty()) return out;
  // By their bits: no number is rounded on its way.
  out += fmt::format("__device__ const u32 weight{}[{}] = {{", k, a.weights.size());
  for (float w : a.weights) out += fmt::format("{:#x},", std::bit_cast<uint32_t>(w));
  return out + "};\n";
}

/// The loops over the taps of every axis, around one addition.
std::string sum_text(const CudaResizeKernel& k) {
  std::string out, at = "x", weight, closing;
  for (size_t d = 0; d < k.axes.size(); ++d) {
    const auto& a = k.axes[d];
    if (!a.taps) continue;
    if (a.taps > 1) {
      out += fmt::format("#pragma unroll{}\n  for (int t{} = 0; t{} < {}; ++t{}) {{\n",
                         a.taps > kMostUnrolledTaps ? " 4" : "", d, d, a.taps, d);
      closing += "}";
    }
    const std::string tap =
        a.taps > 1 ? fmt::format("c{} * {} + t{}", d, a.taps, d) : fmt::format("c{}", d);
    at += fmt::format(" + at{}[{}] * a.x_stride[{}]", d, tap, d);
    if (a.weights.empty()) continue;
    out += fmt::format("  const float w{0} = {1}__uint_as_float(weight{0}[{2}]);\n", d,
                       weight.empty() ? "" : weight + " * ", tap);
    weight = fmt::format("w{}", d);
    if (a.taps > 1) out += fmt::format("  if ({} == 0.0f) continue;\n", weight);
  }
  out += fmt::format("  const Element e = *(const Element*)({});\n", at);
  if (k.copies()) return out + "  result = e;\n  " + closing + "\n";
  return out + fmt::format(
                   "#pragma unroll\n  for (int j = 0; j < {}; ++j) sum[j] = fmaf({}, "
                   "widened(e.v[j]), sum[j]);\n  {}\n",
                   k.vector, weight, closing);
}

}  // namespace

std::string cuda_resize_source(const CudaResizeKernel& k, std::string_view entry,
                               std::string_view comment) {
  std::string out = cuda_head(comment, fmt::format("resize, {}", name(k.type)), k.wide_index),
              from = "x", to = "x";
  if (k.type != DType::f32)
    from = fmt::format("{}_to_float(x)", name(k.type)), to = fmt::format("to_{}(x)", name(k.type));
  out += fmt::format(
      "typedef {} T;\ntypedef Pack<T, {}> Element;\n__device__ __forceinline__ float widened(T x) "
      "{{ return {}; }}\n"
      "__device__ __forceinline__ T narrowed(float x) {{ return {}; }}\n",
      cuda_storage(k.type), k.vector, from, to);
  const size_t rank = k.axes.size();
  for (size_t d = 0; d < rank; ++d) out += table_text(k.axes[d], d);
  out += fmt::format(R"(
struct Arguments {{
  const T* x;
  T* y;
  Index threads;
  Index size[{0}], x_stride[{0}], y_stride[{0}];
}};

extern "C" __global__ void __launch_bounds__({2}) {1}(const Arguments a) {{
  Index rest = (Index)blockIdx.x * {2} + threadIdx.x;
  if (rest >= a.threads) return;
  const T* x = a.x;
  T* y = a.y;
)",
                     rank, entry, k.threads);
  for (size_t d = rank; d-- > 0;) {
    const std::string size = d + 1 == rank && k.vector > 1
                                 ? fmt::format("(a.size[{}] / {})", d, k.vector)
                                 : fmt::format("a.size[{}]", d);
    out += d ? fmt::format("  const Index c{0} = rest % {1}{2};\n  rest /= {1};\n", d, size,
                           d + 1 == rank && k.vector > 1 ? fmt::format(" * {}", k.vector) : "")
             : fmt::format("  const Index c0 = rest{};\n",
                           rank == 1 && k.vector > 1 ? fmt::format(" * {}", k.vector) : "");
    if (!k.axes[d].taps) out += fmt::format("  x += c{0} * a.x_stride[{0}];\n", d);
    out += fmt::format("  y += c{0} * a.y_stride[{0}];\n", d);
  }
  out += "  Element result;\n";
  if (!k.copies())
    out += fmt::format(
        "  float sum[{0}];\n#pragma unroll\n  for (int j = 0; j < {0}; ++j) sum[j] = 0.0f;\n",
        k.vector);
  out += sum_text(k);
  if (!k.copies())
    out += fmt::format(
        "#pragma unroll\n  for (int j = 0; j < {}; ++j) result.v[j] = narrowed(sum[j]);\n",
        k.vector);
  return out + "  *(Element*)y = result;\n}\n";
}

std::string cuda_resize_arguments(const CudaResizeKernel& k, const CudaResizeGeometry& g,
                                  const void* x, void* y) {
  CudaArguments out(k.wide_index);
  out.pointer(x);
  out.pointer(y);
  out.index(g.packs(k));
  for (const auto* list : {&g.sizes, &g.x, &g.y})
    for (int64_t v : *list) out.index(v);
  return out.take();
}

}  // namespace ferrule
