// Whole plans on the CPU backend: hand-made graphs are planned, lowered, prepared and run, and
// compared with the interpreter; layouts, in-place memory, launches and observers included.
#include <array>
#include <cmath>
#include <limits>
#include <thread>

#include "runtime/parallel.h"
#include "tests/unit/cpu/plans.h"

namespace ferrule::cpu::test {

TEST_CASE("pointwise layers: broadcasts, scalars, several axes, in place") {
  Model m;
  ValueId x = m.input({3, 5, 33}), y = m.input({5, 1});
  ValueId a = m.node("Add", {x, y});
  ValueId b = m.node("Mul", {a, m.constant(Tensor::scalar(DType::f32, 0.5))});
  ValueId c = m.node("Sigmoid", {b});
  ValueId d = m.node("Sub", {c, m.constant(random_tensor({33}, 5))});
  m.graph.add_output(d);
  m.graph.add_output(m.node("Mul", {d, d}));
  check(m.graph);
}

TEST_CASE("implementations are measured on the plan's threads, whatever the caller has set") {
  Model m;
  // A prime number of channels: no candidate's scratch ends where another thread's would fit.
  ValueId x = m.input({1, 61, 40, 40});
  m.graph.add_output(m.convolution(x, {1, 61, 40, 40}));
  auto p = prepare(m.graph, {}, nullptr, true);
  const std::vector<Tensor> inputs = inputs_of(m.graph, 3);
  std::vector<float> result(61 * 40 * 40);
  const void* in[] = {inputs[0].data()};
  void* out[] = {result.data()};
  set_threads(64);
  auto measured = p->executable->measure(in, out, 0.01);
  CHECK(threads() == 64);
  set_threads(2);
  REQUIRE(measured.has_value());
  REQUIRE(measured->size() == 1);
  CHECK(measured->front().microseconds.size() >= 2);
  CHECK(difference(*p, m.graph, inputs) == "");
}

TEST_CASE(
    "an image network: reorders at the ends, pooling, residual, resize, concat, global pooling, "
    "gemm") {
  Model m;
  ValueId x = m.input({2, 3, 16, 16});
  auto conv = [&](ValueId v, int64_t out, int64_t in, int64_t k, unsigned seed) {
    return m.node("Conv",
                  {v, m.constant(random_tensor({out, in, k, k}, seed)),
                   m.constant(random_tensor({out}, seed + 1))},
                  {{"kernel_shape", Dims{k, k}},
                   {"pads", Dims{k / 2, k / 2, k / 2, k / 2}},
                   {"strides", Dims{1, 1}},
                   {"dilations", Dims{1, 1}},
                   {"group", int64_t{1}},
                   {"auto_pad", std::string("NOTSET")}},
                  {2, out, *constant_shape(*m.graph.value(v).type.shape)->rbegin(),
                   0 + *constant_shape(*m.graph.value(v).type.shape)->rbegin()});
  };
  ValueId c1 = m.node("Relu", {conv(x, 16, 3, 3, 1)});
  ValueId p = m.node("MaxPool", {c1}, {{"kernel_shape", Dims{2, 2}}, {"strides", Dims{2, 2}}},
                     {2, 16, 8, 8});
  ValueId c2 = conv(p, 16, 16, 1, 3);
  ValueId r = m.node("Add", {c2, p});
  ValueId up = m.node("Resize", {r, {}, m.constant(Tensor::of_f32({4}, {1, 1, 2, 2}))},
                      {{"mode", std::string("nearest")},
                       {"coordinate_transformation_mode", std::string("asymmetric")},
                       {"nearest_mode", std::string("floor")}},
                      {2, 16, 16, 16});
  ValueId cat = m.node("Concat", {up, c1}, {{"axis", int64_t{1}}}, {2, 32, 16, 16});
  ValueId g = m.node("GlobalAveragePool", {cat}, {}, {2, 32, 1, 1});
  ValueId f = m.node("Flatten", {g}, {{"axis", int64_t{1}}}, {2, 32});
  ValueId y = m.node(
      "Gemm", {f, m.constant(random_tensor({10, 32}, 7)), m.constant(random_tensor({10}, 8))},
      {{"transB", int64_t{1}}, {"transA", int64_t{0}}, {"alpha", 1.0}, {"beta", 1.0}}, {2, 10});
  m.graph.add_output(m.node("Softmax", {y}, {{"axis", int64_t{1}}}, {2, 10}));
  m.graph.add_output(cat);
  auto e = check(m.graph);
  CHECK(e->executable->launches() == planned_kernels(*e));
  CHECK(e->executable->text().find("interpret") == std::string::npos);
  CHECK(e->executable->arena_bytes() > 0);
}

TEST_CASE("a reduced result does not overwrite a vector that lies along the rows") {
  Model m;
  ValueId x = m.input({8, 8}), z = m.input({8});
  ValueId v = m.node("Abs", {z});
  ValueId s = m.node("ReduceSum", {m.node("Mul", {x, v}), m.constant(Tensor::of_i64({1}, {1}))},
                     {{"keepdims", int64_t{0}}}, {8});
  m.graph.add_output(m.node("Exp", {s}, {}, {8}));
  const NodeId reduce = m.graph.value(s).producer,
               multiply = m.graph.value(m.graph.node(reduce).inputs[0]).producer;
  auto group =
      make_group(m.graph, std::array{multiply, reduce}, "row_reduce", "rows", "Mul + ReduceSum");
  REQUIRE_MESSAGE(group.has_value(), (group ? "" : render(group.error())));
  auto e = check(m.graph);
  CHECK(e->executable->launches() == 3);
}

TEST_CASE("a sum and its norm lie where the sum's operands were, unless one is read again") {
  for (const bool again : {false, true}) {
    Model m;
    const Dims d{6, 64};
    ValueId a = m.node("Abs", {m.input(d)}), b = m.node("Abs", {m.input(d)});
    ValueId s = m.node("Add", {a, b});
    ValueId n = m.node("LayerNormalization", {s, m.constant(random_tensor({64}, 3))},
                       {{"axis", int64_t{-1}}, {"epsilon", 1e-3}});
    std::vector<NodeId> nodes{m.graph.value(s).producer, m.graph.value(n).producer};
    if (again) n = m.node("Mul", {n, a}), nodes.push_back(m.graph.value(n).producer);
    m.graph.add_output(m.node("Mul", {s, n}));
    auto group = make_group(m.graph, nodes, "row_reduce", "rows", "Add + LayerNormalization");
    REQUIRE_MESSAGE(group.has_value(), (group ? "" : render(group.error())));
    auto e = check(m.graph);
    CHECK(e->executable->launches() == 4);
    // One beside the kernel's scratch: the other one is the output's memory.
    CHECK(e->executable->arena_bytes() < 2 * 6 * 64 * 4);
  }
}

TEST_CASE("a normalisation keeps the layout of its input") {
  Model m;
  auto norm = [&](ValueId v, unsigned seed) {
    std::vector<ValueId> in{v};
    for (unsigned k = 0; k < 4; ++k)
      in.push_back(m.constant(random_tensor({6}, seed + k, 0.5f, 1.5f)));
    return m.node("BatchNormalization", in, {{"epsilon", 1e-3}});
  };
  ValueId x = m.input({2, 6, 5, 7});
  ValueId plain = norm(m.node("Abs", {x}), 1);
  ValueId c = m.node("Conv", {plain, m.constant(random_tensor({6, 6, 1, 1}, 9))},
                     {{"kernel_shape", Dims{1, 1}}, {"group", int64_t{1}}}, {2, 6, 5, 7});
  ValueId last = norm(c, 20);
  m.graph.add_output(m.node("Relu", {last}));
  auto e = check(m.graph);
  CHECK(e->plan.layout(plain) == Layout::plain);
  CHECK(e->plan.layout(last) == Layout::channels_last);
  CHECK(e->executable->text().find("interpret") == std::string::npos);
}

TEST_CASE("normalisations that have no kernel are interpreted") {
  for (int why = 0; why < 3; ++why) {
    CAPTURE(why);
    Model m;
    const Dims d =
        why == 0 ? Dims{5}
                 : Dims{2, 3, 4};  // no channels; a scale that is computed; an infinite factor
    ValueId x = m.input(d), scale = m.constant(Tensor::of_f32(
                                {why == 0 ? 1 : 3}, std::vector<float>(why == 0 ? 1 : 3, 2.0f)));
    if (why == 1) scale = m.input({3});
    const std::vector<float> ones(why == 0 ? 1 : 3, 1.0f), zeros(ones.size(), 0.0f);
    const Dims p{static_cast<int64_t>(ones.size())};
    m.graph.add_output(
        m.node("BatchNormalization",
               {x, scale, m.constant(Tensor::of_f32(p, ones)), m.constant(Tensor::of_f32(p, ones)),
                m.constant(Tensor::of_f32(p, why == 2 ? zeros : ones))},
               {{"epsilon", 0.0}}, d));
    CHECK(check(m.graph)->executable->text().find("interpret") != std::string::npos);
  }
}

TEST_CASE("a node without a kernel is interpreted, and the launches still agree") {
  Model m;
  ValueId x = m.input({4, 6});
  ValueId c = m.node("CumSum", {x, m.constant(Tensor::scalar(DType::i64, 1))},
                     {{"exclusive", int64_t{0}}, {"reverse", int64_t{0}}}, {4, 6});
  m.graph.add_output(m.node("Relu", {c}));
  auto e = check(m.graph);
  CHECK(e->executable->launches() == planned_kernels(*e));
  CHECK(e->executable->text().find("interpret") != std::string::npos);
}

TEST_CASE(
    "windows over each other's results are one launch; strictly, each is a launch or two of its "
    "own") {
  for (const bool strict : {false, true}) {
    Model m;
    ValueId x = m.input({2, 6, 17, 19});
    ValueId c = m.node("Conv", {x, m.constant(random_tensor({8, 6, 3, 3}, 1))},
                       {{"kernel_shape", Dims{3, 3}}, {"pads", Dims{1, 1, 1, 1}}}, {2, 8, 17, 19});
    ValueId p = m.node("MaxPool", {m.node("Relu", {c})},
                       {{"kernel_shape", Dims{3, 3}}, {"strides", Dims{2, 2}}}, {2, 8, 8, 9});
    m.graph.add_output(m.node("Tanh", {p}));
    std::vector<NodeId> nodes = m.graph.order();
    nodes.pop_back();
    REQUIRE(make_group(m.graph, nodes, "conv_pool", "a_rule", "joined").has_value());
    auto e = check(m.graph, {.strict = strict});
    CHECK(e->executable->launches() == planned_kernels(*e));
    for (const Layer& l : e->plan.layers)
      if (l.name == "joined") CHECK(l.kernels == (strict ? 3 : 1));
    CHECK((e->executable->text().find("conv_pool:") == std::string::npos) == strict);
    CHECK(e->executable->text().find("interpret") == std::string::npos);
  }
}

TEST_CASE("a group that has no kernel after all is interpreted as a whole") {
  Model m;
  ValueId p = m.node("GlobalAveragePool", {m.input({2, 3, 6, 6})}, {}, {2, 3, 1, 1});
  ValueId c = m.node("Conv", {p, m.constant(random_tensor({4, 3, 1, 1}, 1))},
                     {{"kernel_shape", Dims{1, 1}}}, {2, 4, 1, 1});
  m.graph.add_output(m.node("Conv", {c, m.input({5, 4, 1, 1})},  // no weights of a gate
                            {{"kernel_shape", Dims{1, 1}}}, {2, 5, 1, 1}));
  auto roles = std::make_shared<Roles>();
  const AxisMap rows = {{{0, 1, 4}}, {{1, 1, 3}}};
  roles->tensors = {{"x", {false, 0, {}, true}},
                    {"W1", {false, 1, rows}},
                    {"W2", {false, 2, rows}},
                    {"y", {true, 0, {}, true}}};
  const std::vector<NodeId> nodes = m.graph.order();
  form_group(m.graph, nodes, "channel_gate", "a_rule", "joined",
             std::make_shared<const Body>(make_body(m.graph, nodes)), std::move(roles));
  auto e = check(m.graph);
  CHECK(e->executable->launches() == planned_kernels(*e));
  CHECK(e->executable->text().find("interpret") != std::string::npos);
}

TEST_CASE("an observer sees every layer, its launches and its results in plain order") {
  Model m;
  ValueId x = m.input({1, 4, 6, 6});
  ValueId c = m.node("Conv", {x, m.constant(random_tensor({8, 4, 1, 1}, 1))},
                     {{"kernel_shape", Dims{1, 1}}, {"group", int64_t{1}}}, {1, 8, 6, 6});
  m.graph.add_output(m.node("Abs", {c}));
  auto p = prepare(m.graph);
  ResultRecorder recorder(p->plan.layers.size());
  Profiler profiler(p->plan.layers.size());
  const auto inputs = inputs_of(m.graph, 3);
  REQUIRE(p->executable->run_tensors(inputs, &profiler).has_value());
  auto out = p->executable->run_tensors(inputs, &recorder);
  REQUIRE(out.has_value());
  int64_t launches = 0;
  for (const auto& row : profiler.layers()) launches += row.launches;
  CHECK(launches == planned_kernels(*p));
  bool found = false;
  for (size_t layer = 0; layer < recorder.values.size(); ++layer)
    for (size_t k = 0; k < recorder.values[layer].size(); ++k)
      if (recorder.values[layer][k] == p->plan.graph.outputs()[0]) {
        found = true;
        CHECK(recorder.tensors[layer][k].identical((*out)[0]));
      }
  CHECK(found);
}

/// A 1x1 convolution whose weights fill whole pages.
struct Weighty {
  static constexpr int64_t kChannels = 256, kBytes = kChannels * kChannels * 4;
  Model m;
  Tensor weights = random_tensor({kChannels, kChannels, 1, 1}, 5);
  Tensor original =
      Tensor::of<float>(DType::f32, {kChannels, kChannels, 1, 1}, weights.as<float>());
  ValueId w = m.constant(weights);
  ValueId conv(ValueId x, int64_t size) {
    return m.node("Conv", {x, w}, {{"kernel_shape", Dims{1, 1}}, {"group", int64_t{1}}},
                  {1, kChannels, size, size});
  }
  /// Runs equal the interpreter's results, which ask for the weights and so undo what was given
  /// back.
  void check_run(Prepared& p) {
    const auto inputs = inputs_of(m.graph, 4);
    auto got = p.executable->run_tensors(inputs);
    REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
    InterpreterOptions options;
    options.ops = &operators();
    auto want = interpret(m.graph, inputs, options);
    REQUIRE(want.has_value());
    for (size_t k = 0; k < got->size(); ++k)
      check_close((*got)[k], (*want)[k].to_f64(), model_tolerance(DType::f32));
  }
};

TEST_CASE(
    "weights that lie packed are given back, bit by bit the same when somebody asks, and again by "
    "the next plan") {
  const int64_t before = Residence::given_back();
  auto backend = make_cpu_backend();
  Weighty large, small;
  // What a reorder by arithmetic would change.
  auto* bits = const_cast<uint32_t*>(large.weights.as<uint32_t>().data());
  const uint32_t special[] = {0x80000000, 1,          0x807fffff, 0x7f800000,
                              0xff800000, 0x7fc01234, 0xffc00001, 0x7f7fffff};
  std::copy(std::begin(special), std::end(special), bits + 1000);
  large.m.graph.add_output(large.conv(large.m.input({1, Weighty::kChannels, 14, 14}), 14));
  {
    auto p = prepare(large.m.graph, {}, backend.get());
    CHECK(Residence::given_back() - before >= Weighty::kBytes - 2 * 4096);
    CHECK(p->plan.graph.constant(large.w)->at_f64(0) == large.original.at_f64(0));
    CHECK(Residence::given_back() == before);
    auto now = large.weights.as<uint32_t>();
    for (size_t k = 0; k < now.size(); ++k)
      if (k < 1000 || k >= 1008)
        CHECK_MESSAGE(now[k] == large.original.as<uint32_t>()[k], k);
      else
        CHECK(now[k] == special[k - 1000]);
    // The same layout is found, another size may want another; the first plan goes on running
    // meanwhile.
    auto again = prepare(large.m.graph, {}, backend.get());
    CHECK(Residence::given_back() - before >= Weighty::kBytes - 2 * 4096);
  }
  // The executables are gone, and what they had packed serves the bytes until somebody asks.
  CHECK(large.weights.as<uint32_t>()[1005] == special[5]);
  CHECK(Residence::given_back() == before);

  small.m.graph.add_output(small.conv(small.m.input({1, Weighty::kChannels, 14, 14}), 14));
  Model other;
  other.graph = std::move(*small.m.graph.clone());
  auto p = prepare(small.m.graph, {}, backend.get());
  auto q = prepare(other.graph, {}, backend.get());
  CHECK(Residence::given_back() - before >= Weighty::kBytes - 2 * 4096);
  small.check_run(*p);
  small.check_run(*q);
}

TEST_CASE("packed constants are shared while somebody has them, and then forgotten") {
  constexpr int64_t kSize = 32, kAlive = 100, kGone = 2000;
  PackCache packs;
  Library library(&packs);
  const Tensor all = random_tensor({kAlive + kGone + kSize * kSize}, 5);
  const memory::desc from({kSize, kSize}, memory::data_type::f32, memory::format_tag::ab),
      to({kSize, kSize}, memory::data_type::f32, memory::format_tag::ba);
  auto pack = [&](int64_t k) {
    const auto* bytes = all.as<float>().data() + k;  // each at an address of its own
    return library.pack(Tensor(DType::f32, {kSize, kSize}, nullptr, bytes), from, to);
  };
  std::vector<Packed> alive;
  for (int64_t k = 0; k < kAlive; ++k) alive.push_back(pack(k));
  for (int64_t k = kAlive; k < kAlive + kGone; ++k) {
    pack(k);
    library.reversible.clear();
  }
  CHECK(packs.entries() <= 2 * kAlive);
  for (int64_t k = 0; k < kAlive; ++k) CHECK(pack(k).data == alive[static_cast<size_t>(k)].data);
}

TEST_CASE("a Winograd kernel asks for the model's weights where a sum is not finite") {
  const int64_t before = Residence::given_back();
  constexpr int64_t kChannels = 64;
  auto backend = make_cpu_backend();
  Model m;
  ValueId w = m.constant(random_tensor({kChannels, kChannels, 3, 3}, 5));
  m.graph.add_output(
      m.node("Conv", {m.input({1, kChannels, 28, 28}), w},
             {{"kernel_shape", Dims{3, 3}}, {"pads", Dims{1, 1, 1, 1}}, {"group", int64_t{1}}},
             {1, kChannels, 28, 28}));
  auto p = prepare(m.graph, {}, backend.get());
  const int64_t away = Residence::given_back() - before;
  CHECK(away >= kChannels * kChannels * 9 * 4 - 2 * 4096);
  auto inputs = inputs_of(m.graph, 4);
  auto finite = p->executable->run_tensors(inputs);
  REQUIRE(finite.has_value());
  CHECK(Residence::given_back() - before == away);  // nobody has asked
  const_cast<float*>(inputs[0].as<float>().data())[300] = std::numeric_limits<float>::infinity();
  auto infinite = p->executable->run_tensors(inputs);
  REQUIRE(infinite.has_value());
  CHECK(Residence::given_back() == before);
  const Tolerance allowed = model_tolerance(DType::f32);
  int64_t different = 0, wrong = 0;  // the pixel's neighbours, all channels
  for (int64_t k = 0; k < (*finite)[0].numel(); ++k) {
    const double a = (*finite)[0].at_f64(k), b = (*infinite)[0].at_f64(k);
    different += !std::isfinite(b);
    wrong +=
        std::isfinite(b) && !(std::abs(a - b) <= allowed.relative * std::abs(a) + allowed.absolute);
  }
  CHECK(different == 9 * kChannels);
  CHECK(wrong == 0);
}

TEST_CASE("a Winograd kernel's run reads weights that another thread would give back") {
  constexpr int64_t kChannels = 64;
  const Dims dims = {kChannels, kChannels, 3, 3};
  const Tensor weights = random_tensor(dims, 5), copy = random_tensor(dims, 5);
  Model m;
  ValueId x = m.input({1, kChannels, 28, 28});
  m.graph.add_output(
      m.node("Conv", {x, m.constant(weights)},
             {{"kernel_shape", Dims{3, 3}}, {"pads", Dims{1, 1, 1, 1}}, {"group", int64_t{1}}},
             {1, kChannels, 28, 28}));
  auto backend = make_cpu_backend();
  auto p = prepare(m.graph, {}, backend.get());
  auto inputs = inputs_of(m.graph, 4);
  auto* image = const_cast<float*>(inputs[0].as<float>().data());
  for (int64_t k = 0; k < inputs[0].numel(); k += 97) image[k] = kInf;
  const auto want = p->executable->run_tensors(inputs);
  REQUIRE(want.has_value());
  std::atomic<bool> done = false;
  std::thread planner([&] {  // each plan for another size of the image does this once
    while (!done)
      weights.residence()->give_back(
          [&](void* to) { std::memcpy(to, copy.data(), static_cast<size_t>(copy.bytes())); });
  });
  int wrong = 0;
  for (int k = 0; k < 20; ++k) {
    const auto got = p->executable->run_tensors(inputs);
    wrong += !got || !(*got)[0].identical((*want)[0]);
  }
  done = true;
  planner.join();
  CHECK(wrong == 0);
}

TEST_CASE("weights stay while somebody reads them as they are") {
  const int64_t before = Residence::given_back();
  auto backend = make_cpu_backend();
  Weighty t;
  ValueId x = t.m.input({1, Weighty::kChannels, 6, 6});
  SUBCASE("a second layer reads the same value") { t.m.graph.add_output(t.conv(t.conv(x, 6), 6)); }
  SUBCASE("they are a result, too, which each run copies") {
    t.m.graph.add_output(t.conv(x, 6));
    t.m.graph.add_output(t.w);
  }
  SUBCASE("another value has the same bytes, and a kernel reads them in place") {
    t.m.graph.add_output(t.conv(x, 6));
    ValueId table = t.m.constant(t.weights.reshaped({Weighty::kChannels, Weighty::kChannels}));
    ValueId y = t.m.input({Weighty::kChannels, Weighty::kChannels});
    t.m.graph.add_output(t.m.node("Add", {y, table}));
  }
  SUBCASE("an earlier plan reads them in place") {
    t.m.graph.add_output(t.conv(x, 6));
    Model first;
    first.graph.add_output(
        first.node("Exp", {first.node("Add", {first.input({Weighty::kChannels, Weighty::kChannels}),
                                              first.constant(t.weights.reshaped(
                                                  {Weighty::kChannels, Weighty::kChannels}))})}));
    auto earlier = prepare(first.graph, {}, backend.get());
    auto p = prepare(t.m.graph, {}, backend.get());
    CHECK(Residence::given_back() == before);
    t.check_run(*p);
    return;
  }
  SUBCASE("they are not this session's alone") {
    t.m.graph.add_output(t.conv(x, 6));
    auto p = prepare(t.m.graph);
    CHECK(Residence::given_back() == before);
    return;
  }
  auto p = prepare(t.m.graph, {}, backend.get());
  CHECK(Residence::given_back() == before);
  t.check_run(*p);
}

TEST_CASE("more memory than allowed is refused before it is taken") {
  Model m;
  ValueId x = m.input({1024, 1024});
  ValueId a = m.node("Exp", {x});
  m.graph.add_output(m.node("MatMul", {a, m.constant(random_tensor({1024, 8}, 1))}, {}, {1024, 8}));
  auto p = std::make_unique<Prepared>();
  p->plan = std::move(*make_plan(std::move(*m.graph.clone()), p->device, operators()));
  p->lowered = std::move(*lower(p->plan, operators(), p->device));
  p->limits.memory_bytes = 1 << 20;
  auto e = p->backend->prepare({p->plan, p->lowered, operators(), p->device, p->limits, 2, {}});
  REQUIRE_FALSE(e.has_value());
  REQUIRE(e.error().error());
  CHECK(e.error().error()->code == Code::out_of_memory);
}

}  // namespace ferrule::cpu::test
