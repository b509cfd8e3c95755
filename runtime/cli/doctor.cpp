// doctor: what this machine can do, what is missing, and how to get it.
#include <algorithm>
#include <iostream>
#include <thread>

#include "codegen/cuda/nvrtc.h"
#include "engine/base/tolerance.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/terminal.h"
#include "runtime/registry.h"
#include "runtime/shipped_rules.h"

namespace ferrule::cli {
namespace {

using Check = Requirement;

std::vector<Check> checks(const Common& common) {
  std::vector<Check> all;
  const auto host = host_target();
  all.push_back({"processor", host.has_value(),
                 host ? fmt::format("target {}, {} hardware threads", *host,
                                    std::thread::hardware_concurrency())
                      : host.error().message,
                 host ? "" : host.error().hint});
  Check rules{"rules", false, shipped_rules(), "run ferrule rules check"};
  auto knowledge =
      engine_options(common).and_then([](const EngineOptions& o) { return load_knowledge(o); });
  rules.there = knowledge.has_value();
  rules.detail = knowledge
                     ? fmt::format("{} rules, {} operators in {}", (*knowledge)->rules.rules.size(),
                                   (*knowledge)->ops.all().size(), shipped_rules())
                     : render(knowledge.error());
  all.push_back(rules);
  const auto cpu = open_backend("cpu");
  all.push_back({"CPU backend (libferrule_cpu.so)", cpu.has_value(),
                 cpu ? "loaded" : cpu.error().message, "build the target ferrule_cpu"});
  Check nvrtc{"NVRTC (compiles CUDA kernels, no GPU needed)", false, "",
              "install the CUDA Toolkit, or: pip install nvidia-cuda-nvrtc"};
  if (auto info = nvrtc_info()) {
    nvrtc.there = true;
    nvrtc.detail = fmt::format("{}, version {}.{}", info->path, info->major, info->minor);
  } else {
    nvrtc.detail = info.error().message;
  }
  all.push_back(nvrtc);
  auto cuda = open_backend("cuda");
  all.push_back({"CUDA backend (libferrule_cuda.so)", cuda.has_value(),
                 cuda ? "loaded" : cuda.error().message, "build the target ferrule_cuda"});
  if (cuda) std::ranges::move((*cuda)->requirements(), std::back_inserter(all));
  return all;
}

/// What `verify` allows, for scripts that compare results themselves.
nlohmann::json tolerances() {
  nlohmann::json out;
  for (DType t : {DType::f64, DType::f32, DType::f16, DType::bf16}) {
    const Tolerance allowed = model_tolerance(t);
    out[std::string(name(t))] = {{"relative", allowed.relative},
                                 {"absolute", allowed.absolute},
                                 {"norm", allowed.norm},
                                 {"least", allowed.least},
                                 {"noise", allowed.noise}};
  }
  return out;
}

Result<Exit> body(const Common& common) {
  auto all = checks(common);
  if (common.json) {
    nlohmann::json out = nlohmann::json::array();
    for (const Check& c : all)
      out.push_back({{"what", c.what},
                     {"there", c.there},
                     {"detail", c.detail},
                     {"remedy", c.there ? "" : c.remedy}});
    print_json({{"schema_version", kSchemaVersion},
                {"checks", out},
                {"tolerances", tolerances()},
                {"reduced_factor", kReducedFactor}});
  } else {
    for (const Check& c : all) {
      constexpr size_t kColumn = 9;
      std::cout << painted(c.there ? "ok" : "missing", c.there ? Paint::good : Paint::doubtful,
                           kColumn)
                << c.what << ": " << c.detail << "\n";
      if (!c.there) std::cout << fmt::format("{:>{}}{}\n", "", kColumn, c.remedy);
    }
  }
  // Rules and the CPU backend are what everything needs; the GPU's parts may be missing.
  return all[1].there && all[2].there ? Exit::ok : Exit::environment;
}

}  // namespace

void add_doctor(CLI::App& app, Common& common, int& exit) {
  auto* c =
      app.add_subcommand("doctor", "what this machine can do, what is missing, how to get it");
  add_common(*c, common, false);
  c->footer(
      "Examples:\n  ferrule doctor\n  ferrule doctor --json\n  ferrule doctor --rules my_rules");
  set_body(*c, common, exit, [](const Common& o) { return body(o); });
}

}  // namespace ferrule::cli
