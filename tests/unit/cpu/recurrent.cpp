// LSTM, GRU and RNN against the interpreter: all attributes, in random company; every number of
// threads, so that the batch and the state are cut; weights that are computed; NaN and infinities.
#include "engine/interpreter/interpreter.h"
#include "runtime/parallel.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct Cell {
  std::string op = "LSTM";
  int64_t steps = 5, batch = 3, input = 7, hidden = 9;
  std::string direction = "forward";
  bool layout = false, bias = true, state = true, computed = false;
  bool linear_before_reset = false, input_forget = false, peepholes = false;
  double clip = 0;
  std::vector<int64_t> lengths;  ///< empty: not given
  std::vector<std::string> activations;
  std::vector<double> alpha, beta;
  std::vector<bool> results{true, true, true};  ///< which are read
  unsigned seed = 1;

  int64_t gates() const { return op == "LSTM" ? 4 : op == "GRU" ? 3 : 1; }
  int64_t directions() const { return direction == "bidirectional" ? 2 : 1; }
  float balances() const { return 1 / std::sqrt(static_cast<float>(input)); }
  /// Weights of the state with which a step makes errors smaller, so that those of rounding stay.
  float shrinks() const { return 0.5f / std::sqrt(static_cast<float>(hidden)); }
  Dims states() const {
    return layout ? Dims{batch, directions(), hidden} : Dims{directions(), batch, hidden};
  }
  /// By input; without type: absent.
  std::vector<Tensor> operands() const {
    const int64_t d = directions(), m = gates() * hidden;
    std::vector<Tensor> all{
        random_tensor(layout ? Dims{batch, steps, input} : Dims{steps, batch, input}, seed, -2, 2),
        random_tensor({d, m, input}, seed + 1, -balances(), balances()),
        random_tensor({d, m, hidden}, seed + 2, -shrinks(), shrinks())};
    all.push_back(bias ? random_tensor({d, 2 * m}, seed + 3) : Tensor());
    all.push_back(lengths.empty() ? Tensor() : int32(lengths));
    all.push_back(state ? random_tensor(states(), seed + 4) : Tensor());
    if (op != "LSTM") return all;
    all.push_back(state ? random_tensor(states(), seed + 5) : Tensor());
    all.push_back(peepholes ? random_tensor({d, 3 * hidden}, seed + 6) : Tensor());
    return all;
  }
  static Tensor int32(const std::vector<int64_t>& v) {
    auto [t, p] = Tensor::allocate(DType::i32, {static_cast<int64_t>(v.size())});
    for (size_t k = 0; k < v.size(); ++k) static_cast<int32_t*>(p)[k] = static_cast<int32_t>(v[k]);
    return t;
  }
  void set_up(Harness& h, const std::vector<Tensor>& tensors) const {
    h.target = &host();
    Attrs& a = h.node.attrs;
    a.set("hidden_size", hidden);
    a.set("direction", direction);
    a.set("layout", int64_t{layout});
    if (clip > 0) a.set("clip", clip);
    if (op == "GRU") a.set("linear_before_reset", int64_t{linear_before_reset});
    if (op == "LSTM") a.set("input_forget", int64_t{input_forget});
    if (!activations.empty()) a.set("activations", activations);
    if (!alpha.empty()) a.set("activation_alpha", alpha);
    if (!beta.empty()) a.set("activation_beta", beta);
    for (size_t k = 0; k < tensors.size(); ++k) {
      if (tensors[k].dtype() == DType::undefined)
        h.absent();
      else if ((k == 1 || k == 2) && !computed)
        h.constant(tensors[k]);
      else
        h.input(tensors[k]);
    }
    const int64_t d = directions();
    const Dims y = layout ? Dims{batch, steps, d, hidden} : Dims{steps, d, batch, hidden};
    for (size_t k = 0; k < (op == "LSTM" ? 3u : 2u); ++k) {
      h.output(DType::f32, k ? states() : y);
      if (!results[k]) h.call.outputs[k] = {};
    }
  }
};

