// Loading: the shipped rules, the round trip through print, order, selection, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "engine/rule/load.h"
#include "engine/rule/pattern_parse.h"
#include "tests/unit/rule/kit.h"
#include "tests/unit/rule/same.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {

Result<RuleSet> load(std::vector<std::string> dirs, RuleSelection selection = {}) {
  return load_rules(dirs, op_table(), selection, Limits{});
}
std::string errors(const Result<RuleSet>& r) { return r ? "" : render(r.error()); }

/// A rules directory that lives as long as the test.
struct Pack {
  fs::path dir;
  Pack(std::vector<std::pair<std::string, std::string>> files) {
    static int count = 0;
    dir = fs::temp_directory_path() / fmt::format("ferrule_rules_{}_{}", ::getpid(), count++);
    for (auto& [name, text] : files) {
      fs::create_directories((dir / name).parent_path());
      std::ofstream(dir / name) << text;
    }
  }
  ~Pack() { fs::remove_all(dir); }
};
constexpr const char* kPipeline =
    "ferrule: 1\nphases:\n  - {id: canonicalize}\n  - {id: anchors, log: \"{layers}\", fixpoint: "
    "false}\n";
std::string rule(std::string id, std::string more = "", std::string phase = "canonicalize") {
  return fmt::format(
      "ferrule: 1\nid: {}\ndoc: \"A test.\"\nkind: rewrite\nphase: {}\n{}match: |\n  y = "
      "Relu(Relu(x))\nrewrite: |\n  y = Relu(x)\n",
      id, phase, more);
}

/// Text of rule t with `what` of a good rule replaced; the rendered error.
std::string refused(std::string_view what, std::string_view by) {
  std::string good =
      "ferrule: 1\nid: t\ndoc: \"A test.\"\nkind: rewrite\nphase: fold\nmatch: |\n  [conv] t = "
      "Conv<...>(x, W!, B?!)\n"
      "  y = Mul(t, s!)\nwhere:\n  - {id: channels, sound: \"out_channels(conv) == dim(t, 1)\", "
      "why: \"{out_channels(conv)} channels\"}\n"
      "rewrite: |\n  k = Mul(W, s)\n  y = conv<...conv>(x, k, B)\n"
      "tests:\n  fires:\n    - {name: a, model: \"g\"}\n  holds:\n    - {declined_by: channels, "
      "leak: t}\n";
  size_t at = good.find(what);
  REQUIRE(at != std::string::npos);
  good.replace(at, what.size(), by);
  auto r = load_rule_text(good, "t.yaml", op_table(), Limits{});
  return r ? "" : render(r.error());
}

}  // namespace

TEST_CASE("the shipped rules load, print and load back to the same") {
  auto begin = std::chrono::steady_clock::now();
  auto set = load({rules_dir()});
  double ms =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
  REQUIRE_MESSAGE(set.has_value(), errors(set));
  CHECK(set->rules.size() >= 5);
  MESSAGE(set->rules.size() << " rules in " << ms << " ms");
  for (const auto& r : set->rules) {
    std::string printed = print_rule(*r);
    auto again = load_rule_text(printed, r->id + ".yaml", op_table(), Limits{});
    REQUIRE_MESSAGE(again.has_value(), printed, (again ? "" : render(again.error())));
    CHECK_MESSAGE(same(*r, *again), printed);
    CHECK(print_rule(*again) == printed);
  }
}

