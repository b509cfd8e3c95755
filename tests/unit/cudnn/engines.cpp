// Asks the real cuDNN, without a device, whether it has an engine for every tail that the targets'
// facts say goes into its calls, and for the attentions that are said to be its own. It is told
// about a device by its properties; NVRTC and a driver that does nothing stand for the rest.
// Nothing is compiled and nothing runs: heuristics and support checks alone. Skipped, with the
// reason, where cuDNN is not installed.
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/cudnn_graph.h"
#include "runtime/cuda/open_library.h"
#include "tests/support/paths.h"
#include "tests/unit/cuda/attention_forms.h"

namespace ferrule::cuda {
namespace {

using Dims = std::vector<int64_t>;

/// Why cuDNN cannot be asked here; empty: it can.
const std::string& hindrance() {
  static const std::string why = [] {
    const std::string driver = build_dir() + "/stub/cudnn/libcuda.so.1";
    if (!dlopen(driver.c_str(), RTLD_NOW | RTLD_GLOBAL))
      return std::string("the stub driver is not built: ") + dlerror();
    // Its own parts look for NVRTC by name.
    auto nvrtc = open_nvidia_library("NVRTC", {"libnvrtc.so.13", "libnvrtc.so.12"}, "");
    if (!nvrtc) return nvrtc.error().message;
    auto version = cudnn_version();
    return version ? std::string() : version.error().message;
  }();
  return why;
}

Dims strides(const Dims& d, bool last) {
  Dims s(d.size(), 1);
  int64_t step = last ? d[1] : 1;
  for (size_t k = d.size(); k-- > (last ? 2 : 0);) {
    s[k] = step;
    step *= d[k];
  }
  if (last) s[0] = step;
  return s;
}
CudnnTensor tensor(DType t, const Dims& d, bool last = true) { return {t, d, strides(d, last)}; }

struct Shape {
  const char* name;
  int64_t in, size, out, window, stride, pad, groups;
};
// Of the convolutions of resnet50, mobilenet_v2 and unet.
const Shape kShapes[] = {{"stem 7x7", 3, 224, 64, 7, 2, 3, 1},
                         {"3x3", 64, 56, 64, 3, 1, 1, 1},
                         {"1x1", 256, 56, 64, 1, 1, 0, 1},
                         {"depthwise", 96, 56, 96, 3, 2, 1, 96},
                         {"odd channels", 33, 28, 21, 1, 1, 0, 1}};

CudnnProblem convolution(const Shape& s, DType t, bool last = true) {
  CudnnProblem p;
  const int64_t out = (s.size + 2 * s.pad - s.window) / s.stride + 1;
  p.x = tensor(t, {1, s.in, s.size, s.size}, last);
  p.w = tensor(t, {s.out, s.in / s.groups, s.window, s.window}, last);
  p.y = tensor(t, {1, s.out, out, out}, last);
  p.bias = tensor(t, {1, s.out, 1, 1});
  p.strides = {s.stride, s.stride};
  p.dilations = {1, 1};
  p.pads_begin = p.pads_end = {s.pad, s.pad};
  return p;
}

void add_step(CudnnProblem& p, const std::string& alg) {
  PostOp op;
  op.alg = alg;
  op.alpha = 0.25f;
  op.beta = 0.5f;
  if (alg == "swish" || alg == "elu" || alg == "soft_relu") op.alpha = 1;
  if (alg == "clip") op.alpha = 0, op.beta = 6;
  if (alg == "add" || alg == "sub" || alg == "mul" || alg == "div" || alg == "max" ||
      alg == "min") {
    op.operand = static_cast<int>(p.operands.size());
    p.operands.push_back(p.y);
  }
  p.tail.push_back(op);
}

std::string refused(const Target& target, const CudnnProblem& p) {
  auto g = make_cudnn_graph(cudnn_device(target), p, static_cast<int>(std::lround(target.cc * 10)),
                            "test");
  return g ? std::string() : g.error().reason();
}

/// cuDNN for CUDA 13 begins with 7.5. Three, or five with FERRULE_TEST_FULL.
std::vector<Target> targets() {
  const std::string dirs[] = {rules_dir()};
  std::vector<Target> out;
  const bool full = std::getenv("FERRULE_TEST_FULL");
  for (const char* name : {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}) {
    if (!full && (name == std::string("sm_80") || name == std::string("sm_100"))) continue;
    auto t = load_target(dirs, name);
    REQUIRE(t.has_value());
    out.push_back(std::move(*t));
  }
  return out;
}

/// As the CUDA backend tells cuDNN.
CudnnAttention attention(const test::AttentionForm& form, const std::string& type,
                         const Target& target) {
  const Graph g = test::attention_graph(form, type);
  const Launch launch = test::attention_launch(g);
  std::vector<CudaOperand> operands;
  for (const auto* list : {&launch.inputs, &launch.outputs})
    for (ValueId v : *list) {
      Dims dims;
      for (const Dim& d : *g.value(v).type.shape) dims.push_back(*d.constant());
      operands.push_back({g.value(v).type.dtype, dims, strides_of(dims, Layout::plain)});
    }
  const AttentionChoice choice = choose_attention(launch, operands, true, target, false);
  REQUIRE_MESSAGE(choice.library.has_value(), std::string(form.name), ": ", choice.why);
  auto part = [&](const LibraryAttention::Part& p) {
    return CudnnTensor{operands[p.operand].dtype, p.dims, p.strides};
  };
  const LibraryAttention& l = *choice.library;
  return {part(l.q), part(l.k), part(l.v), part(l.y), l.mask ? part(*l.mask) : CudnnTensor{},
          l.scale};
}

#define FERRULE_NEEDS_CUDNN()            \
  if (!hindrance().empty()) {            \
    MESSAGE("skipped, " << hindrance()); \
    return;                              \
  }

}  // namespace

TEST_CASE("cuDNN has an engine for each tail of the facts, behind each kind of convolution") {
  FERRULE_NEEDS_CUDNN();
  for (const Target& target : targets()) {
    const ContractFacts& facts = target.contracts.at("conv");
    for (const Shape& s : kShapes)
      for (DType t : facts.types) {
        const bool exact = t == DType::f32;
        // All steps behind one shape; one of each kind behind the others.
        const std::vector<std::string> few{"relu", "clip", "swish", "add"};
        for (const std::string& alg : exact ? facts.exact_epilogues
                                      : std::string(s.name) == "3x3" && t == DType::f16
                                          ? facts.epilogues
                                          : few) {
          CudnnProblem p = convolution(s, t);
          add_step(p, alg);
          // The one hole that library_tail.cpp knows.
          const bool hole =
              t == DType::bf16 && s.groups == s.in && (alg == "clip" || alg == "swish");
          CHECK_MESSAGE((refused(target, p) == "") == !hole, target.name, " ", std::string(s.name),
                        " ", name(t), " ", alg);
        }
      }
  }
}

TEST_CASE(
    "cuDNN has an engine for the whole ready-made chain in f32, on plain images too, and for f32 "
    "with tf32") {
  FERRULE_NEEDS_CUDNN();
  for (const Target& target : targets())
    for (const Shape& s : kShapes)
      for (bool last : {true, false}) {
        CudnnProblem p = convolution(s, DType::f32, last);
        CHECK_MESSAGE(refused(target, p) == "", target.name, " ", std::string(s.name));
        // Not only an engine: a plan, from what is left without tensor cores.
        auto plain = make_cudnn_graph(cudnn_device(target), p,
                                      static_cast<int>(std::lround(target.cc * 10)), "test");
        REQUIRE(plain.has_value());
        CHECK_FALSE((*plain)->plans().empty());
        if (last && &s == kShapes) {
          auto built = (*plain)->build();
          CHECK_MESSAGE(built.has_value(), target.name, ": ",
                        (built ? "" : built.error().reason()));
        }
        add_step(p, "add");
        add_step(p, "relu");
        CHECK_MESSAGE(refused(target, p) == "", target.name, " ", std::string(s.name), " add relu");
        if (!last || target.cc < 8) continue;
        CudnnProblem q = convolution(s, DType::f32);
        q.tf32 = true;
        add_step(q, "swish");
        CHECK_MESSAGE(refused(target, q) == "", target.name, " ", std::string(s.name),
                      " swish in tf32");
      }
}

TEST_CASE("cuDNN has engines for deconvolutions with tails") {
  FERRULE_NEEDS_CUDNN();
  for (const Target& target : targets())
    for (DType t : target.contracts.at("deconv").types) {
      CudnnProblem p;
      p.kind = CudnnProblem::Kind::deconvolution;
      p.x = tensor(t, {1, 64, 28, 28});
      p.w = tensor(t, {64, 32, 2, 2});
      p.y = tensor(t, {1, 32, 56, 56});
      p.bias = tensor(t, {1, 32, 1, 1});
      p.strides = {2, 2};
      p.dilations = {1, 1};
      p.pads_begin = p.pads_end = {0, 0};
      if (t != DType::f32) add_step(p, "relu");
      CHECK_MESSAGE(refused(target, p) == "", target.name, " deconvolution ", name(t));
    }
}

TEST_CASE("cuDNN has engines for each attention that is said to be its own, which can be built") {
  FERRULE_NEEDS_CUDNN();
  const bool full = std::getenv("FERRULE_TEST_FULL");
  const std::string dirs[] = {rules_dir()};
  size_t turn = 0;
  for (const char* name : {"sm_80", "sm_86", "sm_89", "sm_90", "sm_100", "sm_120"}) {
    if (!full && name != std::string("sm_80") && name != std::string("sm_90") &&
        name != std::string("sm_120"))
      continue;
    auto target = load_target(dirs, name);
    REQUIRE(target.has_value());
    for (const test::AttentionForm& form : test::kAttentions)
      for (const char* type : {"float16", "bfloat16"}) {
        if (!form.library ||
            (!full && type == std::string("bfloat16") && &form != test::kAttentions))
          continue;
        auto g = make_cudnn_graph(cudnn_device(*target), attention(form, type, *target),
                                  static_cast<int>(std::lround(target->cc * 10)), "test");
        CHECK_MESSAGE(g.has_value(), name, " ", std::string(form.name), " ", std::string(type),
                      ": ", (g ? "" : g.error().reason()));
        if (!g) continue;
        CHECK((*g)->plans().size() >= 2);
        if (++turn % (full ? 3 : 5)) continue;  // half a second each
        auto built = (*g)->build();
        CHECK_MESSAGE(built.has_value(), name, " ", std::string(form.name), ": ",
                      (built ? "" : built.error().reason()));
      }
  }
}

TEST_CASE("what the facts keep from cuDNN's attention, it refuses") {
  FERRULE_NEEDS_CUDNN();
  const std::string dirs[] = {rules_dir()};
  auto turing = load_target(dirs, "sm_75"), hopper = load_target(dirs, "sm_90");
  REQUIRE((turing && hopper));
  CudnnAttention a = attention(test::kAttentions[0], "float16", *hopper);
  auto refused = [&](const Target& t) {
    auto g = make_cudnn_graph(cudnn_device(t), a, static_cast<int>(std::lround(t.cc * 10)), "test");
    return g ? std::string() : g.error().reason();
  };
  CHECK(refused(*hopper) == "");
  CHECK(refused(*turing).find("SM80") != std::string::npos);
  const CudnnAttention whole = a;
  for (CudnnTensor* t : {&a.q, &a.k, &a.v, &a.y}) t->dims[3] = 12;
  CHECK(refused(*hopper).find("multiple of 8") != std::string::npos);
  a = whole;
  a.q.strides[2] = 20;
  CHECK(refused(*hopper).find("alignment") != std::string::npos);
}

TEST_CASE("the answer is cuDNN's own: what it has no engine for is refused") {
  FERRULE_NEEDS_CUDNN();
  const Target target = targets().back();
  CudnnProblem p =
      convolution(kShapes[1], DType::f16, false);  // plain images and a tail that is not ready-made
  add_step(p, "swish");
  CHECK(refused(target, p) != "");
}

}  // namespace ferrule::cuda
