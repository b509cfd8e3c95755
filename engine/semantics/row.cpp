// Lowering of row regions; row_split.cpp cuts them into stages.
#include "engine/semantics/row.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <sstream>

#include "engine/base/diagnostics.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/row_folds.h"

namespace ferrule {
namespace {

tl::unexpected<NotApplicable> unsupported(const Node& n, std::string why) {
  return not_applicable(fmt::format("node \"{}\"", escape(n.name)), escape(n.op), std::move(why));
}

tl::unexpected<Error> bad_axis(const Node& n, int64_t axis, int64_t rank) {
  return error(Code::bad_shape, node_place(n),
               fmt::format("axis {} is out of range for rank {}", axis, rank));
}

/// The words of `row:`: how axes are named, then default axes.
std::vector<std::string> words(const std::string& text) {
  std::istringstream in(text);
  return {std::istream_iterator<std::string>(in), {}};
}

/// Axes listed by an attribute or a constant input; none: the default.
Applicable<std::vector<int64_t>> listed_axes(const OpFormula& f, const Node& n,
                                             const std::function<const Tensor*(size_t)>& constant,
                                             const std::vector<std::string>& spelled) {
  std::vector<int64_t> axes = n.attrs.ints("axes");
  for (size_t k = 0; k < n.inputs.size() && k < f.inputs.size(); ++k) {
    if (input_name(f.inputs[k]) != "axes" || !n.inputs[k]) continue;
    const Tensor* t = constant(k);
    if (!t) return unsupported(n, "the axes are not constant");
    axes = t->to_i64();
  }
  if (axes.empty())
    for (size_t k = 1; k < spelled.size(); ++k) axes.push_back(std::stoll(spelled[k]));
  return axes;
}

class RegionLowering {
 public:
  RegionLowering(const Semantics& ops, const Graph& g) : ops_(ops), g_(g) {}

  Applicable<RowRegion> run(std::span<const NodeId> nodes, std::span<const ValueId> outputs) {
    FERRULE_TRY(find_rows(nodes));
    for (NodeId id : nodes) {
      FERRULE_TRY(lower(g_.node(id)));
      const ValueId y = g_.node(id).outputs[0];
      if (contains(outputs, y)) leave(y);
    }
    for (ValueId v : outputs) {
      auto it = inside_.find(v);
      if (it == inside_.end())
        return error(Code::formula_invalid, fmt::format("value \"{}\"", escape(g_.value(v).name)),
                     std::string("an output of a region that no node of it makes"), "");
      b_.output(it->second.written);
      const bool whole = is(g_.value(v).type, row_);
      if (!whole && out_.axes.groups)
        return unsupported(g_.node(g_.value(v).producer), "its result is not one a group");
      out_.outputs.push_back(
          {v, it->second.squeezed ? RowSpread::squeezed : RowSpread::row, !whole});
    }
    for (uint32_t v : fold_.folded) b_.output(v);
    out_.program = b_.take();
    return std::move(out_);
  }

 private:
  struct Inside {
    uint32_t id = 0;
    bool squeezed = false;
    uint32_t written = 0;  ///< of an output: in its own type
  };

  static bool is(const Type& t, const Shape& s) { return t.shape && *t.shape == s; }

  Applicable<> find_rows(std::span<const NodeId> nodes) {
    bool first = true;
    for (NodeId id : nodes) {
      const Node& n = g_.node(id);
      const OpFormula* f = ops_.find(n);
      if (!f) return unsupported(n, "it has no formula");
      if (f->pointwise()) continue;
      FERRULE_ASSIGN(RowAxes axes, row_axes(ops_, g_, n));
      const Shape& shape = *g_.value(n.inputs[0]).type.shape;
      if (first)
        row_ = shape, out_.axes = axes;
      else if (!(axes == out_.axes))
        return unsupported(n, "its rows are along other axes");
      else if (!(shape == row_))
        return unsupported(n, "its rows have another shape");
      first = false;
    }
    if (first) return unsupported(g_.node(nodes[0]), "neither it nor another one goes along rows");
    reduced_ = row_, squeezed_ = {};
    for (size_t k = 0; k < row_.size(); ++k) {
      if (out_.axes.reduced[k])
        reduced_[k] = Dim(1);
      else
        squeezed_.push_back(row_[k]);
    }
    return {};
  }