TEST_CASE("every key survives printing") {
  const char* text = R"yaml(ferrule: 1
id: all
doc: "Says \"everything\", twice: {x}"
source: [one, "two: 2"]
kind: absorb
phase: anchors
enabled: false
stability: experimental
numerics: approximate
may_raise_kernels: "they are \"small\""
before: [b]
after: [a, c]
types: [f32, bf16]
blocks:
  square(x): "(Mul(x, x) | Pow(x, ~2))"
match: |
  # a comment
  [conv] t = {Conv|@group.conv}<group=1, ...>(square(x), W![O, ...], B?)
outputs: [t]
where:
  - {id: k, kernel: "has_kernel('conv', f32) and O > 1", why: "no {conv}", hint: "none"}
  - {id: p, profit: "saved_bytes([conv, tail]) >= 0 or half < 1", why: "x"}
let:
  half: "O / 2"
contract: conv
anchor: conv
tail:
  of: "{Add|@activation}"
  max_ops: 3
  max_inputs: 2
  min_ops: 1
  multi_output: true
  where:
    - {id: w, kernel: "all(r in operands: const(r))", why: "{node}"}
name: "{conv} + {tail}"
tests:
  fires:
    - |
      g (float[1] x) => (float[1] y) {
        y = Relu(x)
      }
    - {name: second, model: "one line", target: cpu-avx2, expect: "other"}
  holds:
    - {declined_by: k, of: second, set: {conv.group: 2}, const: {k: 0.64}, rewire: {node: m, slot: 1, to: z}}
    - {declined_by: D1, leak: t}
)yaml";
  auto r = load_rule_text(text, "all.yaml", op_table(), Limits{});
  REQUIRE_MESSAGE(r.has_value(), (r ? "" : render(r.error())));
  CHECK(r->kind == RuleKind::absorb);
  CHECK(r->region.multi_output);
  CHECK(r->region.ops == std::vector<std::string>{"Add"});
  CHECK(r->tests.size() == 4);
  CHECK(r->tests[2].edits[2].second == R"({"node": "m", "slot": 1, "to": "z"})");
  CHECK(r->tests[2].edits[1].second == R"({"k": 0.64})");
  auto again = load_rule_text(print_rule(*r), "all.yaml", op_table(), Limits{});
  REQUIRE_MESSAGE(again.has_value(), (again ? "" : render(again.error())), print_rule(*r));
  CHECK_MESSAGE(same(*r, *again), print_rule(*r));
  CHECK(again->may_raise_kernels == "they are \"small\"");
  Rule other = *again;
  other.region.max_inputs = 5;
  CHECK(!same(*r, other));
}

TEST_CASE("merge, region and place rules") {
  for (const char* kind :
       {"kind: merge\nmerge: {over: x, key: [\"dtype(B)\", \"op(m)\"], min: 2, max: 16}\ncontract: "
        "gemm\nmatch: \"[m] y = MatMul(x, B!)\"\n",
        "kind: merge\nmerge: {over: xs, min: 2, axis: \"-1\", weights: {1: \"if rank(B) == 2 then "
        "1 else 0\"}, fill: [\"2\"]}\ncontract: "
        "gemm\nmatch: \"y = Gemm<...>(x, B!, xs...)\"\n",
        "kind: region\nregion: {of: \"@pointwise\", min_ops: 2}\ncontract: pointwise\n",
        "kind: region\nregion: {of: \"@pointwise\", around: \"@row\", keeps: \"{Add|@unary}\"}\n"
        "contract: row_reduce\n",
        "kind: place\nplace: {xs: \"slices(y, a)\"}\nmatch: \"y = Concat<axis=$a>(xs...)\"\n",
        "kind: window\ncontract: conv\nmatch: |\n  [g] t = @group.conv<...>(x, rest...)\n  [p] y = "
        "MaxPool<...>(t)\n"}) {
    auto r = load_rule_text(std::string("ferrule: 1\nid: t\ndoc: \"d\"\nphase: merge\n") + kind,
                            "t.yaml", op_table(), Limits{});
    REQUIRE_MESSAGE(r.has_value(), (r ? "" : render(r.error())));
    auto again = load_rule_text(print_rule(*r), "t.yaml", op_table(), Limits{});
    REQUIRE_MESSAGE(again.has_value(), (again ? "" : render(again.error())), print_rule(*r));
    CHECK(same(*r, *again));
  }
}

TEST_CASE("what is kept in front of row operators is a further result") {
  for (const char* region :
       {"{of: \"@pointwise\", keeps: \"@pointwise\"}",
        "{of: \"@pointwise\", around: \"@row\", keeps: \"@pointwise\", multi_output: false}"}) {
    auto r = load_rule_text(std::string("ferrule: 1\nid: t\ndoc: \"d\"\nphase: rows\nkind: "
                                        "region\ncontract: row_reduce\nregion: ") +
                                region + "\n",
                            "t.yaml", op_table(), Limits{});
    REQUIRE(!r.has_value());
    CHECK(has(render(r.error()), "keeps is for regions around row operators"));
  }
}

