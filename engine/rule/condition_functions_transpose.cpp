// Functions of conditions: what moving a Transpose past its readers would bring, and products
// written as index equations.
#include <algorithm>
#include <cctype>
#include <map>
#include <set>

#include "engine/rule/condition_functions.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/operator_kinds.h"
#include "engine/semantics/semantics.h"

namespace ferrule {
namespace {

using Perm = std::vector<int64_t>;

// --- transposes
// ----------------------------------------------------------------------------------------------

/// Follows a value that would come untransposed. The operators it passes are those that the rules
/// named transpose_* pass: elementwise ones, row operators and crops along remapped axes,
/// quantizing ones, joints of values transposed alike.
class Descent {
 public:
  Descent(const EvalContext& ctx, Perm perm) : ctx_(ctx), g_(ctx.graph), perm_(std::move(perm)) {}

  /// Transposes more than now; those that the readers have themselves count as now.
  int64_t below(ValueId v, int depth = 0) {
    if (depth > kDepth || ++visited_ > kVisited) return 1;
    const Value& value = g_.value(v);
    bool stays = value.is_output;
    int64_t sum = 0;
    for (const Use& u : value.uses) {
      const Node* n = u.slot == Use::kCapture ? nullptr : &g_.node(u.node);
      if (!n) {
        stays = true;
      } else if (is_transpose(*n)) {
        sum -= inverse(n->attrs.ints("perm"));
      } else if (!passes(*n, u.slot)) {
        stays = true;
      } else if (seen_.insert(u.node.index).second) {  // x * x reads it twice
        sum += others(*n, v) + below(n->outputs[0], depth + 1);
      }
    }
    return sum + (stays ? 1 : 0);
  }

 private:
  static constexpr int kDepth = 32, kVisited = 256;

  bool inverse(const Perm& q) const {
    if (q.size() != perm_.size()) return false;
    for (size_t k = 0; k < q.size(); ++k)
      if (q[k] < 0 || q[k] >= static_cast<int64_t>(q.size()) ||
          perm_[static_cast<size_t>(q[k])] != static_cast<int64_t>(k))
        return false;
    return true;
  }

  bool passes(const Node& n, int slot) const {
    if (n.outputs.size() != 1 || n.body || !n.domain.empty()) return false;
    const auto& type = g_.value(n.outputs[0]).type;
    if (type.rank() != static_cast<int>(perm_.size())) return false;
    if (ctx_.ops.pointwise(n)) {
      for (ValueId x : n.inputs)
        if (!x || !(g_.constant(x) || same_transpose(x) || moves_free(x) ||
                    x == n.inputs[static_cast<size_t>(slot)]))
          return false;
      return n.inputs.size() <= 2;
    }
    if (is_movement(n) && moves_input(n, 1))
      return std::all_of(n.inputs.begin(), n.inputs.end(), [&](ValueId x) {
        return same_transpose(x) || x == n.inputs[static_cast<size_t>(slot)];
      });
    if (!along_axes(n) || slot != 0) return false;
    return std::all_of(n.inputs.begin() + 1, n.inputs.end(),
                       [&](ValueId x) { return !x || g_.constant(x); });
  }

  bool along_axes(const Node& n) const {
    return crops(n) || quantizes(n) || dequantizes(n) || ctx_.ops.in_class(n, "softmax");
  }

  /// At most one axis of more than one element: transposed, it is the same bytes.
  bool moves_free(ValueId x) const {
    const auto& shape = g_.value(x).type.shape;
    if (!shape || shape->size() != perm_.size()) return false;
    return std::count_if(shape->begin(), shape->end(),
                         [](const Dim& d) { return !(d == Dim(1)); }) <= 1;
  }
  bool same_transpose(ValueId x) const {
    const Node* p = g_.producer(x);
    return p && is_transpose(*p) && p->attrs.ints("perm") == perm_;
  }
  /// Other operands that come from Transposes of the same kind, which go with this one.
  int64_t others(const Node& n, ValueId v) const {
    std::set<ValueId> gone;
    for (ValueId x : n.inputs)
      if (x && x != v && same_transpose(x) && g_.value(x).uses.size() == 1 &&
          !g_.value(x).is_output)
        gone.insert(x);
    return -static_cast<int64_t>(gone.size());
  }

