// The operators that ferrule ships, for tests.
#pragma once
#include <doctest/doctest.h>

#include "engine/base/diagnostics.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/rule/load.h"
#include "tests/support/paths.h"

namespace ferrule::test {

/// The shipped operators.
inline const Semantics& operators() {
  static const Semantics table = [] {
    const std::string dirs[] = {rules_dir()};
    auto t = load_semantics(dirs, infer_by_schema);
    REQUIRE_MESSAGE(t.has_value(), (t ? "" : render(t.error())));
    return std::move(*t);
  }();
  return table;
}

}  // namespace ferrule::test
