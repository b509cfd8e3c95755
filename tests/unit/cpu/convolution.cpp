// Convolutions and deconvolutions against plain loops over every pad, stride, group, dilation and
// rank.
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct ConvCase {
  Dims x, w;  // w: [out, in / groups, kernel…], transposed: [in, out / groups, kernel…]
  Dims strides{}, dilations{}, pads{};
  int64_t groups = 1;
  bool bias = true;
  Dims output_padding{};
};

Dims or_ones(Dims v, size_t n) {
  v.resize(n, 1);
  return v;
}

/// Direct sum in double. `transposed`: scatter instead of gather.
std::vector<double> naive(const ConvCase& c, const Tensor& x, const Tensor& w, const Tensor* bias,
                          const Dims& y, bool transposed) {
  const size_t spatial = c.x.size() - 2;
  const Dims stride = or_ones(c.strides, spatial), dilation = or_ones(c.dilations, spatial);
  Dims pads = c.pads;
  pads.resize(2 * spatial, 0);
  std::vector<double> out(static_cast<size_t>(numel(y)), 0.0);
  const Dims xs = strides_of(c.x, Layout::plain), ys = strides_of(y, Layout::plain);
  const int64_t in_group = c.x[1] / c.groups, out_group = y[1] / c.groups;
  const Dims window(c.w.begin() + 2, c.w.end());
  if (bias)
    each_index(y,
               [&](const Dims& i, int64_t k) { out[static_cast<size_t>(k)] = bias->at_f64(i[1]); });
  const Dims& big = transposed ? y : c.x;
  const Dims& small = transposed ? c.x : y;
  Dims positions{small[0], c.groups, in_group, out_group};
  positions.insert(positions.end(), small.begin() + 2, small.end());
  each_index(positions, [&](const Dims& p, int64_t) {
    each_index(window, [&](const Dims& t, int64_t tap) {
      Dims at;
      for (size_t a = 0; a < spatial; ++a) {
        at.push_back(p[4 + a] * stride[a] - pads[a] + t[a] * dilation[a]);
        if (at[a] < 0 || at[a] >= big[a + 2]) return;
      }
      const int64_t ic = p[1] * in_group + p[2], oc = p[1] * out_group + p[3];
      int64_t xi = p[0] * xs[0] + ic * xs[1], yi = p[0] * ys[0] + oc * ys[1];
      for (size_t a = 0; a < spatial; ++a) {
        xi += (transposed ? p[4 + a] : at[a]) * xs[a + 2];
        yi += (transposed ? at[a] : p[4 + a]) * ys[a + 2];
      }
      const int64_t taps = numel(window);
      const int64_t wi = (transposed ? ic * out_group + p[3] : oc * in_group + p[2]) * taps + tap;
      out[static_cast<size_t>(yi)] += x.at_f64(xi) * w.at_f64(wi);
    });
  });
  return out;
}

Dims output_dims(const ConvCase& c, bool transposed) {
  const size_t spatial = c.x.size() - 2;
  const Dims stride = or_ones(c.strides, spatial), dilation = or_ones(c.dilations, spatial);
  Dims pads = c.pads, extra = c.output_padding;
  pads.resize(2 * spatial, 0);
  extra.resize(spatial, 0);
  Dims y{c.x[0], transposed ? c.w[1] * c.groups : c.w[0]};
  for (size_t a = 0; a < spatial; ++a) {
    const int64_t reach = (c.w[a + 2] - 1) * dilation[a] + 1;
    if (transposed)
      y.push_back((c.x[a + 2] - 1) * stride[a] + reach - pads[a] - pads[a + spatial] + extra[a]);
    else
      y.push_back((c.x[a + 2] + pads[a] + pads[a + spatial] - reach) / stride[a] + 1);
  }
  return y;
}

void set_up(Harness& h, const ConvCase& c) {
  if (!c.strides.empty()) h.node.attrs.set("strides", c.strides);
  if (!c.dilations.empty()) h.node.attrs.set("dilations", c.dilations);
  if (!c.pads.empty()) h.node.attrs.set("pads", c.pads);
  if (!c.output_padding.empty()) h.node.attrs.set("output_padding", c.output_padding);
  h.node.attrs.set("group", c.groups);
}

