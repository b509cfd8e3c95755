#include "engine/epilogue.h"

#include <cmath>
#include <limits>

namespace ferrule {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr const char* kNan = "NaN becomes 0";
constexpr const char* kRounding = "rounded once where the formula rounds twice";
constexpr const char* kUlp = "up to 5 ulp";

/// `scale * of + shift`, `of` being an instruction.
struct Affine {
  uint32_t of = 0;
  double scale = 1, shift = 0;
  bool identity() const { return scale == 1 && shift == 0; }
};

/// `min(max(of, low), high)`.
struct Clamp {
  uint32_t of = 0;
  double low = -kInfinity, high = kInfinity;
};

class Recogniser {
 public:
  Recogniser(const Program& p, uint32_t anchor, bool strict) : p_(p), anchor_(anchor), strict_(strict) {
    depends_.resize(p.insts.size());
    for (size_t k = 0; k < p.insts.size(); ++k) {
      const Inst& i = p.insts[k];
      depends_[k] = i.op == Prim::load && i.index == anchor;
      for (int a = 0; a < arity(i); ++a) depends_[k] = depends_[k] || depends_[i.args[static_cast<size_t>(a)]];
    }
  }

  bool run(uint32_t value) {
    while (!is_anchor(value)) {
      if (!depends_[value] || p_.insts[value].type != DType::f32 || ops_.size() > 32) return false;
      if (!step(value)) return false;
    }
    return true;
  }

  /// Recognised from the result backwards; the library wants them forwards.
  std::vector<PostOp> take() { return {ops_.rbegin(), ops_.rend()}; }

 private:
  static int arity(const Inst& i) {
    if (i.op == Prim::load || i.op == Prim::constant) return 0;
    if (i.op == Prim::select) return 3;
    return i.op == Prim::cast ? 1 : info(i.op).arity;
  }
  const Inst& inst(uint32_t v) const { return p_.insts[v]; }
  bool is(uint32_t v, Prim op) const { return inst(v).op == op; }
  bool is_anchor(uint32_t v) const { return is(v, Prim::load) && inst(v).index == anchor_; }
  std::optional<double> constant(uint32_t v) const {
    if (!is(v, Prim::constant)) return std::nullopt;
    return inst(v).f;
  }

  bool emit(std::string alg, double alpha, double beta, const char* deviation) {
    if (strict_ && deviation) return false;
    PostOp op;
    op.alg = std::move(alg);
    op.alpha = static_cast<float>(alpha);
    op.beta = static_cast<float>(beta);
    op.deviates = deviation != nullptr;
    if (deviation) op.deviation = deviation;
    ops_.push_back(std::move(op));
    return true;
  }

  /// One form ends in `value`: emits it and moves `value` to what it is applied to. Most specific first.
  bool step(uint32_t& value) {
    return gated(value) || clamped(value) || leaky(value) || elu(value) || affine_step(value) || unary(value) ||
           binary(value);
  }

  /// Multiplications, additions and divisions with constants, as far as they go.
  Affine affine(uint32_t v) const {
    Affine a{v, 1, 0};
    for (;;) {
      const Inst& i = inst(a.of);
      if (i.op == Prim::neg) {
        a = {i.args[0], -a.scale, a.shift};
        continue;
      }
      if (i.op != Prim::add && i.op != Prim::sub && i.op != Prim::mul && i.op != Prim::div) return a;
      auto left = constant(i.args[0]), right = constant(i.args[1]);
      if (i.op == Prim::add && (left || right)) {
        a = {i.args[left ? 1 : 0], a.scale, a.shift + a.scale * (left ? *left : *right)};
      } else if (i.op == Prim::sub && right) {
        a = {i.args[0], a.scale, a.shift - a.scale * *right};
      } else if (i.op == Prim::sub && left) {
        a = {i.args[1], -a.scale, a.shift + a.scale * *left};
      } else if (i.op == Prim::mul && (left || right)) {
        a = {i.args[left ? 1 : 0], a.scale * (left ? *left : *right), a.shift};
      } else if (i.op == Prim::div && right && *right != 0) {
        a = {i.args[0], a.scale / *right, a.shift};
      } else {
        return a;
      }
    }
  }

  std::optional<Clamp> clamp(uint32_t v) const {
    Clamp c{v, -kInfinity, kInfinity};
    bool found = false;
    for (;;) {
      const Inst& i = inst(c.of);
      if (i.op != Prim::min && i.op != Prim::max) break;
      auto left = constant(i.args[0]), right = constant(i.args[1]);
      if (!left && !right) break;
      double bound = left ? *left : *right;
      if (i.op == Prim::min) {
        c.high = std::min(c.high, bound);
        c.low = std::min(c.low, bound);
      } else if (bound > c.low) {
        c.low = std::min(bound, c.high);
      }
      c.of = i.args[left ? 1 : 0];
      found = true;
    }
    return found ? std::optional(c) : std::nullopt;
  }

