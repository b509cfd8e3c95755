// RegexFullMatch against what RE2 documents, patterns that are made to take long, and operators
// that draw random numbers: their generator's published values, and statistics.
#include <doctest/doctest.h>

#include <cmath>

#include "engine/interpreter/interpreter.h"
#include "engine/interpreter/regex.h"
#include "engine/pipeline.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;
using ferrule::interp::Regex;

namespace {

bool matches(std::string_view pattern, std::string_view text) {
  const auto r = Regex::compile(pattern);
  if (!r) FAIL(std::string(pattern), ": ", r.error());
  return r->matches(text);
}
std::string fault(std::string_view pattern) {
  const auto r = Regex::compile(pattern);
  return r ? "none" : r.error();
}

struct Yes {
  std::string_view pattern, text;
};

/// The node of a model of one, on tensors, `times` in a row.
std::vector<Tensor> drawn(const std::string& text, const std::vector<Tensor>& in, int times = 1) {
  const Graph g = graph(text);
  Draws draws;
  InterpreterOptions o;
  o.ops = &ops();
  o.draws = &draws;
  std::vector<Tensor> out;
  for (int k = 0; k < times; ++k) out.push_back(must(interpret(g, in, o))[0]);
  return out;
}

struct Moments {
  double mean = 0, deviation = 0, low = 0, high = 0;
};
Moments moments(const Tensor& t) {
  const std::vector<double> v = t.to_f64();
  Moments m{0, 0, v[0], v[0]};
  for (double x : v) m.mean += x, m.low = std::min(m.low, x), m.high = std::max(m.high, x);
  m.mean /= static_cast<double>(v.size());
  for (double x : v) m.deviation += (x - m.mean) * (x - m.mean);
  m.deviation = std::sqrt(m.deviation / static_cast<double>(v.size()));
  return m;
}

}  // namespace

TEST_CASE("regular expressions that match") {
  for (const auto& [pattern, text] : std::to_array<Yes>({
           {"", ""},
           {"abc", "abc"},
           {"a|bc", "bc"},
           {"a|", ""},
           {"(a|b)*c", "ababc"},
           {"a+b?", "aa"},
           {"a*?b", "aab"},
           {"a{2}", "aa"},
           {"a{2,}", "aaaaa"},
           {"a{1,3}", "aaa"},
           {"a{,3}", "a{,3}"},  // no repetition: as it stands
           {"a{x", "a{x"},
           {"(a{1,2}){2}", "aaa"},
           {".", "\xC3\xA4"},
           {"..", "\xE2\x82\xAC\xF0\x9F\x98\x80"},
           {"(?s).", "\n"},
           {"[^a]", "\n"},
           {"[a-c]+", "abcab"},
           {"[]a]+", "]a"},
           {"[^]a]", "b"},
           {"[a-]+", "a-"},
           {"[\\d_]+", "1_2"},
           {"[[:alpha:]-]+", "a-Z"},
           {"[[:^digit:]]", "x"},
           {"[\xC3\xA4-\xC3\xBC]", "\xC3\xB6"},
           {"\\w+@\\w+\\.com", "me@here.com"},
           {"\\d\\D\\s\\S\\w\\W", "1a xA-"},
           {"\\x41\\x{42}\\103\\n", "ABC\n"},
           {"\\Qa.b*\\E+", "a.b**"},
           {"\\.\\-\\/\\*", ".-/*"},
           {"(?i)straSSe \xC3\x84", "STRASSE \xC3\xA4"},
           {"(?i:A)b", "ab"},
           {"(?i)[^a]", "b"},
           {"(?P<year>\\d+)-(?<month>\\d+)", "2024-05"},
           {"(?:ab)+", "abab"},
           {"^a$", "a"},
           {"(?m)a$\\n^b", "a\nb"},
           {"\\Aab\\z", "ab"},
           {"a\\b b", "a b"},
           {"a\\Bb", "ab"},
           {"(a*)*", "aaa"},
           {"(a*)+(b|)", ""},
           {"(\\W|^)[\\w.\\-]{0,25}@(yahoo|gmail)\\.com(\\W|$)", "account@gmail.com"},
       }))
    CHECK_MESSAGE(matches(pattern, text), std::string(pattern) << " on " << std::string(text));
}

