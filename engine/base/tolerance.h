// Every tolerance there is, by element type and by what was computed. Nothing else in the
// repository holds one, and none is widened to make a case pass (classes T0 to T2,
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

/// By element type; all others (integers, bool, strings) must be equal.
constexpr Tolerance of_type(DType t, Tolerance f64, Tolerance f32, Tolerance f16, Tolerance bf16) {
  return t == DType::f64    ? f64
         : t == DType::f32  ? f32
         : t == DType::f16  ? f16
         : t == DType::bf16 ? bf16
                            : Tolerance{};
}

/// Whole models and single layers of a backend against a reference run.
constexpr Tolerance model_tolerance(DType t) {
  return of_type(t, {1e-9, 1e-11, 1e-9, 0x1p-1022, 0x1p-50}, {1e-4, 1e-5, 1e-4, 0x1p-126, 0x1p-21},
                 {1e-2, 1e-3, 1e-2, 0x1p-24}, {2e-2, 1e-2, 2e-2, 0x1p-126});
}

/// Operators in the interpreter against stored results. `composed`: several, which round in
/// between.
constexpr Tolerance operator_tolerance(DType t, bool composed = false) {
  const double f16 = composed ? 0x1p-9 : 1e-3, bf16 = composed ? 0x1p-6 : 8e-3;
  return of_type(t, {1e-9, 1e-11, 1e-9, 0x1p-1022}, {2e-6, 1e-7, 2e-6, 0x1p-126},
                 {f16, 1e-7, f16, 0x1p-24}, {bf16, 1e-7, bf16, 0x1p-126});
}

/// Single kernels in f32 that sum in another order than the test that looks at them: elements only.
inline constexpr Tolerance kReordered{2e-5, 2e-6};

/// A model that computes in a shorter type than its own (the reduced rules), against f64: its
/// errors, root mean square and largest, over those of the interpreter with the same rules. What
/// depth does to rounding, it does to both.
inline constexpr double kReducedFactor = 3;

/// What f32 arithmetic rounds away of a term that another one cancels (1 + erf in Gelu, as ONNX
/// defines it), by its size.
inline constexpr double kCancelled = 0x1p-24;

}  // namespace ferrule
