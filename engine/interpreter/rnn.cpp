// RNN, GRU and LSTM, step by step as ONNX defines them, in double.
#include <functional>

#include "engine/interpreter/internal.h"
#include "engine/semantics/rnn_activations.h"

namespace ferrule::interp {
namespace {

using Row = std::vector<double>;
using Activation = std::function<double(double)>;

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

Result<Activation> activation(const Call& c, const RnnActivation& of) {
  const std::string& name = of.name;
  const auto a = [&](double otherwise) { return of.alpha.value_or(otherwise); };
  const auto b = [&](double otherwise) { return of.beta.value_or(otherwise); };
  if (name == "sigmoid") return Activation(sigmoid);
  if (name == "tanh") return Activation([](double x) { return std::tanh(x); });
  if (name == "relu") return Activation([](double x) { return x < 0 ? 0 : x; });
  if (name == "affine") return Activation([p = a(1), q = b(0)](double x) { return p * x + q; });
  if (name == "leakyrelu") return Activation([p = a(0.01)](double x) { return x < 0 ? p * x : x; });
  if (name == "thresholdedrelu") return Activation([p = a(1)](double x) { return x > p ? x : 0; });
  if (name == "scaledtanh")
    return Activation([p = a(1), q = b(1)](double x) { return p * std::tanh(q * x); });
  if (name == "hardsigmoid")
    return Activation(
        [p = a(0.2), q = b(0.5)](double x) { return std::clamp(p * x + q, 0.0, 1.0); });
  if (name == "elu")
    return Activation([p = a(1)](double x) { return x >= 0 ? x : p * std::expm1(x); });
  if (name == "softsign") return Activation([](double x) { return x / (1 + std::fabs(x)); });
  if (name == "softplus")
    return Activation(
        [](double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); });
  return c.bad_attr("activations", "unknown value \"{}\"", escape(name));
}

/// What RNN, GRU and LSTM have in common: sizes, weights, directions, activations.
struct Cell {
  int64_t gates, seq, batch, input, hidden, dirs;
  bool batch_first;
  std::string direction;
  double clip;
  std::vector<Activation> f;  ///< per direction, `functions` each
  Row w, r, b, x;             ///< x: [seq, batch, input]
  std::vector<int64_t> lengths;

  const double* weight(int64_t d, int64_t g) const {
    return w.data() + (d * gates + g) * hidden * input;
  }
  const double* recurrence(int64_t d, int64_t g) const {
    return r.data() + (d * gates + g) * hidden * hidden;
  }
  double bias(int64_t d, int64_t g, int64_t i, bool recurrent) const {
    return b.empty()
               ? 0
               : b[static_cast<size_t>((d * 2 * gates + (recurrent ? gates : 0) + g) * hidden + i)];
  }
  double clipped(double v) const { return clip > 0 ? std::clamp(v, -clip, clip) : v; }
  /// weights[hidden, n] times v.
  static Row times(const double* weights, const double* v, int64_t rows, int64_t n) {
    Row y(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t k = 0; k < n; ++k) y[i] += weights[i * n + k] * v[k];
    }
    return y;
  }
};

Row doubles(const Tensor& t) {
  const View<double> v(t);
  return Row(v.data(), v.data() + v.size());
}

/// Swaps the first two axes of [a, b, rest].
Row swapped(const Row& v, int64_t a, int64_t b) {
  Row y(v.size());
  const int64_t rest = a * b != 0 ? std::ssize(v) / (a * b) : 0;
  for (int64_t i = 0; i < a; ++i) {
    for (int64_t j = 0; j < b; ++j) {
      std::copy_n(v.begin() + (i * b + j) * rest, rest, y.begin() + (j * a + i) * rest);
    }
  }
  return y;
}

