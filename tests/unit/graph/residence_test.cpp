// Constants whose memory went back to the system: really gone, written again for whoever asks, and
// never while held.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/graph/tensor.h"

namespace ferrule {
namespace {

constexpr int64_t kElements = 1 << 18, kBytes = kElements * 4;

Tensor counting() {
  auto [t, p] = Tensor::allocate(DType::i32, {kElements});
  for (int32_t k = 0; k < kElements; ++k) static_cast<int32_t*>(p)[k] = k;
  return t;
}

/// Writes what counting() has, and counts how often.
Residence::Restore restore(std::atomic<int>& times) {
  return [&times](void* p) {
    for (int32_t k = 0; k < kElements; ++k) static_cast<int32_t*>(p)[k] = k;
    ++times;
  };
}

/// Pages of the tensor's memory that the process has.
int64_t resident_pages(const Tensor& t) {
  const uintptr_t first = reinterpret_cast<uintptr_t>(t.address()) / 4096 * 4096;
  const size_t pages = (reinterpret_cast<uintptr_t>(t.address()) + kBytes - first + 4095) / 4096;
  std::vector<unsigned char> in(pages);
  REQUIRE(::mincore(reinterpret_cast<void*>(first), pages * 4096, in.data()) == 0);
  return std::count_if(in.begin(), in.end(), [](unsigned char c) { return c & 1; });
}

}  // namespace

TEST_CASE(
    "residence: bytes given back are gone, and there again when a tensor or its copy is asked") {
  std::atomic<int> times = 0;
  const int64_t before = Residence::given_back();
  Tensor t = counting();
  const Tensor copy = t.reshaped({kElements / 2, 2});
  CHECK(resident_pages(t) >= kBytes / 4096);
  REQUIRE(t.residence());
  CHECK(t.residence()->give_back(restore(times)));
  CHECK(Residence::given_back() - before >= kBytes - 2 * 4096);
  CHECK(resident_pages(t) <= 2);
  CHECK(t.address() == copy.address());
  CHECK(times == 0);
  CHECK(copy.as<int32_t>()[kElements - 1] == kElements - 1);
  CHECK(times == 1);
  CHECK(Residence::given_back() == before);
  CHECK(t.identical(counting()));
  CHECK(times == 1);
  // Each way of reading asks.
  const size_t hash = counting().hash();
  for (int way = 0; way < 5; ++way) {
    CAPTURE(way);
    CHECK(t.residence()->give_back(restore(times)));
    if (way == 0) CHECK(t.at_i64(kElements / 2) == kElements / 2);
    if (way == 1) CHECK(t.at_f64(kElements / 2) == kElements / 2);
    if (way == 2) CHECK(t.hash() == hash);
    if (way == 3) CHECK(counting().identical(t));
    if (way == 4) CHECK(static_cast<const int32_t*>(t.data())[kElements / 2] == kElements / 2);
    CHECK(times == way + 2);
  }
}

TEST_CASE("residence: what is held stays, once for each who holds it") {
  std::atomic<int> times = 0;
  const int64_t before = Residence::given_back();
  Tensor t = counting();
  t.residence()->hold();
  t.residence()->hold();
  CHECK_FALSE(t.residence()->give_back(restore(times)));
  t.residence()->let_go();
  CHECK_FALSE(t.residence()->give_back(restore(times)));
  CHECK(Residence::given_back() == before);
  t.residence()->let_go();
  CHECK(t.residence()->give_back(restore(times)));
  // Given back once more, it is written by the last who offered to.
  std::atomic<int> others = 0;
  CHECK(t.residence()->give_back(restore(others)));
  CHECK(t.at_i64(7) == 7);
  CHECK(times == 0);
  CHECK(others == 1);
}

TEST_CASE("residence: a tensor that dies while its bytes are away leaves nothing behind") {
  std::atomic<int> times = 0;
  const int64_t before = Residence::given_back();
  auto kept = std::make_shared<int>(0);
  {
    Tensor t = counting();
    CHECK(t.residence()->give_back([kept, write = restore(times)](void* p) { write(p); }));
    CHECK(kept.use_count() == 2);
  }
  CHECK(Residence::given_back() == before);
  CHECK(kept.use_count() == 1);
  CHECK(times == 0);
}

TEST_CASE("residence: threads that ask at once find the bytes written once") {
  std::atomic<int> times = 0;
  Tensor t = counting();
  for (int round = 1; round <= 20; ++round) {
    CHECK(t.residence()->give_back(restore(times)));
    std::atomic<int64_t> wrong = 0;
    std::vector<std::thread> threads;
    for (int n = 0; n < 4; ++n)
      threads.emplace_back([&] {
        auto elements = t.as<int32_t>();
        for (int32_t k = 0; k < kElements; k += 97) wrong += elements[static_cast<size_t>(k)] != k;
      });
    for (std::thread& x : threads) x.join();
    CHECK(wrong == 0);
    CHECK(times == round);
  }
}

TEST_CASE("residence: small tensors and bytes of somebody else's cannot be given back") {
  CHECK_FALSE(Tensor::allocate(DType::u8, {1000}).first.residence());
  auto owner = std::make_shared<std::vector<float>>(kElements);
  CHECK_FALSE(Tensor(DType::f32, {kElements}, owner, owner->data()).residence());
  // Private bytes at any address: what lies beside them is not touched.
  Tensor t = Tensor::over(DType::i32, {kElements - 2}, owner, owner->data() + 1);
  owner->front() = 3, owner->back() = 4;
  REQUIRE(t.residence());
  CHECK(t.residence()->give_back([](void* p) { std::memset(p, 1, kBytes - 8); }));
  CHECK(owner->front() == 3);
  CHECK(owner->back() == 4);
  CHECK(t.at_i64(0) == 0x01010101);
  CHECK(t.at_i64(kElements - 3) == 0x01010101);
  CHECK(owner->front() == 3);
  CHECK(owner->back() == 4);
}

}  // namespace ferrule
