#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <new>
#include <set>

#include "engine/onnx/import.h"
#include "engine/semantics/infer.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/terminal.h"
#include "runtime/registry.h"
#include "runtime/shipped_rules.h"

namespace ferrule::cli {
namespace {

bool exists(const std::string& path) {
  struct stat s{};
  return stat(path.c_str(), &s) == 0;
}

}  // namespace

Status flush_output() {
  errno = 0;
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0) return {};
  const char* why = errno ? std::strerror(errno) : "the disk is full, or the stream is closed";
  auto e = error(Code::file_not_written, "", "the output", why);
  e.value().hint = "nothing or only a part of it was written to standard output";
  return e;
}

void add_common(CLI::App& command, Common& common, bool model) {
  if (model) command.add_option("MODEL", common.model, "the ONNX model")->required();
  auto* group = command.add_option_group("everywhere");
  group
      ->add_option("--rules", common.rules,
                   "a folder of rules that are added to the shipped ones; with a pipeline.yaml "
                   "it replaces them")
      ->type_name("DIR");
  group->add_option("--disable", common.disable, "rules to switch off")->type_name("GLOB");
  group->add_option("--enable", common.enable, "rules to switch on")->type_name("GLOB");
  if (model) {
    add_override(*group, common);
    group
        ->add_option("--apply", common.apply,
                     "a list written by `ferrule fuse --plan`: only these fusions are made")
        ->type_name("FILE");
  }
  group->add_option("--target", common.target,
                    "plan for this device (cpu-avx2, cpu-avx512, sm_75, …; host: this processor)");
  group->add_option(
      "--profile", common.profile,
      "whose limits apply: ferrule's, or tensorrt: exactly those that TensorRT documents");
  group->add_option("--backend", common.backend,
                    "cpu, cuda, reference, null, or auto: cuda if there is a GPU, else cpu");
  group->add_flag("--require-device", common.require_device,
                  "fail (exit code 5) rather than run on anything but a GPU");
  group->add_flag("--no-interpreter", common.no_interpreter,
                  "fail (exit code 3) rather than interpret a layer that has no kernel");
  group->add_option("--threads", common.threads, "threads; 0 = all cores")
      ->check(CLI::Range(0, 1024));
  group
      ->add_option("--tuning", common.tuning,
                   "a file written by `ferrule tune`: the implementations to use")
      ->type_name("FILE");
  group->add_option("--shapes", common.shapes,
                    "input shapes: name:1x3x224x224; explain, why and missed take ranges, "
                    "name:1..8x3x224x224");
  group->add_option("--limit", common.limits, "NAME=VALUE: raise a limit");
  group
      ->add_option(
          "--cache", common.cache,
          "the folder for compiled kernels and proofs (else $FERRULE_CACHE, else ~/.cache/ferrule)")
      ->type_name("DIR");
  group->add_flag("--no-cache", common.no_cache, "neither read nor write the cache on disk");
  group->add_option("--ignore-profit", common.ignore_profit,
                    "RULE.CONDITION: profit conditions to ignore");
  group->add_flag("--no-fold", common.no_fold, "no constant folding");
  group->add_flag("--overridable", common.overridable,
                  "treat initializers that are also inputs as inputs, not as constants");
  auto* strict = group->add_flag(
      "--strict", common.strict,
      "no Winograd convolution, and no library epilogue that deviates from its formula");
  group
      ->add_flag("--fast-math", common.fast_math,
                 "let library epilogues turn NaN into 0 or a bound")
      ->excludes(strict);
  group
      ->add_option("--allow-unproven", common.allow_unproven,
                   "RULE (glob): use this rule without a proof")
      ->allow_extra_args(false);
  group->add_flag("--json", common.json, "print JSON");
  group->add_flag("--force", common.force, "overwrite files");
}

void add_override(CLI::App& command, Common& common) {
  command
      .add_option("--override", common.overrides,
                  "a file that switches rules on and off, adds conditions and sets parameters")
      ->type_name("FILE");
}

