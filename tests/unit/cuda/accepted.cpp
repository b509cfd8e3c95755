// Nothing that a GPU target accepts ends in the interpreter: models of every contract and of every
// operator that one is anchored in, in the forms they come in, planned for every sm_* target with
// the shipped rules. Every launch of theirs is a generated kernel, which can be planned for its
// operands, or a call that the CUDA backend has a library for.
#include <doctest/doctest.h>

#include <map>
#include <set>

#include "codegen/annotate_plan.h"
#include "codegen/cuda/operands.h"
#include "codegen/cuda/plan_launch.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/accepts.h"
#include "engine/onnx/import.h"
#include "engine/pipeline.h"
#include "engine/rule/contract.h"
#include "runtime/cuda/kernel.h"
#include "tests/support/paths.h"

namespace ferrule::cuda {
namespace {

/// `$` in a text: the element type.
struct Form {
  std::string name;
  const char* text;
  const char* types = "float float16 bfloat16";
};

const Form kForms[] = {
    {"conv", "($[1,4,9,8] x) => ($[1,6,9,8] y) <$[6,4,3,3] W> { y = Conv<pads=[1,1,1,1]>(x, W) }"},
    {"conv grouped, with pads of four sizes and a tail",
     "($[1,4,9,8] x) => ($[1,4,5,9] y) <$[4,1,3,3] W, $[4] b> "
     "{ t = Conv<group=4, strides=[2,1], pads=[0,1,2,2]>(x, W, b)\n u = Sigmoid(t)\n v = Mul(t, "
     "u)\n w = Erf(v)\n y = Add(w, v) }"},
    {"conv of lines", "($[1,4,9] x) => ($[1,6,7] y) <$[6,4,3] W> { y = Conv(x, W) }"},
    {"conv of volumes", "($[1,4,5,6,7] x) => ($[1,6,3,4,5] y) <$[6,4,3,3,3] W> { y = Conv(x, W) }"},
    {"deconv",
     "($[1,4,5,6] x) => ($[1,6,10,12] y) <$[4,6,2,2] W> { y = ConvTranspose<strides=[2,2]>(x, W) "
     "}"},
    {"deconv with output padding",
     "($[1,4,5,6] x) => ($[1,6,10,12] y) <$[4,6,3,3] W> "
     "{ t = ConvTranspose<strides=[2,2], pads=[1,1,1,1], output_padding=[1,1]>(x, W)\n y = Relu(t) "
     "}"},
    {"gemm", "($[5,8] x) => ($[5,6] y) <$[8,6] W, $[6] b> { y = Gemm(x, W, b) }"},
    {"matmul", "($[2,5,8] x, $[2,8,6] w) => ($[2,5,6] y) { y = MatMul(x, w) }"},
    {"matmul of vectors", "($[8] x, $[2,8,6] w) => ($[2,6] y) { y = MatMul(x, w) }"},
    {"max pool",
     "($[1,8,9,9] x) => ($[1,8,5,5] y) { y = MaxPool<kernel_shape=[3,3], strides=[2,2], "
     "pads=[1,1,1,1]>(x) }",
     "float float16 bfloat16 int8 uint8"},
    {"max pool, dilated",
     "($[1,8,9,9] x) => ($[1,8,5,5] y) { y = MaxPool<kernel_shape=[3,3], dilations=[2,2]>(x) }",
     "float float16 bfloat16 int8 uint8"},
    {"average pool",
     "($[1,8,9,9] x) => ($[1,8,4,4] y) { y = AveragePool<kernel_shape=[3,3], strides=[2,2]>(x) }"},
    {"average pool that counts pads, rounded up",
     "($[1,8,9,9] x) => ($[1,8,5,5] y) "
     "{ y = AveragePool<kernel_shape=[2,2], strides=[2,2], ceil_mode=1, count_include_pad=1>(x) }"},
    {"average pool of the whole image",
     "($[1,8,7,7] x) => ($[1,8,1,1] y) { y = AveragePool<kernel_shape=[7,7]>(x) }"},
    {"pools of lines and volumes",
     "($[1,8,9] x, $[1,8,4,4,4] z) => ($[1,8,7] y, $[1,8,2,2,2] w) "
     "{ y = MaxPool<kernel_shape=[3]>(x)\n w = AveragePool<kernel_shape=[2,2,2], "
     "strides=[2,2,2]>(z) }"},
    {"global pools",
     "($[1,8,9,9] x) => ($[1,8,1,1] y, $[1,8,1,1] z) { y = GlobalAveragePool(x)\n z = "
     "GlobalMaxPool(x) }"},
    {"resize, linear",
     "($[1,8,5,6] x) => ($[1,8,10,9] y) <int64[4] s = {1,8,10,9}> { y = Resize<mode=\"linear\">(x, "
     ", , s) }"},
    {"resize, cubic",
     "($[1,8,5,6] x) => ($[1,8,10,9] y) <int64[4] s = {1,8,10,9}> { y = Resize<mode=\"cubic\", "
     "exclude_outside=1>(x, , , s) }"},
    {"resize, smaller",
     "($[1,8,9,9] x) => ($[1,8,5,5] y) <int64[4] s = {1,8,5,5}> { y = Resize<mode=\"linear\", "
     "antialias=1>(x, , , s) }"},
    {"resize, nearest",
     "($[1,8,5,6] x) => ($[1,8,7,11] y) <int64[4] s = {1,8,7,11}> { y = "
     "Resize<mode=\"nearest\">(x, , , s) }"},
    {"norm",
     "($[1,8,5,6] x, $[8] m, $[8] v) => ($[1,8,5,6] y) <$[8] s, $[8] b> { y = "
     "BatchNormalization(x, s, b, m, v) }"},
    {"norm of constants",
     "($[1,8,5,6] x) => ($[1,8,5,6] y) <$[8] s, $[8] b, $[8] m, $[8] v> { y = "
     "BatchNormalization(x, s, b, m, v) }"},
    {"rows", "($[4,33] x) => ($[4,33] y) { t = Softmax(x)\n y = Add(t, x) }"},
    {"pointwise", "($[4,33] x) => ($[4,33] y) { t = Tanh(x)\n y = Mul(t, x) }"},
    {"softmax and selection",
     "($[4,33] x) => ($[4,5] y, int64[4,5] i) <int64[1] k = {5}> { t = Softmax(x)\n y, i = TopK(t, "
     "k) }"},
    {"attention",
     "($[2,3,16,8] q, $[2,3,8,16] k, $[2,3,16,8] v) => ($[2,3,16,8] y) { s = MatMul(q, k)\n p = "
     "Softmax<axis=-1>(s)\n y = MatMul(p, v) }"},
    {"conv and pool",
     "($[1,4,9,8] x) => ($[1,6,4,4] y) <$[6,4,3,3] W> "
     "{ t = Conv<pads=[1,1,1,1]>(x, W)\n a = Relu(t)\n y = MaxPool<kernel_shape=[2,2], "
     "strides=[2,2]>(a) }"},
    {"quantized",
     "(uint8[1,4,8,8] x) => (uint8[1,8,8,8] y) <float[8,4,3,3] W, float s = {0.5}, uint8 z = {3}> "
     "{ a = DequantizeLinear(x, s, z)\n b = Conv<pads=[1,1,1,1]>(a, W)\n y = QuantizeLinear(b, s, "
     "z) }",
     "float"},
    {"separable, quantized",
     "(uint8[1,4,8,8] x) => (uint8[1,8,8,8] y) <float[4,1,3,3] W, float[8,4,1,1] V, float s = "
     "{0.5}, uint8 z = {3}> "
     "{ a = DequantizeLinear(x, s, z)\n b = Conv<pads=[1,1,1,1], group=4>(a, W)\n c = "
     "QuantizeLinear(b, s, z)\n d = DequantizeLinear(c, s, z)\n"
     " e = Conv(d, V)\n y = QuantizeLinear(e, s, z) }",
     "float"},
    {"transpose, slice, concat",
     "($[2,8,6] x) => ($[2,8,4] y) <int64[1] s = {1}, int64[1] e = {5}, int64[1] a = {2}> "
     "{ t = Transpose<perm=[0,2,1]>(x)\n u = Transpose<perm=[0,2,1]>(t)\n v = Slice(u, s, e, a)\n "
     "y = Identity(v) }"},
    {"transpose", "($[2,8,6] x) => ($[6,2,8] y) { y = Transpose<perm=[2,0,1]>(x) }",
     "float float16 bfloat16 int64"},
    {"concat", "($[2,8,6] x, $[2,3,6] z) => ($[2,11,6] y) { y = Concat<axis=1>(x, z) }",
     "float float16 bfloat16 int64"},
    {"slice",
     "($[2,8,6] x) => ($[2,3,6] y) <int64[1] s = {6}, int64[1] e = {0}, int64[1] a = {1}, int64[1] "
     "t = {-2}> { y = Slice(x, s, e, a, t) }"},
    {"split",
     "($[2,8,6] x) => ($[2,3,6] y, $[2,5,6] z) <int64[2] s = {3,5}> { y, z = Split<axis=1>(x, s) "
     "}"},
    {"pad", "($[2,8,6] x) => ($[2,9,8] y) <int64[6] p = {0,0,1,0,1,1}> { y = Pad(x, p) }"},
    {"pad, reflected",
     "($[2,8,6] x) => ($[2,9,8] y) <int64[6] p = {0,0,1,0,1,1}> { y = Pad<mode=\"reflect\">(x, p) "
     "}"},
    {"pad, of edges",
     "($[2,8,6] x) => ($[2,9,8] y) <int64[6] p = {0,0,1,0,1,1}> { y = Pad<mode=\"edge\">(x, p) }"},
    {"expand", "($[2,1,6] x) => ($[2,5,6] y) <int64[3] s = {2,5,6}> { y = Expand(x, s) }"},
    {"tile", "($[2,1,6] x) => ($[4,3,6] y) <int64[3] s = {2,3,1}> { y = Tile(x, s) }"},
    {"gather", "($[9,6] x, int64[4] i) => ($[4,6] y) { y = Gather(x, i) }"},
    {"gather of a grid",
     "($[9,6] x) => ($[2,3] y) <int64[2,3,2] i = {1,0, 1,1, 1,2, 3,0, 3,1, 3,2}> { y = GatherND(x, "
     "i) }"},
    {"blocks",
     "($[1,8,4,6] x) => ($[1,2,8,12] y, $[1,32,2,3] z) { y = DepthToSpace<blocksize=2>(x)\n z = "
     "SpaceToDepth<blocksize=2>(x) }"},
    {"views",
     "($[2,8,6] x) => ($[16,6] y, $[2,48] z, $[2,1,8,6] w) <int64[2] s = {16,6}, int64[1] a = {1}> "
     "{ y = Reshape(x, s)\n z = Flatten(x)\n w = Unsqueeze(x, a) }"},
    {"views that are left out",
     "($[2,1,6] x) => ($[2,6] y) <int64[1] a = {1}> { t = Identity(x)\n u = Dropout(t)\n y = "
     "Squeeze(u, a) }"},
};

/// The text of a model: with the type, and weights that are all one half.
std::string model_text(std::string text, const std::string& type) {
  const std::string half = type == "float16" ? "14336" : type == "bfloat16" ? "16128" : "0.5";
  const size_t end = text.find("> {");
  for (size_t at = end == std::string::npos ? 0 : text.find(") <");
       at < text.find("> {") && end != std::string::npos;) {
    const size_t open = text.find('[', at + 1), close = text.find(']', open);
    if (open > text.find("> {")) break;
    int64_t count = 1;
    for (size_t k = open; k < close; k = std::min(text.find(',', k + 1), close))
      count *= std::stoll(text.substr(k + 1));
    const size_t next = text.find_first_of("=,>", close);
    at = close;
    if (text[next] == '=') continue;
    std::string values;
    for (int64_t k = 0; k < count; ++k) values += (k ? ", " : "") + half;
    text.insert(next, " = {" + values + "}");
  }
  for (size_t at; (at = text.find('$')) != std::string::npos;) text.replace(at, 1, type);
  return "agraph " + text;
}

std::vector<std::string> words(const std::string& text) {
  std::vector<std::string> out;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find(' ', at), text.size());
    out.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

/// "" or what the backend has no kernel for.
std::string problem_of(const Plan& plan, const LoweredLayer& layer, const Launch& l,
                       const Target& target) {
  if (l.kind == Launch::Kind::view) return "";
  if (l.kind == Launch::Kind::interpret) return l.called + " is interpreted";
  if (cuda_generated(l)) {
    const auto o = cuda_operands(plan, layer, l);
    if (!o) return o.error().reason();
    const auto planned = plan_cuda_launch(l, o->operands, "kernel", "", o->aligned, target.cores);
    return planned ? "" : planned.error().reason();
  }
  return l.kind == Launch::Kind::library && library_factory(l.work) ? ""
                                                                    : l.called + " has no kernel";
}

struct Seen {
  std::set<std::string> contracts, operators;
};

void check(const Form& form, const std::string& type, const Knowledge& k,
           const EngineOptions& options, Seen& seen) {
  CAPTURE(form.name);
  CAPTURE(type);
  CAPTURE(k.target.name);
  ImportOptions import;
  import.ops = &k.ops;
  auto imported = import_text(model_text(form.text, type), import);
  REQUIRE_MESSAGE(imported.has_value(), (imported ? "" : render(imported.error())));
  const Graph& g = imported->graph;
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    seen.operators.insert(n.op.text());
    const std::array<NodeId, 1> one{id};
    const std::string contract = contract_of(n, k.ops);
    if (!k.target.contracts.contains(contract)) continue;  // a part of something, or interpreted
    const Accept a = accepts(g, one, id, contract, k.target, k.ops);
    CHECK_MESSAGE(a.truth == Truth::yes, n.op.text(), ": ", a.reason);
  }
  for (bool rules : {true, false}) {
    auto graph = g.clone();
    if (rules) {
      auto fused = fuse(std::move(*graph), k, options);
      REQUIRE_MESSAGE(fused.has_value(), (fused ? "" : render(fused.error())));
      *graph = std::move(fused->graph);
    }
    auto plan = make_plan(std::move(*graph), k.target, k.ops);
    REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : render(plan.error())));
    auto lowered = lower(*plan, k.ops, k.target);
    REQUIRE_MESSAGE(lowered.has_value(), (lowered ? "" : render(lowered.error())));
    for (size_t at = 0; at < plan->layers.size(); ++at) {
      const Layer& layer = plan->layers[at];
      seen.contracts.insert(layer.contract);
      if (layer.contract == "interpret") continue;  // no target takes such a node alone
      for (const Launch& l : lowered->layers[at].launches) {
        const std::string problem = problem_of(*plan, lowered->layers[at], l, k.target);
        CHECK_MESSAGE(problem.empty(), layer.name, " (", layer.contract, "): ", problem);
      }
    }
  }
}

}  // namespace

