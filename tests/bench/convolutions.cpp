// Convolutions of real models on their own, all implementations (runtime/cpu/implementations.h)
// side by side: the least time over many interleaved runs, GFLOP/s of the direct algorithm, and the
// share of one FMA peak a thread. (Winograd does less arithmetic, so its share can be above 100 %.)
//
//   ninja -C build bench_convolutions && build/bench_convolutions [--threads N] [--target cpu-avx2]
//   [--cold]
//        [--seconds S] [--only TEXT] [--accuracy]
//
// --cold: so many copies of the weights in turn that none is in a cache, as in a large model.
// --accuracy: errors against a direct sum in double, relative to the rms of the result, instead of
// times. ONEDNN_MAX_CPU_ISA=AVX2 limits the library, too.
#include <fmt/format.h>
#include <immintrin.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <random>

#include "runtime/cpu/implementations.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

using Clock = std::chrono::steady_clock;
double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

struct Layer {
  const char* model;
  int64_t c, h, k;  ///< square images
  int64_t kernel = 3, stride = 1;
};
const Layer kLayers[] = {
    {"resnet50_bn", 64, 56, 64},
    {"resnet50_bn", 128, 28, 128},
    {"resnet50_bn", 256, 14, 256},
    {"resnet50_bn", 512, 7, 512},
    {"open_nsfw", 32, 56, 32},
    {"open_nsfw", 64, 28, 64},
    {"open_nsfw", 128, 14, 128},
    {"open_nsfw", 256, 7, 256},
    {"ddddocr_det", 12, 208, 24},
    {"ddddocr_det", 24, 104, 24},
    {"ddddocr_det", 48, 52, 48},
    {"ddddocr_det", 96, 26, 96},
    {"ddddocr_det", 192, 13, 192},
    {"ddddocr_det", 96, 52, 96},
    {"ddddocr_det", 96, 13, 96},
    {"unet", 3, 128, 16},
    {"unet", 16, 128, 16},
    {"unet", 16, 64, 32},
    {"unet", 32, 64, 32},
    {"unet", 32, 32, 64},
    {"unet", 64, 32, 64},
    {"unet", 64, 16, 128},
    {"unet", 128, 16, 128},
    {"unet", 128, 32, 64},
    {"unet", 64, 64, 32},
    {"unet", 32, 128, 16},
    {"ppocr_v4_det", 96, 20, 24},
    {"ppocr_v4_det", 96, 160, 24},
    {"light_vgg19", 64, 224, 64},
    {"light_vgg19", 256, 56, 256},
    {"light_vgg19", 512, 28, 512},
    {"light_vgg19", 512, 14, 512},
    {"light_inception_v1", 144, 13, 288},
};

Tensor random_tensor(const std::vector<int64_t>& dims, unsigned seed, float low, float high) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> d(low, high);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = d(engine);
  return Tensor::of_f32(dims, v);
}

/// A convolution with bias and relu, bound to memory of its own.
class Bound final : public Binder {
 public:
  Bound(const Layer& l, unsigned seed, const std::shared_ptr<void>& x,
        const std::shared_ptr<void>& y)
      : w(random_tensor({l.k, l.c, l.kernel, l.kernel}, seed, -0.1f, 0.1f)),
        bias(random_tensor({l.k}, seed, -1, 1)) {
    const int64_t pad = l.kernel / 2, out = (l.h + 2 * pad - l.kernel) / l.stride + 1;
    node_.op = "Conv";
    node_.attrs.set("pads", std::vector<int64_t>(4, pad));
    node_.attrs.set("strides", std::vector<int64_t>(2, l.stride));
    for (uint32_t k = 0; k < 3; ++k) node_.inputs.push_back(ValueId{k});
    call_.layer = l.model;
    call_.node = &node_;
    call_.graph = &graph_;
    call_.inputs = {{DType::f32, {1, l.c, l.h, l.h}, Layout::channels_last, 0, nullptr},
                    {DType::f32, w.dims(), Layout::plain, -1, &w},
                    {DType::f32, bias.dims(), Layout::plain, -1, &bias}};
    call_.outputs = {{DType::f32, {1, l.k, out, out}, Layout::channels_last, 1, nullptr}};
    relu_.alg = "relu";
    call_.post_ops = {&relu_, 1};
    memory_[0] = x, memory_[1] = y;
  }
  Bound(const Bound&) = delete;
  const KernelCall& call() const { return call_; }
  /// False where the implementation refuses.
  bool make(Context& context, const Implementation& c) {
    auto made = c.make(context, call_);
    if (!made) return false;
    kernel_ = std::move(*made);
    return true;
  }
  int64_t scratch_bytes() const { return kernel_->scratch_bytes(); }
  void bind(const std::shared_ptr<void>& scratch) {
    scratch_ = scratch;
    kernel_->bind(*this);
  }
  void run() {
    if (auto status = kernel_->run(); !status) throw std::runtime_error(status.error().message);
  }
  std::string text() const { return kernel_->text(); }

