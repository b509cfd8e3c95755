// Inference by the operator schemas' own functions, for every operator that semantics/infer.h does
// not do itself. Dims travel through onnx's named dimensions, so equal expressions stay equal.
#pragma once

namespace ferrule {

/// Makes it the fallback of infer_node; importing does so by itself. Idempotent and thread-safe.
void install_onnx_inference();

}  // namespace ferrule
