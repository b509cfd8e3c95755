#include "codegen/cuda/attention.h"

#include <algorithm>
#include <bit>

#include "codegen/cuda/text.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

/// An operand under the products' axes.
struct Turned : RoleStrides {
  int64_t dim(size_t from_end) const { return dims[dims.size() - from_end]; }
  int64_t stride(size_t from_end) const { return strides[strides.size() - from_end]; }
};
Turned turned(const RoleTensor& role, const RowLayout& l) {
  return {role_strides(role, l.dims, l.strides)};
}

/// Strides along `dims`, 0 where the operand has one element for all; nothing where it does not
/// broadcast.
std::optional<std::vector<int64_t>> spread(const Turned& t, std::span<const int64_t> dims) {
  if (t.dims.size() > dims.size()) return std::nullopt;
  const size_t lead = dims.size() - t.dims.size();
  std::vector<int64_t> out(dims.size(), 0);
  for (size_t k = 0; k < t.dims.size(); ++k) {
    if (t.dims[k] != dims[lead + k] && t.dims[k] != 1) return std::nullopt;
    if (t.dims[k] != 1) out[lead + k] = t.strides[k];
  }
  return out;
}

int64_t farthest(std::span<const int64_t> dims, std::span<const int64_t> strides) {
  int64_t at = 0;
  for (size_t k = 0; k < dims.size(); ++k) at += std::max<int64_t>(0, dims[k] - 1) * strides[k];
  return at;
}

/// Rows of the four elements that are read at once begin at multiples of four.
bool whole_packs(const std::vector<int64_t>& strides, size_t inner) {
  for (size_t k = 0; k < strides.size(); ++k)
    if (k == inner ? strides[k] != 1 : strides[k] % 4 != 0) return false;
  return true;
}

/// Queries of a block. As many as its shared memory and registers hold: keys and values are read
/// once for all of them.
std::vector<CudaShape> shapes_of(int size, int width, int64_t queries) {
  constexpr int kKeys = CudaAttentionKernel::kKeys;
  constexpr int64_t kSharedBytes = 48 << 10;
  const int padded = (width + 31) / 32 * 32;
  std::vector<CudaShape> out{{"queries", size > 64 || width > 64 ? 32 : 64}};
  for (const int n : {16, 32, 64, 128}) {
    const int64_t floats = int64_t{size} * (n + 4) + std::max(size * (kKeys + 4), kKeys * padded) +
                           int64_t{kKeys} * (n + 4);
    const bool registers = n < 128 || width <= 64;
    if (floats * 4 <= kSharedBytes && registers && (n < 2 * queries || n == 16))
      out.push_back({"queries", n});
  }
  return out;
}

}  // namespace

int64_t CudaAttentionGeometry::blocks(const CudaAttentionKernel& kernel) const {
  int64_t n = query_blocks(kernel);
  for (int64_t b : batch) n *= b;
  return n;
}

