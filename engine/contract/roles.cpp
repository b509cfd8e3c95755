#include "engine/contract/roles.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

/// Axes that share a number of elements on both sides of a reshape.
struct AxisGroup {
  std::vector<size_t> from, to;
};

/// Axes of one element take no part. nullopt: where one group ends is not known.
std::optional<std::vector<AxisGroup>> groups_of(const Shape& from, const Shape& to) {
  std::vector<AxisGroup> out;
  size_t i = 0, j = 0;
  auto skip = [](const Shape& s, size_t& k) {
    while (k < s.size() && s[k] == Dim(1)) ++k;
    return k < s.size();
  };
  while (skip(from, i) | skip(to, j)) {
    if (i == from.size() || j == to.size()) return std::nullopt;
    AxisGroup group{{i}, {j}};
    Dim a = from[i++], b = to[j++];
    while (a != b) {
      const bool left = at_least(b, a) == Truth::yes;
      if (!left && at_least(a, b) != Truth::yes) return std::nullopt;
      if (!skip(left ? from : to, left ? i : j)) return std::nullopt;
      if (left)
        group.from.push_back(i), a = a * from[i++];
      else
        group.to.push_back(j), b = b * to[j++];
    }
    out.push_back(std::move(group));
  }
  return out;
}

/// The part's indices in row-major positions of the group, taken apart along its axes of `to`.
std::optional<std::vector<AxisPart>> taken_apart(const AxisPart& part, const AxisGroup& group,
                                                 const Shape& from, const Shape& to) {
  if (group.from.size() == 1 && group.to.size() == 1)
    return std::vector{AxisPart{static_cast<int>(group.to[0]), part.stride, part.size}};
  const auto stride = part.stride.constant(), size = part.size.constant();
  if (!stride || !size) return std::nullopt;
  auto weight_behind = [](const Shape& s, const std::vector<size_t>& axes, size_t axis) {
    Dim w = 1;
    for (size_t k : axes)
      if (k > axis) w = w * s[k];
    return w.constant();
  };
  const auto inner = weight_behind(from, group.from, static_cast<size_t>(part.axis));
  if (!inner) return std::nullopt;
  const int64_t low = *stride * *inner, high = low * *size;
  std::vector<AxisPart> out;
  int64_t covered = 1;
  for (size_t k : group.to) {
    const auto weight = weight_behind(to, group.to, k);
    if (!weight) return std::nullopt;
    const auto length = to[k].constant();
    const int64_t begin = std::max(low, *weight),
                  end = length ? std::min(high, *weight * *length) : high;
    if (begin >= end) continue;
    if (begin % low || begin % *weight || end % begin) return std::nullopt;
    out.push_back({static_cast<int>(k), begin / *weight, end / begin});
    covered *= end / begin;
  }
  return covered == *size ? std::optional(std::move(out)) : std::nullopt;
}

std::optional<AxisMap> reshaped(const AxisMap& map, const Shape& from, const Shape& to) {
  for (const Shape* s : {&from, &to})
    if (std::ranges::count(*s, Dim(0))) return std::nullopt;
  const auto groups = groups_of(from, to);
  if (!groups) return std::nullopt;
  AxisMap out;
  for (const std::vector<AxisPart>& parts : map) {
    out.emplace_back();
    for (const AxisPart& part : parts) {
      if (part.axis == AxisPart::kRepeated) {
        out.back().push_back(part);
        continue;
      }
      const auto group = std::ranges::find_if(*groups, [&](const AxisGroup& group) {
        return std::ranges::count(group.from, static_cast<size_t>(part.axis)) > 0;
      });
      if (group == groups->end()) return std::nullopt;
      const auto pieces = taken_apart(part, *group, from, to);
      if (!pieces) return std::nullopt;
      out.back().insert(out.back().end(), pieces->begin(), pieces->end());
    }
  }
  return out;
}

/// `axis_of`: by axis, its number on the other side; kRepeated: there is none.
AxisMap renumbered(const AxisMap& map, const std::vector<int>& axis_of) {
  AxisMap out = map;
  for (std::vector<AxisPart>& parts : out)
    for (AxisPart& part : parts)
      if (part.axis != AxisPart::kRepeated) part.axis = axis_of[static_cast<size_t>(part.axis)];
  return out;
}

}  // namespace

const RoleTensor* Roles::tensor(std::string_view name) const {
  auto it = tensors.find(name);
  return it == tensors.end() ? nullptr : &it->second;
}

double Roles::number(std::string_view name) const {
  auto it = numbers.find(name);
  return it == numbers.end() ? 0 : it->second;
}

const Graph* Roles::formula(std::string_view name) const {
  auto it = formulas.find(name);
  return it == formulas.end() ? nullptr : it->second.get();
}

