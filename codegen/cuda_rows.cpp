#include "codegen/cuda_rows.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <set>

#include "codegen/cuda_text.h"
#include "codegen/row_online.h"
#include "engine/base/diagnostics.h"
#include "engine/formula/polynomials.h"

namespace ferrule {
namespace {

using Along = CudaRowOperand::Along;
using Kind = RowSource::Kind;

// --- form of a kernel -------------------------------------------------------------------------------

constexpr int kWarp = 32;
constexpr int kMostItems = 8;
constexpr int64_t kRegisters = 48;  // of 32 bits, that a thread may keep a row's elements in
constexpr int64_t kLongRow = 16384;   // elements of a block from which its rows are worth being spread over several …
constexpr int64_t kLeastSlice = 4096; // … with so many each
constexpr int64_t kLongElements = 65536;  // and where a row's elements follow: another launch must pay
constexpr int kMostPasses = 4;
constexpr int64_t kSlotBytes = 8;     // of what one block leaves of one fold
constexpr int64_t kWorthMeasuring = 4096;  // elements; a smaller launch takes its time to start

int64_t element_bytes(DType t) { return std::max(1, size_bits(t) / 8); }
int64_t up_to_power(int64_t n, int64_t least, int64_t most) {
  return std::clamp<int64_t>(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1)))), least, most);
}

/// Stages that read operand `k` element by element.
int readers(const StagedRows& rows, size_t k) {
  int n = 0;
  for (const RowStage& s : rows.stages)
    n += s.elements && std::any_of(s.inputs.begin(), s.inputs.end(), [&](const RowSource& i) { return i.kind == Kind::operand && i.index == k; });
  return n;
}
bool kept_in_registers(const CudaRowKernel& k, size_t operand) {
  return k.items > 0 && operand < k.inputs && k.operands[operand].along != Along::none && readers(k.staged, operand) > 1;
}

/// Of each stage, the launch that it belongs to where a row is spread over several blocks: behind a reduction along the row
/// begins the next. The online pair is one.
std::vector<int> passes_of(const StagedRows& rows, std::optional<size_t> online) {
  std::vector<int> out;
  int pass = 0;
  for (size_t s = 0; s < rows.stages.size(); ++s) {
    out.push_back(pass);
    const RowStage& stage = rows.stages[s];
    const bool folds = std::ranges::any_of(stage.folds, [](Fold f) { return f != Fold::none; });
    pass += stage.elements && folds && online != s;
  }
  return out;
}

class Planner {
 public:
  Planner(const RowRegion& region, std::span<const RowLayout> operands, bool aligned, int cores, std::string_view wanted)
      : r_(region), operands_(operands), aligned_(aligned), cores_(cores), wanted_(wanted) {}

  Result<CudaRowPlan> run() {
    FERRULE_TRY(check_cuda_types(r_.program));
    FERRULE_ASSIGN(RowLoops loops, row_loops(r_, operands_));
    k_.inputs = r_.inputs.size();
    for (auto* axes : {&loops.kept, &loops.reduced})
      if (axes->empty()) axes->push_back({1, std::vector<int64_t>(operands_.size(), 0)});
    geometry(loops);
    for (size_t k = 0; k < operands_.size(); ++k) k_.operands.push_back({loops.types[k], along(k)});
    beside_ = g_.kept.back().strides[loops.guide] == 1 && g_.kept.back().size > 1 && g_.reduced.back().strides[loops.guide] != 1;
    k_.vector = beside_ ? 1 : vector();
    k_.staged = split_rows(r_, false);
    only_folds_ = only_folds();
    passes_ = passes_of(k_.staged, online_stage(k_.staged)).back() + 1;
    plan_.shapes = {shapes(), wanted_};
    take(plan_.shapes.taken);
    return std::move(plan_);
  }

 private:
  void geometry(RowLoops& loops) {
    int64_t farthest = 0;
    for (size_t k = 0; k < operands_.size(); ++k) farthest = std::max(farthest, reach(loops.kept, k) + reach(loops.reduced, k));
    g_.kept = std::move(loops.kept), g_.reduced = std::move(loops.reduced);
    for (const LoopAxis& a : g_.kept) g_.rows *= a.size;
    for (const LoopAxis& a : g_.reduced) g_.length *= a.size;
    k_.kept_rank = static_cast<int>(g_.kept.size()), k_.reduced_rank = static_cast<int>(g_.reduced.size());
    k_.wide_index = std::max({farthest, g_.rows, g_.length}) > kMostNarrowIndex;
  }

