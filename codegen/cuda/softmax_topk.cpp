#include "codegen/cuda/topk.h"

#include <algorithm>
#include <limits>

#include "codegen/cuda/text.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

constexpr int kMostThreads = 512;
/// Elements a thread at least has, where the row is long enough.
constexpr int64_t kLeastElements = 8;

int threads_for(int64_t length) {
  int threads = 32;
  while (threads < kMostThreads && length > threads * kLeastElements) threads *= 2;
  return threads;
}

}  // namespace

int64_t CudaTopKGeometry::blocks() const {
  int64_t n = count ? 1 : 0;
  for (const LoopAxis& a : rows) n *= a.size;
  return n;
}

Applicable<CudaTopKPlan> plan_cuda_topk(const SoftmaxTopK& s, DType type, const RowLayout& x,
                                        const RowLayout* values, const RowLayout* indices,
                                        std::string_view wanted) {
  auto refuse = [](std::string_view why) {
    return not_applicable("CUDA kernel", "softmax_topk", why);
  };
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    return error(Code::unsupported_type, "CUDA kernel", name(type));
  if (x.dims.empty()) return refuse("a scalar");
  CudaTopKPlan plan;
  CudaTopKGeometry& g = plan.geometry;
  g.length = x.dims.back(), g.count = s.k, g.x = x.strides.back();
  if (g.count < 0 || g.count > g.length)
    return refuse(fmt::format("the first {} of {}", g.count, g.length));
  if (g.length > std::numeric_limits<int32_t>::max())
    return refuse("a row of more than 2^31 elements");
  std::vector<int64_t> dims(x.dims.begin(), x.dims.end() - 1);
  std::vector<std::vector<int64_t>> strides;
  for (const RowLayout* l : {&x, values, indices}) {
    strides.emplace_back(dims.size(), 0);
    if (!l) continue;
    if (l->dims.size() != x.dims.size() || !std::equal(dims.begin(), dims.end(), l->dims.begin()))
      return refuse("sizes that do not fit");
    strides.back().assign(l->strides.begin(), l->strides.end() - 1);
  }
  if (values) g.values = values->strides.back();
  if (indices) g.indices = indices->strides.back();
  if (contains(dims, 0))
    g.rows = {{0, {0, 0, 0}}};
  else
    g.rows = collapse_axes(dims, strides, 0);
  if (g.rows.empty()) g.rows.push_back({1, {0, 0, 0}});
  int64_t most = g.blocks();
  for (size_t k = 0; k < 3; ++k)
    most = std::max(most, reach(g.rows, k) + std::max({g.x, g.values, g.indices}) * g.length);
  const int usual = threads_for(g.length);
  std::vector<CudaShape> shapes{{"threads", usual}};
  for (const int threads : {usual / 2, usual * 2})
    if (threads >= 32 && threads <= kMostThreads && threads <= g.length)
      shapes.push_back({"threads", threads});
  plan.shapes = {shapes, wanted};
  plan.kernel = {type,
                 s.form,
                 s.largest,
                 static_cast<int>(g.rows.size()),
                 plan.shapes.taken.threads,
                 most > kMostNarrowIndex};
  return plan;
}

namespace {

/// A primitive of one argument as the formulas' programs compute it everywhere.
std::string function_of(Prim op, std::string_view name) {
  ProgramBuilder b;
  b.output(b.op(op, DType::f32, {b.input(DType::f32)}));
  Program p = b.take();
  expand_transcendentals(p);
  return cuda_function(p, fmt::format("{}_of", name)) +
         fmt::format(
             "__device__ __forceinline__ float {0}(float x) {{ float y; {0}_of(x, y); return y; "
             "}}\n\n",
             name);
}

std::string head_text(const CudaTopKKernel& k) {
  std::string out = function_of(Prim::exp, "exponential");
  if (k.form != SoftmaxTopK::Form::softmax) out += function_of(Prim::log, "logarithm");
  std::string from = "x", to = "x";
  if (k.type != DType::f32)
    from = fmt::format("{}_to_float(x)", name(k.type)), to = fmt::format("to_{}(x)", name(k.type));
  out += fmt::format(
      "typedef {} T;\n__device__ __forceinline__ float widened(T x) {{ return {}; }}\n"
      "__device__ __forceinline__ T narrowed(float x) {{ return {}; }}\n",
      cuda_storage(k.type), from, to);
  // What is stored, from the distance to the maximum.
  std::string result = "narrowed(exponential(d) / sum)";
  if (k.form == SoftmaxTopK::Form::log_softmax) result = "narrowed(d - log_sum)";
  if (k.form == SoftmaxTopK::Form::log_of_softmax)
    result = fmt::format("narrowed(logarithm(widened({})))", result);
  out += fmt::format(
      "__device__ __forceinline__ T result_of(float d, float sum, float log_sum) {{ return {}; "
      "}}\n",
      result);
  out += fmt::format(R"(
// Larger: taken before. By value, then by index.
__device__ __forceinline__ u64 rank_of(T stored, u32 index) {{
  const float v = widened(stored) + 0.0f;  // no negative zero
  const u32 bits = __float_as_uint(v);
  u32 order = bits >> 31 ? ~bits : bits | 0x80000000u;
  if (v != v) order = 0xffffffffu;
  return (u64)({}order) << 32 | (u32)~index;
}}

struct Arguments {{
  const T* x;
  T* values;
  i64* indices;
  Index length, count, x_step, value_step, index_step;
  Index size[{}], x_stride[{}], value_stride[{}], index_stride[{}];
}};
)",
                     k.largest ? "" : "~", k.rank, k.rank, k.rank, k.rank);
  return out;
}