TEST_CASE("what a tail says can be met") {
  auto refused = [](const std::string& rest) {
    auto r = load_rule_text(
        "ferrule: 1\nid: t\ndoc: \"d\"\nphase: anchors\nkind: absorb\n"
        "contract: gemm\nmatch: \"[m] y = MatMul(x, B!)\"\nanchor: m\n" +
            rest,
        "t.yaml", op_table(), Limits{});
    REQUIRE(!r.has_value());
    return render(r.error());
  };
  CHECK(has(refused(""), "the pattern is one node, and the rule has no tail"));
  CHECK(has(refused("tail: {of: Relu, max_ops: 0}\n"), "no tail has so many operators"));
  CHECK(has(refused("tail: {of: Relu, min_ops: 3, max_ops: 2}\n"), "min_ops is 3 and max_ops 2"));
  CHECK(has(refused("tail: {of: Relu, around: \"@row\"}\n"), "around is for regions"));
  CHECK(has(refused("tail: {of: \"@pointwsie\"}\n"), "there is no operator class @pointwsie"));
  CHECK(has(refused("tail: {of: [Relu, Add]}\n"), "a scalar is wanted"));
  CHECK(has(refused("tail: {of: \"{Rleu|Add}\"}\n"), "operator Rleu is none of ONNX's"));
  CHECK(has(refused("tail: {of: \"{Rleu|Add}\"}\n"), "did you mean \"Relu\"?"));
  CHECK(has(refused("tail: {of: Gelu_}\n"), "did you mean \"Gelu\"?"));
  CHECK(has(refused("types: []\ntail: {of: Relu}\n"), "the rule would never fire"));
  CHECK(has(refused("tail: {of: Relu, where: [{id: a, kernel: \"true\", why: w}, {id: a, kernel: "
                    "\"true\", why: w}]}\n"),
            "two conditions are called a"));
}

TEST_CASE("a name of a pattern has one meaning") {
  auto refused = [](const std::string& match) {
    auto r =
        load_rule_text("ferrule: 1\nid: t\ndoc: \"d\"\nphase: fold\nkind: rewrite\nmatch: |\n" +
                           match + "rewrite: |\n  y = Relu(x)\n",
                       "t.yaml", op_table(), Limits{});
    return r ? "" : render(r.error());
  };
  CHECK(refused("  a = Softmax<axis=$k>(x)\n  y = Relu(a)\n") == "");
  std::string said = refused("  a = Softmax<axis=$a>(x)\n  y = Relu(a)\n");
  CHECK(has(said, "t.yaml:7:15: a is an attribute here, and a value elsewhere in the pattern"));
  CHECK(has(said, "choose another name"));
  CHECK(has(refused("  t = Relu(x[x, N])\n  y = Relu(t)\n"), "x is a size here, and a value"));
}

TEST_CASE("what a region says can be met") {
  auto load_region = [](const std::string& region) {
    auto r = load_rule_text(
        "ferrule: 1\nid: t\ndoc: \"d\"\nphase: rows\nkind: region\ncontract: row_reduce\nregion: " +
            region + "\n",
        "t.yaml", op_table(), Limits{});
    return r ? "" : render(r.error());
  };
  CHECK(has(load_region("{of: \"@pointwise\", around: \"@pointwise\"}"),
            "@pointwise has no row operator"));
  CHECK(has(load_region("{of: \"@pointwise\", around: \"{CumSum|@movement}\"}"),
            "{CumSum|@movement} has no row operator"));
  CHECK(has(load_region("{of: \"@pointwise\", around: \"@row\", keeps: MatMul}"),
            "no operator of MatMul is among of or around"));
  CHECK(has(load_region("{of: Relu, around: Softmax, keeps: \"{Add|@binary}\"}"),
            "no operator of {Add|@binary} is among of or around"));
  CHECK(has(load_region("{of: Relu, max_inputs: 0}"), "every region reads a tensor"));
  CHECK(has(load_region("{of: Relu, around: Sotfmax}"), "did you mean \"Softmax\"?"));
  // Of other domains nobody here knows what they are.
  CHECK(load_region("{of: \"{Relu|my::Op}\", around: \"my::Rows\", keeps: \"my::Op\"}") == "");
  CHECK(load_region(
            "{of: \"{Add|@unary}\", around: \"{Softmax|ReduceMax}\", keeps: \"@binary\"}") == "");
  CHECK(load_region("{of: Relu, around: \"@row\", keeps: Softmax}") == "");
}

