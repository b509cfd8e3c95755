#include "codegen/cpu/row_nest.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/base/native_type.h"

namespace ferrule {
namespace {

constexpr int64_t kBlockElements = 8192;  // about L1: later stages find a block's elements there
constexpr int64_t kColumns = 64;          // rows that vectors across rows take at least
constexpr int64_t kShortRow = 16;
constexpr size_t kMaxOperands = LoopNest::kMaxOperands;

int64_t aligned(int64_t bytes) { return (bytes + 63) & ~int64_t{63}; }
int64_t bytes_of(DType t) { return std::max(1, size_bits(t) / 8); }

}  // namespace

const StagedRows& RowSplits::of(const RowRegion& region, bool tiles) {
  std::string text = identity(region.program) + (tiles ? "t" : "-");
  for (Fold f : region.folds) text += fmt::format("{},", static_cast<int>(f));
  for (const std::string& name : region.program.input_names) text += name + ";";
  for (const RowSource& s : region.sources)
    text += fmt::format("{},{};", static_cast<int>(s.kind), s.index);
  for (const auto* operands : {&region.inputs, &region.outputs}) {
    for (const RowOperand& o : *operands) text += o.uniform ? "u" : "v";
    text += ";";
  }
  auto it = known_.find(text);
  if (it == known_.end()) it = known_.emplace(std::move(text), split_rows(region, tiles)).first;
  return it->second;
}

/// Axes, blocks and stages from sizes and strides.
class RowNest::Maker {
 public:
  Maker(const RowRegion& region, std::span<const RowLayout> operands, const std::string& target,
        int64_t l2_bytes, int threads, RowSplits& splits)
      : r_(region),
        splits_(splits),
        operands_(operands),
        target_(target),
        l2_bytes_(l2_bytes),
        threads_(std::max(threads, 1)) {}

  Applicable<RowNest> run() {
    if (operands_.size() > kMaxOperands)
      return error(Code::codegen_failed, "",
                   fmt::format("a kernel with {} operands", operands_.size()));
    FERRULE_ASSIGN(loops_, row_loops(r_, operands_));
    axes();
    const int64_t lanes = across() ? std::min(n_.block_axis_.size, kColumns) : 1;
    const StagedRows* staged = &splits_.of(r_, true);
    int64_t tile_bytes = 0;
    for (DType t : staged->tiles) tile_bytes += bytes_of(t);
    if (tile_bytes * lanes * n_.length_ > l2_bytes_ / 2) staged = &splits_.of(r_, false);
    blocks();
    scratch(*staged);
    for (const RowStage& s : staged->stages) FERRULE_TRY(stage(s));
    return std::move(n_);
  }

 private:
  bool across() const { return n_.across_; }
  std::vector<LoopAxis> bytes(std::vector<LoopAxis> axes) const {
    for (LoopAxis& a : axes)
      for (size_t k = 0; k < a.strides.size(); ++k) a.strides[k] *= bytes_of(loops_.types[k]);
    return axes;
  }

  LoopAxis take(std::vector<LoopAxis>& axes, size_t at) const {
    if (axes.empty()) return {1, std::vector<int64_t>(operands_.size(), 0)};
    LoopAxis a = std::move(axes[at]);
    axes.erase(axes.begin() + static_cast<long>(at));
    return a;
  }

  void axes() {
    std::vector<LoopAxis> kept = bytes(loops_.kept), reduced = bytes(loops_.reduced);
    size_t row = reduced.empty() ? 0 : reduced.size() - 1;
    // Many calls for a few elements each cost more than they compute: a short last axis leaves the
    // row to the longest one.
    for (size_t k = 0; k < reduced.size(); ++k)
      if (reduced.back().size < kShortRow && reduced[k].size >= 4 * reduced[row].size) row = k;
    n_.row_axis_ = take(reduced, row);
    n_.block_axis_ = take(kept, kept.empty() ? 0 : kept.size() - 1);
    n_.unit_axes_ = std::move(kept), n_.step_axes_ = std::move(reduced);
    for (const LoopAxis& a : n_.unit_axes_) n_.units_ *= a.size;
    for (const LoopAxis& a : n_.step_axes_) n_.steps_ *= a.size;
    n_.length_ = n_.steps_ * n_.row_axis_.size;
    const size_t g = loops_.guide;
    const int64_t size = bytes_of(loops_.types[g]), rows = n_.block_axis_.size,
                  length = n_.row_axis_.size;
    const bool row_dense = n_.row_axis_.strides[g] == size,
               block_dense = n_.block_axis_.strides[g] == size;
    n_.across_ = rows > 1 && (length == 1 || block_dense ||
                              (rows >= kShortRow && (!row_dense || length < kShortRow)));
    n_.count_f64_ = static_cast<double>(n_.length_);
    n_.count_i64_ = n_.length_;
  }

