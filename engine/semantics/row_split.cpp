// A row region in stages. What differs along the row is computed per element, everything else once
// a row; an element stage ends where a reduction is complete. Values that later stages need again
// are computed again, or, where that costs much, kept as a tile. A result that a reduction computes
// on its way is written there; later stages read it instead of what it is made of.
#include <algorithm>
#include <map>

#include "engine/semantics/program_builder.h"
#include "engine/semantics/row.h"

namespace ferrule {
namespace {

/// Cost of computing a value again from which a tile is better; an exponential is 12, a load from
/// L1 about 1.
constexpr int kTileCost = 10;

bool constant(const Inst& in) { return in.op == Prim::constant; }
size_t arity(const Inst& in) { return static_cast<size_t>(info(in.op).arity); }

std::string place_name(const RowSource& s) {
  switch (s.kind) {
    case RowSource::Kind::operand:
      return fmt::format("in{}", s.index);
    case RowSource::Kind::result:
      return fmt::format("out{}", s.index);
    case RowSource::Kind::fold:
      return fmt::format("fold{}", s.index);
    case RowSource::Kind::row:
      return fmt::format("row{}", s.index);
    case RowSource::Kind::tile:
      return fmt::format("tile{}", s.index);
    case RowSource::Kind::count:
      break;
  }
  return "count";
}

/// a / u, u the same for the row, as (a * p) * (1 / (u * p)): one division a row. p, a power of
/// two, keeps u * p and its reciprocal normal whatever u is; the result is within one unit in the
/// last place more.
class Reciprocals {
 public:
  explicit Reciprocals(const Program& p, const std::vector<bool>& varies)
      : p_(p), varies_(varies) {}

  Program run() {
    ProgramBuilder b;
    for (size_t k = 0; k < p_.inputs.size(); ++k) b.input(p_.inputs[k], p_.input_names[k]);
    std::vector<uint32_t> to(p_.insts.size());
    for (size_t k = 0; k < p_.insts.size(); ++k) {
      Inst in = p_.insts[k];
      if (in.op == Prim::load) {
        to[k] = b.load(in.index);
        continue;
      }
      const uint32_t divisor = in.args[1];
      for (size_t a = 0; a < arity(in); ++a) in.args[a] = to[in.args[a]];
      const bool hoist = in.op == Prim::div && is_float(in.type) && varies_[k] &&
                         !varies_[divisor] && !constant(p_.insts[divisor]);
      to[k] = hoist ? divide(b, in, divisor) : b.append(in);
    }
    for (uint32_t o : p_.outputs) b.output(to[o]);
    return b.take();
  }

 private:
  struct Parts {
    uint32_t scale, inverse;
  };

  uint32_t divide(ProgramBuilder& b, const Inst& in, uint32_t divisor) {
    const DType t = in.type;
    auto [it, fresh] = parts_.try_emplace(divisor);
    if (fresh) {
      const double big = t == DType::f64 ? 0x1p512 : 0x1p64;
      auto number = [&](double v) { return b.constant(t, v, 0); };
      const uint32_t u = in.args[1], size = b.op(Prim::abs, t, {u});
      const uint32_t small = b.op(Prim::lt, DType::boolean, {size, number(1 / big)});
      const uint32_t large = b.op(Prim::gt, DType::boolean, {size, number(big)});
      const uint32_t down = b.op(Prim::select, t, {large, number(1 / big), number(1)});
      it->second.scale = b.op(Prim::select, t, {small, number(big), down});
      it->second.inverse =
          b.op(Prim::div, t, {number(1), b.op(Prim::mul, t, {u, it->second.scale})});
    }
    return b.op(Prim::mul, t,
                {b.op(Prim::mul, t, {in.args[0], it->second.scale}), it->second.inverse});
  }

  const Program& p_;
  const std::vector<bool>& varies_;
  std::map<uint32_t, Parts> parts_;
};

class Splitter {
 public:
  Splitter(const RowRegion& region, bool tiles) : r_(region), tiles_(tiles) {
    p_ = region.program;
    classify();
    p_ = Reciprocals(p_, varies_).run();
    classify();
    kept_.assign(p_.insts.size(), std::nullopt);
  }

  StagedRows run() {
    out_.folds = r_.folds;
    out_.fold_types.resize(r_.folds.size());
    for (size_t k = 0; k < p_.inputs.size(); ++k)
      if (r_.sources[k].kind == RowSource::Kind::fold)
        out_.fold_types[r_.sources[k].index] = p_.inputs[k];
    int last = -1;
    for (size_t f = 0; f < r_.folds.size(); ++f) last = std::max(last, level_[folded(f)]);
    for (int level = 0; level <= last; ++level) fold_stage(level);
    result_stages();
    return std::move(out_);
  }

