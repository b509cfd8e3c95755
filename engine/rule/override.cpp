// Applying override files to loaded rules.
#include "engine/rule/override.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/base/join.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/provable.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

/// Free text inside a message with holes.
std::string without_holes(std::string text) {
  std::ranges::replace(text, '{', '(');
  std::ranges::replace(text, '}', ')');
  return text;
}

std::shared_ptr<const ConditionScope> scope_of(const Override& e) {
  return std::make_shared<const ConditionScope>(
      [e](const Graph& g, const Match& m) { return e.covers(g, m); });
}

ExprPtr never() {
  static const ExprPtr expr = *parse_expression("false", Place{});
  return expr;
}

/// A rule that is off where `scope` says.
Condition off_condition(const std::string& why, const Override& e, ConditionScope scope) {
  Condition c;
  c.id = kOff;
  c.cls = ConditionClass::profit;
  c.expr = never();
  c.text = "false";
  c.why = without_holes(why);
  c.hint = "take the entry out of " + without_holes(e.place());
  c.from = e.place();
  c.scope = std::make_shared<const ConditionScope>(std::move(scope));
  return c;
}

bool grows(const Rule& r) { return !r.region.ops.empty() || !r.region.classes.empty(); }

/// "switched off for /layer1/*: accuracy (override.yaml:4)"
std::string sentence(std::string_view subject, std::string_view what, const Override& e) {
  return fmt::format("{} {}{}{} ({})", subject, what, e.scope_text(),
                     e.reason.empty() ? "" : ": " + e.reason, e.place());
}

class Apply {
 public:
  Apply(RuleSet& set, std::span<const Override> entries, const Target& target,
        const RuleSelection& selection, std::vector<Error> found)
      : set_(set),
        entries_(entries),
        target_(target),
        selection_(selection),
        errors_(std::move(found)) {}

  Status run() {
    for (const Override& e : entries_) known(e);
    for (auto& shared : set_.rules) rule(shared);
    for (const Override& e : entries_) missing(e);
    return as_status(std::move(errors_));
  }

 private:
  bool meant(const Override& e, const Rule& r) const { return e.concerns(target_) && e.means(r); }

  /// Errors at a place of the entry's file; each is reported once, with the rule that showed it.
  void problem(const Override& e, const yaml::Node& at, std::string message, std::string hint,
               Code code = Code::rule_invalid) {
    yaml::Reader r(e.source);
    r.error(at, std::move(message), std::move(hint), code);
    add(r.status().error());
  }
  void add(Error e) {
    if (reported_.insert(e.place + e.message).second) errors_.push_back(std::move(e));
  }

  /// The entry's glob finds rules, whatever the target.
  void known(const Override& e) {
    if (e.rule.empty()) return;  // the reader has said so
    std::vector<std::string> ids;
    for (const auto& r : set_.rules) {
      if (e.means(*r)) return;
      if (!e.contract) ids.push_back(r->id);
    }
    if (e.contract) ids = set_.contracts;
    if (is_glob(e.rule))
      return set_.warnings.push_back(
          fmt::format("{}: no rule matches {}", e.place(), escape(e.rule)));
    problem(e, e.key,
            fmt::format("{} {}", e.contract ? "no rule makes groups of" : "there is no rule",
                        escape(e.rule)),
            did_you_mean(e.rule, ids));
  }

  void rule(std::shared_ptr<const Rule>& shared) {
    if (std::ranges::none_of(entries_, [&](const Override& e) { return meant(e, *shared); }))
      return;
    auto copy = std::make_shared<Rule>(*shared);
    copy->written = shared;
    for (const Override& e : entries_)
      if (meant(e, *copy))
        for (const Override::Setting& s : e.set) set(e, s, *copy);
    check_limits(*copy);
    for (const Override& e : entries_)
      if (meant(e, *copy))
        for (const auto& [c, at] : e.where) condition(e, c, at, *copy);
    switches(*copy);
    shared = std::move(copy);
  }

  // --- parameters