  /// select(x < 0, 0, x) and its mirror images are the same as max(x, 0), but for NaN.
  std::optional<uint32_t> relu_by_select(uint32_t v) const {
    if (!is(v, Prim::select)) return std::nullopt;
    const Inst& s = inst(v);
    const Inst& c = inst(s.args[0]);
    bool less = c.op == Prim::lt || c.op == Prim::le, more = c.op == Prim::gt || c.op == Prim::ge;
    if ((!less && !more) || constant(c.args[1]) != 0.0) return std::nullopt;
    uint32_t keep = s.args[less ? 2 : 1], drop = s.args[less ? 1 : 2];
    if (keep != c.args[0] || constant(drop) != 0.0) return std::nullopt;
    return keep;
  }

  bool clamped(uint32_t& v) {
    if (auto of = relu_by_select(v)) {
      v = *of;
      return emit("relu", 0, 0, kNan);
    }
    auto c = clamp(v);
    if (!c || std::isnan(c->low) || std::isnan(c->high)) return false;
    Affine a = affine(c->of);
    if (c->low == 0 && c->high == 1 && !a.identity() && depends_[a.of]) {
      v = a.of;
      return emit("hardsigmoid", a.scale, a.shift, kRounding);
    }
    v = c->of;
    if (c->low == 0 && c->high == kInfinity) return emit("relu", 0, 0, kNan);
    return emit("clip", c->low, c->high, kNan);
  }

  /// Products of a value with a gate of itself: hard swish, swish, square, each perhaps times a constant.
  bool gated(uint32_t& v) {
    Affine outer = affine(v);
    if (!is(outer.of, Prim::mul) && !is(outer.of, Prim::div)) return false;
    if (outer.shift != 0) return false;
    const Inst& product = inst(outer.of);
    if (product.op == Prim::div) return sigmoid_quotient(v, outer, product);
    uint32_t x = product.args[0], gate = product.args[1];
    for (int order = 0; order < 2; ++order, std::swap(x, gate))
      if (gate_of(v, outer.scale, x, gate)) return true;
    if (product.args[0] == product.args[1]) return scaled(v, "square", 0, 0, outer.scale, product.args[0], nullptr);
    return false;
  }

  /// x / (1 + exp(-x)), the other spelling of swish.
  bool sigmoid_quotient(uint32_t& v, const Affine& outer, const Inst& quotient) {
    Affine d = affine(quotient.args[1]);
    if (d.scale != 1 || d.shift != 1 || !is(d.of, Prim::exp)) return false;
    Affine e = affine(inst(d.of).args[0]);
    if (e.shift != 0 || e.of != quotient.args[0]) return false;
    return scaled(v, "swish", -e.scale, 0, outer.scale, e.of, kUlp);
  }

  bool gate_of(uint32_t& v, double scale, uint32_t x, uint32_t gate) {
    Affine g = affine(gate);
    if (g.shift != 0) return false;
    double factor = scale * g.scale;
    Affine base = affine(x);
    if (is(g.of, Prim::sigmoid)) {
      Affine s = affine(inst(g.of).args[0]);
      if (s.shift == 0 && s.of == x) return scaled(v, "swish", s.scale, 0, factor, x, kUlp);
      if (s.shift == 0 && base.shift == 0 && base.of == s.of)
        return scaled(v, "swish", s.scale, 0, factor * base.scale, s.of, kUlp);
      return false;
    }
    auto c = clamp(g.of);
    if (!c || c->low != 0 || !(c->high > 0) || std::isinf(c->high)) return false;
    Affine s = affine(c->of);
    if (s.of != x) {
      if (base.shift != 0 || base.of != s.of) return false;
      factor *= base.scale;
      x = s.of;
    }
    return scaled(v, "hardswish", s.scale / c->high, s.shift / c->high, factor * c->high, x, kRounding);
  }

  /// `alg` on `x`, then a factor where it is not 1 (within the rounding of constants such as 1/6).
  bool scaled(uint32_t& v, const char* alg, double alpha, double beta, double factor, uint32_t x, const char* deviation) {
    if (std::abs(factor - 1) > 1e-6 && !emit("linear", factor, 0, kRounding)) return false;
    v = x;
    return emit(alg, alpha, beta, deviation);
  }

