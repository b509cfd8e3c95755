// Every tolerance there is, by element type and by what was computed. Nothing else in the
// repository holds one, and none is widened to make a case pass (reliability.md's classes T0 to T2,
// and end to end).
#pragma once
#include <limits>

#include "engine/base/dtype.h"

namespace ferrule {

/// Of each element: |got - want| <= relative * |want| + absolute * max(1, largest |want|). NaN and
/// infinity must agree exactly. Of all finite elements together: |got - want| <= norm * |want| +
/// least * sqrt(their number), Euclidean norms: a result that is small beside `absolute` must be
/// right, too. `least`: what the element type does not resolve. `noise`: of max(1, largest |want|),
/// what sums that cancel may make of an element (8 roundings); what is larger than that is judged
/// with its like even where it is small beside `absolute` (systematic() of compare.h). 0: never.
struct Tolerance {
  double relative = 0, absolute = 0;
  double norm = std::numeric_limits<double>::infinity(), least = 0, noise = 0;
};

/// Whole models and single layers of a backend against a reference run.
constexpr Tolerance model_tolerance(DType t) {
  switch (t) {
    case DType::f64:
      return {1e-9, 1e-11, 1e-9, 0x1p-1022, 0x1p-50};
    case DType::f32:
      return {1e-4, 1e-5, 1e-4, 0x1p-126, 0x1p-21};
    case DType::f16:
      return {1e-2, 1e-3, 1e-2, 0x1p-24};
    case DType::bf16:
      return {2e-2, 1e-2, 2e-2, 0x1p-126};
    default:
      return {};  // integers, bool, strings: equal
  }
}

/// Operators in the interpreter against stored results. `composed`: several, which round in
/// between.
constexpr Tolerance operator_tolerance(DType t, bool composed = false) {
  switch (t) {
    case DType::f64:
      return {1e-9, 1e-11, 1e-9, 0x1p-1022};
    case DType::f32:
      return {2e-6, 1e-7, 2e-6, 0x1p-126};
    case DType::f16:
      return {composed ? 0x1p-9 : 1e-3, 1e-7, composed ? 0x1p-9 : 1e-3, 0x1p-24};
    case DType::bf16:
      return {composed ? 0x1p-6 : 8e-3, 1e-7, composed ? 0x1p-6 : 8e-3, 0x1p-126};
    default:
      return {};
  }
}

/// The few of ONNX's stored results that are rounded to four digits.
inline constexpr Tolerance kRoundedResult{1e-3, 1e-7};

/// A rewrite against what it replaces, by the rule's numerics class. Proofs look for operands that
/// cancel, and what is left of them has no size of its own: elements only.
constexpr Tolerance rewrite_tolerance(DType t, bool reassociating) {
  if (!reassociating) return {};
  switch (t) {
    case DType::f64:
      return {1e-12, 1e-14};
    case DType::f32:
      return {2e-5, 2e-6};
    case DType::f16:
      return {5e-3, 1e-3};
    case DType::bf16:
      return {2e-2, 1e-2};
    default:
      return {};
  }
}

/// A model that computes in a shorter type than its own (the reduced rules), against f64: its
/// errors, root mean square and largest, over those of the interpreter with the same rules. What
/// depth does to rounding, it does to both.
inline constexpr double kReducedFactor = 3;

/// What f32 arithmetic rounds away of a term that another one cancels (1 + erf in Gelu, as ONNX
/// defines it), by its size.
inline constexpr double kCancelled = 0x1p-24;

/// Generated code against the formula: units in the last place of transcendental functions.
inline constexpr int kTranscendentalUlp = 4;

}  // namespace ferrule
