#include "engine/proof/meaning.h"

#include <algorithm>
#include <numeric>

#include "engine/base/diagnostics.h"
#include "engine/contract/roles.h"
#include "engine/match/facts.h"
#include "engine/rewrite/rewrite.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

class Meaning {
 public:
  Meaning(const Node& group, const Contract& contract, const Semantics& ops, const Limits& limits)
      : group_(group), body_(*group.body), c_(contract), ops_(ops), limits_(limits) {}

  Result<std::shared_ptr<const Graph>> run() {
    for (ValueId v : body_.inputs()) {
      const Value& from = body_.value(v);
      inputs_.push_back(g_.add_input(from.name, from.constant ? Type{} : from.type));
      if (from.constant) g_.set_constant(inputs_.back(), *from.constant);
    }
    Rule rule;
    rule.id = c_.id;
    rule.rewrite = c_.means;
    Match m{&rule, {}, {}, {}, {}, {}};
    Node all;
    all.op = "means", all.domain = "ferrule", all.name = c_.id;
    for (const ContractRole& role : c_.roles) {
      const RoleTensor* t = group_.roles->tensor(role.name);
      ValueId& v = m.bindings.values[role.name];
      if (!t) continue;
      if (role.result) {
        rule.match.outputs.push_back(role.name);
        FERRULE_ASSIGN(v, result(*t, role.name));
        all.outputs.push_back(v);
        m.outputs.push_back(v);
      } else {
        FERRULE_ASSIGN(v, view(inputs_[t->slot], *t));
        all.inputs.push_back(v);
      }
    }
    for (const std::string& name : c_.formulas) m.bindings.formulas[name];
    for (const auto& [name, graph] : group_.roles->formulas) m.bindings.formulas[name] = graph;
    for (const auto& [name, value] : group_.roles->numbers) m.let.emplace_back(name, Val{value});
    m.root = g_.add_node(std::move(all));
    m.nodes = {m.root};
    FERRULE_TRY(outputs());
    FERRULE_TRY(apply_rewrite(g_, m, ops_, limits_));
    g_.remove_dead();
    FERRULE_TRY(g_.sort());
    return std::make_shared<const Graph>(std::move(g_));
  }

 private:
  /// The parts of a role's axes, in the order in which they lie in the operand, and the sizes.
  struct Parts {
    std::vector<AxisPart> parts;  ///< in the role's order
    std::vector<int64_t> order;   ///< of the operand: numbers of parts
    Shape dims, once;             ///< the role's, and without repetition
  };
  static Parts parts_of(const RoleTensor& t) {
    Parts out;
    for (size_t k = 0; k < t.axes.size(); ++k) {
      out.dims.emplace_back(1), out.once.emplace_back(1);
      for (const AxisPart& part : t.axes[k]) {
        out.dims.back() = out.dims.back() * part.size;
        if (part.axis == AxisPart::kRepeated) continue;
        out.parts.push_back(part);
        out.once.back() = out.once.back() * part.size;
      }
    }
    out.order.resize(out.parts.size());
    std::iota(out.order.begin(), out.order.end(), 0);
    std::ranges::sort(out.order, [&](int64_t a, int64_t b) {
      const AxisPart &x = out.parts[a], &y = out.parts[b];
      if (x.axis != y.axis) return x.axis < y.axis;
      return x.stride.value_or(1) > y.stride.value_or(1);
    });
    return out;
  }

