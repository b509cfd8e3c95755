#include "codegen/program/row_loops.h"

#include <algorithm>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

tl::unexpected<NotApplicable> unsupported(std::string why) {
  return not_applicable("", "a row kernel", std::move(why));
}

/// Sizes of all row axes: those of the operands, broadcast.
Applicable<std::vector<int64_t>> row_dims(const RowRegion& r, std::span<const RowLayout> operands) {
  std::vector<int64_t> dims(r.axes.reduced.size(), 1);
  for (size_t k = 0; k < r.inputs.size(); ++k) {
    if (r.inputs[k].spread != RowSpread::row) continue;
    const auto& own = operands[k].dims;
    if (own.size() > dims.size()) return unsupported("an operand has more axes than the row");
    for (size_t a = 0; a < own.size(); ++a) {
      int64_t& d = dims[a + dims.size() - own.size()];
      if (d != own[a] && d != 1 && own[a] != 1)
        return unsupported("operands that do not broadcast");
      if (d == 1) d = own[a];
    }
  }
  return dims;
}

/// Strides along the row axes, 0 where the operand does not move.
Applicable<std::vector<int64_t>> align(const RowRegion& r, const RowOperand& o, const RowLayout& l,
                                       const std::vector<int64_t>& dims) {
  std::vector<size_t> axes;  // of the row axes, one per axis of the operand's, the last ones
  for (size_t a = 0; a < dims.size(); ++a)
    if (o.spread == RowSpread::row || (o.spread == RowSpread::squeezed && !r.axes.reduced[a]))
      axes.push_back(a);
  if (o.spread == RowSpread::channel) axes.push_back(1);
  if (l.dims.size() > axes.size()) return unsupported("an operand has more axes than the row");
  std::vector<int64_t> strides(dims.size(), 0);
  for (size_t k = 0; k < l.dims.size(); ++k) {
    const size_t a = axes[k + axes.size() - l.dims.size()];
    if (l.dims[k] == 1) continue;
    if (l.dims[k] != dims[a]) return unsupported("operands that do not broadcast");
    strides[a] = l.strides[k];
  }
  return strides;
}

DType operand_type(const RowRegion& r, size_t k) {
  if (k >= r.inputs.size()) return r.program.output_type(k - r.inputs.size());
  for (size_t i = 0; i < r.sources.size(); ++i)
    if (r.sources[i].kind == RowSource::Kind::operand && r.sources[i].index == k)
      return r.program.inputs[i];
  return DType::undefined;
}

/// Every row axis with the strides of all operands.
struct Axes {
  std::vector<int64_t> dims;
  std::vector<bool> reduced;
  std::vector<std::vector<int64_t>> strides;  ///< elements, [operand][axis]

  size_t guide() const {
    size_t best = 0;
    int64_t most = -1;
    for (size_t k = 0; k < strides.size(); ++k) {
      int64_t moved = 1;
      for (size_t a = 0; a < dims.size(); ++a)
        if (strides[k][a]) moved *= std::max<int64_t>(dims[a], 1);
      if (moved > most) most = moved, best = k;
    }
    return best;
  }

  std::vector<LoopAxis> collapsed(bool along, size_t first) const {
    std::vector<int64_t> own;
    std::vector<std::vector<int64_t>> moves(strides.size());
    for (size_t a = 0; a < dims.size(); ++a) {
      if (reduced[a] != along) continue;
      own.push_back(dims[a]);
      for (size_t k = 0; k < strides.size(); ++k) moves[k].push_back(strides[k][a]);
    }
    return collapse_axes(own, moves, first);
  }
};

}  // namespace

Applicable<RowLoops> row_loops(const RowRegion& region, std::span<const RowLayout> operands) {
  Axes axes;
  FERRULE_ASSIGN(axes.dims, row_dims(region, operands));
  axes.reduced = region.axes.reduced;
  for (size_t k = 0; k < operands.size(); ++k) {
    const bool input = k < region.inputs.size();
    const RowOperand& o = input ? region.inputs[k] : region.outputs[k - region.inputs.size()];
    FERRULE_ASSIGN(auto s, align(region, o, operands[k], axes.dims));
    axes.strides.push_back(std::move(s));
  }
  if (region.axes.groups) {
    if (axes.dims.size() < 2 || axes.dims[1] % region.axes.groups)
      return unsupported("the groups do not divide the channels");
    const int64_t inner = axes.dims[1] / region.axes.groups;
    for (auto& s : axes.strides) s.insert(s.begin() + 2, s[1]), s[1] *= inner;
    axes.dims.insert(axes.dims.begin() + 2, inner);
    axes.dims[1] = region.axes.groups;
    axes.reduced.insert(axes.reduced.begin() + 2, true);
  }
  RowLoops out;
  out.guide = axes.guide();
  out.kept = axes.collapsed(false, out.guide);
  out.reduced = axes.collapsed(true, out.guide);
  for (size_t k = 0; k < operands.size(); ++k) out.types.push_back(operand_type(region, k));
  return out;
}

}  // namespace ferrule
