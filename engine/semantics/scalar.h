// The scalar program: typed SSA for one element, the single form between rules/ops formulas and
// machine code. The interpreter evaluates it (block_eval.h), codegen/ turns it into LLVM IR and
// CUDA C++, and contract/epilogue recognises in it what a library can do as an epilogue. It lives
// in the engine, not in codegen, because constant folding, proofs and kernel conditions need its
// meaning without any backend.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/dtype.h"
#include "engine/base/result.h"

namespace ferrule {

enum class Prim : uint8_t {
#define FERRULE_PRIMITIVE(id, spelling, arity, cls, cost) id,
#include "engine/semantics/primitives.def"
#undef FERRULE_PRIMITIVE
  load,      ///< element of input `index`, in that input's storage type
  constant,  ///< `f` (floats) or `i` (integers, bool)
  select,    ///< args[0] ? args[1] : args[2]
  cast,  ///< args[0] converted to `type`: float -> int truncates and saturates (NaN -> 0), int ->
         ///< int wraps, to f16 / bf16 rounds to nearest even, to bool is != 0; to fp8 saturates
         ///< unless `i` is 1
};

struct PrimInfo {
  std::string_view id, spelling;
  int arity;
  enum class Class : uint8_t { arith, flt, cmp, logic, bits, test, other } cls;
  int cost;
};
const PrimInfo& info(Prim p);

struct Inst {
  Prim op{};
  DType type{};  ///< type of the result; never f16 / bf16 / fp8 except load and cast
  std::array<uint32_t, 3> args{};
  uint32_t index = 0;  ///< load: which input
  double f = 0;        ///< constant, floating point types
  int64_t i = 0;       ///< constant, integer types and bool
  friend bool operator==(const Inst&, const Inst&) = default;
};

/// Instructions refer only to earlier ones. Inputs and outputs are in storage types (a store to f16
/// is a cast instruction before the output).
struct Program {
  std::vector<DType> inputs;
  std::vector<Inst> insts;
  std::vector<uint32_t> outputs;         ///< instruction numbers
  std::vector<std::string> input_names;  ///< for readable source; sanitised identifiers "x", "in2"
  DType output_type(size_t k) const { return insts[outputs[k]].type; }
  /// Of the inputs, then the outputs.
  DType operand_type(size_t k) const {
    return k < inputs.size() ? inputs[k] : output_type(k - inputs.size());
  }
  int cost() const;      ///< sum of the primitives' costs
  int live_max() const;  ///< most values alive at once: an estimate of registers
};

/// One value: a float type's in `f`, any other's in `i`.
struct Scalar {
  double f = 0;
  int64_t i = 0;
};

std::string to_text(const Program& p);  ///< one line an instruction: "%3 = mul f32 %1, %2"
/// errors: formula_invalid naming the instruction (types, order, arity). Our own check, used in
/// tests.
Status verify(const Program& p);

}  // namespace ferrule
