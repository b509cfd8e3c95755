#include "codegen/cuda/pointwise.h"

#include <algorithm>
#include <cstdlib>

#include "codegen/cuda/text.h"
#include "codegen/program/loop.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/polynomials.h"

namespace ferrule {
namespace {

bool has_strides(CudaAccess a) { return a != CudaAccess::linear && a != CudaAccess::uniform; }

/// The statements of one thread.
class Elements {
 public:
  Elements(const CudaKernel& k, const Program& p, std::string_view function,
           std::string_view geometry)
      : k_(k), p_(p), function_(function), geometry_(geometry) {}

  std::string text(std::span<const std::string> pointers) {
    out_ += fmt::format("  if (i >= {}.n) return;\n", geometry_);
    if (k_.packs == 1) {
      one(pointers);
      return std::move(out_);
    }
    out_ += "  const Index first_i = i;\n";
    for (size_t k = 0; k < inputs(); ++k)
      if (read_ahead(k))
        out_ += fmt::format("  {} w{}[{}];\n",
                            moves(k) ? pack(k) : std::string(cuda_storage(type(k))), k, k_.packs);
    each_pack();
    out_ += fmt::format("  if (i + {} > {}.n) continue;\n", k_.vector, geometry_);
    places(pointers, inputs());
    for (size_t k = 0; k < inputs(); ++k)
      if (read_ahead(k))
        out_ += fmt::format("  w{0}[p] = *(const {1}*)q{0};\n", k,
                            moves(k) ? pack(k) : std::string(cuda_storage(type(k))));
    out_ += "  }\n";
    each_pack();
    out_ += fmt::format("  if (i >= {}.n) return;\n", geometry_);
    one(pointers);
    out_ += "  }\n";
    return std::move(out_);
  }

 private:
  /// Opens the loop over a thread's packs; they lie as many packs apart as a block has threads.
  void each_pack() {
    out_ += fmt::format(
        "#pragma unroll\n  for (int p = 0; p < {}; ++p) {{\n  const Index i = first_i + p * {};\n",
        k_.packs, k_.threads * k_.vector);
  }
  /// Where the first `count` operands' elements are.
  void places(std::span<const std::string> pointers, size_t count) {
    coordinates();
    for (size_t k = 0; k < count; ++k)
      out_ +=
          fmt::format("  {0}{1}* const q{2} = ({0}{1}*){3} + {4};\n", k < inputs() ? "const " : "",
                      cuda_storage(type(k)), k, pointers[k], offset(k));
  }

  void one(std::span<const std::string> pointers) {
    places(pointers, operands());
    if (k_.vector == 1) {
      if (k_.packs == 1)
        single("  ", "0", "0");
      else
        vector("  ");
    } else {
      bool ragged = strided() == 0;  // else the innermost axis is a multiple of the vector
      std::string indent = ragged ? "    " : "  ";
      if (ragged) out_ += fmt::format("  if (i + {} <= {}.n) {{\n", k_.vector, geometry_);
      vector(indent);
      if (ragged) {
        out_ +=
            fmt::format("  }} else {{\n    for (Index j = 0; j < {}.n - i; ++j) {{\n", geometry_);
        single("      ", "j", "j");
        out_ += "    }\n  }\n";
      }
    }
  }

  size_t inputs() const { return p_.inputs.size(); }
  size_t operands() const { return k_.access.size(); }
  DType type(size_t k) const { return p_.operand_type(k); }
  size_t strided() const { return strided_operands(k_); }

  /// i as one index an axis, innermost last.
  void coordinates() {
    if (!strided()) return;
    out_ += "  Index rest = i;\n";
    for (int d = k_.rank - 1; d > 0; --d)
      out_ += fmt::format("  const Index c{0} = rest % {1}.size[{0}];\n  rest /= {1}.size[{0}];\n",
                          d, geometry_);
    out_ += "  const Index c0 = rest;\n";
  }

  std::string offset(size_t k) const {
    if (k_.access[k] == CudaAccess::linear) return "i";
    if (k_.access[k] == CudaAccess::uniform) return "0";
    auto row = std::count_if(k_.access.begin(), k_.access.begin() + k, has_strides);
    std::string text;
    for (int d = 0; d < k_.rank; ++d) {
      bool inner = d == k_.rank - 1;
      if (inner && k_.access[k] == CudaAccess::row_uniform) break;
      text += text.empty() ? "" : " + ";
      text += inner && k_.access[k] == CudaAccess::rows
                  ? fmt::format("c{}", d)
                  : fmt::format("c{0} * {2}.stride[{1}][{0}]", d, row, geometry_);
    }
    return text.empty() ? "0" : "(" + text + ")";
  }

