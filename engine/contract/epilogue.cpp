#include "engine/contract/epilogue.h"

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <charconv>
#include <cmath>
#include <memory>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

using Nan = Deviation::Nan;
constexpr Deviation kExact;
constexpr Deviation kNanToZero{Nan::zero, ""};
constexpr Deviation kNanToBound{Nan::bound, ""};
constexpr Deviation kRounding{Nan::kept, "rounded in another order (2 ulp)"};
constexpr Deviation kFused{Nan::kept, "rounded once (fused multiply-add)"};
constexpr Deviation kReciprocal{Nan::kept, "times the reciprocal (1 ulp)"};
constexpr Deviation kSwish{Nan::kept, "4.5 ulp"};
constexpr Deviation kUlps{Nan::kept, "a few ulp"};
constexpr Deviation kMish{Nan::kept, "1e-6"};
constexpr Deviation kExp{Nan::bound, "a few ulp"};
constexpr Deviation kHardSigmoid{Nan::zero, "rounded once (fused multiply-add)"};
constexpr Deviation kDividedHardSigmoid{Nan::zero, "rounded in another order (2 ulp)"};

/// The constants that a pattern's letters stand for.
class Captures {
 public:
  double at(char letter) const { return values_[index(letter)]; }
  /// False where the letter stands for another value already; `fresh`: whether it stood for none.
  bool bind(char letter, double value, bool& fresh) {
    fresh = !bound_[index(letter)];
    if (!fresh) return values_[index(letter)] == value;
    bound_[index(letter)] = true;
    values_[index(letter)] = value;
    return true;
  }
  void erase(char letter) { bound_[index(letter)] = false; }

 private:
  static size_t index(char letter) { return static_cast<size_t>(letter - 'a'); }
  std::array<double, 26> values_{};
  std::bitset<26> bound_;
};

/// A row: the formula with x (the running value), y (an operand), a, b, c (constants), and what the
/// library calls it. clip(v, lo, hi) stands for both orders of min and max.
struct EpilogueRow {
  std::string_view pattern, alg;
  Deviation deviation;
  /// alpha and beta from the captured constants; false where they do not fit. Null: none.
  bool (*parameters)(const Captures& k, PostOp& op) = nullptr;
};

bool near(double got, double want) { return std::fabs(got - want) <= 2e-7 * std::fabs(want); }
bool alpha_a(const Captures& k, PostOp& op) {
  return op.alpha = static_cast<float>(k.at('a')), true;
}
/// With a slope of 0 the formula makes NaN of -infinity, and libraries take another function, in
/// which NaN is 0.
bool slope_a(const Captures& k, PostOp& op) { return alpha_a(k, op) && op.alpha != 0; }
bool scale(double a, double b, PostOp& op) {
  op.alpha = static_cast<float>(a);
  op.beta = static_cast<float>(b);
  return true;
}
/// x + 0 would make 0 of -0.
constexpr double kNoAddend = -0.0;
bool unit_scale(const Captures&, PostOp& op) { return scale(1, 0, op); }
bool as_captured(const Captures& k, PostOp& op) { return scale(k.at('a'), k.at('b'), op); }
/// (x + a) / h, as a library computes it: x / h + a / h.
bool divided(const Captures& k, PostOp& op) {
  return k.at('h') > 0 && scale(1 / k.at('h'), k.at('a') / k.at('h'), op);
}
/// The same with a factor that is about 1 / h.
bool multiplied(const Captures& k, PostOp& op) {
  return near(k.at('s') * k.at('h'), 1) && scale(k.at('s'), k.at('a') * k.at('s'), op);
}
bool positive_half(const Captures& k) { return near(k.at('h'), 0.5); }
/// Libraries take the square root for a power of 1/2, which differs from it at -infinity.
bool power(double a, double b, PostOp& op) { return b != 0.5 && scale(a, b, op); }
bool gelu_constants(const Captures& k, PostOp&) {
  return positive_half(k) && near(k.at('s'), 0.79788456080286536) && near(k.at('c'), 0.044715);
}

/// Bounds may be infinite; by other infinite parameters a library multiplies what the formula does
/// not.
bool fits(const PostOp& op) {
  return op.alg == "clip" || (std::isfinite(op.alpha) && std::isfinite(op.beta));
}

