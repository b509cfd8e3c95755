#include "codegen/cpu/llvm_primitives.h"

#include <llvm/Analysis/VectorUtils.h>
#include <llvm/IR/Intrinsics.h>
#include <llvm/IR/IntrinsicsX86.h>
#include <llvm/IR/Module.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/diagnostics.h"
#include "engine/semantics/polynomials.h"

namespace ferrule {
namespace {

using llvm::Type;
using llvm::Value;
using llvm::Intrinsic::ID;
namespace intr = llvm::Intrinsic;

/// The functions that SLEEF and libm have, under the names that formulas use.
constexpr std::array kLibrary{Prim::exp,   Prim::log,   Prim::log1p, Prim::expm1, Prim::tanh,
                              Prim::erf,   Prim::sin,   Prim::cos,   Prim::tan,   Prim::asin,
                              Prim::acos,  Prim::atan,  Prim::sinh,  Prim::cosh,  Prim::asinh,
                              Prim::acosh, Prim::atanh, Prim::pow};
bool in_library(Prim p) { return contains(kLibrary, p); }

/// SLEEF overflows early in these (at sqrt(max), or a little below max): f32 goes through double,
/// f64 to libm.
bool short_range(Prim p) {
  return p == Prim::sinh || p == Prim::cosh || p == Prim::asinh || p == Prim::acosh;
}

bool is_f8(DType t) {
  return t == DType::f8e4m3fn || t == DType::f8e4m3fnuz || t == DType::f8e5m2 ||
         t == DType::f8e5m2fnuz;
}

}  // namespace

Type* PrimitiveEmitter::element(DType t) const {
  auto& c = b_.getContext();
  switch (t) {
    case DType::f32:
      return Type::getFloatTy(c);
    case DType::f64:
      return Type::getDoubleTy(c);
    case DType::f16:
      return Type::getHalfTy(c);
    case DType::boolean:
      return Type::getInt1Ty(c);
    default:
      return Type::getIntNTy(c, static_cast<unsigned>(size_bits(t)));  // integers, bf16, fp8
  }
}

Type* PrimitiveEmitter::storage(DType t) const {
  return t == DType::boolean ? Type::getInt8Ty(b_.getContext()) : element(t);
}

Value* PrimitiveEmitter::number(DType t, double v) { return llvm::ConstantFP::get(vector(t), v); }

Value* PrimitiveEmitter::intrinsic(unsigned id, std::span<Value* const> args) {
  return b_.CreateIntrinsic(static_cast<ID>(id), {args[0]->getType()},
                            llvm::ArrayRef<Value*>(args.data(), args.size()));
}

Value* PrimitiveEmitter::constant(const Inst& in) {
  if (in.type == DType::f32 || in.type == DType::f64) return number(in.type, in.f);
  if (is_float(in.type)) return cast(number(DType::f32, in.f), DType::f32, in.type, false);
  return integer(vector(in.type), in.i);
}

bool PrimitiveEmitter::calls(const Inst& in, DType operand) {
  if (in.op == Prim::cast) return is_f8(in.type);
  if (in.op == Prim::ipow) return true;
  if ((in.op == Prim::mod || in.op == Prim::fmod) && is_float(operand)) return true;
  if (in.op == Prim::exp && operand == DType::f32) return false;
  return in.op == Prim::sigmoid || in_library(in.op);
}

/// `symbol` lane by lane, arguments and result as given.
Value* PrimitiveEmitter::per_lane(const std::string& symbol, Type* result, Type* argument,
                                  std::span<Value* const> args) {
  std::vector<Type*> types(args.size(), argument);
  auto* type = llvm::FunctionType::get(result, types, false);
  auto fn = b_.GetInsertBlock()->getModule()->getOrInsertFunction(symbol, type);
  llvm::cast<llvm::Function>(fn.getCallee())->setDoesNotThrow();
  Value* out = llvm::PoisonValue::get(vec(result));
  for (unsigned lane = 0; lane < lanes_; ++lane) {
    std::vector<Value*> scalars;
    for (Value* a : args) scalars.push_back(b_.CreateExtractElement(a, lane));
    out = b_.CreateInsertElement(out, b_.CreateCall(fn, scalars), lane);
  }
  return out;
}

/// SLEEF's vector function, called as often as its width needs; spare lanes repeat others.
Value* PrimitiveEmitter::call_library(std::string_view function, DType t,
                                      std::span<Value* const> args) {
  bool f32 = t == DType::f32;
  auto width = static_cast<unsigned>(isa_.vector_bytes / (f32 ? 4 : 8));
  auto* type = llvm::FixedVectorType::get(element(t), width);
  std::vector<Type*> types(args.size(), type);
  std::string symbol = fmt::format("Sleef_{}{}{}_u10{}", function, f32 ? "f" : "d", width,
                                   isa_.vector_bytes == 64 ? "avx512f" : "avx2");
  auto fn = b_.GetInsertBlock()->getModule()->getOrInsertFunction(
      symbol, llvm::FunctionType::get(type, types, false));
  llvm::cast<llvm::Function>(fn.getCallee())->setDoesNotThrow();
  if (width == lanes_) return b_.CreateCall(fn, llvm::ArrayRef<Value*>(args.data(), args.size()));
  std::vector<Value*> results;
  for (unsigned at = 0; at < lanes_; at += width) {
    std::vector<int> lanes;
    for (unsigned k = 0; k < width; ++k) lanes.push_back(static_cast<int>((at + k) % lanes_));
    std::vector<Value*> parts;
    for (Value* a : args) parts.push_back(b_.CreateShuffleVector(a, lanes));
    results.push_back(b_.CreateCall(fn, parts));
  }
  if (width < lanes_) return llvm::concatenateVectors(b_, results);
  return b_.CreateExtractVector(vector(t), results[0], b_.getInt64(0));
}

/// Without overflow on either side: 1 / (1 + e) for x >= 0, e / (1 + e) below, e = exp(-|x|).
Value* PrimitiveEmitter::sigmoid(DType t, Value* x) {
  Value* magnitude = b_.CreateFNeg(b_.CreateUnaryIntrinsic(intr::fabs, x));
  Value* e = call_library("exp", t, std::array{magnitude});
  Value* one = number(t, 1);
  Value* top = b_.CreateSelect(b_.CreateFCmpOLT(x, number(t, 0)), e, one);
  return b_.CreateFDiv(top, b_.CreateFAdd(one, e));
}

/// To the nearest i32. A lane beyond i32 is anything.
Value* PrimitiveEmitter::nearest_i32(Value* x) {
  if (lanes_ == 16 && isa_.vector_bytes == 64)
    return b_.CreateIntrinsic(intr::x86_avx512_mask_cvtps2dq_512, {},
                              {x, llvm::Constant::getNullValue(vec(b_.getInt32Ty())),
                               b_.getInt16(-1), b_.getInt32(4)});  // 4: rounds as usual
  if (lanes_ == 8) return b_.CreateIntrinsic(intr::x86_avx_cvt_ps2dq_256, {}, {x});
  return b_.CreateFPToSI(b_.CreateUnaryIntrinsic(intr::roundeven, x), vec(b_.getInt32Ty()));
}

/// As expand_transcendentals has it, with the same results, but without an operation that makes a
/// subnormal number: processors take more than a hundred cycles for each, and a softmax is full of
/// them, above all where a mask makes its elements 0. A result below 2^-126 is made as an integer,
/// which counts units of 2^-149: those are its bits.
Value* PrimitiveEmitter::exp_f32(Value* x) {
  const ExpParts& e = kExpParts;
  auto f = [&](double v) { return number(DType::f32, v); };
  auto i = [&](int64_t v) { return integer(vector(DType::i32), v); };
  auto fma = [&](Value* a, Value* b, Value* c) {
    return intrinsic(intr::fma, std::array{a, b, c});
  };
  x = b_.CreateSelect(b_.CreateFCmpOLT(f(e.most), x), f(e.most), x);  // NaN stays
  x = b_.CreateSelect(b_.CreateFCmpOGT(f(e.least), x), f(e.least), x);
  Value* shifted = fma(x, f(e.log2e), f(e.magic));
  Value* n = b_.CreateFSub(shifted, f(e.magic));
  Value* r = fma(n, f(-e.ln2_low), fma(n, f(-e.ln2_high), x));
  Value* p = f(e.polynomial[0]);
  for (size_t k = 1; k < e.polynomial.size(); ++k) p = fma(p, r, f(e.polynomial[k]));
  Value* small = b_.CreateFCmpOLE(n, f(-126));
  Value* result = nullptr;
  if (isa_.vector_bytes == 64) {
    n = b_.CreateSelect(small, b_.CreateFAdd(n, f(149)), n);
    const unsigned bits = lanes_ == 16 ? 16 : 8;
    llvm::SmallVector<Value*, 5> args{p, n, p,
                                      llvm::ConstantInt::get(b_.getIntNTy(bits), -1, true)};
    if (lanes_ == 16) args.push_back(b_.getInt32(4));  // rounds as usual
    FERRULE_ASSERT(lanes_ == 16 || lanes_ == 8, "f32 beside elements of 64 bits");
    result = b_.CreateIntrinsic(
        lanes_ == 16 ? intr::x86_avx512_mask_scalef_ps_512 : intr::x86_avx512_mask_scalef_ps_256,
        {}, args);
  } else {
    // 2^n in two factors, because 2^128 is no number.
    Value* whole = b_.CreateSub(b_.CreateBitCast(shifted, vector(DType::i32)),
                                b_.CreateBitCast(f(e.magic), vector(DType::i32)));
    whole = b_.CreateSelect(small, b_.CreateAdd(whole, i(149)), whole);
    Value* half = b_.CreateAShr(whole, i(1));
    auto times = [&](Value* v, Value* exponent) {
      Value* power = b_.CreateShl(b_.CreateAdd(exponent, i(127)), i(23));
      return b_.CreateFMul(v, b_.CreateBitCast(power, vector(DType::f32)));
    };
    result = times(times(p, half), b_.CreateSub(whole, half));
  }
  return b_.CreateSelect(small, b_.CreateBitCast(nearest_i32(result), vector(DType::f32)), result);
}

Value* PrimitiveEmitter::float_op(const Inst& in, std::span<Value* const> a) {
  DType t = in.type;
  auto unary = [&](ID id) { return b_.CreateUnaryIntrinsic(id, a[0]); };
  auto pick =
      [&](bool less) -> Value* {  // a if NaN, else the second wherever the comparison is false
    Value* c = less ? b_.CreateFCmpOLT(a[0], a[1]) : b_.CreateFCmpOGT(a[0], a[1]);
    auto* constant = llvm::dyn_cast<llvm::Constant>(a[1]);
    auto* value =
        constant ? llvm::dyn_cast_or_null<llvm::ConstantFP>(constant->getSplatValue()) : nullptr;
    if (value &&
        !value->isNaN()) {  // one instruction; x86 gives its second operand when one is NaN
      Value* swapped = less ? b_.CreateFCmpOLT(a[1], a[0]) : b_.CreateFCmpOGT(a[1], a[0]);
      return b_.CreateSelect(swapped, a[1], a[0]);
    }
    return b_.CreateSelect(b_.CreateFCmpUNO(a[0], a[0]), a[0], b_.CreateSelect(c, a[0], a[1]));
  };
  switch (in.op) {
    case Prim::neg:
      return b_.CreateFNeg(a[0]);
    case Prim::add:
      return b_.CreateFAdd(a[0], a[1]);
    case Prim::sub:
      return b_.CreateFSub(a[0], a[1]);
    case Prim::mul:
      return b_.CreateFMul(a[0], a[1]);
    case Prim::div:
      return b_.CreateFDiv(a[0], a[1]);
    case Prim::fma:
      return intrinsic(intr::fma, a);
    case Prim::min:
      return pick(true);
    case Prim::max:
      return pick(false);
    case Prim::abs:
      return unary(intr::fabs);
    case Prim::floor:
      return unary(intr::floor);
    case Prim::ceil:
      return unary(intr::ceil);
    case Prim::trunc:
      return unary(intr::trunc);
    case Prim::rint:
      return unary(intr::roundeven);
    case Prim::sqrt:
      return unary(intr::sqrt);
    case Prim::sigmoid:
      return sigmoid(t, a[0]);
    case Prim::exp:
      if (t != DType::f32) break;
      return exp_f32(a[0]);
    case Prim::sign: {
      Value* r = b_.CreateSelect(b_.CreateFCmpOLT(a[0], number(t, 0)), number(t, -1), a[0]);
      r = b_.CreateSelect(b_.CreateFCmpOGT(a[0], number(t, 0)), number(t, 1), r);
      return b_.CreateSelect(b_.CreateFCmpOEQ(a[0], number(t, 0)), number(t, 0), r);
    }
    case Prim::fmod:
    case Prim::mod: {
      Type* e = element(t);
      Value* r = per_lane(t == DType::f32 ? "fmodf" : "fmod", e, e, a);
      if (in.op == Prim::fmod) return r;
      Value* zero = number(t, 0);
      Value* other = b_.CreateXor(b_.CreateFCmpOLT(r, zero), b_.CreateFCmpOLT(a[1], zero));
      Value* moved = b_.CreateSelect(other, b_.CreateFAdd(r, a[1]), r);
      return b_.CreateSelect(b_.CreateFCmpOEQ(r, zero),
                             b_.CreateBinaryIntrinsic(intr::copysign, zero, a[1]), moved);
    }
    default:
      break;
  }
  FERRULE_ASSERT(in_library(in.op), "a primitive without an LLVM form");
  const std::string_view stem = info(in.op).spelling;
  if (!short_range(in.op)) return call_library(stem, t, a);
  Value* x = t == DType::f32 ? b_.CreateFPExt(a[0], vector(DType::f64)) : a[0];
  Value* r = t == DType::f32 ? call_library(stem, DType::f64, std::array{x})
                             : per_lane(std::string(stem), element(t), element(t), a);
  return t == DType::f32 ? b_.CreateFPTrunc(r, vector(DType::f32)) : r;
}

/// div, mod, fmod of integers: the divisors that trap are replaced, their results put in
/// afterwards.
Value* PrimitiveEmitter::divide(const Inst& in, Value* a, Value* b) {
  Type* type = a->getType();
  bool is_signed = is_signed_int(in.type);
  Value *zero = integer(type, 0), *one = integer(type, 1);
  Value* by_zero = b_.CreateICmpEQ(b, zero);
  Value* by_minus = is_signed ? b_.CreateICmpEQ(b, integer(type, -1)) : nullptr;
  Value* divisor = b_.CreateSelect(by_minus ? b_.CreateOr(by_zero, by_minus) : by_zero, one, b);
  if (in.op == Prim::div) {
    Value* q = is_signed ? b_.CreateSDiv(a, divisor) : b_.CreateUDiv(a, divisor);
    if (by_minus) q = b_.CreateSelect(by_minus, b_.CreateNeg(a), q);
    return b_.CreateSelect(by_zero, zero, q);
  }
  Value* r = is_signed ? b_.CreateSRem(a, divisor) : b_.CreateURem(a, divisor);
  if (in.op == Prim::fmod || !is_signed) return r;  // x rem 1 = 0: right for divisors 0 and -1
  Value* signs = b_.CreateXor(b_.CreateICmpSLT(r, zero), b_.CreateICmpSLT(b, zero));
  Value* move = b_.CreateAnd(signs, b_.CreateICmpNE(r, zero));
  return b_.CreateSelect(move, b_.CreateAdd(r, b), r);
}

Value* PrimitiveEmitter::int_op(const Inst& in, std::span<Value* const> a) {
  Type* type = a[0]->getType();
  bool is_signed = is_signed_int(in.type);
  auto shift = [&](Value* shifted) {
    Value* width = integer(type, size_bits(in.type));
    return b_.CreateSelect(b_.CreateICmpULT(a[1], width), shifted, integer(type, 0));
  };
  switch (in.op) {
    case Prim::neg:
      return b_.CreateNeg(a[0]);
    case Prim::add:
      return b_.CreateAdd(a[0], a[1]);
    case Prim::sub:
      return b_.CreateSub(a[0], a[1]);
    case Prim::mul:
      return b_.CreateMul(a[0], a[1]);
    case Prim::div:
    case Prim::mod:
    case Prim::fmod:
      return divide(in, a[0], a[1]);
    case Prim::min:
      return b_.CreateBinaryIntrinsic(is_signed ? intr::smin : intr::umin, a[0], a[1]);
    case Prim::max:
      return b_.CreateBinaryIntrinsic(is_signed ? intr::smax : intr::umax, a[0], a[1]);
    case Prim::abs:
      return is_signed ? b_.CreateBinaryIntrinsic(intr::abs, a[0], b_.getFalse()) : a[0];
    case Prim::sign: {
      Value* positive = b_.CreateZExt(b_.CreateICmpNE(a[0], integer(type, 0)), type);
      if (!is_signed) return positive;
      return b_.CreateSelect(b_.CreateICmpSLT(a[0], integer(type, 0)), integer(type, -1), positive);
    }
    case Prim::band:
      return b_.CreateAnd(a[0], a[1]);
    case Prim::bor:
      return b_.CreateOr(a[0], a[1]);
    case Prim::bxor:
      return b_.CreateXor(a[0], a[1]);
    case Prim::bnot:
      return b_.CreateNot(a[0]);
    case Prim::shl:
      return shift(b_.CreateShl(a[0], a[1]));
    case Prim::shr:
      return shift(is_signed ? b_.CreateAShr(a[0], a[1]) : b_.CreateLShr(a[0], a[1]));
    case Prim::ipow: {
      Type* wide = Type::getInt64Ty(b_.getContext());
      auto widen = [&](Value* v) { return b_.CreateIntCast(v, vec(wide), is_signed); };
      std::array args{widen(a[0]), widen(a[1])};
      Value* r =
          per_lane(is_signed ? "ferrule_ipow_signed" : "ferrule_ipow_unsigned", wide, wide, args);
      return b_.CreateTrunc(r, type);
    }
    default:
      bug("a primitive without an LLVM form", __FILE__, __LINE__);
  }
}

Value* PrimitiveEmitter::compare(Prim op, DType t, Value* a, Value* b) {
  using P = llvm::CmpInst;
  bool f = is_float(t), s = is_signed_int(t);
  switch (op) {
    case Prim::eq:
      return b_.CreateCmp(f ? P::FCMP_OEQ : P::ICMP_EQ, a, b);
    case Prim::ne:
      return b_.CreateCmp(f ? P::FCMP_UNE : P::ICMP_NE, a, b);
    case Prim::lt:
      return b_.CreateCmp(f ? P::FCMP_OLT : s ? P::ICMP_SLT : P::ICMP_ULT, a, b);
    case Prim::le:
      return b_.CreateCmp(f ? P::FCMP_OLE : s ? P::ICMP_SLE : P::ICMP_ULE, a, b);
    case Prim::gt:
      return b_.CreateCmp(f ? P::FCMP_OGT : s ? P::ICMP_SGT : P::ICMP_UGT, a, b);
    default:
      return b_.CreateCmp(f ? P::FCMP_OGE : s ? P::ICMP_SGE : P::ICMP_UGE, a, b);
  }
}

Value* PrimitiveEmitter::emit(const Inst& in, std::span<const DType> types,
                              std::span<Value* const> a) {
  switch (in.op) {
    case Prim::cast:
      return cast(a[0], types[0], in.type, in.i != 0);
    case Prim::select:
      return b_.CreateSelect(a[0], a[1], a[2]);
    case Prim::float_to_bits:
    case Prim::bits_to_float:
      return b_.CreateBitCast(a[0], vector(in.type));
    case Prim::isnan:
      return b_.CreateFCmpUNO(a[0], a[0]);
    case Prim::isinf:
      return b_.CreateFCmpOEQ(b_.CreateUnaryIntrinsic(intr::fabs, a[0]),
                              llvm::ConstantFP::getInfinity(vector(types[0])));
    case Prim::land:
      return b_.CreateAnd(a[0], a[1]);
    case Prim::lor:
      return b_.CreateOr(a[0], a[1]);
    case Prim::lxor:
      return b_.CreateXor(a[0], a[1]);
    case Prim::lnot:
      return b_.CreateNot(a[0]);
    default:
      break;
  }
  if (info(in.op).cls == PrimInfo::Class::cmp) return compare(in.op, types[0], a[0], a[1]);
  return is_float(in.type) ? float_op(in, a) : int_op(in, a);
}

// --- conversions

Value* PrimitiveEmitter::decode_f8(Value* x, DType from) {
  // Exponent and fraction where f32 has them, then scaled by the difference of the biases: exact,
  // subnormals too.
  bool e4 = from == DType::f8e4m3fn || from == DType::f8e4m3fnuz;
  bool fnuz = from == DType::f8e4m3fnuz || from == DType::f8e5m2fnuz;
  int bias = (e4 ? 7 : 15) + (fnuz ? 1 : 0);
  Type* i32 = vec(Type::getInt32Ty(b_.getContext()));
  Value* wide = b_.CreateZExt(x, i32);
  Value* magnitude = b_.CreateAnd(wide, integer(i32, 0x7f));
  Value* bits = b_.CreateShl(magnitude, integer(i32, e4 ? 20 : 21));
  Value* v = b_.CreateFMul(b_.CreateBitCast(bits, vector(DType::f32)),
                           number(DType::f32, std::ldexp(1.0, 127 - bias)));
  Value* nan = llvm::ConstantFP::getNaN(vector(DType::f32));
  if (from == DType::f8e4m3fn)
    v = b_.CreateSelect(b_.CreateICmpEQ(magnitude, integer(i32, 0x7f)), nan, v);
  if (from == DType::f8e5m2) {
    v = b_.CreateSelect(b_.CreateICmpUGT(magnitude, integer(i32, 0x7c)), nan, v);
    v = b_.CreateSelect(b_.CreateICmpEQ(magnitude, integer(i32, 0x7c)),
                        llvm::ConstantFP::getInfinity(vector(DType::f32)), v);
  }
  Value* sign = b_.CreateShl(b_.CreateAnd(wide, integer(i32, 0x80)), integer(i32, 24));
  v = b_.CreateBitCast(b_.CreateOr(b_.CreateBitCast(v, i32), sign), vector(DType::f32));
  return fnuz ? b_.CreateSelect(b_.CreateICmpEQ(wide, integer(i32, 0x80)), nan, v) : v;
}

Value* PrimitiveEmitter::widen_to_f32(Value* x, DType from) {
  if (from == DType::f16) return b_.CreateFPExt(x, vector(DType::f32));
  if (from == DType::bf16) {
    Type* i32 = vec(Type::getInt32Ty(b_.getContext()));
    return b_.CreateBitCast(b_.CreateShl(b_.CreateZExt(x, i32), integer(i32, 16)),
                            vector(DType::f32));
  }
  return decode_f8(x, from);
}

/// f64 -> f32, inexact results made odd, so that the next rounding (to 16 or 8 bits) is right.
Value* PrimitiveEmitter::round_to_odd(Value* x) {
  Type* i32 = vec(Type::getInt32Ty(b_.getContext()));
  Value* f = b_.CreateFPTrunc(x, vector(DType::f32));
  Value* back = b_.CreateFPExt(f, vector(DType::f64));
  auto abs = [&](Value* v) { return b_.CreateUnaryIntrinsic(intr::fabs, v); };
  Value* bits = b_.CreateBitCast(f, i32);
  Value* above = b_.CreateFCmpOGT(abs(back), abs(x));
  Value* down = b_.CreateAdd(bits, b_.CreateSExt(above, i32));
  Value* odd = b_.CreateOr(down, integer(i32, 1));
  Value* exact = b_.CreateFCmpUEQ(back, x);
  return b_.CreateBitCast(b_.CreateSelect(exact, bits, odd), vector(DType::f32));
}

Value* PrimitiveEmitter::f32_to_bf16(Value* x) {
  Type* i32 = vec(Type::getInt32Ty(b_.getContext()));
  Value* bits = b_.CreateBitCast(x, i32);
  Value* high = b_.CreateLShr(bits, integer(i32, 16));
  Value* bias = b_.CreateAdd(b_.CreateAnd(high, integer(i32, 1)), integer(i32, 0x7fff));
  Value* rounded = b_.CreateLShr(b_.CreateAdd(bits, bias), integer(i32, 16));
  Value* quiet = b_.CreateOr(high, integer(i32, 0x40));
  return b_.CreateTrunc(b_.CreateSelect(b_.CreateFCmpUNO(x, x), quiet, rounded),
                        vector(DType::bf16));
}

Value* PrimitiveEmitter::f32_to_narrow(Value* x, DType to, bool wrap) {
  if (to == DType::f16) return b_.CreateFPTrunc(x, vector(DType::f16));
  if (to == DType::bf16) return f32_to_bf16(x);
  Value* wide = b_.CreateFPExt(x, vector(DType::f64));
  auto& c = b_.getContext();
  std::string symbol = fmt::format("ferrule_to_{}{}", name(to), wrap ? "_wrap" : "");
  return per_lane(symbol, Type::getInt8Ty(c), Type::getDoubleTy(c), std::array{wide});
}

/// Anything that is not a float of the same kind -> f32 or f64.
Value* PrimitiveEmitter::to_float(Value* x, DType from, DType to) {
  if (from == to) return x;
  if (from == DType::f32) return b_.CreateFPExt(x, vector(to));
  if (from == DType::f64) return b_.CreateFPTrunc(x, vector(to));
  if (is_float(from)) return to_float(widen_to_f32(x, from), DType::f32, to);
  return is_signed_int(from) ? b_.CreateSIToFP(x, vector(to)) : b_.CreateUIToFP(x, vector(to));
}

/// As fptosi.sat and fptoui.sat, which LLVM computes lane by lane: what is no number becomes 0.
Value* PrimitiveEmitter::saturated(Value* x, DType from, DType to) {
  const bool with_sign = is_signed_int(to), f32 = from == DType::f32;
  const int bits = size_bits(to), digits = with_sign ? bits - 1 : bits;
  const double above = std::ldexp(1, digits),  // the least number that is too large
      below = f32 ? std::nextafter(static_cast<float>(above), 0.0F) : std::nextafter(above, 0.0);
  Value *low = number(from, with_sign ? -above : 0), *high = number(from, below);
  Value* v = b_.CreateSelect(b_.CreateFCmpOGT(x, low), x, low);
  v = b_.CreateSelect(b_.CreateFCmpOLT(v, high), v, high);
  if (with_sign) v = b_.CreateSelect(b_.CreateFCmpUNO(x, x), number(from, 0), v);
  if (bits < 32) return b_.CreateTrunc(b_.CreateFPToSI(v, vector(DType::i32)), vector(to));
  v = with_sign ? b_.CreateFPToSI(v, vector(to)) : b_.CreateFPToUI(v, vector(to));
  if (digits <= (f32 ? 24 : 53)) return v;  // `below` is at most one away
  auto* most = llvm::ConstantInt::get(vector(to), with_sign ? llvm::APInt::getSignedMaxValue(bits)
                                                            : llvm::APInt::getMaxValue(bits));
  return b_.CreateSelect(b_.CreateFCmpOGE(x, number(from, above)), most, v);
}

Value* PrimitiveEmitter::cast(Value* x, DType from, DType to, bool wrap) {
  if (from == to) return x;
  if (to == DType::boolean) {
    if (is_float(from))
      return b_.CreateFCmpUNE(to_float(x, from, compute_type(from)), number(compute_type(from), 0));
    return b_.CreateICmpNE(x, integer(x->getType(), 0));
  }
  if (to == DType::f32 || to == DType::f64) return to_float(x, from, to);
  if (is_float(to)) {
    // f32 rounds once from f32 and narrower; wider ones go through f64 and an odd f32.
    if (is_float(from) && from != DType::f64)
      return f32_to_narrow(to_float(x, from, DType::f32), to, wrap);
    Value* wide = to_float(x, from, DType::f64);
    if (is_f8(to)) {
      auto& c = b_.getContext();
      std::string symbol = fmt::format("ferrule_to_{}{}", name(to), wrap ? "_wrap" : "");
      return per_lane(symbol, Type::getInt8Ty(c), Type::getDoubleTy(c), std::array{wide});
    }
    return f32_to_narrow(round_to_odd(wide), to, wrap);
  }
  if (is_float(from)) {
    DType c = compute_type(from);
    Value* v = to_float(x, from, c);
    return saturated(v, c, to);
  }
  return b_.CreateIntCast(x, vector(to), is_signed_int(from));
}

}  // namespace ferrule
