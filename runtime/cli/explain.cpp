// explain: which layers were fused, by which rule, how many kernels each is, and what nearly fused.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <map>
#include <set>
#include <variant>

#include "engine/base/contains.h"
#include "engine/base/join.h"
#include "engine/contract/region_pieces.h"
#include "engine/contract/roles.h"
#include "engine/graph/open_sizes.h"
#include "engine/graph/text.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/why/near_misses.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

const Rule* rule_of(const Explained& e, const std::string& id) {
  return id.empty() ? nullptr : e.knowledge->rules.find(id);
}

void print_overrides(const Explained& e) {
  const auto notes =
      override_notes(e.knowledge->rules, e.knowledge->overrides, e.knowledge->target);
  if (!notes.empty()) std::cout << "\noverrides, and where they stood in the way:\n";
  for (const OverrideNote& n : notes)
    std::cout << fmt::format("{:>7} {}\n",
                             n.condition.empty() ? "" : fmt::format("{} x", declined(e, n)),
                             escape(n.text, 400));
}

/// A layer, in whichever plan it is.
using LayerKey = std::pair<std::string, std::string>;  ///< its rule, its name
std::set<LayerKey> keys_of(const Plan& plan) {
  std::set<LayerKey> keys;
  for (const Layer& l : plan.layers) keys.emplace(l.rule.empty() ? "-" : l.rule, l.name);
  return keys;
}

/// What sizes in a range change. The plan that is shown is for the largest ones.
struct Ranges {
  std::string largest, smallest;  ///< as --shapes wants them; empty: there is no range
  size_t smallest_layers = 0;
  std::vector<LayerKey> only_smallest;  ///< layers of the plan for the smallest that are not shown
  std::vector<LayerKey> undecided;  ///< layers that are shown, and that open sizes do not decide
};

/// Plans for both ends and for open sizes; `common` is for the largest afterwards.
Result<Ranges> plan_ranges(Common& common) {
  Ranges out;
  const std::vector<std::string> given = common.shapes;
  FERRULE_ASSIGN(out.largest, take_largest(common));
  if (out.largest.empty()) return out;
  Common least = common, open = common;
  least.shapes.clear(), open.shapes.clear();
  for (const std::string& text : given) {
    NamedShapes high;
    FERRULE_ASSIGN(const NamedShapes low, parse_shapes(text, &high));
    for (size_t k = 0; k < low.size(); ++k) {
      least.shapes.push_back(shapes_text(low[k].first, low[k].second));
      if (low[k] == high[k]) {
        open.shapes.push_back(least.shapes.back());
        continue;
      }
      std::vector<std::optional<int64_t>>& known = open.partly_open[low[k].first];
      for (size_t axis = 0; axis < low[k].second.size(); ++axis)
        known.push_back(low[k].second[axis] == high[k].second[axis]
                            ? std::optional(low[k].second[axis])
                            : std::nullopt);
    }
  }
  out.smallest = fmt::format("{}", fmt::join(least.shapes, ","));
  FERRULE_ASSIGN(const auto most, explain_model(common, false));
  FERRULE_ASSIGN(const auto fewest, explain_model(least, false));
  FERRULE_ASSIGN(const auto any_size, explain_model(open, false));
  const std::set<LayerKey> shown = keys_of(most->plan), other = keys_of(fewest->plan),
                           sure = keys_of(any_size->plan);
  out.smallest_layers = fewest->plan.layers.size();
  std::ranges::set_difference(other, shown, std::back_inserter(out.only_smallest));
  std::ranges::set_difference(shown, sure, std::back_inserter(out.undecided));
  return out;
}

void print_ranges(const Ranges& r) {
  if (r.largest.empty()) return;
  const auto list = [](const std::vector<LayerKey>& layers) {
    for (const auto& [rule, name] : layers)
      std::cout << fmt::format("    {:<22} {}\n", rule, escape(name, 4096));
  };
  std::cout << fmt::format("sizes in a range: the layers are those for {}\n", r.largest);
  if (r.only_smallest.empty()) {
    std::cout << fmt::format("  the same for {}\n", r.smallest);
  } else {
    std::cout << fmt::format("  for {} there are {}, of them not among those shown:\n", r.smallest,
                             r.smallest_layers);
    list(r.only_smallest);
  }
  if (r.undecided.empty()) {
    std::cout << "  decided for all sizes between (whether the model takes each of them is not "
                 "checked)\n";
  } else {
    std::cout << "  not decided for all sizes between (a run plans for its own):\n";
    list(r.undecided);
  }
  std::cout << "\n";
}

