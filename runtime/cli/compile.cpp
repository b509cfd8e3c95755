// compile: every generated kernel of a model to machine code for a target; no GPU is needed for sm_XX.
#include <iostream>

#include "codegen/cpu_jit.h"
#include "runtime/cli/cli.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

/// A generated kernel of the plan, identical ones once.
struct Kernel {
  std::string layer;
  const LoweredRegion* region = nullptr;
};

std::vector<Kernel> kernels_of(const Explained& e) {
  std::vector<Kernel> kernels;
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    for (const Launch& l : e.lowered.layers[k].launches)
      if (l.kind == Launch::Kind::generated && l.region) kernels.push_back({e.plan.layers[k].name, &*l.region});
  return kernels;
}

Result<json> compile_cpu(const Kernel& kernel, const Target& target) {
  KernelKey key;
  key.program = kernel.region->program;
  key.inner.assign(key.program.inputs.size() + key.program.outputs.size(), InnerStride::contiguous);
  key.target = target.name;
  FERRULE_ASSIGN(auto compiled, CpuJit::instance().compile(key, "kernel"));
  return json{{"code_bytes", compiled->object_bytes}};
}

Result<Exit> body(const Common& common) {
  FERRULE_ASSIGN(Explained e, explain_model(common, false));
  const Target& target = e.knowledge->target;
  json rows = json::array();
  for (const Kernel& kernel : kernels_of(e)) {
    json row{{"layer", escape(kernel.layer, 4096)}, {"instructions", kernel.region->program.insts.size()},
             {"live_values", kernel.region->program.live_max()}};
    FERRULE_ASSIGN(json result, compile_cpu(kernel, target));
    row.update(result);
    rows.push_back(std::move(row));
  }
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion}, {"target", target.name}, {"kernels", rows}});
    return Exit::ok;
  }
  for (const json& row : rows) {
    std::string facts;
    for (const auto& [key, value] : row.items())
      if (key != "layer") facts += fmt::format("  {} {}", key, value.dump());
    std::cout << row["layer"].get<std::string>() << facts << "\n";
  }
  std::cout << fmt::format("{} generated kernels compiled for {}\n", rows.size(), target.name);
  return Exit::ok;
}

}  // namespace

void add_compile(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("compile", "every generated kernel to machine code for --target; no GPU needed");
  add_common(*c, common, true);
  c->footer("Examples:\n  ferrule compile model.onnx --target sm_90\n  ferrule compile model.onnx --target sm_75 --json\n"
            "  ferrule compile model.onnx --target cpu-avx2");
  set_body(*c, common, exit, body);
}

}  // namespace ferrule::cli
