// Operators that compare elements with each other: arg-max, top-k, unique, running sums,
// non-maximum suppression.
#include <map>

#include "engine/interpreter/internal.h"
#include "engine/semantics/line_order.h"

namespace ferrule::interp {
namespace {

template <bool kMax>
Outputs arg(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", 0), x.rank()));
  Dims out = x.dims();
  if (out[axis] == 0) return c.bad("axis {} of {} is empty", axis, text(x.dims()));
  if (c.n.attrs.i("keepdims", 1))
    out[axis] = 1;
  else
    out.erase(out.begin() + axis);
  const bool last = c.n.attrs.i("select_last_index") != 0;
  return with_number(c, x, [&]<class C>() {
    const Lines l = lines_along(x.dims(), static_cast<size_t>(axis));
    Made<int64_t> y(c, DType::i64, out);
    extremes(View<C>(x).data(), l, 0, l.size(), kMax, last, y.data());
    return one(y.done());
  });
}

/// 1 at the first largest of each line, else 0.
Outputs hardmax(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", -1), x.rank()));
  return with_float(c, x, [&]<class C>() {
    const Lines l = lines_along(x.dims(), static_cast<size_t>(axis));
    Made<C> y(c, x.dtype(), x.dims());
    std::fill_n(y.data(), x.numel(), C{0});
    if (x.numel() == 0) return one(y.done());
    std::vector<int64_t> best(static_cast<size_t>(l.size()));
    extremes(View<C>(x).data(), l, 0, l.size(), true, false, best.data());
    for (int64_t k = 0; k < l.size(); ++k) y.data()[l.start(k) + best[k] * l.step] = 1;
    return one(y.done());
  });
}

Outputs top_k(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", -1), x.rank()));
  const auto given = c.ints(1, "");
  const int64_t k = given && given->size() == 1 ? (*given)[0] : c.n.attrs.i("k", -1);
  Dims out = x.dims();
  if (k < 0 || k > out[axis]) return c.bad("the first {} of {}", k, out[axis]);
  out[axis] = k;
  const bool largest = c.n.attrs.i("largest", 1) != 0;
  return with_number(c, x, [&]<class C>() {
    const View<C> in(x);
    const Lines from = lines_along(x.dims(), static_cast<size_t>(axis)),
                to = lines_along(out, static_cast<size_t>(axis));
    Made<C> values(c, x.dtype(), out);
    Made<int64_t> indices(c, DType::i64, out, 1);
    std::vector<Ranked<C>> first(static_cast<size_t>(ranking_room(k)));
    for (int64_t line = 0; line < from.size(); ++line) {
      first_of_line(in.data() + from.start(line), from.length, from.step, largest, first.data(), k);
      for (int64_t i = 0, at = to.start(line); i < k; ++i, at += to.step)
        values.data()[at] = first[i].value, indices.data()[at] = first[i].at;
    }
    auto result = one(values.done());
    result->push_back(indices.done());
    return result;
  });
}

/// to = sums combined with `in`, element by element.
template <bool kProduct, class C>
__attribute__((optimize("O3"))) void combine(C* __restrict to, const C* sums,
                                             const C* __restrict in, int64_t n) {
  for (int64_t i = 0; i < n; ++i) to[i] = kProduct ? mul(sums[i], in[i]) : add(sums[i], in[i]);
}

/// Running sum or product.
template <bool kProduct>
Outputs cumulative(const Call& c) {
  const Tensor& x = *c.input(0);
  if (c.input(1)->numel() != 1 || !is_int(c.input(1)->dtype()))
    return c.bad("the axis is not one integer");
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.input(1)->at_i64(0), x.rank()));
  const bool exclusive = c.n.attrs.i("exclusive") != 0, reverse = c.n.attrs.i("reverse") != 0;
  return with_number(c, x, [&]<class C>() {
    const View<C> in(x);
    const Lines l = lines_along(x.dims(), static_cast<size_t>(axis));
    const int64_t next = reverse ? -l.step : l.step;
    const std::vector<C> nothing(static_cast<size_t>(l.step), C{kProduct});
    Made<C> y(c, x.dtype(), x.dims());
    for (int64_t o = 0; o < l.outer; ++o)
      for (int64_t i = 0, at = (o + reverse) * l.length * l.step - (reverse ? l.step : 0);
           i < l.length; ++i, at += next) {
        C* to = y.data() + at;
        const C* sums = i == 0 ? nothing.data() : to - next;
        if (i == 0 && exclusive)
          std::copy_n(sums, l.step, to);
        else
          combine<kProduct>(to, sums, in.data() + at - (exclusive ? next : 0), l.step);
      }
    return one(y.done());
  });
}

