// Constants that plans make of the model's, such as joined weights. The plans of one model share
// them, so that a size that comes later finds them made, and packed by the kernels.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/tensor.h"

namespace ferrule {

/// Keeps nothing alive. For any number of threads.
class MadeConstants {
 public:
  /// What `make` gives; or gave before for this recipe and the same sources, if somebody still has
  /// it.
  Tensor get(std::string_view recipe, std::span<const Tensor> sources,
             const std::function<Tensor()>& make);

 private:
  struct Made {
    std::vector<WeakTensor> sources;  ///< alive: their addresses still mean the same bytes
    WeakTensor tensor;
  };
  std::mutex mutex_;
  std::map<std::string, Made> made_;
};

}  // namespace ferrule
