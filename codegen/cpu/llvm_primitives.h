// Scalar-program instructions as LLVM IR on explicit vectors of `lanes` elements. Private to
// codegen/llvm*.cpp: it is one of the few headers that include LLVM. Meaning of every primitive:
// engine/semantics/primitives.def.
#pragma once
#include <llvm/IR/IRBuilder.h>

#include <span>
#include <string>

#include "codegen/cpu/kernel.h"

namespace ferrule {

class PrimitiveEmitter {
 public:
  PrimitiveEmitter(llvm::IRBuilder<>& builder, const CpuIsa& isa, unsigned lanes)
      : b_(builder), isa_(isa), lanes_(lanes) {}

  /// Element in registers: i1 for bool, i16 for bf16, i8 for fp8.
  llvm::Type* element(DType t) const;
  llvm::Type* vector(DType t) const { return llvm::FixedVectorType::get(element(t), lanes_); }
  /// Element in memory: i8 for bool.
  llvm::Type* storage(DType t) const;
  llvm::Value* splat(llvm::Value* scalar) { return b_.CreateVectorSplat(lanes_, scalar); }

  llvm::Value* constant(const Inst& in);
  /// An instruction that is neither load nor constant. `types`: of the operands.
  llvm::Value* emit(const Inst& in, std::span<const DType> types,
                    std::span<llvm::Value* const> args);

  /// Whether `in` calls a function, so that vector registers do not survive it.
  static bool calls(const Inst& in, DType operand);

 private:
  using V = llvm::Value;
  V* float_op(const Inst& in, std::span<V* const> a);
  V* int_op(const Inst& in, std::span<V* const> a);
  V* divide(const Inst& in, V* a, V* b);
  V* compare(Prim op, DType t, V* a, V* b);
  V* sigmoid(DType t, V* x);
  V* nearest_i32(V* x);
  V* exp_f32(V* x);
  V* call_library(std::string_view function, DType t, std::span<V* const> args);
  V* per_lane(const std::string& symbol, llvm::Type* result, llvm::Type* argument,
              std::span<V* const> args);
  V* cast(V* x, DType from, DType to, bool wrap);
  V* saturated(V* x, DType from, DType to);
  V* to_float(V* x, DType from, DType to);
  V* widen_to_f32(V* x, DType from);
  V* round_to_odd(V* x);
  V* f32_to_bf16(V* x);
  V* f32_to_narrow(V* x, DType to, bool wrap);
  V* decode_f8(V* x, DType from);
  V* number(DType t, double v);
  V* integer(llvm::Type* vector, int64_t v) {
    return llvm::ConstantInt::get(vector, static_cast<uint64_t>(v), true);
  }
  V* intrinsic(unsigned id, std::span<V* const> args);
  llvm::Type* vec(llvm::Type* e) const { return llvm::FixedVectorType::get(e, lanes_); }

  llvm::IRBuilder<>& b_;
  CpuIsa isa_;
  unsigned lanes_;
};

}  // namespace ferrule
