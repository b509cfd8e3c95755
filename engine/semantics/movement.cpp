#include "engine/semantics/movement.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/base/diagnostics.h"
#include "engine/graph/operator_name.h"
#include "engine/semantics/resampling.h"

namespace ferrule {
namespace {

using Dims = std::vector<int64_t>;

/// What a row of the table works on: a node whose operands and results have known sizes.
struct Site {
  const Graph& g;
  const Node& n;
  size_t output;
  std::vector<Dims> inputs;  ///< of the moved inputs; empty dims for parameters
  Dims result;

  tl::unexpected<NotApplicable> no(std::string why) const {
    return not_applicable(fmt::format("node \"{}\"", escape(n.name)), escape(n.op), std::move(why));
  }
  mutable std::optional<Dims> starts =
      {};  ///< Split: where the parts begin, up to the first whose size is not known

  const Dims& x() const { return inputs[0]; }
  bool has(size_t slot) const { return slot < n.inputs.size() && n.inputs[slot]; }
  /// A parameter's integers; nullopt: the input is left out.
  Applicable<std::optional<Dims>> ints(size_t slot) const {
    if (!has(slot)) return std::optional<Dims>{};
    const Tensor* t = g.constant(n.inputs[slot]);
    if (!t) return no(fmt::format("input {} is not constant", slot));
    if (!is_int(t->dtype())) return no(fmt::format("input {} has no integers", slot));
    return std::optional<Dims>(t->to_i64());
  }
  size_t axis_of(int64_t axis, size_t rank) const {
    return static_cast<size_t>(axis < 0 ? axis + static_cast<int64_t>(rank) : axis);
  }
};

IndexStep reshape_step(Dims from, Dims to) {
  return {IndexStep::Kind::reshape, {}, std::move(from), std::move(to), 0, {}};
}
IndexStep axes_step(Dims axes) { return {IndexStep::Kind::axes, std::move(axes), {}, {}, 0, {}}; }
IndexStep walk_step(size_t axis, std::vector<Segment> segments) {
  return {IndexStep::Kind::walk, {}, {}, {}, axis, std::move(segments)};
}
Movement by(std::vector<IndexStep> steps) { return {std::move(steps), 0, {}}; }

/// Longer axes than this are not walked index by index.
constexpr int64_t kLongAxis = int64_t{1} << 24;

/// Runs of equal step in a list of positions; -1: the fill value.
std::vector<Segment> runs_of(const Dims& positions) {
  std::vector<Segment> out;
  for (size_t k = 0; k < positions.size(); ++k) {
    const auto at = static_cast<int64_t>(k);
    const int64_t p = positions[k];
    const int operand = p < 0 ? Segment::kFill : 0;
    if (!out.empty() && out.back().operand == operand) {
      Segment& s = out.back();
      const int64_t length = s.end - s.begin;
      if (operand == Segment::kFill || (length == 1 && s.begin + 1 == at)) {
        s.step = operand == Segment::kFill ? 0 : p - s.start;
        s.end = at + 1;
        continue;
      }
      if (p == s.start + s.step * length) {
        s.end = at + 1;
        continue;
      }
    }
    out.push_back({at, at + 1, operand, std::max<int64_t>(p, 0), 0});
  }
  return out;
}

Applicable<Movement> view(const Site& s) { return by({reshape_step(s.result, s.x())}); }

Applicable<Movement> transpose(const Site& s) {
  Dims perm = s.n.attrs.ints("perm");
  if (perm.empty()) {
    perm.resize(s.x().size());
    std::iota(perm.rbegin(), perm.rend(), 0);
  }
  if (perm.size() != s.x().size()) return s.no("the order of the axes is not known");
  Dims axes(perm.size(), -1);
  for (size_t k = 0; k < perm.size(); ++k) {
    const size_t axis = s.axis_of(perm[k], perm.size());
    if (axis >= perm.size() || axes[axis] >= 0) return s.no("the order of the axes is none");
    axes[axis] = static_cast<int64_t>(k);
  }
  return by({axes_step(std::move(axes))});
}

Applicable<Movement> slice(const Site& s) {
  FERRULE_ASSIGN(auto starts, s.ints(1));
  FERRULE_ASSIGN(auto axes, s.ints(3));
  FERRULE_ASSIGN(auto steps, s.ints(4));
  if (!starts) return s.no("no starts are given");
  Movement m;
  for (size_t k = 0; k < starts->size(); ++k) {
    const size_t axis = axes ? s.axis_of((*axes)[k], s.x().size()) : k;
    const int64_t size = s.x()[axis], step = steps ? (*steps)[k] : 1;
    int64_t start = (*starts)[k] < 0 ? (*starts)[k] + size : (*starts)[k];
    start = std::clamp<int64_t>(start, 0, step < 0 ? std::max<int64_t>(size - 1, 0) : size);
    m.steps.push_back(walk_step(axis, {{0, s.result[axis], 0, start, step}}));
  }
  return m;
}

Applicable<Dims> split_starts(const Site& s, size_t axis) {
  FERRULE_ASSIGN(auto sizes, s.ints(1));
  Dims starts{0};
  for (size_t k = 0; k + 1 < s.n.outputs.size(); ++k) {
    const ValueId v = s.n.outputs[k];
    auto dims = !sizes && v && s.g.value(v).type.shape ? constant_shape(*s.g.value(v).type.shape)
                                                       : std::nullopt;
    if (!sizes && !dims) break;
    starts.push_back(starts.back() + (sizes ? (*sizes)[k] : (*dims)[axis]));
  }
  return starts;
}

Applicable<Movement> split(const Site& s) {
  const size_t axis = s.axis_of(s.n.attrs.i("axis"), s.x().size());
  if (!s.starts) {
    FERRULE_ASSIGN(s.starts, split_starts(s, axis));
  }
  if (s.output >= s.starts->size()) return s.no("an output has no known size");
  return by({walk_step(axis, {{0, s.result[axis], 0, (*s.starts)[s.output], 1}})});
}

Applicable<Movement> concat(const Site& s) {
  const size_t axis = s.axis_of(s.n.attrs.i("axis"), s.result.size());
  std::vector<Segment> segments;
  int64_t at = 0;
  for (size_t k = 0; k < s.inputs.size(); ++k) {
    if (!s.has(k) || s.inputs[k][axis] == 0) continue;
    segments.push_back({at, at + s.inputs[k][axis], static_cast<int>(k), 0, 1});
    at += s.inputs[k][axis];
  }
  return by({walk_step(axis, std::move(segments))});
}

/// Position that a padded position stands for; -1: the constant.
int64_t padded(int64_t i, int64_t size, std::string_view mode) {
  if (i >= 0 && i < size) return i;
  if (mode == "edge") return i < 0 ? 0 : size - 1;
  if (mode == "wrap") return (i % size + size) % size;
  if (mode != "reflect") return -1;
  if (size == 1) return 0;
  const int64_t period = 2 * (size - 1), r = (i % period + period) % period;
  return r < size ? r : period - r;
}

Applicable<Movement> pad(const Site& s) {
  FERRULE_ASSIGN(auto pads, s.ints(1));
  FERRULE_ASSIGN(auto axes, s.ints(3));
  if (!pads) return s.no("no pads are given");
  const std::string mode = s.n.attrs.s("mode", "constant");
  if (mode != "constant" && mode != "edge" && mode != "reflect" && mode != "wrap")
    return s.no("there is no mode " + escape(mode));
  Movement m;
  if (s.has(2)) {
    const Tensor* value = s.g.constant(s.n.inputs[2]);
    if (!value || value->numel() != 1) return s.no("the value is not constant");
    m.fill = *value;
  }
  const size_t count = pads->size() / 2;
  for (size_t k = 0; k < count; ++k) {
    const size_t axis = axes ? s.axis_of((*axes)[k], s.x().size()) : k;
    const int64_t before = (*pads)[k], size = s.x()[axis];
    if (before == 0 && (*pads)[k + count] == 0) continue;
    if (size == 0 && mode != "constant") return s.no("nothing to pad from");
    if (s.result[axis] > kLongAxis) return s.no("an axis is too long");
    Dims positions;
    for (int64_t o = 0; o < s.result[axis]; ++o)
      positions.push_back(padded(o - before, size, mode));
    m.steps.push_back(walk_step(axis, runs_of(positions)));
  }
  return m;
}

Applicable<Movement> expand(const Site& s) {
  Dims axes;
  const size_t extra = s.result.size() - s.x().size();
  for (size_t k = 0; k < s.x().size(); ++k)
    axes.push_back(s.x()[k] == 1 ? -1 : static_cast<int64_t>(k + extra));
  return by({axes_step(std::move(axes))});
}

Applicable<Movement> tile(const Site& s) {
  Movement m;
  for (size_t axis = 0; axis < s.x().size(); ++axis) {
    const int64_t size = s.x()[axis];
    if (s.result[axis] == size || size == 0) continue;
    if (size == 1) {
      m.steps.push_back(walk_step(axis, {{0, s.result[axis], 0, 0, 0}}));
      continue;
    }
    if (s.result[axis] / size > kLongAxis) return s.no("an axis is too long");
    std::vector<Segment> segments;
    for (int64_t at = 0; at < s.result[axis]; at += size)
      segments.push_back({at, at + size, 0, 0, 1});
    m.steps.push_back(walk_step(axis, std::move(segments)));
  }
  return m;
}

Applicable<Movement> gather(const Site& s) {
  FERRULE_ASSIGN(auto indices, s.ints(1));
  if (!indices) return s.no("no indices are given");
  const size_t axis = s.axis_of(s.n.attrs.i("axis"), s.x().size());
  const int64_t size = s.x()[axis];
  for (int64_t& i : *indices) {
    if (i < 0) i += size;
    if (i < 0 || i >= size) return s.no("an index is out of range");
  }
  Dims flat = s.x();  // the indices' axes as one
  flat[axis] = std::ssize(*indices);
  return by({reshape_step(s.result, flat), walk_step(axis, runs_of(*indices))});
}

/// Along the leading axes that are looked up as one.
Applicable<Movement> gather_nd(const Site& s) {
  FERRULE_ASSIGN(auto indices, s.ints(1));
  const auto shape = s.has(1) ? s.g.value(s.n.inputs[1]).type.shape : std::nullopt;
  const auto index_dims = shape ? constant_shape(*shape) : std::nullopt;
  if (!indices || !index_dims || index_dims->empty()) return s.no("no indices are given");
  const int64_t batches = s.n.attrs.i("batch_dims", 0), parts = index_dims->back();
  const auto rank = std::ssize(s.x());
  if (batches < 0 || batches >= std::ssize(*index_dims) || parts < 1 || batches + parts > rank)
    return s.no("the indices have more parts than the operand has axes");
  if (!std::equal(s.x().begin(), s.x().begin() + batches, index_dims->begin()))
    return s.no("the batches of its operands differ");
  auto product = [](auto begin, auto end) {
    return std::accumulate(begin, end, int64_t{1}, std::multiplies<>());
  };
  const auto rest = s.x().begin() + batches + parts;
  const int64_t tuples = std::ssize(*indices) / parts,
                apart = std::max<int64_t>(product(s.x().begin(), s.x().begin() + batches), 1),
                each = std::max<int64_t>(tuples / apart, 1);
  Dims positions;
  for (int64_t k = 0; k < tuples; ++k) {
    int64_t at = k / each;
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t size = s.x()[batches + part], i = (*indices)[k * parts + part];
      if (i < -size || i >= size)
        return s.no(fmt::format("index {} is out of range for {}", i, size));
      at = at * size + (i < 0 ? i + size : i);
    }
    positions.push_back(at);
  }
  Dims flat{tuples}, joined{product(s.x().begin(), rest)};
  flat.insert(flat.end(), rest, s.x().end());
  joined.insert(joined.end(), rest, s.x().end());
  return by({reshape_step(s.result, flat), walk_step(0, runs_of(positions)),
             reshape_step(joined, s.x())});
}

/// [N, b, b, C, H, W] or the like, its axes in another order.
Applicable<Movement> blocks(const Site& s, bool to_space) {
  const int64_t b = s.n.attrs.i("blocksize");
  const Dims& large = to_space ? s.result : s.x();
  const Dims& small = to_space ? s.x() : s.result;
  if (b < 1 || large.size() != 4 || small.size() != 4) return s.no("its operand has not four axes");
  const std::string mode = s.n.attrs.s("mode", "DCR");
  if (mode != "DCR" && mode != "CRD") return s.no("there is no mode " + escape(mode));
  const bool columns_first = mode == "CRD";
  const int64_t n = large[0], c = large[1], h = small[2], w = small[3];
  const Dims spread{n, c, h, b, w, b};  // the image's side
  const Dims packed = columns_first ? Dims{n, c, b, b, h, w} : Dims{n, b, b, c, h, w};
  // Axis k of `packed` is this axis of `spread`.
  const Dims order = columns_first ? Dims{0, 1, 3, 5, 2, 4} : Dims{0, 3, 5, 1, 2, 4};
  Dims back(6);
  for (size_t k = 0; k < 6; ++k) back[order[k]] = static_cast<int64_t>(k);
  return by({reshape_step(s.result, to_space ? spread : packed), axes_step(to_space ? order : back),
             reshape_step(to_space ? packed : spread, s.x())});
}
Applicable<Movement> depth_to_space(const Site& s) { return blocks(s, true); }
Applicable<Movement> space_to_depth(const Site& s) { return blocks(s, false); }

Applicable<Movement> resize(const Site& s) {
  const Attrs& a = s.n.attrs;
  const Resampling how = Resampling::of(a);
  if (how.mode != "nearest") return s.no("mode " + escape(how.mode) + " computes");
  if (how.coordinates == "tf_crop_and_resize" ||
      a.s("keep_aspect_ratio_policy", "stretch") != "stretch")
    return s.no("these coordinates are not taken");
  const Tensor* scales = s.has(2) ? s.g.constant(s.n.inputs[2]) : nullptr;
  if (s.has(2) && !scales) return s.no("the scales are not constant");
  if (scales && scales->numel() == 0) scales = nullptr;
  Dims axes = a.ints("axes");
  if (axes.empty())
    for (size_t k = 0; k < s.x().size(); ++k) axes.push_back(static_cast<int64_t>(k));
  if (scales && scales->numel() != std::ssize(axes))
    return s.no("there are not as many scales as axes");
  Movement m;
  for (size_t k = 0; k < axes.size(); ++k) {
    const size_t axis = s.axis_of(axes[k], s.x().size());
    ResizeAxis along{s.x()[axis], s.result[axis]};
    if (along.in == 0) return s.no("the operand is empty");
    if (along.out > kLongAxis) return s.no("an axis is too long");
    along.scale =
        scales ? scales->at_f64(k) : static_cast<double>(along.out) / static_cast<double>(along.in);
    if (how.keeps(along)) continue;
    Dims positions;
    for (int64_t o = 0; o < along.out; ++o) positions.push_back(resize_taps(along, how, o)[0].at);
    m.steps.push_back(walk_step(axis, runs_of(positions)));
  }
  return m;
}

struct Row {
  std::string_view op;
  Applicable<Movement> (*steps)(const Site&);
  bool all_inputs = false, view = false, repeats = false;
  bool renumbers = false;  ///< one step that renumbers axes; of sizes, only what is 1 counts
  bool crops = false;      ///< takes a part along axes, or puts something around it
  bool looks_up = false;   ///< its places may be computed
};

constexpr Row kRows[] = {
    {"Transpose", transpose, false, false, false, true},
    {"Slice", slice, false, false, false, false, true},
    {"Split", split},
    {"Concat", concat, true},
    {"Pad", pad, false, false, false, false, true},
    {"Expand", expand, false, false, true, true},
    {"Tile", tile, false, false, true},
    {"Gather", gather, false, false, true, false, false, true},
    {"GatherND", gather_nd, false, false, true},
    {"Resize", resize, false, false, true},
    {"DepthToSpace", depth_to_space},
    {"SpaceToDepth", space_to_depth},
    {"Reshape", view, false, true},
    {"Flatten", view, false, true},
    {"Squeeze", view, false, true},
    {"Unsqueeze", view, false, true},
};

const Row* row_of(const Node& n) {
  if (!n.domain.empty() || n.body) return nullptr;
  auto it = std::ranges::find(kRows, operator_name(n.op), &Row::op);
  return it == std::end(kRows) ? nullptr : it;
}

}  // namespace

