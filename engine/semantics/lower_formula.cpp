#include "engine/semantics/lower_formula.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <optional>

#include "engine/semantics/block_eval.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

/// What a subexpression is: known now, or an instruction.
struct Val {
  enum class Kind : uint8_t { integer, real, truth, text, type, value } kind = Kind::integer;
  int64_t i = 0;
  double f = 0;
  std::string text;
  DType type = DType::undefined;
  uint32_t id = 0;

  bool is_number() const { return kind == Kind::integer || kind == Kind::real; }
  double number() const { return kind == Kind::integer ? static_cast<double>(i) : f; }
};
Val integer(int64_t i) { return {.kind = Val::Kind::integer, .i = i, .text = {}}; }
Val real(double f) { return {.kind = Val::Kind::real, .f = f, .text = {}}; }
Val truth(bool b) { return {.kind = Val::Kind::truth, .i = b, .text = {}}; }
Val type_of(DType t) { return {.kind = Val::Kind::type, .text = {}, .type = t}; }

std::string describe(const Val& v) {
  switch (v.kind) {
    case Val::Kind::integer:
      return fmt::format("{}", v.i);
    case Val::Kind::real:
      return fmt::format("{}", v.f);
    case Val::Kind::truth:
      return v.i ? "true" : "false";
    case Val::Kind::text:
      return "'" + escape(v.text) + "'";
    case Val::Kind::type:
      return fmt::format("the type {}", name(v.type));
    case Val::Kind::value:
      return fmt::format("a value of type {}", name(v.type));
  }
  return "?";
}

/// Thrown inside Lowering only; lower_formula turns it into an Error.
struct Fault {
  const FormulaExpr* at;
  std::string message, hint;
};

class Lowering {
 public:
  Lowering(const LoweringInput& in, ProgramBuilder& out) : in_(in), f_(*in.formula), out_(out) {}

  uint32_t result() {
    const FormulaExpr& e = *f_.expr;
    Val v = eval(e);
    DType to = in_.result;
    if (v.kind != Val::Kind::value) return materialise(e, v, to);
    if (v.type == to) return v.id;
    // A value of the compute type is rounded once, here; anything else must be cast by the formula.
    if (compute_type(to) == v.type || (is_float(to) && compute_type(to) == compute_type(v.type)))
      return in_.round_result ? out_.cast(v.id, to) : v.id;
    fault(e, fmt::format("the formula gives {} where {} is wanted", name(v.type), name(to)),
          "write cast(…)");
  }

 private:
  [[noreturn]] void fault(const FormulaExpr& e, std::string message, std::string hint = "") {
    throw Fault{&e, std::move(message), std::move(hint)};
  }

  // --- names
  size_t input_slot(std::string_view word) const {
    for (size_t k = 0; k < f_.inputs.size(); ++k)
      if (input_name(f_.inputs[k]) == word) return k;
    return f_.inputs.size();
  }
  const LoweringOperand* operand(size_t slot) const {
    return slot < in_.operands.size() && in_.operands[slot].present() ? &in_.operands[slot]
                                                                      : nullptr;
  }
  Val value(uint32_t id) const {
    return {.kind = Val::Kind::value, .text = {}, .type = out_.type(id), .id = id};
  }
  /// The operand in the type arithmetic is done in.
  Val read(const FormulaExpr& e, size_t slot) {
    const LoweringOperand* o = operand(slot);
    if (!o)
      fault(e,
            fmt::format("input {} is absent here",
                        input_name(f_.inputs[std::min(slot, f_.inputs.size() - 1)])),
            "guard it with present(…)");
    return value(out_.cast(o->get(), compute_type(o->type)));
  }
  DType input_type(const FormulaExpr& e) {
    const LoweringOperand* o = operand(input_slot(e.word));
    if (!o)
      fault(e, fmt::format("the type of the absent input {} is asked for", e.word),
            "guard it with present(…)");
    return o->type;
  }

