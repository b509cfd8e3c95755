// Groups as rules make them, for tests of kernels: roles come with them.
#pragma once
#include <doctest/doctest.h>

#include <deque>
#include <memory>

#include "engine/plan/match_any.h"
#include "engine/rule/load.h"
#include "engine/target/target.h"
#include "tests/support/paths.h"
#include "tests/unit/codegen/shipped_operators.h"

namespace ferrule::test {

/// The node of the group that the shipped rule makes of `g`, in a copy of it that stays: values
/// have the same ids there.
inline const Node& group_by(const std::string& rule, const Graph& g,
                            const std::string& target_name = "sm_90") {
  static const Limits limits;
  static const std::string dirs[] = {rules_dir()};
  const Target target = *load_target(dirs, target_name);
  static const RuleSet shipped = *load_rules(dirs, operators(), {}, limits);
  static std::deque<std::unique_ptr<Graph>> graphs;
  const Rule* wanted = shipped.find(rule);
  REQUIRE(wanted);
  RuleSet alone;
  alone.phases.push_back({wanted->phase, "", true, {}});
  alone.rules.push_back(std::make_shared<Rule>(*wanted));
  Graph& copy = *graphs.emplace_back(g.clone());
  Journal journal;
  std::vector<Rejection> misses;
  PhaseContext ctx{{copy, operators(), limits, journal}, alone, &target};
  ctx.near_misses = &misses;
  const Status status = group_phase(ctx, wanted->phase);
  REQUIRE_MESSAGE(status.has_value(), (status ? "" : render(status.error())));
  const auto nodes = copy.order();
  REQUIRE_MESSAGE(nodes.size() == 1, (misses.empty() ? "" : misses[0].why));
  return copy.node(nodes[0]);
}

}  // namespace ferrule::test