// Where several rows match, the one that covers most instructions is taken, then the first.
const EpilogueRow kRows[] = {
    // --- activations
    {"max(x,0)", "relu", kNanToZero, [](const Captures&, PostOp& op) { return scale(0, 0, op); }},
    {"select(lt(x,0),mul(a,x),x)", "leaky_relu", kExact, slope_a},
    {"select(ge(x,0),x,mul(a,x))", "leaky_relu", kExact, slope_a},
    {"max(x,mul(a,x))", "leaky_relu", kExact,
     [](const Captures& k, PostOp& op) {
       return k.at('a') > 0 && k.at('a') < 1 && slope_a(k, op);
     }},
    {"clip(x,a,b)", "clip", kNanToBound,
     [](const Captures& k, PostOp& op) {
       return k.at('a') <= k.at('b') && scale(k.at('a'), k.at('b'), op);
     }},
    {"max(x,a)", "clip", kNanToBound,
     [](const Captures& k, PostOp& op) { return scale(k.at('a'), HUGE_VAL, op); }},
    {"min(x,b)", "clip", kNanToBound,
     [](const Captures& k, PostOp& op) { return scale(-HUGE_VAL, k.at('b'), op); }},
    {"select(lt(x,0),mul(a,expm1(x)),x)", "elu", kUlps, alpha_a},
    {"select(lt(x,0),expm1(x),x)", "elu", kUlps, unit_scale},
    {"select(lt(x,0),mul(a,sub(exp(x),1)),x)", "elu", kUlps, alpha_a},
    {"select(lt(x,0),sub(exp(x),1),x)", "elu", kUlps, unit_scale},
    {"sigmoid(x)", "logistic", kUlps},
    {"div(1,add(1,exp(neg(x))))", "logistic", kUlps},
    {"tanh(x)", "tanh", kUlps},
    {"mul(x,sigmoid(x))", "swish", kSwish, unit_scale},
    {"mul(x,sigmoid(mul(a,x)))", "swish", kSwish, alpha_a},
    {"div(x,add(1,exp(neg(x))))", "swish", kSwish, unit_scale},
    {"mul(x,clip(add(mul(a,x),b),0,1))", "hardswish", kRounding, as_captured},
    {"div(mul(x,clip(add(x,a),0,h)),h)", "hardswish", kRounding, divided},
    {"mul(x,div(clip(add(x,a),0,h),h))", "hardswish", kRounding, divided},
    {"mul(div(x,h),clip(add(x,a),0,h))", "hardswish", kRounding, divided},
    {"mul(mul(x,clip(add(x,a),0,h)),s)", "hardswish", kRounding, multiplied},
    {"mul(x,mul(clip(add(x,a),0,h),s))", "hardswish", kRounding, multiplied},
    {"mul(mul(x,s),clip(add(x,a),0,h))", "hardswish", kRounding, multiplied},
    {"clip(add(mul(a,x),b),0,1)", "hardsigmoid", kHardSigmoid, as_captured},
    {"div(clip(add(x,a),0,h),h)", "hardsigmoid", kDividedHardSigmoid, divided},
    {"add(max(x,0),log1p(exp(neg(abs(x)))))", "soft_relu", kUlps, unit_scale},
    {"log1p(exp(x))", "soft_relu", kUlps, unit_scale},
    {"log(add(1,exp(x)))", "soft_relu", kUlps, unit_scale},
    {"mul(x,tanh(add(max(x,0),log1p(exp(neg(abs(x)))))))", "mish", kMish},
    {"mul(x,tanh(log1p(exp(x))))", "mish", kMish},
    {"mul(x,tanh(log(add(1,exp(x)))))", "mish", kMish},
    {"mul(mul(h,x),add(1,tanh(mul(s,add(x,mul(c,mul(mul(x,x),x)))))))", "gelu_tanh", kUlps,
     gelu_constants},
    {"mul(h,mul(x,add(1,tanh(mul(s,add(x,mul(c,mul(mul(x,x),x))))))))", "gelu_tanh", kUlps,
     gelu_constants},
    {"mul(mul(h,x),add(1,tanh(mul(s,add(x,mul(c,pow(x,3)))))))", "gelu_tanh", kUlps,
     gelu_constants},
    {"mul(h,mul(x,add(1,tanh(mul(s,add(x,mul(c,pow(x,3))))))))", "gelu_tanh", kUlps,
     gelu_constants},
    // --- other functions of one value
    {"abs(x)", "abs", kExact},
    {"sqrt(x)", "sqrt", kExact},
    {"mul(x,x)", "square", kExact},
    {"exp(x)", "exp", kExp},
    {"log(x)", "log", kUlps},
    {"round(x)", "round", kExact},
    {"pow(x,b)", "pow", kUlps,
     [](const Captures& k, PostOp& op) { return power(1, k.at('b'), op); }},
    {"mul(a,pow(x,b))", "pow", kUlps,
     [](const Captures& k, PostOp& op) { return power(k.at('a'), k.at('b'), op); }},
    {"add(mul(a,x),b)", "linear", kFused, as_captured},
    {"sub(mul(a,x),b)", "linear", kFused,
     [](const Captures& k, PostOp& op) { return scale(k.at('a'), -k.at('b'), op); }},
    {"mul(a,x)", "linear", kExact,
     [](const Captures& k, PostOp& op) { return scale(k.at('a'), kNoAddend, op); }},
    {"add(x,b)", "linear", kExact,
     [](const Captures& k, PostOp& op) { return scale(1, k.at('b'), op); }},
    {"sub(x,b)", "linear", kExact,
     [](const Captures& k, PostOp& op) { return scale(1, -k.at('b'), op); }},
    {"sub(b,x)", "linear", kExact,
     [](const Captures& k, PostOp& op) { return scale(-1, k.at('b'), op); }},
    {"neg(x)", "linear", kExact,
     [](const Captures&, PostOp& op) { return scale(-1, kNoAddend, op); }},
    {"add(x,x)", "linear", kExact,
     [](const Captures&, PostOp& op) { return scale(2, kNoAddend, op); }},
    {"div(x,a)", "linear", kReciprocal,
     [](const Captures& k, PostOp& op) {
       return k.at('a') != 0 && scale(1 / k.at('a'), kNoAddend, op);
     }},
    // --- with another operand
    {"add(x,y)", "add", kExact},
    {"sub(x,y)", "sub", kExact},
    {"mul(x,y)", "mul", kExact},
    {"div(x,y)", "div", kExact},
    {"max(x,y)", "max", kNanToBound},
    {"min(x,y)", "min", kNanToBound},
};

