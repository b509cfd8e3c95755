// Making scalar programs instruction by instruction, and making them shorter.
#pragma once
#include <initializer_list>
#include <string>

#include "engine/semantics/scalar.h"

namespace ferrule {

/// Dead code, common subexpressions, constants folded with the reference semantics (only exact
/// simplifications: x*1, double casts that lose nothing, select on a constant).
void simplify(Program& p);

/// Builder used by lowering; inserts no casts by itself.
class ProgramBuilder {
 public:
  uint32_t input(DType storage, std::string name = {});  ///< declares an input and returns its load
  uint32_t load(uint32_t index);                         ///< another load of a declared input
  uint32_t constant(DType type, double f, int64_t i);
  uint32_t op(Prim p, DType type, std::initializer_list<uint32_t> args);
  uint32_t cast(uint32_t value, DType to);  ///< no-op when already of that type
  uint32_t cast_wrapping(uint32_t value,
                         DType to);   ///< to fp8, beyond the largest: NaN or infinity
  uint32_t append(const Inst& inst);  ///< an instruction as it is
  DType type(uint32_t value) const { return program_.insts[value].type; }
  void output(uint32_t value) { program_.outputs.push_back(value); }
  Program take();  ///< simplified

 private:
  Program program_;
};

}  // namespace ferrule
