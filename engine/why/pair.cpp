// "Why are these two not one layer?": how they lie to each other in the model and among the layers,
// then the rules that have to do with both.
#include <algorithm>
#include <limits>
#include <queue>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/why/inquiry.h"

namespace ferrule::why {
namespace {

constexpr size_t kDetailedOfPair = 4;

std::string quoted_layer(const Observed& o, size_t k) {
  return fmt::format("\"{}\"", escape(o.plan.layers[k].name));
}

/// How two nodes of the model lie to each other.
class Relation {
 public:
  Relation(const Inquiry::State& s, const Outcome& a, const Outcome& b)
      : s_(s), g_(*s.o.model), a_(a), b_(b) {}

  /// The shortest path of nodes, both ends included; empty: there is none.
  std::vector<std::string> path(const std::string& from, const std::string& to) const {
    auto named = [&](NodeId n, const std::string& name) {
      return g_.node(n).name == name || contains(g_.node(n).origins, name);
    };
    std::vector<uint32_t> came(g_.node_slots(), UINT32_MAX);
    std::queue<NodeId> work;
    for (NodeId n : g_.order())  // one node of the model may have become several
      if (named(n, from)) work.push(n), came[n.index] = n.index;
    NodeId goal;
    while (!work.empty() && !goal) {
      const NodeId n = work.front();
      work.pop();
      for (ValueId v : g_.node(n).outputs)
        if (v)
          for (const Use& u : g_.value(v).uses)
            if (came[u.node.index] == UINT32_MAX) {
              came[u.node.index] = n.index, work.push(u.node);
              if (!goal && named(u.node, to)) goal = u.node;
            }
    }
    if (!goal) return {};
    std::vector<std::string> out;
    for (NodeId n = goal;; n = NodeId{came[n.index]}) {
      const Node& node = g_.node(n);
      const std::string& name = node.origins.empty() ? node.name : node.origins.front();
      if (out.empty() || out.back() != name) out.push_back(name);
      if (came[n.index] == n.index) break;
    }
    out.front() = to, out.back() = from;
    std::ranges::reverse(out);
    return out;
  }

  /// Nodes of the path that other layers hold.
  std::vector<std::string> blockers(const std::vector<std::string>& path) const {
    std::vector<std::string> out;
    for (size_t k = 1; k + 1 < path.size(); ++k) {
      auto at = s_.layers.find(path[k]);
      if (at == s_.layers.end()) continue;
      const bool inside =
          std::ranges::any_of(at->second, [&](size_t l) { return holds(a_, l) || holds(b_, l); });
      if (!inside) out.push_back(path[k]);
    }
    return out;
  }

  /// A node that reads both.
  std::string common_reader() const {
    const std::set<std::string> of_a = readers(a_.name);
    for (const std::string& n : readers(b_.name))
      if (of_a.contains(n)) return n;
    return "";
  }

  /// A computed value, or an input of the model, that both read.
  std::string common_input() const {
    const NodeId a = g_.find_node(a_.name), b = g_.find_node(b_.name);
    if (!a || !b) return "";
    for (ValueId v : g_.node(a).inputs)
      if (v && !g_.constant(v) && contains(g_.node(b).inputs, v)) return g_.value(v).name;
    return "";
  }

  /// ": q reads x, k reads x2"; empty: one of them reads nothing that is computed or given.
  std::string inputs() const {
    std::string out;
    for (const Outcome* f : {&a_, &b_}) {
      const NodeId n = g_.find_node(f->name);
      std::vector<std::string> read;
      if (n)
        for (ValueId v : g_.node(n).inputs)
          if (v && !g_.constant(v)) read.push_back(g_.value(v).name);
      if (read.empty()) return "";
      out += fmt::format("{}{} reads {}", out.empty() ? ": " : ", ", escape(f->name),
                         why::joined(read));
    }
    return out;
  }

  /// The first grouping that put both into one node.
  const Step* joined(const std::string& a, const std::string& b, size_t* index) const {
    std::set<std::string> x{a}, y{b};
    auto meets = [](const Step& s, const std::set<std::string>& known) {
      return std::ranges::any_of(s.before, [&](const std::string& n) { return known.contains(n); });
    };
    const auto& steps = s_.o.fused.journal.steps;
    for (size_t k = 0; k < steps.size(); ++k) {
      const bool in_x = meets(steps[k], x), in_y = meets(steps[k], y);
      if (in_x && in_y) {
        *index = k;
        return &steps[k];
      }
      if (in_x) x.insert(steps[k].after.begin(), steps[k].after.end());
      if (in_y) y.insert(steps[k].after.begin(), steps[k].after.end());
    }
    return nullptr;
  }

