// A rule as YAML again: the inverse of load_rule. Blocks are printed expanded, defaults are left
// out, and everything that is free text is quoted, so that load(print(rule)) equals the rule.
#include <algorithm>
#include <tuple>

#include "engine/base/join.h"
#include "engine/base/yaml.h"
#include "engine/rule/load.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/pattern_parse.h"

namespace ferrule {
namespace {

std::string list(const std::vector<std::string>& items) {
  return "[" + joined(items, yaml::in_quotes) + "]";
}

/// A `|` block can hold the text exactly if it neither begins with a blank nor has lines of blanks
/// only.
bool fits_block(std::string_view s) {
  if (s.size() < 2 || !s.ends_with('\n') || s.ends_with("\n\n")) return false;
  if (s.front() == ' ' || s.front() == '\n') return false;
  for (size_t i = 0; i + 1 < s.size(); ++i)
    if (s[i] == '\n' && (s[i + 1] == '\n' || s[i + 1] == ' ') &&
        s.find_first_not_of(' ', i + 1) != s.npos && s[s.find_first_not_of(' ', i + 1)] == '\n')
      return false;
  return s.find('\t') == s.npos && s.find('\r') == s.npos;
}

class Printer {
 public:
  explicit Printer(const Rule& r) : r_(r) {}

  std::string run() {
    out_ = fmt::format("ferrule: {}\n", r_.version);
    line("id", r_.id);
    field("doc", r_.doc);
    strings("source", r_.source);
    line("kind", name(r_.kind));
    line("phase", r_.phase);
    if (!r_.enabled) line("enabled", "false");
    if (r_.experimental) line("stability", "experimental");
    if (r_.once) line("once", "true");
    if (r_.numerics != Rule().numerics) line("numerics", r_.numerics);
    field("may_raise_kernels", r_.may_raise_kernels);
    strings("before", r_.before);
    strings("after", r_.after);
    if (!r_.types.empty())
      line("types", "[" + joined(r_.types, [](DType t) { return ferrule::name(t); }) + "]");
    match();
    strings("shared", r_.shared);
    if (!r_.parameters.empty()) {
      out_ += "params:\n";
      for (const Param& p : r_.parameters)
        out_ += fmt::format("  {}: {}\n", p.name, p.quoted ? yaml::in_quotes(p.text) : p.text);
    }
    conditions("where", r_.where, 0);
    if (!r_.let.empty()) {
      out_ += "let:\n";
      for (const auto& [n, e] : r_.let)
        out_ += fmt::format("  {}: {}\n", n, yaml::in_quotes(to_text(*e)));
    }
    if (r_.kind == RuleKind::rewrite) text("rewrite", to_text(r_.rewrite, true), 0);
    field("contract", r_.contract);
    if (!r_.roles.empty()) {
      out_ += "roles:\n";
      for (const RoleSpec& role : r_.roles)
        out_ += fmt::format("  {}: {}\n", role.role, yaml::in_quotes(role.text));
    }
    field("anchor", r_.anchor);
    region();
    if (r_.kind == RuleKind::merge) merge();
    if (r_.kind == RuleKind::place)
      out_ += fmt::format("place:\n  {}: \"slices({}{}{})\"\n", r_.place.parts, r_.place.whole,
                          r_.place.axis.empty() ? "" : ", ", r_.place.axis);
    field("name", r_.name);
    tests();
    return std::move(out_);
  }

 private:
  void line(std::string_view key, std::string_view value) {
    out_ += fmt::format("{}: {}\n", key, value);
  }
  void field(std::string_view key, const std::string& value) {
    if (!value.empty()) line(key, yaml::in_quotes(value));
  }
  void strings(std::string_view key, const std::vector<std::string>& items) {
    if (!items.empty()) line(key, list(items));
  }
  void text(std::string_view key, const std::string& value, int indent) {
    std::string pad(static_cast<size_t>(indent), ' ');
    if (!fits_block(value)) {
      out_ += fmt::format("{}{}: {}\n", pad, key, yaml::in_quotes(value));
      return;
    }
    out_ += fmt::format("{}{}: |\n", pad, key);
    for (size_t i = 0; i < value.size();) {
      size_t end = value.find('\n', i);
      out_ += (end == i ? "" : pad + "  ") + value.substr(i, end - i) + "\n";
      i = end + 1;
    }
  }

  void match() {
    if (r_.match.lines.empty()) return;
    text("match", to_text(r_.match), 0);
    std::vector<std::string> usual;
    for (const std::string& o : r_.match.lines.back().results)
      if (!o.empty()) usual.push_back(o);
    if (usual != r_.match.outputs) strings("outputs", r_.match.outputs);
  }

