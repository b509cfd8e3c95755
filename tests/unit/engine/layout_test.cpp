// map and filter, Transposes counted below a value, index equations as products.
#include "tests/unit/engine/kit.h"

#include "engine/rule/expr.h"

using namespace kit;

namespace {
std::string show(const Graph& g, std::string_view text) {
  Bindings b;
  for (uint32_t i = 0; i < g.value_slots(); ++i)
    if (!g.value(ValueId{i}).dead) b.values.emplace(g.value(ValueId{i}).name, ValueId{i});
  const Let let;
  const EvalContext ctx{g, b, ops(), let};
  auto e = parse_expression(text, Place{"test", 1, 1});
  REQUIRE_MESSAGE(e.has_value(), text);
  return str(evaluate(**e, ctx), g);
}
bool known(const Graph& g, const std::string& text) {
  return show(g, "known(" + text + ")") == "true";
}
}  // namespace

TEST_CASE("map and filter make lists, and are unknown where an element is") {
  Graph g = graph("g (float[N,3] x) => (float[N,3] y) { y = Relu(x) }");
  CHECK(show(g, "map(i in range(0, 3): i * i)") == "[0, 1, 4]");
  CHECK(show(g, "filter(i in range(0, 6): i mod 2 == 1)") == "[1, 3, 5]");
  CHECK(show(g, "map(i in []: i)") == "[]");
  CHECK(show(g, "count(filter(i in range(0, 2): dim(x, 1) == 3))") == "2");
  CHECK_FALSE(known(g, "filter(i in range(0, 2): dim(x, 0) == 3)"));
  CHECK_FALSE(known(g, "map(i in range(0, 2): dim(x, i + 5))"));
  auto e = parse_expression("map(range(0, 3))", Place{"test", 1, 1});
  REQUIRE_FALSE(e.has_value());
  CHECK(render(e.error()).find("map(v in list: expression)") != std::string::npos);
}

TEST_CASE(
    "a Transpose that meets its inverse is one less, one that merges none, one that stays one "
    "more") {
  auto below = [](const std::string& lines, const char* output) {
    Graph g =
        graph("g (float[2,3,4] x, float[4,2,3] z) => (" + std::string(output) +
              " o) <float[3] k = {1, 2, 3}> { t = Transpose<perm=[2,0,1]>(x) " + lines + " }");
    return show(g, "transposes_below(t, [2, 0, 1])");
  };
  CHECK(below("o = Transpose<perm=[1,2,0]>(t)", "float[2,3,4]") == "-1");
  CHECK(below("o = Transpose<perm=[2,1,0]>(t)", "float[3,2,4]") == "0");
  CHECK(below("o = Relu(t)", "float[4,2,3]") == "1");
  CHECK(below("u = Relu(t) v = Mul(u, k) w = Softmax(v) o = Transpose<perm=[1,2,0]>(w)",
              "float[2,3,4]") == "-1");
  CHECK(below("u = Add(t, z) o = Transpose<perm=[1,2,0]>(u)", "float[2,3,4]") == "1");
  CHECK(below("u = Mul(t, t) o = Transpose<perm=[1,2,0]>(u)", "float[2,3,4]") == "-1");
  CHECK(below("u = Relu(t) v = Transpose<perm=[1,2,0]>(u) w = ReduceSum(u) o = Add(v, w)",
              "float[2,3,4]") == "0");
}

TEST_CASE("operands transposed alike go together") {
  Graph g = graph(
      "g (float[2,3] x, float[2,3] z) => (float[4,3] o) { t = Transpose<perm=[1,0]>(x) u = "
      "Transpose<perm=[1,0]>(z) "
      "c = Concat<axis=1>(t, u) o = Transpose<perm=[1,0]>(c) }");
  CHECK(show(g, "transposes_below(t, [1, 0])") == "-2");
  CHECK_FALSE(known(g, "transposes_below(3, [1, 0])"));
}

TEST_CASE("index equations that are products, and those that are not") {
  Graph g = graph("g (float[2] x) => (float[2] y) { y = Relu(x) }");
  CHECK(show(g, "einsum_matmul('bij,bjk->bik')") == "[[0, 1, 2], [0, 1, 2], [0, 1, 2], false]");
  CHECK(show(g, "einsum_matmul('bqhd,bkhd->bhqk')") ==
        "[[0, 2, 1, 3], [0, 2, 3, 1], [0, 1, 2, 3], false]");
  CHECK(show(g, "einsum_matmul('bhqk,bkhd->bqhd')") ==
        "[[0, 1, 2, 3], [0, 2, 1, 3], [0, 2, 1, 3], false]");
  CHECK(show(g, "einsum_matmul('bsd, de -> bse')") == "[[0, 1, 2], [0, 1], [0, 1, 2], false]");
  CHECK(show(g, "einsum_transpose('abc->cab')") == "[2, 0, 1]");
  for (const char* no : {"i,j->ij", "ij,ij->ij", "ij,jk", "ii,ij->ij", "abc,bcd->ad", "ij,jk->ik,i",
                         "ij,jk->ijk", "i1,1k->ik", "...ij,jk->...ik", "ijx,jk->ik", "ij,jk->ikz",
                         "bmij,bjk->bmik", "ij->ij,jk"}) {
    CAPTURE(no);
    CHECK_FALSE(known(g, std::string("einsum_matmul('") + no + "')"));
  }
  for (const char* no : {"ii->i", "ab->a", "ab->abc", "ab,bc->ac"}) {
    CAPTURE(no);
    CHECK_FALSE(known(g, std::string("einsum_transpose('") + no + "')"));
  }
}

TEST_CASE("index equations with several indices of a kind") {
  Graph g = graph(
      "g (float[N,5,6] x, float[6,2,3] w, float[N,5,2,3] z, float[A,B] o, float[N,1] c) => "
      "(float[N,5,6] y) { y = Relu(x) }");
  // Permutation and Reshape of either factor, Reshape and permutation of the product.
  CHECK(show(g, "einsum_product('abc,cde->abde', x, w)") ==
        "[[0, 1, 2], [0, 5, 6], [0, 1, 2], [6, 6], [0, 5, 2, 3], [0, 1, 2, 3], false]");
  CHECK(show(g, "einsum_product('abde,cde->abc', z, w)") ==
        "[[0, 1, 2, 3], [0, 5, 6], [1, 2, 0], [6, 6], [0, 5, 6], [0, 1, 2], false]");
  CHECK(show(g, "einsum_multiply('abc,cde->abcde', x, w)") ==
        "[[0, 1, 2], [0, 5, 6, 1, 1], [0, 1, 2], [1, 1, 6, 2, 3]]");
  // Sums over one operand, two sizes for one letter, sizes that are not known.
  for (const char* no :
       {"einsum_product('abc,cde->bde', x, w)", "einsum_product('abc,bde->abcde', x, w)",
        "einsum_product('ab,cb->ac', c, o)", "einsum_product('abc,cd->abd', x, o)",
        "einsum_multiply('abc,cde->abde', x, w)", "einsum_multiply('ab,cd->cdab', o, c)",
        "einsum_multiply('ab,ab->ab', o, c)", "einsum_product('abc,cde->abde', x, 3)"}) {
    CAPTURE(no);
    CHECK_FALSE(known(g, no));
  }
}
