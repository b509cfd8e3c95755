#include "codegen/cpu/jit.h"

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "codegen/cpu/llvm.h"
#include "codegen/cpu/loop_nest.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"
#include "tests/unit/codegen/helpers.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

std::vector<std::string> targets() {
  std::vector<std::string> out{"cpu-avx2"};
  if (widest_target() == "cpu-avx512") out.push_back("cpu-avx512");
  return out;
}

struct JitCase {
  Program program;
  std::vector<InnerStride> inner;
  int64_t outer = 1, n = 1;
  int misaligned = 0;  ///< bytes
  int tolerance = 0;   ///< ulps
};

/// Runs the kernel and compares every element with evaluate(); also that nothing else is written.
void check(const JitCase& c, const std::string& target, Rng& rng) {
  const Program& p = c.program;
  KernelKey key{p, c.inner, target, false};
  auto kernel = CpuJit::instance().compile(key, "test");
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : render(kernel.error())));
  size_t inputs = p.inputs.size(), operands = inputs + p.outputs.size();
  std::vector<std::vector<uint8_t>> memory;
  std::vector<void*> ptrs;
  std::vector<int64_t> outer_strides, inner_strides;
  constexpr int64_t kStride = 3;  // elements, strided operands
  for (size_t k = 0; k < operands; ++k) {
    DType t = k < inputs ? p.inputs[k] : p.output_type(k - inputs);
    int64_t step = c.inner[k] == InnerStride::contiguous ? 1
                   : c.inner[k] == InnerStride::strided  ? kStride
                   : c.inner[k] == InnerStride::second   ? 2
                                                         : 0;
    int64_t row = c.n * std::max<int64_t>(step, 1) + 2, bytes = size_bytes(t, 1);
    std::vector<uint8_t> data = random_bytes(t, row * c.outer, rng);
    memory.emplace_back(data.size() + 128 + static_cast<size_t>(c.misaligned), 0xcd);
    uint8_t* at = memory.back().data() + 64 + c.misaligned;
    if (k < inputs) std::copy(data.begin(), data.end(), at);
    ptrs.push_back(at);
    outer_strides.push_back(row * bytes);
    inner_strides.push_back(step * bytes);
  }
  int64_t n[2] = {c.outer, c.n};
  auto before = memory;
  (*kernel)->fn(ptrs.data(), n, outer_strides.data(), inner_strides.data());
  std::vector<Scalar> in(inputs), out(p.outputs.size()), scratch;
  std::vector<std::vector<uint8_t>> written(operands);
  for (size_t k = 0; k < operands; ++k) written[k].assign(memory[k].size(), 0);
  for (int64_t o = 0; o < c.outer; ++o)
    for (int64_t i = 0; i < c.n; ++i) {
      auto element = [&](size_t k) {
        return static_cast<uint8_t*>(ptrs[k]) + o * outer_strides[k] + i * inner_strides[k];
      };
      for (size_t k = 0; k < inputs; ++k) in[k] = read(p.inputs[k], element(k), 0);
      evaluate(p, in.data(), out.data(), scratch);
      for (size_t k = 0; k < out.size(); ++k) {
        DType t = p.output_type(k);
        Scalar got = read(t, element(inputs + k), 0);
        auto at = static_cast<size_t>(element(inputs + k) - memory[inputs + k].data());
        for (int64_t b = 0; b < size_bytes(t, 1); ++b)
          written[inputs + k][at + static_cast<size_t>(b)] = 1;
        bool same = is_float(t)
                        ? ulps(t == DType::f64 ? t : DType::f32, got.f, out[k].f) <= c.tolerance
                        : got.i == out[k].i;
        if (!same) {
          std::string args;
          for (size_t a = 0; a < inputs; ++a) args += " " + describe(p.inputs[a], in[a]);
          FAIL_CHECK(target << " row " << o << " element " << i << " of " << c.n << ":" << args
                            << " -> " << describe(t, got) << ", wanted " << describe(t, out[k])
                            << "\n"
                            << to_text(p));
          return;
        }
      }
    }
  for (size_t k = inputs; k < operands; ++k)
    for (size_t b = 0; b < memory[k].size(); ++b)
      if (!written[k][b] && memory[k][b] != before[k][b]) {
        FAIL_CHECK(target << ": byte " << b << " beside output was written\n" << to_text(p));
        return;
      }
}

