#include "engine/semantics/region_programs.h"

namespace ferrule {

std::shared_ptr<const RegionPrograms::Known> RegionPrograms::find(const std::string& key) {
  std::lock_guard lock(mutex_);
  auto it = known_.find(key);
  return it == known_.end() ? nullptr : it->second;
}

void RegionPrograms::add(std::string key, Known known) {
  auto shared = std::make_shared<const Known>(std::move(known));
  std::lock_guard lock(mutex_);
  if (known_.size() >= kMost) known_.clear();
  known_.insert_or_assign(std::move(key), std::move(shared));
}

}  // namespace ferrule
