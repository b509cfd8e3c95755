#include "runtime/registry.h"

#include <dlfcn.h>
#include <stdlib.h>

#include <filesystem>
#include <map>
#include <mutex>

#include "engine/base/diagnostics.h"
#include "runtime/abi.h"
#include "runtime/null/null.h"
#include "runtime/reference/reference.h"

namespace ferrule {
namespace {

/// Folder of the library or program this code is in; backends lie beside it.
std::string own_folder() {
  Dl_info info{};
  static const char anchor = 0;
  if (!dladdr(&anchor, &info) || !info.dli_fname) return ".";
  std::error_code ec;
  auto path = std::filesystem::weakly_canonical(info.dli_fname, ec);
  return ec ? "." : path.parent_path().string();
}

/// How long libgomp's idle threads spin before they sleep. Its default is milliseconds: whoever waits at a
/// barrier for a thread that another program keeps off its core then holds the core that thread could run on,
/// and a run takes a hundred times as long. A thousand rounds (tens of microseconds) bridge the gap between two
/// layers just as well. libgomp reads it once, when the backend brings it in; the user's own choice stays.
void limit_spinning() {
  if (getenv("GOMP_SPINCOUNT") || getenv("OMP_WAIT_POLICY")) return;
  setenv("GOMP_SPINCOUNT", "1000", 0);
}

Result<std::unique_ptr<Backend>> open_library(const std::string& name) {
  limit_spinning();
  const std::string file = "libferrule_" + name + ".so";
  std::string path = own_folder() + "/" + file;
  if (std::error_code ec; !std::filesystem::exists(path, ec)) path = file;  // then the system's search path
  void* handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) return error(Code::library_missing, "backend " + name, file, dlerror());
  auto open = reinterpret_cast<ferrule_backend_open_fn>(dlsym(handle, "ferrule_backend_open"));
  if (!open) return error(Code::library_missing, "backend " + name, path, "it has no ferrule_backend_open");
  const ferrule_backend_entry* entry = open(backend_abi_hash());
  if (!entry || entry->abi_hash != backend_abi_hash())
    return error(Code::library_missing, "backend " + name, path, "it belongs to another build of ferrule");
  return std::unique_ptr<Backend>(entry->create());
}

/// Opened libraries stay open until the process ends: their code may be in use.
Result<Backend*> open_once(const std::string& name) {
  static std::mutex mutex;
  static auto* backends = new std::map<std::string, std::unique_ptr<Backend>>();
  std::lock_guard lock(mutex);
  if (auto it = backends->find(name); it != backends->end()) return it->second.get();
  std::unique_ptr<Backend> b;
  if (name == "reference") {
    b = make_reference_backend();
  } else if (name == "null") {
    b = make_null_backend();
  } else {
    FERRULE_ASSIGN(b, open_library(name));
  }
  return ((*backends)[name] = std::move(b)).get();
}

Result<Backend*> open_available(const std::string& name) {
  FERRULE_ASSIGN(Backend * b, open_once(name));
  FERRULE_TRY(b->available());
  return b;
}

}  // namespace

Result<Backend*> find_backend(std::string_view name) {
  if (name == "auto") {
    if (auto cpu = open_available("cpu")) return cpu;
    return open_available("reference");
  }
  if (name != "cpu" && name != "reference" && name != "null") {
    const std::string text = "no backend " + escape(name) + "; there are auto, cpu, reference, null";
    return error(Code::usage, "--backend", text);
  }
  return open_available(std::string(name));
}

std::vector<BackendState> backend_states() {
  std::vector<BackendState> states;
  for (const char* name : {"cpu", "reference", "null"}) {
    auto b = open_available(name);
    states.push_back({name, b ? Status{} : Status(fail(b.error()))});
  }
  return states;
}

}  // namespace ferrule
