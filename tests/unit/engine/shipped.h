// The shipped rules for one target, loaded once: what tests of the whole pipeline share.
#pragma once
#include "engine/pipeline.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

namespace kit {

inline const Knowledge& knowledge() {
  static const std::shared_ptr<const Knowledge> k = [] {
    EngineOptions o;
    o.rule_dirs = {rules_dir()};
    o.target = "cpu-avx2";
    return must(load_knowledge(o));
  }();
  return *k;
}

}  // namespace kit
