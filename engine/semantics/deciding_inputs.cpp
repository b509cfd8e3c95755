#include "engine/semantics/deciding_inputs.h"

#include <map>

#include "engine/graph/operator_name.h"

namespace ferrule {
namespace {

/// By operator, the inputs whose elements say how large its results are.
const std::map<std::string_view, std::vector<size_t>>& deciding() {
  static const std::map<std::string_view, std::vector<size_t>> kDeciding = {
      {"AffineGrid", {1}},
      {"BlackmanWindow", {0}},
      {"CenterCropPad", {1}},
      {"Col2Im", {1, 2}},
      {"ConstantOfShape", {0}},
      {"DFT", {1, 2}},
      {"Expand", {1}},
      {"HammingWindow", {0}},
      {"HannWindow", {0}},
      {"If", {0}},
      {"Loop", {0, 1}},
      {"MaxUnpool", {2}},
      {"MelWeightMatrix", {0, 1}},
      {"OneHot", {1}},
      {"Pad", {1, 3}},
      {"Range", {0, 1, 2}},
      {"ReduceL1", {1}},
      {"ReduceL2", {1}},
      {"ReduceLogSum", {1}},
      {"ReduceLogSumExp", {1}},
      {"ReduceMax", {1}},
      {"ReduceMean", {1}},
      {"ReduceMin", {1}},
      {"ReduceProd", {1}},
      {"ReduceSum", {1}},
      {"ReduceSumSquare", {1}},
      {"Reshape", {1}},
      {"Resize", {1, 2, 3}},
      {"STFT", {1, 3}},
      {"Slice", {1, 2, 3, 4}},
      {"Split", {1}},
      {"Squeeze", {1}},
      {"Tile", {1}},
      {"TopK", {1}},
      {"Unsqueeze", {1}},
  };
  return kDeciding;
}

}  // namespace

std::vector<ValueId> deciding_inputs(const Node& n) {
  std::vector<ValueId> out;
  if (!n.domain.empty() && n.domain != "ai.onnx") return out;
  const auto it = deciding().find(operator_name(n.op));
  if (it == deciding().end()) return out;
  for (size_t slot : it->second)
    if (slot < n.inputs.size() && n.inputs[slot]) out.push_back(n.inputs[slot]);
  return out;
}

}  // namespace ferrule
