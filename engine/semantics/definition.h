// What operators are defined as: the text of a definition, and the table of the first ones, by
// which the oracle judges.
#pragma once
#include "engine/semantics/semantics.h"

namespace ferrule {

/// Everything of the entry that says what the operator computes and how it may be used: equal for
/// equal meaning.
std::string definition(const OpFormula& f);

/// Semantics::load, but where folders define an operator again (`replaces: true`) the first
/// definition stays, ONNX's meaning.
Result<Semantics> load_first_definitions(std::span<const std::string> rule_dirs,
                                         Semantics::BySchema by_schema = nullptr);

/// One line for each operator that a later folder replaces; `ops` is Semantics::load's of the same
/// folders. errors: those of Semantics::load.
Result<std::vector<std::string>> replaced_operators(std::span<const std::string> rule_dirs,
                                                    const Semantics& ops);

}  // namespace ferrule
