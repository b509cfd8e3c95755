// Override files and lists of instances: what they read, what they refuse, and what fuses with
// them.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "engine/pipeline.h"
#include "engine/rule/expr_ast.h"
#include "engine/rule/text.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;
namespace fs = std::filesystem;

namespace {

/// Files of one test.
struct Folder {
  fs::path path =
      fs::temp_directory_path() / fmt::format("ferrule_control_{}_{}", ::getpid(), count()++);
  Folder() { fs::create_directories(path); }
  ~Folder() { fs::remove_all(path); }
  std::string file(const std::string& name, const std::string& text) const {
    std::ofstream(path / name) << text;
    return (path / name).string();
  }
  static int& count() {
    static int n = 0;
    return n;
  }
};

constexpr const char* kOverrideHead = "ferrule: 1\noverride:\n";

struct Asked {
  EngineOptions options;
  Folder folder;
  Asked(const std::string& entries = "", const std::string& target = "cpu-avx2") {
    options.rule_dirs = {rules_dir()};
    options.target = target;
    options.near_misses = true;
    options.cache = (folder.path / "cache").string();
    if (!entries.empty())
      options.overrides = {folder.file("override.yaml", kOverrideHead + entries)};
  }
  Fused fuse(const std::string& text) {
    knowledge = must(load_knowledge(options));
    return must(ferrule::fuse(graph(text), *knowledge, options));
  }
  std::string error() const {
    auto k = load_knowledge(options);
    return k ? "" : render(k.error());
  }
  std::shared_ptr<const Knowledge> knowledge;
};

/// Two convolutions with an activation each, and pointwise operators behind them.
const std::string kModel =
    "g (float[1,2,4,4] x) => (float[1,2,4,4] y) <float[2,2,1,1] W = {1.0, -2.0, 3.0, 0.5}> {\n"
    "  [\"/layer1/conv\"] a = Conv(x, W)\n  [\"/layer1/relu\"] b = Relu(a)\n"
    "  [\"/layer2/conv\"] c = Conv(b, W)\n  [\"/layer2/relu\"] d = Relu(c)\n"
    "  [sin] s = Sin(d)\n  [cos] t = Cos(s)\n  [exp] u = Exp(t)\n  [abs] y = Abs(u)\n}";
constexpr const char* kAll =
    "group.conv(Conv Relu) group.conv(Conv Relu) group.pointwise(Sin Cos Exp Abs)";

std::vector<std::string> why(const Fused& f, std::string_view rule, std::string_view id) {
  std::vector<std::string> out;
  for (const Rejection& r : f.near_misses)
    if (r.rule->id == rule && r.id == id) out.push_back(r.why);
  return out;
}

bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE(
    "override: a rule is off for the nodes of a glob, and says so where it would have fired") {
  CHECK(ops_of(Asked().fuse(kModel).graph) == kAll);
  Asked a(
      "  - rule: conv_activation\n    off: {nodes: [\"/layer1/*\"], reason: \"accuracy, ticket "
      "123\"}\n");
  Fused f = a.fuse(kModel);
  CHECK(ops_of(f.graph) == "Conv Relu group.conv(Conv Relu) group.pointwise(Sin Cos Exp Abs)");
  REQUIRE(why(f, "conv_activation", "off").size() == 1);
  CHECK(has(why(f, "conv_activation", "off")[0],
            "switched off for /layer1/*: accuracy, ticket 123 ("));
  CHECK(has(why(f, "conv_activation", "off")[0], "override.yaml:3)"));
  CHECK(f.warnings.empty());
  auto notes = override_notes(a.knowledge->rules, a.knowledge->overrides, a.knowledge->target);
  REQUIRE(notes.size() == 1);
  CHECK(notes[0].condition == kOff);
  CHECK("switched " + notes[0].text.substr(16) == why(f, "conv_activation", "off")[0]);
}

TEST_CASE("override: the tail and the region go on without a node that is out of bounds") {
  Fused tail = Asked("  - {rule: conv_activation, nodes: /layer1/relu, off: true}\n").fuse(kModel);
  CHECK(ops_of(tail.graph) == "Conv Relu group.conv(Conv Relu) group.pointwise(Sin Cos Exp Abs)");
  Fused region = Asked("  - {rule: \"pointwise*\", nodes: [exp], off: true}\n").fuse(kModel);
  CHECK(ops_of(region.graph) ==
        "group.conv(Conv Relu) group.conv(Conv Relu) group.pointwise(Sin Cos) Exp Abs");
}

TEST_CASE("override: a contract's name means all rules that make groups of it") {
  CHECK(ops_of(Asked("  - {contract: conv, off: true}\n").fuse(kModel).graph) ==
        "Conv Relu Conv group.pointwise(Relu Sin Cos Exp Abs)");
  Asked a("  - {contract: conv, where+: [{id: first, when: \"name(root) ~ '*1*'\"}]}\n");
  CHECK(has(a.error(), "root is not bound"));
  Fused f = Asked("  - {contract: \"point*\", set: {params.max_ops: 2}}\n").fuse(kModel);
  CHECK(ops_of(f.graph) ==
        "group.conv(Conv Relu) group.conv(Conv Relu) group.pointwise(Sin Cos) "
        "group.pointwise(Exp Abs)");
  CHECK(has(Asked("  - {contract: cunv, off: true}\n").error(),
            "override.yaml:3:16: no rule makes groups of cunv"));
  CHECK(has(Asked("  - {contract: conv, rule: conv_activation, off: true}\n").error(),
            "of rules or of a contract, not both"));
}

TEST_CASE(
    "override: the last entry that covers a match decides, the command line before all of them") {
  const std::string off = "  - {rule: \"conv_*\", off: true}\n";
  CHECK(ops_of(Asked(off).fuse(kModel).graph) ==
        "Conv Relu Conv group.pointwise(Relu Sin Cos Exp Abs)");
  Asked some(off + "  - {rule: conv_activation, on: {nodes: \"/layer2/*\"}}\n");
  Fused f = some.fuse(kModel);
  CHECK(ops_of(f.graph) == "Conv Relu group.conv(Conv Relu) group.pointwise(Sin Cos Exp Abs)");
  CHECK(has(why(f, "conv_activation", "off").at(0), "on for /layer2/* only"));
  CHECK(ops_of(Asked("  - {rule: conv_activation, off: {nodes: \"/layer*\"}}\n  - {rule: "
                     "conv_activation, on: {nodes: \"/layer2/*\"}}\n")
                   .fuse(kModel)
                   .graph) == "Conv Relu group.conv(Conv Relu) group.pointwise(Sin Cos Exp Abs)");
  Asked enabled(off);
  enabled.options.selection.enable = {"conv_activation"};
  CHECK(ops_of(enabled.fuse(kModel).graph) == kAll);
  Asked disabled("  - {rule: conv_activation, on: true}\n");
  disabled.options.selection.disable = {"*"};
  CHECK(ops_of(disabled.fuse(kModel).graph) == "Conv Relu Conv Relu Sin Cos Exp Abs");
  Asked whole(off);
  (void)whole.fuse(kModel);
  CHECK(has(whole.knowledge->rules.find("conv_activation")->off, "switched off ("));
}

TEST_CASE("override: device, target and element type") {
  CHECK(ops_of(Asked("  - {rule: conv_activation, device: gpu, off: true}\n").fuse(kModel).graph) ==
        kAll);
  CHECK(ops_of(Asked("  - {rule: conv_activation, device: [gpu, \"cpu-avx?\"], off: true}\n")
                   .fuse(kModel)
                   .graph) != kAll);
  CHECK(ops_of(Asked("  - {rule: conv_activation, dtype: f16, off: true}\n").fuse(kModel).graph) ==
        kAll);
  CHECK(ops_of(Asked("  - {rule: conv_activation, dtype: [f16, f32], off: true}\n")
                   .fuse(kModel)
                   .graph) != kAll);
  // A setting of another device's is not even looked at.
  CHECK(ops_of(Asked("  - {rule: pointwise, device: gpu, set: {params.max_ops: 2}}\n")
                   .fuse(kModel)
                   .graph) == kAll);
}

TEST_CASE("override: limits are parameters") {
  Fused f = Asked("  - {rule: \"pointwise*\", set: {params.max_ops: 2}}\n").fuse(kModel);
  CHECK(ops_of(f.graph) ==
        "group.conv(Conv Relu) group.conv(Conv Relu) group.pointwise(Sin Cos) group.pointwise(Exp "
        "Abs)");
}

TEST_CASE("override: a limit and the parameter that it is are one thing") {
  auto asked = [](const std::string& entries) {
    Asked a(entries);
    a.options.rule_dirs.push_back(a.folder.path.string());
    a.folder.file("own.yaml",
                  "ferrule: 2\nid: own\ndoc: d\nkind: region\nphase: pointwise\ncontract: "
                  "pointwise\nparams: {most: 4}\nregion: {of: \"@pointwise\", max_ops: most}\n");
    fs::remove(a.folder.path / "override.yaml");
    const std::string file = (a.folder.path / "entries.txt").string();
    std::ofstream(file) << kOverrideHead + entries;
    a.options.overrides = {file};
    auto k = load_knowledge(a.options);
    return k ? std::to_string((*k)->rules.find("own")->region.max_ops) : render(k.error());
  };
  CHECK(asked("  - {rule: own, set: {params.most: 8}}\n") == "8");
  CHECK(asked("  - {rule: own, set: {params.max_ops: 1}}\n") == "1");
  for (const char* both :
       {"params.most: 8, params.max_ops: 1", "params.max_ops: 1, params.most: 8"}) {
    const std::string said = asked(fmt::format("  - {{rule: own, set: {{{}}}}}\n", both));
    CHECK_MESSAGE(has(said, "max_ops of rule own is its parameter most, which the entry sets, too"),
                  said);
  }
  // Entries have an order: the last one holds.
  CHECK(
      asked(
          "  - {rule: own, set: {params.most: 8}}\n  - {rule: own, set: {params.max_ops: 1}}\n") ==
      "1");
}

TEST_CASE("override: an added condition holds rules back, and is named") {
  Asked a(
      "  - rule: conv_activation\n    where+:\n      - {id: small, when: \"numel(t) > 1000\", why: "
      "\"only {numel(t)} elements\"}\n");
  Fused f = a.fuse(kModel);
  CHECK(ops_of(f.graph) == "Conv Relu Conv group.pointwise(Relu Sin Cos Exp Abs)");
  auto said = why(f, "conv_activation", "small");
  REQUIRE(said.size() >= 1);
  CHECK(has(said[0], "only 32 elements ("));
  CHECK(has(said[0], "override.yaml:3)"));
  a.options.ignore_profit = {"conv_activation.small"};
  CHECK(ops_of(a.fuse(kModel).graph) == kAll);
  Fused one = Asked(
                  "  - rule: conv_activation\n    nodes: /layer2/conv\n    where+: [{id: small, "
                  "when: \"numel(t) > 1000\"}]\n")
                  .fuse(kModel);
  CHECK(ops_of(one.graph) == "group.conv(Conv Relu) Conv group.pointwise(Relu Sin Cos Exp Abs)");
}

TEST_CASE("override: added conditions do not make a proof stale, switched off cannot be ignored") {
  Asked a(
      "  - rule: conv_batchnorm\n    where+: [{id: never, when: \"1 > 2\"}]\n  - {rule: "
      "conv_scale, nodes: \"*\", off: true}\n");
  a.options.ignore_profit = {"*"};
  auto k = must(load_knowledge(a.options));
  CHECK_FALSE(fs::exists(a.folder.path / "cache"));  // nothing had to be proved again
  CHECK(k->rules.find("conv_batchnorm")->where.back().from.ends_with("override.yaml:3"));
  CHECK(as_proved(k->rules).find("conv_batchnorm")->where.size() + 1 ==
        k->rules.find("conv_batchnorm")->where.size());
}

TEST_CASE("override: what concerns nothing is said") {
  Asked a(
      "  - {rule: \"gleu_*\", off: true}\n  - {rule: conv_activation, nodes: [\"/layer9/*\", "
      "\"/layer1/*\"], off: true}\n");
  a.options.selection.disable = {"nothing_*"};
  Fused f = a.fuse(kModel);
  REQUIRE(f.warnings.size() == 3);
  CHECK(has(f.warnings[0], "--disable nothing_*: no rule matches"));
  CHECK(has(f.warnings[1], "override.yaml:3: no rule matches gleu_*"));
  CHECK(has(f.warnings[2], "override.yaml:4: no node of the model matches /layer9/*"));
}

TEST_CASE("--allow-unproven of what is not proved is said") {
  Asked a;
  a.options.allow_unproven = {"pointwise", "nothing_*", "conv_batchnorm"};
  const auto k = must(load_knowledge(a.options));
  REQUIRE(k->warnings.size() == 2);
  CHECK(k->warnings[0] ==
        "--allow-unproven pointwise: only rewrites, merges and rules with roles are "
        "proved, all others are used anyway");
  CHECK(k->warnings[1] == "--allow-unproven nothing_*: no rule matches");
}

TEST_CASE("override: everything that is wrong with a file, at once, each with its place") {
  const std::string all =
      Asked(
          "  - {rule: conv_activaton, off: true}\n"
          "  - {rule: conv_activation, set: {params.max_opss: 3}}\n"
          "  - {rule: conv_activation, where+: [{id: a, when: \"rank(q) > 1\"}]}\n"
          "  - {rule: conv_activation, set: {params.max_ops: lots}}\n"
          "  - {rule: conv_activation, nodes: x, set: {params.max_ops: 3}}\n")
          .error();
  CHECK(has(all, "override.yaml:3:12: there is no rule conv_activaton"));
  CHECK(has(all, "did you mean \"conv_activation\"?"));
  CHECK(has(all, "override.yaml:4:35: rule conv_activation has no parameter max_opss"));
  CHECK(has(all, "did you mean \"max_ops\"?"));
  CHECK(has(all, "override.yaml:5"));
  CHECK(has(all, "q is not bound by the pattern (rule conv_activation)"));
  CHECK(has(all, "params.max_ops of conv_activation is lots, expected 0 to"));
  CHECK(has(all, "limits how groups of conv_activation grow"));
  CHECK(has(all, "^"));

  auto refused = [](const std::string& entries, std::string_view message) {
    const std::string text = Asked(entries).error();
    INFO(text);
    CHECK(has(text, message));
    CHECK(has(text, "override.yaml:3"));
  };
  refused("  - {off: true}\n", "rule");
  refused("  - {rule: pointwise}\n", "an entry that changes nothing");
  refused("  - {rule: pointwise, of: true}\n", "did you mean");
  refused("  - {rule: pointwise, off: false}\n", "write on: true");
  refused("  - {rule: pointwise, off: true, on: true}\n", "on or off, not both");
  refused("  - {rule: pointwise, off: {node: x}}\n", "did you mean");
  refused("  - {rule: pointwise, nodes: a, off: {nodes: b}}\n", "given twice");
  refused("  - {rule: pointwise, nodes: [], off: true}\n", "concern nothing");
  refused("  - {rule: pointwise, dtype: float, off: true}\n", "no element type");
  refused("  - {rule: pointwise, set: {max_ops: 3}}\n", "write params.max_ops");
  refused("  - {rule: pointwise, set: {params.min_ops: 3, params.max_ops: 2}}\n",
          "pointwise would have params.min_ops 3 and params.max_ops 2: it could never fire");
  refused("  - {rule: pointwise, set: {params.max_inputs: 0}}\n", "every region reads a tensor");
  refused("  - {rule: row_siblings, set: {params.min: 1}}\n", "siblings are 2 or more");
  refused("  - {rule: row_siblings, set: {params.max: 1}}\n", "siblings are 2 or more");
  refused("  - {rule: pointwise, where+: [{id: a, why: b}]}\n", "without an expression");
  refused("  - {rule: pointwise, where+: [{id: a, sound: \"true\"}]}\n",
          "only rewrites, merges and rules with roles");
  refused("  - {rule: pointwise, where+: [{id: a, when: \"rank(\"}]}\n", "^");
  refused("  - {rule: pointwise, where+: [{id: off, when: \"true\"}]}\n", "another id");
}

TEST_CASE("parameters of rules: in conditions, names and limits; set as a whole and by scope") {
  const std::string rule =
      "ferrule: 1\nid: sines\nkind: region\ndoc: Sines.\nsource: [test]\nphase: pointwise\n"
      "params: {least: 1, most: 3}\ncontract: pointwise\nname: \"{region}\"\n"
      "region: {of: \"{Sin|Cos|Exp|Abs}\", max_ops: most}\n"
      "where:\n  - {id: enough, profit: \"count(n in region: true) > least\", why: \"fewer than "
      "{least + 1}\"}\n";
  auto with = [&](const std::string& entries) {
    Asked a(entries);
    fs::create_directories(a.folder.path / "rules");
    (void)a.folder.file("rules/sines.yaml", rule);
    a.options.rule_dirs.push_back((a.folder.path / "rules").string());
    a.options.selection.disable = {"pointwise*", "rows*"};
    return ops_of(a.fuse(kModel).graph);
  };
  const std::string convs = "group.conv(Conv Relu) group.conv(Conv Relu) ";
  CHECK(with("") == convs + "group.pointwise(Sin Cos Exp) Abs");
  CHECK(with("  - {rule: sines, set: {params.most: 2}}\n") ==
        convs + "group.pointwise(Sin Cos) group.pointwise(Exp Abs)");
  CHECK(with("  - {rule: sines, set: {params.least: 3, params.most: 4}}\n") ==
        convs + "group.pointwise(Sin Cos Exp Abs)");
  CHECK(with("  - {rule: sines, nodes: cos, set: {params.least: 5}}\n") ==
        convs + "Sin Cos Exp Abs");
}

namespace {

/// The numbers in an expression, those of the `let:` that it names with them.
void numbers(const Expr& e, const Rule& r, std::vector<double>& out) {
  if (e.kind == Expr::Kind::literal) {
    if (auto i = std::get_if<int64_t>(&e.literal.v)) out.push_back(static_cast<double>(*i));
    if (auto d = std::get_if<double>(&e.literal.v)) out.push_back(*d);
  }
  if (e.kind == Expr::Kind::name)
    for (const auto& [name, expr] : r.let)
      if (name == e.name) numbers(*expr, r, out);
  for (const ExprPtr& a : e.args) numbers(*a, r, out);
}

bool grows(const Rule& r) { return !r.region.ops.empty() || !r.region.classes.empty(); }

/// A threshold of a shipped rule, and a value of it with which the rule does not fire any more:
/// in its own first case, if no model is given.
struct Threshold {
  std::string rules, name, value, target = "cpu-avx2", model = {};
};
const std::vector<Threshold> kThresholds = {
    {"conv_siblings", "most_channels", "1"},
    {"conv_siblings", "times_smaller", "9", "cpu-avx2",
     "g (float[1,8,4,4] x) => (float[1,1,4,4] y, float[1,1,4,4] z) <float[1,8,1,1] W = {1, 2, 3, "
     "4, 5, 6, 7, 8}, float[1,8,1,1] V = {8, 7, 6, 5, 4, 3, 2, 1}> {\n"
     "  y = Conv(x, W)\n  z = Conv(x, V)\n}"},
    {"pointwise_siblings", "least_bytes", "100000"},
    {"channel_gate", "most_weights", "1"},
    {"channel_gate_dense", "most_weights", "1"},
    {"conv_pool", "times_l2", "1000"},
    {"depthwise_pointwise", "most_filters", "2"},
    {"block_product", "most_rows", "1"},
    {"dequantize_product", "most_rows", "9", "cpu-avx2",
     "g (float[9,4] x) => (float[9,2] y) <uint8[4,2] q = {1, 2, 3, 4, 5, 6, 7, 8}, float[2,2] s = "
     "{0.5, -0.25, 1.0, 2.0}> {\n  w = DequantizeLinear<axis=0, block_size=2>(q, s)\n  y = "
     "MatMul(x, w)\n}"},
    {"bfloat_*", "least_cc", "99.5", "sm_90",
     "g (float[2,3] x, float[2,4] k) => (float[2,7] z) {\n"
     "  y = Concat<axis=1>(x, k)\n  z = Neg(y)\n}"},
};

}  // namespace

TEST_CASE("shipped rules hold no threshold that is not a parameter") {
  // 0 and 1 say none and one, -1 the last axis or the other sign.
  const std::map<std::string, double> facts = {
      {"matmul_transposed.batch", 2},    // the axes of a matrix
      {"reduce_to_pool.image", 3},       // batch, channels and one axis of an image
      {"reduce_to_pool_flat.image", 3},  // the same
  };
  std::set<std::string> seen;
  const auto shipped = must(load_knowledge(Asked().options));
  for (const auto& r : shipped->rules.rules) {
    std::vector<Condition> all = r->where;
    all.insert(all.end(), r->region.where.begin(), r->region.where.end());
    for (const Condition& c : all) {
      if (c.cls != ConditionClass::profit) continue;
      const std::string id = r->id + "." + c.id;
      std::vector<double> found;
      numbers(*c.expr, *r, found);
      for (double n : found)
        if (facts.contains(id) && facts.at(id) == n)
          seen.insert(id);
        else
          CHECK_MESSAGE((n == 0 || std::abs(n) == 1),
                        id << " holds " << n << ": make it one of params:");
    }
    for (const Param& p : r->parameters)
      CHECK_MESSAGE(std::ranges::any_of(kThresholds,
                                        [&](const Threshold& t) {
                                          return glob_match(t.rules, r->id) && t.name == p.name;
                                        }),
                    r->id << ": no test sets params." << p.name);
  }
  CHECK(seen.size() == facts.size());
}

TEST_CASE("override: each limit of a shipped rule is set by its key") {
  std::string entries;
  const auto shipped = must(load_knowledge(Asked().options));
  for (const auto& r : shipped->rules.rules) {
    if (grows(*r))
      entries += fmt::format(
          "  - {{rule: {}, set: {{params.max_ops: 7, params.max_inputs: 5, params.min_ops: 3}}}}\n",
          r->id);
    if (r->kind == RuleKind::merge)
      entries += fmt::format("  - {{rule: {}, set: {{params.min: 3, params.max: 3}}}}\n", r->id);
  }
  Asked a(entries);
  const auto set = must(load_knowledge(a.options));
  CHECK_FALSE(fs::exists(a.folder.path / "cache"));  // narrower: nothing had to be proved again
  for (const auto& r : set->rules.rules) {
    INFO(r->id);
    if (grows(*r))
      CHECK(std::vector{r->region.max_ops, r->region.max_inputs, r->region.min_ops} ==
            std::vector{7, 5, 3});
    if (r->kind == RuleKind::merge) CHECK(std::pair{r->merge.min, r->merge.max} == std::pair{3, 3});
  }
}

TEST_CASE("override: each threshold of a shipped rule decides whether it fires") {
  for (const Threshold& t : kThresholds) {
    auto fires = [&](const std::string& entries) {
      Asked a(entries, t.target);
      a.options.selection.enable = {t.rules};
      auto k = must(load_knowledge(a.options));
      const Fused f = a.fuse(t.model.empty() ? k->rules.find(t.rules)->tests[0].model : t.model);
      CHECK_FALSE(fs::exists(a.folder.path / "cache"));  // no result changes: nothing is proved
      return std::ranges::any_of(f.journal.steps,
                                 [&](const Step& s) { return glob_match(t.rules, s.rule); });
    };
    CHECK_MESSAGE(fires(""), t.rules);
    CHECK_MESSAGE(!fires(fmt::format("  - {{rule: \"{}\", set: {{params.{}: {}}}}}\n", t.rules,
                                     t.name, t.value)),
                  t.rules << " with params." << t.name);
  }
}

TEST_CASE(
    "instances: a list applied gives the same fusion; a deleted line is not made, and nothing in "
    "its place") {
  Asked first;
  Fused all = first.fuse(kModel);
  const std::string hash = graph_hash(graph(kModel));
  Instances list = instances_of(all.journal, hash, "cpu-avx2");
  REQUIRE(list.lines.size() == 3);
  auto apply = [&](const std::string& text, const std::string& model = kModel) {
    Asked a;
    a.options.apply = a.folder.file("plan.yaml", text);
    return a.fuse(model);
  };
  const std::string text = to_text(list, "m.onnx");
  CHECK(has(text,
            "  - {rule: conv_activation, root: \"/layer1/conv\", nodes: [\"/layer1/conv\", "
            "\"/layer1/relu\"]}\n"));
  Fused same = apply(text);
  CHECK(ops_of(same.graph) == kAll);
  CHECK(same.warnings.empty());
  auto without = [&](size_t k) {
    Instances fewer = list;
    fewer.lines.erase(fewer.lines.begin() + static_cast<long>(k));
    return apply(to_text(fewer, "m.onnx"));
  };
  for (size_t k = 0; k < list.lines.size(); ++k) {
    Fused f = without(k);
    CHECK(f.warnings.empty());
    CHECK(instances_of(f.journal, hash, "").lines.size() == 2);
  }
  Instances none = list;
  none.lines.clear();
  CHECK(ops_of(apply(to_text(none, "m.onnx")).graph) == "Conv Relu Conv Relu Sin Cos Exp Abs");
}

TEST_CASE("instances: one that no longer matches is named, another model is refused") {
  Asked first;
  Instances list = instances_of(first.fuse(kModel).journal, graph_hash(graph(kModel)), "cpu-avx2");
  Asked a;
  a.options.selection.disable = {"conv_activation"};
  a.options.apply = a.folder.file("plan.yaml", to_text(list, "m.onnx"));
  Fused f = a.fuse(kModel);
  REQUIRE(f.warnings.size() == 2);
  CHECK(has(f.warnings[0], "conv_activation at \"/layer"));
  CHECK(has(f.warnings[0], "does not match any more: the rule is off"));

  std::string other = kModel;
  other.replace(other.find("Sin("), 3, "Tan");
  auto wrong = fuse(graph(other), *a.knowledge, a.options);
  REQUIRE_FALSE(wrong);
  CHECK(wrong.error().code == Code::other_model);
  CHECK(has(render(wrong.error()), "plan.yaml: made for another model"));
}

TEST_CASE("instances: reading inverts writing, and refuses what is none") {
  Instances list;
  list.model = "0123", list.target = "sm_90";
  list.lines = {{"r", "a\"b\\\n", {"x", "a\"b\\\n"}, 0}};
  Folder folder;
  auto read = [&](const std::string& text) {
    return read_instances(folder.file("plan.yaml", text), Limits{});
  };
  Instances back = must(read(to_text(list, "m\n.onnx")));
  REQUIRE(back.lines.size() == 1);
  CHECK(back.lines[0].root == list.lines[0].root);
  CHECK(back.lines[0].nodes == list.lines[0].nodes);
  CHECK(back.lines[0].line == 7);
  CHECK(back.model == "0123");
  auto refused = [&](const std::string& text, std::string_view message) {
    auto r = read(text);
    REQUIRE_FALSE(r);
    CHECK(has(render(r.error()), message));
  };
  const std::string head = "instances: 1\nmodel: a\ntarget: b\nfusions:\n";
  CHECK(must(read(head)).lines.empty());
  refused("- 1\n", "a list of fusions");
  refused("instances: 2\nmodel: a\ntarget: b\nfusions: []\n", "version 2");
  refused(head + "  - {rule: a, root: x, nodes: [y]}\n",
          "plan.yaml:5:5: the root x is none of the nodes");
  refused(head + "  - {rule: a, roots: x, nodes: [y]}\n", "did you mean");
  RuleSet empty;
  CHECK_FALSE(apply_instances(empty, back));
}
