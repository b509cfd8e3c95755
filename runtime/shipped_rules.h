// Where the rules are that come with ferrule.
#pragma once
#include <string>

namespace ferrule {

/// $FERRULE_RULES, else a folder that is found from where this library lies: installed
/// (share/ferrule/rules), packed with it (rules), or the source tree it was built from.
std::string shipped_rules();

}  // namespace ferrule
