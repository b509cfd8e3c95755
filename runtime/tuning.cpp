#include "runtime/tuning.h"

#include <algorithm>
#include <fstream>

#include "engine/base/diagnostics.h"
#include "engine/base/yaml.h"

namespace ferrule {
namespace {

constexpr int64_t kVersion = 1;

/// As a YAML string in double quotes.
std::string quoted(const std::string& text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + "\"";
}

/// As it is where YAML takes it for a text, else in quotes: libraries call their plans what they
/// like.
std::string quoted_name(const std::string& name) {
  const bool plain = !name.empty() &&
                     (std::isalpha(static_cast<unsigned char>(name[0])) || name[0] == '_') &&
                     std::ranges::all_of(name, [](unsigned char c) {
                       return std::isalnum(c) || c == '_' || c == '-' || c == '=';
                     });
  return plain ? name : quoted(name);
}

void read_entry(yaml::Reader& r, const yaml::Node& n, Tuning& t) {
  if (!r.expect(n, yaml::Node::Kind::map, "an entry")) return;
  r.keys(n, {"problem", "use", "us"});
  const yaml::Node *problem = r.required(n, "problem"), *use = r.required(n, "use");
  if (!problem || !use) return;
  Tuning::Entry entry;
  entry.use = r.string(*use);
  if (const yaml::Node* times = n.find("us");
      times && r.expect(*times, yaml::Node::Kind::map, "us"))
    for (const auto& [name, value] : times->entries)
      entry.microseconds[name.text] = r.number(value);
  if (!t.problems.emplace(r.string(*problem), std::move(entry)).second)
    r.error(*problem, "this problem is there twice", "keep one of the two");
}

}  // namespace

Result<Tuning> read_tuning(const std::string& path, const Limits& limits) {
  FERRULE_ASSIGN(yaml::Document doc, yaml::read_file(path, limits));
  yaml::Reader r(doc.source);
  Tuning t;
  if (!r.expect(doc.root, yaml::Node::Kind::map, "a tuning file")) return fail(r.status().error());
  r.keys(doc.root, {"tuning", "machine", "target", "threads", "launches"});
  if (const yaml::Node* version = r.required(doc.root, "tuning");
      version && r.integer(*version) != kVersion)
    r.error(*version,
            fmt::format("version {} of tuning files, this program reads {}", escape(version->text),
                        kVersion),
            "make it anew: ferrule tune MODEL -o FILE");
  if (const yaml::Node* n = r.required(doc.root, "machine")) t.machine = r.string(*n);
  if (const yaml::Node* n = r.required(doc.root, "target")) t.target = r.string(*n);
  if (const yaml::Node* n = r.required(doc.root, "threads"))
    t.threads = static_cast<int>(r.integer(*n));
  if (const yaml::Node* n = r.required(doc.root, "launches");
      n && r.expect(*n, yaml::Node::Kind::sequence, "launches"))
    for (const yaml::Node& entry : n->items) read_entry(r, entry, t);
  FERRULE_TRY(r.status());
  return t;
}

std::string to_text(const Tuning& t) {
  std::string out =
      "# Written by `ferrule tune`; read with --tuning FILE. us: microseconds, the fastest of many "
      "runs.\n";
  out += fmt::format("tuning: {}\nmachine: {}\ntarget: {}\nthreads: {}\nlaunches:{}\n", kVersion,
                     quoted(t.machine), t.target, t.threads, t.problems.empty() ? " []" : "");
  for (const auto& [problem, entry] : t.problems) {
    out += fmt::format("  - problem: {}\n    use: {}\n", quoted(problem), quoted_name(entry.use));
    std::string times;
    for (const auto& [name, us] : entry.microseconds)
      times += fmt::format("{}{}: {:.2f}", times.empty() ? "" : ", ", quoted_name(name), us);
    if (!times.empty()) out += "    us: {" + times + "}\n";
  }
  return out;
}

std::string unknown_choice(const std::string& use) {
  return fmt::format("the tuning file wants {}, which this program does not have for it",
                     escape(use));
}

std::string machine_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

}  // namespace ferrule
