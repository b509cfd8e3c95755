// Convolutions of real models on their own, all implementations (runtime/cpu/implementations.h)
// side by side: the least time over many interleaved runs, GFLOP/s of the direct algorithm, and how
// near it is to the machine's limit, measured in the same run: the FMA peak of the threads, or
// copying as many bytes as are read and written, whichever takes longer. (Winograd does less
// arithmetic, so its share can be above 100 %.) `*`: the one that is taken without a tuning file.
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
  int64_t c, h, k;  ///< square images, if `width` says nothing else
  int64_t kernel = 3, stride = 1, groups = 1;
  int64_t width = 0, kernel_width = 0;  ///< 0: as high
  bool padded = true;
  int64_t stride_width = 0;

  int64_t w() const { return width ? width : h; }
  int64_t kw() const { return kernel_width ? kernel_width : kernel; }
  int64_t sw() const { return stride_width ? stride_width : stride; }
  int64_t pad_h() const { return padded ? kernel / 2 : 0; }
  int64_t pad_w() const { return padded ? kw() / 2 : 0; }
  int64_t out_h() const { return (h + 2 * pad_h() - kernel) / stride + 1; }
  int64_t out_w() const { return (w() + 2 * pad_w() - kw()) / sw() + 1; }
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
    // One row or column of pixels, and few filters.
    {"magika", 512, 512, 256, 5, 1, 1, 1, 1, false},
    {"whisper_tiny", 80, 1, 384, 1, 1, 1, 3000, 3},
    {"whisper_tiny", 384, 1, 384, 1, 1, 1, 3000, 3, true, 2},
    {"basic_pitch", 8, 172, 8, 3, 1, 1, 264, 39},
    {"basic_pitch", 8, 172, 32, 5, 1, 1, 264, 5, true, 3},
    {"basic_pitch", 1, 172, 32, 7, 1, 1, 264, 7, true, 3},
    {"basic_pitch", 32, 172, 1, 7, 1, 1, 88, 3},
    {"basic_pitch", 8, 172, 1, 5, 1, 1, 264, 5},
    {"basic_pitch", 1, 1, 36, 1, 1, 1, 44100, 256, false, 256},
    {"basic_pitch", 1, 1, 1, 1, 1, 1, 44098, 256, false, 2},
    // Depthwise.
    {"mobilenet_v2", 96, 112, 96, 3, 2, 96},
    {"mobilenet_v2", 144, 56, 144, 3, 1, 144},
    {"mobilenet_v2", 384, 14, 384, 3, 1, 384},
    {"efficientnet_b0", 144, 56, 144, 5, 2, 144},
    {"efficientnet_b0", 240, 28, 240, 5, 1, 240},
    {"efficientnet_b0", 480, 14, 480, 5, 1, 480},
    {"efficientnet_b0", 672, 14, 672, 5, 2, 672},
    {"efficientnet_b0", 1152, 7, 1152, 5, 1, 1152},
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
      : w(random_tensor({l.k, l.c / l.groups, l.kernel, l.kw()}, seed, -0.1f, 0.1f)),
        bias(random_tensor({l.k}, seed, -1, 1)) {
    node_.op = "Conv";
    node_.attrs.set("pads", std::vector<int64_t>{l.pad_h(), l.pad_w(), l.pad_h(), l.pad_w()});
    node_.attrs.set("strides", std::vector<int64_t>{l.stride, l.sw()});
    node_.attrs.set("group", l.groups);
    for (uint32_t k = 0; k < 3; ++k) node_.inputs.push_back(ValueId{k});
    call_.work = Work::convolution;
    call_.layer = l.model;
    call_.node = &node_;
    call_.graph = &graph_;
    call_.inputs = {{DType::f32, {1, l.c, l.h, l.w()}, Layout::channels_last, 0, nullptr},
                    {DType::f32, w.dims(), Layout::plain, -1, &w},
                    {DType::f32, bias.dims(), Layout::plain, -1, &bias}};
    call_.outputs = {
        {DType::f32, {1, l.k, l.out_h(), l.out_w()}, Layout::channels_last, 1, nullptr}};
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
  const auto w = b.w.as<float>(), bias = b.bias.as<float>();
  double square = 0, most = 0, norm = 0;
  int64_t count = 0;
  const int64_t step_h = (1 + l.out_h() / 14) | 1;  // odd, so that every place of a tile comes up
  const int64_t step_w = (1 + l.out_w() / 14) | 1;
  const int64_t inside = l.c / l.groups;  // channels that a filter reads
  for (int64_t oy = 0; oy < l.out_h(); oy += step_h)
    for (int64_t ox = 0; ox < l.out_w(); ox += step_w)
      for (int64_t k = 0; k < l.k; k += 1 + l.k / 16) {
        double sum = bias[static_cast<size_t>(k)];
        const int64_t first = k / (l.k / l.groups) * inside;
        for (int64_t i = 0; i < l.kernel; ++i)
          for (int64_t j = 0; j < l.kw(); ++j) {
            const int64_t iy = oy * l.stride + i - l.pad_h(), ix = ox * l.sw() + j - l.pad_w();
            if (iy < 0 || ix < 0 || iy >= l.h || ix >= l.w()) continue;
            for (int64_t c = 0; c < inside; ++c)
              sum += static_cast<double>(x[(iy * l.w() + ix) * l.c + first + c]) *
                     w[static_cast<size_t>(((k * inside + c) * l.kernel + i) * l.kw() + j)];
          }
        const double want = std::max(sum, 0.0), off = want - y[(oy * l.out_w() + ox) * l.k + k];
        square += off * off, norm += want * want, most = std::max(most, std::fabs(off)), ++count;
      }
  fmt::print(" {:>12} {:.2e} {:.2e} |", name, std::sqrt(square / norm),
             most / std::sqrt(norm / static_cast<double>(count)));
}