  Along along(size_t k) const {
    int64_t expected = 1;
    bool unit = true, none = true;
    for (size_t a = g_.reduced.size(); a-- > 0;) {
      none = none && (g_.reduced[a].strides[k] == 0 || g_.reduced[a].size == 1);
      unit = unit && g_.reduced[a].strides[k] == expected;
      expected *= g_.reduced[a].size;
    }
    return none ? Along::none : unit ? Along::unit : Along::strided;
  }

  int64_t packs() const { return g_.length / k_.vector; }

  /// A row in one block; the built-in choice.
  CudaShape whole() const {
    if (beside_) return {"columns", static_cast<int>(up_to_power(g_.length / 4, 1, g_.rows < 32768 ? 32 : 8)), kWarp};
    if (packs() <= kWarp * kMostItems) return {"warp", kWarp, 4};
    return {"block", static_cast<int>(up_to_power(packs() / 4, 128, 1024))};
  }
  /// A row in about so many blocks.
  CudaShape cut(int64_t slices) const {
    const int64_t v = k_.vector, chunk = ((g_.length + slices - 1) / slices + v - 1) / v * v;
    slices = (g_.length + chunk - 1) / chunk;
    // Blocks of 1024 threads have too few registers for this on sm_120.
    if (beside_) return {"columns", static_cast<int>(up_to_power(chunk / 4, 1, 16)), kWarp, slices};
    return {"block", static_cast<int>(up_to_power(chunk / v / 4, 128, 1024)), 1, slices};
  }

  /// What is worth a measurement, the built-in choice first.
  std::vector<CudaShape> shapes() const {
    const CudaShape usual = whole();
    const int64_t blocks = (g_.rows + usual.each - 1) / usual.each, each = g_.length * (beside_ ? kWarp : 1);
    std::vector<CudaShape> out;
    const bool room = passes_ <= kMostPasses && usual.form != "warp" && blocks > 0 && blocks * 2 <= cores_;
    const int64_t enough = only_folds_ ? kLongRow : kLongElements;
    if (room && each >= enough) {
      const int64_t most = std::min(2 * cores_ / blocks, each / kLeastSlice);
      for (const int64_t slices : {most, most * 2, most / 2})
        if (slices > 1) out.push_back(cut(slices));
      out.push_back(usual);
      return out;
    }
    out.push_back(usual);
    if (g_.rows * g_.length < kWorthMeasuring) return out;
    if (beside_) {
      for (int threads : {usual.threads / 2, usual.threads * 2, usual.threads / 4, usual.threads * 4})
        if (threads >= 1 && threads <= 32 && threads <= g_.length) out.push_back({"columns", threads, kWarp});
    } else {
      if (packs() <= 4 * kWarp * kMostItems)
        for (int rows : {4, 1, 2, 8})
          if (rows < 2 * g_.rows) out.push_back({"warp", kWarp, rows});
      for (int threads : {128, 256, 512, 1024})
        if (threads <= packs()) out.push_back({"block", threads});
    }
    if (!room) return out;
    if (!only_folds_) {
      if (each >= enough / 4) out.push_back(cut(std::min(2 * cores_ / blocks, each / kLeastSlice)));
      return out;
    }
    for (const int64_t slices : {2, 4})
      if (each / slices >= kLeastSlice / 2) out.push_back(cut(slices));
    return out;
  }

  void take(const CudaShape& s) {
    k_.team = s.form == "columns" ? CudaTeam::columns : s.form == "warp" ? CudaTeam::warp : CudaTeam::block;
    k_.threads = s.threads, k_.rows = s.each;
    if (s.slices > 1) {
      const int64_t v = k_.vector;
      g_.slices = s.slices;
      g_.chunk = ((g_.length + s.slices - 1) / s.slices + v - 1) / v * v;
      k_.sliced = true;
      if (only_folds_) return;
      k_.online = online_stage(k_.staged);
      k_.passes = passes_;
      return;
    }
    k_.staged = split_rows(r_, true);
    items();
    if (k_.items) return;
    k_.staged = split_rows(r_, false);
    k_.online = online_stage(k_.staged);
  }

