// The gate of a squeeze-and-excite block as one parallel region: threads sum parts of the images,
// and whoever finishes an image's last part runs its dense layers, which are small, on the sums
// while they are in the cache. Parts are the same whatever the number of threads, and are added in
// order: the result does not depend on it.
#include "engine/contract/channel_gate.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

__attribute__((target_clones("avx512f", "avx2", "default"))) void add_pixels(const float* x,
                                                                             int64_t pixels,
                                                                             int64_t channels,
                                                                             float* sums) {
  for (int64_t p = 0; p < pixels; ++p, x += channels) {
#pragma omp simd
    for (int64_t k = 0; k < channels; ++k) sums[k] += x[k];
  }
}

/// y = b + x W, W as [in, out].
__attribute__((target_clones("avx512f", "avx2", "default"))) void multiply(
    const float* x, const float* w, const float* b, int64_t in, int64_t out, float* y) {
  for (int64_t j = 0; j < out; ++j) y[j] = b[j];
  for (int64_t i = 0; i < in; ++i, w += out) {
    const float v = x[i];
#pragma omp simd
    for (int64_t j = 0; j < out; ++j) y[j] += v * w[j];
  }
}

/// NaN comes through, as in the formulas.
float clamped(float v, float low, float high) { return v < low ? low : v > high ? high : v; }

void activate(const PostOp& op, float* y, int64_t n) {
  const float a = op.alpha, b = op.beta;
  auto each = [&](auto f) {
    for (int64_t k = 0; k < n; ++k) y[k] = f(y[k]);
  };
  if (op.alg == "relu")
    each([](float v) { return v < 0 ? 0 : v; });
  else if (op.alg == "leaky_relu")
    each([a](float v) { return v < 0 ? a * v : v; });
  else if (op.alg == "clip")
    each([a, b](float v) { return clamped(v, a, b); });
  else if (op.alg == "hardsigmoid")
    each([a, b](float v) { return clamped(a * v + b, 0, 1); });
  else if (op.alg == "hardswish")
    each([a, b](float v) { return v * clamped(a * v + b, 0, 1); });
  else
    each([](float v) { return 1 / (1 + std::exp(-v)); });  // logistic
}

class ChannelGateKernel final : public Kernel {
 public:
  ChannelGateKernel(const KernelCall& call, const ChannelGate& gate)
      : images_(call.inputs[0].dims[0]),
        channels_(call.inputs[0].dims[1]),
        x_slot_(call.inputs[0].slot),
        y_slot_(call.outputs[0].slot) {
    pixels_ = call.inputs[0].numel() / (images_ * channels_);
    parts_ = std::clamp<int64_t>(pixels_ * channels_ / 8192, 1, std::min<int64_t>(16, pixels_));
    if (call.inputs[0].constant) x_ = call.inputs[0].constant->data();
    widest_ = channels_;
    for (const DenseLayer& l : gate.layers) add_layer(l);
    finished_ = std::make_unique<std::atomic<int64_t>[]>(static_cast<size_t>(images_));
  }

  int64_t scratch_bytes() const override {
    return images_ * floats_an_image() * int64_t{sizeof(float)};
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    scratch_ = static_cast<float*>(binder.scratch());
  }
  std::string text() const override { return fmt::format("channel_gate:{}", layers_.size()); }

  Status run() override {
    for (int64_t k = 0; k < images_; ++k)
      finished_[static_cast<size_t>(k)].store(0, std::memory_order_relaxed);
    parallel_for(
        images_ * parts_, std::max<int64_t>(1, parts_ / 8), [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) {
            const int64_t image = k / parts_;
            sum_part(image, k % parts_);
            if (finished_[static_cast<size_t>(image)].fetch_add(1, std::memory_order_acq_rel) ==
                parts_ - 1)
              excite(image);
          }
        });
    return {};
  }

 private:
  struct Layer {
    int64_t in, out;
    std::vector<float> weights, bias;  ///< [in, out]; zeros where there is none
    std::vector<PostOp> tail;
  };

  void add_layer(const DenseLayer& l) {
    const int64_t out = l.weights->dims()[0], in = l.weights->dims()[1];
    Layer layer{in, out, std::vector<float>(static_cast<size_t>(in * out)),
                std::vector<float>(static_cast<size_t>(out)), l.tail};
    for (int64_t j = 0; j < out; ++j) {
      for (int64_t i = 0; i < in; ++i)
        layer.weights[static_cast<size_t>(i * out + j)] =
            static_cast<float>(l.weights->at_f64(j * in + i));
      if (l.bias) layer.bias[static_cast<size_t>(j)] = static_cast<float>(l.bias->at_f64(j));
    }
    widest_ = std::max(widest_, out);
    layers_.push_back(std::move(layer));
  }

  /// Sums of the parts, then room for two layers' results.
  int64_t floats_an_image() const { return parts_ * channels_ + 2 * widest_; }

  void sum_part(int64_t image, int64_t part) const {
    const int64_t begin = pixels_ * part / parts_, end = pixels_ * (part + 1) / parts_;
    float* sums = scratch_ + image * floats_an_image() + part * channels_;
    std::fill_n(sums, channels_, 0.0f);
    add_pixels(static_cast<const float*>(x_) + (image * pixels_ + begin) * channels_, end - begin,
               channels_, sums);
  }

  void excite(int64_t image) const {
    float* sums = scratch_ + image * floats_an_image();
    add_pixels(sums + channels_, parts_ - 1, channels_, sums);
    for (int64_t k = 0; k < channels_; ++k) sums[k] /= static_cast<float>(pixels_);
    const float* from = sums;
    float* room = sums + parts_ * channels_;
    for (size_t k = 0; k < layers_.size(); ++k) {
      const Layer& l = layers_[k];
      float* to = k + 1 == layers_.size() ? static_cast<float*>(y_) + image * l.out
                                          : room + static_cast<int64_t>(k % 2) * widest_;
      multiply(from, l.weights.data(), l.bias.data(), l.in, l.out, to);
      for (const PostOp& op : l.tail) activate(op, to, l.out);
      from = to;
    }
  }

  int64_t images_, channels_, pixels_ = 0, parts_ = 1, widest_ = 0;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  float* scratch_ = nullptr;
  std::vector<Layer> layers_;
  std::unique_ptr<std::atomic<int64_t>[]> finished_;
};

}  // namespace

Applicable<KernelPtr> make_channel_gate(Context& context, const KernelCall& call) {
  const Operand& x = call.inputs[0];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "channel_gate", why);
  };
  if (x.dtype != DType::f32) return refuse(name(x.dtype));
  if (x.numel() == 0) return refuse("an empty image");
  if (!x.lies(Layout::channels_last)) return refuse("an image that is not channels-last");
  FERRULE_ASSIGN(ChannelGate gate,
                 read_channel_gate(*call.graph, call.graph->order(), *context.ops));
  return std::make_unique<ChannelGateKernel>(call, gate);
}

}  // namespace ferrule::cpu