Result<Cell> cell(const Call& c, int64_t gates, size_t functions,
                  std::vector<std::string> defaults) {
  const Tensor &x = *c.input(0), &w = *c.input(1), &r = *c.input(2);
  for (size_t i = 0; i < c.in.size(); ++i) {
    if (i != 4 && c.input(i) && !is_float(c.input(i)->dtype()))
      return c.unsupported_type(*c.input(i));
  }
  if (x.rank() != 3 || w.rank() != 3 || r.rank() != 3)
    return c.bad("input {}, weights {} and {}", text(x.dims()), text(w.dims()), text(r.dims()));
  Cell s{};
  s.gates = gates;
  s.batch_first = c.n.attrs.i("layout") != 0;
  s.seq = x.dims()[s.batch_first ? 1 : 0], s.batch = x.dims()[s.batch_first ? 0 : 1],
  s.input = x.dims()[2];
  s.hidden = r.dims()[2];
  s.direction = c.n.attrs.s("direction", "forward");
  if (s.direction != "forward" && s.direction != "reverse" && s.direction != "bidirectional") {
    return c.bad_attr("direction", "unknown value \"{}\"", escape(s.direction));
  }
  s.dirs = s.direction == "bidirectional" ? 2 : 1;
  if (c.n.attrs.find("hidden_size") && c.n.attrs.i("hidden_size") != s.hidden) {
    return c.bad_attr("hidden_size", "{} but the weights have {}", c.n.attrs.i("hidden_size"),
                      s.hidden);
  }
  if (w.dims() != Dims{s.dirs, gates * s.hidden, s.input} ||
      r.dims() != Dims{s.dirs, gates * s.hidden, s.hidden}) {
    return c.bad("weights {} and {} for {} gates of {}", text(w.dims()), text(r.dims()), gates,
                 s.hidden);
  }
  if (c.input(3) && c.input(3)->dims() != Dims{s.dirs, 2 * gates * s.hidden})
    return c.bad("bias {}", text(c.input(3)->dims()));
  s.clip = c.n.attrs.f("clip", 0);
  std::vector<std::string> names;
  if (const Attr* a = c.n.attrs.find("activations")) {
    if (const auto* v = std::get_if<std::vector<std::string>>(a)) names = *v;
  }
  if (names.empty()) {
    for (int64_t d = 0; d < s.dirs; ++d)
      names.insert(names.end(), defaults.begin(), defaults.end());
  }
  // ONNX's own default of RNN's list serves two directions; what is beyond the directions is not
  // read.
  if (names.size() < functions * static_cast<size_t>(s.dirs))
    return c.bad_attr("activations", "{} entries, {} are wanted", names.size(),
                      functions * static_cast<size_t>(s.dirs));
  auto numbers = [&](std::string_view name) {
    const Attr* a = c.n.attrs.find(name);
    const auto* v = a ? std::get_if<std::vector<double>>(a) : nullptr;
    return v ? *v : Row{};
  };
  const Row alpha = numbers("activation_alpha"), beta = numbers("activation_beta");
  names.resize(functions * static_cast<size_t>(s.dirs));
  for (const RnnActivation& a : rnn_activations(names, alpha, beta)) {
    FERRULE_ASSIGN(auto f, activation(c, a));
    s.f.push_back(std::move(f));
  }
  s.w = doubles(w), s.r = doubles(r), s.x = doubles(x);
  if (s.batch_first) s.x = swapped(s.x, s.batch, s.seq);
  if (c.input(3)) s.b = doubles(*c.input(3));
  s.lengths.assign(s.batch, s.seq);
  if (const Tensor* t = c.input(4)) {
    if (!is_int(t->dtype()) || t->numel() != s.batch)
      return c.bad("{} sequence lengths for {} sequences", t->numel(), s.batch);
    s.lengths = t->to_i64();
    for (int64_t l : s.lengths) {
      if (l < 0 || l > s.seq) return c.bad("a sequence length of {} in {} steps", l, s.seq);
    }
  }
  FERRULE_TRY(c.fits(DType::f64, {s.seq, s.dirs, s.batch, s.hidden}));
  return s;
}

