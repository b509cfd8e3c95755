// What inference finds of a node's outputs.
#pragma once
#include <optional>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

/// Elements up to which contents are followed: shapes, axes, sizes.
inline constexpr int64_t kMaxContents = 256;

struct Inferred {
  std::vector<Type> types;
  std::vector<std::optional<std::vector<Dim>>>
      contents;  ///< known integer contents of outputs where there are any
};
/// Known integer contents of a value: of a small constant, or as inference found them.
std::optional<std::vector<Dim>> contents_of(const Graph& g, ValueId v);

}  // namespace ferrule
