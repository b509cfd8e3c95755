#include "codegen/cuda/copy.h"
#include "codegen/cuda/pointwise.h"

#include <doctest/doctest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "codegen/cache.h"
#include "engine/base/diagnostics.h"
#include "engine/semantics/program_builder.h"
#include "tests/support/paths.h"
#include "tests/unit/codegen/helpers.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

bool no_nvrtc() {
  static const auto info = nvrtc_info();
  if (!info) MESSAGE("skipped, NVRTC is not there: " << info.error().message);
  return !info;
}

Program product(DType t, size_t inputs = 2) {
  ProgramBuilder b;
  DType c = compute_type(t);
  uint32_t r = b.cast(b.input(t), c);
  for (size_t k = 1; k < inputs; ++k) r = b.op(Prim::mul, c, {r, b.cast(b.input(t), c)});
  b.output(b.cast(r, t));
  return b.take();
}

using Strides = std::vector<std::vector<int64_t>>;
CudaPlan planned(const Program& p, std::vector<int64_t> dims, Strides strides,
                 bool aligned = true) {
  auto plan = plan_cuda(p, dims, strides, aligned);
  REQUIRE(plan.has_value());
  return *plan;
}

Cubin compiled(const CudaKernel& k, const char* target) {
  auto source = cuda_source(k, "kernel", "rule test");
  REQUIRE(source.has_value());
  auto cubin = compile_cuda(*source, "kernel", target);
  REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error()) + *source));
  CHECK(cubin->bytes.substr(0, 4) == "\177ELF");
  CHECK(cubin->registers > 0);
  return *cubin;
}

CudaKernel linear(const Program& p) {
  return {p, std::vector<CudaAccess>(p.inputs.size() + p.outputs.size(), CudaAccess::linear), 1, 1,
          false};
}

/// Every primitive that exists on compute type `t`, each an output of one program.
Program everything(DType t) {
  ProgramBuilder b;
  std::array<uint32_t, 3> a{b.input(t), b.input(t), b.input(t)};
  using C = PrimInfo::Class;
  bool flt = is_float(t), integer = is_int(t), boolean = t == DType::boolean;
  for (int k = 0; k < static_cast<int>(Prim::load); ++k) {
    auto op = static_cast<Prim>(k);
    const PrimInfo& pi = info(op);
    bool ok = pi.cls == C::arith                      ? flt || integer
              : pi.cls == C::flt || pi.cls == C::test ? flt
              : pi.cls == C::bits                     ? integer
              : pi.cls == C::logic                    ? boolean
                                                      : pi.cls == C::cmp;
    if (!ok) continue;
    DType result = pi.cls == C::cmp || pi.cls == C::test ? DType::boolean : t;
    b.output(pi.arity == 1   ? b.op(op, result, {a[0]})
             : pi.arity == 2 ? b.op(op, result, {a[0], a[1]})
                             : b.op(op, result, {a[0], a[1], a[2]}));
  }
  b.output(b.op(Prim::select, t, {b.cast(a[0], DType::boolean), a[1], a[2]}));
  if (t == DType::f32) b.output(b.op(Prim::float_to_bits, DType::i32, {a[0]}));
  if (t == DType::i64) b.output(b.op(Prim::bits_to_float, DType::f64, {a[0]}));
  return b.take();
}

}  // namespace

TEST_CASE("every primitive compiles for sm_75 and sm_90 without a spill") {
  if (no_nvrtc()) return;
  for (const char* target : {"sm_75", "sm_90"})
    for (DType t :
         {DType::f32, DType::f64, DType::boolean, DType::u8, DType::i16, DType::u32, DType::i64}) {
      Program p = everything(t);
      REQUIRE(verify(p).has_value());
      Cubin c = compiled(linear(p), target);
      CHECK(c.spill_bytes == 0);
    }
}