  Val attribute(const FormulaExpr& e, const Attr& a) {
    if (auto i = std::get_if<int64_t>(&a)) return integer(*i);
    if (auto f = std::get_if<double>(&a)) return real(*f);
    if (auto s = std::get_if<std::string>(&a)) return {.kind = Val::Kind::text, .text = *s};
    fault(e, fmt::format("attribute {} is neither a number nor a text", e.word));
  }
  Val name_value(const FormulaExpr& e) {
    if (size_t slot = input_slot(e.word); slot < f_.inputs.size()) return read(e, slot);
    if (auto known = lets_.find(e.word); known != lets_.end()) return known->second;
    for (const auto& [n, expr] : f_.let)
      if (n == e.word) return lets_.emplace(n, eval(*expr)).first->second;
    if (const Attr* a = in_.attrs ? in_.attrs->find(e.word) : nullptr) return attribute(e, *a);
    if (auto a = f_.attrs.find(e.word); a != f_.attrs.end()) return attribute(e, a->second);
    if (e.word == "true" || e.word == "false") return truth(e.word == "true");
    if (e.word == "inf") return real(std::numeric_limits<double>::infinity());
    if (e.word == "nan") return real(std::numeric_limits<double>::quiet_NaN());
    if (e.word == "pi") return real(std::numbers::pi);
    if (auto t = parse_dtype(e.word); t && name(*t) == e.word) return type_of(*t);
    fault(e, fmt::format("attribute {} has no value here", escape(e.word)));
  }

  // --- from known to computed
  uint32_t materialise(const FormulaExpr& e, const Val& v, DType to) {
    if (v.kind == Val::Kind::value) return v.id;
    if (to == DType::boolean && v.kind == Val::Kind::truth) return out_.constant(to, 0, v.i);
    if (v.is_number() && is_float(to)) {
      uint32_t k = out_.constant(compute_type(to), v.number(), 0);
      return in_.round_result ? out_.cast(k, to) : k;
    }
    if (v.is_number() && is_int(to)) {
      if (v.kind == Val::Kind::integer) return out_.constant(to, 0, v.i);
      if (!(std::fabs(v.f) < 0x1p62) || std::trunc(v.f) != v.f)
        fault(e, fmt::format("{} is not a value of type {}", v.f, name(to)),
              "cast the other operand");
      return out_.constant(to, 0, static_cast<int64_t>(v.f));
    }
    fault(e, fmt::format("{} where a value of type {} is wanted", describe(v), name(to)));
  }
  /// A value in a type that arithmetic is done in.
  Val computed(const Val& v) {
    return v.kind == Val::Kind::value ? value(out_.cast(v.id, compute_type(v.type))) : v;
  }
  /// Both as instructions of one type; constants take the other's type.
  DType unify(const FormulaExpr& e, Val& a, Val& b) {
    a = computed(a), b = computed(b);
    DType t = a.kind == Val::Kind::value   ? a.type
              : b.kind == Val::Kind::value ? b.type
              : a.kind == Val::Kind::truth ? DType::boolean
                                           : in_.compute;
    a = value(materialise(*e.args[e.args.size() - 2], a, t));
    b = value(materialise(*e.args[e.args.size() - 1], b, t));
    if (a.type != b.type)
      fault(e, fmt::format("{} meets {}", name(a.type), name(b.type)), "cast one of them");
    return t;
  }

  // --- expressions
  Val eval(const FormulaExpr& e) {
    switch (e.kind) {
      case FormulaExpr::Kind::integer:
        return integer(e.i);
      case FormulaExpr::Kind::real:
        return real(e.f);
      case FormulaExpr::Kind::text:
        return {.kind = Val::Kind::text, .text = e.word};
      case FormulaExpr::Kind::name:
        return name_value(e);
      case FormulaExpr::Kind::builtin:
        return builtin(e);
      case FormulaExpr::Kind::prim:
        break;
    }
    if (e.args.size() == 1 && info(e.prim).arity == 2) return fold(e, e.prim);
    if (info(e.prim).cls == PrimInfo::Class::logic) return logic(e);
    if (e.args.size() == 1) return unary(e, eval(*e.args[0]));
    return binary(e, e.prim, eval(*e.args[0]), eval(*e.args[1]));
  }

