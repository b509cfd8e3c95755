// Which implementation runs a launch, as measured on a machine: `ferrule tune` writes the file,
// planning reads it, and nothing else measures. An entry is a problem (all that the speed depends
// on, as text) and the name of the implementation to use; problems that it does not hold go by the
// built-in rules. A backend decides what its problems and implementations are called; a name that
// it does not know is ignored with a note.
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/base/result.h"

namespace ferrule {

struct Tuning {
  struct Entry {
    std::string use;
    std::map<std::string, double> microseconds;  ///< what was measured; information only
  };
  std::string machine, target;  ///< where it was measured
  int threads = 0;
  std::map<std::string, Entry> problems;
  /// How often a problem was found, of all copies: 0 when a model has none of them.
  std::shared_ptr<std::atomic<int>> found = std::make_shared<std::atomic<int>>(0);
  const Entry* find(const std::string& problem) const {
    auto it = problems.find(problem);
    if (it == problems.end()) return nullptr;
    ++*found;
    return &it->second;
  }
};

/// errors: file_not_found, limit_exceeded, yaml_* with every mistake of the file.
Result<Tuning> read_tuning(const std::string& path, const Limits& limits);
std::string to_text(const Tuning& t);
/// The note where an entry names what there is not.
std::string unknown_choice(const std::string& use);
/// The processor's name.
std::string machine_name();

/// One launch as `tune` measured it.
struct Measured {
  size_t layer = 0;  ///< of the plan
  std::string problem;
  std::string usual;                                         ///< what the built-in rules take
  std::vector<std::pair<std::string, double>> microseconds;  ///< by implementation
};

}  // namespace ferrule
