// Pooling against plain loops: maximum, average with and without pads, ceil_mode, ranks, global.
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct PoolCase {
  const char* op;
  Dims x, kernel, strides, pads;
  bool ceil = false, include = false;
  Dims dilations = {};
  int64_t gap(size_t axis) const { return dilations.empty() ? 1 : dilations[axis]; }
};

const PoolCase kPoolCases[] = {
    {"MaxPool", {1, 16, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {"MaxPool", {2, 3, 8, 8}, {2, 2}, {2, 2}, {0, 0, 0, 0}},
    {"MaxPool", {1, 5, 10, 10}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true},
    {"MaxPool", {1, 4, 12}, {3}, {2}, {1, 0}},
    {"MaxPool", {1, 4, 6, 6, 6}, {2, 3, 2}, {2, 1, 2}, {0, 1, 0, 0, 1, 0}},
    {"AveragePool", {1, 16, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {"AveragePool", {1, 16, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, true},
    {"AveragePool", {1, 6, 10, 10}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true},
    {"AveragePool", {1, 6, 7, 7}, {2, 3}, {1, 1}, {0, 0, 1, 2}},
    {"AveragePool", {2, 6, 1, 1}, {2, 2}, {2, 2}, {1, 0, 1, 0}, true},
    {"AveragePool", {1, 6, 3, 5}, {4, 2}, {2, 2}, {0, 0, 0, 0}, true},
    {"MaxPool", {1, 6, 3, 5}, {4, 2}, {2, 2}, {0, 0, 0, 0}, true},
    {"MaxPool", {1, 6, 1}, {3}, {3}, {0, 0}, true},
    // Pads that count, and windows that hang over them: along one axis, along all, by more than
    // half, in the only window.
    {"AveragePool", {1, 6, 10, 10}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true, true},
    {"AveragePool", {2, 17, 10, 11}, {3, 2}, {3, 2}, {1, 0, 1, 1}, true, true},
    {"AveragePool", {2, 6, 1, 1}, {2, 2}, {2, 2}, {1, 0, 1, 0}, true, true},
    {"AveragePool", {1, 6, 3, 5}, {4, 2}, {2, 2}, {0, 0, 0, 0}, true, true},
    {"AveragePool", {1, 6, 7, 7}, {5, 5}, {4, 4}, {1, 1, 1, 1}, true, true},
    {"AveragePool", {2, 4, 12}, {5}, {3}, {2, 0}, true, true},
    {"AveragePool", {1, 4, 6, 5, 8}, {3, 3, 2}, {2, 2, 3}, {1, 0, 0, 0, 1, 0}, true, true},
    {"AveragePool", {2, 64, 80, 70}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true, true},
    {"AveragePool", {0, 6, 10, 10}, {3, 3}, {2, 2}, {0, 0, 0, 0}, true, true},
};

Dims output_dims(const PoolCase& c) {
  const size_t n = c.kernel.size();
  Dims y{c.x[0], c.x[1]};
  for (size_t a = 0; a < n; ++a) {
    const int64_t span = c.x[a + 2] + c.pads[a] + c.pads[a + n] - (c.kernel[a] - 1) * c.gap(a) - 1;
    const double steps =
        static_cast<double>(span) /
        static_cast<double>(c.strides[a]);  // below 0: a window larger than the padded image
    int64_t out = static_cast<int64_t>(c.ceil ? std::ceil(steps) : std::floor(steps)) + 1;
    if (c.ceil && (out - 1) * c.strides[a] >= c.x[a + 2] + c.pads[a])
      --out;  // starts in the pad behind
    y.push_back(out);
  }
  return y;
}

/// `where`: positions of the maxima as well.
std::vector<double> naive(const PoolCase& c, const Tensor& x, const Dims& y,
                          std::vector<int64_t>* where = nullptr) {
  const size_t n = c.kernel.size();
  const Dims xs = strides_of(c.x, Layout::plain);
  const bool max = std::string(c.op) == "MaxPool";
  std::vector<double> out;
  each_index(y, [&](const Dims& i, int64_t) {
    double best = -INFINITY, sum = 0;
    int64_t count = 0, first = -1;
    each_index(c.kernel, [&](const Dims& t, int64_t) {
      int64_t at = i[0] * xs[0] + i[1] * xs[1];
      bool inside = true, padded = true;
      for (size_t a = 0; a < n; ++a) {
        const int64_t p = i[a + 2] * c.strides[a] - c.pads[a] + t[a] * c.gap(a);
        inside = inside && p >= 0 && p < c.x[a + 2];
        padded = padded && p < c.x[a + 2] + c.pads[a + n];
        at += p * xs[a + 2];
      }
      if (inside || (c.include && padded)) ++count;
      if (!inside) return;
      const double v = x.at_f64(at);
      if (first < 0 || v > best || (std::isnan(v) && !std::isnan(best))) best = v, first = at;
      sum += v;
    });
    if (where) where->push_back(std::max<int64_t>(0, first));
    out.push_back(max ? best : sum / static_cast<double>(count));
  });
  return out;
}

void set_up(Harness& h, const PoolCase& c, const Tensor& x, const Dims& y,
            Layout layout = Layout::channels_last) {
  h.node.attrs.set("kernel_shape", c.kernel);
  h.node.attrs.set("strides", c.strides);
  h.node.attrs.set("pads", c.pads);
  h.node.attrs.set("ceil_mode", int64_t{c.ceil});
  h.node.attrs.set("count_include_pad", int64_t{c.include});
  if (!c.dilations.empty()) h.node.attrs.set("dilations", c.dilations);
  h.input(x, layout);
  h.output(x.dtype(), y, layout);
}

const PoolCase kOwnCases[] = {
    {"MaxPool", {1, 16, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}},
    {"MaxPool", {2, 3, 20, 37}, {3, 2}, {1, 1}, {1, 0, 1, 1}, false, false, {2, 3}},
    {"MaxPool", {1, 5, 10, 13}, {2, 3}, {3, 3}, {0, 0, 1, 1}, true},
    {"MaxPool", {1, 33, 12}, {3}, {2}, {1, 0}, false, false, {2}},
    {"MaxPool", {2, 4, 6, 5, 7}, {2, 3, 2}, {2, 1, 2}, {0, 1, 0, 1, 1, 1}, false, false, {2, 1, 3}},
    {"MaxPool", {1, 3, 4, 5}, {2, 2}, {2, 1}, {3, 0, 2, 2}},  // windows in the pads alone
    {"AveragePool", {1, 6, 9, 11}, {3, 3}, {2, 2}, {1, 1, 1, 1}, false, false, {2, 1}},
    {"AveragePool", {2, 6, 10, 10}, {3, 3}, {2, 2}, {1, 0, 0, 1}, true, true, {1, 2}},
    {"AveragePool", {1, 4, 6, 5, 8}, {3, 3, 2}, {2, 2, 3}, {1, 0, 0, 0, 1, 0}, true, true},
};

}  // namespace

TEST_CASE("window pooling") {
  for (const PoolCase& c : kPoolCases)
    for (Layout layout : {Layout::channels_last, Layout::plain}) {
      CAPTURE(c.op);
      CAPTURE(c.x);
      CAPTURE(c.ceil);
      CAPTURE(c.include);
      const Dims y = output_dims(c);
      const Tensor x = random_tensor(c.x, 1);
      Harness h(c.op);
      set_up(h, c, x, y, layout);
      check_close(h.run(make_pool), naive(c, x, y));
    }
}

TEST_CASE(
    "a maximum keeps NaN, wherever in the window it lies, and -infinity where there is nothing "
    "else") {
  for (const PoolCase& c : kPoolCases) {
    if (c.op != std::string("MaxPool")) continue;
    CAPTURE(c.x.size());
    const Dims y = output_dims(c);
    const Tensor x = random_tensor(c.x, 1);
    for (int64_t k = 1; k < x.numel(); k += 1 + x.numel() / 16)
      const_cast<float*>(x.as<float>().data())[k] = NAN;
    std::fill_n(const_cast<float*>(x.as<float>().data()), x.numel() / 3, -INFINITY);
    Harness h(c.op);
    set_up(h, c, x, y);
    check_close(h.run(make_pool), naive(c, x, y));
  }
}

TEST_CASE("other types, windows with gaps or in the pads alone, and positions, in both layouts") {
  std::mt19937 engine(1);
  for (const PoolCase& c : kOwnCases)
    for (DType t : {DType::f32, DType::f64, DType::i8, DType::u8})
      for (const bool positions : {false, true})
        for (Layout layout : {Layout::channels_last, Layout::plain}) {
          const bool maximum = c.op == std::string("MaxPool"), integers = is_int(t);
          if (!maximum && (integers || positions)) continue;
          CAPTURE(c.x);
          CAPTURE(name(t));
          const Dims y = output_dims(c);
          std::vector<int64_t> values;  // few, so that the first of equal ones counts
          for (int64_t k = 0; k < numel(c.x); ++k)
            values.push_back(static_cast<int64_t>(engine() % 12) + (t == DType::u8 ? 120 : -6));
          std::vector<float> floats(values.begin(), values.end());
          for (size_t k = 1; !integers && maximum && k < floats.size(); k += 17) floats[k] = kNan;
          const Tensor x =
              integers ? Tensor::of_ints(t, c.x, values)
              : t == DType::f32
                  ? Tensor::of_f32(c.x, floats)
                  : Tensor::of<double>(t, c.x, std::vector<double>(floats.begin(), floats.end()));
          Harness h(c.op);
          set_up(h, c, x, y, layout);
          if (positions) h.output(DType::i64, y, layout);
          std::vector<int64_t> where;
          std::vector<double> want = naive(c, x, y, &where);
          if (integers)
            for (double& v : want) v = std::max(v, t == DType::i8 ? -128.0 : 0.0);
          const Tensor got = h.run(make_pool);
          for (size_t k = 0; k < want.size(); ++k) {
            const double v = got.at_f64(static_cast<int64_t>(k));
            CHECK((std::isnan(want[k]) ? std::isnan(v)
                                       : v == want[k] || std::fabs(v - want[k]) < 1e-5));
          }
          if (!positions) continue;
          const Tensor at = h.result(1);
          for (size_t k = 0; k < where.size(); ++k)
            CHECK(at.at_i64(static_cast<int64_t>(k)) == where[k]);
        }
}

TEST_CASE("global pooling, channels not a multiple of anything") {
  for (const char* op : {"GlobalAveragePool", "GlobalMaxPool"})
    for (Dims d : std::vector<Dims>{{2, 67, 5, 7}, {1, 3, 11}, {1, 1, 4, 4}, {1, 130, 1, 1}}) {
      const Tensor x = random_tensor(d, 1);
      Dims y(d.size(), 1);
      y[0] = d[0], y[1] = d[1];
      Harness h(op);
      h.input(x, Layout::channels_last);
      h.output(DType::f32, y, Layout::channels_last);
      std::vector<double> want;
      const int64_t pixels = numel(d) / (d[0] * d[1]);
      for (int64_t k = 0; k < d[0] * d[1]; ++k) {
        double best = -INFINITY, sum = 0;
        for (int64_t p = 0; p < pixels; ++p) {
          best = std::max(best, x.at_f64(k * pixels + p));
          sum += x.at_f64(k * pixels + p);
        }
        want.push_back(std::string(op) == "GlobalMaxPool" ? best
                                                          : sum / static_cast<double>(pixels));
      }
      check_close(h.run(make_global_pool), want);
    }
}

}  // namespace ferrule::cpu::test