/// Filters that the model computes lie as their maker wrote them.
enum class Filters { constant, computed, computed_last };

void check_case(const ConvCase& c, bool transposed, Filters filters) {
  CAPTURE(str(Type{DType::f32, Shape(c.x.begin(), c.x.end())}));
  CAPTURE(str(Type{DType::f32, Shape(c.w.begin(), c.w.end())}));
  const Dims y = output_dims(c, transposed);
  const Tensor x = random_tensor(c.x, 1), w = random_tensor(c.w, 2), b = random_tensor({y[1]}, 3);
  Harness h(transposed ? "ConvTranspose" : "Conv");
  set_up(h, c);
  h.input(x, Layout::channels_last);
  if (filters == Filters::constant)
    h.constant(w);
  else
    h.input(w, filters == Filters::computed ? Layout::plain : Layout::channels_last);
  if (c.bias) filters == Filters::constant ? h.constant(b) : h.input(b);
  h.output(DType::f32, y, Layout::channels_last);
  const Tensor got = h.run(transposed ? make_deconvolution : make_convolution);
  check_close(got, naive(c, x, w, c.bias ? &b : nullptr, y, transposed));
}

void check_case(const ConvCase& c, bool transposed) {
  for (Filters f : {Filters::constant, Filters::computed, Filters::computed_last})
    check_case(c, transposed, f);
}

}  // namespace

TEST_CASE("convolutions of every rank, pad, stride, group and dilation") {
  for (const ConvCase& c : std::vector<ConvCase>{
           {{1, 3, 13, 11}, {8, 3, 3, 3}, {2, 2}, {}, {1, 1, 1, 1}},
           {{2, 16, 9, 9}, {32, 16, 1, 1}, {}, {}, {}},
           {{1, 16, 9, 7}, {16, 1, 3, 3}, {}, {}, {1, 1, 1, 1}, 16},
           {{1, 16, 12, 12}, {16, 1, 5, 5}, {2, 2}, {}, {2, 2, 2, 2}, 16, false},
           {{1, 12, 8, 8}, {8, 6, 3, 3}, {}, {}, {0, 1, 2, 0}, 2},
           {{1, 5, 17, 17}, {7, 5, 3, 3}, {}, {3, 2}, {3, 2, 3, 2}},
           {{3, 6, 20}, {10, 6, 5}, {3}, {}, {2, 1}},
           {{1, 4, 6, 7, 8}, {6, 4, 3, 2, 3}, {1, 2, 2}, {}, {1, 0, 1, 1, 0, 1}},
           {{1, 1, 8, 8}, {4, 1, 3, 3}, {}, {}, {}},
           {{1, 64, 1, 1}, {128, 64, 1, 1}, {}, {}, {}},
           // One element wide: the library gets rows.
           {{2, 16, 37, 1}, {32, 16, 5, 1}, {2, 1}, {}, {2, 0, 1, 0}},
           {{1, 8, 19, 1}, {8, 1, 3, 1}, {}, {2, 1}, {2, 0, 2, 0}, 8},
           {{1, 8, 19, 1}, {12, 4, 3, 1}, {}, {2, 3}, {0, 0, 3, 0}, 2, false},
           {{1, 4, 9, 1}, {6, 4, 3, 1}, {1, 2}, {}, {1, 1, 1, 0}},
           {{1, 4, 9, 1}, {6, 4, 3, 3}, {}, {}, {1, 1, 1, 1}},
       })
    check_case(c, false);
}

