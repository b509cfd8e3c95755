// What stands in an ONNX file, for those who compare one with another.
#pragma once
#include <cstdint>
#include <map>
#include <string>

namespace ferrule {

struct FileContents {
  int64_t ir_version = 0;
  std::map<std::string, int64_t> opsets;  ///< domain -> version
  /// Nodes by operator ("com.microsoft.Gelu"), nested graphs and functions included, calls of
  /// functions not.
  std::map<std::string, int> operators;
  int functions = 0;    ///< functions of the model's own
  int value_infos = 0;  ///< types of inner values
  int metadata = 0;     ///< entries about the whole model
};

}  // namespace ferrule