  /// Elements that 16 bytes of the widest operand hold, where every row begins at such a place.
  int vector() const {
    int64_t widest = 1;
    for (const CudaRowOperand& o : k_.operands) {
      if (o.along == Along::strided) return 1;
      if (o.along == Along::unit) widest = std::max(widest, element_bytes(o.type));
    }
    auto fits = [&](int64_t v) {
      if (g_.length % v) return false;
      for (size_t k = 0; k < k_.operands.size(); ++k)
        for (const LoopAxis& a : g_.kept)
          if (k_.operands[k].along == Along::unit && a.strides[k] % v) return false;
      return true;
    };
    int64_t v = aligned_ ? std::min<int64_t>(8, 16 / widest) : 1;
    while (v > 1 && !fits(v)) v /= 2;
    return static_cast<int>(v);
  }

  /// A row's elements stay in registers where they are read more than once and few enough.
  void items() {
    if (k_.team == CudaTeam::columns) return;
    const int64_t each = int64_t{k_.threads} * k_.vector, items = (g_.length + each - 1) / each;
    k_.items = static_cast<int>(std::max<int64_t>(items, 1));
    int64_t bytes = 0;
    for (size_t k = 0; k < k_.inputs; ++k)
      if (kept_in_registers(k_, k)) bytes += element_bytes(k_.operands[k].type);
    for (DType t : k_.staged.tiles) bytes += element_bytes(t);
    if (items > kMostItems || bytes * items * k_.vector > kRegisters * 4) k_.items = 0;
  }

  /// Whether nothing but one round of reductions runs along the rows.
  bool only_folds() const {
    int stages = 0;
    for (const RowStage& s : k_.staged.stages) {
      stages += s.elements;
      if (s.elements && std::ranges::find(s.folds, Fold::none) != s.folds.end()) return false;
    }
    return stages == 1;
  }

  const RowRegion& r_;
  std::span<const RowLayout> operands_;
  const bool aligned_;
  const int cores_;
  const std::string_view wanted_;
  bool beside_ = false;      ///< rows lie side by side in memory
  bool only_folds_ = false;
  int passes_ = 1;           ///< launches, where a row is spread and not only folded
  CudaRowPlan plan_;
  CudaRowKernel& k_ = plan_.kernel;
  CudaRowGeometry& g_ = plan_.geometry;
};

// --- source -----------------------------------------------------------------------------------------

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
  return fold == Fold::sum && fold_type == DType::f64 && element == DType::f32 ? DType::f32 : fold_type;
}

std::string fold_text(Fold fold, DType t, const std::string& a, const std::string& b) {
  const bool f = is_float(t);
  switch (fold) {
    case Fold::sum: return f ? fmt::format("{} + {}", a, b) : fmt::format("iadd<{}>({}, {})", name(t), a, b);
    case Fold::prod: return f ? fmt::format("{} * {}", a, b) : fmt::format("imul<{}>({}, {})", name(t), a, b);
    case Fold::max: return fmt::format("larger({}, {})", a, b);
    case Fold::min: return fmt::format("smaller({}, {})", a, b);
    case Fold::none: break;
  }
  return b;
}

