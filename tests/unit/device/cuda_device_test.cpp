// The device and what lives on it, on the stub driver in build/stub: memory, constants shared
// between executables, and a device that is lost in the middle of things. One process has one
// device, so the cases build on each other in order.
#include "runtime/cuda/device.h"

#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cstdlib>
#include <cstring>
#include <thread>

#include "codegen/annotate_plan.h"
#include "codegen/cuda/operands.h"
#include "codegen/cuda/plan_launch.h"
#include "engine/onnx/import.h"
#include "engine/pipeline.h"
#include "engine/rule/load.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"
#include "runtime/cuda/constants.h"
#include "runtime/cuda/executable.h"
#include "runtime/cuda/host_copy.h"
#include "tests/support/paths.h"
#include "tests/unit/runtime/build.h"

namespace ferrule::cuda {
namespace {

using test::PlanBuilder;

void* stub() {
  // By its path, before anybody opens it by its name: the loader then takes this one.
  static void* library =
      dlopen((build_dir() + "/stub/libcuda.so.1").c_str(), RTLD_NOW | RTLD_LOCAL);
  REQUIRE_MESSAGE(library, dlerror());
  return library;
}

void fail_next(const char* function, int code) {
  reinterpret_cast<void (*)(const char*, int)>(dlsym(stub(), "ferrule_stub_fail_next"))(function,
                                                                                        code);
}

Device& device() {
  stub();
  REQUIRE_MESSAGE(Device::get().has_value(), Device::get().error().message);
  Device& d = **Device::get();
  REQUIRE(d.enter().has_value());
  return d;
}

int64_t free_bytes() {
  size_t available = 0, all = 0;
  REQUIRE(device().api().cuMemGetInfo(&available, &all) == 0);
  return static_cast<int64_t>(available);
}

}  // namespace

TEST_CASE("strided copies on the host") {
  const std::vector<int64_t> dims{2, 3, 2};
  std::vector<int32_t> plain(12), last(12), back(12);
  for (int k = 0; k < 12; ++k) plain[static_cast<size_t>(k)] = k;
  copy_strided(dims, {6, 2, 1}, plain.data(), {6, 1, 3}, last.data(), 4);
  CHECK(last == std::vector<int32_t>{0, 2, 4, 1, 3, 5, 6, 8, 10, 7, 9, 11});
  copy_strided(dims, {6, 1, 3}, last.data(), {6, 2, 1}, back.data(), 4);
  CHECK(back == plain);
  CHECK(extent(dims, {6, 2, 1}) == 12);
  CHECK(extent({2, 3}, {10, 1}) == 13);
  CHECK(extent({2, 0}, {10, 1}) == 0);
  copy_strided({2, 0}, {10, 1}, nullptr, {10, 1}, nullptr, 4);
  copy_strided({}, {}, plain.data() + 7, {}, back.data(), 4);
  CHECK(back[0] == 7);
}

TEST_CASE("versions, and codes that end a context") {
  CHECK(version_text(13000) == "13.0");
  CHECK(version_text(12090) == "12.9");
  // All of which cuda.h says that the process must be ended, and some more.
  for (int code : {226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911, 4, 214, 999}) {
    CAPTURE(code);
    CHECK(device_is_lost(code));
  }
  for (int code : {0, 1, 2, 100, 209, 701, 720, 900, 901}) {
    CAPTURE(code);
    CHECK_FALSE(device_is_lost(code));
  }
}

TEST_CASE("memory goes to the device and back, and is given back") {
  Device& d = device();
  CHECK(d.info().target() == "sm_90");
  const int64_t before = free_bytes();
  {
    auto b = Buffer::make(d, 1000, "a test", true);
    REQUIRE(b.has_value());
    CHECK(b->address() % 256 == 0);
    std::vector<char> in(1000, 'x'), out(1000, 'y');
    REQUIRE(d.download(out.data(), b->address(), 1000, nullptr, "a test").has_value());
    CHECK(out == std::vector<char>(1000, 0));
    REQUIRE(d.upload(b->address(), in.data(), 1000, nullptr, "a test").has_value());
    REQUIRE(d.download(out.data(), b->address(), 1000, nullptr, "a test").has_value());
    CHECK(out == in);
    Buffer other = std::move(*b);
    CHECK(other.bytes() == 1000);
    CHECK(free_bytes() == before - 1000);
  }
  CHECK(free_bytes() == before);
  auto large = Buffer::make(d, int64_t{1} << 40, "the arena");
  REQUIRE_FALSE(large.has_value());
  CHECK(large.error().code == Code::device_memory);
  CHECK(large.error().message == fmt::format("the GPU has too little memory for cuMemAlloc of "
                                             "1099511627776 bytes: {} of its {} bytes are free",
                                             before, d.info().memory));
}

TEST_CASE("constants are on the device once, for as long as somebody uses them") {
  Device& d = device();
  const int64_t before = free_bytes();
  ConstantPool pool;
  const Tensor t = Tensor::of_f32({4}, {1, 2, 3, 4});
  int filled = 0;
  auto twice = [&](void* to) {
    ++filled;
    for (int k = 0; k < 8; ++k)
      static_cast<float*>(to)[k] = t.as<float>()[static_cast<size_t>(k / 2)];
  };
  {
    ConstantHolder a(d, pool);
    auto plain = a.plain(t);
    {
      ConstantHolder b(d, pool);
      CHECK(*b.plain(t) == *plain);
      auto derived = b.derive(t, "twice", 32, twice);
      REQUIRE(derived.has_value());
      CHECK(*derived != *plain);
      CHECK(*a.derive(t, "twice", 32, twice) == *derived);
      CHECK(filled == 1);
      CHECK(b.bytes() == 48);
      std::vector<float> out(8);
      REQUIRE(d.download(out.data(), *derived, 32, nullptr, "a test").has_value());
      CHECK(out == std::vector<float>{1, 1, 2, 2, 3, 3, 4, 4});
    }
    CHECK(*a.plain(t) == *plain);
  }
  CHECK(free_bytes() == before);
  ConstantHolder again(d, pool);
  CHECK(again.derive(t, "twice", 32, twice).has_value());
  CHECK(filled == 2);
}

TEST_CASE("a run that is cancelled leaves nothing behind") {
  Device& d = device();
  PlanBuilder b;
  b.plan.graph.add_output(b.layer("p", Launch::Kind::interpret, {b.input("x", {2, 3})}, {2, 3}));
  b.finish();
  const std::string rules[] = {rules_dir()};
  auto ops = load_semantics(rules);
  REQUIRE(ops.has_value());
  Target target;
  Limits limits;
  ConstantPool pool;
  Cancel cancel;
  PrepareContext context{b.plan, b.lowered, *ops, target, limits, 1, {}};
  context.cancel = &cancel;
  auto e = CudaExecutable::make(context, d, pool);
  REQUIRE_MESSAGE(e.has_value(), e.error().reason());
  std::vector<float> in{1, -2, 3, -4, 5, -6}, out(6, 7);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data()};
  REQUIRE((*e)->run(inputs, outputs).has_value());
  double ms = 0;  // asked by a thread that has no context
  std::thread([&] { ms = (*e)->device_ms(); }).join();
  CHECK(ms > 0);
  cancel.deadline(std::chrono::steady_clock::now());
  Status stopped = (*e)->run(inputs, outputs);
  REQUIRE_FALSE(stopped.has_value());
  CHECK(stopped.error().code == Code::cancelled);
  // Its events are not those of the run before.
  CHECK((*e)->device_ms() == 0);
  cancel.deadline(std::chrono::steady_clock::time_point::max());
  std::ranges::fill(out, 7.0f);
  REQUIRE((*e)->run(inputs, outputs).has_value());
  CHECK(out == std::vector<float>{1, 0, 3, 0, 5, 0});
}

