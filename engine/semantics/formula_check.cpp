#include "engine/semantics/formula_check.h"

#include <algorithm>

#include "engine/base/suggest.h"
#include "engine/semantics/lower_formula.h"

namespace ferrule {
namespace {

/// Walks one expression of `op` and finds names that mean nothing there.
class NameCheck {
 public:
  NameCheck(const OpFormula& op, size_t let) : op_(op), let_(let) {}
  std::vector<FormulaError> errors;

  void visit(const FormulaExpr& e) {
    switch (e.kind) {
      case FormulaExpr::Kind::integer:
      case FormulaExpr::Kind::real:
      case FormulaExpr::Kind::text:
        return;
      case FormulaExpr::Kind::name:
        if (!known(e.word))
          unknown(e);
        else if (const std::string* in = input(e.word); in && is_variadic(*in))
          add(e, fmt::format("{} is a list", e.word),
              "fold it: sum(xs), min(xs), max(xs), count(xs)");
        return;
      case FormulaExpr::Kind::prim:
        if (e.args.size() == 1 && info(e.prim).arity == 2) return variadic(e);
        break;
      case FormulaExpr::Kind::builtin:
        if (is_row(e.builtin) && op_.pointwise())
          add(e, fmt::format("{} outside a row operator", spelling(e.builtin)),
              "give the entry a row:");
        if (e.builtin == Builtin::sum || e.builtin == Builtin::count) return variadic(e);
        if (e.builtin >= Builtin::present && e.builtin <= Builtin::is_bool) return wants_input(e);
        break;
    }
    for (const auto& a : e.args) visit(*a);
  }

 private:
  void add(const FormulaExpr& e, std::string message, std::string hint) {
    errors.push_back({e.offset, std::move(message), std::move(hint)});
  }
  const std::string* input(std::string_view word) const {
    for (const std::string& in : op_.inputs)
      if (input_name(in) == word) return &in;
    return nullptr;
  }
  bool known(std::string_view word) const {
    if (input(word) || op_.attrs.count(std::string(word))) return true;
    if (contains(op_.required, word)) return true;
    for (size_t i = 0; i < let_ && i < op_.let.size(); ++i)
      if (op_.let[i].first == word) return true;
    if (word == "true" || word == "false" || word == "inf" || word == "nan" || word == "pi")
      return true;
    auto t = parse_dtype(word);
    return t && name(*t) == word;
  }
  void unknown(const FormulaExpr& e) {
    std::vector<std::string> names;
    for (const std::string& in : op_.inputs) names.emplace_back(input_name(in));
    for (const auto& [n, v] : op_.attrs) names.push_back(n);
    for (const std::string& n : op_.required) names.push_back(n);
    for (size_t i = 0; i < let_ && i < op_.let.size(); ++i) names.push_back(op_.let[i].first);
    add(e, fmt::format("unknown name \"{}\"", escape(e.word)), did_you_mean(e.word, names));
  }
  void variadic(const FormulaExpr& e) {
    const FormulaExpr& a = *e.args[0];
    const std::string* in = a.kind == FormulaExpr::Kind::name ? input(a.word) : nullptr;
    if (!in || !is_variadic(*in))
      add(a, "one operand that is not a variadic input",
          "declare it as xs... or give two operands");
  }
  void wants_input(const FormulaExpr& e) {
    const FormulaExpr& a = *e.args[0];
    if (a.kind != FormulaExpr::Kind::name || !input(a.word))
      add(a, fmt::format("{} is asked of something that is not an input", spelling(e.builtin)), "");
  }

  const OpFormula& op_;
  size_t let_;
};

/// The operator on inputs of type `t`, those optional inputs present whose bit is set.
Status check_one(const OpFormula& f, DType t, unsigned present) {
  LoweringInput in;
  in.formula = &f;
  Node n;
  for (const std::string& a : f.required) n.attrs.set(a, Attr{static_cast<int64_t>(t)});
  in.attrs = &n.attrs;
  ProgramBuilder b;
  unsigned bit = 0;
  std::vector<DType> types;
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    bool there = !is_optional(f.inputs[k]) || (present >> bit++ & 1);
    types.push_back(there ? t : DType::undefined);
    uint32_t id = there ? b.input(t) : 0;
    in.operands.push_back({types.back(), [id] { return id; }});
    if (is_variadic(f.inputs[k])) in.operands.push_back(in.operands.back()), types.push_back(t);
  }
  FERRULE_ASSIGN(in.result, formula_result_type(f, n, types));
  in.compute = compute_type(t);
  if (!f.pointwise()) in.fold = [&b](Builtin, uint32_t v) { return b.input(b.type(v)); };
  FERRULE_ASSIGN(uint32_t result, lower_formula(in, b));
  (void)result;
  return {};
}

}  // namespace

std::vector<FormulaError> check_names(const OpFormula& op, size_t let) {
  NameCheck check(op, let);
  const FormulaExprPtr& e = let < op.let.size() ? op.let[let].second : op.expr;
  if (e) check.visit(*e);
  return std::move(check.errors);
}

Status check_types(const OpFormula& f) {
  auto optional = static_cast<unsigned>(
      std::ranges::count_if(f.inputs, [](const std::string& in) { return is_optional(in); }));
  for (DType t : f.types)
    for (unsigned present = 0; present < (1u << std::min(optional, 4u)); ++present)
      if (auto ok = check_one(f, t, present); !ok) {
        Error e = std::move(ok).error();
        e.message += fmt::format(", with inputs of type {}", name(t));
        return fail(std::move(e));
      }
  return {};
}

}  // namespace ferrule
