// Maximum pooling of what is not finite: oneDNN's passes over NaN, and its maximum of nothing but
// -infinity is the lowest finite number. Around the library's kernel: a look at the input, which
// costs a read of it, and plain loops for the windows that hold such an element.
#pragma once
#include "runtime/cpu/kernel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {

/// `pool` computes output 0 of the call (f32 or bf16) from input 0 over these windows.
KernelPtr with_odd_elements(KernelPtr pool, const KernelCall& call, Window window);

}  // namespace ferrule::cpu
