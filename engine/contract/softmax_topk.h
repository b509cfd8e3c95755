// The selection of the largest or smallest elements of a softmax
// (rules/contracts/softmax_topk.yaml) as kernels see it, read from a group's roles.
#pragma once
#include "engine/contract/roles.h"

namespace ferrule {

struct SoftmaxTopK {
  /// What is selected and given: LogSoftmax does not underflow, the logarithm of a Softmax does.
  enum class Form : uint8_t { softmax, log_softmax, log_of_softmax } form = Form::softmax;
  size_t x = 0;                                     ///< slot of the group's input
  std::optional<size_t> values = {}, indices = {};  ///< of its results; none: nobody reads them
  int64_t k = 0;
  bool largest = true;
};
SoftmaxTopK softmax_topk_of(const Roles& roles);

}  // namespace ferrule
