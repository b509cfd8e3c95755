// Operators that look at shapes or make tensors out of attributes and sizes; no element is
// computed.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

Outputs dropout(const Call& c) {
  if (const Tensor* training = c.input(2);
      training && training->numel() == 1 && training->at_i64(0) != 0) {
    const Tensor* ratio = c.input(1);
    if (!ratio || ratio->numel() != 1 || ratio->at_f64(0) != 0)
      return c.unsupported("training mode draws random numbers");
  }
  auto out = one(*c.input(0));
  if (c.wants(1)) {
    auto [mask, p] = Tensor::allocate(DType::boolean, c.input(0)->dims());
    std::memset(p, 1, static_cast<size_t>(mask.numel()));
    out->push_back(mask);
  }
  return out;
}

/// The same bits as another type of their size.
Outputs bit_cast(const Call& c) {
  const Tensor& x = *c.input(0);
  const int64_t code = c.n.attrs.i("to");
  if (code < 1 || code > static_cast<int64_t>(kLastElementType))
    return c.bad_attr("to", "{} is no element type", code);
  const auto to = static_cast<DType>(code);
  if (size_bits(to) == 0 || size_bits(to) != size_bits(x.dtype()))
    return c.bad("{} and {} are not of one size", name(x.dtype()), name(to));
  auto [y, p] = Tensor::allocate(to, x.dims());
  if (x.bytes()) std::memcpy(p, x.data(), static_cast<size_t>(x.bytes()));
  return one(y);
}

Outputs shape(const Call& c) {
  const Dims& d = c.input(0)->dims();
  const auto rank = std::ssize(d);
  auto clamp = [&](int64_t v) { return std::clamp<int64_t>(v < 0 ? v + rank : v, 0, rank); };
  const int64_t start = clamp(c.n.attrs.i("start", 0));
  const int64_t end = c.n.attrs.find("end") ? clamp(c.n.attrs.i("end")) : rank;
  const Dims out(d.begin() + start, d.begin() + std::max(start, end));
  return one(Tensor::of_i64({std::ssize(out)}, out));
}

Outputs size(const Call& c) { return one(Tensor::of_i64({}, {c.input(0)->numel()})); }

Outputs constant(const Call& c) {
  for (const auto& [name, value] : c.n.attrs.items()) {
    if (const auto* t = std::get_if<Tensor>(&value)) return one(*t);
    if (name == "value_int") return one(Tensor::of_i64({}, {c.n.attrs.i(name)}));
    if (name == "value_ints") {
      const Dims v = c.n.attrs.ints(name);
      return one(Tensor::of_i64({std::ssize(v)}, v));
    }
    if (name == "value_float")
      return one(Tensor::of_f32({}, {static_cast<float>(c.n.attrs.f(name))}));
    if (const auto* v = std::get_if<std::vector<double>>(&value)) {
      return one(Tensor::of_f32({std::ssize(*v)}, std::vector<float>(v->begin(), v->end())));
    }
    if (const auto* v = std::get_if<std::vector<std::string>>(&value)) {
      return one(Tensor({std::ssize(*v)}, *v));
    }
    if (name == "value_string") return one(Tensor(Dims{}, std::vector{c.n.attrs.s(name)}));
  }
  return c.bad("a Constant without a value that is supported");
}

Outputs constant_of_shape(const Call& c) {
  if (!is_int(c.input(0)->dtype())) return c.unsupported_type(*c.input(0));
  const Dims out = c.input(0)->to_i64();
  Tensor value = Tensor::scalar(DType::f32, 0);
  if (const Attr* a = c.n.attrs.find("value")) {
    const auto* t = std::get_if<Tensor>(a);
    if (!t || t->numel() != 1) return c.bad_attr("value", "it is not a tensor of one element");
    value = *t;
  }
  FERRULE_TRY(c.fits(value.dtype(), out));
  return one(take(value, out, std::vector<int64_t>(static_cast<size_t>(count(out)), 0)));
}

Outputs range(const Call& c) {
  const Tensor& start = *c.input(0);
  for (size_t i = 0; i < 3; ++i) {
    if (c.input(i)->numel() != 1)
      return c.bad("input {} of shape {} is no scalar", i, text(c.input(i)->dims()));
  }
  return with_number(c, start, [&]<class C>() -> Outputs {
    const C from = View<C>(start)[0], to = View<C>(*c.input(1))[0], step = View<C>(*c.input(2))[0];
    if (step == C{0}) return c.bad("a range with step 0");
    const double steps = std::ceil((static_cast<double>(to) - static_cast<double>(from)) /
                                   static_cast<double>(step));
    if (!(steps < 2147483648.0)) return c.bad("a range of {} elements", steps);
    const Dims out{static_cast<int64_t>(std::max(0.0, steps))};
    FERRULE_TRY(c.fits(start.dtype(), out));
    std::vector<C> y(out[0]);
    for (size_t i = 0; i < y.size(); ++i) y[i] = add(from, mul(static_cast<C>(i), step));
    return one(store(start.dtype(), out, y));
  });
}

Outputs eye_like(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.rank() != 2) return c.bad("{} is no matrix", text(x.dims()));
  const auto dtype = static_cast<DType>(c.n.attrs.i("dtype", static_cast<int64_t>(x.dtype())));
  if (!is_float(dtype) && !is_integral(dtype))
    return c.bad_attr("dtype", "{} is no number type", c.n.attrs.i("dtype"));
  const int64_t k = c.n.attrs.i("k", 0);
  std::vector<int64_t> y(x.numel());
  for (int64_t i = 0; i < x.dims()[0]; ++i) {
    int64_t j = 0;
    if (!__builtin_add_overflow(i, k, &j) && j >= 0 && j < x.dims()[1]) y[i * x.dims()[1] + j] = 1;
  }
  return one(store(dtype, x.dims(), y));
}

}  // namespace

std::vector<Entry> shape_table() {
  return {
      {"BitCast", bit_cast, 1}, {"Dropout", dropout, 1},  {"Shape", shape, 1},
      {"Size", size, 1},        {"Constant", constant},   {"ConstantOfShape", constant_of_shape, 1},
      {"Range", range, 3},      {"EyeLike", eye_like, 1},
  };
}

}  // namespace ferrule::interp