Node take_apart(Graph& g, ValueId whole, int64_t axis, const std::vector<int64_t>& sizes) {
  Node n;
  n.op = operator_named("Split");
  n.attrs.set("axis", axis);
  Tensor t = Tensor::of_i64({std::ssize(sizes)}, sizes);
  n.inputs = {whole, g.add_constant(g.fresh_name(g.value(whole).name + ".sizes"), std::move(t))};
  return n;
}

bool is_movement(const Node& n) { return row_of(n) != nullptr; }

bool is_view(const Node& n) {
  const Row* r = row_of(n);
  return r && r->view;
}

bool repeats_elements(const Node& n) {
  const Row* r = row_of(n);
  return r && r->repeats;
}

bool is_transpose(const Node& n) {
  const Row* r = row_of(n);
  return r && r->renumbers && !r->repeats;
}

bool crops(const Node& n) {
  const Row* r = row_of(n);
  return r && r->crops;
}

bool looks_up(const Node& n) {
  const Row* r = row_of(n);
  return r && r->looks_up;
}

bool moves_input(const Node& n, size_t slot) {
  const Row* r = row_of(n);
  return r && (slot == 0 || r->all_inputs);
}

namespace {

constexpr size_t kReadable = 60;  // letters of a type; sizes can be long formulas

Applicable<Dims> known(const Site& s, ValueId v) {
  const Type& t = s.g.value(v).type;
  auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
  if (!dims)
    return s.no(fmt::format("the size of \"{}\" is not known before a run{}",
                            escape(s.g.value(v).name),
                            str(t).size() <= kReadable ? " (" + str(t) + ")" : ""));
  return *dims;
}

/// Whether what operand 1 says of the result's sizes is known: else the model only declares them.
bool says_sizes(const Site& s) {
  const Row& row = *row_of(s.n);
  if (!s.has(1) || !(row.view || row.steps == expand || row.steps == tile)) return true;
  const auto contents = contents_of(s.g, s.n.inputs[1]);
  return contents && std::ranges::all_of(*contents, [](const Dim& d) { return d.is_constant(); });
}

Applicable<> read_inputs(Site& s) {
  if (!row_of(s.n)) return s.no("it computes");
  if (!says_sizes(s)) return s.no("its sizes are computed from data, and only declared");
  for (size_t k = 0; k < s.n.inputs.size(); ++k) {
    s.inputs.emplace_back();
    if (!s.n.inputs[k] || !moves_input(s.n, k)) continue;
    FERRULE_ASSIGN(s.inputs.back(), known(s, s.n.inputs[k]));
  }
  return {};
}

Applicable<Movement> result(Site& s, size_t output) {
  if (s.inputs.empty() || output >= s.n.outputs.size() || !s.n.outputs[output])
    return s.no("it has no operand");
  s.output = output;
  FERRULE_ASSIGN(s.result, known(s, s.n.outputs[output]));
  return row_of(s.n)->steps(s);
}

}  // namespace

