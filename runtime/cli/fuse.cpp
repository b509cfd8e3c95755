// fuse: the fused model as standard ONNX, or only what that would change; the list of its fusions.
// What is written is checked first: the file, run without rules, against the model without rules.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <set>

#include "engine/graph/compare.h"
#include "engine/onnx/export.h"
#include "runtime/cli/tensors.h"
#include "runtime/cost.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct FuseOptions {
  std::string out, plan, how = "functions";
  bool dry_run = false, no_verify = false;
  double verify_seconds = 10;
  InputOptions input;
};

// --- files

/// A file made beside its place, under its own name in a folder that goes away with this object.
class Staged {
 public:
  static Result<Staged> at(const std::string& target) {
    Staged s;
    s.target_ = target;
    const fs::path parent = fs::path(target).parent_path();
    std::string folder = ((parent.empty() ? fs::path(".") : parent) / ".ferrule-XXXXXX").string();
    if (!::mkdtemp(folder.data()))
      return error(Code::file_not_written, "fuse", escape(target), std::strerror(errno));
    s.folder_ = folder;
    return s;
  }
  Staged(Staged&& other) noexcept { *this = std::move(other); }
  Staged& operator=(Staged&& other) noexcept {
    std::swap(folder_, other.folder_), std::swap(target_, other.target_);
    return *this;
  }
  ~Staged() {
    std::error_code ec;
    if (!folder_.empty()) fs::remove_all(folder_, ec);
  }
  std::string path() const { return folder_ + "/" + fs::path(target_).filename().string(); }

  /// To its place, with the data beside it. Without `force` even a file that appeared meanwhile
  /// stays.
  Status commit(bool force) const {
    const bool data = fs::exists(path() + ".data");
    if (data) FERRULE_TRY(move(path() + ".data", target_ + ".data", force));
    Status s = move(path(), target_, force);
    if (!s && data && !force) ::unlink((target_ + ".data").c_str());
    return s;
  }

 private:
  Staged() = default;
  static Status move(const std::string& from, const std::string& to, bool force) {
    const int failed =
        force ? ::rename(from.c_str(), to.c_str()) : ::link(from.c_str(), to.c_str());
    if (failed == 0) return {};
    if (errno == EEXIST) return error(Code::file_exists, "fuse", escape(to));
    return error(Code::file_not_written, "fuse", escape(to), std::strerror(errno));
  }
  std::string folder_, target_;
};

Status write_list(const std::string& path, const std::string& text, bool force) {
  FERRULE_ASSIGN(Staged staged, Staged::at(path));
  errno = 0;
  std::ofstream file(staged.path(), std::ios::binary);
  file << text;
  file.close();
  if (!file)
    return error(Code::file_not_written, "fuse", escape(path), std::strerror(errno ? errno : EIO));
  return staged.commit(force);
}

// --- what it gains

using Ops = std::map<std::string, int>;  ///< operators, groups by contract

Ops operators(const Graph& g) {
  Ops out;
  for (NodeId n : g.order()) ++out[g.node(n).op.text()];
  return out;
}

/// Without any rule: what overrides and lists say of rules has no meaning then.
EngineOptions without_rules(EngineOptions o) {
  o.selection.disable = {"*"};
  o.selection.enable.clear();
  o.overrides.clear();
  o.apply.clear();
  return o;
}

struct Report {
  Cost before, after;
  Ops model_ops;  ///< of the model as imported
  Ops fused_ops;
  std::map<std::string, int> rules;
};

std::string saved(int64_t before, int64_t after) {
  if (before == 0) return "";
  return fmt::format("{:.0f} %",
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before));
}

