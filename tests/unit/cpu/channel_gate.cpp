// The gate of squeeze-and-excite blocks: random sizes and layers against plain sums in double,
// several images, and the same bits with any number of threads.
#include "engine/match/facts.h"
#include "runtime/parallel.h"
#include "tests/unit/codegen/rule_groups.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

struct Gate {
  Dims x;
  std::vector<int64_t> widths;  ///< of the layers
  std::string activation;       ///< behind the last; Relu behind the others
  Tensor image;
  std::vector<Tensor> weights, biases;
};

Gate random_gate(std::mt19937& random, std::string activation) {
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  Gate g{{pick(1, 3), pick(1, 40), pick(1, 30), pick(1, 30)},
         {pick(1, 20), pick(1, 50)},
         std::move(activation),
         {},
         {},
         {}};
  g.image = random_tensor(g.x, static_cast<unsigned>(random()), -3, 4);
  int64_t in = g.x[1];
  for (int64_t out : g.widths) {
    g.weights.push_back(random_tensor({out, in, 1, 1}, static_cast<unsigned>(random())));
    g.biases.push_back(random_tensor({out}, static_cast<unsigned>(random())));
    in = out;
  }
  return g;
}

std::vector<double> plain(const Gate& g) {
  const int64_t pixels = g.x[2] * g.x[3];
  std::vector<double> out;
  for (int64_t n = 0; n < g.x[0]; ++n) {
    std::vector<double> v(static_cast<size_t>(g.x[1]), 0.0);
    for (int64_t c = 0; c < g.x[1]; ++c)
      for (int64_t p = 0; p < pixels; ++p)
        v[static_cast<size_t>(c)] +=
            g.image.at_f64((n * g.x[1] + c) * pixels + p) / static_cast<double>(pixels);
    for (size_t l = 0; l < g.widths.size(); ++l) {
      std::vector<double> y;
      for (int64_t j = 0; j < g.widths[l]; ++j) {
        double sum = g.biases[l].at_f64(j);
        for (size_t i = 0; i < v.size(); ++i)
          sum += g.weights[l].at_f64(j * static_cast<int64_t>(v.size()) + static_cast<int64_t>(i)) *
                 v[i];
        const bool last = l + 1 == g.widths.size();
        y.push_back(!last                           ? std::max(sum, 0.0)
                    : g.activation == "Sigmoid"     ? 1 / (1 + std::exp(-sum))
                    : g.activation == "HardSigmoid" ? std::clamp(0.2 * sum + 0.5, 0.0, 1.0)
                                                    : std::max(sum, 0.0));
      }
      v = y;
    }
    out.insert(out.end(), v.begin(), v.end());
  }
  return out;
}

/// The rule's group, and the kernel made from it.
struct GateBody {
  Graph graph;
  Harness h{"GlobalAveragePool"};

  ValueId add(std::string op, std::vector<ValueId> inputs, int64_t n, int64_t channels) {
    Node node;
    node.op = std::move(op);
    node.inputs = std::move(inputs);
    fill_defaults(node, operators());
    node.outputs = {graph.add_value("v" + std::to_string(count++),
                                    {DType::f32, Shape{Dim(n), Dim(channels), Dim(1), Dim(1)}})};
    return graph.output(graph.add_node(std::move(node)));
  }
  explicit GateBody(const Gate& g) {
    ValueId v =
        add("GlobalAveragePool",
            {graph.add_input("x", {DType::f32, Shape(g.x.begin(), g.x.end())})}, g.x[0], g.x[1]);
    for (size_t l = 0; l < g.widths.size(); ++l) {
      ValueId w = graph.add_constant("w" + std::to_string(l), g.weights[l]),
              b = graph.add_constant("b" + std::to_string(l), g.biases[l]);
      v = add("Conv", {v, w, b}, g.x[0], g.widths[l]);
      v = add(l + 1 == g.widths.size() ? g.activation : "Relu", {v}, g.x[0], g.widths[l]);
    }
    graph.add_output(v);
    h.ops = &operators();
    h.target = &host();
    group = &ferrule::test::group_by("channel_gate", graph, "cpu-avx2");
    h.input(g.image, Layout::channels_last);
    h.output(DType::f32, {g.x[0], g.widths.back(), 1, 1}, Layout::channels_last);
  }
  Tensor run() {
    static const GateBody* body;  // a factory has no state
    body = this;
    return h.run([](Context& context, const KernelCall& call) {
      KernelCall whole = call;
      whole.roles = body->group->roles.get();
      for (size_t k = 1; k < body->group->inputs.size(); ++k) {
        const Tensor* t = body->graph.constant(body->group->inputs[k]);
        whole.inputs.push_back({t->dtype(), t->dims(), Layout::plain, -1, t});
      }
      return own_factory("channel_gate")(context, whole);
    });
  }
  const Node* group = nullptr;
  int count = 0;
};

}  // namespace

TEST_CASE("gates of random sizes, and the same bits with any number of threads") {
  std::mt19937 random(7);
  const int before = threads();
  for (int round = 0; round < 24; ++round) {
    const Gate g = random_gate(random, round % 3 == 0   ? "Sigmoid"
                                       : round % 3 == 1 ? "HardSigmoid"
                                                        : "Relu");
    CAPTURE(str(Type{DType::f32, Shape(g.x.begin(), g.x.end())}));
    set_threads(1);
    const Tensor one = GateBody(g).run();
    check_close(one, plain(g));
    set_threads(3);
    CHECK(GateBody(g).run().identical(one));
  }
  set_threads(before);
}

}  // namespace ferrule::cpu::test