TEST_CASE("every cast compiles") {
  if (no_nvrtc()) return;
  for (DType from : kStorageTypes) {
    ProgramBuilder b;
    uint32_t x = b.input(from);
    for (DType to : kStorageTypes)
      if (to != from) b.output(b.cast(x, to));
    b.output(b.cast_wrapping(x, from == DType::f8e5m2 ? DType::f8e4m3fn : DType::f8e5m2));
    compiled(linear(b.take()), "sm_75");
  }
}

TEST_CASE("accesses follow from dims and strides") {
  Program p = product(DType::f32);
  std::vector<int64_t> dims{8, 256, 56, 56}, full{802816, 3136, 56, 1}, channel{0, 1, 0, 0},
      last{802816, 1, 14336, 256};
  CudaPlan same = planned(p, dims, {full, full, full});
  CHECK(same.kernel.rank == 1);
  CHECK(same.kernel.vector == 4);
  CHECK(same.kernel.access == std::vector(3, CudaAccess::linear));
  CHECK(same.geometry.strides.empty());
  CHECK(same.geometry.packs(same.kernel) == 8 * 256 * 56 * 56 / 4);
  CHECK_FALSE(same.kernel.wide_index);
  CudaPlan bias = planned(p, dims, {full, channel, full});
  CHECK(bias.kernel.access ==
        std::vector{CudaAccess::linear, CudaAccess::row_uniform, CudaAccess::linear});
  CHECK(bias.kernel.rank == 3);
  CHECK(bias.kernel.vector == 4);
  CudaPlan bias_last = planned(p, dims, {last, channel, last});
  CHECK(bias_last.kernel.access[1] == CudaAccess::rows);
  CHECK(bias_last.kernel.vector == 4);
  CudaPlan transposed = planned(p, dims, {full, {0, 0, 0, 0}, last});
  CHECK(transposed.kernel.access ==
        std::vector{CudaAccess::strided, CudaAccess::uniform, CudaAccess::linear});
  CHECK(transposed.kernel.vector == 1);
  CHECK(planned(p, dims, {full, full, full}, false).kernel.vector == 1);
  CHECK(planned(p, {5, 3}, {{3, 1}, {0, 1}, {3, 1}}).kernel.vector == 1);
  CHECK(planned(product(DType::f16), {1024}, {{1}, {1}, {1}}).kernel.vector == 8);
  CHECK(planned(p, {65536, 65536}, {{65536, 1}, {0, 1}, {65536, 1}}).kernel.wide_index);
  CHECK(planned(p, {}, {{}, {}, {}}).geometry.elements == 1);
}

TEST_CASE("every form of access compiles, and 16 bytes are moved at once") {
  if (no_nvrtc()) return;
  const std::array<std::string, 1> dirs{rules_dir()};
  const Target sm_90 = *load_target(dirs, "sm_90");
  std::vector<int64_t> dims{8, 256, 56, 56}, full{802816, 3136, 56, 1}, channel{0, 1, 0, 0},
      last{802816, 1, 14336, 256};
  for (DType t : {DType::f32, DType::f16, DType::boolean, DType::i64})
    for (const Strides& s : {Strides{full, full, full},
                             {full, channel, full},
                             {last, channel, last},
                             {full, {0, 0, 0, 0}, last}}) {
      ProgramBuilder b;
      DType c = compute_type(t);
      Prim op = t == DType::boolean ? Prim::lor : Prim::add;
      uint32_t x = b.cast(b.input(t), c), y = b.cast(b.input(t), c);
      b.output(b.cast(b.op(op, c, {x, y}), t));
      CudaPlan plan = planned(b.take(), dims, s);
      Cubin c1 = compiled(plan.kernel, "sm_90");
      CHECK(c1.spill_bytes == 0);
      CHECK(occupancy(c1, sm_90, 256) > 50);
      Target small = sm_90;
      small.blocks_per_core = 1;
      CHECK(occupancy(c1, small, 256) == 100 * 256 / small.threads_per_core);
      plan.kernel.wide_index = true;
      compiled(plan.kernel, "sm_75");
    }
}

