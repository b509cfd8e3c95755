// why: what became of a node, or why two nodes are not one layer, and what would change it.
#include <algorithm>
#include <iostream>

#include "engine/base/join.h"
#include "engine/rule/text.h"
#include "runtime/cli/why_text.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

struct Question {
  std::vector<std::string> nodes, pair;  ///< two nodes are a pair
  std::string node, rule;
  size_t top = 3;
  bool verbose = false;
};

/// Those that the leading reason does not name.
std::vector<why::Unlock> unsaid(std::vector<why::Unlock> all,
                                const std::vector<why::Considered>& considered) {
  if (!considered.empty())
    std::erase_if(all, [&](const why::Unlock& u) {
      return std::ranges::any_of(considered[0].unlocks,
                                 [&](const why::Unlock& said) { return said.text == u.text; });
    });
  return all;
}

void print_node(const why::Observed& o, const why::NodeAnswer& a, const Question& q) {
  std::cout << a.outcome.text << "\n";
  print_lead(a.considered, a.otherwise, "why not more: ");
  print_unlocks(unsaid(a.unlocks, a.considered), "rules that are off and would change this: ");
  print_steps(o, a.outcome);
  print_considered(a.considered, q.rule.empty() ? q.top : a.considered.size(),
                   q.verbose || !q.rule.empty());
  if (a.considered.empty() && !q.rule.empty())
    std::cout << fmt::format("{} fired here, and nothing of it was refused\n", q.rule);
}

/// One line a node: what it became, and the reason that leads.
void print_short(const why::NodeAnswer& a) {
  std::cout << a.outcome.text << "\n";
  print_lead(a.considered, a.otherwise, "    why not more: ");
}

Result<Exit> several(const Common& common, const AskedModel& model, why::Inquiry& inquiry,
                     const Question& q) {
  json nodes = json::array();
  size_t asked = 0;
  for (const std::string& name : inquiry.names()) {
    if (!glob_match(q.node, name)) continue;
    ++asked;
    FERRULE_ASSIGN(why::NodeAnswer a, inquiry.node(name, q.rule, 0));
    if (common.json)
      nodes.push_back(ferrule::to_json(model.observed, a));
    else
      print_short(a);
  }
  if (asked == 0 && q.node != "*")
    return error(Code::usage, "--node", fmt::format("no node matches {}", escape(q.node)));
  if (common.json) {
    json j = header(model);
    j["nodes"] = std::move(nodes);
    print_json(j);
  }
  return Exit::ok;
}

/// Of a rule alone: whether it fired, and where. Then, if this says true, comes the place where it
/// did not: of a rule that fired elsewhere, one that has all of its pattern.
bool print_fired(const std::vector<std::string>& made, const why::NodeAnswer& a,
                 const Question& q) {
  constexpr size_t kShown = 3;
  const why::Considered* c = a.considered.empty() ? nullptr : &a.considered[0];
  if (made.empty()) {
    std::cout << fmt::format("{} fired nowhere in this model", q.rule)
              << (c ? fmt::format("; it came furthest here, with {} of the {} of its pattern:\n",
                                  c->matched_nodes, counted(c->pattern_nodes, "node"))
                    : "\n");
    return true;
  }
  std::string where;
  for (size_t k = 0; k < made.size() && k < kShown; ++k)
    where += fmt::format("{}\"{}\"", k ? ", " : "", escape(made[k], 160));
  if (made.size() > kShown) where += fmt::format(" and {} more", made.size() - kShown);
  std::cout << fmt::format("{} fired {} in this model: {}\n", q.rule,
                           made.size() == 1 ? "once" : fmt::format("{} times", made.size()), where);
  if (!c) return true;
  if (c->state == why::Considered::State::refused &&
      c->rejection.stage == Rejection::Stage::structure) {
    std::cout << "no other nodes of the model are as its pattern wants them (--node N asks about "
                 "one)\n";
    return false;
  }
  std::cout << "elsewhere it did not; it came furthest here:\n";
  return true;
}

Result<Exit> one(const Common& common, const AskedModel& model, why::Inquiry& inquiry,
                 const Question& q) {
  FERRULE_ASSIGN(why::NodeAnswer a, inquiry.node(q.node, q.rule, kTries));
  const bool alone = q.nodes.empty();
  const std::vector<std::string> made =
      alone ? made_by(model.observed, q.rule) : std::vector<std::string>();
  if (common.json) {
    json j = header(model);
    if (alone) j["fired"] = names_json(made);
    j["nodes"] = json::array({to_json(model.observed, a)});
    print_json(j);
  } else {
    if (!alone || print_fired(made, a, q)) print_node(model.observed, a, q);
  }
  return Exit::ok;
}

