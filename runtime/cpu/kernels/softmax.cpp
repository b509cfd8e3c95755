// Softmax and LogSoftmax: short dense rows (class scores) by a loop of our own that works on many rows at
// once, everything else through oneDNN.
#include <algorithm>
#include <bit>
#include <cmath>

#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kLongest = 16, kRows = 64;

/// e^x for x <= 0, 1 ulp; -inf and everything below -104 give 0, NaN stays. source: Cephes expf
inline float exp_below_zero(float x) {
  const float clamped = x < -104.0f ? -104.0f : x;
  // Adding 1.5 * 2^23 rounds to an integer; its low bits are that integer.
  const float shifted = clamped * 1.44269504f + 12582912.0f, n = shifted - 12582912.0f;
  const float r = (clamped - n * 0.693359375f) - n * -2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  // 2^n in two factors, so that results below the smallest normal number are right, too.
  const int32_t whole = static_cast<int32_t>(n), half = whole / 2;
  const float a = std::bit_cast<float>((half + 127) << 23), b = std::bit_cast<float>((whole - half + 127) << 23);
  return p * a * b;
}

/// `rows` (at most kRows) rows of n floats, [rows, n] in memory; worked on as [n, rows].
__attribute__((target_clones("avx512f", "avx2", "default"))) void short_rows(const float* x, float* y, int64_t rows,
                                                                              int64_t n, bool logarithm) {
  float v[kLongest][kRows], e[kRows], top[kRows], sum[kRows];
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < n; ++k) v[k][r] = x[r * n + k];
  for (int64_t r = rows; r < kRows; ++r)
    for (int64_t k = 0; k < n; ++k) v[k][r] = 0;
  std::copy_n(v[0], kRows, top);
  for (int64_t k = 1; k < n; ++k)
#pragma omp simd
    for (int64_t r = 0; r < kRows; ++r) top[r] = v[k][r] > top[r] || v[k][r] != v[k][r] ? v[k][r] : top[r];
  std::fill_n(sum, kRows, 0.0f);
  for (int64_t k = 0; k < n; ++k) {
#pragma omp simd
    for (int64_t r = 0; r < kRows; ++r) {
      v[k][r] -= top[r];
      e[r] = exp_below_zero(v[k][r]);
      sum[r] += e[r];
      if (!logarithm) v[k][r] = e[r];
    }
  }
  if (logarithm)
    for (int64_t r = 0; r < rows; ++r) sum[r] = std::log(sum[r]);
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t k = 0; k < n; ++k) y[r * n + k] = logarithm ? v[k][r] - sum[r] : v[k][r] / sum[r];
}

class ShortSoftmax final : public Kernel {
 public:
  ShortSoftmax(const Operand& x, const Operand& y, int64_t n, bool logarithm)
      : rows_(x.numel() / n), n_(n), logarithm_(logarithm), x_slot_(x.slot), y_slot_(y.slot) {
    if (x.constant) x_ = x.constant->data();
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
  }
  std::string text() const override { return "softmax_short_rows"; }
  Status run() override {
    parallel_for((rows_ + kRows - 1) / kRows, std::max<int64_t>(1, 64 / n_), [&](int64_t begin, int64_t end) {
      for (int64_t k = begin * kRows; k < std::min(rows_, end * kRows); k += kRows)
        short_rows(static_cast<const float*>(x_) + k * n_, static_cast<float*>(y_) + k * n_,
                   std::min(kRows, rows_ - k), n_, logarithm_);
    });
    return {};
  }

 private:
  int64_t rows_, n_;
  bool logarithm_;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
};

}  // namespace

Result<KernelPtr> make_softmax(Context& context, const Call& call) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  if (x.dtype != DType::f32)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, name(x.dtype));
  int64_t axis = call.node->attrs.i("axis", -1);
  if (axis < 0) axis += x.rank();
  if (axis < 0 || axis >= x.rank())
    return error(Code::bad_attribute, escape(call.layer), "axis", "it is not an axis of the input");
  const bool logarithm = call.node->op == "LogSoftmax";
  const int64_t size = x.dims[static_cast<size_t>(axis)];
  if (x.strides()[static_cast<size_t>(axis)] == 1 && x.layout == y.layout && size <= kLongest && size > 0)
    return std::make_unique<ShortSoftmax>(x, y, size, logarithm);
  return guard(call, "softmax", [&]() -> Result<KernelPtr> {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    dnnl::softmax_forward::primitive_desc desc(
        context.library.engine, dnnl::prop_kind::forward_inference,
        logarithm ? dnnl::algorithm::softmax_log : dnnl::algorithm::softmax_accurate, desc_of(x), desc_of(y),
        static_cast<int>(axis), attr);
    auto kernel = std::make_unique<Prepared>(context, dnnl::softmax_forward(desc), desc.impl_info_str());
    kernel->operand(DNNL_ARG_SRC, desc.src_desc(), x);
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), y.slot);
    kernel->scratchpad(desc.scratchpad_desc());
    return kernel;
  });
}

}  // namespace ferrule::cpu
