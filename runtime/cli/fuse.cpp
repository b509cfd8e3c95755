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

#include "engine/base/join.h"
#include "engine/base/output_file.h"
#include "engine/onnx/export.h"
#include "runtime/cli/judge.h"
#include "runtime/cli/tensors.h"
#include "runtime/cli/terminal.h"
#include "runtime/cost.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

struct FuseOptions {
  std::string out, plan, how = "inlined";
  bool dry_run = false, no_verify = false, allow_unverified = false;
  int opset = 0;
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
    if (force) FERRULE_TRY(replaceable(to));
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

/// Fused layers by contract.
std::map<std::string, int> groups_of(const Graph& g) {
  std::map<std::string, int> out;
  for (NodeId n : g.order())
    if (g.node(n).body) ++out[std::string(g.node(n).op.contract())];
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
  FileContents model, written;  ///< what stands in the two files
  std::map<std::string, int> groups, rules;
};

std::string saved(int64_t before, int64_t after) {
  if (before == 0) return "";
  return fmt::format("{:.0f} %",
                     100.0 * static_cast<double>(before - after) / static_cast<double>(before));
}

/// What is another way in the new file beside its nodes: "opset 11 -> 21"; left out where nothing
/// is.
std::vector<std::string> other_changes(const FileContents& from, const FileContents& to) {
  std::vector<std::string> out;
  std::set<std::string> domains;
  for (const auto* side : {&from, &to})
    for (const auto& [domain, _] : side->opsets) domains.insert(domain);
  for (const std::string& d : domains) {
    const auto a = from.opsets.find(d), b = to.opsets.find(d);
    const std::string name = d.empty() ? "opset" : "opset of " + escape(d);
    if (b == to.opsets.end())
      out.push_back(name + " left out");
    else if (a == from.opsets.end())
      out.push_back(fmt::format("{} {} added", name, b->second));
    else if (a->second != b->second)
      out.push_back(fmt::format("{} {} -> {}", name, a->second, b->second));
  }
  if (from.ir_version != to.ir_version)
    out.push_back(fmt::format("IR version {} -> {}", from.ir_version, to.ir_version));
  auto lost = [&](int before, int after, std::string_view one, std::string_view many) {
    if (before > after)
      out.push_back(
          fmt::format("{} {} left out", before - after, before - after == 1 ? one : many));
  };
  lost(from.functions, 0, "function of the model expanded, it is",
       "functions of the model expanded, they are");
  lost(from.value_infos, to.value_infos, "type of an inner value (value_info)",
       "types of inner values (value_info)");
  lost(from.metadata, to.metadata, "metadata entry", "metadata entries");
  return out;
}

void print_report(const Report& r) {
  std::set<std::string> names;
  for (const auto* file : {&r.model, &r.written})
    for (const auto& [op, _] : file->operators) names.insert(op);
  std::cout << fmt::format("{:<28} {:>12} {:>12}\n", "nodes in the file", "before", "after");
  auto count = [](const FileContents& file, const std::string& op) {
    auto it = file.operators.find(op);
    return it == file.operators.end() ? 0 : it->second;
  };
  int before = 0, after = 0;
  for (const std::string& op : names) {
    const int a = count(r.model, op), b = count(r.written, op);
    before += a, after += b;
    std::cout << fmt::format("{:<28} {:>12} {:>12}\n", escape(op), a, b);
  }
  std::cout << fmt::format("{:<28} {:>12} {:>12}\n", "all", before, after);
  if (r.model.functions || r.written.functions)
    std::cout << fmt::format("{:<28} {:>12} {:>12}\n", "functions", r.model.functions,
                             r.written.functions);
  std::string contracts;
  int fused = 0;
  for (const auto& [contract, n] : r.groups)
    fused += n, contracts += fmt::format("{}{} {}", contracts.empty() ? "" : ", ", n, contract);
  if (fused) std::cout << "\n" << fmt::format("{}: {}\n", counted(fused, "fused layer"), contracts);
  std::cout << fmt::format("\n{:<28} {:>12} {:>12} {:>8}\n", "when it runs", "no rules", "fused",
                           "saved");
  auto line = [](const char* what, int64_t before, int64_t after) {
    std::cout << fmt::format("{:<28} {:>12} {:>12} {:>8}\n", what, before, after,
                             saved(before, after));
  };
  line("layers", static_cast<int64_t>(r.before.layers), static_cast<int64_t>(r.after.layers));
  line("kernels launched", r.before.kernels, r.after.kernels);
  line("bytes moved (estimate)", r.before.bytes, r.after.bytes);
  if (r.before.open || r.after.open)
    std::cout << "symbolic sizes count as 1 in the bytes: pass --shapes\n";
  const auto changes = other_changes(r.model, r.written);
  if (!changes.empty()) std::cout << fmt::format("\nalso changed: {}\n", fmt::join(changes, "; "));
}

json to_json(const Report& r) {
  auto cost = [](const Cost& c) {
    return json{
        {"nodes", c.nodes}, {"layers", c.layers}, {"kernels", c.kernels}, {"bytes", c.bytes}};
  };
  json ops = json::object();
  for (const auto& [op, n] : r.model.operators) ops[escape(op)]["before"] = n;
  for (const auto& [op, n] : r.written.operators) ops[escape(op)]["after"] = n;
  for (auto& [_, row] : ops.items())
    for (const char* side : {"before", "after"})
      if (!row.contains(side)) row[side] = 0;
  return {{"without_rules", cost(r.before)},
          {"fused", cost(r.after)},
          {"operators", ops},
          {"functions", {{"before", r.model.functions}, {"after", r.written.functions}}},
          {"groups", r.groups},
          {"rules", r.rules},
          {"also_changed", other_changes(r.model, r.written)},
          {"symbolic_sizes_as_1", r.before.open || r.after.open}};
}

// --- verification

enum class Verdict { equal, within, mistrusted, differs, undecided };

struct Verified {
  Verdict verdict = Verdict::equal;
  json rows = json::array();
  std::vector<std::string> culprits;  ///< rules without any one of which the results are equal
  std::optional<Error> why;           ///< undecided: what stood in the way
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
    o.runs_once = true;
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
    FERRULE_ASSIGN(e.inputs, gather_inputs(model.inputs(), fuse_.input, plain.engine.shapes, notes,
                                           accepted_by(model)));
    FERRULE_ASSIGN(e.want, model.run(e.inputs));
    return e;
  }

