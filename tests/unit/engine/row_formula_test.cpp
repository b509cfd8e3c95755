// Row operators that only a formula describes are inferred and interpreted from it: the shipped
// ones under a domain of their own, against themselves, which the interpreter computes without
// formulas.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <random>
#include <sstream>

#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "tests/unit/engine/kit.h"

using namespace ferrule;

namespace {

/// The shipped operators, and each row operator once more in the domain `copy`.
const Semantics& copies() {
  static const Semantics table = [] {
    std::ifstream in(rules_dir() + "/ops/reduction.yaml");
    std::string text, line;
    while (std::getline(in, line))
      text += line + (line.starts_with("  - op: ") ? "\n    domain: copy\n" : "\n");
    std::string dir = (std::filesystem::temp_directory_path() / "ferrule-copies-XXXXXX").string();
    REQUIRE(mkdtemp(dir.data()));
    std::filesystem::create_directory(dir + "/ops");
    std::ofstream(dir + "/ops/copies.yaml") << text;
    auto ops = Semantics::load(std::vector{rules_dir(), dir}, infer_by_schema);
    std::filesystem::remove_all(dir);
    return must(std::move(ops));
  }();
  return table;
}

struct Form {
  const char *call, *inputs = "";  ///< "Softmax<axis=1>(x)" and what it reads beside x
};

Tensor drawn(const Type& t, std::mt19937& random) {
  const std::vector<int64_t> dims = *constant_shape(*t.shape);
  int64_t count = 1;
  for (int64_t d : dims) count *= d;
  if (is_int(t.dtype)) {
    std::vector<int64_t> v(static_cast<size_t>(count));
    for (int64_t& e : v) e = static_cast<int64_t>(random() % 19) - (is_signed_int(t.dtype) ? 9 : 0);
    if (t.dtype == DType::i64) return Tensor::of_i64(dims, v);
    std::vector<int32_t> narrow(v.begin(), v.end());
    return Tensor::of<int32_t>(DType::i32, dims, narrow);
  }
  std::vector<float> v(static_cast<size_t>(count));
  for (float& e : v) e = std::uniform_real_distribution<float>(-2, 2)(random);
  if (count > 3) v[static_cast<size_t>(count) / 2] = random() % 4 ? v[0] : NAN;
  return Tensor::of_f32(dims, v);
}

std::vector<Tensor> results(const std::string& graph_text, uint32_t seed, std::string& types) {
  ImportOptions import;
  import.ops = &copies();
  const Graph g = std::move(must(import_text(graph_text, import)).graph);
  std::mt19937 random(seed);
  std::vector<Tensor> inputs;
  for (ValueId v : g.inputs()) inputs.push_back(drawn(g.value(v).type, random));
  InterpreterOptions options;
  options.ops = &copies(), options.limits = &limits();
  types = str(g.value(g.outputs()[0]).type);
  return must(interpret(g, inputs, options));
}

void check(const std::string& type, const std::string& dims, const Form& form) {
  auto text = [&](const std::string& domain) {
    return "g (" + type + "[" + dims + "] x" + form.inputs + ") => (" + type +
           "[] y) <int64[1] one = {1}, int64[2] two = {0, -1}> { y = " + domain + form.call + " }";
  };
  for (uint32_t seed = 0; seed < 6; ++seed) {
    CAPTURE(text("copy."));
    CAPTURE(seed);
    std::string types[2];
    const auto got = results(text("copy."), seed, types[0]),
               want = results(text(""), seed, types[1]);
    CHECK(types[0] == types[1]);
    REQUIRE(got[0].dims() == want[0].dims());
    const Difference d = compare(got[0], want[0], operator_tolerance(want[0].dtype(), true));
    CHECK_MESSAGE(d.ok, d.text);
  }
}

}  // namespace

TEST_CASE("row operators of a user's have the meaning of their formulas") {
  for (const Form& f :
       {Form{"Softmax(x)"}, Form{"Softmax<axis=1>(x)"}, Form{"LogSoftmax<axis=0>(x)"},
        Form{"LayerNormalization<axis=2>(x, s, b)", ", float[4,5] s, float[5] b"},
        Form{"LayerNormalization(x, s)", ", float[1] s"},
        Form{"RMSNormalization<axis=-2>(x, s)", ", float[4,1] s"},
        Form{"MeanVarianceNormalization(x)"},
        Form{"InstanceNormalization(x, s, b)", ", float[6] s, float[6] b"},
        Form{"GroupNormalization<num_groups=3>(x, s, b)", ", float[6] s, float[6] b"},
        Form{"LpNormalization<axis=1, p=1>(x)"}, Form{"LpNormalization(x)"},
        Form{"ReduceL2<keepdims=0>(x, two)"}, Form{"ReduceLogSumExp(x, one)"}})
    check("float", "2,6,4,5", f);
  for (const char* type : {"float", "int32", "int64"})
    for (const char* dims : {"2,6,4,5", "3,1,2", "2,0,3"})
      for (const char* call :
           {"ReduceSum<keepdims=0>(x, one)", "ReduceMax(x, two)", "ReduceMin<keepdims=0>(x)",
            "ReduceProd<keepdims=0>(x, one)", "ReduceL1(x, two)", "ReduceSumSquare<keepdims=0>(x)"})
        check(type, dims, {call});
  check("float", "2,6,4,5", {"ReduceMean<keepdims=0>(x, two)"});
}

TEST_CASE("operands of a row operator of a user's that do not fit are refused") {
  ImportOptions import;
  import.ops = &copies();
  CHECK_FALSE(
      import_text("g (float[2,3] x) => (float[] y) { y = copy.Softmax<axis=2>(x) }", import));
  const Graph g = std::move(
      must(import_text(
               "g (float[2,3] x, float[4] s) => (float[] y) { y = copy.RMSNormalization(x, s) }",
               import))
          .graph);
  InterpreterOptions options;
  options.ops = &copies(), options.limits = &limits();
  const auto r = interpret(
      g, std::vector{Tensor::of_f32({2, 3}, {1, 2, 3, 4, 5, 6}), Tensor::of_f32({4}, {1, 2, 3, 4})},
      options);
  REQUIRE_FALSE(r);
  CHECK(r.error().code == Code::bad_shape);
}