/// Counted by what looks at the tuning file: planning a generated launch does, once.
TEST_CASE("an executable plans each generated launch once") {
  Device& d = device();
  for (const char* elsewhere : {"CUDA_HOME", "CUDA_PATH"}) unsetenv(elsewhere);
  REQUIRE_MESSAGE(dlopen((build_dir() + "/stub/libnvrtc.so.13").c_str(), RTLD_NOW | RTLD_LOCAL),
                  dlerror());
  EngineOptions options;
  options.rule_dirs = {rules_dir()};
  options.target = "sm_90";
  auto k = load_knowledge(options);
  REQUIRE(k.has_value());
  auto g = import_text(
      "agraph (float[6,8] x) => (float[6,8] y, float[8,6] z) "
      "{ a = Tanh(x)\n b = Mul(a, x)\n y = Softmax<axis=-1>(b)\n z = Transpose<perm=[1,0]>(a) }");
  REQUIRE(g.has_value());
  auto plan = make_plan(std::move(g->graph), (*k)->target, (*k)->ops);
  REQUIRE(plan.has_value());
  auto lowered = lower(*plan, (*k)->ops, (*k)->target);
  REQUIRE(lowered.has_value());
  Limits limits;
  ConstantPool pool;
  Tuning tuning;
  PrepareContext context{*plan, *lowered, (*k)->ops, (*k)->target, limits, 1, {}};
  context.tuning = &tuning;
  int launches = 0;
  for (size_t layer = 0; layer < lowered->layers.size(); ++layer)
    for (const Launch& l : lowered->layers[layer].launches) {
      if (!cuda_generated(l)) continue;
      const auto o = cuda_operands(*plan, lowered->layers[layer], l);
      REQUIRE(o.has_value());
      auto planned = plan_cuda_launch(l, o->operands, "k", "", o->aligned, (*k)->target.cores);
      REQUIRE(planned.has_value());
      tuning.problems[planned->problem].use = planned->shape;
      ++launches;
    }
  CHECK(launches == 4);
  auto e = CudaExecutable::make(context, d, pool);
  REQUIRE_MESSAGE(e.has_value(), e.error().reason());
  CHECK(tuning.found->load() == launches);
}

