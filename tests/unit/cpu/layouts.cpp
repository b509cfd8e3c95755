// No layer is interpreted because of how its operands lie: whatever reads an image is given one
// that a convolution wrote, one of the model's own, and a constant; of many channels and pixels, of
// one channel, of one pixel, and of one, two and three axes. There is a kernel for each, with a
// reorder in front where it wants one.
#include "tests/unit/cpu/plans.h"

namespace ferrule::cpu::test {
namespace {

Dims dims_of(const Model& m, ValueId v) { return *constant_shape(*m.graph.value(v).type.shape); }

/// A value of these dims that lies channels-last.
ValueId image(Model& m, const Dims& d) {
  Dims window(d.size() - 2, 1), weights{d[1], d[1]};
  weights.insert(weights.end(), window.begin(), window.end());
  const ValueId y = m.node("Conv", {m.input(d), m.constant(random_tensor(weights, 1))},
                           {{"kernel_shape", window}, {"group", int64_t{1}}}, d);
  return m.node("Conv", {y, m.constant(random_tensor(weights, 2))},
                {{"kernel_shape", window}, {"group", int64_t{1}}}, d);
}

struct Consumer {
  std::string name;
  std::function<ValueId(Model&, ValueId)> add;
  const char* contract = "";  ///< of the group that the last two nodes are made
};

ValueId convolved(Model& m, ValueId v, int64_t channels = 5) {
  const Dims d = dims_of(m, v);
  Dims window(d.size() - 2, 1), weights{channels, d[1]}, y = d;
  weights.insert(weights.end(), window.begin(), window.end());
  y[1] = channels;
  return m.node("Conv", {v, m.constant(random_tensor(weights, 3))},
                {{"kernel_shape", window}, {"group", int64_t{1}}}, y);
}

ValueId resized(Model& m, ValueId v, const char* mode) {
  const Dims d = dims_of(m, v);
  std::vector<float> scales(d.size(), 2);
  scales[0] = scales[1] = 1;
  return m.node("Resize",
                {v, {}, m.constant(Tensor::of_f32({static_cast<int64_t>(d.size())}, scales))},
                {{"mode", std::string(mode)},
                 {"coordinate_transformation_mode", std::string("asymmetric")},
                 {"nearest_mode", std::string("floor")}});
}

ValueId pooled(Model& m, ValueId v, const char* op) {
  const Dims d = dims_of(m, v);
  return m.node(op, {v},
                {{"kernel_shape", Dims(d.size() - 2, 1)}, {"strides", Dims(d.size() - 2, 1)}}, d);
}

ValueId deconvolved(Model& m, ValueId v) {
  const Dims d = dims_of(m, v);
  Dims window(d.size() - 2, 2), weights{d[1], 4}, y = d;
  weights.insert(weights.end(), window.begin(), window.end());
  y[1] = 4;
  for (size_t k = 2; k < y.size(); ++k) y[k] *= 2;
  return m.node("ConvTranspose", {v, m.constant(random_tensor(weights, 5))},
                {{"kernel_shape", window},
                 {"strides", window},
                 {"group", int64_t{1}},
                 {"auto_pad", std::string("NOTSET")}},
                y);
}

const std::vector<Consumer>& consumers() {
  static const std::vector<Consumer> all = {
      {"Conv", [](Model& m, ValueId v) { return convolved(m, v); }},
      {"Conv to one channel", [](Model& m, ValueId v) { return convolved(m, v, 1); }},
      {"ConvTranspose", deconvolved},
      {"MaxPool", [](Model& m, ValueId v) { return pooled(m, v, "MaxPool"); }},
      {"AveragePool", [](Model& m, ValueId v) { return pooled(m, v, "AveragePool"); }},
      {"GlobalAveragePool",
       [](Model& m, ValueId v) {
         const Dims d = dims_of(m, v);
         Dims y(d.size(), 1);
         y[0] = d[0], y[1] = d[1];
         return m.node("GlobalAveragePool", {v}, {}, y);
       }},
      {"Resize, nearest", [](Model& m, ValueId v) { return resized(m, v, "nearest"); }},
      {"Resize, linear", [](Model& m, ValueId v) { return resized(m, v, "linear"); }},
      {"BatchNormalization",
       [](Model& m, ValueId v) {
         std::vector<ValueId> in{v};
         for (unsigned k = 0; k < 4; ++k)
           in.push_back(m.constant(random_tensor({dims_of(m, v)[1]}, k, 0.5f, 1.5f)));
         return m.node("BatchNormalization", in, {{"epsilon", 1e-3}});
       }},
      {"MatMul, left",
       [](Model& m, ValueId v) {
         return m.node("MatMul", {v, m.constant(random_tensor({dims_of(m, v).back(), 3}, 6))});
       }},
      {"MatMul, right",
       [](Model& m, ValueId v) {
         const Dims d = dims_of(m, v);
         return m.node("MatMul", {m.constant(random_tensor({3, d[d.size() - 2]}, 7)), v});
       }},
      {"MatMul, both",
       [](Model& m, ValueId v) {
         Dims d = dims_of(m, v);
         std::swap(d[d.size() - 2], d[d.size() - 1]);
         return m.node("MatMul", {v, m.input(d)});
       }},
      {"Relu", [](Model& m, ValueId v) { return m.node("Relu", {v}); }},
      {"Add", [](Model& m, ValueId v) { return m.node("Add", {v, m.input(dims_of(m, v))}); }},
      {"Add of another rank",
       [](Model& m, ValueId v) {
         Dims d = dims_of(m, v);
         d.insert(d.begin(), 2);
         return m.node("Add", {v, m.input(d)});
       }},
      {"Softmax",
       [](Model& m, ValueId v) { return m.node("Softmax", {v}, {{"axis", int64_t{-1}}}); }},
      {"Softmax of channels",
       [](Model& m, ValueId v) { return m.node("Softmax", {v}, {{"axis", int64_t{1}}}); }},
      {"ReduceMean",
       [](Model& m, ValueId v) {
         return m.node("ReduceMean", {v, m.constant(Tensor::of_i64({1}, {1}))},
                       {{"keepdims", int64_t{0}}});
       }},
      {"Transpose",
       [](Model& m, ValueId v) {
         Dims perm(dims_of(m, v).size());
         for (size_t k = 0; k < perm.size(); ++k)
           perm[k] = static_cast<int64_t>(perm.size() - 1 - k);
         return m.node("Transpose", {v}, {{"perm", perm}});
       }},
      {"Reshape",
       [](Model& m, ValueId v) {
         return m.node("Reshape", {v, m.constant(Tensor::of_i64({1}, {-1}))},
                       {{"allowzero", int64_t{0}}});
       }},
      {"Concat",
       [](Model& m, ValueId v) {
         return m.node("Concat", {v, m.input(dims_of(m, v)), v}, {{"axis", int64_t{1}}});
       }},
      {"Gather",
       [](Model& m, ValueId v) {
         return m.node("Gather", {v, m.constant(Tensor::of_i64({2}, {0, 0}))},
                       {{"axis", int64_t{1}}});
       }},
      {"Slice",
       [](Model& m, ValueId v) {
         auto one = [&](int64_t k) { return m.constant(Tensor::of_i64({1}, {k})); };
         return m.node("Slice", {v, one(0), one(1), one(1)});
       }},
      {"softmax_topk",
       [](Model& m, ValueId v) {
         const ValueId s = m.node("Softmax", {v}, {{"axis", int64_t{-1}}});
         Node n;
         n.op = "TopK";
         n.name = "TopK";
         n.inputs = {s, m.constant(Tensor::of_i64({1}, {1}))};
         Dims d = dims_of(m, v);
         d.back() = 1;
         const Shape y(d.begin(), d.end());
         n.outputs = {m.graph.add_value("values", {DType::f32, y}),
                      m.graph.add_value("indices", {DType::i64, y})};
         for (const char* flag : {"largest", "sorted"}) n.attrs.set(flag, int64_t{1});
         n.attrs.set("axis", int64_t{-1});
         m.graph.add_output(n.outputs[1]);
         return m.graph.output(m.graph.add_node(std::move(n)));
       },
       "softmax_topk"},
      {"Conv with a computed tail",
       [](Model& m, ValueId v) {
         const ValueId c = convolved(m, m.node("Relu", {m.input(dims_of(m, v))}), dims_of(m, v)[1]);
         return m.node("Add", {c, v});
       },
       "conv"},
  };
  return all;
}

/// Of the selection in consumers().
std::shared_ptr<const Roles> selection_roles() {
  Roles r;
  r.tensors = {{"x", {false, 0, {}}}, {"values", {true, 0, {}}}, {"indices", {true, 1, {}}}};
  r.numbers = {{"k", 1}, {"largest", 1}};
  return std::make_shared<const Roles>(std::move(r));
}

void group_last(Graph& g, std::string contract) {
  const auto slots = static_cast<uint32_t>(g.node_slots());
  const std::array nodes{NodeId{slots - 2}, NodeId{slots - 1}};
  REQUIRE(convex(g, nodes));
  auto roles = contract == "softmax_topk" ? selection_roles() : nullptr;
  form_group(g, nodes, std::move(contract), "a_rule", "joined",
             std::make_shared<const Body>(make_body(g, nodes)), std::move(roles));
  REQUIRE(g.sort().has_value());
}

enum class From { input, convolution, constant };

bool interpreted(const Consumer& r, const Dims& d, From from) {
  Model m;
  const ValueId v = from == From::input      ? m.input(d)
                    : from == From::constant ? m.constant(random_tensor(d, 9))
                                             : image(m, d);
  m.graph.add_output(r.add(m, v));
  REQUIRE(m.graph.sort().has_value());
  if (*r.contract) group_last(m.graph, r.contract);
  return check(m.graph)->executable->text().find("interpret") != std::string::npos;
}

}  // namespace

TEST_CASE("no layer is interpreted because of how its operands lie") {
  for (const Dims& d : std::initializer_list<Dims>{{2, 6, 5, 8},
                                                   {1, 1, 5, 8},
                                                   {2, 1, 5, 8},
                                                   {2, 6, 1, 1},
                                                   {1, 6, 1, 8},
                                                   {1, 1, 1, 1},
                                                   {2, 6, 9},
                                                   {2, 1, 9},
                                                   {2, 6, 1},
                                                   {1, 4, 3, 2, 5},
                                                   {1, 1, 3, 2, 5},
                                                   {2, 4, 1, 1, 1}})
    for (const Consumer& r : consumers()) {
      CAPTURE(r.name);
      CAPTURE(str(Shape(d.begin(), d.end())));
      for (const From from : {From::input, From::convolution, From::constant}) {
        CAPTURE(static_cast<int>(from));
        CHECK_FALSE(interpreted(r, d, from));
      }
    }
}

TEST_CASE(
    "a tail's operand of another rank that lies channels-last is read as it is written down") {
  Model m;
  const ValueId line = m.node("Relu", {image(m, {6, 5, 7})});
  const ValueId c = convolved(m, m.input({2, 3, 5, 7}), 6);
  m.graph.add_output(m.node("Add", {c, line}));
  REQUIRE(m.graph.sort().has_value());
  group_last(m.graph, "conv");
  check(m.graph);
}

}  // namespace ferrule::cpu::test