  Val logic(const FormulaExpr& e) {
    Val a = eval(*e.args[0]);
    auto want = [&](const FormulaExpr& at, const Val& v) {
      if (v.kind != Val::Kind::truth && !(v.kind == Val::Kind::value && v.type == DType::boolean))
        fault(at, fmt::format("{} where a truth value is wanted", describe(v)),
              "compare it with something");
    };
    want(*e.args[0], a);
    bool known = a.kind == Val::Kind::truth;
    if (e.prim == Prim::lnot)
      return known ? truth(!a.i) : value(out_.op(Prim::lnot, DType::boolean, {a.id}));
    // A known left side decides whether the right one means anything: present(lo) and x < lo.
    if (known && e.prim == Prim::land && !a.i) return a;
    if (known && e.prim == Prim::lor && a.i) return a;
    Val b = eval(*e.args[1]);
    want(*e.args[1], b);
    if (known && e.prim != Prim::lxor) return b;
    if (known && b.kind == Val::Kind::truth) return truth(a.i != b.i);
    unify(e, a, b);
    return value(out_.op(e.prim, DType::boolean, {a.id, b.id}));
  }

  Val unary(const FormulaExpr& e, Val a) {
    PrimInfo::Class cls = info(e.prim).cls;
    if (a.is_number()) {
      if (e.prim == Prim::neg && a.kind == Val::Kind::integer) {
        Scalar x{0, a.i};
        return integer(apply(e.prim, DType::i64, DType::i64, &x).i);
      }
      if (cls == PrimInfo::Class::bits)
        fault(e, fmt::format("{} of a number whose type is open", info(e.prim).spelling));
      Scalar x{a.number(), 0};
      Scalar r =
          apply(e.prim, cls == PrimInfo::Class::test ? DType::boolean : DType::f64, DType::f64, &x);
      return cls == PrimInfo::Class::test ? truth(r.i != 0) : real(r.f);
    }
    if (a.kind != Val::Kind::value)
      fault(e, fmt::format("{} of {}", info(e.prim).spelling, describe(a)));
    a = computed(a);
    check_type(e, a.type);
    DType t = cls == PrimInfo::Class::test ? DType::boolean : a.type;
    return value(out_.op(e.prim, t, {a.id}));
  }

  void check_type(const FormulaExpr& e, DType t) {
    const PrimInfo& i = info(e.prim);
    using Class = PrimInfo::Class;
    const bool floats = i.cls == Class::flt || i.cls == Class::test || i.cls == Class::arith,
               ints = i.cls == Class::bits || i.cls == Class::arith;
    if ((floats || ints) && !(floats && is_float(t)) && !(ints && is_int(t)))
      fault(e, fmt::format("{} is not defined on {}", i.spelling, name(t)),
            i.cls == PrimInfo::Class::bits ? "" : "cast the operand");
  }

  Val binary(const FormulaExpr& e, Prim op, Val a, Val b) {
    if (a.kind != Val::Kind::value && b.kind != Val::Kind::value) return known(e, op, a, b);
    DType t = unify(e, a, b);
    const PrimInfo& i = info(op);
    if (&i == &info(e.prim)) check_type(e, t);
    if (i.cls == PrimInfo::Class::cmp && t == DType::boolean && op != Prim::eq && op != Prim::ne)
      fault(e, "truth values have no order", "use ==, != or logic");
    return value(out_.op(op, i.cls == PrimInfo::Class::cmp ? DType::boolean : t, {a.id, b.id}));
  }

  /// Both sides are known while lowering.
  Val known(const FormulaExpr& e, Prim op, const Val& a, const Val& b) {
    bool equality = op == Prim::eq || op == Prim::ne;
    if (a.kind == b.kind && equality && !a.is_number()) {
      bool same = a.kind == Val::Kind::text   ? a.text == b.text
                  : a.kind == Val::Kind::type ? a.type == b.type
                                              : a.i == b.i;
      return truth(same == (op == Prim::eq));
    }
    if (!a.is_number() || !b.is_number())
      fault(e, fmt::format("{} and {} do not go together", describe(a), describe(b)));
    if (info(op).cls == PrimInfo::Class::bits) fault(e, "bits of a number whose type is open");
    bool ints = a.kind == Val::Kind::integer && b.kind == Val::Kind::integer;
    if (ints && info(op).cls == PrimInfo::Class::arith && op != Prim::div) {  // 1 / 2 is 0.5
      Scalar args[2] = {{0, a.i}, {0, b.i}};
      return integer(apply(op, DType::i64, DType::i64, args).i);
    }
    Scalar args[2] = {{a.number(), 0}, {b.number(), 0}};
    if (info(op).cls == PrimInfo::Class::cmp)
      return truth(apply(op, DType::boolean, DType::f64, args).i != 0);
    return real(apply(op, DType::f64, DType::f64, args).f);
  }