TEST_CASE("what siblings share and where values live is bound by the pattern") {
  auto refused = [](const std::string& body) {
    auto r = load_rule_text("ferrule: 1\nid: t\ndoc: \"d\"\nphase: merge\n" + body, "t.yaml",
                            op_table(), Limits{});
    REQUIRE(!r.has_value());
    return render(r.error());
  };
  const std::string merge =
      "kind: merge\ncontract: gemm\nmatch: \"[m] y = MatMul(x, B!)\"\nmerge: ";
  CHECK(has(refused(merge + "{over: y}\n"), "\"y\" is no operand of the pattern"));
  CHECK(has(refused(merge + "{over: x, key: [\"dtype(C)\"]}\n"), "C is not bound by the pattern"));
  CHECK(has(refused(merge + "{over: x, axis: \"-1\", weights: {one: \"1\"}}\n"),
            "\"one\" is no number of an input"));
  CHECK(has(refused(merge + "{over: x, axis: \"-1\", weights: {1: \"rank(C)\"}}\n"),
            "C is not bound by the pattern"));
  CHECK(has(refused(merge + "{over: x, weights: {1: \"0\"}}\n"), "siblings that are joined"));
  CHECK(has(refused(merge + "{over: x, axis: \"0\", weights: {2: \"0\"}}\n"), "no input 2"));
  CHECK(has(refused(merge + "{over: x, axis: \"0\", weights: {0: \"0\"}}\n"), "siblings share"));
  CHECK(has(refused(merge + "{over: x, axis: \"0\", fill: [1]}\n"), "no sibling leaves out"));
  CHECK(has(refused(merge + "{over: x, min: 1}\n"), "min is 1 and max 64"));
  CHECK(has(refused(merge + "{over: x, max: 1}\n"), "min is 2 and max 1"));
  CHECK(has(refused("kind: merge\ncontract: gemm\nmatch: \"y = Relu(MatMul(x, B!))\"\n"
                    "merge: {over: x}\n"),
            "siblings are single nodes"));
  const std::string place = "kind: place\nmatch: \"y = Concat<axis=$a>(xs...)\"\nplace: ";
  CHECK(has(refused(place + "{xs: \"parts(y, a)\"}\n"), "slices(whole)"));
  CHECK(has(refused(place + "{xs: \"slices(z, a)\"}\n"), "must be values that the pattern binds"));
  CHECK(has(refused(place + "{xs: \"slices(y, 1)\"}\n"), "the axis 1 is no attribute"));
}

TEST_CASE("order: phases, then before and after, then paths") {
  Pack p({{"pipeline.yaml", kPipeline},
          {"x/a.yaml", rule("a", "after: [c]\n")},
          {"x/b.yaml", rule("b")},
          {"x/c.yaml", rule("c")},
          {"x/d.yaml", rule("d", "before: [b]\n")},
          {"x/e.yaml", rule("e", "", "anchors")},
          {"w/z.yaml", rule("z")},
          {"ops/no.yaml", "not: a rule"},
          {"targets/no.yaml", "not: a rule"}});
  auto set = load({p.dir.string()});
  REQUIRE_MESSAGE(set.has_value(), errors(set));
  std::string order;
  for (const auto& r : set->rules) order += r->id;
  CHECK(order == "zcadbe");
  CHECK(set->phases.size() == 2);
  CHECK(!set->phases[1].fixpoint);
  CHECK(set->find("d") != nullptr);
  CHECK(set->find("nope") == nullptr);
}

TEST_CASE("a cycle of before and after is told of at the rule of the last folder") {
  Pack first({{"pipeline.yaml", kPipeline},
              {"a.yaml", rule("a", "before: [b]\n")},
              {"b.yaml", rule("b")}});
  Pack second({{"z.yaml", rule("z", "before: [a]\nafter: [b]\n")}});
  const std::string said = errors(load({first.dir.string(), second.dir.string()}));
  CHECK_MESSAGE(has(said, (second.dir / "z.yaml:6:1").string()), said);
  CHECK(has(said, "form a cycle among z, a, b"));
}

