// A list that belongs to a node, a value or a graph: a std::vector that must not change under
// whoever walks it. A loop over a list of a graph that takes an element away, or adds one, ends
// with an internal error at the next element instead of reading memory that is no longer the
// list's; the loop is to walk a copy (std::vector<ValueId> inputs = n.inputs). There are no spans
// of such a list: they would not notice.
#pragma once
#include <compare>
#include <cstddef>
#include <iterator>
#include <string_view>
#include <vector>

namespace ferrule {

[[noreturn]] void list_changed();  ///< an internal error that says so

template <class T>
class List : public std::vector<T> {
  using Vector = std::vector<T>;

 public:
  using Vector::Vector;
  List() = default;
  List(Vector all) : Vector(std::move(all)) {}  // NOLINT: a list is filled from any vector

  /// Walks a list as it was when the walk began.
  class Walk {
   public:
    using iterator_category = std::random_access_iterator_tag;
    using value_type = T;
    using difference_type = std::ptrdiff_t;
    using pointer = const T*;
    using reference = const T&;

    Walk() = default;
    Walk(const List& list, size_t at)
        : list_(&list), data_(list.data()), size_(list.size()), at_(at) {}
    reference operator*() const { return at(at_); }
    pointer operator->() const { return &at(at_); }
    reference operator[](difference_type k) const { return at(at_ + static_cast<size_t>(k)); }
    Walk& operator+=(difference_type k) {
      at_ += static_cast<size_t>(k);
      return *this;
    }
    Walk& operator-=(difference_type k) { return *this += -k; }
    Walk& operator++() { return *this += 1; }
    Walk& operator--() { return *this += -1; }
    Walk operator++(int) {
      Walk was = *this;
      ++*this;
      return was;
    }
    Walk operator--(int) {
      Walk was = *this;
      --*this;
      return was;
    }
    friend Walk operator+(Walk w, difference_type k) { return w += k; }
    friend Walk operator+(difference_type k, Walk w) { return w += k; }
    friend Walk operator-(Walk w, difference_type k) { return w -= k; }
    friend difference_type operator-(const Walk& a, const Walk& b) {
      return static_cast<difference_type>(a.at_) - static_cast<difference_type>(b.at_);
    }
    friend bool operator==(const Walk& a, const Walk& b) { return a.at_ == b.at_; }
    friend auto operator<=>(const Walk& a, const Walk& b) { return a.at_ <=> b.at_; }

   private:
    const T& at(size_t k) const {
      if (list_->data() != data_ || list_->size() != size_ || k >= size_) [[unlikely]]
        list_changed();
      return data_[k];
    }
    const List* list_ = nullptr;
    const T* data_ = nullptr;
    size_t size_ = 0, at_ = 0;
  };

  using Vector::begin, Vector::end;
  Walk begin() const { return {*this, 0}; }
  Walk end() const { return {*this, this->size()}; }
};

}  // namespace ferrule
