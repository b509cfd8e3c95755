// Random chains of movements and pointwise operators, for the tests of every kind of kernel that
// runs regions in pieces.
#pragma once
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "engine/semantics/infer.h"
#include "tests/unit/codegen/shipped_operators.h"

namespace ferrule::test {

/// A graph that grows by nodes; shapes are inferred as it does.
class Chain {
 public:
  using Dims = std::vector<int64_t>;
  Graph g;
  std::vector<NodeId> nodes;

  ValueId input(DType t, const Dims& d) {
    return g.add_input(g.fresh_name("x"), {t, Shape(d.begin(), d.end())});
  }
  ValueId ints(const Dims& v) { return ints(v, {static_cast<int64_t>(v.size())}); }
  ValueId ints(const Dims& v, const Dims& dims) {
    return g.add_constant(g.fresh_name("c"), Tensor::of_i64(dims, v));
  }
  ValueId node(std::string op, std::vector<ValueId> inputs,
               std::map<std::string, Attr> attrs = {}) {
    return several(std::move(op), std::move(inputs), std::move(attrs), 1)[0];
  }
  std::vector<ValueId> several(std::string op, std::vector<ValueId> inputs,
                               std::map<std::string, Attr> attrs, size_t outputs) {
    Node n;
    n.op = std::move(op);
    n.name = g.fresh_name(n.op.text());
    n.inputs = std::move(inputs);
    for (auto& [k, v] : attrs) n.attrs.set(k, v);
    for (size_t k = 0; k < outputs; ++k) n.outputs.push_back(g.add_value(g.fresh_name("v")));
    auto results = n.outputs;
    nodes.push_back(g.add_node(std::move(n)));
    auto ok = infer(operators(), g, nodes.back());
    REQUIRE_MESSAGE(ok.has_value(), (ok ? "" : render(ok.error())));
    return results;
  }
  Dims dims(ValueId v) const { return *constant_shape(*g.value(v).type.shape); }
};

/// Small whole numbers.
inline Tensor sample(DType t, const Chain::Dims& dims, std::mt19937& random) {
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  const auto size = static_cast<size_t>(size_bits(t)) / 8;
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    const Tensor one = Tensor::scalar(t, std::uniform_int_distribution<int>(-40, 40)(random));
    std::memcpy(static_cast<char*>(bytes) + static_cast<size_t>(k) * size, one.data(), size);
  }
  return tensor;
}

/// A movement or a pointwise operator behind `v`, chosen at random.
inline ValueId grow(Chain& c, ValueId v, DType type, std::mt19937& random) {
  auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  using Dims = Chain::Dims;
  const Dims d = c.dims(v);
  const auto rank = static_cast<int64_t>(d.size());
  const int64_t axis = pick(0, rank - 1), size = d[static_cast<size_t>(axis)];
  switch (pick(0, 11)) {
    case 0:
    case 1: {
      Dims perm(d.size());
      std::iota(perm.begin(), perm.end(), 0);
      std::shuffle(perm.begin(), perm.end(), random);
      return c.node("Transpose", {v}, {{"perm", perm}});
    }
    case 2: {
      const int64_t step = pick(0, 3) == 0 ? -1 : pick(1, 2),
                    start = step < 0 ? size - 1 : pick(0, size - 1);
      const int64_t end = step < 0 ? -size - 1 : pick(start + 1, size);
      return c.node("Slice", {v, c.ints({start}), c.ints({end}), c.ints({axis}), c.ints({step})});
    }
    case 3: {
      Dims other = d;
      other[static_cast<size_t>(axis)] = pick(1, 4);
      const ValueId w = c.input(type, other);
      return pick(0, 1) ? c.node("Concat", {v, w}, {{"axis", axis}})
                        : c.node("Concat", {w, v, w}, {{"axis", axis}});
    }
    case 4: {
      const char* modes[] = {"constant", "edge", "reflect", "wrap"};
      Dims pads(2 * d.size(), 0);
      pads[static_cast<size_t>(axis)] = pick(size > 1 ? -1 : 0, size - 1),
      pads[static_cast<size_t>(axis) + d.size()] = pick(0, size - 1);
      return c.node("Pad", {v, c.ints(pads)}, {{"mode", std::string(modes[pick(0, 3)])}});
    }
    case 5: {
      Dims to = d;
      to.insert(to.begin(), 2);
      return rank < 5 ? c.node("Expand", {v, c.ints(to)}) : v;
    }
    case 6: {
      Dims times(d.size(), 1);
      times[static_cast<size_t>(axis)] = pick(1, 3);
      return c.node("Tile", {v, c.ints(times)});
    }
    case 7: {
      Dims indices;
      if (pick(0, 1)) {
        const int64_t depth = pick(1, std::min<int64_t>(rank, 2)), count = pick(1, 4);
        for (int64_t k = 0; k < count * depth; ++k) {
          const int64_t most = d[static_cast<size_t>(k % depth)];
          indices.push_back(pick(0, 1) ? (k / depth) % most : pick(-most, most - 1));
        }
        return c.node("GatherND", {v, c.ints(indices, {count, depth})},
                      {{"batch_dims", int64_t{0}}});
      }
      for (int64_t k = pick(1, 5); k > 0; --k) indices.push_back(pick(-size, size - 1));
      return c.node("Gather", {v, c.ints(indices)}, {{"axis", axis}});
    }
    case 8: {  // two axes made one, or one made two
      Dims to = d;
      if (rank > 1 && pick(0, 1)) {
        const auto at = static_cast<size_t>(pick(0, rank - 2));
        to[at] *= to[at + 1];
        to.erase(to.begin() + static_cast<int64_t>(at) + 1);
      } else if (size % 2 == 0 && rank < 5) {
        to[static_cast<size_t>(axis)] /= 2;
        to.insert(to.begin() + axis + static_cast<int64_t>(pick(0, 1)), 2);
      }
      return c.node("Reshape", {v, c.ints(to)}, {{"allowzero", int64_t{0}}});
    }
    case 9:
      if (rank == 4 && d[1] % 4 == 0)
        return c.node(
            "DepthToSpace", {v},
            {{"blocksize", int64_t{2}}, {"mode", std::string(pick(0, 1) ? "DCR" : "CRD")}});
      if (rank == 4 && d[2] % 2 == 0 && d[3] % 2 == 0)
        return c.node("SpaceToDepth", {v}, {{"blocksize", int64_t{2}}});
      return v;
    case 10: {
      Dims other = d;
      if (pick(0, 1)) other[static_cast<size_t>(axis)] = 1;
      return c.node("Add", {v, c.input(type, other)});
    }
    default:
      return c.node("Relu", {v});
  }
}

}  // namespace ferrule::test
