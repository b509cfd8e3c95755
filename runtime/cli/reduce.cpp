// reduce: the smallest part of a model that still shows a failure. What a failure is, a command
// says.
#include <signal.h>
#include <sys/stat.h>

#include <atomic>
#include <iostream>

#include "engine/base/join.h"
#include "engine/graph/npz.h"
#include "engine/graph/text.h"
#include "engine/onnx/export.h"
#include "engine/onnx/index_inputs.h"
#include "engine/reduce/reduce.h"
#include "runtime/candidate_check.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

constexpr size_t kShownNodes = 12;  // of the result, as text

struct ReduceOptions {
  std::string out, check;
  std::optional<int> status;
  double seconds = 60, check_seconds = 20;
  InputOptions input;
};

/// Beside the model: small.onnx -> small.npz.
std::string inputs_path(const std::string& model) {
  const std::string stem = model.ends_with(".onnx") ? model.substr(0, model.size() - 5) : model;
  return stem + ".npz";
}

/// What of the command line concerns `verify` as well. Node names stay, so overrides mean the same.
std::vector<std::string> verify_options(const Common& c) {
  std::vector<std::string> out;
  auto value = [&](const char* name, const std::string& v) {
    if (!v.empty()) out.insert(out.end(), {name, v});
  };
  auto values = [&](const char* name, const std::vector<std::string>& all) {
    for (const std::string& v : all) value(name, v);
  };
  auto flag = [&](const char* name, bool on) {
    if (on) out.push_back(name);
  };
  values("--rules", c.rules), values("--disable", c.disable), values("--enable", c.enable);
  values("--override", c.overrides), values("--limit", c.limits),
      values("--ignore-profit", c.ignore_profit);
  value("--target", c.target), value("--profile", c.profile), value("--backend", c.backend);
  value("--tuning", c.tuning), value("--cache", c.cache),
      value("--threads", std::to_string(c.threads));
  flag("--no-cache", c.no_cache), flag("--no-fold", c.no_fold), flag("--strict", c.strict),
      flag("--fast-math", c.fast_math);
  values("--allow-unproven", c.allow_unproven), flag("--require-device", c.require_device);
  return out;
}

ProgramCheck check_of(const Common& common, const ReduceOptions& o) {
  if (o.check == "verify")
    return verify_check("/proc/self/exe", verify_options(common), o.check_seconds);
  ProgramCheck c;
  c.arguments = {"sh", "-c", o.check};
  c.seconds = o.check_seconds;
  c.status = o.status.value_or(0);
  return c;
}

/// Random ones for `verify`, which must not draw others when inputs come and go; else those that
/// are given.
Result<Tensors> inputs_of(const Graph& g, const Common& common, const ReduceOptions& o,
                          const EngineOptions& engine) {
  const bool given = !o.input.files.empty() || !o.input.single.empty() || o.input.seed;
  if (!given && o.check != "verify" && o.check.find("{inputs}") == std::string::npos)
    return Tensors{};
  std::vector<Port> ports;
  const auto indices = index_inputs(g);
  for (ValueId v : g.inputs()) {
    ports.push_back({g.value(v).name, g.value(v).type});
    if (auto it = indices.find(v); it != indices.end()) ports.back().below = it->second;
  }
  std::vector<std::string> notes;
  auto inputs = gather_inputs(ports, o.input, engine.shapes, notes);
  if (!common.json)
    for (const std::string& n : notes) talk("note: " + n);
  return inputs;
}

std::atomic<Cancel*> interrupted{nullptr};
/// The first Ctrl-C ends the search, and what was found is written; the second one ends the
/// program.
void stop_on_interrupt(Cancel& cancel) {
  interrupted = &cancel;
  struct sigaction action{};
  action.sa_handler = [](int) {
    if (Cancel* c = interrupted) c->stop();
  };
  action.sa_flags = SA_RESETHAND;
  ::sigaction(SIGINT, &action, nullptr);
}

