// rules: work on rule files. list, show, check, test, vocabulary, schema, new.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "engine/rule/contract.h"
#include "engine/rule/vocabulary.h"
#include "runtime/cli/cli.h"
#include "runtime/shipped_rules.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

Result<Exit> list(const Common& common) {
  FERRULE_ASSIGN(EngineOptions options, rule_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  json out = json::array();
  for (const auto& r : knowledge->rules.rules) {
    if (common.json) {
      out.push_back({{"id", r->id},
                     {"kind", name(r->kind)},
                     {"phase", r->phase},
                     {"enabled", r->enabled},
                     {"doc", r->doc},
                     {"source", r->source},
                     {"file", r->file},
                     {"off", r->off}});
      continue;
    }
    std::cout << fmt::format("{:<28} {:<8} {:<13} {:<4} {}\n", r->id, name(r->kind), r->phase,
                             r->enabled ? "on" : "off", r->off.empty() ? r->doc : r->off);
  }
  for (const std::string& w : knowledge->warnings) talk("warning: " + w);
  if (common.json) print_json({{"schema_version", kSchemaVersion}, {"rules", out}});
  return Exit::ok;
}

Result<Exit> show(const Common& common, const std::string& id) {
  FERRULE_ASSIGN(EngineOptions options, rule_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  const Rule* r = knowledge->rules.find(id);
  const auto contract = knowledge->ops.contracts()->find(id);
  if (!r && !contract) return error(Code::rule_unknown, "rules show", escape(id));
  if (contract) std::cout << "# " << contract->file << "\n" << contract->text;
  if (r) std::cout << "# " << r->file << "\n" << r->text;
  return Exit::ok;
}

/// `all`: notes about shipped rules, too.
Result<Exit> check(const Common& common, bool all) {
  FERRULE_ASSIGN(EngineOptions options, rule_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  CheckReport report = check_rules(knowledge->rules, knowledge->ops);
  const std::string shipped = shipped_rules();
  size_t kept = 0;  // about rules that are not their reader's
  for (const RuleNote& note : report.notes) {
    if (!all && note.rule->pack == shipped && ++kept) continue;
    std::cout << "note: " << note.rule->id << ": " << note.text << "\n";
  }
  for (const Error& e : report.errors) std::cout << render(e) << "\n";
  std::cout << fmt::format("{} rules, {} contracts, {} operators, {} errors, {} notes{}\n",
                           knowledge->rules.rules.size(), knowledge->rules.contracts.size(),
                           knowledge->ops.all().size(), report.errors.size(),
                           report.notes.size() - kept,
                           kept ? fmt::format(" ({} more about shipped rules: --all)", kept) : "");
  return report.errors.empty() ? Exit::ok : Exit::usage;
}

Result<Exit> words() {
  for (const VocabularyEntry& v : vocabulary())
    std::cout << fmt::format("{:<52} {}\n", fmt::format("{}{}", v.name, v.signature), v.doc);
  return Exit::ok;
}

/// A file that loads, passes its own test, and is a place to start from.
constexpr std::string_view kTemplate = R"(# yaml-language-server: $schema={schema}
ferrule: 1
id: {id}
kind: rewrite
doc: One sentence on what becomes what.
source: [where it comes from]
phase: canonicalize
numerics: exact
match: |
  t = Relu(x)
  y = Relu(t)
rewrite: |
  y = Relu(x)
tests:
  fires:
    - |
      agraph (float[2,3] x) => (float[2,3] y) {{
        t = Relu(x)
        y = Relu(t)
      }}
  holds:
    - {{declined_by: D1, leak: t}}
)";

/// Where editors find the schema: as other rules say it where the file lies among them.
std::string schema_for(const std::string& file) {
  namespace fs = std::filesystem;
  std::error_code ec;
  const fs::path schema = fs::canonical(shipped_rules() + "/schema.json", ec),
                 folder = fs::absolute(file, ec).parent_path();
  const fs::path above = fs::weakly_canonical(folder / ".." / "schema.json", ec);
  return above == schema ? "../schema.json" : schema.string();
}

Result<Exit> make(const Common& common, const std::string& path) {
  std::string id = path.substr(path.find_last_of('/') + 1);
  if (id.ends_with(".yaml")) id.resize(id.size() - 5);
  if (id.empty() || id.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789_") != id.npos)
    return error(Code::usage, "rules new",
                 fmt::format("{} is no rule id, and the file's name is the id: lower case, digits "
                             "and _",
                             escape(id)));
  std::string file = path.ends_with(".yaml") ? path : path + ".yaml";
  int fd = open(file.c_str(), O_WRONLY | O_CREAT | (common.force ? O_TRUNC : O_EXCL), 0644);
  if (fd < 0 && errno == EEXIST) return error(Code::file_exists, "rules new", escape(file));
  if (fd < 0) return error(Code::file_not_written, "rules new", escape(file), std::strerror(errno));
  close(fd);
  std::ofstream(file) << fmt::format(kTemplate, fmt::arg("id", id),
                                     fmt::arg("schema", schema_for(file)));
  std::cout << "wrote " << file << "\n";
  return Exit::ok;
}

}  // namespace

void add_rules(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("rules",
                               "work on rules: list, show, check, test, vocabulary, schema, new");
  c->require_subcommand(1);
  auto text = std::make_shared<std::string>();
  auto sub = [&](const char* name, const char* doc, Command command) {
    auto* s = c->add_subcommand(name, doc);
    add_common(*s, common, false);
    set_body(*s, common, exit, std::move(command));
    return s;
  };
  add_override(*sub("list", "every rule, in firing order", list), common);
  sub("show", "the file of a rule, or of a contract",
      [text](const Common& o) { return show(o, *text); })
      ->add_option("RULE", *text)
      ->required();
  auto all = std::make_shared<bool>(false);
  auto* checks =
      sub("check", "loads and checks all rules", [all](const Common& o) { return check(o, *all); });
  add_override(*checks, common);
  checks->add_flag("--all", *all, "also notes about shipped rules");
  sub("vocabulary", "the functions of the condition language",
      [](const Common&) { return words(); });
  auto of_overrides = std::make_shared<bool>(false);
  sub("schema", "the JSON Schema of rule files", [of_overrides](const Common&) -> Result<Exit> {
    std::cout << (*of_overrides ? override_schema() : rule_schema());
    return Exit::ok;
  })->add_flag("--override", *of_overrides, "of override files");
  sub("new", "writes a rule to start from", [text](const Common& o) { return make(o, *text); })
      ->add_option("FILE", *text, "the new file; its name is the rule's id")
      ->required();
  add_rules_test(*c, common, exit);
}

}  // namespace ferrule::cli
