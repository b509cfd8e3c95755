// libnvrtc.so.13 for tests: "compiles" CUDA C++ with the system's C++ compiler, behind the host's
// definitions of what CUDA has (tests/unit/codegen/host_device.h), into a shared object whose bytes
// are the cubin that the stub driver runs. Kept by hash in $FERRULE_STUB_CACHE, because a compiler
// takes half a second a kernel.
//
//   FERRULE_STUB_NVRTC   "13.0": the version it claims        FERRULE_STUB_NULL   nothing is
//   compiled FERRULE_STUB_SPILL   bytes that every kernel is said to spill
//   FERRULE_STUB_ARCHS   "75 90": what it compiles for
#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <vector>

#include "tests/gpu/stub/state.h"

#define API extern "C" __attribute__((visibility("default"))) int

namespace {

namespace fs = std::filesystem;
using ferrule::stub::setting;

constexpr int kCompilation = 6;

/// As tests/unit/codegen/host_kernels.cpp compiles them: no contraction, an access that is not
/// aligned is a trap.
constexpr std::string_view kFlags =
    "-O1 -std=c++20 -ffp-contract=off -fno-strict-aliasing -fno-math-errno -fsanitize=alignment "
    "-fsanitize-undefined-trap-on-error -w -fPIC -shared -fvisibility=hidden";

struct Program {
  std::string source, entry, log, image, architecture;
};

std::string host_text(const Program& p) {
  return fmt::format(
      "#include \"tests/unit/codegen/host_device.h\"\nnamespace ferrule_host {{\nnamespace {{\n"
      "#define {1} host_kernel\n#line 1 \"{1}.cu\"\n{0}\n#undef {1}\n}}\nHostRuntime* runtime;\n"
      "#define SHOWN extern \"C\" __attribute__((visibility(\"default\")))\n"
      "SHOWN void ferrule_runtime(HostRuntime* r) {{ runtime = r; }}\n"
      "SHOWN const char* ferrule_entry_name() {{ return \"{1}\"; }}\n"
      "SHOWN ferrule::test::HostEntry ferrule_entry() {{ return Called<&host_kernel>::run; }}\n"
      "SHOWN unsigned long ferrule_argument_bytes() {{ return "
      "Called<&host_kernel>::entry.argument_bytes; }}\n"
      "#define BOUND extern \"C\" __attribute__((weak, visibility(\"hidden\"))) char\n"
      "BOUND __start_ferrule_shared[], __stop_ferrule_shared[];\n"
      "SHOWN char* ferrule_shared_memory(unsigned long* bytes) {{\n"
      "  *bytes = __stop_ferrule_shared - __start_ferrule_shared;\n"
      "  return __start_ferrule_shared;\n}}\n}}\n",
      p.source, p.entry);
}

std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Two processes may compile the same: each writes a file of its own and renames it.
int compile(Program& p) {
  const std::string text = host_text(p);
  const fs::path folder =
      setting("FERRULE_STUB_CACHE",
              (fs::temp_directory_path() / fmt::format("ferrule_stub_{}", getuid())).string());
  std::error_code ignored;
  fs::create_directories(folder, ignored);
  std::string all = text;
  for (const char* header : {"host_device.h", "host_threads.h"})
    all += read_file(fs::path(FERRULE_SOURCE_DIR) / "tests/unit/codegen" / header);
  const fs::path kept = folder / fmt::format("{:016x}.so", std::hash<std::string>{}(all));
  if (p.image = read_file(kept); !p.image.empty()) return 0;
  static std::atomic<int> count = 0;
  const std::string stem = (folder / fmt::format("{}_{}", getpid(), count++)).string();
  std::ofstream(stem + ".cpp") << text;
  const std::string command =
      fmt::format("{} {} '-I{}' '{}.cpp' -o '{}.so' >'{}.log' 2>&1 </dev/null",
                  setting("CXX", "c++"), kFlags, FERRULE_SOURCE_DIR, stem, stem, stem);
  const int status = std::system(command.c_str());
  if (status)
    p.log = read_file(stem + ".log");
  else
    fs::rename(stem + ".so", kept, ignored);
  p.image = status ? "" : read_file(kept);
  for (const char* end : {".cpp", ".log", ".so"}) fs::remove(stem + end, ignored);
  return p.image.empty() ? kCompilation : 0;
}

}  // namespace

API nvrtcVersion(int* major, int* minor) {
  // A copy under the name of an older one is one.
  Dl_info own{};
  const bool older = dladdr(reinterpret_cast<void*>(&nvrtcVersion), &own) && own.dli_fname &&
                     std::string_view(own.dli_fname).ends_with(".so.12");
  std::sscanf(older ? "12.4" : setting("FERRULE_STUB_NVRTC", "13.0").c_str(), "%d.%d", major,
              minor);
  return 0;
}
static std::vector<int> known_architectures() {
  std::vector<int> out;
  std::istringstream known(setting("FERRULE_STUB_ARCHS", "75 80 86 89 90 100 120"));
  for (int cc = 0; known >> cc;) out.push_back(cc);
  return out;
}
API nvrtcGetNumSupportedArchs(int* count) {
  return *count = static_cast<int>(known_architectures().size()), 0;
}
API nvrtcGetSupportedArchs(int* archs) {
  for (int cc : known_architectures()) *archs++ = cc;
  return 0;
}
API nvrtcCreateProgram(Program** program, const char* source, const char* name, int,
                       const char* const*, const char* const*) {
  std::string entry = name;
  *program = new Program{source, entry.substr(0, entry.rfind(".cu")), "", "", ""};
  return 0;
}
API nvrtcDestroyProgram(Program** program) {
  delete *program;
  *program = nullptr;
  return 0;
}
API nvrtcCompileProgram(Program* p, int count, const char* const* options) {
  constexpr std::string_view kOption = "--gpu-architecture=";
  for (int k = 0; k < count; ++k)
    if (const std::string_view option = options[k]; option.starts_with(kOption))
      p->architecture = option.substr(kOption.size());
  if (!setting("FERRULE_STUB_NULL", "").empty()) {
    p->image = "FERRULE-NULL " + p->entry;
    p->image.push_back('\0');
  } else if (const int code = compile(*p)) {
    return code;
  }
  p->image += "FERRULE-ARCHITECTURE " + p->architecture + '\0';
  p->log = fmt::format(
      "ptxas info    : 0 bytes stack frame, {} bytes spill stores, 0 bytes spill loads\nptxas info "
      "   : Used 16 registers\n",
      setting("FERRULE_STUB_SPILL", "0"));
  return 0;
}
API nvrtcGetProgramLogSize(Program* p, size_t* size) { return *size = p->log.size() + 1, 0; }
API nvrtcGetProgramLog(Program* p, char* log) {
  return std::memcpy(log, p->log.c_str(), p->log.size() + 1), 0;
}
/// There is machine code of what is an architecture of devices alone.
API nvrtcGetCUBINSize(Program* p, size_t* size) {
  return *size = p->architecture.starts_with("sm_") ? p->image.size() : 0, 0;
}
API nvrtcGetCUBIN(Program* p, char* image) {
  size_t size = 0;
  nvrtcGetCUBINSize(p, &size);
  return std::memcpy(image, p->image.data(), size), 0;
}
API nvrtcGetPTXSize(Program* p, size_t* size) { return *size = p->image.size(), 0; }
API nvrtcGetPTX(Program* p, char* image) {
  return std::memcpy(image, p->image.data(), p->image.size()), 0;
}
extern "C" __attribute__((visibility("default"))) const char* nvrtcGetErrorString(int code) {
  return code == kCompilation ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