  /// Of all operands of a variadic input, left to right.
  Val fold(const FormulaExpr& e, Prim op) {
    size_t first = input_slot(e.args[0]->word);
    Val v = read(e, first);
    for (size_t k = first + 1; k < in_.operands.size(); ++k) v = binary_fold(e, op, v, read(e, k));
    return v;
  }
  Val binary_fold(const FormulaExpr& e, Prim op, const Val& a, const Val& b) {
    if (a.type != b.type) fault(e, fmt::format("{} meets {}", name(a.type), name(b.type)), "");
    return value(out_.op(op, a.type, {a.id, b.id}));
  }

  Val builtin(const FormulaExpr& e) {
    auto arg = [&](size_t k) -> const FormulaExpr& { return *e.args[k]; };
    switch (e.builtin) {
      case Builtin::select:
        return select(e);
      case Builtin::cast:
        return cast(e);
      case Builtin::present:
        return truth(operand(input_slot(arg(0).word)) != nullptr);
      case Builtin::type:
        return type_of(input_type(arg(0)));
      case Builtin::compute:
        return type_of(compute_type(input_type(arg(0))));
      case Builtin::is_float:
        return truth(is_float(input_type(arg(0))));
      case Builtin::is_int:
        return truth(is_int(input_type(arg(0))));
      case Builtin::is_unsigned:
        return truth(is_unsigned_int(input_type(arg(0))));
      case Builtin::is_bool:
        return truth(input_type(arg(0)) == DType::boolean);
      case Builtin::count:
        return integer(static_cast<int64_t>(in_.operands.size() - input_slot(arg(0).word)));
      case Builtin::sum:
        return fold(e, Prim::add);
      case Builtin::rsum:
      case Builtin::rmax:
      case Builtin::rmin:
      case Builtin::rmean:
      case Builtin::rprod:
        break;
    }
    return reduction(e);
  }

  Val reduction(const FormulaExpr& e) {
    Val v = eval(*e.args[0]);
    if (v.kind != Val::Kind::value) v = value(materialise(*e.args[0], v, in_.compute));
    v = computed(v);
    if (v.type == DType::boolean) fault(e, "a truth value has no sum or order", "cast it");
    return value(in_.fold(e.builtin, v.id));
  }

  Val select(const FormulaExpr& e) {
    Val c = eval(*e.args[0]);
    if (c.kind == Val::Kind::truth) return eval(*e.args[c.i ? 1 : 2]);
    if (c.kind != Val::Kind::value || c.type != DType::boolean)
      fault(*e.args[0], fmt::format("{} where a condition is wanted", describe(c)),
            "compare it with something");
    Val a = eval(*e.args[1]), b = eval(*e.args[2]);
    unify(e, a, b);
    return value(out_.op(Prim::select, a.type, {c.id, a.id, b.id}));
  }

  Val cast(const FormulaExpr& e) {
    Val t = eval(*e.args[1]);
    if (t.kind == Val::Kind::integer)
      t = type_of(static_cast<DType>(t.i));  // an attribute of TensorProto.DataType
    if (t.kind != Val::Kind::type || size_bits(t.type) == 0 || size_bits(t.type) > 64 ||
        t.type == DType::complex64)
      fault(*e.args[1], fmt::format("{} is not a type to cast to", describe(t)));
    if (in_.f64 && is_float(t.type)) t.type = DType::f64;
    int64_t wrap = 0;
    if (e.args.size() == 3) {
      Val s = eval(*e.args[2]);
      if (s.kind != Val::Kind::integer && s.kind != Val::Kind::truth)
        fault(*e.args[2], fmt::format("{} where a known 0 or 1 is wanted", describe(s)));
      wrap = s.i == 0;
    }
    Val v = eval(*e.args[0]);
    if (v.is_number()) {
      if (is_float(t.type))
        return value(out_.cast(out_.constant(compute_type(t.type), v.number(), 0), t.type));
      v = value(out_.constant(DType::f64, v.number(), 0));
    }
    if (v.kind == Val::Kind::truth) v = value(out_.constant(DType::boolean, 0, v.i));
    if (v.kind != Val::Kind::value)
      fault(*e.args[0], fmt::format("{} cannot be cast", describe(v)));
    if (v.type == t.type) return v;
    bool mini = is_float(t.type) && size_bits(t.type) <= 8;
    uint32_t id = mini && wrap ? out_.cast_wrapping(v.id, t.type) : out_.cast(v.id, t.type);
    return value(id);
  }