std::vector<InnerStride> all(const Program& p, InnerStride s) {
  return std::vector<InnerStride>(p.inputs.size() + p.outputs.size(), s);
}

}  // namespace

TEST_CASE("every primitive on every compute type equals the reference") {
  Rng rng(1);
  for (const std::string& target : targets())
    for (int k = 0; k < static_cast<int>(Prim::load); ++k)
      for (DType t : kComputeTypes) {
        auto op = static_cast<Prim>(k);
        Program p = one(op, t);
        if (p.outputs.empty()) continue;
        JitCase c{p, all(p, InnerStride::contiguous), 2, 301, 1, is_function(op) ? 4 : 0};
        check(c, target, rng);
      }
}

TEST_CASE("every cast between storage types equals the reference") {
  Rng rng(2);
  for (const std::string& target : targets())
    for (DType from : kStorageTypes)
      for (DType to : kStorageTypes) {
        ProgramBuilder b;
        uint32_t x = b.input(from);
        b.output(from == to ? x : b.cast(x, to));
        Program p = b.take();
        check({p, all(p, InnerStride::contiguous), 1, 211}, target, rng);
      }
}

TEST_CASE("exp of f32 is what its polynomial says, on every target, also beside wider elements") {
  for (bool wide : {false, true}) {
    ProgramBuilder b;
    const uint32_t e = b.op(Prim::exp, DType::f32, {b.input(DType::f32, "x")});
    b.output(e);
    if (wide) b.output(b.cast(e, DType::f64));
    const Program p = b.take();
    std::vector<float> x;
    for (uint64_t bits = 0; bits < uint64_t{1} << 32; bits += 99991)
      x.push_back(std::bit_cast<float>(static_cast<uint32_t>(bits)));
    for (float v = -110; v < 95; v += 0.01f) x.push_back(v);
    for (float v = -104.1f; v < -87; v += 0.0003f) x.push_back(v);  // subnormal results
    x.insert(x.end(), {INFINITY, -INFINITY, NAN, 0.0f, -0.0f});
    const int64_t n[2] = {1, std::ssize(x)}, none[3] = {};
    ProgramBuilder expanded;
    expanded.output(expanded.op(Prim::exp, DType::f32, {expanded.input(DType::f32, "x")}));
    Program polynomial = expanded.take();
    expand_transcendentals(polynomial);
    BlockEvaluator reference(polynomial);
    std::vector<float> want(x.size());
    for (size_t at = 0; at < x.size(); at += kBlock) {
      const size_t block = std::min<size_t>(kBlock, x.size() - at);
      std::copy_n(x.data() + at, block, static_cast<float*>(reference.input(0)));
      reference.run(static_cast<int>(block));
      std::copy_n(static_cast<const float*>(reference.output(0)), block, want.data() + at);
    }
    for (const std::string& target : targets()) {
      auto kernel = CpuJit::instance().compile({p, all(p, InnerStride::contiguous), target});
      REQUIRE(kernel.has_value());
      std::vector<float> y(x.size());
      std::vector<double> y64(x.size());
      void* ptrs[] = {x.data(), y.data(), y64.data()};
      (*kernel)->fn(ptrs, n, none, none);
      for (size_t k = 0; k < x.size(); ++k) {
        CAPTURE(x[k]);
        if (std::isnan(x[k])) {
          REQUIRE(std::isnan(y[k]));
        } else {
          REQUIRE(y[k] == want[k]);
        }
      }
    }
  }
}

