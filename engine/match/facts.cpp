#include "engine/match/facts.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/graph/operator_name.h"
#include "engine/onnx/schema.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

/// Operators of ONNX whose results differ from run to run (its own schemas mark them so, too).
constexpr std::array<std::string_view, 6> kRandom = {"RandomNormal",  "RandomNormalLike",
                                                     "RandomUniform", "RandomUniformLike",
                                                     "Multinomial",   "Bernoulli"};

bool same_number(double a, double b) {
  auto x = static_cast<float>(a), y = static_cast<float>(b);
  return x == y || (std::isnan(x) && std::isnan(y));
}

std::optional<std::vector<double>> numbers(const Attr& a) {
  if (auto* i = std::get_if<int64_t>(&a)) return std::vector<double>{static_cast<double>(*i)};
  if (auto* d = std::get_if<double>(&a)) return std::vector<double>{*d};
  if (auto* v = std::get_if<std::vector<int64_t>>(&a))
    return std::vector<double>(v->begin(), v->end());
  if (auto* v = std::get_if<std::vector<double>>(&a)) return *v;
  if (auto* s = std::get_if<std::vector<std::string>>(&a); s && s->empty())
    return std::vector<double>{};
  return std::nullopt;
}

bool is_list(const Attr& a) {
  return std::holds_alternative<std::vector<int64_t>>(a) ||
         std::holds_alternative<std::vector<double>>(a) ||
         std::holds_alternative<std::vector<std::string>>(a);
}

}  // namespace

std::optional<Attr> default_attr(const Node& n, std::string_view attribute, const Semantics& ops) {
  if (auto a = schema_default(n.domain, n.op.text(), attribute)) return a;
  if (const OpFormula* f = ops.find(n))
    if (auto it = f->attrs.find(std::string(attribute)); it != f->attrs.end()) return it->second;
  if (const auto each = window_default(attribute))
    if (const std::vector<int64_t> written = n.attrs.ints(attribute); !written.empty())
      return std::vector<int64_t>(written.size(), *each);
  return std::nullopt;
}

void fill_defaults(Node& n, const Semantics& ops) {
  fill_schema_defaults(n);
  if (const OpFormula* f = ops.find(n))
    for (const auto& [name, value] : f->attrs)
      if (!n.attrs.find(name)) n.attrs.set(name, value);
}

bool deterministic(const Node& n) {
  if (n.domain.empty() && contains(kRandom, operator_name(n.op))) return false;
  auto all = [](const Graph& g) {
    for (uint32_t i = 0; i < g.node_slots(); ++i)
      if (const Node& inner = g.node({i}); !inner.dead && !deterministic(inner)) return false;
    return true;
  };
  for (const auto& [_, sub] : n.subgraphs)
    if (!all(*sub)) return false;
  return !n.body || all(*n.body);
}

bool attr_equals(const Attr& written, const Attr& actual) {
  if (auto a = numbers(written), b = numbers(actual); a && b)
    return is_list(written) == is_list(actual) && std::ranges::equal(*a, *b, same_number);
  return same_attr(written, actual);
}

bool has_op(const Node& n, std::string_view written) {
  const std::string& op = n.op.text();
  if (op == written)
    return n.domain.empty() || n.body || written.starts_with("group.") || n.domain == "ferrule";
  // "domain::Op"
  const size_t domain = n.domain.size();
  return domain > 0 && written.size() == domain + 2 + op.size() && written.starts_with(n.domain) &&
         written.substr(domain, 2) == "::" && written.ends_with(op);
}

bool has_head(const Node& n, const std::vector<std::string>& ops,
              const std::vector<std::string>& classes, const Semantics& table) {
  for (const std::string& op : ops)
    if (has_op(n, op)) return true;
  for (const std::string& c : classes) {
    if (c == "group"              ? n.body != nullptr
        : c.starts_with("group.") ? n.op.text() == c
        : c == "movement"         ? is_movement(n)
                                  : table.in_class(n, c))
      return true;
  }
  return false;
}

bool same_shape(const Type& a, const Type& b) {
  if (!a.shape || !b.shape || a.shape->size() != b.shape->size()) return false;
  for (size_t i = 0; i < a.shape->size(); ++i)
    if (equal((*a.shape)[i], (*b.shape)[i]) != Truth::yes) return false;
  return true;
}

}  // namespace ferrule
