#include "codegen/cuda/copy.h"

#include <algorithm>
#include <cstdlib>

#include "codegen/cuda/text.h"

namespace ferrule {
namespace {

std::string element(int bytes) { return fmt::format("u{}", bytes * 8); }

}  // namespace

// --- transposes

int64_t CudaTransposeGeometry::blocks(const CudaTransposeKernel& k) const {
  int64_t n = tiles(k, source) * tiles(k, result);
  for (const LoopAxis& a : others) n *= a.size;
  return n;
}

std::optional<CudaTransposePlan> plan_cuda_transpose(std::span<const int64_t> dims,
                                                     const std::vector<int64_t>& source,
                                                     const std::vector<int64_t>& result,
                                                     int element_bytes, std::string_view wanted) {
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
  CudaTransposeKernel& k = plan.kernel;
  k.element_bytes = element_bytes, k.rank = static_cast<int>(plan.geometry.others.size());
  k.wide_index =
      std::max({reach(axes, 0), reach(axes, 1), plan.geometry.blocks(k)}) > kMostNarrowIndex;
  std::vector<CudaShape> shapes{{"tile", 8, 32}};
  if (plan.geometry.blocks(k) > 1) shapes.insert(shapes.end(), {{"tile", 4, 32}, {"tile", 16, 32}});
  // Lines of short elements are longer than 32 of them.
  if (std::min(s->size, r->size) > 32)
    shapes.insert(shapes.end(), {{"tile", 8, 64}, {"tile", 16, 64}});
  plan.shapes = {shapes, wanted};
  k.tile = plan.shapes.taken.each, k.rows = plan.shapes.taken.threads;
  return plan;
}

std::string cuda_transpose_source(const CudaTransposeKernel& k, std::string_view entry,
                                  std::string_view comment) {
  std::string out = cuda_head(
      comment, fmt::format("copy of {} bytes an element, turned", k.element_bytes), k.wide_index);
  const int others = std::max(k.rank, 1);
  out += fmt::format(R"(
struct Arguments {{
  const {0}* x;
  {0}* y;
  Index source_size, result_size, source_tiles, result_tiles;  // of the axes contiguous in x and in y
  Index x_step, y_step;                                        // of x along the result's axis, of y along the source's
  Index size[{1}], x_stride[{1}], y_stride[{1}];
}};

extern "C" __global__ void __launch_bounds__({3}) {2}(const Arguments a) {{
  __shared__ {0} tile[{4}][{5}];  // a column more: neighbours of a column lie in different banks
  Index rest = blockIdx.x;
  const Index r = rest % a.result_tiles * {4}; rest /= a.result_tiles;
  const Index s = rest % a.source_tiles * {4}; rest /= a.source_tiles;
  const {0}* x = a.x;
  {0}* y = a.y;
)",
                     element(k.element_bytes), others, entry, CudaTransposeKernel::kWarp * k.rows,
                     k.tile, k.tile + 1);
  for (int d = k.rank - 1; d >= 0; --d)
    out += d ? fmt::format(
                   "  {{ const Index c = rest % a.size[{0}]; rest /= a.size[{0}]; x += c * "
                   "a.x_stride[{0}]; y += c * a.y_stride[{0}]; }}\n",
                   d)
             : "  x += rest * a.x_stride[0]; y += rest * a.y_stride[0];\n";
  const std::string loops =
      k.tile == 32
          ? fmt::format(
                "#pragma unroll\n  for (int j = 0; j < 32; j += {}) {{\n    const int i = 0;\n",
                k.rows)
          : fmt::format(
                "#pragma unroll\n  for (int j = 0; j < {0}; j += {1})\n#pragma unroll\n  for (int "
                "i = 0; i < {0}; i += 32) {{\n",
                k.tile, k.rows);
  return out + loops + R"(    const Index at_s = s + threadIdx.x + i, at_r = r + threadIdx.y + j;
    if (at_s < a.source_size && at_r < a.result_size) tile[threadIdx.y + j][threadIdx.x + i] = x[at_s + at_r * a.x_step];
  }
  __syncthreads();
)" + loops +
         R"(    const Index at_s = s + threadIdx.y + j, at_r = r + threadIdx.x + i;
    if (at_s < a.source_size && at_r < a.result_size) y[at_r + at_s * a.y_step] = tile[threadIdx.x + i][threadIdx.y + j];
  }
}
)";
}

