// Targets: the shipped ones, inheritance, replacement by a later directory, and what is refused.
#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include <unistd.h>

#include "engine/base/diagnostics.h"
#include "engine/contract/accepts.h"
#include "engine/target/target.h"
#include "tests/support/paths.h"

using namespace ferrule;
namespace fs = std::filesystem;

namespace {
std::vector<std::string> shipped() { return {rules_dir()}; }
bool takes(const Target& t, const std::string& contract, DType type) {
  const auto& all = t.contracts.at(contract).types;
  return std::find(all.begin(), all.end(), type) != all.end();
}
}  // namespace

TEST_CASE("every shipped target loads") {
  auto names = target_names(shipped());
  CHECK(names == std::vector<std::string>{"cpu-avx2", "cpu-avx512", "sm_100", "sm_120", "sm_70",
                                          "sm_72", "sm_75", "sm_80", "sm_86", "sm_89", "sm_90"});
  for (const std::string& n : names) {
    auto t = load_target(shipped(), n);
    REQUIRE_MESSAGE(t.has_value(), (t ? "" : render(t.error())));
    CHECK(t->name == n);
    CHECK((t->device == "gpu") == n.starts_with("sm_"));
    CHECK((t->cc > 0) == n.starts_with("sm_"));
    CHECK(t->cores > 0);
    CHECK(t->l2_bytes > 0);
    CHECK(t->vector_bytes > 0);
    CHECK(takes(*t, "conv", DType::f32));
    CHECK(takes(*t, "pointwise", DType::boolean));
  }
}

TEST_CASE("facts differ between targets") {
  auto avx2 = *load_target(shipped(), "cpu-avx2"), avx512 = *load_target(shipped(), "cpu-avx512");
  CHECK(avx2.has_isa("avx2"));
  CHECK(!avx2.has_isa("avx512f"));
  CHECK(avx512.has_isa("avx512f"));
  CHECK(avx512.vector_bytes == 64);
  CHECK(avx512.contracts.at("conv").max_operands == avx2.contracts.at("conv").max_operands);
  auto volta = *load_target(shipped(), "sm_70"), ampere = *load_target(shipped(), "sm_86");
  CHECK(volta.cc == 7.0);
  CHECK(ampere.cc == 8.6);
  CHECK(!takes(volta, "conv", DType::bf16));
  CHECK(takes(ampere, "conv", DType::bf16));
  CHECK(!ampere.contracts.at("conv").generated_tail);
  CHECK(volta.contracts.at("attention").library_types.empty());
  CHECK(ampere.contracts.at("attention").library_types == std::vector{DType::f16, DType::bf16});
  for (const char* name : {"sm_89", "sm_90", "sm_100", "sm_120"}) {
    auto ada = *load_target(shipped(), name);
    for (DType t : {DType::f8e4m3fn, DType::f8e5m2}) {
      CHECK(takes(ada, "pointwise", t));
      CHECK(takes(ada, "row_reduce", t));
      CHECK(!takes(ampere, "pointwise", t));
    }
    CHECK(takes(ada, "pointwise", DType::bf16));
    CHECK(takes(ada, "conv", DType::bf16));
  }
}

TEST_CASE("libraries, forms and executions are facts of contracts, taken over from `like`") {
  auto cpu = *load_target(shipped(), "cpu-avx512"), gpu = *load_target(shipped(), "sm_90");
  CHECK(cpu.facts_of("conv").library == Library::onednn);
  CHECK(gpu.facts_of("conv").library == Library::cudnn);
  CHECK(gpu.facts_of("gemm").library == Library::cublaslt);
  CHECK(gpu.facts_of("pointwise").library == Library::other);
  CHECK(cpu.facts_of("conv_pool").most_plain_channels == 4);
  CHECK(cpu.facts_of("pointwise").least_channels_last == 8);
  CHECK(gpu.facts_of("pool").takes("wide_pads"));
  CHECK(!gpu.facts_of("pool").takes("cubic"));
  for (const char* form : {"dilated", "wide_pads", "indices", "integers", "any_layout"})
    CHECK(cpu.facts_of("pool").takes(form));
  CHECK(!gpu.facts_of("pool").takes("indices"));
  CHECK(gpu.facts_of("conv_pool").takes("staged"));
  CHECK(gpu.facts_of("pool").images_as_rows);
  CHECK(gpu.facts_of("no such contract").types.empty());
  CHECK(cpu.notices_nan);
  CHECK(!gpu.notices_nan);
  CHECK(gpu.shared_bytes_per_core == 228 << 10);
  CHECK(load_target(shipped(), "sm_120")->shared_bytes_per_core == 100 << 10);
}