// --- patterns as trees

struct Pattern {
  enum class Kind : uint8_t {
    value,
    operand,
    capture,
    number,
    call,
    clip
  } kind = Kind::value;  ///< clip: args = both orders
  Prim op{};
  char capture = 0;
  double number = 0;
  std::vector<Pattern> args;
};

Prim prim_named(std::string_view text) {
  for (int k = 0; k <= static_cast<int>(Prim::cast); ++k)
    if (info(static_cast<Prim>(k)).id == text) return static_cast<Prim>(k);
  FERRULE_ASSERT(text == "round", "a primitive in the epilogue table");
  return Prim::rint;
}

Pattern call_of(Prim op, Pattern a, Pattern b) {
  return {Pattern::Kind::call, op, 0, 0, {std::move(a), std::move(b)}};
}

/// min(max(v, low), high), max(min(v, high), low).
std::vector<Pattern> clip_orders(const std::vector<Pattern>& args) {
  return {call_of(Prim::min, call_of(Prim::max, args[0], args[1]), args[2]),
          call_of(Prim::max, call_of(Prim::min, args[0], args[2]), args[1])};
}

Pattern parse(std::string_view& text) {
  size_t end = std::min(text.find_first_of("(),"), text.size());
  std::string_view word = text.substr(0, end);
  text.remove_prefix(end);
  Pattern p;
  if (!text.empty() && text[0] == '(') {
    p.kind = word == "clip" ? Pattern::Kind::clip : Pattern::Kind::call;
    if (p.kind == Pattern::Kind::call) p.op = prim_named(word);
    do {
      text.remove_prefix(1);
      p.args.push_back(parse(text));
    } while (text[0] == ',');
    text.remove_prefix(1);
    if (p.kind == Pattern::Kind::clip) p.args = clip_orders(p.args);
    return p;
  }
  if (word == "x") return p;
  if (word == "y")
    p.kind = Pattern::Kind::operand;
  else if (word[0] >= 'a' && word[0] <= 'z')
    p.kind = Pattern::Kind::capture, p.capture = word[0];
  else
    p.kind = Pattern::Kind::number,
    std::from_chars(word.data(), word.data() + word.size(), p.number);
  return p;
}