 private:
  uint32_t folded(size_t f) const { return p_.outputs[r_.outputs.size() + f]; }
  bool whole(size_t result) const { return !r_.outputs[result].uniform; }

  /// Level 0 needs no reduction; the result of a fold is one level above what it folds. Its load
  /// may stand before that, hence the rounds: one a level.
  void classify() {
    varies_.assign(p_.insts.size(), false);
    level_.assign(p_.insts.size(), 0);
    std::vector<int> result(r_.folds.size(), 1);
    for (bool changed = true; changed;) {
      for (size_t k = 0; k < p_.insts.size(); ++k) level_of(k, result);
      changed = false;
      for (size_t f = 0; f < r_.folds.size(); ++f) {
        changed = changed || result[f] != level_[folded(f)] + 1;
        result[f] = level_[folded(f)] + 1;
      }
    }
  }
  void level_of(size_t k, const std::vector<int>& result) {
    const Inst& in = p_.insts[k];
    if (in.op == Prim::load) {
      const RowSource& s = r_.sources[in.index];
      varies_[k] = s.kind == RowSource::Kind::operand && !r_.inputs[s.index].uniform;
      if (s.kind == RowSource::Kind::fold) level_[k] = result[s.index];
      return;
    }
    for (size_t a = 0; a < arity(in); ++a) {
      varies_[k] = varies_[k] || varies_[in.args[a]];
      level_[k] = std::max(level_[k], level_[in.args[a]]);
    }
  }

  /// What an instruction is read from instead of being computed; none: it is computed.
  std::optional<RowSource> leaf(uint32_t k) const {
    if (kept_[k]) return kept_[k];
    if (p_.insts[k].op == Prim::load) return r_.sources[p_.insts[k].index];
    return std::nullopt;
  }

  /// Instructions that computing `roots` takes, those read from memory not entered.
  std::vector<bool> cone(const std::vector<uint32_t>& roots, bool inside_rows) const {
    std::vector<bool> in(p_.insts.size());
    std::vector<uint32_t> work;
    auto visit = [&](uint32_t k) {
      if (in[k] || constant(p_.insts[k]) || leaf(k) || (!inside_rows && !varies_[k])) return;
      in[k] = true;
      work.push_back(k);
    };
    for (uint32_t r : roots) visit(r);
    while (!work.empty()) {
      const Inst& i = p_.insts[work.back()];
      work.pop_back();
      for (size_t a = 0; a < arity(i); ++a) visit(i.args[a]);
    }
    return in;
  }

  struct Root {
    uint32_t inst;
    RowSource to;
    Fold fold = Fold::none;
  };

  void emit(bool elements, const std::vector<Root>& roots) {
    RowStage stage;
    stage.elements = elements;
    ProgramBuilder b;
    std::map<uint32_t, uint32_t> done;
    std::vector<uint32_t> roots_in;
    for (const Root& r : roots) roots_in.push_back(r.inst);
    const std::vector<bool> compute = cone(roots_in, true);
    auto read = [&](uint32_t k) {
      if (auto it = done.find(k); it != done.end()) return it->second;
      if (constant(p_.insts[k])) return done[k] = b.append(p_.insts[k]);
      const RowSource s = *leaf(k);
      stage.inputs.push_back(s);
      return done[k] = b.input(p_.insts[k].type, place_name(s));
    };
    for (uint32_t k = 0; k < p_.insts.size(); ++k) {
      if (!compute[k]) continue;
      Inst in = p_.insts[k];
      for (size_t a = 0; a < arity(in); ++a)
        in.args[a] = compute[in.args[a]] ? done.at(in.args[a]) : read(in.args[a]);
      done[k] = b.append(in);
    }
    for (const Root& r : roots) {
      b.output(compute[r.inst] ? done.at(r.inst) : read(r.inst));
      stage.outputs.push_back(r.to);
      stage.folds.push_back(r.fold);
    }
    stage.program = b.take();
    out_.stages.push_back(std::move(stage));
  }

  /// Everything the element stage needs once a row, computed once a row. Constants, operands and
  /// folds in their own type are read as they are.
  void row_stage(const std::vector<uint32_t>& roots) {
    std::vector<bool> elements = cone(roots, false);
    std::vector<Root> rows;
    auto need = [&](uint32_t k) {
      if (varies_[k] || constant(p_.insts[k]) || leaf(k)) return;
      const RowSource to{RowSource::Kind::row, static_cast<uint32_t>(out_.rows.size())};
      if (std::ranges::any_of(rows, [&](const Root& r) { return r.inst == k; })) return;
      out_.rows.push_back(p_.insts[k].type);
      rows.push_back({k, to});
    };
    for (uint32_t r : roots) need(r);
    for (uint32_t k = 0; k < p_.insts.size(); ++k)
      if (elements[k])
        for (size_t a = 0; a < arity(p_.insts[k]); ++a) need(p_.insts[k].args[a]);
    if (rows.empty()) return;
    emit(false, rows);
    for (const Root& r : rows) kept_[r.inst] = r.to;
  }