  void cell(int slot, const void** where) override { *where = memory_[slot].get(); }
  void cell(int slot, void** where) override { *where = memory_[slot].get(); }
  void memory(int slot, dnnl_memory* m) override {
    dnnl_memory_set_data_handle(m, memory_[slot].get());
  }
  void* scratch() override { return scratch_.get(); }
  Tensor w, bias;

 private:
  Node node_;
  Graph graph_;
  KernelCall call_;
  PostOp relu_;
  KernelPtr kernel_;
  std::shared_ptr<void> memory_[2], scratch_;
};

__attribute__((target("avx512f"))) double peak_512() {
  __m512 a[20];
  for (auto& v : a) v = _mm512_set1_ps(1);
  const __m512 b = _mm512_set1_ps(0.5f);
  const auto start = Clock::now();
  for (int i = 0; i < 20000; ++i)
#pragma GCC unroll 20
    for (auto& v : a) v = _mm512_fmadd_ps(v, b, b);
  const double s = since(start);
  for (auto& v : a) asm volatile("" ::"v"(v));
  return 20000. * 20 * 32 / s / 1e9;
}
__attribute__((target("avx2,fma"))) double peak_256() {
  __m256 a[12];
  for (auto& v : a) v = _mm256_set1_ps(1);
  const __m256 b = _mm256_set1_ps(0.5f);
  const auto start = Clock::now();
  for (int i = 0; i < 20000; ++i)
#pragma GCC unroll 12
    for (auto& v : a) v = _mm256_fmadd_ps(v, b, b);
  const double s = since(start);
  for (auto& v : a) asm volatile("" ::"x"(v));
  return 20000. * 12 * 16 / s / 1e9;
}

struct Options {
  int threads = 1;
  bool cold = false, accuracy = false;
  double seconds = 0.2;
  std::string target, only;
};

/// rms and largest error of y against the sum in double, over the rms of the result.
void print_accuracy(const Layer& l, Bound& b, const float* x, const float* y,
                    const std::string& name) {
  const int64_t pad = l.kernel / 2, out = b.call().outputs[0].dims[2];
  const auto w = b.w.as<float>(), bias = b.bias.as<float>();
  double square = 0, most = 0, norm = 0;
  int64_t count = 0;
  const int64_t step = (1 + out / 14) | 1;  // odd, so that every place of a tile comes up
  for (int64_t oy = 0; oy < out; oy += step)
    for (int64_t ox = 0; ox < out; ox += step)
      for (int64_t k = 0; k < l.k; k += 1 + l.k / 16) {
        double sum = bias[static_cast<size_t>(k)];
        for (int64_t i = 0; i < l.kernel; ++i)
          for (int64_t j = 0; j < l.kernel; ++j) {
            const int64_t iy = oy * l.stride + i - pad, ix = ox * l.stride + j - pad;
            if (iy < 0 || ix < 0 || iy >= l.h || ix >= l.h) continue;
            for (int64_t c = 0; c < l.c; ++c)
              sum += static_cast<double>(x[(iy * l.h + ix) * l.c + c]) *
                     w[static_cast<size_t>(((k * l.c + c) * l.kernel + i) * l.kernel + j)];
          }
        const double want = std::max(sum, 0.0), off = want - y[(oy * out + ox) * l.k + k];
        square += off * off, norm += want * want, most = std::max(most, std::fabs(off)), ++count;
      }
  fmt::print(" {:>12} {:.2e} {:.2e} |", name, std::sqrt(square / norm),
             most / std::sqrt(norm / static_cast<double>(count)));
}

