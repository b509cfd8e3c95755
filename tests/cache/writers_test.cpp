// Writers that are killed at any moment, many writers on one key, the size limit, clocks that go
// back.
#include <sys/file.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "tests/cache/kit.h"

using namespace cache_test;

namespace {

constexpr int kKeys = 8;
size_t size_of(uint64_t key) { return 100 + key * 30000; }

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

/// A new process writes, when a sweep is due. `age`: of all files.
void sweep_now(const Sandbox& box, int64_t limit = kLimit, int age = 700) {
  box.age(age);
  box.fresh(limit)->put("sweep", "x");
}

}  // namespace

TEST_CASE("writers killed at random: every entry whole, nothing left") {
  Sandbox box;
  Rng rng(9);
  std::vector<std::string> payloads;
  for (uint64_t k = 0; k < kKeys; ++k) payloads.push_back(payload(k, size_of(k)));
  const int kills = times(1000, 5);
  size_t most_parts = 0;
  // A busy machine may need more of them until one comes in the middle of a write.
  for (int k = 0; k < kills || (most_parts == 0 && k < kills + 200); ++k) {
    pid_t child = start([&] {
      auto cache = box.open();
      for (size_t n = static_cast<size_t>(k);; ++n)
        cache->put("key" + std::to_string(n % kKeys), payloads[n % kKeys]);
      return 0;
    });
    usleep(static_cast<useconds_t>(300 + rng() % 4000));
    kill(child, SIGKILL);
    REQUIRE(wait_for(child) == -SIGKILL);
    const size_t one = rng() % kKeys;
    auto got = box.open()->get("key" + std::to_string(one));
    if (got) CHECK(*got == payloads[one]);
    most_parts = std::max(most_parts, box.files(true).size());
  }
  for (size_t k = 0; k < kKeys; ++k)
    CHECK(box.open()->get("key" + std::to_string(k)) == payloads[k]);
  CHECK(box.open()->counts().refused == 0);
  CHECK_MESSAGE(most_parts > 0, "no kill came in the middle of a write: the test shows nothing");
  sweep_now(box);
  CHECK(box.files(true).empty());
  CHECK(box.files().size() == kKeys + 1);
}

TEST_CASE("a writer that is alive keeps its file; one that hangs for an hour does not") {
  Sandbox box;
  box.open()->put("key", "payload");
  const fs::path part = box.only_file().string() + ".1-1.part";
  write_file(part, "half");
  int fd = ::open(part.c_str(), O_RDONLY);
  REQUIRE(flock(fd, LOCK_EX) == 0);
  sweep_now(box);
  CHECK(fs::exists(part));
  CHECK(box.open()->contents(false).parts == 1);
  CHECK(box.open()->clear() == 2);
  CHECK(fs::exists(part));
  for (int age : {4000, -4000}) {  // also from the future, when the clock went back
    write_file(part, "half");
    sweep_now(box, kLimit, age);
    CHECK(!fs::exists(part));
  }
  close(fd);
  // Files that are not the cache's stay whatever their age.
  for (const char* name : {"notes.txt", "abc.part", "0123456789abcdef0123456789abcdeg"}) {
    write_file(box.kernels() / name, "mine");
  }
  box.open()->put("key", payload(1, 1000));
  sweep_now(box, 800);
  CHECK(!box.open()->get("key"));
  box.open()->clear();
  for (const char* name : {"notes.txt", "abc.part", "0123456789abcdef0123456789abcdeg"})
    CHECK(fs::exists(box.kernels() / name));
}

TEST_CASE("32 writers on one key, with readers") {
  Sandbox box;
  constexpr int kWriters = 32, kReaders = 4;
  const int puts = times(1000, 20);
  const auto begin = std::chrono::steady_clock::now();
  std::vector<pid_t> writers, readers;
  for (uint64_t w = 0; w < kWriters; ++w)
    writers.push_back(start([&, w] {
      auto cache = box.open();
      const std::string mine = payload(w, 2000 + w * 500);
      for (int k = 0; k < puts; ++k) cache->put("key", mine);
      return cache->complaint().empty() && cache->counts().written == puts ? 0 : 1;
    }));
  for (int r = 0; r < kReaders; ++r)
    readers.push_back(start([&] {
      std::vector<std::string> all;
      for (uint64_t w = 0; w < kWriters; ++w) all.push_back(payload(w, 2000 + w * 500));
      auto cache = box.open();
      while (!cache->get("key")) usleep(100);  // until there is a first one
      for (int k = 0; k < puts * 4; ++k) {
        auto at = std::chrono::steady_clock::now();
        auto got = cache->get("key");
        if (!got) return 1;  // once there, always there
        if (std::find(all.begin(), all.end(), *got) == all.end()) return 2;
        if (seconds_since(at) > 10) return 3;
      }
      return cache->counts().refused ? 4 : 0;
    }));
  for (pid_t w : writers) CHECK(wait_for(w) == 0);
  for (pid_t r : readers) CHECK(wait_for(r) == 0);
  CHECK(seconds_since(begin) < 600);
  CHECK(box.files().size() == 1);
  CHECK(box.files(true).empty());
}

TEST_CASE("threads of one process") {
  Sandbox box;
  auto cache = box.open();
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (uint64_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint64_t k = 0; k < 200; ++k) {
        const uint64_t key = (k + t) % 10;
        cache->put(std::to_string(key), payload(key, 500));
        auto got = cache->get(std::to_string(key));
        if (got && *got != payload(key, 500)) ++wrong;
        std::error_code ec;
        if (t == 0 && k % 50 == 0) fs::remove_all(box.kernels(), ec);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  CHECK(cache->counts().refused == 0);
}

TEST_CASE("the size limit: the least recently used go, also when their time lies in the future") {
  Sandbox box;
  constexpr int64_t kSmall = 1 << 20;
  auto cache = box.fresh(kSmall);
  for (int k = 0; k < 200; ++k) cache->put(std::to_string(k), payload(1, 20000));
  CHECK(cache->counts().written == 200);
  auto bytes = [&] {
    uintmax_t sum = 0;
    for (const fs::path& f : box.files()) sum += fs::file_size(f);
    return static_cast<int64_t>(sum);
  };
  CHECK(bytes() <= kSmall + kSmall / 16 + 30000);
  CHECK(bytes() >= kSmall / 2);
  // All seem to come from the future but the one that is read and the one that is written.
  box.age(-90000);
  CHECK(cache->get("199"));
  Sandbox::set_age(box.kernels() / "swept", 700);
  box.fresh(kSmall / 4)->put("200", payload(1, 20000));
  CHECK(bytes() <= kSmall / 4);
  CHECK(box.open()->get("199"));
  CHECK(box.open()->get("200"));
  // Nothing at all is kept, and nothing larger than a quarter of the limit.
  for (int64_t limit : {0, 1000}) {
    auto none = box.fresh(limit);
    none->put("none", payload(1, 400));
    CHECK(!none->get("none"));
  }
}
