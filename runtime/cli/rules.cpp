// rules: work on rule files. list, show, check, test, vocabulary, schema, new.
#include <fcntl.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iostream>

#include "engine/base/join.h"
#include "engine/base/suggest.h"
#include "engine/rule/contract.h"
#include "engine/rule/vocabulary.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/terminal.h"
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
  if (!r && !contract) return unknown_rule("rules show", id, knowledge->rules);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"id", id},
                {"file", r ? r->file : contract->file},
                {"text", r ? r->text : contract->text}});
    return Exit::ok;
  }
  if (contract) std::cout << "# " << contract->file << "\n" << contract->text;
  if (r) std::cout << "# " << r->file << "\n" << r->text;
  return Exit::ok;
}

/// `all`: notes about shipped rules, too.
Result<Exit> check(const Common& common, bool all) {
  FERRULE_ASSIGN(EngineOptions options, rule_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  CheckReport report = check_rules(knowledge->rules, knowledge->ops);
  for (const std::string& name : target_names(options.rule_dirs))
    if (auto target = load_target(options.rule_dirs, name); !target)
      append(report.errors, std::move(target).error());
  const std::string shipped = shipped_rules();
  json notes = json::array(), errors = json::array();
  size_t kept = 0;  // about rules that are not their reader's
  for (const RuleNote& note : report.notes) {
    if (!all && note.rule && note.rule->pack == shipped && ++kept) continue;
    json entry = {{"text", note.text}};
    if (note.rule) entry["rule"] = note.rule->id;
    notes.push_back(std::move(entry));
    if (!common.json)
      std::cout << "note: " << (note.rule ? note.rule->id + ": " : "") << note.text << "\n";
  }
  const Exit exit = report.errors.empty() ? Exit::ok : Exit::usage;
  for (const Error& e : report.errors) {
    errors.push_back({{"place", e.place}, {"message", e.message}, {"hint", e.hint}});
    if (!common.json) std::cout << render(e) << "\n";
  }
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"rules", knowledge->rules.rules.size()},
                {"errors", errors},
                {"notes", notes}});
    return exit;
  }
  std::cout << fmt::format("{}, {}, {}, {}, {}{}\n", counted(knowledge->rules.rules.size(), "rule"),
                           counted(knowledge->rules.contracts.size(), "contract"),
                           counted(knowledge->ops.all().size(), "operator"),
                           counted(report.errors.size(), "error"),
                           counted(report.notes.size() - kept, "note"),
                           kept ? fmt::format(" ({} more about shipped rules: --all)", kept) : "");
  return exit;
}

Result<Exit> show_vocabulary(const Common& common) {
  json all = json::array();
  for (const VocabularyEntry& v : vocabulary())
    all.push_back({{"name", v.name}, {"signature", v.signature}, {"doc", v.doc}});
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion}, {"functions", all}});
    return Exit::ok;
  }
  for (const VocabularyEntry& v : vocabulary())
    std::cout << fmt::format("{:<52} {}\n", fmt::format("{}{}", v.name, v.signature), v.doc);
  return Exit::ok;
}

/// A file that loads, passes its own test, and is a place to start from.
constexpr std::string_view kTemplate = R"(# yaml-language-server: $schema={schema}
ferrule: 2
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

tl::unexpected<Error> unknown_rule(const char* place, const std::string& id, const RuleSet& rules) {
  auto e = error(Code::rule_unknown, place, escape(id));
  std::vector<std::string> ids;
  for (const auto& r : rules.rules) ids.push_back(r->id);
  if (std::string hint = did_you_mean(id, ids); !hint.empty()) e.value().hint = std::move(hint);
  return e;
}

void add_rules(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("rules",
                               "work on rules: list, show, check, test, vocabulary, schema, new");
  c->require_subcommand(1);
  c->footer(
      "Examples:\n  ferrule rules new my_rules/my_rule\n  ferrule rules check --rules my_rules\n"
      "  ferrule rules test my_rule --rules my_rules");
  auto text = std::make_shared<std::string>();
  auto sub = [&](const char* name, const char* doc, const char* examples, Command command) {
    auto* s = c->add_subcommand(name, doc);
    s->footer(examples);
    add_common(*s, common, false);
    set_body(*s, common, exit, std::move(command));
    return s;
  };
  add_override(*sub("list", "every rule, in firing order",
                    "Examples:\n  ferrule rules list\n  ferrule rules list --rules my_rules\n"
                    "  ferrule rules list --override changes.yaml --json",
                    list),
               common);
  sub("show", "the file of a rule, or of a contract",
      "Examples:\n  ferrule rules show conv_activation\n  ferrule rules show attention\n"
      "  ferrule rules show my_rule --rules my_rules",
      [text](const Common& o) {
        print_unfolded();  // a file, as it is
        return show(o, *text);
      })
      ->add_option("RULE", *text)
      ->required();
  auto all = std::make_shared<bool>(false);
  auto* checks =
      sub("check", "reads the rules' files and says what is wrong in them; proves nothing",
          "Examples:\n  ferrule rules check --rules my_rules\n"
          "  ferrule rules check --rules my_rules --json\n  ferrule rules check --all",
          [all](const Common& o) { return check(o, *all); });
  add_override(*checks, common);
  checks->add_flag("--all", *all, "also notes about shipped rules");
  sub("vocabulary", "the functions of the condition language",
      "Examples:\n  ferrule rules vocabulary\n  ferrule rules vocabulary | grep shape\n"
      "  ferrule rules vocabulary --json",
      show_vocabulary);
  auto of_overrides = std::make_shared<bool>(false);
  sub("schema", "the JSON Schema of rule files",
      "Examples:\n  ferrule rules schema > schema.json\n"
      "  ferrule rules schema --override > override_schema.json\n"
      "  ferrule rules schema | python3 -m json.tool",
      [of_overrides](const Common&) -> Result<Exit> {
        print_unfolded();
        std::cout << (*of_overrides ? override_schema() : rule_schema());
        return Exit::ok;
      })
      ->add_flag("--override", *of_overrides, "of override files");
  sub("new", "writes a rule to start from",
      "Examples:\n  ferrule rules new my_rules/my_rule\n"
      "  ferrule rules new my_rules/my_rule.yaml --force\n"
      "  mkdir my_rules && ferrule rules new my_rules/my_rule",
      [text](const Common& o) { return make(o, *text); })
      ->add_option("FILE", *text, "the new file; its name is the rule's id")
      ->required();
  add_rules_test(*c, common, exit);
}

}  // namespace ferrule::cli