json ranges_json(const Ranges& r) {
  if (r.largest.empty()) return nullptr;
  const auto list = [](const std::vector<LayerKey>& layers) {
    json out = json::array();
    for (const auto& [rule, name] : layers)
      out.push_back({{"rule", rule == "-" ? json() : json(rule)}, {"name", escape(name, 4096)}});
    return out;
  };
  return {{"shown", r.largest},
          {"smallest", r.smallest},
          {"only_smallest", list(r.only_smallest)},
          {"undecided", list(r.undecided)}};
}

int kernels_of(const Plan& plan) {
  int kernels = 0;
  for (const Layer& l : plan.layers) kernels += l.kernels;
  return kernels;
}

/// "q = a[0, 1, 2], k = b[0, 1, 2], act = Relu_1".
std::string roles_text(const Graph& g, NodeId id) {
  const Node& n = g.node(id);
  std::vector<std::string> roles;
  for (const auto& [name, t] : n.roles->tensors)
    roles.push_back(name + " = " + operand_text(g, n, t));
  for (const auto& [name, f] : n.roles->formulas) roles.push_back(name + " = " + formula_text(*f));
  return fmt::format("{}", fmt::join(roles, ", "));
}

/// Contracts with a kernel of their own on CPUs; on GPUs, and of other contracts, `Work` has a word
/// for all that there are.
constexpr std::string_view kOwnKernels[] = {
#define FERRULE_OWN_KERNEL(contract, factory) contract,
#include "runtime/cpu_kernels.def"
#undef FERRULE_OWN_KERNEL
};

/// A group of a contract that a rules folder adds to its targets without a kernel.
bool lacks_kernel(const Explained& e, size_t layer) {
  const Layer& l = e.plan.layers[layer];
  if (!l.node || !e.plan.graph.node(l.node).body) return false;
  const bool own = e.knowledge->target.device == "cpu" && contains(kOwnKernels, l.contract);
  return !own && std::ranges::any_of(e.lowered.layers[layer].launches, [](const Launch& a) {
    return a.kind == Launch::Kind::library && a.work == Work::own;
  });
}

std::vector<std::string> interpreted_layers(const Explained& e) {
  std::vector<std::string> out;
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    if (e.plan.layers[k].contract == "interpret" || lacks_kernel(e, k))
      out.push_back(escape(e.plan.layers[k].name));
  return out;
}