std::vector<Tensor> interpreted(const Harness& h, const std::vector<Tensor>& tensors) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& t : tensors) pointers.push_back(t.dtype() == DType::undefined ? nullptr : &t);
  auto y = interpret_node(h.graph, h.node, pointers, {});
  REQUIRE_MESSAGE(y.has_value(), (y ? "" : y.error().message));
  return *y;
}

void check_cell(const Cell& c, const std::vector<Tensor>& tensors) {
  CAPTURE(c.op);
  CAPTURE(c.seed);
  CAPTURE(c.direction);
  CAPTURE(c.layout);
  CAPTURE(c.lengths.size());
  Harness h(c.op);
  c.set_up(h, tensors);
  const auto want = interpreted(h, tensors);
  auto kernel = h.make(make_recurrent);
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  for (int run = 0; run < 2; ++run) {  // nothing of a run stays for the next one
    REQUIRE((*kernel)->run().has_value());
    for (size_t k = 0; k < h.call.outputs.size(); ++k) {
      CAPTURE(k);
      if (c.results[k]) check_close(h.result(k), want[k].to_f64());
    }
  }
}
void check_cell(const Cell& c) { check_cell(c, c.operands()); }

/// Threads while it lives.
class Threads {
 public:
  explicit Threads(int n) : before_(threads()) { set_threads(n); }
  ~Threads() { set_threads(before_); }

 private:
  int before_;
};

constexpr const char* kActivations[] = {
    "Relu",       "Tanh",        "Sigmoid", "Affine",   "LeakyRelu", "ThresholdedRelu",
    "ScaledTanh", "HardSigmoid", "Elu",     "Softsign", "Softplus"};

Cell random_cell(std::mt19937& rng) {
  auto below = [&](int64_t n) { return static_cast<int64_t>(rng() % static_cast<unsigned>(n)); };
  auto chance = [&](int64_t percent) { return below(100) < percent; };
  Cell c;
  c.op = std::vector{"LSTM", "GRU", "RNN"}[static_cast<size_t>(below(3))];
  c.steps = below(8), c.batch = 1 + below(chance(20) ? 40 : 4), c.input = 1 + below(40);
  c.hidden = 1 + below(chance(30) ? 100 : 20);
  c.direction = std::vector{"forward", "reverse", "bidirectional"}[static_cast<size_t>(below(3))];
  c.layout = chance(40), c.bias = chance(70), c.state = chance(60), c.computed = chance(20);
  c.linear_before_reset = chance(50), c.input_forget = chance(30), c.peepholes = chance(40);
  if (chance(30)) c.clip = 0.1 + static_cast<double>(below(10)) / 10;
  if (chance(40))
    for (int64_t b = 0; b < c.batch; ++b) c.lengths.push_back(below(c.steps + 1));
  if (chance(50)) {
    const int64_t wanted = (c.op == "LSTM" ? 3 : c.op == "GRU" ? 2 : 1) * c.directions();
    for (int64_t k = 0; k < wanted; ++k)
      c.activations.push_back(kActivations[below(std::ssize(kActivations))]);
    for (int64_t k = 0; chance(50) && k < wanted; ++k)
      c.alpha.push_back(0.25 + 0.125 * static_cast<double>(below(8)));
    for (int64_t k = 0; chance(50) && k < wanted; ++k)
      c.beta.push_back(0.125 * static_cast<double>(below(8)));
    if (c.clip == 0) c.clip = 2;  // unbounded activations grow with the steps, and so do errors
  }
  for (size_t k = 0; k < 3; ++k) c.results[k] = chance(80);
  c.seed = static_cast<unsigned>(below(1 << 20));
  return c;
}

}  // namespace

TEST_CASE("recurrent: random attributes and sizes") {
  std::mt19937 rng(3);
  for (int round = 0; round < 400; ++round) {
    CAPTURE(round);
    const Threads some(1 + round % 5);
    check_cell(random_cell(rng));
  }
}

TEST_CASE("recurrent: every activation") {
  for (const char* name : kActivations)
    for (const bool given : {false, true}) {
      CAPTURE(name);
      Cell c;
      c.op = "RNN", c.activations = {name}, c.clip = 3;
      if (given) c.alpha = {0.75}, c.beta = {0.125};
      check_cell(c);
    }
}

