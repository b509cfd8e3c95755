#include "engine/rule/contract.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/rule_version.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/role_specs.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

constexpr std::string_view kTextsMap =
    R"({"type":"object","additionalProperties":{"anyOf":[{"type":"string"},{"type":"array","items":{"type":"string"}}]}})";
constexpr KeyDoc kKeys[] = {
    {"ferrule", R"({"enum":[1,2]})", "the version of the rule language"},
    {"contract", kText, "the file's name"},
    {"doc", kText, "what its kernels compute, in a sentence"},
    {"source", kTexts, "where it comes from: papers, links"},
    {"roles", kTextMap, "operands and their axes: \"[B..., Q, D]\"; ? may be absent, ! constant"},
    {"results", kTextMap, "the same of results; ? may be one that nobody reads"},
    {"reads",
     R"({"type":"object","additionalProperties":{"enum":["strided","whole","channels_last"]}})",
     "how kernels take a role"},
    {"numbers",
     R"({"type":"object","additionalProperties":{"type":["number","boolean","string"]}})",
     "numbers and truth values that rules give, and what they are where none does"},
    {"formulas", kTexts, "pointwise, of one operand: what a match does from value to value"},
    {"let", kTextMap, "named expressions for the conditions"},
    {"requires", R"({"type":"array","items":{"$ref":"#/$defs/condition"}})",
     "sound: its meaning needs it; kernel: its kernels do"},
    {"means", kText, "what it computes, as a replacement over the roles"},
    {"numerics", R"({"enum":["exact","signed_zero","reassociating","approximate","reduced"]})",
     "how its kernels' results may differ from that; rules promise no more"},
    {"stands_for", kTexts, "single nodes that are its layers: y = Conv<...>(x, W, b?)"},
    {"tail", R"({"const":"@pointwise"})", "kernels may take pointwise operators behind the node"},
    {"stages", kTextsMap, "layers of other contracts that it is made of, in order, or lists..."},
    {"nodes", kTexts, "or classes of nodes; a single one of the first is a layer of it"},
    {"generated", R"({"enum":["boxes","rows"]})", "how the generator writes the kernel of `nodes`"},
};
constexpr std::string_view kGenerated[] = {"none", "boxes", "rows"};

class ContractReader {
 public:
  ContractReader(yaml::Reader& r, const yaml::Node& root, const std::vector<std::string>& known)
      : r_(r), root_(root), known_(known) {}

  Contract run() {
    c_.file = r_.source().name, c_.text = r_.source().text;
    c_.id = std::filesystem::path(c_.file).stem().string();
    if (!r_.expect(root_, yaml::Node::Kind::map, "a contract")) return c_;
    r_.keys(root_, kKeys);
    check_version(r_, root_);
    if (const yaml::Node* n = r_.required(root_, "contract"); n && r_.string(*n) != c_.id)
      bad(*n, fmt::format("the file is called {}", escape(c_.id)),
          "a contract's name is its file's");
    if (const yaml::Node* n = r_.required(root_, "doc")) c_.doc = r_.string(*n);
    if (const yaml::Node* n = root_.find("source")) c_.source = r_.strings(*n);
    if (const yaml::Node* n = root_.find("numerics")) c_.numerics = r_.one_of(*n, kNumerics);
    const yaml::Node* nodes = root_.find("nodes");
    if (nodes) read_nodes(*nodes);
    if (const yaml::Node* n = root_.find("generated"); n && !nodes)
      bad(*n, "generated says how the kernel of `nodes` is written, and the contract has none",
          "write nodes, or leave it out");
    for (const char* key : {"roles", "results"})
      if (const yaml::Node* n = nodes ? root_.find(key) : r_.required(root_, key))
        read_tensors(*n, key == std::string_view("results"));
    if (const yaml::Node* n = root_.find("reads")) read_forms(*n);
    if (const yaml::Node* n = root_.find("numbers")) read_numbers(*n);
    if (const yaml::Node* n = root_.find("formulas"))
      for (const std::string& name : r_.strings(*n)) {
        if (c_.role(name) || std::ranges::count(c_.formulas, name))
          bad(*n, fmt::format("two roles are called {}", escape(name)));
        c_.formulas.push_back(name);
      }
    if (const yaml::Node* n = root_.find("stands_for")) read_single_nodes(*n);
    if (const yaml::Node* n = root_.find("stages")) read_stages(*n);
    if (const yaml::Node* n = root_.find("let")) read_let(*n);
    if (const yaml::Node* n = root_.find("requires")) read_conditions(*n);
    if (const yaml::Node* n = root_.find("tail"))
      c_.tail = r_.one_of(*n, {"@pointwise"}) == "@pointwise";
    if (c_.tail && c_.stands_for.empty())
      bad(*root_.find("tail"), "a tail follows the node of a contract that has stands_for",
          "leave it out: `means` says all that kernels of roles compute");
    const bool own = c_.stands_for.empty() && c_.stages.empty() && c_.nodes.empty();
    if (const yaml::Node* n = own ? r_.required(root_, "means") : root_.find("means"))
      read_meaning(*n);
    return std::move(c_);
  }