Applicable<CudaAttentionPlan> plan_cuda_attention(const Attention& a, DType type,
                                                  const AttentionLayouts& l, bool aligned,
                                                  const Program* cap, std::string_view wanted) {
  auto refuse = [](std::string_view why) {
    return not_applicable("CUDA kernel", "attention", why);
  };
  const Turned q = turned(a.q, l.q), k = turned(a.k, l.k), v = turned(a.v, l.v),
               y = turned(a.y, l.y);
  CudaAttentionPlan plan;
  CudaAttentionKernel& kernel = plan.kernel;
  CudaAttentionGeometry& g = plan.geometry;
  g.queries = q.dim(2), g.keys = k.dim(1);
  g.scale = static_cast<float>(a.scale), g.after = static_cast<float>(a.after);
  g.fill = static_cast<float>(a.fill), g.v_scale = static_cast<float>(a.v_scale);
  g.batch.assign(y.dims.begin(), y.dims.end() - 2);
  if (q.dim(1) != k.dim(2) || v.dim(2) != g.keys || y.dim(2) != g.queries || y.dim(1) != v.dim(1))
    return refuse("sizes that do not fit");
  if (g.keys == 0) return refuse("no keys");
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16)
    return refuse(fmt::format("elements of {}", name(type)));
  if (std::max(q.dim(1), v.dim(1)) > kMostAttentionSize) return refuse("a head that is too large");
  auto along = [&](const Turned& t, int64_t rows, int64_t columns) {
    std::vector<int64_t> dims = g.batch;
    dims.insert(dims.end(), {rows, columns});
    const auto strides = spread(t, dims);
    if (strides && farthest(dims, *strides) > kMostNarrowIndex) kernel.wide_index = true;
    return strides;
  };
  const auto qs = along(q, g.queries, q.dim(1)), ks = along(k, k.dim(2), g.keys),
             vs = along(v, g.keys, v.dim(1)), ys = along(y, g.queries, y.dim(1));
  std::optional<std::vector<int64_t>> ms = std::vector<int64_t>{}, keeps = ms;
  if (l.mask) ms = along(turned(*a.mask, *l.mask), g.queries, g.keys);
  if (l.keep) keeps = along(turned(*a.keep, *l.keep), g.queries, g.keys);
  if (!qs || !ks || !vs || !ys || !ms || !keeps) return refuse("sizes that do not broadcast");
  g.q = *qs, g.k = *ks, g.v = *vs, g.y = *ys, g.mask = *ms, g.keep = *keeps;
  kernel.type = type;
  kernel.size = static_cast<int>(q.dim(1)), kernel.width = static_cast<int>(v.dim(1));
  kernel.batch_rank = static_cast<int>(g.batch.size());
  plan.shapes = {shapes_of(kernel.size, kernel.width, g.queries), wanted};
  kernel.queries = plan.shapes.taken.threads;
  kernel.masked = l.mask != nullptr, kernel.kept = l.keep != nullptr;
  kernel.fill_added = a.fill_added && l.keep;
  kernel.added_last = a.added_last;
  kernel.inverted = a.inverted;
  if (cap) expand_transcendentals(kernel.cap.emplace(*cap));
  kernel.zero_if_nan = a.zero_if_nan;
  kernel.zero_if_hidden = a.zero_if_hidden && l.keep;
  kernel.zero_if_masked = a.zero_if_masked && (l.mask || kernel.fill_added);
  kernel.wide_index = kernel.wide_index || g.blocks(kernel) > kMostNarrowIndex;
  kernel.q_along_size = q.stride(1) <= q.stride(2) || g.queries == 1;
  kernel.k_along_size = k.stride(2) <= k.stride(1) || g.keys == 1;
  kernel.v_along_width = v.stride(1) <= v.stride(2) || g.keys == 1;
  const size_t last = g.batch.size() + 1;
  if (aligned && kernel.size % 4 == 0 && kernel.width % 4 == 0 && whole_packs(g.q, last) &&
      whole_packs(g.k, last - 1) && whole_packs(g.v, last))
    kernel.vector = 4;
  return plan;
}

namespace {

class AttentionSource {
 public:
  explicit AttentionSource(const CudaAttentionKernel& k) : k_(k) {}

  std::string text(std::string_view entry, std::string_view comment) {
    out_ = cuda_head(
        comment, fmt::format("attention, heads of {} and {}, {}", k_.size, k_.width, name(k_.type)),
        k_.wide_index);
    out_ += conversions() + exponential();
    if (k_.cap) out_ += function(*k_.cap, "capped");
    arguments();
    // Two blocks a multiprocessor are few: without the number some compilers save registers until
    // they spill.
    line(0, "extern \"C\" __global__ void __launch_bounds__({}, 2) {}(const Arguments a) {{",
         k_.threads(), entry);
    tiles();
    position();
    load("q", "query", "size", k_.queries, k_.size, k_.q_along_size, "first", "a.queries");
    walk();
    store();
    line(0, "}}");
    return std::move(out_);
  }

