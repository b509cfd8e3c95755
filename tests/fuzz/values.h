// Elements of tensors for random graphs, and how ONNX's text syntax writes them.
#pragma once
#include <string>

#include "engine/graph/tensor.h"
#include "tests/fuzz/draw.h"

namespace ferrule::fuzz {

/// What elements are like.
enum class Mood : uint8_t {
  exact,  ///< small multiples of 1/2: sums of products round nowhere, so every order of them gives
          ///< the same
  plain,  ///< between -2 and 2
  positive,  ///< between 1/4 and 2
  wild,      ///< exact, but for NaN, infinities, -0, denormals and huge numbers here and there
};

Tensor draw_values(Draw& draw, DType dtype, const Dims& dims, Mood mood);

/// Whether a wrong kernel could have made it as well: constant, or for the most part 0, not finite,
/// or so small beside the largest element that the tolerance's floor covers it.
bool says_nothing(const Tensor& tensor);

/// "float16[2,3]"; "float" for rank 0.
std::string type_text(DType dtype, const std::vector<std::string>& dims);
std::string type_text(DType dtype, const Dims& dims);
/// "{1, -0.5, nan}".
std::string elements_text(const Tensor& tensor);

}  // namespace ferrule::fuzz
