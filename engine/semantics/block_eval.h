// Evaluates scalar programs on blocks of elements, instruction by instruction: the reference
// meaning of every primitive, and quick enough that the interpreter runs real models. Values lie in
// blocks of their physical type: float for f32 and everything narrower (rounded to its grid),
// double, the integer types, uint8_t for bool; 4-bit integers in 8 bits.
#pragma once
#include <cstddef>
#include <vector>

#include "engine/semantics/scalar.h"

namespace ferrule {

inline constexpr int kBlock = 256;

/// One value converted, as Prim::cast does; `wrap`: fp8 overflow gives NaN / Inf instead of the
/// largest.
Scalar convert(DType to, DType from, const Scalar& value, bool wrap);
/// One primitive, reference semantics, result rounded to `type` unless f64.
Scalar apply(Prim op, DType type, DType operand_type, const Scalar* args, bool f64 = false);
/// Element in the program's inputs -> elements of its outputs. Values are kept as double for floats
/// (f32 rounded after every operation) and int64 for the rest. `f64`: no rounding to f32 in between
/// (the arbiter).
void evaluate(const Program& p, const Scalar* inputs, Scalar* outputs, std::vector<Scalar>& scratch,
              bool f64 = false);

class BlockEvaluator {
 public:
  /// The program must outlive it. `f64`: every float type is a double, unrounded.
  explicit BlockEvaluator(const Program& p, bool f64 = false);
  /// Physical block of input `k`, to be filled with up to kBlock elements before run().
  void* input(size_t k) { return inputs_[k]; }
  void run(int n);
  const void* output(size_t k) const { return values_[program_.outputs[k]]; }
  DType physical(DType t) const;  ///< f32, f64, or the integer type that holds `t`

 private:
  const Program& program_;
  bool f64_;
  std::vector<std::byte> memory_;
  std::vector<void*> values_;  ///< by instruction; loads are their input's block
  std::vector<void*> inputs_;
};

/// Elements of a tensor of type `storage` <-> a physical block of type `physical` (the storage
/// type's own physical type, or f64 for any float). `offset`: first element; 4-bit types are packed
/// two a byte.
void unpack(DType storage, DType physical, const void* tensor, int64_t offset, int n, void* block);
void pack(DType storage, DType physical, const void* block, int n, void* tensor, int64_t offset);

}  // namespace ferrule