TEST_CASE("nothing that a GPU target accepts is interpreted") {
  const std::vector<std::string> dirs{rules_dir()};
  int targets = 0;
  for (const std::string& name : target_names(dirs)) {
    if (!name.starts_with("sm_")) continue;
    ++targets;
    Seen seen;
    std::shared_ptr<const Knowledge> knowledge;
    for (std::string_view profile :
         kProfiles) {  // groups of integers are formed in TensorRT's only
      EngineOptions options;
      options.rule_dirs = dirs;
      options.target = name;
      options.profile = profile;
      auto loaded = load_knowledge(options);
      REQUIRE_MESSAGE(loaded.has_value(), (loaded ? "" : render(loaded.error())));
      knowledge = *loaded;
      for (const Form& form : kForms)
        for (const std::string& type : words(form.types))
          if (type != "bfloat16" || knowledge->target.cc >= 8)
            check(form, type, *knowledge, options, seen);
    }
    for (const auto& [contract, facts] : knowledge->target.contracts) {
      CHECK_MESSAGE(seen.contracts.contains(contract), "no model of this test has a layer of ",
                    contract, " on ", name);
      const auto file = knowledge->ops.contracts()->find(contract);
      for (const SingleNode& line : file ? file->stands_for : std::vector<SingleNode>{})
        for (const std::string& op : line.ops)
          CHECK_MESSAGE((seen.operators.contains(op) || op == "ferrule::Reorder"),
                        "no model of this test has a ", op);
    }
  }
  CHECK(targets >= 9);
}

TEST_CASE("what is generated is no library's") {
  for (Work work : {Work::max_pool, Work::global_average_pool, Work::resize})
    CHECK_FALSE(bool(library_factory(work)));
}

}  // namespace ferrule::cuda
