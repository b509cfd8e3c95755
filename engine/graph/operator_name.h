// The names that C++ knows operators by: for who defines what operators mean. tests/layering says
// which folders may include it.
#pragma once
#include <map>
#include <string_view>

#include "engine/graph/operator.h"

namespace ferrule {

const std::string& operator_name(const Operator& op);
inline bool operator==(const Operator& op, std::string_view name) {
  return operator_name(op) == name;
}
/// The name of what a rule or model calls `written`.
std::string_view operator_name(std::string_view written);
/// What models and rules call the operator of that name.
Operator operator_named(std::string_view name);

/// For tests: models and rules call operators otherwise, by name; both ways.
using OperatorNames = std::map<std::string, std::string, std::less<>>;
void rename_operators(OperatorNames names);

}  // namespace ferrule
