#include "codegen/cuda/rows.h"

#include <limits>
#include <set>

#include "codegen/cuda/text.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

using Along = CudaRowOperand::Along;
using Kind = RowSource::Kind;

constexpr std::string_view kRowsPrelude = R"cuda(
__device__ __forceinline__ float shuffle(float v, int o) { return __shfl_xor_sync(0xffffffffu, v, o); }
__device__ __forceinline__ double shuffle(double v, int o) { return __shfl_xor_sync(0xffffffffu, v, o); }
__device__ __forceinline__ i64 shuffle(i64 v, int o) { return __shfl_xor_sync(0xffffffffu, v, o); }
__device__ __forceinline__ u64 shuffle(u64 v, int o) { return __shfl_xor_sync(0xffffffffu, v, o); }
template <class T> __device__ __forceinline__ T shuffle(T v, int o) { return (T)__shfl_xor_sync(0xffffffffu, (int)v, o); }

// A sum with what its roundings lost.
struct Sum {
  float sum, lost;
  __device__ __forceinline__ void add(float x) {
    const float t = sum + x;
    lost += fabsf(sum) >= fabsf(x) ? (sum - t) + x : (x - t) + sum;
    sum = t;
  }
  __device__ __forceinline__ float value() const { return fabsf(lost) < __uint_as_float(0x7f800000u) ? sum + lost : sum; }
};
)cuda";

/// The type that a fold is made in on a GPU.
DType accumulator(Fold fold, DType fold_type, DType element) {
  return fold == Fold::sum && fold_type == DType::f64 && element == DType::f32 ? DType::f32
                                                                               : fold_type;
}

std::string fold_text(Fold fold, DType t, const std::string& a, const std::string& b) {
  const bool f = is_float(t);
  switch (fold) {
    case Fold::sum:
      return f ? fmt::format("{} + {}", a, b) : fmt::format("iadd<{}>({}, {})", name(t), a, b);
    case Fold::prod:
      return f ? fmt::format("{} * {}", a, b) : fmt::format("imul<{}>({}, {})", name(t), a, b);
    case Fold::max:
      return fmt::format("larger({}, {})", a, b);
    case Fold::min:
      return fmt::format("smaller({}, {})", a, b);
    case Fold::none:
      break;
  }
  return b;
}

class RowText {
 public:
  explicit RowText(const CudaRowKernel& k) : k_(k) {}

  Result<std::string> text(std::string_view entry, std::string_view comment) {
    out_ = cuda_head(comment, to_text(k_.staged), k_.wide_index);
    out_ += kRowsPrelude;
    out_ += "\n";
    for (size_t s = 0; s < k_.staged.stages.size(); ++s) {
      Program p = k_.staged.stages[s].program;
      FERRULE_TRY(verify(p));
      expand_transcendentals(p);
      out_ += cuda_function(p, fmt::format("stage{}", s));
    }
    if (k_.online) out_ += weight_function();
    const size_t n = k_.operands.size();
    out_ += fmt::format(
        "struct Arguments {{\n  void* p[{0}];\n{3}  Index rows, length{4};\n  Index size[{1}], "
        "stride[{0}][{1}];\n"
        "  Index step_size[{2}], step[{0}][{2}];\n}};\n\n",
        n, k_.kept_rank, k_.reduced_rank, k_.sliced ? "  char* scratch;\n" : "",
        !k_.sliced      ? ""
        : k_.passes > 1 ? ", slices, chunk, row_blocks, pass"
                        : ", slices, chunk, row_blocks");
    kernel(entry);
    return std::move(out_);
  }

 private:
  bool columns() const { return k_.team == CudaTeam::columns; }
  DType type(size_t operand) const { return k_.operands[operand].type; }
  size_t operand_of(const RowSource& s) const {
    return s.index + (s.kind == Kind::result ? k_.inputs : 0);
  }
  std::string pack(DType t) const {
    return fmt::format("Pack<{}, {}>", cuda_storage(t), k_.vector);
  }

  template <class... A>
  void line(int indent, fmt::format_string<A...> text, A&&... args) {
    out_ += std::string(static_cast<size_t>(indent) * 2, ' ') +
            fmt::format(text, std::forward<A>(args)...) + "\n";
  }

