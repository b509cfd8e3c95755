// A rule without one of its fusions, for asking what that one is worth.
#pragma once
#include "engine/rule/selection.h"

namespace ferrule {

/// The rule, but that it does not make this instance.
std::shared_ptr<const Rule> without_instance(const Rule& rule, const Instances::Line& line);

}  // namespace ferrule