  Result<Verified> judged(const std::string& file, const Expected& e) {
    FERRULE_ASSIGN(SessionOptions plain, options(false));
    FERRULE_ASSIGN(Session written, Session::load(file, plain));
    FERRULE_ASSIGN(Tensors got, written.run(e.inputs));
    Verified v;
    v.verdict = compared(e.outputs, got, e.want, &v.rows);
    if (v.verdict == Verdict::differs) FERRULE_TRY(arbitrate(v, written, got, e));
    if (v.verdict == Verdict::differs) v.culprits = culprits(e.outputs, e.inputs, e.want);
    return v;
  }

  /// A model that computes in f16 or bf16 is right where it is no further from f64 than the given
  /// one, whatever type its outputs have.
  Status arbitrate(Verified& v, Session& written, const Tensors& got, const Expected& e) const {
    Shapes shapes;
    for (const auto& [n, t] : e.inputs) shapes[n] = t.dims();
    FERRULE_ASSIGN(const Compiled* compiled, written.compile(shapes));
    if (!short_type(compiled->plan())) return {};
    FERRULE_ASSIGN(const SessionOptions plain, options(false));
    FERRULE_ASSIGN(const Tensors exact,
                   exact_results(common_.model, plain.engine, e.inputs, cancel_.get()));
    v.rows = json::array();
    v.verdict = compared(e.outputs, got, e.want, &v.rows, &exact);
    return {};
  }

  Verified undecided(Error e) const {
    Verified v;
    v.verdict = Verdict::undecided;
    const bool time = e.code == Code::cancelled;
    e.message =
        time ? fmt::format("the new model was not verified within {:g} s", fuse_.verify_seconds)
             : "the new model cannot be verified: " + e.message;
    e.place = "fuse";
    e.hint = fmt::format("{}; --allow-unverified writes it anyway",
                         time ? "--verify-seconds gives it more time"
                              : "give real inputs with --inputs, or sizes with --shapes");
    v.why = std::move(e);
    return v;
  }

