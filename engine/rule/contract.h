// A contract as its YAML file says it (rules/contracts): what kind of kernel, with which roles,
// what it computes of them and what it asks of them. Rules bind the roles (Rule::roles).
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/base/yaml.h"
#include "engine/rule/rule.h"

namespace ferrule {

struct ContractRole {
  std::string name;
  /// A run of axes comes first, as many as the value has more; broadcast between roles.
  bool run = false;
  std::vector<std::string> axes;  ///< the others, by name
  bool rest = false;              ///< a run of axes of its own comes last: "[N, C, S...]"
  bool optional = false, constant = false, result = false;
  /// Kernels take it as it lies: movements around it stay layers.
  bool whole = false;
  bool channels_last = false;  ///< and so laid out
  /// "[..., Q, D]?"
  std::string text() const;
};

struct Contract {
  std::string id, doc;
  std::vector<std::string> source;
  std::vector<ContractRole> roles;                      ///< results last
  std::vector<std::pair<std::string, double>> numbers;  ///< and what they are where no rule says it
  std::vector<std::string>
      formulas;  ///< of one operand: what a rule's match does from value to value
  /// Sound where `means` needs them, else of class kernel; names: roles, their axes as sizes,
  /// numbers.
  std::vector<Condition> conditions;
  Pattern means;  ///< a replacement over the roles
  std::string file, text;
  const ContractRole* role(std::string_view name) const;
};

/// Reads the whole document; what is wrong is recorded in `r`.
Contract read_contract(yaml::Reader& r, const yaml::Document& doc);
/// What the rule's roles lack or have too much for its contract: message and hint; empty: nothing.
std::pair<std::string, std::string> check_roles(const Rule& rule, const Contract& contract);

}  // namespace ferrule
