#include "engine/semantics/row_folds.h"

namespace ferrule {

uint32_t RowFolds::operator()(Builtin kind, uint32_t v) {
  const DType t = program.type(v);
  const Fold f = kind == Builtin::rmax    ? Fold::max
                 : kind == Builtin::rmin  ? Fold::min
                 : kind == Builtin::rprod ? Fold::prod
                                          : Fold::sum;
  size_t k = 0;
  while (k < folds.size() && !(folds[k] == f && folded[k] == v)) ++k;
  if (k == folds.size()) {
    results.push_back(program.input(fold_type(f, t), fmt::format("fold{}", k)));
    sources.push_back({RowSource::Kind::fold, static_cast<uint32_t>(k)});
    folds.push_back(f);
    folded.push_back(v);
  }
  uint32_t r = results[k];
  if (kind == Builtin::rmean) {
    const DType wide = program.type(r);
    const uint32_t n = program.input(wide, "count");
    sources.push_back({RowSource::Kind::count, 0});
    r = program.op(Prim::div, wide, {r, n});
  }
  return program.cast(r, t);
}

}  // namespace ferrule