  void conditions(std::string_view key, const std::vector<Condition>& all, int indent) {
    if (std::ranges::none_of(all, [](const Condition& c) { return c.expr != nullptr; })) return;
    std::string pad(static_cast<size_t>(indent), ' ');
    out_ += fmt::format("{}{}:\n", pad, key);
    for (const Condition& c : all) {
      if (!c.expr) continue;
      out_ += fmt::format("{}  - {{id: {}, {}: {}, why: {}", pad, c.id, name(c.cls),
                          yaml::in_quotes(c.text), yaml::in_quotes(c.why));
      if (!c.hint.empty()) out_ += ", hint: " + yaml::in_quotes(c.hint);
      out_ += "}\n";
    }
  }

  void region() {
    const RegionSpec& s = r_.region;
    bool tail = r_.kind == RuleKind::absorb || r_.kind == RuleKind::window;
    if (s.ops.empty() && s.classes.empty()) return;
    auto set = [](const std::vector<std::string>& ops, const std::vector<std::string>& classes) {
      PatternExpr e;
      e.kind = PatternExpr::Kind::call;
      e.ops = ops;
      e.classes = classes;
      std::string text = to_text(e);
      text.resize(text.size() - 2);  // "()"
      return yaml::in_quotes(text);
    };
    RegionSpec usual;
    auto limit = [&](const char* key, int value, int otherwise) {
      auto named = s.named.find(key);
      if (named != s.named.end())
        out_ += fmt::format("  {}: {}\n", key, named->second);
      else if (value != otherwise)
        out_ += fmt::format("  {}: {}\n", key, value);
    };
    out_ += tail ? "tail:\n" : "region:\n";
    out_ += "  of: " + set(s.ops, s.classes) + "\n";
    if (!s.around_ops.empty() || !s.around_classes.empty())
      out_ += "  around: " + set(s.around_ops, s.around_classes) + "\n";
    if (!s.kept_ops.empty() || !s.kept_classes.empty())
      out_ += "  keeps: " + set(s.kept_ops, s.kept_classes) + "\n";
    limit("max_ops", s.max_ops, usual.max_ops);
    limit("max_inputs", s.max_inputs, usual.max_inputs);
    limit("min_ops", s.min_ops, usual.min_ops);
    if (s.multi_output == tail) out_ += fmt::format("  multi_output: {}\n", s.multi_output);
    conditions("where", s.where, 2);
  }

  void merge() {
    const MergeSpec& m = r_.merge;
    auto add = [&](std::string_view key, std::string_view value) {
      out_ += fmt::format("  {}: {}\n", key, value);
    };
    std::vector<std::string> keys, weights;
    for (const WrittenExpr& k : m.keys) keys.push_back(k.text);
    for (const auto& [slot, axis] : m.weights)
      weights.push_back(fmt::format("{}: {}", slot, yaml::in_quotes(axis.text)));
    out_ += "merge:\n";
    if (m.axis) add("axis", yaml::in_quotes(m.axis.text));
    if (!m.fill.empty()) add("fill", fmt::format("[{}]", fmt::join(m.fill, ", ")));
    if (!keys.empty()) add("key", list(keys));
    add("max", std::to_string(m.max));
    add("min", std::to_string(m.min));
    add("over", yaml::in_quotes(m.over));
    if (!weights.empty()) add("weights", fmt::format("{{{}}}", fmt::join(weights, ", ")));
  }

  void tests() {
    if (r_.tests.empty()) return;
    out_ += "tests:\n";
    for (bool fires : {true, false}) {
      bool first = true;
      for (const RuleTest& t : r_.tests) {
        if (t.fires != fires) continue;
        if (first) out_ += fires ? "  fires:\n" : "  holds:\n";
        first = false;
        test(t);
      }
    }
  }

  void test(const RuleTest& t) {
    std::string before = std::move(out_);
    out_.clear();
    auto add = [&](std::string_view key, const std::string& v) {
      if (!v.empty()) out_ += fmt::format("      {}: {}\n", key, yaml::in_quotes(v));
    };
    add("name", t.name);
    add("declined_by", t.declined_by);
    add("of", t.of);
    add("target", t.target);
    add("profile", t.profile);
    for (const auto& [verb, argument] : t.edits)
      out_ += fmt::format("      {}: {}\n", verb, argument);
    if (!t.model.empty()) text("model", t.model, 6);
    if (!t.expect.empty()) text("expect", t.expect, 6);
    if (out_.size() > 6) out_[4] = '-';  // the first key carries the list's dash
    out_ = before + out_;
  }

  const Rule& r_;
  std::string out_;
};

}  // namespace

std::string print_rule(const Rule& r) { return Printer(r).run(); }

}  // namespace ferrule
