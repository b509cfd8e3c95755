// cuDNN and cuBLASLt, opened at their first use.
#pragma once

namespace ferrule::cuda {

class Device;

class Libraries {
 public:
  explicit Libraries(Device&) {}
};

}  // namespace ferrule::cuda
