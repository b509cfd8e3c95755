// Text -> pattern.h's tree: the pattern language and, with fewer forms, replacements. Blocks
// (shared sub-patterns) are expanded here, hygienically. EBNF: rules/README.md. pattern.h
// has the inverse.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/rule/pattern.h"

namespace ferrule {

/// `square(x): "(Mul(x, x) | Pow(x, ~2))"`
struct Block {
  std::vector<std::string> params;
  Pattern body;  ///< the last line's expression is the block's value; its result is unnamed
};
using Blocks = std::map<std::string, Block, std::less<>>;

/// `head`: "square(x)".  errors: pattern_syntax.
Result<std::pair<std::string, Block>> parse_block(std::string_view head, const Place& head_place,
                                                  std::string_view body, const Place& place,
                                                  const Blocks& known);
/// errors: pattern_syntax with the place in the file, a caret, and what was expected.
Result<Pattern> parse_pattern(std::string_view text, const Place& place, const Blocks& blocks = {});
Result<Pattern> parse_replacement(std::string_view text, const Place& place);
/// "@pointwise", "{Add|@activation}", "Relu": names into `ops` and `classes`.
Status parse_op_set(std::string_view text, const Place& place, std::vector<std::string>& ops,
                    std::vector<std::string>& classes);

}  // namespace ferrule
