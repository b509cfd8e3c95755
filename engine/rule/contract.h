// A contract as its YAML file says it (rules/contracts): what kind of kernel, with which roles,
// what it computes of them and what it asks of them. Rules bind the roles (Rule::roles), or single
// nodes do that it stands for.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/base/key_doc.h"
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

/// A line of `stands_for`: nodes of these operators, alone, are the contract's. Operands and
/// results by position; what is there no name for is not asked about.
struct SingleNode {
  std::string label;
  std::vector<std::string> ops;  ///< "Conv", "com.microsoft::Gelu"
  std::vector<std::string> operands, results;
  bool variadic = false;  ///< the last operand's name is a list of all that are left
  Place place;
};

/// A name of `stages`: nodes under one of these contracts, each with its tail; kConversion: those
/// between integers and floats.
struct StageSpec {
  std::string name;
  bool list = false;  ///< any number of them, among those of other lists; else one, in this place
  std::vector<std::string> contracts;
};
inline constexpr std::string_view kConversion = "conversion";

/// How the generator writes a kernel of formulas (`generated`): what it cannot is a condition of
/// this name.
enum class Generated : uint8_t { none, boxes, rows };
std::string_view name(Generated g);

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
  std::vector<std::pair<std::string, ExprPtr>> let;  ///< for the conditions
  Pattern means;  ///< a replacement over the roles; none: what the nodes are
  std::vector<SingleNode> stands_for;
  bool tail = false;  ///< its kernels may take pointwise operators behind the node
  /// Made of layers of other contracts, each reading the result of the one before.
  std::vector<StageSpec> stages;
  /// Or of any nodes of these classes; a single one of the first is a layer of it.
  std::vector<std::string> nodes;
  Generated generated = Generated::none;
  /// How the results of its kernels may differ from `means` or the nodes: one of kNumerics. A rule
  /// that makes groups of it promises no more.
  std::string numerics = "exact";
  std::string file, text;
  std::string replaces;  ///< the file of an earlier folder that it replaces
  const ContractRole* role(std::string_view name) const;
};

/// Those of some rules directories; copies share them.
class Contracts {
 public:
  explicit Contracts(std::vector<std::shared_ptr<const Contract>> all);
  const std::vector<std::shared_ptr<const Contract>>& all() const { return all_; }
  std::vector<std::string> names() const;
  std::shared_ptr<const Contract> find(std::string_view id) const;  ///< null: it has no file
  struct Single {
    const Contract* contract = nullptr;  ///< null: none stands for the node
    const SingleNode* line = nullptr;
  };
  Single of(const Node& n) const;
  /// The contract under which the node runs on its own; null: it is interpreted.
  const Contract* alone(const Node& n, const Semantics& ops) const;

 private:
  std::vector<std::shared_ptr<const Contract>> all_;
  std::unordered_multimap<std::string_view, std::pair<std::string_view, Single>> by_op_;
};

/// Reads the whole document; what is wrong is recorded in `r`.
/// `known`: the contracts that there are.
Contract read_contract(yaml::Reader& r, const yaml::Document& doc,
                       const std::vector<std::string>& known);
std::span<const KeyDoc> contract_keys();
/// What the rule's roles lack or have too much for its contract: message and hint; empty: nothing.
std::pair<std::string, std::string> check_roles(const Rule& rule, const Contract& contract);

}  // namespace ferrule