void print_report(const Report& r) {
  std::set<std::string> names;
  for (const auto* ops : {&r.model_ops, &r.fused_ops})
    for (const auto& [op, _] : *ops) names.insert(op);
  std::cout << fmt::format("{:<28} {:>12} {:>12}\n", "operator", "before", "after");
  auto count = [](const Ops& ops, const std::string& op) {
    auto it = ops.find(op);
    return it == ops.end() ? 0 : it->second;
  };
  for (bool groups : {false, true})
    for (const std::string& op : names)
      if (op.starts_with("group.") == groups)
        std::cout << fmt::format("{:<28} {:>12} {:>12}\n", escape(op), count(r.model_ops, op),
                                 count(r.fused_ops, op));
  std::cout << fmt::format("\n{:<28} {:>12} {:>12} {:>8}\n", "", "no rules", "fused", "saved");
  auto line = [](const char* what, int64_t before, int64_t after) {
    std::cout << fmt::format("{:<28} {:>12} {:>12} {:>8}\n", what, before, after,
                             saved(before, after));
  };
  line("layers", static_cast<int64_t>(r.before.layers), static_cast<int64_t>(r.after.layers));
  line("kernels launched", r.before.kernels, r.after.kernels);
  line("bytes moved (estimate)", r.before.bytes, r.after.bytes);
  if (r.before.open || r.after.open)
    std::cout << "symbolic sizes count as 1 in the bytes: pass --shapes\n";
}

json to_json(const Report& r) {
  auto cost = [](const Cost& c) {
    return json{
        {"nodes", c.nodes}, {"layers", c.layers}, {"kernels", c.kernels}, {"bytes", c.bytes}};
  };
  json ops = json::object();
  for (const auto& [op, n] : r.model_ops) ops[escape(op)]["before"] = n;
  for (const auto& [op, n] : r.fused_ops) ops[escape(op)]["after"] = n;
  for (auto& [_, row] : ops.items())
    for (const char* side : {"before", "after"})
      if (!row.contains(side)) row[side] = 0;
  return {{"without_rules", cost(r.before)},
          {"fused", cost(r.after)},
          {"operators", ops},
          {"rules", r.rules},
          {"symbolic_sizes_as_1", r.before.open || r.after.open}};
}

// --- verification

enum class Verdict { equal, mistrusted, differs, undecided };

struct Verified {
  Verdict verdict = Verdict::equal;
  json rows = json::array();
  std::vector<std::string> culprits;  ///< rules without any one of which the results are equal
  std::string why;                    ///< undecided: what stood in the way
};

/// The file against the model, neither with rules, within the time.
class Verify {
 public:
  Verify(const Common& common, const FuseOptions& fuse, const Report& report)
      : common_(common), fuse_(fuse), report_(report) {
    const std::chrono::duration<double> wait(fuse.verify_seconds);
    cancel_ = std::make_shared<Cancel>();
    cancel_->deadline(std::chrono::steady_clock::now() +
                      std::chrono::duration_cast<std::chrono::steady_clock::duration>(wait));
  }

  Result<Verified> run(const std::string& file) {
    auto model = results_of_model();
    // Random inputs of sizes that nobody gave may make no sense to a model: that says nothing of
    // the file.
    if (!model) return undecided(model.error());
    auto done = judged(file, *model);
    if (!done && done.error().code == Code::cancelled) return undecided(done.error());
    return done;
  }

 private:
  Result<SessionOptions> options(bool rules) const {
    FERRULE_ASSIGN(SessionOptions o, session_options(common_));
    o.cancel = cancel_;
    o.log = {};
    if (!rules) o.engine = without_rules(std::move(o.engine));
    return o;
  }

  struct Expected {
    std::vector<Port> outputs;
    Tensors inputs, want;
  };
  Result<Expected> results_of_model() {
    FERRULE_ASSIGN(SessionOptions plain, options(false));
    FERRULE_ASSIGN(Session model, Session::load(common_.model, plain));
    std::vector<std::string> notes;
    Expected e;
    e.outputs = model.outputs();
    FERRULE_ASSIGN(e.inputs,
                   gather_inputs(model.inputs(), fuse_.input, plain.engine.shapes, notes));
    FERRULE_ASSIGN(e.want, model.run(e.inputs));
    return e;
  }

  Result<Verified> judged(const std::string& file, const Expected& e) {
    FERRULE_ASSIGN(SessionOptions plain, options(false));
    FERRULE_ASSIGN(Session written, Session::load(file, plain));
    FERRULE_ASSIGN(Tensors got, written.run(e.inputs));
    Verified v;
    v.verdict = compared(e.outputs, got, e.want, &v.rows);
    if (v.verdict == Verdict::differs) v.culprits = culprits(e.outputs, e.inputs, e.want);
    return v;
  }

