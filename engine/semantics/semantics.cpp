// Loading rules/ops/*.yaml into the table.
#include "engine/semantics/semantics.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/limits.h"
#include "engine/base/suggest.h"
#include "engine/base/yaml.h"
#include "engine/semantics/formula.h"
#include "engine/semantics/formula_check.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/meets.h"
#include "engine/semantics/region_programs.h"

namespace ferrule {
namespace {

using yaml::Reader;

std::string key_of(std::string_view domain, std::string_view op) {
  return domain.empty() ? std::string(op) : fmt::format("{}::{}", domain, op);
}

/// "float" -> f16, bf16, f32, f64; "int", "signed", "unsigned", "float8", "numeric", "bool", "any",
/// or one type.
bool add_types(std::string_view word, std::vector<DType>& out) {
  auto add = [&](std::initializer_list<DType> types) {
    for (DType t : types)
      if (!contains(out, t)) out.push_back(t);
    return true;
  };
  if (word == "float") return add({DType::f32, DType::f16, DType::bf16, DType::f64});
  if (word == "float8")
    return add({DType::f8e4m3fn, DType::f8e4m3fnuz, DType::f8e5m2, DType::f8e5m2fnuz});
  if (word == "signed") return add({DType::i8, DType::i16, DType::i32, DType::i64});
  if (word == "unsigned") return add({DType::u8, DType::u16, DType::u32, DType::u64});
  if (word == "int") return add_types("signed", out) && add_types("unsigned", out);
  if (word == "numeric") return add_types("float", out) && add_types("int", out);
  if (word == "any") return add_types("numeric", out) && add({DType::boolean});
  if (word == "bool") return add({DType::boolean});
  auto t = parse_dtype(word);
  return t && name(*t) == word && add({*t});
}

void collect_names(const FormulaExpr& e, std::set<std::string>& out) {
  bool only_type = e.kind == FormulaExpr::Kind::builtin && e.builtin >= Builtin::present &&
                   e.builtin <= Builtin::is_bool;
  if (e.kind == FormulaExpr::Kind::name) out.insert(e.word);
  if (!only_type)
    for (const auto& a : e.args) collect_names(*a, out);
}

class EntryReader {
 public:
  EntryReader(Reader& r, const yaml::Node& n) : r_(r), n_(n) {}

  OpFormula read() {
    r_.keys(n_, {"op", "domain", "in", "attrs", "out", "let", "expr", "row", "channel", "class",
                 "types", "source", "doc", "replaces"});
    if (const yaml::Node* v = r_.required(n_, "op")) f_.op = r_.string(*v);
    if (const yaml::Node* v = n_.find("domain")) f_.domain = r_.string(*v);
    if (f_.domain == "ai.onnx") f_.domain.clear();
    f_.place = r_.source().place(n_.line, n_.column);
    if (const yaml::Node* v = r_.required(n_, "in")) inputs(*v);
    if (const yaml::Node* v = n_.find("attrs")) attributes(*v);
    if (const yaml::Node* v = n_.find("out")) out_type(*v);
    if (const yaml::Node* v = n_.find("row")) row(*v);
    if (const yaml::Node* v = n_.find("channel")) f_.channel = r_.strings(*v);
    if (const yaml::Node* v = n_.find("class")) f_.classes = r_.strings(*v);
    if (const yaml::Node* v = n_.find("types")) types(*v);
    if (const yaml::Node* v = n_.find("source")) f_.source = r_.string(*v);
    if (const yaml::Node* v = n_.find("replaces")) replaces = r_.boolean(*v);
    if (const yaml::Node* v = n_.find("let")) lets(*v);
    if (const yaml::Node* v = r_.required(n_, "expr"))
      f_.expr = formula(*v, "expr", f_.let.size(), &f_);
    derive();
    return std::move(f_);
  }