RoleStrides role_strides(const RoleTensor& role, std::span<const int64_t> dims,
                         std::span<const int64_t> strides) {
  RoleStrides out;
  for (const std::vector<AxisPart>& parts : role.axes) {
    const AxisPart part = parts.empty() ? AxisPart{AxisPart::kRepeated, 1, 1} : parts[0];
    const bool repeated = part.axis == AxisPart::kRepeated;
    const auto axis = static_cast<size_t>(repeated ? 0 : part.axis);
    out.dims.push_back(part.size.value_or(repeated ? 1 : dims[axis]));
    out.strides.push_back(repeated ? 0 : strides[axis] * part.stride.value_or(1));
  }
  return out;
}

AxisMap whole_axes(const Shape& value) {
  AxisMap out;
  for (size_t k = 0; k < value.size(); ++k) {
    out.emplace_back();
    if (value[k] != Dim(1)) out.back().push_back({static_cast<int>(k), 1, value[k]});
  }
  return out;
}

std::optional<AxisMap> moved_axes(const AxisMap& map, const Graph& g, const Node& n, bool forward) {
  const ValueId behind = n.inputs.empty() ? ValueId{} : n.inputs[0];
  if (!behind || n.outputs.size() != 1 || !n.outputs[0]) return std::nullopt;
  const auto &input = g.value(behind).type.shape, &result = g.value(n.outputs[0]).type.shape;
  if (!input || !result) return std::nullopt;
  if (is_view(n)) return forward ? reshaped(map, *input, *result) : reshaped(map, *result, *input);
  const auto order = axes_of(g, n);
  if (!order) return std::nullopt;
  // Axis k of the input is axis order[k] of the result; -1: index 0.
  std::vector<int> number(forward ? input->size() : result->size(), AxisPart::kRepeated);
  for (size_t k = 0; k < order->size(); ++k) {
    const int64_t other = (*order)[k];
    if (forward && other < 0) {
      if ((*input)[k] != Dim(1)) return std::nullopt;
      continue;
    }
    if (forward)
      number[k] = static_cast<int>(other);
    else if (other >= 0)
      number[static_cast<size_t>(other)] = static_cast<int>(k);
  }
  // A result that repeats elements is not written through its input.
  if (forward && (repeats_elements(n) || result->size() != input->size())) return std::nullopt;
  return renumbered(map, number);
}

bool cut_alike(std::vector<AxisMap*> maps, std::vector<size_t> runs) {
  const size_t most = *std::ranges::max_element(runs);
  std::vector<AxisMap> out(maps.size());
  for (size_t back = most; back > 0; --back) {
    auto parts = [&](size_t m) { return back <= runs[m] ? &(*maps[m])[runs[m] - back] : nullptr; };
    std::set<int64_t> cuts;  // sizes of what lies behind them
    bool cut = false;
    for (size_t m = 0; m < maps.size(); ++m) cut |= parts(m) && parts(m)->size() > 1;
    for (size_t m = 0; cut && m < maps.size(); ++m) {
      int64_t inner = 1;
      for (size_t k = parts(m) ? parts(m)->size() : 0; k-- > 0;) {
        const auto size = (*parts(m))[k].size.constant();
        if (!size || *size < 1) return false;
        cuts.insert(inner *= *size);
      }
    }
    for (int64_t before = 1; const int64_t c : cuts) {
      if (c % before) return false;
      before = c;
    }
    if (!cut) cuts = {0};
    for (size_t m = 0; m < maps.size(); ++m) {
      if (!parts(m)) continue;
      std::vector<std::vector<AxisPart>> axes;  // innermost first
      size_t k = parts(m)->size();
      int64_t inner = 1, from = 1, stride = 1;  // of the part that is being cut
      for (const int64_t c : cuts) {
        axes.emplace_back();
        if (k == 0) continue;
        const AxisPart& part = (*parts(m))[k - 1];
        if (!cut) {
          axes.back().push_back(part);
          continue;
        }
        axes.back().push_back({part.axis, part.stride * Dim(stride), c / inner});
        stride *= c / inner, inner = c;
        if (inner == from * *part.size.constant()) --k, from = inner, stride = 1;
      }
      out[m].insert(out[m].end(), axes.rbegin(), axes.rend());
    }
  }
  for (size_t m = 0; m < maps.size(); ++m) {
    out[m].insert(out[m].end(), maps[m]->begin() + static_cast<std::ptrdiff_t>(runs[m]),
                  maps[m]->end());
    *maps[m] = std::move(out[m]);
  }
  return true;
}

std::string text(const AxisMap& map) {
  std::string out;
  for (const std::vector<AxisPart>& parts : map) {
    out += out.empty() ? "" : ", ";
    if (parts.empty()) out += "-";
    for (size_t k = 0; k < parts.size(); ++k) {
      out += k ? "+" : "";
      out += parts[k].axis == AxisPart::kRepeated ? "-" : std::to_string(parts[k].axis);
      if (parts[k].stride != Dim(1)) out += ":" + parts[k].stride.str();
    }
  }
  return "[" + out + "]";
}

}  // namespace ferrule
