// The weights of a Winograd convolution as it reads them, transformed, and with them what it takes
// to write the model's own again, which nothing else needs: U tells each weight but for its
// rounding, so that two bytes a weight are enough.
#pragma once
#include "runtime/cpu/kernels/winograd_functions.h"
#include "runtime/cpu/library.h"

namespace ferrule::cpu::winograd {

/// U of every pair of channels, as winograd_functions.h lays it out; zeros beyond the channels. The
/// tensor may be given back (Library::reversible) unless too many of its weights are of another
/// size than their neighbours.
Packed transformed_weights(Library& library, const Tensor& weights, const Shape& s, int lanes);

}  // namespace ferrule::cpu::winograd
