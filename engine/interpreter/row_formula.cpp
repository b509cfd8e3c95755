// Row operators, by their formulas. A formula is evaluated over all elements once for each of its
// reductions, whose result the next evaluation reads, and then once more. Floats are computed in
// f64 whatever their type, and rounded once.
#include "engine/interpreter/internal.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/infer_formula.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/row_folds.h"

namespace ferrule::interp {
namespace {

class RowFormula {
 public:
  RowFormula(const Call& c, const OpFormula& f) : c_(c), f_(f) {}

  Outputs run() {
    FERRULE_TRY(c_.need(1));
    const Tensor& x = *c_.input(0);
    if (!contains(f_.types, x.dtype())) return c_.unsupported_type(x);
    const Shape shape(x.dims().begin(), x.dims().end());
    auto axes = row_axes(f_, c_.n, shape, [&](size_t slot) { return c_.input(slot); });
    if (!axes) axes.error().set_place(c_.place());
    FERRULE_ASSIGN(axes_, required(std::move(axes)));
    lay_out(x.dims());
    FERRULE_TRY(c_.fits(DType::f64, dims_));
    FERRULE_TRY(build());
    for (size_t k = 0; k < folds_.size(); ++k) {
      const Tensor elements = evaluate(k + 1, dims_, DType::f64);
      const DType type = fold_type(folds_[k], elements.dtype());
      Tensor rows = is_float(type)       ? folded<double>(folds_[k], elements, type)
                    : type == DType::u64 ? folded<uint64_t>(folds_[k], elements, type)
                                         : folded<int64_t>(folds_[k], elements, type);
      for (size_t i = 0; i < sources_.size(); ++i)
        if (sources_[i] == RowSource{RowSource::Kind::fold, static_cast<uint32_t>(k)})
          operands_[i] = rows;
    }
    const Shape result = row_result_shape(f_, c_.n, axes_, shape);
    return one(
        evaluate(0, f_.one_a_row ? reduced_ : dims_, result_).reshaped(*constant_shape(result)));
  }

 private:
  /// The dims over which the formula is evaluated: the channels of a group are an axis of their
  /// own.
  void lay_out(const Dims& x) {
    for (size_t k = 0; k < x.size(); ++k) {
      const bool grouped = axes_.groups && k == 1;
      if (grouped) add_axis(axes_.groups, false);
      add_axis(grouped ? x[k] / axes_.groups : x[k], grouped || axes_.reduced[k]);
    }
  }
  void add_axis(int64_t size, bool goes) {
    goes_.push_back(goes);
    dims_.push_back(size);
    reduced_.push_back(goes ? 1 : size);
  }

  Status build() {
    std::vector<DType> types;
    for (const Tensor* t : c_.in) types.push_back(t ? t->dtype() : DType::undefined);
    FERRULE_ASSIGN(result_, formula_result_type(f_, c_.n, types));
    FERRULE_ASSIGN(LoweringInput in, lowering_input(f_, c_.n, types, true));
    ProgramBuilder b;
    for (size_t k = 0; k < c_.in.size(); ++k) {
      if (!c_.in[k] || !f_.reads(k)) continue;
      FERRULE_ASSIGN(Tensor t, operand(k));
      operands_.push_back(std::move(t));
      sources_.push_back({RowSource::Kind::operand, static_cast<uint32_t>(k)});
      in.operands[k].get = [id = b.input(in.operands[k].type, "")] { return id; };
    }
    RowFolds fold{b, sources_, folds_, {}, {}};
    in.fold = std::ref(fold);
    FERRULE_ASSIGN(const uint32_t result, lower_formula(in, b));
    b.output(result);
    for (uint32_t v : fold.folded) b.output(v);
    program_ = b.take();
    int64_t length = 1;
    for (size_t k = 0; k < dims_.size(); ++k) length *= goes_[k] ? dims_[k] : 1;
    for (size_t k = operands_.size(); k < sources_.size(); ++k)  // folds are not known yet
      operands_.push_back(Tensor::scalar(program_.inputs[k], static_cast<double>(length)));
    return {};
  }

  /// The operand with dims that broadcast to ours.
  Result<Tensor> operand(size_t k) const {
    const Dims &x = c_.input(0)->dims(), &own = c_.input(k)->dims();
    const bool channel = f_.per_channel(k);
    const bool room = channel ? own.size() == 1 && x.size() > 1 : own.size() <= x.size();
    Dims d(x.size(), 1);
    if (room) std::ranges::copy(own, channel ? d.begin() + 1 : d.end() - std::ssize(own));
    if (!room || broadcast(d, x) != x)
      return c_.bad("input {} of dims {} does not broadcast to {}", k, text(own), text(x));
    if (axes_.groups && d[1] != 1) {
      d[1] /= axes_.groups;
      d.insert(d.begin() + 1, axes_.groups);
    } else if (axes_.groups) {
      d.insert(d.begin() + 1, 1);
    }
    return c_.input(k)->reshaped(d);
  }

  /// Floats are stored as `type`.
  Tensor evaluate(size_t output, const Dims& dims, DType type) const {
    Program p = program_;
    p.outputs = {program_.outputs[output]};
    simplify(p);  // what only the other outputs need goes
    if (c_.options.on_program) c_.options.on_program(c_.g, c_.n, p);
    std::vector<const Tensor*> data;
    for (const Tensor& t : operands_) data.push_back(&t);
    const Rounding rounding{type};
    return evaluate_program(p, 0, dims, data, is_float(p.output_type(0)) ? &rounding : nullptr);
  }

  /// One value a row, accumulated in `type`.
  template <class C>
  Tensor folded(Fold fold, const Tensor& elements, DType type) const {
    const View<C> in(elements);
    const Scalar nothing = fold_identity(fold, type);
    std::vector<C> rows(count(reduced_),
                        is_float(type) ? static_cast<C>(nothing.f) : static_cast<C>(nothing.i));
    const std::vector<int64_t> row = positions(dims_, broadcast_strides(reduced_, dims_));
    for (int64_t i = 0; i < in.size(); ++i) {
      C& y = rows[static_cast<size_t>(row[i])];
      y = fold_in(fold, y, in[i]);
    }
    return store(type, reduced_, rows);
  }

  const Call& c_;
  const OpFormula& f_;
  RowAxes axes_;
  DType result_{};
  std::vector<bool> goes_;
  Dims dims_, reduced_;
  Program program_;  ///< outputs: the result, then what each fold folds
  std::vector<RowSource> sources_;
  std::vector<Fold> folds_;
  std::vector<Tensor> operands_;  ///< by input of the program
};

}  // namespace

Outputs row_by_formula(const Call& c, const OpFormula& f) { return RowFormula(c, f).run(); }

}  // namespace ferrule::interp
