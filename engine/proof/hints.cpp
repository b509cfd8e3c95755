#include "engine/proof/hints.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/onnx/schema.h"
#include "engine/rule/expr_ast.h"

namespace ferrule {
namespace {

class HintCollector {
 public:
  HintCollector(Hints& out, const Semantics& ops) : out_(out), ops_(ops) {}

  void expression(const Expr& e) {
    static const std::set<std::string, std::less<>> kSurroundings{"uses", "users_all", "is_output",
                                                                  "is_input", "depends"};
    if (e.kind == Expr::Kind::call && kSurroundings.contains(e.name)) out_.surroundings = true;
    if (e.kind == Expr::Kind::call && e.name == "users_all" && e.args.size() > 1)
      readers(*e.args[1]);
    if (e.kind == Expr::Kind::call && e.name == "attr" && e.args.size() > 1)
      if (const auto* name = std::get_if<std::string>(&e.args[1]->literal.v))
        out_.asked.insert(*name);
    if (e.kind == Expr::Kind::literal) literal(e.literal);
    if (e.kind == Expr::Kind::list) list(e);
    if (e.kind == Expr::Kind::negate && e.args[0]->kind == Expr::Kind::literal)
      if (const auto* d = std::get_if<double>(&e.args[0]->literal.v)) number(-*d);
    for (const ExprPtr& a : e.args) expression(*a);
  }
  void pattern(const PatternExpr& e) {
    if (e.kind == PatternExpr::Kind::number) number(e.number);
    if (e.expression) expression(*e.expression);
    for (const AttrPattern& a : e.attrs) {
      if (a.expression) expression(*a.expression);
      if (const auto* d = std::get_if<double>(&a.literal)) number(*d);
      if (a.kind == AttrPattern::Kind::bind) out_.asked.insert(a.name);
    }
    out_.open_attributes |= e.any_attrs;
    if (e.any_attrs)
      for (const std::string& op : e.ops) out_.modes = std::max(out_.modes, modes(e, op));
  }
  void graph(const Graph& g) {
    for (NodeId n : g.order())
      for (const auto& [key, value] : g.node(n).attrs.items()) attribute(key, value);
    for (ValueId v : g.constants()) {
      const Tensor* t = g.constant(v);
      if (t->numel() > 64 || t->dtype() == DType::string) continue;
      if (std::ranges::none_of(out_.constants,
                               [&](const Tensor& have) { return have.identical(*t); }))
        out_.constants.push_back(*t);
      if (is_int(t->dtype()) && t->rank() == 1) add(t->to_i64());
      if (t->numel() == 1) number(t->at_f64(0));
    }
  }

 private:
  /// "Conv|Relu|@activation".
  void readers(const Expr& e) {
    const auto* all = std::get_if<std::string>(&e.literal.v);
    if (e.kind != Expr::Kind::literal || !all) return;
    for (size_t at = 0; at <= all->size();) {
      const size_t end = std::min(all->find('|', at), all->size());
      const std::string one = all->substr(at, end - at);
      at = end + 1;
      if (operator_schema("", one)) out_.readers.push_back(one);
      if (!one.starts_with('@')) continue;
      for (const auto& [key, f] : ops_.all())
        if (contains(f.classes, one.substr(1)) && operator_schema("", key))
          out_.readers.push_back(key);
    }
  }
  static size_t modes(const PatternExpr& e, const std::string& op) {
    size_t all = 1;
    if (const OperatorSchema* s = operator_schema("", op))
      for (const AttributeSchema& a : s->attributes)
        if (a.kind == AttributeSchema::Kind::text &&
            std::ranges::find(e.attrs, a.name, &AttrPattern::name) == e.attrs.end())
          all *= std::max<size_t>(words_of(op, a.name).size(), 1);
    return all;
  }
  void literal(const Val& v) {
    if (auto* i = std::get_if<int64_t>(&v.v)) number(static_cast<double>(*i));
    if (auto* d = std::get_if<double>(&v.v)) number(*d);
    if (auto* s = std::get_if<std::string>(&v.v); s && operator_schema("", *s))
      out_.operators.push_back(*s);
    if (auto* l = std::get_if<std::shared_ptr<Val::List>>(&v.v))
      for (const Val& x : **l) literal(x);
  }
  void list(const Expr& e) {
    std::vector<int64_t> all;
    for (const ExprPtr& a : e.args)
      if (auto* i = a->kind == Expr::Kind::literal ? std::get_if<int64_t>(&a->literal.v) : nullptr)
        all.push_back(*i);
    if (!all.empty() && all.size() == e.args.size()) add(std::move(all));
  }
  void number(double d) {
    if (std::ranges::none_of(out_.numbers, [&](double have) {
          return have == d || (std::isnan(have) && std::isnan(d));
        }))
      out_.numbers.push_back(d);
  }
  void add(std::vector<int64_t> list) {
    if (!contains(out_.lists, list)) out_.lists.push_back(std::move(list));
  }
  void attribute(const std::string& key, const Attr& value) {
    auto& all = out_.attributes[key];
    if (std::ranges::none_of(all, [&](const Attr& have) { return same_attr(have, value); }))
      all.push_back(value);
  }

