// What the tests of loading and of checking rules share.
#pragma once
#include <doctest/doctest.h>

#include "engine/rule/load.h"
#include "tests/support/paths.h"

inline const ferrule::Semantics& op_table() {
  static const ferrule::Semantics table = [] {
    std::vector<std::string> dirs = {ferrule::rules_dir()};
    auto t = ferrule::load_semantics(dirs);
    REQUIRE_MESSAGE(t.has_value(), (t ? "" : render(t.error())));
    return *t;
  }();
  return table;
}

inline bool has(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}
