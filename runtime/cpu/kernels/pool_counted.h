// Averages that count padding, of windows that hang over it (ceil_mode). oneDNN divides by all that
// a window spans, the standard by what lies in the image or in pads that the model asked for. That
// count is a product over the axes, so the library's average becomes the standard's by a factor for
// each place along an axis: 1 but for the last ones.
#pragma once
#include "runtime/cpu/kernel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {

/// What averages over all that a window spans are multiplied by, at one place along an axis of the
/// result.
struct WindowFactor {
  size_t axis;
  int64_t at;
  float factor;
};
/// Those that are not 1.
std::vector<WindowFactor> window_factors(const Window& w, const std::vector<int64_t>& in,
                                         const std::vector<int64_t>& out);

/// `pool` computes output 0 of the call (f32); behind it, each factor is multiplied into its part
/// of that.
KernelPtr with_factors(KernelPtr pool, const KernelCall& call, std::vector<WindowFactor> factors);

}  // namespace ferrule::cpu