  const EvalContext& ctx_;
  const Graph& g_;
  const Perm perm_;
  std::set<uint32_t> seen_;
  int visited_ = 0;
};

Val transposes_below(const EvalContext& ctx, Args a) {
  auto v = get<ValueId>(a[0]);
  auto p = as_ints(a[1]);
  if (!v || !*v || !p) return unknown("a value and a permutation");
  return Val{Descent(ctx, *p).below(*v)};
}

// --- index equations
// -----------------------------------------------------------------------------------------

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

/// "..." of a term whose operand has `rank` axes, as digits: the last one is 9, as operands
/// broadcast.
bool spell_out(std::string& term, int64_t rank) {
  const size_t at = term.find("...");
  if (at == term.npos) return true;
  const int64_t n = rank - static_cast<int64_t>(term.size() - 3);
  if (n < 0 || n > 10) return false;
  term.replace(at, 3, std::string("0123456789").substr(static_cast<size_t>(10 - n)));
  return true;
}

/// "bij,bjk->bik"; no letter twice in one term, "..." for as many axes in each. `args`: it, and the
/// operands' ranks. An equation without "->" is not taken.
std::optional<Equation> equation(Args args) {
  auto text = get<std::string>(args[0]);
  if (!text) return std::nullopt;
  std::string s;
  std::copy_if(text->begin(), text->end(), std::back_inserter(s), [](char c) { return c != ' '; });
  if (s.find_first_of("0123456789") != s.npos) return std::nullopt;  // spell_out's alone
  const size_t arrow = s.find("->");
  if (arrow == s.npos) return std::nullopt;
  Equation e{{""}, s.substr(arrow + 2)};
  for (char c : s.substr(0, arrow))
    if (c == ',')
      e.operands.emplace_back();
    else
      e.operands.back() += c;
  int64_t result_rank = -1;
  for (size_t k = 0; k < e.operands.size(); ++k) {
    const int64_t* rank = k + 1 < args.size() ? get<int64_t>(args[k + 1]) : nullptr;
    const size_t written = e.operands[k].size();
    if (!spell_out(e.operands[k], rank ? *rank : -1)) return std::nullopt;
    if (e.operands[k].size() != written)
      result_rank = static_cast<int64_t>(e.result.size() + e.operands[k].size() - written);
  }
  if (!spell_out(e.result, result_rank)) return std::nullopt;
  std::vector<std::string> terms = e.operands;
  terms.push_back(e.result);
  for (const std::string& t : terms) {
    if (!std::all_of(t.begin(), t.end(), [](unsigned char c) { return std::isalnum(c) != 0; }))
      return std::nullopt;
    if (std::set<char>(t.begin(), t.end()).size() != t.size()) return std::nullopt;
  }
  return e;
}

/// Where each letter of `to` stands in `from`.
Val places(const std::string& to, const std::string& from) {
  Perm p;
  for (char c : to) p.push_back(static_cast<int64_t>(from.find(c)));
  return ints(p);
}

Val einsum_transpose(const EvalContext&, Args a) {
  auto e = equation(a);
  if (!e || e->operands.size() != 1) return unknown("an equation of one operand");
  std::string x = e->operands[0], y = e->result;
  if (x.size() != y.size() ||
      std::set<char>(x.begin(), x.end()) != std::set<char>(y.begin(), y.end()))
    return unknown("an equation that only reorders");
  return places(y, x);
}

/// An equation of one operand that sums axes up: those axes, and the permutation of what is left.
Val einsum_sum(const EvalContext&, Args a) {
  auto e = equation(a);
  if (!e || e->operands.size() != 1) return unknown("an equation of one operand");
  Perm summed;
  std::string left;
  for (char c : e->operands[0])
    if (e->result.find(c) != e->result.npos)
      left += c;
    else
      summed.push_back(static_cast<int64_t>(e->operands[0].find(c)));
  if (summed.empty() || left.size() != e->result.size())
    return unknown("an equation that sums axes up");
  return make_list({ints(summed), places(e->result, left)});
}

/// What the letters of an equation of two operands are, in the order of the result; nothing: a
/// letter is of one operand alone and summed up, or of none.
struct Letters {
  std::string batch, rows, columns, summed;