TEST_CASE("text of a model stays inside its comment") {
  CudaKernel k = linear(product(DType::f32));
  k.program.input_names = {"x\n#error", "*/ #error"};
  std::string hostile = "conv\"\n#error broke out\n*/ int x = \\\n \\";
  auto source = cuda_source(k, "kernel", hostile + "\x1b[31m \xe2\x80\xae ?\?/");
  REQUIRE(source.has_value());
  std::string first = source->substr(0, source->find('\n'));
  CHECK(first.substr(0, 3) == "// ");
  CHECK(first.find('\\') == std::string::npos);
  CHECK(first.find('?') == std::string::npos);
  for (char c : first) CHECK((c >= 0x20 && c < 0x7f));
  CHECK(source->find("\n#error") == std::string::npos);
  CHECK(source->find("#error", first.size()) == std::string::npos);
  if (no_nvrtc()) return;
  CHECK(compile_cuda(*source, "kernel", "sm_90").has_value());
}

TEST_CASE("arguments are laid out as the source declares them") {
  Program p = product(DType::f32);
  CudaPlan plan = planned(p, {4, 6}, {{6, 1}, {1, 0}, {6, 1}});
  void* pointers[3] = {reinterpret_cast<void*>(16), reinterpret_cast<void*>(32),
                       reinterpret_cast<void*>(48)};
  std::string block = cuda_arguments(plan.kernel, plan.geometry, pointers);
  // three pointers, n, size[2], stride[1][2], padding to 8
  REQUIRE(block.size() == 24 + 4 * 5 + 4);
  int32_t numbers[5];
  std::memcpy(numbers, block.data() + 24, sizeof numbers);
  CHECK(std::vector<int32_t>(numbers, numbers + 5) == std::vector<int32_t>{24, 4, 6, 1, 0});
}

TEST_CASE("every device has something that it loads, where NVRTC knows it or an older one") {
  const std::vector<int> of12{50, 75, 80, 86, 89, 90}, of13{75, 80, 90, 100, 103, 120, 121};
  struct Case {
    const char* target;
    int device;
    const std::vector<int>& known;
    const char* wanted;
  };
  for (const Case& c : {Case{"sm_90", 90, of13, "sm_90"}, Case{"sm_100", 103, of13, "sm_100"},
                        // NVRTC is older than the device, by a step and by a generation.
                        Case{"sm_86", 89, {75, 80}, "sm_80"},
                        Case{"sm_100", 100, of12, "compute_90"}, Case{"sm_89", 89, {90}, "sm_89"},
                        // No target is of the device's generation.
                        Case{"sm_120", 130, of13, "compute_121"},
                        Case{"sm_120", 121, of13, "sm_120"}, Case{"sm_90", 90, {}, "sm_90"}}) {
    CAPTURE(c.target);
    CAPTURE(c.device);
    CHECK(loadable_architecture(c.target, c.device, c.known) == c.wanted);
  }
  if (no_nvrtc()) return;
  auto ptx =
      compile_cuda(*cuda_source(linear(product(DType::f32)), "kernel", ""), "kernel", "compute_90");
  REQUIRE_MESSAGE(ptx.has_value(), (ptx ? "" : ptx.error().message));
  CHECK(ptx->bytes.find(".target sm_90") != std::string::npos);
  CHECK(ptx->bytes.back() == 0);
}

TEST_CASE("what NVRTC cannot do is said plainly") {
  if (no_nvrtc()) return;
  auto info = nvrtc_info();
  auto source = cuda_source(linear(product(DType::f32)), "kernel", "");
  auto wrong = compile_cuda(*source, "kernel", "sm_banana");
  REQUIRE(!wrong);
  CHECK(wrong.error().code == Code::unknown_target);
  if (info->major >= 13) {
    auto old = compile_cuda(*source, "kernel", "sm_70");
    REQUIRE(!old);
    CHECK(old.error().code == Code::arch_unsupported);
    CHECK(old.error().message.find("sm_70") != std::string::npos);
    CHECK(old.error().message.find("sm_75") != std::string::npos);
  }
  auto broken = compile_cuda("this is no CUDA", "kernel", "sm_90");
  REQUIRE(!broken);
  CHECK(broken.error().code == Code::library_failed);
  CHECK(broken.error().message.find("error") != std::string::npos);
}