  bool moves(size_t k) const {
    return k_.access[k] == CudaAccess::linear || k_.access[k] == CudaAccess::rows;
  }
  std::string step(size_t k, const std::string& j) const {
    if (moves(k)) return j;
    if (k_.access[k] != CudaAccess::strided) return "0";
    auto row = std::count_if(k_.access.begin(), k_.access.begin() + k, has_strides);
    return fmt::format("{} * {}.stride[{}][{}]", j, geometry_, row, k_.rank - 1);
  }

  /// `as_value`: an expression of the storage type as the element function wants it.
  std::string as_value(size_t k, const std::string& x) const {
    return type(k) == DType::boolean ? x + " != 0" : x;
  }

  void single(const std::string& indent, const std::string& in_at, const std::string& out_at) {
    out_ += fmt::format("{}{}(", indent, function_);
    for (size_t k = 0; k < operands(); ++k) {
      std::string at = fmt::format("q{}[{}]", k, step(k, k < inputs() ? in_at : out_at));
      out_ += (k ? ", " : "") + (k < inputs() ? as_value(k, at) : at);
    }
    out_ += ");\n";
  }

  std::string pack(size_t k) const {
    return fmt::format("Pack<{}, {}>", cuda_storage(type(k)), k_.vector);
  }
  /// Of several packs: read before the first is computed. What is one element for all comes from
  /// the cache.
  bool read_ahead(size_t k) const {
    return k_.packs > 1 && k < inputs() && k_.access[k] != CudaAccess::uniform;
  }

  /// Strided operands are not among these where a pack is more than an element (vector_of).
  void vector(const std::string& indent) {
    for (size_t k = 0; k < operands(); ++k) {
      if (k >= inputs())
        out_ += fmt::format("{}{} w{};\n", indent, pack(k), k);
      else if (read_ahead(k))
        continue;
      else if (moves(k))
        out_ += fmt::format("{0}const {1} w{2} = *(const {1}*)q{2};\n", indent, pack(k), k);
      else
        out_ += fmt::format("{}const {} w{} = q{}[0];\n", indent, cuda_storage(type(k)), k, k);
    }
    out_ += fmt::format("#pragma unroll\n{0}for (int j = 0; j < {1}; ++j)\n{0}  {2}(", indent,
                        k_.vector, function_);
    for (size_t k = 0; k < operands(); ++k) {
      const std::string x = fmt::format("w{}{}{}", k, read_ahead(k) ? "[p]" : "",
                                        k >= inputs() || moves(k) ? ".v[j]" : "");
      out_ += (k ? ", " : "") + (k < inputs() ? as_value(k, x) : x);
    }
    out_ += ");\n";
    for (size_t k = inputs(); k < operands(); ++k)
      out_ += fmt::format("{0}*({1}*)q{2} = w{2};\n", indent, pack(k), k);
  }

