// missed: what still goes through memory between layers, the most bytes first, and why.
#include <iostream>
#include <map>

#include "engine/base/join.h"
#include "runtime/cli/why_text.h"

namespace ferrule::cli {
namespace {

constexpr size_t kRepeated = 160;  // letters of a reason that is said once

void print(const why::Missed& all, const std::string& assumed) {
  if (!assumed.empty())
    std::cout << fmt::format("bytes are for {} (pass --shapes for other sizes)\n", assumed);
  std::map<std::string, std::string> said;  // reasons -> the edge that they were said of
  for (const why::MissedEdge& e : all.edges) {
    const std::string edge = escape(e.producer) + " -> " + escape(e.consumer);
    std::cout << fmt::format("{:>10}  {}   {} {}\n", bytes_text(e.bytes), edge, escape(e.value),
                             e.sized);
    std::string reason = fmt::format("            {}\n", escape(e.reason, 600));
    if (!e.unlocks.empty() && e.unlocks[0].kind != why::Unlock::Kind::impossible)
      reason += fmt::format("            to change it: {}\n", unlock_text(e.unlocks[0]));
    const auto [before, first] = said.try_emplace(reason, edge);
    const bool again = !first && reason.size() > kRepeated;
    std::cout << (again ? fmt::format("            as for {}\n", before->second) : reason);
  }
  std::cout << fmt::format("{} of {} between layers", all.edges.size(), counted(all.all, "edge"));
  if (all.edges.size() < all.all) std::cout << fmt::format(" (--top {} shows all)", all.all);
  if (all.copies)
    std::cout << fmt::format("; {} layout cop{} between them", all.copies,
                             all.copies == 1 ? "y" : "ies");
  if (all.views)
    std::cout << "; " << counted(all.views, "view") << " between them, where nothing is copied";
  if (all.placed)
    std::cout << "; not listed: " << counted(all.placed, "tensor")
              << " stored inside another tensor";
  std::cout << "\n";
}

}  // namespace

void add_missed(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand(
      "missed", "the tensors that go through memory between layers, by bytes, and why");
  add_common(*c, common, true);
  auto top = std::make_shared<size_t>(20);
  c->add_option("--top", *top, "how many")->type_name("K");
  c->footer(
      "Examples:\n  ferrule missed model.onnx\n  ferrule missed model.onnx --shapes x:1x3x224x224 "
      "--top 5\n"
      "  ferrule missed model.onnx --target sm_90 --json");
  set_body(*c, common, exit, [top](const Common& common) -> Result<Exit> {
    FERRULE_ASSIGN(const AskedModel model, observe_model(common));
    why::Inquiry inquiry(model.observed);
    const why::Missed all = inquiry.missed(*top, kTriesOfMissed);
    if (common.json) {
      nlohmann::json j = header(model);
      j.update(ferrule::to_json(all, inquiry.assumed()));
      print_json(j);
    } else {
      print(all, inquiry.assumed());
    }
    return Exit::ok;
  });
}

}  // namespace ferrule::cli