TEST_CASE("every stride class, tails of every length, misaligned pointers") {
  Rng rng(3);
  for (const std::string& target : targets())
    for (DType t : {DType::f32, DType::f16, DType::boolean, DType::u8, DType::i64}) {
      ProgramBuilder b;
      DType c = compute_type(t);
      uint32_t x = b.cast(b.input(t), c), y = b.cast(b.input(t), c);
      uint32_t r = t == DType::boolean ? b.op(Prim::lxor, c, {x, y}) : b.op(Prim::sub, c, {x, y});
      b.output(b.cast(r, t));
      Program p = b.take();
      using S = InnerStride;
      for (auto inner : {std::vector{S::contiguous, S::contiguous, S::contiguous},
                         {S::contiguous, S::broadcast, S::contiguous},
                         {S::strided, S::broadcast, S::contiguous},
                         {S::contiguous, S::strided, S::strided},
                         {S::broadcast, S::broadcast, S::contiguous},
                         {S::second, S::broadcast, S::contiguous},
                         {S::contiguous, S::second, S::second}}) {
        // Only elements of 4 and 8 bytes lie every second place.
        if (size_bits(t) < 32 && contains(inner, S::second)) continue;
        for (int64_t n = 0; n <= 70; ++n)
          check({p, inner, n % 3, n, static_cast<int>(n % 5)}, target, rng);
      }
      check({p, {S::contiguous, S::strided, S::contiguous}, 3, 1000, 3}, target, rng);
    }
}

TEST_CASE("random programs over mixed types equal the reference") {
  Rng rng(4);
  for (int round = 0; round < 60; ++round) {
    Program p = random_program(rng);
    REQUIRE(verify(p).has_value());
    std::vector<InnerStride> inner;
    for (size_t k = 0; k < p.inputs.size(); ++k)
      inner.push_back(static_cast<InnerStride>(rng() % 3));
    for (size_t k = 0; k < p.outputs.size(); ++k)
      inner.push_back(rng() % 3 ? InnerStride::contiguous : InnerStride::strided);
    for (const std::string& target : targets())
      check({p, inner, 1 + static_cast<int64_t>(rng() % 3), static_cast<int64_t>(rng() % 150)},
            target, rng);
  }
}

namespace {

/// relu(tanh(sigmoid(x * s + t) * u) + v), s and t broadcast.
Program chain() {
  ProgramBuilder b;
  uint32_t x = b.input(DType::f32), s = b.input(DType::f32), t = b.input(DType::f32);
  uint32_t y = b.op(Prim::add, DType::f32, {b.op(Prim::mul, DType::f32, {x, s}), t});
  y = b.op(Prim::sigmoid, DType::f32, {y});
  y = b.op(Prim::tanh, DType::f32,
           {b.op(Prim::mul, DType::f32, {y, b.constant(DType::f32, 1.5, 0)})});
  y = b.op(Prim::add, DType::f32, {y, b.constant(DType::f32, -0.25, 0)});
  b.output(b.op(Prim::max, DType::f32, {y, b.constant(DType::f32, 0, 0)}));
  return b.take();
}

}  // namespace

TEST_CASE("an output may be the memory of an input, and rows may be written past the caches") {
  using S = InnerStride;
  for (const std::string& target : targets())
    for (bool non_temporal : {false, true})
      for (int64_t n : {1, 15, 16, 64, 127, 128, 1000}) {
        auto kernel =
            CpuJit::instance().compile({chain(),
                                        {S::contiguous, S::broadcast, S::broadcast, S::contiguous},
                                        target,
                                        non_temporal});
        REQUIRE(kernel.has_value());
        alignas(64) float x[2][1024], y[2][1024];
        float s[2] = {2, 3}, t[2] = {0.5, -1};
        for (int k = 0; k < 2048; ++k)
          x[k / 1024][k % 1024] = static_cast<float>(k % 37 - 18) * 0.25f;
        const int64_t sizes[2] = {2, n}, strides[4] = {4096, 4, 4, 4096}, inner[4] = {};
        void* apart[4] = {x, s, t, y};
        (*kernel)->fn(apart, sizes, strides, inner);
        void* same[4] = {x, s, t, x};
        (*kernel)->fn(same, sizes, strides, inner);
        for (int r = 0; r < 2; ++r) CHECK(std::memcmp(x[r], y[r], static_cast<size_t>(n) * 4) == 0);
      }
}

