#include "codegen/cuda/library_places.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <functional>

#include "engine/base/environment.h"

namespace ferrule {
namespace {

/// If this library lies in our wheel (site-packages/ferrule/lib/ferrule): the folders of NVIDIA's
/// (site-packages/nvidia/cudnn/lib), cu13 before cu12.
std::vector<std::string> wheel_folders() {
  static const char anchor = 0;
  Dl_info info{};
  if (!dladdr(&anchor, &info) || !info.dli_fname) return {};
  std::error_code ec;
  const auto own = std::filesystem::weakly_canonical(info.dli_fname, ec).parent_path();
  std::vector<std::string> out;
  std::filesystem::directory_iterator entry(
      own.parent_path().parent_path().parent_path() / "nvidia", ec);
  for (; !ec && entry != std::filesystem::directory_iterator(); entry.increment(ec))
    out.push_back((entry->path() / "lib").string());
  std::ranges::sort(out, std::greater());
  return out;
}

}  // namespace

std::vector<std::string> library_places(std::string_view name) {
  std::vector<std::string> out;
  auto add = [&](const std::string& folder) { out.push_back(folder + "/" + std::string(name)); };
  for (const Variable variable : {Variable::cuda_home, Variable::cuda_path})
    if (const std::string home = environment(variable); !home.empty())
      for (const char* folder : {"/lib64", "/lib"}) add(home + folder);
  for (const std::string& folder : wheel_folders()) add(folder);
  out.emplace_back(name);
  for (const char* folder : {"/lib64", "/lib", "/targets/x86_64-linux/lib"})
    add(std::string("/usr/local/cuda") + folder);
  return out;
}

}  // namespace ferrule
