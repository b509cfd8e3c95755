// Constants in the device's memory. A pool holds what some executable still uses, so that plans for
// several shapes share one copy of the weights; each executable sees it through a Holder of its
// own, which keeps what it asked for.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/cuda/device.h"
#include "runtime/cuda/kernel.h"

namespace ferrule::cuda {

class ConstantPool {
 public:
  struct Entry {
    Tensor source;  ///< so that its address is not used for other bytes
    Buffer buffer;
  };
  /// errors: those of Device::check.
  Result<std::shared_ptr<Entry>> get(Device& device, const Tensor& tensor, std::string_view recipe,
                                     int64_t bytes, const std::function<void(void*)>& fill);

 private:
  using Key = std::tuple<const void*, std::string, int64_t>;
  std::mutex mutex_;
  std::map<Key, std::weak_ptr<Entry>> entries_;
};

class ConstantHolder final : public Constants {
 public:
  ConstantHolder(Device& device, ConstantPool& pool) : device_(device), pool_(pool) {}
  Result<Address> plain(const Tensor& tensor) override;
  Result<Address> derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                         const std::function<void(void*)>& fill) override;
  int64_t bytes() const;

 private:
  Device& device_;
  ConstantPool& pool_;
  std::map<const ConstantPool::Entry*, std::shared_ptr<ConstantPool::Entry>> held_;
};

}  // namespace ferrule::cuda
