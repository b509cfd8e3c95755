#include "engine/contract/region_pieces.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <variant>

#include "engine/base/diagnostics.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

using Dims = std::vector<int64_t>;

/// An index of some value as a linear function of the box's axes.
struct IndexMap {
  Dims offset;              ///< by axis of the value
  std::vector<Dims> steps;  ///< [axis of the box][axis of the value]
  friend auto operator<=>(const IndexMap&, const IndexMap&) = default;
  size_t rank() const { return offset.size(); }
};

struct Box {
  Dims sizes;
  IndexMap result;  ///< the results' index
};

/// What stands against evaluating a box as it is: it must change first and evaluation starts again,
/// or there is no way. Many boxes are cut, so this is a value and no exception.
struct CutBox {
  size_t axis;
  int64_t at;
};
struct SplitAxis {
  size_t axis;
  int64_t inner;
};
struct NotLinear {
  std::string node, why;
};
using Obstacle = std::variant<CutBox, SplitAxis, NotLinear>;
template <class T>
using Tried = tl::expected<T, Obstacle>;
tl::unexpected<Obstacle> stop(Obstacle o) { return tl::unexpected<Obstacle>(std::move(o)); }

std::pair<Box, Box> cut(const Box& box, const CutBox& c) {
  Box a = box, b = box;
  a.sizes[c.axis] = c.at;
  b.sizes[c.axis] -= c.at;
  for (size_t k = 0; k < box.result.rank(); ++k)
    b.result.offset[k] += box.result.steps[c.axis][k] * c.at;
  return {a, b};
}

Box split(const Box& box, const SplitAxis& s) {
  Box out = box;
  out.sizes[s.axis] /= s.inner;
  out.sizes.insert(out.sizes.begin() + static_cast<int64_t>(s.axis) + 1, s.inner);
  const Dims inner = box.result.steps[s.axis];
  for (int64_t& step : out.result.steps[s.axis]) step *= s.inner;
  out.result.steps.insert(out.result.steps.begin() + static_cast<int64_t>(s.axis) + 1, inner);
  return out;
}

/// Index arithmetic inside one box.
class Walker {
 public:
  Walker(const Dims& sizes, std::string node) : sizes_(sizes), node_(std::move(node)) {}

  IndexMap axes(const IndexMap& m, const Dims& order) const {
    IndexMap out = blank(order.size());
    for (size_t k = 0; k < order.size(); ++k)
      if (order[k] >= 0) move(m, static_cast<size_t>(order[k]), out, k);
    return out;
  }

  /// `operand` becomes the segment's.
  Tried<IndexMap> walk(const IndexMap& m, size_t axis, const std::vector<Segment>& segments,
                       int& operand) const {
    const Dims active = moving(m, axis);
    auto [low, high] = range(m, axis, active, m.offset[axis]);
    const Segment* first = segment_at(segments, low);
    if (!first) return outside();
    if (high < first->end) return through(m, axis, *first, operand);
    auto out = regular(m, axis, segments, active, operand);
    if (!out) return stop(std::move(out).error());
    if (*out) return std::move(**out);
    if (active.size() == 1)
      return listed(m, axis, segments, static_cast<size_t>(active[0]), operand);
    return stop(cut_outermost(m, axis, segments, active));
  }

  Tried<IndexMap> reshape(const IndexMap& m, const Dims& from, const Dims& to) const {
    IndexMap out = blank(to.size());
    for (size_t i = 0, k = 0; i < from.size() || k < to.size();) {
      size_t i_end = i, k_end = k;
      int64_t a = 1, b = 1;
      if (i_end < from.size()) a = from[i_end++];
      if (k_end < to.size()) b = to[k_end++];
      while (a != b) {
        if (a < b && i_end < from.size())
          a *= from[i_end++];
        else if (b < a && k_end < to.size())
          b *= to[k_end++];
        else if (i_end < from.size())
          a *= from[i_end++];
        else if (k_end < to.size())
          b *= to[k_end++];
        else
          return stop(NotLinear{node_, "changes the number of elements"});
      }
      if (auto o = regroup(m, from, i, i_end, out, to, k, k_end)) return stop(std::move(*o));
      i = i_end, k = k_end;
    }
    return out;
  }