void add_timeout(CLI::App& command, Common& common) {
  command
      .add_option("--timeout", common.timeout,
                  "stop after this time, between two layers or iterations (exit code 4)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6));
}

/// "ferrule rules test"
static std::string path_of(const CLI::App& command) {
  const CLI::App* parent = command.get_parent();
  return parent ? path_of(*parent) + " " + command.get_name() : command.get_name();
}

void set_body(CLI::App& command, Common& common, int& exit, Command body) {
  command.callback([&command, &common, &exit, body = std::move(body)] {
    const FoldedOutput output;
    if (common.json) print_unfolded();
    auto result = [&]() -> Result<Exit> {
      try {
        Result<Exit> done = body(common);
        FERRULE_TRY(flush_output());
        return done;
      } catch (
          const std::bad_alloc&) {  // what no limit foresaw: an address space that is limited, say
        return error(Code::out_of_memory, escape(common.model), "it", "more free", "no more");
      }
    }();
    if (result) {
      exit = static_cast<int>(*result);
      return;
    }
    static const std::string general = error(Code::usage, "", "").value().hint;
    if (Error& e = result.error(); e.hint == general)
      e.hint = "see " + path_of(command) + " --help";
    report(result.error(), common.json);
    exit = static_cast<int>(exit_code(result.error().code));
  });
}

Result<NamedShapes> parse_shapes(const std::string& text, NamedShapes* most) {
  auto malformed = [&] {
    return error(Code::usage, "--shapes", fmt::format("{} is not NAME:1x3x224x224", escape(text)));
  };
  auto number = [](const std::string& size) -> std::optional<int64_t> {
    if (size.empty() || size.size() > 12 ||
        size.find_first_not_of("0123456789") != std::string::npos)
      return {};
    return std::stoll(size);
  };
  NamedShapes all;
  for (size_t at = 0; at <= text.size();) {
    const size_t comma = std::min(text.find(',', at), text.size());
    std::string part = text.substr(at, comma - at);
    at = comma + 1;
    if (const size_t colon = part.rfind(':'); colon != std::string::npos) {
      if (colon == 0) return malformed();
      all.emplace_back(part.substr(0, colon), std::vector<int64_t>{});
      if (most) most->push_back(all.back());
      part.erase(0, colon + 1);
      if (part.empty() && comma == text.size()) continue;  // a scalar
    } else if (all.empty()) {
      return malformed();
    }
    for (size_t from = 0; from <= part.size();) {
      const size_t x = std::min(part.find('x', from), part.size());
      const std::string size = part.substr(from, x - from);
      const size_t dots = size.find("..");
      const auto low = number(size.substr(0, dots));
      const auto high = dots == std::string::npos ? low : number(size.substr(dots + 2));
      if (!low || !high || *high < *low) return malformed();
      if (dots != std::string::npos && !most)
        return error(Code::usage, "--shapes",
                     fmt::format("{} has the range {}; explain, why and missed take ranges, here "
                                 "pass one size, such as {}, or none where the model leaves it "
                                 "open",
                                 escape(text), size, *high));
      all.back().second.push_back(*low);
      if (most) most->back().second.push_back(*high);
      from = x + 1;
    }
  }
  return all;
}

std::string shapes_text(const std::string& name, const std::vector<int64_t>& dims) {
  return fmt::format("{}:{}", name, fmt::join(dims, "x"));
}

Result<std::string> take_largest(Common& common) {
  std::vector<std::string> largest;
  bool any = false;
  for (const std::string& text : common.shapes) {
    NamedShapes high;
    FERRULE_ASSIGN(const NamedShapes low, parse_shapes(text, &high));
    any = any || low != high;
    for (const auto& [name, dims] : high) largest.push_back(shapes_text(name, dims));
  }
  if (!any) return std::string();
  common.shapes = largest;
  return fmt::format("{}", fmt::join(largest, ","));
}

Result<EngineOptions> engine_options(const Common& common) {
  EngineOptions o;
  bool replaced = false;
  for (const std::string& dir : common.rules) {
    if (!exists(dir)) return error(Code::file_not_found, "--rules", escape(dir), "no such folder");
    replaced = replaced || exists(dir + "/pipeline.yaml");
  }
  if (!replaced) o.rule_dirs.push_back(shipped_rules());
  o.rule_dirs.insert(o.rule_dirs.end(), common.rules.begin(), common.rules.end());
  o.selection = {common.disable, common.enable};
  o.overrides = common.overrides;
  o.apply = common.apply;
  o.target = common.target;
  o.profile = common.profile;
  for (const std::string& l : common.limits) FERRULE_TRY(set_limit(o.limits, l));
  o.rule_tests = false;
  o.cache = common.no_cache ? "" : common.cache;
  o.fold = !common.no_fold;
  o.overridable = common.overridable;
  o.ignore_profit = common.ignore_profit;
  o.allow_unproven = common.allow_unproven;
  o.shapes = common.input_shapes;
  for (const std::string& s : common.shapes) {
    FERRULE_ASSIGN(const NamedShapes shapes, parse_shapes(s));
    for (const auto& [name, dims] : shapes)
      if (!o.shapes.emplace(name, dims).second)
        return error(Code::usage, "--shapes", fmt::format("input {} is given twice", escape(name)));
  }
  FERRULE_TRY(check_backend(common.backend));
  if (!common.tuning.empty() && !exists(common.tuning))
    return error(Code::file_not_found, "--tuning", escape(common.tuning), "no such file");
  return o;
}

Result<EngineOptions> rule_options(const Common& common) {
  FERRULE_ASSIGN(EngineOptions o, engine_options(common));
  o.allow_unproven = {"*"};
  o.rule_tests = true;
  return o;
}

Result<SessionOptions> session_options(const Common& common) {
  SessionOptions o;
  FERRULE_ASSIGN(o.engine, engine_options(common));
  o.backend = common.backend;
  o.require_device = common.require_device;
  o.no_interpreter = common.no_interpreter;
  o.threads = common.threads;
  o.strict = common.strict;
  o.fast_math = common.fast_math;
  o.tuning = common.tuning;
  if (common.timeout > 0) {
    auto cancel = std::make_shared<Cancel>();
    const std::chrono::duration<double> wait(common.timeout);
    cancel->deadline(std::chrono::steady_clock::now() +
                     std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait));
    o.cancel = std::move(cancel);
  }
  o.log = [](LogLevel level, std::string_view text) {
    if (level <= LogLevel::warning)
      talk(fmt::format("{}: {}", level == LogLevel::error ? "error" : "warning", text));
  };
  return o;
}

