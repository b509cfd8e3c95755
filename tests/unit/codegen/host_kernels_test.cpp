// The host that stands in for a GPU in tests: barriers, warps and shared memory behave as CUDA
// says, and what is wrong with a kernel is seen.
#include "tests/unit/codegen/host_kernels.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

using namespace ferrule::test;

namespace {

/// The arguments of every kernel here.
struct Arguments {
  const float* x;
  float* y;
  int64_t n;
};
constexpr const char* kArguments = "struct Arguments { const float* x; float* y; long long n; };\n";

/// Kernels `text` (their parameter list is put in), compiled.
class Kernels {
 public:
  explicit Kernels(const std::vector<std::string>& bodies, bool raced = false) : kernels_(raced) {
    for (const std::string& body : bodies) {
      std::string text = kArguments + body;
      kernels_.add(text, "kernel");
    }
    std::string wrong = kernels_.compile();
    REQUIRE_MESSAGE(wrong.empty(), wrong);
  }
  std::string launch(size_t id, const std::vector<float>& x, std::vector<float>& y, int64_t n,
                     Dim3 grid, Dim3 block) {
    Arguments a{x.data(), y.data(), n};
    return kernels_.launch(id, {reinterpret_cast<const char*>(&a), sizeof a}, grid, block);
  }

 private:
  HostKernels kernels_;
};

std::vector<float> counted(size_t n) {
  std::vector<float> x(n);
  std::iota(x.begin(), x.end(), 1.0f);
  return x;
}

// Sums over blocks of three warps, by a template with shared memory that two calls use.
constexpr const char* kSums = R"(
template <class T> __device__ __forceinline__ T block_sum(T s) {
  __shared__ T part[3];
  for (int o = 16; o > 0; o >>= 1) s += __shfl_xor_sync(0xffffffffu, s, o);
  __syncthreads();
  if (threadIdx.x == 0) part[threadIdx.y] = s;
  __syncthreads();
  return part[0] + part[1] + part[2];
}
extern "C" __global__ void __launch_bounds__(96) kernel(const Arguments a) {
  float s = 0;
  for (int i = threadIdx.y * 32 + threadIdx.x; i < a.n; i += 96) s += a.x[blockIdx.x * a.n + i];
  s = block_sum(s);
  double squares = block_sum((double)s * s);
  if (threadIdx.x == 5 && threadIdx.y == 2) { a.y[2 * blockIdx.x] = s; a.y[2 * blockIdx.x + 1] = (float)squares; }
}
)";

// A running sum over 1024 threads: twenty barriers.
constexpr const char* kScan = R"(
extern "C" __global__ void kernel(const Arguments a) {
  __shared__ float s[1024];
  const int t = threadIdx.x;
  s[t] = a.x[t];
  for (int by = 1; by < 1024; by *= 2) {
    __syncthreads();
    float left = t >= by ? s[t - by] : 0;
    __syncthreads();
    s[t] += left;
  }
  a.y[blockIdx.x * 1024 + t] = s[t];
}
)";

constexpr const char* kShuffles = R"(
extern "C" __global__ void kernel(const Arguments a) {
  const int t = threadIdx.x;
  float* y = a.y + t * 8;
  const unsigned all = 0xffffffffu;
  y[0] = __shfl_down_sync(all, (float)t, 3);
  y[1] = __shfl_up_sync(all, (double)t, 1, 8);
  y[2] = __shfl_sync(all, t, 9, 8);
  y[3] = (float)__popc(__ballot_sync(all, t % 32 < 5));
  y[4] = __any_sync(all, t == 40);
  y[5] = __all_sync(all, t < 40);
  y[6] = -1;
  if (t % 2) y[6] = __shfl_xor_sync(0xaaaaaaaau, t, 2);
  __syncwarp();
  y[7] = __shfl_xor_sync(all, (unsigned char)t, 16, 32);
}
)";

