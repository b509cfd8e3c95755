// Every operator of the table that has a scalar formula, as programs that a generated kernel can
// hold: each element type of the first input that the entry allows, each that the other inputs may
// have beside it, optional inputs there or not, and the values of attributes that the formula tells
// apart.
#pragma once
#include <set>
#include <string>
#include <vector>

#include "engine/semantics/formula.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"
#include "tests/unit/codegen/helpers.h"

namespace ferrule::test {

struct OperatorCase {
  std::string label;  ///< "Clip f16, without min", for messages
  std::string op;
  DType type{};        ///< of the first input
  bool plain = false;  ///< all inputs there and of that type, attributes at their defaults
  Program program;
};

/// The texts that a formula compares with.
inline void collect_texts(const FormulaExprPtr& e, std::set<std::string>& out) {
  if (!e) return;
  if (e->kind == FormulaExpr::Kind::text) out.insert(e->word);
  for (const FormulaExprPtr& a : e->args) collect_texts(a, out);
}

/// Values of each attribute that decide something: flags both ways, texts that are compared with,
/// every type.
inline std::vector<Attrs> attribute_choices(const OpFormula& f) {
  std::set<std::string> texts;
  collect_texts(f.expr, texts);
  for (const auto& [name, e] : f.let) collect_texts(e, texts);
  std::vector<Attrs> out(1);
  auto choose = [&](const std::string& name, const std::vector<Attr>& values) {
    std::vector<Attrs> more;
    for (const Attrs& a : out)
      for (const Attr& v : values) {
        more.push_back(a);
        more.back().set(name, v);
      }
    out = std::move(more);
  };
  for (const auto& [name, value] : f.attrs) {
    if (auto flag = std::get_if<int64_t>(&value))
      choose(name, {Attr{*flag}, Attr{int64_t{*flag == 0}}});
    if (auto text = std::get_if<std::string>(&value)) {
      std::vector<Attr> values{*text};
      for (const std::string& t : texts)
        if (t != *text) values.emplace_back(t);
      choose(name, values);
    }
  }
  for (const std::string& name : f.required) {
    std::vector<Attr> types;
    for (DType t : kStorageTypes) types.emplace_back(static_cast<int64_t>(t));
    choose(name, types);
  }
  return out;
}

inline std::string describe(const Attrs& attrs, const OpFormula& f) {
  std::string out;
  for (const auto& [name, value] : attrs.items()) {
    auto given = f.attrs.find(name);
    if (given == f.attrs.end() || !same_attr(given->second, value))
      out += fmt::format(", {} = {}", name, str(value));
  }
  return out;
}

/// The node over inputs of these types (undefined: left out), lowered; an empty program where types
/// do not fit.
inline Program lowered(const Semantics& ops, const OpFormula& f, const Attrs& attrs,
                       const std::vector<DType>& types) {
  Graph g;
  Node n;
  n.op = f.op;
  n.domain = f.domain;
  n.attrs = attrs;
  for (DType t : types)
    n.inputs.push_back(t == DType::undefined ? ValueId{}
                                             : g.add_input(g.fresh_name("in"), {t, Shape{Dim(4)}}));
  auto node = lower_node(ops, g, n, false);
  return node ? node->program : Program{};
}

inline std::vector<OperatorCase> operator_cases(const Semantics& ops) {
  std::vector<OperatorCase> out;
  auto holds = [](DType t) {
    return std::find(kStorageTypes.begin(), kStorageTypes.end(), t) != kStorageTypes.end();
  };
  for (const auto& [key, f] : ops.all()) {
    if (!f.pointwise()) continue;
    unsigned optional = 0;
    for (const std::string& in : f.inputs) optional += is_optional(in);
    for (DType first : f.types) {
      if (!holds(first)) continue;
      std::set<std::string> seen;
      auto add = [&](const Attrs& attrs, DType rest, unsigned left_out) {
        std::string label = fmt::format("{} {}", key, name(first));
        std::vector<DType> types;
        unsigned bit = 0;
        for (const std::string& in : f.inputs) {
          bool absent = is_optional(in) && (left_out >> bit++ & 1);
          types.push_back(absent ? DType::undefined : types.empty() ? first : rest);
          if (absent) label += fmt::format(", without {}", input_name(in));
          if (is_variadic(in)) types.insert(types.end(), 2, rest);
        }
        if (types.size() > 1 && rest != first) label += fmt::format(" with {}", name(rest));
        Program p = lowered(ops, f, attrs, types);
        // Attributes that change nothing for these types.
        if (p.outputs.empty() || !holds(p.output_type(0)) || !seen.insert(to_text(p)).second)
          return;
        std::string given = describe(attrs, f);
        // Where an entry has one type for its first input, the others' matters.
        bool plain = given.empty() && !left_out && (rest == first || f.types.size() == 1);
        out.push_back({label + given, f.op, first, plain, std::move(p)});
      };
      for (const Attrs& attrs : attribute_choices(f))
        for (unsigned left_out = 0; left_out < (1u << optional); ++left_out) {
          add(attrs, first, left_out);
          for (DType rest : kStorageTypes)
            if (f.inputs.size() > 1 && rest != first) add(attrs, rest, left_out);
        }
    }
  }
  return out;
}

}  // namespace ferrule::test
