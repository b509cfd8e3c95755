// Axis maps: through each kind of movement, and cut where one of them is cut; what a map says is
// compared with what the movement does to numbers.
#include "engine/contract/roles.h"

#include "tests/unit/engine/kit.h"

using namespace ferrule;
using namespace kit;

namespace {

/// The map of y's axes onto x, or of x's onto y (`forward`): by the nodes between them.
std::string map_of(const std::string& text, bool forward = false) {
  const Graph g = graph(text);
  ValueId at = g.find_value(forward ? "x" : "y");
  std::optional<AxisMap> map = whole_axes(*g.value(at).type.shape);
  while (map) {
    const NodeId n = forward ? (g.value(at).uses.empty() ? NodeId{} : g.value(at).uses[0].node)
                             : g.value(at).producer;
    if (!n) return ferrule::text(*map);
    map = moved_axes(*map, g, g.node(n), forward);
    at = forward ? g.output(n) : g.input(n, 0);
  }
  return "none";
}

}  // namespace

TEST_CASE("where the axes of a role lie behind movements") {
  const std::string turn = "agraph (float[2,S,3,8] x) => (float[2,3,S,8] y) ";
  CHECK(map_of(turn + "{ y = Transpose<perm=[0,2,1,3]>(x) }") == "[0, 2, 1, 3]");
  CHECK(map_of(turn + "{ y = Transpose<perm=[0,2,1,3]>(x) }", true) == "[0, 2, 1, 3]");
  CHECK(map_of("agraph (float[4,5,6] x) => (float[6,4,5] y) { y = Transpose<perm=[2,0,1]>(x) }") ==
        "[2, 0, 1]");
  CHECK(map_of("agraph (float[4,5,6] x) => (float[6,4,5] y) { y = Transpose<perm=[2,0,1]>(x) }",
               true) == "[1, 2, 0]");
  // Heads: one axis in two, whatever the sequence's size.
  const std::string heads =
      "agraph (float[N,S,24] x) => (float[N,3,S,8] y) <int64[4] d = {0, 0, 3, 8}> "
      "{ t = Reshape(x, d)\n y = Transpose<perm=[0,2,1,3]>(t) }";
  CHECK(map_of(heads) == "[0, 2:8, 1, 2]");
  CHECK(map_of(heads, true) == "[0, 2, 1+3]");
  // Two axes in one, parts across axes, and sizes that do not fit into each other.
  const std::string regroup = "agraph (float[2,3,4] x) => (float[A,B] y) <int64[2] d = ";
  CHECK(map_of(regroup + "{6, 4}> { y = Reshape(x, d) }") == "[0+1, 2]");
  CHECK(map_of(regroup + "{2, 12}> { y = Reshape(x, d) }") == "[0, 1+2]");
  CHECK(map_of("agraph (float[4,6] x) => (float[8,3] y) <int64[2] d = {8, 3}> "
               "{ y = Reshape(x, d) }") == "[0+1:3, 1]");
  CHECK(map_of("agraph (float[4,6] x) => (float[6,4] y) <int64[2] d = {6, 4}> "
               "{ y = Reshape(x, d) }") == "none");
  // Repetition.
  CHECK(map_of("agraph (float[2,2,7,8] x) => (float[2,6,7,8] y) <int64[1] a = {2}, "
               "int64[5] many = {2, 2, 3, 7, 8}, int64[4] d = {2, 6, 7, 8}> "
               "{ t = Unsqueeze(x, a)\n u = Expand(t, many)\n y = Reshape(u, d) }") ==
        "[0, 1+-, 2, 3]");
  CHECK(map_of("agraph (float[1,7] x) => (float[5,7] y) <int64[2] d = {5, 7}> { y = Expand(x, d) }",
               true) == "none");
  // What reads parts or several operands has no such map.
  CHECK(map_of("agraph (float[2,8] x) => (float[2,4] y) <int64[1] b = {0}, int64[1] e = {4}, "
               "int64[1] a = {1}> { y = Slice(x, b, e, a) }") == "none");
  CHECK(map_of("agraph (float[0,8] x) => (float[0] y) <int64[1] d = {0}> "
               "{ y = Reshape<allowzero=1>(x, d) }") == "none");
  CHECK(map_of("agraph (float[N,M] x) => (float[P] y) <int64[1] d = {-1}> { y = Reshape(x, d) }") !=
        "[0]");
}

TEST_CASE("runs of axes are cut alike") {
  auto cut = [](AxisMap a, AxisMap b) {
    const size_t m = a.size(), n = b.size();
    return cut_alike({&a, &b}, {m, n}) ? text(a) + " " + text(b) : "none";
  };
  const AxisMap whole = whole_axes({2, 6}), grouped = {{{0, 1, 2}}, {{1, 1, 2}, {-1, 1, 3}}};
  CHECK(cut(whole, whole) == "[0, 1] [0, 1]");
  CHECK(cut(whole, grouped) == "[0, 1:3, 1] [0, 1, -]");
  CHECK(cut(grouped, whole_axes({6})) == "[0, 1, -] [0:3, 0]");
  CHECK(cut(grouped, whole_axes({1, 1})) == "[0, 1, -] [-, -, -]");
  CHECK(cut(grouped, {{{0, 1, 3}, {1, 1, 2}}}) == "none");
  CHECK(cut(whole_axes({Dim::symbol("N"), 4}), whole_axes({Dim::symbol("N"), 4})) ==
        "[0, 1] [0, 1]");
}