 private:
  int padded_width() const { return (k_.width + 31) / 32 * 32; }
  int chunks() const {
    return padded_width() / 32;
  }  ///< of 4 columns that a thread has of the result
  int q_row() const { return k_.queries + 4; }  ///< four more: a row begins in another bank
  static constexpr int kKeyRow = CudaAttentionKernel::kKeys + 4;

  template <class... A>
  void line(int indent, fmt::format_string<A...> text, A&&... args) {
    out_ += std::string(static_cast<size_t>(indent) * 2, ' ') +
            fmt::format(text, std::forward<A>(args)...) + "\n";
  }

  std::string conversions() const {
    const std::string_view t = cuda_storage(k_.type);
    std::string from = "x", to = "x";
    if (k_.type != DType::f32)
      from = fmt::format("{}_to_float(x)", name(k_.type)),
      to = fmt::format("to_{}(x)", name(k_.type));
    return fmt::format(
        "typedef {0} T;\n__device__ __forceinline__ float widened(T x) {{ return {1}; }}\n"
        "__device__ __forceinline__ T narrowed(float x) {{ return {2}; }}\n",
        t, from, to);
  }

  /// The same exponential as everywhere.
  static std::string exponential() {
    ProgramBuilder b;
    b.output(b.op(Prim::exp, DType::f32, {b.input(DType::f32)}));
    Program p = b.take();
    expand_transcendentals(p);
    return function(p, "exponential");
  }
  static std::string function(const Program& p, std::string_view name) {
    return cuda_function(p, name) +
           fmt::format(
               "__device__ __forceinline__ float {0}(float x) {{ float y; {0}(x, y); "
               "return y; }}\n\n",
               name);
  }

  void arguments() {
    const int r = std::max(1, k_.batch_rank), all = k_.batch_rank + 2;
    line(0, "struct Arguments {{");
    line(1, "const T *q, *k, *v;\n  T* y;");
    if (k_.masked) line(1, "const T* mask;");
    if (k_.kept) line(1, "const unsigned char* keep;");
    line(1, "Index scale, after, fill, v_scale;  // the bits of floats");
    line(1, "Index queries, keys, query_blocks;\n  Index batch[{}];", r);
    line(1, "Index q_stride[{0}], k_stride[{0}], v_stride[{0}], y_stride[{0}]{1}{2};", all,
         k_.masked ? fmt::format(", mask_stride[{}]", all) : "",
         k_.kept ? fmt::format(", keep_stride[{}]", all) : "");
    line(0, "}};\n");
  }

  void tiles() {
    const int kv = std::max(k_.size * kKeyRow, CudaAttentionKernel::kKeys * padded_width());
    line(1, "__shared__ __align__(16) float q_tile[{}][{}];", k_.size, q_row());
    line(1, "__shared__ __align__(16) float kv_tile[{}];  // keys, then values", kv);
    line(1, "__shared__ __align__(16) float p_tile[{}][{}];", CudaAttentionKernel::kKeys, q_row());
    line(1, "const int tx = threadIdx.x % 8, ty = threadIdx.x / 8;");
    line(1,
         "const float infinity = __uint_as_float(0x7f800000u), scale = "
         "__int_as_float((int)a.scale), after = __int_as_float((int)a.after);");
    if (k_.kept) line(1, "const float fill = __int_as_float((int)a.fill);");
  }

  /// The block's queries, and where its part of each operand begins.
  void position() {
    line(1, "Index rest = blockIdx.x;");
    line(1, "const Index first = rest % a.query_blocks * {};\n  rest /= a.query_blocks;",
         k_.queries);
    for (const char* p : {"q", "k", "v"}) line(1, "const T* {0} = a.{0};", p);
    line(1, "T* y = a.y;");
    if (k_.masked) line(1, "const T* mask = a.mask;");
    if (k_.kept) line(1, "const unsigned char* keep = a.keep;");
    for (int d = k_.batch_rank - 1; d >= 0; --d) {
      line(1, "{{");
      if (d)
        line(2, "const Index c = rest % a.batch[{0}];\n    rest /= a.batch[{0}];", d);
      else
        line(2, "const Index c = rest;");
      for (const char* p : {"q", "k", "v", "y"}) line(2, "{0} += c * a.{0}_stride[{1}];", p, d);
      if (k_.masked) line(2, "mask += c * a.mask_stride[{}];", d);
      if (k_.kept) line(2, "keep += c * a.keep_stride[{}];", d);
      line(1, "}}");
    }
  }

