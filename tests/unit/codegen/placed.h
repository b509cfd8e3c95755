// Tensors as they lie in a device's memory, on the host: elements by strides, in whatever layout or
// as a part of something larger, with bytes around them that nothing may write.
#pragma once
#include <cstring>
#include <vector>

#include "engine/graph/tensor.h"

namespace ferrule::test {

struct Placed {
  DType type{};
  std::vector<int64_t> dims, strides = {};  ///< elements
  std::vector<char> memory = {};
  size_t offset = 0;

  /// Room for it; `aligned`: to 16 bytes, else only to an element.
  void allocate(bool aligned) {
    const auto size = static_cast<size_t>(size_bits(type) / 8);
    int64_t reach = 1;
    for (size_t d = 0; d < dims.size(); ++d) reach += (dims[d] - 1) * strides[d];
    const size_t bytes = numel() ? static_cast<size_t>(reach) * size : 0;
    memory.assign(bytes + 96, kUntouched);
    offset =
        (16 - reinterpret_cast<uintptr_t>(memory.data()) % 16) % 16 + 16 + (aligned ? 0 : size);
  }
  char* data() { return memory.data() + offset; }

  void put(const Tensor& t) {
    each([&](int64_t k, size_t at, size_t size) {
      std::memcpy(data() + at, static_cast<const char*>(t.data()) + static_cast<size_t>(k) * size,
                  size);
    });
  }
  Tensor take() {
    auto [t, to] = Tensor::allocate(type, dims);
    each([&, to = to](int64_t k, size_t at, size_t size) {
      std::memcpy(static_cast<char*>(to) + static_cast<size_t>(k) * size, data() + at, size);
    });
    return t;
  }
  /// Bytes beside the elements that are no longer what they were.
  int64_t touched() {
    std::vector<bool> own(memory.size());
    each([&](int64_t, size_t at, size_t size) {
      for (size_t b = 0; b < size; ++b) own[offset + at + b] = true;
    });
    int64_t n = 0;
    for (size_t b = 0; b < memory.size(); ++b) n += !own[b] && memory[b] != kUntouched;
    return n;
  }

 private:
  static constexpr char kUntouched = 0x5a;
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  template <class F>
  void each(F f) const {
    const auto size = static_cast<size_t>(size_bits(type) / 8);
    for (int64_t k = 0; k < numel(); ++k) {
      int64_t rest = k, at = 0;
      for (size_t d = dims.size(); d-- > 0; rest /= dims[d]) at += rest % dims[d] * strides[d];
      f(k, static_cast<size_t>(at) * size, size);
    }
  }
};

}  // namespace ferrule::test
