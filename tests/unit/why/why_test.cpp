// Each kind of answer, on models small enough to see it: what a node became, what stood in the way
// and with which values, what would unlock it (tried by fusing again), who was first, and what lies
// between two nodes.
#include "engine/why/why.h"

#include <filesystem>
#include <fstream>

#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;
using why::Considered;
using why::Outcome;
using why::PairAnswer;
using why::Unlock;

namespace {

/// A folder of rules of a test, beside the shipped ones.
class Folder {
 public:
  explicit Folder(const std::map<std::string, std::string>& rules) {
    std::string pattern = (std::filesystem::temp_directory_path() / "ferrule-why-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()));
    path_ = pattern;
    for (const auto& [id, body] : rules)
      std::ofstream(path_ / (id + ".yaml"))
          << "ferrule: 1\nid: " << id << "\ndoc: A rule of a test.\nsource: [test]\n"
          << body;
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

struct Asked {
  std::unique_ptr<Folder> folder;
  why::Observed observed;
  std::unique_ptr<why::Inquiry> inquiry;

  why::NodeAnswer node(std::string_view name, std::string_view rule = "") {
    return must(inquiry->node(name, rule, 8));
  }
  PairAnswer pair(std::string_view a, std::string_view b) {
    return must(inquiry->pair(a, b, "", 8));
  }
  std::string text(std::string_view name) { return must(inquiry->outcome(name)).text; }
};

Asked ask(std::string_view text, const std::map<std::string, std::string>& rules = {},
          const RuleSelection& selection = {}) {
  Asked a;
  EngineOptions o;
  o.rule_dirs = {rules_dir()};
  if (!rules.empty()) {
    a.folder = std::make_unique<Folder>(rules);
    o.rule_dirs.push_back(a.folder->path());
  }
  o.target = "cpu-avx2";
  o.selection = selection;
  o.allow_unproven = {"*"};
  o.cache = "";
  auto knowledge = must(load_knowledge(o));
  ImportOptions import;
  import.own_origins = true;
  import.ops = &ops();
  a.observed = must(why::observe(must(import_text(text, import)), knowledge, o));
  a.inquiry = std::make_unique<why::Inquiry>(a.observed);
  return a;
}  // namespace

const Considered* rule_of(const std::vector<Considered>& all, std::string_view id) {
  for (const Considered& c : all)
    if (c.rule->id == id) return &c;
  return nullptr;
}
bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
const Unlock* unlock_of(const std::vector<Unlock>& all, std::string_view part) {
  for (const Unlock& u : all)
    if (has(u.text, part)) return &u;
  return nullptr;
}

constexpr const char* kWeights =
    "<float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}, float[2,2,1,1] V = {0.5, 1.0, -1.0, 2.0}, float[2] "
    "g = {1.5, 2.0}, "
    "float[2] b = {0.5, 0.0}, float[2] m = {0.1, 0.2}, float[2] v = {1.0, 0.25}, float sc = {0.5}, "
    "uint8 zp = {0}> ";
std::string net(const std::string& signature, const std::string& body) {
  return "g " + signature + " " + kWeights + "{ " + body + " }";
}
const std::string kOne = "(float[1,2,4,4] x) => (float[1,2,4,4] y)";

}  // namespace

TEST_CASE("what became of each node") {
  Asked a = ask(net(kOne,
                    "[conv] c = Conv(x, W) [norm] n = BatchNormalization(c, g, b, m, v) [pass] i = "
                    "Identity(n) [act] r = Relu(i) "
                    "[two] k = Constant<value_float = 2.0>() [half] h = Div(k, sc) [more] y = "
                    "Sin(r) [dead] d = Mul(r, h)"));
  CHECK(has(a.text("conv"), "conv (Conv) is part of layer \"conv + act"));
  CHECK(has(a.text("conv"), "by rule conv_activation"));
  const std::string norm = a.text("norm");
  CHECK_MESSAGE(has(norm, "was folded into conv by rule conv_batchnorm (step "), norm);
  CHECK_MESSAGE(has(norm, "part of layer \"conv + act"), norm);
  CHECK(has(a.text("pass"), "pass (Identity) was removed by rule identity"));
  CHECK(has(a.text("two"), "is a constant"));
  CHECK(has(a.text("dead"), "nothing reads its result"));
  CHECK(must(a.inquiry->outcome("half")).kind != Outcome::Kind::layer);
  CHECK(must(a.inquiry->outcome("r")).name == "act");  // by the value it makes
  CHECK(a.inquiry->names().size() == 8);
  for (const std::string& name : a.inquiry->names()) CHECK_FALSE(a.node(name).outcome.text.empty());
}

TEST_CASE("names that the model does not have") {
  Asked a = ask(net(kOne, "[first_conv] c = Conv(x, W) [act] y = Relu(c)"));
  auto misspelt = a.inquiry->outcome("frist_conv");
  REQUIRE_FALSE(misspelt);
  CHECK(misspelt.error().code == Code::usage);
  CHECK(has(misspelt.error().hint, "first_conv"));
  auto input = a.inquiry->outcome("x");
  REQUIRE_FALSE(input);
  CHECK(has(input.error().message, "input of the model"));
  auto rule = a.inquiry->node("act", "conv_actvation", 0);
  REQUIRE_FALSE(rule);
  CHECK(rule.error().code == Code::rule_unknown);
  CHECK(has(rule.error().hint, "conv_activation"));
  CHECK_FALSE(a.inquiry->pair("act", "act", "", 0));
}

TEST_CASE("a guarantee: the value is read twice, or is a graph output") {
  Asked two = ask(net("(float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,2,2] q)",
                      "[conv] c = Conv(x, W) [act] y = Relu(c) [pool] q = "
                      "MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)"));
  PairAnswer p = two.pair("conv", "act");
  CHECK(p.kind == PairAnswer::Kind::adjacent);
  const Considered* c = rule_of(p.considered, "conv_activation");
  REQUIRE(c);
  CHECK(c->state == Considered::State::refused);
  CHECK(c->rejection.id == "D1");
  CHECK_MESSAGE(has(c->rejection.why, "pool"), c->rejection.why);
  REQUIRE(c->lines.size() == 2);
  CHECK(c->lines[0].state == why::SeenLine::State::ok);
  CHECK(c->lines[0].nodes == std::vector<std::string>{"conv"});
  CHECK(c->lines[1].state == why::SeenLine::State::failed);
  REQUIRE_FALSE(c->unlocks.empty());
  CHECK(c->unlocks[0].kind == Unlock::Kind::edit);
  CHECK(c->unlocks[0].tried);
  CHECK(c->unlocks[0].gives == "conv + act");

  // An ordinary convolution in front: without the other reader it is no depthwise one either.
  Asked vain = ask(net("(float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,2,2] q)",
                       "[conv] c = Conv(x, W) [next] y = Conv(c, W) [pool] q = "
                       "MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)"));
  p = vain.pair("conv", "next");
  c = rule_of(p.considered, "depthwise_pointwise");
  REQUIRE(c);
  CHECK(c->rejection.id == "D1");
  REQUIRE_FALSE(c->unlocks.empty());
  CHECK(c->unlocks[0].kind == Unlock::Kind::impossible);

  Asked output = ask(net("(float[1,2,4,4] x) => (float[1,2,4,4] y, float[1,2,4,4] c)",
                         "[conv] c = Conv(x, W) [act] y = Relu(c)"));
  auto answer = output.node("act");
  c = rule_of(answer.considered, "conv_activation");
  REQUIRE(c);
  CHECK(c->rejection.id == "D2");
}

TEST_CASE("a condition that is false: got and wanted, and every other condition's verdict") {
  Asked a = ask(net("(float[1,2,4,4] x, float[1,2,1,1] r) => (float[1,2,4,4] y)",
                    "[conv] c = Conv(x, W) [sum] y = Add(c, r)"));
  auto answer = a.node("sum");
  const Considered* c = rule_of(answer.considered, "conv_residual");
  REQUIRE(c);
  CHECK(c->rejection.id == "operand_shape");
  CHECK(c->rejection.cls == ConditionClass::kernel);
  REQUIRE(c->conditions.size() == 1);
  CHECK(c->conditions[0].truth == Truth::no);
  CHECK_MESSAGE(has(c->conditions[0].text, "[1, 2, 1, 1]"), c->conditions[0].text);
  CHECK_MESSAGE(has(c->conditions[0].text, "[1, 2, 4, 4]"), c->conditions[0].text);
  CHECK(answer.considered[0].rejection.stage !=
        Rejection::Stage::structure);  // structure failures come last
}

TEST_CASE("unknown is not no: the sizes that are missing are named") {
  Asked a = ask(net("(float[1,2,H,W] x, float[1,2,P,Q] r) => (float[1,2,H,W] y)",
                    "[conv] c = Conv(x, W) [sum] y = Add(c, r)"));
  auto answer = a.node("sum");
  const Considered* c = rule_of(answer.considered, "conv_residual");
  REQUIRE(c);
  CHECK(c->rejection.truth == Truth::unknown);
  REQUIRE_FALSE(c->unlocks.empty());
  CHECK(c->unlocks[0].kind == Unlock::Kind::fact);
  CHECK(has(c->unlocks[0].text, "--shapes x:1x2x224x224"));
  CHECK(has(c->unlocks[0].text, "--shapes r:1x2x224x224"));
}

TEST_CASE("a rule that is off: the flag is named, and tried") {
  const std::string text = net(kOne, "[conv] c = Conv(x, W) [act] y = Relu(c)");
  Asked a = ask(text, {}, {{"conv_activation"}, {}});
  auto answer = a.node("act");
  REQUIRE_FALSE(answer.considered.empty());
  const Considered& c = answer.considered[0];
  CHECK(c.rule->id == "conv_activation");
  CHECK(c.state == Considered::State::off);
  REQUIRE_FALSE(c.unlocks.empty());
  CHECK(c.unlocks[0].text == "--enable conv_activation");
  CHECK(has(c.unlocks[0].because, "--disable conv_activation"));
  CHECK(c.unlocks[0].tried);
  CHECK(c.unlocks[0].gives == "conv + act");
  PairAnswer p = a.pair("conv", "act");
  CHECK(unlock_of(p.unlocks, "--enable conv_activation"));
}

namespace {

/// A convolution and the MaxPool behind it, with one more condition.
std::map<std::string, std::string> pool_rule(const std::string& condition,
                                             const std::string& more = "") {
  return {{"test_pool", "kind: window\nphase: windows\nbefore: [conv_pool]\ncontract: conv_pool\n" +
                            more +
                            "match: |\n  [conv] t = {Conv|group.conv}<...>(x, rest...)\n  [pool] y "
                            "= MaxPool<...>(t)\nwhere:\n  - " +
                            condition + "\nname: \"{conv} + {pool}\"\n"}};
}
const std::string kPool =
    net("(float[1,2,400,400] x) => (float[1,2,200,200] y)",
        "[conv] c = Conv(x, W) [pool] y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(c)");

}  // namespace

TEST_CASE("a profit condition: --ignore-profit, and what it gives") {
  Asked a =
      ask(kPool,
          pool_rule(
              R"({id: small, profit: "bytes(t) > 4000000", why: "{bytes(t)} bytes are too few"})"),
          {{"conv_pool"}, {}});
  auto answer = a.node("pool");
  const Considered* c = rule_of(answer.considered, "test_pool");
  REQUIRE(c);
  CHECK(c == &answer.considered[0]);
  CHECK_MESSAGE(has(c->rejection.why, "1280000 bytes are too few"), c->rejection.why);
  CHECK(c->matched_nodes == 2);
  REQUIRE_FALSE(c->unlocks.empty());
  CHECK(c->unlocks[0].text == "--ignore-profit test_pool.small");
  CHECK(c->unlocks[0].gives == "conv + pool");
}

TEST_CASE("a kernel condition: another target has it") {
  Asked a =
      ask(kPool, pool_rule(R"({id: cc, kernel: "cc >= 8.9", why: "compute capability {cc}"})"),
          {{"conv_pool"}, {}});
  auto answer = a.pair("conv", "pool");
  const Considered* c = rule_of(answer.considered, "test_pool");
  REQUIRE(c);
  CHECK(c->rejection.cls == ConditionClass::kernel);
  REQUIRE_FALSE(c->unlocks.empty());
  CHECK_MESSAGE(has(c->unlocks[0].text, "--target sm_"), c->unlocks[0].text);
  CHECK(c->unlocks[0].gives == "conv + pool");
}

namespace {

/// The shipped rules that move quantization or take it into groups: off, so that a pair stays where
/// the model has it.
std::vector<std::string> quantization(const std::string& more) {
  std::vector<std::string> out{more};
  for (const auto& entry : std::filesystem::directory_iterator(rules_dir() + "/quantization"))
    out.push_back(entry.path().stem().string());
  return out;
}

}  // namespace

TEST_CASE("nodes between: the pair that blocks, and the placements that allow it, tried") {
  Asked a = ask(net("(float[1,2,400,400] x) => (float[1,2,200,200] y)",
                    "[conv] c = Conv(x, W) [quant] q = QuantizeLinear(c, sc, zp) [dequant] d = "
                    "DequantizeLinear(q, sc, zp) "
                    "[pool] y = MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)"),
                pool_rule(R"({id: any, kernel: "rank(t) == 4", why: "rank {rank(t)}"})"),
                {quantization("conv_pool"), {}});
  PairAnswer p = a.pair("conv", "pool");
  CHECK(p.kind == PairAnswer::Kind::between);
  CHECK(p.blockers == std::vector<std::string>{"quant", "dequant"});
  CHECK(has(p.text, "quant and dequant stand between conv and pool"));
  const Unlock* behind =
      unlock_of(p.unlocks, "--enable maxpool_first");  // the rule that moves them
  REQUIRE(behind);
  CHECK(behind->gives == "conv + pool");
}

TEST_CASE("another rule that is off clears the way") {
  // The pool's pattern never sees the Abs once the other rule has moved it; that one is off.
  auto rules = pool_rule(R"({id: any, kernel: "rank(t) == 4", why: "rank {rank(t)}"})");
  rules["test_abs"] =
      "kind: rewrite\nphase: canonicalize\nnumerics: exact\nenabled: false\nonce: true\nmatch: |\n "
      " t = Abs(x)\n  y = [pool] MaxPool<...>(t)\n"
      "rewrite: |\n  y = pool<...pool>(x)\n";
  Asked a = ask(net("(float[1,2,4,4] x) => (float[1,2,2,2] y)",
                    "[conv] c = Conv(x, W) [other] n = Sin(c) [size] d = Abs(n) [pool] y = "
                    "MaxPool<kernel_shape=[2,2], strides=[2,2]>(d)"),
                rules);
  auto answer = a.node("pool");
  const Considered* off = rule_of(answer.considered, "test_abs");
  REQUIRE(off);
  CHECK(off->state == Considered::State::off);
  CHECK(off->unlocks[0].text == "--enable test_abs");
}

TEST_CASE("of two convolutions in front of an Add the later took it") {
  Asked a = ask(net(kOne,
                    "[Conv_0] s = Conv(x, V) [Conv_3] c = Conv(x, W) [Add_4] t = Add(c, s) "
                    "[Relu_5] y = Relu(t)"));
  PairAnswer p = a.pair("Conv_0", "Conv_3");
  CHECK(p.kind == PairAnswer::Kind::common_reader);
  CHECK_MESSAGE(has(p.text, "Conv_3 has absorbed the Add (Add_4) by rule conv_residual (step 1)"),
                p.text);
  CHECK(has(p.text, "both read x"));
  REQUIRE_FALSE(p.considered.empty());
  CHECK(p.considered[0].state == Considered::State::lost);
  CHECK(has(p.considered[0].lost_to, "Fusing Conv_3 with Add_4"));
  PairAnswer own = a.pair("Conv_3", "Relu_5");
  CHECK(own.kind == PairAnswer::Kind::same);
  CHECK_MESSAGE(has(own.text, "one layer already: \"Conv_3 + Add_4 + Relu_5\""), own.text);
  CHECK(has(own.text, "conv_activation"));
}

TEST_CASE("siblings, strangers, and nodes that are gone") {
  Asked a = ask(net(
      "(float[1,2,4,4] x, float[1,2,4,4] u) => (float[1,2,4,4] y, float[1,2,4,4] z, float[1,2,4,4] "
      "w)",
      "[one] y = Conv(x, W) [two] z = Conv(x, V) [three] i = Identity(u) [four] w = Conv(i, V)"));
  PairAnswer siblings = a.pair("one", "two");
  CHECK(siblings.kind == PairAnswer::Kind::siblings);
  const Considered* merge = rule_of(siblings.considered, "conv_siblings");
  REQUIRE(merge);  // they are graph outputs: what is joined would have to be copied apart
  CHECK(merge->rejection.cls == ConditionClass::profit);
  const Unlock* ignore = unlock_of(merge->unlocks, "--ignore-profit conv_siblings.");
  REQUIRE(ignore);
  CHECK_MESSAGE(has(ignore->gives, "one || two"), ignore->gives);
  CHECK(a.pair("one", "four").kind == PairAnswer::Kind::unrelated);
  PairAnswer gone = a.pair("three", "four");
  CHECK(gone.kind == PairAnswer::Kind::gone);
  CHECK(has(gone.text, "was removed by rule identity"));
}

TEST_CASE("history: it would have matched before another rule rewrote what it wants") {
  Asked a = ask(net(kOne, "[conv] c = Conv(x, W) [norm] y = BatchNormalization(c, g, b, m, v)"),
                {{"test_norm",
                  "kind: rewrite\nphase: rows\nnumerics: exact\nonce: true\nmatch: |\n  y = "
                  "BatchNormalization<...>(Conv<...>(x, rest...), more...)\n"
                  "rewrite: |\n  y = Relu(x)\n"}});
  auto answer = a.node("norm", "test_norm");
  REQUIRE(answer.considered.size() <= 1);
  if (!answer.considered.empty())
    CHECK_MESSAGE(has(answer.considered[0].history, "before step 1 (conv_batchnorm)"),
                  answer.considered[0].history);
  CHECK(has(answer.outcome.text, "conv_batchnorm"));
}

TEST_CASE("regions say which edge stands in the way") {
  Asked a =
      ask("g (float[2,3] x, float[3,4] w) => (float[2,4] y) { [a] t = Sin(x) [b] u = MatMul(t, w) "
          "[c] y = Cos(u) }");
  CHECK_FALSE(rule_of(a.node("a").considered, "pointwise"));  // it is not for products
  auto answer = a.node("a", "pointwise");
  const Considered* c = rule_of(answer.considered, "pointwise");
  REQUIRE(c);
  CHECK_MESSAGE(
      has(c->rejection.why, "with \"b\" (MatMul): \"b\" (MatMul) is no pointwise operator"),
      c->rejection.why);
  Asked shapes = ask(
      "g (float[4] x, float[2,3,4] z) => (float[2,3,4] y) { [a] t = Sin(x) [b] y = Add(t, z) }");
  PairAnswer p = shapes.pair("a", "b");
  c = rule_of(p.considered, "pointwise");
  REQUIRE(c);
  CHECK_MESSAGE(has(c->rejection.why, "f32[4]"), c->rejection.why);
  CHECK_MESSAGE(has(c->rejection.why, "f32[2,3,4]"), c->rejection.why);
}

TEST_CASE("missed: the most bytes first, each edge with its reason") {
  Asked a = ask(net("(float[1,2,4,4] x) => (float[1,2,2,2] y, float[1,2,4,4] q)",
                    "[conv] c = Conv(x, W) [act] q = Sin(c) [pool] y = MaxPool<kernel_shape=[2,2], "
                    "strides=[2,2]>(q)"));
  auto edges = a.inquiry->missed(10, 0).edges;
  REQUIRE(edges.size() >= 1);
  for (size_t k = 1; k < edges.size(); ++k) CHECK(edges[k - 1].bytes >= edges[k].bytes);
  CHECK(edges[0].bytes == 4 * 32);  // once
  CHECK_FALSE(edges[0].reason.empty());
  CHECK(a.inquiry->missed(1, 0).edges.size() == 1);
}

TEST_CASE("a node of a function and of a nested graph") {
  Asked a = ask(R"(<ir_version: 10, opset_import: ["" : 18, "local" : 1]>
    g (float[2,3] x, bool p) => (float[2,3] y, float[2,3] z) {
      [call] t = local.twice(x)
      [choose] y = If(p) <then_branch = a () => (float[2,3] u) { [inner] u = Relu(t) }, else_branch = b () => (float[2,3] v) { v = Sin(t) }>
      [last] z = Cos(t)
    }
    <domain: "local", opset_import: ["" : 18]>
    twice (a) => (b) { [one] m = Abs(a) [two] b = Exp(m) })");
  CHECK(has(a.text("call/one"), "call/one (Abs)"));
  CHECK(has(a.text("inner"), "nested graph of choose"));
  auto call = a.inquiry->outcome("call");
  REQUIRE_FALSE(call);
  CHECK(has(call.error().message, "call/one, call/two"));
}