  /// Rows of heads into shared memory: of queries and keys turned, of values as they are; 0 beyond
  /// the end.
  void load(const std::string& p, const std::string& row, const std::string& column, int rows,
            int columns, bool along, const std::string& first, const std::string& end) {
    const bool value = p == "v", key = p == "k";
    const int step = k_.vector, r = k_.batch_rank;
    const int wide = value ? padded_width() : columns;
    const std::string row_stride = fmt::format("a.{}_stride[{}]", p, key ? r + 1 : r),
                      column_stride = fmt::format("a.{}_stride[{}]", p, key ? r : r + 1);
    line(1, "for (int i = threadIdx.x; i < {}; i += {}) {{", rows * wide / step, k_.threads());
    if (along || step > 1)
      line(2, "const int {0} = i / {2}, {1} = i % {2}{3};", row, column, wide / step,
           step > 1 ? " * 4" : "");
    else
      line(2, "const int {0} = i % {2}, {1} = i / {2};", row, column, rows);
    auto place = [&](const std::string& c) {
      if (value) return fmt::format("kv_tile[{} * {} + {}]", row, wide, c);
      if (key) return fmt::format("kv_tile[({}) * {} + {}]", c, kKeyRow, row);
      return fmt::format("q_tile[{}][{}]", c, row);
    };
    const std::string inside = fmt::format("{} + {} < {}", first, row, end) +
                               (wide > columns ? fmt::format(" && {} < {}", column, columns) : "");
    if (step == 1) {
      line(2, "{} = {} ? widened({}[({} + {}) * {} + {} * {}]) : 0.0f;", place(column), inside, p,
           first, row, row_stride, column, column_stride);
    } else {
      line(
          2,
          "Pack<T, 4> w = {{}};\n    if ({}) w = *(const Pack<T, 4>*)({} + (({} + {}) * {} + {}));",
          inside, p, first, row, row_stride, column);
      line(2, "#pragma unroll\n    for (int j = 0; j < 4; ++j) {} = widened(w.v[j]);",
           place(column + " + j"));
    }
    line(1, "}}");
  }

  /// What is done to a score; those behind the last query or key are not looked at.
  std::string scores() const {
    const std::string at =
        fmt::format("[(first + ty * 4 + i) * a.{{0}}_stride[{}] + key * a.{{0}}_stride[{}]]",
                    k_.batch_rank, k_.batch_rank + 1);
    const std::string there = "      if (key < a.keys && first + ty * 4 + i < a.queries)\n        ";
    const std::string mask = "widened(mask" + fmt::format(fmt::runtime(at), "mask") + ")";
    const std::string kept = "keep" + fmt::format(fmt::runtime(at), "keep");
    std::string out, mask_added, added = k_.masked ? mask : "0.0f";
    if (k_.fill_added) added = fmt::format("{}{} ? {} : fill", k_.inverted ? "!" : "", kept, added);
    if (k_.masked || k_.fill_added)
      mask_added = fmt::format(
          "{}{{\n        const float m = {};\n        s[i][j] += m;\n{}      }}\n", there, added,
          k_.zero_if_masked ? "        open |= (m != -infinity) << i;\n" : "");
    if (k_.cap) out += "      s[i][j] = capped(s[i][j]);\n";
    if (!k_.added_last) out += mask_added;
    out += "      s[i][j] *= after;\n";
    if (k_.kept && !k_.fill_added)
      out += fmt::format("{}if ({}{}) s[i][j] = fill;\n", there, k_.inverted ? "" : "!", kept);
    if (k_.zero_if_hidden)
      out += fmt::format("{}if ({}{}) shown |= 1 << i; else hidden |= 1 << j;\n", there,
                         k_.inverted ? "!" : "", kept);
    if (k_.added_last) out += mask_added;
    return out;
  }