TEST_CASE("a profile is one of those there are") {
  auto t = *load_target(shipped(), "sm_75");
  CHECK(t.profile == "ferrule");
  CHECK(use_profile(t, "tensorrt"));
  CHECK(t.profile == "tensorrt");
  auto none = use_profile(t, "tensorflow");
  REQUIRE_FALSE(none);
  CHECK(none.error().code == Code::usage);
  CHECK(none.error().message == "there is no profile tensorflow; there are ferrule, tensorrt");
  CHECK(t.profile == "tensorrt");
}

TEST_CASE("the host has a target, or is not supported") {
  CHECK(load_target(shipped(), host_target().value()).has_value());
  CHECK(host_target({true, true}).value() == "cpu-avx512");
  CHECK(host_target({true, false}).value() == "cpu-avx2");
  const auto other = host_target({});  // no x86-64, or one without AVX2
  REQUIRE_FALSE(other);
  CHECK(render(other.error()) ==
        "error[machine_unsupported]: this machine is not supported: its processor is not an x86-64 "
        "with AVX2, FMA and F16C\nhint: models can be planned for other machines: pass --target");
}

TEST_CASE("what is refused") {
  auto unknown = load_target(shipped(), "sm_42");
  REQUIRE(!unknown);
  CHECK(unknown.error().code == Code::unknown_target);
  CHECK(unknown.error().message.find("sm_90") != std::string::npos);
  CHECK(!load_target(shipped(), "../targets/sm_90"));

  fs::path dir = fs::temp_directory_path() / fmt::format("ferrule_targets_{}", ::getpid());
  fs::create_directories(dir / "targets");
  auto write = [&](const char* name, const char* text) {
    std::ofstream(dir / "targets" / name) << text;
  };
  write("mine.yaml",
        "ferrule: 1\nlike: cpu-avx2\ncores: 3\ncontracts: {pool: none, conv: {max_operands: "
        "1}}\n");
  write("a.yaml", "ferrule: 1\nlike: b\n");
  write("b.yaml", "ferrule: 1\nlike: a\n");
  write("typo.yaml",
        "ferrule: 1\ndevice: cpu\nl2bytes: 1\ncontracts: {conv: {types: [f31]}, atention: none}\n");
  write("facts.yaml",
        "ferrule: 1\nlike: cpu-avx2\nnotices_nan: often\nshared_bytes_per_core: -1\ncontracts:\n"
        "  conv: {library: cudn, forms: [dilated], most_plain_channels: -4}\n"
        "  pool: {forms: [dilatd], images_as_rows: 1}\n  conv_pool: {forms: [stagd], stridd: "
        "[any]}\n  gemm: {forms: [dilated]}\n  row_reduce: {library: onednn}\n");
  write("cpu-avx512.yaml", "ferrule: 1\nlike: cpu-avx2\ncores: 5\n");
  std::vector<std::string> both = {rules_dir(), dir.string()};
  auto mine = load_target(both, "mine");
  REQUIRE(mine.has_value());
  CHECK(mine->cores == 3);
  CHECK(!mine->contracts.contains("pool"));
  CHECK(mine->contracts.at("conv").max_operands == 1);
  CHECK(mine->contracts.at("conv").max_epilogue_ops == 32);
  CHECK(load_target(both, "cpu-avx512")->cores == 5);
  CHECK(!load_target(both, "a"));
  auto typo = load_target(both, "typo");
  REQUIRE(!typo);
  std::string text = render(typo.error());
  CHECK(text.find("l2_bytes") != std::string::npos);
  CHECK(text.find("f31") != std::string::npos);
  CHECK(text.find("there is no contract atention") != std::string::npos);
  CHECK(text.find("did you mean \"attention\"?") != std::string::npos);
  auto facts = load_target(both, "facts");
  REQUIRE(!facts);
  text = render(facts.error());
  for (const char* part :
       {"facts.yaml:3:14", "-1 is not between 0 and", "\"cudn\" is none of onednn, cudnn, cublaslt",
        "conv has no form \"dilated\"", "hint: computed", "gemm has no form \"dilated\"",
        "leave it out", "-4 is not between 0 and", "pool has no form \"dilatd\"",
        "dilated, wide_pads", "facts.yaml:7:43", "conv_pool has no form \"stagd\"",
        "did you mean \"strided\"?", "no library has calls for row_reduce"})
    CHECK_MESSAGE(text.find(part) != std::string::npos, part << " in\n" << text);
  fs::remove_all(dir);
}
