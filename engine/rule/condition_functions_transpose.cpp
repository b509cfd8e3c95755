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
  auto in = [](const std::string& s, char c) { return s.find(c) != s.npos; };
  std::string batch, rows, columns, summed;
  for (char c : y) {
    if (!in(x, c) && !in(w, c)) return unknown("an equation whose result is made of its operands");
    (in(x, c) && in(w, c) ? batch : in(x, c) ? rows : columns) += c;
  }
  for (char c : x + w)
    if (!in(y, c)) {
      if (!in(x, c) || !in(w, c)) return unknown("an equation that sums over common indices");
      if (!in(summed, c)) summed += c;
    }
  // Several rows are batches of the first operand alone, which needs a matrix for the second.
  const bool one = summed.size() == 1 && columns.size() == 1 &&
                   (rows.size() == 1 || (rows.size() > 1 && batch.empty()));
  if (!one) return unknown("an equation of one product");
  return make_list({places(batch + rows + summed, x), places(batch + summed + columns, w),
                    places(y, batch + rows + columns), Val{second}});
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
};

}  // namespace

std::span<const Function> layout_functions() { return kLayoutFunctions; }

}  // namespace ferrule
