// compile: every generated kernel of a model to machine code for a target; no GPU is needed for
// sm_XX.
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <optional>
#include <set>
#include <thread>

#include "codegen/cache.h"
#include "codegen/cpu/llvm.h"
#include "codegen/cpu/loop_nest.h"
#include "codegen/cpu/row_nest.h"
#include "codegen/cuda/library_attention.h"
#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/operands.h"
#include "codegen/cuda/plan_launch.h"
#include "codegen/program/operands.h"
#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/progress.h"
#include "runtime/gpu_steps.h"

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
    if (!launch->region || (launch->region->pieced && launch->region->pieces.empty()))
      return nullptr;
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

/// On GPUs a region in pieces is one kernel, and copies that stay copies have generated ones; on
/// CPUs the runtime has its own.
bool generated(const Explained& e, const LoweredLayer& layer, const Launch& l) {
  const Target& target = e.knowledge->target;
  if (target.device != "gpu")
    return l.rows || l.kind == Launch::Kind::generated ||
           (l.kind == Launch::Kind::copy && l.region);
  if (!cuda_generated(l)) return false;
  const auto o = cuda_operands(e.plan, layer, l);
  return !o || !choose_attention(l, o->operands, o->aligned, target, e.lowered.strict).library;
}

std::vector<Kernel> kernels_of(const Explained& e) {
  std::vector<Kernel> kernels;
  const bool gpu = e.knowledge->target.device == "gpu";
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    for (const Launch& l : e.lowered.layers[k].launches) {
      const Kernel kernel{&e.plan.layers[k], &e.lowered.layers[k], &l};
      if (!generated(e, e.lowered.layers[k], l)) continue;
      if (gpu)
        kernels.push_back(kernel);
      else
        add_programs(kernel, kernels);
    }
  return kernels;
}

Applicable<json> compile_pointwise(const Kernel& kernel, const RegionOperands& operands,
                                   const Target& target) {
  FERRULE_ASSIGN(LoopNest nest,
                 LoopNest::make(operands.dims, operands.strides, operands.element_bytes,
                                kernel.program()->outputs.size()));
  KernelKey key{*kernel.program(), nest.inner(), target.name, false};
  FERRULE_ASSIGN(std::string code,
                 compile_cpu(key, to_identifier(kernel.layer->name), CodeForm::object));
  return json{{"code_bytes", code.size()}};
}

/// All stages.
Applicable<json> compile_rows(const Plan& plan, const Kernel& kernel, const Target& target) {
  FERRULE_ASSIGN(auto operands, row_operands(plan, *kernel.lowered, *kernel.launch));
  RowSplits splits;
  FERRULE_ASSIGN(RowNest nest, RowNest::make(*kernel.launch->rows, operands, target.name,
                                             target.l2_bytes, 1, splits));
  size_t bytes = 0;
  for (const KernelKey& key : nest.kernels()) {
    FERRULE_ASSIGN(std::string code,
                   compile_cpu(key, to_identifier(kernel.layer->name), CodeForm::object));
    bytes += code.size();
  }
  return json{{"code_bytes", bytes}, {"stages", nest.kernels().size()}};
}

Applicable<CudaLaunch> cuda_launch(const Plan& plan, const Kernel& kernel, const Target& target,
                                   const std::string& entry, const std::string& comment,
                                   const Tuning* tuning, std::string* note = nullptr) {
  FERRULE_ASSIGN(const CudaOperands o, cuda_operands(plan, *kernel.lowered, *kernel.launch));
  std::string wanted;
  FERRULE_ASSIGN(CudaLaunch planned,
                 plan_cuda_launch(*kernel.launch, o.operands, entry, comment, o.aligned,
                                  target.cores, tuned(tuning, wanted)));
  if (note && !wanted.empty() && planned.shape != wanted) *note = unknown_choice(wanted);
  return planned;
}

/// A kernel whose operands have no known rank is made when the model runs; for some types there is
/// none.
bool left_out(const Refusal& r) {
  return r.not_applicable() || r.error()->code == Code::unsupported_type;
}