  Verified undecided(const Error& e) const {
    Verified v;
    v.verdict = Verdict::undecided;
    v.why = e.code == Code::cancelled
                ? fmt::format("within {:g} s (--verify-seconds takes longer, or `ferrule verify`)",
                              fuse_.verify_seconds)
                : fmt::format("with random inputs: {} (give --shapes or --inputs)", e.message);
    return v;
  }

  static Verdict compared(const std::vector<Port>& outputs, const Tensors& got, const Tensors& want,
                          json* rows) {
    Verdict all = Verdict::equal;
    for (const Port& p : outputs) {
      const Tensor& w = want.at(p.name);
      Difference d = compare(got.at(p.name), w, model_tolerance(w.dtype()));
      if (!d.ok)
        all = Verdict::differs;
      else if (d.mistrusted && all == Verdict::equal)
        all = Verdict::mistrusted;
      if (rows)
        rows->push_back({{"output", escape(p.name, 4096)},
                         {"verdict", !d.ok          ? "DIFFERS"
                                     : d.mistrusted ? "MISTRUSTED"
                                                    : "equal"},
                         {"max_abs", d.max_abs},
                         {"max_rel", d.max_rel},
                         {"text", d.text}});
    }
    return all;
  }

  /// As far as the time goes.
  std::vector<std::string> culprits(const std::vector<Port>& outputs, const Tensors& inputs,
                                    const Tensors& want) const {
    std::vector<std::string> out;
    for (const auto& [rule, _] : report_.rules) {
      auto with = options(true);
      if (!with) break;
      with->engine.selection.disable.push_back(rule);
      std::erase(with->engine.selection.enable, rule);
      auto session = Session::load(common_.model, *with);
      auto got =
          session ? session->run(inputs) : Result<Tensors>(tl::unexpected<Error>(session.error()));
      if (!got) {
        if (got.error().code == Code::cancelled) break;
        continue;
      }
      if (compared(outputs, *got, want, nullptr) != Verdict::differs) out.push_back(rule);
    }
    return out;
  }

  const Common& common_;
  const FuseOptions& fuse_;
  const Report& report_;
  std::shared_ptr<Cancel> cancel_;
};

std::string_view name(Verdict v) {
  static constexpr std::string_view kNames[] = {"equal", "MISTRUSTED", "DIFFERS", "not decided"};
  return kNames[static_cast<size_t>(v)];
}

void print_verified(const Verified& v) {
  std::cout << "\n";
  for (const json& r : v.rows)
    std::cout << fmt::format("{:<10} {}  max abs {:.3g}  max rel {:.3g}  {}\n",
                             r["verdict"].get<std::string>(), r["output"].get<std::string>(),
                             r["max_abs"].get<double>(), r["max_rel"].get<double>(),
                             r["text"].get<std::string>());
  if (v.verdict == Verdict::undecided)
    std::cout << "not verified " << v.why << "\n";
  else if (v.verdict == Verdict::mistrusted)
    std::cout << "MISTRUSTED: equal, but such outputs say little; give real inputs with --inputs\n";
}

Error refused(const Verified& v, const std::string& file) {
  std::string who;
  for (const std::string& r : v.culprits) who += (who.empty() ? "" : ", ") + r;
  Error e = error(Code::differs, "fuse",
                  "the fused model gives other results than the model; " + escape(file) +
                      " was not written")
                .value();
  e.hint = who.empty() ? "--no-verify writes it all the same"
                       : fmt::format("they are equal without {}: --disable it, and report it", who);
  return e;
}

// --- the command