 private:
  void bad(const yaml::Node& at, std::string message, std::string hint = {}) {
    r_.error(at, std::move(message), std::move(hint), Code::rule_invalid);
  }

  bool fresh(const yaml::Node& key) {
    auto first = [](auto& named) { return named.first; };
    const bool used = c_.role(key.text) || std::ranges::count(c_.formulas, key.text) ||
                      std::ranges::count(c_.numbers, key.text, first) ||
                      std::ranges::count(c_.let, key.text, first) ||
                      std::ranges::count(c_.stages, key.text, &StageSpec::name);
    if (used) bad(key, fmt::format("two roles are called {}", escape(key.text)));
    return !used;
  }

  void read_tensors(const yaml::Node& map, bool result) {
    if (!r_.expect(map, yaml::Node::Kind::map, "roles and their axes")) return;
    for (const auto& [key, value] : map.entries) {
      if (!r_.expect(value, yaml::Node::Kind::scalar, "the axes of a role") || !fresh(key))
        continue;
      ContractRole role;
      role.name = key.text, role.result = result;
      std::string_view t = value.text;
      for (; t.ends_with('?') || (t.ends_with('!') && !result); t.remove_suffix(1))
        (t.back() == '?' ? role.optional : role.constant) = true;
      auto axes = axis_names(t);
      if (!axes) {
        bad(value, fmt::format("\"{}\" is no list of axes", escape(value.text)),
            "write \"[B..., Q, D]\", with ? behind it where the role may be absent, ! where it is "
            "constant");
        continue;
      }
      if (!axes->empty() && axes->front().ends_with("...")) {
        role.run = true;
        axes->erase(axes->begin());
      } else if (!axes->empty() && axes->back().ends_with("...")) {
        role.rest = true;
        axes->pop_back();
      }
      role.axes = std::move(*axes);
      c_.roles.push_back(std::move(role));
    }
  }

  void read_forms(const yaml::Node& map) {
    if (!r_.expect(map, yaml::Node::Kind::map, "roles and how kernels read them")) return;
    for (const auto& [key, value] : map.entries) {
      auto role = std::ranges::find(c_.roles, key.text, &ContractRole::name);
      if (role == c_.roles.end())
        bad(key, fmt::format("no role is called {}", escape(key.text)));
      else if (const std::string form = r_.one_of(value, {"strided", "whole", "channels_last"});
               form != "strided")
        role->whole = true, role->channels_last = form == "channels_last";
    }
  }

  void read_numbers(const yaml::Node& map) {
    if (!r_.expect(map, yaml::Node::Kind::map, "numbers and what they are by default")) return;
    for (const auto& [key, value] : map.entries)
      if (fresh(key))
        c_.numbers.emplace_back(key.text, value.text == "true"    ? 1
                                          : value.text == "false" ? 0
                                                                  : r_.number(value));
  }

