// compile: every generated kernel of a model to machine code for a target; no GPU is needed for sm_XX.
#include <iostream>
#include <set>

#include "codegen/cuda.h"
#include "codegen/llvm.h"
#include "codegen/loop.h"
#include "codegen/operands.h"
#include "engine/base/diagnostics.h"
#include "runtime/cli/cli.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

struct Kernel {
  const Layer* layer = nullptr;
  const LoweredLayer* lowered = nullptr;
  const Launch* launch = nullptr;
  size_t piece = 0;
  const Program& program() const {
    if (launch->rows) return launch->rows->program;
    const LoweredRegion& region = *launch->region;
    return region.pieced ? region.programs[region.pieces[piece].program] : region.program;
  }
};

/// Of a region in pieces, the first piece of each program.
void add_programs(Kernel kernel, std::vector<Kernel>& out) {
  if (kernel.launch->rows || !kernel.launch->region->pieced) return out.push_back(kernel);
  const LoweredRegion& region = *kernel.launch->region;
  std::set<uint32_t> seen;
  for (; kernel.piece < region.pieces.size(); ++kernel.piece)
    if (seen.insert(region.pieces[kernel.piece].program).second) out.push_back(kernel);
}

/// Row kernels have no CUDA form yet: for GPUs they are planned and not compiled.
std::vector<Kernel> kernels_of(const Explained& e) {
  const bool rows = e.knowledge->target.device == "cpu";
  std::vector<Kernel> kernels;
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    for (const Launch& l : e.lowered.layers[k].launches)
      if (l.kind == Launch::Kind::generated && (l.region || (l.rows && rows)))
        add_programs({&e.plan.layers[k], &e.lowered.layers[k], &l}, kernels);
  return kernels;
}

Result<json> compile_for_cpu(const Kernel& kernel, const RegionOperands& operands, const Target& target) {
  FERRULE_ASSIGN(LoopNest nest, LoopNest::make(operands.dims, operands.strides, operands.element_bytes,
                                               kernel.program().outputs.size()));
  KernelKey key{kernel.program(), nest.inner(), target.name, false};
  FERRULE_ASSIGN(std::string code, compile_cpu(key, to_identifier(kernel.layer->name), CodeForm::object));
  return json{{"code_bytes", code.size()}};
}

/// All stages.
Result<json> compile_rows(const Plan& plan, const Kernel& kernel, const Target& target) {
  FERRULE_ASSIGN(auto operands, row_operands(plan, *kernel.lowered, *kernel.launch));
  FERRULE_ASSIGN(RowNest nest, RowNest::make(*kernel.launch->rows, operands, target.name, target.l2_bytes, 1));
  size_t bytes = 0;
  for (const KernelKey& key : nest.kernels()) {
    FERRULE_ASSIGN(std::string code, compile_cpu(key, to_identifier(kernel.layer->name), CodeForm::object));
    bytes += code.size();
  }
  return json{{"code_bytes", bytes}, {"stages", nest.kernels().size()}};
}

Result<json> compile_for_gpu(const Kernel& kernel, const RegionOperands& operands, const Target& target) {
  FERRULE_ASSIGN(CudaPlan plan, plan_cuda(kernel.program(), operands.dims, operands.strides, !operands.offset));
  std::string comment = "rule " + (kernel.layer->rule.empty() ? "none" : kernel.layer->rule) + ", nodes";
  for (const std::string& node : kernel.layer->nodes) comment += " " + node;
  std::string entry = "ferrule_" + to_identifier(kernel.layer->name);
  FERRULE_ASSIGN(std::string source, cuda_source(plan.kernel, entry, comment));
  FERRULE_ASSIGN(Cubin cubin, compile_cuda(source, entry, target.name));
  return json{{"code_bytes", cubin.bytes.size()}, {"registers", cubin.registers}, {"spill_bytes", cubin.spill_bytes},
              {"shared_bytes", cubin.shared_bytes}, {"occupancy", cubin.occupancy}};
}

Result<json> compile_kernel(const Plan& plan, const Kernel& kernel, const Target& target) {
  if (kernel.launch->rows) return compile_rows(plan, kernel, target);
  FERRULE_ASSIGN(RegionOperands operands, region_operands(plan, *kernel.lowered, *kernel.launch, kernel.piece));
  return target.device == "gpu" ? compile_for_gpu(kernel, operands, target) : compile_for_cpu(kernel, operands, target);
}

Result<Exit> body(const Common& common) {
  FERRULE_ASSIGN(Explained e, explain_model(common, false));
  const Target& target = e.knowledge->target;
  json rows = json::array();
  for (const Kernel& kernel : kernels_of(e)) {
    json row{{"layer", escape(kernel.layer->name, 4096)}, {"instructions", kernel.program().insts.size()},
             {"live_values", kernel.program().live_max()}};
    FERRULE_ASSIGN(json result, compile_kernel(e.plan, kernel, target));
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