void print_layers(const Explained& e, const Ranges& ranges) {
  const size_t interpreted = interpreted_layers(e).size();
  const Graph& g = e.plan.graph;
  const bool open = std::ranges::any_of(g.inputs(), [&](ValueId v) {
    const auto& shape = g.value(v).type.shape;
    return !shape || !constant_shape(*shape);
  });
  std::cout << fmt::format(
      "{} -> {}, {}{}, planned for {}{}\n", counted(e.model_nodes, "node"),
      counted(e.plan.layers.size(), "layer"), counted(kernels_of(e.plan), "kernel"),
      interpreted ? fmt::format(" ({} interpreted{})", interpreted,
                                open ? " as long as sizes are open" : "")
                  : "",
      e.plan.target, e.profile() == "ferrule" ? "" : ", profile " + e.profile());
  if (const std::string sizes = sizes_text(e); !sizes.empty()) std::cout << sizes << "\n";
  std::cout << "\n";
  print_ranges(ranges);
  size_t contract = 11, rule = 22;
  for (const Layer& l : e.plan.layers)
    contract = std::max(contract, l.contract.size()), rule = std::max(rule, l.rule.size());
  std::cout << fmt::format("{:>4} {:>7}  {:<{}} {:<{}} {}\n", "#", "kernels", "contract", contract,
                           "rule", rule, "layer");
  for (size_t k = 0; k < e.plan.layers.size(); ++k) {
    const Layer& l = e.plan.layers[k];
    const std::string apart = tail_apart(e.lowered.layers[k]);
    std::cout << fmt::format("{:>4} {:>7}  {:<{}} {:<{}} {}{}{}{}\n", k, l.kernels, l.contract,
                             contract, l.rule.empty() ? "-" : l.rule, rule, escape(l.name, 100'000),
                             l.numerics.empty() ? "" : "   numerics: " + l.numerics,
                             apart.empty() ? "" : "   tail apart: " + apart,
                             lacks_kernel(e, k) ? "   interpreted: no kernel" : "");
    if (const auto steps = e.plan.nested.find(l.node); steps != e.plan.nested.end())
      for (const NestedPlan& n : steps->second)
        std::cout << fmt::format("{:>26}{}: {}, {} each time\n", "", n.attribute,
                                 counted(n.plan->layers.size(), "layer"),
                                 counted(kernels_of(*n.plan), "kernel"));
    if (l.node && e.plan.graph.node(l.node).roles)
      std::cout << fmt::format("{:>26}{}\n", "", roles_text(e.plan.graph, l.node));
  }
}

void print_rules(const Explained& e) {
  const std::map<std::string, int> hits = e.fused.journal.fired();
  if (hits.empty()) return;
  std::cout << "\nrules that fired:\n";
  for (const auto& [id, count] : hits) {
    const Rule* r = rule_of(e, id);
    std::cout << fmt::format("{:>5} x {:<24} {}{}\n", count, id,
                             e.knowledge->unproved.contains(id) ? "NOT PROVED: " : "",
                             r ? r->doc : "");
    if (r && !r->source.empty())
      std::cout << fmt::format("{:>33} source: {}\n", "", fmt::join(r->source, "; "));
  }
}

constexpr size_t kRepeated = 80;  // letters of a reason that is said once

/// Every refusal that came to nothing else, one line for each rule and condition.
void print_near_misses(const Explained& e, size_t most) {
  const std::vector<why::NearMiss> all = why::near_misses(e.fused, e.plan.graph);
  if (all.empty()) return;
  std::set<std::string> nodes;
  for (const why::NearMiss& m : all) nodes.insert(m.nodes.begin(), m.nodes.end());
  std::cout << fmt::format("\nnear misses ({}):\n", counted(nodes.size(), "node"));
  std::map<std::string_view, std::string> said;  // long texts -> the rule that they were said of
  for (size_t k = 0; k < all.size() && k < most; ++k) {
    const Rejection& r = *all[k].first;
    const auto [before, first] = said.try_emplace(r.why, r.rule->id);
    const bool again = !first && r.why.size() > kRepeated;
    const std::string at = all[k].nodes.size() == 1 ? "" : ", the first " + escape(all[k].nodes[0]);
    std::cout << fmt::format("{:>5} x {} ({}{}): {}\n", all[k].nodes.size(), r.rule->id, r.id, at,
                             again ? "as for " + before->second : r.why);
  }
  if (all.size() > most)
    std::cout << fmt::format(
        "        {} more {} (--json lists them; ferrule why MODEL --node N "
        "asks about one)\n",
        all.size() - most, all.size() - most == 1 ? "kind" : "kinds");
}

/// The phases' lines; without `all` only where the number of layers changed.
void print_phases(const Explained& e, bool all) {
  int last = static_cast<int>(e.model_nodes);
  for (const std::string& p : e.fused.journal.phases) {
    int layers = phase_to_json(p)["layers"].get<int>();
    if (all || layers != last) std::cout << p << "\n";
    last = layers;
  }
}

std::string region_text(const LoweredRegion& region) {
  std::string out;
  if (!region.pieced) out += to_text(region.program) + "\n";
  for (size_t k = 0; k < region.programs.size(); ++k)
    out += fmt::format("program {}:\n{}", k, to_text(region.programs[k]));
  return region.pieced ? out + pieces_text(region) + "\n" : out;
}

/// Layer by layer, what its generated kernels compute.
template <class Use>
void each_program(const Explained& e, const Use& use) {
  for (size_t k = 0; k < e.plan.layers.size(); ++k)
    for (const Launch& l : e.lowered.layers[k].launches)
      if (l.rows)
        use(e.plan.layers[k], to_text(split_rows(*l.rows, true)) + "\n");
      else if (l.region)
        use(e.plan.layers[k], region_text(*l.region));
}

void print_stage(const Explained& e, const std::string& stage, bool as_json) {
  json j{{"schema_version", kSchemaVersion}, {"target", e.plan.target}, {"stage", stage}};
  if (stage == "graph") {
    if (!as_json) return void(std::cout << to_text(e.plan.graph) << "\n");
    j["text"] = to_text(e.plan.graph);
  } else if (stage == "kernels") {
    j["programs"] = json::array();
    bool none = true;
    each_program(e, [&](const Layer& l, const std::string& text) {
      if (as_json)
        j["programs"].push_back({{"layer", escape(l.name, 4096)}, {"text", text}});
      else
        std::cout << escape(l.name) << "\n" << text;
      none = false;
    });
    if (none) talk("no layer has a generated kernel; the libraries' calls are in --stage launches");
    if (!as_json) return;
  } else {  // journal
    json phases = json::array(), steps = json::array();
    for (const std::string& p : e.fused.journal.phases) phases.push_back(phase_to_json(p));
    for (const Step& s : e.fused.journal.steps)
      steps.push_back(
          {{"kind", s.kind}, {"phase", s.phase}, {"rule", s.rule}, {"text", escape(s.text, 4096)}});
    j["phases"] = std::move(phases), j["steps"] = std::move(steps);
  }
  print_json(j);
}

struct Asked {
  std::string stage;
  bool log = false;
  InputOptions inputs;
};

/// The shapes of the tensors that the files hold.
Status take_shapes(Common& common, const InputOptions& inputs) {
  FERRULE_ASSIGN(const Tensors given, read_inputs(inputs));
  for (const auto& [name, t] : given) common.input_shapes[name] = t.dims();
  return {};
}

Status none_interpreted(const Explained& e) {
  const std::vector<std::string> names = interpreted_layers(e);
  if (names.empty()) return {};
  return fail(required(Refusal(
      not_applicable(e.plan.target, fmt::format("{}", fmt::join(names, ", ")), "it is interpreted")
          .value())));
}

Result<Exit> body(const Common& given, const Asked& asked) {
  Common common = given;
  const std::string& stage = asked.stage;
  FERRULE_TRY(take_shapes(common, asked.inputs));
  FERRULE_ASSIGN(const Ranges ranges, plan_ranges(common));
  if (stage == "memory") return explain_memory(common);
  if (stage == "launches") return explain_launches(common);
  // The program ends behind this: the plan of a million nodes is not taken apart first, node by
  // node.
  static const Explained* kept = nullptr;
  FERRULE_ASSIGN(auto explained, explain_model(common, stage.empty()));
  const Explained& e = *(kept = explained.release());
  for (const std::string& w : e.fused.warnings) talk("warning: " + w);
  if (stage == "graph" || stage == "kernels" || (stage == "journal" && common.json)) {
    print_stage(e, stage, common.json);
    return Exit::ok;
  }
  if (common.json) {
    JsonStream out(std::cout);
    write_explained(e, ranges_json(ranges), out);
  } else {
    for (const std::string& note : e.fused.notes) std::cout << "note: " << note << "\n";
    const bool log = asked.log || stage == "journal";
    if (log)
      for (const Step& s : e.fused.journal.steps)
        std::cout << fmt::format("[{}] {}\n", s.phase, escape(s.text, 100'000));
    print_phases(e, log);
    if (stage == "journal") return Exit::ok;
    print_layers(e, ranges);
    print_rules(e);
    print_overrides(e);
    print_near_misses(e, 12);
  }
  FERRULE_TRY(runnable(e.plan, e.knowledge->ops));  // as run does
  if (common.no_interpreter) FERRULE_TRY(none_interpreted(e));
  return Exit::ok;
}

}  // namespace

void add_explain(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("explain", "fused layers, each with its rule; what nearly fused");
  add_common(*c, common, true);
  auto asked = std::make_shared<Asked>();
  add_inputs(*c, asked->inputs);
  c->add_option("--stage", asked->stage,
                "print an artefact instead: graph, journal, kernels, launches, memory (prepared "
                "for this machine)")
      ->check(CLI::IsMember({"graph", "journal", "kernels", "launches", "memory"}));
  c->add_flag("--log", asked->log, "also every single fusion, in order");
  c->footer(
      "Examples:\n  ferrule explain model.onnx\n  ferrule explain model.onnx --shapes "
      "x:1x3x192x256 --json\n"
      "  ferrule explain model.onnx --shapes x:1..8x3x192x256\n"
      "  ferrule explain model.onnx --target sm_90 --disable 'conv_*'\n"
      "  ferrule explain model.onnx --shapes x:1x3x192x256 --stage memory\n"
      "  ferrule explain model.onnx --shapes x:1x3x192x256 --target sm_90 --stage launches");
  set_body(*c, common, exit, [asked](const Common& o) { return body(o, *asked); });
}

}  // namespace ferrule::cli