TEST_CASE("identical kernels are compiled once, by whichever thread comes first") {
  using S = InnerStride;
  CpuJit& jit = CpuJit::instance();
  ProgramBuilder b;
  b.output(b.op(Prim::mul, DType::f32, {b.input(DType::f32), b.constant(DType::f32, 123.25, 0)}));
  KernelKey key{b.take(), {S::contiguous, S::contiguous}, "cpu-avx2", false};
  int64_t before = jit.compiled();
  std::vector<CpuJit::Request> requests(8, {key, "Conv_3 + Relu_4"});
  requests[5].key.inner[1] = S::strided;
  auto results = jit.compile_many(requests, 4);
  CHECK(jit.compiled() == before + 2);
  for (size_t k = 0; k < results.size(); ++k) {
    REQUIRE(results[k].has_value());
    CHECK((*results[k] == *results[0]) == (k != 5));
  }
  CHECK((*results[0])->symbol.find("Conv_3___Relu_4") != std::string::npos);
}

TEST_CASE("kernels that nobody holds are unloaded, beyond a number, and no others") {
  using S = InnerStride;
  CpuJit& jit = CpuJit::instance();
  auto key = [](int factor) {
    ProgramBuilder b;
    b.output(b.op(Prim::mul, DType::f32,
                  {b.input(DType::f32), b.constant(DType::f32, 1000.5 + factor, 0)}));
    return KernelKey{b.take(), {S::contiguous, S::contiguous}, "cpu-avx2", false};
  };
  auto product = [](const CompiledKernel& kernel) {
    float x = 2, y = 0;
    void* ptrs[2] = {&x, &y};
    const int64_t n[2] = {1, 1}, strides[2] = {};
    kernel.fn(ptrs, n, strides, strides);
    return y;
  };
  auto mappings = [] {
    std::ifstream maps("/proc/self/maps");
    return std::count(std::istreambuf_iterator<char>(maps), {}, '\n');
  };
  jit.keep_at_most(8);
  const auto held = *jit.compile(key(0));
  const auto before = mappings();
  for (int k = 1; k <= 200; ++k) CHECK(product(**jit.compile(key(k))) == 2001 + 2 * k);
  CHECK(mappings() < before + 50);  // two or three each
  CHECK(product(*held) == 2001);

  const int64_t compiled = jit.compiled();
  CHECK(*jit.compile(key(0)) == held);
  CHECK(product(**jit.compile(key(200))) == 2401);
  CHECK(jit.compiled() == compiled);  // one is held, one was the last
  CHECK(product(**jit.compile(key(1))) == 2003);
  CHECK(jit.compiled() == compiled + 1);

  // Asked for and let go by several threads at once.
  std::vector<CpuJit::Request> requests;
  for (int k = 0; k < 100; ++k) requests.push_back({key(k % 25), "k"});
  for (int round = 0; round < 3; ++round) {
    const auto all = jit.compile_many(requests, 4);
    for (int k = 0; k < 100; ++k) {
      REQUIRE(all[static_cast<size_t>(k)].has_value());
      CHECK(product(**all[static_cast<size_t>(k)]) == 2001 + 2 * (k % 25));
    }
  }
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (int k = 0; k < 40; ++k) {
        const int factor = (k * (t + 1)) % 20;
        const auto kernel = jit.compile(key(factor));
        wrong += !kernel || product(**kernel) != static_cast<float>(2001 + 2 * factor);
      }
    });
  for (std::thread& t : threads) t.join();
  CHECK(wrong == 0);
  jit.keep_at_most(1024);
}

