#include "engine/graph/tensor.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

using namespace ferrule;

TEST_CASE("tensor: values in every type") {
  for (DType t :
       {DType::f32,      DType::f64,    DType::f16,        DType::bf16,       DType::i8,
        DType::u8,       DType::i16,    DType::u16,        DType::i32,        DType::u32,
        DType::i64,      DType::u64,    DType::boolean,    DType::i4,         DType::u4,
        DType::f8e4m3fn, DType::f8e5m2, DType::f8e4m3fnuz, DType::f8e5m2fnuz, DType::f4e2m1}) {
    CAPTURE(name(t));
    Tensor one = Tensor::scalar(t, 1.0);
    CHECK(one.at_f64(0) == 1.0);
    CHECK(one.at_i64(0) == 1);
    CHECK(one.numel() == 1);
  }
  CHECK(Tensor::scalar(DType::i8, 300).at_i64(0) == 127);
  CHECK(Tensor::scalar(DType::i32, NAN).at_i64(0) == 0);
  CHECK(Tensor::scalar(DType::i4, -3).at_i64(0) == -3);
  CHECK(Tensor::scalar(DType::f8e4m3fn, 1e6).at_f64(0) == 448);
  CHECK(Tensor::scalar(DType::f8e5m2, 4e21).at_f64(0) == 57344);
  CHECK(Tensor::scalar(DType::f8e5m2, -INFINITY).at_f64(0) == -57344);
  CHECK(std::isnan(Tensor::scalar(DType::f8e4m3fnuz, NAN).at_f64(0)));
  CHECK(Tensor::scalar(DType::f8e5m2, 1.125).at_f64(0) == 1.0);  // tie to even
  CHECK(Tensor::scalar(DType::f4e2m1, -5).at_f64(0) == -4);
}

TEST_CASE("tensor: one rounding from double to half") {
  // Rounded to f32 first it would tie, and then go to even.
  double v = 1.0 + 0x1p-11 + 0x1p-40;
  CHECK(Tensor::scalar(DType::f16, v).at_f64(0) == 1.0 + 0x1p-10);
  CHECK(Tensor::scalar(DType::f16, 1.0 + 0x1p-11).at_f64(0) == 1.0);
  CHECK(Tensor::scalar(DType::f16, -v).at_f64(0) == -1.0 - 0x1p-10);
}

TEST_CASE("tensor: identity, hash and reshape") {
  Tensor a = Tensor::of_i64({2, 3}, {1, 2, 3, 4, 5, 6}),
         b = Tensor::of_i64({2, 3}, {1, 2, 3, 4, 5, 6});
  CHECK(a.identical(b));
  CHECK(a.hash() == b.hash());
  CHECK_FALSE(a.identical(a.reshaped({3, 2})));
  CHECK(a.reshaped({6}).data() == a.data());
  CHECK_FALSE(a.identical(Tensor::of_i64({2, 3}, {1, 2, 3, 4, 5, 7})));
  CHECK(Tensor({2}, {"a", "b"}).identical(Tensor({2}, {"a", "b"})));
  CHECK(a.to_i64() == std::vector<int64_t>{1, 2, 3, 4, 5, 6});
  CHECK(reinterpret_cast<uintptr_t>(a.data()) % 64 == 0);
  CHECK(Tensor::of_i64({0}, {}).numel() == 0);
}

TEST_CASE("tensor: memory of every size is zeroed, aligned and all its own") {
  constexpr int64_t kKi = 1 << 10, kMi = 1 << 20;
  for (int64_t bytes : {int64_t{1}, 512 * kKi - 1, 512 * kKi, 512 * kKi + 1, 2 * kMi - 1, 2 * kMi,
                        2 * kMi + 1, 5 * kMi + 4096}) {
    CAPTURE(bytes);
    for (int round = 0; round < 2;
         ++round) {  // the second may get the memory that the first gave back
      auto [t, p] = Tensor::allocate(DType::u8, {bytes});
      CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
      const auto* elements = static_cast<const uint8_t*>(t.data());
      CHECK(std::count(elements, elements + bytes, 0) == bytes);
      std::memset(p, 7, static_cast<size_t>(bytes));
      CHECK(std::count(elements, elements + bytes, 7) == bytes);
    }
  }
}

TEST_CASE("tensor: what is not cleared is so from its last byte on") {
  for (int64_t elements : {0, 1, 3, 100, 126, 1 << 21})
    for (DType type : {DType::u8, DType::i4, DType::f32}) {
      CAPTURE(elements);
      const int64_t bytes = size_bytes(type, elements),
                    all = std::max<int64_t>(64, (bytes + 63) / 64 * 64);
      auto fill = [&](std::pair<Tensor, void*> made) {
        std::memset(made.second, 7, static_cast<size_t>(all));
      };
      fill(Tensor::allocate(type, {elements}));
      auto [t, p] = Tensor::unwritten(type, {elements});
      CHECK(reinterpret_cast<uintptr_t>(p) % 64 == 0);
      CHECK(t.numel() == elements);
      const auto* at = static_cast<const uint8_t*>(p);
      const int64_t from = std::max<int64_t>(bytes - 1, 0);
      CHECK(std::count(at + from, at + all, 0) == all - from);
    }
}
