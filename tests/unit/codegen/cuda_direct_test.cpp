// The plain kernels for convolutions, transposed ones and products compile for every device that
// there is a compiler for. What they compute is compared on the stubs (tests/gpu/state_test.py).
#include "codegen/cuda/direct.h"

#include <doctest/doctest.h>

#include "codegen/cuda/nvrtc.h"
#include "engine/base/diagnostics.h"
#include "tests/unit/codegen/row_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

RowLayout lying_plain(const Dims& d) { return {d, strides_of(d, Layout::plain)}; }

CudaDirect window_sums(CudaDirect::Kind kind, DType type, const Dims& x, const Dims& w,
                       const Dims& y) {
  CudaDirect d;
  d.kind = kind, d.type = type;
  d.a = lying_plain(x), d.b = lying_plain(w), d.y = lying_plain(y), d.c = lying_plain({y[1]});
  d.at_y = 3;
  d.strides.assign(x.size() - 2, 2);
  d.dilations = d.begin = Dims(x.size() - 2, 1);
  d.groups = 2;
  return d;
}

}  // namespace

TEST_CASE("direct convolutions and products compile for every device") {
  if (const auto info = nvrtc_info(); !info) {
    MESSAGE("skipped, NVRTC is not there: " << info.error().message);
    return;
  }
  using Kind = CudaDirect::Kind;
  int turn = 0;
  for (DType t : {DType::f32, DType::f16, DType::bf16, DType::f64}) {
    CudaDirect product;
    product.kind = Kind::product, product.type = t;
    product.a = lying_plain({3, 5, 7}), product.b = lying_plain({3, 7, 4}),
    product.y = lying_plain({3, 5, 4});
    product.alpha = 0.5f;
    for (const CudaDirect& d :
         {window_sums(Kind::convolution, t, {2, 4, 7, 6}, {6, 2, 3, 3}, {2, 6, 4, 3}),
          window_sums(Kind::convolution, t, {2, 4, 5, 7, 6}, {6, 2, 3, 3, 3}, {2, 6, 3, 4, 3}),
          window_sums(Kind::deconvolution, t, {2, 4, 7, 6}, {4, 2, 3, 3}, {2, 4, 13, 11}),
          product}) {
      auto planned = plan_cuda_direct(d, "kernel");
      REQUIRE_MESSAGE(planned.has_value(), (planned ? "" : planned.error().reason()));
      // A tenth of a second for one: each form in one type or two for each of them.
      for (const char* target : {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}) {
        if (turn++ % 3) continue;
        auto cubin = compile_cuda(planned->source, "kernel", target);
        CHECK_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
      }
    }
  }
}
