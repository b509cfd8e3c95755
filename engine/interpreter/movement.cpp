// Operators that put elements elsewhere: for every element of the result the position it comes
// from; take() moves them, whatever their type.
#include "engine/graph/operator_name.h"
#include "engine/interpreter/internal.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/movement_parts.h"

namespace ferrule::interp {

Tensor joined(const std::vector<Tensor>& operands) {
  if (operands.size() == 1) return operands[0];
  int64_t total = 0;
  for (const Tensor& t : operands) total += t.numel();
  const DType type = operands[0].dtype();
  if (type == DType::string) {
    std::vector<std::string> all;
    for (const Tensor& t : operands) all.insert(all.end(), t.strings().begin(), t.strings().end());
    return Tensor({total}, std::move(all));
  }
  auto [all, bytes] = Tensor::allocate(type, {total});
  for (char* to = static_cast<char*>(bytes); const Tensor& t : operands) {
    if (t.bytes()) std::memcpy(to, t.data(), static_cast<size_t>(t.bytes()));
    to += t.bytes();
  }
  return all;
}

namespace {

/// One result of the node, whose operands lie in `source` from these positions on.
Result<Tensor> moved(const Call& c, const Dims& dims, const Movement& m, const Tensor& source,
                     const Dims& bases) {
  if (m.fill && m.fill->dtype() != source.dtype())
    return c.bad("the padding value is not one {}", name(source.dtype()));
  if (count(dims) == 0) return take(source, dims, {});  // of however many parts
  const auto parts = parts_of(m, dims, c.input(0)->dims().size(), SIZE_MAX);
  FERRULE_ASSERT(parts.has_value(), "a movement that is not straight");
  auto sources = [&](const MovedPart& p) {
    const auto slot = static_cast<size_t>(p.operand);
    const Dims own = strides(parts->operand.empty() ? c.input(slot)->dims() : parts->operand);
    return positions(p.dims, p.steps(own), bases[slot] + p.offset(own));
  };
  if (parts->parts.size() == 1 && parts->parts[0].operand != Segment::kFill)
    return take(source, dims, sources(parts->parts[0]));
  const Dims to = strides(parts->result);
  std::vector<int64_t> from(count(dims), -1);
  for (const MovedPart& p : parts->parts) {
    if (p.operand == Segment::kFill) continue;
    const Dims places = positions(p.dims, to, dot(p.begin, to)), at = sources(p);
    for (size_t i = 0; i < places.size(); ++i) from[places[i]] = at[i];
  }
  return take(source, dims, from, m.fill ? &*m.fill : nullptr);
}

/// What only moves elements: the sizes of its results by inference, what is where by its movement.
Outputs move(const Call& c) {
  Graph g;
  Node n;
  n.op = c.n.op, n.name = c.n.name, n.attrs = c.n.attrs, n.since_opset = c.n.since_opset;
  std::vector<Tensor> operands;
  Dims bases;
  int64_t base = 0;
  for (size_t k = 0; k < c.in.size(); ++k) {
    const Tensor* t = c.in[k];
    bases.push_back(base);
    if (t && moves_input(c.n, k)) {
      if (t->dtype() != c.input(0)->dtype() ||
          (k > 0 && size_bits(t->dtype()) < 8 && t->dtype() != DType::string))
        return c.unsupported_type(*t);
      operands.push_back(*t);
      base += t->numel();
      n.inputs.push_back(g.add_input("i" + std::to_string(k),
                                     {t->dtype(), Shape(t->dims().begin(), t->dims().end())}));
    } else {
      n.inputs.push_back(t ? g.add_constant("i" + std::to_string(k), *t) : ValueId{});
    }
  }
  for (size_t k = 0; k < c.n.outputs.size(); ++k)
    n.outputs.push_back(g.add_value("o" + std::to_string(k)));
  const NodeId id = g.add_node(std::move(n));
  if (Status s = infer(*c.options.ops, g, id); !s) {
    Error e = s.error();
    e.place = c.place();
    return fail(std::move(e));
  }
  const Tensor source = joined(operands);
  std::vector<Dims> sizes;
  for (ValueId v : g.node(id).outputs) {
    const Type& t = g.value(v).type;
    const auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
    if (!dims) return c.bad("the sizes of its result cannot be told");
    FERRULE_TRY(c.fits(source.dtype(), *dims));
    sizes.push_back(*dims);
  }
  if (is_view(c.n) && operands[0].numel() == count(sizes[0]))
    return one(operands[0].reshaped(sizes[0]));
  std::vector<Tensor> out;
  for (const auto movements = movements_of(g, g.node(id)); const auto& m : movements) {
    if (!m) return fail(required(m.error()));
    FERRULE_ASSIGN(Tensor t, moved(c, sizes[out.size()], *m, source, bases));
    out.push_back(std::move(t));
  }
  return out;
}

/// A Pad on both sides, where it cuts off as well.
Outputs center_crop_pad(const Call& c) {
  const Tensor& x = *c.input(0);
  const auto shape = c.ints(1, "");
  FERRULE_ASSIGN(const Dims axes, c.axes(x.rank()));
  if (!shape || shape->size() != axes.size()) return c.bad("shape and axes differ in length");
  Dims pads(2 * x.dims().size(), 0);
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto a = static_cast<size_t>(axes[k]);
    const int64_t d = x.dims()[a], want = (*shape)[k];
    if (want < 0 || want > int64_t{1} << 40) return c.bad("shape {} is out of range", text(*shape));
    pads[a] = want >= d ? (want - d) / 2 : -((d - want) / 2);
    pads[a + x.dims().size()] = want - d - pads[a];
  }
  Node n;
  n.op = operator_named("Pad"), n.name = c.n.name, n.outputs = c.n.outputs;
  const Tensor sizes = Tensor::of_i64({std::ssize(pads)}, pads);
  const Tensor* in[] = {&x, &sizes};
  return move({c.g, n, in, c.options, c.env});
}

Outputs trilu(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.rank() < 2) return c.bad("{} is no stack of matrices", text(x.dims()));
  int64_t k = 0;
  if (const Tensor* t = c.input(1)) {
    if (t->numel() != 1 || t->dtype() != DType::i64) return c.bad("k is no integer");
    k = std::clamp<int64_t>(t->at_i64(0), -(int64_t{1} << 40), int64_t{1} << 40);
  }
  const bool upper = c.n.attrs.i("upper", 1) != 0;
  const int64_t rows = x.dims()[x.dims().size() - 2], columns = x.dims().back();
  // Of each row a stretch stays, the rest is 0.
  auto stretch = [&](int64_t row) {
    const int64_t split = std::clamp<int64_t>(row + k + (upper ? 0 : 1), 0, columns);
    return upper ? std::pair(split, columns) : std::pair(int64_t{0}, split);
  };
  const int bits = size_bits(x.dtype());
  if (x.dtype() == DType::string || bits < 8) {
    std::vector<int64_t> from(x.numel(), -1);
    for (int64_t r = 0; columns > 0 && r < x.numel() / columns; ++r)
      for (auto [i, end] = stretch(r % rows); i < end; ++i) from[r * columns + i] = r * columns + i;
    return one(take(x, x.dims(), from));
  }
  auto [y, p] = c.make(x.dtype(), x.dims());
  const int64_t size = bits / 8;
  const char* from = static_cast<const char*>(x.data());
  for (int64_t r = 0; columns > 0 && r < x.numel() / columns; ++r) {
    const auto [begin, end] = stretch(r % rows);
    char* row = static_cast<char*>(p) + r * columns * size;
    std::fill_n(row, begin * size, 0);
    std::copy_n(from + (r * columns + begin) * size, (end - begin) * size, row + begin * size);
    std::fill_n(row + end * size, (columns - end) * size, 0);
  }
  return one(std::move(y));
}

