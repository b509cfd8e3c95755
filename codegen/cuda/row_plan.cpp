#include "codegen/cuda/row_plan.h"

#include <algorithm>
#include <bit>

#include "codegen/cuda/text.h"
#include "codegen/program/row_online.h"

namespace ferrule {
namespace {

using Along = CudaRowOperand::Along;
using Kind = RowSource::Kind;

constexpr int kMostItems = 8;
constexpr int64_t kRegisters = 48;  // of 32 bits, that a thread may keep a row's elements in
constexpr int64_t kLongRow =
    16384;  // elements of a block from which its rows are worth being spread over several …
constexpr int64_t kLeastSlice = 4096;  // … with so many each
constexpr int64_t kLongElements =
    65536;  // and where a row's elements follow: another launch must pay
constexpr int kMostPasses = 4;
constexpr int64_t kWorthMeasuring = 4096;  // elements; a smaller launch takes its time to start

int64_t element_bytes(DType t) { return std::max(1, size_bits(t) / 8); }
int64_t up_to_power(int64_t n, int64_t least, int64_t most) {
  return std::clamp<int64_t>(
      static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(std::max<int64_t>(n, 1)))), least,
      most);
}

/// Stages that read an operand or a result element by element.
int readers(const StagedRows& rows, const RowSource& from) {
  int n = 0;
  for (const RowStage& s : rows.stages) n += s.elements && contains(s.inputs, from);
  return n;
}

class Planner {
 public:
  Planner(const RowRegion& region, std::span<const RowLayout> operands, bool aligned, int cores,
          std::string_view wanted)
      : r_(region), operands_(operands), aligned_(aligned), cores_(cores), wanted_(wanted) {}

  Applicable<CudaRowPlan> run() {
    FERRULE_TRY(check_cuda_types(r_.program));
    FERRULE_ASSIGN(RowLoops loops, row_loops(r_, operands_));
    k_.inputs = r_.inputs.size();
    for (auto* axes : {&loops.kept, &loops.reduced})
      if (axes->empty()) axes->push_back({1, std::vector<int64_t>(operands_.size(), 0)});
    geometry(loops);
    for (size_t k = 0; k < operands_.size(); ++k) k_.operands.push_back({loops.types[k], along(k)});
    beside_ = g_.kept.back().strides[loops.guide] == 1 && g_.kept.back().size > 1 &&
              g_.reduced.back().strides[loops.guide] != 1;
    k_.vector = beside_ ? 1 : vector();
    k_.staged = split_rows(r_, false);
    only_folds_ = only_folds();
    passes_ = row_passes(k_.staged, online_stage(k_.staged)).back() + 1;
    plan_.shapes = {shapes(), wanted_};
    take(plan_.shapes.taken);
    return std::move(plan_);
  }

 private:
  void geometry(RowLoops& loops) {
    int64_t farthest = 0;
    for (size_t k = 0; k < operands_.size(); ++k)
      farthest = std::max(farthest, reach(loops.kept, k) + reach(loops.reduced, k));
    g_.kept = std::move(loops.kept), g_.reduced = std::move(loops.reduced);
    for (const LoopAxis& a : g_.kept) g_.rows *= a.size;
    for (const LoopAxis& a : g_.reduced) g_.length *= a.size;
    k_.kept_rank = static_cast<int>(g_.kept.size()),
    k_.reduced_rank = static_cast<int>(g_.reduced.size());
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
    if (beside_)
      return {"columns", static_cast<int>(up_to_power(g_.length / 4, 1, g_.rows < 32768 ? 32 : 8)),
              kRowWarp};
    if (packs() <= kRowWarp * kMostItems) return {"warp", kRowWarp, 4};
    return {"block", static_cast<int>(up_to_power(packs() / 4, 128, 1024))};
  }
  /// A row in about so many blocks.
  CudaShape cut(int64_t slices) const {
    const int64_t v = k_.vector, chunk = ((g_.length + slices - 1) / slices + v - 1) / v * v;
    slices = (g_.length + chunk - 1) / chunk;
    // Blocks of 1024 threads have too few registers for this on sm_120.
    if (beside_)
      return {"columns", static_cast<int>(up_to_power(chunk / 4, 1, 16)), kRowWarp, slices};
    return {"block", static_cast<int>(up_to_power(chunk / v / 4, 128, 1024)), 1, slices};
  }

