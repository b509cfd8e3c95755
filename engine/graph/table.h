// A table that grows at its end and whose entries never move: a reference to one holds as long as
// the table does, whatever is added meanwhile, also when the table is moved as a whole. Entries are
// looked up at the cost of a std::vector's, as long as there are no more of them than were
// reserved.
#pragma once
#include <bit>
#include <cstddef>
#include <utility>
#include <vector>

namespace ferrule {

template <class T>
class Table {
 public:
  Table() = default;
  Table(Table&&) = default;
  Table& operator=(Table&&) = default;

  size_t size() const {
    return head_.size() + (more_.empty() ? 0 : begin_of(more_.size() - 1) + more_.back().size());
  }
  const T& operator[](size_t i) const {
    return i < head_.size() ? head_[i] : further(i - head_.size());
  }
  T& operator[](size_t i) { return const_cast<T&>(std::as_const(*this)[i]); }

  /// Room for so many in one piece; only of use while the table is empty.
  void reserve(size_t entries) {
    if (head_.empty()) head_.reserve(entries);
  }
  T& push_back(T entry) {
    std::vector<T>& to = last();
    to.push_back(std::move(entry));
    return to.back();
  }

 private:
  static constexpr size_t kFirst = 8;
  /// Which entry behind the head is the first of piece k: each piece is twice as long as the one
  /// before.
  static size_t begin_of(size_t k) { return (kFirst << k) - kFirst; }

  const T& further(size_t i) const {
    const auto k = static_cast<size_t>(std::bit_width(i + kFirst) - std::bit_width(kFirst));
    return more_[k][i - begin_of(k)];
  }
  /// The piece that takes the next entry; none ever grows beyond what it was made for.
  std::vector<T>& last() {
    if (head_.capacity() == 0) head_.reserve(kFirst);
    if (more_.empty() && head_.size() < head_.capacity()) return head_;
    if (more_.empty() || more_.back().size() == more_.back().capacity()) {
      const size_t entries = kFirst << more_.size();
      more_.emplace_back().reserve(entries);
    }
    return more_.back();
  }

  std::vector<T> head_;
  std::vector<std::vector<T>> more_;  // filled when the head is full
};

}  // namespace ferrule