// Every thread leaves a number; the last block to end adds them up and leaves the counter at zero.
constexpr const char* kLastBlock = R"(
extern "C" __global__ void kernel(const Arguments a) {
  __shared__ bool last;
  volatile float* left = a.y + 2;
  unsigned* done = (unsigned*)a.y + 1;
  left[blockIdx.x * 64 + threadIdx.x] = a.x[blockIdx.x * 64 + threadIdx.x];
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicInc(done, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last || threadIdx.x) return;
  float s = 0;
  for (int k = 0; k < a.n; ++k) s += left[k];
  a.y[0] = s;
}
)";

}  // namespace

TEST_CASE("barriers, shared memory and several axes of threads on the host") {
  if (HostKernels::missing()) return;
  Kernels k({kSums, kScan});
  std::vector<float> x = counted(5 * 200), y(10);
  CHECK(k.launch(0, x, y, 200, {5}, {32, 3}) == "");
  for (int b = 0; b < 5; ++b) {
    float want = std::accumulate(x.begin() + b * 200, x.begin() + (b + 1) * 200, 0.0f);
    CHECK(y[static_cast<size_t>(2 * b)] == want);
    CHECK(y[static_cast<size_t>(2 * b) + 1] == static_cast<float>(96.0 * want * want));
  }
  std::vector<float> sums(2048), want(1024);
  x.resize(1024, 2);
  std::partial_sum(x.begin(), x.end(), want.begin());
  CHECK(k.launch(1, x, sums, 0, {2}, {1024}) == "");
  CHECK(std::equal(want.begin(), want.end(), sums.begin()));
  CHECK(std::equal(want.begin(), want.end(), sums.begin() + 1024));
}

TEST_CASE("warps on the host: shuffles of every kind, votes, parts of a warp") {
  if (HostKernels::missing()) return;
  Kernels k({kShuffles});
  std::vector<float> y(64 * 8);
  CHECK(k.launch(0, {}, y, 0, {1}, {64}) == "");
  for (int t = 0; t < 64; ++t) {
    int lane = t % 32;
    CAPTURE(t);
    const float* got = y.data() + t * 8;
    CHECK(got[0] == static_cast<float>(lane + 3 < 32 ? t + 3 : t));
    CHECK(got[1] == static_cast<float>(lane % 8 ? t - 1 : t));
    CHECK(got[2] == static_cast<float>(t / 8 * 8 + 1));
    CHECK(got[3] == 5);
    CHECK(got[4] == (t >= 32 ? 1 : 0));
    CHECK(got[5] == (t < 32 ? 1 : 0));
    CHECK(got[6] == static_cast<float>(t % 2 ? t ^ 2 : -1));
    CHECK(got[7] == static_cast<float>(t ^ 16));
  }
}

TEST_CASE("what is wrong with a kernel is seen on the host") {
  if (HostKernels::missing()) return;
  auto body = [](const char* text) {
    return "extern \"C\" __global__ void kernel(const Arguments a) {\n  __shared__ float s[64];\n"
           "  const int t = threadIdx.x;\n" +
           std::string(text) + "\n}\n";
  };
  Kernels k({
      body("s[t] = a.x[t]; a.y[t] = s[63 - t];"),                              // 0: a race
      body("s[t] = a.x[t]; __syncthreads(); a.y[t] = s[63 - t];"),             // 1: right
      body("if (t < 40) __syncthreads();\n a.y[t] = a.x[63 - t];"),            // 2
      body("if (t == 7) return;\n __syncthreads();\n a.y[t] = a.x[63 - t];"),  // 3
      body("if (t < 10) a.y[t] = __shfl_xor_sync(0xffffffffu, t, 1);"),        // 4
      body("if (t < 32) __syncthreads();\n else\n __syncthreads();"),          // 5
      body("if (t < 10) a.y[t] = __shfl_xor_sync(0x1u, t, 1);"),               // 6
      body("a.y[t] = s[t];"),                                                  // 7: nothing written
  });
  std::vector<float> x = counted(64), want(x.rbegin(), x.rend()), y(64);
  auto run = [&](size_t id) { return k.launch(id, x, y, 0, {1}, {64}); };
  auto has = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(run(0) == "");
  CHECK(y != want);
  const std::string wrong[] = {run(2), run(3), run(4), run(5), run(6)};
  CHECK_MESSAGE(has(wrong[0], "24 ended, 40 wait at __syncthreads"), wrong[0]);
  CHECK_MESSAGE(has(wrong[1], "1 ended, 63 wait at __syncthreads"), wrong[1]);
  CHECK_MESSAGE(has(wrong[2], "10 for their warp"), wrong[2]);
  CHECK_MESSAGE(has(wrong[3], "__syncthreads of lines"), wrong[3]);
  CHECK_MESSAGE(has(wrong[4], "under a mask that does not have it"), wrong[4]);
  CHECK(run(7) == "");
  for (float v : y) CHECK(std::isnan(v));
  // None of that hurts a launch that follows.
  CHECK(run(1) == "");
  CHECK(y == want);
}

