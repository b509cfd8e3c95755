// Einsum's equation, read once for inference and the interpreter.
#pragma once
#include <string>
#include <string_view>
#include <tl/expected.hpp>
#include <vector>

namespace ferrule {

/// One character a label, "." for an ellipsis.
struct EinsumEquation {
  std::vector<std::string> terms{""};  ///< of each input
  std::string out;  ///< where the equation leaves it to the terms: what occurs once, sorted

  /// errors: what is wrong with it.
  static tl::expected<EinsumEquation, std::string> of(std::string_view text);
};

}  // namespace ferrule
