// Where the sources, their rules and this build lie. Functions, and not macros, so that a test
// compiles to the same object in every clone and a compiler cache finds it.
#pragma once

#include <string>

namespace ferrule {

std::string source_dir();  ///< the repository's root
std::string rules_dir();   ///< its rules/
std::string build_dir();   ///< where the test binaries are

}  // namespace ferrule
