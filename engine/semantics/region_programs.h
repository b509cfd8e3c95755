// Programs of regions that were lowered before. A region is asked about several times while groups form, once more when
// kernels are made, and for every shape again; its program depends on operators, attributes, element types, single numbers
// and wiring alone. They are found again by a text of just these. Belongs to an OpTable; safe for several threads.
#pragma once
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/semantics/ops.h"

namespace ferrule {

/// What lower_region's program depends on, and the region's values in the order that they are met.
struct RegionKey {
  std::string text;              ///< empty: not to be kept
  std::vector<ValueId> values;
};
RegionKey region_key(const OpTable& ops, const Graph& g, std::span<const NodeId> nodes, std::span<const ValueId> outputs);

class RegionPrograms {
 public:
  struct Known {
    Program program;
    std::vector<uint32_t> inputs;  ///< of the program: positions in RegionKey::values
  };
  std::shared_ptr<const Known> find(const RegionKey& key);
  void add(RegionKey key, const LoweredRegion& region);

 private:
  static constexpr size_t kMost = 1024;
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Known>> known_;
};

}  // namespace ferrule
