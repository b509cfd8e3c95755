// The library kernels on the stubs, over shapes, strides, pads, groups, dilations, types and tails.
// The stubs check the descriptors and compute by them, so a descriptor that says something else
// than the model gives other numbers.
#include <array>
#include <cstdlib>

#include "engine/rewrite/replacement.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn_kernel.h"
#include "tests/support/paths.h"
#include "tests/unit/cuda/library_harness.h"

namespace ferrule::cuda::test {
namespace {

constexpr Layout kLast = Layout::channels_last;
const DType kTypes[] = {DType::f32, DType::f16, DType::bf16};

struct Window {
  Dims x, w, strides{}, dilations{}, pads{};
  int64_t groups = 1;
  Dims output_padding{};
};

void describe(Harness& h, const Window& c) {
  if (!c.strides.empty()) h.node.attrs.set("strides", Attr(c.strides));
  if (!c.dilations.empty()) h.node.attrs.set("dilations", Attr(c.dilations));
  if (!c.pads.empty()) h.node.attrs.set("pads", Attr(c.pads));
  if (!c.output_padding.empty()) h.node.attrs.set("output_padding", Attr(c.output_padding));
  if (!c.w.empty()) h.node.attrs.set("group", Attr(c.groups));
}

const Window kConvolutions[] = {
    {{2, 5, 7, 9}, {6, 5, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}},
    {{1, 4, 11, 8}, {6, 4, 3, 2}, {2, 3}, {1, 1}, {0, 1, 2, 1}},  // pads of four sizes
    {{1, 4, 9, 9}, {4, 4, 3, 3}, {1, 1}, {2, 3}, {2, 3, 2, 3}},
    {{2, 6, 5, 5}, {9, 2, 3, 3}, {1, 1}, {1, 1}, {1, 1, 1, 1}, 3},
    {{1, 8, 6, 6}, {8, 1, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 8},  // depthwise
    {{3, 7, 4, 4}, {5, 7, 1, 1}},
    {{2, 3, 12}, {4, 3, 5}, {2}, {1}, {2, 1}},
    {{1, 3, 4, 5, 6}, {4, 3, 2, 3, 2}, {1, 2, 1}, {1, 1, 2}, {0, 1, 1, 1, 0, 1}},
};

}  // namespace

TEST_CASE("convolutions of every rank, pad, group, layout and type") {
  if (left_out()) return;
  for (const Window& c : kConvolutions)
    for (DType t : kTypes)
      for (Layout layout : {Layout::plain, kLast})
        for (bool bias : {true, false}) {
          CAPTURE(c.x);
          CAPTURE(name(t));
          Harness h("Conv", t);
          describe(h, c);
          h.input(c.x, layout);
          h.constant(c.w);
          if (bias) h.constant({c.w[0]});
          h.check(layout);
        }
}

TEST_CASE("deconvolutions, with output padding and groups") {
  if (left_out()) return;
  const Window cases[] = {
      {{2, 6, 5, 4}, {6, 4, 2, 2}, {2, 2}},
      {{1, 4, 6, 5}, {4, 3, 4, 4}, {2, 2}, {1, 1}, {1, 1, 1, 1}},
      {{1, 4, 5, 5}, {4, 3, 3, 3}, {2, 2}, {1, 1}, {1, 1, 1, 1}, 1, {1, 1}},
      {{1, 6, 4, 4}, {6, 2, 3, 3}, {1, 1}, {2, 2}, {0, 0, 0, 0}, 3},
      {{1, 4, 7}, {4, 2, 3}, {2}, {1}, {1, 0}},
  };
  for (const Window& c : cases)
    for (DType t : kTypes) {
      CAPTURE(c.x);
      Harness h("ConvTranspose", t);
      describe(h, c);
      h.input(c.x, kLast);
      h.constant(c.w);
      h.constant({c.w[1] * c.groups});
      h.check(kLast);
    }
}

TEST_CASE("every step that the targets' facts name, behind a convolution") {
  if (left_out()) return;
  const std::string dirs[] = {rules_dir()};
  auto target = load_target(dirs, "sm_90");
  REQUIRE(target.has_value());
  const auto& facts = target->contracts.at("conv");
  for (const auto* list : {&facts.epilogues, &facts.exact_epilogues})
    for (const std::string& alg : *list) {
      CAPTURE(alg);
      Harness h("Conv", DType::f32);
      describe(h, kConvolutions[0]);
      h.input(kConvolutions[0].x, kLast);
      h.constant(kConvolutions[0].w);
      h.constant({6});
      if (alg == "log" || alg == "pow" || alg == "sqrt") h.eltwise("abs");
      if (alg == "div") h.eltwise("linear", 1, 0.5f);
      if (alg == "add" || alg == "sub" || alg == "mul" || alg == "max" || alg == "min")
        h.binary(alg, h.operand({2, 6, 7, 9}, kLast));
      else if (alg == "div")
        h.binary("mul", h.operand({6, 1, 1}, Layout::plain));
      else if (alg == "swish" || alg == "soft_relu" || alg == "elu")
        h.eltwise(alg, 1);
      else if (alg == "clip")
        h.eltwise(alg, -0.25f, 0.5f);
      else
        h.eltwise(alg, 0.25f, 0.5f);
      h.check(kLast);
    }
}

TEST_CASE("a tensor that nobody has an address for is said before cuDNN is called") {
  if (left_out()) return;
  REQUIRE(stubs());
  CudnnProblem p;
  p.x = p.y = {DType::f32, {1, 2, 3, 3}, {18, 1, 6, 2}};
  p.w = {DType::f32, {2, 2, 1, 1}, {2, 1, 2, 2}};
  p.strides = p.dilations = {1, 1};
  p.pads_begin = p.pads_end = {0, 0};
  PostOp half;
  half.alg = "linear";
  half.alpha = 0.5f;
  p.tail.push_back(half);  // a number, which has its address
  Harness h("Conv");
  auto handle = h.libraries.cudnn("a layer");
  REQUIRE(handle.has_value());
  auto g = make_cudnn_graph(*handle, p, 90, "a layer");
  REQUIRE(g.has_value());
  REQUIRE((*g)->build().has_value());
  alignas(16) std::array<float, 18> x{}, w{}, y{};
  const CudnnAddresses all{{kX, x.data()}, {kW, w.data()}, {kY, y.data()}};
  CHECK((*g)->execute(nullptr, all, nullptr).has_value());
  for (size_t left = 0; left < all.size(); ++left) {
    CudnnAddresses some = all;
    some.erase(some.begin() + static_cast<std::ptrdiff_t>(left));
    Status status = (*g)->execute(nullptr, some, nullptr);
    REQUIRE_FALSE(status.has_value());
    CHECK(status.error().code == Code::library_failed);
    CHECK(status.error().message.find(fmt::format("nobody has an address for tensor {}",
                                                  all[left].first)) != std::string::npos);
  }
}

TEST_CASE("the ready-made order: addend, bias, relu, with a bias that the model has not") {
  if (left_out()) return;
  for (bool bias : {true, false}) {
    Harness h("Conv");
    describe(h, kConvolutions[0]);
    h.input(kConvolutions[0].x, kLast);
    h.constant(kConvolutions[0].w);
    if (bias) h.constant({6});
    h.binary("add", h.operand({2, 6, 7, 9}, kLast));
    h.eltwise("relu");
    h.check(kLast);
  }
}

TEST_CASE("operands of one value, one a channel, one an element") {
  if (left_out()) return;
  for (const Dims& dims : {Dims{1}, Dims{6, 1, 1}, Dims{2, 6, 7, 9}}) {
    CAPTURE(dims);
    Harness h("Conv", DType::f16);
    describe(h, kConvolutions[0]);
    h.input(kConvolutions[0].x, kLast);
    h.constant(kConvolutions[0].w);
    h.binary("mul", h.operand(dims, dims.size() == 4 ? kLast : Layout::plain));
    h.check(kLast);
  }
}

TEST_CASE("an operand as large as the result that lies otherwise is none of cuDNN's") {
  if (left_out()) return;
  Harness h("Conv", DType::f16);
  describe(h, kConvolutions[0]);
  h.input(kConvolutions[0].x, kLast);
  h.constant(kConvolutions[0].w);
  h.binary("add", h.operand({2, 6, 7, 9}, Layout::plain));
  const auto want = h.expected(kLast);  // describes the result, too
  const auto kernel = h.make();
  REQUIRE_FALSE(kernel.has_value());
  CHECK(kernel.error().not_applicable());
}

TEST_CASE("tf32 rounds only where the node allows it") {
  if (left_out()) return;
  for (bool allowed : {false, true}) {
    Harness h("Conv");
    describe(h, kConvolutions[0]);
    if (allowed) h.node.attrs.set("precision", Attr(std::string("tf32")));
    h.input(kConvolutions[0].x, kLast);
    h.constant(kConvolutions[0].w);
    const auto want = h.expected(kLast);
    auto kernel = h.make();
    REQUIRE(kernel.has_value());
    CHECK(((*kernel)->text().find("eng2") != std::string::npos) == allowed);
    CHECK(dynamic_cast<Tunable&>(**kernel).candidates().size() == (allowed ? 3 : 2));
    if (!allowed) {
      h.run(**kernel);
      h.compare(want);
    }
  }
}

TEST_CASE("every plan of a problem computes it, and the tuning file's is taken") {
  if (left_out()) return;
  Harness h("Conv");
  describe(h, kConvolutions[0]);
  h.input(kConvolutions[0].x, kLast);
  h.constant(kConvolutions[0].w);
  const auto want = h.expected(kLast);
  auto kernel = h.make();
  REQUIRE(kernel.has_value());
  auto& tunable = dynamic_cast<Tunable&>(**kernel);
  const auto candidates = tunable.candidates();
  REQUIRE(candidates.size() == 2);
  for (const std::string& c : candidates) {
    REQUIRE(tunable.choose(c).has_value());
    CHECK(tunable.chosen() == c);
    h.run(**kernel);
    h.compare(want);
  }
  CHECK_FALSE(tunable.choose("eng77").has_value());
  Tuning tuning;
  tuning.problems[tunable.problem()] = {candidates[1], {}};
  h.tuning = &tuning;
  auto tuned = h.make();
  REQUIRE(tuned.has_value());
  CHECK(dynamic_cast<Tunable&>(**tuned).chosen() == candidates[1]);
  CHECK((*tuned)->scratch_bytes() == 4096);
}

TEST_CASE("products: batches, broadcast, transposed, factors, addends") {
  if (left_out()) return;
  struct Case {
    const char* op;
    Dims a, b, c{};
    int64_t trans_a = 0, trans_b = 0;
    float alpha = 1, beta = 1;
  };
  const Case cases[] = {
      {"MatMul", {5, 7}, {7, 4}},
      {"MatMul", {3, 5, 7}, {7, 4}},
      {"MatMul", {3, 5, 7}, {3, 7, 4}},
      {"MatMul", {2, 3, 5, 7}, {3, 7, 4}},
      {"MatMul", {2, 1, 5, 7}, {1, 3, 7, 4}},  // no single step: two calls
      {"MatMul", {5, 7}, {3, 7, 4}},
      {"MatMul", {7}, {7, 4}},
      {"MatMul", {5, 7}, {7}},
      {"MatMul", {1, 7}, {7, 4}},
      {"Gemm", {5, 7}, {7, 4}, {4}},
      {"Gemm", {5, 7}, {4, 7}, {5, 4}, 0, 1, 0.5f, 2},
      {"Gemm", {7, 5}, {7, 4}, {1, 4}, 1, 0, 2},
      {"Gemm", {7, 5}, {4, 7}, {4}, 1, 1, 1, 0.25f},
      {"Gemm", {5, 7}, {7, 4}, {5, 1}},
      {"Gemm", {5, 7}, {7, 4}, {1}, 0, 0, 1, 3},
  };
  for (const Case& c : cases)
    for (DType t : kTypes) {
      CAPTURE(c.op);
      CAPTURE(c.a);
      CAPTURE(c.b);
      CAPTURE(c.c);
      Harness h(c.op, t);
      if (*c.op == 'G') {
        h.node.attrs.set("transA", Attr(c.trans_a));
        h.node.attrs.set("transB", Attr(c.trans_b));
        h.node.attrs.set("alpha", Attr(double{c.alpha}));
        h.node.attrs.set("beta", Attr(double{c.beta}));
      }
      h.input(c.a);
      if (c.b.size() == 2)
        h.constant(c.b);
      else
        h.input(c.b);
      if (!c.c.empty()) h.constant(c.c);
      h.check();
    }
}

TEST_CASE("libraries are told how operands are aligned") {
  if (left_out()) return;
  // Matrices of 140 bytes that one step does not describe: the second call's begins at 140.
  Harness parts("MatMul");
  parts.input({2, 3, 3, 5});
  parts.input({2, 1, 5, 7});
  parts.check();
  // A slice that begins in the middle of 16 bytes; the harness's own memory is aligned.
  Harness slice("MatMul");
  slice.input({3, 5});
  slice.input({5, 7});
  slice.call.inputs[1].offset = 20;
  slice.expected(Layout::plain);
  auto kernel = slice.make();
  REQUIRE(kernel.has_value());
  CHECK(dynamic_cast<Tunable&>(**kernel).problem().find(" b=7.0/4 ") != std::string::npos);
  // A bias inside of 16 bytes is none: heuristics take all biases for aligned to that.
  for (const int64_t offset : {4, 16}) {
    CAPTURE(offset);
    Harness bias("MatMul");
    bias.input({3, 5});
    bias.constant({5, 8});
    bias.binary("add", bias.operand({8}));
    bias.call.inputs[2].offset = offset;
    bias.expected(Layout::plain);
    CHECK(bias.make().has_value() == (offset == 16));
  }
  // cuDNN is told 16 of every tensor: it is not asked.
  Harness image("Conv");
  image.input({1, 2, 5, 5});
  image.constant({3, 2, 3, 3});
  image.expected(Layout::plain);
  CHECK(image.make().has_value());
  image.call.inputs[0].offset = 100;
  auto refused = image.make();
  REQUIRE_FALSE(refused.has_value());
  CHECK(refused.error().reason().find("100 bytes") != std::string::npos);
}

TEST_CASE("sums of parts of a product are not rounded to 16 bits") {
  if (left_out()) return;
  REQUIRE(stubs());
  Harness h("MatMul", DType::f16);
  auto handle = h.libraries.cublaslt("test");
  REQUIRE(handle.has_value());
  Product p;
  p.dtype = DType::f16;
  p.rows = p.columns = 1, p.depth = 4;
  p.a.row = 4, p.b.row = p.y.row = 1;
  auto product = make_cublaslt_product(*handle, p, "test");
  REQUIRE(product.has_value());
  // As f16, 2048 + 1 is 2048.
  const Tensor a = converted(Tensor::of_f32({1, 4}, {2048, 1, -2047, 0}), DType::f16),
               b = converted(Tensor::of_f32({4, 1}, {1, 1, 1, 1}), DType::f16);
  alignas(16) std::array<uint16_t, 8> y{};
  alignas(256) static std::array<char, 4096> workspace;
  // Algorithms that the heuristic lists and has not are no plans.
  CHECK((*product)->plans() == std::vector<std::string>{"0", "1"});
  for (const std::string& plan : (*product)->plans()) {
    CAPTURE(plan);
    REQUIRE((*product)->choose(plan).has_value());
    REQUIRE(
        (*product)
            ->execute(nullptr, {a.data(), b.data(), nullptr, nullptr, y.data()}, workspace.data())
            .has_value());
    CHECK(Tensor(DType::f16, {1}, nullptr, y.data()).at_f64(0) == 2);
  }
}

TEST_CASE("tails of products: bias, addend, relu, gelu") {
  if (left_out()) return;
  for (int mask = 0; mask < 12; ++mask) {
    CAPTURE(mask);
    Harness h("MatMul", mask % 2 ? DType::f16 : DType::f32);
    h.input({2, 5, 7});
    h.constant({7, 4});
    if (mask & 1) h.binary("add", h.operand({4}));
    if (mask & 2) h.binary("add", h.operand({2, 5, 4}));
    if (mask / 4 == 1) h.eltwise("relu");
    if (mask / 4 == 2) h.eltwise("gelu_tanh");
    h.check();
  }
}

TEST_CASE("what fails in a library is an error with the layer and the library's word") {
  if (left_out()) return;
  auto fails = [](const char* order, const char* what) {
    setenv("FERRULE_STUB_FAIL", order, 1);
    Harness h("Conv");
    describe(h, kConvolutions[0]);
    h.input(kConvolutions[0].x, kLast);
    h.constant(kConvolutions[0].w);
    (void)h.expected(kLast);
    auto kernel = h.make();
    Status status = kernel ? Status{} : Status(fail(required(kernel.error())));
    if (kernel) {
      REQUIRE((*kernel)->bind(h).has_value());
      status = (*kernel)->enqueue(nullptr);
    }
    unsetenv("FERRULE_STUB_FAIL");
    REQUIRE_FALSE(status.has_value());
    const std::string text = render(status.error());
    CHECK_MESSAGE(text.find("test") != std::string::npos, text);
    CHECK_MESSAGE(text.find(what) != std::string::npos, text);
  };
  // The number of the call is that of the process, so the orders name many.
  auto all = [](const char* function, int code) {
    std::string out;
    for (int k = 1; k < 20000; ++k)
      out += fmt::format("{}{}:{}={}", k > 1 ? "," : "", function, k, code);
    return out;
  };
  fails(all("cudnnBackendExecute", 5000).c_str(), "CUDNN_STATUS_EXECUTION_FAILED (5000)");
  fails(all("cudnnCreate", 1001).c_str(), "(1001)");
}

}  // namespace ferrule::cuda::test
