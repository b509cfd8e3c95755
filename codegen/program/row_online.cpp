#include "codegen/program/row_online.h"

#include <map>

namespace ferrule {
namespace {

/// Whether values of two stages are computed alike from the same sources.
class Alike {
 public:
  Alike(const RowStage& a, const RowStage& b) : a_(a), b_(b) {}

  bool operator()(uint32_t x, uint32_t y) {
    const Inst &i = a_.program.insts[x], &j = b_.program.insts[y];
    if (i.op != j.op || i.type != j.type) return false;
    if (auto it = seen_.find({x, y}); it != seen_.end()) return it->second;
    bool same =
        i.op == Prim::load ? a_.inputs[i.index] == b_.inputs[j.index] : i.f == j.f && i.i == j.i;
    for (int k = 0; same && k < info(i.op).arity; ++k)
      same = (*this)(i.args[static_cast<size_t>(k)], j.args[static_cast<size_t>(k)]);
    return seen_[{x, y}] = same;
  }

 private:
  const RowStage &a_, &b_;
  std::map<std::pair<uint32_t, uint32_t>, bool> seen_;
};

bool only(const RowStage& s, Fold fold) {
  return s.elements && s.folds.size() == 1 && s.folds[0] == fold;
}

bool is_softmax(const RowStage& largest, const RowStage& sum) {
  if (!only(largest, Fold::max) || !only(sum, Fold::sum)) return false;
  const Program& p = sum.program;
  const Inst& e = p.insts[p.outputs[0]];
  if (e.op != Prim::exp || (e.type != DType::f32 && e.type != DType::f64)) return false;
  const Inst& below = p.insts[e.args[0]];
  if (below.op != Prim::sub) return false;
  const Inst& under = p.insts[below.args[1]];
  if (under.op != Prim::load || sum.inputs[under.index] != largest.outputs[0]) return false;
  return Alike(largest, sum)(largest.program.outputs[0], below.args[0]);
}

}  // namespace

std::optional<size_t> online_stage(const StagedRows& rows) {
  for (size_t s = 0; s + 1 < rows.stages.size(); ++s)
    if (is_softmax(rows.stages[s], rows.stages[s + 1])) return s;
  return std::nullopt;
}

}  // namespace ferrule