/// Kernels that differ in their names only are compiled once, by a name that all models share in
/// the cache; the rest on all threads.
Result<std::vector<json>> compile_for_gpu(const Plan& plan, const std::vector<Kernel>& kernels,
                                          const Target& target, DiskCache* cache,
                                          const Tuning* tuning) {
  struct Job {
    const Kernel* kernel;
    Applicable<CudaLaunch> launch;
    std::optional<Applicable<Cubin>> cubin;
  };
  std::map<std::string, size_t> seen;
  std::vector<Job> jobs;
  std::vector<size_t> job_of;
  for (const Kernel& k : kernels) {
    std::string note;
    auto launch = cuda_launch(plan, k, target, "kernel", "", tuning, &note);
    if (!note.empty()) talk(fmt::format("warning: {}: {}", escape(k.layer->name), note));
    auto [it, fresh] =
        seen.try_emplace(launch ? launch->source : launch.error().reason(), jobs.size());
    if (fresh) jobs.push_back({&k, std::move(launch), std::nullopt});
    job_of.push_back(it->second);
  }
  std::atomic<size_t> next = 0;
  Progress progress("compiling " + counted(jobs.size(), "kernel"));
  auto work = [&] {
    for (size_t j = next++; j < jobs.size(); j = next++) {
      progress.advance(static_cast<double>(j) / static_cast<double>(jobs.size()));
      auto& [kernel, launch, cubin] = jobs[j];
      if (launch) {
        auto made = cached_cubin(launch->source, launch->entry, target.name, cache);
        if (!made && made.error().place == launch->entry)
          made.error().place = escape(kernel->layer->name);
        cubin = std::move(made);
      } else {
        cubin = tl::make_unexpected(launch.error());
      }
    }
  };
  {
    std::vector<std::jthread> team;
    for (unsigned k = 1; k < std::min<size_t>(std::thread::hardware_concurrency(), jobs.size());
         ++k)
      team.emplace_back(work);
    work();
  }
  std::vector<json> out;
  for (size_t j : job_of) {
    if (!*jobs[j].cubin && left_out(jobs[j].cubin->error())) {
      out.push_back({{"left_out", jobs[j].cubin->error().reason()}});
      continue;
    }
    FERRULE_ASSIGN(const Cubin cubin, required(*jobs[j].cubin));
    const CudaLaunch& launch = *jobs[j].launch;
    out.push_back({{"kind", launch.kind},
                   {"shape", launch.shape},
                   {"code_bytes", cubin.bytes.size()},
                   {"registers", cubin.registers},
                   {"spill_bytes", cubin.spill_bytes},
                   {"stack_bytes", cubin.stack_bytes},
                   {"shared_bytes", cubin.shared_bytes},
                   {"occupancy", occupancy(cubin, target, launch.threads_x * launch.threads_y)}});
    if (std::string warning = spill_warning(cubin); !warning.empty())
      out.back()["warning"] = std::move(warning);
  }
  return out;
}

std::string comment_of(const Kernel& kernel) {
  std::string out =
      "rule " + (kernel.layer->rule.empty() ? "none" : kernel.layer->rule) + ", nodes";
  for (const std::string& node : kernel.layer->nodes) out += " " + node;
  return out;
}

/// Each kernel's CUDA C++ in a file of its own, naming rule and nodes.
Status write_sources(const Plan& plan, const std::vector<Kernel>& kernels, const Target& target,
                     const std::filesystem::path& folder, bool force, const Tuning* tuning) {
  constexpr size_t kMostName = 60;
  std::error_code failed;
  std::filesystem::create_directories(folder, failed);
  if (failed)
    return error(Code::file_not_written, "compile", escape(folder.string()), failed.message());
  for (size_t k = 0; k < kernels.size(); ++k) {
    const std::string entry =
        fmt::format("ferrule_{}_{}", k, to_identifier(kernels[k].layer->name).substr(0, kMostName));
    const auto launch =
        cuda_launch(plan, kernels[k], target, entry, comment_of(kernels[k]), tuning);
    if (!launch) continue;  // reported with the others
    const std::filesystem::path file = folder / (entry + ".cu");
    if (!force && std::filesystem::exists(file))
      return error(Code::file_exists, "compile", escape(file.string()));
    std::ofstream out(file);
    if (!(out << launch->source).flush())
      return error(Code::file_not_written, "compile", escape(file.string()), std::strerror(errno));
  }
  return {};
}

Applicable<json> compile_for_cpu(const Plan& plan, const Kernel& kernel, const Target& target) {
  if (kernel.launch->rows) return compile_rows(plan, kernel, target);
  FERRULE_ASSIGN(RegionOperands operands,
                 region_operands(plan, *kernel.lowered, *kernel.launch, kernel.piece));
  return compile_pointwise(kernel, operands, target);
}