TEST_CASE("a later pack adds and replaces") {
  Pack first({{"pipeline.yaml", kPipeline}, {"a.yaml", rule("a")}, {"b.yaml", rule("b")}});
  Pack second({{"a.yaml", rule("a", "enabled: false\n")},
               {"blocks.yaml", "ferrule: 1\nblocks: {sq(x): \"Mul(x, x)\"}\n"},
               {"c.yaml",
                "ferrule: 1\nid: c\ndoc: d\nkind: rewrite\nphase: canonicalize\nmatch: \"y = "
                "Sqrt(sq(x))\"\nrewrite: \"y = Abs(x)\"\n"}});
  auto set = load({first.dir.string(), second.dir.string()});
  REQUIRE_MESSAGE(set.has_value(), errors(set));
  CHECK(set->rules.size() == 3);
  CHECK(!set->rules[0]->enabled);
  CHECK(set->rules[0]->pack == second.dir.string());
  CHECK(to_text(set->find("c")->match) == "y = Sqrt(Mul(x, x))\n");
}

TEST_CASE("selection by globs") {
  Pack p({{"pipeline.yaml", kPipeline},
          {"conv_a.yaml", rule("conv_a")},
          {"conv_b.yaml", rule("conv_b")},
          {"gelu.yaml", rule("gelu")},
          {"rough.yaml", rule("rough", "numerics: approximate\n")},
          {"young.yaml", rule("young", "stability: experimental\n")}});
  auto on = [&](RuleSelection s) {
    auto set = load({p.dir.string()}, s);
    if (!set) return errors(set);
    std::string ids;
    for (const auto& r : set->rules)
      if (r->enabled) ids += r->id + " ";
    return ids;
  };
  CHECK(on({}) == "conv_a conv_b gelu ");
  CHECK(on({{"conv_*"}, {}}) == "gelu ");
  CHECK(on({{"*"}, {"conv_?"}}) == "conv_a conv_b ");
  CHECK(on({{}, {"rough", "young"}}) == "conv_a conv_b gelu rough young ");
  std::string unknown = on({{"gleu"}, {}});
  CHECK(has(unknown, "no rule matches gleu"));
  CHECK(has(unknown, "did you mean \"gelu\"?"));
  auto vain = load({p.dir.string()}, {{"none_*"}, {"gel?"}});
  REQUIRE(vain);
  CHECK(vain->warnings == std::vector<std::string>{"--disable none_*: no rule matches"});
  RuleSelection s{{"conv_*"}, {"conv_b"}};
  CHECK(s.about("conv_a") == false);
  CHECK(s.about("conv_b") == true);
  CHECK(s.about("gelu") == std::nullopt);
}

TEST_CASE("parameters: read, printed, used as limits") {
  const std::string good =
      "ferrule: 1\nid: t\ndoc: \"A test.\"\nkind: region\nphase: fold\nparams: {most: 9, factor: "
      "0.5, on: true, word: \"8\"}\n"
      "contract: pointwise\nregion: {of: \"@pointwise\", max_ops: most, min_ops: 2}\n"
      "where:\n  - {id: a, profit: \"count(n in region: true) > factor * most or word == '8'\", "
      "why: \"{most}\"}\n";
  auto r = load_rule_text(good, "t.yaml", op_table(), Limits{});
  REQUIRE_MESSAGE(r, (r ? "" : render(r.error())));
  CHECK(r->region.max_ops == 9);
  REQUIRE(r->parameters.size() == 4);
  CHECK(std::get<double>(r->parameters[1].value.v) == 0.5);
  CHECK(std::get<bool>(r->parameters[2].value.v));
  CHECK(std::get<std::string>(r->parameters[3].value.v) == "8");
  auto again = load_rule_text(print_rule(*r), "t.yaml", op_table(), Limits{});
  REQUIRE_MESSAGE(again, (again ? "" : render(again.error()) + print_rule(*r)));
  CHECK(same(*r, *again));
  auto refused = [&](std::string_view what, std::string_view by) {
    std::string text = good;
    text.replace(text.find(what), what.size(), by);
    auto bad = load_rule_text(text, "t.yaml", op_table(), Limits{});
    return bad ? "" : render(bad.error());
  };
  CHECK(
      has(refused("max_ops: most", "max_ops: factor"), "the parameter factor is no whole number"));
  CHECK(has(refused("most: 9", "most: 900000"), "max_ops is 900000, expected 0 to 100000"));
  CHECK(has(refused("max_ops: most", "max_ops: mots"), "mots"));
  CHECK(has(refused("> factor", "> factro"), "did you mean \"factor\"?"));
  CHECK(has(refused("word: \"8\"", "Word: 8"), "no name of a parameter"));
  CHECK(has(refused("factor: 0.5", "factor: .nan"), "numbers are written nan, inf and -inf"));
  RuleSet set;
  set.rules.push_back(std::make_shared<const Rule>(*r));
  std::vector<std::string> notes;
  for (const RuleNote& n : check_rules(set, op_table()).notes)
    notes.push_back(n.rule->id + ": " + n.text);
  CHECK(std::ranges::count(notes, "t: parameter on is used by nothing") == 1);
  CHECK(std::ranges::count_if(notes, [](const std::string& n) { return has(n, "parameter"); }) ==
        1);
}