TEST_CASE("regular expressions that do not match") {
  for (const auto& [pattern, text] : std::to_array<Yes>({
           {"", "a"},
           {"abc", "abcd"},
           {"abc", "xabc"},
           {"a|b", "ab"},
           {"a{2}", "aaa"},
           {"a{2,3}", "a"},
           {".", "\n"},
           {".", "\xC3"},  // no UTF-8
           {".", "\xED\xA0\x80"},
           {"[^a]", "\xFF"},
           {"\\s", "\v"},
           {"\\w", "\xC3\xA4"},
           {"(?i)[^a]", "A"},
           {"(?i:A)b", "aB"},
           {"((?i)a)b", "aB"},
           {"a$\\nb", "a\nb"},
           {"a\\bb", "ab"},
           {"(?m)^a", "a\n"},
           {"[[:upper:]]", "a"},
       }))
    CHECK_MESSAGE(!matches(pattern, text), std::string(pattern) << " on " << std::string(text));
}

TEST_CASE("regular expressions that are refused") {
  for (const char* pattern :
       {"(",     ")",       "a)",         "[a",      "[b-a]", "[[:letter:]]", "*a",
        "a**",   "a{2}{3}", "a{1001}",    "a{3,2}",  "\\",    "\\1",          "\\y",
        "(?=a)", "(?<!a)",  "(?P=x)",     "(?P<>a)", "(?x)a", "\\x{110000}",  "\\xg1",
        "\xFF",  "\\pL",    "\\p{Greek}", "[\\PN]",  "\\C",   "[a-\\d]"})
    CHECK_MESSAGE(fault(pattern) != "none", pattern);
  CHECK(fault("\\p{Greek}").find("not supported") != std::string::npos);
}

TEST_CASE("regular expressions that are made to take long") {
  const std::string many(20000, 'a');
  CHECK(!matches("(a*)*b", many));
  CHECK(!matches("(a|a|aa)+$b", many));
  CHECK(matches("(a?){500}a{500}", many.substr(0, 500)));
  CHECK(!matches("(.*)(.*)(.*)(.*)(.*)[^a]", many));
  // What repetitions multiply to is bounded, also where they repeat nothing.
  CHECK(fault("((a{100}){100}){100}").find("steps") != std::string::npos);
  CHECK(fault("((((a{1000}){1000}){1000}){1000})").find("steps") != std::string::npos);
  CHECK(matches("((((){1000}){1000}){1000}){1000}", ""));
  CHECK(fault(std::string(100000, '(')) != "none");
  int asked = 0;
  const auto r = Regex::compile("a*");
  CHECK(!r->matches(many, [&] { return ++asked == 3; }));
  CHECK(asked == 3);
}

