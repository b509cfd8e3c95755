// Operators are known by name in the rules and where their meanings stand (tests/layering), and
// nowhere else: with every operator called otherwise, in the rules and in the models alike, plans
// and launches are the same but for the names.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <regex>
#include <sstream>

#include "codegen/annotate_plan.h"
#include "engine/base/diagnostics.h"
#include "engine/graph/operator_name.h"
#include "engine/graph/text.h"
#include "engine/onnx/import.h"
#include "engine/onnx/schema.h"
#include "engine/pipeline.h"
#include "runtime/registry.h"
#include "tests/support/paths.h"
#include "tests/unit/codegen/shipped_operators.h"

namespace ferrule::test {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

/// `change` of every word: a run of letters, digits and, in rules, underscores.
template <class Change>
std::string by_word(const std::string& text, bool underscores, Change change) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() && (std::isalnum(static_cast<unsigned char>(text[end])) ||
                                 (underscores && text[end] == '_')))
      ++end;
    if (end == at) {
      out += text[at++];
      continue;
    }
    out += change(text.substr(at, end - at));
    at = end;
  }
  return out;
}

std::string rot13(std::string name) {
  for (char& c : name) {
    const char first = std::isupper(static_cast<unsigned char>(c)) ? 'A' : 'a';
    if (std::isalpha(static_cast<unsigned char>(c)))
      c = static_cast<char>(first + (c - first + 13) % 26);
  }
  return name;
}

/// Every operator that ONNX or the rules know, and what it is called instead.
OperatorNames other_names(const std::vector<std::string>& texts) {
  OperatorNames names;
  auto add = [&](const std::string& name) {
    names[name] = rot13(name);
    names[rot13(name)] = name;
  };
  for (const auto& [key, f] : operators().all()) add(f.op);
  for (const std::string& text : texts)
    by_word(text, true, [&](const std::string& word) {
      if (operator_schema("", word)) add(word);
      return word;
    });
  return names;
}

std::string renamed(const std::string& text, const OperatorNames& names) {
  return by_word(text, true, [&](const std::string& word) {
    const auto it = names.find(word);
    return it == names.end() ? word : it->second;
  });
}

/// One of the two names of each operator, also where it is a part of another name; unknown sizes
/// ("?94") without their numbers, which a process counts.
std::string without_names(const std::string& text, const OperatorNames& names) {
  static const std::regex kUnknown("\\?[0-9]+");
  return by_word(std::regex_replace(text, kUnknown, "?"), false, [&](const std::string& word) {
    const auto it = names.find(word);
    return it == names.end() ? word : std::min(word, it->second);
  });
}

/// The first line that differs; of one with a long size in it, which is cut behind as many
/// characters as numbers of unknowns take, the beginning.
std::string difference(const std::string& a, const std::string& b) {
  constexpr size_t kSurelyUncut = 100;
  std::istringstream x(a), y(b);
  std::string p, q;
  while (std::getline(x, p)) {
    if (!std::getline(y, q)) return p;
    const bool cut = p.find("…") != std::string::npos;
    if (cut ? p.substr(0, kSurelyUncut) != q.substr(0, kSurelyUncut) : p != q) return p + "\n" + q;
  }
  return std::getline(y, q) ? q : "";
}

struct Model {
  std::string name, text;  ///< text empty: a file
};

/// Of golden tests and of rules, and the shared ones where they are.
std::vector<Model> models(const RuleSet& rules) {
  std::vector<Model> out;
  for (const auto& entry : fs::directory_iterator(source_dir() + "/tests/golden/cases")) {
    const std::string text = read(entry.path()), begin = "==== graph\n";
    const size_t at = text.find(begin);
    if (at != std::string::npos)
      out.push_back({entry.path().filename(),
                     text.substr(at + begin.size(), text.find("\n====", at) - at - begin.size())});
  }
  for (const auto& rule : rules.rules)
    for (const RuleTest& test : rule->tests)
      if (test.fires && !test.model.empty())
        out.push_back({rule->id + ": " + test.name, test.model});
  const char* shared = std::getenv("FERRULE_SHARED");
  const fs::path real =
      (shared ? fs::path(shared) : fs::path(source_dir()) / "../shared/models") / "real";
  out.push_back({source_dir() + "/tests/models/real/mnist_cntk/model.onnx", ""});
  if (fs::exists(real))
    for (const auto& entry : fs::recursive_directory_iterator(real))
      if (entry.path().extension() == ".onnx") out.push_back({entry.path(), ""});
  std::ranges::sort(out, {}, &Model::name);
  return out;
}