TEST_CASE("deconvolutions") {
  for (const ConvCase& c : std::vector<ConvCase>{
           {{1, 8, 5, 6}, {8, 6, 3, 3}, {2, 2}, {}, {1, 1, 1, 1}},
           {{1, 8, 5, 6}, {8, 6, 2, 2}, {2, 2}, {}, {}},
           {{1, 8, 5, 6}, {8, 6, 3, 3}, {2, 2}, {}, {1, 1, 1, 1}, 1, true, {1, 1}},
           {{2, 8, 5, 6}, {8, 3, 3, 3}, {2, 1}, {1, 2}, {0, 1, 1, 0}, 2, false},
           {{1, 4, 9}, {4, 5, 4}, {2}, {}, {1, 1}},
           {{1, 8, 6, 6}, {8, 1, 3, 3}, {2, 2}, {}, {1, 1, 1, 1}, 8},
           {{2, 24, 48, 20}, {24, 1, 2, 2}, {2, 2}, {}, {}},
           {{1, 6, 7, 9}, {6, 5, 3, 2}, {3, 2}, {}, {}, 1, false},
           {{1, 16, 24, 64}, {16, 24, 2, 2}, {2, 2}, {}, {}},
           // Every window has pixels of its own, but for what is cut in front and added behind.
           {{1, 8, 5, 6}, {8, 6, 2, 3}, {2, 3}, {}, {0, 1, 0, 0}, 1, true, {0, 1}},
           {{1, 8, 5, 6}, {8, 6, 2, 2}, {2, 2}, {}, {1, 0, 0, 0}, 1, true, {1, 0}},
           // Few filters: a product, whose windows are added up.
           {{2, 16, 9}, {16, 1, 8}, {3}, {}, {2, 3}},
           {{1, 4, 200}, {4, 2, 7}, {3}, {}, {0, 1}, 1, true, {2}},
           {{2, 6, 3, 4, 5}, {6, 2, 3, 2, 3}, {2, 1, 3}, {1, 3, 1}, {1, 0, 1, 0, 1, 2}, 1, false},
           {{1, 8, 70, 5}, {8, 3, 5, 4}, {2, 3}, {2, 1}, {3, 1, 0, 2}},
           {{1, 6, 60}, {6, 1, 9}, {5}, {2}, {4, 0}, 6},
           // So many weights that oneDNN's strided kernel adds the bias more than once.
           {{1, 1024, 3, 4}, {1024, 16, 4, 4}, {2, 2}, {}, {1, 1, 1, 1}},
           {{1, 21, 3, 3}, {21, 21, 32, 32}, {16, 16}, {}, {8, 8, 8, 8}},
           {{1, 128, 2, 3, 2}, {128, 64, 4, 4, 4}, {2, 2, 2}, {}, {1, 1, 1, 1, 1, 1}},
       })
    check_case(c, true);
}

TEST_CASE("deconvolutions whose padding follows from the size of the result") {
  const Dims size{5, 6}, kernel{2, 3};
  const Tensor x = random_tensor({1, 8, 5, 6}, 1), w = random_tensor({8, 4, 2, 3}, 2);
  struct Mode {
    const char* auto_pad;
    Dims output_shape, output_padding, pads;
  };
  for (const Mode& m : std::vector<Mode>{
           {"SAME_LOWER", {}, {0, 1}, {0, 1, 0, 0}},  // of one pixel too many, the first is cut
           {"SAME_UPPER", {}, {0, 1}, {0, 0, 0, 1}},
           {"SAME_LOWER", {}, {1, 2}, {1, 1, 0, 1}},
           {"SAME_UPPER", {}, {1, 2}, {0, 1, 1, 1}},
           {"SAME_LOWER", {}, {}, {}},
           {"SAME_UPPER", {}, {}, {}},
           {"NOTSET", {10, 18}, {1, 0}, {1, 0, 0, 0}},
           {"NOTSET", {10, 18}, {}, {}},
       }) {
    CAPTURE(std::string(m.auto_pad));
    Harness h("ConvTranspose");
    const ConvCase c{x.dims(), w.dims(), kernel, {}, m.pads, 1, false, m.output_padding};
    const Dims y = output_dims(c, true);
    REQUIRE(y == Dims{1, 4, size[0] * kernel[0], size[1] * kernel[1]});
    ConvCase given = c;
    given.pads = {};
    set_up(h, given);
    h.node.attrs.set("auto_pad", std::string(m.auto_pad));
    if (!m.output_shape.empty()) h.node.attrs.set("output_shape", m.output_shape);
    h.input(x, Layout::channels_last);
    h.constant(w);
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_deconvolution), naive(c, x, w, nullptr, y, true));
    const bool cut_in_front = !m.pads.empty() && m.pads[0] + m.pads[1] > 0;
    CHECK(h.text.starts_with("unfold") == !cut_in_front);
  }
}

