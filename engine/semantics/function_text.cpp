#include "engine/semantics/function_text.h"

#include <fmt/ranges.h>

#include "engine/base/applicable.h"
#include "engine/base/suggest.h"
#include "engine/base/yaml.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/op_formula.h"

namespace ferrule {
namespace {

/// What is wrong with an expression; the caller knows where it stands.
template <class T>
using Evaluated = tl::expected<T, FormulaError>;

tl::unexpected<FormulaError> wrong(const FormulaExpr& e, std::string message,
                                   std::string hint = "") {
  return tl::unexpected(FormulaError{e.offset, std::move(message), std::move(hint)});
}

/// As the text has it: lists without brackets.
std::string written(const Attr& a) {
  if (const auto* l = std::get_if<std::vector<int64_t>>(&a))
    return fmt::format("{}", fmt::join(*l, ", "));
  if (const auto* l = std::get_if<std::vector<double>>(&a))
    return fmt::format("{}", fmt::join(*l, ", "));
  if (const auto* l = std::get_if<std::vector<std::string>>(&a))
    return fmt::format("{}", fmt::join(*l, ", "));
  if (const auto* d = std::get_if<double>(&a)) return fmt::format("{}", *d);
  if (const auto* i = std::get_if<int64_t>(&a)) return fmt::format("{}", *i);
  const auto* s = std::get_if<std::string>(&a);
  return s ? *s : str(a);
}

/// Expressions of one call. Numbers are doubles, as the primitives' reference has them; truths are
/// 0 and 1.
class Evaluator {
 public:
  Evaluator(const FunctionText& f, const FunctionCall& call) : f_(f), call_(call) {}

  Evaluated<Attr> value(const FormulaExpr& e) const {
    using Kind = FormulaExpr::Kind;
    switch (e.kind) {
      case Kind::integer:
        return Attr(static_cast<double>(e.i));
      case Kind::real:
        return Attr(e.f);
      case Kind::text:
        return Attr(e.word);
      case Kind::name:
        return named(e);
      case Kind::prim:
        return primitive(e);
      case Kind::builtin:
        break;
    }
    if (e.builtin == Builtin::present || e.builtin == Builtin::count) {
      const FormulaExpr& asked = *e.args[0];
      const auto k = asked.kind == Kind::name ? input(asked.word) : std::nullopt;
      if (!k && contains(f_.optional, asked.word))
        return Attr(call_.attrs.count(asked.word) ? 1.0 : 0.0);
      if (const auto at = std::ranges::find(f_.outputs, asked.word); !k && at != f_.outputs.end()) {
        const auto slot = static_cast<size_t>(at - f_.outputs.begin());
        return Attr(slot < call_.wanted.size() && call_.wanted[slot] ? 1.0 : 0.0);
      }
      if (!k) return wrong(e, fmt::format("{} is asked of no input", spelling(e.builtin)));
      const size_t given = call_.present.size();
      if (e.builtin == Builtin::count)
        return Attr(given > *k ? static_cast<double>(given - *k) : 0.0);
      return Attr(*k < given && call_.present[*k] ? 1.0 : 0.0);
    }
    if (e.builtin == Builtin::type) {
      const FormulaExpr& asked = *e.args[0];
      const auto k = asked.kind == Kind::name ? input(asked.word) : std::nullopt;
      if (!k) return wrong(e, "type is asked of no input");
      const DType t = *k < call_.types.size() ? call_.types[*k] : DType::undefined;
      return Attr(t == DType::undefined ? std::string() : std::string(name(t)));
    }
    if (e.builtin != Builtin::select)
      return wrong(e, fmt::format("{} is not known before the model runs", spelling(e.builtin)),
                   "write it as a node");
    auto condition = truth(*e.args[0]);
    if (!condition) return tl::unexpected(condition.error());
    return value(*e.args[*condition ? 1 : 2]);
  }

  Evaluated<bool> truth(const FormulaExpr& e) const {
    auto n = number(e);
    if (!n) return tl::unexpected(n.error());
    return *n != 0;
  }

