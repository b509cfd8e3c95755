#include "engine/proof/propose.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "engine/proof/edit.h"
#include "engine/proof/values.h"
#include "engine/rewrite/replacement.h"

namespace ferrule {
namespace {

constexpr std::array<DType, 15> kTypes{DType::f32,     DType::f16,      DType::bf16,  DType::f64,
                                       DType::i32,     DType::i64,      DType::i8,    DType::u8,
                                       DType::boolean, DType::i16,      DType::u16,   DType::u32,
                                       DType::u64,     DType::f8e4m3fn, DType::f8e5m2};

/// Percent of the worlds that have two sizes only.
constexpr int kFewSizes = 25;
/// Sizes beyond it are seldom drawn: beside one, little else has room.
constexpr int64_t kShort = 300;

int64_t known(const Dim& d) { return d.value_or(-1); }

}  // namespace

void Proposer::aim(const std::vector<int64_t>& numbers) {
  constexpr int64_t kBlock = 4;
  aimed_ = numbers;
  aimed_sizes_.clear();
  for (int64_t n : numbers) {
    if (n > 0) aimed_sizes_.push_back(n);
    if (n > 1 && n <= kBlock) aimed_sizes_.insert(aimed_sizes_.end(), {2 * n, n * n, 2 * n * n});
  }
}

int64_t Proposer::another_size() {
  if (!aimed_sizes_.empty() && draw_.chance(40)) return draw_.of(aimed_sizes_);
  if (!hints_.longest_sizes.empty() && draw_.chance(2)) return draw_.of(hints_.longest_sizes);
  return draw_.between(int64_t{1}, int64_t{11});
}

int64_t Proposer::count(int64_t usual) {
  constexpr int64_t kOperands = 70;
  const std::vector<int64_t>& wanted = aimed_.empty() ? hints_.sizes : aimed_;
  if (wanted.empty() || !draw_.chance(aimed_.empty() ? 5 : 15)) return usual;
  const int64_t n = draw_.of(wanted);
  return n >= 0 && n <= kOperands ? n : usual;
}

int64_t Proposer::size() {
  constexpr std::array<int64_t, 12> all{2, 3, 4, 5, 1, 2, 3, 4, 6, 7, 8, 0};
  constexpr std::array<int64_t, 4> squares{9, 12, 16, 18};  // and multiples: blocks of channels
  if (!few_.empty() && draw_.chance(85)) return draw_.of(few_);
  if (!aimed_sizes_.empty() && draw_.chance(25))
    if (const int64_t n = draw_.of(aimed_sizes_); n <= kShort || draw_.chance(30)) return n;
  if (!hints_.sizes.empty() && draw_.chance(10)) return draw_.of(hints_.sizes);
  if (!hints_.long_sizes.empty() && draw_.chance(3)) return draw_.of(hints_.long_sizes);
  if (!hints_.longest_sizes.empty() && draw_.chance(1)) return draw_.of(hints_.longest_sizes);
  if (draw_.chance(4)) return squares[static_cast<size_t>(draw_.below(4))];
  return all[static_cast<size_t>(draw_.below(draw_.chance(15) ? 12 : 11))];
}

DType Proposer::element(const std::vector<DType>& types) {
  if (!types.empty()) return draw_.of(types);
  return draw_.chance(60) ? kTypes[static_cast<size_t>(draw_.below(kTypes.size()))] : DType::f32;
}

World Proposer::world(const std::vector<DType>& types) {
  World w;
  w.dtype = element(types);
  // Sizes that have nothing to do with each other are seldom equal, and that is what conditions
  // ask.
  few_.clear();
  if (draw_.chance(kFewSizes)) few_ = {draw_.between(int64_t{2}, int64_t{3}), size()};
  int64_t rank = draw_.chance(8) ? 0 : draw_.chance(8) ? 6 : draw_.between(int64_t{1}, int64_t{5});
  // Of the most axes all are short, and often equal.
  constexpr auto kMost = static_cast<int64_t>(kRank);
  auto many = [&](int64_t axes) {
    rank = std::min(axes, kMost);
    few_ = draw_.chance(50) ? std::vector<int64_t>{2} : std::vector<int64_t>{1, 2};
  };
  if (draw_.chance(3)) many(kMost);
  // A number in a condition may be one of a rank, or of axes, of which there may be more.
  if (!hints_.sizes.empty() && draw_.chance(6))
    if (const int64_t n = draw_.of(hints_.sizes); n <= kMost) many(n + draw_.below(4));
  if (!aimed_.empty() && draw_.chance(8))
    if (const int64_t n = draw_.of(aimed_); n >= 0 && n <= kMost)
      many(n + (n > 2 ? draw_.below(4) : 0));
  for (int64_t k = 0; k < rank; ++k) w.base.emplace_back(size());
  // Beside a long axis, short ones: a graph before the rule has little memory.
  int64_t longest = 0;
  for (const Dim& d : w.base) longest = std::max(longest, known(d));
  bool seen = false;
  for (Dim& d : w.base)
    if (longest > 1000 && (seen || known(d) < longest))
      d = Dim(std::min<int64_t>(known(d), 1));
    else
      seen |= longest > 1000;
  // A size that f32 does not hold, of what has no elements.
  if (!hints_.longest_sizes.empty() && draw_.chance(2)) w.base = {Dim((1 << 24) + 1), Dim(0)};
  rank = static_cast<int64_t>(w.base.size());
  if (draw_.chance(20) && rank > 0) w.base[draw_.below(rank)] = Dim::symbol("N");
  if (draw_.chance(8) && rank > 1) w.base[draw_.below(rank)] = Dim::symbol("M");
  return w;
}

/// Of the modes the one in which operands fitted least often counts: it asks for more than others.
int Proposer::choose(const Place& place, int ways) {
  const std::vector<int>* fewest = nullptr;
  for (const std::string& p : place)
    if (auto it = ways_.find(p);
        it != ways_.end() && (!fewest || it->second.size() < fewest->size()))
      fewest = &it->second;
  if (fewest && draw_.chance(65)) return draw_.of(*fewest);
  return static_cast<int>(draw_.below(ways));
}

Shape Proposer::some_ones(Shape s) {
  for (Dim& d : s)
    if (draw_.chance(45)) d = Dim(1);
  return s;
}

Shape Proposer::shape(const World& w, const std::vector<Shape>& beside, const Place& place,
                      int& way) {
  const Shape& s = beside.empty() ? w.base : draw_.chance(70) ? beside.front() : draw_.of(beside);
  const size_t rank = s.size();
  auto any = [&] { return s[static_cast<size_t>(draw_.below(rank))]; };
  auto plus = [](Shape a, const Dim& d) { return a.push_back(d), a; };
  switch (way = choose(place, 22)) {
    case 0:
    case 1:
      return s;
    case 2:
      return {};
    case 3:
      return {Dim(1)};
    case 4:
      return rank ? Shape(s.begin() + draw_.below(rank), s.end()) : s;
    case 5:
      return some_ones(s);
    case 6:
      return rank ? Shape{any()} : s;
    case 7:
      return rank > 1 ? Shape{s[1]} : s;
    case 8: {  // one a channel, behind the batch
      Shape c(rank > 1 ? rank - 1 : 1, Dim(1));
      if (rank > 1) c[0] = s[1];
      return c;
    }
    case 9: {  // one along an axis
      Shape c(rank, Dim(1));
      if (rank) {
        const auto k = static_cast<size_t>(draw_.below(rank));
        c[k] = s[k];
      }
      return c;
    }
    case 10: {  // more axes in front
      Shape c = s;
      c.insert(c.begin(), draw_.chance(50) ? Dim(1) : Dim(size()));
      return c;
    }
    case 11: {  // what a matrix is multiplied by
      Shape c(draw_.chance(50) || rank < 2 ? s.begin() : s.end() - 2,
              rank < 2 ? s.begin() : s.end() - 2);
      if (draw_.chance(50)) c.clear();
      if (draw_.chance(15))
        c.insert(c.begin(), 1 + draw_.below(2), Dim(draw_.between(int64_t{1}, int64_t{2})));
      return rank ? plus(plus(c, s.back()), Dim(size())) : s;
    }
    case 12:
      return rank ? Shape{Dim(size()), s.back()} : s;
    case 13:  // filters over what has channels
    case 14: {
      if (rank < 2) return s;
      const int64_t groups = draw_.chance(30) && known(s[1]) > 0
                                 ? known(s[1]) % 2 == 0 && draw_.chance(50) ? 2 : known(s[1])
                                 : 1;
      const Dim in = groups > 1 ? Dim(known(s[1]) / groups) : s[1];
      const int64_t filters = few_.empty() ? draw_.between(int64_t{1}, int64_t{3}) : size();
      Shape c = way == 13 ? Shape{Dim(filters * groups), in} : Shape{s[1], Dim(filters)};
      for (size_t k = 2; k < rank; ++k) c.emplace_back(draw_.between(int64_t{1}, int64_t{3}));
      return c;
    }
    case 15: {
      Shape c = s;
      draw_.shuffle(c);
      return c;
    }
    case 16: {
      Shape c;
      for (int64_t n = draw_.below(6); n > 0; --n) c.emplace_back(size());
      return c;
    }
    case 17: {
      Shape c = s;
      if (rank) c[static_cast<size_t>(draw_.below(rank))] = Dim(size());
      return c;
    }
    case 18:
      return Shape(rank, Dim(1));
    case 19:
      return {Dim(static_cast<int64_t>(rank))};  // a number for each axis
    case 20:
      return {Dim(2 * static_cast<int64_t>(rank))};
    default: {
      Shape c = s;
      if (!c.empty()) c.pop_back();
      return draw_.chance(50) ? c : plus(c, Dim(size()));
    }
  }
}

// --- integers

/// Some axes, each once, from either end, in any order; often as many as the list beside them has
/// elements, or pairs.
std::vector<int64_t> Proposer::axes(int rank, int64_t listed) {
  std::vector<int64_t> all(rank);
  std::iota(all.begin(), all.end(), 0);
  draw_.shuffle(all);
  if (listed > rank) listed /= 2;
  if (listed > 0 && listed <= rank && draw_.chance(75))
    all.resize(listed);
  else if (rank)
    all.resize(draw_.between(int64_t{1}, int64_t{rank}));
  if (draw_.chance(60)) std::ranges::sort(all);
  const bool back = draw_.chance(35);
  for (int64_t& a : all)
    if (back) a -= rank;
  return all;
}

/// The same elements under other sizes: axes joined, split, given or relieved of ones.
std::vector<int64_t> Proposer::regrouped(const Shape& s) {
  std::vector<int64_t> out;
  std::ranges::transform(s, std::back_inserter(out), known);
  for (int64_t n = draw_.between(int64_t{1}, int64_t{3}); n > 0; --n) {
    const auto at = static_cast<size_t>(draw_.below(std::ssize(out) + 1));
    const int64_t how = draw_.below(5), other = draw_.below(std::ssize(out));
    if (how == 4 && at < out.size() && out[at] > 0 && out[at] % 2 == 0 &&
        out[static_cast<size_t>(other)] > 0)  // to another axis
      out[at] /= 2, out[static_cast<size_t>(other)] *= 2;
    else if (how == 0)
      out.insert(out.begin() + at, 1);
    else if (at >= out.size())
      continue;
    else if (how == 1 && at + 1 < out.size() && out[at] >= 0 && out[at + 1] >= 0)
      out[at] *= out[at + 1], out.erase(out.begin() + at + 1);
    else if (how == 2 && out[at] == 1)
      out.erase(out.begin() + at);
    else if (how == 3 && out[at] > 3 && out[at] % 2 == 0)
      out[at] /= 2, out.insert(out.begin() + at, 2);
  }
  if (draw_.chance(25) && !out.empty() && !contains(out, -1))
    out[static_cast<size_t>(draw_.below(std::ssize(out)))] = -1;
  return out;
}

/// Ends of axes and what lies beyond them, from either side, or steps over them in either
/// direction.
std::vector<int64_t> Proposer::beyond(const Shape& s, int64_t count) {
  constexpr int64_t kFar = int64_t{1} << 62;
  std::vector<int64_t> out;
  const bool steps = draw_.chance(40), back = draw_.chance(50);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t size = s.empty() ? 1 : std::max<int64_t>(known(draw_.of(s)), 1);
    const std::vector<int64_t> all = steps ? std::vector<int64_t>{1, 1, 2, size}
                                           : std::vector<int64_t>{0, 1, size - 1, size + 1, kFar};
    const int64_t x = draw_.of(all);
    out.push_back(!back ? x : steps ? -x : ~x);
  }
  return out;
}

