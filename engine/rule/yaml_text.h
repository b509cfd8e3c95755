// Texts inside a YAML file (patterns, expressions): where they stand, and errors about them.
#pragma once
#include "engine/base/yaml.h"
#include "engine/rule/text.h"

namespace ferrule {

/// Place of a scalar's text, and an error of a text parser with the file's own line as excerpt.
Place place_of(const yaml::Reader& r, const yaml::Node& scalar);
void add_error(yaml::Reader& r, Error e);

}  // namespace ferrule
