#include "runtime/cuda/constants.h"

namespace ferrule::cuda {
namespace {
constexpr const char* kPlace = "constants";
}

Result<std::shared_ptr<ConstantPool::Entry>> ConstantPool::get(
    Device& device, const Tensor& tensor, std::string_view recipe, int64_t bytes,
    const std::function<void(void*)>& fill) {
  std::lock_guard lock(mutex_);
  Key key{tensor.address(), std::string(recipe), bytes};
  if (auto it = entries_.find(key); it != entries_.end())
    if (auto entry = it->second.lock()) return entry;
  std::erase_if(entries_, [](const auto& e) { return e.second.expired(); });
  auto entry = std::make_shared<Entry>();
  entry->source = tensor;
  FERRULE_ASSIGN(entry->buffer, Buffer::make(device, bytes, kPlace));
  std::vector<char> made;
  const void* from = nullptr;
  if (fill) {
    made.resize(static_cast<size_t>(bytes));
    fill(made.data());
    from = made.data();
  } else {
    from = tensor.data();
  }
  FERRULE_TRY(device.upload(entry->buffer.address(), from, bytes, nullptr, kPlace));
  entries_[std::move(key)] = entry;
  return entry;
}

Result<Address> ConstantHolder::plain(const Tensor& tensor) {
  return derive(tensor, "", tensor.bytes(), nullptr);
}

Result<Address> ConstantHolder::derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                                       const std::function<void(void*)>& fill) {
  FERRULE_ASSIGN(auto entry, pool_.get(device_, tensor, recipe, bytes, fill));
  const Address at = entry->buffer.address();
  held_.emplace(entry.get(), entry);
  return at;
}

int64_t ConstantHolder::bytes() const {
  int64_t sum = 0;
  for (const auto& [at, entry] : held_) sum += entry->buffer.bytes();
  return sum;
}

}  // namespace ferrule::cuda
