#include "engine/group/bind_roles.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/contract/requirements.h"
#include "engine/group/body.h"
#include "engine/match/match_rule.h"
#include "engine/match/pattern_matcher.h"
#include "engine/semantics/movement.h"

namespace ferrule {
namespace {

/// One tensor role on its way out of the match.
struct Placed {
  const ContractRole* role;
  ValueId value;
  AxisMap axes;    ///< the run's, then the role's own
  size_t run = 0;  ///< axes of the run
};

class Binder {
 public:
  Binder(const Rule& rule, const Match& m, const Let& let, const MatchContext& ctx)
      : rule_(rule),
        m_(m),
        let_(let),
        ctx_(ctx),
        g_(ctx.graph),
        members_(m.nodes.begin(), m.nodes.end()) {}

  std::variant<BoundRoles, Rejection> run() {
    for (const RoleSpec& spec : rule_.roles) {
      const ContractRole* role = rule_.kernel->role(spec.role);
      const bool bound = role ? tensor(spec, *role) : spec.number ? number(spec) : formula(spec);
      if (!bound) return std::move(*refused_);
    }
    for (const auto& [name, value] : rule_.kernel->numbers)
      if (!roles_.numbers.contains(name)) give_number(name, value);
    if (!cut() || !give_names() || !contract_takes()) return std::move(*refused_);
    shrink();
    if (out_.body->outputs.size() > 1 && !convex(g_, out_.nodes))
      return refuse("results", "a path leaves the group and comes back"), std::move(*refused_);
    if (!give_slots()) return std::move(*refused_);
    out_.roles = std::make_shared<const Roles>(std::move(roles_));
    return std::move(out_);
  }

 private:
  template <class... Args>
  bool refuse(std::string_view role, fmt::format_string<Args...> why, Args&&... args) {
    refused_.emplace();
    refused_->rule = &rule_;
    refused_->root = m_.root;
    refused_->stage = Rejection::Stage::condition;
    refused_->cls = ConditionClass::kernel;
    refused_->id = fmt::format("{}.{}", rule_.contract, role);
    refused_->matched_nodes = static_cast<int>(m_.nodes.size());
    if (ctx_.explain) refused_->why = fmt::format(why, std::forward<Args>(args)...);
    return false;
  }

  void give_number(const std::string& name, double value) {
    roles_.numbers[name] = value;
    numbers_.emplace_back(name, Val{value});
  }

  bool number(const RoleSpec& spec) {
    const Val v =
        evaluate(*spec.number.expr, EvalContext{g_, m_.bindings, ctx_.ops, let_, ctx_.target});
    if (auto* b = std::get_if<bool>(&v.v)) return give_number(spec.role, *b ? 1 : 0), true;
    if (auto* i = std::get_if<int64_t>(&v.v))
      return give_number(spec.role, static_cast<double>(*i)), true;
    if (auto* d = std::get_if<double>(&v.v)) return give_number(spec.role, *d), true;
    const auto* unknown = std::get_if<Val::Unknown>(&v.v);
    return refuse(spec.role, "the {} of {} must be one number that is known before a run{}{}",
                  spec.role, rule_.contract, unknown ? ": it would need " : "",
                  unknown ? unknown->fact : "");
  }

  ValueId bound(const std::string& name) const {
    auto it = m_.bindings.values.find(name);
    return it == m_.bindings.values.end() ? ValueId{} : it->second;
  }

