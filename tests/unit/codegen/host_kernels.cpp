#include "tests/unit/codegen/host_kernels.h"
#include "tests/support/paths.h"

#include <dlfcn.h>
#include <doctest/doctest.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "codegen/cuda/prelude.h"
#include "engine/base/diagnostics.h"

namespace ferrule::test {
namespace {

constexpr size_t kFileBytes =
    400 << 10;  // of generated text; a compiler takes a few seconds for one
constexpr unsigned kCompilers = 2;

/// No contraction, as NVRTC is told; packs are other types in the same memory, which NVRTC allows;
/// an access that is not aligned is an error on a GPU, and here an illegal instruction.
constexpr std::string_view kFlags =
    "-O1 -std=c++20 -ffp-contract=off -fno-strict-aliasing -fno-math-errno -fsanitize=alignment "
    "-fsanitize-undefined-trap-on-error -w -fPIC -shared -fvisibility=hidden";

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

bool in_path(const std::string& program) {
  if (program.find('/') != std::string::npos) return access(program.c_str(), X_OK) == 0;
  const char* path = std::getenv("PATH");
  std::istringstream folders(path ? path : "");
  for (std::string folder; std::getline(folders, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

}  // namespace

int races() { return std::getenv("FERRULE_TEST_FULL") ? 1000 : 5; }

std::string HostKernels::compiler() {
  if (const char* cxx = std::getenv("CXX")) {
    std::string command = cxx;
    if (in_path(command.substr(0, command.find(' ')))) return command;
  }
  for (const char* name : {"c++", "g++", "clang++"})
    if (in_path(name)) return name;
  return {};
}

bool HostKernels::missing() {
  if (!compiler().empty()) return false;
  MESSAGE(
      "skipped, no C++ compiler is there to compile generated kernels for the host ($CXX, c++, "
      "g++, clang++)");
  return true;
}

/// Gone when everything is compiled and opened, so that a kernel that crashes leaves nothing
/// behind.
struct HostKernels::Folder {
  Folder() {
    std::string name = (std::filesystem::temp_directory_path() / "ferrule_host_XXXXXX").string();
    if (!mkdtemp(name.data())) FAIL("no temporary folder");
    path = name;
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

HostKernels::~HostKernels() {
  for (void* library : libraries_) dlclose(library);
}

size_t HostKernels::add(std::string source, std::string entry) {
  // The prelude stands once in a file.
  std::string_view prelude = kCudaPrelude;
  if (size_t at = source.find(prelude); at != std::string::npos) source.erase(at, prelude.size());
  kernels_.push_back({std::move(source), std::move(entry)});
  return kernels_.size() - 1;
}

std::vector<HostKernels::File> HostKernels::write_files(const Folder& folder) const {
  std::vector<File> files;
  for (size_t k = 0; k < kernels_.size();) {
    File f;
    f.begin = k;
    for (size_t bytes = 0; k < kernels_.size() && bytes < kFileBytes; ++k)
      bytes += kernels_[k].source.size();
    f.end = k;
    std::string name = "kernels_" + std::to_string(files.size());
    f.source = folder.path / (name + ".cpp");
    f.library = folder.path / (name + ".so");
    f.log = folder.path / (name + ".log");
    write(f);
    files.push_back(std::move(f));
  }
  return files;
}

void HostKernels::write(const File& file) const {
  std::ofstream out(file.source);
  out << "#include \"tests/unit/codegen/host_device.h\"\nnamespace ferrule_host {\nnamespace {\n"
      << kCudaPrelude;
  std::string table;
  for (size_t k = file.begin; k < file.end; ++k) {
    const Kernel& kernel = kernels_[k];
    out << fmt::format("namespace n{0} {{\n#define {1} host_kernel_{0}\n#line 1 \"kernel {0}\"\n",
                       k, kernel.entry)
        << kernel.source << fmt::format("\n#undef {}\n}}\n", kernel.entry);
    table += fmt::format("  Called<&n{0}::host_kernel_{0}>::entry,\n", k);
  }
  out << "}\nHostRuntime* runtime;\n"
         "#define SHOWN extern \"C\" UNSEEN __attribute__((visibility(\"default\")))\n"
         "SHOWN void ferrule_runtime(HostRuntime* r) { runtime = r; }\n"
         "SHOWN const Entry* ferrule_entries() {\n  static constexpr Entry table[] = {\n"
      << table
      << "  };\n  return table;\n}\n"
         "#define BOUND extern \"C\" __attribute__((weak, visibility(\"hidden\"))) char\n"
         "BOUND __start_ferrule_shared[], __stop_ferrule_shared[];\n"
         "SHOWN char* ferrule_shared_memory(unsigned long* bytes) {\n"
         "  *bytes = __stop_ferrule_shared - __start_ferrule_shared;\n"
         "  return __start_ferrule_shared;\n}\n}\n";
}

std::string HostKernels::open(const File& file, size_t racer) {
  std::filesystem::path path = file.library;
  path += std::to_string(racer);
  std::filesystem::copy_file(file.library, path);
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return dlerror();
  libraries_.push_back(library);
  struct Entry {
    HostEntry run;
    unsigned long argument_bytes;
  };
  auto set_runtime = reinterpret_cast<void (*)(HostRuntime*)>(dlsym(library, "ferrule_runtime"));
  auto entries = reinterpret_cast<const Entry* (*)()>(dlsym(library, "ferrule_entries"));
  auto shared = reinterpret_cast<char* (*)(size_t*)>(dlsym(library, "ferrule_shared_memory"));
  if (!set_runtime || !entries || !shared) return "a compiled file lacks its own functions";
  set_runtime(&host_runtime(racer));
  size_t bytes = 0;
  char* begin = shared(&bytes);
  for (size_t k = file.begin; k < file.end; ++k) {
    const Entry& e = entries()[k - file.begin];
    compiled_[k].argument_bytes = e.argument_bytes;
    compiled_[k].copies.push_back({e.run, {begin, bytes}});
  }
  return {};
}

/// Linked without ThreadSanitizer: the file has the functions that its instrumentation calls.
std::string HostKernels::compile_command(const File& file) const {
  const std::string cxx = compiler(), source = file.source.string(),
                    library = file.library.string();
  std::string command =
      fmt::format("{} {} '-I{}' '{}' -o '{}'", cxx, kFlags, source_dir(), source, library);
  if (raced_)
    command = fmt::format(
        "{0} {1} -fsanitize=thread -DFERRULE_RACED -c '-I{2}' '{3}' -o '{3}.o' && {0} -shared "
        "-Wl,-Bsymbolic '{3}.o' -o '{4}'",
        cxx, kFlags, source_dir(), source, library);
  return fmt::format("({}) >'{}' 2>&1 </dev/null", command, file.log.string());
}

std::string HostKernels::compile() {
  Folder folder;
  std::vector<File> files = write_files(folder);
  compiled_.resize(kernels_.size());
  std::vector<int> status(files.size());
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t k; (k = next++) < files.size();)
      status[k] = std::system(compile_command(files[k]).c_str());
  };
  std::vector<std::thread> workers;
  for (unsigned k = 0; k < kCompilers; ++k) workers.emplace_back(work);
  for (std::thread& t : workers) t.join();
  for (size_t k = 0; k < files.size(); ++k) {
    if (status[k]) return read_file(files[k].log).substr(0, 4000);
    for (size_t racer = 0; racer < (raced_ ? kRacers : 1); ++racer)
      if (std::string wrong = open(files[k], racer); !wrong.empty()) return wrong;
  }
  return {};
}

std::string HostKernels::launch(size_t id, std::string_view arguments, Dim3 grid,
                                Dim3 block) const {
  const Compiled& kernel = compiled_.at(id);
  if (kernel.argument_bytes != arguments.size())
    return fmt::format("an argument block of {} bytes for a kernel that declares {}",
                       arguments.size(), kernel.argument_bytes);
  if (raced_) return race_grid(kernel.copies, arguments, grid, block, launches_++);
  return run_grid(kernel.copies[0], arguments, grid, block);
}

}  // namespace ferrule::test