  /// The same for an operator that is written in other ones.
  FunctionText read_function() {
    r_.keys(n_, {"op", "domain", "in", "out", "attrs", "body", "source", "doc"});
    if (const yaml::Node* v = r_.required(n_, "op")) f_.op = r_.string(*v);
    if (const yaml::Node* v = r_.required(n_, "domain")) f_.domain = r_.string(*v);
    if (const yaml::Node* v = r_.required(n_, "in")) inputs(*v);
    if (const yaml::Node* v = n_.find("attrs")) attributes(*v);
    FunctionText out{f_.op, f_.domain, f_.inputs, {}, f_.attrs, f_.required, optional_, {}, {}, {}};
    if (const yaml::Node* v = n_.find("source")) out.source = r_.string(*v);
    out.place = r_.source().place(n_.line, n_.column);
    ferrule::read_function(n_, r_, out);
    return out;
  }

  bool replaces = false;  ///< the entry says that it stands for an earlier one of its operator

 private:
  void inputs(const yaml::Node& v) {
    if (!r_.expect(v, yaml::Node::Kind::sequence, "in")) return;
    for (const yaml::Node& item : v.items) {
      std::string s = r_.string(item);
      std::string_view base = input_name(s);
      bool word = !base.empty() && std::ranges::all_of(base, [](unsigned char c) {
        return std::isalnum(c) || c == '_';
      });
      std::string_view marks = std::string_view(s).substr(base.size());
      if (f_.inputs.empty() || n_.find("row") || n_.find("body")) {
        // No other input is spread over the first, or there is no formula for one element.
      } else if (marks.starts_with("[]")) {
        marks.remove_prefix(2);
      } else if (const std::string first = fmt::format("[{}]", input_name(f_.inputs[0]));
                 marks.starts_with(first)) {
        marks.remove_prefix(first.size());
      }
      const bool shaped = marks.size() < s.size() - base.size();
      if (!word || (!marks.empty() && marks != "?" && (marks != "..." || shaped)))
        r_.error(item, fmt::format("\"{}\" is not an input", escape(s)),
                 "write x, x? or xs...; k[]: one element, k[x]: it broadcasts to x, the first");
      if (!f_.inputs.empty() && is_variadic(f_.inputs.back()))
        r_.error(item, "an input behind a variadic one", "");
      f_.inputs.push_back(std::move(s));
    }
    if (v.items.empty()) r_.error(v, "an operator without inputs", "");
  }

  void attributes(const yaml::Node& v) {
    if (!r_.expect(v, yaml::Node::Kind::map, "attrs")) return;
    for (const auto& [key, value] : v.entries) {
      if (!value.is_scalar()) {
        r_.error(value, fmt::format("{} where a number, a quoted text or `required` is wanted",
                                    yaml::name(value.kind)));
      } else if (value.quoted) {
        f_.attrs[key.text] = value.text;
      } else if (value.text == "required") {
        f_.required.push_back(key.text);
      } else if (value.text == "optional" && n_.find("body")) {
        optional_.push_back(key.text);
      } else if (auto i = yaml::parse_integer(value.text)) {
        f_.attrs[key.text] = *i;
      } else if (auto d = yaml::parse_number(value.text)) {
        f_.attrs[key.text] =
            static_cast<double>(static_cast<float>(*d));  // ONNX's attributes are f32
      } else {
        r_.error(value,
                 fmt::format("\"{}\" is neither a number nor `required`", escape(value.text)),
                 "quote a text");
      }
    }
  }

  void out_type(const yaml::Node& v) {
    f_.out_type = r_.string(v);
    std::string_view s = f_.out_type;
    bool ok = false;
    if (s.starts_with("attr:")) {
      std::string a(s.substr(5));
      ok = f_.attrs.count(a) || contains(f_.required, a);
    } else if (s.starts_with("in:")) {
      auto k = yaml::parse_integer(s.substr(3));
      ok = k && *k >= 0 && *k < std::ssize(f_.inputs);
    } else {
      auto t = parse_dtype(s);
      ok = t && name(*t) == s;
    }
    if (!ok)
      r_.error(v, fmt::format("\"{}\" is not a result type", escape(s)),
               "write an element type, attr:NAME or in:NUMBER");
  }

