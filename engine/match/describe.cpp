// Words for structural failures: what stood where, and what the pattern wanted there.
#include "engine/base/diagnostics.h"
#include "engine/base/join.h"
#include "engine/graph/open_sizes.h"
#include "engine/match/facts.h"
#include "engine/match/pattern_matcher.h"

namespace ferrule {

std::string head_words(const PatternExpr& e, bool article) {
  auto one = [article](std::string what) {
    const bool vowel = std::string_view("aeiou").find(what[0]) != std::string_view::npos;
    return !article ? what : (vowel ? "an " : "a ") + what;
  };
  std::vector<std::string> all;
  for (const std::string& op : e.ops)
    all.push_back(op.starts_with("group.") ? one(op.substr(6) + " layer") : op);
  for (const std::string& c : e.classes)
    all.push_back(one(c.starts_with("group.") ? c.substr(6) + " layer"
                      : c == "group"          ? "fused layer"
                                              : c + " operator"));
  return joined(all, {}, ", ", " or ");
}

std::string head_text(const PatternExpr& e) {
  std::string out;
  for (const std::string& op : e.ops) out += (out.empty() ? "" : "|") + op;
  for (const std::string& c : e.classes) out += (out.empty() ? "@" : "|@") + c;
  return e.ops.size() + e.classes.size() > 1 ? "{" + out + "}" : out;
}

Rejection no_match(const Rule& rule, NodeId root, std::string why, int matched_nodes) {
  Rejection r;
  r.rule = &rule;
  r.root = root;
  r.id = "structure";
  r.why = std::move(why);
  r.matched_nodes = matched_nodes;
  return r;
}

std::string node_text(const Graph& g, NodeId n) {
  const Node& node = g.node(n);
  const std::string_view contract = node.op.contract();
  if (node.body && !contract.empty())
    return fmt::format("\"{}\" (a {} layer)", escape(node.name), contract);
  return fmt::format("\"{}\" ({})", escape(node.name), escape(node.op));
}

std::string value_text(const Graph& g, ValueId v) {
  return fmt::format("\"{}\"", escape(g.value(v).name));
}

namespace {

std::string element_text(const Tensor& t) {
  if (t.numel() != 1 || t.dtype() == DType::string) return fmt::format("{} elements", t.numel());
  if (!is_float(t.dtype())) return t.integer_text(0);
  return t.dtype() == DType::f64 ? fmt::format("{}", t.at_f64(0))
                                 : fmt::format("{}", static_cast<float>(t.at_f64(0)));
}

std::string found_text(const Graph& g, ValueId v) {
  if (!v) return "nothing";
  const Value& value = g.value(v);
  if (value.producer) return node_text(g, value.producer);
  if (value.constant) return "the constant " + value_text(g, v);
  return (value.is_input ? "the graph input " : "") + value_text(g, v);
}

/// Of lists that differ in length, such as the axes of matrices and of batches of them.
std::string of_length(const Attr* have, const Attr& want) {
  const auto* a = have ? std::get_if<std::vector<int64_t>>(have) : nullptr;
  const auto* b = std::get_if<std::vector<int64_t>>(&want);
  return a && b && a->size() != b->size()
             ? fmt::format(", {} numbers and not {}", b->size(), a->size())
             : std::string();
}

std::string attribute_text(const Graph& g, const Matcher::Failure& f, const Semantics& ops,
                           bool named) {
  const Node& n = g.node(f.node);
  const Attr* have = n.attrs.find(f.name);
  std::string text =
      fmt::format("{} has ", node_text(g, f.node)) +
      (have ? fmt::format("{} = {}", f.name, str(*have)) : fmt::format("no attribute {}", f.name));
  if (!named) {
    auto usual = default_attr(n, f.name, ops);
    return text + (usual ? fmt::format("; the rule is for {}", str(*usual))
                         : "; the rule is for nodes without that attribute");
  }
  for (const AttrPattern& a : f.expr->attrs)
    if (a.name == f.name)
      text += a.kind == AttrPattern::Kind::literal
                  ? fmt::format("; the rule needs {}{}", str(a.literal), of_length(have, a.literal))
                  : std::string(", which differs from the value elsewhere in the pattern");
  return text;
}

}  // namespace

void Matcher::describe(Rejection& r) const {
  using K = Failure::Kind;
  const Failure& f = best_;
  r.stage = Rejection::Stage::structure;
  r.matched_nodes = std::max(f.matched, 0);
  r.id = "structure";
  switch (f.kind) {
    case K::extra_output:
      r.id = "D4";
      break;
    case K::extra_input:
      r.id = "D5";
      break;
    case K::default_attribute:
      r.id = "D6";
      break;
    case K::random:
      r.id = "D8";
      break;
    case K::unknown_shape:
    case K::gave_up:
      r.truth = Truth::unknown;
      break;
    default:
      break;
  }
  if (r.id != "structure") r.stage = Rejection::Stage::guarantee;
  if (!ctx_.explain) return;
  std::string v = f.value ? value_text(g_, f.value) : "";
  switch (f.kind) {
    case K::none:
      r.why = "the nodes are not connected as in the rule's pattern";
      break;
    case K::op:
      r.why = fmt::format("found {} where the rule needs {}",
                          f.node ? node_text(g_, f.node) : found_text(g_, f.value),
                          f.expr ? head_words(*f.expr) : "another operator");
      break;
    case K::absent:
      r.why = fmt::format("{} has no operand {}", node_text(g_, f.node), f.expr->name);
      break;
    case K::constant:
      r.why = fmt::format("found {} where the rule needs a constant", found_text(g_, f.value));
      break;
    case K::number:
      r.why = fmt::format("{} is {}; the rule needs {}{}", v,
                          g_.constant(f.value) ? element_text(*g_.constant(f.value)) : "?",
                          f.expr->near ? "about " : "", f.expr->number);
      break;
    case K::rank:
      r.why = fmt::format("{} has rank {} and would raise the rank of the result", v,
                          g_.value(f.value).type.rank());
      break;
    case K::type:
      r.why = fmt::format("{} is {}, the rule is for floating point numbers", v,
                          name(g_.value(f.value).type.dtype));
      break;
    case K::extra_input:
      r.why = fmt::format("{} also reads {}, an operand that the rule does not take",
                          node_text(g_, f.node), v);
      break;
    case K::missing_input:
      r.why = node_text(g_, f.node) + " has fewer operands than the rule needs";
      break;
    case K::attribute:
      r.why = attribute_text(g_, f, ctx_.ops, true);
      break;
    case K::default_attribute:
      r.why = attribute_text(g_, f, ctx_.ops, false);
      break;
    case K::extra_output:
      r.why = fmt::format("output {} of {} is used; the rule takes the node only without it", v,
                          node_text(g_, f.node));
      break;
    case K::other_value:
      r.why = fmt::format("found {} where the rule needs the same value as elsewhere ({})",
                          found_text(g_, f.value), f.expr->name);
      break;
    case K::shape:
      r.why = fmt::format("{} is {}; the rule needs {}", v, str(g_.value(f.value).type),
                          to_text(*f.expr->shape));
      break;
    case K::unknown_shape:
      r.detail = fmt::format("whether {} {} fits {}", v, str(g_.value(f.value).type),
                             to_text(*f.expr->shape));
      r.why = undecided(g_, r.detail);
      break;
    case K::random:
      r.why = node_text(g_, f.node) + " gives another result at each run";
      break;
    case K::inner_value:
      r.why = fmt::format("{} would be {}, which the rule itself computes", f.name, v);
      break;
    case K::gave_up:
      r.why = fmt::format("gave up after {} steps", budget_);
      r.hint = "raise --limit match_steps";
      break;
  }
}

}  // namespace ferrule
