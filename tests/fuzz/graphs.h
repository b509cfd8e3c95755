// Random graphs of 3 to 40 nodes. Every second one is dense in operators with kernels of their own,
// with tails, slices, concatenations, splits and transposes between them; the others draw from all
// operators, types and ranks.
#pragma once
#include "tests/fuzz/builder.h"

namespace ferrule::fuzz {

/// `refused`: what was drawn and is not valid, by the importer's words.
Case draw_graph(Draw& draw, const Language& language, std::map<std::string, int>& refused);

}  // namespace ferrule::fuzz