TEST_CASE("what a rules directory cannot hold") {
  auto fails = [](std::vector<std::pair<std::string, std::string>> files) {
    Pack p(std::move(files));
    return errors(load({p.dir.string()}));
  };
  CHECK(has(fails({{"a.yaml", rule("a")}}), "no rules directory has one"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline},
                   {"a.yaml", rule("a", "after: [b]\n")},
                   {"b.yaml", rule("b", "after: [a]\n")}}),
            "a.yaml:6:1: before and after form a cycle among a, b"));
  // Who merely comes behind is not of the cycle.
  CHECK(has(fails({{"pipeline.yaml", kPipeline},
                   {"a.yaml", rule("a", "after: [c]\n")},
                   {"b.yaml", rule("b", "before: [c]\n")},
                   {"c.yaml", rule("c", "before: [b]\n")}}),
            "form a cycle among b, c\n"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline}, {"a.yaml", rule("a", "before: [a]\n")}}),
            "a.yaml:6:1: rule a is to come before itself"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline}, {"a.yaml", rule("a", "after: [bb]\n")}}),
            "there is no rule bb"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline},
                   {"a.yaml", rule("a", "after: [b]\n")},
                   {"b.yaml", rule("b", "", "anchors")}}),
            "rule b is in phase anchors"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline}, {"x/a.yaml", rule("a")}, {"y/a.yaml", rule("a")}}),
            "rule a is in"));
  CHECK(has(fails({{"pipeline.yaml", kPipeline}, {"a.yaml", rule("a", "", "canonicalise")}}),
            "did you mean \"canonicalize\"?"));
  const std::string kinds =
      "ferrule: 1\nphases:\n  - {id: one, kinds: [absorb, window]}\n  - {id: two, kinds: "
      "rewrite}\n  - {id: three}\n";
  CHECK(fails({{"pipeline.yaml", kinds}, {"a.yaml", rule("a", "", "two")}}) == "");
  CHECK(fails({{"pipeline.yaml", kinds}, {"a.yaml", rule("a", "", "three")}}) == "");
  const std::string phase = fails({{"pipeline.yaml", kinds}, {"a.yaml", rule("a", "", "one")}});
  CHECK(has(phase, "a.yaml:5:1: phase one takes no rules of kind rewrite"));
  CHECK(has(phase, "phases of this kind: two, three"));
  std::string broken = rule("a", "", "one");
  broken.replace(broken.find("kind: rewrite"), 13, "kind: windo");
  const std::string windo = fails({{"pipeline.yaml", kinds}, {"a.yaml", broken}});
  CHECK(has(windo, "did you mean \"window\"?"));
  CHECK(!has(windo, "takes no rules of kind"));
  CHECK(has(fails({{"pipeline.yaml", "ferrule: 1\nphases: [{id: a, kinds: [rewrites]}]\n"}}),
            "there is no kind rewrites"));
  CHECK(has(fails({{"pipeline.yaml", "ferrule: 1\nphases: [{id: a}, {id: a}]\n"}}),
            "phase a is listed twice"));
  CHECK(has(errors(load({"/nonexistent"})), "not a directory"));
  Pack many({{"pipeline.yaml", kPipeline}, {"a.yaml", rule("a")}, {"b.yaml", rule("b")}});
  Limits few;
  few.rules = 1;
  auto over = load_rules(std::vector<std::string>{many.dir.string()}, op_table(), {}, few);
  REQUIRE(!over);
  CHECK(over.error().code == Code::limit_exceeded);
  // All problems of all files at once.
  std::string both = fails({{"pipeline.yaml", kPipeline},
                            {"a.yaml", rule("a", "whre: 1\n")},
                            {"b.yaml", rule("b", "numeric: exact\n")}});
  CHECK(has(both, "whre"));
  CHECK(has(both, "numeric"));
}

