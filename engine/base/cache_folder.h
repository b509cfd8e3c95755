// Where ferrule keeps what it can make again: proof stamps, compiled kernels. One folder a user;
// what lies in it is codegen/cache.h's and engine/proof/stamp.h's business.
#pragma once
#include <string>

namespace ferrule {

/// $FERRULE_CACHE, else $XDG_CACHE_HOME/ferrule, else $HOME/.cache/ferrule; "" where none of them
/// is set.
std::string user_cache_folder();

}  // namespace ferrule
