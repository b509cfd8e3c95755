// Shape patterns `[B, H, 64]`, `[..., M, N]`, `[_, C]`: parsing, printing, and matching against a
// shape. A symbol bound before must be provably equal; a new one is bound. Matching is
// three-valued.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dim.h"

namespace ferrule {

/// One element of a shape pattern `[B, H, 3]`, `[..., M, N]`.
struct DimPattern {
  enum class Kind { symbol, constant, rest, any } kind = Kind::any;  ///< rest = "...", any = "_"
  std::string symbol;
  int64_t constant = 0;
};

/// nullopt: not a shape pattern.
std::optional<std::vector<DimPattern>> parse_shape_pattern(std::string_view text);
std::string to_text(const std::vector<DimPattern>& shape);
/// Binds new symbols into `dims`; "..." may stand once, anywhere.
Truth match_shape(const std::vector<DimPattern>& pattern, const Shape& shape,
                  std::map<std::string, Dim, std::less<>>& dims);

}  // namespace ferrule
