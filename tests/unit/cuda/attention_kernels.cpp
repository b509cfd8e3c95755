// Attention through the stub of cuDNN, against the interpreter in double: every form that is
// cuDNN's, with minus infinity in the masks. What is not cuDNN's is told apart without it, with the
// reason.
#include <algorithm>
#include <limits>

#include "engine/contract/attention.h"
#include "runtime/cuda/cudnn_kernel.h"
#include "runtime/gpu_steps.h"
#include "tests/support/paths.h"
#include "tests/unit/cuda/attention_forms.h"
#include "tests/unit/cuda/library_harness.h"

namespace ferrule::cuda::test {
namespace {

Target shipped(const char* name) {
  const std::string dirs[] = {rules_dir()};
  auto t = load_target(dirs, name);
  REQUIRE(t.has_value());
  return std::move(*t);
}

/// A third of a mask is minus infinity, but no row's first key.
Tensor hidden(Harness& h, const Dims& dims, DType type) {
  Tensor t = h.random(dims);
  const Tensor none = Tensor::scalar(type, -std::numeric_limits<double>::infinity());
  for (int64_t k = 0; k < t.numel(); ++k)
    if (k % dims.back() % 3 == 1)
      std::memcpy(static_cast<char*>(const_cast<void*>(t.data())) + k * 2, none.data(), 2);
  return t;
}

struct Run {
  Run(const AttentionForm& form, DType type)
      : graph(attention_graph(form, type == DType::f16 ? "float16" : "bfloat16")),
        launch(attention_launch(graph)),
        h("attention", type) {
    h.target = shipped("sm_90");
    std::vector<Tensor> inputs(graph.inputs().size());
    for (ValueId v : launch.inputs) {
      if (const Tensor* c = graph.constant(v)) {
        h.input(*c);
        continue;
      }
      Dims dims;
      for (const Dim& d : *graph.value(v).type.shape) dims.push_back(*d.constant());
      const auto place = std::ranges::find(graph.inputs(), v) - graph.inputs().begin();
      inputs[static_cast<size_t>(place)] =
          graph.value(v).name == "m" ? hidden(h, dims, type) : h.random(dims);
      h.input(inputs[static_cast<size_t>(place)]);
    }
    want = h.expected(graph, inputs);
  }
  Graph graph;
  Launch launch;
  Harness h;
  std::vector<double> want;
};

}  // namespace

TEST_CASE("attention: every form that is cuDNN's") {
  if (left_out()) return;
  REQUIRE(stubs());
  for (const AttentionForm& form : kAttentions)
    for (DType type : {DType::f16, DType::bf16}) {
      CAPTURE(std::string(form.name));
      CAPTURE(name(type));
      Run r(form, type);
      const AttentionChoice choice = choose_gpu_attention(r.launch, r.h.call, r.h.target, false);
      CHECK(choice.library.has_value() == form.library);
      CHECK(choice.why.empty() == form.library);
      if (!choice.library) continue;
      auto kernel = r.h.make([&](Context& c, const KernelCall& call) {
        return make_attention(c, r.launch, call, *choice.library);
      });
      REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
      CHECK((*kernel)->text().starts_with("cudnn:"));
      auto& tunable = dynamic_cast<Tunable&>(**kernel);
      REQUIRE(tunable.candidates().size() >= 2);
      for (const std::string& plan : tunable.candidates()) {
        REQUIRE(tunable.choose(plan).has_value());
        r.h.run(**kernel);
        r.h.compare(r.want);
      }
    }
}

TEST_CASE("attention: what decides") {
  const Target hopper = shipped("sm_90"), turing = shipped("sm_75");
  const AttentionForm& plain = kAttentions[0];
  auto choose = [](Run& r, const Target& t, bool strict) {
    return choose_gpu_attention(r.launch, r.h.call, t, strict);
  };
  Run r(plain, DType::f16);
  CHECK(choose(r, hopper, false).library);
  CHECK(choose(r, hopper, true).library);
  CHECK_FALSE(choose(r, turing, false).library);
  CHECK(choose(r, turing, false).why.empty());
  for (Operand* o : {&r.h.call.inputs[0], &r.h.call.outputs[0]}) {
    const Operand kept = *o;
    o->offset = 8;
    CHECK(choose(r, hopper, false).why.find("16 bytes") != std::string::npos);
    *o = kept;
    o->apart = {240, 80, 20, 1};  // a slice whose heads begin in the middle of 16 bytes
    CHECK(choose(r, hopper, false).why.find("16 bytes") != std::string::npos);
    o->apart = {480, 160, 32, 2};
    CHECK(choose(r, hopper, false).why.find("lie apart") != std::string::npos);
    o->apart = {960, 320, 64, 1};
    CHECK(choose(r, hopper, false).library);
    *o = kept;
  }
  for (const AttentionForm& form : kAttentions) {
    if (std::string(form.name) != "mask of keys") continue;
    Run masked(form, DType::f16);
    CHECK(choose(masked, hopper, false).library);
    CHECK(choose(masked, hopper, true).why.find("strict") != std::string::npos);
  }
}

TEST_CASE("attention: masks that may leave a query no key, and scales") {
  const Target hopper = shipped("sm_90");
  auto deviation = [&](const std::string& signature, const std::string& body) {
    auto g = import_text("agraph (float16[2,5,8] q, float16[2,8,7] k, float16[2,7,8] v" +
                         signature + "{ s = MatMul(q, k)\n " + body + "\n y = MatMul(w, v) }");
    REQUIRE_MESSAGE(g.has_value(), (g ? "" : render(g.error())));
    const Node& group = ferrule::test::group_by("attention", g->graph);
    const Attention a = attention_of(*group.roles);
    const Accept whether = library_attends(*group.body, a, hopper);
    return (whether.truth == Truth::yes ? "yes " : whether.reason + " ") +
           attention_deviation(*group.body, a, hopper);
  };
  const std::string out = ") => (float16[2,5,8] y) ",
                    masked = "u = Add(s, m)\n w = Softmax<axis=-1>(u)";
  CHECK(deviation(out, "w = Softmax<axis=-1>(s)") == "yes ");
  CHECK(deviation(", float16[7] m" + out, masked).find("all masked") != std::string::npos);
  // 64512 is minus infinity, 64511 the lowest number, 61440 is -8192.
  CHECK(deviation(out + "<float16[7] m = {64512, 0, 64512, 64512, 64512, 64512, 64512}> ",
                  masked) == "yes ");
  CHECK(deviation(out + "<float16[7] m = {61440, 61440, 61440, 61440, 61440, 61440, 61440}> ",
                  masked) == "yes ");
  CHECK(
      deviation(out + "<float16[7] m = {64512, 64511, 64512, 64511, 64511, 64511, 64512}> ", masked)
          .find("all masked") != std::string::npos);
  CHECK(deviation(out + "<float16 c = {47104}> ", "u = Mul(s, c)\n w = Softmax<axis=-1>(u)")
            .find("not positive") != std::string::npos);
  CHECK(deviation(out + "<float16 z = {0}> ",
                  "p = Softmax<axis=-1>(s)\n n = IsNaN(p)\n w = Where(n, z, p)") ==
        "yes results that are NaN become 0, also where a value is");
  CHECK(deviation(", float16[5,7] m" + out +
                      "<float16 z = {0}, float16 low = {64512}, int64[1] a = {-1}> ",
                  "u = Add(s, m)\n p = Softmax<axis=-1>(u)\n r = ReduceMax<keepdims=1>(m, a)\n n = "
                  "Equal(r, low)\n w = Where(n, z, p)") ==
        "yes results that are NaN become 0, also where a value is");
}

}  // namespace ferrule::cuda::test