Result<Exit> two(const Common& common, const AskedModel& model, why::Inquiry& inquiry,
                 const Question& q) {
  FERRULE_ASSIGN(why::PairAnswer a, inquiry.pair(q.pair[0], q.pair[1], q.rule, kTries));
  if (common.json) {
    json j = header(model);
    j["pair"] = ferrule::to_json(model.observed, a);
    print_json(j);
    return Exit::ok;
  }
  std::cout << a.text << "\n";
  const bool one_layer =
      a.kind == why::PairAnswer::Kind::same || a.kind == why::PairAnswer::Kind::apart;
  const bool gone = a.kind == why::PairAnswer::Kind::gone;
  print_unlocks(unsaid(a.unlocks, a.considered), "would make them one layer: ");
  print_lead(a.considered, a.otherwise, "why: ");
  if (a.considered.empty() && a.otherwise.empty() && !one_layer && !gone)
    std::cout << "why: no rule fuses such nodes\n";
  if (a.path.size() > 2) {
    std::cout << "  path       ";
    for (size_t k = 0; k < a.path.size(); ++k)
      if (k < 6 || k + 3 > a.path.size())
        std::cout << (k ? " -> " : "") << escape(a.path[k]);
      else if (k == 6)
        std::cout << " -> …";
    std::cout << "\n";
  }
  if (!one_layer && !gone)
    for (const why::Outcome* f : {&a.a, &a.b}) std::cout << "  " << f->text << "\n";
  print_considered(a.considered, q.rule.empty() ? q.top : a.considered.size(),
                   q.verbose || !q.rule.empty());
  return Exit::ok;
}

Result<Exit> body(const Common& common, Question q) {
  if (q.pair.empty() && q.nodes.size() == 2) q.pair = std::exchange(q.nodes, {});
  if (q.nodes.size() > 1 || (!q.nodes.empty() && !q.pair.empty()) ||
      (q.nodes.empty() && q.pair.empty() && q.rule.empty()))
    return error(Code::usage, "why",
                 "ask about one node (--node N), two (--pair A B) or a rule (--rule R)");
  // The program ends behind this: the graphs of all phases and trials are not taken apart first,
  // node by node.
  static const AskedModel* observed = nullptr;
  static why::Inquiry* kept = nullptr;
  FERRULE_ASSIGN(AskedModel made, observe_model(common));
  const AskedModel& model = *(observed = new AskedModel(std::move(made)));
  why::Inquiry& inquiry = *(kept = new why::Inquiry(model.observed));
  if (!q.pair.empty()) return two(common, model, inquiry, q);
  if (q.nodes.empty()) {
    auto nearest = nearest_node(model.observed, inquiry, q.rule);
    const std::vector<std::string> made = made_by(model.observed, q.rule);
    if (!nearest && made.empty()) return fail(std::move(nearest.error()));
    if (!nearest) {  // it took none of the model's own nodes
      if (!common.json) {
        print_fired(made, {}, q);
        return Exit::ok;
      }
      json j = header(model);
      j["fired"] = names_json(made);
      j["nodes"] = json::array();
      print_json(j);
      return Exit::ok;
    }
    q.node = *nearest;
  } else {
    q.node = q.nodes[0];
  }
  const bool pattern = q.node.find_first_of("*?") != std::string::npos && !inquiry.resolve(q.node);
  return pattern ? several(common, model, inquiry, q) : one(common, model, inquiry, q);
}

}  // namespace

void add_why(CLI::App& app, Common& common, int& exit) {
  auto* c =
      app.add_subcommand("why", "why a node, or two nodes, did not fuse, and what would change it");
  add_common(*c, common, true);
  auto q = std::make_shared<Question>();
  c->add_option("--node", q->nodes,
                "a node of the model, or the value it makes; a glob asks about several in short; "
                "given twice, it is --pair")
      ->allow_extra_args(false)
      ->type_name("NAME");
  c->add_option("--pair", q->pair, "why are these two not one layer?")
      ->expected(2)
      ->type_name("A B");
  c->add_option("--rule", q->rule, "only this rule; alone: where it came furthest")
      ->type_name("ID");
  c->add_option("--top", q->top, "how many rules to show in full")->type_name("K");
  c->add_flag("--verbose", q->verbose,
              "also each rule's pattern and conditions, as their files have them");
  c->footer(
      "Examples:\n  ferrule why model.onnx --node MaxPool_2\n  ferrule why model.onnx --node "
      "MaxPool_2 --rule conv_pool\n"
      "  ferrule why model.onnx --pair Conv_0 Conv_3\n  ferrule why model.onnx --node '*' --json");
  set_body(*c, common, exit, [q](const Common& o) { return body(o, *q); });
}

}  // namespace ferrule::cli
