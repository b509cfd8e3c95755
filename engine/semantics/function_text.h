// An operator that is written in other ones: one entry of `functions:` in rules/ops/*.yaml. Where a
// model calls it, its text becomes a function of the model (engine/onnx/functions.cpp), which the
// importer puts in the call's place like the model's own. Nothing behind the importer knows it.
#pragma once
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/graph/graph.h"

namespace ferrule {

struct FormulaExpr;  // formula.h
namespace yaml {
struct Node;
class Reader;
}  // namespace yaml

struct FunctionText {
  /// Statements in ONNX's text form, in which `$(expression)` stands for its value; a choice; or
  /// what is written once for each number from 0 on.
  struct Part {
    std::string text;
    std::shared_ptr<const FormulaExpr> condition;  ///< null: text
    std::vector<Part> then, otherwise;
    std::string counter;  ///< not empty: `then` for each value of it below `condition`
    std::string refusal;  ///< not empty: such a call is not supported, and why
  };
  std::string op, domain;
  std::vector<std::string> inputs;  ///< "x", "bias?": one that may be missing; "xs...": xs0, xs1, …
  std::vector<std::string> outputs;
  std::map<std::string, Attr> attrs;  ///< name -> default
  std::vector<std::string> required;  ///< attributes without a default
  std::vector<std::string>
      optional;  ///< those that a call may leave out: the body names them @name
  std::vector<Part> body;
  std::string source;
  std::string place;  ///< file:line
};

/// One call of it: what its expressions ask. They know an input x (a result, an optional
/// attribute) by present(x), by `x_rank` (its number of dimensions; -1: not known), by type(x) (a
/// text; empty: not known) and a list xs... by count(xs).
struct FunctionCall {
  std::vector<bool> present;  ///< by input; those behind the last are missing
  std::vector<int> ranks;     ///< by input; -1: not known
  std::vector<DType> types;   ///< by input; undefined: not known
  std::vector<bool> wanted;   ///< by output
  std::map<std::string, Attr> attrs;
};

/// The entry's body and name; errors go to the reader. Inputs and attributes were read before.
void read_function(const yaml::Node& n, yaml::Reader& r, FunctionText& f);

/// The function for this call as ONNX's text: `Name (x, bias) => (y) { … }`.
/// errors: formula_invalid at the entry's place (an unknown name, no number where one is wanted);
/// bad_attribute at `where` (an attribute that is missing); unsupported_operator (a refusal).
Result<std::string> text_of(const FunctionText& f, const FunctionCall& call,
                            const std::string& where);

}  // namespace ferrule