std::vector<int64_t> Proposer::list(const Shape& s, const Graph& g, int way, int64_t listed) {
  const int rank = static_cast<int>(s.size());
  constexpr int64_t kLongest = 64;  // what is listed one by one
  auto any_size = [&] {
    return rank ? std::min(known(s[draw_.below(rank)]), kLongest) : int64_t{1};
  };
  std::vector<int64_t> out;
  switch (way) {
    case 0:
    case 1:
      return rank ? std::vector<int64_t>{draw_.between(int64_t{-rank}, int64_t{rank - 1})}
                  : std::vector<int64_t>{0};
    case 2:
      return axes(rank, listed);
    case 3: {  // the last ones, or those behind the channels
      for (int64_t a = draw_.chance(50) ? 2 : draw_.below(rank + 1); a < rank; ++a)
        out.push_back(a);
      return out;
    }
    case 4: {  // some value's sizes
      std::vector<const Shape*> all;
      for (ValueId v : g.values())
        if (g.value(v).type.shape) all.push_back(&*g.value(v).type.shape);
      if (!all.empty()) std::ranges::transform(*draw_.of(all), std::back_inserter(out), known);
      return out;
    }
    case 5:
      return {-1};
    case 6:
      return {0, -1};
    case 7:
    case 8:
      return regrouped(s);
    case 9:
      return std::vector<int64_t>(static_cast<size_t>(rank), 1);
    case 10: {  // pads
      out.assign(2 * static_cast<size_t>(rank), 0);
      for (size_t k = 0; k < out.size(); ++k)
        if (draw_.chance(k % static_cast<size_t>(rank) < 2 ? 8 : 50))
          out[k] = draw_.chance(90) ? draw_.between(int64_t{1}, int64_t{2}) : -1;
      return out;
    }
    case 11: {
      for (int64_t n = draw_.below(std::max(rank, 1)) + 1; n > 0; --n)
        out.push_back(draw_.between(int64_t{-2}, int64_t{3}));
      return out;
    }
    case 12:
      return {draw_.chance(50) ? 0 : 1};
    case 13:
      return {draw_.chance(50) ? -1 : int64_t{2147483647}};
    case 14:
      return {any_size()};
    case 15:
      return hints_.lists.empty() ? std::vector<int64_t>{1} : draw_.of(hints_.lists);
    case 16: {  // parts of an axis
      for (int64_t left = std::max<int64_t>(any_size(), 1); left > 0; left -= out.back())
        out.push_back(draw_.chance(40) ? left : draw_.between(int64_t{1}, left));
      return out;
    }
    case 17: {  // places along an axis, often one behind the other
      const int64_t n = std::max<int64_t>(any_size(), 1), first = draw_.between(-n, n - 1);
      const bool next = draw_.chance(60);
      for (int64_t k = draw_.between(int64_t{1}, n); k > 0; --k)
        out.push_back(next ? first + std::ssize(out) : draw_.between(-n, n - 1));
      return out;
    }
    case 18:
      return {};
    case 19: {  // all axes, or all places along one in any order
      const bool places = rank && draw_.chance(60);
      out.resize(static_cast<size_t>(places ? std::max<int64_t>(any_size(), 0) : rank));
      std::iota(out.begin(), out.end(), 0);
      if (!places) return out;
      if (draw_.chance(30)) return permutation(out.size());
      if (draw_.chance(50)) std::ranges::reverse(out);
      if (out.size() > 1 && draw_.chance(70))
        std::swap(out[static_cast<size_t>(draw_.below(std::ssize(out)))],
                  out[static_cast<size_t>(draw_.below(std::ssize(out)))]);
      return out;
    }
    default: {  // sizes with a few 1, or more axes
      std::ranges::transform(s, std::back_inserter(out), known);
      for (int64_t& d : out)
        if (draw_.chance(30)) d = 1;
      if (draw_.chance(30)) out.insert(out.begin(), size());
      return out;
    }
  }
}