  const LoweringInput& in_;
  const OpFormula& f_;
  ProgramBuilder& out_;
  std::map<std::string, Val, std::less<>> lets_;
};

/// An element type that formulas work on.
bool computable(DType t) { return t == DType::boolean || is_int(t) || is_float(t); }

}  // namespace

Result<uint32_t> lower_formula(const LoweringInput& in, ProgramBuilder& out) {
  const OpFormula& f = *in.formula;
  if (!f.pointwise() && !in.fold)
    return error(Code::formula_invalid, in.place(),
                 fmt::format("{} works on rows and has no scalar program", f.op), "");
  try {
    return Lowering(in, out).result();
  } catch (Fault& fault) {
    Error e = error(Code::formula_invalid, in.place(),
                    fmt::format("formula of {}: {}", f.op, fault.message), fault.hint)
                  .value();
    if (fault.at->source) {
      yaml::Source source{"", *fault.at->source};
      e.excerpt = source.excerpt(1, static_cast<int>(fault.at->offset) + 1);
    }
    return fail(std::move(e));
  }
}

std::string node_place(const Node& n) {
  return fmt::format("node \"{}\" ({})", escape(n.name), escape(n.op));
}

std::string LoweringInput::place() const { return node ? node_place(*node) : formula->place; }

Result<LoweringInput> lowering_input(const OpFormula& f, const Node& n,
                                     std::span<const DType> types, bool f64) {
  LoweringInput in;
  in.formula = &f;
  in.attrs = &n.attrs;
  in.f64 = f64;
  in.node = &n;
  for (DType t : types) {
    if (t != DType::undefined && !computable(t))
      return error(Code::unsupported_type, in.place(), fmt::format("element type {}", name(t)));
    in.operands.push_back({f64 && is_float(t) ? DType::f64 : t, {}});
  }
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    bool there = k < in.operands.size() && in.operands[k].present();
    if (!there && !is_optional(f.inputs[k]))
      return error(Code::formula_invalid, in.place(),
                   fmt::format("input {} is missing", input_name(f.inputs[k])), "");
  }
  FERRULE_ASSIGN(in.result, formula_result_type(f, n, types));
  if (f64 && is_float(in.result)) in.result = DType::f64;
  if (!computable(in.result))
    return error(Code::unsupported_type, in.place(),
                 fmt::format("element type {}", name(in.result)));
  in.compute = compute_type(in.operands[0].type);
  return in;
}

uint32_t immediate(ProgramBuilder& b, const Tensor& t) {
  DType type = compute_type(t.dtype());
  return is_float(type) ? b.constant(type, t.at_f64(0), 0) : b.constant(type, 0, t.at_i64(0));
}

Result<DType> formula_result_type(const OpFormula& f, const Node& n,
                                  std::span<const DType> inputs) {
  std::string_view s = f.out_type;
  size_t slot = 0;
  if (s.starts_with("attr:")) {
    const Attr* a = n.attrs.find(s.substr(5));
    if (!a) {
      auto d = f.attrs.find(std::string(s.substr(5)));
      a = d == f.attrs.end() ? nullptr : &d->second;
    }
    auto i = a ? std::get_if<int64_t>(a) : nullptr;
    if (!i || *i < 1)
      return error(Code::bad_attribute, node_place(n), s.substr(5), "no known element type");
    if (*i > static_cast<int64_t>(kLastElementType))
      return error(Code::unsupported_type, node_place(n), fmt::format("element type {}", *i));
    return static_cast<DType>(*i);
  }
  if (s.starts_with("in:"))
    slot = static_cast<size_t>(*yaml::parse_integer(s.substr(3)));
  else if (!s.empty())
    return *parse_dtype(s);
  return slot < inputs.size() ? inputs[slot] : DType::undefined;
}

}  // namespace ferrule
