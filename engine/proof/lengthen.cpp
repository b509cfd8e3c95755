#include "engine/proof/lengthen.h"

#include <algorithm>

#include "engine/base/contains.h"
#include "engine/proof/edit.h"

namespace ferrule {
namespace {

/// What stands for a list of axes, sizes or places, not for numbers that are computed with.
bool is_list(const Tensor& t) {
  constexpr int64_t kLongest = 16;
  return (t.dtype() == DType::i64 || t.dtype() == DType::i32) && t.rank() <= 1 &&
         t.numel() <= kLongest;
}

class Stretch {
 public:
  Stretch(const Graph& g, Dim from, int64_t to, int64_t most)
      : g_(g), from_(std::move(from)), to_(to), most_(most) {}

  /// `lists`: where lists of integers name the size, too. Null: too large.
  std::unique_ptr<Graph> made(bool ones, bool lists) const {
    auto out = g_.clone();
    for (ValueId v : g_.inputs()) {
      Type t = g_.value(v).type;
      if (!t.shape) continue;
      for (Dim& d : *t.shape) d = changed(d, ones);
      if (!fits(*t.shape)) return nullptr;
      out->set_type(v, std::move(t));
    }
    for (ValueId v : g_.constants()) {
      const Tensor& t = *g_.constant(v);
      if (t.dtype() == DType::string || size_bits(t.dtype()) % 8) continue;
      if (is_list(t)) {
        if (lists) out->set_constant(v, list(t, ones));
        continue;
      }
      Shape shape(t.dims().begin(), t.dims().end());
      for (Dim& d : shape) d = changed(d, ones);
      if (!fits(shape)) return nullptr;
      if (const auto dims = *constant_shape(shape); dims != t.dims() && t.numel() > 0)
        out->set_constant(v, filled(t.dtype(), dims, t.to_f64()));
    }
    return out;
  }

 private:
  Dim changed(const Dim& d, bool ones) const { return d == from_ ? Dim(to_) : ones ? Dim(1) : d; }
  Tensor list(const Tensor& t, bool ones) const {
    std::vector<int64_t> all = t.to_i64();
    for (int64_t& x : all)
      if (Dim(x) == from_)
        x = to_;
      else if (ones && x > 1)
        x = 1;
    return Tensor::of_ints(t.dtype(), t.dims(), all);
  }
  bool fits(const Shape& s) const {
    int64_t all = 1;
    for (const Dim& d : s) {
      constexpr int64_t kOpen = 7;
      const int64_t n = d.value_or(kOpen);
      if (n > 0 && all > most_ / n) return false;
      all *= n;
    }
    return true;
  }

  const Graph& g_;
  const Dim from_;
  const int64_t to_, most_;
};

bool has_axis_beyond(const Graph& g, int64_t size) {
  return std::ranges::any_of(g.inputs(), [&](ValueId v) {
    const auto& s = g.value(v).type.shape;
    return s && std::ranges::any_of(*s, [&](const Dim& d) { return d.value_or(0) > size; });
  });
}

}  // namespace

std::vector<std::unique_ptr<Graph>> lengthened(const Graph& g, int64_t to, int64_t most) {
  std::vector<Dim> sizes;
  for (ValueId v : g.inputs())
    if (const auto& shape = g.value(v).type.shape)
      for (const Dim& d : *shape)
        if (d != Dim(1) && !contains(sizes, d)) sizes.push_back(d);
  std::vector<std::unique_ptr<Graph>> out;
  for (const Dim& from : sizes)
    for (const bool ones : {true, false})
      for (const bool lists : {false, true})
        if (auto made = Stretch(g, from, to, most).made(ones, lists))
          out.push_back(std::move(made));
  return out;
}

bool has_long_axis(const Graph& g) {
  constexpr int64_t kLong = 2500;
  return has_axis_beyond(g, kLong);
}

bool only_measured(const Graph& g, const Value& v) {
  return !v.is_output && std::ranges::all_of(v.uses, [&](const Use& u) {
    const std::vector<ValueId>& out = g.node(u.node).outputs;
    return u.slot == 0 && !out.empty() && out[0] && g.value(out[0]).contents.has_value();
  });
}

bool is_counted(const Graph& g) { return has_axis_beyond(g, kCounted - 1); }

}  // namespace ferrule
