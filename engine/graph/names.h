// Which entry of a table has a name: an open-addressed hash table of slots. The names stay where
// they are, in the table; a graph of a million values does not keep them twice, and copying a graph
// copies no strings here.
#pragma once
#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

namespace ferrule {

class NameIndex {
 public:
  static constexpr uint32_t kNone = 0xffffffffu;
  static uint32_t hash(std::string_view name) {
    const size_t h = std::hash<std::string_view>()(name);
    return static_cast<uint32_t>(h ^ h >> 32);
  }

  /// The slot whose name is `name`; kNone: no entry has it. `name_of(slot)` gives an entry's name.
  template <class F>
  uint32_t find(std::string_view name, const F& name_of) const {
    if (places_.empty()) return kNone;
    const uint32_t h = hash(name);
    for (size_t i = h & mask();; i = (i + 1) & mask()) {
      if (places_[i].slot == kNone) return kNone;
      if (places_[i].hash == h && name_of(places_[i].slot) == name) return places_[i].slot;
    }
  }
  /// Adds an entry whose name no other entry has.
  void add(std::string_view name, uint32_t slot) {
    if (places_.empty()) used_ = 0;  // moved from
    if ((used_ + 1) * 3 > places_.size() * 2) grow(used_ + 1);
    put({hash(name), slot});
    ++used_;
  }
  /// Takes the entry away if it is there.
  void erase(std::string_view name, uint32_t slot) {
    if (places_.empty()) return;
    size_t hole = hash(name) & mask();
    while (places_[hole].slot != slot) {
      if (places_[hole].slot == kNone) return;
      hole = (hole + 1) & mask();
    }
    --used_;
    // What lies behind moves up unless it would leave its way from its own place.
    for (size_t i = (hole + 1) & mask(); places_[i].slot != kNone; i = (i + 1) & mask()) {
      const size_t home = places_[i].hash & mask();
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      places_[hole] = places_[i];
      hole = i;
    }
    places_[hole] = {};
  }
  void reserve(size_t names) {
    if (names * 3 > places_.size() * 2) grow(names);
  }

 private:
  struct Place {
    uint32_t hash = 0, slot = kNone;
  };
  size_t mask() const { return places_.size() - 1; }
  void put(Place p) {
    size_t i = p.hash & mask();
    while (places_[i].slot != kNone) i = (i + 1) & mask();
    places_[i] = p;
  }
  void grow(size_t names) {
    size_t size = 8;
    while (names * 3 > size * 2) size *= 2;
    std::vector<Place> before(size);
    before.swap(places_);
    for (const Place& p : before)
      if (p.slot != kNone) put(p);
  }
  std::vector<Place> places_;  ///< a power of two, a third of it free
  size_t used_ = 0;
};

}  // namespace ferrule