/// A deconvolution with a bias, a factor for each channel, perhaps another tensor, and an
/// activation: which kernel it was.
std::string check_tail(const ConvCase& c, bool with_full, const char* activation,
                       double (*f)(double)) {
  const Dims y = output_dims(c, true);
  const Tensor x = random_tensor(c.x, 1), w = random_tensor(c.w, 2), b = random_tensor({y[1]}, 3);
  const Tensor scale = random_tensor({1, y[1], 1, 1}, 4), full = random_tensor(y, 5);
  Harness h("ConvTranspose");
  set_up(h, c);
  h.input(x, Layout::channels_last);
  h.constant(w);
  h.constant(b);
  h.constant(scale);
  h.node.inputs.pop_back();
  h.binary("mul", 3);
  if (with_full) h.binary("add", h.operand(full, Layout::channels_last));
  h.eltwise(activation);
  h.output(DType::f32, y, Layout::channels_last);
  auto want = naive(c, x, w, &b, y, true);
  each_index(y, [&](const Dims& i, int64_t k) {
    double& v = want[static_cast<size_t>(k)];
    v = f(v * scale.at_f64(i[1]) + (with_full ? full.at_f64(k) : 0));
  });
  check_close(h.run(make_deconvolution), want);
  return h.text;
}

TEST_CASE("deconvolutions take their tail along") {
  const auto relu = [](double v) { return std::max(0.0, v); };
  const auto logistic = [](double v) { return 1 / (1 + std::exp(-v)); };
  const ConvCase apart{{1, 12, 16, 10}, {12, 4, 2, 2}, {2, 2}, {}, {}};
  const ConvCase few{{1, 12, 16, 10}, {12, 4, 4, 4}, {2, 2}, {}, {}};
  const ConvCase large{{1, 1024, 3, 4}, {1024, 16, 4, 4}, {2, 2}, {}, {}};
  for (bool with_full : {false, true}) {
    CHECK(check_tail(apart, with_full, "logistic", logistic).starts_with("unfold") == !with_full);
    CHECK(check_tail(few, with_full, "relu", relu).starts_with("fold"));
    (void)check_tail(large, with_full, "relu", relu);
  }
}

TEST_CASE("auto_pad puts the odd pixel behind or in front") {
  const Tensor x = random_tensor({1, 4, 7, 7}, 1), w = random_tensor({4, 4, 4, 4}, 2);
  for (const char* mode : {"SAME_UPPER", "SAME_LOWER", "VALID"}) {
    Harness h("Conv");
    h.node.attrs.set("auto_pad", std::string(mode));
    h.input(x, Layout::channels_last);
    h.constant(w);
    ConvCase c{{1, 4, 7, 7}, {4, 4, 4, 4}, {}, {}, {1, 1, 2, 2}};
    if (std::string(mode) == "SAME_LOWER") c.pads = {2, 2, 1, 1};
    if (std::string(mode) == "VALID") c.pads = {};
    const Dims y = output_dims(c, false);
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_convolution), naive(c, x, w, nullptr, y, false));
  }
}