  static std::optional<Letters> of(const std::string& x, const std::string& w,
                                   const std::string& y) {
    auto in = [](const std::string& s, char c) { return s.find(c) != s.npos; };
    Letters l;
    for (char c : y) {
      if (!in(x, c) && !in(w, c)) return std::nullopt;
      (in(x, c) && in(w, c) ? l.batch : in(x, c) ? l.rows : l.columns) += c;
    }
    for (char c : x + w)
      if (!in(y, c)) {
        if (!in(x, c) || !in(w, c)) return std::nullopt;
        if (!in(l.summed, c)) l.summed += c;
      }
    return l;
  }
};

/// A product over one index, [batch.., m, k] x [batch.., k, n]: the permutations that make it one,
/// and whether the second operand comes first (its own index is the result's last but one).
Val einsum_matmul(const EvalContext&, Args a) {
  auto e = equation(a);
  if (!e || e->operands.size() != 2) return unknown("an equation of two operands");
  std::string x = e->operands[0], w = e->operands[1];
  const std::string& y = e->result;
  const bool second = y.size() > 2 && x.find(y.back()) != x.npos && w.find(y.back()) == w.npos &&
                      w.find(y.end()[-2]) != w.npos && x.find(y.end()[-2]) == x.npos;
  if (second) std::swap(x, w);
  const auto l = Letters::of(x, w, y);
  if (!l) return unknown("an equation that sums over common indices");
  const auto& [batch, rows, columns, summed] = *l;
  // Several rows are batches of the first operand alone, which needs a matrix for the second.
  const bool one = summed.size() == 1 && columns.size() == 1 &&
                   (rows.size() == 1 || (rows.size() > 1 && batch.empty()));
  if (!one) return unknown("an equation of one product");
  return make_list({places(batch + rows + summed, x), places(batch + summed + columns, w),
                    places(y, batch + rows + columns), Val{second}});
}

/// Sizes of the letters of an equation.
class LetterSizes {
 public:
  /// false: a letter has another size already, as far as is known.
  bool add(const std::string& term, const Shape& shape) {
    for (size_t k = 0; k < term.size(); ++k)
      if (!(sizes_.try_emplace(term[k], shape[k]).first->second == shape[k])) return false;
    return true;
  }
  /// Of the letters together; -1: not known.
  int64_t of(std::string_view letters) const {
    int64_t n = 1;
    for (char c : letters) {
      const int64_t size = sizes_.at(c).value_or(-1);
      if (size < 0 || __builtin_mul_overflow(n, size, &n)) return -1;
    }
    return n;
  }
  bool empty() const {
    return std::ranges::any_of(sizes_, [](const auto& s) { return s.second == Dim(0); });
  }

 private:
  std::map<char, Dim> sizes_;
};

/// The operand of a Reshape of axes that are merged and put in, axis by axis.
class Reshaping {
 public:
  explicit Reshaping(const LetterSizes& sizes) : sizes_(sizes) {}
  void each(std::string_view letters) {
    for (char c : letters) one({&c, 1});
  }
  /// One axis in the place of so many.
  void one(std::string_view letters) {
    const int64_t size = sizes_.of(letters);
    // 0 is the size that it was, where it stands where it stood.
    target_.push_back(size >= 0 ? size : 0);
    known_ &= size >= 0 || (letters.size() == 1 && aligned_);
    aligned_ &= letters.size() == 1;
  }
  /// An axis of size 1 that is gone.
  void drop() { aligned_ = false; }
  bool known() const { return known_; }
  const Perm& target() const { return target_; }

 private:
  const LetterSizes& sizes_;
  Perm target_;
  bool known_ = true, aligned_ = true;
};

/// An equation of two operands whose letters have one size each, and none of them 0, of which a
/// Reshape could not tell anything.
struct Sized {
  std::string x, w, y;
  LetterSizes sizes;

