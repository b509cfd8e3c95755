#include "runtime/cli/why_text.h"

#include <iostream>

#include "codegen/program/kernel_nodes.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;
using why::Considered;
using why::SeenLine;
using why::Unlock;

constexpr size_t kNames = 12;  // of the rules that are only named

std::string_view name(Unlock::Kind k) {
  constexpr std::string_view kNames[] = {"flag", "fact", "edit", "impossible"};
  return kNames[static_cast<size_t>(k)];
}
std::string_view name(Considered::State s) {
  constexpr std::string_view kNames[] = {"off", "lost", "refused"};
  return kNames[static_cast<size_t>(s)];
}
std::string_view name(SeenLine::State s) {
  constexpr std::string_view kNames[] = {"ok", "failed", "unseen"};
  return kNames[static_cast<size_t>(s)];
}
std::string_view name(why::Outcome::Kind k) {
  constexpr std::string_view kNames[] = {"layer", "constant", "folded", "removed", "nested"};
  return kNames[static_cast<size_t>(k)];
}
std::string_view name(Truth t) {
  return t == Truth::yes ? "true" : t == Truth::no ? "false" : "unknown";
}
std::string_view name(Rejection::Stage s) {
  constexpr std::string_view kNames[] = {"structure", "condition", "guarantee"};
  return kNames[static_cast<size_t>(s)];
}

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

json names_json(const std::vector<std::string>& names) {
  json out = json::array();
  for (const std::string& n : names) out.push_back(escape(n, 4096));
  return out;
}

json to_json(const Unlock& u) {
  json j{{"kind", name(u.kind)},
         {"text", escape(u.text, 4096)},
         {"because", escape(u.because, 4096)},
         {"tried", u.tried}};
  j["saves_bytes"] = u.saves;
  j["gives"] = u.gives.empty() ? json(nullptr) : json(escape(u.gives, 4096));
  return j;
}

json to_json(const std::vector<Unlock>& all) {
  json out = json::array();
  for (const Unlock& u : all) out.push_back(to_json(u));
  return out;
}

json to_json(const Considered& c) {
  json lines = json::array(), conditions = json::array();
  for (const SeenLine& l : c.lines)
    lines.push_back(
        {{"pattern", l.text}, {"state", name(l.state)}, {"nodes", names_json(l.nodes)}});
  for (const why::SeenCondition& s : c.conditions)
    conditions.push_back({{"id", s.id},
                          {"class", ferrule::name(s.cls)},
                          {"truth", name(s.truth)},
                          {"text", escape(s.text, 4096)},
                          {"detail", escape(s.detail, 4096)}});
  json j{{"rule", c.rule->id},
         {"reason", escape(why::reason(c), 4096)},
         {"bytes", c.bytes},
         {"kind", ferrule::name(c.rule->kind)},
         {"phase", c.rule->phase},
         {"enabled", c.rule->enabled},
         {"state", name(c.state)},
         {"matched_nodes", c.matched_nodes},
         {"pattern_nodes", c.pattern_nodes},
         {"passed_conditions", c.passed_conditions},
         {"total_conditions", c.total_conditions},
         {"nodes", names_json(c.nodes)},
         {"lines", lines},
         {"conditions", conditions},
         {"path", names_json(c.path)},
         {"unlock", to_json(c.unlocks)}};
  j["refused"] = nullptr;
  if (c.state == Considered::State::refused)
    j["refused"] = {{"by", c.rejection.id},
                    {"stage", name(c.rejection.stage)},
                    {"truth", name(c.rejection.truth)},
                    {"why", escape(c.rejection.why, 4096)},
                    {"hint", escape(c.rejection.hint, 4096)}};
  if (c.state == Considered::State::refused && c.rejection.stage == Rejection::Stage::condition)
    j["refused"]["class"] = ferrule::name(c.rejection.cls);
  j["taken_by"] = c.taken_by.empty() ? json(nullptr) : json(escape(c.taken_by, 4096));
  j["lost_to"] = c.lost_to.empty() ? json(nullptr) : json(escape(c.lost_to, 4096));
  j["history"] = c.history.empty() ? json(nullptr) : json(escape(c.history, 4096));
  return j;
}

json to_json(const why::Observed& o, const why::Outcome& f) {
  json layers = json::array(), steps = json::array();
  for (size_t k : f.layers) {
    const Layer& l = o.plan.layers[k];
    layers.push_back({{"name", escape(l.name, 4096)},
                      {"contract", l.contract},
                      {"rule", l.rule.empty() ? json(nullptr) : json(l.rule)},
                      {"nodes", names_json(l.nodes)}});
  }
  for (size_t k : f.steps) {
    const Step& s = o.fused.journal.steps[k];
    steps.push_back({{"step", k + 1},
                     {"phase", s.phase},
                     {"rule", s.rule.empty() ? json(nullptr) : json(s.rule)},
                     {"kind", s.kind},
                     {"text", escape(s.text, 4096)}});
  }
  return {{"name", escape(f.name, 4096)},
          {"op", f.op.empty() ? json(nullptr) : json(escape(f.op))},
          {"state", name(f.kind)},
          {"text", f.text},
          {"layers", layers},
          {"steps", steps}};
}

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
  return u.saves > 0
             ? out + fmt::format(", the model moves {} less through memory", bytes_text(u.saves))
             : out;
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
  std::cout << fmt::format("\n  also considered: {}   (--rule ID shows one)\n",
                           names);
}

json header(const AskedModel& model) {
  return {{"schema_version", kSchemaVersion},
          {"target", model.observed.plan.target},
          {"ranges", model.largest.empty() ? json(nullptr) : json{{"shown", model.largest}}}};
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
  FERRULE_ASSIGN(why::Observed o,
                 why::observe(std::move(imported), std::move(knowledge), std::move(options)));
  FERRULE_ASSIGN(const Lowered lowered,
                 lower(o.plan, o.knowledge->ops, o.knowledge->target, lower_options(common)));
  for (const LoweredLayer& layer : lowered.layers) {
    o.kernels.push_back(kernel_nodes(layer));
    o.apart.push_back(tail_apart(layer));
  }
  if (!largest.empty() && !common.json)
    std::cout << fmt::format("sizes in a range: this is for the largest, {}\n", largest);
  return AskedModel{std::move(o), largest};
}

}  // namespace ferrule::cli
