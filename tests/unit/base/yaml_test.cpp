// Strict YAML: what is read, with places; what is refused, all at once, each with its place and
// hint.
#include <doctest/doctest.h>

#include "engine/base/suggest.h"
#include "engine/base/yaml.h"

using namespace ferrule;
using yaml::Reader;

namespace {

Result<yaml::Document> read(std::string_view text, Limits limits = {}) {
  return yaml::read_text(text, "t.yaml", limits);
}

/// The rendered errors of a text that must be refused.
std::string refused(std::string_view text, Limits limits = {}) {
  auto doc = read(text, limits);
  REQUIRE_FALSE(doc);
  return render(doc.error());
}

bool has(const std::string& text, std::string_view part) {
  CAPTURE(text);
  CAPTURE(part);
  bool found = text.find(part) != std::string::npos;
  CHECK(found);
  return found;
}

}  // namespace

TEST_CASE("nodes know their kind, place and quoting") {
  auto doc = read("a: 1\nb: [x, \"y z\"]\nc:\n  d: 'q'\n  e:\n");
  REQUIRE(doc);
  const yaml::Node& r = doc->root;
  REQUIRE(r.is_map());
  CHECK(r.find("a")->text == "1");
  CHECK_FALSE(r.find("a")->quoted);
  CHECK(r.find("a")->column == 4);
  const yaml::Node* b = r.find("b");
  REQUIRE(b->is_sequence());
  CHECK(b->items[1].text == "y z");
  CHECK(b->items[1].quoted);
  CHECK(b->items[1].line == 2);
  CHECK(b->items[1].column == 8);
  CHECK(b->items[1].position(2) == std::pair(2, 11));
  CHECK(r.find("c")->find("d")->quoted);
  CHECK(r.find("c")->find("e")->is_null());
  CHECK(r.find("nothing") == nullptr);
}

TEST_CASE("places inside | blocks are those of the file") {
  auto doc = read("a:\n  text: |\n    first line\n\n      third\n  next: 2\n");
  REQUIRE(doc);
  const yaml::Node* t = doc->root.find("a")->find("text");
  CHECK(t->text == "first line\n\n  third\n");
  CHECK(t->quoted);
  CHECK(t->position(0) == std::pair(3, 5));
  CHECK(t->position(6) == std::pair(3, 11));
  CHECK(t->position(t->text.find("third")) == std::pair(5, 7));
  auto blank = read("a: |-  # comment with 1 number\n\n   x\nb: \xc3\xa4\xc3\xb6\nc: 'it''s'\n");
  REQUIRE(blank);
  CHECK(blank->root.find("a")->position(1) == std::pair(3, 4));
  CHECK_FALSE(blank->root.find("c")->verbatim);
  CHECK(blank->root.find("c")->position(3) == std::pair(5, 4));
}

TEST_CASE("what YAML allows and we do not") {
  has(refused("a: 1\na: 2\n"), "t.yaml:2:1: key \"a\" is given twice");
  has(refused("a: &x 1\n"), "t.yaml:1:4: an anchor (&) is not allowed");
  has(refused("a: &x 1\nb: *x\n"), "t.yaml:2:4: an alias (*) is not allowed");
  has(refused("a: !!str 1\n"), "t.yaml:1:4: a tag (!) is not allowed");
  has(refused("a: !x [1]\n"), "a tag (!)");
  has(refused("<<: {a: 1}\n"), "t.yaml:1:1: a merge key (<<) is not allowed");
  has(refused("a: 1\n---\nb: 2\n"), "t.yaml:2:1: a second document is not allowed");
  has(refused("%YAML 1.2\n---\na: 1\n"), "t.yaml:1:1: a directive is not allowed");
  has(refused("a:\n\tb: 1\n"), "t.yaml:2:1: a tab is not allowed in a rule file");
  has(refused("\xef\xbb\xbf"
              "a: 1\n"),
      "a byte order mark");
  has(refused(std::string_view("a: x\0y\n", 7)), "t.yaml:1:5: a NUL byte");
  has(refused("a: \xff\n"), "t.yaml:1:4: the byte 0xff, which is not valid UTF-8, is not allowed");
  has(refused("a: \xed\xa0\x80\n"), "the byte 0xed");
  has(refused("a: x\x07y\n"), "the control character 0x07");
  has(refused("[a, b]: 1\n"), "a list as a key");
  has(refused("a: [1, 2\n"), "error[yaml_syntax]");
  has(refused("a: |2\n    x\n"), "an indentation number");
  CHECK(read("a: 1\r\nb: 2\r\n"));
  CHECK(read("a: \"&x *y !z <<\"\n"));
  CHECK(read("---\na: 1\n"));
  CHECK(read(""));
}