  Result<ValueId> node(std::string op, std::vector<ValueId> inputs, Attrs attrs) {
    Node n;
    n.op = std::move(op), n.attrs = std::move(attrs);
    n.inputs = std::move(inputs);
    const ValueId out = g_.add_value(g_.fresh_name("view"));
    n.outputs = {out};
    fill_defaults(n, ops_);
    FERRULE_ASSIGN(Inferred types, infer_node(ops_, g_, n));
    g_.set_type(out, types.types[0]);
    g_.add_node(std::move(n));
    return out;
  }
  Result<ValueId> reshape(ValueId v, const Shape& dims) {
    const auto& have = g_.value(v).type.shape;
    return have && *have == dims ? Result<ValueId>(v) : with_dims("Reshape", v, dims);
  }
  Result<ValueId> with_dims(std::string op, ValueId v, const Shape& dims) {
    const auto sizes = constant_shape(dims);
    if (!sizes)
      return error(Code::rewrite_declined, c_.id, std::string("a size of a view is not known"));
    Attrs attrs;
    if (op == "Reshape") attrs.set("allowzero", int64_t{1});
    Tensor t = Tensor::of_i64({std::ssize(*sizes)}, *sizes);
    return node(std::move(op), {v, g_.add_constant(g_.fresh_name("dims"), std::move(t))},
                std::move(attrs));
  }
  Result<ValueId> transpose(ValueId v, std::vector<int64_t> perm) {
    if (std::ranges::is_sorted(perm)) return v;
    Attrs attrs;
    attrs.set("perm", std::move(perm));
    return node("Transpose", {v}, std::move(attrs));
  }
  static std::vector<int64_t> inverse(const std::vector<int64_t>& perm) {
    std::vector<int64_t> out(perm.size());
    for (size_t k = 0; k < perm.size(); ++k) out[perm[k]] = static_cast<int64_t>(k);
    return out;
  }
  static Shape sizes(const Parts& p, const std::vector<int64_t>& order) {
    Shape out;
    for (int64_t k : order) out.push_back(p.parts[k].size);
    return out;
  }
  static std::vector<int64_t> as_they_are(const Parts& p) {
    std::vector<int64_t> out(p.order.size());
    std::iota(out.begin(), out.end(), 0);
    return out;
  }

  /// Whether role and operand have the same axes, in another order at most: no sizes are needed.
  static bool only_turned(const RoleTensor& t, const Parts& p, size_t rank) {
    return p.parts.size() == rank && t.axes.size() == rank && p.once == p.dims &&
           std::ranges::all_of(p.parts, [](const AxisPart& x) { return x.stride == Dim(1); });
  }

  Result<ValueId> view(ValueId operand, const RoleTensor& t) {
    const Parts p = parts_of(t);
    const std::vector<int64_t> turn = inverse(p.order);
    const Shape& own = *g_.value(operand).type.shape;
    if (only_turned(t, p, own.size())) return transpose(operand, turn);
    FERRULE_ASSIGN(ValueId v, reshape(operand, sizes(p, p.order)));
    FERRULE_ASSIGN(v, transpose(v, turn));
    FERRULE_ASSIGN(v, reshape(v, p.once));
    return p.once == p.dims ? Result<ValueId>(v) : with_dims("Expand", v, p.dims);
  }

  /// The result under the role's axes, still to be made.
  Result<ValueId> result(const RoleTensor& t, const std::string& name) {
    const Type& type = body_.value(body_.outputs()[t.slot]).type;
    const ValueId v = g_.add_value(g_.fresh_name(name), {type.dtype, parts_of(t).dims});
    results_.emplace_back(&t, v);
    return v;
  }
  Status outputs() {
    std::vector<ValueId> out(body_.outputs().size());
    for (const auto& [t, value] : results_) {
      const Parts p = parts_of(*t);
      const Shape& own = *body_.value(body_.outputs()[t->slot]).type.shape;
      ValueId v = value;
      if (!only_turned(*t, p, own.size())) {
        FERRULE_ASSIGN(v, reshape(v, sizes(p, as_they_are(p))));
      }
      FERRULE_ASSIGN(v, transpose(v, p.order));
      FERRULE_ASSIGN(out[t->slot], reshape(v, own));
    }
    for (ValueId v : out) g_.add_output(v);
    return {};
  }

  const Node& group_;
  const Graph& body_;
  const Contract& c_;
  const Semantics& ops_;
  const Limits& limits_;
  Graph g_;
  std::vector<ValueId> inputs_;
  std::vector<std::pair<const RoleTensor*, ValueId>> results_;
};

}  // namespace

Result<std::shared_ptr<const Graph>> meaning(const Node& group, const Contract& contract,
                                             const Semantics& ops, const Limits& limits) {
  return Meaning(group, contract, ops, limits).run();
}

}  // namespace ferrule
