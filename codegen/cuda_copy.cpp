#include "codegen/cuda_copy.h"

#include <algorithm>

#include "codegen/cuda_text.h"
#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

std::string element(int bytes) { return fmt::format("u{}", bytes * 8); }

}  // namespace

// --- transposes -------------------------------------------------------------------------------------

int64_t CudaTransposeGeometry::blocks() const {
  int64_t n = tiles(source) * tiles(result);
  for (const LoopAxis& a : others) n *= a.size;
  return n;
}

std::optional<CudaTransposePlan> plan_cuda_transpose(std::span<const int64_t> dims, const std::vector<int64_t>& source,
                                                     const std::vector<int64_t>& result, int element_bytes) {
  const std::vector<std::vector<int64_t>> strides{source, result};
  std::vector<LoopAxis> axes = collapse_axes(dims, strides, 1);
  auto contiguous = [&](size_t operand) {
    return std::ranges::find_if(axes, [&](const LoopAxis& a) { return a.strides[operand] == 1; });
  };
  const auto s = contiguous(0), r = contiguous(1);
  if (s == axes.end() || r == axes.end() || s == r) return std::nullopt;
  CudaTransposePlan plan;
  plan.geometry.source = *s, plan.geometry.result = *r;
  for (const LoopAxis& a : axes)
    if (&a != &*s && &a != &*r) plan.geometry.others.push_back(a);
  plan.kernel = {element_bytes, static_cast<int>(plan.geometry.others.size()), std::max({reach(axes, 0), reach(axes, 1), plan.geometry.blocks()}) > kMostNarrowIndex};
  return plan;
}

std::string cuda_transpose_source(const CudaTransposeKernel& k, std::string_view entry, std::string_view comment) {
  std::string out = cuda_head(comment, fmt::format("copy of {} bytes an element, turned", k.element_bytes), k.wide_index);
  const int others = std::max(k.rank, 1);
  out += fmt::format(R"(
struct Arguments {{
  const {0}* x;
  {0}* y;
  Index source_size, result_size, source_tiles, result_tiles;  // of the axes contiguous in x and in y
  Index x_step, y_step;                                        // of x along the result's axis, of y along the source's
  Index size[{1}], x_stride[{1}], y_stride[{1}];
}};

extern "C" __global__ void __launch_bounds__(256) {2}(const Arguments a) {{
  __shared__ {0} tile[32][33];  // a column more: neighbours of a column lie in different banks
  Index rest = blockIdx.x;
  const Index r = rest % a.result_tiles * 32; rest /= a.result_tiles;
  const Index s = rest % a.source_tiles * 32; rest /= a.source_tiles;
  const {0}* x = a.x;
  {0}* y = a.y;
)",
                     element(k.element_bytes), others, entry);
  for (int d = k.rank - 1; d >= 0; --d)
    out += d ? fmt::format("  {{ const Index c = rest % a.size[{0}]; rest /= a.size[{0}]; x += c * a.x_stride[{0}]; y += c * a.y_stride[{0}]; }}\n", d)
             : "  x += rest * a.x_stride[0]; y += rest * a.y_stride[0];\n";
  out += R"(#pragma unroll
  for (int j = 0; j < 32; j += 8) {
    const Index at_s = s + threadIdx.x, at_r = r + threadIdx.y + j;
    if (at_s < a.source_size && at_r < a.result_size) tile[threadIdx.y + j][threadIdx.x] = x[at_s + at_r * a.x_step];
  }
  __syncthreads();
#pragma unroll
  for (int j = 0; j < 32; j += 8) {
    const Index at_s = s + threadIdx.y + j, at_r = r + threadIdx.x;
    if (at_s < a.source_size && at_r < a.result_size) y[at_r + at_s * a.y_step] = tile[threadIdx.x][threadIdx.y + j];
  }
}
)";
  return out;
}

std::string cuda_transpose_arguments(const CudaTransposeKernel& k, const CudaTransposeGeometry& g, const void* source, void* result) {
  CudaArguments b(k.wide_index);
  b.pointer(source);
  b.pointer(result);
  for (int64_t v : {g.source.size, g.result.size, g.tiles(g.source), g.tiles(g.result), g.result.strides[0], g.source.strides[1]}) b.index(v);
  const LoopAxis none{1, {0, 0}};
  for (auto value : {+[](const LoopAxis& a) { return a.size; }, +[](const LoopAxis& a) { return a.strides[0]; }, +[](const LoopAxis& a) { return a.strides[1]; }}) {
    if (g.others.empty()) b.index(value(none));
    for (const LoopAxis& a : g.others) b.index(value(a));
  }
  return b.take();
}

// --- gathers ----------------------------------------------------------------------------------------

CudaGatherKernel plan_cuda_gather(const CudaGatherGeometry& g, int element_bytes, int index_bytes, bool aligned) {
  CudaGatherKernel k{element_bytes, index_bytes, 1, false};
  for (int v = aligned ? 16 / element_bytes : 1; v > 1; v /= 2)
    if (g.inner % v == 0) {
      k.vector = v;
      break;
    }
  k.wide_index = std::max(g.outer * g.axis * g.inner, g.outer * g.count * g.inner) > kMostNarrowIndex;
  return k;
}

std::string cuda_gather_source(const CudaGatherKernel& k, std::string_view entry, std::string_view comment) {
  return cuda_head(comment, fmt::format("gather of {} bytes an element", k.element_bytes), k.wide_index) + fmt::format(R"(
typedef Pack<{0}, {1}> Element;
struct Arguments {{
  const Element* x;
  const i{2}* index;
  Element* y;
  i32* fault;
  Index n, axis, count, inner;  // inner: packs
}};

extern "C" __global__ void __launch_bounds__(256) {3}(const Arguments a) {{
  const Index i = (Index)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  const Index s = i % a.inner, row = i / a.inner, k = row % a.count, o = row / a.count;
  i64 at = a.index[k];
  if (at < 0) at += a.axis;
  if (at < 0 || at >= a.axis) {{
    *a.fault = 1;
    if (a.axis == 0) return;
    at = 0;
  }}
  a.y[i] = a.x[(o * a.axis + (Index)at) * a.inner + s];
}}
)",
                                                                                                                       element(k.element_bytes), k.vector, k.index_bytes * 8, entry);
}

std::string cuda_gather_arguments(const CudaGatherKernel& k, const CudaGatherGeometry& g, const void* data, const void* index, void* result,
                                  void* fault) {
  CudaArguments b(k.wide_index);
  for (const void* p : {data, index, static_cast<const void*>(result), static_cast<const void*>(fault)}) b.pointer(p);
  for (int64_t v : {g.threads(k), g.axis, g.count, g.inner / k.vector}) b.index(v);
  return b.take();
}

}  // namespace ferrule
