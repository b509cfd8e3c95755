#include "codegen/cuda/text.h"

#include <cmath>
#include <limits>

#include "codegen/cuda/prelude.h"
#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

bool is_f8(DType t) { return is_float(t) && size_bits(t) == 8; }
bool can_hold(DType t) {
  return t == DType::boolean ||
         ((is_float(t) || is_int(t)) && size_bits(t) >= 8 && t != DType::f8e8m0);
}

std::string number(DType t, double v) {
  std::string_view inf = t == DType::f32 ? "__uint_as_float(0x7f800000u)"
                                         : "__longlong_as_double(0x7ff0000000000000ll)";
  if (std::isnan(v))
    return t == DType::f32 ? "__uint_as_float(0x7fc00000u)"
                           : "__longlong_as_double(0x7ff8000000000000ll)";
  if (std::isinf(v)) return fmt::format("({}{})", v < 0 ? "-" : "", inf);
  return fmt::format("({:a}{})", v, t == DType::f32 ? "f" : "");
}
std::string integer(DType t, int64_t v) {
  if (t == DType::boolean) return v ? "true" : "false";
  if (is_unsigned_int(t)) return fmt::format("(({}){}ull)", name(t), static_cast<uint64_t>(v));
  if (v == std::numeric_limits<int64_t>::min()) return "(-9223372036854775807ll - 1)";
  return fmt::format("(({}){}ll)", name(t), v);
}

/// Comments hold model text: one line, nothing that could continue or end it.
std::string comment_text(std::string_view text) {
  std::string out = escape(text, 400);
  for (char& c : out) {
    if (c == '\\') c = '/';
    if (c == '?' || static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e)
      c = '_';
  }
  return out;
}

std::string cast_text(DType from, DType to, const std::string& x, bool wrap) {
  if (from == to) return x;
  std::string v = x;
  DType f = from;
  if (is_float(from) && from != compute_type(from)) {  // widened first
    v = is_f8(from) ? fmt::format("{}::decode({})", name(from), x)
                    : fmt::format("{}_to_float({})", name(from), x);
    f = DType::f32;
  }
  if (to == DType::boolean) return fmt::format("({} != 0)", v);
  if (to == DType::f32 || to == DType::f64) return fmt::format("({})({})", cuda_storage(to), v);
  if (is_float(to)) {
    std::string wide = f == DType::f32 ? v : fmt::format("(double)({})", v);
    if (is_f8(to))
      return fmt::format("{}::encode({}{}, {})", name(to), is_float(f) ? "" : "(double)",
                         is_float(f) ? v : "(" + v + ")", wrap);
    return fmt::format("to_{}({})", name(to), wide);
  }
  if (is_float(f)) return fmt::format("saturated<{}>({})", name(to), v);
  return fmt::format("({})({})", name(to), v);
}

std::string float_text(Prim op, const std::string& a, const std::string& b, const std::string& c) {
  switch (op) {
    case Prim::neg:
      return "-" + a;
    case Prim::add:
    case Prim::sub:
    case Prim::mul:
    case Prim::div:
      return fmt::format("{} {} {}", a, info(op).spelling, b);
    case Prim::mod:
      return fmt::format("fmodulo({}, {})", a, b);
    case Prim::min:
      return fmt::format("smaller({}, {})", a, b);
    case Prim::max:
      return fmt::format("larger({}, {})", a, b);
    case Prim::abs:
      return fmt::format("fabs({})", a);
    case Prim::sign:
      return fmt::format("fsign({})", a);
    case Prim::fma:
      return fmt::format("fma({}, {}, {})", a, b, c);
    case Prim::rint:
      return fmt::format("rint({})", a);
    default:
      break;
  }
  // The rest are functions of the same name in CUDA, or of the prelude (sigmoid).
  return info(op).arity == 2 ? fmt::format("{}({}, {})", info(op).id, a, b)
                             : fmt::format("{}({})", info(op).id, a);
}

std::string int_text(Prim op, DType t, const std::string& a, const std::string& b) {
  auto call = [&](std::string_view f) {
    return info(op).arity == 2 ? fmt::format("{}<{}>({}, {})", f, name(t), a, b)
                               : fmt::format("{}<{}>({})", f, name(t), a);
  };
  switch (op) {
    case Prim::min:
      return call("smaller");
    case Prim::max:
      return call("larger");
    case Prim::band:
      return fmt::format("({})({} & {})", name(t), a, b);
    case Prim::bor:
      return fmt::format("({})({} | {})", name(t), a, b);
    case Prim::bxor:
      return fmt::format("({})({} ^ {})", name(t), a, b);
    case Prim::bnot:
      return fmt::format("({})(~{})", name(t), a);
    case Prim::ipow:
      return call("ipow");
    default:
      return call(fmt::format("i{}", info(op).id));  // iadd, idiv, ishl, …
  }
}