/// Launches of other kinds: what runs them, and how often.
std::map<std::string, int> other_launches(const Explained& e) {
  std::map<std::string, int> out;
  for (const LoweredLayer& layer : e.lowered.layers)
    for (const Launch& l : layer.launches) {
      if (generated(e, layer, l)) continue;
      if (l.kind == Launch::Kind::library) ++out["library call: " + l.called];
      if (l.kind == Launch::Kind::copy) ++out["copy: " + l.called];
      if (l.kind == Launch::Kind::interpret) ++out["interpreted: " + l.called];
    }
  return out;
}

Result<Exit> body(const Common& common, const std::string& sources) {
  FERRULE_ASSIGN(const auto explained, explain_model(common, false));
  const Explained& e = *explained;
  const Target& target = e.knowledge->target;
  json rows = json::array();
  const std::vector<Kernel> kernels = kernels_of(e);
  std::vector<json> results;
  if (target.device == "gpu") {
    FERRULE_ASSIGN(const EngineOptions options, engine_options(common));
    std::optional<Tuning> tuning;
    if (!common.tuning.empty()) {
      FERRULE_ASSIGN(tuning, read_tuning(common.tuning, options.limits));
    }
    const auto cache = DiskCache::open(options.cache, options.limits.cache_bytes);
    if (!sources.empty())
      FERRULE_TRY(write_sources(e.plan, kernels, target, sources, common.force,
                                tuning ? &*tuning : nullptr));
    FERRULE_ASSIGN(results, compile_for_gpu(e.plan, kernels, target, cache.get(),
                                            tuning ? &*tuning : nullptr));
  } else {
    if (!sources.empty())
      return error(Code::usage, "--sources", "kernels for CPUs have no source: --target sm_XX");
    for (const Kernel& kernel : kernels) {
      auto result = compile_for_cpu(e.plan, kernel, target);
      if (!result && !left_out(result.error())) return fail(required(result.error()));
      results.push_back(result ? std::move(*result) : json{{"left_out", result.error().reason()}});
    }
  }
  for (size_t k = 0; k < kernels.size(); ++k) {
    const Kernel& kernel = kernels[k];
    json row{{"layer", escape(kernel.layer->name, 4096)}};
    if (const Program* p = kernel.program())
      row.update({{"instructions", p->insts.size()}, {"live_values", p->live_max()}});
    row.update(results[k]);
    rows.push_back(std::move(row));
  }
  const auto missing =
      std::ranges::count_if(rows, [](const json& row) { return row.contains("left_out"); });
  const auto others = other_launches(e);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"target", target.name},
                {"kernels", rows},
                {"others", others}});
    return Exit::ok;
  }
  for (const json& row : rows)
    if (row.contains("warning"))
      talk(fmt::format("warning: {}: {}", row["layer"].get<std::string>(),
                       row["warning"].get<std::string>()));
  for (const json& row : rows) {
    std::string facts;
    for (const auto& [key, value] : row.items())
      if (key != "layer" && key != "warning") facts += fmt::format("  {} {}", key, value.dump());
    std::cout << row["layer"].get<std::string>() << facts << "\n";
  }
  std::cout << fmt::format("{} generated kernels compiled for {}\n",
                           static_cast<std::ptrdiff_t>(rows.size()) - missing, target.name);
  for (const auto& [what, count] : others) std::cout << fmt::format("{} x {}\n", count, what);
  return Exit::ok;
}

}  // namespace

void add_compile(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand(
      "compile", "every generated kernel to machine code for --target; no GPU needed");
  add_common(*c, common, true);
  auto sources = std::make_shared<std::string>();
  c->add_option("--sources", *sources,
                "also write the kernels' CUDA C++ there, a file each, naming rule and nodes")
      ->type_name("DIR");
  c->footer(
      "Examples:\n  ferrule compile model.onnx --target sm_90\n  ferrule compile model.onnx "
      "--target sm_75 --json\n"
      "  ferrule compile model.onnx --target sm_90 --sources kernels\n  ferrule compile model.onnx "
      "--target cpu-avx2");
  set_body(*c, common, exit, [sources](const Common& common) { return body(common, *sources); });
}

}  // namespace ferrule::cli