 private:
  IndexMap blank(size_t rank) const {
    return {Dims(rank, 0), std::vector<Dims>(sizes_.size(), Dims(rank, 0))};
  }
  void move(const IndexMap& m, size_t from, IndexMap& out, size_t to) const {
    out.offset[to] = m.offset[from];
    for (size_t j = 0; j < sizes_.size(); ++j) out.steps[j][to] = m.steps[j][from];
  }
  /// Axes of the box along which the index changes.
  Dims moving(const IndexMap& m, size_t axis) const {
    Dims out;
    for (size_t j = 0; j < sizes_.size(); ++j)
      if (sizes_[j] > 1 && m.steps[j][axis] != 0) out.push_back(static_cast<int64_t>(j));
    return out;
  }
  std::pair<int64_t, int64_t> range(const IndexMap& m, size_t axis, const Dims& active,
                                    int64_t offset) const {
    int64_t low = offset, high = offset;
    for (int64_t j : active) {
      const int64_t reach =
          m.steps[static_cast<size_t>(j)][axis] * (sizes_[static_cast<size_t>(j)] - 1);
      (reach < 0 ? low : high) += reach;
    }
    return {low, high};
  }
  /// Null: the index is outside of all.
  static const Segment* segment_at(const std::vector<Segment>& segments, int64_t index) {
    auto it = std::ranges::upper_bound(segments, index, {}, &Segment::begin);
    if (it == segments.begin() || std::prev(it)->end <= index) return nullptr;
    return &*std::prev(it);
  }
  tl::unexpected<Obstacle> outside() const {
    return stop(NotLinear{node_, "is read outside its size"});
  }
  IndexMap through(const IndexMap& m, size_t axis, const Segment& s, int& operand) const {
    operand = s.operand;
    IndexMap out = m;
    out.offset[axis] = s.start + s.step * (m.offset[axis] - s.begin);
    for (Dims& steps : out.steps) steps[axis] *= s.step;
    return out;
  }

  /// Segments of one length that repeat each other (Tile) or follow each other (Resize by a whole
  /// factor): the axes that step by whole segments, and the axes inside one.
  Tried<std::optional<IndexMap>> regular(const IndexMap& m, size_t axis,
                                         const std::vector<Segment>& s, const Dims& active,
                                         int& operand) const {
    if (s.size() < 2) return std::nullopt;
    const int64_t length = s[0].end - s[0].begin, next = s[1].start - s[0].start;
    for (size_t k = 0; k < s.size(); ++k)
      if (s[k].end - s[k].begin != length || s[k].operand != s[0].operand ||
          s[k].step != s[0].step || s[k].operand == Segment::kFill ||
          s[k].start != s[0].start + static_cast<int64_t>(k) * next)
        return std::nullopt;
    const int64_t rest = m.offset[axis] % length;
    Dims inside;
    for (int64_t j : active)
      if (m.steps[static_cast<size_t>(j)][axis] % length != 0) inside.push_back(j);
    auto [low, high] = range(m, axis, inside, rest);
    if (low < 0 || high >= length) {
      if (inside.size() == 1)
        if (auto o = align(static_cast<size_t>(inside[0]), m, axis, length, rest))
          return stop(std::move(*o));
      return std::nullopt;
    }
    operand = s[0].operand;
    IndexMap out = m;
    out.offset[axis] = s[0].start + next * (m.offset[axis] / length) + s[0].step * rest;
    for (size_t j = 0; j < sizes_.size(); ++j) {
      int64_t& step = out.steps[j][axis];
      step = step % length == 0 ? next * (step / length) : s[0].step * step;
    }
    return out;
  }