  void read_conditions(const yaml::Node& list) {
    if (!r_.expect(list, yaml::Node::Kind::sequence, "a list of conditions")) return;
    for (const yaml::Node& n : list.items) {
      auto c = read_condition(r_, n);
      if (!c) continue;
      if (c->cls == ConditionClass::profit)
        bad(n, "what a contract asks is sound (its meaning needs it) or kernel (its kernels do)",
            "profit conditions stand in rules");
      c->id = c_.id + "." + c->id;
      if (std::ranges::count(c_.conditions, c->id, &Condition::id))
        bad(n, fmt::format("two conditions are called {}", escape(c->id)));
      c_.conditions.push_back(std::move(*c));
    }
    check_contract_names(r_, c_, list, known_);
  }

  void read_single_nodes(const yaml::Node& list) {
    if (!r_.expect(list, yaml::Node::Kind::sequence, "a list of patterns")) return;
    for (const yaml::Node& n : list.items) {
      if (!r_.expect(n, yaml::Node::Kind::scalar, "a pattern")) continue;
      auto p = parse_pattern(n.text, place_of(r_, n));
      if (!p) {
        add_error(r_, std::move(p).error());
        continue;
      }
      const PatternExpr& call = *p->lines[0].expr;
      SingleNode line{call.label, call.ops, {}, p->lines[0].results, false, place_of(r_, n)};
      bool plain = p->lines.size() == 1 && call.kind == PatternExpr::Kind::call && call.any_attrs &&
                   call.attrs.empty() && call.classes.empty();
      for (const PatternExprPtr& a : call.args) {
        plain &= a->kind == PatternExpr::Kind::reference && !a->shape && !line.variadic;
        line.operands.push_back(a->name);
        line.variadic = a->variadic;
      }
      if (!plain)
        bad(n, "a contract stands for single nodes, by operator and names of operands",
            "write \"y = {Conv}<...>(x, W, b?)\"");
      for (const ContractRole& role : c_.roles)
        if (!role.optional &&
            !std::ranges::count(role.result ? line.results : line.operands, role.name))
          bad(n, fmt::format("nothing is role {}", role.name));
      c_.stands_for.push_back(std::move(line));
    }
  }

  void read_stages(const yaml::Node& map) {
    if (!r_.expect(map, yaml::Node::Kind::map, "names of stages and their contracts")) return;
    for (const auto& [key, value] : map.entries) {
      StageSpec s;
      s.name = key.text, s.list = s.name.ends_with("...");
      if (s.list) s.name.resize(s.name.size() - 3);
      s.contracts = value.is_scalar() ? std::vector{value.text} : r_.strings(value);
      for (const std::string& c : s.contracts)
        if (!contains(known_, c) && c != kConversion)
          bad(value, fmt::format("there is no contract {}", escape(c)), near_or_all(c, known_));
        else if (c == c_.id)
          bad(value, fmt::format("{} is a stage of itself", c), "name the contracts of its parts");
      if (!c_.stages.empty() && c_.stages.back().list != s.list)
        bad(key, "stages are single ones in their order, or lists");
      if (fresh(key)) c_.stages.push_back(std::move(s));
    }
    if (c_.roles.size() != 2 || c_.roles[0].result || !c_.roles[1].result)
      bad(map, "stages have one role, what the first reads, and one result, the last one's");
  }

  void read_nodes(const yaml::Node& n) {
    constexpr std::string_view kClasses[] = {"@pointwise", "@row", "@movement"};
    for (const std::string& name : r_.strings(n))
      if (std::ranges::count(kClasses, name))
        c_.nodes.push_back(name.substr(1));
      else
        bad(n, fmt::format("nodes of {}", escape(name)),
            fmt::format("{}", fmt::join(kClasses, ", ")));
    // What the nodes are says all of it: a kernel of any nodes has no roles.
    for (const char* key : {"roles", "results", "reads", "numbers", "formulas", "stands_for",
                            "stages", "tail", "means"})
      if (const yaml::Node* other = root_.find(key))
        bad(*other, fmt::format("a contract of nodes has no {}", key),
            "leave it out, or leave out nodes and generated");
    if (const yaml::Node* g = r_.required(root_, "generated"))
      c_.generated =
          r_.one_of(*g, {"boxes", "rows"}) == "rows" ? Generated::rows : Generated::boxes;
    if (c_.generated == Generated::boxes && contains(c_.nodes, "row"))
      bad(n, "boxes have no rows: @row needs generated: rows");
  }

