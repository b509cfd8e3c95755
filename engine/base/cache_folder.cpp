#include "engine/base/cache_folder.h"

#include "engine/base/environment.h"

namespace ferrule {

std::string user_cache_folder() {
  if (std::string own = environment(Variable::cache); !own.empty()) return own;
  if (std::string xdg = environment(Variable::cache_home); !xdg.empty()) return xdg + "/ferrule";
  if (std::string home = environment(Variable::home); !home.empty())
    return home + "/.cache/ferrule";
  return "";
}

}  // namespace ferrule