  /// An axis that steps one by one through several segments becomes two, or is cut where it begins
  /// inside one.
  std::optional<Obstacle> align(size_t j, const IndexMap& m, size_t axis, int64_t length,
                                int64_t rest) const {
    if (m.steps[j][axis] != 1 || length < 2) return std::nullopt;
    if (rest != 0 && length - rest < sizes_[j]) return CutBox{j, length - rest};
    if (rest != 0) return std::nullopt;
    if (sizes_[j] % length == 0) return SplitAxis{j, length};
    if (sizes_[j] > length) return CutBox{j, sizes_[j] - sizes_[j] % length};
    return std::nullopt;
  }

  /// One axis of the box through several segments: linear after all, or cut where it stops being
  /// so.
  Tried<IndexMap> listed(const IndexMap& m, size_t axis, const std::vector<Segment>& segments,
                         size_t j, int& operand) const {
    const int64_t move = m.steps[j][axis];
    auto index = [&](int64_t k) { return m.offset[axis] + move * k; };
    auto [low, high] = range(m, axis, {static_cast<int64_t>(j)}, m.offset[axis]);
    if (!segment_at(segments, low) || !segment_at(segments, high))
      return outside();  // segments leave no gaps
    auto segment = [&](int64_t k) -> const Segment& { return *segment_at(segments, index(k)); };
    auto at = [&](int64_t k) {
      const Segment& s = segment(k);
      return std::pair(s.operand,
                       s.operand == Segment::kFill ? 0 : s.start + s.step * (index(k) - s.begin));
    };
    const auto first = at(0), second = at(1);
    const int64_t delta = second.second - first.second;
    int64_t good = 1;
    if (second.first == first.first)  // segment by segment: an axis may be as long as it likes
      for (good = 0; good < sizes_[j];) {
        if (at(good) != std::pair(first.first, first.second + good * delta)) break;
        const Segment& s = segment(good);
        const int64_t inside = steps_inside(s, index(good), index(good), move);
        const bool straight =
            inside == 1 || (s.operand == Segment::kFill ? 0 : s.step * move) == delta;
        good += straight ? inside : 1;
        if (!straight) break;
      }
    if (good < sizes_[j]) return stop(CutBox{j, good});
    operand = first.first;
    IndexMap out = m;
    out.offset[axis] = first.second;
    out.steps[j][axis] = delta;
    return out;
  }

  /// How many indices a range of them can move by `step` (not 0), the first included, before it
  /// leaves the segment.
  static int64_t steps_inside(const Segment& s, int64_t low, int64_t high, int64_t step) {
    if (low < s.begin || high >= s.end) return 0;
    return (step > 0 ? (s.end - 1 - high) / step : (low - s.begin) / -step) + 1;
  }

  /// The outermost axis is cut after the last step that stays in the first segment.
  Obstacle cut_outermost(const IndexMap& m, size_t axis, const std::vector<Segment>& segments,
                         Dims active) const {
    auto step = [&](int64_t j) { return m.steps[static_cast<size_t>(j)][axis]; };
    std::ranges::stable_sort(
        active, [&](int64_t a, int64_t b) { return std::abs(step(a)) > std::abs(step(b)); });
    const auto outer = static_cast<size_t>(active[0]);
    const Dims rest(active.begin() + 1, active.end());
    auto [low, high] = range(m, axis, rest, m.offset[axis]);
    const Segment* s = segment_at(segments, low);
    if (!s) return NotLinear{node_, "is read outside its size"};
    const int64_t count = std::min(sizes_[outer], steps_inside(*s, low, high, step(active[0])));
    if (count == 0) return NotLinear{node_, "has boundaries inside an axis that is split"};
    return CutBox{outer, count};
  }