TEST_CASE("a last key is left out when asked, if no other follows") {
  auto keys = [](std::string_view text) {
    auto doc = yaml::read_text(text, "t.yaml", {}, "tests");
    REQUIRE(doc);
    std::string out;
    for (const auto& [key, value] : doc->root.entries) out += key.text + " ";
    return out;
  };
  CHECK(keys("a: 1\ntests:\n  b: [\n") == "a ");
  CHECK(keys("a: 1\ntests:\n  b: 2\n\n# end\n  c: 3\n") == "a ");
  CHECK(keys("a: 1\ntests:\n  b: 2\nc: 3\n") == "a tests c ");
  CHECK(keys("a: 1\ntests:\n  b: 2\nc:") == "a tests c ");
  CHECK(keys("a: 1\ntests: {b: 2}\n") == "a tests ");
  CHECK(keys("tests:\n  b: 2\n") == "tests ");
  CHECK(yaml::read_text("a: 1\ntests:\n  b: \t2\n", "t.yaml", {}, "tests").has_value() == false);
}

TEST_CASE("all findings come at once") {
  std::string text = refused("a: &x 1\nb: *x\na: !t 2\n\tc: 1\n");
  has(text, "an anchor");
  has(text, "an alias");
  has(text, "a tab");
}

TEST_CASE("limits") {
  Limits limits;
  limits.yaml_depth = 3;
  CHECK(read("a: [[1]]\n", limits));
  has(refused("a: [[[1]]]\n", limits),
      "t.yaml:1:6: nesting is deeper, more than the limit 3 (yaml_depth)");
  limits.yaml_bytes = 10;
  has(refused("a: 12345678901\n", limits), "size of the file is 15, more than the limit 10");
  CHECK(refused(std::string(20000, '[')).size() > 0);
  auto missing = yaml::read_file("/nonexistent/x.yaml", {});
  REQUIRE_FALSE(missing);
  CHECK(missing.error().code == Code::file_not_found);
}

TEST_CASE("a reader collects what is wrong, with suggestions and carets") {
  auto doc = read("nmae: x\ncount: many\nflag: yes\nkind: rewrit\nlist: {a: 1}\nexpr: a + b\n");
  REQUIRE(doc);
  Reader r(doc->source);
  const yaml::Node& m = doc->root;
  r.keys(m, {"name", "count", "flag", "kind", "list", "expr"});
  r.required(m, "name");
  CHECK(r.integer(*m.find("count")) == 0);
  CHECK_FALSE(r.boolean(*m.find("flag")));
  r.one_of(*m.find("kind"), {"rewrite", "absorb"});
  r.expect(*m.find("list"), yaml::Node::Kind::sequence, "list");
  CHECK(r.quoted(*m.find("expr"), "expr").empty());
  auto s = r.status();
  REQUIRE_FALSE(s);
  CHECK(s.error().more.size() == 6);
  std::string text = render(s.error());
  has(text, "t.yaml:1:1: unknown key \"nmae\"\n  nmae: x\n  ^\nhint: did you mean \"name\"?");
  has(text, "key \"name\" is missing");
  has(text, "t.yaml:2:8: \"many\" where an integer is wanted");
  has(text, "t.yaml:3:7: \"yes\" where true or false is wanted");
  has(text, "\"rewrit\" is none of rewrite, absorb");
  has(text, "hint: did you mean \"rewrite\"?");
  has(text, "list is a map, a list is wanted");
  has(text, "expr is not quoted");
}

TEST_CASE("scalars") {
  auto doc = read(
      "a: -12\nb: 1e-3\nc: .inf\nd: inf\ne: true\nf: [x, y]\ng: \"1\"\nh: 99999999999999999999\n");
  REQUIRE(doc);
  Reader r(doc->source);
  const yaml::Node& m = doc->root;
  CHECK(r.integer(*m.find("a")) == -12);
  CHECK(r.number(*m.find("b")) == 1e-3);
  CHECK(r.number(*m.find("d")) > 1e300);
  CHECK(r.boolean(*m.find("e")));
  CHECK(r.strings(*m.find("f")) == std::vector<std::string>{"x", "y"});
  CHECK(r.strings(*m.find("a")) == std::vector<std::string>{"-12"});
  CHECK(r.count() == 0);
  r.number(*m.find("c"));
  r.integer(*m.find("g"));
  r.integer(*m.find("h"));
  CHECK(r.count() == 3);
}

TEST_CASE("hostile texts neither hang nor crash") {
  std::string bomb = "a: &a [x,x]\n";
  for (int i = 0; i < 30; ++i) bomb += fmt::format("b{}: [*a,*a,*a]\n", i);
  CHECK(refused(bomb).size() < 100000);
  CHECK(refused("a: &x [*x]\n").size() > 0);
  std::string many = "a: &a 1\nb:\n";
  for (int i = 0; i < 100000; ++i) many += "- *a\n";
  has(refused(many), "99901 further errors");
  std::string wide = "a:\n";
  for (int i = 0; i < 50000; ++i) wide += "- b\n";
  CHECK(read(wide));
  std::string esc = refused("a: 1\n\"\\x1b[31m\": 1\n\"\\x1b[31m\": 2\n");
  CHECK(esc.find('\x1b') == std::string::npos);
  std::string longline = refused("a: " + std::string(100000, 'x') + "\na: 1\n");
  CHECK(longline.size() < 2000);
}

TEST_CASE("nearest words") {
  std::vector<std::string> words{"sigmoid", "tanh", "exp"};
  CHECK(nearest("sigmiod", words) == "sigmoid");
  CHECK(nearest("tahn", words) == "tanh");
  CHECK(nearest("convolution", words).empty());
}
