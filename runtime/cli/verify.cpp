// verify: fused against unfused on the same backend, output by output; or against the interpreter.
#include <iostream>

#include "engine/graph/compare.h"
#include "engine/onnx/import.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/semantics/definition.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

struct Ran {
  Tensors outputs;
  Compiled* prepared = nullptr;
};

Result<Ran> run_once(Session& session, const Tensors& inputs, RunObserver* observer = nullptr) {
  Ran r;
  FERRULE_ASSIGN(r.outputs, session.run(inputs, observer));
  Shapes shapes;
  for (const auto& [n, t] : inputs) shapes[n] = t.dims();
  FERRULE_ASSIGN(r.prepared, session.compile(shapes));
  return r;
}

/// Values of the same name in both graphs, in the order of the first's layers.
void compare_layers(const Ran& got, const ResultRecorder& a, const Ran& want,
                    const ResultRecorder& b, json& rows) {
  std::map<std::string, const Tensor*> reference;
  for (size_t k = 0; k < b.values.size(); ++k)
    for (size_t v = 0; v < b.values[k].size(); ++v)
      reference[want.prepared->plan().graph.value(b.values[k][v]).name] = &b.tensors[k][v];
  for (size_t k = 0; k < a.values.size(); ++k)
    for (size_t v = 0; v < a.values[k].size(); ++v) {
      auto it = reference.find(got.prepared->plan().graph.value(a.values[k][v]).name);
      if (it == reference.end()) continue;
      Difference d = compare(a.tensors[k][v], *it->second, model_tolerance(it->second->dtype()));
      rows.push_back({{"layer", escape(got.prepared->plan().layers[k].name, 4096)},
                      {"value", escape(it->first, 4096)},
                      {"ok", d.ok},
                      {"max_abs", d.max_abs},
                      {"max_rel", d.max_rel},
                      {"text", d.text}});
    }
}

/// The interpreter, in which every operator means what the first folder says: whatever replaces it
/// is judged, too.
Result<Session> load_oracle(const std::string& model, const SessionOptions& options) {
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options.engine));
  Knowledge first = *knowledge;
  FERRULE_ASSIGN(first.ops, load_first_definitions(options.engine.rule_dirs, infer_by_schema));
  ImportOptions import;
  import.limits = &options.engine.limits;
  import.overridable = options.engine.overridable;
  import.ops = &first.ops;
  FERRULE_ASSIGN(Imported imported, import_file(model, import));
  return Session::from_graph(std::move(imported.graph),
                             std::make_shared<const Knowledge>(std::move(first)), options);
}

Result<Exit> body(const Common& common, const InputOptions& input, bool oracle, bool layers) {
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session fused, Session::load(common.model, options));
  SessionOptions plain = options;
  plain.engine.selection.disable.push_back("*");
  plain.engine.selection.enable.clear();
  plain.engine.overrides.clear();
  plain.engine.apply.clear();
  if (oracle) plain.backend = "reference", plain.require_device = false, plain.tuning.clear();
  FERRULE_ASSIGN(Session reference,
                 oracle ? load_oracle(common.model, plain) : Session::load(common.model, plain));
  std::vector<std::string> notes = fused.notes();
  FERRULE_ASSIGN(Tensors inputs,
                 gather_inputs(fused.inputs(), input, options.engine.shapes, notes));
  for (const std::string& n : notes) talk("note: " + n);
  std::optional<ResultRecorder> got_layers, want_layers;
  if (layers) {  // not run before: what breaks a device does so under the observer, which names the
                 // layer
    Shapes shapes;
    for (const auto& [n, t] : inputs) shapes[n] = t.dims();
    FERRULE_ASSIGN(const Compiled* a, fused.compile(shapes));
    FERRULE_ASSIGN(const Compiled* b, reference.compile(shapes));
    got_layers.emplace(a->plan().layers.size());
    want_layers.emplace(b->plan().layers.size());
  }
  FERRULE_ASSIGN(Ran got, run_once(fused, inputs, got_layers ? &*got_layers : nullptr));
  FERRULE_ASSIGN(Ran want, run_once(reference, inputs, want_layers ? &*want_layers : nullptr));
  bool ok = true;
  json rows = json::array(), layer_rows = json::array();
  for (const Port& p : fused.outputs()) {
    const Tensor& w = want.outputs.at(p.name);
    Difference d = compare(got.outputs.at(p.name), w, model_tolerance(w.dtype()));
    ok = ok && d.ok;
    std::string verdict = !d.ok ? "DIFFERS" : d.mistrusted ? "MISTRUSTED" : "equal";
    rows.push_back({{"output", escape(p.name, 4096)},
                    {"verdict", verdict},
                    {"max_abs", d.max_abs},
                    {"max_rel", d.max_rel},
                    {"text", d.text}});
    if (!common.json)
      std::cout << fmt::format("{:<10} {}  max abs {:.3g}  max rel {:.3g}  {}\n", verdict,
                               escape(p.name), d.max_abs, d.max_rel, d.text);
  }
  if (layers) compare_layers(got, *got_layers, want, *want_layers, layer_rows);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"backend", got.prepared->backend()},
                {"device", got.prepared->device()},
                {"against", want.prepared->backend()},
                {"ok", ok},
                {"outputs", rows},
                {"layers", layer_rows}});
  } else {
    for (const json& r : layer_rows)
      std::cout << fmt::format("  {:<8} max abs {:<10.3g} {}\n",
                               r["ok"].get<bool>() ? "equal" : "DIFFERS",
                               r["max_abs"].get<double>(), r["layer"].get<std::string>());
    std::cout << fmt::format("{} on {} against {} without rules: {}\n", escape(common.model),
                             ran_on(*got.prepared), want.prepared->backend(),
                             ok ? "equal" : "DIFFERS");
  }
  return ok ? Exit::ok : Exit::differs;
}

}  // namespace

void add_verify(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("verify", "fused against --disable '*' on the same backend");
  add_common(*c, common, true);
  add_timeout(*c, common);
  auto input = std::make_shared<InputOptions>();
  auto oracle = std::make_shared<bool>(false), layers = std::make_shared<bool>(false);
  add_inputs(*c, *input);
  c->add_flag("--oracle", *oracle, "against the interpreter");
  c->add_flag("--layers", *layers, "layer by layer");
  c->footer(
      "Examples:\n  ferrule verify model.onnx\n  ferrule verify model.onnx --inputs in.npz "
      "--oracle\n  ferrule verify model.onnx --layers --json");
  set_body(*c, common, exit, [=](const Common& o) { return body(o, *input, *oracle, *layers); });
}

}  // namespace ferrule::cli
