// Programs of regions that were lowered before. A region is asked about several times while groups
// form, once more when kernels are made, and for every shape again; its program depends on
// operators, attributes, element types, single numbers and wiring alone. They are found again by a
// text of just these (nodes_to_programs.cpp). Belongs to a Semantics; safe for several threads.
#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/semantics/scalar.h"

namespace ferrule {

class RegionPrograms {
 public:
  struct Known {
    Program program;
    std::vector<uint32_t> inputs;  ///< of the program: positions in RegionKey::values
  };
  std::shared_ptr<const Known> find(const std::string& key);
  void add(std::string key, Known known);

 private:
  static constexpr size_t kMost = 1024;
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<const Known>> known_;
};

}  // namespace ferrule