/// Initial state [dirs, batch, hidden], zero when it is left out.
Result<Row> initial(const Call& c, const Cell& s, size_t slot) {
  const Tensor* t = c.input(slot);
  if (!t) return Row(static_cast<size_t>(s.dirs * s.batch * s.hidden), 0.0);
  const Dims wanted =
      s.batch_first ? Dims{s.batch, s.dirs, s.hidden} : Dims{s.dirs, s.batch, s.hidden};
  if (t->dims() != wanted)
    return c.bad("initial state {}, {} is wanted", text(t->dims()), text(wanted));
  return s.batch_first ? swapped(doubles(*t), s.batch, s.dirs) : doubles(*t);
}

/// Runs `step(direction, x, batch)` in each direction's order; `h` [dirs, batch, hidden] is what it
/// updates and what each step's output is.
template <class Step>
Row unroll(const Cell& s, Row& h, Step&& step) {
  Row y(static_cast<size_t>(s.seq * s.dirs * s.batch * s.hidden), 0.0);
  for (int64_t d = 0; d < s.dirs; ++d) {
    const bool reverse = s.direction == "reverse" || d == 1;
    for (int64_t b = 0; b < s.batch; ++b) {
      const int64_t length = s.lengths[b];
      for (int64_t i = 0; i < length; ++i) {
        const int64_t t = reverse ? length - 1 - i : i;
        step(d, s.x.data() + (t * s.batch + b) * s.input, b);
        std::copy_n(h.begin() + (d * s.batch + b) * s.hidden, s.hidden,
                    y.begin() + ((t * s.dirs + d) * s.batch + b) * s.hidden);
      }
    }
  }
  return y;
}

/// Y [seq, dirs, batch, hidden] and the last states, in the layout wanted.
Outputs results(const Call& c, const Cell& s, const Row& y,
                std::initializer_list<const Row*> states) {
  const DType t = c.input(0)->dtype();
  std::vector<Tensor> out;
  if (s.batch_first) {  // [batch, seq, dirs, hidden]
    Row z(y.size());
    for (int64_t i = 0; i < s.seq * s.dirs; ++i) {
      for (int64_t b = 0; b < s.batch; ++b) {
        std::copy_n(y.begin() + (i * s.batch + b) * s.hidden, s.hidden,
                    z.begin() + (b * s.seq * s.dirs + i) * s.hidden);
      }
    }
    out.push_back(store(t, {s.batch, s.seq, s.dirs, s.hidden}, z));
    for (const Row* v : states)
      out.push_back(store(t, {s.batch, s.dirs, s.hidden}, swapped(*v, s.dirs, s.batch)));
  } else {
    out.push_back(store(t, {s.seq, s.dirs, s.batch, s.hidden}, y));
    for (const Row* v : states) out.push_back(store(t, {s.dirs, s.batch, s.hidden}, *v));
  }
  return out;
}

Outputs rnn(const Call& c) {
  FERRULE_ASSIGN(const Cell s, cell(c, 1, 1, {"Tanh"}));
  FERRULE_ASSIGN(Row h, initial(c, s, 5));
  const Row y = unroll(s, h, [&](int64_t d, const double* x, int64_t b) {
    double* state = h.data() + (d * s.batch + b) * s.hidden;
    const Row wx = Cell::times(s.weight(d, 0), x, s.hidden, s.input),
              rh = Cell::times(s.recurrence(d, 0), state, s.hidden, s.hidden);
    for (int64_t i = 0; i < s.hidden; ++i) {
      const auto k = static_cast<size_t>(i);
      state[i] = s.f[d](s.clipped(wx[k] + rh[k] + s.bias(d, 0, i, false) + s.bias(d, 0, i, true)));
    }
  });
  return results(c, s, y, {&h});
}

