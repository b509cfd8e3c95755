// Pooling without the library.
#pragma once
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {

/// Windows and whole images of f32 and f64, maxima of i8 and u8, too; not applicable for all
/// others.
Applicable<KernelPtr> make_own_pool(const KernelCall& call);

}  // namespace ferrule::cpu