  /// Axes [i, i_end) of `from` hold the same positions as axes [k, k_end) of `to`.
  std::optional<Obstacle> regroup(const IndexMap& m, const Dims& from, size_t i, size_t i_end,
                                  IndexMap& out, const Dims& to, size_t k, size_t k_end) const {
    auto wide = [](const Dims& d, size_t begin, size_t end) {
      Dims axes;
      for (size_t a = begin; a < end; ++a)
        if (d[a] != 1) axes.push_back(static_cast<int64_t>(a));
      return axes;
    };
    const Dims sources = wide(from, i, i_end), targets = wide(to, k, k_end);
    if (sources.size() == 1 && targets.size() == 1) {
      move(m, static_cast<size_t>(sources[0]), out, static_cast<size_t>(targets[0]));
      return std::nullopt;
    }
    // Row-major position, then its digits.
    int64_t position = 0;
    Dims steps(sizes_.size(), 0);
    int64_t stride = 1;
    for (size_t a = sources.size(); a-- > 0;) {
      const auto axis = static_cast<size_t>(sources[a]);
      position += m.offset[axis] * stride;
      for (size_t j = 0; j < sizes_.size(); ++j)
        if (sizes_[j] > 1) steps[j] += m.steps[j][axis] * stride;
      stride *= from[axis];
    }
    int64_t rest = position;
    for (size_t a = targets.size(); a-- > 0;) {
      const auto axis = static_cast<size_t>(targets[a]);
      out.offset[axis] = rest % to[axis];
      rest /= to[axis];
    }
    for (size_t j = 0; j < sizes_.size(); ++j)
      if (steps[j] != 0)
        if (auto o = digits(j, steps[j], position, to, targets, out)) return o;
    for (int64_t a : targets) {
      const auto axis = static_cast<size_t>(a);
      int64_t last = out.offset[axis];
      for (size_t j = 0; j < sizes_.size(); ++j) last += out.steps[j][axis] * (sizes_[j] - 1);
      if (last >= to[axis]) return merged();
    }
    return std::nullopt;
  }
  Obstacle merged() const {
    return NotLinear{node_, "does not split its axes where they were merged"};
  }

  /// One axis of the box must stay in one digit of the position; it is split where it does not, and
  /// cut first where it begins or ends inside a digit.
  std::optional<Obstacle> digits(size_t j, int64_t step, int64_t position, const Dims& to,
                                 const Dims& targets, IndexMap& out) const {
    if (step < 0) return NotLinear{node_, "reads a reversed axis"};
    int64_t weight = 1;  // of the digit
    for (size_t a = targets.size(); a-- > 0;) {
      const auto axis = static_cast<size_t>(targets[a]);
      const int64_t next = weight * to[axis];
      if (step < next || a == 0) {
        if (step % weight != 0) return merged();
        if (step * (sizes_[j] - 1) >= next && a != 0) {
          if (next % step != 0) return merged();
          const int64_t whole = next / step, lead = (next - position % next + step - 1) / step;
          if (lead != whole && lead < sizes_[j]) return CutBox{j, lead};
          if (sizes_[j] % whole == 0) return SplitAxis{j, whole};
          return CutBox{j, sizes_[j] - sizes_[j] % whole};
        }
        out.steps[j][axis] = step / weight;
        return std::nullopt;
      }
      weight = next;
    }
    return std::nullopt;
  }

  const Dims& sizes_;
  std::string node_;
};

/// Evaluates results at one box, or finds out what must change about the box.
class BoxProgram {
 public:
  BoxProgram(const Semantics& ops, const Graph& g, const std::map<ValueId, NodeId>& made,
             std::map<ValueId, Movement>& movements, const Box& box)
      : ops_(ops), g_(g), made_(made), movements_(movements), box_(box) {}

  Applicable<> run(std::span<const ValueId> results) {
    for (ValueId v : results) {
      const uint32_t id = at(v, box_.result);
      if (failed_) return fail(*failed_);
      if (obstacle_) return {};
      b_.output(b_.cast(id, g_.value(v).type.dtype));
    }
    return {};
  }
  const std::optional<Obstacle>& obstacle() const { return obstacle_; }
  Program take() { return b_.take(); }
  /// Reads in the order of the program's inputs.
  std::vector<std::pair<ValueId, IndexMap>> reads;