TEST_CASE("random numbers: the generator") {
  // Philox 4x32-10, counter and key 0: 6627e8d5 e169c58d bc57ac4c 9b00dbd8.
  const Tensor t =
      drawn("g () => (double[2] y) { y = RandomUniform<dtype=11, seed=0.0, shape=[2]>() }", {})[0];
  CHECK(t.at_f64(0) == static_cast<double>(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
  CHECK(t.at_f64(1) == static_cast<double>(0xbc57ac4c9b00dbd8ull >> 11) * 0x1p-53);
}

TEST_CASE("random numbers: statistics") {
  const std::string n = "20000";
  const auto near = [](double a, double b, double by) { return std::fabs(a - b) < by; };
  Moments m = moments(drawn(
      "g () => (float[" + n + "] y) { y = RandomUniform<low=-1.0, high=3.0, shape=[" + n + "]>() }",
      {})[0]);
  CHECK(near(m.mean, 1, 0.05));
  CHECK(near(m.deviation, 4 / std::sqrt(12.0), 0.03));
  CHECK((m.low >= -1 && m.low < -0.99 && m.high < 3 && m.high > 2.99));
  m = moments(drawn("g () => (double[" + n +
                        "] y) { y = RandomNormal<dtype=11, mean=2.0, scale=0.5, shape=[" + n +
                        "]>() }",
                    {})[0]);
  CHECK(near(m.mean, 2, 0.02));
  CHECK(near(m.deviation, 0.5, 0.01));
  CHECK((m.high > 3.4 && m.low < 0.6));

  auto [x, p] = Tensor::allocate(DType::f16, {10000});
  for (int64_t k = 0; k < 10000; ++k) Tensor::put(DType::f16, p, k, k < 5000 ? 0.25 : 1);
  const Tensor like =
      drawn("g (float16[10000] x) => (float16[10000] y) { y = RandomUniformLike(x) }", {x})[0];
  CHECK(like.dtype() == DType::f16);
  CHECK(moments(like).high < 1);  // which f16 would round 0.9999 to
  const Tensor bits =
      drawn("g (float16[10000] x) => (bool[10000] y) { y = Bernoulli<dtype=9>(x) }", {x})[0];
  CHECK(bits.dtype() == DType::boolean);
  m = moments(bits);
  CHECK(near(m.mean, 0.625, 0.02));
  for (int64_t k = 5000; k < 10000; ++k) CHECK(bits.at_i64(k) == 1);

  const Tensor logits = Tensor::of_f32({2, 3}, {0, std::log(3.0f), -INFINITY, 7, -INFINITY, 7});
  const Tensor s = drawn(
      "g (float[2,3] x) => (int64[2,4000] y) { y = Multinomial<dtype=7, sample_size=4000>(x) }",
      {logits})[0];
  CHECK(s.dims() == std::vector<int64_t>{2, 4000});
  int counts[2][3] = {};
  for (int64_t k = 0; k < s.numel(); ++k) ++counts[k / 4000][s.at_i64(k)];
  CHECK(near(counts[0][1], 3000, 150));
  CHECK(counts[0][2] == 0);
  CHECK(near(counts[1][0], 2000, 150));
  CHECK(counts[1][1] == 0);
}

TEST_CASE("random numbers: which are the same") {
  const std::string unseeded = "g () => (float[8] y) { [a] y = RandomNormal<shape=[8]>() }";
  const auto twice = drawn(unseeded, {}, 2);
  CHECK(!twice[0].identical(twice[1]));                  // a run draws new ones
  CHECK(twice[1].identical(drawn(unseeded, {}, 2)[1]));  // a session repeats them
  const Tensor other = drawn("g () => (float[8] y) { [b] y = RandomNormal<shape=[8]>() }", {})[0];
  CHECK(!twice[0].identical(other));  // nodes have their own
  const std::string seeded =
      "g () => (float[8] y) { [NAME] y = RandomNormal<shape=[8], seed=3.5>() }";
  std::string renamed = seeded;
  renamed.replace(renamed.find("NAME"), 4, "elsewhere");
  CHECK(drawn(seeded, {})[0].identical(drawn(renamed, {})[0]));  // unless a seed says so

  // Turns of a loop, and nodes that look the same: nothing folds, shares or repeats them.
  EngineOptions options;
  options.rule_dirs = {rules_dir()};
  options.target = "cpu-avx2";
  const auto knowledge = must(load_knowledge(options));
  const Fused fused = must(
      ferrule::fuse(graph("g () => (float[8] y, float[8] z) { a = RandomNormal<shape=[8]>() b = "
                          "RandomNormal<shape=[8]>() c = Relu(a) y = Add(c, b) z = Mul(a, b) }"),
                    *knowledge, options));
  int left = 0;
  for (NodeId id : fused.graph.order()) left += fused.graph.node(id).op.text() == "RandomNormal";
  CHECK(left == 2);
  const Tensor turns = drawn(
      "g () => (float[3,8] y) {\n n = Constant<value_int=3>()\n y = Loop<body = b (int64 i, bool "
      "c) "
      "=> (bool d, float[8] r) { d = Identity(c) r = RandomNormal<shape=[8], seed=1.0>() }>(n, "
      "\"\")\n}",
      {})[0];
  for (int64_t k = 0; k < 8; ++k) CHECK(turns.at_f64(k) != turns.at_f64(8 + k));
}