class Source {
 public:
  explicit Source(const CudaRowKernel& k) : k_(k) {}

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
    out_ += fmt::format("struct Arguments {{\n  void* p[{0}];\n{3}  Index rows, length{4};\n  Index size[{1}], stride[{0}][{1}];\n"
                        "  Index step_size[{2}], step[{0}][{2}];\n}};\n\n", n, k_.kept_rank, k_.reduced_rank,
                        k_.sliced ? "  char* scratch;\n" : "", !k_.sliced ? "" : k_.passes > 1 ? ", slices, chunk, row_blocks, pass" : ", slices, chunk, row_blocks");
    kernel(entry);
    return std::move(out_);
  }

 private:
  bool columns() const { return k_.team == CudaTeam::columns; }
  DType type(size_t operand) const { return k_.operands[operand].type; }
  size_t operand_of(const RowSource& s) const { return s.index + (s.kind == Kind::result ? k_.inputs : 0); }
  std::string pack(DType t) const { return fmt::format("Pack<{}, {}>", cuda_storage(t), k_.vector); }

  template <class... A>
  void line(int indent, fmt::format_string<A...> text, A&&... args) {
    out_ += std::string(static_cast<size_t>(indent) * 2, ' ') + fmt::format(text, std::forward<A>(args)...) + "\n";
  }

  void kernel(std::string_view entry) {
    line(0, "extern \"C\" __global__ void __launch_bounds__({}) {}(const Arguments a) {{", k_.block_threads(), entry);
    if (k_.sliced) {
      line(1, "const Index block = (Index)blockIdx.x / a.slices, slice = (Index)blockIdx.x % a.slices;");
      line(1, "const Index behind = slice + 1 < a.slices ? (slice + 1) * a.chunk : a.length;");
      line(1, "char* const slots = a.scratch + (a.row_blocks * 4 + 15) / 16 * 16;");
    } else line(1, "const Index block = blockIdx.x;");
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
    const std::vector<int> passes = k_.passes > 1 ? passes_of(k_.staged, k_.online) : std::vector<int>(k_.staged.stages.size());
    const bool elements = [&] {
      for (size_t s = 0; s < passes.size(); ++s)
        if (passes[s] == pass && k_.staged.stages[s].elements) return true;
      return false;
    }();
    // Nothing runs along the row: one block does it. Another might read what it writes.
    if (!elements && k_.sliced) line(1, "if (slice != 0) return;");
    for (size_t s = 0; s < passes.size() && passes[s] <= pass; ++s) {
      const RowStage& stage = k_.staged.stages[s];
      if (!stage.elements) row_stage(s, passes[s] == pass);
      else if (passes[s] == pass) element_stage(s);
      else if (k_.online == s) combine_online(stage);
      else combine_folds(stage);
      if (k_.online == s) ++s;  // done with it
    }
  }

  /// Of each operand, the row's first element.
  void pointers() {
    line(1, "Index rest = row;");
    for (int d = k_.kept_rank - 1; d > 0; --d) line(1, "const Index c{0} = rest % a.size[{0}]; rest /= a.size[{0}];", d);
    line(1, "const Index c0 = rest;");
    for (size_t k = 0; k < k_.operands.size(); ++k) {
      std::string at;
      for (int d = 0; d < k_.kept_rank; ++d) at += fmt::format("{}c{} * a.stride[{}][{}]", d ? " + " : "", d, k, d);
      line(1, "{0}{1}* const q{2} = ({0}{1}*)a.p[{2}] + ({3});", k < k_.inputs ? "const " : "", cuda_storage(type(k)), k, at);
    }
  }

  /// What is the same for the whole row, and what is kept of it.
  void registers() {
    std::set<size_t> uniform;
    for (const RowStage& s : k_.staged.stages)
      for (const RowSource& i : s.inputs)
        if (i.kind == Kind::operand && k_.operands[i.index].along == Along::none) uniform.insert(i.index);
    for (size_t k : uniform) line(1, "const {} u{} = *q{};", cuda_storage(type(k)), k, k);
    if (!k_.items) return;
    bool any = false;
    for (size_t k = 0; k < k_.inputs; ++k)
      if (kept_in_registers(k_, k)) any = true, line(1, "{} r{}[{}];", pack(type(k)), k, k_.items);
    for (size_t t = 0; t < k_.staged.tiles.size(); ++t) line(1, "{} t{}[{}];", pack(k_.staged.tiles[t]), t, k_.items);
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
      line(1, "for (Index e = slice * a.chunk + lane * {}; e < behind; e += {}) {{", k_.vector, step);
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
      line(4, "at{0} += rest % a.step_size[{1}] * a.step[{0}][{1}]; rest /= a.step_size[{1}];", k, d);
    line(4, "at{0} += rest * a.step[{0}][0]; }}", k);
  }

  /// An input of a stage as its function wants it. `v`: the element of a vector; empty in row stages.
  std::string input(const RowSource& s, DType t, const std::string& v) const {
    switch (s.kind) {
      case Kind::operand: {
        const std::string x = k_.operands[s.index].along == Along::none ? fmt::format("u{}", s.index)
                              : kept_in_registers(k_, s.index)          ? fmt::format("r{}[j].v[{}]", s.index, v)
                                                                        : fmt::format("w{}.v[{}]", s.index, v);
        return t == DType::boolean ? x + " != 0" : x;
      }
      case Kind::fold: return fmt::format("({})f{}", cuda_value(t), s.index);
      case Kind::row: return fmt::format("o{}{}", s.index, t == DType::boolean ? " != 0" : "");
      case Kind::tile: return fmt::format("t{}[j].v[{}]{}", s.index, v, t == DType::boolean ? " != 0" : "");
      case Kind::count: return fmt::format("({})a.length", cuda_value(t));
      case Kind::result: break;
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
    for (const RowSource& i : s.inputs)
      if (i.kind == Kind::operand && k_.operands[i.index].along != Along::none && !kept_in_registers(k_, i.index) && loaded.insert(i.index).second) {
        offset(i.index);
        line(3, "const {1} w{0} = *(const {1}*)(q{0} + at{0});", i.index, pack(type(i.index)));
      }
    for (const RowSource& o : s.outputs)
      if (o.kind == Kind::result) line(3, "{} w{};", pack(type(operand_of(o))), operand_of(o));
    line(3, "#pragma unroll");
    line(3, "for (int v = 0; v < {}; ++v) {{", k_.vector);
    std::string call;
    for (size_t k = 0; k < s.inputs.size(); ++k) call += (k ? ", " : "") + input(s.inputs[k], s.program.inputs[k], "v");
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      call += call.empty() ? "" : ", ";
      if (s.folds[o] != Fold::none) {
        line(4, "{} y{};", cuda_storage(s.program.output_type(o)), o);
        call += fmt::format("y{}", o);
      } else {
        call += s.outputs[o].kind == Kind::tile ? fmt::format("t{}[j].v[v]", s.outputs[o].index) : fmt::format("w{}.v[v]", operand_of(s.outputs[o]));
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
        line(3, "{}*({}*)(q{} + at{}) = w{};", columns() ? "if (inside) " : "", pack(type(k)), k, k, k);
      }
    line(2, "}}\n  }}");
    for (size_t o = 0; o < s.outputs.size(); ++o)
      if (s.folds[o] != Fold::none) finish_fold(s, o);
    if (k_.online == index) finish_online(s);
    if (k_.passes > 1) leave(index);
    else if (k_.sliced) combine_slices(s);
  }

  /// Where block number `from` of the row leaves a fold.
  std::string slot(uint32_t fold, DType type, std::string_view from) const {
    const int lanes = columns() ? k_.rows : 1;
    return fmt::format("({}*)(slots + ((((i64)block * a.slices + {}) * {} + {}) * {} + {}) * {})", cuda_value(type), from, k_.staged.folds.size(), fold,
                       lanes, columns() ? "threadIdx.x" : "0", kSlotBytes);
  }

  /// What the slice found, for the next launch.
  void leave(size_t index) {
    std::string stores;
    auto store = [&](const RowStage& s, size_t o) { stores += fmt::format(" *{} = f{};", slot(s.outputs[o].index, fold_type_of(s, o), "slice"), s.outputs[o].index); };
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
    return cuda_literal(t, {t == DType::f32 ? double{std::numeric_limits<float>::lowest()} : std::numeric_limits<double>::lowest(), 0});
  }

  /// What the blocks of a row found, in all threads of the last one to end; the others leave. The blocks' counter wraps,
  /// so that it is zero again for the next launch.
  void combine_slices(const RowStage& s) {
    const std::string_view thread = columns() ? "threadIdx.x" : "0";
    auto place = [&](size_t o, std::string_view from) { return "(volatile " + slot(s.outputs[o].index, fold_type_of(s, o), from).substr(1); };
    line(1, "if (lane == 0) {{");
    for (size_t o = 0; o < s.outputs.size(); ++o) line(2, "*{} = f{};", place(o, "slice"), s.outputs[o].index);
    line(2, "__threadfence();");
    line(1, "}}");
    line(1, "__shared__ bool last;");
    line(1, "__syncthreads();");
    line(1, "if (lane == 0 && {} == 0) {{", thread);
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
           fold_text(s.folds[o], t, fmt::format("f{}", f), fmt::format("({})*{}", cuda_value(t), place(o, "o"))));
      reduce_team(s, o, "n");
    }
  }

  /// The sum behind a maximum, in the same pass: of exp(x - near), near at most 8 below the largest x so far.
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
    if (compensated(sum, 0)) line(5, "s{0}.sum *= less; s{0}.lost *= less;", f);
    else line(5, "f{} *= less;", f);
    line(5, "near = y0;");
    line(4, "}}");
    line(4, "{} term;", t);
    line(4, "weight(y0, near, term);");
    if (compensated(sum, 0)) line(4, "s{}.add(term);", f);
    else line(4, "f{} += term;", f);
  }

  /// Below the whole row's maximum; where that is not finite there is an element whose exponential is no number.
  void finish_online(const RowStage& s) {
    const RowStage& sum = online_sum();
    const uint32_t m = s.outputs[0].index, f = sum.outputs[0].index;
    const std::string_view t = cuda_value(sum.program.output_type(0));
    if (compensated(sum, 0)) line(1, "float f{0} = s{0}.value();", f);
    line(1, "{} less;", t);
    line(1, "weight(near, {}, less);", k_.passes > 1 ? not_below_lowest(fmt::format("f{}", m)) : fmt::format("f{}", m));
    if (k_.passes > 1) line(1, "f{} *= less;", f);
    else line(1, "f{0} = a.length == 0 ? ({1})0 : f{0} * less + (f{2} - f{2});", f, t, m);
    reduce_team(sum, 0, "m");
  }

  DType fold_type_of(const RowStage& s, size_t o) const {
    return accumulator(s.folds[o], fold_type(s.folds[o], s.program.output_type(o)), s.program.output_type(o));
  }
  bool compensated(const RowStage& s, size_t o) const { return s.folds[o] == Fold::sum && fold_type_of(s, o) == DType::f32; }

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
    line(4, "f{} = {};", f, fold_text(s.folds[o], t, fmt::format("f{}", f), fmt::format("({})y{}", cuda_value(t), o)));
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
    const auto both = [&](const std::string& other) { return fold_text(s.folds[o], t, fmt::format("f{}", f), other); };
    auto tree = [&](int width) {
      if (width < 2) return;
      line(1, "#pragma unroll");
      line(1, "for (int o = {}; o > 0; o /= 2) f{} = {};", width / 2, f, both(fmt::format("shuffle(f{}, o)", f)));
    };
    if (columns()) {
      if (k_.threads == 1) return;
      line(1, "__shared__ {} {}{}[{}][{}];", cuda_value(t), shared, f, k_.threads, kWarp);
      line(1, "{0}{1}[lane][threadIdx.x] = f{1};", shared, f);
      line(1, "__syncthreads();");
      line(1, "f{1} = {0}{1}[0][threadIdx.x];", shared, f);
      line(1, "for (int o = 1; o < {}; ++o) f{} = {};", k_.threads, f, both(fmt::format("{}{}[o][threadIdx.x]", shared, f)));
      return;
    }
    tree(kWarp);
    const int warps = k_.threads / kWarp;
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
    for (size_t k = 0; k < s.inputs.size(); ++k) call += (k ? ", " : "") + input(s.inputs[k], s.program.inputs[k], "0");
    std::string stores;
    for (size_t o = 0; o < s.outputs.size(); ++o) {
      const bool result = s.outputs[o].kind == Kind::result;
      const std::string to = result ? fmt::format("z{}", operand_of(s.outputs[o])) : fmt::format("o{}", s.outputs[o].index);
      line(1, "{} {};", cuda_storage(s.program.output_type(o)), to);
      call += (call.empty() ? "" : ", ") + to;
      if (result) stores += fmt::format("{}*q{} = {};", stores.empty() ? "" : " ", operand_of(s.outputs[o]), to);
    }
    line(1, "stage{}({});", index, call);
    if (!stores.empty() && storing)
      line(1, "if (lane == 0{}{}) {{ {} }}", columns() ? " && inside" : "", k_.passes > 1 ? " && slice == 0" : "", stores);
  }

  const CudaRowKernel& k_;
  std::string out_;
};

}  // namespace