 private:
  uint32_t at(ValueId v, const IndexMap& m) {
    if (obstacle_) return stands_for(v);
    if (const Tensor* t = g_.constant(v); t && t->numel() == 1) return immediate(b_, *t);
    if (auto it = known_.find({v, m}); it != known_.end()) return it->second;
    uint32_t id = 0;
    if (auto node = made_.find(v); node == made_.end()) {
      id = b_.input(g_.value(v).type.dtype, fmt::format("in{}", reads.size()));
      reads.emplace_back(v, m);
    } else if (const Node& n = g_.node(node->second); is_movement(n)) {
      id = moved(n, v, m);
    } else {
      id = computed(n, m);
    }
    known_.try_emplace({v, m}, id);
    return id;
  }

  uint32_t computed(const Node& n, const IndexMap& m) {
    auto r =
        lower_in_region(ops_, g_, n, b_, [&](size_t, ValueId v) { return at(v, broadcast(v, m)); });
    if (r) return *r;
    if (!failed_ && !obstacle_) failed_ = r.error();
    return stands_for(n.outputs[0]);
  }

  /// Of the right type, where the program will not be used.
  uint32_t stands_for(ValueId v) { return b_.constant(compute_type(g_.value(v).type.dtype), 0, 0); }

  /// The operand's index: aligned at the last axis, 0 where it is repeated.
  IndexMap broadcast(ValueId v, const IndexMap& m) const {
    const Shape& shape = *g_.value(v).type.shape;
    Dims order;
    const auto extra = static_cast<int64_t>(m.rank()) - static_cast<int64_t>(shape.size());
    for (size_t k = 0; k < shape.size(); ++k)
      order.push_back(shape[k] == Dim(1) ? -1 : static_cast<int64_t>(k) + extra);
    return Walker(box_.sizes, {}).axes(m, order);
  }

  uint32_t moved(const Node& n, ValueId v, IndexMap m) {
    auto movement = movement_for(n, v);
    if (!movement) return stopped(std::move(movement).error(), v);
    int operand = (*movement)->operand;
    Walker walker(box_.sizes, n.name);
    for (const IndexStep& s : (*movement)->steps) {
      auto next = s.kind == IndexStep::Kind::axes ? Tried<IndexMap>(walker.axes(m, s.axes))
                  : s.kind == IndexStep::Kind::reshape
                      ? walker.reshape(m, s.from, s.to)
                      : walker.walk(m, s.axis, s.segments, operand);
      if (!next) return stopped(std::move(next).error(), v);
      m = std::move(*next);
      if (operand != Segment::kFill) continue;
      const DType t = g_.value(v).type.dtype;
      return immediate(b_, (*movement)->fill ? *(*movement)->fill : Tensor::scalar(t, 0));
    }
    const ValueId from = n.inputs[static_cast<size_t>(operand)];
    return at(from,
              broadcast(from, m));  // axes of size 1 always at index 0: equal maps compare equal
  }

  uint32_t stopped(Obstacle o, ValueId v) {
    obstacle_ = std::move(o);
    return stands_for(v);
  }

  /// Worked out once for all boxes.
  Tried<const Movement*> movement_for(const Node& n, ValueId v) {
    if (auto it = movements_.find(v); it != movements_.end()) return &it->second;
    size_t output = 0;
    while (n.outputs[output] != v) ++output;
    auto movement = movement_of(g_, n, output);
    if (!movement) return stop(NotLinear{n.name, movement.error().reason()});
    return &movements_.emplace(v, std::move(*movement)).first->second;
  }

  const Semantics& ops_;
  const Graph& g_;
  const std::map<ValueId, NodeId>& made_;
  std::map<ValueId, Movement>& movements_;
  const Box& box_;
  ProgramBuilder b_;
  std::map<std::pair<ValueId, IndexMap>, uint32_t> known_;
  std::optional<Refusal> failed_;
  std::optional<Obstacle> obstacle_;
};

class Pieces {
 public:
  Pieces(const Semantics& ops, const Graph& g, std::span<const NodeId> nodes,
         std::span<const ValueId> outputs)
      : ops_(ops), g_(g), nodes_(nodes) {
    out_.pieced = true;
    out_.outputs.assign(outputs.begin(), outputs.end());
    for (NodeId n : nodes)
      for (ValueId v : g.node(n).outputs)
        if (v) made_[v] = n;
  }