TEST_CASE("recurrent: large enough to be cut") {
  for (const int threads : {1, 2, 3, 4, 7}) {
    const Threads some(threads);
    for (const char* op : {"LSTM", "GRU", "RNN"})
      for (const bool linear : {false, true}) {
        CAPTURE(threads);
        Cell c;
        c.op = op, c.linear_before_reset = linear, c.steps = 70, c.batch = 2;
        c.input = 130, c.hidden = 200;  // slices of the state
        check_cell(c);
        c.lengths = {70, 31};
        c.direction = "bidirectional";
        check_cell(c);
        c.lengths.clear();
        c.batch = 64, c.steps = 3, c.hidden = 33, c.layout = true;  // rows of the batch
        check_cell(c);
        c.direction = "reverse";
        check_cell(c);
      }
  }
}

TEST_CASE("recurrent: both instruction sets") {
  for (const Target& target : targets())
    for (const char* op : {"LSTM", "GRU", "RNN"}) {
      CAPTURE(target.name);
      Cell c;
      c.op = op, c.hidden = 50;
      const auto tensors = c.operands();
      Harness h(c.op);
      c.set_up(h, tensors);
      h.target = &target;
      const auto want = interpreted(h, tensors);
      check_close(h.run(make_recurrent), want[0].to_f64());
      CHECK(h.text.find(target.name == "cpu-avx2" ? ":avx2" : ":avx512") != std::string::npos);
    }
}

TEST_CASE("recurrent: NaN and infinities stay in their rows") {
  for (const char* op : {"LSTM", "GRU", "RNN"})
    for (const float special : {kNan, kInf, -kInf})
      for (const bool clipped : {false, true})
        for (const std::string activation : {"", "Relu", "HardSigmoid", "Elu"}) {
          CAPTURE(special);
          CAPTURE(activation);
          Cell c;
          c.op = op, c.batch = 4, c.clip = clipped ? 1.5 : 0;
          if (c.op == "LSTM" && (activation == "Relu" || activation == "Elu")) continue;
          if (!activation.empty())
            c.activations.assign(c.op == "LSTM" ? 3 : c.op == "GRU" ? 2 : 1, activation);
          auto tensors = c.operands();
          std::vector<float> x;
          for (double v : tensors[0].to_f64()) x.push_back(static_cast<float>(v));
          x[static_cast<size_t>((2 * c.batch + 1) * c.input + 3)] = special;  // step 2, row 1
          tensors[0] = Tensor::of_f32(tensors[0].dims(), x);
          check_cell(c, tensors);
        }
}

TEST_CASE("recurrent: what is wrong is refused, or an error of the run") {
  auto reason = [](auto&& change) {
    Cell c;
    const auto tensors = c.operands();
    Harness h(c.op);
    c.set_up(h, tensors);
    change(h);
    auto kernel = h.make(make_recurrent);
    return kernel ? std::string("taken") : kernel.error().reason();
  };
  CHECK(reason([](Harness&) {}) == "taken");
  for (const auto& change : std::vector<std::function<void(Harness&)>>{
           [](Harness& h) { h.node.attrs.set("direction", std::string("sideways")); },
           [](Harness& h) { h.node.attrs.set("activations", std::vector<std::string>{"Tanh"}); },
           [](Harness& h) {
             h.node.attrs.set("activations", std::vector<std::string>{"Sin", "Tanh", "Tanh"});
           },
           [](Harness& h) { h.node.attrs.set("hidden_size", int64_t{8}); },
           [](Harness& h) { h.call.inputs[3].dims[1] -= 1; },
           [](Harness& h) { h.call.inputs[5].dims = {1, 9, 3}; },
           [](Harness& h) { h.call.inputs[0].dtype = DType::f64; }})
    CHECK(reason(change) != "taken");
  Cell c;
  c.lengths = {5, 6, 1};
  const auto tensors = c.operands();
  Harness h(c.op);
  c.set_up(h, tensors);
  auto kernel = h.make(make_recurrent);
  REQUIRE(kernel.has_value());
  const Status status = (*kernel)->run();
  REQUIRE(!status.has_value());
  CHECK(status.error().message.find("6 in 5 steps") != std::string::npos);
}

}  // namespace ferrule::cpu::test