Result<Exit> body(const Common& common, const FuseOptions& o) {
  if (o.out.empty() && o.plan.empty() && !o.dry_run)
    return error(Code::usage, "fuse",
                 "nothing to make: give -o OUT.onnx, --plan FILE or --dry-run");
  const std::string out = o.dry_run ? "" : o.out;
  FERRULE_TRY(free_place("fuse", out, common.force));
  FERRULE_TRY(free_place("fuse", o.dry_run ? "" : o.plan, common.force));
  FERRULE_ASSIGN(Loaded loaded, load_model(common));
  const std::string hash = o.plan.empty() ? "" : graph_hash(loaded.model.graph);
  const bool external = loaded.model.external_data;

  Report report;
  report.model_ops = operators(loaded.model.graph);
  Graph original = std::move(*loaded.model.graph.clone());
  FERRULE_ASSIGN(Fused fused,
                 fuse(std::move(loaded.model.graph), *loaded.knowledge, loaded.options));
  for (const std::string& n : loaded.model.notes) talk("note: " + n);
  for (const std::string& n : fused.notes) talk("note: " + n);
  for (const std::string& w : fused.warnings) talk("warning: " + w);
  for (const Step& s : fused.journal.steps)
    if (!s.rule.empty() && s.kind != "broken") ++report.rules[s.rule];
  report.fused_ops = operators(fused.graph);
  FERRULE_ASSIGN(report.after, cost_of(fused.graph, *loaded.knowledge, lower_options(common)));
  {
    const EngineOptions plain = without_rules(loaded.options);
    FERRULE_ASSIGN(auto knowledge, load_knowledge(plain));
    FERRULE_ASSIGN(Fused unfused, fuse(std::move(original), *knowledge, plain));
    FERRULE_ASSIGN(report.before, cost_of(unfused.graph, *knowledge, lower_options(common)));
  }
  if (!common.json) print_report(report);

  json written = json::object();
  if (!o.plan.empty() && !o.dry_run) {
    const Instances list = instances_of(fused.journal, hash, loaded.knowledge->target.name);
    FERRULE_TRY(write_list(o.plan, to_text(list, fs::path(common.model).filename().string()),
                           common.force));
    talk(fmt::format("wrote {}: {} fusions", escape(o.plan), list.lines.size()));
    written["plan"] = o.plan;
  }
  std::optional<Verified> verified;
  if (!out.empty()) {
    FERRULE_ASSIGN(Staged staged, Staged::at(out));
    ExportOptions options;
    options.functions = o.how == "functions";
    if (external) options.inline_bytes = 0;
    FERRULE_TRY(export_file(fused.graph, staged.path(), options));
    if (!o.no_verify) {
      FERRULE_ASSIGN(verified, Verify(common, o, report).run(staged.path()));
      if (verified->verdict == Verdict::differs) return fail(refused(*verified, out));
      if (!common.json) print_verified(*verified);
    }
    FERRULE_TRY(staged.commit(common.force));
    talk("wrote " + escape(out));
    written["model"] = out;
  }
  if (common.json) {
    json j = to_json(report);
    j["schema_version"] = kSchemaVersion;
    j["target"] = loaded.knowledge->target.name;
    j["written"] = written;
    j["verify"] = verified ? json{{"verdict", name(verified->verdict)},
                                  {"outputs", verified->rows},
                                  {"why", verified->why}}
                           : json(nullptr);
    j["warnings"] = fused.warnings;
    print_json(j);
  }
  return Exit::ok;
}

}  // namespace

void add_fuse(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("fuse", "the fused model as standard ONNX; the list of its fusions");
  add_common(*c, common, true);
  auto o = std::make_shared<FuseOptions>();
  c->add_option(
       "-o,--output", o->out,
       "the new model; weights over 2 GB, or those that lay beside the model, go to FILE.data")
      ->type_name("FILE");
  c->add_option("--export", o->how,
                "groups as functions of the model, or as the nodes they are made of")
      ->check(CLI::IsMember({"functions", "inlined"}));
  c->add_flag("--dry-run", o->dry_run, "write nothing: only say what changes");
  c->add_option("--plan", o->plan, "write the fusions as lines that can be deleted, for --apply")
      ->type_name("FILE");
  c->add_flag("--no-verify", o->no_verify,
              "do not compare the new model's results with the old one's");
  c->add_option("--verify-seconds", o->verify_seconds, "how long that may take")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6));
  add_inputs(*c, o->input);
  c->footer(
      "Examples:\n  ferrule fuse model.onnx -o fused.onnx\n  ferrule fuse model.onnx -o fused.onnx "
      "--export inlined\n"
      "  ferrule fuse model.onnx --dry-run\n"
      "  ferrule fuse model.onnx --plan plan.yaml        (delete lines of it, then)\n  ferrule run "
      "model.onnx --apply plan.yaml");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
