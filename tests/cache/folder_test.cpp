// Folders that cannot or must not be used: the program runs as if there were no cache, says so once
// where its user should know, and leaves nothing behind.
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "engine/base/cache_folder.h"
#include "tests/cache/kit.h"

using namespace cache_test;

namespace {

constexpr uid_t kNobody = 65534;

/// In a child without root's powers, which no permission stops. The sandbox becomes its own.
int as_user(const Sandbox& box, const std::function<int()>& body) {
  if (geteuid() == 0) {
    for (const fs::path& p : {fs::path(box.root()), box.kernels()})
      (void)!chown(p.c_str(), kNobody, kNobody);
    for (const fs::path& p : box.files()) (void)!chown(p.c_str(), kNobody, kNobody);
  }
  return in_child([&] {
    if (geteuid() == 0 && setuid(kNobody) != 0) return 99;
    return body();
  });
}

/// A process that finds nothing and can keep nothing; `said`: whether it is told why, once.
int useless(const Sandbox& box, bool said) {
  auto cache = box.fresh();
  if (cache->get("old")) return 1;
  cache->put("new", payload(1, 5000));
  if (cache->get("new")) return 2;
  if (cache->complaint().empty() == said) return 3;
  cache->put("new", payload(1, 5000));
  return cache->complaint().empty() ? 0 : 4;
}

}  // namespace

TEST_CASE("a folder or entry that others may write to, or that belongs to them, is refused") {
  Sandbox box;
  REQUIRE(in_child([&] { return box.open()->put("old", "payload"), 0; }) == 0);
  auto found = [&] {
    return in_child([&] { return box.open()->get("old") == "payload" ? 0 : 1; }) == 0;
  };
  REQUIRE(found());
  for (const fs::path& folder : {fs::path(box.root()), box.kernels()}) {
    for (mode_t mode : {0777, 01777, 0703}) {
      REQUIRE(chmod(folder.c_str(), mode) == 0);
      CHECK(in_child([&] { return useless(box, true); }) == 0);
    }
    REQUIRE(chmod(folder.c_str(), 0755) == 0);
    CHECK(found());
  }
  const fs::path file = box.only_file();
  for (mode_t mode : {0620, 0602, 0666}) {
    REQUIRE(chmod(file.c_str(), mode) == 0);
    CHECK(!found());
  }
  REQUIRE(chmod(file.c_str(), 0444) == 0);
  CHECK(found());
  // A folder that becomes writable to all while the program runs.
  CHECK(in_child([&] {
          auto cache = box.open();
          if (cache->get("old") != "payload") return 1;
          chmod(box.kernels().c_str(), 0777);
          return cache->get("old") ? 2 : cache->complaint().empty() ? 3 : 0;
        }) == 0);
  REQUIRE(chmod(box.kernels().c_str(), 0700) == 0);
  fs::remove_all(box.kernels());
  REQUIRE(chmod(box.root().c_str(), 0777) == 0);
  CHECK(in_child([&] { return useless(box, true); }) == 0);
  CHECK(!fs::exists(box.kernels()));
  if (geteuid() != 0) return;  // only root can give files away
  REQUIRE(chmod(box.root().c_str(), 0755) == 0);
  REQUIRE(in_child([&] { return box.open()->put("old", "payload"), 0; }) == 0);
  for (const fs::path& p : {fs::path(box.root()), box.kernels()}) {
    REQUIRE(chown(p.c_str(), kNobody, kNobody) == 0);
    CHECK(in_child([&] { return useless(box, true); }) == 0);
    REQUIRE(chown(p.c_str(), 0, 0) == 0);
  }
  REQUIRE(chown(box.only_file().c_str(), kNobody, kNobody) == 0);
  CHECK(!found());
}

TEST_CASE("things that are no entry under an entry's name") {
  Sandbox box;
  auto cache = box.open();
  cache->put("old", "payload");
  const fs::path file = box.only_file(), keep = box.root() + "/keep";
  fs::rename(file, keep);
  fs::create_symlink(keep, file);
  CHECK(!cache->get("old"));
  fs::remove(file);
  REQUIRE(mkfifo(file.c_str(), 0600) == 0);  // opening it to read would wait for a writer
  CHECK(!cache->get("old"));
  fs::remove(file);
  fs::create_directory(file);
  CHECK(!cache->get("old"));
  cache->put("old", "payload");  // cannot replace a folder
  CHECK(!cache->get("old"));
  CHECK(box.files(true).empty());
  fs::remove(file);
  cache->put("old", "payload");
  CHECK(cache->get("old") == "payload");
  // The folder itself as a link or a file.
  CHECK(in_child([&] {
          fs::rename(box.kernels(), box.root() + "/elsewhere");
          fs::create_directory_symlink(box.root() + "/elsewhere", box.kernels());
          int status = useless(box, true);
          fs::remove(box.kernels());
          write_file(box.kernels(), "a file");
          return status ? status : useless(box, true);
        }) == 0);
}