static void check_tails(const ConvCase& c) {
  const Dims y = output_dims(c, false);
  const Tensor x = random_tensor(c.x, 1), w = random_tensor(c.w, 2), b = random_tensor({24}, 3);
  const Tensor residual = random_tensor(y, 4), scale = random_tensor({1, 24, 1, 1}, 5),
               one = random_tensor({1}, 6);
  const std::vector<double> base = naive(c, x, w, &b, y, false);
  auto start = [&](Harness& h) {
    set_up(h, c);
    h.input(x, Layout::channels_last);
    h.constant(w);
    h.constant(b);
  };
  auto expect = [&](const std::function<double(double, const Dims&, int64_t)>& f) {
    std::vector<double> v = base;
    each_index(y, [&](const Dims& i, int64_t k) {
      v[static_cast<size_t>(k)] = f(v[static_cast<size_t>(k)], i, k);
    });
    return v;
  };
  SUBCASE("relu") {
    Harness h("Conv");
    start(h);
    h.eltwise("relu");
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_convolution),
                expect([](double v, auto&, auto) { return std::max(v, 0.0); }));
  }
  SUBCASE("hard swish as alpha x + beta") {
    Harness h("Conv");
    start(h);
    h.eltwise("hardswish", 1.0f / 6, 0.5f);
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_convolution), expect([](double v, auto&, auto) {
                  return v * std::clamp(v / 6 + 0.5, 0.0, 1.0);
                }));
  }
  SUBCASE("scale per channel, scalar, residual in memory of its own, clip") {
    Harness h("Conv");
    start(h);
    const int s = h.operand(scale), o = h.operand(one),
              r = h.operand(residual, Layout::channels_last);
    h.binary("mul", s);
    h.binary("sub", o);
    h.binary("add", r);
    h.eltwise("clip", -0.5f, 0.75f);
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_convolution), expect([&](double v, const Dims& i, int64_t k) {
                  return std::clamp(v * scale.at_f64(i[1]) - one.at_f64(0) + residual.at_f64(k),
                                    -0.5, 0.75);
                }));
  }
  SUBCASE("residual in the result's memory, then relu") {
    Harness h("Conv");
    start(h);
    const int r = h.operand(residual, Layout::channels_last);
    h.binary("add", r);
    h.eltwise("relu");
    h.output(DType::f32, y, Layout::channels_last, r);
    check_close(h.run(make_convolution), expect([&](double v, auto&, int64_t k) {
                  return std::max(v + residual.at_f64(k), 0.0);
                }));
  }
  SUBCASE("activation, then residual in the result's memory") {
    Harness h("Conv");
    start(h);
    const int r = h.operand(residual, Layout::channels_last);
    h.eltwise("relu");
    h.binary("add", r);
    h.output(DType::f32, y, Layout::channels_last, r);
    check_close(h.run(make_convolution), expect([&](double v, auto&, int64_t k) {
                  return std::max(v, 0.0) + residual.at_f64(k);
                }));
  }
  SUBCASE("a full constant is packed in the result's layout") {
    Harness h("Conv");
    start(h);
    h.constant(residual);
    h.binary("add", 3);
    h.output(DType::f32, y, Layout::channels_last);
    check_close(h.run(make_convolution),
                expect([&](double v, auto&, int64_t k) { return v + residual.at_f64(k); }));
  }
}

TEST_CASE("convolution tails: activations, per-channel and full operands, sum in place") {
  check_tails({{1, 16, 10, 10}, {24, 16, 3, 3}, {}, {}, {1, 1, 1, 1}});
}
TEST_CASE("convolution tails of images one element wide") {
  check_tails({{2, 16, 21, 1}, {24, 16, 5, 1}, {2, 1}, {}, {1, 0, 2, 0}});
}

TEST_CASE("no convolution is left to the library's reference code") {
  for (Dims w : std::vector<Dims>{{32, 16, 1, 1}, {32, 16, 3, 3}}) {
    Harness h("Conv");
    h.input(random_tensor({1, 16, 8, 8}, 1), Layout::channels_last);
    h.constant(random_tensor(w, 2));
    h.output(DType::f32, {1, 32, 9 - w[2], 9 - w[2]}, Layout::channels_last);
    h.run(make_convolution);
    CHECK(h.text.find("ref") == std::string::npos);
  }
}

TEST_CASE("packed weights are shared and not packed twice") {
  const Tensor x = random_tensor({1, 16, 8, 8}, 1), w = random_tensor({32, 16, 3, 3}, 2);
  Harness h("Conv");
  h.input(x, Layout::channels_last);
  h.constant(w);
  h.output(DType::f32, {1, 32, 6, 6}, Layout::channels_last);
  auto first = h.make(make_convolution);
  REQUIRE(first.has_value());
  memory::desc from({32, 16, 3, 3}, memory::data_type::f32, memory::format_tag::oihw);
  memory::desc to({32, 16, 3, 3}, memory::data_type::f32, memory::format_tag::hwio);
  const Packed a = h.library.pack(w, from, to), b = h.library.pack(w, from, to);
  CHECK(a.data == b.data);
  const Packed scaled = h.library.pack(w, from, to, 2.0f);
  CHECK(scaled.data != a.data);
  CHECK(static_cast<const float*>(scaled.data)[7] == 2 * static_cast<const float*>(a.data)[7]);
}

}  // namespace ferrule::cpu::test
