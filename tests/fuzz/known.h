// Known models changed a little: a node inserted, an element type or a size changed, an output
// added. What matched before then matches nearly, or matches what its author did not think of.
#pragma once
#include "engine/rule/rule.h"
#include "tests/fuzz/builder.h"

namespace ferrule::fuzz {

/// A file, or ONNX text where there is no path.
struct Known {
  std::string name, path, text;
};

/// The cases of all rules, and the small .onnx files under the folders.
std::vector<Known> known_models(const RuleSet& rules, const std::vector<std::string>& folders);

/// One of them with one to three changes, on inputs that the interpreter takes.
Case draw_known(Draw& draw, const Language& language, const std::vector<Known>& models,
                std::map<std::string, int>& refused);

}  // namespace ferrule::fuzz
