// What a group computes with, by the roles of its contract (rules/contracts): which operand of the
// group's node each tensor is and how the role's axes lie in it, and the numbers. The rule that
// made the group binds them (group/bind_roles.h); kernels read these and look at no operator.
#pragma once
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

/// A part of a role's axis: its index, in steps of `stride` along `axis` of the operand.
struct AxisPart {
  static constexpr int kRepeated = -1;  ///< no axis: the same element at each index
  int axis = 0;
  Dim stride = 1, size;
};

/// By axis of the role: its parts, outermost first; none: the axis has one index, and broadcasts.
using AxisMap = std::vector<std::vector<AxisPart>>;

struct RoleTensor {
  bool result = false;  ///< of the group's node, else an input
  size_t slot = 0;
  AxisMap axes;
  bool channels_last = false;  ///< how the kernels want it laid out; else plain
};

struct Roles {
  std::map<std::string, RoleTensor, std::less<>> tensors;  ///< those that are there
  std::map<std::string, double, std::less<>> numbers;      ///< flags are 0 or 1
  /// By role: a graph of pointwise operators with one input that is no constant; none: the
  /// identity.
  std::map<std::string, std::shared_ptr<const Graph>, std::less<>> formulas;
  const RoleTensor* tensor(std::string_view name) const;  ///< null: absent
  double number(std::string_view name) const;
  const Graph* formula(std::string_view name) const;  ///< null: the identity
};

/// An operand under a role's axes, each of one part: sizes, and strides in elements (0: repeated).
struct RoleStrides {
  std::vector<int64_t> dims, strides;
};
/// `dims`, `strides`: the operand's own.
RoleStrides role_strides(const RoleTensor& role, std::span<const int64_t> dims,
                         std::span<const int64_t> strides);

/// The axes of `value` as a role's, one each.
AxisMap whole_axes(const Shape& value);

/// Where the indices lie behind a movement: `map` is of one side of the node (its result, or with
/// `forward` its first input), the returned one of the other. nullopt: not with constant strides,
/// or sizes that this depends on are not known.
std::optional<AxisMap> moved_axes(const AxisMap& map, const Graph& g, const Node& movement,
                                  bool forward);

/// Axes [0, run) of each map, aligned at the run's end, are cut where one of them is cut, so that
/// each has at most one part. false: they are cut at places that do not fit.
bool cut_alike(std::vector<AxisMap*> maps, std::vector<size_t> runs);

/// "[0, 2:64, -]": by axis of the role, its axis of the operand and the stride along it.
std::string text(const AxisMap& map);

}  // namespace ferrule
