// The names of a rule: every one that a condition, a message, the replacement or the layer's name
// uses must be bound, and of the kind that its place wants.
#include <set>

#include "engine/rule/condition_functions.h"
#include "engine/rule/contract.h"
#include "engine/rule/expr_ast.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

class NameCheck {
 public:
  NameCheck(yaml::Reader& r, const Rule& rule, const yaml::Node& root,
            const std::vector<std::string>& contracts, BoundNames bound)
      : r_(r), rule_(rule), root_(root), contracts_(contracts), bound_(std::move(bound)) {}

  void run() {
    const yaml::Node* where = root_.find("where");
    conditions(where, rule_.where);
    const yaml::Node* region = root_.find(rule_.kind == RuleKind::region ? "region" : "tail");
    if (region) {
      BoundNames saved = bound_;
      bound_.insert_or_assign("node", Bound{Bound::Kind::node, true, false, {}});
      bound_.insert_or_assign("operands", Bound{Bound::Kind::value_list, true, false, {}});
      if (rule_.kind != RuleKind::region)
        bound_.insert_or_assign("anchor", Bound{Bound::Kind::node, true, false, {}});
      conditions(region->find("where"), rule_.region.where);
      bound_ = std::move(saved);
    }
    lets();
    if (const yaml::Node* merge = root_.find("merge")) siblings(*merge);
    if (rule_.kind == RuleKind::rewrite) replacement();
    if (const yaml::Node* n = root_.find("name")) holes(*n);
    const yaml::Node* roles = root_.find("roles");
    for (const RoleSpec& role : rule_.roles)
      if (const yaml::Node* n = role.number ? roles->find(role.role) : nullptr)
        expression(*role.number.expr, place_of(r_, *n), role.number.text);
  }

  void conditions(const yaml::Node* list, const std::vector<Condition>& all) {
    for (const Condition& c : all)
      if (c.expr) expression(*c.expr, c.place, c.text);
    if (!list) return;
    for (const yaml::Node& n : list->items) messages(n);
  }

  void condition(const Condition& c, const yaml::Node& at) {
    expression(*c.expr, c.place, c.text);
    messages(at);
  }

 private:
  std::vector<std::string> known() const {
    std::vector<std::string> all = word_names();
    for (const auto& [n, b] : bound_)
      if (n.find('.') == n.npos && b.kind != Bound::Kind::tag) all.push_back(n);
    return all;
  }

  /// tag('erf') asks for a tag that there is, has_kernel('pool', f16) and has_form for a contract.
  void quoted_names(const Expr& e, const Place& at, std::string_view text) {
    for (const ExprPtr& a : e.args) quoted_names(*a, at, text);
    if (e.kind != Expr::Kind::call || e.args.empty() || e.args[0]->kind != Expr::Kind::literal)
      return;
    auto t = get<std::string>(e.args[0]->literal);
    if (t && (e.name == "has_kernel" || e.name == "has_form") && !contains(contracts_, *t))
      report(text, at, NameUse{*t, e.args[0]->offset, "", ""},
             fmt::format("there is no contract {}", escape(*t)), near_or_all(*t, contracts_));
    if (!t || e.name != "tag" || bound_.contains("#" + *t)) return;
    std::vector<std::string> all;
    for (const auto& [n, b] : bound_)
      if (b.kind == Bound::Kind::tag) all.push_back(n.substr(1));
    report(text, at, NameUse{*t, e.args[0]->offset, "", ""},
           fmt::format("no alternative has the tag {}", escape(*t)), did_you_mean(*t, all));
  }

  void expression(const Expr& e, const Place& at, std::string_view text) {
    quoted_names(e, at, text);
    for (const NameUse& u : name_uses(e)) {
      auto it = bound_.find(u.name);
      if (it == bound_.end() && (word(u.name) || is_fact(u.name))) {
        if (u.wanted == "value" || u.wanted == "node")
          report(text, at, u,
                 fmt::format("{} wants a {}, {} is a word", u.function, u.wanted, u.name), "");
        continue;
      }
      if (it == bound_.end()) {
        bool tag = bound_.contains("#" + u.name);
        report(text, at, u, fmt::format("{} is not bound by the pattern", escape(u.name)),
               tag ? fmt::format("ask tag('{}')", u.name) : did_you_mean(u.name, known()));
        continue;
      }
      if (!suits(it->second.kind, u.wanted))
        report(text, at, u,
               fmt::format("{} wants a {}, {} is a {}", u.function,
                           u.wanted == "shape" ? "value or a list of sizes" : u.wanted, u.name,
                           name(it->second.kind)),
               u.wanted == "shape" && it->second.kind == Bound::Kind::node
                   ? fmt::format("its result is output({}, 0)", u.name)
                   : "");
    }
  }

  static bool suits(Bound::Kind k, std::string_view wanted) {
    using K = Bound::Kind;
    if (wanted == "value") return k == K::value;
    if (wanted == "shape") return k != K::node && k != K::node_list;
    if (wanted == "node") return k == K::node || k == K::value;  // a value stands for its producer
    if (wanted == "list") return k != K::node && k != K::value;
    return true;
  }