  Evaluated<double> number(const FormulaExpr& e) const {
    auto v = value(e);
    if (!v) return tl::unexpected(v.error());
    if (const auto* i = std::get_if<int64_t>(&*v)) return static_cast<double>(*i);
    if (const auto* d = std::get_if<double>(&*v)) return *d;
    return wrong(e, "a number is wanted here");
  }

 private:
  std::optional<size_t> input(std::string_view name) const {
    for (size_t k = 0; k < f_.inputs.size(); ++k)
      if (input_name(f_.inputs[k]) == name) return k;
    return std::nullopt;
  }

  Evaluated<Attr> named(const FormulaExpr& e) const {
    if (auto it = counters.find(e.word); it != counters.end())
      return Attr(static_cast<double>(it->second));
    if (e.word.ends_with("_rank"))
      if (const auto k = input(std::string_view(e.word).substr(0, e.word.size() - 5)))
        return Attr(static_cast<double>(*k < call_.ranks.size() ? call_.ranks[*k] : -1));
    if (e.word == "true" || e.word == "false") return Attr(e.word == "true" ? 1.0 : 0.0);
    if (auto it = call_.attrs.find(e.word); it != call_.attrs.end()) return it->second;
    if (auto it = f_.attrs.find(e.word); it != f_.attrs.end()) return it->second;
    std::vector<std::string> names = f_.required;
    for (const auto& [name, _] : f_.attrs) names.push_back(name);
    return wrong(e, fmt::format("\"{}\" is no attribute", escape(e.word)),
                 did_you_mean(e.word, names));
  }

  Evaluated<Attr> primitive(const FormulaExpr& e) const {
    if (e.prim == Prim::eq || e.prim == Prim::ne) {
      auto a = value(*e.args[0]), b = value(*e.args[1]);
      if (!a) return a;
      if (!b) return b;
      if (std::holds_alternative<std::string>(*b))
        return Attr((written(*a) == written(*b)) == (e.prim == Prim::eq) ? 1.0 : 0.0);
    }
    const PrimInfo& p = info(e.prim);
    const bool truths = p.cls == PrimInfo::Class::logic;
    std::vector<Scalar> args;
    for (const FormulaExprPtr& a : e.args) {
      auto n = number(*a);
      if (!n) return tl::unexpected(n.error());
      args.push_back({*n, *n != 0});
    }
    if (p.cls == PrimInfo::Class::bits) return wrong(e, "numbers here are no integers");
    const DType operand = truths ? DType::boolean : DType::f64;
    const bool says = truths || p.cls == PrimInfo::Class::cmp || p.cls == PrimInfo::Class::test;
    const Scalar s = apply(e.prim, says ? DType::boolean : DType::f64, operand, args.data());
    return Attr(says ? static_cast<double>(s.i != 0) : s.f);
  }

  const FunctionText& f_;
  const FunctionCall& call_;

