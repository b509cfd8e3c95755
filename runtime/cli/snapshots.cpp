#include "runtime/cli/snapshots.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "engine/base/output_file.h"

namespace ferrule::cli {
namespace {

namespace fs = std::filesystem;

using Lines = std::vector<std::string>;

std::string place_of(const Rule& rule) { return rule.pack + "/snapshots/" + rule.id + ".txt"; }

Lines lines_of(const std::string& text) {
  Lines out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

/// The file's text: a heading a case, what it gives indented below. What a condition says may
/// depend on the target, so it is named.
std::string snapshot(const Rule& rule, const RuleTestReport& tests, const std::string& target) {
  std::string out = fmt::format(
      "# What the cases of {} give on {}; `ferrule rules test -U` writes it.\n", rule.id, target);
  for (const CaseResult& c : tests.cases) {
    out += "\n" + c.name + "\n";
    for (const std::string& line : lines_of(c.outcome))
      out += (line.empty() ? "" : "    " + line) + "\n";
  }
  return out;
}

std::string read(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

/// What was and what is, by lines; what is the same in both is left out.
std::string difference(const Lines& was, const Lines& is) {
  // The longest common subsequence. These are the lines of small graphs.
  std::vector<std::vector<size_t>> longest(was.size() + 1, std::vector<size_t>(is.size() + 1));
  for (size_t i = was.size(); i-- > 0;)
    for (size_t k = is.size(); k-- > 0;)
      longest[i][k] = was[i] == is[k] ? longest[i + 1][k + 1] + 1
                                      : std::max(longest[i + 1][k], longest[i][k + 1]);
  std::string out;
  size_t i = 0, k = 0;
  while (i < was.size() || k < is.size()) {
    if (i < was.size() && k < is.size() && was[i] == is[k]) {
      ++i, ++k;
    } else if (i < was.size() && (k == is.size() || longest[i + 1][k] >= longest[i][k + 1])) {
      out += "\n  - " + was[i++];
    } else {
      out += "\n  + " + is[k++];
    }
  }
  return out;
}

}  // namespace

bool has_snapshots(const std::string& dir) { return fs::is_directory(dir + "/snapshots"); }

std::vector<std::string> snapshot_differences(const Rule& rule, const RuleTestReport& tests,
                                              const std::string& target) {
  const std::string path = place_of(rule);
  if (!fs::exists(path)) return {"it has no snapshot (rules test -U writes it)"};
  const std::string was = read(path), is = snapshot(rule, tests, target);
  if (was == is) return {};
  return {fmt::format("other than in {} (rules test -U keeps what is new):{}", path,
                      difference(lines_of(was), lines_of(is)))};
}

Result<bool> write_snapshot(const Rule& rule, const RuleTestReport& tests,
                            const std::string& target) {
  const std::string path = place_of(rule), text = snapshot(rule, tests, target);
  if (fs::exists(path) && read(path) == text) return false;
  std::error_code failed;
  fs::create_directories(fs::path(path).parent_path(), failed);
  OutputFile file(path);
  FERRULE_TRY(file.open());
  FERRULE_TRY(file.write(text.data(), text.size()));
  FERRULE_TRY(file.commit(true));
  return true;
}

std::vector<std::string> left_snapshots(const std::string& dir, const RuleSet& rules) {
  std::vector<std::string> left;
  std::error_code failed;
  for (const auto& entry : fs::directory_iterator(dir + "/snapshots", failed))
    if (entry.path().extension() == ".txt" && !rules.find(entry.path().stem().string()))
      left.push_back(entry.path().string());
  std::ranges::sort(left);
  return left;
}

}  // namespace ferrule::cli