TEST_CASE(
    "a kernel is compiled once: for the same source, target and NVRTC it comes from the cache") {
  if (no_nvrtc()) return;
  std::string folder = (std::filesystem::temp_directory_path() / "ferrule_cubins_XXXXXX").string();
  REQUIRE(mkdtemp(folder.data()));
  {
    const auto cache = DiskCache::open(folder, int64_t{64} << 20);
    const std::string source = *cuda_source(linear(product(DType::f32)), "kernel", "rule test");
    const auto first = cached_cubin(source, "kernel", "sm_90", cache.get());
    const auto again = cached_cubin(source, "kernel", "sm_90", cache.get());
    REQUIRE(first.has_value());
    REQUIRE(again.has_value());
    CHECK(cache->counts().written == 1);
    CHECK(cache->counts().hits == 1);
    CHECK(again->bytes == first->bytes);
    CHECK(again->registers == first->registers);
    CHECK(again->log == first->log);
    CHECK(cached_cubin(source, "kernel", "sm_80", cache.get())->bytes != first->bytes);
    CHECK(cached_cubin(source + "\n", "kernel", "sm_90", cache.get()).has_value());
    CHECK(cache->counts().written == 3);
    CHECK(!cached_cubin("this is no CUDA", "kernel", "sm_90", cache.get()));
    CHECK(cache->counts().written == 3);
    CHECK(cached_cubin(source, "kernel", "sm_90", nullptr)->bytes == first->bytes);
  }
  std::filesystem::remove_all(folder);
}

TEST_CASE("types that no kernel holds are refused") {
  ProgramBuilder b;
  b.output(b.input(DType::u4));
  auto source = cuda_source(linear(b.take()), "kernel", "");
  REQUIRE(!source);
  CHECK(source.error().code == Code::unsupported_type);
}

TEST_CASE(
    "a copy is turned in shared memory only where both sides are contiguous along different axes") {
  const std::vector<int64_t> dims{2, 24, 5, 7};
  const std::vector<int64_t> plain{24 * 35, 35, 7, 1}, last{24 * 35, 1, 7 * 24, 24};
  CHECK_FALSE(plan_cuda_transpose(dims, plain, plain, 4));
  auto turned = plan_cuda_transpose(dims, plain, last, 4);
  REQUIRE(turned);
  CHECK(turned->geometry.source.size == 35);
  CHECK(turned->geometry.result.size == 24);
  CHECK(turned->kernel.rank == 1);
  CHECK(turned->geometry.blocks(turned->kernel) == 2 * 2 * 1);
  CHECK_FALSE(plan_cuda_transpose(dims, {2 * 24 * 35, 70, 14, 2}, last,
                                  4));  // no axis of the source is contiguous
  CHECK(plan_cuda_transpose(std::vector<int64_t>{65536, 65536}, {1, 65536}, {65536, 1}, 1)
            ->kernel.wide_index);
}

TEST_CASE("transposes and gathers of every element size compile without a spill") {
  if (no_nvrtc()) return;
  for (int bytes : {1, 2, 4, 8})
    for (bool wide : {false, true}) {
      for (int rank : {0, 1, 3}) {
        auto cubin = compile_cuda(cuda_transpose_source({bytes, rank, wide}, "kernel", ""),
                                  "kernel", "sm_90");
        REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
        CHECK(cubin->spill_bytes == 0);
        CHECK(cubin->shared_bytes == 32 * 33 * bytes);
      }
      for (int index : {4, 8}) {
        CudaGatherKernel k = plan_cuda_gather(std::vector<int64_t>{2, 10, 64}, {6400, 0, 1},
                                              {0, 1, 0}, {640, 64, 1}, 100, 64, bytes, index, true)
                                 .kernel;
        CHECK(k.vector * bytes == 16);
        k.wide_index = wide;
        auto cubin = compile_cuda(cuda_gather_source(k, "kernel", ""), "kernel", "sm_75");
        REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
        CHECK(cubin->spill_bytes == 0);
      }
    }
}