void report(const Common& common, const ReduceOptions& o, const reduce::Reduced& r) {
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"nodes_before", r.nodes_before},
                {"nodes", r.nodes},
                {"bytes", r.bytes.size()},
                {"checks", r.checks},
                {"candidates_refused", r.refused},
                {"seconds", r.seconds},
                {"complete", r.complete},
                {"model", o.out},
                {"inputs", r.inputs.empty() ? json(nullptr) : json(inputs_path(o.out))},
                {"text", to_text(r.graph)}});
    return;
  }
  if (r.nodes <= kShownNodes) std::cout << to_text(r.graph) << "\n";
  std::cout << fmt::format("{} -> {}, {}; {} in {:.1f} s{}\n", counted(r.nodes_before, "node"),
                           r.nodes, counted(r.bytes.size(), "byte"), counted(r.checks, "check"),
                           r.seconds, r.complete ? "" : "; stopped there: --seconds takes longer");
}

Result<Exit> body(const Common& common, const ReduceOptions& o) {
  if (o.check == "verify" && o.status)
    return error(Code::usage, "--status",
                 std::string("--check verify knows by itself how the failure ends"));
  FERRULE_TRY(free_place("reduce", o.out, common.force));
  Cancel cancel;
  auto reduced = [&]() -> Result<reduce::Reduced> {
    FERRULE_ASSIGN(Loaded loaded, load_model(common));
    FERRULE_ASSIGN(Tensors inputs, inputs_of(loaded.model.graph, common, o, loaded.options));
    if (!inputs.empty()) FERRULE_TRY(free_place("reduce", inputs_path(o.out), common.force));
    reduce::Options options;
    options.ops = &loaded.knowledge->ops;
    options.limits = &loaded.options.limits;
    options.seconds = o.seconds;
    options.cancel = &cancel;
    if (!common.json) options.log = talk;
    stop_on_interrupt(cancel);
    return reduce::reduce(loaded.model.graph, inputs, program_check(check_of(common, o)), options);
  }();
  if (!reduced) return fail(std::move(reduced).error());
  ExportOptions how;
  how.force = common.force;
  FERRULE_TRY(export_file(reduced->graph, o.out, how));
  if (!reduced->inputs.empty())
    FERRULE_TRY(write_npz(inputs_path(o.out), reduced->inputs, common.force));
  report(common, o, *reduced);
  return Exit::ok;
}

}  // namespace

void add_reduce(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("reduce", "the smallest part of a model that still shows a failure");
  add_common(*c, common, true);
  auto o = std::make_shared<ReduceOptions>();
  c->add_option("-o,--output", o->out,
                "the small model; its inputs, if any, are written next to it (.npz)")
      ->type_name("FILE")
      ->required();
  c->add_option("--check", o->check,
                "a shell command that exits with 0 while the failure is still there; {} is the "
                "candidate's file, {inputs} that of its inputs. "
                "Or the word verify: fused against the interpreter, or a crash or hang of that")
      ->type_name("COMMAND")
      ->required();
  c->add_option("--status", o->status,
                "the exit status of the command that means that the failure is still there, "
                "instead of 0; 128 + N: signal N")
      ->type_name("N")
      ->check(CLI::Range(0, 255));
  c->add_option("--seconds", o->seconds,
                "how long it may take; the smallest found until then is written")
      ->check(CLI::Range(0.001, 1e6));
  c->add_option("--check-seconds", o->check_seconds,
                "how long one check may take before it is stopped")
      ->check(CLI::Range(0.001, 1e6));
  add_inputs(*c, o->input);
  c->footer(
      "Examples:\n  ferrule reduce model.onnx -o small.onnx --check verify --inputs in.npz\n"
      "  ferrule reduce model.onnx -o small.onnx --check 'ferrule verify {}' --status 1\n"
      "  ferrule reduce model.onnx -o small.onnx --check 'ferrule explain {} | grep -q conv_pool'\n"
      "  ferrule reduce model.onnx -o small.onnx --inputs in.npz --check '! python compare.py {} "
      "{inputs}'");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
