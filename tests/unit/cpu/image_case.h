// A convolution of images or rows, channels-last, that a kernel of ours computes: its operands, and
// its result by plain sums in f64.
#pragma once
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {

struct ImageCase {
  Dims x, w;  ///< [images, channels, …], [filters, channels, …]
  Dims strides, dilations, pads;
  bool bias = true;
  Dims out() const {
    Dims y{x[0], w[0]};
    const size_t spatial = x.size() - 2;
    for (size_t k = 0; k < spatial; ++k)
      y.push_back((x[k + 2] + pads[k] + pads[k + spatial] - (w[k + 2] - 1) * dilations[k] - 1) /
                      strides[k] +
                  1);
    return y;
  }
};

/// Dims or numbers along the axes as of an image, whose height is 1 where there is none.
inline Dims image(Dims dims, size_t front, int64_t missing) {
  if (dims.size() == front + 1) dims.insert(dims.begin() + static_cast<int64_t>(front), missing);
  return dims;
}

struct ImageSetup {
  ImageCase c;
  Tensor x, w, b;
  explicit ImageSetup(const ImageCase& c)
      : c(c), x(random_tensor(c.x, 1)), w(random_tensor(c.w, 2)), b(random_tensor({c.w[0]}, 3)) {}
  void start(Harness& h) const {
    h.node.attrs.set("strides", c.strides);
    h.node.attrs.set("pads", c.pads);
    h.node.attrs.set("dilations", c.dilations);
    h.input(x, Layout::channels_last);
    h.constant(w);
    if (c.bias) h.constant(b);
  }
  std::vector<double> sums() const {
    Dims pads = c.pads;
    if (pads.size() == 2) pads = {0, pads[0], 0, pads[1]};
    auto seen = [](const Tensor& t) {
      const auto values = t.as<float>();
      return Tensor::of_f32(image(t.dims(), 2, 1), {values.begin(), values.end()});
    };
    return direct_sum(seen(x), seen(w), c.bias ? &b : nullptr, image(c.out(), 2, 1), pads,
                      image(c.strides, 0, 1), image(c.dilations, 0, 1), 1);
  }
};

}  // namespace ferrule::cpu::test
