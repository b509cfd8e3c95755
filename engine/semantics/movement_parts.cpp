#include "engine/semantics/movement_parts.h"

#include <algorithm>

namespace ferrule {
namespace {

/// One axis of the operand, as the steps lead to it.
struct Walked {
  int64_t result = -1;            ///< axis of the result; -1: index 0 of it
  std::vector<Segment> segments;  ///< empty: the index as it is
};

struct Straight {
  std::vector<int64_t> result, operand;
  std::vector<Walked> axes;  ///< of the operand
};

std::optional<Straight> straightened(const Movement& m, const std::vector<int64_t>& result) {
  Straight s{result, {}, {}};
  const auto identity = [&](size_t rank) {
    s.axes.assign(rank, {});
    for (size_t k = 0; k < rank; ++k) s.axes[k].result = static_cast<int64_t>(k);
  };
  identity(result.size());
  for (size_t k = 0; k < m.steps.size(); ++k) {
    const IndexStep& step = m.steps[k];
    if (step.kind == IndexStep::Kind::walk) {
      Walked& w = s.axes[step.axis];
      if (w.result < 0 || !w.segments.empty()) return std::nullopt;
      w.segments = step.segments;
    } else if (step.kind == IndexStep::Kind::axes) {
      std::vector<Walked> behind;
      for (int64_t a : step.axes) behind.push_back(a < 0 ? Walked{} : std::move(s.axes[a]));
      s.axes = std::move(behind);
    } else if (k == 0) {
      s.result = step.to;
      identity(step.to.size());
    } else if (k + 1 == m.steps.size()) {
      s.operand = step.from;
    } else {
      return std::nullopt;
    }
  }
  return s;
}

}  // namespace

int64_t MovedPart::offset(const std::vector<int64_t>& strides) const {
  int64_t at = 0;
  for (size_t a = 0; a < start.size(); ++a) at += start[a] * strides[a];
  return at;
}

std::vector<int64_t> MovedPart::steps(const std::vector<int64_t>& strides) const {
  std::vector<int64_t> out;
  for (size_t k = 0; k < axis.size(); ++k)
    out.push_back(axis[k] < 0 ? 0 : step[k] * strides[axis[k]]);
  return out;
}

std::optional<MovedParts> parts_of(const Movement& m, const std::vector<int64_t>& result,
                                   size_t operand_rank, size_t most) {
  auto s = straightened(m, result);
  if (!s || (s->operand.empty() && s->axes.size() != operand_rank)) return std::nullopt;
  const size_t rank = s->result.size();
  MovedPart all;
  all.operand = m.operand;
  all.begin.assign(rank, 0);
  all.dims = s->result;
  all.start.assign(s->axes.size(), 0);
  all.axis.assign(rank, -1);
  all.step.assign(rank, 1);
  MovedParts out{s->result, s->operand, {std::move(all)}};
  for (size_t a = 0; a < s->axes.size(); ++a) {
    const Walked& w = s->axes[a];
    if (w.result < 0) continue;
    const auto k = static_cast<size_t>(w.result);
    for (MovedPart& p : out.parts) p.axis[k] = static_cast<int>(a);
    if (w.segments.empty()) continue;
    if (out.parts.size() * w.segments.size() > most) return std::nullopt;
    std::vector<MovedPart> cut;
    for (const MovedPart& p : out.parts)
      for (const Segment& g : w.segments) {
        MovedPart part = p;
        part.begin[k] = g.begin, part.dims[k] = g.end - g.begin;
        part.start[a] = g.start, part.step[k] = g.step;
        if (g.operand != 0) part.operand = g.operand;
        if (p.operand == Segment::kFill) part.operand = Segment::kFill;
        cut.push_back(std::move(part));
      }
    out.parts = std::move(cut);
  }
  return out;
}

}  // namespace ferrule