using Prims = std::bitset<static_cast<size_t>(Prim::cast) + 1>;

/// The primitives that a program must have for the pattern to match somewhere in it.
void collect(const Pattern& p, Prims& out) {
  if (p.kind == Pattern::Kind::call) out.set(static_cast<size_t>(p.op));
  if (p.kind == Pattern::Kind::capture || p.kind == Pattern::Kind::number)
    out.set(static_cast<size_t>(Prim::constant));
  for (const Pattern& a : p.args) collect(a, out);
}

struct Compiled {
  const EpilogueRow* row;
  Pattern pattern;
  Prims needs;
};
const std::vector<Compiled>& table() {
  static const std::vector<Compiled> rows = [] {
    std::vector<Compiled> out;
    for (const EpilogueRow& row : kRows) {
      std::string_view text = row.pattern;
      Compiled& c = out.emplace_back(Compiled{&row, parse(text), {}});
      collect(c.pattern, c.needs);
    }
    return out;
  }();
  return rows;
}

/// The rows whose last instruction may be `op`, in the table's order; no row is a lone value.
std::span<const Compiled* const> rows_ending_in(Prim op) {
  static const auto ending = [] {
    std::array<std::vector<const Compiled*>, static_cast<size_t>(Prim::cast) + 1> out;
    for (const Compiled& c : table()) {
      const bool clip = c.pattern.kind == Pattern::Kind::clip;
      for (Prim last : clip ? std::vector{Prim::min, Prim::max} : std::vector{c.pattern.op})
        out[static_cast<size_t>(last)].push_back(&c);
    }
    return out;
  }();
  return ending[static_cast<size_t>(op)];
}

// --- matching

struct State {
  Captures constants;
  int operand = -1;
  std::vector<uint32_t>
      covered;  ///< instructions that the pattern stands for, constants and operands not
};

/// What is left to be matched: a function of the caller's, which outlives the call.
class Next {
 public:
  template <class F>
    requires(!std::is_same_v<std::remove_cvref_t<F>, Next>)
  Next(const F& f)
      : f_(std::addressof(f)),
        call_([](const void* g, State& s) { return (*static_cast<const F*>(g))(s); }) {}
  bool operator()(State& s) const { return call_(f_, s); }

 private:
  const void* f_;
  bool (*call_)(const void*, State&);
};

class Matcher {
 public:
  Matcher(const Program& p, uint32_t anchor_input)
      : p_(p), anchor_(anchor_input), first_user_(p.insts.size() + 1) {
    auto uses = [&](auto&& f) {
      for (uint32_t k = 0; k < p.insts.size(); ++k)
        for (int a = 0; a < info(p.insts[k].op).arity; ++a)
          f(p.insts[k].args[static_cast<size_t>(a)], k);
    };
    for (const Inst& in : p.insts) has_.set(static_cast<size_t>(in.op));
    uses([&](uint32_t used, uint32_t) { ++first_user_[used + 1]; });
    for (size_t k = 1; k < first_user_.size(); ++k) first_user_[k] += first_user_[k - 1];
    users_.resize(first_user_.back());
    std::vector<uint32_t> next(first_user_.begin(), first_user_.end() - 1);
    uses([&](uint32_t used, uint32_t user) { users_[next[used]++] = user; });
  }

  std::optional<std::vector<PostOp>> run(Deviations allowed) {
    if (p_.outputs.size() != 1) return std::nullopt;
    auto start = anchor_value();
    if (!start) return std::nullopt;
    uint32_t value = *start, result = computed_output();
    std::vector<PostOp> ops;
    while (value != result) {
      auto step = longest(value, allowed);
      if (!step || ops.size() >= kMostPostOps) return std::nullopt;
      ops.push_back(std::move(step->op));
      value = step->root;
    }
    return ops;
  }

 private:
  struct Step {
    PostOp op;
    uint32_t root = 0;
    size_t covers = 0;
  };

  /// The anchor's result as f32: its load, or the cast of it.
  std::optional<uint32_t> anchor_value() const {
    for (uint32_t k = 0; k < p_.insts.size(); ++k) {
      const Inst& in = p_.insts[k];
      if (in.op != Prim::load || in.index != anchor_) continue;
      if (in.type == DType::f32) return k;
      if (!is_float(in.type) || users(k).size() != 1) return std::nullopt;
      const Inst& widened = p_.insts[users(k)[0]];
      if (widened.op == Prim::cast && widened.type == DType::f32) return users(k)[0];
    }
    return std::nullopt;
  }

