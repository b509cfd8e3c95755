#include "engine/base/environment.h"

#include <cstdlib>

namespace ferrule {
namespace {

constexpr VariableDoc kDocs[] = {
#define FERRULE_VARIABLE(id, name, says) {name, says},
#include "engine/base/environment.def"
#undef FERRULE_VARIABLE
};

}  // namespace

std::string environment(Variable v) {
  const char* value = std::getenv(kDocs[static_cast<size_t>(v)].name.data());
  return value ? value : "";
}

std::span<const VariableDoc> environment_docs() { return kDocs; }

}  // namespace ferrule