std::pair<int, int> CudaRowGeometry::block(const CudaRowKernel& k) {
  switch (k.team) {
    case CudaTeam::columns: return {kWarp, k.threads};
    case CudaTeam::warp: return {kWarp, k.rows};
    case CudaTeam::block: break;
  }
  return {k.threads, 1};
}

int64_t CudaRowGeometry::scratch_bytes(const CudaRowKernel& k) const {
  if (!k.sliced) return 0;
  const int64_t lanes = k.team == CudaTeam::columns ? k.rows : 1, folds = static_cast<int64_t>(k.staged.folds.size());
  return (row_blocks(k) * 4 + 15) / 16 * 16 + blocks(k) * folds * lanes * kSlotBytes;
}

Result<CudaRowPlan> plan_cuda_rows(const RowRegion& region, std::span<const RowLayout> operands, bool aligned, int cores,
                                   std::string_view wanted) {
  return Planner(region, operands, aligned, cores, wanted).run();
}

Result<std::string> cuda_row_source(const CudaRowKernel& kernel, std::string_view entry, std::string_view comment) {
  return Source(kernel).text(entry, comment);
}

std::string cuda_row_arguments(const CudaRowKernel& kernel, const CudaRowGeometry& geometry, std::span<void* const> pointers, int pass) {
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
