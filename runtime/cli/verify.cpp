// verify: fused against unfused on the same backend, output by output; or against the interpreter.
// Or against ONNX Runtime, where a Python has it.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <set>

#include "engine/onnx/infer_onnx.h"
#include "engine/rewrite/replacement.h"
#include "engine/semantics/definition.h"
#include "runtime/cli/judge.h"
#include "runtime/cli/peer.h"
#include "runtime/cli/terminal.h"

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
  // A layer between shorter ones has inputs that were rounded to their type.
  const auto shorter = short_type(got.prepared->plan());
  for (size_t k = 0; k < a.values.size(); ++k)
    for (size_t v = 0; v < a.values[k].size(); ++v) {
      auto it = reference.find(got.prepared->plan().graph.value(a.values[k][v]).name);
      if (it == reference.end()) continue;
      const DType type = element_type(*it->second);
      const Difference d = compare(a.tensors[k][v], *it->second,
                                   model_tolerance(is_float(type) ? shorter.value_or(type) : type));
      rows.push_back({{"layer", escape(got.prepared->plan().layers[k].name, 4096)},
                      {"value", escape(it->first, 4096)},
                      {"ok", d.ok},
                      {"verdict", verdict_of(d)},
                      {"error", d.error},
                      {"allowed", d.allowed},
                      {"max_abs", d.max_abs},
                      {"max_rel", d.max_rel},
                      {"text", explained(d)}});
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

struct VerifyOptions {
  InputOptions input;
  bool oracle = false, layers = false;
  std::string against;
};

/// What the results are compared with.
struct Yardstick {
  std::string name;
  std::optional<Session> session;  ///< none: another program
  Ran ran;
};

SessionOptions without_rules(SessionOptions o) {
  o.engine.selection.disable.push_back("*");
  o.engine.selection.enable.clear();
  o.engine.overrides.clear();
  o.engine.apply.clear();
  return o;
}

Result<Session> load_plain(const Common& common, const SessionOptions& options, bool oracle) {
  SessionOptions plain = without_rules(options);
  if (!oracle) return Session::load(common.model, plain);
  plain.backend = "reference", plain.require_device = false, plain.tuning.clear();
  return load_oracle(common.model, plain);
}

/// One output, and what is found of it.
struct Judged {
  const Port* port = nullptr;
  const Tensor *got = nullptr, *want = nullptr;
  Difference d;
  std::string verdict, text;
};

/// What f64 says of outputs that differ by more than their type's tolerance.
class ByF64 {
 public:
  ByF64(const Common& common, SessionOptions options, const Tensors& inputs)
      : common_(common), options_(std::move(options)), inputs_(inputs) {}

  /// A plan in f16 or bf16 is right where it is no further off than the interpreter with the same
  /// rules.
  Status arbitrate(std::vector<Judged>& rows, const std::string& target) {
    SessionOptions same = options_;
    same.backend = "reference", same.require_device = false, same.tuning.clear();
    same.engine.target = target;
    FERRULE_ASSIGN(Session interpreter, Session::load(common_.model, same));
    FERRULE_ASSIGN(const Tensors usual, interpreter.run(inputs_));
    FERRULE_ASSIGN(const Tensors exact,
                   exact_results(common_.model, options_.engine, inputs_, options_.cancel.get()));
    for (Judged& row : rows) {
      if (row.d.ok) continue;
      const std::string& output = row.port->name;
      const auto text = arbitrated(row.d, *row.got, usual.at(output), exact.at(output),
                                   "the interpreter in the same types");
      if (text) row.text = *text;
      if (row.d.ok) row.verdict = "within tolerance";
    }
    return {};
  }

  /// Whose rounding it is; nothing where that takes too long. `own`: the yardstick is ferrule
  /// without rules. Then a result that is right by f64 is right: the logarithm of a probability
  /// that underflows in f32 is -inf, and what it becomes by a rule is not.
  void tell(std::vector<Judged>& rows, const std::string& yardstick, bool own) {
    Cancel cancel;
    cancel.deadline(std::chrono::steady_clock::now() + kPatience);
    const auto exact = exact_results(common_.model, options_.engine, inputs_, &cancel);
    if (!exact) return;
    for (Judged& row : rows) {
      const Tensor& f64 = exact->at(row.port->name);
      if (row.d.ok || !is_float(row.want->dtype()) || f64.dims() != row.want->dims() ||
          f64.dims() != row.got->dims())
        continue;
      const DType type = row.got->dtype();
      if (Difference d = compare(*row.got, converted(f64, type), model_tolerance(type));
          own && d.ok) {
        row.d = std::move(d), row.verdict = verdict_of(row.d);
        row.text = fmt::format("by f64, {}; {} is off by {:.2g}", margin_text(row.d), yardstick,
                               off_by(*row.want, f64).largest);
        continue;
      }
      row.text +=
          fmt::format("; by f64, it is off by {:.2g}, {} by {:.2g}", off_by(*row.got, f64).largest,
                      yardstick, off_by(*row.want, f64).largest);
    }
  }

 private:
  static constexpr std::chrono::seconds kPatience{20};
  const Common& common_;
  SessionOptions options_;
  const Tensors& inputs_;
};

/// The rules that fired without which, each switched off alone, no output differs any more; as many
/// as are tried within some seconds.
std::vector<std::string> right_without(const Common& common, const SessionOptions& options,
                                       const Ran& got, const Tensors& inputs,
                                       const std::vector<Judged>& rows) {
  constexpr std::chrono::seconds kPatience{20};
  const auto end = std::chrono::steady_clock::now() + kPatience;
  std::vector<std::string> out;
  for (const auto& [rule, count] : got.prepared->journal().fired()) {
    if (std::chrono::steady_clock::now() > end) break;
    SessionOptions without = options;
    without.engine.selection.disable.push_back(rule);
    auto session = Session::load(common.model, without);
    if (!session) continue;
    const auto results = session->run(inputs);
    if (results && std::ranges::all_of(rows, [&](const Judged& r) {
          return compare(results->at(r.port->name), *r.want, model_tolerance(element_type(*r.want)))
              .ok;
        }))
      out.push_back(rule);
  }
  return out;
}

/// What this comparison cannot show; empty: nothing is missing.
std::string unchecked(const Ran& got, const Yardstick& want) {
  const bool any = !got.prepared->journal().fired().empty();
  if (!want.session || want.ran.prepared->backend() != got.prepared->backend()) return "";
  const bool interpreted = got.prepared->backend() == "reference";
  if (!any)
    return "no rule fired, so both sides are the same and nothing was checked (use --oracle or "
           "--against ort)";
  return interpreted ? "the interpreter ran both sides: rewrites were checked, kernels were not "
                       "(--against ort compares with another program)"
                     : "";
}

Result<Yardstick> yardstick(const Common& common, const VerifyOptions& o,
                            const SessionOptions& options, const std::vector<Port>& outputs,
                            const Tensors& inputs) {
  Yardstick y;
  if (o.against == "ort") {
    const double patience = common.timeout > 0 ? common.timeout : 3600;
    FERRULE_ASSIGN(PeerResults peer,
                   onnx_runtime(common.model, outputs, inputs, common.threads, patience));
    y.name = peer.name;
    y.ran.outputs = std::move(peer.outputs);
    for (const Port& p : outputs)
      if (!y.ran.outputs.contains(p.name) && is_tensor(p.type.dtype))
        return error(Code::library_failed, "--against ort", y.name,
                     fmt::format("it gives no output {}", escape(p.name)));
    return y;
  }
  FERRULE_ASSIGN(y.session, load_plain(common, options, o.oracle));
  return y;
}

void print_rows(const std::vector<Judged>& rows, const json& layers) {
  for (const Judged& r : rows) std::cout << verdict_line(r.verdict, escape(r.port->name), r.text);
  if (layers.empty()) return;
  std::cout << "layer by layer:\n";
  for (const json& r : layers)
    std::cout << verdict_line(r["verdict"].get<std::string>(), r["layer"].get<std::string>(),
                              r["text"].get<std::string>());
}

Result<Exit> body(const Common& common, const VerifyOptions& o) {
  if (o.against == "ort" && (o.oracle || o.layers))
    return error(Code::usage, "--against ort",
                 std::string("it compares outputs; --oracle and --layers ask ferrule itself"));
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session fused, Session::load(common.model, options));
  std::vector<std::string> notes = fused.notes();
  FERRULE_ASSIGN(Tensors inputs, gather_inputs(fused.inputs(), o.input, options.engine.shapes,
                                               notes, accepted_by(fused)));
  for (const std::string& n : notes) talk("note: " + n);
  FERRULE_ASSIGN(Yardstick want, yardstick(common, o, options, fused.outputs(), inputs));
  std::optional<ResultRecorder> got_layers, want_layers;
  if (o.layers) {  // not run before: what breaks a device does so under the observer, which names
                   // the layer
    Shapes shapes;
    for (const auto& [n, t] : inputs) shapes[n] = t.dims();
    FERRULE_ASSIGN(const Compiled* a, fused.compile(shapes));
    FERRULE_ASSIGN(const Compiled* b, want.session->compile(shapes));
    got_layers.emplace(a->plan().layers.size());
    want_layers.emplace(b->plan().layers.size());
  }
  FERRULE_ASSIGN(Ran got, run_once(fused, inputs, got_layers ? &*got_layers : nullptr));
  if (want.session) {
    FERRULE_ASSIGN(want.ran,
                   run_once(*want.session, inputs, want_layers ? &*want_layers : nullptr));
    want.name = o.oracle ? "the interpreter"
                         : fmt::format("{} without rules", want.ran.prepared->backend());
  }
  std::vector<Judged> rows;
  for (const Port& p : fused.outputs()) {
    if (!want.ran.outputs.contains(p.name)) {
      talk(fmt::format("note: {} is of type {} and is not compared with {}", escape(p.name),
                       name(p.type.dtype), want.name));
      continue;
    }
    const Tensor &g = got.outputs.at(p.name), &w = want.ran.outputs.at(p.name);
    const Difference d = compare(g, w, model_tolerance(element_type(w)));
    rows.push_back({&p, &g, &w, d, std::string(verdict_of(d)), explained(d)});
  }
  auto differs = [](const Judged& r) { return !r.d.ok; };
  if (std::ranges::any_of(rows, differs)) {
    ByF64 f64(common, options, inputs);
    if (short_type(got.prepared->plan())) {
      FERRULE_TRY(f64.arbitrate(rows, fused.knowledge().target.name));
    } else {
      f64.tell(rows, want.name, want.session.has_value());
    }
  }
  const bool ok = std::ranges::none_of(rows, differs);
  const std::vector<std::string> blamed =
      ok ? std::vector<std::string>() : right_without(common, options, got, inputs, rows);
  auto any_is = [&](std::string_view verdict) {
    return std::ranges::any_of(rows, [&](const Judged& r) { return r.verdict == verdict; });
  };
  std::string_view all = "equal";
  for (std::string_view worse : {"within tolerance", "MISTRUSTED", "DIFFERS"})
    if (any_is(worse)) all = worse;
  json layer_rows = json::array();
  if (o.layers) compare_layers(got, *got_layers, want.ran, *want_layers, layer_rows);
  const std::string missing = unchecked(got, want);
  if (common.json) {
    json outputs = json::array();
    for (const Judged& r : rows)
      outputs.push_back({{"output", escape(r.port->name, 4096)},
                         {"verdict", r.verdict},
                         {"error", r.d.error},
                         {"allowed", r.d.allowed},
                         {"max_abs", r.d.max_abs},
                         {"max_rel", r.d.max_rel},
                         {"text", r.text}});
    print_json({{"schema_version", kSchemaVersion},
                {"backend", got.prepared->backend()},
                {"device", got.prepared->device()},
                {"against", want.session ? std::string(want.ran.prepared->backend()) : want.name},
                {"ok", ok},
                {"verdict", all},
                {"unchecked", missing},
                {"right_without", blamed},
                {"outputs", outputs},
                {"layers", layer_rows}});
    return ok ? Exit::ok : Exit::differs;
  }
  print_rows(rows, layer_rows);
  std::cout << fmt::format("{} on {} against {}: {}\n", escape(common.model), ran_on(*got.prepared),
                           want.name, all);
  if (std::ranges::any_of(rows, [](const Judged& r) { return r.d.error > 0; }))
    std::cout << "(errors are relative to the output's largest element)\n";
  if (any_is("MISTRUSTED"))
    std::cout << "(MISTRUSTED: equal, but a mistake would hardly show; give real inputs with "
                 "--inputs)\n";
  for (const std::string& rule : blamed)
    std::cout << fmt::format("with --disable {} no output differs\n", escape(rule));
  if (!missing.empty()) std::cout << "no full check: " << missing << "\n";
  return ok ? Exit::ok : Exit::differs;
}

}  // namespace

void add_verify(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand(
      "verify", "fused against --disable '*' on the same backend, the interpreter or ONNX Runtime");
  add_common(*c, common, true);
  add_timeout(*c, common);
  auto o = std::make_shared<VerifyOptions>();
  add_inputs(*c, o->input);
  auto* oracle = c->add_flag("--oracle", o->oracle, "against the interpreter");
  c->add_option("--against", o->against,
                "against another program: ort, ONNX Runtime of the Python that $FERRULE_PYTHON "
                "names (else python3)")
      ->check(CLI::IsMember({"ort"}))
      ->excludes(oracle);
  c->add_flag("--layers", o->layers, "layer by layer");
  c->footer(
      "Examples:\n  ferrule verify model.onnx\n  ferrule verify model.onnx --inputs in.npz "
      "--oracle\n  ferrule verify model.onnx --layers --json\n"
      "  FERRULE_PYTHON=venv/bin/python ferrule verify model.onnx --against ort");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
