// Sizes of a model's inputs that are not fixed, in words and as the flag that fixes them: what an
// answer says whenever it is undecided.
#pragma once
#include <map>
#include <string>
#include <string_view>

#include "engine/graph/graph.h"

namespace ferrule {

/// "height and width of x", "N of a and b"; empty: all sizes are known. `fact`: only those whose
/// symbols it names, where it names any.
std::string open_sizes(const Graph& g, std::string_view fact = {});
/// Of an axis that is open: a batch of one, images of 224, sequences of 128.
int64_t likely_size(int rank, int axis);
/// "x:1x3x224x224", of an input whose rank is known; `symbols`: the sizes that open ones have got,
/// one size wherever the model has one symbol.
std::string likely_sizes(const Value& input, std::map<std::string, int64_t>& symbols);
/// "--shapes x:1x3x224x224" for the same inputs, with a likely number for each size that is open.
std::string shapes_flag(const Graph& g, std::string_view fact = {});
/// Why something is not decided: "it depends on height and width of x, which the model leaves open;
/// pass --shapes x:1x3x224x224, say". Where all inputs have their sizes, the fact itself, which
/// only a run tells.
std::string undecided(const Graph& g, std::string_view fact);

}  // namespace ferrule