  void blocks() {
    const int64_t rows = n_.block_axis_.size, least = across() ? std::min(kColumns, rows) : 1;
    int64_t block = std::clamp<int64_t>(kBlockElements / std::max<int64_t>(1, n_.length_), least,
                                        std::max(rows, least));
    // Enough blocks for all threads, but whole vectors.
    const int64_t wanted = (2 * threads_ + n_.units_ - 1) / std::max<int64_t>(n_.units_, 1);
    block =
        std::min(block, std::max<int64_t>((rows + wanted - 1) / wanted, across() ? kShortRow : 1));
    if (across() && block >= kShortRow) block = (block + kShortRow - 1) / kShortRow * kShortRow;
    n_.block_ = std::max<int64_t>(block, 1);
    n_.blocks_a_unit_ = (rows + n_.block_ - 1) / n_.block_;
  }

  void scratch(const StagedRows& staged) {
    int64_t at = 0;
    auto place = [&](DType t, int64_t elements) {
      const int64_t here = at;
      at += aligned(elements * bytes_of(t));
      return here;
    };
    n_.folds_ = staged.folds, n_.fold_types_ = staged.fold_types;
    for (DType t : staged.fold_types) n_.fold_at_.push_back(place(t, n_.block_));
    n_.fold_bytes_ = at;
    at *= 2;  // a slice's, and those of the whole row
    for (DType t : staged.rows) n_.row_at_.push_back(place(t, n_.block_));
    for (DType t : staged.tiles) n_.tile_at_.push_back(place(t, n_.block_ * n_.length_));
    n_.scratch_bytes_ = at;
  }

  Operand operand(const RowSource& s, DType t) const {
    Operand o;
    o.kind = s.kind, o.index = s.index;
    const int64_t size = bytes_of(t);
    switch (s.kind) {
      case RowSource::Kind::operand:
      case RowSource::Kind::result: {
        const size_t k = s.index + (s.kind == RowSource::Kind::result ? r_.inputs.size() : 0);
        o.index = static_cast<uint32_t>(k);
        o.block_stride = n_.block_axis_.strides[k], o.row_stride = n_.row_axis_.strides[k];
        break;
      }
      case RowSource::Kind::fold:
      case RowSource::Kind::row:
        o.block_stride = size;
        break;
      case RowSource::Kind::tile:
        o.block_stride = across() ? size : size * n_.length_;
        o.row_stride = across() ? size * n_.block_ : size;
        o.tile_step = o.row_stride * n_.row_axis_.size;
        break;
      case RowSource::Kind::count:
        o.index = is_float(t);
        break;
    }
    return o;
  }

  Status stage(const RowStage& s) {
    Stage out;
    out.elements = s.elements;
    KernelKey key;
    key.target = target_;
    key.fold_outer = s.elements && across() &&
                     std::ranges::any_of(s.folds, [](Fold f) { return f != Fold::none; });
    const bool vector_is_row = s.elements && !across();
    for (size_t k = 0; k < s.inputs.size() + s.outputs.size(); ++k) {
      const bool input = k < s.inputs.size();
      const size_t o = input ? 0 : k - s.inputs.size();
      const bool folded = !input && s.folds[o] != Fold::none;
      const DType element = input ? s.program.inputs[k] : s.program.output_type(o);
      const DType t = folded ? fold_type(s.folds[o], element) : element;
      Operand op = operand(input ? s.inputs[k] : s.outputs[o], t);
      const int64_t inner = vector_is_row ? op.row_stride : op.block_stride;
      out.inner.push_back(inner);
      out.outer.push_back(!s.elements ? 0 : vector_is_row ? op.block_stride : op.row_stride);
      key.inner.push_back(folded       ? InnerStride::contiguous
                          : inner == 0 ? (input ? InnerStride::broadcast : InnerStride::contiguous)
                          : inner == bytes_of(t) ? InnerStride::contiguous
                                                 : InnerStride::strided);
      op.folded = folded;
      if (folded) out.folds = true, out.folded.push_back(s.outputs[o].index);
      out.results = out.results || (!input && s.outputs[o].kind == RowSource::Kind::result);
      out.operands.push_back(op);
    }
    if (out.operands.size() > kMaxOperands)
      return error(Code::codegen_failed, "",
                   fmt::format("a kernel with {} operands", out.operands.size()));
    if (out.folds) key.folds = s.folds;
    if (s.elements) n_.cost_ += s.program.cost();
    key.program = s.program;
    n_.keys_.push_back(std::move(key));
    n_.stages_.push_back(std::move(out));
    return {};
  }

