#include "engine/semantics/scalar.h"

#include <algorithm>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

using Class = PrimInfo::Class;

constexpr auto kInfo = std::to_array<PrimInfo>({
#define FERRULE_PRIMITIVE(id, spelling, arity, cls, cost) {#id, spelling, arity, Class::cls, cost},
#include "engine/semantics/primitives.def"
#undef FERRULE_PRIMITIVE
    {"load", "load", 0, Class::other, 1},
    {"constant", "constant", 0, Class::other, 0},
    {"select", "select", 3, Class::other, 1},
    {"cast", "cast", 1, Class::other, 1},
});

bool is_compute(DType t) { return t == DType::f32 || t == DType::f64; }

std::string describe(const Program& p, size_t k) {
  const Inst& in = p.insts[k];
  std::string out = fmt::format("%{} = {} {}", k, info(in.op).id, name(in.type));
  if (in.op == Prim::load)
    return out +
           fmt::format(" {}", in.index < p.input_names.size() && !p.input_names[in.index].empty()
                                  ? p.input_names[in.index]
                                  : fmt::format("in{}", in.index));
  if (in.op == Prim::constant)
    return out + (is_float(in.type) ? fmt::format(" {}", in.f) : fmt::format(" {}", in.i));
  for (int a = 0; a < info(in.op).arity; ++a)
    out += fmt::format("{}%{}", a ? ", " : " ", in.args[a]);
  if (in.op == Prim::cast && in.i) out += " wrap";
  return out;
}

/// What is wrong with instruction `k`; "" if nothing.
std::string_view fault(const Program& p, size_t k) {
  const Inst& in = p.insts[k];
  const PrimInfo& pi = info(in.op);
  for (int a = 0; a < pi.arity; ++a)
    if (in.args[a] >= k) return "reads a later instruction";
  auto type = [&](size_t a) { return p.insts[in.args[a]].type; };
  auto operands_are = [&](DType t) {
    for (int a = 0; a < pi.arity; ++a)
      if (type(static_cast<size_t>(a)) != t) return false;
    return true;
  };
  auto same_bits = [&](DType f, DType i, DType from, DType to) { return from == f && to == i; };
  switch (pi.cls) {
    case Class::arith:
      if (!is_compute(in.type) && !is_int(in.type)) return "has a type that nothing is computed in";
      return operands_are(in.type) ? "" : "has operands of another type";
    case Class::flt:
      if (!is_compute(in.type)) return "is not f32 or f64";
      return operands_are(in.type) ? "" : "has operands of another type";
    case Class::cmp:
      if (in.type != DType::boolean) return "does not give bool";
      return type(0) == type(1) && compute_type(type(0)) == type(0) ? ""
                                                                    : "compares different types";
    case Class::logic:
      return in.type == DType::boolean && operands_are(in.type) ? "" : "is not of bool";
    case Class::bits:
      return is_int(in.type) && operands_are(in.type) ? "" : "is not of one integer type";
    case Class::test:
      return in.type == DType::boolean && is_compute(type(0)) ? "" : "tests no float";
    case Class::other:
      break;
  }
  switch (in.op) {
    case Prim::load:
      return in.index < p.inputs.size() && p.inputs[in.index] == in.type ? ""
                                                                         : "loads no such input";
    case Prim::select:
      return type(0) == DType::boolean && type(1) == in.type && type(2) == in.type ? ""
                                                                                   : "mixes types";
    case Prim::float_to_bits:
      return same_bits(DType::f32, DType::i32, type(0), in.type) ||
                     same_bits(DType::f64, DType::i64, type(0), in.type)
                 ? ""
                 : "changes the width";
    case Prim::bits_to_float:
      return same_bits(DType::i32, DType::f32, type(0), in.type) ||
                     same_bits(DType::i64, DType::f64, type(0), in.type)
                 ? ""
                 : "changes the width";
    default:
      return "";
  }
}

}  // namespace

const PrimInfo& info(Prim p) { return kInfo[static_cast<size_t>(p)]; }

int Program::cost() const {
  int sum = 0;
  for (const Inst& in : insts) sum += info(in.op).cost;
  return sum;
}

int Program::live_max() const {
  std::vector<size_t> last(insts.size(), 0);
  for (size_t k = 0; k < insts.size(); ++k)
    for (int a = 0; a < info(insts[k].op).arity; ++a) last[insts[k].args[a]] = k;
  for (uint32_t o : outputs) last[o] = insts.size();
  std::vector<int> ends(insts.size() + 1, 0);
  for (size_t end : last) ++ends[end];
  int live = 0, most = 0;
  for (size_t k = 0; k < insts.size(); ++k) {
    live += 1 - ends[k];  // the result may take the place of an operand that ends here
    most = std::max(most, live);
  }
  return most;
}

std::string to_text(const Program& p) {
  std::string out;
  for (size_t k = 0; k < p.insts.size(); ++k) out += describe(p, k) + "\n";
  for (uint32_t o : p.outputs) out += fmt::format("out %{}\n", o);
  return out;
}

Status verify(const Program& p) {
  for (size_t k = 0; k < p.insts.size(); ++k)
    if (std::string_view what = fault(p, k); !what.empty())
      return error(Code::formula_invalid, "scalar program",
                   fmt::format("{}: {}", describe(p, k), what), "");
  for (uint32_t o : p.outputs)
    if (o >= p.insts.size())
      return error(Code::formula_invalid, "scalar program",
                   fmt::format("output %{} does not exist", o), "");
  return {};
}

}  // namespace ferrule
