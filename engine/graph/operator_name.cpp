#include "engine/graph/operator_name.h"

namespace ferrule {
namespace {

OperatorNames& renamed() {
  static OperatorNames names;
  return names;
}

}  // namespace

Operator identity_operator() { return operator_named("Identity"); }

const std::string& operator_name(const Operator& op) {
  const auto it = renamed().find(op.text());
  return it == renamed().end() ? op.text() : it->second;
}

std::string_view operator_name(std::string_view written) {
  const auto it = renamed().find(written);
  return it == renamed().end() ? written : std::string_view(it->second);
}

Operator operator_named(std::string_view name) {
  return Operator(std::string(operator_name(name)));
}

void rename_operators(OperatorNames names) { renamed() = std::move(names); }

}  // namespace ferrule
