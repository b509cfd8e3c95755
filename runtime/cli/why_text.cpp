#include "runtime/cli/why_text.h"

#include <iostream>

namespace ferrule::cli {
namespace {

using why::Considered;
using why::SeenLine;
using why::Unlock;

constexpr size_t kNames = 12;  // of the rules that are only named

std::string safe(const std::string& text, size_t most = 600) { return escape(text, most); }
std::string list(const std::vector<std::string>& names, std::string_view between, size_t most = 8) {
  std::string out;
  for (size_t k = 0; k < names.size() && k < most; ++k)
    out += (k ? std::string(between) : "") + safe(names[k]);
  return names.size() > most ? out + fmt::format("{}… ({} more)", between, names.size() - most)
                             : out;
}

void print_line(const SeenLine& l, const Considered& c) {
  std::string end = l.state == SeenLine::State::failed ? safe(c.rejection.why)
                    : l.state == SeenLine::State::ok
                        ? (l.nodes.empty() ? "ok" : list(l.nodes, ", ", 4) + "  ok")
                        : "not reached";
  std::cout << fmt::format("    match      {:<46} {}\n", safe(l.text), end);
}

void print_one(const Considered& c, bool verbose) {
  std::cout << fmt::format("\n  {}: {}\n", c.rule->id, escape(c.rule->doc, 400));
  std::cout << "    " << safe(why::reason(c)) << "\n";
  if (c.bytes > 0) std::cout << fmt::format("    could save {}\n", bytes_text(c.bytes));
  if (c.state == Considered::State::refused && !c.taken_by.empty() && !c.history.empty())
    std::cout << "    history    " << safe(c.history) << "\n";
  if (verbose) {
    for (const SeenLine& l : c.lines) print_line(l, c);
    for (const why::SeenCondition& s : c.conditions)
      std::cout << fmt::format("    {:<10} {:<28} {}{}\n", ferrule::name(s.cls), s.id,
                               s.truth == Truth::yes ? "holds" : safe(s.text),
                               s.detail.empty() ? "" : "   [" + safe(s.detail) + "]");
  } else {
    // The first is in the reason; a further one would be next in the way.
    bool first = true;
    for (const why::SeenCondition& s : c.conditions)
      if (s.truth != Truth::yes && !std::exchange(first, false))
        std::cout << fmt::format("    and then: {}\n", safe(s.text));
  }
  if (!c.path.empty()) std::cout << "    path       " << list(c.path, " -> ") << "\n";
  print_unlocks(c.unlocks, "    to change it: ");
}

}  // namespace

std::string bytes_text(int64_t bytes) {
  if (bytes < 0) return "?";
  if (bytes < 10 * 1024) return fmt::format("{} B", bytes);
  if (bytes < 10 * 1024 * 1024) return fmt::format("{:.0f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024 * 1024));
}

std::string unlock_text(const Unlock& u) {
  std::string out = safe(u.text);
  if (!u.because.empty()) out += " (" + safe(u.because) + ")";
  if (!u.tried) return out;
  if (u.gives.empty()) return out + "; tried: the rule fires, but the layer stays the same";
  out += fmt::format("; tried: layer \"{}\"", safe(u.gives, 160));
  if (u.saves == 0) return out;
  return out + fmt::format(", {} {} to read and write in all", bytes_text(std::abs(u.saves)),
                           u.saves > 0 ? "less" : "more");
}

void print_unlocks(const std::vector<Unlock>& all, const std::string& before) {
  const std::string indent(before.size(), ' ');
  for (size_t k = 0; k < all.size(); ++k)
    std::cout << (k ? indent + "or " : before) << unlock_text(all[k]) << "\n";
}

void print_lead(const std::vector<Considered>& all, const std::string& otherwise,
                const char* label) {
  if (all.empty()) {
    if (!otherwise.empty()) std::cout << label << otherwise << "\n";
    return;
  }
  const Considered& c = all[0];
  std::cout << label << safe(why::reason(c));
  if (c.bytes > 0) std::cout << fmt::format(" (could save {})", bytes_text(c.bytes));
  std::cout << "\n";
  if (all.size() > 1 && all[1].level) std::cout << "or: " << safe(why::reason(all[1])) << "\n";
  print_unlocks(c.unlocks, "to change it: ");
}

void print_steps(const why::Observed& o, const why::Outcome& f) {
  for (size_t k : f.steps) {
    const Step& s = o.fused.journal.steps[k];
    std::cout << fmt::format("  step {:<4} {:<13} {}\n", k + 1, s.phase, safe(s.text, 160));
  }
}

void print_considered(const std::vector<Considered>& all, size_t most, bool verbose) {
  // The first has been said.
  for (size_t k = verbose ? 0 : 1; k < all.size() && k < most; ++k) print_one(all[k], verbose);
  if (all.size() <= most) return;
  std::string names;
  for (size_t k = most; k < all.size() && k < most + kNames; ++k)
    names += (names.empty() ? "" : ", ") + all[k].rule->id;
  if (all.size() > most + kNames) names += fmt::format(" and {} more", all.size() - most - kNames);
  std::cout << fmt::format("\n  also considered: {}   (--rule ID shows one)\n", names);
}

nlohmann::json header(const AskedModel& model) {
  return {{"schema_version", kSchemaVersion},
          {"target", model.observed.plan.target},
          {"ranges",
           model.largest.empty() ? nlohmann::json() : nlohmann::json{{"shown", model.largest}}}};
}

Result<AskedModel> observe_model(const Common& given) {
  Common common = given;
  FERRULE_ASSIGN(const std::string largest, take_largest(common));
  FERRULE_ASSIGN(EngineOptions options, engine_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  ImportOptions import;
  import.limits = &options.limits;
  import.overridable = options.overridable;
  import.own_origins = true;
  import.ops = &knowledge->ops;
  FERRULE_ASSIGN(Imported imported, import_file(common.model, import));
  FERRULE_ASSIGN(why::Observed o, observe(std::move(imported), std::move(knowledge),
                                          std::move(options), lower_options(common)));
  if (!largest.empty() && !common.json)
    std::cout << fmt::format("sizes in a range: this is for the largest, {}\n", largest);
  return AskedModel{std::move(o), largest};
}

}  // namespace ferrule::cli