  void kernel(std::string_view entry) {
    line(0, "extern \"C\" __global__ void __launch_bounds__({}) {}(const Arguments a) {{",
         k_.block_threads(), entry);
    if (k_.sliced) {
      line(1,
           "const Index block = (Index)blockIdx.x / a.slices, slice = (Index)blockIdx.x % "
           "a.slices;");
      line(1, "const Index behind = slice + 1 < a.slices ? (slice + 1) * a.chunk : a.length;");
      line(1, "char* const slots = a.scratch + (a.row_blocks * 4 + 15) / 16 * 16;");
    } else
      line(1, "const Index block = blockIdx.x;");
    switch (k_.team) {
      case CudaTeam::columns:
        line(1, "const int lane = threadIdx.y;");
        line(1, "const Index own = block * {} + threadIdx.x;", k_.rows);
        line(1, "const bool inside = own < a.rows;");
        line(1, "const Index row = inside ? own : a.rows - 1;");
        break;
      case CudaTeam::warp:
        line(1, "const int lane = threadIdx.x;");
        line(1, "const Index row = block * {} + threadIdx.y;", k_.rows);
        line(1, "if (row >= a.rows) return;");
        break;
      case CudaTeam::block:
        line(1, "const int lane = threadIdx.x;");
        line(1, "const Index row = block;");
        break;
    }
    pointers();
    registers();
    for (int pass = 0; pass < k_.passes; ++pass) {
      if (k_.passes > 1) line(1, "if (a.pass == {}) {{", pass);
      stages(pass);
      if (k_.passes > 1) line(1, "}}");
    }
    line(0, "}}");
  }

  /// Those of one launch, behind what the former ones found.
  void stages(int pass) {
    const std::vector<int> passes = k_.passes > 1 ? row_passes(k_.staged, k_.online)
                                                  : std::vector<int>(k_.staged.stages.size());
    const bool elements = [&] {
      for (size_t s = 0; s < passes.size(); ++s)
        if (passes[s] == pass && k_.staged.stages[s].elements) return true;
      return false;
    }();
    // Nothing runs along the row: one block does it. Another might read what it writes.
    if (!elements && k_.sliced) line(1, "if (slice != 0) return;");
    for (size_t s = 0; s < passes.size() && passes[s] <= pass; ++s) {
      const RowStage& stage = k_.staged.stages[s];
      if (!stage.elements)
        row_stage(s, passes[s] == pass);
      else if (passes[s] == pass)
        element_stage(s);
      else if (k_.online == s)
        combine_online(stage);
      else
        combine_folds(stage);
      if (k_.online == s) ++s;  // done with it
    }
  }

  /// Of each operand, the row's first element.
  void pointers() {
    line(1, "Index rest = row;");
    for (int d = k_.kept_rank - 1; d > 0; --d)
      line(1, "const Index c{0} = rest % a.size[{0}]; rest /= a.size[{0}];", d);
    line(1, "const Index c0 = rest;");
    for (size_t k = 0; k < k_.operands.size(); ++k) {
      std::string at;
      for (int d = 0; d < k_.kept_rank; ++d)
        at += fmt::format("{}c{} * a.stride[{}][{}]", d ? " + " : "", d, k, d);
      line(1, "{0}{1}* const q{2} = ({0}{1}*)a.p[{2}] + ({3});", k < k_.inputs ? "const " : "",
           cuda_storage(type(k)), k, at);
    }
  }

  /// What is the same for the whole row, and what is kept of it.
  void registers() {
    std::set<size_t> once;
    for (const RowStage& s : k_.staged.stages)
      for (const RowSource& i : s.inputs)
        if (uniform(i)) once.insert(i.index);
    for (size_t k : once) line(1, "const {} u{} = *q{};", cuda_storage(type(k)), k, k);
    if (!k_.items) return;
    bool any = false;
    for (size_t k = 0; k < k_.operands.size(); ++k)
      if (kept_in_registers(k_, k)) {
        any = any || k < k_.inputs;
        line(1, "{} r{}[{}];", pack(type(k)), k, k_.items);
      }
    for (size_t t = 0; t < k_.staged.tiles.size(); ++t)
      line(1, "{} t{}[{}];", pack(k_.staged.tiles[t]), t, k_.items);
    if (!any) return;
    begin_elements();
    for (size_t k = 0; k < k_.inputs; ++k)
      if (kept_in_registers(k_, k)) {
        offset(k);
        line(3, "r{0}[j] = *(const {1}*)(q{0} + at{0});", k, pack(type(k)));
      }
    line(2, "}}\n  }}");
  }

