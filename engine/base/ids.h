// Strong ids: an index into a Graph's value or node table that cannot be mixed up with another.
#pragma once
#include <compare>
#include <cstdint>
#include <functional>

namespace ferrule {

/// Index of a value or node in its Graph. `none` (the default) stands for "absent".
template <class Tag>
struct Id {
  static constexpr uint32_t kNone = 0xffffffffu;
  uint32_t index = kNone;
  constexpr bool valid() const { return index != kNone; }
  constexpr explicit operator bool() const { return valid(); }
  friend constexpr auto operator<=>(Id, Id) = default;
};

using ValueId = Id<struct ValueTag>;
using NodeId = Id<struct NodeTag>;

}  // namespace ferrule

template <class Tag>
struct std::hash<ferrule::Id<Tag>> {
  size_t operator()(ferrule::Id<Tag> id) const noexcept { return std::hash<uint32_t>()(id.index); }
};