void measure(const Layer& l, const Options& o, Context& context, double peak) {
  const int64_t out = (l.h + 2 * (l.kernel / 2) - l.kernel) / l.stride + 1;
  auto x = allocate(l.c * l.h * l.h * 4 + 64), y = allocate(l.k * out * out * 4 + 64);
  std::memcpy(x.get(), random_tensor({l.c * l.h * l.h}, 7, -0.5f, 1).data(),
              static_cast<size_t>(l.c * l.h * l.h) * 4);
  const double flops = 2. * static_cast<double>(l.c * l.k * l.kernel * l.kernel * out * out);
  const int64_t weight_bytes = l.c * l.k * l.kernel * l.kernel * 4;
  const size_t copies =
      o.cold ? static_cast<size_t>(std::clamp<int64_t>((int64_t{64} << 20) / weight_bytes, 1, 48))
             : 1;
  struct Row {
    std::string name;
    std::vector<std::unique_ptr<Bound>> bound;
    double best = 1e9;
  };
  std::vector<Row> rows;
  int64_t scratch = 0;
  for (const Implementation& c : implementations(Work::convolution)) {
    Row row{std::string(c.name), {}};
    for (size_t k = 0; k < copies; ++k) {
      auto b = std::make_unique<Bound>(l, static_cast<unsigned>(k), x, y);
      if (b->make(context, c)) row.bound.push_back(std::move(b));
    }
    // One scratch for all copies, as layers of a model share theirs.
    if (!row.bound.empty())
      scratch = std::max(scratch, row.bound[0]->scratch_bytes()), rows.push_back(std::move(row));
  }
  if (rows.empty()) return;
  std::reverse(rows.begin(), rows.end());  // the library's first
  const std::shared_ptr<void> memory = allocate(scratch);
  for (Row& row : rows)
    for (auto& b : row.bound) b->bind(memory);
  fmt::print("{:<19} {:>3}x{:<3} {:>4} -> {:<4}|", l.model, l.h, l.h, l.c, l.k);
  const auto start = Clock::now();
  for (size_t n = 0; n < 3 || since(start) < o.seconds; ++n)
    for (Row& row : rows)
      for (size_t k = 0; k < (o.cold ? row.bound.size() : 3); ++k) {
        const auto begin = Clock::now();
        row.bound[o.cold ? k : 0]->run();
        row.best = std::min(row.best, since(begin));
      }
  for (Row& row : rows) {
    if (o.accuracy) {
      row.bound[0]->run();
      print_accuracy(l, *row.bound[0], static_cast<float*>(x.get()), static_cast<float*>(y.get()),
                     row.name);
      continue;
    }
    fmt::print(" {:>12} {:8.1f} us {:6.0f} {:4.0f} %{} |", row.name, row.best * 1e6,
               flops / row.best / 1e9, 100 * flops / row.best / 1e9 / (peak * o.threads),
               &row == &rows[0] ? "" : fmt::format(" x{:.2f}", rows[0].best / row.best));
  }
  fmt::print("\n");
  std::fflush(stdout);
}

int run(const Options& o) {
  set_threads(o.threads);
  Target target;
  target.name = o.target;
  target.isa = {"avx2", "fma", "f16c"};
  target.vector_bytes = 32;
  target.l2_bytes = 1 << 20;
  if (o.target == "cpu-avx512") target.isa.push_back("avx512f"), target.vector_bytes = 64;
  double peak = 0;
  for (int k = 0; k < 50; ++k)
    peak = std::max(peak, target.vector_bytes == 64 ? peak_512() : peak_256());
  PackCache packs;
  Library library(&packs);
  Limits limits;
  Context context{library, nullptr, &target, &limits};
  fmt::print("{}, FMA peak {:.0f} GFLOP/s a thread, {} threads{}\n", o.target, peak, o.threads,
             o.cold ? ", weights not cached" : "");
  for (const Layer& l : kLayers)
    if (o.only.empty() ||
        fmt::format("{} {}x{} {}->{}", l.model, l.h, l.h, l.c, l.k).find(o.only) !=
            std::string::npos)
      measure(l, o, context, peak);
  return 0;
}

}  // namespace
}  // namespace ferrule::cpu

int main(int argc, char** argv) {
  ferrule::cpu::Options o;
  o.target = ferrule::host_target().value_or("");
  for (int k = 1; k < argc; ++k) {
    const std::string_view a = argv[k];
    const char* value = k + 1 < argc ? argv[k + 1] : "";
    if (a == "--cold")
      o.cold = true;
    else if (a == "--accuracy")
      o.accuracy = true;
    else if (a == "--threads")
      o.threads = std::atoi(value), ++k;
    else if (a == "--seconds")
      o.seconds = std::atof(value), ++k;
    else if (a == "--target")
      o.target = value, ++k;
    else if (a == "--only")
      o.only = value, ++k;
    else
      return fmt::print(stderr, "bench_convolutions: what is {}?\n", a), 2;
  }
  return ferrule::cpu::run(o);
}