TEST_CASE("a device that is lost: every later run says so, nothing crashes") {
  Device& d = device();
  PlanBuilder b;
  ValueId x = b.input("x", {2, 3});
  ValueId p = b.layer("p", Launch::Kind::interpret, {x}, {2, 3});
  ValueId q = b.layer("q", Launch::Kind::interpret, {p}, {2, 3});
  b.plan.graph.add_output(q);
  b.plan.graph.add_output(x);  // somebody else's memory
  b.finish();
  const std::string rules[] = {rules_dir()};
  auto ops = load_semantics(rules);
  REQUIRE(ops.has_value());
  Target target;
  Limits limits;
  ConstantPool pool;
  auto e = CudaExecutable::make({b.plan, b.lowered, *ops, target, limits, 1, {}}, d, pool);
  REQUIRE_MESSAGE(e.has_value(), e.error().reason());
  std::vector<float> in{1, -2, 3, -4, 5, -6}, out(6), same(6);
  const void* inputs[] = {in.data()};
  void* outputs[] = {out.data(), same.data()};
  for (int k = 0; k < 3; ++k) {
    Status s = (*e)->run(inputs, outputs);
    REQUIRE_MESSAGE(s.has_value(), s.error().message);
    CHECK(out == std::vector<float>{1, 0, 3, 0, 5, 0});
    CHECK(same == in);
    CHECK((*e)->launches() == 2);
  }
  // An ordinary failure passes.
  fail_next("cuMemcpyDtoHAsync_v2", 1);
  Status once = (*e)->run(inputs, outputs);
  REQUIRE_FALSE(once.has_value());
  CHECK(once.error().code == Code::library_failed);
  CHECK(once.error().place == "p");
  CHECK((*e)->run(inputs, outputs).has_value());

  fail_next("cuMemcpyDtoHAsync_v2", 700);
  Status first = (*e)->run(inputs, outputs);
  REQUIRE_FALSE(first.has_value());
  CHECK(first.error().code == Code::device_lost);
  CHECK(first.error().place == "p");
  const std::string message =
      "the GPU stopped working, noticed in cuMemcpyDtoHAsync: CUDA_ERROR_ILLEGAL_ADDRESS (an "
      "illegal "
      "memory access was encountered)";
  CHECK(first.error().message == message);
  for (int k = 0; k < 2; ++k) {
    Status later = (*e)->run(inputs, outputs);
    REQUIRE_FALSE(later.has_value());
    CHECK(later.error().message == message);
  }
  auto buffer = Buffer::make(d, 16, "a test");
  REQUIRE_FALSE(buffer.has_value());
  CHECK(buffer.error().message == message);
}

}  // namespace ferrule::cuda