  const RowRegion& r_;
  RowSplits& splits_;
  std::span<const RowLayout> operands_;
  const std::string& target_;
  int64_t l2_bytes_;
  int threads_;
  RowLoops loops_;
  RowNest n_;
};

Applicable<RowNest> RowNest::make(const RowRegion& region, std::span<const RowLayout> operands,
                                  const std::string& target, int64_t l2_bytes, int threads,
                                  RowSplits& splits) {
  return Maker(region, operands, target, l2_bytes, threads, splits).run();
}

namespace {

/// Moves each pointer to a place of an odometer over `axes`, the last one fastest.
void advance(const std::vector<LoopAxis>& axes, int64_t index, size_t operands, void** at) {
  for (size_t a = axes.size(); a-- > 0 && index > 0;) {
    const int64_t i = index % axes[a].size;
    index /= axes[a].size;
    for (size_t k = 0; k < operands; ++k)
      at[k] = static_cast<char*>(at[k]) + i * axes[a].strides[k];
  }
}
int64_t offset(const std::vector<LoopAxis>& axes, int64_t index, size_t operand) {
  int64_t out = 0;
  for (size_t a = axes.size(); a-- > 0 && index > 0; index /= axes[a].size)
    out += index % axes[a].size * axes[a].strides[operand];
  return out;
}

template <class T>
void fill(char* to, double f, int64_t i, int64_t n) {
  std::fill_n(reinterpret_cast<T*>(to), n,
              std::is_floating_point_v<T> ? static_cast<T>(f) : static_cast<T>(i));
}
template <class T>
void fold_into(Fold fold, const char* from, char* to, int64_t n) {
  auto x = reinterpret_cast<const T*>(from);
  auto y = reinterpret_cast<T*>(to);
  for (int64_t k = 0; k < n; ++k) y[k] = fold_in(fold, y[k], x[k]);
}

}  // namespace

void RowNest::start_folds(char* folds, int64_t rows) const {
  for (size_t k = 0; k < folds_.size(); ++k) {
    const Scalar v = fold_identity(folds_[k], fold_types_[k]);
    with_native(fold_types_[k], [&]<class T>(T) { fill<T>(folds + fold_at_[k], v.f, v.i, rows); });
  }
}

void RowNest::block_pointers(void* const* ptrs, int64_t block, void** at, int64_t& rows) const {
  const size_t operands = block_axis_.strides.size();
  const int64_t unit = block / blocks_a_unit_, first = block % blocks_a_unit_ * block_;
  std::copy_n(ptrs, operands, at);
  for (size_t k = 0; k < operands; ++k)
    at[k] = static_cast<char*>(at[k]) + first * block_axis_.strides[k];
  advance(unit_axes_, unit, operands, at);
  rows = std::min(block_, block_axis_.size - first);
}

RowNest::Memory RowNest::memory_of(char* scratch, bool sliced) const {
  return {scratch, sliced ? scratch + fold_bytes_ : scratch, scratch};
}

void RowNest::run_stage(const Stage& s, KernelFn fn, void* const* ptrs, int64_t rows,
                        const Slice& slice, const Memory& memory) const {
  std::array<void*, kMaxOperands> base, at;
  for (size_t k = 0; k < s.operands.size(); ++k) {
    const Operand& o = s.operands[k];
    switch (o.kind) {
      case RowSource::Kind::operand:
      case RowSource::Kind::result:
        base[k] = static_cast<char*>(ptrs[o.index]) + slice.row_begin * o.row_stride;
        break;
      case RowSource::Kind::fold:
        base[k] = (o.folded ? memory.partial : memory.folds) + fold_at_[o.index];
        break;
      case RowSource::Kind::row:
        base[k] = memory.rest + row_at_[o.index];
        break;
      case RowSource::Kind::tile:
        base[k] = memory.rest + tile_at_[o.index];
        break;
      case RowSource::Kind::count:
        base[k] = o.index ? static_cast<void*>(const_cast<double*>(&count_f64_))
                          : const_cast<int64_t*>(&count_i64_);
    }
  }
  if (!s.elements) {
    const int64_t n[2] = {1, rows};
    return fn(base.data(), n, s.outer.data(), s.inner.data());
  }
  const int64_t length = slice.row_end - slice.row_begin;
  const int64_t n[2] = {across_ ? length : rows, across_ ? rows : length};
  if (step_axes_.empty()) return fn(base.data(), n, s.outer.data(), s.inner.data());
  for (int64_t step = slice.step_begin; step < slice.step_end; ++step) {
    for (size_t k = 0; k < s.operands.size(); ++k) {
      const Operand& o = s.operands[k];
      const bool outside = o.kind == RowSource::Kind::operand || o.kind == RowSource::Kind::result;
      const int64_t by =
          outside ? offset(step_axes_, step, o.index) : (step - slice.step_begin) * o.tile_step;
      at[k] = static_cast<char*>(base[k]) + by;
    }
    fn(at.data(), n, s.outer.data(), s.inner.data());
  }
}

void RowNest::run(std::span<const KernelFn> fns, void* const* ptrs, int64_t begin, int64_t end,
                  char* scratch) const {
  std::array<void*, kMaxOperands> at;
  const Slice whole{0, row_axis_.size, 0, steps_};
  const Memory memory = memory_of(scratch, false);
  for (int64_t block = begin; block < end; ++block) {
    int64_t rows = 0;
    block_pointers(ptrs, block, at.data(), rows);
    start_folds(memory.partial, rows);
    for (size_t k = 0; k < stages_.size(); ++k)
      run_stage(stages_[k], fns[k], at.data(), rows, whole, memory);
  }
}

void RowNest::combine(const Stage& s, char* scratch, int me, int team, int64_t rows) const {
  char* own = scratch + me * scratch_bytes_ + fold_bytes_;
  for (uint32_t f : s.folded)
    with_native(fold_types_[f], [&]<class T>(T) {
      std::memcpy(own + fold_at_[f], scratch + fold_at_[f], static_cast<size_t>(rows) * sizeof(T));
      for (int k = 1; k < team; ++k)
        fold_into<T>(folds_[f], scratch + k * scratch_bytes_ + fold_at_[f], own + fold_at_[f],
                     rows);
    });
}

void RowNest::run_sliced(std::span<const KernelFn> fns, void* const* ptrs, int me, int team,
                         char* scratch, void (*barrier)()) const {
  std::array<void*, kMaxOperands> at;
  const bool rows_cut = row_axis_.size >= steps_;
  const int64_t n = slices();
  Slice slice{0, row_axis_.size, 0, steps_};
  (rows_cut ? slice.row_begin : slice.step_begin) = n * me / team;
  (rows_cut ? slice.row_end : slice.step_end) = n * (me + 1) / team;
  const Memory memory = memory_of(scratch + me * scratch_bytes_, true);
  for (int64_t block = 0; block < blocks(); ++block) {
    int64_t rows = 0;
    block_pointers(ptrs, block, at.data(), rows);
    start_folds(memory.partial, rows);
    for (size_t k = 0; k < stages_.size(); ++k) {
      const Stage& s = stages_[k];
      if (!s.elements && s.results && me != 0)
        continue;  // all members have the same; one writes it
      run_stage(s, fns[k], at.data(), rows, slice, memory);
      if (!s.folds) continue;
      if (team > 1) barrier();
      combine(s, scratch, me, team, rows);
    }
    if (team > 1) barrier();  // the others may still be reading what the next block starts anew
  }
}

}  // namespace ferrule