  /// The output before it is rounded to its storage type.
  uint32_t computed_output() const {
    uint32_t out = p_.outputs[0];
    const Inst& in = p_.insts[out];
    bool narrowed =
        in.op == Prim::cast && is_float(in.type) && p_.insts[in.args[0]].type == DType::f32;
    return narrowed ? in.args[0] : out;
  }

  std::optional<Step> longest(uint32_t value, Deviations allowed) {
    value_ = value;
    std::optional<Step> best;
    for (uint32_t root = value + 1; root < p_.insts.size(); ++root) {
      if (p_.insts[root].type != DType::f32) continue;
      for (const Compiled* c : rows_ending_in(p_.insts[root].op)) {
        if (!allows(allowed, c->row->deviation) || (c->needs & ~has_).any()) continue;
        auto step = match_row(*c, root);
        if (step && (!best || step->covers > best->covers)) best = std::move(step);
      }
    }
    return best;
  }

  std::optional<Step> match_row(const Compiled& c, uint32_t root) {
    std::optional<Step> found;
    State& state = state_;  // one for all rows: its list keeps its memory
    state.covered.clear();
    state.constants = {};
    state.operand = -1;
    auto end = [&](State& s) {
      Step step;
      step.op.alg = c.row->alg;
      step.op.operand = s.operand;
      step.op.kind = s.operand >= 0 ? PostOp::Kind::binary : PostOp::Kind::eltwise;
      step.op.deviation = c.row->deviation;
      if (c.row->parameters && !c.row->parameters(s.constants, step.op)) return false;
      if (!fits(step.op)) return false;
      if (!closed(s, root)) return false;
      step.root = root;
      step.covers = s.covered.size();
      found = std::move(step);
      return true;
    };
    match(c.pattern, root, state, end);
    return found;
  }

  /// Nothing but the root is read from outside of the match, and nothing else reads the running
  /// value.
  bool closed(const State& s, uint32_t root) const {
    auto inside = [&](uint32_t k) {
      return std::find(s.covered.begin(), s.covered.end(), k) != s.covered.end();
    };
    auto all_inside = [&](uint32_t k) { return std::ranges::all_of(users(k), inside); };
    if (!all_inside(value_) || value_ == p_.outputs[0]) return false;
    for (uint32_t k : s.covered)
      if (k != root && (!all_inside(k) || k == p_.outputs[0])) return false;
    return true;
  }

  bool match(const Pattern& pattern, uint32_t k, State& state, const Next& next) {
    const Inst& in = p_.insts[k];
    switch (pattern.kind) {
      case Pattern::Kind::value:
        return k == value_ && next(state);
      case Pattern::Kind::number:
        return in.op == Prim::constant && is_float(in.type) && in.f == pattern.number &&
               next(state);
      case Pattern::Kind::capture: {
        if (in.op != Prim::constant || !is_float(in.type) || std::isnan(in.f)) return false;
        bool fresh = false;
        bool ok = state.constants.bind(pattern.capture, in.f, fresh) && next(state);
        if (fresh) state.constants.erase(pattern.capture);
        return ok;
      }
      case Pattern::Kind::operand: {
        auto index = operand(k);
        if (!index) return false;
        state.operand = *index;
        bool ok = next(state);
        if (!ok) state.operand = -1;
        return ok;
      }
      case Pattern::Kind::clip:
        return match_clip(pattern, k, state, next);
      case Pattern::Kind::call:
        return match_call(pattern.op, pattern.args, k, state, next);
    }
    return false;
  }

  /// An input of a floating point type, as it is or widened.
  std::optional<int> operand(uint32_t k) const {
    const Inst* in = &p_.insts[k];
    if (in->op == Prim::cast && in->type == DType::f32) in = &p_.insts[in->args[0]];
    if (in->op != Prim::load || in->index == anchor_ || !is_float(in->type) ||
        in->type == DType::f64)
      return std::nullopt;
    return static_cast<int>(in->index);
  }

  bool match_clip(const Pattern& p, uint32_t k, State& state, const Next& next) {
    return std::ranges::any_of(p.args, [&](const Pattern& order) {
      return match_call(order.op, order.args, k, state, next);
    });
  }