  std::vector<uint32_t> later_roots(int level) const {
    std::vector<uint32_t> roots;
    for (size_t f = 0; f < r_.folds.size(); ++f)
      if (level_[folded(f)] > level) roots.push_back(folded(f));
    for (size_t k = 0; k < r_.outputs.size(); ++k)
      if (whole(k)) roots.push_back(p_.outputs[k]);
    return roots;
  }

  void fold_stage(int level) {
    std::vector<Root> roots;
    std::vector<uint32_t> values;
    for (size_t f = 0; f < r_.folds.size(); ++f)
      if (level_[folded(f)] == level) {
        roots.push_back(
            {folded(f), {RowSource::Kind::fold, static_cast<uint32_t>(f)}, r_.folds[f]});
        values.push_back(folded(f));
      }
    if (roots.empty()) return;
    row_stage(values);
    std::vector<Root> kept = results_of(values);
    if (tiles_) worth_keeping(values, later_roots(level), kept);
    roots.insert(roots.end(), kept.begin(), kept.end());
    emit(true, roots);
    for (const Root& r : kept) kept_[r.inst] = r.to;
  }

  /// Results that this stage computes, in the type that it computes them in.
  std::vector<Root> results_of(const std::vector<uint32_t>& now) const {
    const std::vector<bool> here = cone(now, false);
    std::vector<Root> out;
    for (size_t k = 0; k < r_.outputs.size(); ++k)
      if (here[p_.outputs[k]])
        out.push_back({p_.outputs[k], {RowSource::Kind::result, static_cast<uint32_t>(k)}});
    return out;
  }

  /// Values of this stage that later ones read, if they cost more than a load: beside those that
  /// are in memory anyway.
  void worth_keeping(const std::vector<uint32_t>& now, const std::vector<uint32_t>& later,
                     std::vector<Root>& kept) {
    const std::vector<bool> here = cone(now, false), there = cone(later, false);
    std::vector<bool> edge(p_.insts.size());
    for (uint32_t k : later) edge[k] = here[k];
    for (uint32_t k = 0; k < p_.insts.size(); ++k)
      if (there[k] && !here[k])
        for (size_t a = 0; a < arity(p_.insts[k]); ++a)
          edge[p_.insts[k].args[a]] = here[p_.insts[k].args[a]];
    for (const Root& r : kept) edge[r.inst] = false;
    for (uint32_t k = 0; k < p_.insts.size(); ++k) {
      if (!edge[k] || !there[k]) continue;
      int cost = 0;
      const std::vector<bool> again = cone({k}, false);
      for (uint32_t j = 0; j < p_.insts.size(); ++j)
        cost += again[j] ? info(p_.insts[j].op).cost : 0;
      if (cost < kTileCost) continue;
      kept.push_back({k, {RowSource::Kind::tile, static_cast<uint32_t>(out_.tiles.size())}});
      out_.tiles.push_back(p_.insts[k].type);
    }
  }

  void result_stages() {
    std::vector<Root> elements, rows;
    std::vector<uint32_t> values;
    for (size_t k = 0; k < r_.outputs.size(); ++k) {
      const RowSource to{RowSource::Kind::result, static_cast<uint32_t>(k)};
      if (kept_[p_.outputs[k]] == to) continue;  // written
      (whole(k) ? elements : rows).push_back({p_.outputs[k], to});
      if (whole(k)) values.push_back(p_.outputs[k]);
    }
    if (!elements.empty()) {
      row_stage(values);
      emit(true, elements);
    }
    if (!rows.empty()) emit(false, rows);
  }

  const RowRegion& r_;
  const bool tiles_;
  Program p_;
  std::vector<bool> varies_;
  std::vector<int> level_;
  std::vector<std::optional<RowSource>> kept_;
  StagedRows out_;
};

}  // namespace

std::string to_text(const StagedRows& rows) {
  constexpr std::string_view kFolds[] = {"", " sum", " product", " maximum", " minimum"};
  std::string out;
  for (const RowStage& s : rows.stages) {
    out += s.elements ? "each element:" : "each row:";
    for (size_t k = 0; k < s.outputs.size(); ++k)
      out += fmt::format("{} {}{}", k ? "," : "", place_name(s.outputs[k]),
                         kFolds[static_cast<size_t>(s.folds[k])]);
    out += "\n" + to_text(s.program);
  }
  return out;
}

StagedRows split_rows(const RowRegion& region, bool tiles) { return Splitter(region, tiles).run(); }

}  // namespace ferrule
