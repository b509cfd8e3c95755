// compile: every generated kernel of a model to machine code for a target; no GPU is needed for sm_XX.
#include <algorithm>
#include <atomic>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "codegen/cuda.h"
#include "codegen/cuda_copy.h"
#include "codegen/cuda_rows.h"
#include "codegen/cuda_text.h"
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
  /// Null: elements are moved by a kernel of another kind.
  const Program* program() const {
    if (launch->rows) return &launch->rows->program;
    if (!launch->region) return nullptr;
    const LoweredRegion& region = *launch->region;
    return region.pieced ? &region.programs[region.pieces[piece].program] : &region.program;
  }
};

/// Of a region in pieces, the first piece of each program.
void add_programs(Kernel kernel, std::vector<Kernel>& out) {
  if (!kernel.launch->region || !kernel.launch->region->pieced) return out.push_back(kernel);
  const LoweredRegion& region = *kernel.launch->region;
  std::set<uint32_t> seen;
  for (; kernel.piece < region.pieces.size(); ++kernel.piece)
    if (seen.insert(region.pieces[kernel.piece].program).second) out.push_back(kernel);
}

/// Copies that stay copies have generated kernels on GPUs; on CPUs the runtime has its own.
bool generated(const Launch& l, bool gpu) {
  if (l.rows || l.kind == Launch::Kind::generated) return true;
  return l.kind == Launch::Kind::copy && (l.region || (gpu && (l.primitive == "Transpose" || l.primitive == "Reorder")));
}

std::vector<Kernel> kernels_of(const Explained& e) {
  std::vector<Kernel> kernels;
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    for (const Launch& l : e.lowered.layers[k].launches)
      if (generated(l, e.knowledge->target.device == "gpu"))
        add_programs({&e.plan.layers[k], &e.lowered.layers[k], &l}, kernels);
  return kernels;
}