  void read_let(const yaml::Node& map) {
    if (!r_.expect(map, yaml::Node::Kind::map, "names and their expressions")) return;
    for (const auto& [key, value] : map.entries)
      if (ExprPtr e = read_expression(r_, value, "an expression"); e && fresh(key))
        c_.let.emplace_back(key.text, std::move(e));
  }

  void read_meaning(const yaml::Node& n) {
    if (!r_.expect(n, yaml::Node::Kind::scalar, "a replacement")) return;
    auto p = parse_replacement(n.text, place_of(r_, n));
    if (!p) return add_error(r_, std::move(p).error());
    c_.means = std::move(*p);
    for (const ContractRole& role : c_.roles)
      if (role.result && !c_.means.line_of(role.name))
        bad(n, fmt::format("no line makes {}", escape(role.name)));
    std::vector<std::string> known;
    for (const ContractRole& role : c_.roles)
      if (!role.result) known.push_back(role.name);
    for (const PatternLine& l : c_.means.lines) {
      each_expr(*l.expr, [&](const PatternExpr& e) { check_meaning(e, known); });
      known.insert(known.end(), l.results.begin(), l.results.end());
    }
  }
  /// `known`: what lines above make, and roles.
  void check_meaning(const PatternExpr& e, const std::vector<std::string>& known) {
    auto wrong = [&](std::string message, std::string hint) {
      r_.error(Code::rule_invalid, e.place.line, e.place.column, std::move(message),
               std::move(hint));
    };
    using Kind = PatternExpr::Kind;
    if (e.kind == Kind::reference && !contains(known, e.name))
      wrong(fmt::format("{} is no role, and no line above makes it", escape(e.name)),
            near_or_all(e.name, known));
    for (const std::string& op : e.ops)
      if (op.starts_with("group."))
        wrong(fmt::format("{} is a group, and means is made of operators", escape(op)),
              "write what it computes");
    if (e.kind == Kind::call && e.args.size() != 1)
      for (const std::string& op : e.ops)
        if (contains(c_.formulas, op))
          wrong(fmt::format("{} is a formula of one operand, not {}", escape(op), e.args.size()),
                "");
  }

  yaml::Reader& r_;
  const yaml::Node& root_;
  const std::vector<std::string>& known_;
  Contract c_;
};

std::string listed(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

/// Whether a rule names each axis of the role once; axes of one element, "1", come on top.
bool axes_fit(std::vector<std::string> given, const ContractRole& role) {
  const bool run = given.front() == "...";
  if (run) given.erase(given.begin());
  const bool rest = !given.empty() && given.back() == "...";
  if (rest || (!given.empty() && given.back() == "1...")) given.pop_back();
  std::erase(given, "1");
  std::vector<std::string> wanted = role.axes;
  std::ranges::sort(given), std::ranges::sort(wanted);
  return given == wanted && run == role.run && rest == role.rest;
}

}  // namespace

std::string ContractRole::text() const {
  std::vector<std::string> all = axes;
  if (run) all.insert(all.begin(), "...");
  if (rest) all.emplace_back("...");
  return fmt::format("[{}]{}{}", listed(all), constant ? "!" : "", optional ? "?" : "");
}

const ContractRole* Contract::role(std::string_view name) const {
  auto it = std::ranges::find(roles, name, &ContractRole::name);
  return it == roles.end() ? nullptr : &*it;
}

Contract read_contract(yaml::Reader& r, const yaml::Document& doc,
                       const std::vector<std::string>& known) {
  return ContractReader(r, doc.root, known).run();
}
std::span<const KeyDoc> contract_keys() { return kKeys; }

std::vector<std::string> Contracts::names() const {
  std::vector<std::string> out;
  for (const auto& c : all_) out.push_back(c->id);
  return out;
}