TEST_CASE("read-only: what is there is used, nothing is kept") {
  Sandbox box;
  REQUIRE(in_child([&] { return box.open()->put("old", "payload"), 0; }) == 0);
  box.age(7200);
  REQUIRE(chmod(box.kernels().c_str(), 0500) == 0);
  CHECK(as_user(box, [&] {
          auto cache = box.open();
          if (cache->get("old") != "payload") return 1;
          cache->put("new", "payload");
          if (cache->get("new")) return 2;
          return cache->complaint().empty() ? 0 : 3;
        }) == 0);
  CHECK(box.files().size() == 1);
  CHECK(box.files(true).empty());
}

TEST_CASE("missing, and nowhere to make it: that is said") {
  Sandbox box;
  REQUIRE(chmod(box.root().c_str(), 0500) == 0);
  CHECK(as_user(box, [&] { return useless(box, true); }) == 0);
  CHECK(DiskCache::open("/proc/nowhere/at/all", kLimit)->get("key") == std::nullopt);
  DiskCache::open("/proc/nowhere/at/all", kLimit)->put("key", "payload");
  DiskCache::open("/dev/null", kLimit)->put("key", "payload");
  CHECK(DiskCache::open("/dev/null", kLimit)->get("key") == std::nullopt);
}

TEST_CASE("made with all folders above it, for this user only") {
  Sandbox box;
  const std::string deep = box.root() + "/a/b/c";
  DiskCache::open(deep, kLimit)->put("key", "payload");
  CHECK(DiskCache::open(deep, kLimit)->get("key") == "payload");
  for (const std::string& folder : {deep + "/kernels", deep, box.root() + "/a"}) {
    struct stat st;
    REQUIRE(stat(folder.c_str(), &st) == 0);
    CHECK((st.st_mode & 0077) == 0);
  }
}

TEST_CASE("the user's folder, and one by a relative path") {
  Sandbox box;
  CHECK(in_child([] {
          unsetenv("FERRULE_CACHE");
          unsetenv("XDG_CACHE_HOME");
          setenv("HOME", "/h", 1);
          if (ferrule::user_cache_folder() != "/h/.cache/ferrule") return 1;
          setenv("XDG_CACHE_HOME", "/x", 1);
          if (ferrule::user_cache_folder() != "/x/ferrule") return 2;
          setenv("FERRULE_CACHE", "/f", 1);
          if (ferrule::user_cache_folder() != "/f") return 3;
          for (const char* name : {"FERRULE_CACHE", "XDG_CACHE_HOME", "HOME"}) setenv(name, "", 1);
          return ferrule::user_cache_folder().empty() ? 0 : 4;
        }) == 0);
  CHECK(in_child([&] {
          if (chdir(box.root().c_str()) != 0) return 1;
          auto cache = DiskCache::open("here", kLimit);
          if (chdir("/") != 0) return 2;
          cache->put("key", "payload");
          return cache->get("key") == "payload" && fs::exists(box.root() + "/here/kernels") ? 0 : 3;
        }) == 0);
}

TEST_CASE("deleted while it is used") {
  Sandbox box;
  auto cache = box.open();
  for (int k = 0; k < 3; ++k) {
    cache->put("key", "payload");
    CHECK(cache->get("key") == "payload");
    fs::remove_all(k == 1 ? fs::path(box.root()) : box.kernels());
    CHECK(!cache->get("key"));
  }
}

TEST_CASE("a file size limit is an error, not the end of the process") {
  Sandbox box;
  CHECK(in_child([&] {
          rlimit small{3000, 3000};
          if (setrlimit(RLIMIT_FSIZE, &small) != 0) return 98;
          auto cache = box.open();
          cache->put("small", payload(1, 1000));
          if (cache->get("small") != payload(1, 1000)) return 5;
          return useless(box, true);
        }) == 0);
  CHECK(box.files().size() == 1);
  CHECK(box.files(true).empty());
}

TEST_CASE("a full disk: what fits is kept and right, the rest is not, nothing half") {
  Sandbox box;
  const int status = in_child([&] {
    // A file system of 64 KiB that only this process sees; who is not root is made root of a
    // namespace.
    const uid_t me = geteuid();
    const gid_t group = getegid();
    if (unshare(me == 0 ? CLONE_NEWNS : CLONE_NEWUSER | CLONE_NEWNS) != 0) return 97;
    if (me != 0) {
      write_file("/proc/self/uid_map", "0 " + std::to_string(me) + " 1");
      write_file("/proc/self/setgroups", "deny");
      write_file("/proc/self/gid_map", "0 " + std::to_string(group) + " 1");
    }
    if (mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("tmpfs", box.root().c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0)
      return 97;
    auto cache = box.open();
    int kept = 0;
    for (uint64_t k = 0; k < 100; ++k) {
      const std::string key = std::to_string(k);
      cache->put(key, payload(k, 3000));
      auto got = cache->get(key);
      if (got && *got != payload(k, 3000)) return 1;
      kept += got.has_value();
    }
    if (kept < 5 || kept > 20) return 2;
    if (!box.files(true).empty()) return 3;
    if (cache->complaint().find("No space") == std::string::npos) return 4;
    // Room again: it goes on.
    if (cache->clear() != kept) return 5;
    cache->put("again", payload(1, 3000));
    return cache->get("again") == payload(1, 3000) ? 0 : 6;
  });
  if (status == 97)
    MESSAGE("not tried: this user may not mount a small file system");
  else
    CHECK(status == 0);
}