  void report(std::string_view text, const Place& at, const NameUse& u, std::string message,
              std::string hint) {
    add_error(r_, text_error(Code::expression_invalid, text, u.offset, u.name.size(), at,
                             std::move(message), std::move(hint)));
  }

  void messages(const yaml::Node& n) {
    for (std::string_view key : {"why", "hint"})
      if (const yaml::Node* m = n.find(key)) holes(*m);
  }

  /// Keys and axes of a merge rule, each asked of one sibling.
  void siblings(const yaml::Node& merge) {
    std::vector<const yaml::Node*> all;
    if (const yaml::Node* n = merge.find("axis")) all.push_back(n);
    if (const yaml::Node* n = merge.find("key"); n && n->is_scalar())
      all.push_back(n);
    else if (n)
      for (const yaml::Node& i : n->items) all.push_back(&i);
    if (const yaml::Node* n = merge.find("weights"))
      for (const auto& [slot, axis] : n->entries) all.push_back(&axis);
    for (const yaml::Node* n : all)
      if (auto e = parse_expression(n->text, place_of(r_, *n)))
        expression(**e, place_of(r_, *n), n->text);
  }

  void lets() {
    const yaml::Node* n = root_.find("let");
    if (!n) return;
    // Each may use those above it.
    BoundNames all = bound_;
    for (const auto& [key, e] : rule_.let) bound_.erase(key);
    for (const auto& [key, e] : rule_.let) {
      const yaml::Node* text = n->find(key);
      expression(*e, place_of(r_, *text), text->text);
      if (auto it = all.find(key); it != all.end()) bound_.insert(*it);
    }
    const BoundNames pattern = bound_names(rule_.match);
    for (const auto& [key, e] : rule_.let)
      if (pattern.contains(key))
        r_.invalid(*n->find(key), fmt::format("{} is bound by the pattern", escape(key)));
  }

  /// The {…} parts of a message or a name.
  void holes(const yaml::Node& n) {
    const std::string& t = n.text;
    for (size_t i = 0; i < t.size(); ++i) {
      if (t[i] != '{') continue;
      size_t end = hole_end(t, i);
      if (end == t.npos) {
        add_error(r_, text_error(Code::expression_invalid, t, i, 1, place_of(r_, n),
                                 "no \"}\" closes this", ""));
        return;
      }
      std::string_view inside = std::string_view(t).substr(i + 1, end - i - 1);
      Place at = place_at(t, i + 1, place_of(r_, n));
      auto e = parse_expression(inside, at);
      if (e)
        expression(**e, at, inside);
      else
        add_error(r_, std::move(e).error());
      i = end;
    }
  }

  // --- replacements

  void fail_at(const Place& p, std::string message, std::string hint = "") {
    r_.error(Code::rule_invalid, p.line, p.column, std::move(message), std::move(hint));
  }

  void replacement() {
    for (const PatternLine& l : rule_.rewrite.lines) {
      operand(*l.expr);
      for (std::string r : l.results) {
        if (r.ends_with("...")) r.resize(r.size() - 3);
        if (r.empty()) continue;
        bool output = is_output(r);
        auto it = bound_.find(r);
        if (it != bound_.end() && !output)
          fail_at(l.place, fmt::format("{} is bound by the pattern already", r),
                  "choose another name");
        made_.insert(r);
      }
    }
    for (std::string o : rule_.match.outputs) {
      if (o.ends_with("...")) o.resize(o.size() - 3);
      if (!made_.contains(o))
        fail_at(rule_.rewrite.lines.back().place,
                fmt::format("the replacement does not make {}", o),
                "every result that may be used outside needs a line");
    }
  }
  bool is_output(const std::string& r) const {
    for (const std::string& o : rule_.match.outputs)
      if (o == r || o == r + "...") return true;
    return false;
  }

  void operand(const PatternExpr& e) {
    if (e.kind == PatternExpr::Kind::reference && !e.name.empty()) reference(e);
    if (e.kind == PatternExpr::Kind::expression) braced(*e.expression, e.place);
    if (e.kind == PatternExpr::Kind::call) call(e);
    for (const PatternExprPtr& a : e.args) operand(*a);
    for (const auto& [tag, choice] : e.choices) operand(*choice);
  }

  void reference(const PatternExpr& e) {
    if (made_.contains(e.name)) return;
    auto it = bound_.find(e.name);
    if (it == bound_.end())
      return fail_at(e.place,
                     fmt::format("{} is neither bound nor made by a line above", escape(e.name)),
                     did_you_mean(e.name, known()));
    using K = Bound::Kind;
    K want = e.variadic ? K::value_list : K::value;
    if (it->second.kind != want)
      return fail_at(
          e.place,
          fmt::format("{} is a {}, expected a {}", e.name, name(it->second.kind), name(want)),
          it->second.kind == K::value_list           ? "write " + e.name + "..."
          : it->second.kind == K::node || e.variadic ? ""
                                                     : "write {" + e.name + "}");
    bool shared = contains(rule_.shared, e.name);
    if (it->second.inner && !shared)
      fail_at(e.place, fmt::format("{} is made by a node that the rule removes", e.name),
              "use what it is made of, or list it under shared:");
  }

