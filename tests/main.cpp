// The one main function of every doctest binary, and the only test source that knows paths of this
// machine.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>

#include "tests/support/paths.h"

namespace ferrule {

std::string source_dir() {
  const char* moved = std::getenv("FERRULE_TEST_SOURCE");  // a bundle for another machine
  return moved ? moved : FERRULE_SOURCE_DIR;
}
std::string rules_dir() { return source_dir() + "/rules"; }
std::string build_dir() { return FERRULE_BUILD_DIR; }

}  // namespace ferrule