  /// `exact`: what settles what differs.
  static Verdict compared(const std::vector<Port>& outputs, const Tensors& got, const Tensors& want,
                          json* rows, const Tensors* exact = nullptr) {
    Verdict all = Verdict::equal;
    for (const Port& p : outputs) {
      const Tensor &g = got.at(p.name), &w = want.at(p.name);
      Difference d = compare(g, w, model_tolerance(element_type(w)));
      std::string text = explained(d);
      if (exact && !d.ok)
        text = arbitrated(d, g, w, exact->at(p.name), "the given model").value_or(text);
      all = std::max(all, !d.ok          ? Verdict::differs
                          : d.mistrusted ? Verdict::mistrusted
                          : d.same       ? Verdict::equal
                                         : Verdict::within);
      if (rows)
        rows->push_back({{"output", escape(p.name, 4096)},
                         {"verdict", verdict_of(d)},
                         {"error", d.error},
                         {"allowed", d.allowed},
                         {"max_abs", d.max_abs},
                         {"max_rel", d.max_rel},
                         {"text", text}});
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
  static constexpr std::string_view kNames[] = {"equal", "within tolerance", "MISTRUSTED",
                                                "DIFFERS", "not verified"};
  return kNames[static_cast<size_t>(v)];
}

void print_verified(const Verified& v) {
  std::cout << "\noutputs of the new model, compared with the given one's:\n";
  for (const json& r : v.rows)
    std::cout << verdict_line(r["verdict"].get<std::string>(), r["output"].get<std::string>(),
                              r["text"].get<std::string>());
  if (v.why) std::cout << "written anyway: " << v.why->message << "\n";
  if (v.verdict == Verdict::mistrusted)
    std::cout << "such outputs say little of the new model; give real inputs with --inputs\n";
}

Error refused(const Verified& v, const std::string& file) {
  std::string who;
  for (const std::string& r : v.culprits) who += (who.empty() ? "" : ", ") + r;
  Error e = error(Code::differs, "fuse",
                  "the fused model gives other results than the model; " + escape(file) +
                      " was not written")
                .value();
  e.hint = who.empty() ? "--no-verify writes it anyway"
                       : fmt::format("they are equal without {}: --disable it, and report it", who);
  return e;
}

// --- the command

Result<Exit> body(const Common& common, const FuseOptions& o) {
  if (o.out.empty() && o.plan.empty() && !o.dry_run)
    return error(Code::usage, "fuse",
                 "nothing to write: pass -o OUT.onnx, --plan FILE or --dry-run");
  const std::string out = o.dry_run ? "" : o.out;
  FERRULE_TRY(free_place("fuse", out, common.force));
  FERRULE_TRY(free_place("fuse", o.dry_run ? "" : o.plan, common.force));
  FERRULE_ASSIGN(Loaded loaded, load_model(common, true));
  const std::string hash = o.plan.empty() ? "" : graph_hash(loaded.model.graph);
  const bool external = loaded.model.external_data;

  Report report;
  report.model = loaded.model.contents;
  Graph original = std::move(*loaded.model.graph.clone());
  FERRULE_ASSIGN(Fused fused,
                 fuse(std::move(loaded.model.graph), *loaded.knowledge, loaded.options));
  for (const std::string& n : loaded.model.notes) talk("note: " + n);
  for (const std::string& n : fused.notes) talk("note: " + n);
  for (const std::string& w : fused.warnings) talk("warning: " + w);
  report.rules = fused.journal.fired();
  report.groups = groups_of(fused.graph);
  FERRULE_ASSIGN(report.after, cost_of(fused.graph, *loaded.knowledge, lower_options(common)));
  {
    const EngineOptions plain = without_rules(loaded.options);
    FERRULE_ASSIGN(auto knowledge, load_knowledge(plain));
    FERRULE_ASSIGN(Fused unfused, fuse(std::move(original), *knowledge, plain));
    FERRULE_ASSIGN(report.before, cost_of(unfused.graph, *knowledge, lower_options(common)));
  }
  ExportOptions how;
  how.functions = o.how == "functions";
  how.opset = o.opset;
  if (external) how.inline_bytes = 0;
  FERRULE_ASSIGN(report.written, export_contents(fused.graph, how));
  if (!common.json) print_report(report);

  json written = json::object();
  if (!o.plan.empty() && !o.dry_run) {
    const Instances list = instances_of(fused.journal, hash, loaded.knowledge->target.name);
    FERRULE_TRY(write_list(o.plan, to_text(list, fs::path(common.model).filename().string()),
                           common.force));
    talk(fmt::format("wrote {}: {}", escape(o.plan), counted(list.lines.size(), "fusion")));
    written["plan"] = o.plan;
  }
  std::optional<Verified> verified;
  if (!out.empty()) {
    FERRULE_ASSIGN(Staged staged, Staged::at(out));
    FERRULE_TRY(export_file(fused.graph, staged.path(), how));
    if (!o.no_verify) {
      FERRULE_ASSIGN(verified, Verify(common, o, report).run(staged.path()));
      if (verified->verdict == Verdict::differs) return fail(refused(*verified, out));
      if (verified->why && !o.allow_unverified) return fail(*verified->why);
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
                                  {"why", verified->why ? verified->why->message : ""}}
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
       "the new model; weights over 2 GB, and weights that were external data, go to FILE.data")
      ->type_name("FILE");
  c->add_option("--export", o->how,
                "inlined: fused layers as their nodes, which every tool reads; functions: as "
                "functions of the model, which keep the layers visible")
      ->check(CLI::IsMember({"functions", "inlined"}));
  c->add_option("--opset", o->opset,
                "the opset of the new model; default: the oldest from 21 on that can express it")
      ->type_name("N");
  c->add_flag("--dry-run", o->dry_run, "write nothing: only say what changes");
  c->add_option("--plan", o->plan, "write the fusions as lines that can be deleted, for --apply")
      ->type_name("FILE");
  c->add_flag("--no-verify", o->no_verify,
              "do not compare the new model's results with the old one's");
  c->add_flag("--allow-unverified", o->allow_unverified,
              "write the model even if its results could not be compared");
  c->add_option("--verify-seconds", o->verify_seconds, "how long that may take")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.001, 1e6));
  add_inputs(*c, o->input);
  c->footer(
      "Examples:\n  ferrule fuse model.onnx -o fused.onnx\n  ferrule fuse model.onnx -o fused.onnx "
      "--export functions\n  ferrule fuse model.onnx -o fused.onnx --opset 17\n"
      "  ferrule fuse model.onnx --dry-run\n"
      "  ferrule fuse model.onnx --plan plan.yaml        (delete lines of it, then)\n  ferrule run "
      "model.onnx --apply plan.yaml");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
