#include "engine/rule/load_rule.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "engine/base/rule_version.h"
#include "engine/onnx/schema.h"
#include "engine/rule/provable.h"
#include "engine/rule/role_specs.h"
#include "engine/rule/text.h"
#include "engine/target/target.h"

namespace ferrule {
namespace {

// --- the keys

constexpr std::string_view kLimit =
    R"({"anyOf":[{"type":"integer","minimum":0},{"type":"string"}]})";
constexpr std::string_view kParamMap =
    R"({"type":"object","additionalProperties":{"type":["number","boolean","string"]}})";
constexpr std::string_view kAnyMap = R"({"type":"object"})";
constexpr std::string_view kConditions = R"({"type":"array","items":{"$ref":"#/$defs/condition"}})";

constexpr KeyDoc kRuleKeys[] = {
    {"ferrule", R"({"enum":[1,2]})", "version of the language; the first key"},
    {"id", kText, "the file's name"},
    {"doc", kText, "what the rule does, in a sentence"},
    {"source", kTexts, "where it comes from: catalogue entries, papers, links"},
    {"kind", R"({"enum":["rewrite","absorb","window","region","merge","place"]})", "what it makes"},
    {"phase", kText, "a phase of pipeline.yaml"},
    {"enabled", kBool, "false: only with --enable"},
    {"stability", R"({"enum":["stable","experimental"]})", "experimental: only with --enable"},
    {"once", kBool, "the rewrite may grow the graph; it fires once per root"},
    {"numerics", R"({"enum":["exact","signed_zero","reassociating","approximate","reduced"]})",
     "how results may differ; approximate, and reduced (in a shorter element type): only with "
     "--enable"},
    {"may_raise_kernels", kText,
     "why a plan with this rule may launch more kernels than one without it (`ferrule ablate`); "
     "without the key it must not"},
    {"before", kTexts, "rules of the same phase that come later"},
    {"after", kTexts, "rules of the same phase that come earlier"},
    {"types", kTexts, "element types of the root's first result; any without it"},
    {"blocks", kTextMap, "shared sub-patterns: square(x): \"(Mul(x, x) | Pow(x, ~2))\""},
    {"match", kText, "the pattern"},
    {"outputs", kTexts, "results that may be used outside; those of the last line without it"},
    {"shared", kTexts, "inner values that may have other readers; they are kept"},
    {"params", kParamMap,
     "numbers and words that conditions, limits and the name refer to; override files set them"},
    {"where", kConditions, "conditions"},
    {"let", kTextMap, "named expressions for the replacement, the name and the messages"},
    {"rewrite", kText, "kind rewrite: the replacement"},
    {"contract", kText, "the kernel contract of the group"},
    {"roles", kTextMap,
     "window: what the contract's roles are: q: \"q2[..., Q, D]\", scale: \"value(c)\""},
    {"anchor", kText, "absorb: label of the anchor"},
    {"tail", R"({"$ref":"#/$defs/region"})",
     "absorb, window without roles: what may follow the anchor's result"},
    {"region", R"({"$ref":"#/$defs/region"})", "region: what grows"},
    {"merge", R"({"$ref":"#/$defs/merge"})", "merge: siblings"},
    {"place", kTextMap, "place: where operands live: xs: \"slices(y)\""},
    {"name", kText, "name of the layer, with {holes}"},
    {"tests", R"({"$ref":"#/$defs/tests"})", "firing and holding cases"},
};
constexpr KeyDoc kConditionKeys[] = {
    {"id", kText, "stable name, for messages, --ignore-profit and tests"},
    {"sound", kText, "rewrites only: without it the result would be wrong"},
    {"kernel", kText, "the target has no kernel for it"},
    {"profit", kText, "it would not pay"},
    {"why", kText, "what to say when it fails, with {holes}"},
    {"hint", kText, "what would make it hold"},
};
constexpr KeyDoc kWhenKey = {
    "when", kText, "override files: the expression of an added condition, of class profit"};
constexpr KeyDoc kRegionKeys[] = {
    {"of", kText, "operators it is made of: \"@pointwise\", \"{Add|@activation}\""},
    {"around", kText, "row operators that the region grows from: \"@row\""},
    {"keeps", kText, "beside around: what feeds them may be read elsewhere, too: \"@pointwise\""},
    {"max_ops", kLimit, "most operators"},
    {"max_inputs", kLimit, "most tensors read"},
    {"min_ops", kLimit, "fewest operators"},
    {"multi_output", kBool, "several results may be read outside"},
    {"where", kConditions, "asked for each candidate; names: node, operands, anchor"},
};
constexpr KeyDoc kMergeKeys[] = {
    {"over", kText, "the operand that siblings share; a list: they share one of them"},
    {"key", kTexts, "expressions that must be equal"},
    {"axis", kText,
     "expression: the axis of the results along which they become one; side by side without it"},
    {"weights", kAnyMap,
     "inputs of the anchor whose constants are joined along an axis of their own: {1: \"0\"}"},
    {"fill", kTexts, "inputs of the anchor that are zero where a sibling leaves them out"},
    {"min", kCount, "fewest siblings"},
    {"max", kCount, "most siblings"},
};
constexpr KeyDoc kCaseKeys[] = {
    {"name", kText, "name of the case"},
    {"model", kText, "ONNX text; without it a firing case is edited"},
    {"of", kText, "name of the firing case that is edited; the first one without it"},
    {"target", kText, "target that kernel conditions are judged on"},
    {"profile", kText, "profile that conditions are judged under: tensorrt"},
    {"expect", kText, "firing: ONNX text afterwards"},
    {"declined_by", kText, "holding: condition id, guarantee D1 to D10, or structure"},
    // the edit verbs; names are the pattern's, or the model's
    {"leak", kText, "the inner value gets another reader"},
    {"output", kText, "the value becomes a graph output, too"},
    {"input", kText, "the constant becomes a graph input"},
    {"set", kAnyMap, "attributes: {sm.axis: 2}"},
    {"const", kAnyMap, "values of constants: {k: 0.64}"},
    {"rewire", kAnyMap, "an input reads another value: {node: m, slot: 1, to: z}"},
    {"shape", kAnyMap, "shapes of inputs and constants: {x: [1, 3, 8, 8]}"},
    {"dtype", kAnyMap, "element types of inputs and constants: {x: f16}"},
    {"drop", kTexts, "optional operands that are left out"},
};
constexpr std::string_view kVerbs[] = {"leak",   "output", "input", "set", "const",
                                       "rewire", "shape",  "dtype", "drop"};

// --- small readers

std::string json_text(std::string_view s) {
  std::string out = "\"";
  for (char c : s) {
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

/// The argument of an edit verb as JSON: plain numbers and booleans as such, everything else a
/// string.
std::string json(const yaml::Node& n) {
  std::string s;
  switch (n.kind) {
    case yaml::Node::Kind::null:
      return "null";
    case yaml::Node::Kind::scalar: {
      if (n.quoted) return json_text(n.text);
      if (n.text == "true" || n.text == "false") return n.text;
      if (auto i = yaml::parse_integer(n.text)) return std::to_string(*i);
      if (auto d = yaml::parse_number(n.text); d && std::isfinite(*d)) return fmt::format("{}", *d);
      return json_text(n.text);
    }
    case yaml::Node::Kind::sequence:
      for (const yaml::Node& i : n.items) s += (s.empty() ? "" : ", ") + json(i);
      return "[" + s + "]";
    case yaml::Node::Kind::map:
      for (const auto& [k, v] : n.entries)
        s += (s.empty() ? "" : ", ") + json_text(k.text) + ": " + json(v);
      return "{" + s + "}";
  }
  return s;
}

class RuleReader {
 public:
  RuleReader(yaml::Reader& r, const yaml::Node& root, const Blocks& shared, const Semantics& ops,
             const std::vector<std::string>& contracts)
      : r_(r), root_(root), blocks_(shared), ops_(ops), contracts_(contracts) {}

  Rule run() {
    rule_.file = r_.source().name;
    rule_.text = r_.source().text;
    rule_.id = std::filesystem::path(rule_.file).stem().string();
    if (!r_.expect(root_, yaml::Node::Kind::map, "a rule")) return rule_;
    r_.keys(root_, kRuleKeys);
    check_version();
    read_head();
    if (!known_kind_) return rule_;  // which keys belong to it, nobody knows
    read_match();
    if (!parsed_) return rule_;  // nor what it binds
    if (const yaml::Node* n = find("params")) read_params(*n);
    read_conditions(root_.find("where"), rule_.where);
    read_let();
    read_kind();
    ask_contract();
    read_tests();
    return rule_;
  }

 private:
  const yaml::Node* find(std::string_view key) { return root_.find(key); }

  void check_version() {
    const yaml::Node* v = root_.entries.empty() ? nullptr : find("ferrule");
    if (!v || root_.entries[0].first.text != "ferrule")
      r_.invalid(root_, "a rule file begins with ferrule: 2", "put `ferrule: 2` on its first line");
    else
      ferrule::check_version(r_, root_), rule_.version = v->text == "2" ? 2 : 1;
    for (char c : rule_.id)
      if (!(std::islower(static_cast<unsigned char>(c)) ||
            std::isdigit(static_cast<unsigned char>(c)) || c == '_')) {
        r_.invalid(root_, fmt::format("\"{}\" is no rule id", escape(rule_.id)),
                   "the file's name is the id: lower case, digits and _");
        break;
      }
  }

  void text(std::string_view key, std::string& to) {
    if (const yaml::Node* n = find(key)) to = r_.string(*n);
  }
  void list(std::string_view key, std::vector<std::string>& to) {
    if (const yaml::Node* n = find(key)) to = r_.strings(*n);
  }

  void read_head() {
    if (const yaml::Node* n = r_.required(root_, "id"); n && r_.string(*n) != rule_.id)
      r_.invalid(*n, fmt::format("the file is called {}", escape(rule_.id)),
                 "a rule's id is its file's name");
    if (const yaml::Node* n = r_.required(root_, "doc")) rule_.doc = r_.string(*n);
    list("source", rule_.source);
    if (const yaml::Node* n = r_.required(root_, "kind")) {
      std::string k = r_.one_of(*n, kRuleKinds);
      known_kind_ = contains(kRuleKinds, k);
      for (size_t i = 0; i < std::size(kRuleKinds); ++i)
        if (k == kRuleKinds[i]) rule_.kind = static_cast<RuleKind>(i);
    }
    if (const yaml::Node* n = r_.required(root_, "phase")) rule_.phase = r_.string(*n);
    if (const yaml::Node* n = find("enabled")) rule_.enabled = r_.boolean(*n);
    if (const yaml::Node* n = find("stability"))
      rule_.experimental = r_.one_of(*n, {"stable", "experimental"}) == "experimental";
    if (const yaml::Node* n = find("once")) rule_.once = r_.boolean(*n);
    if (const yaml::Node* n = find("numerics")) rule_.numerics = r_.one_of(*n, kNumerics);
    text("may_raise_kernels", rule_.may_raise_kernels);
    if (const yaml::Node* n = find("may_raise_kernels"); n && rule_.may_raise_kernels.empty())
      r_.invalid(*n, "the reason is empty", "say in a sentence why more kernels are worth it");
    list("before", rule_.before);
    list("after", rule_.after);
    if (const yaml::Node* n = find("types")) {
      rule_.types = r_.dtypes(*n, r_.strings(*n));
      if (n->is_sequence() && n->items.empty())
        r_.invalid(*n, "types is empty: the rule would never fire", "leave it out for all types");
    }
    text("name", rule_.name);
    text("contract", rule_.contract);
    if (const yaml::Node* n = find("contract");
        n && n->is_scalar() && !contains(contracts_, rule_.contract))
      r_.invalid(*n, fmt::format("there is no contract {}", escape(rule_.contract)),
                 near_or_all(rule_.contract, contracts_));
    text("anchor", rule_.anchor);
  }

  void read_match() {
    if (const yaml::Node* n = find("blocks")) read_blocks(r_, *n, blocks_);
    const yaml::Node* n =
        rule_.kind == RuleKind::region ? find("match") : r_.required(root_, "match");
    if (n && rule_.kind == RuleKind::region)
      return r_.invalid(*n, "a region rule has no pattern", "its region: says what grows");
    if (!n || !r_.expect(*n, yaml::Node::Kind::scalar, "a pattern")) return;
    auto p = parse_pattern(n->text, place_of(r_, *n), blocks_);
    parsed_ = p.has_value();
    if (!p) return add_error(r_, std::move(p).error());
    rule_.match = std::move(*p);
    check_operators();
    check_one_meaning();
    read_outputs();
  }

  /// A name stands for a value, an attribute ($a) or a size: conditions could not say which they
  /// mean.
  void check_one_meaning() {
    std::map<std::string, std::string_view> seen;
    auto as = [&](std::string name, std::string_view kind, const Place& at) {
      if (name.ends_with("...")) name.resize(name.size() - 3);
      if (name.empty()) return;
      auto [it, fresh] = seen.emplace(name, kind);
      if (!fresh && it->second != kind)
        r_.error(Code::rule_invalid, at.line, at.column,
                 fmt::format("{} is {} here, and {} elsewhere in the pattern", escape(name), kind,
                             it->second),
                 "choose another name");
    };
    for (const PatternLine& l : rule_.match.lines) {
      for (const std::string& r : l.results) as(r, "a value", l.place);
      each_expr(*l.expr, [&](const PatternExpr& e) {
        if (e.kind == PatternExpr::Kind::reference) as(e.name, "a value", e.place);
        for (const AttrPattern& a : e.attrs)
          if (a.kind == AttrPattern::Kind::bind) as(a.bind, "an attribute", a.place);
        if (e.shape)
          for (const DimPattern& d : *e.shape)
            if (d.kind == DimPattern::Kind::symbol) as(d.symbol, "a size", e.place);
      });
    }
  }

  /// A class that the operator table does not have, or a group of no contract, matches nothing: a
  /// slip of the pen.
  void check_operators() {
    auto check = [&](const PatternExpr& e) {
      check_classes(e.classes, e.place);
      auto wrong = [&](std::string message, std::string hint) {
        r_.error(Code::rule_invalid, e.place.line, e.place.column, std::move(message),
                 std::move(hint));
      };
      for (const std::string& op : e.ops)
        if (op.starts_with("group.") && !contains(contracts_, op.substr(6)))
          wrong(fmt::format("there is no contract {}", escape(op.substr(6))),
                near_or_all(op.substr(6), contracts_));
        else if (auto unknown = unknown_operator(ops_, op))
          wrong(std::move(unknown->first), std::move(unknown->second));
    };
    for (const PatternLine& l : rule_.match.lines) each_expr(*l.expr, check);
  }
  void check_classes(const std::vector<std::string>& classes, const Place& at) {
    if (classes.empty()) return;
    std::vector<std::string> known = ops_.class_names();
    known.insert(known.end(), {"pointwise", "group", "movement"});
    for (const std::string& c : classes)
      if (!contains(known, c))
        r_.error(Code::rule_invalid, at.line, at.column,
                 fmt::format("there is no operator class @{}", escape(c)), near_or_all(c, known));
  }

  void read_outputs() {
    const BoundNames bound = bound_names(rule_.match);
    auto inner = [&](const yaml::Node& n, const std::string& v) {
      auto it = bound.find(v);
      bool good = it != bound.end() && it->second.inner && it->second.kind != Bound::Kind::node;
      if (!good) r_.invalid(n, fmt::format("\"{}\" is no result of the pattern", escape(v)));
      return good;
    };
    if (const yaml::Node* n = find("outputs")) {
      rule_.match.outputs.clear();
      for (const std::string& v : r_.strings(*n))
        if (inner(*n, v)) rule_.match.outputs.push_back(v);
    }
    if (const yaml::Node* n = find("shared"))
      for (const std::string& v : r_.strings(*n))
        if (inner(*n, v)) rule_.shared.push_back(v);
  }

  // --- conditions

  ExprPtr expression(const yaml::Node& n, std::string_view what) {
    return read_expression(r_, n, what);
  }

  void read_params(const yaml::Node& map) {
    if (!r_.expect(map, yaml::Node::Kind::map, "parameters")) return;
    const BoundNames bound = bound_names(rule_.match);
    for (const auto& [key, value] : map.entries) {
      const bool name = !key.text.empty() && std::ranges::all_of(key.text, [](unsigned char c) {
        return std::islower(c) || std::isdigit(c) || c == '_';
      }) && !std::isdigit(static_cast<unsigned char>(key.text[0]));
      if (!name)
        r_.invalid(key, fmt::format("\"{}\" is no name of a parameter", escape(key.text)),
                   "lower case, digits and _");
      else if (bound.contains(key.text))
        r_.invalid(key, fmt::format("{} is bound by the pattern", escape(key.text)));
      else if (const std::string& t = value.text;
               !value.quoted && (t == ".nan" || t == ".inf" || t == "-.inf"))
        r_.invalid(value, fmt::format("{} would be a word here", t),
                   "numbers are written nan, inf and -inf");
      else if (r_.expect(value, yaml::Node::Kind::scalar, "the value of a parameter"))
        rule_.parameters.push_back(make_param(key.text, value));
    }
  }

  void read_conditions(const yaml::Node* list, std::vector<Condition>& out) {
    if (!list || !r_.expect(*list, yaml::Node::Kind::sequence, "a list of conditions")) return;
    for (const yaml::Node& n : list->items) {
      auto c = read_condition(r_, n);
      if (!c) continue;
      auto same = [&](const Condition& other) { return other.id == c->id; };
      if (std::ranges::any_of(rule_.where, same) || std::ranges::any_of(out, same))
        r_.invalid(n, fmt::format("two conditions are called {}", escape(c->id)));
      if (c->cls == ConditionClass::sound && !provable(rule_) && !find("roles"))
        r_.invalid(*n.find("sound"),
                   "only rewrites, merges and rules with roles have sound conditions",
                   "other groups never change results: use kernel or profit");
      out.push_back(std::move(*c));
    }
  }

  /// A group that its contract does not take is none, and a part that kernels do not take as a
  /// slice is copied.
  void ask_contract() {
    const bool place = rule_.kind == RuleKind::place;
    if (!place && rule_.contract.empty()) return;
    if (!rule_.roles.empty()) return;  // their contract says what it asks
    Condition c;
    c.id = place ? "slices" : rule_.contract + ".kernel";
    c.cls = ConditionClass::kernel;
    c.asks_contract = true;
    c.place = place_of(r_, root_);
    const auto profit = std::ranges::find(rule_.where, ConditionClass::profit, &Condition::cls);
    rule_.where.insert(place ? rule_.where.end() : profit, std::move(c));
  }

  void read_let() {
    const yaml::Node* n = find("let");
    if (!n || !r_.expect(*n, yaml::Node::Kind::map, "named expressions")) return;
    for (const auto& [key, value] : n->entries)
      if (ExprPtr e = expression(value, "an expression")) rule_.let.emplace_back(key.text, e);
  }

  // --- kinds

  /// Keys that belong to other kinds are errors, so that nobody believes they do something.
  void read_kind() {
    struct Row {
      std::string_view key;
      std::initializer_list<RuleKind> kinds;
    };
    using K = RuleKind;
    static const Row kRows[] = {{"rewrite", {K::rewrite}},
                                {"contract", {K::absorb, K::window, K::region, K::merge}},
                                {"roles", {K::window}},
                                {"anchor", {K::absorb, K::window}},
                                {"tail", {K::absorb, K::window}},
                                {"region", {K::region}},
                                {"merge", {K::merge}},
                                {"place", {K::place}},
                                {"once", {K::rewrite}}};
    for (const Row& row : kRows) {
      const yaml::Node* n = find(row.key);
      bool wanted = contains(row.kinds, rule_.kind);
      if (n && !wanted)
        r_.invalid(*n, fmt::format("a rule of kind {} has no {}", name(rule_.kind), row.key));
    }
    switch (rule_.kind) {
      case K::rewrite:
        return read_rewrite();
      case K::absorb:
        require("contract");
        if (const yaml::Node* n = r_.required(root_, "anchor")) check_anchor(*n);
        check_more_than_one_node();
        return read_region("tail");
      case K::window:
        require("contract");
        if (const yaml::Node* n = find("anchor")) check_anchor(*n);
        if (const yaml::Node* n = find("roles")) read_roles(r_, *n, rule_);
        if (const yaml::Node* n = find("tail"); n && find("roles"))
          r_.invalid(*n, "a rule with roles has no tail: a kernel of roles computes `means` alone",
                     "write what follows into match, as Relu?(t) where it may be absent, and its "
                     "formula into the contract");
        if (!find("roles")) check_more_than_one_node();
        return read_region("tail");
      case K::region:
        require("contract");
        require("region");
        return read_region("region");
      case K::merge:
        require("merge");
        return read_merge();
      case K::place:
        require("place");
        return read_place();
    }
  }
  void require(std::string_view key) { r_.required(root_, key); }

  /// Without a tail the group is what the pattern matches.
  void check_more_than_one_node() {
    int calls = 0;
    for (const PatternLine& l : rule_.match.lines)
      each_expr(*l.expr, [&](const PatternExpr& e) { calls += e.kind == PatternExpr::Kind::call; });
    if (calls < 2 && !find("tail"))
      r_.invalid(*find("match"),
                 "the pattern is one node, and the rule has no tail: nothing is fused",
                 "write tail: {of: …}, or the nodes behind it into match");
  }

  void check_anchor(const yaml::Node& n) {
    auto bound = bound_names(rule_.match);
    auto it = bound.find(rule_.anchor);
    if (it == bound.end() || it->second.kind != Bound::Kind::node)
      r_.invalid(n, fmt::format("\"{}\" is no label of the pattern", escape(rule_.anchor)),
                 "write [conv] in front of its line");
  }

  void read_rewrite() {
    const yaml::Node* n = r_.required(root_, "rewrite");
    if (!n || !r_.expect(*n, yaml::Node::Kind::scalar, "a replacement")) return;
    auto p = parse_replacement(n->text, place_of(r_, *n));
    if (!p) return add_error(r_, std::move(p).error());
    rule_.rewrite = std::move(*p);
  }

  void read_region(std::string_view key) {
    const yaml::Node* n = find(key);
    RegionSpec& s = rule_.region;
    s.max_ops = n ? s.max_ops : 0;
    s.multi_output = key == "region";
    if (!n || !r_.expect(*n, yaml::Node::Kind::map, "a region")) return;
    r_.keys(*n, kRegionKeys);
    s.place = Place{rule_.file, n->line, n->column};
    auto set = [&](const yaml::Node* v, std::vector<std::string>& ops,
                   std::vector<std::string>& classes) {
      if (!v ||
          !r_.expect(*v, yaml::Node::Kind::scalar, "operators, such as \"{Add|@activation}\""))
        return;
      auto status = parse_op_set(v->text, place_of(r_, *v), ops, classes);
      if (!status) return add_error(r_, std::move(status).error());
      check_classes(classes, place_of(r_, *v));
      for (const std::string& op : ops)
        if (auto wrong = unknown_operator(ops_, op))
          r_.invalid(*v, std::move(wrong->first), std::move(wrong->second));
    };
    set(r_.required(*n, "of"), s.ops, s.classes);
    set(n->find("around"), s.around_ops, s.around_classes);
    set(n->find("keeps"), s.kept_ops, s.kept_classes);
    auto count = [&](std::string_view k, int& to) {
      const yaml::Node* v = n->find(k);
      if (!v) return;
      const Param* p = find_param(rule_, v->text);
      if (p) s.named[std::string(k)] = p->name;
      if (p && !std::holds_alternative<int64_t>(p->value.v))
        return r_.error(
            *v, fmt::format("{} is {}, the parameter {} is no whole number", k, p->text, p->name));
      limit(*v, k, p ? std::get<int64_t>(p->value.v) : r_.integer(*v), to);
    };
    count("max_ops", s.max_ops);
    count("max_inputs", s.max_inputs);
    count("min_ops", s.min_ops);
    if (s.max_ops < 1 || s.min_ops > s.max_ops)
      r_.invalid(*n, fmt::format("min_ops is {} and max_ops {}: no {} has so many operators",
                                 s.min_ops, s.max_ops, key));
    if (const yaml::Node* v = n->find("max_inputs"); v && key == "region" && s.max_inputs < 1)
      r_.invalid(*v, "max_inputs is 0, and every region reads a tensor");
    if (const yaml::Node* v = n->find("around"); v && key == "tail")
      r_.invalid(*v, "around is for regions, a tail grows from what the pattern matches");
    if (const yaml::Node* v = n->find("multi_output")) s.multi_output = r_.boolean(*v);
    if (const yaml::Node* v = n->find("keeps"); v && (!n->find("around") || !s.multi_output))
      r_.invalid(*v, "keeps is for regions around row operators with several results",
                 "leave it out, or write around, and no multi_output: false");
    if (const yaml::Node* v = n->find("around"); v && key == "region") check_around(*v);
    if (const yaml::Node* v = n->find("keeps")) check_keeps(*v);
    read_conditions(n->find("where"), s.where);
  }

  /// The members of an operator set as rules/ops has them; `open`: one of them is of a domain that
  /// it does not describe, so nothing is known.
  struct Members {
    std::set<std::string> keys;
    bool open = false;
  };
  Members members(const std::vector<std::string>& ops, const std::vector<std::string>& classes) {
    Members out;
    for (const std::string& op : ops) {
      out.keys.insert(op);
      out.open |= op.find("::") != op.npos && !ops_.all().contains(op);
    }
    for (const auto& [key, f] : ops_.all())
      for (const std::string& c : classes)
        if (c == "pointwise" ? f.pointwise() : contains(f.classes, c)) out.keys.insert(key);
    return out;
  }
  /// Regions grow from row operators alone.
  void check_around(const yaml::Node& n) {
    const Members all = members(rule_.region.around_ops, rule_.region.around_classes);
    const bool row = std::ranges::any_of(all.keys, [&](const std::string& key) {
      auto it = ops_.all().find(key);
      return it != ops_.all().end() && !it->second.pointwise();
    });
    if (!row && !all.open)
      r_.invalid(n,
                 fmt::format("{} has no row operator, and regions grow around these alone",
                             escape(n.text)),
                 "write \"@row\", or ones with `row:` in rules/ops");
  }
  /// What is kept joins the region as one of `of` or `around`.
  void check_keeps(const yaml::Node& n) {
    const RegionSpec& s = rule_.region;
    const Members kept = members(s.kept_ops, s.kept_classes), of = members(s.ops, s.classes),
                  around = members(s.around_ops, s.around_classes);
    const bool some = std::ranges::any_of(kept.keys, [&](const std::string& key) {
      return of.keys.contains(key) || around.keys.contains(key);
    });
    if (!some && !kept.open)
      r_.invalid(n,
                 fmt::format("no operator of {} is among of or around, so none joins the region",
                             escape(n.text)),
                 "write it into of, too");
  }

  void limit(const yaml::Node& at, std::string_view key, int64_t i, int& to) {
    if (i < 0 || i > kMaxLimit)
      r_.error(at, fmt::format("{} is {}, expected 0 to {}", key, i, kMaxLimit));
    else
      to = static_cast<int>(i);
  }

  void read_merge() {
    const yaml::Node* n = find("merge");
    if (!n || !r_.expect(*n, yaml::Node::Kind::map, "siblings")) return;
    r_.keys(*n, kMergeKeys);
    MergeSpec& m = rule_.merge;
    if (const yaml::Node* v = n->find("min")) limit(*v, "min", r_.integer(*v), m.min);
    if (const yaml::Node* v = n->find("max")) limit(*v, "max", r_.integer(*v), m.max);
    if (const yaml::Node* v = n->find("weights");
        v && r_.expect(*v, yaml::Node::Kind::map, "inputs and axes"))
      for (const auto& [slot, axis] : v->entries)
        if (const auto k = slot_number(slot)) m.weights[*k] = written(axis, "an axis");
    if (m.min < 2 || m.max < m.min)
      r_.invalid(*n, fmt::format("min is {} and max {}: siblings are 2 or more", m.min, m.max));
    if (const yaml::Node* v = n->find("axis")) m.axis = written(*v, "an axis");
    for (const char* joined : {"weights", "fill"})
      if (const yaml::Node* v = n->find(joined); v && !m.axis)
        r_.invalid(*v, fmt::format("{} is for siblings that are joined", joined),
                   "write axis, or leave it out");
    for (const yaml::Node* key : texts(*n, "key")) m.keys.push_back(written(*key, "a key"));
    for (const yaml::Node* slot : texts(*n, "fill"))
      if (const auto k = slot_number(*slot)) m.fill.insert(*k);
    if (const yaml::Node* v = r_.required(*n, "over")) {
      m.over = r_.string(*v);
      check_over(*v);
    }
    if (!rule_.match.lines.empty()) check_sibling(*n, *rule_.match.root().expr);
  }
  /// Siblings are single nodes, whose inputs the merge names by number.
  void check_sibling(const yaml::Node& merge, const PatternExpr& e) {
    using Kind = PatternExpr::Kind;
    if (rule_.match.lines.size() > 1 ||
        std::ranges::any_of(e.args, [](const auto& a) { return a->kind == Kind::call; }))
      r_.invalid(*find("match"), "siblings are single nodes, the pattern has several");
    if (e.kind != Kind::call) return;
    const bool open = std::ranges::any_of(e.args, [](const auto& a) { return a->variadic; });
    auto check = [&](const yaml::Node& slot, bool filled) {
      const auto number = yaml::parse_integer(slot.text);
      if (!number || *number < 0) return;  // said already
      const auto k = static_cast<size_t>(*number);
      const PatternExpr* arg = k < e.args.size() ? e.args[k].get() : nullptr;
      if (arg && arg->variadic) return;
      if (!arg && !open)
        r_.invalid(slot, fmt::format("the pattern's node has no input {}", k),
                   "inputs are counted from 0");
      else if (arg && arg->name == rule_.merge.over)
        r_.invalid(slot, fmt::format("input {} is {}, which siblings share", k, arg->name));
      else if (arg && filled && !arg->optional)
        r_.invalid(slot, fmt::format("input {} is {}, which no sibling leaves out", k, arg->name),
                   fmt::format("write {}? in the pattern where it may be absent", arg->name));
    };
    if (const yaml::Node* v = merge.find("weights"))
      for (const auto& [slot, _] : v->entries) check(slot, false);
    for (const yaml::Node* slot : texts(merge, "fill")) check(*slot, true);
  }
  /// A list of scalars, or one scalar.
  std::vector<const yaml::Node*> texts(const yaml::Node& map, std::string_view key) {
    const yaml::Node* v = map.find(key);
    if (!v) return {};
    if (v->is_scalar()) return {v};
    (void)r_.strings(*v);  // says where it is neither
    std::vector<const yaml::Node*> out;
    for (const yaml::Node& i : v->items) out.push_back(&i);
    return out;
  }
  WrittenExpr written(const yaml::Node& n, std::string_view what) {
    return {expression(n, what), n.text};
  }
  std::optional<size_t> slot_number(const yaml::Node& n) {
    auto i = yaml::parse_integer(n.text);
    if (i && *i >= 0 && *i <= 63) return static_cast<size_t>(*i);
    r_.invalid(n, fmt::format("\"{}\" is no number of an input", escape(n.text)), "0 to 63");
    return std::nullopt;
  }
  void check_over(const yaml::Node& n) {
    const BoundNames bound = bound_names(rule_.match);
    auto it = bound.find(n.text);
    if (it == bound.end() || it->second.inner ||
        (it->second.kind != Bound::Kind::value && it->second.kind != Bound::Kind::value_list))
      r_.invalid(n, fmt::format("\"{}\" is no operand of the pattern", escape(n.text)));
  }
  /// "slices(whole)" or "slices(whole, axis)"; nullopt: it is something else.
  static std::optional<PlaceSpec> place_spec(std::string parts, std::string_view t) {
    constexpr std::string_view kHead = "slices(";
    if (!t.starts_with(kHead) || !t.ends_with(")")) return std::nullopt;
    t = t.substr(kHead.size(), t.size() - kHead.size() - 1);
    const size_t comma = std::min(t.find(','), t.size());
    auto word = [](std::string_view s) {
      while (s.starts_with(' ')) s.remove_prefix(1);
      while (s.ends_with(' ')) s.remove_suffix(1);
      return std::string(s);
    };
    return PlaceSpec{std::move(parts), word(t.substr(0, comma)),
                     comma == t.size() ? "" : word(t.substr(comma + 1))};
  }

  /// One entry of names that the pattern binds.
  void read_place() {
    const yaml::Node* n = find("place");
    if (!n || !r_.expect(*n, yaml::Node::Kind::map, "places")) return;
    const BoundNames bound = bound_names(rule_.match);
    std::optional<PlaceSpec> p;
    if (n->entries.size() == 1)
      p = place_spec(n->entries[0].first.text, r_.string(n->entries[0].second));
    auto is = [&](const std::string& name, Bound::Kind a, Bound::Kind b) {
      auto it = bound.find(name);
      return it != bound.end() && (it->second.kind == a || it->second.kind == b);
    };
    using K = Bound::Kind;
    if (!p)
      r_.invalid(*n, "one entry: values, and \"slices(whole)\" that they are",
                 "place: {xs: \"slices(y)\"}");
    else if (yaml::parse_integer(p->axis))
      r_.invalid(*n, fmt::format("the axis {} is no attribute that the pattern binds", p->axis),
                 "leave it out: the pattern's node knows its axis; for this axis alone bind it "
                 "(axis=$a), and ask for it in a condition");
    else if (!is(p->parts, K::value_list, K::value) || !is(p->whole, K::value, K::value) ||
             (!p->axis.empty() && !is(p->axis, K::attr, K::attr)))
      r_.invalid(*n, fmt::format(
                         "{} and {} must be values that the pattern binds{}", escape(p->parts),
                         escape(p->whole),
                         p->axis.empty() ? "" : fmt::format(", {} an attribute", escape(p->axis))));
    else
      rule_.place = std::move(*p);
  }

  // --- tests

  void read_tests() {
    const yaml::Node* n = find("tests");
    if (!n || !r_.expect(*n, yaml::Node::Kind::map, "tests")) return;
    r_.keys(*n, {"fires", "holds"});
    for (bool fires : {true, false}) {
      const yaml::Node* list = n->find(fires ? "fires" : "holds");
      if (!list || !r_.expect(*list, yaml::Node::Kind::sequence, "a list of cases")) continue;
      for (const yaml::Node& c : list->items) read_case(c, fires);
    }
  }

  void read_case(const yaml::Node& n, bool fires) {
    RuleTest t;
    t.fires = fires;
    t.place = Place{rule_.file, n.line, n.column};
    if (n.is_scalar() && fires) {
      t.model = n.text;
      t.place = place_of(r_, n);
      rule_.tests.push_back(std::move(t));
      return;
    }
    if (!r_.expect(n, yaml::Node::Kind::map, "a case")) return;
    r_.keys(n, kCaseKeys);
    for (const auto& [key, value] : n.entries) {
      if (is_edit_verb(key.text))
        t.edits.emplace_back(key.text, json(value));
      else if (key.text == "name")
        t.name = r_.string(value);
      else if (key.text == "model")
        t.model = r_.string(value), t.place = place_of(r_, value);
      else if (key.text == "of")
        t.of = r_.string(value);
      else if (key.text == "target")
        t.target = r_.string(value);
      else if (key.text == "profile")
        t.profile = r_.one_of(value, kProfiles);
      else if (key.text == "expect")
        t.expect = r_.string(value);
      else if (key.text == "declined_by")
        t.declined_by = r_.string(value);
    }
    check_case(n, t);
    rule_.tests.push_back(std::move(t));
  }

  void check_case(const yaml::Node& n, RuleTest& t) {
    auto bad = [&](std::string message, std::string hint = "") {
      r_.invalid(n, std::move(message), std::move(hint));
    };
    auto earlier = std::ranges::find_if(rule_.tests, [&](const RuleTest& o) {
      return o.fires && (t.of.empty() || o.name == t.of);
    });
    if (t.model.empty() && earlier == rule_.tests.end())
      bad(t.of.empty() ? "no firing case above to edit"
                       : fmt::format("no firing case above is called {}", escape(t.of)));
    if (t.model.empty() && t.edits.empty() && t.target.empty() && t.profile.empty())
      bad("a case without a model or an edit");
    // An edited case holds where that one fires.
    if (!t.fires && t.model.empty() && t.target.empty() && earlier != rule_.tests.end())
      t.target = earlier->target;
    if (t.fires && !t.declined_by.empty()) bad("a firing case is declined by nothing");
    if (!t.fires && !t.expect.empty()) bad("a holding case changes nothing");
    if (t.fires) return;
    std::vector<std::string> known = {"structure", "D1", "D2", "D3", "D4",  "D5",
                                      "D6",        "D7", "D8", "D9", "D10", "types"};
    for (const Condition& c : rule_.where) known.push_back(c.id);
    for (const Condition& c : rule_.region.where) known.push_back(c.id);
    if (rule_.kind == RuleKind::merge) known.push_back("key");
    const bool of_contract = contains(contracts_, t.declined_by.substr(0, t.declined_by.find('.')));
    if (t.declined_by.empty())
      bad("a holding case says what declines", "declined_by: a condition, D1 … D10, structure");
    else if (!of_contract && !contains(known, t.declined_by))
      bad(fmt::format("no condition is called {}", escape(t.declined_by)),
          near_or_all(t.declined_by, known));
  }

  yaml::Reader& r_;
  const yaml::Node& root_;
  Blocks blocks_;
  const Semantics& ops_;
  const std::vector<std::string>& contracts_;
  Rule rule_;
  bool known_kind_ = false, parsed_ = true;
};

}  // namespace

std::pair<std::string, std::string> domain_and_name(std::string_view op) {
  const size_t colons = op.find("::");
  if (colons == op.npos) return {"", std::string(op)};
  return {std::string(op.substr(0, colons)), std::string(op.substr(colons + 2))};
}

std::optional<std::pair<std::string, std::string>> unknown_operator(const Semantics& ops,
                                                                    std::string_view op) {
  const auto [domain, name] = domain_and_name(op);
  if (!domain.empty() || op.starts_with("group.") || ops.find(domain, name) ||
      ops.function(domain, name) || operator_schema(domain, name))
    return std::nullopt;
  std::vector<std::string> known = operator_names(domain);
  std::string elsewhere;  // the same name in another domain
  auto add = [&](const std::string& key) {
    if (key.ends_with("::" + name)) elsewhere = key;
    if (key.find("::") == key.npos) known.push_back(key);
  };
  for (const auto& [key, f] : ops.all()) add(key);
  for (const auto& [key, f] : ops.functions()) add(key);
  return std::pair(fmt::format("operator {} is none of ONNX's", escape(op)),
                   elsewhere.empty() ? did_you_mean(name, known) : "write " + elsewhere);
}

ExprPtr read_expression(yaml::Reader& r, const yaml::Node& n, std::string_view what) {
  std::string t = r.quoted(n, what);
  if (t.empty()) return nullptr;
  auto e = parse_expression(t, place_of(r, n));
  if (e) return *e;
  add_error(r, std::move(e).error());
  return nullptr;
}

std::optional<Condition> read_condition(yaml::Reader& r, const yaml::Node& n, bool added) {
  if (!r.expect(n, yaml::Node::Kind::map, "a condition")) return std::nullopt;
  auto names = key_names(kConditionKeys);
  if (added) names.push_back(kWhenKey.name);
  r.keys(n, names);
  Condition c;
  if (const yaml::Node* id = r.required(n, "id")) c.id = r.string(*id);
  const yaml::Node* expr = added ? n.find(kWhenKey.name) : nullptr;
  if (expr) c.cls = ConditionClass::profit;
  static constexpr std::string_view kClasses[] = {"sound", "kernel", "profit"};
  for (size_t k = 0; k < 3; ++k) {
    const yaml::Node* e = n.find(kClasses[k]);
    if (e && expr) r.invalid(*e, "a condition has one class", "split it in two");
    if (e) expr = e, c.cls = static_cast<ConditionClass>(k);
  }
  if (!expr) {
    r.invalid(n, "a condition without an expression",
              added ? "give when: \"…\", or one of sound, kernel, profit"
                    : "give one of sound, kernel, profit: \"…\"");
    return std::nullopt;
  }
  c.expr = read_expression(r, *expr, "a condition");
  c.text = expr->text;
  c.place = place_of(r, *expr);
  if (const yaml::Node* why = added ? n.find("why") : r.required(n, "why")) c.why = r.string(*why);
  if (const yaml::Node* hint = n.find("hint")) c.hint = r.string(*hint);
  if (!c.expr) return std::nullopt;
  c.asks_contract = asks_contract(*c.expr);
  return c;
}

Param make_param(std::string name, const yaml::Node& scalar) {
  Param p;
  p.name = std::move(name);
  p.text = scalar.text;
  p.quoted = scalar.quoted;
  auto integer = yaml::parse_integer(scalar.text);
  auto number = yaml::parse_number(scalar.text);
  if (scalar.quoted)
    p.value = Val{scalar.text};
  else if (scalar.text == "true" || scalar.text == "false")
    p.value = Val{scalar.text == "true"};
  else if (integer)
    p.value = Val{*integer};
  else if (number)
    p.value = Val{*number};
  else
    p.value = Val{scalar.text};
  return p;
}

const Param* find_param(const Rule& rule, std::string_view name) {
  for (const Param& p : rule.parameters)
    if (p.name == name) return &p;
  return nullptr;
}

std::span<const KeyDoc> rule_keys() { return kRuleKeys; }
std::span<const KeyDoc> condition_keys() { return kConditionKeys; }
const KeyDoc& when_key() { return kWhenKey; }
std::span<const KeyDoc> region_keys() { return kRegionKeys; }
std::span<const KeyDoc> merge_keys() { return kMergeKeys; }
std::span<const KeyDoc> case_keys() { return kCaseKeys; }

bool is_edit_verb(std::string_view key) { return contains(kVerbs, key); }

void read_blocks(yaml::Reader& r, const yaml::Node& map, Blocks& out) {
  if (!r.expect(map, yaml::Node::Kind::map, "blocks")) return;
  for (const auto& [key, value] : map.entries) {
    if (!r.expect(value, yaml::Node::Kind::scalar, "a pattern")) continue;
    auto b = parse_block(key.text, place_of(r, key), value.text, place_of(r, value), out);
    if (b)
      out[b->first] = std::move(b->second);
    else
      add_error(r, std::move(b).error());
  }
}

Rule read_rule(yaml::Reader& r, const yaml::Document& doc, const Blocks& shared,
               const Semantics& ops, const std::vector<std::string>& contracts) {
  size_t before = r.count();
  Rule rule = RuleReader(r, doc.root, shared, ops, contracts).run();
  if (r.count() == before) check_names(r, rule, doc.root, contracts);
  return rule;
}

}  // namespace ferrule