TEST_CASE("what a rule cannot say") {
  CHECK(refused("fold", "fold") == "");
  std::string e = refused("where:", "were:");
  CHECK(has(e, "t.yaml:9:1"));
  CHECK(has(e, "did you mean"));
  e = refused("out_channels(conv) ==", "out_chanels(conv) ==");
  CHECK(has(e, "t.yaml:10:28"));
  CHECK(has(e, "did you mean \"out_channels\"?"));
  CHECK(has(e, "                            ^^^^^^^^^^^"));
  e = refused("dim(t, 1)", "dim(tt, 1)");
  CHECK(has(e, "t.yaml:10:54"));
  CHECK(has(e, "tt is not bound by the pattern"));
  CHECK(has(refused("out_channels(conv) ==", "out_channels(cpu) =="),
            "out_channels wants a node, cpu is a word"));
  e = refused("out_channels(conv) ==", "rank(conv) ==");
  CHECK(has(e, "rank wants a value or a list of sizes, conv is a node"));
  CHECK(has(e, "its result is output(conv, 0)"));
  CHECK(refused("out_channels(conv) ==", "rank(output(conv, 0)) ==") == "");
  CHECK(has(refused("ferrule: 1", "ferrule: \"1\""), "write ferrule: 1, without quotes"));
  CHECK(has(refused("y = Mul(t, s!)", "y = Mull(t, s!)"), "operator Mull is none of ONNX's"));
  CHECK(refused("y = Mul(t, s!)", "y = my.own::Mull(t, s!)") == "");
  CHECK(
      has(refused("out_channels(conv) ==", "uses(conv) =="), "uses wants a value, conv is a node"));
  CHECK(has(refused("{out_channels(conv)} ch", "{out_channels(cv)} ch"), "cv is not bound"));
  CHECK(has(refused("{out_channels(conv)} ch", "{out_channels(conv) ch"), "no \"}\" closes this"));
  CHECK(has(refused("(x, k, B)", "(x, q, B)"), "q is neither bound nor made by a line above"));
  CHECK(has(refused("(x, k, B)", "(t, k, B)"), "t is made by a node that the rule removes"));
  CHECK(has(refused("<...conv>", "<...cnv>"), "cnv is no label of the pattern"));
  CHECK(has(refused("conv<...conv>", "cnv<...conv>"), "cnv is no label of the pattern"));
  CHECK(has(refused("conv<...conv>", "conv<...conv, a=$q>"), "$q is not bound"));
  e = refused("k = Mul(W, s)", "W = Mul(s, s)");
  CHECK_MESSAGE(has(e, "W is bound by the pattern already"), e);
  CHECK(has(refused("  y = conv", "  z = conv"), "the replacement does not make y"));
  CHECK(has(refused("y = Mul(t, s!)", "y = Mul(t s!)"), "t.yaml:8:13"));
  CHECK(has(refused("kind: rewrite", "kind: rewrit"), "rewrit"));
  CHECK(has(refused("kind: rewrite", "kind: absorb"), "no rewrite"));
  CHECK(has(refused("id: t\n", "id: u\n"), "the file is called t"));
  CHECK(has(refused("ferrule: 1\n", ""), "begins with ferrule: 2"));
  CHECK(has(refused("ferrule: 1\n", "ferrule: 3\n"), "version 3"));
  CHECK(has(refused("sound: ", "sond: "), "sond"));
  CHECK(has(refused("sound: \"out_channels(conv) == dim(t, 1)\"", "sound: true"), "t.yaml:10"));
  CHECK(has(refused(", why: \"{out_channels(conv)} channels\"", ""), "why"));
  CHECK(has(refused("dim(t, 1)\"", "1 or tag('erf')\""), "no alternative has the tag erf"));
  CHECK(has(refused("phase: fold", "phase: fold\nonce: maybe"), "once"));
  CHECK(has(refused("phase: fold", "phase: fold\ntypes: [f31]"), "f31"));
  CHECK(
      has(refused("phase: fold", "phase: fold\nshared: [W]"), "\"W\" is no result of the pattern"));
  CHECK(has(refused("phase: fold", "phase: fold\nlet: {s: \"1\"}"), "s is bound by the pattern"));
  CHECK(has(refused("Mul(t, s!)", "@binery(t, s!)"), "there is no operator class @binery"));
  CHECK(
      has(refused("declined_by: channels", "declined_by: chanels"), "did you mean \"channels\"?"));
  CHECK(has(refused("leak: t", "leek: t"), "leek"));
  CHECK(has(refused("declined_by: channels, leak: t", "declined_by: channels"),
            "a case without a model or an edit"));
  CHECK(has(refused("declined_by: channels, ", "declined_by: channels, of: b, "),
            "no firing case above is called b"));
}