Outputs gru(const Call& c) {
  FERRULE_ASSIGN(const Cell s, cell(c, 3, 2, {"Sigmoid", "Tanh"}));
  FERRULE_ASSIGN(Row h, initial(c, s, 5));
  const bool linear = c.n.attrs.i("linear_before_reset") != 0;
  const Row y = unroll(s, h, [&](int64_t d, const double* x, int64_t b) {
    double* state = h.data() + (d * s.batch + b) * s.hidden;
    const Activation &f = s.f[2 * d], &g = s.f[2 * d + 1];
    Row gate[2];  // z, r
    for (int64_t q = 0; q < 2; ++q) {
      gate[q] = Cell::times(s.weight(d, q), x, s.hidden, s.input);
      const Row rh = Cell::times(s.recurrence(d, q), state, s.hidden, s.hidden);
      for (int64_t i = 0; i < s.hidden; ++i) {
        const auto k = static_cast<size_t>(i);
        gate[q][k] =
            f(s.clipped(gate[q][k] + rh[k] + s.bias(d, q, i, false) + s.bias(d, q, i, true)));
      }
    }
    Row reset(state, state + s.hidden);
    for (size_t i = 0; !linear && i < reset.size(); ++i) reset[i] *= gate[1][i];
    const Row wx = Cell::times(s.weight(d, 2), x, s.hidden, s.input),
              rh = Cell::times(s.recurrence(d, 2), reset.data(), s.hidden, s.hidden);
    for (int64_t i = 0; i < s.hidden; ++i) {
      const auto k = static_cast<size_t>(i);
      double recurrent = rh[k] + s.bias(d, 2, i, true);
      if (linear) recurrent *= gate[1][k];
      const double fresh = g(s.clipped(wx[k] + s.bias(d, 2, i, false) + recurrent));
      state[i] = (1 - gate[0][k]) * fresh + gate[0][k] * state[i];
    }
  });
  return results(c, s, y, {&h});
}

Outputs lstm(const Call& c) {
  FERRULE_ASSIGN(const Cell s, cell(c, 4, 3, {"Sigmoid", "Tanh", "Tanh"}));
  FERRULE_ASSIGN(Row h, initial(c, s, 5));
  FERRULE_ASSIGN(Row memory, initial(c, s, 6));
  Row peepholes;
  if (const Tensor* p = c.input(7)) {
    if (p->dims() != Dims{s.dirs, 3 * s.hidden}) return c.bad("peepholes {}", text(p->dims()));
    peepholes = doubles(*p);
  }
  auto peephole = [&](int64_t d, int64_t which, int64_t i) {  // i, o, f
    return peepholes.empty() ? 0 : peepholes[(d * 3 + which) * s.hidden + i];
  };
  const bool coupled = c.n.attrs.i("input_forget") != 0;
  const Row y = unroll(s, h, [&](int64_t d, const double* x, int64_t b) {
    double *state = h.data() + (d * s.batch + b) * s.hidden,
           *mem = memory.data() + (d * s.batch + b) * s.hidden;
    const Activation* f = s.f.data() + 3 * d;
    Row gate[4];  // i, o, f, c before activation
    for (int64_t q = 0; q < 4; ++q) {
      gate[q] = Cell::times(s.weight(d, q), x, s.hidden, s.input);
      const Row rh = Cell::times(s.recurrence(d, q), state, s.hidden, s.hidden);
      for (int64_t i = 0; i < s.hidden; ++i) {
        gate[q][i] += rh[i] + s.bias(d, q, i, false) + s.bias(d, q, i, true);
      }
    }
    for (int64_t i = 0; i < s.hidden; ++i) {
      const auto k = static_cast<size_t>(i);
      const double in = f[0](s.clipped(gate[0][k] + peephole(d, 0, i) * mem[i]));
      const double forget =
          coupled ? 1 - in : f[0](s.clipped(gate[2][k] + peephole(d, 2, i) * mem[i]));
      mem[i] = forget * mem[i] + in * f[1](s.clipped(gate[3][k]));
      const double out = f[0](s.clipped(gate[1][k] + peephole(d, 1, i) * mem[i]));
      state[i] = out * f[2](mem[i]);
    }
  });
  return results(c, s, y, {&h, &memory});
}

}  // namespace

std::vector<Entry> rnn_table() { return {{"RNN", rnn, 3}, {"GRU", gru, 3}, {"LSTM", lstm, 3}}; }

}  // namespace ferrule::interp