/// The plan and its launches as text, or what is wrong with the model.
std::string planned(const Model& m, const Knowledge& k, const EngineOptions& options) {
  ImportOptions import;
  import.ops = &k.ops;
  auto imported = m.text.empty() ? import_file(m.name, import) : import_text(m.text, import);
  if (!imported) return imported.error().message;
  auto fused = fuse(std::move(imported->graph), k, options);
  if (!fused) return fused.error().message;
  auto plan = make_plan(std::move(fused->graph), k.target, k.ops);
  if (!plan) return plan.error().message;
  auto lowered = lower(*plan, k.ops, k.target, {});
  if (!lowered) return lowered.error().message;
  std::string out;
  for (const Layer& l : plan->layers)
    out += fmt::format("{} {} {} {} {}\n", l.name, l.contract, l.rule, l.kernels, l.numerics);
  for (const LoweredLayer& layer : lowered->layers)
    for (const Launch& l : layer.launches)
      out += fmt::format("work {}\n", static_cast<int>(l.work));
  out += to_text(plan->graph);
  auto executable =
      (*find_backend("null"))->prepare({*plan, *lowered, k.ops, k.target, options.limits, 1, {}});
  return out + (executable ? (*executable)->text() : executable.error().reason());
}

EngineOptions options_of(std::vector<std::string> rules, const std::string& target) {
  EngineOptions out;
  out.rule_dirs = std::move(rules);
  out.target = target;
  out.allow_unproven = {"*"};
  out.cache.clear();
  return out;
}

std::shared_ptr<const Knowledge> knowledge_of(const EngineOptions& options) {
  auto k = load_knowledge(options);
  REQUIRE_MESSAGE(k.has_value(), (k ? "" : render(k.error())));
  return *k;
}

}  // namespace

TEST_CASE("with every operator renamed plans are equal") {
  const fs::path folder = fs::path(build_dir()) / "renamed_rules";
  fs::remove_all(folder);
  const EngineOptions shipped = options_of({rules_dir()}, "cpu-avx512");
  const std::vector<Model> all = models(knowledge_of(shipped)->rules);
  std::vector<std::string> texts;
  for (const Model& m : all) texts.push_back(m.text);
  for (const auto& entry : fs::recursive_directory_iterator(rules_dir()))
    if (entry.path().extension() == ".yaml") texts.push_back(read(entry.path()));
  const OperatorNames names = other_names(texts);
  for (const auto& entry : fs::recursive_directory_iterator(rules_dir())) {
    if (entry.path().extension() != ".yaml") continue;
    const fs::path to = folder / fs::relative(entry.path(), rules_dir());
    fs::create_directories(to.parent_path());
    // Functions are parts of models: what they call is renamed as models' nodes are.
    const std::string text = read(entry.path());
    const size_t functions = std::min(text.find("\nfunctions:"), text.size());
    std::ofstream(to) << renamed(text.substr(0, functions), names) << text.substr(functions);
  }
  for (const std::string target : {"cpu-avx512", "sm_90"}) {
    CAPTURE(target);
    const EngineOptions plain = options_of({rules_dir()}, target),
                        other = options_of({folder.string()}, target);
    const auto before = knowledge_of(plain);
    std::vector<std::string> want;
    for (const Model& m : all) want.push_back(planned(m, *before, plain));
    rename_operators(names);
    const auto after = knowledge_of(other);
    size_t others = 0;
    for (size_t k = 0; k < all.size(); ++k) {
      CAPTURE(all[k].name);
      const std::string got = planned(all[k], *after, other);
      others += got != want[k];
      CHECK(difference(without_names(got, names), without_names(want[k], names)) == "");
    }
    rename_operators({});
    CHECK(others > all.size() / 2);  // what has groups alone shows no name
  }
}

}  // namespace ferrule::test
