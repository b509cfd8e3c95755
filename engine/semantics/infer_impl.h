// What the inference files share: one call's view of a node, and the table of operators inferred
// here.
#pragma once
#include "engine/base/join.h"
#include "engine/semantics/semantics.h"

namespace ferrule::infer_detail {

/// A node being inferred. Functions of the table read inputs and fill `out`.
struct InferenceContext {
  const Semantics& ops;
  const Graph& g;
  const Node& n;
  Inferred out;

  ValueId id(size_t i) const { return i < n.inputs.size() ? n.inputs[i] : ValueId{}; }
  bool has(size_t i) const { return bool(id(i)); }
  const Type& in(size_t i) const {
    static const Type kNone;
    return has(i) ? g.value(id(i)).type : kNone;
  }
  const std::optional<Shape>& shape(size_t i) const { return in(i).shape; }
  std::optional<std::vector<Dim>> contents(size_t i) const { return contents_of(g, id(i)); }
  /// The input's contents if all are constants.
  std::optional<std::vector<int64_t>> ints(size_t i) const;

  Status set(size_t i, DType t, std::optional<Shape> s) {
    if (i < out.types.size()) out.types[i] = Type{t, std::move(s)};  // else an output nobody wants
    return {};
  }
  /// Output `i` of unknown rank.
  Status set(size_t i, DType t) {
    if (i < out.types.size()) out.types[i].dtype = t;
    return {};
  }
  void set_contents(size_t i, std::optional<std::vector<Dim>> c) {
    if (i < out.contents.size() && c && std::ssize(*c) <= kMaxContents)
      out.contents[i] = std::move(c);
  }
  /// Output 0 is like input `i`.
  Status same(size_t i = 0) { return set(0, in(i).dtype, shape(i)); }

  tl::unexpected<Error> wrong(const std::string& what) const;
  /// `axis` within [0, rank), negative ones counted from the end.
  Result<size_t> axis(int64_t a, size_t rank) const;
  Result<std::vector<size_t>> axes(const std::vector<int64_t>& a, size_t rank) const;
};

std::string place(const Node& n);
Dim min(const Dim& a, const Dim& b);
Shape unknown_shape(size_t rank);

using Rule = Status (*)(InferenceContext&);
const Rule* find_rule(const Node& n);  ///< null: not inferred here
/// Adds contents that follow from the inputs' contents, where types came from elsewhere (Add, Mul,
/// …).
void derive_contents(InferenceContext& c);

using Table = std::map<std::string_view, Rule>;
void add_window_rules(Table& t);     // infer_window.cpp: convolution, pooling, matrix product
void add_movement_rules(Table& t);   // infer_movement.cpp: what moves or selects elements
void add_select_rules(Table& t);     // infer_select.cpp: norms, selections, makers of tensors
void add_recurrent_rules(Table& t);  // infer_recurrent.cpp: RNN, GRU, LSTM

}  // namespace ferrule::infer_detail
