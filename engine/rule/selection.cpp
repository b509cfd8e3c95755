#include "engine/rule/selection.h"

#include <xxhash.h>

#include <algorithm>
#include <set>
#include <unordered_map>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/base/yaml.h"
#include "engine/graph/text.h"
#include "engine/rule/text.h"

namespace ferrule {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kHashedElements = 64;  // of a constant; larger ones are weights
constexpr int64_t kMostBytes = int64_t{256}
                               << 20;  // of a file: a line for each of some million nodes

using Names = std::vector<std::string>;
using Key = std::pair<std::string, Names>;

Key key(std::string rule, Names nodes) {
  std::ranges::sort(nodes);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return {std::move(rule), std::move(nodes)};
}

bool is_fusion(const Step& s) { return s.fired() && !s.before.empty(); }

/// Placements tell of the makers; the node that goes belongs to them.
Names nodes_of(const Step& s) {
  Names out = s.before;
  if (!s.root.empty() && !contains(out, s.root)) out.push_back(s.root);
  return out;
}

std::set<Key> keys(const Journal& journal) {
  std::set<Key> out;
  for (const Step& s : journal.steps)
    if (is_fusion(s)) out.insert(key(s.rule, nodes_of(s)));
  return out;
}

/// The instances of one rule, to be asked for each match.
class Listed {
 public:
  void add(const Instances::Line& l) {
    Names sorted = key("", l.nodes).second;
    for (const std::string& n : sorted) with_[n].push_back(instances_.size());
    instances_.push_back(std::move(sorted));
  }
  bool has(const Graph& g, const Match& m) const { return holds(g, m, true); }
  /// Whether the nodes could become an instance.
  bool begins(const Graph& g, const Match& m) const { return holds(g, m, false); }

 private:
  bool holds(const Graph& g, const Match& m, bool whole) const {
    if (m.nodes.empty()) return false;
    auto it = with_.find(g.node(m.nodes[0]).name);
    return it != with_.end() && std::ranges::any_of(it->second, [&](size_t k) {
             const Names& names = instances_[k];
             return (!whole || names.size() == m.nodes.size()) &&
                    std::ranges::all_of(m.nodes, [&](NodeId n) {
                      return std::ranges::binary_search(names, g.node(n).name);
                    });
           });
  }
  std::vector<Names> instances_;
  std::unordered_map<std::string, std::vector<size_t>> with_;
};

Condition listed(const std::string& file, ConditionScope scope) {
  Condition c;
  c.id = kOff;
  c.cls = ConditionClass::profit;
  c.expr = *parse_expression("false", Place{});
  c.text = "false";
  c.why = "not in " + file;
  std::ranges::replace(c.why, '{', '(');
  c.hint = "put its line back";
  c.from = file;
  c.scope = std::make_shared<const ConditionScope>(std::move(scope));
  return c;
}

/// Siblings and placed parts are judged one by one, all other matches as a whole.
bool by_parts(const Rule& r) { return r.kind == RuleKind::merge || r.kind == RuleKind::place; }

/// A copy that fires for the instances alone. Tails and regions do not grow over what no instance
/// holds.
std::shared_ptr<const Rule> restricted(const Rule& rule, std::shared_ptr<const Listed> list,
                                       const std::string& file) {
  auto copy = std::make_shared<Rule>(rule);
  const bool parts = by_parts(rule);
  copy->where.push_back(listed(file, [list, parts](const Graph& g, const Match& m) {
    return !(parts ? list->begins(g, m) : list->has(g, m));
  }));
  if (!copy->region.ops.empty() || !copy->region.classes.empty())
    copy->region.where.push_back(
        listed(file, [list](const Graph& g, const Match& m) { return !list->begins(g, m); }));
  return copy;
}

void read_line(yaml::Reader& r, const yaml::Node& n, Instances& out) {
  if (!r.expect(n, yaml::Node::Kind::map, "an instance")) return;
  r.keys(n, {"rule", "root", "nodes"});
  Instances::Line l;
  l.line = n.line;
  if (const yaml::Node* v = r.required(n, "rule")) l.rule = r.string(*v);
  if (const yaml::Node* v = r.required(n, "root")) l.root = r.string(*v);
  if (const yaml::Node* v = r.required(n, "nodes")) l.nodes = r.strings(*v);
  if (l.nodes.empty() || !contains(l.nodes, l.root))
    r.invalid(n, fmt::format("the root {} is none of the nodes", escape(l.root)),
              "lines are deleted, not changed");
  out.lines.push_back(std::move(l));
}

}  // namespace