  /// select(x < 0, alpha * x, x)
  bool leaky(uint32_t& v) {
    if (!is(v, Prim::select)) return false;
    const Inst& s = inst(v);
    const Inst& c = inst(s.args[0]);
    bool less = c.op == Prim::lt || c.op == Prim::le, more = c.op == Prim::gt || c.op == Prim::ge;
    if ((!less && !more) || constant(c.args[1]) != 0.0) return false;
    uint32_t positive = s.args[less ? 2 : 1], negative = s.args[less ? 1 : 2];
    if (positive != c.args[0]) return false;
    Affine a = affine(negative);
    if (a.of != positive || a.shift != 0) return false;
    v = positive;
    return emit("relu", a.scale, 0, kNan);
  }

  /// select(x < 0, alpha * (exp(x) - 1), x)
  bool elu(uint32_t& v) {
    if (!is(v, Prim::select)) return false;
    const Inst& s = inst(v);
    const Inst& c = inst(s.args[0]);
    bool less = c.op == Prim::lt || c.op == Prim::le;
    if ((!less && c.op != Prim::gt && c.op != Prim::ge) || constant(c.args[1]) != 0.0) return false;
    uint32_t positive = s.args[less ? 2 : 1];
    Affine a = affine(s.args[less ? 1 : 2]);
    if (positive != c.args[0]) return false;
    bool minus_one = is(a.of, Prim::expm1) && a.shift == 0;
    bool spelled = is(a.of, Prim::exp) && a.shift == -a.scale;
    if ((!minus_one && !spelled) || inst(a.of).args[0] != positive) return false;
    v = positive;
    return emit("elu", a.scale, 0, kUlp);
  }

  bool affine_step(uint32_t& v) {
    Affine a = affine(v);
    if (a.of == v || !depends_[a.of]) return false;
    bool one_step = a.scale == 1 || a.shift == 0;
    v = a.of;
    return a.identity() || emit("linear", a.scale, a.shift, one_step ? nullptr : kRounding);
  }

  bool unary(uint32_t& v) {
    static const std::vector<std::pair<Prim, const char*>> kForms = {
        {Prim::sigmoid, "logistic"}, {Prim::tanh, "tanh"}, {Prim::abs, "abs"},
        {Prim::sqrt, "sqrt"},        {Prim::exp, "exp"},   {Prim::rint, "round"},
    };
    for (const auto& [prim, alg] : kForms)
      if (is(v, prim)) {
        v = inst(v).args[0];
        bool exact = prim == Prim::abs || prim == Prim::sqrt || prim == Prim::rint;
        return emit(alg, 0, 0, exact ? nullptr : kUlp);
      }
    return false;
  }

  /// result OP operand, the operand being read as it is.
  bool binary(uint32_t& v) {
    const Inst& i = inst(v);
    static const std::vector<std::pair<Prim, const char*>> kForms = {
        {Prim::add, "add"}, {Prim::sub, "sub"}, {Prim::mul, "mul"}, {Prim::div, "div"}, {Prim::max, "max"}, {Prim::min, "min"}};
    for (const auto& [prim, alg] : kForms) {
      if (i.op != prim) continue;
      bool left = depends_[i.args[0]], right = depends_[i.args[1]];
      if (left == right) return false;
      uint32_t other = i.args[left ? 1 : 0];
      if (!is(other, Prim::load)) return false;
      if (right && prim == Prim::div) return false;
      PostOp op;
      op.kind = PostOp::Kind::binary;
      op.alg = alg;
      op.operand = static_cast<int>(inst(other).index);
      v = i.args[left ? 0 : 1];
      if (right && prim == Prim::sub) {  // r - x = -x + r
        op.alg = "add";
        ops_.push_back(std::move(op));
        return emit("linear", -1, 0, nullptr);
      }
      if (prim == Prim::max || prim == Prim::min) {
        if (strict_) return false;
        op.deviates = true;
        op.deviation = kNan;
      }
      ops_.push_back(std::move(op));
      return true;
    }
    return false;
  }

  const Program& p_;
  uint32_t anchor_;
  bool strict_;
  std::vector<bool> depends_;
  std::vector<PostOp> ops_;  ///< last first
};

}  // namespace

std::optional<std::vector<PostOp>> to_post_ops(const Program& program, uint32_t anchor, bool strict) {
  if (program.outputs.size() != 1 || program.inputs[anchor] != DType::f32) return std::nullopt;
  Recogniser r(program, anchor, strict);
  if (!r.run(program.outputs[0])) return std::nullopt;
  return r.take();
}

}  // namespace ferrule
