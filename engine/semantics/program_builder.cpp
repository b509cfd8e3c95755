#include "engine/semantics/program_builder.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <optional>
#include <unordered_map>

#include "engine/semantics/block_eval.h"

namespace ferrule {
namespace {

/// Rewrites a program instruction by instruction; arguments are already in the new numbering.
class Simplifier {
 public:
  explicit Simplifier(const Program& p) : old_(p) {
    out_.inputs = p.inputs;
    out_.input_names = p.input_names;
  }
  Program run() {
    std::vector<uint32_t> to(old_.insts.size());
    for (size_t k = 0; k < old_.insts.size(); ++k) {
      Inst in = old_.insts[k];
      for (int a = 0; a < info(in.op).arity; ++a) in.args[a] = to[in.args[a]];
      to[k] = reduce(in);
    }
    for (uint32_t o : old_.outputs) out_.outputs.push_back(to[o]);
    drop_dead();
    return std::move(out_);
  }

 private:
  struct Hash {
    size_t operator()(const Inst& in) const {
      uint64_t h = (uint64_t{static_cast<uint8_t>(in.op)} << 8) | static_cast<uint8_t>(in.type);
      auto mix = [&](uint64_t v) { h = (h ^ v) * 0x9e3779b97f4a7c15u, h ^= h >> 29; };
      for (uint32_t a : in.args) mix(a);
      mix(in.index);
      mix(std::bit_cast<uint64_t>(in.f));
      mix(static_cast<uint64_t>(in.i));
      return h;
    }
  };
  struct Same {  // bits, so that 0 and -0, NaN and NaN are told apart and found again
    bool operator()(const Inst& a, const Inst& b) const {
      return a.op == b.op && a.type == b.type && a.args == b.args && a.index == b.index &&
             a.i == b.i && std::bit_cast<uint64_t>(a.f) == std::bit_cast<uint64_t>(b.f);
    }
  };

  const Inst& at(uint32_t k) const { return out_.insts[k]; }
  bool is_const(uint32_t k) const { return at(k).op == Prim::constant; }
  bool is_const(uint32_t k, double v) const {
    return is_const(k) && (is_float(at(k).type) ? at(k).f == v : static_cast<double>(at(k).i) == v);
  }

  uint32_t emit(const Inst& in) {
    Inst key = in;
    bool commutes = in.op == Prim::add || in.op == Prim::mul || in.op == Prim::min ||
                    in.op == Prim::max || in.op == Prim::eq || in.op == Prim::ne ||
                    in.op == Prim::land || in.op == Prim::lor || in.op == Prim::lxor ||
                    in.op == Prim::band || in.op == Prim::bor || in.op == Prim::bxor;
    if (commutes && key.args[0] > key.args[1]) std::swap(key.args[0], key.args[1]);
    const auto next = static_cast<uint32_t>(out_.insts.size());
    if (auto known = find(key)) return *known;
    if (next >= kFew) known_.emplace(key, next);
    keys_.push_back(key);
    out_.insts.push_back(in);
    return next;
  }

  /// Most programs are short: their instructions are compared one by one.
  std::optional<uint32_t> find(const Inst& key) {
    if (keys_.size() == kFew)
      for (uint32_t k = 0; k < kFew; ++k) known_.emplace(keys_[k], k);
    if (keys_.size() >= kFew) {
      auto it = known_.find(key);
      return it == known_.end() ? std::nullopt : std::optional(it->second);
    }
    for (uint32_t k = 0; k < keys_.size(); ++k)
      if (Same()(keys_[k], key)) return k;
    return std::nullopt;
  }

  uint32_t reduce(Inst in) {
    if (in.op == Prim::load || in.op == Prim::constant) return emit(in);
    if (auto k = folded(in)) return emit(*k);
    uint32_t a = in.args[0], b = in.args[1];
    bool flt = is_float(in.type);
    switch (in.op) {
      case Prim::mul:
        if (is_const(a, 1)) return b;
        if (is_const(b, 1)) return a;
        break;
      case Prim::add:  // x + 0 is exact for integers, x + -0 for floats
        if (is_const(a, 0) && (!flt || std::signbit(at(a).f))) return b;
        if (is_const(b, 0) && (!flt || std::signbit(at(b).f))) return a;
        break;
      case Prim::sub:
        if (is_const(b, 0) && (!flt || !std::signbit(at(b).f))) return a;
        break;
      case Prim::div:
        if (is_const(b, 1)) return a;
        if (flt && is_const(b) && exact_reciprocal(at(b).f, in.type)) {
          Inst k = at(b);
          k.f = 1 / k.f;
          in.op = Prim::mul;
          in.args[1] = emit(k);
        }
        break;
      case Prim::neg:
      case Prim::lnot:
      case Prim::bnot:
        if (at(a).op == in.op) return at(a).args[0];
        break;
      case Prim::min:
      case Prim::max:
      case Prim::land:
      case Prim::lor:
        if (a == b) return a;
        break;
      case Prim::select:
        if (is_const(a)) return at(a).i ? in.args[1] : in.args[2];
        if (in.args[1] == in.args[2]) return in.args[1];
        break;
      case Prim::cast:
        if (at(a).type == in.type) return a;
        if (at(a).op == Prim::cast &&
            is_const(at(a).args[0])) {  // rounded to a narrow type and back
          const Inst& k = at(at(a).args[0]);
          Scalar narrow = convert(at(a).type, k.type, {k.f, k.i}, at(a).i != 0);
          Scalar v = convert(in.type, at(a).type, narrow, in.i != 0);
          if (compute_type(in.type) == in.type) return emit(constant_of(in.type, v));
        }
        if (at(a).op == Prim::cast && lossless(at(at(a).args[0]).type, at(a).type)) {
          in.args[0] = at(a).args[0];
          return reduce(in);
        }
        break;
      default:
        break;
    }
    return emit(in);
  }

