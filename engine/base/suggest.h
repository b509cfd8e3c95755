// How far a misspelt word is from a known one, for "did you mean …".
#pragma once
#include <string>
#include <string_view>

#include "engine/base/diagnostics.h"

namespace ferrule {

/// Edits (insert, delete, replace, exchange neighbours) between two short texts.
size_t edit_distance(std::string_view a, std::string_view b);

/// The candidate nearest to `word`; "" if none is near.
template <class Words>
std::string nearest(std::string_view word, const Words& candidates) {
  std::string best;
  word = word.substr(0, 64);
  size_t least = (word.size() <= 3 ? 1 : word.size() <= 6 ? 2 : word.size() / 3) + 1;
  for (std::string_view c : candidates)
    if (size_t d = edit_distance(word, c.substr(0, 64)); d < least) least = d, best = c;
  return best;
}

/// `did you mean "x"?` or "".
template <class Words>
std::string did_you_mean(std::string_view word, const Words& candidates) {
  std::string near = nearest(word, candidates);
  return near.empty() ? "" : fmt::format("did you mean \"{}\"?", escape(near));
}

}  // namespace ferrule
