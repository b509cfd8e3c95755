// Random graphs of one anchor (a convolution, product, pool or norm) with one to three steps behind
// it: every kind of broadcast, operand order, rank and constness that an epilogue may meet.
#pragma once
#include "tests/fuzz/builder.h"

namespace ferrule::fuzz {

/// `refused`: what was drawn and is not valid, by the importer's words.
Case draw_tail(Draw& draw, const Language& language, std::map<std::string, int>& refused);

}  // namespace ferrule::fuzz
