#include "engine/base/limits.h"

#include <algorithm>
#include <charconv>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// Edit distance, for suggestions; both texts are short.
size_t distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t up = row[j];
      row[j] = std::min({up + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1])});
      diagonal = up;
    }
  }
  return row[b.size()];
}

}  // namespace

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
  const Entry* near =
      std::min_element(std::begin(entries), std::end(entries), [&](const Entry& a, const Entry& b) {
        return distance(key.substr(0, 64), a.name) < distance(key.substr(0, 64), b.name);
      });
  return error(
      Code::usage, "--limit",
      fmt::format("there is no limit \"{}\"; the nearest is \"{}\"", escape(key), near->name));
}

}  // namespace ferrule