TEST_CASE("a kernel for which there was no memory is refused, and may be asked for again") {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  MESSAGE("skipped: a sanitizer takes more address space than any bound, and ends without it");
#else
  namespace fs = std::filesystem;
  std::string root = (fs::temp_directory_path() / "ferrule-jit-XXXXXX").string();
  REQUIRE(mkdtemp(root.data()));
  ProgramBuilder b;
  b.output(b.op(Prim::mul, DType::f32, {b.input(DType::f32), b.constant(DType::f32, 77.125, 0)}));
  const KernelKey key{
      b.take(), {InnerStride::contiguous, InnerStride::contiguous}, "cpu-avx2", false};
  CpuJit& jit = CpuJit::instance();
  const auto cache = DiskCache::open(root, int64_t{1} << 30);
  REQUIRE(jit.compile(key, "k", cache.get()));
  jit.keep_at_most(0);  // the next one comes from the cache
  jit.keep_at_most(1024);
  // A file that became so large that it cannot be read.
  constexpr rlim_t kRoom = rlim_t{64} << 20;
  for (const auto& file : fs::directory_iterator(cache->folder()))
    if (file.path().filename().string().size() == 32) fs::resize_file(file.path(), 2 * kRoom);
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_AS, &before) == 0);
  const rlimit little{pages * 4096 + kRoom, before.rlim_max};
  REQUIRE(setrlimit(RLIMIT_AS, &little) == 0);
  std::optional<Code> codes[2];
  for (auto& code : codes) {  // the second asks for what the first has left
    try {
      const auto kernel = jit.compile(key, "k", cache.get());
      if (!kernel) code = kernel.error().code;
    } catch (const std::bad_alloc&) {
      break;
    }
  }
  REQUIRE(setrlimit(RLIMIT_AS, &before) == 0);
  CHECK(codes[0] == Code::out_of_memory);
  CHECK(codes[1] == Code::out_of_memory);
  if (codes[0]) CHECK(jit.compile(key, "k", cache.get()));  // damaged, and so compiled anew
  fs::remove_all(root);
#endif
}

TEST_CASE("a kernel that was refused may be asked for again") {
  ProgramBuilder b;
  b.output(b.input(DType::i4));
  const KernelKey key{
      b.take(), {InnerStride::contiguous, InnerStride::contiguous}, "cpu-avx2", false};
  for (int k = 0; k < 2; ++k) {
    const auto kernel = CpuJit::instance().compile(key);
    REQUIRE(!kernel);
    CHECK(kernel.error().code == Code::unsupported_type);
  }
}

TEST_CASE("what cannot be compiled is refused with a reason") {
  ProgramBuilder b;
  b.output(b.input(DType::f32));
  Program p = b.take();
  auto unknown =
      compile_cpu({p, all(p, InnerStride::contiguous), "cpu-mmx", false}, "k", CodeForm::ir);
  REQUIRE(!unknown);
  CHECK(unknown.error().code == Code::unknown_target);
  ProgramBuilder c;
  c.output(c.input(DType::i4));
  Program q = c.take();
  auto packed =
      compile_cpu({q, all(q, InnerStride::contiguous), "cpu-avx2", false}, "k", CodeForm::ir);
  REQUIRE(!packed);
  CHECK(packed.error().code == Code::unsupported_type);
}

TEST_CASE("code is for the named target and says nothing of the host") {
  auto text = [](const char* target) {
    return *assembly(
        {chain(), std::vector<InnerStride>(4, InnerStride::contiguous), target, false});
  };
  CHECK(text("cpu-avx512").find("%zmm") != std::string::npos);
  CHECK(text("cpu-avx2").find("%zmm") == std::string::npos);
  CHECK(text("cpu-avx2").find("%ymm") != std::string::npos);
}
