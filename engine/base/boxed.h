// An optional that lies elsewhere: as wide as a pointer while it is absent, for what few entries of
// a long table have. Used like std::optional; copying copies what is inside.
#pragma once
#include <memory>
#include <optional>
#include <utility>

namespace ferrule {

template <class T>
class Boxed {
 public:
  Boxed() = default;
  Boxed(std::nullopt_t) {}                                        // NOLINT: as std::optional
  Boxed(T value) : it_(std::make_unique<T>(std::move(value))) {}  // NOLINT: as std::optional
  Boxed(std::optional<T> value)
      : it_(value ? std::make_unique<T>(*std::move(value)) : nullptr) {}  // NOLINT
  Boxed(const Boxed& other) : it_(other.it_ ? std::make_unique<T>(*other.it_) : nullptr) {}
  Boxed(Boxed&&) noexcept = default;
  Boxed& operator=(Boxed other) noexcept {
    it_.swap(other.it_);
    return *this;
  }

  explicit operator bool() const { return it_ != nullptr; }
  bool has_value() const { return it_ != nullptr; }
  T& operator*() { return *it_; }
  const T& operator*() const { return *it_; }
  T* operator->() { return it_.get(); }
  const T* operator->() const { return it_.get(); }
  void reset() { it_.reset(); }
  operator std::optional<T>() const {
    return it_ ? std::optional<T>(*it_) : std::nullopt;
  }  // NOLINT

 private:
  std::unique_ptr<T> it_;
};

}  // namespace ferrule
