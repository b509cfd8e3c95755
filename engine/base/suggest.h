// How far a misspelt word is from a known one, for "did you mean …".
#pragma once
#include <cstddef>
#include <string_view>

namespace ferrule {

/// Edits (insert, delete, replace) between two short texts.
size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ferrule
