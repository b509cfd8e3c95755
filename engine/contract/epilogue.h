// The epilogue table: a normalised scalar program, seen from an anchor's result, as a sequence of
// operations that a library (oneDNN, cuDNN, cuBLASLt) applies in its epilogue. It looks at
// formulas and not at operator names, so that users' operators map too. Each row names how the
// library deviates from the formula. It lives here and not in codegen, because contracts ask it
// what a library's epilogue takes.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/semantics/scalar.h"

namespace ferrule {

/// How a library's step differs from its formula.
struct Deviation {
  /// What comes out where the formula gives NaN. kept: NaN.
  enum class Nan : uint8_t { kept, zero, bound } nan = Nan::kept;
  std::string_view rounding;  ///< "4.5 ulp"; empty: none
  bool any() const { return nan != Nan::kept || !rounding.empty(); }
};
/// "NaN may become 0", "NaN may become a bound"; empty where it stays.
std::string_view text(Deviation::Nan nan);

/// Which deviations the steps of a tail may have.
enum class Deviations : uint8_t { none, rounding, all };
bool allows(Deviations allowed, const Deviation& d);

struct PostOp {
  enum class Kind : uint8_t { eltwise, binary, sum } kind = Kind::eltwise;
  /// eltwise: relu, leaky_relu, clip, elu, logistic, tanh, swish, hardswish, hardsigmoid, linear,
  /// abs, sqrt, square, exp, log, pow, gelu_tanh, mish, soft_relu, round; binary: add, sub, mul,
  /// div, max, min
  std::string alg;
  float alpha = 0, beta = 0;  ///< as oneDNN defines them for the algorithm
  int operand = -1;           ///< binary, sum: input of the program
  Deviation deviation;
};

inline constexpr size_t kMostPostOps = 16;  ///< of one epilogue

/// The operations that turn the anchor's result (program input `anchor_input`) into the program's
/// only output, in order; nothing if no sequence of rows with no more than these deviations does.
std::optional<std::vector<PostOp>> to_post_ops(const Program& program, uint32_t anchor_input,
                                               Deviations allowed);

/// The table's patterns as written.
std::vector<std::string_view> epilogue_patterns();

}  // namespace ferrule
