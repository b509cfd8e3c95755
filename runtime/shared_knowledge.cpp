#include "runtime/shared_knowledge.h"

#include <fmt/ranges.h>

#include <deque>
#include <filesystem>
#include <mutex>

namespace ferrule {
namespace {

namespace fs = std::filesystem;

constexpr size_t kKept = 4;

/// The file, how long it is and when it was written; of a folder, all in it.
void add_state(const std::string& path, std::string& out) {
  std::error_code ec;
  const auto add = [&](const fs::path& file) {
    const auto written = fs::last_write_time(file, ec).time_since_epoch().count();
    out += fmt::format("{} {} {}\n", file.string(), fs::file_size(file, ec), written);
  };
  if (!fs::is_directory(path, ec)) return add(path);
  std::vector<fs::path> files;
  for (fs::recursive_directory_iterator it(path, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_regular_file(ec)) files.push_back(it->path());
  std::ranges::sort(files);
  for (const fs::path& file : files) add(file);
}

/// Everything that load_knowledge reads.
std::string key_of(const EngineOptions& o) {
  std::string out = fmt::format(
      "{}\n{}\n{}\n{}\n{}\n{}\n{}\n{}\n", fmt::join(o.selection.disable, " "),
      fmt::join(o.selection.enable, " "), o.target, o.profile, fmt::join(o.ignore_profit, " "),
      fmt::join(o.allow_unproven, " "), o.cache, o.rule_tests);
#define X(name, value, text) out += fmt::format("{} ", o.limits.name);
  FERRULE_LIMITS(X)
#undef X
  for (const auto* paths : {&o.rule_dirs, &o.overrides})
    for (const std::string& path : *paths) add_state(path, out += "\n" + path + "\n");
  if (!o.apply.empty()) add_state(o.apply, out);
  return out;
}

struct Kept {
  std::string key;
  std::shared_ptr<const Knowledge> knowledge;
};

}  // namespace

Result<std::shared_ptr<const Knowledge>> shared_knowledge(const EngineOptions& options) {
  static std::mutex mutex;
  static auto* kept = new std::deque<Kept>();  // the last one used first
  const std::string key = key_of(options);
  {
    const std::lock_guard lock(mutex);
    if (auto it = std::ranges::find(*kept, key, &Kept::key); it != kept->end()) {
      std::rotate(kept->begin(), it, it + 1);
      return kept->front().knowledge;
    }
  }
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  const std::lock_guard lock(mutex);
  kept->push_front({key, knowledge});
  if (kept->size() > kKept) kept->pop_back();
  return knowledge;
}

}  // namespace ferrule
