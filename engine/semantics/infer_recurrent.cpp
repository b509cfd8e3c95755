// Shapes of RNN, GRU and LSTM: what their weights, states and results have in common.
#include "engine/semantics/infer_impl.h"

namespace ferrule {

using namespace infer_detail;

namespace {

/// https://onnx.ai/onnx/operators/onnx__LSTM.html; `gates`: 1, 3 or 4.
template <int gates>
Status recurrent(InferenceContext& c) {
  const bool batch_first = c.n.attrs.i("layout", 0) != 0;
  const std::string direction = c.n.attrs.s("direction", "forward");
  const Dim dirs(direction == "bidirectional" ? 2 : 1);
  auto size = [&](size_t operand, size_t rank, size_t axis) {
    const auto& s = c.shape(operand);
    return s && s->size() == rank ? (*s)[axis] : Dim::unknown();
  };
  const Dim seq = size(0, 3, batch_first ? 1 : 0), batch = size(0, 3, batch_first ? 0 : 1),
            input = size(0, 3, 2);
  const int64_t declared = c.n.attrs.i("hidden_size", 0);
  const Dim hidden = declared > 0 ? Dim(declared) : size(2, 3, 2), rows = hidden * Dim(gates);
  const Shape state = batch_first ? Shape{batch, dirs, hidden} : Shape{dirs, batch, hidden};
  struct Operand {
    const char* name;
    Shape shape;
  };
  const std::array<Operand, 8> wanted{{{"input", c.shape(0).value_or(unknown_shape(3))},
                                       {"W", {dirs, rows, input}},
                                       {"R", {dirs, rows, hidden}},
                                       {"B", {dirs, rows * Dim(2)}},
                                       {"sequence_lens", {batch}},
                                       {"initial_h", state},
                                       {"initial_c", state},
                                       {"P", {dirs, hidden * Dim(3)}}}};
  if (c.shape(0) && c.shape(0)->size() != 3)
    return c.wrong(fmt::format("its input is {}, and three axes are wanted", str(*c.shape(0))));
  for (size_t k = 1; k < wanted.size(); ++k) {
    const auto& have = c.shape(k);
    if (!have) continue;
    bool fits = have->size() == wanted[k].shape.size();
    for (size_t axis = 0; fits && axis < have->size(); ++axis)
      fits = equal((*have)[axis], wanted[k].shape[axis]) != Truth::no;
    if (!fits)
      return c.wrong(fmt::format("its {} is {}, and {} is wanted", wanted[k].name, str(*have),
                                 str(wanted[k].shape)));
  }
  const DType t = c.in(0).dtype;
  c.set(0, t, batch_first ? Shape{batch, seq, dirs, hidden} : Shape{seq, dirs, batch, hidden});
  c.set(1, t, state);
  return c.set(2, t, state);
}

}  // namespace

void infer_detail::add_recurrent_rules(Table& t) {
  t.insert({{"RNN", recurrent<1>}, {"GRU", recurrent<3>}, {"LSTM", recurrent<4>}});
}

}  // namespace ferrule
