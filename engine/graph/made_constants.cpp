#include "engine/graph/made_constants.h"

#include <algorithm>
#include <bit>

namespace ferrule {

Tensor MadeConstants::get(std::string_view recipe, std::span<const Tensor> sources,
                          const std::function<Tensor()>& make) {
  std::string key(recipe);
  for (const Tensor& t : sources)
    key += fmt::format(" {} {} {}", t.address(), name(t.dtype()), fmt::join(t.dims(), "x"));
  std::lock_guard lock(mutex_);
  auto alive = [](const WeakTensor& t) { return t.lock().has_value(); };
  if (auto it = made_.find(key);
      it != made_.end() && std::ranges::all_of(it->second.sources, alive))
    if (auto found = it->second.tensor.lock()) return *found;
  // Those that are gone are looked for now and then only: a plan may join many.
  if (std::has_single_bit(made_.size()))
    std::erase_if(made_, [&](const auto& entry) { return !alive(entry.second.tensor); });
  Tensor made = make();
  made_.insert_or_assign(std::move(key), Made{{sources.begin(), sources.end()}, WeakTensor(made)});
  return made;
}

}  // namespace ferrule
