#include "runtime/in_place.h"

#include <optional>

#include "engine/contract/region_pieces.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/memory_plan.h"

namespace ferrule {
namespace {

/// Whether every piece that reads the operand reads the very elements it writes, in memory.
bool reads_where_it_writes(const Plan& plan, const Lowered& lowered, size_t layer, const Launch& l,
                           size_t input) {
  auto strides = [&](ValueId v) -> std::optional<std::vector<int64_t>> {
    auto dims = dims_of(plan, lowered, layer, v);
    if (!dims) return std::nullopt;
    return strides_of(*dims, layout_of(plan, lowered, layer, v));
  };
  const Type &x = type_of(plan, lowered, layer, l.inputs[input]),
             &y = type_of(plan, lowered, layer, l.outputs[0]);
  auto from = strides(l.inputs[input]), to = strides(l.outputs[0]);
  if (!from || !to || size_bits(x.dtype) != size_bits(y.dtype)) return false;
  for (const RegionPiece& p : l.region->pieces)
    for (const PieceOperand& o : p.inputs)
      if (o.operand == input && piece_strides(o, *from) != piece_strides(p.outputs[0], *to))
        return false;
  return true;
}

}  // namespace

bool same_elements(const Plan& plan, const Lowered& lowered, size_t layer, ValueId a, ValueId b) {
  const Type &x = type_of(plan, lowered, layer, a), &y = type_of(plan, lowered, layer, b);
  return x.shape && y.shape && *x.shape == *y.shape && size_bits(x.dtype) == size_bits(y.dtype) &&
         layout_of(plan, lowered, layer, a) == layout_of(plan, lowered, layer, b);
}

std::vector<std::pair<int, int>> generated_in_place(const Plan& plan, const Lowered& lowered,
                                                    size_t layer, const Launch& l) {
  std::vector<std::pair<int, int>> pairs;
  if (l.outputs.size() != 1 && !l.rows) return pairs;
  const bool pieces = l.region && l.region->pieced;
  if (!pieces && !l.rows && l.kind != Launch::Kind::generated) return pairs;
  for (size_t o = 0; o < l.outputs.size(); ++o)
    for (size_t k = 0; k < l.inputs.size(); ++k) {
      if (!l.inputs[k] || !l.outputs[o]) continue;
      const bool fits = pieces ? reads_where_it_writes(plan, lowered, layer, l, k)
                               : same_elements(plan, lowered, layer, l.inputs[k], l.outputs[o]) &&
                                     (!l.rows || l.rows->writes_over(k, o));
      if (fits) pairs.emplace_back(static_cast<int>(k), static_cast<int>(o));
    }
  return pairs;
}

}  // namespace ferrule
