// An operator as a formula: one entry of rules/ops/*.yaml.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

struct FormulaExpr;  // formula.h: the parsed expression

struct OpFormula {
  std::string op, domain;
  std::vector<std::string> inputs;  ///< "x", "lo?" (optional), "xs..." (variadic, folded pairwise)
  std::map<std::string, Attr> attrs;  ///< name -> default
  std::vector<std::string> required;  ///< attributes without a default
  std::string out_type;               ///< "" = type of the first input; "bool"; "attr:to"; "in:1"
  std::vector<std::pair<std::string, std::shared_ptr<const FormulaExpr>>> let;
  std::shared_ptr<const FormulaExpr> expr;
  /// Which axes are a row: "axis" (that one), "from axis" (it and all behind), "axes" (attribute or
  /// input; then those that are meant where none are given, else all), "spatial" (from the third
  /// on), "groups" (those and the channels of a group: attribute num_groups); empty for pointwise
  /// operators.
  std::string row;
  bool one_a_row = false;  ///< a row operator that reads its operands only in reductions: Reduce…
  std::vector<std::string>
      channel;  ///< inputs with one value a channel (axis 1 of the first input)
  std::vector<std::string>
      classes;  ///< "activation", "binary", "unary", "compare", "logic", "commutative", …
  std::vector<DType>
      types;  ///< element types of the first input the operator allows; empty = all numeric
  std::string source;
  std::string place;  ///< file:line
  bool pointwise() const { return row.empty(); }
  /// Whether the input at `slot` of a node is read as data; the others (CastLike's second) only
  /// lend their type, are no operand of the program and take no part in broadcasting.
  bool reads(size_t slot) const;
  bool per_channel(size_t slot) const;
  std::vector<bool> data;  ///< per declared input, filled by the loader
};

/// "x" of "x?", "x...".
std::string_view input_name(std::string_view declared);
inline bool is_optional(std::string_view declared) { return declared.ends_with("?"); }
inline bool is_variadic(std::string_view declared) { return declared.ends_with("..."); }

}  // namespace ferrule
