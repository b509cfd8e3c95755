#include "engine/base/limits.h"

#include <algorithm>
#include <charconv>

#include "engine/base/diagnostics.h"
#include "engine/base/suggest.h"

namespace ferrule {
Status set_limit(Limits& limits, std::string_view assignment) {
  size_t equals = assignment.find('=');
  if (equals == std::string_view::npos)
    return error(Code::usage, "--limit",
                 fmt::format("\"{}\" is not NAME=VALUE", escape(assignment)));
  std::string_view key = assignment.substr(0, equals), text = assignment.substr(equals + 1);
  struct Entry {
    std::string_view name;
    int64_t* value;
  };
  const Entry entries[] = {
#define X(name, value, text) {#name, &limits.name},
      FERRULE_LIMITS(X)
#undef X
  };
  for (const Entry& e : entries) {
    if (e.name != key) continue;
    int64_t value = 0;
    auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (status != std::errc() || end != text.data() + text.size() || value < 0)
      return error(Code::usage, "--limit " + std::string(e.name),
                   fmt::format("\"{}\" is not a number from 0 to 2^63-1", escape(text)));
    *e.value = value;
    return {};
  }
  const Entry* near = std::ranges::min_element(
      entries, {}, [&](const Entry& e) { return edit_distance(key.substr(0, 64), e.name); });
  return error(
      Code::usage, "--limit",
      fmt::format("there is no limit \"{}\"; the nearest is \"{}\"", escape(key), near->name));
}

}  // namespace ferrule