TEST_CASE("kernel and profit conditions only, outside rewrites") {
  auto r = load_rule_text(
      "ferrule: 1\nid: t\ndoc: d\nkind: absorb\nphase: anchors\nmatch: \"[conv] t = Conv<...>(x, "
      "W)\"\ncontract: conv\nanchor: conv\n"
      "where: [{id: a, sound: \"rank(x) == 4\", why: \"w\"}]\n",
      "t.yaml", op_table(), Limits{});
  REQUIRE(!r);
  CHECK(has(render(r.error()), "only rewrites, merges and rules with roles"));
}

TEST_CASE("contracts that there are not are refused wherever a rule names one") {
  auto refusal = [](const std::string& contract, const std::string& op, const std::string& asked) {
    auto r = load_rule_text(
        "ferrule: 1\nid: t\ndoc: d\nkind: absorb\nphase: anchors\nmatch: \"[a] y = " + op +
            "<...>(x, W)\"\ncontract: " + contract +
            "\nanchor: a\ntail: {of: Relu}\nwhere: [{id: k, kernel: \"has_kernel('" + asked +
            "', dtype(x))\", why: w}]\n",
        "t.yaml", op_table(), Limits{});
    return r ? "" : render(r.error());
  };
  CHECK(refusal("gemm", "@group.gemm", "gemm") == "");
  const std::string rule = refusal("gemn", "@group.gemm", "gemm"),
                    pattern = refusal("gemm", "@group.gemn", "gemm"),
                    asked = refusal("gemm", "MatMul", "gemn");
  for (const std::string& text : {rule, pattern, asked}) {
    CAPTURE(text);
    CHECK(has(text, "there is no contract gemn"));
    CHECK(has(text, "did you mean \"gemm\"?"));
  }
  CHECK(has(rule, "t.yaml:7:11: "));
  CHECK(has(pattern, "t.yaml:6:"));
  CHECK(has(asked, "t.yaml:10:"));
}

TEST_CASE("a window needs a contract, and no anchor") {
  auto load = [](std::string keys) {
    return load_rule_text(
        "ferrule: 1\nid: t\ndoc: d\nkind: window\nphase: windows\nmatch: |\n  [conv] t = "
        "Conv<...>(x, W)\n"
        "  y = MaxPool<...>(t)\n" +
            keys,
        "t.yaml", op_table(), Limits{});
  };
  auto r = load("contract: conv_pool\n");
  REQUIRE(r.has_value());
  CHECK(r->kind == RuleKind::window);
  CHECK(same(*r, *load_rule_text(print_rule(*r), "t.yaml", op_table(), Limits{})));
  CHECK(load("contract: conv_pool\nanchor: conv\n").has_value());
  CHECK(has(render(load("contract: conv_pool\nanchor: t\n").error()), "no label"));
  CHECK(has(render(load("name: x\n").error()), "contract"));
}