std::string cuda_transpose_arguments(const CudaTransposeKernel& k, const CudaTransposeGeometry& g,
                                     const void* source, void* result) {
  CudaArguments b(k.wide_index);
  b.pointer(source);
  b.pointer(result);
  for (int64_t v : {g.source.size, g.result.size, g.tiles(k, g.source), g.tiles(k, g.result),
                    g.result.strides[0], g.source.strides[1]})
    b.index(v);
  const LoopAxis none{1, {0, 0}};
  for (auto value :
       {+[](const LoopAxis& a) { return a.size; }, +[](const LoopAxis& a) { return a.strides[0]; },
        +[](const LoopAxis& a) { return a.strides[1]; }}) {
    if (g.others.empty()) b.index(value(none));
    for (const LoopAxis& a : g.others) b.index(value(a));
  }
  return b.take();
}

// --- gathers

int64_t CudaGatherGeometry::elements() const {
  int64_t n = 1;
  for (const LoopAxis& a : axes) n *= a.size;
  return n;
}

CudaGatherPlan plan_cuda_gather(std::span<const int64_t> dims, const std::vector<int64_t>& data,
                                const std::vector<int64_t>& index,
                                const std::vector<int64_t>& result, int64_t size, int64_t step,
                                int element_bytes, int index_bytes, bool aligned) {
  const std::vector<std::vector<int64_t>> strides{data, index, result};
  CudaGatherPlan plan;
  CudaGatherGeometry& g = plan.geometry;
  g.size = size, g.step = step;
  g.axes = collapse_axes(dims, strides, 2);
  if (g.axes.empty()) g.axes.push_back({1, {0, 0, 1}});
  const LoopAxis& inner = g.axes.back();
  auto whole = [&](int v) {
    if (inner.strides != std::vector<int64_t>{1, 0, 1} || inner.size % v || step % v) return false;
    return std::ranges::all_of(g.axes, [&](const LoopAxis& a) {
      return &a == &inner || (a.strides[0] % v == 0 && a.strides[2] % v == 0);
    });
  };
  int v = aligned ? 16 / element_bytes : 1;
  while (v > 1 && !whole(v)) v /= 2;
  const int64_t farthest = std::max(
      {reach(g.axes, 0) + std::abs(step) * size, reach(g.axes, 1), reach(g.axes, 2), g.elements()});
  plan.kernel = {element_bytes,
                 index_bytes,
                 static_cast<int>(g.axes.size()),
                 v,
                 farthest > kMostNarrowIndex,
                 256};
  return plan;
}

std::string cuda_gather_source(const CudaGatherKernel& k, std::string_view entry,
                               std::string_view comment) {
  std::string out = cuda_head(
      comment, fmt::format("gather of {} bytes an element", k.element_bytes), k.wide_index);
  out +=
      fmt::format(R"(
typedef Pack<{0}, {1}> Element;
struct Fault {{ i32 set, unused; i64 index; }};
struct Arguments {{
  const {0}* x;
  const i{2}* index;
  {0}* y;
  Fault* fault;
  Index n, axis, step;
  Index size[{3}], x_stride[{3}], index_stride[{3}], y_stride[{3}];
}};

extern "C" __global__ void __launch_bounds__({5}) {4}(const Arguments a) {{
  Index rest = ((Index)blockIdx.x * blockDim.x + threadIdx.x) * {1};
  if (rest >= a.n) return;
  Index x = 0, k = 0, y = 0;
)",
                  element(k.element_bytes), k.vector, k.index_bytes * 8, k.rank, entry, k.threads);
  for (int d = k.rank - 1; d >= 0; --d) {
    out += d ? fmt::format("  {{ const Index c = rest % a.size[{0}]; rest /= a.size[{0}];", d)
             : std::string("  { const Index c = rest;");
    out += fmt::format(
        " x += c * a.x_stride[{0}]; k += c * a.index_stride[{0}]; y += c * a.y_stride[{0}]; }}\n",
        d);
  }
  return out + R"(  const i64 index = a.index[k];
  i64 at = index < 0 ? index + a.axis : index;
  if (at < 0 || at >= a.axis) {
    if (atomicCAS(&a.fault->set, 0, 1) == 0) a.fault->index = index;
    if (a.axis == 0) return;
    at = 0;
  }
  *(Element*)(a.y + y) = *(const Element*)(a.x + (x + (Index)at * a.step));
}
)";
}

std::string cuda_gather_arguments(const CudaGatherKernel& k, const CudaGatherGeometry& g,
                                  const void* data, const void* index, void* result, void* fault) {
  CudaArguments b(k.wide_index);
  for (const void* p :
       {data, index, static_cast<const void*>(result), static_cast<const void*>(fault)})
    b.pointer(p);
  for (int64_t v : {g.elements(), g.size, g.step}) b.index(v);
  for (const LoopAxis& a : g.axes) b.index(a.size);
  for (size_t operand = 0; operand < 3; ++operand)
    for (const LoopAxis& a : g.axes) b.index(a.strides[operand]);
  return b.take();
}

}  // namespace ferrule
