#include "runtime/shipped_rules.h"

#include <dlfcn.h>

#include <filesystem>

#include "engine/base/environment.h"

namespace ferrule {

std::string shipped_rules() {
  if (std::string given = environment(Variable::rules); !given.empty()) return given;
  static const char anchor = 0;
  Dl_info info{};
  std::error_code ec;
  std::filesystem::path folder = ".";
  if (dladdr(&anchor, &info) && info.dli_fname)
    folder = std::filesystem::weakly_canonical(info.dli_fname, ec).parent_path();
  for (const char* candidate : {"rules", "../rules", "../share/ferrule/rules",
                                "../../share/ferrule/rules", "../../../share/ferrule/rules"}) {
    const auto path = folder / candidate;
    if (std::filesystem::exists(path / "pipeline.yaml", ec)) return path.lexically_normal();
  }
  return FERRULE_SOURCE_RULES;
}

}  // namespace ferrule