/// Over the block: warps by shuffles, then their results through shared memory; every thread has
/// the result.
std::string over_block(const CudaTopKKernel& k, std::string_view value, std::string_view shared,
                       std::string_view joined, std::string_view type) {
  auto lanes = [&](int from, int indent) {
    return fmt::format(
        "#pragma unroll\n{0}for (int lane = {1}; lane; lane /= 2) {{ const {2} other = "
        "__shfl_xor_sync(0xffffffffu, {3}, lane); {3} = {4}; }}\n",
        std::string(static_cast<size_t>(indent) * 2, ' '), from, type, value, joined);
  };
  std::string out = lanes(16, 1);
  const int warps = k.threads / 32;
  if (warps == 1) return out;
  out += fmt::format(
      "  if (threadIdx.x % 32 == 0) {0}[threadIdx.x / 32] = {1};\n  __syncthreads();\n  {1} = "
      "{0}[threadIdx.x % {2}];\n",
      shared, value, warps);
  out += lanes(warps / 2, 1);
  return out + "  __syncthreads();  // before it is written again\n";
}

}  // namespace

std::string cuda_topk_source(const CudaTopKKernel& k, std::string_view entry,
                             std::string_view comment) {
  const std::string_view form = k.form == SoftmaxTopK::Form::softmax       ? "softmax"
                                : k.form == SoftmaxTopK::Form::log_softmax ? "log softmax"
                                                                           : "log of softmax";
  std::string out = cuda_head(
      comment,
      fmt::format("{} selected of {}, {}", k.largest ? "largest" : "smallest", form, name(k.type)),
      k.wide_index);
  out += head_text(k);
  out +=
      fmt::format("\nextern \"C\" __global__ void __launch_bounds__({}) {}(const Arguments a) {{\n",
                  k.threads, entry);
  if (k.threads > 32)
    out += fmt::format("  __shared__ float partial[{0}];\n  __shared__ u64 ranks[{0}];\n",
                       k.threads / 32);
  out +=
      "  const T* x = a.x;\n  T* values = a.values;\n  i64* indices = a.indices;\n  Index row = "
      "blockIdx.x;\n";
  for (int d = k.rank - 1; d >= 0; --d) {
    out += d ? fmt::format("  {{ const Index c = row % a.size[{0}]; row /= a.size[{0}];", d)
             : std::string("  { const Index c = row;");
    out += fmt::format(
        " x += c * a.x_stride[{0}]; values += c * a.value_stride[{0}]; indices += c * "
        "a.index_stride[{0}]; }}\n",
        d);
  }
  out += fmt::format(
      "  float most = -__uint_as_float(0x7f800000u);\n"
      "  for (Index i = threadIdx.x; i < a.length; i += {}) most = larger(most, widened(x[i * "
      "a.x_step]));\n",
      k.threads);
  out += over_block(k, "most", "partial", "larger(most, other)", "float");
  out += fmt::format(
      "  float sum = 0.0f;\n"
      "  for (Index i = threadIdx.x; i < a.length; i += {}) sum += exponential(widened(x[i * "
      "a.x_step]) - most);\n",
      k.threads);
  out += over_block(k, "sum", "partial", "sum + other", "float");
  out += k.form == SoftmaxTopK::Form::log_softmax ? "  const float log_sum = logarithm(sum);\n"
                                                  : "  const float log_sum = 0.0f;\n";
  // No rank of an element is 0: indices are below 2^31.
  out += R"(  u64 last = ~(u64)0, mine = 0;
  bool look = true;
  for (Index n = 0; n < a.count; ++n) {
    if (look) {  // the best of one's own behind the last one that was taken
      mine = 0;
)";
  out += fmt::format("      for (Index i = threadIdx.x; i < a.length; i += {}) {{\n", k.threads);
  out +=
      R"(        const u64 r = rank_of(result_of(widened(x[i * a.x_step]) - most, sum, log_sum), (u32)i);
        if (r > mine && (n == 0 || r < last)) mine = r;
      }
    }
    u64 best = mine;
)";
  out += over_block(k, "best", "ranks", "other > best ? other : best", "u64");
  out += R"(    last = best;
    look = best == mine;
    if (look) {
      const u32 index = ~(u32)best;
      if (a.values) values[n * a.value_step] = result_of(widened(x[index * a.x_step]) - most, sum, log_sum);
      if (a.indices) indices[n * a.index_step] = index;
    }
  }
}
)";
  return out;
}

std::string cuda_topk_arguments(const CudaTopKKernel& k, const CudaTopKGeometry& g, const void* x,
                                void* values, void* indices) {
  CudaArguments out(k.wide_index);
  out.pointer(x);
  out.pointer(values);
  out.pointer(indices);
  for (int64_t v : {g.length, g.count, g.x, g.values, g.indices}) out.index(v);
  for (const LoopAxis& a : g.rows) out.index(a.size);
  for (size_t s = 0; s < 3; ++s)
    for (const LoopAxis& a : g.rows) out.index(a.strides[s]);
  return out.take();
}

}  // namespace ferrule
