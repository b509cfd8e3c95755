// Canonical form: constant + sum of coefficient * product of atoms, terms and atoms sorted. An atom
// is a symbol, an unknown, a floordiv, a max or a broadcast of canonical dims. Expressions are
// bounded: what would grow beyond kMaxSize, or overflow, becomes a fresh unknown, which is always a
// sound answer.
#include "engine/base/dim.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <numeric>

#include "engine/base/join.h"

namespace ferrule {
namespace dim_detail {

struct Atom;
using AtomRef = std::shared_ptr<const Atom>;

struct Term {
  std::vector<AtomRef> atoms;  // sorted, at least one
  int64_t coefficient = 0;     // not 0
};

enum class Kind : uint8_t { symbol, unknown, floordiv, max, broadcast };
struct Atom {
  Kind kind;
  std::string name;       // symbol
  uint64_t id = 0;        // unknown
  std::vector<Dim> args;  // floordiv: a, b; max, broadcast: two or more, sorted
  size_t size = 1, hash = 0;
};

}  // namespace dim_detail

using namespace dim_detail;

namespace {

constexpr size_t kMaxSize = 400;  // atoms in one expression, nested ones included
constexpr int64_t kInf = std::numeric_limits<int64_t>::max();

size_t mix(size_t seed, size_t value) {
  return (seed ^ value) * 0x9e3779b97f4a7c15ull + (seed << 7);
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

}  // namespace

struct Dim::Poly {
  int64_t constant = 0;
  std::vector<Term> terms;  // sorted by atoms, at least one
  size_t size = 0, hash = 0;
};

struct DimAccess {
  using Poly = Dim::Poly;

  static int64_t constant(const Dim& d) { return d.poly_ ? d.poly_->constant : d.constant_; }
  static const std::vector<Term>& terms(const Dim& d) {
    static const std::vector<Term> kNone;
    return d.poly_ ? d.poly_->terms : kNone;
  }
  static size_t size(const Dim& d) { return d.poly_ ? d.poly_->size : 0; }
  static size_t hash(const Dim& d) {
    return d.poly_ ? d.poly_->hash : mix(1, static_cast<size_t>(d.constant_));
  }

  /// `terms` sorted and without zeros.
  static Dim make(int64_t constant, std::vector<Term> terms) {
    if (terms.empty()) return Dim(constant);
    auto p = std::make_shared<Poly>();
    p->constant = constant;
    p->hash = mix(2, static_cast<size_t>(constant));
    for (const Term& t : terms) {
      p->hash = mix(p->hash, static_cast<size_t>(t.coefficient));
      for (const AtomRef& a : t.atoms) {
        p->size += a->size;
        p->hash = mix(p->hash, a->hash);
      }
    }
    if (p->size > kMaxSize) return Dim::unknown();
    p->terms = std::move(terms);
    Dim d;
    d.poly_ = std::move(p);
    return d;
  }