Contracts::Contracts(std::vector<std::shared_ptr<const Contract>> all) : all_(std::move(all)) {
  for (const auto& c : all_)
    for (const SingleNode& line : c->stands_for)
      for (const std::string_view op : line.ops) {
        const size_t domain = op.find("::");
        const bool plain = domain == op.npos;
        by_op_.emplace(plain ? op : op.substr(domain + 2),
                       std::pair(plain ? "" : op.substr(0, domain), Single{c.get(), &line}));
      }
}

std::string_view name(Generated g) { return kGenerated[static_cast<size_t>(g)]; }

const Contract* Contracts::alone(const Node& n, const Semantics& ops) const {
  if (const Contract* single = of(n).contract) return single;
  const OpFormula* formula = ops.find(n);
  for (const auto& c : all_)
    if (formula && !c->nodes.empty() &&
        c->nodes.front() == (formula->pointwise() ? "pointwise" : "row"))
      return c.get();
  return nullptr;
}

std::shared_ptr<const Contract> Contracts::find(std::string_view id) const {
  auto it = std::ranges::find(all_, id, [](const auto& c) { return c->id; });
  return it == all_.end() ? nullptr : *it;
}

Contracts::Single Contracts::of(const Node& n) const {
  for (auto [it, end] = by_op_.equal_range(n.op.text()); it != end; ++it)
    if (it->second.first == n.domain) return it->second.second;
  return {};
}

std::pair<std::string, std::string> check_roles(const Rule& rule, const Contract& contract) {
  std::vector<std::string> names;
  for (const ContractRole& role : contract.roles) names.push_back(role.name);
  for (const auto& [name, value] : contract.numbers) names.push_back(name);
  names.insert(names.end(), contract.formulas.begin(), contract.formulas.end());
  if (rule.roles.empty() && rule.kind == RuleKind::window && !contract.stands_for.empty())
    return {fmt::format("{} is a contract of single nodes", contract.id), "say kind: absorb"};
  if (rule.roles.empty() && (contract.means.lines.empty() || !contract.stands_for.empty()))
    return {};
  if (contract.means.lines.empty())
    return {fmt::format("{} is no contract of roles", contract.id), ""};
  if (rule.roles.empty())
    return {fmt::format("{} is a contract of roles, and the rule gives none", contract.id),
            fmt::format("write roles: with {}", listed(names))};
  for (const RoleSpec& spec : rule.roles) {
    const ContractRole* role = contract.role(spec.role);
    const bool formula = std::ranges::count(contract.formulas, spec.role) > 0;
    if (!std::ranges::count(names, spec.role))
      return {fmt::format("{} has no role {}", contract.id, escape(spec.role)),
              did_you_mean(spec.role, names)};
    if (role && spec.values.empty())
      return {fmt::format("role {} of {} is a tensor {}, and \"{}\" is no value of the pattern",
                          spec.role, contract.id, role->text(), escape(spec.text)),
              "write a name that the pattern binds, with its axes: \"q2[..., Q, D]\""};
    if (formula && spec.from.empty())
      return {fmt::format("role {} of {} is a formula, and \"{}\" is none", spec.role, contract.id,
                          escape(spec.text)),
              "write what it leads from and to, two values of the pattern: \"t -> a\""};
    if (!role && !formula && !spec.number)
      return {fmt::format("role {} of {} is a number", spec.role, contract.id),
              fmt::format("write \"value({})\"", escape(spec.text))};
    if (!role) continue;
    for (const RoleValue& v : spec.values)
      if (!v.axes.empty() && !axes_fit(v.axes, *role))
        return {fmt::format("role {} of {} has the axes {}, and \"{}\" gives others", spec.role,
                            contract.id, role->text(), escape(spec.text)),
                "give each of them once, in the order of the value's own"};
  }
  for (const ContractRole& role : contract.roles)
    if (!role.optional && !std::ranges::count(rule.roles, role.name, &RoleSpec::role))
      return {fmt::format("role {} {} of {} is not given", role.name, role.text(), contract.id),
              ""};
  return {};
}

}  // namespace ferrule