  void walk() {
    constexpr int kKeys = CudaAttentionKernel::kKeys;
    line(1, "float most[4], sum[4], o[4][{}][4];", chunks());
    line(1,
         "#pragma unroll\n  for (int i = 0; i < 4; ++i) {{\n    most[i] = -infinity;\n    sum[i] = "
         "0.0f;");
    line(2,
         "#pragma unroll\n    for (int c = 0; c < {}; ++c)\n#pragma unroll\n      for (int j = 0; "
         "j < 4; ++j) o[i][c][j] = 0.0f;\n  }}",
         chunks());
    if (k_.zero_if_masked)
      line(1, "int open = 0;  // bits of queries of which not all keys are masked");
    if (k_.zero_if_hidden)
      line(1, "int shown = 0;  // bits of queries of which not all keys are hidden");
    line(1, "for (Index at = 0; at < a.keys; at += {}) {{", kKeys);
    load("k", "key", "size", kKeys, k_.size, k_.k_along_size, "at", "a.keys");
    line(1, "__syncthreads();");
    out_ += fmt::format(
        R"(  float s[4][4];
#pragma unroll
  for (int i = 0; i < 4; ++i)
#pragma unroll
    for (int j = 0; j < 4; ++j) s[i][j] = 0.0f;
#pragma unroll 8
  for (int d = 0; d < {}; ++d) {{
    const Pack<float, 4> x = *(const Pack<float, 4>*)&q_tile[d][ty * 4], w = *(const Pack<float, 4>*)&kv_tile[d * {} + tx * 4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) s[i][j] = fmaf(x.v[i], w.v[j], s[i][j]);
  }}
  Pack<float, 4> p[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    float largest = -infinity;{}
#pragma unroll
    for (int j = 0; j < 4; ++j) {{
      const Index key = at + tx * 4 + j;
      s[i][j] *= scale;
{}      if (key < a.keys) largest = fmaxf(largest, s[i][j]);
    }}
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, lane));
    largest = fmaxf(largest, most[i]);
    const float base = largest == -infinity ? 0.0f : largest;  // all masked so far: no difference of infinities
    const float factor = exponential(most[i] - base);
    most[i] = largest;
    float part = 0.0f;
#pragma unroll
    for (int j = 0; j < 4; ++j) {{
      p[j].v[i] = at + tx * 4 + j < a.keys ? exponential(s[i][j] - base) : 0.0f;
      part += p[j].v[i];
{}    }}
#pragma unroll
    for (int lane = 1; lane < 8; lane *= 2) part += __shfl_xor_sync(0xffffffffu, part, lane);
    sum[i] = sum[i] * factor + part;
#pragma unroll
    for (int c = 0; c < {}; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][c][j] *= factor;
  }}
#pragma unroll
  for (int j = 0; j < 4; ++j) *(Pack<float, 4>*)&p_tile[tx * 4 + j][ty * 4] = p[j];
  __syncthreads();
)",
        k_.size, kKeyRow, k_.zero_if_hidden ? "\n    int hidden = 0;  // bits of keys" : "",
        scores(), k_.zero_if_hidden ? "      if (hidden >> j & 1) p[j].v[i] = 0.0f;\n" : "",
        chunks());
    load("v", "key", "width", kKeys, k_.width, k_.v_along_width, "at", "a.keys");
    out_ += fmt::format(R"(  __syncthreads();
#pragma unroll 4
  for (int key = 0; key < {}; ++key) {{
    const Pack<float, 4> x = *(const Pack<float, 4>*)&p_tile[key][ty * 4];
#pragma unroll
    for (int c = 0; c < {}; ++c) {{
      const Pack<float, 4> w = *(const Pack<float, 4>*)&kv_tile[key * {} + c * 32 + tx * 4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
#pragma unroll
        for (int j = 0; j < 4; ++j) o[i][c][j] = fmaf(x.v[i], w.v[j], o[i][c][j]);
    }}
  }}
  __syncthreads();
  }}
)",
                        kKeys, chunks(), padded_width());
  }

  /// Queries whose weights become 0: products are 0, but NaN with the values that are no numbers.
  /// Weights whose sum is 0 have been 0; else (scores that are NaN: rare) the products are made.
  void zero_products() {
    if (k_.zero_if_hidden)  // their weights are 0 already
      out_ += R"(#pragma unroll
  for (int lane = 1; lane < 8; lane *= 2) shown |= __shfl_xor_sync(0xffffffffu, shown, lane);
#pragma unroll
  for (int i = 0; i < 4; ++i)
    if (!(shown >> i & 1)) sum[i] = 1.0f;
)";
    if (!k_.zero_if_nan && !k_.zero_if_masked) return;
    if (k_.zero_if_masked)
      line(1,
           "#pragma unroll\n  for (int lane = 1; lane < 8; lane *= 2) open |= "
           "__shfl_xor_sync(0xffffffffu, open, lane);");
    out_ += fmt::format(R"(#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    if (first + ty * 4 + i >= a.queries || ({0} && {1})) continue;
    for (Index key = 0; sum[i] != 0.0f && key < a.keys; ++key)
#pragma unroll
      for (int c = 0; c < {2}; ++c)
#pragma unroll
        for (int j = 0; j < 4; ++j) {{
          const int width = c * 32 + tx * 4 + j;
          if (key == 0) o[i][c][j] = 0.0f;
          if (width < {3}) o[i][c][j] += 0.0f * widened(v[key * a.v_stride[{4}] + width * a.v_stride[{5}]]);
        }}
    sum[i] = 1.0f;
  }}
)",
                        k_.zero_if_nan ? "sum[i] > 0.0f" : "true",
                        k_.zero_if_masked ? "(open >> i & 1)" : "true", chunks(), k_.width,
                        k_.batch_rank, k_.batch_rank + 1);
  }

  void store() {
    zero_products();
    out_ += fmt::format(R"(#pragma unroll
  for (int i = 0; i < 4; ++i) {{
    const Index query = first + ty * 4 + i;
    if (query >= a.queries) break;
#pragma unroll
    for (int c = 0; c < {0}; ++c)
#pragma unroll
      for (int j = 0; j < 4; ++j) {{
        const int width = c * 32 + tx * 4 + j;
        if (width < {1}) y[query * a.y_stride[{2}] + width * a.y_stride[{3}]] = narrowed(o[i][c][j] / sum[i] * __int_as_float((int)a.v_scale));
      }}
  }}
)",
                        chunks(), k_.width, k_.batch_rank, k_.batch_rank + 1);
  }

  const CudaAttentionKernel& k_;
  std::string out_;
};

}  // namespace

std::string cuda_attention_source(const CudaAttentionKernel& kernel, std::string_view entry,
                                  std::string_view comment) {
  return AttentionSource(kernel).text(entry, comment);
}

std::string cuda_attention_arguments(const CudaAttentionKernel& k, const CudaAttentionGeometry& g,
                                     std::span<void* const> pointers) {
  CudaArguments out(k.wide_index);
  for (const void* p : pointers) out.pointer(p);
  for (const float f : {g.scale, g.after, g.fill, g.v_scale}) out.index(std::bit_cast<int32_t>(f));
  for (int64_t v : {g.queries, g.keys, g.query_blocks(k)}) out.index(v);
  if (g.batch.empty()) out.index(1);
  for (int64_t b : g.batch) out.index(b);
  for (const auto* strides : {&g.q, &g.k, &g.v, &g.y, &g.mask, &g.keep})
    for (int64_t s : *strides) out.index(s);
  return out.take();
}

}  // namespace ferrule