 public:
  std::map<std::string, int, std::less<>> counters;
};

/// `on_text` for what stands between the expressions, `on_expression` for each of them.
template <class T, class E>
Evaluated<bool> each_part(std::string_view text, T on_text, E on_expression) {
  while (!text.empty()) {
    const size_t at = text.find("$(");
    on_text(text.substr(0, at));
    if (at == text.npos) break;
    size_t end = at + 2;
    for (int open = 1; end < text.size() && (open += (text[end] == '(') - (text[end] == ')'));
         ++end) {
    }
    if (end == text.size())
      return tl::unexpected(FormulaError{at, "\"$(\" without its closing parenthesis", ""});
    auto e = parse_formula(text.substr(at + 2, end - at - 2));
    if (!e) return tl::unexpected(e.error());
    if (auto ok = on_expression(**e); !ok) return ok;
    text.remove_prefix(end + 1);
  }
  return true;
}

/// A call that the body refuses stops the writing.
constexpr std::string_view kRefused = "refused";
constexpr size_t kMaxWritten = 1 << 24;  ///< an attribute may be the bound of a repetition

Evaluated<bool> write_parts(const std::vector<FunctionText::Part>& parts, Evaluator& with,
                            std::string& out) {
  for (const FunctionText::Part& p : parts) {
    if (!p.refusal.empty())
      return tl::unexpected(FormulaError{0, std::string(kRefused), p.refusal});
    if (!p.counter.empty()) {
      auto end = with.number(*p.condition);
      if (!end) return tl::unexpected(end.error());
      for (int k = 0; k < *end; ++k) {
        if (out.size() > kMaxWritten)
          return wrong(*p.condition, fmt::format("the text grows beyond {} bytes", kMaxWritten));
        with.counters[p.counter] = k;
        if (auto ok = write_parts(p.then, with, out); !ok) return ok;
      }
      continue;
    }
    if (p.condition) {
      auto yes = with.truth(*p.condition);
      if (!yes) return yes;
      if (auto ok = write_parts(*yes ? p.then : p.otherwise, with, out); !ok) return ok;
      continue;
    }
    out += "  ";
    auto ok = each_part(
        p.text, [&](std::string_view text) { out += text; },
        [&](const FormulaExpr& e) -> Evaluated<bool> {
          auto v = with.value(e);
          if (!v) return tl::unexpected(v.error());
          out += written(*v);
          return true;
        });
    if (!ok) return ok;
    out += '\n';
  }
  return true;
}

std::vector<FunctionText::Part> read_parts(const yaml::Node& n, yaml::Reader& r) {
  std::vector<FunctionText::Part> out;
  const auto read = [&](const yaml::Node& item) {
    FunctionText::Part& p = out.emplace_back();
    if (!item.is_map()) {
      p.text = r.string(item);
      auto ok = each_part(
          p.text, [](std::string_view) {},
          [](const FormulaExpr&) { return Evaluated<bool>(true); });
      if (!ok) r.error(item, ok.error().message, ok.error().hint, Code::formula_invalid);
      return;
    }
    if (const yaml::Node* refusal = item.find("refuse")) {
      r.keys(item, {"refuse"});
      p.refusal = r.string(*refusal);
      return;
    }
    const yaml::Node* counter = item.find("for");
    if (counter) {
      r.keys(item, {"for", "below", "do"});
      p.counter = r.string(*counter);
    } else {
      r.keys(item, {"if", "then", "else"});
    }
    if (const yaml::Node* v = r.required(item, counter ? "below" : "if")) {
      const std::string text = r.string(*v);
      if (auto e = parse_formula(text))
        p.condition = *e;
      else
        r.error_in(*v, e.error().offset, e.error().message, e.error().hint, Code::formula_invalid);
    }
    if (const yaml::Node* v = r.required(item, counter ? "do" : "then")) p.then = read_parts(*v, r);
    if (const yaml::Node* v = item.find("else")) p.otherwise = read_parts(*v, r);
  };
  if (!n.is_sequence())
    read(n);
  else
    for (const yaml::Node& item : n.items) read(item);
  return out;
}

}  // namespace

void read_function(const yaml::Node& n, yaml::Reader& r, FunctionText& f) {
  if (const yaml::Node* v = r.required(n, "out")) f.outputs = r.strings(*v);
  if (const yaml::Node* v = r.required(n, "body")) f.body = read_parts(*v, r);
}

Result<std::string> text_of(const FunctionText& f, const FunctionCall& call,
                            const std::string& where) {
  for (const std::string& name : f.required)
    if (!call.attrs.count(name)) return error(Code::bad_attribute, where, name, "it is missing");
  std::vector<std::string> inputs;
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    const std::string base(input_name(f.inputs[k]));
    if (!is_variadic(f.inputs[k]))
      inputs.push_back(base);
    else
      for (size_t i = k; i < call.present.size(); ++i)
        inputs.push_back(fmt::format("{}{}", base, i - k));
  }
  std::string out = fmt::format("{} <{}> ({}) => ({}) {{\n", f.op, fmt::join(f.optional, ", "),
                                fmt::join(inputs, ", "), fmt::join(f.outputs, ", "));
  if (f.optional.empty()) out.erase(f.op.size(), 3);
  Evaluator with(f, call);
  auto ok = write_parts(f.body, with, out);
  if (!ok && ok.error().message == kRefused)
    return fail(
        required(Refusal(not_applicable(where, f.domain + "." + f.op, ok.error().hint).value())));
  if (!ok)
    return error(Code::formula_invalid, f.place,
                 fmt::format("function {}: {}", f.op, ok.error().message), ok.error().hint);
  return out + "}\n";
}

}  // namespace ferrule
