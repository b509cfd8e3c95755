// The work of a node on its own.
#pragma once
#include "codegen/program/work.h"
#include "engine/contract/accepts.h"
#include "tests/unit/codegen/shipped_operators.h"

namespace ferrule::test {

inline Work work_of_node(const Node& n) { return work_of(contract_of(n, operators()), n); }

}  // namespace ferrule::test
