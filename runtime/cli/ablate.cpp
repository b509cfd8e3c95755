// ablate: what each rule is worth on models and targets: kernels launched and bytes moved with it
// and without it.
#include <iostream>

#include "engine/base/join.h"
#include "runtime/ablate.h"
#include "runtime/cli/cli.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

struct AblateOptions {
  std::vector<std::string> models, targets;
  std::string rule;
  bool instances = false, worse = false;
};

/// A rule that is on raises a kernel count, and its file does not say why.
bool unexcused(const Worth& w, const Cost& with) {
  return w.raises_kernels(with) && w.reason.empty();
}

std::string signed_bytes(int64_t bytes) {
  const double b = static_cast<double>(bytes), size = bytes < 0 ? -b : b;
  if (size < 10 * 1024) return fmt::format("{:+} B", bytes);
  if (size < 10 * 1024 * 1024) return fmt::format("{:+.0f} KiB", b / 1024);
  return fmt::format("{:+.1f} MiB", b / (1024 * 1024));
}

/// Rules that concern the question.
std::vector<const Worth*> shown(const Ablation& a, bool worse) {
  std::vector<const Worth*> out;
  for (const Worth& w : a.rules)
    if (!worse || w.raises_kernels(a.with)) out.push_back(&w);
  return out;
}

void print(const std::string& model, const std::string& target, const Ablation& a,
           const AblateOptions& o) {
  const auto rows = shown(a, o.worse);
  if (rows.empty() && o.worse) return;
  std::cout << fmt::format("{} on {}: {}, {}{}\n", escape(model), target,
                           counted(a.with.kernels, "kernel"), counted(a.with.bytes, "byte"),
                           a.with.open ? " (symbolic sizes count as 1: pass --shapes)" : "");
  std::cout << fmt::format("  {:<36} {:>6} {:>9} {:>7} {:>14}\n", "without", "fired", "kernels", "",
                           "bytes");
  for (const Worth* w : rows) {
    const std::string what = w->root.empty() ? w->rule : w->root;
    if (!w->without) {
      std::cout << fmt::format("  {:<36} {:>6} no plan: {}\n", escape(what, 60), w->fired,
                               escape(w->error));
      continue;
    }
    std::cout << fmt::format("  {:<36} {:>6} {:>9} {:>+7} {:>14}", escape(what, 60), w->fired,
                             w->without->kernels, w->kernels_saved(a.with),
                             signed_bytes(w->bytes_saved(a.with)));
    if (w->raises_kernels(a.with))
      std::cout << fmt::format("  it raises the number of kernels: {}",
                               w->reason.empty() ? "no reason is given" : w->reason);
    std::cout << "\n";
  }
  std::cout << "\n";
}

json to_json(const std::string& model, const std::string& target, const Ablation& a,
             const AblateOptions& o) {
  json rows = json::array();
  for (const Worth* w : shown(a, o.worse)) {
    json row = {{"rule", w->rule},
                {"fired", w->fired},
                {"raises_kernels", w->raises_kernels(a.with)},
                {"reason", w->reason.empty() ? json(nullptr) : json(w->reason)}};
    row["kernels"] = w->without ? json(w->without->kernels) : json(nullptr);
    row["bytes"] = w->without ? json(w->without->bytes) : json(nullptr);
    if (!w->without) row["error"] = escape(w->error, 400);
    if (!w->root.empty()) {
      row["root"] = escape(w->root, 4096);
      for (const std::string& n : w->nodes) row["nodes"].push_back(escape(n, 4096));
    }
    rows.push_back(std::move(row));
  }
  return {{"model", escape(model, 4096)},       {"target", target},
          {"kernels", a.with.kernels},          {"bytes", a.with.bytes},
          {"symbolic_sizes_as_1", a.with.open}, {"without", rows}};
}

struct Asked {
  std::string target;
  EngineOptions options;
  std::shared_ptr<const Knowledge> knowledge;
};
Result<std::vector<Asked>> targets(const Common& common, const AblateOptions& o) {
  std::vector<std::string> names = o.targets;
  if (names.empty()) names.push_back(common.target);
  std::vector<Asked> out;
  for (const std::string& t : names) {
    Asked a;
    FERRULE_ASSIGN(a.options, engine_options(common));
    a.options.target = t;
    FERRULE_ASSIGN(a.knowledge, load_knowledge(a.options));
    a.target = a.knowledge->target.name;
    out.push_back(std::move(a));
  }
  return out;
}

/// Those of --shapes that the model has an input for.
std::map<std::string, std::vector<int64_t>> shapes_of(const Graph& g,
                                                      const EngineOptions& options) {
  std::map<std::string, std::vector<int64_t>> out;
  for (ValueId v : g.inputs())
    if (auto it = options.shapes.find(g.value(v).name); it != options.shapes.end()) out.insert(*it);
  return out;
}

Result<Exit> body(const Common& common, const AblateOptions& o) {
  if (o.instances != !o.rule.empty())
    return error(Code::usage, "ablate",
                 std::string("--rule and --instances go together: the instances of which rule?"));
  FERRULE_ASSIGN(const std::vector<Asked> asked, targets(common, o));
  json all = json::array();
  bool good = true;
  for (const std::string& path : o.models) {
    Common one = common;
    one.model = path;
    FERRULE_ASSIGN(const Imported model, import_model(one, asked[0].options, *asked[0].knowledge));
    for (const Asked& a : asked) {
      EngineOptions options = a.options;
      options.shapes = shapes_of(model.graph, options);
      FERRULE_ASSIGN(const Ablation found,
                     ablate(model.graph, *a.knowledge, options, lower_options(common), o.rule));
      for (const Worth& w : found.rules) good = good && !unexcused(w, found.with);
      if (common.json)
        all.push_back(to_json(path, a.target, found, o));
      else
        print(path, a.target, found, o);
    }
  }
  if (common.json) print_json({{"schema_version", kSchemaVersion}, {"plans", all}});
  return o.worse && !good ? Exit::differs : Exit::ok;
}

}  // namespace

void add_ablate(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("ablate",
                               "what each rule is worth: kernels and bytes with it and without it");
  auto o = std::make_shared<AblateOptions>();
  c->add_option("MODEL", o->models, "ONNX models")->required();
  add_common(*c, common, false);
  add_override(*c, common);
  c->add_option("--targets", o->targets, "plan for these devices, commas between them")
      ->delimiter(',')
      ->type_name("TARGETS");
  c->add_option("--rule", o->rule, "the rule whose instances are left out")->type_name("ID");
  c->add_flag("--instances", o->instances, "leave out one instance of the rule at a time");
  c->add_flag("--worse", o->worse,
              "only rules that raise the number of kernels; exit code 1 if one does whose file "
              "gives no reason (may_raise_kernels)");
  c->footer(
      "Examples:\n  ferrule ablate model.onnx\n  ferrule ablate a.onnx b.onnx --targets "
      "cpu-avx512,sm_90 --json\n"
      "  ferrule ablate model.onnx --rule conv_activation --instances\n  ferrule ablate *.onnx "
      "--targets cpu-avx2,sm_80 --worse");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
