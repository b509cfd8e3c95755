// Damaged and foreign entries are refused: whatever is done to a file, get gives the payload that
// was put, or nothing; and what is compiled from it computes what it should.
#include <algorithm>
#include <cstring>

#include "codegen/cpu/jit.h"
#include "engine/semantics/program_builder.h"
#include "tests/cache/kit.h"

using namespace cache_test;
using namespace ferrule;

namespace {

/// x * factor + 1 over 100 floats, in a process that has compiled nothing yet. 0: right; also says
/// in `compiled` (an exit status of 10) when the code came from the compiler and not from the
/// cache.
int run_kernel(const Sandbox& box, double factor) {
  auto cache = box.open();
  ProgramBuilder b;
  auto x = b.op(Prim::mul, DType::f32, {b.input(DType::f32), b.constant(DType::f32, factor, 0)});
  b.output(b.op(Prim::add, DType::f32, {x, b.constant(DType::f32, 1, 0)}));
  KernelKey key{b.take(), {InnerStride::contiguous, InnerStride::contiguous}, "cpu-avx2", false};
  auto kernel = CpuJit::instance().compile(key, "test", cache.get());
  if (!kernel) return 1;
  std::vector<float> in(100), out(100);
  for (size_t k = 0; k < in.size(); ++k) in[k] = static_cast<float>(k) - 50;
  void* ptrs[2] = {in.data(), out.data()};
  int64_t n[2] = {1, 100}, strides[2] = {0, 0};
  (*kernel)->fn(ptrs, n, strides, strides);
  for (size_t k = 0; k < in.size(); ++k)
    if (out[k] != in[k] * static_cast<float>(factor) + 1) return 2;
  return CpuJit::instance().compiled() ? 10 : 0;
}

/// One random change of a file's bytes; false when they stay as they were.
bool damage(std::string& bytes, Rng& rng) {
  const std::string before = bytes;
  auto at = [&] { return rng() % std::max<size_t>(1, bytes.size()); };
  switch (rng() % 8) {
    case 0:
      bytes[at()] ^= static_cast<char>(1 << rng() % 8);
      break;
    case 1:
      bytes.resize(at());
      break;
    case 2:
      bytes[rng() % 112] = static_cast<char>(rng());
      break;  // the header
    case 3:
      for (size_t k = at(), n = k + rng() % 64; k < std::min(n, bytes.size()); ++k) bytes[k] = 0;
      break;
    case 4:
      bytes += std::string(1 + rng() % 100, static_cast<char>(rng()));
      break;
    case 5:
      std::rotate(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(at()), bytes.end());
      break;
    case 6:
      std::swap(bytes[at()], bytes[at()]);
      break;
    default: {  // a length that says more or less than there is
      uint64_t value = rng() >> rng() % 64;
      std::memcpy(bytes.data() + (rng() % 2 ? 80 : 88), &value, 8);
    }
  }
  return bytes != before;
}

}  // namespace

TEST_CASE("what was put is found, by key and build, in this process and in another") {
  Sandbox box;
  auto cache = box.open();
  CHECK(!cache->get("a"));
  const std::string big = payload(1, 300000);
  cache->put("a", big);
  cache->put("b", "");
  cache->put(std::string("a\0b", 3), "zero");
  CHECK(cache->get("a") == big);
  CHECK(cache->get("b") == "");
  CHECK(cache->get(std::string("a\0b", 3)) == "zero");
  CHECK(!cache->get("c"));
  cache->put("a", "new");
  CHECK(cache->get("a") == "new");
  CHECK(in_child([&] { return box.open()->get("a") == "new" ? 0 : 1; }) == 0);
  CHECK(cache->counts().hits == 4);
  CHECK(cache->counts().misses == 2);
  CHECK(cache->counts().refused == 0);
  CHECK(cache->counts().written == 4);
  CHECK(box.files().size() == 3);
  CHECK(box.files(true).empty());
  struct stat st;
  REQUIRE(stat(box.files()[0].c_str(), &st) == 0);
  CHECK((st.st_mode & 0777) == 0600);
  CHECK(DiskCache::open("", kLimit) == nullptr);
}

TEST_CASE("random damage") {
  Sandbox box;
  auto cache = box.open();
  const std::string right = payload(7, 1500);
  cache->put("key", right);
  const fs::path file = box.only_file();
  const std::string whole = read_file(file);
  Rng rng(4);
  for (int k = 0; k < times(10000, 5); ++k) {
    std::string bytes = whole;
    if (!damage(bytes, rng)) continue;
    write_file(file, bytes);
    auto got = cache->get("key");
    CHECK_MESSAGE(!got, "damage ", k, " was not seen");
  }
  for (size_t size = 0; size < whole.size(); ++size) {
    write_file(file, whole.substr(0, size));
    CHECK_MESSAGE(!cache->get("key"), "cut after ", size, " bytes");
  }
  CHECK(cache->counts().hits == 0);
  write_file(file, whole);
  CHECK(cache->get("key") == right);
}

TEST_CASE("entries under the name of another key, of another build, format or version") {
  Sandbox box;
  auto cache = box.open();
  cache->put("one", "first");
  const fs::path one = box.only_file();
  cache->put("two", "second");
  const fs::path two = box.files()[0] == one ? box.files()[1] : box.files()[0];
  fs::rename(one, box.root() + "/keep");
  fs::rename(two, one);
  fs::rename(box.root() + "/keep", two);
  CHECK(!cache->get("one"));
  CHECK(!cache->get("two"));
  CHECK(cache->counts().refused == 2);
  CHECK(cache->contents(true).damaged.size() == 2);
  cache->put("one", "first");
  CHECK(cache->get("one") == "first");
  // The format's number, with nothing else wrong.
  std::string bytes = read_file(one);
  bytes[8] ^= 2;
  write_file(one, bytes);
  CHECK(!cache->get("one"));
  DiskCache::Contents c = cache->contents(true);
  CHECK(c.entries == 2);
  CHECK(c.foreign == 1);
  REQUIRE(c.damaged.size() == 1);
  CHECK(!cache->remove("../keep"));
  CHECK(cache->remove(c.damaged[0]));
  CHECK(cache->contents(true).damaged.empty());
  CHECK(cache->clear() == 2 - 1);
  CHECK(box.files().empty());
}

TEST_CASE("code comes from the cache, and never from a damaged entry") {
  Sandbox box;
  CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 10);
  CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 0);
  const fs::path file = box.only_file();
  const std::string whole = read_file(file);
  CHECK(in_child([&] { return run_kernel(box, -3); }) == 10);
  // The other kernel's code in the place of this one.
  fs::path other = box.files()[0] == file ? box.files()[1] : box.files()[0];
  fs::copy_file(other, file, fs::copy_options::overwrite_existing);
  CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 10);
  CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 0);  // put right by the run before
  CHECK(read_file(file) == whole);
  Rng rng(5);
  for (int k = 0; k < times(300, 10); ++k) {
    std::string bytes = whole;
    if (!damage(bytes, rng)) continue;
    write_file(file, bytes);
    CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 10);
  }
  CHECK(in_child([&] { return run_kernel(box, 2.5); }) == 0);
}