  void set(const Override& e, const Override::Setting& s, Rule& r) {
    auto p = std::ranges::find(r.parameters, s.name, &Param::name);
    int* limit = p == r.parameters.end() ? limit_of(r, s.name) : nullptr;
    if (p == r.parameters.end() && !limit) return;  // missing() asks whether any rule has it
    found_.insert(&s);
    // The keys of a map have no order: the two would be one limit with two values.
    if (auto named = r.region.named.find(s.name);
        limit && named != r.region.named.end() &&
        std::ranges::count(e.set, named->second, &Override::Setting::name))
      return problem(e, s.key,
                     fmt::format("{} of rule {} is its parameter {}, which the entry sets, too",
                                 s.name, r.id, named->second),
                     fmt::format("leave out params.{}", s.name));
    if (limit) return set_limit(e, s, r, *limit);
    Param fresh = make_param(s.name, s.value);
    const bool number = is_number(p->value),
               fits = number ? is_number(fresh.value) : p->value.v.index() == fresh.value.v.index();
    if (!fits)
      return problem(e, s.value,
                     fmt::format("params.{} is {}, rule {} has {}", s.name, escape(s.value.text),
                                 r.id, escape(p->text)),
                     number ? "give a number" : "give a value of the same kind");
    if (e.scoped()) {
      if (r.kind == RuleKind::rewrite)
        return problem(
            e, s.key,
            fmt::format("rewrite {} is proved with its parameters: they hold everywhere", r.id),
            "leave out nodes and dtype");
      if (named_limit(r, s.name))
        return problem(e, s.key,
                       fmt::format("params.{} limits how groups of {} grow: it holds everywhere",
                                   s.name, r.id),
                       "leave out nodes and dtype");
      p->scoped.emplace_back(scope_of(e), fresh.value);
      return;
    }
    *p = std::move(fresh);
    for (const auto& [key, name] : r.region.named)
      if (name == s.name) limited(e, s, r, *limit_of(r, key));
  }

  static bool is_number(const Val& v) {
    return std::holds_alternative<int64_t>(v.v) || std::holds_alternative<double>(v.v);
  }
  static bool named_limit(const Rule& r, const std::string& name) {
    return std::ranges::any_of(r.region.named, [&](const auto& n) { return n.second == name; });
  }
  static int* limit_of(Rule& r, std::string_view key) {
    if (r.kind == RuleKind::merge)
      return key == "min" ? &r.merge.min : key == "max" ? &r.merge.max : nullptr;
    if (!grows(r)) return nullptr;
    if (key == "max_ops") return &r.region.max_ops;
    if (key == "max_inputs") return &r.region.max_inputs;
    return key == "min_ops" ? &r.region.min_ops : nullptr;
  }

  /// The limits of tails, regions and siblings are parameters without being declared.
  void set_limit(const Override& e, const Override::Setting& s, const Rule& r, int& limit) {
    if (e.scoped())
      return problem(
          e, s.key,
          fmt::format("params.{} limits how groups of {} grow: it holds everywhere", s.name, r.id),
          "leave out nodes and dtype");
    limited(e, s, r, limit);
  }
  void limited(const Override& e, const Override::Setting& s, const Rule& r, int& to) {
    auto i = s.value.quoted ? std::nullopt : yaml::parse_integer(s.value.text);
    if (!i || *i < 0 || *i > kMaxLimit)
      return problem(e, s.value,
                     fmt::format("params.{} of {} is {}, expected 0 to {}", s.name, r.id,
                                 escape(s.value.text), kMaxLimit),
                     "");
    to = static_cast<int>(*i);
    limited_ = {&e, &s};
  }
  /// What the limits say together can be met, as in a rule's file.
  void check_limits(const Rule& r) {
    const auto [e, s] = std::exchange(limited_, {});
    if (!s) return;
    auto wrong = [&](std::string message) { problem(*e, s->key, std::move(message), ""); };
    if (r.kind == RuleKind::merge && (r.merge.min < 2 || r.merge.max < r.merge.min))
      wrong(fmt::format("{} would have params.min {} and params.max {}: siblings are 2 or more",
                        r.id, r.merge.min, r.merge.max));
    if (!grows(r)) return;
    if (r.region.max_ops < 1 || r.region.min_ops > r.region.max_ops)
      wrong(
          fmt::format("{} would have params.min_ops {} and params.max_ops {}: it could never fire",
                      r.id, r.region.min_ops, r.region.max_ops));
    if (r.kind == RuleKind::region && r.region.max_inputs < 1)
      wrong(
          fmt::format("{} would have params.max_inputs 0, and every region reads a tensor", r.id));
  }

  void missing(const Override& e) {
    for (const Override::Setting& s : e.set) {
      if (found_.contains(&s)) continue;
      std::vector<std::string> have;
      std::string first;
      for (const auto& r : set_.rules) {
        if (!meant(e, *r)) continue;
        if (first.empty()) first = r->id;
        for (const Param& p : r->parameters) have.push_back(p.name);
        if (grows(*r)) have.insert(have.end(), {"max_ops", "max_inputs", "min_ops"});
        if (r->kind == RuleKind::merge) have.insert(have.end(), {"min", "max"});
      }
      if (first.empty()) continue;  // known() has spoken, or it is another target's
      std::ranges::sort(have);
      have.erase(std::unique(have.begin(), have.end()), have.end());
      std::string hint = did_you_mean(s.name, have);
      if (hint.empty() && !have.empty()) hint = "there are " + joined(have);
      problem(e, s.key,
              fmt::format("{} has no parameter {}",
                          is_glob(e.rule) ? "no rule of " + escape(e.rule) : "rule " + first,
                          escape(s.name)),
              hint);
    }
  }

