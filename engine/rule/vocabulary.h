// The closed vocabulary of the condition language: one table row per function (name, parameters,
// result, one sentence), from which `ferrule rules vocabulary` prints and the parser suggests.
#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

struct VocabularyEntry {
  std::string_view name, signature, doc;
};
const std::vector<VocabularyEntry>& vocabulary();

}  // namespace ferrule
