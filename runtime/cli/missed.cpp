// missed: what still goes through memory between layers, the most bytes first, and why.
#include <iostream>

#include "runtime/cli/why_text.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

std::string bytes_text(int64_t bytes) {
  if (bytes < 0) return "?";
  if (bytes < 10 * 1024) return fmt::format("{} B", bytes);
  if (bytes < 10 * 1024 * 1024) return fmt::format("{:.0f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1024 * 1024));
}

json to_json(const why::Observed& o, const std::vector<why::MissedEdge>& all) {
  json edges = json::array();
  for (const why::MissedEdge& e : all)
    edges.push_back({{"from", escape(e.from, 4096)}, {"to", escape(e.to, 4096)}, {"producer", escape(e.producer, 4096)},
                     {"consumer", escape(e.consumer, 4096)}, {"value", escape(e.value, 4096)}, {"type", e.type},
                     {"bytes", e.bytes < 0 ? json(nullptr) : json(e.bytes)}, {"rule", e.rule.empty() ? json(nullptr) : json(e.rule)},
                     {"class", e.cls}, {"reason", escape(e.reason, 4096)}, {"unlock", cli::to_json(e.unlocks)}});
  return {{"schema_version", kSchemaVersion}, {"target", o.plan.target}, {"edges", edges}};
}

void print(const std::vector<why::MissedEdge>& all) {
  bool open = false;
  for (const why::MissedEdge& e : all) {
    std::cout << fmt::format("{:>10}  {} -> {}   {} {}\n", bytes_text(e.bytes), escape(e.producer), escape(e.consumer), escape(e.value), e.type);
    std::cout << fmt::format("            {}: {}\n", e.rule.empty() ? "no rule" : fmt::format("{} [{}]", e.rule, e.cls), escape(e.reason, 300));
    if (!e.unlocks.empty() && e.unlocks[0].kind != why::Unlock::Kind::impossible)
      std::cout << fmt::format("            would unlock it: {}\n", escape(e.unlocks[0].text));
    open |= e.bytes < 0;
  }
  if (all.empty()) std::cout << "every edge between two layers is between layers that compute more than they move\n";
  if (open) std::cout << "sizes that are not known count as nothing here: pass --shapes\n";
}

}  // namespace

void add_missed(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("missed", "what still goes through memory between layers, by bytes, and why");
  add_common(*c, common, true);
  auto top = std::make_shared<size_t>(20);
  c->add_option("--top", *top, "how many")->type_name("K");
  c->footer("Examples:\n  ferrule missed model.onnx\n  ferrule missed model.onnx --shapes x:1x3x224x224 --top 5\n"
            "  ferrule missed model.onnx --target sm_90 --json");
  set_body(*c, common, exit, [top](const Common& common) -> Result<Exit> {
    FERRULE_ASSIGN(why::Observed o, observe_model(common));
    const std::vector<why::MissedEdge> all = why::Inquiry(o).missed(*top);
    if (common.json) print_json(to_json(o, all));
    else print(all);
    return Exit::ok;
  });
}

}  // namespace ferrule::cli
