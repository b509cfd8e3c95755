// What could stand in an open place of a pattern: the shape of an operand beside others, the
// contents of a list of integers, the numbers of a constant, the value of an attribute. Proposals
// know nothing of operators: they are ways in which shapes and lists are usually made of each
// other, and inference says which of them fit. Ways that fitted an operator's operand before are
// taken more often.
#pragma once
#include "engine/onnx/schema.h"
#include "engine/proof/draw.h"
#include "engine/proof/hints.h"

namespace ferrule {

/// Of a tensor that is drawn, at most.
inline constexpr size_t kRank = 10;

/// What one instance has in common: its ordinary shape and element type.
struct World {
  Shape base;
  DType dtype = DType::f32;
};

class Proposer {
 public:
  /// An operand by which ways are learned: of its operator, and of that in one mode each.
  using Place = std::vector<std::string>;
  Proposer(const Hints& hints, Draw& draw) : hints_(hints), draw_(draw) {}

  /// From here on sizes, ranks and attributes are often these numbers, sizes also what holds them
  /// twice or squared; none: as the hints say.
  void aim(const std::vector<int64_t>& numbers);
  /// One of the sizes that are aimed at; else a small one.
  int64_t another_size();
  /// How many operands a list has: as many as given, or as conditions ask for.
  int64_t count(int64_t usual);
  World world(const std::vector<DType>& types);
  /// An element type, one of these where there are any.
  DType element(const std::vector<DType>& types);
  int64_t size();
  /// `known`: shapes of the operands beside it, the first counts most. `way`: how it was made, for
  /// learned().
  Shape shape(const World& w, const std::vector<Shape>& known, const Place& place, int& way);
  /// A list (or a single one) of integers beside an operand of this shape: axes, sizes, pads,
  /// starts, indices, … `listed`: how many elements the operator's list before this one has, -1:
  /// there is none.
  Tensor integers(DType t, const Shape& beside, const Graph& g, const Place& place, int& way,
                  int64_t listed = -1);
  /// Numbers for a constant.
  Tensor contents(DType t, const std::vector<int64_t>& dims, const Graph& g);
  std::optional<Attr> attribute(std::string_view op, const AttributeSchema& a, int rank);
  /// The way was one that fits.
  void learned(const Place& place, int way) {
    for (const std::string& p : place) ways_[p].push_back(way);
  }

 private:
  int choose(const Place& place, int ways);
  std::vector<int64_t> list(const Shape& beside, const Graph& g, int way, int64_t listed);
  std::vector<int64_t> axes(int rank, int64_t listed);
  std::vector<int64_t> beyond(const Shape& s, int64_t count);
  std::vector<int64_t> regrouped(const Shape& s);
  Shape some_ones(Shape s);

  std::vector<int64_t> permutation(size_t rank);

  const Hints& hints_;
  Draw& draw_;
  std::vector<int64_t> few_;  ///< the sizes of this world; empty: any
  std::vector<int64_t> aimed_, aimed_sizes_;
  std::map<std::string, std::vector<int>, std::less<>> ways_;
};

}  // namespace ferrule