/// The least time for reading half of the bytes and writing the other half.
double seconds_to_copy(int64_t bytes, int threads) {
  const int64_t half = bytes / 2, piece = (half + threads - 1) / threads;
  const auto from = allocate(half + 64), to = allocate(half + 64);
  double best = 1e9;
  for (int n = 0; n < 20; ++n) {
    const auto start = Clock::now();
    parallel_for(threads, 1, [&](int64_t first, int64_t last) {
      const int64_t begin = std::min(half, first * piece), end = std::min(half, last * piece);
      std::memcpy(static_cast<char*>(to.get()) + begin, static_cast<char*>(from.get()) + begin,
                  static_cast<size_t>(end - begin));
    });
    if (n) best = std::min(best, since(start));  // the first touches the pages
  }
  return best;
}

std::string title(const Layer& l) {
  return fmt::format("{} {}x{} {}->{} {}x{}{}{}", l.model, l.h, l.w(), l.c, l.k, l.kernel, l.kw(),
                     l.stride * l.sw() > 1 ? fmt::format(" /{}", l.sw()) : "",
                     l.groups > 1 ? " depthwise" : "");
}

void measure(const Layer& l, const Options& o, Context& context, double peak) {
  const int64_t read = l.c * l.h * l.w(), written = l.k * l.out_h() * l.out_w();
  const int64_t weights = l.k * l.c / l.groups * l.kernel * l.kw();
  auto x = allocate(read * 4 + 64), y = allocate(written * 4 + 64);
  std::memcpy(x.get(), random_tensor({read}, 7, -0.5f, 1).data(), static_cast<size_t>(read) * 4);
  const double flops = 2. * static_cast<double>(weights * l.out_h() * l.out_w());
  const int64_t weight_bytes = weights * 4;
  // What binds: arithmetic, or moving the bytes.
  const double bound = std::max(flops / (peak * 1e9 * o.threads),
                                seconds_to_copy((read + written + weights) * 4, o.threads));
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
  auto chosen = choose(context, Bound(l, 0, x, y).call(), o.threads);
  const std::string taken(chosen ? chosen->name : "");
  std::reverse(rows.begin(), rows.end());  // the library's first
  const std::shared_ptr<void> memory = allocate(scratch);
  for (Row& row : rows)
    for (auto& b : row.bound) b->bind(memory);
  fmt::print("{:<35}|", title(l));
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
    fmt::print(" {:>13} {:8.1f} us {:6.0f} {:4.0f} %{} |",
               row.name == taken ? "*" + row.name : row.name, row.best * 1e6,
               flops / row.best / 1e9, 100 * bound / row.best,
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
    if (o.only.empty() || title(l).find(o.only) != std::string::npos) measure(l, o, context, peak);
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