std::string inst_text(const Program& p, const Inst& in) {
  auto arg = [&](size_t k) { return fmt::format("v{}", in.args[k]); };
  DType from = p.insts[in.args[0]].type;
  switch (in.op) {
    case Prim::load:
      return fmt::format("x{}", in.index);
    case Prim::constant:
      return cuda_literal(in.type, {in.f, in.i});
    case Prim::select:
      return fmt::format("{} ? {} : {}", arg(0), arg(1), arg(2));
    case Prim::cast:
      return cast_text(from, in.type, arg(0), in.i != 0);
    case Prim::float_to_bits:
      return fmt::format("{}({})",
                         in.type == DType::i32 ? "__float_as_int" : "__double_as_longlong", arg(0));
    case Prim::bits_to_float:
      return fmt::format("{}({})",
                         in.type == DType::f32 ? "__int_as_float" : "__longlong_as_double", arg(0));
    case Prim::isnan:
      return fmt::format("{0} != {0}", arg(0));
    case Prim::isinf:
      return fmt::format("fabs({}) == {}", arg(0), number(from, HUGE_VAL));
    case Prim::land:
      return fmt::format("{} && {}", arg(0), arg(1));
    case Prim::lor:
      return fmt::format("{} || {}", arg(0), arg(1));
    case Prim::lxor:
      return fmt::format("{} != {}", arg(0), arg(1));
    case Prim::lnot:
      return fmt::format("!{}", arg(0));
    default:
      break;
  }
  if (info(in.op).cls == PrimInfo::Class::cmp)
    return fmt::format("{} {} {}", arg(0), info(in.op).spelling, arg(1));
  return is_float(in.type) ? float_text(in.op, arg(0), arg(1), arg(2))
                           : int_text(in.op, in.type, arg(0), arg(1));
}

}  // namespace

std::string_view cuda_storage(DType t) {
  switch (t) {
    case DType::f32:
      return "float";
    case DType::f64:
      return "double";
    case DType::f16:
    case DType::bf16:
      return "u16";
    case DType::boolean:
      return "u8";
    default:
      return is_float(t) ? "u8" : name(t);
  }
}
std::string_view cuda_value(DType t) { return t == DType::boolean ? "bool" : cuda_storage(t); }

std::string cuda_literal(DType t, const Scalar& value) {
  if (t == DType::f32 || t == DType::f64) return number(t, value.f);
  return is_float(t) ? cast_text(DType::f32, t, number(DType::f32, value.f), false)
                     : integer(t, value.i);
}

std::string cuda_function(const Program& p, std::string_view name) {
  const size_t inputs = p.inputs.size(), operands = inputs + p.outputs.size();
  std::string out = fmt::format("__device__ __forceinline__ void {}(", name);
  for (size_t k = 0; k < inputs; ++k)
    out += fmt::format("{}{} x{}", k ? ", " : "", cuda_value(p.inputs[k]), k);
  for (size_t k = inputs; k < operands; ++k)
    out += fmt::format("{}{}& y{}", k ? ", " : "", cuda_storage(p.output_type(k - inputs)), k);
  out += ") {\n";
  for (size_t k = 0; k < p.insts.size(); ++k)
    out += fmt::format("  const {} v{} = {};\n", cuda_value(p.insts[k].type), k,
                       inst_text(p, p.insts[k]));
  for (size_t k = inputs; k < operands; ++k)
    out += fmt::format("  y{} = v{};\n", k, p.outputs[k - inputs]);
  return out + "}\n\n";
}

std::string cuda_head(std::string_view comment, std::string_view listing, bool wide_index) {
  std::string out = fmt::format("// {}\n// generated by ferrule from:\n", comment_text(comment));
  for (size_t at = 0; at < listing.size();) {
    const size_t end = std::min(listing.find('\n', at), listing.size());
    out += fmt::format("//   {}\n", listing.substr(at, end - at));
    at = end + 1;
  }
  out += kCudaPrelude;
  return out + fmt::format("\ntypedef {} Index;\n", wide_index ? "i64" : "i32");
}

void CudaArguments::pointer(const void* p) {
  out_.append(reinterpret_cast<const char*>(&p), sizeof p);
}

void CudaArguments::index(int64_t v) {
  const auto narrow = static_cast<int32_t>(v);
  if (wide_)
    out_.append(reinterpret_cast<const char*>(&v), sizeof v);
  else
    out_.append(reinterpret_cast<const char*>(&narrow), sizeof narrow);
}

std::string CudaArguments::take() {
  out_.resize((out_.size() + 7) / 8 * 8);
  return std::move(out_);
}

Status check_cuda_types(const Program& p) {
  for (DType t : p.inputs)
    if (!can_hold(t)) return error(Code::unsupported_type, "CUDA kernel", name(t));
  for (const Inst& in : p.insts)
    if (!can_hold(in.type)) return error(Code::unsupported_type, "CUDA kernel", name(in.type));
  return {};
}

}  // namespace ferrule