  /// Whether the node is a part of a layer that holds the one asked about.
  bool in(const Outcome& f, const std::string& node) const {
    auto at = s_.layers.find(node);
    return at != s_.layers.end() &&
           std::ranges::any_of(at->second, [&](size_t l) { return holds(f, l); });
  }
  /// Whether one rule made all layers along the path.
  bool one_rule(const std::vector<std::string>& path) const {
    std::set<std::string> rules;
    for (const std::string& n : path)
      if (auto at = s_.layers.find(n); at != s_.layers.end())
        for (size_t l : at->second) rules.insert(s_.o.plan.layers[l].rule);
    return rules.size() == 1 && !rules.begin()->empty();
  }
  static bool holds(const Outcome& f, size_t layer) { return contains(f.layers, layer); }
  bool same_layer() const {
    return std::ranges::any_of(a_.layers, [&](size_t l) { return holds(b_, l); });
  }

 private:
  std::set<std::string> readers(const std::string& name) const {
    std::set<std::string> out;
    const NodeId n = g_.find_node(name);
    if (!n) return out;
    for (ValueId v : g_.node(n).outputs)
      if (v)
        for (const Use& u : g_.value(v).uses) out.insert(g_.node(u.node).name);
    return out;
  }

  const Inquiry::State& s_;
  const Graph& g_;
  const Outcome &a_, &b_;
};

/// Which of a layer's kernels computes the node; none: it is not known, or there is one.
std::optional<size_t> kernel_of(const std::vector<std::vector<std::string>>& kernels,
                                const std::string& node) {
  for (size_t k = 0; k < kernels.size(); ++k)
    if (std::ranges::find(kernels[k], node) != kernels[k].end()) return k;
  return std::nullopt;
}

void same_layer(PairAnswer& out, const Inquiry::State& s, const Relation& r) {
  out.kind = PairAnswer::Kind::same;
  size_t k = 0;
  const Step* step = r.joined(out.a.name, out.b.name, &k);
  size_t layer = out.a.layers[0];
  for (size_t l : out.a.layers)
    if (Relation::holds(out.b, l)) layer = l;
  const auto kernels =
      layer < s.o.kernels.size() ? s.o.kernels[layer] : std::vector<std::vector<std::string>>{};
  const auto a = kernel_of(kernels, out.a.name), b = kernel_of(kernels, out.b.name);
  if (a && b && *a != *b) {
    out.kind = PairAnswer::Kind::apart;
    out.text = fmt::format(
        "{} and {} are one layer, {} kernels: not fused: {}; {} is in kernel {}, {} in kernel {}",
        escape(out.a.name), escape(out.b.name),
        kernels.size() == 2 ? "two" : std::to_string(kernels.size()), quoted_layer(s.o, layer),
        escape(out.a.name), *a + 1, escape(out.b.name), *b + 1);
    if (layer < s.o.apart.size()) out.otherwise = s.o.apart[layer];
  } else {
    out.text = fmt::format("{} and {} are one layer already: {}", escape(out.a.name),
                           escape(out.b.name), quoted_layer(s.o, layer));
  }
  if (step)
    out.text += fmt::format("; rule {} put them together (step {}: {})", step->rule, k + 1,
                            escape(step->text));
}

void gone(PairAnswer& out) {
  out.kind = PairAnswer::Kind::gone;
  for (const Outcome* f : {&out.a, &out.b})
    if (f->layers.empty()) out.text += (out.text.empty() ? "" : "; ") + f->text;
}

/// Both feed one node: who took it. `left`: the one that did not; empty: a third layer has it.
std::string reader_text(const PairAnswer& p, const Inquiry::State& s, const Relation& r,
                        const std::string& reader, std::string& left) {
  std::string text =
      fmt::format("{} and {} both feed {}", escape(p.a.name), escape(p.b.name), escape(reader));
  const Outcome f = s.outcome(reader);
  for (const auto& [taker, other] : {std::pair(&p.b, &p.a), std::pair(&p.a, &p.b)}) {
    const bool taken =
        std::ranges::any_of(f.layers, [&](size_t l) { return Relation::holds(*taker, l); });
    if (!taken) continue;
    left = other->name;
    size_t k = 0;
    const Step* step = r.joined(taker->name, reader, &k);
    text += fmt::format(
        "; {} has absorbed {}", escape(taker->name),
        f.op.empty() ? escape(reader) : fmt::format("the {} ({})", escape(f.op), escape(reader)));
    if (step) text += fmt::format(" by rule {} (step {})", step->rule, k + 1);
    return text + fmt::format(", and {} is the other operand: a kernel is built around one of them",
                              escape(other->name));
  }
  return text + "; " + f.text;
}

/// Where one writes or reads a part of the other's memory, nothing is copied between them.
std::string placed_text(const PairAnswer& p, const Inquiry::State& s) {
  const Plan& plan = s.o.plan;
  for (size_t a : p.a.layers)
    for (size_t b : p.b.layers) {
      const NodeId from = plan.layers[a].node, to = plan.layers[b].node;
      if (!from || !to) continue;
      for (ValueId x : plan.graph.node(from).outputs)
        for (ValueId y : plan.graph.node(to).outputs)
          for (const auto& [part, whole] : {std::pair(x, y), std::pair(y, x)})
            if (auto it = plan.slices.find(part);
                part && whole && it != plan.slices.end() && it->second.whole == whole)
              return fmt::format("; nothing is copied between them: {} is a part of {}'s memory",
                                 escape(plan.graph.value(part).name),
                                 escape(plan.graph.value(whole).name));
    }
  return "";
}

}  // namespace

Result<PairAnswer> Inquiry::pair(std::string_view first, std::string_view second,
                                 std::string_view rule, int tries) {
  State& s = *state_;
  FERRULE_ASSIGN(std::string a, resolve(first));
  FERRULE_ASSIGN(std::string b, resolve(second));
  FERRULE_ASSIGN(const Rule* only, s.rule(rule));
  if (a == b)
    return error(Code::usage, "--pair", fmt::format("{} twice; two nodes make a pair", escape(a)));
  PairAnswer out;
  out.a = s.outcome(a), out.b = s.outcome(b);
  {
    const Relation r(s, out.a, out.b);
    if (r.same_layer()) return same_layer(out, s, r), out;
    const auto inside = s.nested.find(a);
    const Layer* l = inside == s.nested.end() ? nullptr : s.nested_layer(a);
    if (l && s.nested.contains(b) && l == s.nested_layer(b)) {
      out.kind = PairAnswer::Kind::same;
      out.text = fmt::format("{} and {} are one layer already: \"{}\", in a nested graph of {}",
                             escape(a), escape(b), escape(l->name), escape(inside->second.second));
      return out;
    }
    if (out.a.layers.empty() || out.b.layers.empty()) return gone(out), out;
    out.path = r.path(a, b);
    if (out.path.empty() && !(out.path = r.path(b, a)).empty()) std::swap(out.a, out.b);
  }
  const Relation r(s, out.a, out.b);  // in their order now
  const std::vector<std::string> names{out.a.name, out.b.name};
  auto layers = [&] {
    return fmt::format("{} and {}", quoted_layer(s.o, out.a.layers[0]),
                       quoted_layer(s.o, out.b.layers[0]));
  };
  auto some = [](const std::vector<std::string>& nodes) {
    return nodes.size() == 2 ? escape(nodes[0]) + " and " + escape(nodes[1]) : joined(nodes);
  };
  auto own_anchors = [&] {
    const std::string &x = s.o.plan.layers[out.a.layers[0]].contract,
                      &y = s.o.plan.layers[out.b.layers[0]].contract;
    return anchored(x) && anchored(y)
               ? fmt::format("; each is built around an operator of its own ({} and {})", x, y)
               : std::string();
  };
  std::string reader, left;
  const std::string shared = r.common_input();
  if (!out.path.empty()) {
    out.blockers = r.blockers(out.path);
    out.kind = out.blockers.empty() ? PairAnswer::Kind::adjacent : PairAnswer::Kind::between;
    out.text = out.blockers.empty()
                   ? fmt::format("{} feeds {}, and they are two layers: {}{}", escape(out.a.name),
                                 escape(out.b.name), layers(), own_anchors())
                   : fmt::format("{} stand{} between {} and {}", some(out.blockers),
                                 out.blockers.size() == 1 ? "s" : "", escape(out.a.name),
                                 escape(out.b.name));
    if (const std::string text = placed_text(out, s); !text.empty()) out.text += text;
  } else if (reader = r.common_reader(); !reader.empty()) {
    out.kind = PairAnswer::Kind::common_reader;
    out.text = reader_text(out, s, r, reader, left);
    if (!shared.empty()) out.text += fmt::format("; both read {}", escape(shared));
  } else if (!shared.empty()) {
    out.kind = PairAnswer::Kind::siblings;
    out.text = fmt::format("{} and {} are siblings: both read {}, and neither depends on the other",
                           escape(out.a.name), escape(out.b.name), escape(shared));
  } else {
    out.text =
        fmt::format("neither of {} and {} depends on the other, and they read no tensor in common",
                    escape(out.a.name), escape(out.b.name)) +
        r.inputs();
  }
  Trials trials(s.o, s.sizes, tries);
  // Of a path through the two layers, the edge between them is what is asked about.
  std::vector<std::string> ends = names;
  if (out.kind == PairAnswer::Kind::adjacent && out.path.size() > 2)
    for (size_t k = 0; k + 1 < out.path.size(); ++k)
      if (r.in(out.a, out.path[k]) && r.in(out.b, out.path[k + 1]))
        ends = {out.path[k], out.path[k + 1]};
  // Of a path of layers that one rule made, the edge where the first of them ends.
  if (out.kind == PairAnswer::Kind::between && r.one_rule(out.path))
    for (size_t k = 0; k + 1 < out.path.size(); ++k)
      if (r.in(out.a, out.path[k]) && !r.in(out.a, out.path[k + 1]))
        ends = {out.path[k], out.path[k + 1]};
  std::vector<Draft> all = s.candidates(ends, only);
  int64_t bytes = s.bytes_of(out.path);
  for (const Draft& c : all) bytes = std::max(bytes, c.c.bytes);
  if (!out.path.empty())
    for (Draft& c : s.at_one_end(ends, only, out.path, bytes)) {
      auto same = std::ranges::find_if(all, [&](const Draft& x) { return x.c.rule == c.c.rule; });
      if (same == all.end())
        all.push_back(std::move(c));
      else if (c.found.failures < same->found.failures)  // with both of them it took the wrong ones
        *same = std::move(c);
    }
  // What stands between them may be placed elsewhere: whether they would be one layer without it.
  std::vector<std::pair<std::string, std::optional<Trials::Tried>>> moved;
  auto free = [&](const std::string& n) {
    const NodeId id = s.o.model->find_node(n);
    return id && placed_freely(*s.o.model, id, s.o.knowledge->ops);
  };
  if (!out.blockers.empty() && tries > 0 && std::ranges::all_of(out.blockers, free))
    for (const std::string& behind : {out.b.name, std::string()}) {
      Change move;
      move.bypass = out.blockers, move.behind = behind;
      moved.emplace_back(behind, trials.layer(move, names));
    }
  // They would not: then what would only take it away is not the reason.
  const bool apart = !moved.empty() && std::ranges::all_of(moved, [](const auto& m) {
    return m.second && m.second->layer.empty();
  });
  if (apart && !only)
    std::erase_if(all, [](const Draft& c) {
      return c.c.rule->kind == RuleKind::rewrite && c.c.state == Considered::State::refused;
    });
  if (!only) {
    std::erase_if(all, [&](const Draft& c) {
      return for_others(c, s.attempts.subjects(*c.found.graph, names), s.o.knowledge->ops);
    });
    for (Draft& c : s.not_removed(out.blockers, bytes)) all.push_back(std::move(c));
  }
  // One kernel could hold the whole path: the reason is where that kernel ends.
  if (out.kind == PairAnswer::Kind::between && !only)
    for (Draft& c : s.where_regions_end(out.path)) {
      std::erase_if(all, [](const Draft& x) {
        return x.c.rule->kind == RuleKind::rewrite && pattern_nodes(*x.c.rule) <= 1 &&
               x.c.state == Considered::State::refused;
      });
      all.push_back(std::move(c));
    }
  std::ranges::stable_sort(all, leads);
  if (!left.empty()) {  // the one that did not take the reader might have
    std::vector<Draft> own = s.candidates({left, reader}, only);
    std::erase_if(own, [](const Draft& c) { return c.c.state == Considered::State::refused; });
    for (Draft& c : own) c.worth = std::numeric_limits<double>::max();
    for (const Draft& c : own)
      std::erase_if(all, [&](const Draft& x) { return x.c.rule == c.c.rule; });
    all.insert(all.begin(), std::make_move_iterator(own.begin()),
               std::make_move_iterator(own.end()));
  }
  if (tries > 0)
    out.unlocks =
        rules_that_are_off(s.o, s.attempts, trials, out.path.empty() ? names : out.path, names);
  out.considered = s.detailed(std::move(all), names, tries > 0 ? kDetailedOfPair : 0, trials);
  if (out.considered.empty() && only)
    out.otherwise = s.not_for(*only, names);
  else if (out.considered.empty() && !out.path.empty())
    out.otherwise = s.otherwise(ends, out.blockers);
  else if (out.considered.empty() && shared.empty())
    out.otherwise = "rules fuse nodes that feed each other or read the same tensor" +
                    (out.kind == PairAnswer::Kind::unrelated ? "" : r.inputs());
  for (auto& [behind, layer] : moved) {
    if (!layer || layer->layer.empty()) continue;
    const std::string text =
        behind.empty() ? fmt::format("remove {} from the model", joined(out.blockers))
                       : fmt::format("move {} after {}", joined(out.blockers), escape(behind));
    out.unlocks.push_back(
        {Unlock::Kind::edit, text,
         behind.empty() ? "if the model works without" : "the exporter's placement decides", true,
         layer->layer, layer->saves});
  }
  return out;
}

}  // namespace ferrule::why
