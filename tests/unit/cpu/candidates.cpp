// Choosing among implementations: the built-in rule, an entry of a tuning file, an entry that
// cannot be followed; and that a problem's text holds everything that it should.
#include "runtime/cpu/implementations.h"

#include <set>

#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

/// A depthwise convolution of 16 channels with a tail of relu.
struct DepthwiseNet {
  Harness h{"Conv"};
  Target target;
  Tuning tuning;
  Context context;
  DepthwiseNet() : context{h.library} {
    target.name = "cpu-avx2";
    h.node.attrs.set("group", int64_t{16});
    h.node.attrs.set("pads", Dims{1, 1, 1, 1});
    h.input(random_tensor({1, 16, 9, 9}, 1), Layout::channels_last);
    h.constant(random_tensor({16, 1, 3, 3}, 2));
    h.eltwise("relu");
    h.output(DType::f32, {1, 16, 9, 9}, Layout::channels_last);
    h.call.node = &h.node;
    h.call.graph = &h.graph;
    h.call.work = Work::convolution;
    h.call.post_ops = h.post_ops;
    context.target = &target;
  }
  std::string problem(int threads = 1) const { return problem_text(context, h.call, threads); }
  Chosen chosen(std::string* note = nullptr) {
    context.tuning = &tuning;
    auto c = choose(context, h.call, 1, note);
    REQUIRE_MESSAGE(c.has_value(), (c ? "" : c.error().reason()));
    return std::move(*c);
  }
  Tensor run(Chosen& c) {
    h.bind(*c.kernel);
    REQUIRE(c.kernel->run().has_value());
    return h.result();
  }
};

}  // namespace

TEST_CASE("a tuning entry switches the implementation and not the result") {
  DepthwiseNet net;
  Chosen usual = net.chosen();
  CHECK(usual.name == "depthwise");
  CHECK(usual.kernel->text() == "depthwise:avx2");
  const Tensor a = net.run(usual);
  net.tuning.problems[net.problem()] = {"onednn", {}};
  Chosen tuned = net.chosen();
  CHECK(tuned.name == "onednn");
  CHECK(tuned.kernel->text() != usual.kernel->text());
  const Tensor b = net.run(tuned);
  std::vector<double> want;
  for (float v : a.as<float>()) want.push_back(v);
  check_close(b, want);
}

TEST_CASE("entries for other problems do nothing; impossible ones are noted and ignored") {
  DepthwiseNet net;
  std::string note;
  net.tuning.problems[net.problem(2)] = {"onednn", {}};
  CHECK(net.chosen(&note).name == "depthwise");
  CHECK(note.empty());
  for (const char* name : {"teleport", "matmul_1x1"}) {
    net.tuning.problems[net.problem()] = {name, {}};
    note.clear();
    CHECK(net.chosen(&note).name == "depthwise");
    CHECK(note.find(name) != std::string::npos);
  }
}

TEST_CASE("a problem's text tells apart what runs at different speeds") {
  std::set<std::string> seen;
  auto add = [&](const std::function<void(DepthwiseNet&)>& change, int threads = 1) {
    DepthwiseNet net;
    change(net);
    net.h.call.post_ops = net.h.post_ops;
    CHECK(seen.insert(net.problem(threads)).second);
  };
  add([](DepthwiseNet&) {});
  add([](DepthwiseNet&) {}, 2);
  add([](DepthwiseNet& n) { n.target.name = "cpu-avx512"; });
  add([](DepthwiseNet& n) { n.h.node.attrs.set("strides", Dims{2, 2}); });
  add([](DepthwiseNet& n) { n.h.node.attrs.set("pads", Dims{0, 1, 2, 1}); });
  add([](DepthwiseNet& n) { n.h.node.attrs.set("dilations", Dims{2, 2}); });
  add([](DepthwiseNet& n) { n.h.node.attrs.set("auto_pad", std::string("VALID")); });
  add([](DepthwiseNet& n) { n.h.node.attrs.set("group", int64_t{8}); });
  add([](DepthwiseNet& n) { n.h.call.inputs[0].dims[2] = 10; });
  add([](DepthwiseNet& n) { n.h.call.inputs[0].layout = Layout::plain; });
  add([](DepthwiseNet& n) { n.h.call.inputs[0].dtype = DType::f16; });
  add([](DepthwiseNet& n) { n.h.eltwise("tanh"); });
  add([](DepthwiseNet& n) { n.h.binary("mul", n.h.operand(random_tensor({16, 1, 1}, 3))); });
  add([](DepthwiseNet& n) { n.h.binary("mul", n.h.operand(random_tensor({1}, 3))); });
  CHECK(seen.size() == 14);
  const DepthwiseNet net;
  CHECK(net.problem() ==
        "Conv f32[1x16x9x9]:last f32[16x1x3x3]:const -> f32[1x16x9x9]:last pads=1x1x1x1 group=16 "
        "tail=relu threads=1 cpu-avx2");
}

TEST_CASE("a 1x1 convolution as a product takes the same tails") {
  const Dims y{2, 24, 5, 7};
  const Tensor x = random_tensor({2, 12, 5, 7}, 1), w = random_tensor({24, 12, 1, 1}, 2),
               b = random_tensor({24}, 3);
  const Tensor full = random_tensor(y, 4), channel = random_tensor({24, 1, 1}, 5),
               one = random_tensor({1}, 6);
  auto result = [&](Factory f, bool in_place) {
    Harness h("Conv");
    h.input(x, Layout::channels_last);
    h.constant(w);
    h.constant(b);
    const int c = h.operand(channel), o = h.operand(one),
              r = h.operand(full, Layout::channels_last);
    h.binary("mul", c);
    h.eltwise("relu");
    h.binary("sub", o);
    h.binary("add", r);
    h.output(DType::f32, y, Layout::channels_last, in_place ? r : -1);
    Tensor t = h.run(f);
    CHECK(h.text.starts_with(f == make_matmul_1x1 ? "matmul_1x1"
                             : f == make_product  ? "product"
                                                  : "brg"));
    return t;
  };
  const Tensor expected = result(make_convolution, false);
  std::vector<double> want;
  for (float v : expected.as<float>()) want.push_back(v);
  for (Factory f : {make_matmul_1x1, make_product})
    for (bool in_place : {false, true}) check_close(result(f, in_place), want);
}

}  // namespace ferrule::cpu::test