  /// Opens two blocks: the loop, and what is inside the row. `e`: the first element.
  void begin_elements() {
    const int step = k_.threads * k_.vector;
    if (k_.items) {
      line(1, "#pragma unroll");
      line(1, "for (int j = 0; j < {}; ++j) {{", k_.items);
      line(2, "const Index e = lane * {} + j * {};", k_.vector, step);
      line(2, "if (e < a.length) {{");
    } else if (k_.sliced) {
      line(1, "for (Index e = slice * a.chunk + lane * {}; e < behind; e += {}) {{", k_.vector,
           step);
      line(2, "{{");
    } else {
      line(1, "for (Index e = lane * {}; e < a.length; e += {}) {{", k_.vector, step);
      line(2, "{{");
    }
  }

  /// `at`k: where element e is.
  void offset(size_t k) {
    if (k_.operands[k].along == Along::unit) return line(3, "const Index at{} = e;", k);
    line(3, "Index at{0} = 0;", k);
    line(3, "{{ Index rest = e;");
    for (int d = k_.reduced_rank - 1; d > 0; --d)
      line(4, "at{0} += rest % a.step_size[{1}] * a.step[{0}][{1}]; rest /= a.step_size[{1}];", k,
           d);
    line(4, "at{0} += rest * a.step[{0}][0]; }}", k);
  }

  /// Whether it is the same along the row, and read before it.
  bool uniform(const RowSource& s) const {
    return s.kind == Kind::operand && k_.operands[s.index].along == Along::none;
  }
  /// A vector of an operand or a result.
  std::string elements(size_t operand) const {
    return kept_in_registers(k_, operand) ? fmt::format("r{}[j]", operand)
                                          : fmt::format("w{}", operand);
  }

  /// An input of a stage as its function wants it. `v`: the element of a vector; empty in row
  /// stages.
  std::string input(const RowSource& s, DType t, const std::string& v) const {
    switch (s.kind) {
      case Kind::operand:
      case Kind::result: {
        const std::string x = uniform(s) ? fmt::format("u{}", s.index)
                                         : fmt::format("{}.v[{}]", elements(operand_of(s)), v);
        return t == DType::boolean ? x + " != 0" : x;
      }
      case Kind::fold:
        return fmt::format("({})f{}", cuda_value(t), s.index);
      case Kind::row:
        return fmt::format("o{}{}", s.index, t == DType::boolean ? " != 0" : "");
      case Kind::tile:
        return fmt::format("t{}[j].v[{}]{}", s.index, v, t == DType::boolean ? " != 0" : "");
      case Kind::count:
        return fmt::format("({})a.length", cuda_value(t));
    }
    return "0";
  }