  /// 1/f and f are both powers of two within the type's normal range: x / f == x * (1/f) bit for
  /// bit.
  static bool exact_reciprocal(double f, DType t) {
    int e = 0;
    double limit = t == DType::f32 ? 120 : 1000;
    return std::isfinite(f) && f != 0 && std::fabs(std::frexp(f, &e)) == 0.5 && std::abs(e) < limit;
  }

  /// Whether every value of `from` is a value of `to`.
  static bool lossless(DType from, DType to) {
    if (from == to) return true;
    if (to == DType::boolean) return false;
    if (from == DType::boolean) return true;
    auto mantissa = [](DType t) {
      return t == DType::f64    ? 53
             : t == DType::f32  ? 24
             : t == DType::f16  ? 11
             : t == DType::bf16 ? 8
                                : 4;
    };
    if (is_float(to)) {
      if (is_int(from))
        return (to == DType::f32 || to == DType::f64) && size_bits(from) <= mantissa(to);
      return to == DType::f64 ? true : to == DType::f32 && from != DType::f64;
    }
    if (is_float(from)) return false;
    if (is_signed_int(from) && is_unsigned_int(to)) return false;
    return size_bits(from) + (is_unsigned_int(from) && is_signed_int(to) ? 1 : 0) <= size_bits(to);
  }

  std::optional<Inst> folded(const Inst& in) const {
    Scalar args[3];
    int n = info(in.op).arity;
    if (in.op == Prim::cast && compute_type(in.type) != in.type)
      return std::nullopt;  // no narrow constants
    for (int a = 0; a < n; ++a) {
      if (!is_const(in.args[a])) return std::nullopt;
      args[a] = {at(in.args[a]).f, at(in.args[a]).i};
    }
    Scalar r;
    if (in.op == Prim::cast)
      r = convert(in.type, at(in.args[0]).type, args[0], in.i != 0);
    else if (in.op == Prim::select)
      r = args[0].i ? args[1] : args[2];
    else
      r = apply(in.op, in.type, at(in.args[0]).type, args);
    return constant_of(in.type, r);
  }

  static Inst constant_of(DType type, const Scalar& v) {
    Inst k;
    k.op = Prim::constant;
    k.type = type;
    if (is_float(type))
      k.f = v.f;
    else
      k.i = v.i;
    return k;
  }

  void drop_dead() {
    std::vector<uint8_t> live(out_.insts.size());
    for (uint32_t o : out_.outputs) live[o] = 1;
    for (size_t k = live.size(); k-- > 0;)
      if (live[k])
        for (int a = 0; a < info(out_.insts[k].op).arity; ++a) live[out_.insts[k].args[a]] = 1;
    std::vector<uint32_t> to(live.size());
    size_t n = 0;
    for (size_t k = 0; k < live.size(); ++k) {
      if (!live[k]) continue;
      Inst in = out_.insts[k];
      for (int a = 0; a < info(in.op).arity; ++a) in.args[a] = to[in.args[a]];
      to[k] = static_cast<uint32_t>(n);
      out_.insts[n++] = in;
    }
    out_.insts.resize(n);
    for (uint32_t& o : out_.outputs) o = to[o];
  }

  const Program& old_;
  Program out_;
  static constexpr size_t kFew = 24;
  std::vector<Inst> keys_;  // of the instructions written, operands in order
  std::unordered_map<Inst, uint32_t, Hash, Same> known_;
};

}  // namespace

void simplify(Program& p) { p = Simplifier(p).run(); }

uint32_t ProgramBuilder::input(DType storage, std::string name) {
  program_.inputs.push_back(storage);
  program_.input_names.push_back(std::move(name));
  return load(static_cast<uint32_t>(program_.inputs.size() - 1));
}

uint32_t ProgramBuilder::load(uint32_t index) {
  Inst in;
  in.op = Prim::load;
  in.type = program_.inputs[index];
  in.index = index;
  return append(in);
}

uint32_t ProgramBuilder::constant(DType type, double f, int64_t i) {
  Inst in;
  in.op = Prim::constant;
  in.type = type;
  if (is_float(type))
    in.f = convert(type, DType::f64, {f, 0}, false).f;
  else
    in.i = convert(type, DType::i64, {0, i}, false).i;
  return append(in);
}

uint32_t ProgramBuilder::op(Prim p, DType type, std::initializer_list<uint32_t> args) {
  Inst in;
  in.op = p;
  in.type = type;
  std::copy(args.begin(), args.end(), in.args.begin());
  return append(in);
}

uint32_t ProgramBuilder::cast(uint32_t value, DType to) {
  return type(value) == to ? value : op(Prim::cast, to, {value});
}

uint32_t ProgramBuilder::cast_wrapping(uint32_t value, DType to) {
  uint32_t id = op(Prim::cast, to, {value});
  program_.insts[id].i = 1;
  return id;
}

uint32_t ProgramBuilder::append(const Inst& inst) {
  program_.insts.push_back(inst);
  return static_cast<uint32_t>(program_.insts.size() - 1);
}

Program ProgramBuilder::take() {
  Program p = std::move(program_);
  program_ = {};
  simplify(p);
  return p;
}

}  // namespace ferrule