LowerOptions lower_options(const Common& common) {
  return {.strict = common.strict, .fast_math = common.fast_math};
}

Result<Loaded> load_model(const Common& common, bool contents) {
  Loaded l;
  FERRULE_ASSIGN(l.options, engine_options(common));
  if (common.backend == "cuda" && common.target.empty()) {
    FERRULE_ASSIGN(const BackendChoice gpu,
                   choose_backend("cuda", "", false, target_names(l.options.rule_dirs)));
    l.options.target = gpu.target;
  }
  FERRULE_ASSIGN(l.knowledge, load_knowledge(l.options));
  FERRULE_ASSIGN(l.model, import_model(common, l.options, *l.knowledge, contents));
  return l;
}

Result<Imported> import_model(const Common& common, const EngineOptions& options,
                              const Knowledge& knowledge, bool contents) {
  ImportOptions import;
  import.contents = contents;
  import.limits = &options.limits;
  import.overridable = options.overridable;
  import.ops = &knowledge.ops;
  const Progress progress("loading " + escape(common.model));
  return import_file(common.model, import);
}

namespace {

/// Gives those sizes of inputs that are known. The model is one that all of its sizes fit.
Status fix_some(const Semantics& ops, Graph& g, const Common& common) {
  for (const auto& [name, dims] : common.partly_open) {
    const ValueId v = g.find_value(name);
    if (!v || !g.value(v).is_input) continue;
    Type type = g.value(v).type;
    if (!type.shape || type.shape->size() != dims.size()) continue;
    for (size_t k = 0; k < dims.size(); ++k)
      if (dims[k]) (*type.shape)[k] = Dim(*dims[k]);
    g.set_type(v, std::move(type));
  }
  return common.partly_open.empty() ? Status() : infer_all(ops, g);
}

}  // namespace

Result<std::unique_ptr<Explained>> explain_model(const Common& common, bool near_misses) {
  FERRULE_ASSIGN(Loaded loaded, load_model(common));
  auto& [options, knowledge, imported] = loaded;
  FERRULE_TRY(fix_some(knowledge->ops, imported.graph, common));
  options.near_misses = near_misses;
  return explain(std::move(imported), knowledge, options, lower_options(common));
}

Status free_place(std::string_view what, const std::string& path, bool force) {
  struct stat s{};
  if (path.empty() || force || ::lstat(path.c_str(), &s) != 0) return {};
  return error(Code::file_exists, std::string(what), escape(path));
}

namespace {

bool printed_json = false;

nlohmann::json json_of(const Error& e) {
  nlohmann::json out{{"code", code_name(e.code)}, {"place", e.place}, {"message", e.message}};
  if (!e.hint.empty()) out["hint"] = e.hint;
  if (!e.excerpt.empty()) out["excerpt"] = e.excerpt;
  for (const Error& further : e.more) out["more"].push_back(json_of(further));
  return out;
}

}  // namespace

void report(const Error& e, bool json) {
  talk(render(e));
  if (json && !printed_json)
    print_json({{"schema_version", kSchemaVersion}, {"error", json_of(e)}});
}

void print_json(const nlohmann::json& j) {
  printed_json = true;
  std::cout << j.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
}

std::vector<std::string> interpreted_layers(Compiled& compiled) {
  std::vector<std::string> out;
  for (size_t layer : compiled.executable().interpreted())
    out.push_back(escape(compiled.plan().layers[layer].name, 4096));
  return out;
}

std::string ran_on(const Compiled& compiled) {
  if (compiled.backend() != "cuda") return std::string(compiled.backend());
  return fmt::format("{} ({})", compiled.backend(), compiled.device());
}

void talk(const std::string& text) {
  static std::set<std::string> said;  // a model that is prepared twice has its notes twice
  if (!said.insert(text).second) return;
  std::fprintf(stderr, "%s\n", laid_out_message(text).c_str());
}

}  // namespace ferrule::cli
