#include "engine/base/cache_folder.h"

#include <cstdlib>

namespace ferrule {

std::string user_cache_folder() {
  auto env = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v ? v : "");
  };
  if (std::string own = env("FERRULE_CACHE"); !own.empty()) return own;
  if (std::string xdg = env("XDG_CACHE_HOME"); !xdg.empty()) return xdg + "/ferrule";
  if (std::string home = env("HOME"); !home.empty()) return home + "/.cache/ferrule";
  return "";
}

}  // namespace ferrule