  Applicable<> lower(const Node& n) {
    const OpFormula& f = *ops_.find(n);
    if (n.outputs.empty() || !n.outputs[0]) return unsupported(n, "it has no first result");
    for (size_t k = 1; k < n.outputs.size(); ++k)
      if (n.outputs[k]) return unsupported(n, "its other results are wanted");
    const Type& y = g_.value(n.outputs[0]).type;
    const bool whole = is(y, row_) || is(y, reduced_);
    if (!whole && !is(y, squeezed_))
      return unsupported(n, fmt::format("its result {} is neither a row nor reduced", str(y)));
    std::vector<DType> types;
    for (ValueId v : n.inputs) types.push_back(v ? g_.value(v).type.dtype : DType::undefined);
    if (!f.pointwise() && !contains(f.types, types[0]))
      return unsupported(n, fmt::format("its formula is not for {}", name(types[0])));
    FERRULE_ASSIGN(LoweringInput in, lowering_input(f, n, types, false));
    for (size_t k = 0; k < n.inputs.size(); ++k) {
      if (!n.inputs[k] || !f.reads(k)) continue;
      RowSpread spread = !f.pointwise() || whole ? RowSpread::row : RowSpread::squeezed;
      if (f.per_channel(k)) spread = RowSpread::channel;
      FERRULE_ASSIGN(uint32_t id, value(n, n.inputs[k], spread));
      in.operands[k].get = [id] { return id; };
    }
    in.round_result = false;
    in.fold = std::ref(fold_);
    FERRULE_ASSIGN(uint32_t result, lower_formula(in, b_));
    inside_[n.outputs[0]] = {result, !whole};
    return {};
  }

  /// The region goes on with what is written, so that it may read that back.
  void leave(ValueId v) {
    Inside& value = inside_[v];
    value.written = b_.cast(value.id, g_.value(v).type.dtype);
    value.id = b_.cast(value.written, b_.type(value.id));
  }

  Applicable<uint32_t> value(const Node& n, ValueId v, RowSpread spread) {
    if (auto it = inside_.find(v); it != inside_.end()) {
      if (it->second.squeezed != (spread == RowSpread::squeezed) || spread == RowSpread::channel)
        return unsupported(
            n, fmt::format("\"{}\" has lost its axes before", escape(g_.value(v).name)));
      return it->second.id;
    }
    if (const Tensor* t = g_.constant(v); t && t->numel() == 1) return immediate(b_, *t);
    auto [it, fresh] = loads_.try_emplace({v, spread}, 0u);
    if (!fresh) return it->second;
    FERRULE_ASSIGN(bool uniform, aligned(n, v, spread));
    it->second = b_.input(g_.value(v).type.dtype, fmt::format("in{}", out_.inputs.size()));
    out_.sources.push_back({RowSource::Kind::operand, static_cast<uint32_t>(out_.inputs.size())});
    out_.inputs.push_back({v, spread, uniform});
    return it->second;
  }

  /// Whether the operand is the same along the row.
  Applicable<bool> aligned(const Node& n, ValueId v, RowSpread spread) const {
    const Type& t = g_.value(v).type;
    if (!t.shape) return unsupported(n, "the rank of an operand is unknown");
    if (spread == RowSpread::squeezed) return true;
    if (spread == RowSpread::channel) {
      if (row_.size() < 2 || t.rank() != 1 || !((*t.shape)[0] == row_[1]))
        return unsupported(n, fmt::format("{} is not one value a channel", str(t)));
      return out_.axes.groups == 0 && !out_.axes.reduced[1];
    }
    if (t.rank() > static_cast<int>(row_.size()))
      return unsupported(n, "an operand has more axes than the row");
    const size_t extra = row_.size() - t.shape->size();
    for (size_t k = 0; k < t.shape->size(); ++k) {
      if ((*t.shape)[k] == Dim(1)) continue;
      if (out_.axes.reduced[k + extra] || (out_.axes.groups && k + extra == 1)) return false;
    }
    return true;
  }