TEST_CASE(
    "blocks that run at the same time: what no fence, atomic operation or barrier orders is "
    "seen") {
  if (HostKernels::missing()) return;
  std::vector<std::string> texts{kLastBlock};
  auto mutant = [&](std::string_view from, std::string_view to) {
    std::string text = kLastBlock;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    texts.push_back(text.replace(at, from.size(), to));
  };
  mutant("    __threadfence();\n    last", "    last");  // nothing is handed on
  // Each thread hands on its own, thread 0 nobody else's.
  mutant("  __syncthreads();\n  if (threadIdx.x == 0) {\n    __threadfence();",
         "  __threadfence();\n  __syncthreads();\n  if (threadIdx.x == 0) {");
  mutant("- 1;\n    __threadfence();", "- 1;");  // nothing is taken
  mutant("atomicInc(done, gridDim.x - 1)", "(*done)++");
  mutant("  __syncthreads();\n  if (threadIdx.x == 0)", "  if (threadIdx.x == 0)");
  mutant("  __syncthreads();\n  if (!last", "  if (!last");
  mutant("left[blockIdx.x * 64 + ", "left[blockIdx.x * 63 + ");  // two store one
  Kernels k(texts, true);
  constexpr unsigned kBlocks = 12;
  const std::vector<float> x = counted(64 * kBlocks);
  std::vector<float> y(2 + 64 * kBlocks);
  for (int turn = 0; turn < 4 * races(); ++turn) {
    y[0] = 0;
    REQUIRE(k.launch(0, x, y, 64 * kBlocks, {kBlocks}, {64}) == "");
    REQUIRE(y[0] == 64 * kBlocks * (64 * kBlocks + 1) / 2);
    REQUIRE(y[1] == 0);
  }
  for (size_t id = 1; id < texts.size(); ++id) {
    CAPTURE(texts[id]);
    std::ranges::fill(y, 0.0f);
    CHECK(k.launch(id, x, y, 64 * kBlocks, {kBlocks}, {64}).starts_with("a race: "));
  }
  // Atomic operations alone order nothing, and are no race among themselves.
  Kernels more(
      {"extern \"C\" __global__ void kernel(const Arguments a) {\n"
       "  atomicAdd((unsigned*)a.y, 1u);\n  atomicMax((int*)a.y + 1, (int)blockIdx.x);\n}\n"},
      true);
  std::ranges::fill(y, 0.0f);
  CHECK(more.launch(0, x, y, 0, {kBlocks}, {64}) == "");
  unsigned count = 0, most = 0;
  std::memcpy(&count, &y[0], 4);
  std::memcpy(&most, &y[1], 4);
  CHECK(count == 64 * kBlocks);
  CHECK(most == kBlocks - 1);
}

TEST_CASE("text that does not compile, and arguments that do not fit, are said") {
  if (HostKernels::missing()) return;
  HostKernels broken;
  broken.add("this is no CUDA", "kernel");
  CHECK(broken.compile().find("kernel 0") != std::string::npos);
  HostKernels kernels;
  std::string text = kArguments;
  size_t id =
      kernels.add(text + "extern \"C\" __global__ void kernel(const Arguments a) {}", "kernel");
  CHECK(kernels.compile() == "");
  CHECK(kernels.launch(id, "too short", {1}, {1}) ==
        "an argument block of 9 bytes for a kernel that declares 24");
}