  void element_stage(size_t index) {
    const RowStage& s = k_.staged.stages[index];
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) start_fold(s, o);
    if (k_.online == index) start_online();
    begin_elements();
    std::set<size_t> loaded;
    for (const RowSource& i : s.inputs) {
      if ((i.kind != Kind::operand && i.kind != Kind::result) || uniform(i)) continue;
      const size_t k = operand_of(i);
      if (kept_in_registers(k_, k) || !loaded.insert(k).second) continue;
      offset(k);
      line(3, "const {1} w{0} = *(const {1}*)(q{0} + at{0});", k, pack(type(k)));
    }
    for (const RowSource& o : s.outputs)
      if (o.kind == Kind::result && !kept_in_registers(k_, operand_of(o)))
        line(3, "{} w{};", pack(type(operand_of(o))), operand_of(o));
    line(3, "#pragma unroll");
    line(3, "for (int v = 0; v < {}; ++v) {{", k_.vector);
    std::string call;
    for (size_t k = 0; k < s.inputs.size(); ++k)
      call += (k ? ", " : "") + input(s.inputs[k], s.program.inputs[k], "v");
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      call += call.empty() ? "" : ", ";
      if (s.folds[o] != Fold::none) {
        line(4, "{} y{};", cuda_storage(s.program.output_type(o)), o);
        call += fmt::format("y{}", o);
      } else {
        call += s.outputs[o].kind == Kind::tile ? fmt::format("t{}[j].v[v]", s.outputs[o].index)
                                                : elements(operand_of(s.outputs[o])) + ".v[v]";
      }
    }
    line(4, "stage{}({});", index, call);
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) take(s, o);
    if (k_.online == index) take_online();
    line(3, "}}");
    for (const RowSource& o : s.outputs)
      if (o.kind == Kind::result) {
        const size_t k = operand_of(o);
        offset(k);
        line(3, "{}*({}*)(q{} + at{}) = {};", columns() ? "if (inside) " : "", pack(type(k)), k, k,
             elements(k));
      }
    line(2, "}}\n  }}");
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) finish_fold(s, o);
    if (k_.online == index) finish_online(s);
    if (k_.passes > 1)
      leave(index);
    else if (k_.sliced)
      combine_slices(s);
  }

  /// Where block number `from` of the row leaves a fold.
  std::string slot(uint32_t fold, DType type, std::string_view from) const {
    const int lanes = columns() ? k_.rows : 1;
    return fmt::format("({}*)(slots + ((((i64)block * a.slices + {}) * {} + {}) * {} + {}) * {})",
                       cuda_value(type), from, k_.staged.folds.size(), fold, lanes,
                       columns() ? "threadIdx.x" : "0", kRowSlotBytes);
  }

  /// What the slice found, for the next launch.
  void leave(size_t index) {
    std::string stores;
    auto store = [&](const RowStage& s, size_t o) {
      stores += fmt::format(" *{} = f{};", slot(s.outputs[o].index, fold_type_of(s, o), "slice"),
                            s.outputs[o].index);
    };
    const RowStage& s = k_.staged.stages[index];
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) store(s, o);
    if (k_.online == index) store(online_sum(), 0);
    if (!stores.empty()) line(1, "if (lane == 0) {{{} }}", stores);
  }

  /// A fold of what all blocks of the row left.
  void combine(const RowStage& s, size_t o) {
    const uint32_t f = s.outputs[o].index;
    const DType t = fold_type_of(s, o);
    line(1, "{} f{} = {};", cuda_value(t), f, cuda_literal(t, fold_identity(s.folds[o], t)));
    line(1, "for (Index o = lane; o < a.slices; o += {}) f{} = {};", k_.threads, f,
         fold_text(s.folds[o], t, fmt::format("f{}", f), "*" + slot(f, t, "o")));
    reduce_team(s, o, "n");
  }
  void combine_folds(const RowStage& s) {
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) combine(s, o);
  }
  /// The sums are of exponentials below what each slice's maximum is, or the lowest number.
  void combine_online(const RowStage& s) {
    combine(s, 0);
    const RowStage& sum = online_sum();
    const uint32_t m = s.outputs[0].index, f = sum.outputs[0].index;
    const DType t = fold_type_of(sum, 0);
    line(1, "{} f{} = 0;", cuda_value(t), f);
    line(1, "for (Index o = lane; o < a.slices; o += {}) {{", k_.threads);
    line(2, "{} less;", cuda_value(t));
    line(2, "weight({}, f{}, less);", not_below_lowest("*" + slot(m, fold_type_of(s, 0), "o")), m);
    line(2, "f{} += *{} * less;", f, slot(f, t, "o"));
    line(1, "}}");
    reduce_team(sum, 0, "n");
    line(1, "f{0} += f{1} - f{1};", f, m);
  }
  /// A slice of -inf alone has a sum, of nothing, below something.
  std::string not_below_lowest(const std::string& most) const {
    const DType t = online_sum().program.output_type(0);
    return fmt::format("larger(({0}){1}, {2})", cuda_value(t), most, lowest_number());
  }
  std::string lowest_number() const {
    const DType t = online_sum().program.output_type(0);
    return cuda_literal(t, {t == DType::f32 ? double{std::numeric_limits<float>::lowest()}
                                            : std::numeric_limits<double>::lowest(),
                            0});
  }

  /// What the blocks of a row found, in all threads of the last one to end; the others leave. The
  /// blocks' counter wraps, so that it is zero again for the next launch.
  void combine_slices(const RowStage& s) {
    const std::string_view thread = columns() ? "threadIdx.x" : "0";
    auto place = [&](size_t o, std::string_view from) {
      return "(volatile " + slot(s.outputs[o].index, fold_type_of(s, o), from).substr(1);
    };
    line(1, "if (lane == 0) {{");
    for (size_t o = 0; o < s.outputs.size(); ++o)
      line(2, "*{} = f{};", place(o, "slice"), s.outputs[o].index);
    line(1, "}}");
    line(1, "__shared__ bool last;");
    line(1, "__syncthreads();");
    line(1, "if (lane == 0 && {} == 0) {{", thread);
    line(2, "__threadfence();  // hands on what all threads of the block stored");
    line(2, "last = atomicInc((u32*)a.scratch + block, (u32)a.slices - 1) == (u32)a.slices - 1;");
    line(2, "__threadfence();");
    line(1, "}}");
    line(1, "__syncthreads();");
    line(1, "if (!last) return;");
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      const uint32_t f = s.outputs[o].index;
      const DType t = fold_type_of(s, o);
      line(1, "f{} = {};", f, cuda_literal(t, fold_identity(s.folds[o], t)));
      line(1, "for (Index o = lane; o < a.slices; o += {}) f{} = {};", k_.threads, f,
           fold_text(s.folds[o], t, fmt::format("f{}", f),
                     fmt::format("({})*{}", cuda_value(t), place(o, "o"))));
      reduce_team(s, o, "n");
    }
  }

  /// The sum behind a maximum, in the same pass: of exp(x - near), near at most 8 below the largest
  /// x so far.
  const RowStage& online_sum() const { return k_.staged.stages[*k_.online + 1]; }

  /// weight(x, near, y): y = exp(x - near), as the stage computes it.
  std::string weight_function() const {
    const DType t = online_sum().program.output_type(0);
    ProgramBuilder b;
    const uint32_t x = b.input(t), near = b.input(t);
    b.output(b.op(Prim::exp, t, {b.op(Prim::sub, t, {x, near})}));
    Program p = b.take();
    expand_transcendentals(p);
    return cuda_function(p, "weight");
  }

  void start_online() {
    const RowStage& sum = online_sum();
    start_fold(sum, 0);
    // Not the identity of a maximum: exp(-inf - -inf) is no number.
    line(1, "{} near = {};", cuda_value(sum.program.output_type(0)), lowest_number());
  }

  void take_online() {
    const RowStage& sum = online_sum();
    const std::string_view t = cuda_value(sum.program.output_type(0));
    const uint32_t f = sum.outputs[0].index;
    line(4, "if (y0 > near + 8) {{");
    line(5, "{} less;", t);
    line(5, "weight(near, y0, less);");
    if (compensated(sum, 0))
      line(5, "s{0}.sum *= less; s{0}.lost *= less;", f);
    else
      line(5, "f{} *= less;", f);
    line(5, "near = y0;");
    line(4, "}}");
    line(4, "{} term;", t);
    line(4, "weight(y0, near, term);");
    if (compensated(sum, 0))
      line(4, "s{}.add(term);", f);
    else
      line(4, "f{} += term;", f);
  }

  /// Below the whole row's maximum; where that is not finite there is an element whose exponential
  /// is no number.
  void finish_online(const RowStage& s) {
    const RowStage& sum = online_sum();
    const uint32_t m = s.outputs[0].index, f = sum.outputs[0].index;
    const std::string_view t = cuda_value(sum.program.output_type(0));
    if (compensated(sum, 0)) line(1, "float f{0} = s{0}.value();", f);
    line(1, "{} less;", t);
    line(1, "weight(near, {}, less);",
         k_.passes > 1 ? not_below_lowest(fmt::format("f{}", m)) : fmt::format("f{}", m));
    if (k_.passes > 1)
      line(1, "f{} *= less;", f);
    else
      line(1, "f{0} = a.length == 0 ? ({1})0 : f{0} * less + (f{2} - f{2});", f, t, m);
    reduce_team(sum, 0, "m");
  }

  DType fold_type_of(const RowStage& s, size_t o) const {
    return accumulator(s.folds[o], fold_type(s.folds[o], s.program.output_type(o)),
                       s.program.output_type(o));
  }
  bool compensated(const RowStage& s, size_t o) const {
    return s.folds[o] == Fold::sum && fold_type_of(s, o) == DType::f32;
  }

  void start_fold(const RowStage& s, size_t o) {
    const uint32_t f = s.outputs[o].index;
    if (compensated(s, o)) return line(1, "Sum s{} = {{0.0f, 0.0f}};", f);
    const DType t = fold_type_of(s, o);
    const Scalar one = fold_identity(s.folds[o], t);
    line(1, "{} f{} = {};", cuda_value(t), f, cuda_literal(t, one));
  }
  void take(const RowStage& s, size_t o) {
    const uint32_t f = s.outputs[o].index;
    if (compensated(s, o)) return line(4, "s{}.add(y{});", f, o);
    const DType t = fold_type_of(s, o);
    line(4, "f{} = {};", f,
         fold_text(s.folds[o], t, fmt::format("f{}", f), fmt::format("({})y{}", cuda_value(t), o)));
  }

  /// What all threads of the team found, in each of them.
  void finish_fold(const RowStage& s, size_t o) {
    if (compensated(s, o)) line(1, "float f{0} = s{0}.value();", s.outputs[o].index);
    reduce_team(s, o, "m");
  }

  /// `shared`: a name for the memory that it goes through.
  void reduce_team(const RowStage& s, size_t o, std::string_view shared) {
    const uint32_t f = s.outputs[o].index;
    const DType t = fold_type_of(s, o);
    const auto both = [&](const std::string& other) {
      return fold_text(s.folds[o], t, fmt::format("f{}", f), other);
    };
    auto tree = [&](int width) {
      if (width < 2) return;
      line(1, "#pragma unroll");
      line(1, "for (int o = {}; o > 0; o /= 2) f{} = {};", width / 2, f,
           both(fmt::format("shuffle(f{}, o)", f)));
    };
    if (columns()) {
      if (k_.threads == 1) return;
      line(1, "__shared__ {} {}{}[{}][{}];", cuda_value(t), shared, f, k_.threads, kRowWarp);
      line(1, "{0}{1}[lane][threadIdx.x] = f{1};", shared, f);
      line(1, "__syncthreads();");
      line(1, "f{1} = {0}{1}[0][threadIdx.x];", shared, f);
      line(1, "for (int o = 1; o < {}; ++o) f{} = {};", k_.threads, f,
           both(fmt::format("{}{}[o][threadIdx.x]", shared, f)));
      return;
    }
    tree(kRowWarp);
    const int warps = k_.threads / kRowWarp;
    if (warps == 1) return;
    line(1, "__shared__ {} {}{}[{}];", cuda_value(t), shared, f, warps);
    line(1, "if (lane % 32 == 0) {0}{1}[lane / 32] = f{1};", shared, f);
    line(1, "__syncthreads();");
    line(1, "f{1} = {0}{1}[lane % {2}];", shared, f, warps);
    tree(warps);
  }

  /// `storing`: in the launch in which its results are written.
  void row_stage(size_t index, bool storing) {
    const RowStage& s = k_.staged.stages[index];
    std::string call;
    for (size_t k = 0; k < s.inputs.size(); ++k)
      call += (k ? ", " : "") + input(s.inputs[k], s.program.inputs[k], "0");
    std::string stores;
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      const bool result = s.outputs[o].kind == Kind::result;
      const std::string to = result ? fmt::format("z{}", operand_of(s.outputs[o]))
                                    : fmt::format("o{}", s.outputs[o].index);
      line(1, "{} {};", cuda_storage(s.program.output_type(o)), to);
      call += (call.empty() ? "" : ", ") + to;
      if (result)
        stores +=
            fmt::format("{}*q{} = {};", stores.empty() ? "" : " ", operand_of(s.outputs[o]), to);
    }
    line(1, "stage{}({});", index, call);
    if (!stores.empty() && storing)
      line(1, "if (lane == 0{}{}) {{ {} }}", columns() ? " && inside" : "",
           k_.passes > 1 ? " && slice == 0" : "", stores);
  }

  const CudaRowKernel& k_;
  std::string out_;
};

}  // namespace

Result<std::string> cuda_row_source(const CudaRowKernel& kernel, std::string_view entry,
                                    std::string_view comment) {
  return RowText(kernel).text(entry, comment);
}

std::string cuda_row_arguments(const CudaRowKernel& kernel, const CudaRowGeometry& geometry,
                               std::span<void* const> pointers, int pass) {
  CudaArguments out(kernel.wide_index);
  for (const void* p : pointers) out.pointer(p);
  out.index(geometry.rows);
  out.index(geometry.length);
  if (kernel.sliced)
    for (int64_t v : {geometry.slices, geometry.chunk, geometry.row_blocks(kernel)}) out.index(v);
  if (kernel.passes > 1) out.index(pass);
  for (const auto* axes : {&geometry.kept, &geometry.reduced}) {
    for (const LoopAxis& a : *axes) out.index(a.size);
    for (size_t k = 0; k < kernel.operands.size(); ++k)
      for (const LoopAxis& a : *axes) out.index(a.strides[k]);
  }
  return out.take();
}

}  // namespace ferrule