  const CudaKernel& k_;
  const Program& p_;
  const std::string_view function_, geometry_;
  std::string out_;
};

CudaAccess access_of(const std::vector<LoopAxis>& axes, size_t k) {
  bool linear = true, uniform = true, outer_uniform = true;
  int64_t expected = 1;
  for (size_t d = axes.size(); d-- > 0;) {
    int64_t s = axes[d].strides[k];
    linear = linear && s == expected;
    uniform = uniform && s == 0;
    if (d + 1 < axes.size()) outer_uniform = outer_uniform && s == 0;
    expected *= axes[d].size;
  }
  if (linear) return CudaAccess::linear;
  if (uniform) return CudaAccess::uniform;
  int64_t inner = axes.back().strides[k];
  return inner == 1 ? CudaAccess::rows : inner == 0 ? CudaAccess::row_uniform : CudaAccess::strided;
}

/// Elements that 16 bytes of the widest moving operand hold, where every neighbouring access can be
/// whole.
int vector_of(const Program& p, const std::vector<LoopAxis>& axes,
              const std::vector<CudaAccess>& access, std::span<const int64_t> offsets) {
  constexpr int kMostElements = 8;
  int64_t widest = 1;
  bool ragged = std::ranges::none_of(access, has_strides);
  for (size_t k = 0; k < access.size(); ++k) {
    if (access[k] == CudaAccess::linear || access[k] == CudaAccess::rows)
      widest = std::max(widest, size_bytes(p.operand_type(k), 1));
    if (access[k] == CudaAccess::strided) return 1;
  }
  int v = std::min<int>(kMostElements, static_cast<int>(16 / widest));
  auto fits = [&] {
    for (size_t k = 0; k < offsets.size(); ++k)
      if ((access[k] == CudaAccess::linear || access[k] == CudaAccess::rows) && offsets[k] % v)
        return false;
    if (ragged) return true;
    if (axes.back().size % v) return false;
    for (size_t k = 0; k < access.size(); ++k)
      for (size_t d = 0; access[k] == CudaAccess::rows && d + 1 < axes.size(); ++d)
        if (axes[d].strides[k] % v) return false;
    return true;
  };
  while (v > 1 && !fits()) v /= 2;
  return v;
}

}  // namespace

size_t strided_operands(const CudaKernel& k) {
  return static_cast<size_t>(std::ranges::count_if(k.access, has_strides));
}

int64_t pack_bytes(const CudaKernel& k) {
  int64_t bytes = 0;
  for (size_t o = 0; o < k.access.size(); ++o) {
    const bool moves = k.access[o] == CudaAccess::linear || k.access[o] == CudaAccess::rows;
    if (k.access[o] != CudaAccess::uniform)
      bytes += size_bytes(k.program.operand_type(o), moves ? k.vector : 1);
  }
  return bytes;
}

Applicable<CudaPlan> plan_cuda(const Program& program, std::span<const int64_t> dims,
                               std::span<const std::vector<int64_t>> strides, bool aligned,
                               std::span<const int64_t> offsets) {
  FERRULE_TRY(check_cuda_types(program));
  FERRULE_ASSERT(strides.size() == program.inputs.size() + program.outputs.size(),
                 "operands of a CUDA kernel");
  CudaPlan plan;
  plan.kernel.program = program;
  std::vector<LoopAxis> axes = collapse_axes(dims, strides, program.inputs.size());
  if (axes.empty()) axes.push_back({1, std::vector<int64_t>(strides.size(), 1)});
  if (axes.size() > kMaxCudaRank)
    return not_applicable("", "a generated kernel",
                          fmt::format("{} axes are not one walk through memory", axes.size()));
  plan.kernel.rank = static_cast<int>(axes.size());
  plan.geometry.elements = 1;
  int64_t farthest = 0;
  for (const LoopAxis& a : axes) {
    plan.geometry.sizes.push_back(a.size);
    plan.geometry.elements *= a.size;
  }
  for (size_t k = 0; k < strides.size(); ++k) {
    plan.kernel.access.push_back(access_of(axes, k));
    farthest = std::max(farthest, reach(axes, k) + (offsets.empty() ? 0 : std::abs(offsets[k])));
    if (!has_strides(plan.kernel.access.back())) continue;
    auto& row = plan.geometry.strides.emplace_back();
    for (const LoopAxis& a : axes) row.push_back(a.strides[k]);
  }
  plan.kernel.wide_index = std::max(farthest, plan.geometry.elements) > kMostNarrowIndex;
  plan.kernel.vector = aligned ? vector_of(program, axes, plan.kernel.access, offsets) : 1;
  return plan;
}

Result<std::string> cuda_source(const CudaKernel& kernel, std::string_view entry,
                                std::string_view comment) {
  FERRULE_TRY(verify(kernel.program));
  FERRULE_TRY(check_cuda_types(kernel.program));
  Program p = kernel.program;
  expand_transcendentals(p);
  Program unnamed = p;
  unnamed.input_names.clear();
  const size_t operands = kernel.access.size(), strided = strided_operands(kernel);
  std::string out =
      cuda_head(comment, to_text(unnamed), kernel.wide_index) + cuda_function(p, "element");
  out += fmt::format("struct Arguments {{\n  void* p[{}];\n  Index n;\n", operands);
  if (strided)
    out += fmt::format("  Index size[{0}];\n  Index stride[{1}][{0}];\n", kernel.rank, strided);
  out += fmt::format(
      "}};\n\nextern \"C\" __global__ void __launch_bounds__({}) {}(const Arguments a) {{\n",
      kernel.threads, entry);
  out += fmt::format("  const Index i = ((Index)blockIdx.x * {} + threadIdx.x) * {};\n",
                     kernel.threads * kernel.packs, kernel.vector);
  std::vector<std::string> pointers;
  for (size_t k = 0; k < operands; ++k) pointers.push_back(fmt::format("a.p[{}]", k));
  return out + cuda_elements(kernel, p, "element", "a", pointers) + "}\n";
}

std::string cuda_elements(const CudaKernel& kernel, const Program& program,
                          std::string_view function, std::string_view geometry,
                          std::span<const std::string> pointers) {
  return Elements(kernel, program, function, geometry).text(pointers);
}

std::string cuda_arguments(const CudaKernel& kernel, const CudaGeometry& geometry,
                           std::span<void* const> pointers) {
  CudaArguments out(kernel.wide_index);
  for (const void* p : pointers) out.pointer(p);
  out.index(geometry.elements);
  if (!geometry.strides.empty())
    for (int64_t s : geometry.sizes) out.index(s);
  for (const auto& row : geometry.strides)
    for (int64_t s : row) out.index(s);
  return out.take();
}

}  // namespace ferrule