  const Semantics& ops_;
  const Graph& g_;
  ProgramBuilder b_;
  RowRegion out_;
  Shape row_, reduced_, squeezed_;
  std::map<ValueId, Inside> inside_;
  std::map<std::pair<ValueId, RowSpread>, uint32_t> loads_;
  RowFolds fold_{b_, out_.sources, out_.folds, {}, {}};
};

}  // namespace

DType fold_type(Fold fold, DType element) {
  if (fold == Fold::max || fold == Fold::min) return element;
  if (is_float(element)) return DType::f64;
  return is_unsigned_int(element) ? DType::u64 : DType::i64;
}

Scalar fold_identity(Fold fold, DType type) {
  if (fold == Fold::sum || fold == Fold::prod) {
    const int one = fold == Fold::prod;
    return {static_cast<double>(one), one};
  }
  const bool smallest = fold == Fold::max;
  const double inf = std::numeric_limits<double>::infinity();
  if (is_float(type)) return {smallest ? -inf : inf, 0};
  const int bits = size_bits(type);
  if (is_unsigned_int(type))
    return {0, smallest     ? 0
               : bits == 64 ? int64_t{-1}
                            : static_cast<int64_t>((uint64_t{1} << bits) - 1)};
  const int64_t lowest = bits == 64 ? INT64_MIN : -(int64_t{1} << (bits - 1));
  return {0, smallest ? lowest : ~lowest};
}

bool RowRegion::writes_over(size_t input, size_t output) const {
  const RowOperand &x = inputs[input], &y = outputs[output];
  const auto readings =
      std::ranges::count_if(inputs, [&](const RowOperand& o) { return o.value == x.value; });
  if (readings != 1 || x.spread != y.spread || x.uniform != y.uniform) return false;
  const uint32_t written = program.outputs[output];
  // What is made of the result, and what is made of the input beside it.
  std::vector<bool> from_it(program.insts.size()), beside(program.insts.size());
  for (uint32_t k = 0; k < program.insts.size(); ++k) {
    const Inst& in = program.insts[k];
    from_it[k] = k == written;
    beside[k] = in.op == Prim::load && sources[in.index] == RowSource{RowSource::Kind::operand,
                                                                      static_cast<uint32_t>(input)};
    for (size_t a = 0; a < static_cast<size_t>(info(in.op).arity); ++a) {
      from_it[k] = from_it[k] || from_it[in.args[a]];
      beside[k] = beside[k] || (in.args[a] != written && beside[in.args[a]]);
    }
  }
  const std::span<const uint32_t> roots = program.outputs;
  return std::ranges::none_of(roots.subspan(outputs.size()),
                              [&](uint32_t f) { return from_it[f]; }) ||
         std::ranges::none_of(roots, [&](uint32_t r) { return r != written && beside[r]; });
}

Applicable<RowAxes> row_axes(const Semantics& ops, const Graph& g, const Node& n) {
  const OpFormula* f = ops.find(n);
  if (!f || f->pointwise()) return unsupported(n, "it is no row operator");
  const Type& x = g.value(n.inputs.at(0)).type;
  if (!x.shape) return unsupported(n, "the rank of its input is unknown");
  FERRULE_ASSIGN(RowAxes out, row_axes(*f, n, *x.shape,
                                       [&](size_t slot) { return g.constant(n.inputs[slot]); }));
  if (f->row.starts_with("axes") && std::ranges::count(out.reduced, true) == 0)
    return unsupported(n, "no axes");
  return out;
}

Applicable<RowAxes> row_axes(const OpFormula& f, const Node& n, const Shape& dims,
                             const std::function<const Tensor*(size_t slot)>& constant) {
  const auto rank = std::ssize(dims);
  RowAxes out;
  out.reduced.assign(rank, false);
  const std::vector<std::string> spelled = words(f.row);
  const std::string& kind = spelled[0];
  auto reduce = [&](int64_t from, int64_t to) {
    for (int64_t k = from; k < to; ++k) out.reduced[k] = true;
  };
  if (kind == "axis" || kind == "from") {
    const Attr* own = n.attrs.find("axis");
    auto declared = f.attrs.find("axis");
    const Attr* a = own ? own : declared == f.attrs.end() ? nullptr : &declared->second;
    const int64_t* given = a ? std::get_if<int64_t>(a) : nullptr;
    int64_t axis = given ? *given : -1;
    if (axis < -rank || axis >= rank) return bad_axis(n, axis, rank);
    if (axis < 0) axis += rank;
    reduce(axis, kind == "from" ? rank : axis + 1);
  } else if (kind == "axes") {
    FERRULE_ASSIGN(auto axes, listed_axes(f, n, constant, spelled));
    for (int64_t a : axes) {
      if (a < -rank || a >= rank) return bad_axis(n, a, rank);
      auto reduced = out.reduced.begin() + (a < 0 ? a + rank : a);
      if (*reduced)
        return error(Code::bad_shape, node_place(n), fmt::format("axis {} is given twice", a));
      *reduced = true;
    }
    if (axes.empty() && !n.attrs.i("noop_with_empty_axes")) reduce(0, rank);
  } else {
    if (rank < 2)
      return error(Code::bad_shape, node_place(n),
                   fmt::format("input {} has no channels", str(dims)));
    reduce(2, rank);
    if (kind == "groups") {
      out.groups = n.attrs.i("num_groups");
      const auto channels = dims[1].value_or(-1);
      if (out.groups < 1 || (channels >= 0 && channels % out.groups))
        return error(Code::bad_attribute, node_place(n), "num_groups",
                     fmt::format("{} does not divide the channels {}", out.groups, dims[1].str()));
      if (channels < 0) return unsupported(n, "the number of channels is unknown");
    }
  }
  return out;
}

Applicable<RowRegion> lower_rows(const Semantics& ops, const Graph& g,
                                 std::span<const NodeId> nodes, std::span<const ValueId> outputs) {
  return RegionLowering(ops, g).run(nodes, outputs);
}

}  // namespace ferrule
