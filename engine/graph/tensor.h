// An immutable tensor constant: element type, dims, and bytes that somebody keeps alive (a buffer,
// or a file mapped into memory). Copying a Tensor copies a pointer. Row-major, dense.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/diagnostics.h"
#include "engine/base/dtype.h"
#include "engine/graph/residence.h"

namespace ferrule {

class Tensor {
 public:
  Tensor() = default;
  /// Wraps bytes owned by `owner`; `bytes` is at least size_bytes(dtype, numel).
  Tensor(DType dtype, std::vector<int64_t> dims, std::shared_ptr<const void> owner,
         const void* bytes)
      : dtype_(dtype), dims_(std::move(dims)), owner_(std::move(owner)), data_(bytes) {}
  /// Wraps private bytes that may be written; large ones can be given back (residence).
  static Tensor over(DType dtype, std::vector<int64_t> dims, std::shared_ptr<void> owner,
                     void* bytes);
  /// A tensor of strings.
  Tensor(std::vector<int64_t> dims, std::vector<std::string> strings)
      : dtype_(DType::string),
        dims_(std::move(dims)),
        strings_(std::make_shared<const std::vector<std::string>>(std::move(strings))) {}

  /// What is no tensor: a list of tensors or maps, a map's keys and values, an optional without a
  /// value (one that has a value is that value). Only the interpreter makes them and graph inputs
  /// and outputs hold them: who may be given one asks is_tensor() first.
  static Tensor sequence(std::vector<Tensor> elements);
  static Tensor map(Tensor keys, Tensor values);
  static Tensor absent();

  /// A new tensor and its writable bytes (zeroed, 64-byte aligned); fill them before sharing it.
  static std::pair<Tensor, void*> allocate(DType dtype, std::vector<int64_t> dims);
  /// The same with elements that may hold anything, for who writes every one of them: clearing
  /// takes as long as many a kernel.
  static std::pair<Tensor, void*> unwritten(DType dtype, std::vector<int64_t> dims);
  /// From values in order; T must be the C type of `dtype` (bool as uint8_t, f16 / bf16 as
  /// uint16_t).
  template <class T>
  static Tensor of(DType dtype, std::vector<int64_t> dims, std::span<const T> values) {
    auto [t, p] = allocate(dtype, std::move(dims));
    FERRULE_ASSERT(std::ssize(values) == t.numel(), "Tensor::of: wrong number of values");
    std::copy(values.begin(), values.end(), static_cast<T*>(p));
    return t;
  }
  static Tensor of_i64(std::vector<int64_t> dims, const std::vector<int64_t>& values) {
    return of<int64_t>(DType::i64, std::move(dims), values);
  }
  static Tensor of_f32(std::vector<int64_t> dims, const std::vector<float>& values) {
    return of<float>(DType::f32, std::move(dims), values);
  }
  /// Of an integer type of a byte or more; values wrap.
  static Tensor of_ints(DType dtype, std::vector<int64_t> dims, std::span<const int64_t> values);
  /// Writes element `i` (row-major) of a new tensor of any numeric type, with one rounding.
  static void put(DType dtype, void* bytes, int64_t i, double value);
  /// One element of any numeric type, converted from `value` with one rounding.
  static Tensor scalar(DType dtype, double value, std::vector<int64_t> dims = {});

  DType dtype() const { return dtype_; }
  const std::vector<int64_t>& dims() const { return dims_; }
  int rank() const { return static_cast<int>(dims_.size()); }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims_) n *= d;
    return n;
  }
  int64_t bytes() const { return size_bytes(dtype_, numel()); }
  const void* data() const {
    if (residence_) residence_->require();
    return data_;
  }
  /// Where the bytes are, not to be read: they may be away.
  const void* address() const { return data_; }
  /// Whether and how the bytes can be given back; null: they cannot.
  const std::shared_ptr<Residence>& residence() const { return residence_; }
  template <class T>
  std::span<const T> as() const {
    return {static_cast<const T*>(data()), static_cast<size_t>(numel())};
  }
  const std::vector<std::string>& strings() const { return *strings_; }
  bool is_tensor() const { return ferrule::is_tensor(dtype_); }
  const std::vector<Tensor>& elements() const { return *elements_; }  ///< of what is no tensor

  /// Element `i` (row-major) as double / int64, from any numeric or bool type.
  double at_f64(int64_t i) const;
  int64_t at_i64(int64_t i) const;
  /// Whether the element is one of u64 that i64 does not hold: at_i64 wraps it.
  bool beyond_i64(int64_t i) const;
  std::string integer_text(int64_t i) const;  ///< of integers and bool
  std::vector<int64_t> to_i64() const;        ///< all elements; integer or bool types
  std::vector<double> to_f64() const;
  /// Same bytes under other dims of the same number of elements.
  Tensor reshaped(std::vector<int64_t> dims) const;
  /// Bit-identical content, dtype and dims.
  bool identical(const Tensor& other) const;
  size_t hash() const;

 private:
  friend class WeakTensor;
  DType dtype_ = DType::undefined;
  std::vector<int64_t> dims_;
  std::shared_ptr<const void> owner_;
  const void* data_ = nullptr;
  std::shared_ptr<Residence> residence_;
  std::shared_ptr<const std::vector<std::string>> strings_;
  std::shared_ptr<const std::vector<Tensor>> elements_;

  Tensor(DType dtype, std::vector<Tensor> elements)
      : dtype_(dtype),
        elements_(std::make_shared<const std::vector<Tensor>>(std::move(elements))) {}
};

/// A tensor of numbers whose bytes somebody else keeps alive.
class WeakTensor {
 public:
  explicit WeakTensor(const Tensor& t) : tensor_(t), owner_(t.owner_), residence_(t.residence_) {
    tensor_.owner_.reset(), tensor_.residence_.reset();
  }
  /// None: nobody kept it.
  std::optional<Tensor> lock() const;

 private:
  Tensor tensor_;  // without owner
  std::weak_ptr<const void> owner_;
  std::weak_ptr<Residence> residence_;
};

}  // namespace ferrule