  /// What the match does from one value to another: pointwise, of one operand.
  bool formula(const RoleSpec& spec) {
    const ValueId from = bound(spec.from), to = bound(spec.to);
    std::set<NodeId> found;
    std::vector<ValueId> work{to};
    while (!work.empty()) {
      const ValueId v = work.back();
      work.pop_back();
      if (v == from) continue;
      const Tensor* c = v ? g_.constant(v) : nullptr;
      if (c && c->numel() == 1) continue;
      const NodeId n = v && !c ? g_.value(v).producer : NodeId{};
      if (!n || !members_.contains(n) || g_.node(n).body || !ctx_.ops.pointwise(g_.node(n)))
        return refuse(spec.role, "{} is no formula of {} alone: it also reads {}",
                      value_text(g_, to), value_text(g_, from), value_text(g_, v));
      if (!found.insert(n).second) continue;
      for (ValueId x : g_.node(n).inputs)
        if (x) work.push_back(x);
    }
    if (found.empty()) return true;
    std::vector<NodeId> nodes(found.begin(), found.end());
    std::ranges::sort(nodes, {}, [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
    auto body = std::make_shared<const Body>(make_body(g_, nodes));
    roles_.formulas[spec.role] = std::shared_ptr<const Graph>(body, &body->graph);
    return true;
  }

  bool tensor(const RoleSpec& spec, const ContractRole& role) {
    const RoleValue* found = nullptr;
    for (const RoleValue& v : spec.values)
      if (!found && bound(v.value)) found = &v;
    if (!found)
      return role.optional || refuse(spec.role, "{} of {} is absent", spec.role, rule_.contract);
    const ValueId v = bound(found->value);
    if (role.result && role.optional && g_.value(v).uses.empty() && !g_.value(v).is_output)
      return true;  // nobody reads it
    const auto& shape = g_.value(v).type.shape;
    if (!shape)
      return refuse(spec.role, "the rank of {} is not known", value_text(g_, v)),
             refused_->truth = Truth::unknown, false;
    const auto at = axes_at(found->axes, role, shape->size());
    if (!at)
      return refuse(spec.role, "{} has rank {}, {} is {}", value_text(g_, v), shape->size(),
                    spec.role, role.text());
    for (size_t k : at->ones)
      if ((*shape)[k] != Dim(1))
        return refuse(spec.role, "axis {} of {} has {} elements, not one", k, value_text(g_, v),
                      (*shape)[k].str());
    Placed p{&role, v, {}, at->run};
    const AxisMap whole = walk(p, whole_axes(*shape));
    p.axes.assign(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(at->run));
    for (int k : at->own)
      p.axes.push_back(k < 0 ? AxisMap::value_type{} : whole[static_cast<size_t>(k)]);
    p.axes.insert(p.axes.end(), whole.begin() + static_cast<std::ptrdiff_t>(at->rest), whole.end());
    if (role.constant && !g_.constant(p.value))
      return refuse(spec.role, "{} is {}; the kernel wants a constant", value_text(g_, p.value),
                    origin_of(g_, p.value));
    placed_.push_back(std::move(p));
    return true;
  }

  /// Where a role's axes are in a value of `rank`.
  struct AxesAt {
    size_t run = 0;        ///< axes of the leading run
    std::vector<int> own;  ///< by the role's own; -1: it has fewer
    size_t rest = 0;       ///< where the run at the end begins
    std::vector<size_t> ones;
  };
  static std::optional<AxesAt> axes_at(std::vector<std::string> given, const ContractRole& role,
                                       size_t rank) {
    const size_t own = role.axes.size();
    AxesAt out;
    out.rest = rank;
    if (given.empty()) {  // as the contract has them
      if (rank < own && role.rest) return std::nullopt;
      if (rank > own && !role.run && !role.rest) return std::nullopt;
      const size_t more = rank > own ? rank - own : 0;
      out.run = role.rest ? 0 : more;
      if (role.rest) out.rest = own;
      for (size_t k = 0; k < own; ++k)
        out.own.push_back(static_cast<int>(k + (role.rest ? own : rank)) - static_cast<int>(own));
      for (int& k : out.own) k = std::max(k, -1);
      return out;
    }
    const bool run = given.front() == "...";
    if (run) given.erase(given.begin());
    const bool ends = !given.empty() && given.back().ends_with("...");
    const bool ones = ends && given.back() != "...";
    if (ends) given.pop_back();
    if (rank < given.size() || (rank > given.size() && !run && !ends)) return std::nullopt;
    out.run = run ? rank - given.size() : 0;
    if (ends && !ones) out.rest = given.size();
    for (const std::string& axis : role.axes)
      out.own.push_back(static_cast<int>(
          out.run + static_cast<size_t>(std::ranges::find(given, axis) - given.begin())));
    for (size_t k = 0; k < given.size(); ++k)
      if (given[k] == "1") out.ones.push_back(out.run + k);
    for (size_t k = given.size(); ones && k < rank; ++k) out.ones.push_back(k);
    return out;
  }

  /// Outwards over movements whose results nothing else reads, as far as the axes can be told.
  AxisMap walk(Placed& p, AxisMap map) {
    const size_t run = p.run;
    auto fits = [&](const AxisMap& axes) {
      for (size_t k = 0; k < axes.size(); ++k)
        for (const AxisPart& part : axes[k])
          if ((k >= run && axes[k].size() > 1) ||
              (part.axis == AxisPart::kRepeated &&
               (p.role->result || (k >= run && !p.role->optional))))
            return false;  // kernels broadcast what is optional alone
      return true;
    };
    while (!p.role->whole) {
      const NodeId n = p.role->result ? reader(p.value) : maker(p.value);
      if (!n || !is_movement(g_.node(n))) return map;
      auto moved = moved_axes(map, g_, g_.node(n), p.role->result);
      if (!moved || !fits(*moved)) return map;
      map = std::move(*moved);
      p.value = p.role->result ? g_.output(n) : g_.input(n, 0);
      members_.insert(n);
    }
    return map;
  }
  /// Who makes it, if only the group reads it.
  NodeId maker(ValueId v) const {
    const Value& value = g_.value(v);
    auto ours = [&](const Use& u) { return u.slot != Use::kCapture && members_.contains(u.node); };
    return !value.is_output && std::ranges::all_of(value.uses, ours) ? value.producer : NodeId{};
  }
  /// Who reads it, if it is one node, as its first operand.
  NodeId reader(ValueId v) const {
    const Value& value = g_.value(v);
    return !value.is_output && value.uses.size() == 1 && value.uses[0].slot == 0
               ? value.uses[0].node
               : NodeId{};
  }

  bool cut() {
    // Leading axes of one index that only the result has say nothing.
    size_t most = 0;
    for (const Placed& p : placed_)
      if (!p.role->result) most = std::max(most, p.run);
    for (Placed& p : placed_)
      for (; p.role->result && p.run > most && p.axes.front().empty(); --p.run)
        p.axes.erase(p.axes.begin());
    std::vector<AxisMap*> maps;
    std::vector<size_t> runs;
    for (Placed& p : placed_)
      if (p.role->run) maps.push_back(&p.axes), runs.push_back(p.run);
    if (maps.empty() || cut_alike(maps, runs)) return true;
    std::string where;
    for (const Placed& p : placed_)
      where += fmt::format("{}{} {}", where.empty() ? "" : ", ", p.role->name, text(p.axes));
    return refuse("axes", "the leading axes are taken apart at places that do not fit: {}", where);
  }

  /// Roles as values, and their axes as sizes, for the contract's conditions.
  bool give_names() {
    std::ranges::stable_partition(placed_, [](const Placed& p) { return !p.role->optional; });
    for (const Placed& p : placed_) {
      names_.values[p.role->name] = p.value;
      const size_t run = p.role->run ? p.axes.size() - p.role->axes.size() : 0;
      for (size_t k = 0; k < p.role->axes.size(); ++k) {
        const auto& parts = p.axes[run + k];
        const Dim size = parts.empty() ? Dim(1) : parts[0].size;
        auto [dim, fresh] = names_.dims.try_emplace(p.role->axes[k], size);
        // Kernels broadcast optional operands alone.
        if ((p.role->result || !p.role->optional) && equal(dim->second, size) == Truth::no)
          return refuse("axes", "{} has {} along {}, another role {}", p.role->name, size.str(),
                        p.role->axes[k], dim->second.str());
      }
    }
    for (const ContractRole& role : rule_.kernel->roles) names_.values.try_emplace(role.name);
    return runs_agree();
  }

  static Dim size_of(const AxisMap::value_type& parts) {
    Dim out(1);
    for (const AxisPart& p : parts) out = out * p.size;
    return out;
  }

  /// Along its leading run a result is as long as the longest of the operands, which kernels take
  /// its sizes from.
  bool runs_agree() {
    for (const Placed& y : placed_) {
      if (!y.role->result || !y.role->run) continue;
      const size_t run = y.axes.size() - y.role->axes.size();
      for (size_t k = 0; k < run; ++k) {  // from the last one on
        const Dim want = size_of(y.axes[run - 1 - k]);
        bool differs = true;
        for (const Placed& x : placed_) {
          if (x.role->result || !x.role->run) continue;
          const size_t has = x.axes.size() - x.role->axes.size();
          const Dim size = has > k ? size_of(x.axes[has - 1 - k]) : Dim(1);
          const Truth same = equal(size, want);
          if (same == Truth::no && size != Dim(1))
            return refuse("axes", "{} has {} along a leading axis, {} has {}", x.role->name,
                          size.str(), y.role->name, want.str());
          differs &= same == Truth::no;
        }
        if (differs)
          return refuse("axes", "{} has {} along a leading axis, no operand has", y.role->name,
                        want.str());
      }
    }
    return true;
  }

  bool contract_takes() {
    EvalContext eval{g_, names_, ctx_.ops, numbers_, ctx_.target};
    refused_ = ask(rule_, rule_.kernel->conditions, m_, ctx_, eval);
    return !refused_;
  }

  /// What the results are made of, up to the roles.
  void shrink() {
    std::set<ValueId> ends;
    std::vector<ValueId> work;
    for (const Placed& p : placed_) {
      if (p.role->result)
        work.push_back(p.value);
      else
        ends.insert(p.value);
    }
    std::set<NodeId> needed;
    while (!work.empty()) {
      const ValueId v = work.back();
      work.pop_back();
      const NodeId n = v && !ends.contains(v) ? g_.value(v).producer : NodeId{};
      if (!n || !members_.contains(n) || !needed.insert(n).second) continue;
      const List<ValueId>& inputs = g_.node(n).inputs;
      work.insert(work.end(), inputs.begin(), inputs.end());
    }
    out_.nodes.assign(needed.begin(), needed.end());
    std::ranges::sort(out_.nodes, {},
                      [&](NodeId n) { return std::pair(g_.node(n).order, n.index); });
    out_.body = std::make_shared<const Body>(make_body(g_, out_.nodes));
  }

  bool give_slots() {
    for (Placed& p : placed_) {
      const auto& list = p.role->result ? out_.body->outputs : out_.body->inputs;
      const auto at = std::ranges::find(list, p.value);
      if (at == list.end())
        return refuse(p.role->name, "{}, which is {}, is made inside the group",
                      value_text(g_, p.value), p.role->name);
      roles_.tensors[p.role->name] = {p.role->result, static_cast<size_t>(at - list.begin()),
                                      std::move(p.axes), p.role->channels_last};
    }
    return out_.body->outputs.size() ==
               static_cast<size_t>(
                   std::ranges::count(placed_, true, [](auto& p) { return p.role->result; })) ||
           refuse("results", "the group has results that are none of {}'s", rule_.contract);
  }

  const Rule& rule_;
  const Match& m_;
  const Let& let_;
  const MatchContext& ctx_;
  const Graph& g_;
  std::set<NodeId> members_;  // the match's, and movements around it
  std::vector<Placed> placed_;
  Roles roles_;
  Bindings names_;
  Let numbers_;
  BoundRoles out_;
  std::optional<Rejection> refused_;
};

}  // namespace

std::variant<BoundRoles, Rejection> bind_roles(const Rule& rule, const Match& m, const Let& let,
                                               const MatchContext& ctx) {
  return Binder(rule, m, let, ctx).run();
}

}  // namespace ferrule