  Hints& out_;
  const Semantics& ops_;
};

/// By "Operator.attribute", else by the attribute alone; empty: neither is there.
template <class T>
const std::vector<T>& of_attribute(const std::map<std::string, std::vector<T>, std::less<>>& all,
                                   std::string_view op, std::string_view attribute) {
  static const std::vector<T> none;
  auto it = all.find(fmt::format("{}.{}", op, attribute));
  if (it == all.end()) it = all.find(attribute);
  return it == all.end() ? none : it->second;
}

/// Whether it makes numbers of another type: sums, counts and places may not fit it.
bool makes_another_type(const PatternExpr& e) {
  return std::ranges::any_of(e.ops, [](const std::string& op) {
    const OperatorSchema* s = operator_schema("", op);
    if (!s || s->inputs.empty() || s->outputs.empty()) return false;
    const OperandSchema& y = s->outputs[0];
    return y.types != std::vector{DType::boolean} && y.variable != s->inputs[0].variable;
  });
}

/// The largest number that may say how many bytes a tensor has.
constexpr double kBytes = 8.0 * kMostElements;

}  // namespace

Hints hints_of(const Rule& rule, const std::vector<const Graph*>& cases, const Semantics& ops) {
  Hints out;
  out.numbers = {0, 1, 2, 0.5, -1};
  HintCollector collect(out, ops);
  for (const Condition& c : rule.where)
    if (c.expr) collect.expression(*c.expr);
  for (const auto& [_, e] : rule.let) collect.expression(*e);
  for (const RoleSpec& role : rule.roles)
    if (role.number) collect.expression(*role.number.expr);
  for (double d : out.numbers)
    if (d > 3 && d <= kBytes && d == std::floor(d))
      for (int64_t by : {-1, 0, 1}) {
        const int64_t n = static_cast<int64_t>(d) + by;
        (d <= 300 ? out.sizes : d <= 2100 ? out.long_sizes : out.longest_sizes).push_back(n);
        for (const int64_t bytes : {2, 4, 8})  // it may be one of a tensor
          if (d > 2100 && by) out.longest_sizes.push_back(n / bytes + by);
      }
  std::erase_if(out.longest_sizes, [](int64_t n) { return n > kMostElements; });
  for (const PatternLine& l : rule.match.lines)
    each_expr(*l.expr, [&](const PatternExpr& e) {
      collect.pattern(e);
      out.converts |= makes_another_type(e);
    });
  const auto [open, modes] = std::pair(out.open_attributes, out.modes);
  for (const PatternLine& l : rule.rewrite.lines)
    each_expr(*l.expr, [&](const PatternExpr& e) {
      collect.pattern(e);
      out.converts |= makes_another_type(e);
    });
  // A size, a count or a place that an integer of 8 or 16 bits, bf16 or f16 does not hold; sums of
  // integers that f32 does not; sums of 16-bit integers and of products of 8-bit ones (either sign)
  // that an integer of 32 bits does not; numbers of which nothing is left in 8 or 16 bits.
  if (out.converts) {
    out.long_sizes.insert(out.long_sizes.end(), {130, 256, 260, 2195});
    out.longest_sizes.insert(out.longest_sizes.end(), {33100, 65536, 65800, 132000});
  }
  out.open_attributes = open, out.modes = modes;
  for (const Graph* g : cases) collect.graph(*g);
  return out;
}

const std::vector<std::string>& words_of(std::string_view op, std::string_view attribute) {
  using Words = std::vector<std::string>;
  static const std::map<std::string, Words, std::less<>> all{
      {"activations", {"Relu", "HardSigmoid", "Elu", "Softsign", "Tanh", "Sigmoid"}},
      {"approximate", {"none", "tanh"}},
      {"auto_pad", {"NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"}},
      {"BitShift.direction", {"LEFT", "RIGHT"}},
      {"Resize.coordinate_transformation_mode",
       {"half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
        "tf_crop_and_resize", "tf_half_pixel_for_nn"}},
      {"RoiAlign.coordinate_transformation_mode", {"half_pixel", "output_half_pixel"}},
      {"direction", {"forward", "reverse", "bidirectional"}},
      {"equation",
       {"ii->i", "ij,ji->i", "i,j->ij", "i,j->ji", "ij,ij->i", "ij->", "bij,bij->b", "ij->ji",
        "ij,jk->ik", "bij,bjk->bik", "ij,kj->ik", "i,i->", "ij->i", "bhqd,bhkd->bhqk", "ijk->kij"}},
      {"keep_aspect_ratio_policy", {"stretch", "not_larger", "not_smaller"}},
      {"DepthToSpace.mode", {"DCR", "CRD"}},
      {"GridSample.mode", {"linear", "nearest", "cubic"}},
      {"Pad.mode", {"constant", "reflect", "edge", "wrap"}},
      {"Resize.mode", {"nearest", "linear", "cubic"}},
      {"RoiAlign.mode", {"avg", "max"}},
      {"nearest_mode", {"round_prefer_floor", "round_prefer_ceil", "floor", "ceil"}},
      {"padding_mode", {"zeros", "border", "reflection"}},
      {"NegativeLogLikelihoodLoss.reduction", {"none", "mean", "sum"}},
      {"SoftmaxCrossEntropyLoss.reduction", {"none", "mean", "sum"}},
      {"reduction", {"none", "add", "mul", "max", "min"}},
      {"round_mode", {"up", "down", "nearest"}},
  };
  return of_attribute(all, op, attribute);
}

const std::vector<int64_t>& numbers_of(std::string_view op, std::string_view attribute) {
  static const auto all = [] {
    std::map<std::string, std::vector<int64_t>, std::less<>> out{
        {"LpNormalization.p", {1, 2}}, {"qk_matmul_output_mode", {0, 1, 2, 3}}};
    for (const char* flag : {"align_corners",
                             "allowzero",
                             "antialias",
                             "batch_axis",
                             "ceil_mode",
                             "center_point_box",
                             "count_include_pad",
                             "detect_negative",
                             "detect_positive",
                             "exclude_outside",
                             "exclusive",
                             "fmod",
                             "input_forget",
                             "interleaved",
                             "inverse",
                             "is_case_sensitive",
                             "is_causal",
                             "keepdims",
                             "largest",
                             "layout",
                             "linear_before_reset",
                             "new_axis",
                             "noop_with_empty_axes",
                             "onesided",
                             "periodic",
                             "reverse",
                             "saturate",
                             "select_last_index",
                             "sorted",
                             "storage_order",
                             "time_axis",
                             "training_mode",
                             "transA",
                             "transB",
                             "upper"})
      out.emplace(flag, std::vector<int64_t>{0, 1});
    return out;
  }();
  return of_attribute(all, op, attribute);
}

}  // namespace ferrule