/// Slices along the axis (the whole tensor when there is none), sorted or in order of appearance.
Outputs unique(const Call& c) {
  const Tensor& whole = *c.input(0);
  if (whole.dtype() != DType::string && !is_float(whole.dtype()) && !is_integral(whole.dtype()))
    return c.unsupported_type(whole);
  const bool flat = !c.n.attrs.find("axis");
  const Tensor x = flat ? whole.reshaped({whole.numel()}) : whole;
  FERRULE_ASSIGN(const size_t a, c.axis(c.n.attrs.i("axis", 0), x.rank()));
  const int64_t d = x.dims()[a], inner = count(x.dims(), a + 1), outer = count(x.dims(), 0, a);
  auto less = [&](int64_t p, int64_t q) {  // elements at flat positions
    if (x.dtype() == DType::string) return x.strings()[p] < x.strings()[q];
    if (x.dtype() == DType::i64) return x.at_i64(p) < x.at_i64(q);
    return x.at_f64(p) < x.at_f64(q);
  };
  auto slice_less = [&](int64_t s, int64_t t) {
    for (int64_t o = 0; o < outer; ++o) {
      for (int64_t i = 0; i < inner; ++i) {
        const int64_t p = (o * d + s) * inner + i, q = (o * d + t) * inner + i;
        if (less(p, q)) return true;
        if (less(q, p)) return false;
      }
    }
    return false;
  };
  std::map<int64_t, size_t, decltype(slice_less)> seen(
      slice_less);  // first slice -> place among found
  std::vector<int64_t> first, counts, inverse(static_cast<size_t>(d));
  for (int64_t s = 0; s < d; ++s) {
    auto [it, fresh] = seen.try_emplace(s, first.size());
    if (fresh) first.push_back(s), counts.push_back(0);
    ++counts[it->second];
    inverse[s] = static_cast<int64_t>(it->second);
  }
  if (c.n.attrs.i("sorted", 1)) {
    std::vector<int64_t> rank(first.size()), sorted_first, sorted_counts;
    for (const auto& [slice, place] : seen) {
      rank[place] = std::ssize(sorted_first);
      sorted_first.push_back(slice);
      sorted_counts.push_back(counts[place]);
    }
    for (int64_t& v : inverse) v = rank[v];
    first = sorted_first, counts = sorted_counts;
  }
  Dims out = x.dims();
  out[a] = std::ssize(first);
  std::vector<int64_t> from;
  for (int64_t o = 0; o < outer; ++o)
    for (int64_t s : first) from.push_back((o * d + s) * inner);
  auto result = one(take_runs(c, x, out, from, inner));
  result->push_back(Tensor::of_i64({std::ssize(first)}, first));
  result->push_back(Tensor::of_i64({d}, inverse));
  result->push_back(Tensor::of_i64({std::ssize(counts)}, counts));
  return result;
}

struct Box {
  double y1, x1, y2, x2;
};

double overlap(const Box& a, const Box& b) {
  const double h = std::min(a.y2, b.y2) - std::max(a.y1, b.y1),
               w = std::min(a.x2, b.x2) - std::max(a.x1, b.x1);
  if (h <= 0 || w <= 0) return 0;
  const double both = (a.y2 - a.y1) * (a.x2 - a.x1) + (b.y2 - b.y1) * (b.x2 - b.x1) - h * w;
  return both <= 0 ? 0 : h * w / both;
}

Outputs non_max_suppression(const Call& c) {
  const Tensor &boxes = *c.input(0), &scores = *c.input(1);
  if (boxes.rank() != 3 || scores.rank() != 3 || boxes.dims()[2] != 4 ||
      boxes.dims()[0] != scores.dims()[0] || boxes.dims()[1] != scores.dims()[2]) {
    return c.bad("boxes {} and scores {}", text(boxes.dims()), text(scores.dims()));
  }
  if (!is_float(boxes.dtype())) return c.unsupported_type(boxes);
  for (size_t i = 2; i < 5; ++i) {
    if (c.input(i) && c.input(i)->numel() != 1) return c.bad("input {} is no scalar", i);
  }
  const int64_t most = c.input(2) ? c.input(2)->at_i64(0) : 0;
  const double threshold = c.input(3) ? c.input(3)->at_f64(0) : 0;
  const bool limited = c.input(4) != nullptr;
  const double lowest = limited ? c.input(4)->at_f64(0) : 0;
  const int64_t n = boxes.dims()[1], classes = scores.dims()[1];
  const View<double> corners(boxes), points(scores);
  std::vector<int64_t> y;
  for (int64_t b = 0; b < boxes.dims()[0]; ++b) {
    std::vector<Box> all;
    for (int64_t i = 0; i < n; ++i) {
      const double* v = corners.data() + (b * n + i) * 4;
      if (c.n.attrs.i("center_point_box")) {  // x, y of the centre, width, height
        all.push_back({v[1] - v[3] / 2, v[0] - v[2] / 2, v[1] + v[3] / 2, v[0] + v[2] / 2});
      } else {  // two opposite corners y, x
        all.push_back({std::min(v[0], v[2]), std::min(v[1], v[3]), std::max(v[0], v[2]),
                       std::max(v[1], v[3])});
      }
    }
    for (int64_t k = 0; k < classes; ++k) {
      const double* score = points.data() + (b * classes + k) * n;
      // Of equal scores the first counts more. A heap: only as many come out as are looked at.
      auto less = [&](int64_t i, int64_t j) {
        return score[i] < score[j] || (score[i] == score[j] && i > j);
      };
      std::vector<int64_t> left, kept;
      for (int64_t i = 0; i < n; ++i) {
        if (!limited || score[i] > lowest) left.push_back(i);
      }
      std::ranges::make_heap(left, less);
      for (; std::ssize(kept) < most && !left.empty(); left.pop_back()) {
        std::ranges::pop_heap(left, less);
        const Box& box = all[left.back()];
        const bool covered =
            std::ranges::any_of(kept, [&](int64_t j) { return overlap(box, all[j]) > threshold; });
        if (!covered) kept.push_back(left.back());
      }
      for (int64_t i : kept) y.insert(y.end(), {b, k, i});
    }
  }
  return one(Tensor::of_i64({std::ssize(y) / 3, 3}, y));
}

}  // namespace

std::vector<Entry> order_table() {
  return {
      {"ArgMax", arg<true>, 1},
      {"ArgMin", arg<false>, 1},
      {"Hardmax", hardmax, 1},
      {"TopK", top_k, 1},
      {"CumSum", cumulative<false>, 2},
      {"CumProd", cumulative<true>, 2},
      {"Unique", unique, 1},
      {"NonMaxSuppression", non_max_suppression, 2},
  };
}

}  // namespace ferrule::interp