  Applicable<LoweredRegion> run() {
    for (const auto& results : together()) FERRULE_TRY(cover(results));
    if (!out_.programs.empty()) out_.program = out_.programs[0];
    return std::move(out_);
  }

 private:
  /// Results that one pointwise set computes at the same index.
  std::vector<std::vector<ValueId>> together() const {
    std::map<NodeId, NodeId> parent;
    for (NodeId n : nodes_) parent[n] = n;
    auto root = [&](NodeId n) {
      while (parent[n] != n) n = parent[n];
      return n;
    };
    for (NodeId n : nodes_) {
      if (is_movement(g_.node(n))) continue;
      for (ValueId v : g_.node(n).inputs) {
        auto it = v ? made_.find(v) : made_.end();
        if (it == made_.end() || is_movement(g_.node(it->second))) continue;
        if (*g_.value(v).type.shape == *g_.value(g_.output(n)).type.shape)
          parent[root(n)] = root(it->second);
      }
    }
    std::vector<std::vector<ValueId>> out;
    std::map<NodeId, size_t> set;
    for (ValueId v : out_.outputs) {
      const NodeId n = made_.at(v);
      auto [it, fresh] = set.try_emplace(root(n), out.size());
      if (fresh || is_movement(g_.node(n))) it->second = out.size(), out.emplace_back();
      out[it->second].push_back(v);
    }
    return out;
  }

  Applicable<> cover(const std::vector<ValueId>& results) {
    auto dims = constant_shape(*g_.value(results[0]).type.shape);
    if (!dims)
      return not_applicable("", "a region that moves elements",
                            fmt::format("the size of \"{}\" is not known before a run",
                                        escape(g_.value(results[0]).name)));
    if (std::ranges::find(*dims, 0) != dims->end()) return {};
    Box whole{*dims,
              {Dims(dims->size(), 0), std::vector<Dims>(dims->size(), Dims(dims->size(), 0))}};
    for (size_t k = 0; k < dims->size(); ++k) whole.result.steps[k][k] = 1;
    std::vector<Box> open{std::move(whole)};
    int rounds = 0;
    while (!open.empty()) {
      if (out_.pieces.size() + open.size() > kMaxPieces || ++rounds > 1000)
        return not_applicable(
            "", "a region that moves elements",
            fmt::format("more than {} pieces with strides of their own", kMaxPieces));
      Box box = std::move(open.back());
      open.pop_back();
      FERRULE_ASSIGN(std::optional<Obstacle> obstacle, piece(box, results));
      if (!obstacle) continue;
      if (auto* n = std::get_if<NotLinear>(&*obstacle))
        return not_applicable(fmt::format("node \"{}\"", escape(n->node)), escape(n->node), n->why);
      if (auto* c = std::get_if<CutBox>(&*obstacle)) {
        auto [first, second] = cut(box, *c);
        open.push_back(std::move(second));
        open.push_back(std::move(first));
      } else {
        open.push_back(split(box, std::get<SplitAxis>(*obstacle)));
      }
    }
    return {};
  }

  /// Adds the box as a piece, or says what stands against it.
  Applicable<std::optional<Obstacle>> piece(const Box& box, const std::vector<ValueId>& results) {
    BoxProgram eval(ops_, g_, made_, movements_, box);
    FERRULE_TRY(eval.run(results));
    if (eval.obstacle()) return eval.obstacle();
    if (eval.reads.size() + results.size() > kMaxPieceOperands)
      return not_applicable("", "a region that moves elements",
                            fmt::format("{} operands in one piece, {} are taken",
                                        eval.reads.size() + results.size(), kMaxPieceOperands));
    RegionPiece p;
    p.dims = box.sizes;
    for (auto& [v, m] : eval.reads)
      p.inputs.push_back({leaf(v), std::move(m.offset), std::move(m.steps)});
    for (ValueId v : results) {
      auto at = std::ranges::find(out_.outputs, v) - out_.outputs.begin();
      p.outputs.push_back({static_cast<uint32_t>(at), box.result.offset, box.result.steps});
    }
    p.program = program(eval.take());
    out_.pieces.push_back(std::move(p));
    return std::nullopt;
  }

