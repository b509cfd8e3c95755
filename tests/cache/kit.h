// What the tests of the cache share: a folder of their own, a child process to run something in
// (the JIT and the folder's state are then fresh, and it can be killed), files.
#pragma once
#include <doctest/doctest.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>

#include "codegen/cache.h"

namespace cache_test {

namespace fs = std::filesystem;
using ferrule::DiskCache;
using Rng = std::mt19937_64;

constexpr int64_t kLimit = int64_t{1} << 30;

/// The counts with FERRULE_TEST_FULL, else a share of them that takes seconds.
inline int times(int full, int share) {
  const char* on = std::getenv("FERRULE_TEST_FULL");
  return on && *on ? full : full / share;
}

class Sandbox {
 public:
  Sandbox() {
    std::string pattern = (fs::temp_directory_path() / "ferrule-cache-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()));
    root_ = pattern;
  }
  Sandbox(const Sandbox&) = delete;
  ~Sandbox() {
    std::error_code ec;
    fs::permissions(kernels(), fs::perms::owner_all, ec);
    fs::remove_all(root_, ec);
  }
  std::string root() const { return root_.string(); }
  fs::path kernels() const { return root_ / "kernels"; }
  std::shared_ptr<DiskCache> open() const { return DiskCache::open(root(), kLimit); }
  /// One that has seen nothing yet, as in a new process: the folder under another name.
  std::shared_ptr<DiskCache> fresh(int64_t limit = kLimit) const {
    return DiskCache::open(root() + std::string(++names_, '/'), limit);
  }

  /// Entries, and files of writers that did not finish.
  std::vector<fs::path> files(bool parts = false) const {
    std::vector<fs::path> out;
    std::error_code ec;
    for (const auto& f : fs::directory_iterator(kernels(), ec))
      if (f.path().filename() != "swept" && (f.path().extension() == ".part") == parts)
        out.push_back(f.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  fs::path only_file() const {
    auto all = files();
    REQUIRE(all.size() == 1);
    return all[0];
  }
  /// As if the last sweep and everything else were this old (negative: from the future).
  void age(int seconds) const {
    std::error_code ec;
    for (const auto& f : fs::directory_iterator(kernels(), ec)) set_age(f.path(), seconds);
  }
  static void set_age(const fs::path& file, int seconds) {
    timespec times[2] = {{time(nullptr) - seconds, 0}, {time(nullptr) - seconds, 0}};
    utimensat(AT_FDCWD, file.c_str(), times, AT_SYMLINK_NOFOLLOW);
  }

 private:
  fs::path root_;
  mutable size_t names_ = 0;
};

inline std::string read_file(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}
inline void write_file(const fs::path& path, std::string_view bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

/// Runs `body` in a child; its result is the exit status, -signal if it died.
inline pid_t start(const std::function<int()>& body) {
  fflush(nullptr);  // ThreadSanitizer's _exit would write what is buffered here once more
  pid_t child = fork();
  if (child == 0) _exit(body());
  REQUIRE(child > 0);
  return child;
}
inline int wait_for(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}
inline int in_child(const std::function<int()>& body) { return wait_for(start(body)); }

/// Random bytes, the same for the same seed.
inline std::string payload(uint64_t seed, size_t bytes) {
  std::string out(bytes, '\0');
  Rng rng(seed);
  for (char& c : out) c = static_cast<char>(rng());
  return out;
}

}  // namespace cache_test
