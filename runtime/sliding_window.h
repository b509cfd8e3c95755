// What the operators that slide a window have in common: kernel, strides, dilations and pads as
// libraries want them, worked out from the node's attributes and the (already inferred) dims of
// both ends.
#pragma once
#include <vector>

#include "runtime/kernel_call.h"

namespace ferrule {

struct Window {
  std::vector<int64_t> kernel, strides, dilations;  ///< dilations as oneDNN counts them: 0 = dense
  std::vector<int64_t> pads_begin,
      pads_end;  ///< pads_end: what makes the output size right (ceil_mode, auto_pad)
  std::vector<int64_t> asked_end;  ///< pads_end as the model gives them
};

/// A forward window from `in` to `out`. errors: bad_attribute.
Result<Window> window_of(const KernelCall& call, const std::vector<int64_t>& in,
                         const std::vector<int64_t>& out, std::vector<int64_t> kernel);
/// A transposed one (ConvTranspose).
Result<Window> transposed_window_of(const KernelCall& call, const std::vector<int64_t>& in,
                                    const std::vector<int64_t>& out, std::vector<int64_t> kernel);

}  // namespace ferrule