  uint32_t leaf(ValueId v) {
    auto it = std::ranges::find(out_.inputs, v);
    if (it == out_.inputs.end()) it = out_.inputs.insert(it, v);
    return static_cast<uint32_t>(it - out_.inputs.begin());
  }

  uint32_t program(Program p) {
    for (size_t k = 0; k < out_.programs.size(); ++k) {
      const Program& q = out_.programs[k];
      if (q.inputs == p.inputs && q.insts == p.insts && q.outputs == p.outputs)
        return static_cast<uint32_t>(k);
    }
    out_.programs.push_back(std::move(p));
    return static_cast<uint32_t>(out_.programs.size() - 1);
  }

  const Semantics& ops_;
  const Graph& g_;
  std::span<const NodeId> nodes_;
  std::map<ValueId, NodeId> made_;
  std::map<ValueId, Movement> movements_;
  LoweredRegion out_;
};

std::string operand_text(const PieceOperand& o, const char* kind) {
  std::string out = fmt::format("{}{}[", kind, o.operand);
  for (size_t a = 0; a < o.offset.size(); ++a) {
    std::string index;
    for (size_t j = 0; j < o.steps.size(); ++j) {
      const int64_t step = o.steps[j][a];
      if (step == 0) continue;
      if (!index.empty() || step < 0) index += step < 0 ? "-" : "+";
      index +=
          std::abs(step) == 1 ? fmt::format("i{}", j) : fmt::format("{}*i{}", std::abs(step), j);
    }
    if (o.offset[a] != 0 || index.empty())
      index += (o.offset[a] < 0 || index.empty() ? "" : "+") + std::to_string(o.offset[a]);
    out += (a ? "," : "") + index;
  }
  return out + "]";
}

}  // namespace

bool any_movement(const Graph& g, std::span<const NodeId> nodes) {
  return std::ranges::any_of(nodes, [&](NodeId n) { return is_movement(g.node(n)); });
}

Applicable<LoweredRegion> lower_pieces(const Semantics& ops, const Graph& g,
                                       std::span<const NodeId> nodes,
                                       std::span<const ValueId> outputs) {
  for (NodeId n : nodes)
    for (ValueId v : g.node(n).inputs)
      if (v && !g.value(v).type.known())
        return not_applicable(
            "", "a region that moves elements",
            fmt::format("the type of \"{}\" is not known", escape(g.value(v).name)));
  return Pieces(ops, g, nodes, outputs).run();
}

PieceStrides piece_strides(const PieceOperand& operand, std::span<const int64_t> operand_strides) {
  PieceStrides out;
  for (size_t a = 0; a < operand.offset.size(); ++a)
    out.offset += operand.offset[a] * operand_strides[a];
  for (const Dims& steps : operand.steps) {
    int64_t stride = 0;
    for (size_t a = 0; a < steps.size(); ++a) stride += steps[a] * operand_strides[a];
    out.strides.push_back(stride);
  }
  return out;
}

int copied_input(const Program& program, size_t output) {
  const Inst& in = program.insts[program.outputs[output]];
  return in.op == Prim::load && program.inputs[in.index] == in.type ? static_cast<int>(in.index)
                                                                    : -1;
}

std::string pieces_text(const LoweredRegion& region) {
  std::string out;
  for (const RegionPiece& p : region.pieces) {
    std::string dims, operands;
    for (size_t k = 0; k < p.dims.size(); ++k)
      dims += fmt::format("{}i{}<{}", k ? " " : "", k, p.dims[k]);
    for (const PieceOperand& o : p.outputs)
      operands += (operands.empty() ? "" : ", ") + operand_text(o, "out");
    operands += fmt::format(" = program {}(", p.program);
    for (size_t k = 0; k < p.inputs.size(); ++k)
      operands += (k ? ", " : "") + operand_text(p.inputs[k], "value");
    out += fmt::format("{}: {})\n", dims.empty() ? "one" : dims, operands);
  }
  return out;
}

}  // namespace ferrule
