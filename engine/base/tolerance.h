// Every tolerance there is, by element type and by what was computed. Nothing else in the repository holds
// one, and none is widened to make a case pass (reliability.md's classes T0 to T2, and end to end).
#pragma once
#include "engine/base/dtype.h"

namespace ferrule {

/// |got - want| <= relative * |want| + absolute * max(1, largest |want|). NaN and infinity must agree exactly.
struct Tolerance {
  double relative = 0, absolute = 0;
};

/// Whole models and single layers of a backend against a reference run.
constexpr Tolerance model_tolerance(DType t) {
  switch (t) {
    case DType::f64: return {1e-9, 1e-11};
    case DType::f32: return {1e-4, 1e-5};
    case DType::f16: return {1e-2, 1e-3};
    case DType::bf16: return {2e-2, 1e-2};
    default: return {};  // integers, bool: equal
  }
}

/// A rewrite against what it replaces, by the rule's numerics class.
constexpr Tolerance rewrite_tolerance(DType t, bool reassociating) {
  if (!reassociating) return {};
  switch (t) {
    case DType::f64: return {1e-12, 1e-14};
    case DType::f32: return {2e-5, 2e-6};
    case DType::f16: return {5e-3, 1e-3};
    case DType::bf16: return {2e-2, 1e-2};
    default: return {};
  }
}

/// A model that computes in a shorter type than its own (the reduced rules), against f64: its errors, root mean square and
/// largest, over those of the interpreter with the same rules. What depth does to rounding, it does to both.
inline constexpr double kReducedFactor = 3;

/// Generated code against the formula: units in the last place of transcendental functions.
inline constexpr int kTranscendentalUlp = 4;

}  // namespace ferrule
