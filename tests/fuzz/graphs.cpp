#include "tests/fuzz/graphs.h"

#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

/// How often, in percent, a next piece is of what kind; the rest are steps.
struct Mix {
  int layers, idioms, joints, others, nested, quantized;
};
constexpr Mix kDense{40, 8, 14, 4, 2, 6}, kMixed{8, 14, 12, 30, 8, 2};

class Drawing {
 public:
  Drawing(Builder& b, bool dense)
      : b_(b), d_(b.draw), mix_(dense ? kDense : kMixed), dense_(dense) {}

  void draw() {
    begin();
    const size_t wanted =
        static_cast<size_t>(d_.chance(50) ? d_.between(3, 12) : d_.between(8, 36));
    for (int tries = 0; b_.lines() < wanted && tries < 150; ++tries) piece();
    outputs();
    if (d_.chance(20)) b_.open_sizes();
  }

 private:
  void begin() {
    if (dense_ || d_.chance(25)) {
      scene_.anchor = draw_anchor(b_);
    } else {
      Dims dims;
      for (int64_t rank = d_.of({0, 1, 2, 2, 3, 3, 3, 4, 4, 5, 6}); rank > 0; --rank)
        dims.push_back(std::min<int64_t>(b_.size(), rank > 4 ? 3 : 8));
      const Value x = b_.input(b_.dtype, dims, b_.mood);
      Made v = b_.node("Identity", {x});
      scene_.anchor = {"Identity", "", {x}, v ? *v : x};
    }
    scene_.values = {scene_.anchor.result};
  }

  /// The value that goes on: mostly the newest.
  Value from() { return d_.chance(65) ? scene_.values.back() : d_.of(scene_.values); }

  void piece() {
    const Builder::Mark before = b_.mark();
    const std::vector<Value> values = scene_.values;
    add(from());
    for (size_t k = values.size(); k < scene_.values.size(); ++k)
      if (b_.says_nothing(scene_.values[k]) && !d_.chance(kDull)) {
        b_.back_to(before);
        scene_.values = values;
      }
  }

  void add(const Value& v) {
    int64_t kind = d_.below(100);
    auto is = [&](int percent) { return (kind -= percent) < 0; };
    Made r;
    if (is(mix_.layers))
      r = draw_layer(b_, v);
    else if (is(mix_.idioms))
      r = draw_idiom(b_, v);
    else if (is(mix_.joints))
      r = joint(v);
    else if (is(mix_.others))
      r = draw_other(b_, v);
    else if (is(mix_.nested))
      r = draw_nested(b_, scene_, v);
    else if (is(mix_.quantized))
      r = draw_quantized(b_, v);
    else
      return step(v);
    if (r) scene_.values.push_back(*r);
  }

  void step(const Value& v) {
    std::vector<Value> before = scene_.values;
    scene_.values.push_back(v);
    const bool drawn = draw_step(b_, scene_);
    if (drawn) before.push_back(scene_.values.back());
    scene_.values = std::move(before);
  }

  /// Two values become one; or one several.
  Made joint(const Value& v) {
    const int rank = v.rank();
    if (d_.chance(30) && rank > 0) return split(v);
    std::vector<Value> fit;
    for (const Value& o : scene_.values)
      if (o.dtype == v.dtype && o.dims == v.dims && (o.name != v.name || d_.chance(10)))
        fit.push_back(o);
    if (fit.empty()) return rank > 2 && d_.chance(50) ? sibling(v) : std::nullopt;
    const Value o = d_.of(fit);
    if (rank > 0 && d_.chance(55)) {
      std::vector<Value> all{v, o};
      if (d_.chance(30)) all.push_back(d_.of(fit));
      d_.shuffle(all);
      return b_.node(
          "Concat", all,
          fmt::format("axis = {}", rank > 1 && d_.chance(50) ? 1 : d_.between(-rank, rank - 1)));
    }
    static const Strings any{"Add", "Add", "Add", "Mul", "Sub", "Max"};
    return b_.node(v.dtype == DType::boolean ? "And" : d_.of(any),
                   d_.chance(50) ? std::vector<Value>{v, o} : std::vector<Value>{o, v});
  }

  /// Two convolutions of one value, joined along their channels.
  Made sibling(const Value& v) {
    Made left = draw_layer(b_, v), right = draw_layer(b_, v);
    if (left) scene_.values.push_back(*left);
    if (right) scene_.values.push_back(*right);
    return left && right ? b_.node("Concat", {*left, *right}, "axis = 1") : std::nullopt;
  }

  Made split(const Value& v) {
    const int64_t axis = d_.below(v.rank()), n = v.dims[static_cast<size_t>(axis)],
                  first = d_.between(0, n);
    auto parts = b_.nodes("Split", {v, b_.literal({first, n - first})},
                          fmt::format("axis = {}", axis), {v.dtype, v.dtype});
    if (!parts) return std::nullopt;
    for (Value& part : *parts) part.exact = v.exact, part.positive = v.positive;
    scene_.values.push_back((*parts)[0]);
    return (*parts)[1];
  }

  /// All that nothing reads, mostly, and some in the middle.
  void outputs() {
    const bool all = d_.chance(75);
    for (const Value& v : scene_.values)
      if (((all && !b_.is_read(v)) || d_.chance(8)) && (!b_.says_nothing(v) || d_.chance(kDull)))
        b_.output(v);
    for (size_t k = scene_.values.size(); k-- > 0 && !b_.has_outputs();)
      if (k == 0 || !b_.says_nothing(scene_.values[k])) b_.output(scene_.values[k]);
  }

  Builder& b_;
  Draw& d_;
  const Mix mix_;
  const bool dense_;
  Scene scene_;
};

}  // namespace

Case draw_graph(Draw& draw, const Language& language, std::map<std::string, int>& refused) {
  Builder b(draw, language);
  const bool dense = draw.chance(50);
  b.mood = static_cast<Mood>(draw.of({0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 2, 2, 3, 3}));
  if (dense)
    b.dtype =
        static_cast<DType>(draw.of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 11, 16, 6}));
  else
    b.dtype = static_cast<DType>(draw.of({1, 1, 1, 1, 1, 1, 1, 10, 11, 16, 7, 7, 6, 3, 2, 12, 5}));
  b.square = draw.chance(20);
  b.side = draw.between(2, 5);
  b.empty = draw.chance(3);
  b.largest = dense ? 30'000 : 8'000;
  Drawing(b, dense).draw();
  for (const auto& [why, n] : b.refused) refused[why] += n;
  return b.finish();
}

}  // namespace ferrule::fuzz