  static std::optional<Sized> of(const EvalContext& ctx, Args a) {
    const std::optional<Shape>* shapes[2];
    for (size_t k : {0, 1}) {
      const ValueId* v = get<ValueId>(a[k + 1]);
      if (!v || !*v) return std::nullopt;
      shapes[k] = &ctx.graph.value(*v).type.shape;
      if (!*shapes[k]) return std::nullopt;
    }
    const Shape &s = **shapes[0], &t = **shapes[1];
    const Val given[] = {a[0], Val{std::ssize(s)}, Val{std::ssize(t)}};
    auto e = equation(given);
    if (!e || e->operands.size() != 2 || e->operands[0].size() != s.size() ||
        e->operands[1].size() != t.size())
      return std::nullopt;
    Sized out{e->operands[0], e->operands[1], e->result, {}};
    if (!out.sizes.add(out.x, s) || !out.sizes.add(out.w, t) || out.sizes.empty())
      return std::nullopt;
    return out;
  }
};

/// As einsum_matmul, for any number of indices of each kind: [rows.., batch.., row, summed] x
/// [batch.., summed, columns].
Val einsum_product(const EvalContext& ctx, Args a) {
  auto e = Sized::of(ctx, a);
  if (!e) return unknown("an equation of two operands");
  auto l = Letters::of(e->x, e->w, e->y);
  if (!l || l->summed.empty()) return unknown("an equation that sums over common indices");
  // Rows of which only one is beside the batches are batches of the first factor.
  const bool second = l->columns.size() > 1 && l->rows.size() <= 1 && !l->batch.empty();
  if (second) std::swap(e->x, e->w), std::swap(l->rows, l->columns);
  const std::string many = l->rows.substr(0, l->rows.empty() ? 0 : l->rows.size() - 1),
                    row = l->rows.substr(many.size());
  Reshaping x(e->sizes), w(e->sizes), y(e->sizes);
  x.each(many + l->batch), x.one(row), x.one(l->summed);
  w.each(l->batch), w.one(l->summed), w.one(l->columns);
  y.each(many + l->batch + row);
  if (row.empty()) y.drop();
  if (l->columns.size() > 1) y.drop();
  y.each(l->columns);
  if (!x.known() || !w.known() || !y.known()) return unknown("the sizes that a Reshape needs");
  return make_list({places(many + l->batch + row + l->summed, e->x), ints(x.target()),
                    places(l->batch + l->summed + l->columns, e->w), ints(w.target()),
                    ints(y.target()), places(e->y, many + l->batch + row + l->columns),
                    Val{second}});
}

/// Operands that are multiplied element by element once their axes stand in the result's order,
/// with axes of size 1 for those that they do not have.
Val einsum_multiply(const EvalContext& ctx, Args a) {
  auto e = Sized::of(ctx, a);
  if (!e) return unknown("an equation of two operands");
  const auto l = Letters::of(e->x, e->w, e->y);
  if (!l || !l->summed.empty()) return unknown("an equation that sums over nothing");
  Val::List found;
  for (const std::string& term : {e->x, e->w}) {
    std::string order;
    Reshaping to(e->sizes);
    for (char c : e->y) {
      const bool has = term.find(c) != term.npos;
      if (has) order += c;
      to.one(has ? std::string_view(&c, 1) : std::string_view());
    }
    if (!to.known()) return unknown("the sizes that a Reshape needs");
    found.push_back(places(order, term)), found.push_back(ints(to.target()));
  }
  return make_list(std::move(found));
}

const Function kLayoutFunctions[] = {
    {{"transposes_below", "(y: value, perm: list) -> int",
      "Transposes more than now if y came untransposed and its Transpose moved down past its "
      "readers: -1 where it meets "
      "its inverse, 0 where it merges with another, 1 where it has to stay"},
     transposes_below},
    {{"einsum_transpose", "(equation: string, rank: int = 0) -> list",
      "the permutation that an index equation of one operand is; the rank is for equations with "
      "..."},
     einsum_transpose},
    {{"einsum_matmul", "(equation: string, rank: int = 0, rank2: int = 0) -> list",
      "permutations of the first and second factor and of the result that make an index equation a "
      "MatMul, and whether the second operand is the first factor; not known if it is none"},
     einsum_matmul},
    {{"einsum_product", "(equation: string, a: value, b: value) -> list",
      "the same for any number of indices: permutation and Reshape of the first and second factor, "
      "Reshape and permutation of the result, and whether b is the first factor"},
     einsum_product},
    {{"einsum_multiply", "(equation: string, a: value, b: value) -> list",
      "permutation and Reshape of either operand that make an index equation without a sum a Mul"},
     einsum_multiply},
    {{"einsum_sum", "(equation: string, rank: int = 0) -> list",
      "the axes that an index equation of one operand sums up, and the permutation of what is "
      "left; "
      "not known if it sums up none"},
     einsum_sum},
};

}  // namespace

std::span<const Function> layout_functions() { return kLayoutFunctions; }

}  // namespace ferrule
