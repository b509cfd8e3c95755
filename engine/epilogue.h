// What a library kernel can do to its result before storing it: recognised in the tail's scalar program, not
// in operator names, so that users' operators map too. It stands in the engine because the kernel conditions
// (accepts) ask it while planning; the backends only translate PostOps into their library's words.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/formula/scalar.h"

namespace ferrule {

struct PostOp {
  enum class Kind : uint8_t {
    eltwise,  ///< one of the forms in epilogue.cpp, with alpha and beta
    binary,   ///< add, sub, mul, div, max, min with another tensor: result OP operand
    sum,      ///< add, where the operand's memory becomes the result's (chosen by the backend)
  } kind = Kind::eltwise;
  std::string alg;
  float alpha = 0, beta = 0;
  int operand = -1;         ///< binary, sum: the program input that is read
  bool deviates = false;
  std::string deviation;    ///< how the library's result differs from the formula
};

/// The program's single output as a chain of post operations on program input `anchor`; nullopt where the
/// library has no form for it.  `strict`: forms that deviate from the formula are not used.
std::optional<std::vector<PostOp>> to_post_ops(const Program& program, uint32_t anchor, bool strict);

}  // namespace ferrule
