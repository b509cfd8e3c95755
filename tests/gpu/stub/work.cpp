#include "tests/gpu/stub/work.h"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

namespace ferrule::stub {
namespace {

using test::HostEntry;
using test::HostRuntime;

/// Bytes of an ELF file: its section headers come last.
size_t image_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) return 0;
  return header.e_shoff + size_t{header.e_shnum} * header.e_shentsize;
}

}  // namespace

/// What the image was compiled for, which stands behind it: machine code runs on devices of its
/// generation that are not older, PTX on all that are not older.
bool runs_here(const char* behind) {
  const std::string_view text = behind;
  const size_t name = text.find(' ');
  const int cc = std::stoi(std::string(text.substr(text.find('_', name) + 1)));
  const int device = std::stoi(setting("FERRULE_STUB_CC", "90"));
  return cc <= device && (text.find("compute_") != text.npos || cc / 10 == device / 10);
}

std::unique_ptr<CUmod_st> open_image(const void* image, std::string& wrong, int& code) {
  auto m = std::make_unique<CUmod_st>();
  code = kInvalidImage;
  constexpr std::string_view kNull = "FERRULE-NULL ";
  if (std::strncmp(static_cast<const char*>(image), kNull.data(), kNull.size()) == 0) {
    m->function.name = static_cast<const char*>(image) + kNull.size();
    if (runs_here(static_cast<const char*>(image) + kNull.size() + m->function.name.size() + 1))
      return m;
    code = kNoBinary;
    return nullptr;
  }
  const size_t size = image_bytes(image);
  if (size && !runs_here(static_cast<const char*>(image) + size)) {
    code = kNoBinary;
    return nullptr;
  }
  const int file = m->file = size ? memfd_create("kernel", 0) : -1;
  if (file < 0 || write(file, image, size) != static_cast<ssize_t>(size)) {
    wrong = "an image that is none of the stub NVRTC's";
    return nullptr;
  }
  m->library = dlopen(fmt::format("/proc/self/fd/{}", file).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!m->library) wrong = dlerror();
  // The name must stay another one for every module that is open: the file stays open.
  if (!m->library) return nullptr;
  auto set_runtime = reinterpret_cast<void (*)(HostRuntime*)>(dlsym(m->library, "ferrule_runtime"));
  auto name = reinterpret_cast<const char* (*)()>(dlsym(m->library, "ferrule_entry_name"));
  auto run = reinterpret_cast<HostEntry (*)()>(dlsym(m->library, "ferrule_entry"));
  auto bytes = reinterpret_cast<size_t (*)()>(dlsym(m->library, "ferrule_argument_bytes"));
  auto shared = reinterpret_cast<char* (*)(size_t*)>(dlsym(m->library, "ferrule_shared_memory"));
  if (!set_runtime || !name || !run || !bytes || !shared) {
    wrong = "a library that is none of the stub NVRTC's";
    return nullptr;
  }
  set_runtime(&test::host_runtime());
  size_t shared_bytes = 0;
  char* begin = shared(&shared_bytes);
  m->function = {name(), {run(), {begin, shared_bytes}}, bytes()};
  return m;
}

std::string run_kernel(const CUfunc_st& f, const std::string& arguments, test::Dim3 grid,
                       test::Dim3 block) {
  const std::string wrong = test::run_grid(f.kernel, arguments, grid, block);
  return wrong.empty() ? wrong : fmt::format("kernel {}, {}", f.name, wrong);
}

CUstream_st* real(CUstream_st* stream) {
  static auto* legacy = new CUstream_st();
  alive<CUstream_st>().insert(legacy);
  return stream ? stream : legacy;
}

void put(CUstream_st* stream, Work work) {
  if (stream->capturing)
    stream->captured.push_back(std::move(work));
  else
    stream->queue.push_back(std::move(work));
}

int drain(CUstream_st* stream) {
  std::vector<Work> todo;
  todo.swap(stream->queue);
  State& s = state();
  s.memory.open(true);
  for (const Work& w : todo) {
    if (s.lost) break;
    s.log(w.text);
    if (const int code = w.run()) s.lost = code;
  }
  s.memory.open(false);
  return s.lost;
}

bool spoils_capture(const char* what) {
  for (CUstream_st* s : alive<CUstream_st>())
    if (s->capturing) {
      s->invalidated = true;
      state().log(fmt::format("{} spoils a capture", what));
      return true;
    }
  return false;
}

}  // namespace ferrule::stub