  void label(const std::string& l, const Place& at) {
    auto it = bound_.find(l);
    if (it == bound_.end() || it->second.kind != Bound::Kind::node)
      fail_at(at, fmt::format("{} is no label of the pattern", escape(l)),
              did_you_mean(l, labels()));
  }
  std::vector<std::string> labels() const {
    std::vector<std::string> all;
    for (const auto& [n, b] : bound_)
      if (b.kind == Bound::Kind::node) all.push_back(n);
    return all;
  }

  void call(const PatternExpr& e) {
    for (const std::string& op : e.ops)
      if (std::islower(static_cast<unsigned char>(op[0])) && op.find("::") == op.npos)
        label(op, e.place);
    if (e.ops.size() + e.classes.size() != 1 || !e.classes.empty())
      fail_at(e.place, "a replacement names one operator");
    if (!e.copy_attrs.empty()) label(e.copy_attrs, e.place);
    for (const AttrPattern& a : e.attrs) {
      if (a.kind == AttrPattern::Kind::expression) braced(*a.expression, a.place);
      auto it = bound_.find(a.bind);
      if (a.kind == AttrPattern::Kind::bind &&
          (it == bound_.end() || it->second.kind != Bound::Kind::attr))
        fail_at(a.place, fmt::format("${} is not bound by the pattern", escape(a.bind)),
                "bind it in the pattern: <axis=$a>");
    }
  }
  void braced(const Expr& e, const Place& at) {
    for (const NameUse& u : name_uses(e))
      if (!bound_.contains(u.name) && !word(u.name) && !is_fact(u.name))
        fail_at(at, fmt::format("{} is not bound by the pattern", escape(u.name)),
                did_you_mean(u.name, known()));
  }

  yaml::Reader& r_;
  const Rule& rule_;
  const yaml::Node& root_;
  const std::vector<std::string>& contracts_;
  BoundNames bound_;
  std::set<std::string> made_;
};

}  // namespace

BoundNames names_of(const Rule& rule) {
  BoundNames all = bound_names(rule.match);
  using K = Bound::Kind;
  if (rule.kind == RuleKind::absorb || rule.kind == RuleKind::window)
    all.emplace("tail", Bound{K::node_list, true, false, {}});
  if (rule.kind == RuleKind::region) all.emplace("region", Bound{K::node_list, true, false, {}});
  if (rule.kind == RuleKind::merge) {
    all.emplace("siblings", Bound{K::node_list, true, false, {}});
    all.emplace("shared", Bound{K::value, true, false, {}});
  }
  if (rule.kind == RuleKind::place) {
    all.emplace("part", Bound{K::value, true, false, {}});
    all.emplace("maker", Bound{K::node, true, false, {}});
    all.emplace("contiguous", Bound{K::attr, true, false, {}});
  }
  for (const Param& p : rule.parameters) all.emplace(p.name, Bound{K::attr, false, false, {}});
  // `let` gives numbers, sizes or lists: like attributes.
  for (const auto& [n, e] : rule.let) all.emplace(n, Bound{K::attr, false, false, {}});
  return all;
}

void check_names(yaml::Reader& r, const Rule& rule, const yaml::Node& root,
                 const std::vector<std::string>& contracts) {
  NameCheck(r, rule, root, contracts, names_of(rule)).run();
}

void check_contract_names(yaml::Reader& r, const Contract& contract, const yaml::Node& list,
                          const std::vector<std::string>& contracts) {
  BoundNames names;
  using K = Bound::Kind;
  for (const ContractRole& role : contract.roles) {
    names.emplace(role.name, Bound{K::value, false, role.optional, {}});
    for (const std::string& axis : role.axes) names.emplace(axis, Bound{K::dim, false, false, {}});
  }
  auto numbers = [&](const auto& list) {
    for (const auto& [name, value] : list) names.emplace(name, Bound{K::attr, false, false, {}});
  };
  numbers(contract.numbers), numbers(contract.let);
  if (!contract.nodes.empty())
    for (const char* name : {"types", "tensors"})
      names.emplace(name, Bound{K::attr, false, false, {}});
  for (const StageSpec& s : contract.stages)
    names.emplace(s.name, Bound{s.list ? K::node_list : K::node, false, false, {}});
  if (!contract.stages.empty()) names.emplace("operands", Bound{K::value_list, false, false, {}});
  for (const SingleNode& line : contract.stands_for) {
    if (!line.label.empty()) names.emplace(line.label, Bound{K::node, false, true, {}});
    for (const std::string& x : line.operands)
      names.emplace(x, Bound{line.variadic && x == line.operands.back() ? K::value_list : K::value,
                             false,
                             true,
                             {}});
  }
  const Rule none;
  NameCheck(r, none, list, contracts, std::move(names)).conditions(&list, contract.conditions);
}

void check_condition_names(yaml::Reader& r, const Rule& rule, const Condition& c,
                           const yaml::Node& at, const std::vector<std::string>& contracts) {
  NameCheck(r, rule, at, contracts, names_of(rule)).condition(c, at);
}

}  // namespace ferrule
