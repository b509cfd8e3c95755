// tests/conformance/catalogue.tsv against the rules: every entry of the TensorRT catalogue is
// there, and every rule, condition and guarantee that it names exists and has a case that shows it.
#include <algorithm>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "engine/pipeline.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

const RuleSet& rules() {
  static const RuleSet set = [] {
    std::array<std::string, 1> dirs{rules_dir()};
    return must(load_rules(dirs, ops(), {}, limits()));
  }();
  return set;
}

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, at);) out.push_back(part);
  return out;
}

/// "RULE.CONDITION", "RULE:D1", "RULE:structure", "RULE:types" or "RULE": "" or what is wrong with
/// it.
std::string problem(const std::string& reference) {
  const size_t at = reference.find_first_of(".:");
  const std::string id = reference.substr(0, at);
  const Rule* rule = rules().find(id);
  if (!rule) return "there is no rule " + id;
  if (at == std::string::npos) return "";
  const std::string what = reference.substr(at + 1);
  auto declines = [&](const std::string& id) {
    return std::ranges::any_of(rule->tests,
                               [&](const RuleTest& t) { return !t.fires && t.declined_by == id; });
  };
  if (reference[at] == ':') {
    if (what == "types") return rule->types.empty() ? id + " has no types" : "";
    return declines(what) ? "" : fmt::format("no case of {} is declined by {}", id, what);
  }
  for (const auto* list : {&rule->where, &rule->region.where})
    for (const Condition& c : *list)
      if (c.id == what)
        return declines(what) ? "" : fmt::format("no case of {} is declined by {}", id, what);
  // What its contract asks has the contract's name in front.
  if (declines(rule->contract + "." + what)) return "";
  return fmt::format("{} has no condition {}", id, what);
}

}  // namespace

TEST_CASE("the catalogue's entries and where their conditions are kept") {
  std::ifstream file(source_dir() + "/tests/conformance/catalogue.tsv");
  REQUIRE(file);
  std::set<std::string> entries;
  int references = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line[0] == '#' || line.starts_with("entry\t")) continue;
    const std::vector<std::string> columns = split(line, '\t');
    INFO(line);
    REQUIRE(columns.size() >= 3);
    entries.insert(columns[0]);
    for (const std::string& reference : split(columns[2], ' ')) {
      ++references;
      CHECK(problem(reference) == "");
    }
  }
  for (int n = 1; n <= 27; ++n)
    CHECK_MESSAGE(entries.contains(fmt::format("C{:02}", n)), "no row for entry C", n);
  CHECK(references > 100);
}

TEST_CASE("rules name the entries they carry") {
  std::map<std::string, int> sources;
  for (const auto& rule : rules().rules)
    for (const std::string& source : rule->source)
      if (size_t at = source.find("TensorRT catalogue"); at != std::string::npos)
        for (const std::string& word : split(source.substr(at), ' '))
          if (word.size() == 3 && word[0] == 'C') ++sources[word];
  for (int n = 1; n <= 27; ++n)
    CHECK_MESSAGE(sources.contains(fmt::format("C{:02}", n)), "no rule has TensorRT catalogue C", n,
                  " for its source");
}
