// The operators that ferrule ships, for tests.
#pragma once
#include <doctest/doctest.h>

#include "engine/base/diagnostics.h"
#include "engine/semantics/ops.h"
#include "tests/support/paths.h"

namespace ferrule::test {

/// The shipped operators.
inline const OpTable& operators() {
  static const OpTable table = [] {
    const std::string dirs[] = {rules_dir()};
    auto t = OpTable::load(dirs);
    REQUIRE_MESSAGE(t.has_value(), (t ? "" : render(t.error())));
    return std::move(*t);
  }();
  return table;
}

}  // namespace ferrule::test