  // --- conditions

  void condition(const Override& e, Condition c, const yaml::Node& at, Rule& r) {
    auto taken = [&](const Condition& other) { return other.id == c.id; };
    if (std::ranges::any_of(r.where, taken) || c.id == kOff)
      return problem(e, at, fmt::format("rule {} has a condition {} already", r.id, escape(c.id)),
                     "give it another id");
    if (c.cls == ConditionClass::sound && !provable(r))
      return problem(
          e, *at.find("sound"),
          fmt::format(
              "only rewrites, merges and rules with roles have sound conditions, {} is none", r.id),
          "write when:");
    yaml::Reader reader(e.source);
    check_condition_names(reader, r, c, at, set_.contracts);
    if (auto s = reader.status(); !s) {
      std::vector<Error> all;
      append(all, std::move(s).error());
      for (Error& x : all)  // the first rule that shows it speaks for all that the glob means
        if (broken_.insert(x.place).second) {
          x.message += fmt::format(" (rule {})", r.id);
          add(std::move(x));
        }
      return;
    }
    if (c.why.empty()) c.why = without_holes(e.reason.empty() ? c.text : e.reason);
    c.why += " (" + without_holes(e.place()) + ")";
    c.from = e.place();
    if (e.scoped()) c.scope = scope_of(e);
    r.where.push_back(std::move(c));
  }

  // --- on and off

  /// The last entry that covers a match decides; what the command line says of the whole rule comes
  /// before them.
  void switches(Rule& r) {
    const auto asked = selection_.about(r.id);
    bool base = r.enabled;
    std::vector<const Override*> scoped;
    for (const Override& e : entries_) {
      if (!e.on || !meant(e, r)) continue;
      if (e.scoped()) {
        if (!asked || !*e.on) scoped.push_back(&e);
      } else if (!asked) {
        base = *e.on;
        scoped.clear();
        r.off = base ? "" : sentence("switched", "off", e);
      }
    }
    auto later_on = [](const std::vector<const Override*>& all, size_t from, const Graph& g,
                       const Match& m) {
      for (size_t k = all.size(); k-- > from;)
        if (all[k]->covers(g, m)) return *all[k]->on;
      return false;
    };
    r.enabled =
        base || (!asked && std::ranges::any_of(scoped, [](const Override* e) { return *e->on; }));
    if (!r.enabled) return;
    std::vector<Override> held;  // the conditions own what they look at
    for (const Override* e : scoped) held.push_back(*e);
    auto own = std::make_shared<const std::vector<Override>>(std::move(held));
    std::vector<const Override*> all;
    for (const Override& e : *own) all.push_back(&e);
    for (size_t k = 0; k < all.size(); ++k) {
      if (*all[k]->on) continue;
      add_off(r, off_condition(sentence("switched", "off", *all[k]), *all[k],
                               [=, e = all[k]](const Graph& g, const Match& m) {
                                 return own && e->covers(g, m) && !later_on(all, k + 1, g, m);
                               }));
    }
    if (base) return;
    std::vector<std::string> where;
    for (const Override* e : all)
      if (*e->on) where.push_back(e->scope_text().substr(1));
    const Override& last = *all.back();
    r.off.clear();
    add_off(r, off_condition(
                   fmt::format("{} is on {} only ({})", r.id, fmt::join(where, ", "), last.place()),
                   last, [=](const Graph& g, const Match& m) {
                     return own && std::ranges::none_of(all, [&](const Override* e) {
                              return *e->on && e->covers(g, m);
                            });
                   }));
  }

  /// Behind all others: whoever reads it knows that nothing else stood in the way. Tails and
  /// regions ask for each candidate, and go on without it.
  static void add_off(Rule& r, Condition c) {
    if (grows(r)) r.region.where.push_back(c);
    r.where.push_back(std::move(c));
  }

  RuleSet& set_;
  std::span<const Override> entries_;
  const Target& target_;
  const RuleSelection& selection_;
  std::vector<Error> errors_;
  std::set<std::string> reported_, broken_;
  std::set<const Override::Setting*> found_;
  /// The setting of a limit that was read last.
  std::pair<const Override*, const Override::Setting*> limited_{};
};

bool same_name(const Node& n, const std::string& glob) {
  return glob_match(glob, n.name) ||
         std::ranges::any_of(n.origins, [&](const std::string& o) { return glob_match(glob, o); });
}

