// Shapes of convolutions, pooling, matrix products and attention.
#include <algorithm>
#include <map>

#include "engine/base/join.h"
#include "engine/graph/operator_name.h"
#include "engine/semantics/einsum.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/infer_impl.h"

namespace ferrule {

using namespace infer_detail;

Dim window_out(const Dim& in, int64_t pad_begin, int64_t pad_end, int64_t kernel, int64_t stride,
               int64_t dilation, bool ceil_mode) {
  int64_t reach = (kernel - 1) * dilation + 1;
  Dim room = in + Dim(pad_begin) + Dim(pad_end) - Dim(reach);
  if (!ceil_mode) return floordiv(room, Dim(stride)) + Dim(1);
  // No window starts in the padding behind the data.
  return infer_detail::min(ceildiv(room, Dim(stride)) + Dim(1),
                           ceildiv(in + Dim(pad_begin), Dim(stride)));
}

namespace {

/// Attribute list of one value per spatial axis, or `otherwise` for all.
std::vector<int64_t> per_axis(const Node& n, const char* name, size_t count, int64_t otherwise) {
  std::vector<int64_t> v = n.attrs.ints(name);
  return v.empty() ? std::vector<int64_t>(count, otherwise) : v;
}

constexpr int64_t kHuge = int64_t{1} << 40;  // beyond any size that fits memory

/// strides, dilations, pads: right lengths and ranges.
Status check_window(const InferenceContext& c, const std::vector<int64_t>& kernel) {
  size_t k = kernel.size();
  auto check = [&](const char* name, size_t count, int64_t least) -> Status {
    std::vector<int64_t> v = c.n.attrs.ints(name);
    if (!v.empty() && v.size() != count)
      return error(Code::bad_attribute, place(c.n), name,
                   fmt::format("it has {}; {} wanted", counted(v.size(), "value"),
                               count == 1 ? "1 is" : fmt::format("{} are", count)));
    for (int64_t x : v)
      if (x < least || x > kHuge)
        return error(Code::bad_attribute, place(c.n), name, fmt::format("{} is out of range", x));
    return {};
  };
  for (int64_t x : kernel)
    if (x < 1 || x > kHuge)
      return error(Code::bad_attribute, place(c.n), "kernel_shape",
                   fmt::format("{} is out of range", x));
  FERRULE_TRY(check("strides", k, 1));
  FERRULE_TRY(check("dilations", k, 1));
  const std::vector<int64_t> dilations = c.n.attrs.ints("dilations");
  for (size_t i = 0; i < dilations.size(); ++i)
    if (kernel[i] > 1 && dilations[i] > kHuge / (kernel[i] - 1))
      return error(Code::bad_attribute, place(c.n), "dilations",
                   fmt::format("{} is out of range for a kernel of {}", dilations[i], kernel[i]));
  const std::string auto_pad = c.n.attrs.s("auto_pad", "NOTSET");
  if (auto_pad != "NOTSET" && auto_pad != "SAME_UPPER" && auto_pad != "SAME_LOWER" &&
      auto_pad != "VALID")
    return error(Code::bad_attribute, place(c.n), "auto_pad",
                 fmt::format("\"{}\" is none of NOTSET, SAME_UPPER, SAME_LOWER and VALID",
                             escape(auto_pad, 60)));
  return check("pads", 2 * k, -kHuge);
}

/// Spatial output dims of a convolution or pooling.
Result<Shape> windows(const InferenceContext& c, const Shape& spatial,
                      const std::vector<int64_t>& kernel) {
  FERRULE_TRY(check_window(c, kernel));
  size_t k = kernel.size();
  auto strides = per_axis(c.n, "strides", k, 1), dilations = per_axis(c.n, "dilations", k, 1);
  std::string auto_pad = c.n.attrs.s("auto_pad", "NOTSET");
  bool ceil_mode = c.n.attrs.i("ceil_mode") != 0;
  auto pads = per_axis(c.n, "pads", 2 * k, 0);
  if (auto_pad != "NOTSET") pads.assign(2 * k, 0);
  Shape out;
  for (size_t i = 0; i < k; ++i) {
    bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
    Dim d = same ? ceildiv(spatial[i], Dim(strides[i]))
                 : window_out(spatial[i], pads[i], pads[i + k], kernel[i], strides[i], dilations[i],
                              ceil_mode);
    bool empty_input = spatial[i].constant() == 0;
    if (at_least(d, Dim(empty_input ? 0 : 1)) == Truth::no)
      return c.wrong(
          fmt::format("a window of {} (dilation {}) does not fit into {} with pads {} and {}",
                      kernel[i], dilations[i], spatial[i].str(), pads[i], pads[i + k]));
    out.push_back(d);
  }
  return out;
}

/// Kernel dims of a convolution: the attribute, else the weights'; nullopt while unknown.
std::optional<std::vector<int64_t>> kernel_of(const InferenceContext& c) {
  std::vector<int64_t> k = c.n.attrs.ints("kernel_shape");
  if (!k.empty()) return k;
  if (!c.shape(1) || c.shape(1)->size() < 3) return std::nullopt;
  return constant_shape(Shape(c.shape(1)->begin() + 2, c.shape(1)->end()));
}

/// Checks shared by Conv and ConvTranspose; `in_axis`: of the weights, the one with input channels.
Status check_weights(const InferenceContext& c, size_t in_axis) {
  const auto &x = c.shape(0), &w = c.shape(1);
  if (c.n.attrs.i("group", 1) < 1)
    return error(Code::bad_attribute, place(c.n), "group", "it is less than 1");
  if (x && x->size() < 3)
    return c.wrong(fmt::format("its input is {}, rank 3 or more is wanted", str(*x)));
  if (!x || !w) return {};
  if (x->size() != w->size())
    return c.wrong(fmt::format("its input is {} and its weights are {}", str(*x), str(*w)));
  Dim channels = (*w)[in_axis] * (in_axis == 1 ? Dim(c.n.attrs.i("group", 1)) : Dim(1));
  if (equal((*x)[1], channels) == Truth::no)
    return c.wrong(
        fmt::format("the channels of its input {} are {}; its weights {} with group {} want {}",
                    str(*x), (*x)[1].str(), str(*w), c.n.attrs.i("group", 1), channels.str()));
  if (auto m = (*x)[1].constant(); m && *m % c.n.attrs.i("group", 1) != 0)
    return c.wrong(fmt::format("its input's {} cannot be divided into {}", counted(*m, "channel"),
                               counted(c.n.attrs.i("group", 1), "group")));
  if (auto m = (*w)[0].constant(); m && *m % c.n.attrs.i("group", 1) != 0)
    return c.wrong(fmt::format("its weights {} do not divide into {} groups", str(*w),
                               c.n.attrs.i("group", 1)));
  auto k = c.n.attrs.ints("kernel_shape");
  for (size_t i = 0; i < k.size() && i + 2 < w->size(); ++i)
    if (equal((*w)[i + 2], Dim(k[i])) == Truth::no)
      return c.wrong(fmt::format("its weights are {}, its kernel_shape says otherwise", str(*w)));
  return {};
}

Status conv(InferenceContext& c) {
  FERRULE_TRY(check_weights(c, 1));
  const auto &x = c.shape(0), &w = c.shape(1);
  std::optional<Shape> out;
  if (x) {
    out = Shape{(*x)[0], w ? (*w)[0] : Dim::unknown()};
    auto kernel = kernel_of(c);
    Shape spatial(x->begin() + 2, x->end());
    if (kernel && kernel->size() != spatial.size())
      return c.wrong(fmt::format("kernel_shape has {}, its input is {}",
                                 counted(kernel->size(), "value"), str(*x)));
    Shape rest;
    if (kernel) {
      FERRULE_ASSIGN(rest, windows(c, spatial, *kernel));
    } else {
      rest = unknown_shape(spatial.size());
    }
    out->insert(out->end(), rest.begin(), rest.end());
  }
  // Integer convolutions widen.
  return c.set(0, c.n.op == "ConvInteger" ? DType::i32 : c.in(0).dtype, out);
}

Status conv_transpose(InferenceContext& c) {
  FERRULE_TRY(check_weights(c, 0));
  const auto &x = c.shape(0), &w = c.shape(1);
  if (!x) return c.set(0, c.in(0).dtype);
  size_t k = x->size() - 2;
  Shape out{(*x)[0], w ? (*w)[1] * Dim(c.n.attrs.i("group", 1)) : Dim::unknown()};
  auto kernel = kernel_of(c);
  if (kernel && kernel->size() != k)
    return c.wrong(fmt::format("kernel_shape has {}, its input is {}",
                               counted(kernel->size(), "value"), str(*x)));
  FERRULE_TRY(check_window(c, kernel.value_or(std::vector<int64_t>(k, 1))));
  auto strides = per_axis(c.n, "strides", k, 1), dilations = per_axis(c.n, "dilations", k, 1);
  auto pads = per_axis(c.n, "pads", 2 * k, 0), extra = per_axis(c.n, "output_padding", k, 0);
  auto fixed = c.n.attrs.ints("output_shape");
  std::string auto_pad = c.n.attrs.s("auto_pad", "NOTSET");
  if (extra.size() != k || (!fixed.empty() && fixed.size() != k && fixed.size() != k + 2))
    return error(Code::bad_attribute, place(c.n), fixed.empty() ? "output_padding" : "output_shape",
                 fmt::format("{} wanted", k == 1 ? "1 value is" : fmt::format("{} values are", k)));
  for (size_t i = 0; i < k; ++i) {
    if (extra[i] < 0 || extra[i] > kHuge)
      return error(Code::bad_attribute, place(c.n), "output_padding",
                   fmt::format("{} is out of range", extra[i]));
    Dim in = (*x)[i + 2];
    if (!fixed.empty()) {
      out.push_back(fixed[fixed.size() - k + i]);
    } else if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      out.push_back(in * Dim(strides[i]));
    } else if (!kernel) {
      out.push_back(Dim::unknown());
    } else {
      int64_t cut = auto_pad == "NOTSET" ? pads[i] + pads[i + k] : 0;
      Dim reach = Dim(((*kernel)[i] - 1) * dilations[i] + 1 + extra[i] - cut);
      out.push_back(Dim(strides[i]) * (in - Dim(1)) + reach);
    }
    if (at_least(out.back(), Dim(0)) == Truth::no)
      return c.wrong(
          fmt::format("its output would have {} elements along an axis", out.back().str()));
  }
  return c.set(0, c.in(0).dtype, out);
}

Status pool(InferenceContext& c) {
  const auto& x = c.shape(0);
  std::optional<Shape> out;
  std::vector<int64_t> kernel = c.n.attrs.ints("kernel_shape");
  if (x) {
    if (x->size() != kernel.size() + 2)
      return c.wrong(fmt::format("its input is {}, kernel_shape has {}", str(*x),
                                 counted(kernel.size(), "value")));
    FERRULE_ASSIGN(Shape rest, windows(c, Shape(x->begin() + 2, x->end()), kernel));
    out = Shape{(*x)[0], (*x)[1]};
    out->insert(out->end(), rest.begin(), rest.end());
  }
  c.set(0, c.in(0).dtype, out);
  c.set(1, DType::i64, out);  // MaxPool's indices
  return {};
}

Status global_pool(InferenceContext& c) {
  std::optional<Shape> out = c.shape(0);
  if (out && out->size() < 2) return c.wrong(fmt::format("its input is {}", str(*out)));
  for (size_t i = 2; out && i < out->size(); ++i) (*out)[i] = Dim(1);
  return c.set(0, c.in(0).dtype, out);
}

Status matmul(InferenceContext& c) {
  DType type = c.n.op == "MatMulInteger" ? DType::i32 : c.in(0).dtype;
  size_t right = c.n.op == "QLinearMatMul" ? 3 : 1;
  if (right == 3) type = c.in(7).dtype;
  if (!c.shape(0) || !c.shape(right)) return c.set(0, type);
  Shape a = *c.shape(0), b = *c.shape(right);
  auto wrong = [&] {
    return c.wrong(
        fmt::format("{} and {} cannot be multiplied", str(*c.shape(0)), str(*c.shape(right))));
  };
  if (a.empty() || b.empty()) return wrong();
  bool vector_a = a.size() == 1, vector_b = b.size() == 1;
  if (vector_a) a.insert(a.begin(), Dim(1));
  if (vector_b) b.push_back(Dim(1));
  if (equal(a.back(), b[b.size() - 2]) == Truth::no) return wrong();
  auto batch = broadcast(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  if (!batch) return wrong();
  Shape out = *batch;
  if (!vector_a) out.push_back(a[a.size() - 2]);
  if (!vector_b) out.push_back(b.back());
  return c.set(0, type, out);
}

/// Sizes under one label broadcast; onnx's own inference takes the first operand's.
Status einsum(InferenceContext& c) {
  const std::string equation = c.n.attrs.s("equation");
  const auto e = EinsumEquation::of(equation);
  auto bad = [&](const std::string& what) {
    return error(Code::bad_attribute, place(c.n), "equation",
                 fmt::format("{} in \"{}\"", what, escape(equation, 100)));
  };
  if (!e) return bad(e.error());
  if (e->terms.size() != c.n.inputs.size())
    return bad(fmt::format("{} for {}", counted(e->terms.size(), "term"),
                           counted(c.n.inputs.size(), "input")));
  std::map<std::string, Dim> sizes;
  size_t widest = 0;
  auto unknown = [&] { return c.set(0, c.in(0).dtype); };
  for (size_t i = 0; i < e->terms.size(); ++i) {
    const auto& shape = c.shape(i);
    const std::string& term = e->terms[i];
    const bool dots = term.find('.') != std::string::npos;
    if (!shape) return unknown();
    if (shape->size() + dots < term.size() || (!dots && shape->size() != term.size()))
      return c.wrong(fmt::format("its input {} is {}, its term \"{}\"", i, str(*shape), term));
    const size_t within = shape->size() + dots - term.size();
    if (dots) widest = std::max(widest, within);
    size_t k = 0;
    for (char ch : term)
      for (size_t n = ch == '.' ? within : 1; n > 0; --n, ++k) {
        const auto [at, first] =
            sizes.try_emplace(ch == '.' ? fmt::format(".{}", n) : std::string(1, ch), (*shape)[k]);
        if (first) continue;
        const auto both = broadcast({at->second}, {(*shape)[k]});
        if (!both)
          return c.wrong(
              fmt::format("{} and {} under one label", at->second.str(), (*shape)[k].str()));
        at->second = both->front();
      }
  }
  Shape out;
  for (char ch : e->out)
    for (size_t n = ch == '.' ? widest : 1; n > 0; --n) {
      const auto at = sizes.find(ch == '.' ? fmt::format(".{}", n) : std::string(1, ch));
      if (at == sizes.end()) return unknown();
      out.push_back(at->second);
    }
  return c.set(0, c.in(0).dtype, out);
}

Status gemm(InferenceContext& c) {
  const auto &a = c.shape(0), &b = c.shape(1);
  if ((a && a->size() != 2) || (b && b->size() != 2))
    return c.wrong(
        fmt::format("its inputs are {} and {}, matrices are wanted", str(c.in(0)), str(c.in(1))));
  size_t ta = c.n.attrs.i("transA") != 0, tb = c.n.attrs.i("transB") != 0;
  if (a && b && equal((*a)[1 - ta], (*b)[tb]) == Truth::no)
    return c.wrong(fmt::format("{} and {} cannot be multiplied (transA {}, transB {})", str(*a),
                               str(*b), ta, tb));
  Shape out{a ? (*a)[ta] : Dim::unknown(), b ? (*b)[1 - tb] : Dim::unknown()};
  if (c.shape(2)) {
    auto sum = broadcast(out, *c.shape(2));
    if (!sum || sum->size() != 2)
      return c.wrong(fmt::format("{} cannot be added to {}", str(*c.shape(2)), str(out)));
  }
  return c.set(0, c.in(0).dtype, out);
}

/// A [batch, heads, steps, size] of Attention, from that or from [batch, steps, heads * size].
Result<Shape> heads_apart(const InferenceContext& c, size_t input, const char* attribute) {
  const auto& s = c.shape(input);
  if (!s) return unknown_shape(4);
  if (s->size() == 4) return *s;
  if (s->size() != 3)
    return c.wrong(fmt::format("its input {} is {}; 3 or 4 axes are wanted", input, str(*s)));
  const int64_t heads = c.n.attrs.i(attribute);
  if (heads < 1 || heads > kHuge)
    return error(Code::bad_attribute, place(c.n), attribute,
                 "inputs with 3 axes need it, a positive number of heads");
  const Dim size = floordiv((*s)[2], Dim(heads));
  if (equal(size * Dim(heads), (*s)[2]) == Truth::no)
    return error(Code::bad_attribute, place(c.n), attribute,
                 fmt::format("{} does not divide {}", heads, (*s)[2].str()));
  return Shape{(*s)[0], Dim(heads), (*s)[1], size};
}

/// onnx's own inference says nothing of keys and values without past ones, and takes symbolic sizes
/// for 0.
Status attention(InferenceContext& c) {
  const DType type = c.in(0).dtype;
  for (size_t i : {1, 2})
    if (c.shape(0) && c.shape(i) && c.shape(0)->size() != c.shape(i)->size())
      return c.wrong(fmt::format("its inputs 0 and {} are {} and {}: of other ranks", i,
                                 str(c.in(0)), str(c.in(i))));
  FERRULE_ASSIGN(const Shape q, heads_apart(c, 0, "q_num_heads"));
  FERRULE_ASSIGN(Shape k, heads_apart(c, 1, "kv_num_heads"));
  FERRULE_ASSIGN(Shape v, heads_apart(c, 2, "kv_num_heads"));
  for (auto [present, past] : {std::pair{&k, size_t{4}}, std::pair{&v, size_t{5}}}) {
    if (!c.has(past)) continue;
    const auto& s = c.shape(past);
    if (s && s->size() != 4)
      return c.wrong(fmt::format("its input {} is {}; 4 axes are wanted", past, str(*s)));
    (*present)[2] = s ? (*s)[2] + (*present)[2] : Dim::unknown();
  }
  c.set(1, c.in(1).dtype, k);
  c.set(2, c.in(2).dtype, v);
  c.set(3, type, Shape{q[0], q[1], q[2], k[2]});
  if (!c.shape(0)) return c.set(0, type);
  return c.shape(0)->size() == 3 ? c.set(0, type, Shape{q[0], q[2], q[1] * v[3]})
                                 : c.set(0, type, Shape{q[0], q[1], q[2], v[3]});
}

}  // namespace

std::optional<std::vector<int64_t>> resolved_pads(const Node& n, const Shape& spatial,
                                                  const std::vector<int64_t>& kernel) {
  size_t k = kernel.size();
  std::string auto_pad = n.attrs.s("auto_pad", "NOTSET");
  bool transposed = n.op == "ConvTranspose";
  auto fixed = transposed ? n.attrs.ints("output_shape") : std::vector<int64_t>{};
  bool same = auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER";
  if (!same && fixed.empty())
    return auto_pad == "VALID" ? std::vector<int64_t>(2 * k, 0) : per_axis(n, "pads", 2 * k, 0);
  auto strides = per_axis(n, "strides", k, 1), dilations = per_axis(n, "dilations", k, 1);
  auto extra = per_axis(n, "output_padding", k, 0);
  if ((!fixed.empty() && fixed.size() < k) || strides.size() < k || dilations.size() < k ||
      extra.size() < k)
    return std::nullopt;
  std::vector<int64_t> out(2 * k);
  for (size_t i = 0; i < k && i < spatial.size(); ++i) {
    int64_t reach = (kernel[i] - 1) * dilations[i] + 1, total;
    auto in = spatial[i].constant();
    if (strides[i] <= 0) return std::nullopt;
    if (transposed && fixed.empty()) {
      // SAME: the output is input * stride, whatever the input.
      total = std::max<int64_t>(0, reach + extra[i] - strides[i]);
    } else if (transposed) {
      if (!in) return std::nullopt;
      int64_t want = fixed[fixed.size() - k + i];
      total = std::max<int64_t>(0, strides[i] * (*in - 1) + extra[i] + reach - want);
    } else if (strides[i] == 1) {
      total = reach - 1;
    } else {
      if (!in) return std::nullopt;
      int64_t steps = (*in + strides[i] - 1) / strides[i];
      total = std::max<int64_t>(0, (steps - 1) * strides[i] + reach - *in);
    }
    bool upper = auto_pad == "SAME_UPPER";
    out[i] = upper ? total / 2 : total - total / 2;
    out[i + k] = total - out[i];
  }
  return out;
}

void infer_detail::add_window_rules(Table& t) {
  t.insert({{"Conv", conv},
            {"ConvInteger", conv},
            {"ConvTranspose", conv_transpose},
            {"MaxPool", pool},
            {"AveragePool", pool},
            {"LpPool", pool},
            {"GlobalMaxPool", global_pool},
            {"GlobalAveragePool", global_pool},
            {"GlobalLpPool", global_pool},
            {"Attention", attention},
            {"MatMul", matmul},
            {"MatMulInteger", matmul},
            {"QLinearMatMul", matmul},
            {"Gemm", gemm},
            {"Einsum", einsum}});
}

}  // namespace ferrule