std::string graph_hash(const Graph& g) {
  TextOptions options;
  options.types = options.bodies = true;
  options.max_elements = kHashedElements;
  const std::string text = to_text(g, options);
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

Instances instances_of(const Journal& journal, std::string hash, std::string target) {
  Instances out;
  out.model = std::move(hash);
  out.target = std::move(target);
  std::set<Key> seen;
  for (const Step& s : journal.steps)
    if (is_fusion(s) && seen.insert(key(s.rule, nodes_of(s))).second)
      out.lines.push_back({s.rule, s.root.empty() ? s.before.front() : s.root, nodes_of(s), 0});
  return out;
}

std::string to_text(const Instances& list, std::string_view model_file) {
  std::string out = fmt::format(
      "# The fusions of {}, by `ferrule fuse --plan`. Delete a line, and that one is not made;\n"
      "# `--apply FILE` (fuse, explain, run, bench, …) makes those left and no others.\n"
      "instances: {}\nmodel: {}\ntarget: {}\nfusions:{}\n",
      escape(model_file), kVersion, list.model, list.target, list.lines.empty() ? " []" : "");
  for (const Instances::Line& l : list.lines)
    out += fmt::format("  - {{rule: {}, root: {}, nodes: [{}]}}\n", l.rule, yaml::in_quotes(l.root),
                       joined(l.nodes, yaml::in_quotes));
  return out;
}

Result<Instances> read_instances(const std::string& path, const Limits& limits) {
  Limits large = limits;
  large.yaml_bytes = std::max(limits.yaml_bytes, kMostBytes);
  FERRULE_ASSIGN(yaml::Document doc, yaml::read_file(path, large));
  yaml::Reader r(doc.source);
  Instances out;
  out.file = path;
  if (!r.expect(doc.root, yaml::Node::Kind::map, "a list of fusions"))
    return fail(r.status().error());
  r.keys(doc.root, {"instances", "model", "target", "fusions"});
  if (const yaml::Node* v = r.required(doc.root, "instances"); v && r.integer(*v) != kVersion)
    r.error(*v,
            fmt::format("version {} of lists of fusions, this program reads {}", escape(v->text),
                        kVersion),
            "make it anew: ferrule fuse MODEL --plan FILE");
  if (const yaml::Node* v = r.required(doc.root, "model")) out.model = r.string(*v);
  if (const yaml::Node* v = r.required(doc.root, "target")) out.target = r.string(*v);
  // A list whose lines are all deleted is no list any more, and means none.
  if (const yaml::Node* v = doc.root.find("fusions");
      v && !v->is_null() && r.expect(*v, yaml::Node::Kind::sequence, "the fusions"))
    for (const yaml::Node& n : v->items) read_line(r, n, out);
  FERRULE_TRY(r.status());
  return out;
}

Status apply_instances(RuleSet& rules, const Instances& list) {
  std::map<std::string, std::shared_ptr<Listed>> by_rule;
  std::vector<std::string> ids;
  for (const auto& r : rules.rules) ids.push_back(r->id);
  for (const Instances::Line& l : list.lines) {
    auto& of = by_rule[l.rule];
    if (!of && !rules.find(l.rule)) {
      Error e = error(Code::rule_unknown, fmt::format("{}:{}", list.file, l.line), escape(l.rule))
                    .value();
      if (std::string hint = did_you_mean(l.rule, ids); !hint.empty()) e.hint = hint;
      return fail(std::move(e));
    }
    if (!of) of = std::make_shared<Listed>();
    of->add(l);
  }
  for (auto& r : rules.rules) {
    if (!r->enabled) continue;
    if (auto it = by_rule.find(r->id); it != by_rule.end()) {
      r = restricted(*r, it->second, list.file);
      continue;
    }
    auto copy = std::make_shared<Rule>(*r);
    copy->enabled = false;
    copy->off = fmt::format("{} off: no line of {} names it", r->id, list.file);
    r = std::move(copy);
  }
  return {};
}

std::shared_ptr<const Rule> without_instance(const Rule& rule, const Instances::Line& line) {
  auto list = std::make_shared<Listed>();
  list->add(line);
  auto copy = std::make_shared<Rule>(rule);
  copy->where.push_back(
      listed("what is left of it", [list, parts = by_parts(rule)](const Graph& g, const Match& m) {
        return parts ? list->begins(g, m) : list->has(g, m);
      }));
  return copy;
}

Status check_model(const Instances& list, const Graph& imported) {
  if (graph_hash(imported) == list.model) return {};
  return error(Code::other_model, list.file);
}

std::vector<std::string> unmatched(const Instances& list, const RuleSet& rules,
                                   const Journal& journal) {
  const std::set<Key> made = keys(journal);
  std::vector<std::string> out;
  for (const Instances::Line& l : list.lines) {
    if (made.contains(key(l.rule, l.nodes))) continue;
    const Rule* r = rules.find(l.rule);
    out.push_back(fmt::format("{}:{}: {} at \"{}\" does not match any more{}", list.file, l.line,
                              l.rule, escape(l.root), r && !r->enabled ? ": the rule is off" : ""));
  }
  return out;
}

}  // namespace ferrule