Tensor Proposer::integers(DType t, const Shape& beside, const Graph& g, const Place& place,
                          int& way, int64_t listed) {
  way = choose(place, 23);
  std::vector<const Tensor*> same;
  for (ValueId v : g.constants())
    if (const Tensor* c = g.constant(v); c->dtype() == t && c->rank() < 2) same.push_back(c);
  if (way == 21 && !same.empty()) return *draw_.of(same);
  const std::vector<int64_t> values =
      way == 22 ? beyond(beside, listed >= 0 && draw_.chance(80)
                                     ? listed
                                     : draw_.between(1, std::max<int64_t>(std::ssize(beside), 1)))
                : list(beside, g, way, listed);
  const bool scalar = values.size() == 1 && (way == 0 || (way == 12 && draw_.chance(40)));
  std::vector<int64_t> dims;
  if (!scalar) dims.push_back(std::ssize(values));
  if (way == 17 && draw_.chance(40)) dims.insert(draw_.chance(50) ? dims.begin() : dims.end(), 1);
  return converted(Tensor::of_i64(dims, values), t);
}

// --- numbers and attributes

Tensor Proposer::contents(DType t, const std::vector<int64_t>& dims, const Graph& g) {
  if (t == DType::string) return drawn_tensor(t, dims, draw_, Magnitudes::few);
  auto all = [&](double d) { return filled(t, dims, {d}); };
  std::vector<const Tensor*> same;
  for (ValueId v : g.constants())
    if (const Tensor* c = g.constant(v); c->dtype() == t && c->dims() == dims) same.push_back(c);
  if (is_int(t) && draw_.chance(6)) {  // two of which have a product that wraps
    const double most = largest(t);
    return all(draw_.chance(50) ? std::floor(std::sqrt(most)) + 1
                                : std::floor(most / draw_.between(int64_t{2}, int64_t{4})) + 1);
  }
  if (is_float(t) && draw_.chance(4))  // odd numbers, two of which have a product that is rounded
    return all(std::ldexp(1.0, (float_limits(t).precision + 1) / 2) + 1 +
               static_cast<double>(2 * draw_.below(2)));
  if (is_int(t) && !aimed_.empty() && draw_.chance(15))
    return all(static_cast<double>(draw_.of(aimed_)));
  const int64_t how = draw_.below(100);
  if (how < 10 && !same.empty()) return *draw_.of(same);
  if (how < 32) return all(draw_.of(hints_.numbers));
  if (how < 36) return all(draw_.of(hints_.numbers) * (1 + draw_.between(-3e-3, 3e-3)));
  if (how < 39) return all(draw_.between(-2.0, 2.0));
  if (how < 42) return all(static_cast<double>(draw_.between(int64_t{1}, int64_t{12})));
  if (how < 52) return drawn_tensor(t, dims, draw_, Magnitudes::few);
  if (how < 58) return drawn_tensor(t, dims, draw_, Magnitudes::scaled);
  if (how < 62) return drawn_tensor(t, dims, draw_, Magnitudes::wide);
  if (how < 66) return drawn_tensor(t, dims, draw_, Magnitudes::special);
  if (how < 68) return drawn_tensor(t, dims, draw_, Magnitudes::limits);
  if (how < 72)
    for (const Tensor& c : hints_.constants)
      if (c.dtype() == t && c.dims() == dims) return c;
  Tensor out = drawn_tensor(t, dims, draw_, Magnitudes::small);
  if (!is_float(t) || draw_.chance(60)) return out;
  auto [positive, bytes] = Tensor::allocate(t, dims);  // scales, variances
  for (int64_t k = 0; k < out.numel(); ++k) Tensor::put(t, bytes, k, std::abs(out.at_f64(k)) + 0.1);
  return positive;
}