  static Dim atom(Atom a) {
    a.hash = mix(mix(static_cast<size_t>(a.kind) + 7, std::hash<std::string>()(a.name)), a.id);
    for (const Dim& d : a.args) {
      a.size += size(d);
      a.hash = mix(a.hash, hash(d));
    }
    return make(0, {Term{{std::make_shared<const Atom>(std::move(a))}, 1}});
  }
};

namespace {
using A = DimAccess;

int compare(const Dim& a, const Dim& b);

int compare(const AtomRef& a, const AtomRef& b) {
  if (a == b) return 0;
  if (a->kind != b->kind) return a->kind < b->kind ? -1 : 1;
  if (int c = a->name.compare(b->name)) return c < 0 ? -1 : 1;
  if (a->id != b->id) return a->id < b->id ? -1 : 1;
  if (a->args.size() != b->args.size()) return a->args.size() < b->args.size() ? -1 : 1;
  for (size_t i = 0; i < a->args.size(); ++i)
    if (int c = compare(a->args[i], b->args[i])) return c;
  return 0;
}

/// Monomial order: higher degree first, then by atoms. Multiplication of monomials respects it.
int compare(const std::vector<AtomRef>& a, const std::vector<AtomRef>& b) {
  if (a.size() != b.size()) return a.size() > b.size() ? -1 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    if (int c = compare(a[i], b[i])) return c;
  return 0;
}

int compare(const Dim& a, const Dim& b) {
  const auto &ta = A::terms(a), &tb = A::terms(b);
  if (ta.size() != tb.size()) return ta.size() < tb.size() ? -1 : 1;
  for (size_t i = 0; i < ta.size(); ++i) {
    if (int c = compare(ta[i].atoms, tb[i].atoms)) return c;
    if (ta[i].coefficient != tb[i].coefficient)
      return ta[i].coefficient < tb[i].coefficient ? -1 : 1;
  }
  int64_t ca = A::constant(a), cb = A::constant(b);
  return ca == cb ? 0 : ca < cb ? -1 : 1;
}

/// a + scale * b; nullopt on overflow.
std::optional<Dim> add_scaled(const Dim& a, const Dim& b, int64_t scale) {
  int64_t constant, product;
  if (__builtin_mul_overflow(A::constant(b), scale, &product) ||
      __builtin_add_overflow(A::constant(a), product, &constant))
    return std::nullopt;
  const auto &ta = A::terms(a), &tb = A::terms(b);
  std::vector<Term> out;
  out.reserve(ta.size() + tb.size());
  size_t i = 0, j = 0;
  while (i < ta.size() || j < tb.size()) {
    int c = i == ta.size() ? 1 : j == tb.size() ? -1 : compare(ta[i].atoms, tb[j].atoms);
    if (c < 0) {
      out.push_back(ta[i++]);
      continue;
    }
    Term t = tb[j++];
    if (__builtin_mul_overflow(t.coefficient, scale, &t.coefficient)) return std::nullopt;
    if (c == 0 && __builtin_add_overflow(t.coefficient, ta[i++].coefficient, &t.coefficient))
      return std::nullopt;
    if (t.coefficient != 0) out.push_back(std::move(t));
  }
  return A::make(constant, std::move(out));
}

Dim or_unknown(std::optional<Dim> d) { return d ? std::move(*d) : Dim::unknown(); }

/// t * b as a Dim; nullopt on overflow.
std::optional<Dim> times(const Term& t, const Dim& b) {
  std::vector<Term> out;
  auto push = [&](const std::vector<AtomRef>& atoms, int64_t coefficient) {
    if (__builtin_mul_overflow(coefficient, t.coefficient, &coefficient)) return false;
    Term r{t.atoms, coefficient};
    r.atoms.insert(r.atoms.end(), atoms.begin(), atoms.end());
    std::ranges::sort(r.atoms,
                      [](const AtomRef& x, const AtomRef& y) { return compare(x, y) < 0; });
    if (coefficient != 0) out.push_back(std::move(r));
    return true;
  };
  for (const Term& u : A::terms(b))
    if (!push(u.atoms, u.coefficient)) return std::nullopt;
  if (!push({}, A::constant(b))) return std::nullopt;
  std::ranges::sort(out,
                    [](const Term& x, const Term& y) { return compare(x.atoms, y.atoms) < 0; });
  return A::make(0, std::move(out));
}

/// The quotient of two terms when `b` divides `a` exactly.
std::optional<Term> divide_terms(const Term& a, const Term& b) {
  if (a.coefficient % b.coefficient != 0) return std::nullopt;
  Term q{{}, a.coefficient / b.coefficient};
  size_t j = 0;
  for (const AtomRef& atom : a.atoms) {
    if (j < b.atoms.size() && compare(atom, b.atoms[j]) == 0)
      ++j;
    else
      q.atoms.push_back(atom);
  }
  if (j < b.atoms.size()) return std::nullopt;
  return q;
}

/// Splits a = quotient * b + rest by polynomial division; terms that b's leading term does not
/// divide stay in the rest. `b` is not constant.
std::pair<Dim, Dim> divide(const Dim& a, const Dim& b) {
  const Term& lead = A::terms(b).front();
  Dim quotient, rest = a, done;
  for (size_t steps = 0; steps < 2 * kMaxSize && !A::terms(rest).empty(); ++steps) {
    const Term top = A::terms(rest).front();
    Dim top_dim = A::make(0, {top});
    std::optional<Term> q = divide_terms(top, lead);
    if (!q) {
      rest = rest - top_dim;
      done = done + top_dim;
      continue;
    }
    Dim piece = q->atoms.empty() ? Dim(q->coefficient) : A::make(0, {*q});
    quotient = quotient + piece;
    rest = rest - piece * b;
  }
  return {quotient, rest + done};
}

/// floordiv(a, k), k > 1: what k divides comes out, the rest is reduced by the common divisor.
Dim floordiv_constant(const Dim& a, int64_t k) {
  std::vector<Term> out, rest;
  int64_t common = k;
  for (const Term& t : A::terms(a)) {
    int64_t q = floor_div(t.coefficient, k), r = t.coefficient - q * k;
    if (q != 0) out.push_back({t.atoms, q});
    if (r == 0) continue;
    rest.push_back({t.atoms, r});
    common = std::gcd(common, r);
  }
  int64_t constant = A::constant(a), whole = floor_div(constant, k);
  int64_t left = constant - whole * k;
  Dim quotient = A::make(whole, std::move(out));
  if (rest.empty()) return quotient;
  for (Term& t : rest) t.coefficient /= common;
  left = floor_div(left, common);
  k /= common;
  if (k == 1) return quotient + A::make(left, std::move(rest));
  // floordiv(floordiv(x, m) + c, k) = floordiv(x + c*m, k*m)
  if (rest.size() == 1 && rest[0].coefficient == 1 && rest[0].atoms.size() == 1) {
    const Atom& inner = *rest[0].atoms[0];
    int64_t product;
    if (inner.kind == Kind::floordiv) {
      std::optional<int64_t> m = inner.args[1].constant();
      if (m && *m > 0 && !__builtin_mul_overflow(*m, k, &product))
        return quotient + floordiv(inner.args[0] + Dim(left) * Dim(*m), Dim(product));
    }
  }
  Dim numerator = A::make(left, std::move(rest));
  return quotient + A::atom({Kind::floordiv, "", 0, {numerator, Dim(k)}});
}

// --- bounds: intervals with infinite ends, over symbols and unknowns >= 0

struct Range {
  int64_t lo = -kInf, hi = kInf;
};

int64_t add_end(int64_t a, int64_t b) {  // infinities of one sign only meet
  if (a == kInf || b == kInf) return kInf;
  if (a == -kInf || b == -kInf) return -kInf;
  int64_t r;
  return __builtin_add_overflow(a, b, &r) ? (a > 0 ? kInf : -kInf) : r;
}

int64_t mul_end(int64_t a, int64_t b) {
  if (a == 0 || b == 0) return 0;
  int64_t r;
  bool infinite = a == kInf || a == -kInf || b == kInf || b == -kInf;
  return infinite || __builtin_mul_overflow(a, b, &r) ? ((a > 0) == (b > 0) ? kInf : -kInf) : r;
}

Range mul(Range a, Range b) {
  int64_t c[] = {mul_end(a.lo, b.lo), mul_end(a.lo, b.hi), mul_end(a.hi, b.lo),
                 mul_end(a.hi, b.hi)};
  return {*std::min_element(c, c + 4), *std::max_element(c, c + 4)};
}

Range range(const Dim& d);

Range range(const Atom& a) {
  switch (a.kind) {
    case Kind::symbol:
    case Kind::unknown:
      return {0, kInf};
    case Kind::max: {
      Range r{-kInf, -kInf};
      for (const Dim& d : a.args) {
        Range x = range(d);
        r = {std::max(r.lo, x.lo), std::max(r.hi, x.hi)};
      }
      return r;
    }
    case Kind::broadcast: {  // one of them, and one that is not 1 where there is such
      Range r{kInf, -kInf};
      int64_t least = -kInf;
      for (const Dim& d : a.args) {
        Range x = range(d);
        r = {std::min(r.lo, x.lo), std::max(r.hi, x.hi)}, least = std::max(least, x.lo);
      }
      return {r.lo >= 1 ? least : r.lo, r.hi};
    }
    case Kind::floordiv: {
      Range x = range(a.args[0]);
      if (std::optional<int64_t> k = a.args[1].constant(); k && *k > 0) {
        auto end = [&](int64_t e) { return e == kInf || e == -kInf ? e : floor_div(e, *k); };
        return {end(x.lo), end(x.hi)};
      }
      return x.lo >= 0 ? Range{0, x.hi} : Range{};  // a divisor is at least 1
    }
  }
  return {};
}

Range range(const Dim& d) {
  Range r{A::constant(d), A::constant(d)};
  for (const Term& t : A::terms(d)) {
    Range p{t.coefficient, t.coefficient};
    for (const AtomRef& a : t.atoms) p = mul(p, range(*a));
    r = {add_end(r.lo, p.lo), add_end(r.hi, p.hi)};
  }
  return r;
}

std::string atom_str(const Atom& a) {
  if (a.kind == Kind::symbol) return a.name;
  if (a.kind == Kind::unknown) return "?" + std::to_string(a.id);
  const std::string args = joined(a.args, &Dim::str, ",");
  return (a.kind == Kind::max         ? "max("
          : a.kind == Kind::broadcast ? "broadcast("
                                      : "floordiv(") +
         args + ")";
}

/// `value` of an atom computed by `get`, which gives nullopt where it does not know.
template <class T, class Get>
std::optional<T> fold(const Dim& d, const Get& get) {
  T sum{A::constant(d)};
  for (const Term& t : A::terms(d)) {
    T p{t.coefficient};
    for (const AtomRef& a : t.atoms) {
      std::optional<T> v = get(*a);
      if (!v) return std::nullopt;
      p = p * *v;
    }
    sum = sum + p;
  }
  return sum;
}

/// What sizes broadcast to: 0 beside 1 is 0, so that it is not their maximum.
int64_t broadcast_sizes(const std::vector<int64_t>& sizes) {
  auto it = std::ranges::find_if(sizes, [](int64_t s) { return s != 1; });
  return it == sizes.end() ? 1 : *it;
}

/// Adds the operands of `d` where it is one atom of that kind, else itself.
void flatten(const Dim& d, Kind kind, std::vector<Dim>& args) {
  const auto& t = A::terms(d);
  bool nested = t.size() == 1 && A::constant(d) == 0 && t[0].coefficient == 1 &&
                t[0].atoms.size() == 1 && t[0].atoms[0]->kind == kind;
  if (nested)
    args.insert(args.end(), t[0].atoms[0]->args.begin(), t[0].atoms[0]->args.end());
  else
    args.push_back(d);
}

bool before(const Dim& a, const Dim& b) { return compare(a, b) < 0; }

/// Of two sizes that broadcast; nullopt: they never do.
std::optional<Dim> broadcast_dim(const Dim& a, const Dim& b) {
  if (a == b || b.constant() == 1) return a;
  if (a.constant() == 1) return b;
  if (a.is_constant() && b.is_constant()) return std::nullopt;
  if (a.is_constant() || range(a).lo > 1) return a;
  if (b.is_constant() || range(b).lo > 1) return b;
  std::vector<Dim> args;
  flatten(a, Kind::broadcast, args), flatten(b, Kind::broadcast, args);
  std::ranges::sort(args, before);
  args.erase(std::unique(args.begin(), args.end()), args.end());
  return args.size() == 1 ? args[0] : A::atom({Kind::broadcast, "", 0, std::move(args)});
}

/// An int64 whose arithmetic saturates, so that hostile sizes cannot wrap.
struct Saturated {
  int64_t v;
  friend Saturated operator*(Saturated a, Saturated b) { return {mul_end(a.v, b.v)}; }
  friend Saturated operator+(Saturated a, Saturated b) { return {add_end(a.v, b.v)}; }
};

}  // namespace

Dim Dim::symbol(std::string name) { return A::atom({Kind::symbol, std::move(name), 0, {}}); }

Dim Dim::unknown() {
  static std::atomic<uint64_t> next{0};
  return A::atom({Kind::unknown, "", next++, {}});
}

Dim operator+(const Dim& a, const Dim& b) { return or_unknown(add_scaled(a, b, 1)); }
Dim operator-(const Dim& a, const Dim& b) { return or_unknown(add_scaled(a, b, -1)); }

Dim operator*(const Dim& a, const Dim& b) {
  // Size of the expanded product, before it is built.
  if (A::size(a) * A::terms(b).size() + A::size(b) * A::terms(a).size() > kMaxSize)
    return Dim::unknown();
  std::optional<Dim> sum = add_scaled(Dim(0), b, A::constant(a));
  for (const Term& t : A::terms(a)) {
    std::optional<Dim> p = times(t, b);
    if (sum && p) sum = add_scaled(*sum, *p, 1);
    if (!p) sum = std::nullopt;
  }
  return or_unknown(std::move(sum));
}

Dim floordiv(const Dim& a, const Dim& b) {
  if (std::optional<int64_t> k = b.constant()) {
    if (*k == 0) return Dim::unknown();
    if (*k < 0) return *k == -kInf - 1 ? Dim::unknown() : floordiv(Dim(0) - a, Dim(-*k));
    if (*k == 1) return a;
    if (std::optional<int64_t> c = a.constant()) return Dim(floor_div(*c, *k));
    return floordiv_constant(a, *k);
  }
  auto [quotient, rest] = divide(a, b);
  if (rest.constant() == 0) return quotient;
  if (Range r = range(rest); r.lo >= 0) {
    Range top = range(b);
    if (r.hi < std::max<int64_t>(top.lo, 1)) return quotient;
  }
  return quotient + A::atom({Kind::floordiv, "", 0, {rest, b}});
}

Dim max(const Dim& a, const Dim& b) {
  if (at_least(a, b) == Truth::yes) return a;
  if (at_least(b, a) == Truth::yes) return b;
  std::vector<Dim> args;
  flatten(a, Kind::max, args), flatten(b, Kind::max, args);
  // Drop what another argument dominates, then sort.
  std::vector<Dim> kept;
  for (size_t i = 0; i < args.size(); ++i) {
    bool dominated = false;
    for (size_t j = 0; j < args.size() && !dominated; ++j)
      dominated = j != i && at_least(args[j], args[i]) == Truth::yes &&
                  (j < i || at_least(args[i], args[j]) != Truth::yes);
    if (!dominated) kept.push_back(args[i]);
  }
  if (kept.size() == 1) return kept[0];
  std::ranges::sort(kept, before);
  return A::atom({Kind::max, "", 0, std::move(kept)});
}

bool operator==(const Dim& a, const Dim& b) {
  if (a.poly_ == b.poly_) return a.poly_ != nullptr || a.constant_ == b.constant_;
  return A::hash(a) == A::hash(b) && compare(a, b) == 0;
}

Truth equal(const Dim& a, const Dim& b) {
  if (a == b) return Truth::yes;
  std::optional<Dim> d = add_scaled(a, b, -1);
  if (!d) return Truth::unknown;
  Range r = range(*d);
  if (r.lo == 0 && r.hi == 0) return Truth::yes;
  return r.lo > 0 || r.hi < 0 ? Truth::no : Truth::unknown;
}

Truth at_least(const Dim& a, const Dim& b) {
  std::optional<Dim> d = add_scaled(a, b, -1);
  if (!d) return Truth::unknown;
  Range r = range(*d);
  return r.lo >= 0 ? Truth::yes : r.hi < 0 ? Truth::no : Truth::unknown;
}

std::optional<int64_t> Dim::evaluate(const std::map<std::string, int64_t>& symbols) const {
  auto get = [&](const Atom& a) -> std::optional<Saturated> {
    if (a.kind == Kind::unknown) return std::nullopt;
    if (a.kind == Kind::symbol) {
      auto it = symbols.find(a.name);
      return it == symbols.end() ? std::nullopt : std::optional(Saturated{it->second});
    }
    std::vector<int64_t> args;
    for (const Dim& d : a.args) {
      std::optional<int64_t> v = d.evaluate(symbols);
      if (!v) return std::nullopt;
      args.push_back(*v);
    }
    if (a.kind == Kind::max) return Saturated{*std::ranges::max_element(args)};
    if (a.kind == Kind::broadcast) return Saturated{broadcast_sizes(args)};
    return args[1] == 0 ? std::nullopt : std::optional(Saturated{floor_div(args[0], args[1])});
  };
  std::optional<Saturated> r = fold<Saturated>(*this, get);
  return r ? std::optional(r->v) : std::nullopt;
}

Dim Dim::substitute(const std::map<std::string, int64_t>& symbols) const {
  if (!poly_) return *this;
  auto get = [&](const Atom& a) -> std::optional<Dim> {
    if (a.kind == Kind::symbol) {
      auto it = symbols.find(a.name);
      if (it != symbols.end()) return Dim(it->second);
    }
    if (a.args.empty()) return A::make(0, {Term{{std::make_shared<const Atom>(a)}, 1}});
    Dim r = a.args[0].substitute(symbols);
    for (size_t i = 1; i < a.args.size(); ++i) {
      Dim next = a.args[i].substitute(symbols);
      if (a.kind == Kind::broadcast)
        r = broadcast_dim(r, next).value_or(next);  // they do not, and the node that asked says so
      else
        r = a.kind == Kind::max ? max(r, next) : floordiv(r, next);
    }
    return r;
  };
  return *fold<Dim>(*this, get);
}

std::string Dim::str() const {
  std::string out;
  for (const Term& t : A::terms(*this)) {
    if (t.coefficient < 0)
      out += "-";
    else if (!out.empty())
      out += "+";
    std::string magnitude = std::to_string(t.coefficient);
    if (t.coefficient < 0) magnitude.erase(0, 1);
    bool first = magnitude == "1";
    if (!first) out += magnitude;
    for (const AtomRef& a : t.atoms) {
      if (!first) out += "*";
      out += atom_str(*a);
      first = false;
    }
  }
  int64_t c = A::constant(*this);
  if (out.empty()) return std::to_string(c);
  if (c != 0) out += (c > 0 ? "+" : "") + std::to_string(c);
  return out;
}

size_t Dim::hash() const { return A::hash(*this); }

Dim product(const Shape& s) {
  Dim p(1);
  for (const Dim& d : s)
    if (d.constant() == 0) return Dim(0);
  for (const Dim& d : s) p = p * d;
  return p;
}

std::optional<std::vector<int64_t>> constant_shape(const Shape& s) {
  std::vector<int64_t> out;
  for (const Dim& d : s) {
    if (!d.is_constant()) return std::nullopt;
    out.push_back(*d.constant());
  }
  return out;
}

std::string str(const Shape& s) { return "[" + joined(s, &Dim::str, ",") + "]"; }

std::optional<Shape> broadcast(const Shape& a, const Shape& b) {
  size_t rank = std::max(a.size(), b.size());
  Shape out(rank);
  for (size_t i = 0; i < rank; ++i) {
    size_t from_end = rank - i;
    const Dim x = from_end <= a.size() ? a[a.size() - from_end] : Dim(1);
    const Dim y = from_end <= b.size() ? b[b.size() - from_end] : Dim(1);
    std::optional<Dim> d = broadcast_dim(x, y);
    if (!d) return std::nullopt;
    out[i] = *d;
  }
  return out;
}

}  // namespace ferrule
