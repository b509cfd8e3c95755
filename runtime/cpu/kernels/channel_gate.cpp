// The gate of a squeeze-and-excite block as one parallel region: threads sum parts of the images,
// and whoever finishes an image's last part runs its dense layers, which are small, on the sums
// while they are in the cache. Parts are the same whatever the number of threads, and are added in
// order: the result does not depend on it.
#include <algorithm>
#include <atomic>
#include <cmath>

#include "codegen/cpu/jit.h"
#include "engine/contract/roles.h"
#include "runtime/cpu/kernel.h"
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

/// One dense layer and what is done to its results (null: nothing).
struct Layer {
  int64_t in = 0, out = 0;
  std::vector<float> weights, bias;  ///< [in, out]; zeros where there is none
  std::shared_ptr<const CompiledKernel> act;

  void run(const float* from, float* to) const {
    multiply(from, weights.data(), bias.data(), in, out, to);
    if (!act) return;
    void* pointers[] = {to, to};
    const int64_t n[] = {1, out}, strides[] = {0, 0};
    act->fn(pointers, n, strides, strides);
  }
};

class ChannelGateKernel final : public Kernel {
 public:
  ChannelGateKernel(const Operand& x, const Operand& y, Layer squeeze, Layer excite)
      : images_(x.dims[0]),
        channels_(x.dims[1]),
        widest_(std::max(channels_, squeeze.out)),
        x_slot_(x.slot),
        y_slot_(y.slot),
        squeeze_(std::move(squeeze)),
        excite_(std::move(excite)) {
    pixels_ = x.numel() / (images_ * channels_);
    parts_ = std::clamp<int64_t>(pixels_ * channels_ / 8192, 1, std::min<int64_t>(16, pixels_));
    if (x.constant) x_ = x.constant->data();
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
  std::string text() const override { return "channel_gate"; }

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
  /// Sums of the parts, then room for the first layer's results.
  int64_t floats_an_image() const { return parts_ * channels_ + widest_; }

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
    float* hidden = sums + parts_ * channels_;
    squeeze_.run(sums, hidden);
    excite_.run(hidden, static_cast<float*>(y_) + image * excite_.out);
  }

  int64_t images_, channels_, widest_, pixels_ = 0, parts_ = 1;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  float* scratch_ = nullptr;
  Layer squeeze_, excite_;
  std::unique_ptr<std::atomic<int64_t>[]> finished_;
};

/// `w`: [out, in]; `b`: [out], or one for all.
Applicable<Layer> layer_of(Context& context, const KernelCall& call, std::string_view w,
                           std::string_view b, std::string_view act) {
  const RoleTensor& weights = *call.roles->tensor(w);
  const RoleTensor* bias = call.roles->tensor(b);
  auto strided = [&](const RoleTensor& t) {
    const std::vector<int64_t>& dims = call.inputs[t.slot].dims;
    return role_strides(t, dims, strides_of(dims, Layout::plain));
  };
  const RoleStrides l = strided(weights);
  const Tensor* values = call.inputs[weights.slot].constant;
  const Tensor* added = bias ? call.inputs[bias->slot].constant : nullptr;
  if (!values || (bias && !added))
    return not_applicable(call.layer, "channel_gate", "weights that are computed");
  Layer layer{l.dims[1], l.dims[0], {}, {}, nullptr};
  for (int64_t i = 0; i < layer.in; ++i)
    for (int64_t j = 0; j < layer.out; ++j)
      layer.weights.push_back(
          static_cast<float>(values->at_f64(j * l.strides[0] + i * l.strides[1])));
  const int64_t step = bias ? strided(*bias).strides[0] : 0;
  for (int64_t j = 0; j < layer.out; ++j)
    layer.bias.push_back(added ? static_cast<float>(added->at_f64(j * step)) : 0);
  if (const Graph* formula = call.roles->formula(act)) {
    FERRULE_ASSIGN(const auto request, formula_request(context, *formula, call.layer));
    FERRULE_ASSIGN(layer.act, CpuJit::instance().compile(request.key, request.name));
  }
  return layer;
}

}  // namespace

Applicable<KernelPtr> make_channel_gate(Context& context, const KernelCall& call) {
  const Operand& x = call.inputs[call.roles->tensor("x")->slot];
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "channel_gate", why);
  };
  if (x.dtype != DType::f32) return refuse(name(x.dtype));
  if (x.numel() == 0) return refuse("an empty image");
  if (!x.lies(Layout::channels_last)) return refuse("an image that is not channels-last");
  FERRULE_ASSIGN(Layer squeeze, layer_of(context, call, "W1", "b1", "act1"));
  FERRULE_ASSIGN(Layer excite, layer_of(context, call, "W2", "b2", "act2"));
  return std::make_unique<ChannelGateKernel>(x, call.outputs[0], std::move(squeeze),
                                             std::move(excite));
}

}  // namespace ferrule::cpu
