#include "codegen/cuda/region_pieces.h"

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <set>

#include "codegen/cuda/text.h"
#include "engine/contract/region_pieces.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/polynomials.h"

namespace ferrule {
namespace {

/// How much of a table's row the pieces need.
struct Row {
  size_t rank = 1, strided = 0, operands = 1;
};
Row row_of(const CudaPieces& plan) {
  Row out;
  for (const auto& f : plan.forms) {
    out.rank = std::max(out.rank, static_cast<size_t>(f.kernel.rank));
    out.strided = std::max(out.strided, strided_operands(f.kernel));
    out.operands = std::max(out.operands, f.kernel.access.size());
  }
  return out;
}

/// The numbers of a piece in the order of struct Piece.
std::vector<int64_t> numbers_of(const CudaPieces::Piece& p, const Row& row) {
  std::vector<int64_t> out{static_cast<int64_t>(p.form), p.first_block, p.geometry.elements};
  auto add = [&](const auto& from, size_t size) {
    for (size_t k = 0; k < size; ++k)
      out.push_back(k < from.size() ? static_cast<int64_t>(from[k]) : 0);
  };
  add(p.operands, row.operands);
  add(p.offsets, row.operands);
  if (!row.strided) return out;
  add(p.geometry.sizes, row.rank);
  for (size_t k = 0; k < row.strided; ++k)
    add(k < p.geometry.strides.size() ? p.geometry.strides[k] : std::vector<int64_t>{}, row.rank);
  return out;
}

std::string piece_struct(const Row& row) {
  std::string out =
      fmt::format("struct Piece {{\n  Index form, first, n;\n  Index operand[{0}], offset[{0}];\n",
                  row.operands);
  if (row.strided)
    out += fmt::format("  Index size[{1}];\n  Index stride[{0}][{1}];\n", row.strided, row.rank);
  return out + "};\n";
}

std::string table_text(const CudaPieces& plan, const Row& row) {
  std::string out = fmt::format("__device__ const Piece pieces[{}] = {{\n", plan.pieces.size());
  for (const auto& p : plan.pieces) {
    out += " ";
    for (int64_t n : numbers_of(p, row)) out += fmt::format(" {},", n);
    out += "\n";
  }
  return out + "};\n";
}

/// The last piece that begins at or before the block.
std::string search_text(const CudaPieces& plan, std::string_view table) {
  const size_t n = plan.pieces.size();
  std::string out = "  int at = 0;\n";
  for (size_t step = std::bit_floor(std::max<size_t>(n - 1, 1)); step > 0 && n > 1; step /= 2)
    out += fmt::format(
        "  if (at + {0} < {1} && (Index)blockIdx.x >= {2}[at + {0}].first) at += {0};\n", step, n,
        table);
  return out;
}

}  // namespace

Applicable<CudaPieces> plan_cuda_pieces(const LoweredRegion& region,
                                        std::span<const std::vector<int64_t>> strides, bool aligned,
                                        int cores, std::string_view wanted) {
  CudaPieces out;
  out.operands = strides.size();
  int64_t packs = 0, most_bytes = 0;
  for (const RegionPiece& p : region.pieces) {
    CudaPieces::Piece piece;
    std::vector<std::vector<int64_t>> own;
    for (const auto* list : {&p.inputs, &p.outputs})
      for (const PieceOperand& o : *list) {
        const size_t operand = o.operand + (list == &p.outputs ? region.inputs.size() : 0);
        PieceStrides s = piece_strides(o, strides[operand]);
        piece.operands.push_back(static_cast<uint32_t>(operand));
        piece.offsets.push_back(s.offset);
        own.push_back(std::move(s.strides));
      }
    FERRULE_ASSIGN(CudaPlan plan,
                   plan_cuda(region.programs[p.program], p.dims, own, aligned, piece.offsets));
    out.wide_index |= plan.kernel.wide_index;
    plan.kernel.wide_index = false;
    auto same = [&](const CudaPieces::Form& f) {
      return f.program == p.program && f.kernel.access == plan.kernel.access &&
             f.kernel.rank == plan.kernel.rank && f.kernel.vector == plan.kernel.vector;
    };
    const auto form = std::ranges::find_if(out.forms, same);
    piece.form = static_cast<size_t>(form - out.forms.begin());
    packs += plan.geometry.packs(plan.kernel);
    most_bytes = std::max(most_bytes, pack_bytes(plan.kernel));
    if (form == out.forms.end()) out.forms.push_back({p.program, std::move(plan.kernel)});
    piece.geometry = std::move(plan.geometry);
    out.pieces.push_back(std::move(piece));
  }
  if (out.pieces.empty()) return not_applicable("", "a region in pieces", "it has none");
  out.shapes = element_shapes(packs, most_bytes, cores, wanted);
  for (CudaPieces::Form& f : out.forms)
    f.kernel.threads = out.shapes.taken.threads, f.kernel.packs = out.shapes.taken.each;
  for (CudaPieces::Piece& p : out.pieces) {
    p.first_block = out.blocks;
    out.blocks += p.geometry.blocks(out.forms[p.form].kernel);
  }
  out.wide_index |=
      out.blocks > kMostNarrowIndex / (int64_t{out.shapes.taken.threads} * out.shapes.taken.each);
  const size_t row = numbers_of(out.pieces[0], row_of(out)).size() * (out.wide_index ? 8 : 4);
  out.table_in_source = out.operands * 8 + out.pieces.size() * row > kMostCudaArguments - 8;
  if (out.operands * 8 > kMostCudaArguments)
    return not_applicable("", "a region in pieces", fmt::format("{} operands", out.operands));
  return out;
}

Result<std::string> cuda_pieces_source(const CudaPieces& plan, std::string_view entry,
                                       std::string_view comment) {
  const Row row = row_of(plan);
  std::string listing, functions, forms;
  std::set<uint32_t> seen;
  for (size_t f = 0; f < plan.forms.size(); ++f) {
    const CudaPieces::Form& form = plan.forms[f];
    Program p = form.kernel.program;
    FERRULE_TRY(verify(p));
    const std::string element = fmt::format("element{}", form.program);
    expand_transcendentals(p);
    if (seen.insert(form.program).second) {
      Program unnamed = p;
      unnamed.input_names.clear();
      listing += fmt::format("program {}\n", form.program) + to_text(unnamed);
      functions += cuda_function(p, element);
    }
    std::vector<std::string> pointers;
    for (size_t k = 0; k < form.kernel.access.size(); ++k) {
      pointers.push_back(fmt::format("((char*)a.p[g.operand[{0}]] + (i64)g.offset[{0}] * {1})", k,
                                     std::max(1, size_bits(p.operand_type(k)) / 8)));
    }
    forms += fmt::format(
        "__device__ __forceinline__ void form{}(const Arguments& a, const Piece& g, Index block) "
        "{{\n",
        f);
    forms += fmt::format("  const Index i = (block * {} + threadIdx.x) * {};\n",
                         form.kernel.threads * form.kernel.packs, form.kernel.vector);
    forms += cuda_elements(form.kernel, p, element, "g", pointers) + "}\n\n";
  }
  const std::string_view table = plan.table_in_source ? "pieces" : "a.piece";
  std::string out = cuda_head(comment, listing, plan.wide_index) + functions + piece_struct(row);
  if (plan.table_in_source) out += table_text(plan, row);
  out += fmt::format("struct Arguments {{\n  void* p[{}];\n", plan.operands);
  if (!plan.table_in_source) out += fmt::format("  Piece piece[{}];\n", plan.pieces.size());
  out += "};\n\n" + forms;
  // Indexed by the block: without that word the whole table would be copied to each thread's stack.
  out += fmt::format(
      "extern \"C\" __global__ void __launch_bounds__({}) {}(const __grid_constant__ Arguments a) "
      "{{\n",
      plan.shapes.taken.threads, entry);
  out += search_text(plan, table);
  out += fmt::format(
      "  const Piece& g = {}[at];\n  const Index block = (Index)blockIdx.x - g.first;\n", table);
  if (plan.forms.size() == 1) return out + "  form0(a, g, block);\n}\n";
  out += "  switch (g.form) {\n";
  for (size_t f = 0; f < plan.forms.size(); ++f)
    out += fmt::format("    case {0}: form{0}(a, g, block); break;\n", f);
  return out + "  }\n}\n";
}

std::string cuda_pieces_arguments(const CudaPieces& plan, std::span<void* const> pointers) {
  CudaArguments out(plan.wide_index);
  for (const void* p : pointers) out.pointer(p);
  const Row row = row_of(plan);
  for (size_t k = 0; k < plan.pieces.size() && !plan.table_in_source; ++k)
    for (int64_t n : numbers_of(plan.pieces[k], row)) out.index(n);
  return out.take();
}

}  // namespace ferrule