/// Of all axes, or of a few that stand one behind the other.
std::vector<int64_t> Proposer::permutation(size_t rank) {
  std::vector<int64_t> out(rank);
  std::iota(out.begin(), out.end(), 0);
  if (rank < 3 || draw_.chance(rank > 5 ? 20 : 50)) {
    draw_.shuffle(out);
    return out;
  }
  for (int64_t at = 0; at < static_cast<int64_t>(rank) - 1;) {  // often a second few behind them
    const auto left = static_cast<int64_t>(rank) - at;
    const int64_t axes = std::min(left, draw_.between(int64_t{2}, int64_t{3}));
    const int64_t begin = draw_.below(left - axes + 1);
    const auto first = out.begin() + at + begin;
    std::rotate(first, first + draw_.between(int64_t{1}, axes - 1), first + axes);
    at += begin + axes;
    if (draw_.chance(60)) break;
  }
  return out;
}

std::optional<Attr> Proposer::attribute(std::string_view op, const AttributeSchema& a, int rank) {
  using Kind = AttributeSchema::Kind;
  rank = std::max(rank, 0);  // -1: not known
  if (auto it = hints_.attributes.find(a.name); it != hints_.attributes.end() && draw_.chance(30))
    return draw_.of(it->second);
  auto small_list = [&](size_t n) {
    std::vector<int64_t> out(n);
    const int64_t most = draw_.chance(50) ? 1 : 2, least = draw_.chance(50);
    const bool sizes = draw_.chance(8);
    for (int64_t& x : out) x = sizes ? another_size() : draw_.between(least, std::max(least, most));
    return out;
  };
  switch (a.kind) {
    case Kind::integer: {
      if (a.name == "to" || a.name.ends_with("dtype"))
        return static_cast<int64_t>(draw_.chance(6)
                                        ? (draw_.chance(50) ? DType::i4 : DType::u4)
                                        : kTypes[static_cast<size_t>(draw_.below(kTypes.size()))]);
      if (const auto& listed = numbers_of(op, a.name); !listed.empty()) return draw_.of(listed);
      if (!aimed_.empty() && draw_.chance(30)) return draw_.of(aimed_);
      if (draw_.chance(35)) return draw_.between(int64_t{-rank}, int64_t{std::max(rank, 1)} - 1);
      return draw_.chance(70) ? draw_.below(3) : draw_.between(int64_t{-2}, int64_t{5});
    }
    case Kind::real: {
      if (draw_.chance(25)) return draw_.of(hints_.numbers);
      if (draw_.chance(8)) return draw_.of(hints_.numbers) * (1 + draw_.between(-3e-3, 3e-3));
      constexpr std::array<double, 6> all{0, 1, 0.5, 1, 2, 1e-5};
      const double d = draw_.chance(50) ? all[draw_.below(6)] : draw_.between(0.0, 2.0);
      return a.name != "epsilon" && draw_.chance(50) ? -d : d;
    }
    case Kind::text: {
      const auto& words = words_of(op, a.name);
      return words.empty() ? a.usual : std::optional<Attr>(draw_.of(words));
    }
    case Kind::integers: {
      if (draw_.chance(10)) return std::nullopt;
      const auto r = static_cast<size_t>(std::max(rank, 0));
      if (a.name == "perm" || draw_.chance(35)) return permutation(r);
      const size_t spatial = r > 2 ? r - 2 : 1;
      return small_list(draw_.chance(45)   ? spatial
                        : draw_.chance(60) ? 2 * spatial
                                           : std::max<size_t>(r, 1));
    }
    case Kind::reals:
      return std::vector<double>{draw_.between(-1.0, 1.0)};
    default:
      return a.usual;
  }
}

}  // namespace ferrule