Result<json> compile_pointwise(const Kernel& kernel, const RegionOperands& operands, const Target& target) {
  FERRULE_ASSIGN(LoopNest nest, LoopNest::make(operands.dims, operands.strides, operands.element_bytes,
                                               kernel.program()->outputs.size()));
  KernelKey key{*kernel.program(), nest.inner(), target.name, false};
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

struct CudaText {
  std::string source;
  int threads = 256;  ///< of a block
};

std::string entry_of(const Kernel& kernel) { return "ferrule_" + to_identifier(kernel.layer->name); }
std::string comment_of(const Kernel& kernel) {
  std::string out = "rule " + (kernel.layer->rule.empty() ? "none" : kernel.layer->rule) + ", nodes";
  for (const std::string& node : kernel.layer->nodes) out += " " + node;
  return out;
}

/// Through shared memory where that helps, else as a pointwise kernel that changes nothing.
Result<CudaText> permuted_text(const PermutedOperands& o, const std::string& entry, const std::string& comment) {
  CudaText out;
  ProgramBuilder b;
  b.output(b.input(o.type));
  const Program same = b.take();
  FERRULE_TRY(check_cuda_types(same));
  if (auto turned = plan_cuda_transpose(o.dims, o.source, o.result, size_bits(o.type) / 8)) {
    out.source = cuda_transpose_source(turned->kernel, entry, comment);
    return out;
  }
  const std::vector<std::vector<int64_t>> strides{o.source, o.result};
  FERRULE_ASSIGN(CudaPlan copy, plan_cuda(same, o.dims, strides, true));
  FERRULE_ASSIGN(out.source, cuda_source(copy.kernel, entry, comment));
  return out;
}

Result<CudaText> cuda_text(const Plan& plan, const Kernel& kernel, const std::string& entry, const std::string& comment) {
  CudaText out;
  if (kernel.launch->rows) {
    FERRULE_ASSIGN(auto operands, row_operands(plan, *kernel.lowered, *kernel.launch));
    FERRULE_ASSIGN(CudaRowPlan rows, plan_cuda_rows(*kernel.launch->rows, operands, true));
    FERRULE_ASSIGN(out.source, cuda_row_source(rows.kernel, entry, comment));
    out.threads = rows.kernel.block_threads();
    return out;
  }
  FERRULE_ASSIGN(const auto permuted, permuted_operands(plan, *kernel.lowered, *kernel.launch));
  if (permuted) return permuted_text(*permuted, entry, comment);
  FERRULE_ASSIGN(RegionOperands operands, region_operands(plan, *kernel.lowered, *kernel.launch, kernel.piece));
  FERRULE_ASSIGN(CudaPlan pointwise, plan_cuda(*kernel.program(), operands.dims, operands.strides, !operands.offset));
  FERRULE_ASSIGN(out.source, cuda_source(pointwise.kernel, entry, comment));
  return out;
}

/// A kernel whose operands have no known rank is made when the model runs; for some types there is none.
bool left_out(const Error& e) { return e.code == Code::unsupported_operator || e.code == Code::unsupported_type; }

/// Kernels that differ in their names only are compiled once; the rest on all threads.
Result<std::vector<json>> compile_for_gpu(const Plan& plan, const std::vector<Kernel>& kernels, const Target& target) {
  struct Job {
    const Kernel* kernel;
    std::optional<Result<Cubin>> cubin;
  };
  std::map<std::string, size_t> seen;
  std::vector<Job> jobs;
  std::vector<size_t> job_of;
  for (const Kernel& k : kernels) {
    auto text = cuda_text(plan, k, "kernel", "");
    auto [it, fresh] = seen.try_emplace(text ? std::move(text->source) : text.error().message, jobs.size());
    if (fresh) jobs.push_back({&k, text ? std::nullopt : std::optional<Result<Cubin>>(tl::make_unexpected(text.error()))});
    job_of.push_back(it->second);
  }
  std::atomic<size_t> next = 0;
  auto work = [&] {
    for (size_t j = next++; j < jobs.size(); j = next++) {
      if (jobs[j].cubin) continue;
      const std::string entry = entry_of(*jobs[j].kernel);
      auto text = cuda_text(plan, *jobs[j].kernel, entry, comment_of(*jobs[j].kernel));
      jobs[j].cubin = text ? compile_cuda(text->source, entry, target.name, text->threads) : tl::make_unexpected(text.error());
    }
  };
  {
    std::vector<std::jthread> team;
    for (unsigned k = 1; k < std::min<size_t>(std::thread::hardware_concurrency(), jobs.size()); ++k) team.emplace_back(work);
    work();
  }
  std::vector<json> out;
  for (size_t j : job_of) {
    if (!*jobs[j].cubin && left_out(jobs[j].cubin->error())) {
      out.push_back({{"left_out", jobs[j].cubin->error().message}});
      continue;
    }
    FERRULE_ASSIGN(const Cubin cubin, *jobs[j].cubin);
    out.push_back({{"code_bytes", cubin.bytes.size()}, {"registers", cubin.registers}, {"spill_bytes", cubin.spill_bytes},
                   {"shared_bytes", cubin.shared_bytes}, {"occupancy", cubin.occupancy}});
  }
  return out;
}

Result<json> compile_for_cpu(const Plan& plan, const Kernel& kernel, const Target& target) {
  if (kernel.launch->rows) return compile_rows(plan, kernel, target);
  FERRULE_ASSIGN(RegionOperands operands, region_operands(plan, *kernel.lowered, *kernel.launch, kernel.piece));
  return compile_pointwise(kernel, operands, target);
}

/// Launches of other kinds: what runs them, and how often.
std::map<std::string, int> other_launches(const Explained& e) {
  std::map<std::string, int> out;
  const bool gpu = e.knowledge->target.device == "gpu";
  for (const LoweredLayer& layer : e.lowered.layers)
    for (const Launch& l : layer.launches) {
      if (generated(l, gpu)) continue;
      if (l.kind == Launch::Kind::library) ++out["library call: " + l.primitive];
      if (l.kind == Launch::Kind::copy) ++out["copy: " + l.primitive];
      if (l.kind == Launch::Kind::interpret) ++out["interpreted: " + l.primitive];
    }
  return out;
}

Result<Exit> body(const Common& common) {
  FERRULE_ASSIGN(const auto explained, explain_model(common, false));
  const Explained& e = *explained;
  const Target& target = e.knowledge->target;
  json rows = json::array();
  const std::vector<Kernel> kernels = kernels_of(e);
  std::vector<json> results;
  if (target.device == "gpu") {
    FERRULE_ASSIGN(results, compile_for_gpu(e.plan, kernels, target));
  } else {
    for (const Kernel& kernel : kernels) {
      auto result = compile_for_cpu(e.plan, kernel, target);
      if (!result && !left_out(result.error())) return tl::make_unexpected(result.error());
      results.push_back(result ? std::move(*result) : json{{"left_out", result.error().message}});
    }
  }
  for (size_t k = 0; k < kernels.size(); ++k) {
    const Kernel& kernel = kernels[k];
    json row{{"layer", escape(kernel.layer->name, 4096)}};
    if (const Program* p = kernel.program()) row.update({{"instructions", p->insts.size()}, {"live_values", p->live_max()}});
    row.update(results[k]);
    rows.push_back(std::move(row));
  }
  const auto missing = std::ranges::count_if(rows, [](const json& row) { return row.contains("left_out"); });
  const auto others = other_launches(e);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion}, {"target", target.name}, {"kernels", rows}, {"others", others}});
    return Exit::ok;
  }
  for (const json& row : rows) {
    std::string facts;
    for (const auto& [key, value] : row.items())
      if (key != "layer") facts += fmt::format("  {} {}", key, value.dump());
    std::cout << row["layer"].get<std::string>() << facts << "\n";
  }
  std::cout << fmt::format("{} generated kernels compiled for {}\n", static_cast<std::ptrdiff_t>(rows.size()) - missing, target.name);
  for (const auto& [what, count] : others) std::cout << fmt::format("{} x {}\n", count, what);
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