  /// What is worth a measurement, the built-in choice first.
  std::vector<CudaShape> shapes() const {
    const CudaShape usual = whole();
    const int64_t blocks = (g_.rows + usual.each - 1) / usual.each,
                  each = g_.length * (beside_ ? kRowWarp : 1);
    std::vector<CudaShape> out;
    const bool room =
        passes_ <= kMostPasses && usual.form != "warp" && blocks > 0 && blocks * 2 <= cores_;
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
      for (int threads :
           {usual.threads / 2, usual.threads * 2, usual.threads / 4, usual.threads * 4})
        if (threads >= 1 && threads <= 32 && threads <= g_.length)
          out.push_back({"columns", threads, kRowWarp});
    } else {
      if (packs() <= 4 * kRowWarp * kMostItems)
        for (int rows : {4, 1, 2, 8})
          if (rows < 2 * g_.rows) out.push_back({"warp", kRowWarp, rows});
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
    k_.team = s.form == "columns" ? CudaTeam::columns
              : s.form == "warp"  ? CudaTeam::warp
                                  : CudaTeam::block;
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
    for (size_t k = 0; k < k_.operands.size(); ++k)
      if (kept_in_registers(k_, k)) bytes += element_bytes(k_.operands[k].type);
    for (DType t : k_.staged.tiles) bytes += element_bytes(t);
    if (items > kMostItems || bytes * items * k_.vector > kRegisters * 4) k_.items = 0;
  }

  /// Whether nothing but one round of reductions runs along the rows.
  bool only_folds() const {
    int stages = 0;
    for (const RowStage& s : k_.staged.stages) {
      stages += s.elements;
      if (s.elements && contains(s.folds, Fold::none)) return false;
    }
    return stages == 1;
  }

  const RowRegion& r_;
  std::span<const RowLayout> operands_;
  const bool aligned_;
  const int cores_;
  const std::string_view wanted_;
  bool beside_ = false;  ///< rows lie side by side in memory
  bool only_folds_ = false;
  int passes_ = 1;  ///< launches, where a row is spread and not only folded
  CudaRowPlan plan_;
  CudaRowKernel& k_ = plan_.kernel;
  CudaRowGeometry& g_ = plan_.geometry;
};

}  // namespace

bool kept_in_registers(const CudaRowKernel& k, size_t operand) {
  if (k.items == 0) return false;
  if (operand >= k.inputs)
    return readers(k.staged, {Kind::result, static_cast<uint32_t>(operand - k.inputs)}) > 0;
  return k.operands[operand].along != Along::none &&
         readers(k.staged, {Kind::operand, static_cast<uint32_t>(operand)}) > 1;
}

std::vector<int> row_passes(const StagedRows& rows, std::optional<size_t> online) {
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

std::pair<int, int> CudaRowGeometry::block(const CudaRowKernel& k) {
  switch (k.team) {
    case CudaTeam::columns:
      return {kRowWarp, k.threads};
    case CudaTeam::warp:
      return {kRowWarp, k.rows};
    case CudaTeam::block:
      break;
  }
  return {k.threads, 1};
}

int64_t CudaRowGeometry::scratch_bytes(const CudaRowKernel& k) const {
  if (!k.sliced) return 0;
  const int64_t lanes = k.team == CudaTeam::columns ? k.rows : 1,
                folds = std::ssize(k.staged.folds);
  return (row_blocks(k) * 4 + 15) / 16 * 16 + blocks(k) * folds * lanes * kRowSlotBytes;
}

Applicable<CudaRowPlan> plan_cuda_rows(const RowRegion& region, std::span<const RowLayout> operands,
                                       bool aligned, int cores, std::string_view wanted) {
  return Planner(region, operands, aligned, cores, wanted).run();
}

}  // namespace ferrule