Outputs reverse_sequence(const Call& c) {
  const Tensor &x = *c.input(0), &lengths = *c.input(1);
  const int64_t batch = c.n.attrs.i("batch_axis", 1), time = c.n.attrs.i("time_axis", 0);
  if (x.rank() < 2 || batch + time != 1 || (batch != 0 && batch != 1))
    return c.bad_attr("batch_axis", "{} with time_axis {} for rank {}", batch, time, x.rank());
  const auto b = static_cast<size_t>(batch), t = static_cast<size_t>(time);
  if (lengths.dtype() != DType::i64 || lengths.numel() != x.dims()[b])
    return c.bad("{} lengths for {} sequences", lengths.numel(), x.dims()[b]);
  const int64_t run = count(x.dims(), 2);
  std::vector<int64_t> from;
  for (int64_t i = 0; run > 0 && i < x.dims()[0]; ++i)
    for (int64_t j = 0; j < x.dims()[1]; ++j) {
      const int64_t length = lengths.at_i64(b == 0 ? i : j), step = t == 0 ? i : j;
      if (length < 0 || length > x.dims()[t])
        return c.bad("a length of {} in {} steps", length, x.dims()[t]);
      const int64_t other = step < length ? length - 1 - step : step;
      from.push_back((t == 0 ? other * x.dims()[1] + j : i * x.dims()[1] + other) * run);
    }
  return one(take_runs(c, x, x.dims(), from, run));
}

}  // namespace

std::vector<Entry> movement_table() {
  return {
      {"Transpose", move, 1},
      {"Concat", move, 1},
      {"Split", move, 1},
      {"Slice", move, 1},
      {"Expand", move, 1},
      {"Tile", move, 1},
      {"Pad", move, 1},
      {"Gather", move, 1},
      {"Reshape", move, 1},
      {"Flatten", move, 1},
      {"Squeeze", move, 1},
      {"Unsqueeze", move, 1},
      {"CenterCropPad", center_crop_pad, 2},
      {"DepthToSpace", move, 1},
      {"SpaceToDepth", move, 1},
      {"Trilu", trilu, 1},
      {"ReverseSequence", reverse_sequence, 2},
  };
}

}  // namespace ferrule::interp