/// In the graph or a nested one.
bool any_node(const Graph& g, const std::string& glob) {
  return std::ranges::any_of(g.order(), [&](NodeId id) {
    const Node& n = g.node(id);
    return same_name(n, glob) || std::ranges::any_of(n.subgraphs, [&](const auto& sub) {
             return any_node(*sub.second, glob);
           });
  });
}

}  // namespace

namespace {

/// Whether profit conditions alone read the parameter, and texts.
bool threshold(Rule rule, std::string_view parameter) {
  auto profit = [](const Condition& c) { return c.cls == ConditionClass::profit; };
  std::erase_if(rule.where, profit);
  std::erase_if(rule.region.where, profit);
  rule.parameters.clear();
  rule.tests.clear();
  rule.name.clear();
  rule.doc.clear();
  const std::string text = print_rule(rule);
  auto inside = [&](size_t at) {
    return at < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[at])) || text[at] == '_');
  };
  for (size_t at = 0; (at = text.find(parameter, at)) != text.npos; ++at)
    if (!inside(at - 1) && !inside(at + parameter.size())) return false;
  return true;
}

}  // namespace

std::string Override::scope_text() const {
  std::vector<std::string> parts = nodes;
  for (DType t : types) parts.emplace_back(name(t));
  return parts.empty() ? "" : " for " + joined(parts);
}

bool Override::means(const Rule& r) const { return glob_match(rule, contract ? r.contract : r.id); }

std::string Override::place() const { return fmt::format("{}:{}", source->name, key.line); }

bool Override::concerns(const Target& t) const {
  return devices.empty() || std::ranges::any_of(devices, [&](const std::string& d) {
           return glob_match(d, t.device) || glob_match(d, t.name);
         });
}

bool Override::covers(const Graph& g, const Match& m) const {
  if (!types.empty()) {
    const ValueId y = m.outputs.empty() ? ValueId{} : m.outputs[0];
    if (!y || !contains(types, g.value(y).type.dtype)) return false;
  }
  return nodes.empty() || std::ranges::any_of(m.nodes, [&](NodeId n) {
           return std::ranges::any_of(
               nodes, [&](const std::string& glob) { return same_name(g.node(n), glob); });
         });
}

Status apply_overrides(RuleSet& rules, std::span<const Override> entries, const Target& target,
                       const RuleSelection& selection, std::vector<Error> found) {
  return entries.empty() && found.empty()
             ? Status{}
             : Apply(rules, entries, target, selection, std::move(found)).run();
}

RuleSet as_proved(const RuleSet& rules) {
  RuleSet out = rules;
  auto added = [](const Condition& c) { return !c.from.empty(); };
  for (auto& r : out.rules) {
    if (!r->written && std::ranges::none_of(r->where, added)) continue;
    auto copy = std::make_shared<Rule>(*r);
    std::erase_if(copy->where, added);
    std::erase_if(copy->region.where, added);
    if (const Rule* written = r->written.get()) {
      for (size_t k = 0; k < copy->parameters.size(); ++k)
        if (threshold(*written, copy->parameters[k].name))
          copy->parameters[k] = written->parameters[k];
      copy->merge.min = std::min(copy->merge.min, written->merge.min);
      copy->merge.max = std::max(copy->merge.max, written->merge.max);
    }
    r = std::move(copy);
  }
  return out;
}

std::vector<OverrideNote> override_notes(const RuleSet& rules, std::span<const Override> entries,
                                         const Target& target) {
  std::vector<OverrideNote> out;
  for (const Override& e : entries) {
    if (!e.concerns(target)) continue;
    std::vector<std::string> ids;
    for (const auto& r : rules.rules)
      if (e.means(*r)) ids.push_back(r->id);
    if (ids.empty()) continue;
    const std::string who = ids.size() == 1 ? ids[0] : escape(e.rule);
    auto add = [&](std::string_view what, std::string condition) {
      out.push_back({sentence(who, what, e), std::move(condition), e.place()});
    };
    if (e.on) add(*e.on ? "on" : "off", e.scoped() ? std::string(kOff) : "");
    for (const Override::Setting& s : e.set)
      add(fmt::format("with params.{} = {}", s.name, escape(s.value.text)), "");
    for (const auto& [c, at] : e.where)
      add(fmt::format("also asks {} [{}]", c.id, name(c.cls)), c.id);
  }
  return out;
}

std::vector<std::string> unused_scopes(const Graph& g, std::span<const Override> entries,
                                       const Target& target) {
  std::vector<std::string> out;
  for (const Override& e : entries)
    for (const std::string& glob : e.concerns(target) ? e.nodes : std::vector<std::string>{})
      if (!any_node(g, glob))
        out.push_back(fmt::format("{}: no node of the model matches {}", e.place(), escape(glob)));
  return out;
}

}  // namespace ferrule
