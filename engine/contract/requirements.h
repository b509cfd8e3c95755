// What a contract's file asks (rules/contracts: roles and their axes, `requires`), asked of values
// under its names.
#pragma once
#include "engine/base/accept.h"
#include "engine/rule/bindings.h"
#include "engine/rule/contract.h"
#include "engine/rule/val.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {

/// "an input of the model", "computed by "scale" (Mul)": where a value that is no constant comes
/// from.
std::string origin_of(const Graph& g, ValueId v);

struct Requirements {
  const Graph& graph;
  const Contract& contract;
  Bindings names = {};
  Let let = {};
  const Graph* whole = nullptr;  ///< that `graph` is a part of, with the same names; for texts

  /// The first role whose value does not suit it, or condition that does not hold. `explain`:
  /// whether reasons get their texts.
  Accept ask(const Target& target, const Semantics& ops, bool explain);
};

}  // namespace ferrule