  bool match_call(Prim op, const std::vector<Pattern>& args, uint32_t k, State& state,
                  const Next& next) {
    const Inst& in = p_.insts[k];
    if (in.op != op) return false;
    state.covered.push_back(k);
    size_t depth = state.covered.size();
    bool commutes = op == Prim::add || op == Prim::mul || op == Prim::min || op == Prim::max;
    for (bool swap : {false, true}) {
      if (swap && !commutes) break;
      if (match_args(args, 0, in, swap, state, next)) return true;
      state.covered.resize(depth);
    }
    state.covered.pop_back();
    return false;
  }

  bool match_args(const std::vector<Pattern>& args, size_t a, const Inst& in, bool swap,
                  State& state, const Next& next) {
    if (a == args.size()) return next(state);
    auto rest = [&](State& s) { return match_args(args, a + 1, in, swap, s, next); };
    return match(args[a], in.args[swap ? 1 - a : a], state, rest);
  }

  /// The instructions that read instruction `k`.
  std::span<const uint32_t> users(uint32_t k) const {
    return std::span(users_).subspan(first_user_[k], first_user_[k + 1] - first_user_[k]);
  }

  const Program& p_;
  uint32_t anchor_;
  uint32_t value_ = 0;
  Prims has_;
  State state_;
  std::vector<uint32_t> first_user_, users_;
};

}  // namespace

namespace {

/// The answers for the programs seen last: a network has few kinds of tails, and each is asked
/// about several times, for every shape again.
class Answers {
 public:
  std::optional<std::vector<PostOp>> of(const Program& p, uint32_t anchor, Deviations allowed) {
    Entry& e = entries_[hash(p, anchor, allowed) % kMost];
    if (!e.used || e.anchor != anchor || e.allowed != allowed || !same(e.insts, p.insts) ||
        e.outputs != p.outputs)
      e = {p.insts, p.outputs, anchor, allowed, true, Matcher(p, anchor).run(allowed)};
    return e.answer;
  }

 private:
  static constexpr size_t kMost = 512;
  struct Entry {
    std::vector<Inst> insts;
    std::vector<uint32_t> outputs;
    uint32_t anchor = 0;
    Deviations allowed = Deviations::all;
    bool used = false;
    std::optional<std::vector<PostOp>> answer;
  };
  static uint64_t hash(const Program& p, uint32_t anchor, Deviations allowed) {
    uint64_t h = uint64_t{anchor} << 2 | static_cast<uint64_t>(allowed);
    auto add = [&h](uint64_t x) {
      h = (h ^ x) * 0x9e3779b97f4a7c15;
      h ^= h >> 32;
    };
    for (const Inst& in : p.insts) {
      add(static_cast<uint64_t>(in.op) << 32 | static_cast<uint64_t>(in.type));
      add(uint64_t{in.args[0]} << 32 | in.args[1]);
      add(uint64_t{in.args[2]} << 32 | in.index);
      add(static_cast<uint64_t>(in.i) ^ std::bit_cast<uint64_t>(in.f));
    }
    for (uint32_t o : p.outputs) add(o);
    return h;
  }
  /// To the bit: 0 and -0 are two programs, a NaN is the same one again.
  static bool same(const std::vector<Inst>& a, const std::vector<Inst>& b) {
    return std::ranges::equal(a, b, [](const Inst& x, const Inst& y) {
      return x.op == y.op && x.type == y.type && x.args == y.args && x.index == y.index &&
             x.i == y.i && std::bit_cast<uint64_t>(x.f) == std::bit_cast<uint64_t>(y.f);
    });
  }
  std::vector<Entry> entries_{kMost};
};

}  // namespace

bool allows(Deviations allowed, const Deviation& d) {
  if (allowed == Deviations::all) return true;
  return d.nan == Nan::kept && (allowed == Deviations::rounding || d.rounding.empty());
}

std::string_view text(Deviation::Nan nan) {
  return nan == Nan::kept ? "" : nan == Nan::zero ? "NaN may become 0" : "NaN may become a bound";
}

std::optional<std::vector<PostOp>> to_post_ops(const Program& program, uint32_t anchor_input,
                                               Deviations allowed) {
  thread_local Answers answers;
  return answers.of(program, anchor_input, allowed);
}

std::vector<std::string_view> epilogue_patterns() {
  std::vector<std::string_view> out;
  for (const EpilogueRow& row : kRows) out.push_back(row.pattern);
  return out;
}

}  // namespace ferrule
