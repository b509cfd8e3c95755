// The environment variables, each a row of environment.def; nothing else reads the environment.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ferrule {

enum class Variable : uint8_t {
#define FERRULE_VARIABLE(id, name, says) id,
#include "engine/base/environment.def"
#undef FERRULE_VARIABLE
};

/// Its value; empty where it is not set.
std::string environment(Variable v);

struct VariableDoc {
  std::string_view name, says;
};
/// All, in the order of their rows.
std::span<const VariableDoc> environment_docs();

}  // namespace ferrule