Applicable<Movement> movement_of(const Graph& g, const Node& n, size_t output) {
  Site s{g, n, output, {}, {}};
  FERRULE_TRY(read_inputs(s));
  return result(s, output);
}

std::vector<Applicable<Movement>> movements_of(const Graph& g, const Node& n) {
  Site s{g, n, 0, {}, {}};
  const Applicable<> inputs = read_inputs(s);
  std::vector<Applicable<Movement>> out;
  for (size_t k = 0; k < n.outputs.size(); ++k) {
    if (inputs)
      out.push_back(result(s, k));
    else
      out.push_back(fail(inputs.error()));
  }
  return out;
}

std::optional<Dims> axes_of(const Graph& g, const Node& n) {
  const Row* row = row_of(n);
  if (!row || !row->renumbers || n.inputs.empty() || !n.inputs[0] || n.outputs.empty() ||
      !n.outputs[0])
    return std::nullopt;
  const auto &x = g.value(n.inputs[0]).type.shape, &y = g.value(n.outputs[0]).type.shape;
  if (!x || !y || x->size() > y->size() || (!row->repeats && x->size() != y->size()))
    return std::nullopt;
  constexpr int64_t kAny = 2;  // as good as any other size
  Site s{g, n, 0, {Dims(x->size())}, Dims(y->size(), kAny)};
  for (size_t k = 0; k < x->size(); ++k) {
    const bool kept = !row->repeats || (*x)[k] == (*y)[k + y->size() - x->size()];
    const auto size = (*x)[k].constant();
    if (!size && !kept) return std::nullopt;
    s.inputs[0][k] = size.value_or(kAny);
  }
  auto m = row->steps(s);
  return m ? std::optional(std::move(m->steps[0].axes)) : std::nullopt;
}

}  // namespace ferrule
