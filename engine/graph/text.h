// The graph as text: ONNX's own text syntax where ONNX has one, groups as calls with their body
// indented below. It is what explain --stage prints and what golden tests hold; stable names, no
// addresses.
#pragma once
#include <string>

#include "engine/graph/graph.h"

namespace ferrule {

struct TextOptions {
  bool types = true;         ///< types behind outputs
  bool bodies = true;        ///< group bodies and nested graphs
  int64_t max_elements = 8;  ///< elements of a constant that are written out
};
std::string to_text(const Graph& g, const TextOptions& options = {});

}  // namespace ferrule