  void row(const yaml::Node& v) {
    f_.row = r_.string(v);
    const std::string_view s = f_.row;
    if (s != "axis" && s != "from axis" && s != "spatial" && s != "groups" && s != "axes" &&
        !s.starts_with("axes "))
      r_.error(v, fmt::format("\"{}\" does not say what a row is", escape(s)),
               "write axis, from axis, axes, spatial or groups");
    if (s.starts_with("axes "))
      for (char c : s.substr(5))
        if (!std::isdigit(static_cast<unsigned char>(c)) && c != ' ' && c != '-')
          return r_.error(v, "axes are numbers", "write axes 0 2 3");
  }

  void types(const yaml::Node& v) {
    for (const std::string& w : r_.strings(v))
      if (!add_types(w, f_.types))
        r_.error(v, fmt::format("\"{}\" is not an element type", escape(w)),
                 "a type, or float, int, signed, unsigned, float8, numeric, bool, any");
  }

  void lets(const yaml::Node& v) {
    if (!r_.expect(v, yaml::Node::Kind::map, "let")) return;
    for (const auto& [key, value] : v.entries) {
      FormulaExprPtr e = formula(value, "let", f_.let.size(), nullptr);
      if (!e) continue;
      f_.let.emplace_back(key.text, e);
      for (const FormulaError& err : check_names(f_, f_.let.size() - 1))
        r_.error_in(value, err.offset, err.message, err.hint, Code::formula_invalid);
    }
  }

  FormulaExprPtr formula(const yaml::Node& v, std::string_view what, size_t let,
                         OpFormula* complete) {
    size_t before = r_.count();
    std::string text = r_.quoted(v, what);
    if (r_.count() != before) return nullptr;
    auto e = parse_formula(text);
    if (!e) {
      r_.error_in(v, e.error().offset, e.error().message, e.error().hint, Code::formula_invalid);
      return nullptr;
    }
    if (complete) {
      complete->expr = *e;
      for (const FormulaError& err : check_names(*complete, let))
        r_.error_in(v, err.offset, err.message, err.hint, Code::formula_invalid);
    }
    return *e;
  }

  /// Which inputs are data, and the classes that follow from the inputs.
  void derive() {
    std::set<std::string> used;
    if (f_.expr) collect_names(*f_.expr, used);
    for (const auto& [n, e] : f_.let) collect_names(*e, used);
    size_t data = 0;
    for (const std::string& in : f_.inputs) {
      f_.data.push_back(used.count(std::string(input_name(in))) > 0 || is_variadic(in));
      data += f_.data.back();
    }
    if (f_.types.empty()) add_types("numeric", f_.types);
    bool variadic = !f_.inputs.empty() && is_variadic(f_.inputs.back());
    auto add = [&](std::string_view c) {
      if (!contains(f_.classes, c)) f_.classes.emplace_back(c);
    };
    add(f_.pointwise() ? "pointwise" : "row");
    if (!f_.pointwise()) {
      f_.one_a_row = f_.expr && !reads_elements(*f_.expr);
      return;
    }
    if (variadic)
      add("variadic");
    else if (data == 1)
      add("unary");
    else if (data == 2)
      add("binary");
  }

  /// Whether an operand's elements are read outside of reductions over the row.
  bool reads_elements(const FormulaExpr& e) const {
    using Kind = FormulaExpr::Kind;
    if (e.kind == Kind::name) {
      auto let = std::ranges::find(f_.let, e.word, [](const auto& l) { return l.first; });
      return let != f_.let.end()
                 ? reads_elements(*let->second)
                 : std::ranges::find(f_.inputs, e.word, input_name) != f_.inputs.end();
    }
    const bool asks =
        e.kind == Kind::builtin &&
        (is_row(e.builtin) || (e.builtin >= Builtin::present && e.builtin <= Builtin::count));
    if (asks) return false;
    // A cast's second argument is a type.
    const size_t read = e.kind == Kind::builtin && e.builtin == Builtin::cast ? 1 : e.args.size();
    return std::any_of(e.args.begin(),
                       e.args.begin() + static_cast<ptrdiff_t>(std::min(read, e.args.size())),
                       [&](const FormulaExprPtr& a) { return reads_elements(*a); });
  }

  Reader& r_;
  const yaml::Node& n_;
  OpFormula f_;
  std::vector<std::string> optional_;  ///< attributes, of functions
};

using Map = std::map<std::string, OpFormula, std::less<>>;
using FunctionMap = std::map<std::string, FunctionText, std::less<>>;

/// Whether what knows the operators only by their operands and results (inference, shapes) may take
/// one for the other.
bool same_signature(const OpFormula& a, const OpFormula& b) {
  auto same = [](const std::string& x, const std::string& y) {
    return is_optional(x) == is_optional(y) && is_variadic(x) == is_variadic(y);
  };
  for (size_t k = 0; k < a.inputs.size(); ++k)
    if (meets_first(a, k) != meets_first(b, k)) return false;
  return std::ranges::equal(a.inputs, b.inputs, same) && a.data == b.data &&
         a.out_type == b.out_type && a.row == b.row;
}

/// The entry joins those that were read before it; one of its operator's only where it says so. A
/// folder that is given again, behind those that replaced something, has the last word.
void enter(OpFormula f, bool replaces, const yaml::Node& at, Map& all,
           std::set<std::string>& places, Reader& r) {
  const std::string key = key_of(f.domain, f.op);
  const bool again = !places.insert(f.place).second;
  auto it = all.find(key);
  if (again || (it == all.end() && !replaces)) {
    all.insert_or_assign(key, std::move(f));
  } else if (it == all.end()) {
    std::vector<std::string> known;
    for (const auto& [name, _] : all) known.push_back(name);
    r.error(at, fmt::format("there is no operator {} to replace", escape(key)),
            did_you_mean(key, known));
  } else if (const OpFormula& old = it->second; !replaces) {
    r.error(at,
            fmt::format("operator {} is described at {} already", escape(key), escape(old.place)),
            "write `replaces: true` if yours is to stand for it (verify --oracle keeps judging by "
            "the first), or give yours a domain",
            Code::formula_invalid);
  } else if (!old.pointwise()) {
    r.error(at,
            fmt::format("operator {} works on rows, as the interpreter does without its formula: "
                        "it cannot be replaced",
                        escape(key)),
            "give yours a domain", Code::formula_invalid);
  } else if (!same_signature(f, old)) {
    r.error(at,
            fmt::format("operator {} has other operands or another result type than at {}",
                        escape(key), escape(old.place)),
            "what replaces an operator takes and gives what it does; give yours a domain",
            Code::formula_invalid);
  } else {
    it->second = std::move(f);
  }
}

void read_functions(const yaml::Node& list, const Map& all, FunctionMap& functions, Reader& r) {
  if (!r.expect(list, yaml::Node::Kind::sequence, "functions")) return;
  for (const yaml::Node& n : list.items) {
    if (!r.expect(n, yaml::Node::Kind::map, "a function")) continue;
    const size_t before = r.count();
    FunctionText f = EntryReader(r, n).read_function();
    if (r.count() != before) continue;
    const std::string key = key_of(f.domain, f.op);
    const auto formula = all.find(key);
    const auto function = functions.find(key);
    if (formula == all.end() && (function == functions.end() || function->second.place == f.place))
      functions.insert_or_assign(key, std::move(f));
    else
      r.error(n,
              fmt::format(
                  "operator {} is described at {} already", escape(key),
                  escape(formula == all.end() ? function->second.place : formula->second.place)),
              "give yours a domain", Code::formula_invalid);
  }
}

void read_ops(const yaml::Document& doc, Map& all, FunctionMap& functions,
              std::set<std::string>& places, Reader& r) {
  if (!r.expect(doc.root, yaml::Node::Kind::map, "an operator file")) return;
  r.keys(doc.root, {"ferrule", "doc", "ops", "functions"});
  if (const yaml::Node* v = r.required(doc.root, "ferrule");
      v && (doc.root.entries.front().first.text != "ferrule" || v->text != "1"))
    r.error(doc.root, "the file does not begin with \"ferrule: 1\"", "");
  const yaml::Node* written = doc.root.find("functions");
  const yaml::Node* ops = written ? doc.root.find("ops") : r.required(doc.root, "ops");
  if (written) read_functions(*written, all, functions, r);
  if (!ops || !r.expect(*ops, yaml::Node::Kind::sequence, "ops")) return;
  std::set<std::string> seen;
  for (const yaml::Node& n : ops->items) {
    if (!r.expect(n, yaml::Node::Kind::map, "an operator")) continue;
    size_t before = r.count();
    EntryReader entry(r, n);
    OpFormula f = entry.read();
    if (!seen.insert(key_of(f.domain, f.op)).second)
      r.error(n, fmt::format("operator {} is described twice in this file", escape(f.op)), "");
    if (r.count() != before) continue;
    if (auto ok = check_types(f); !ok) r.add(std::move(ok).error());
    enter(std::move(f), entry.replaces, n, all, places, r);
  }
}

std::vector<std::string> op_files(const std::string& dir) {
  std::vector<std::string> files;
  std::error_code none;
  for (const auto& entry :
       std::filesystem::directory_iterator(std::filesystem::path(dir) / "ops", none))
    if (entry.path().extension() == ".yaml") files.push_back(entry.path().string());
  std::ranges::sort(files);
  return files;
}

}  // namespace

Result<Inferred> Semantics::infer_by_schema(const Graph& g, const Node& n) const {
  if (by_schema_) return by_schema_(*this, g, n);
  return error(Code::unknown_operator, node_place(n), escape(n.op, 60), n.since_opset);
}

Result<Semantics> Semantics::load(std::span<const std::string> rule_dirs, BySchema by_schema) {
  Map all;
  FunctionMap functions;
  std::set<std::string> places;
  std::vector<Error> errors;
  for (const std::string& dir : rule_dirs) {
    for (const std::string& file : op_files(dir)) {
      auto doc = yaml::read_file(file, Limits{});
      Status ok = doc ? Status{} : Status(fail(doc.error()));
      if (doc) {
        Reader r(doc->source);
        read_ops(*doc, all, functions, places, r);
        ok = r.status();
      }
      if (!ok) errors.push_back(std::move(ok).error());
    }
  }
  if (errors.empty()) {
    Semantics table(by_schema);
    table.ops_ = std::make_shared<const Map>(std::move(all));
    table.functions_ = std::make_shared<const FunctionMap>(std::move(functions));
    for (const auto& [_, f] : *table.ops_) table.by_op_.emplace(f.op, &f);
    table.programs_ = std::make_shared<RegionPrograms>();
    return table;
  }
  return fail(as_status(std::move(errors)).error());
}

const OpFormula* Semantics::find(std::string_view domain, std::string_view op) const {
  if (domain == "ai.onnx") domain = {};
  for (auto [it, end] = by_op_.equal_range(op); it != end; ++it)
    if (it->second->domain == domain) return it->second;
  return nullptr;
}

const FunctionText* Semantics::function(std::string_view domain, std::string_view op) const {
  const auto it = functions_->find(key_of(domain, op));
  return it == functions_->end() ? nullptr : &it->second;
}

bool Semantics::in_class(const ferrule::Node& n, std::string_view cls) const {
  const OpFormula* f = find(n);
  return f && contains(f->classes, cls);
}

std::vector<std::string> Semantics::class_names() const {
  std::set<std::string> names;
  for (const auto& [key, f] : *ops_) names.insert(f.classes.begin(), f.classes.end());
  return {names.begin(), names.end()};
}

}  // namespace ferrule
