// Functions of conditions: uses, dependence, presence, cost, kernels.
#include <algorithm>
#include <unordered_set>

#include "engine/rule/condition_functions.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/semantics.h"
#include "engine/target/target.h"

namespace ferrule {
namespace {

Val uses(const EvalContext& ctx, Args a) {
  const Value* v = value_of(ctx, a[0]);
  if (!v) return unknown("a value");
  return Val{static_cast<int64_t>(v->uses.size()) + (v->is_output ? 1 : 0)};
}

/// "Conv|Relu|@activation"
bool is_one_of(const EvalContext& ctx, const Node& n, std::string_view set) {
  while (!set.empty()) {
    size_t bar = std::min(set.find('|'), set.size());
    std::string_view item = set.substr(0, bar);
    if (item.starts_with('@') ? ctx.ops.in_class(n, item.substr(1)) : item == n.op.text())
      return true;
    set.remove_prefix(std::min(bar + 1, set.size()));
  }
  return false;
}
Val users_all(const EvalContext& ctx, Args a) {
  const Value* v = value_of(ctx, a[0]);
  auto set = get<std::string>(a[1]);
  if (!v || !set) return unknown("a value and operators");
  if (v->is_output) return Val{false};
  for (const Use& u : v->uses)
    if (u.slot == Use::kCapture || !is_one_of(ctx, ctx.graph.node(u.node), *set)) return Val{false};
  return Val{true};
}
Val is_output(const EvalContext& ctx, Args a) {
  const Value* v = value_of(ctx, a[0]);
  return v ? Val{v->is_output} : unknown("a value");
}
Val is_input(const EvalContext& ctx, Args a) {
  const Value* v = value_of(ctx, a[0]);
  return v ? Val{v->is_input} : unknown("a value");
}
Val producer_op(const EvalContext& ctx, Args a) {
  auto id = get<ValueId>(a[0]);
  if (!id) return unknown("a value");
  const Node* n = ctx.graph.producer(*id);
  return n ? Val{n->op.text()} : Val{Val::Absent{}};
}

NodeId producer_of(const EvalContext& ctx, const Val& v) {
  if (auto n = get<NodeId>(v)) return *n;
  const Value* x = value_of(ctx, v);
  return x ? x->producer : NodeId{};
}

/// Whether a path leads from one of `from` to node `to`. Walks producers backwards; nodes that
/// stand before all of `from` in the last topological order cannot be reached from them.
bool reaches(const Graph& g, const std::vector<NodeId>& from, NodeId to) {
  if (!to) return false;
  int lowest = INT32_MAX;
  std::unordered_set<NodeId> targets;
  for (NodeId n : from)
    if (n) targets.insert(n), lowest = std::min(lowest, g.node(n).order);
  std::unordered_set<NodeId> seen = {to};
  std::vector<NodeId> stack = {to};
  auto visit = [&](ValueId v) {
    NodeId p = v ? g.value(v).producer : NodeId{};
    // A node that a rewrite just made may not be ordered yet (0): it is searched.
    bool before = p && g.node(p).order != 0 && g.node(p).order < lowest;
    if (p && !before && seen.insert(p).second) stack.push_back(p);
  };
  while (!stack.empty()) {
    NodeId n = stack.back();
    stack.pop_back();
    if (targets.contains(n)) return true;
    for (ValueId v : g.node(n).inputs) visit(v);
    for (ValueId v : captures(g.node(n))) visit(v);
  }
  return false;
}

Val depends(const EvalContext& ctx, Args a) {
  NodeId on = producer_of(ctx, a[1]);
  NodeId what = producer_of(ctx, a[0]);
  auto x = get<ValueId>(a[0]), y = get<ValueId>(a[1]);
  if (x && y && *x == *y) return Val{true};
  if (!on)
    return Val{false};  // inputs and constants made by no node: only themselves depend on them
  return Val{reaches(ctx.graph, {on}, what)};
}
Val independent(const EvalContext& ctx, Args a) {
  const Val::List* l = list_of(a[0]);
  if (!l) return unknown("a list of nodes or values");
  std::vector<NodeId> all;
  for (const Val& v : *l) {
    NodeId n = producer_of(ctx, v);
    if (n && std::find(all.begin(), all.end(), n) == all.end()) all.push_back(n);
  }
  for (NodeId to : all) {
    std::vector<NodeId> others;
    for (NodeId n : all)
      if (n != to) others.push_back(n);
    if (reaches(ctx.graph, others, to)) return Val{false};
  }
  return Val{true};
}

/// The slot in which the node reads the value, when all else that it reads is constant; -1: another
/// node.
int reads_only(const Graph& g, const Node& n, ValueId over) {
  int at = -1;
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    const ValueId v = n.inputs[k];
    if (v == over && at < 0)
      at = static_cast<int>(k);
    else if (v && !g.constant(v))
      return -1;
  }
  return at;
}

/// What pointwise nodes make of a node's result, and whether they read what they make of a
/// sibling's. Bounded: who meets behind more nodes than a kernel takes does not meet.
class Meeting {
 public:
  Meeting(const EvalContext& ctx, NodeId node, ValueId over)
      : ctx_(ctx),
        g_(ctx.graph),
        node_(node),
        over_(over),
        slot_(reads_only(g_, g_.node(node), over)) {}

  bool found() {
    if (slot_ < 0) return false;
    seen_ = {node_};
    std::vector<NodeId> ahead = {node_};
    for (size_t k = 0; k < ahead.size(); ++k)
      for (ValueId v : g_.node(ahead[k]).outputs) {
        if (!v) continue;
        for (const Use& u : g_.value(v).uses)
          if (visits(u.node)) ahead.push_back(u.node);
      }
    for (size_t k = 1; k < ahead.size(); ++k)
      for (ValueId v : g_.node(ahead[k]).inputs)
        if (from_sibling(v)) return true;
    return false;
  }

 private:
  static constexpr size_t kMost = 64;

  bool visits(NodeId n) {
    return seen_.size() < kMost && !g_.node(n).body && ctx_.ops.pointwise(g_.node(n)) &&
           seen_.insert(n).second;
  }

  bool from_sibling(ValueId v) {
    std::vector<NodeId> behind;
    auto is = [&](ValueId x) {
      const NodeId p = x ? g_.value(x).producer : NodeId{};
      if (!p) return false;
      const Node &a = g_.node(node_), &b = g_.node(p);
      if (p != node_ && a.op == b.op && a.domain == b.domain && reads_only(g_, b, over_) == slot_)
        return true;
      if (visits(p)) behind.push_back(p);
      return false;
    };
    if (is(v)) return true;
    for (size_t k = 0; k < behind.size(); ++k)
      for (ValueId x : g_.node(behind[k]).inputs)
        if (is(x)) return true;
    return false;
  }

  const EvalContext& ctx_;
  const Graph& g_;
  NodeId node_;
  ValueId over_;
  int slot_;
  std::unordered_set<NodeId> seen_;
};

Val meets_sibling(const EvalContext& ctx, Args a) {
  auto node = get<NodeId>(a[0]);
  auto over = get<ValueId>(a[1]);
  if (!node || !*node || !over) return unknown("a node and a value that it reads");
  return Val{Meeting(ctx, *node, *over).found()};
}

Val present(const EvalContext&, Args a) { return is_unknown(a[0]) ? a[0] : Val{!is_absent(a[0])}; }
Val absent(const EvalContext&, Args a) { return is_unknown(a[0]) ? a[0] : Val{is_absent(a[0])}; }
Val tag(const EvalContext& ctx, Args a) {
  auto t = get<std::string>(a[0]);
  if (!t) return unknown("a tag");
  return Val{ctx.bindings.tags.contains(*t)};
}

/// Nodes of the arguments: nodes, and lists of them; absent ones are skipped.
void gather(const Val& v, std::vector<NodeId>& out) {
  if (auto n = get<NodeId>(v); n && *n) out.push_back(*n);
  if (const Val::List* l = list_of(v))
    for (const Val& item : *l) gather(item, out);
}

/// Each value that only these nodes read is neither written nor read back: twice its size.
Val saved_bytes(const EvalContext& ctx, Args a) {
  std::vector<NodeId> list;
  for (const Val& v : a) gather(v, list);
  std::unordered_set<NodeId> inside(list.begin(), list.end());
  Dim total(0);
  for (NodeId n : list) {
    for (ValueId v : ctx.graph.node(n).outputs) {
      if (!v) continue;
      const Value& x = ctx.graph.value(v);
      bool inner = !x.uses.empty() && !x.is_output;
      for (const Use& u : x.uses) inner = inner && inside.contains(u.node);
      if (!inner) continue;
      if (!x.type.known()) return unknown(fmt::format("the size of {}", quoted(ctx, v)));
      total = total + product(*x.type.shape) * Dim(2 * size_bytes(x.type.dtype, 1));
    }
  }
  return make_dim(total);
}

Val has_form(const EvalContext& ctx, Args a) {
  auto contract = get<std::string>(a[0]), form = get<std::string>(a[1]);
  if (!contract || !form) return unknown("a contract and a form");
  if (!ctx.target) return unknown("which kernels there are (no target)");
  return Val{ctx.target->facts_of(*contract).takes(*form)};
}
Val index_runs(const EvalContext& ctx, Args a) {
  auto n = get<NodeId>(a[0]);
  if (!n || !*n) return unknown("a node");
  const auto m = movement_of(ctx.graph, ctx.graph.node(*n), 0);
  if (!m) return unknown(m.error().reason());
  size_t most = 0;
  for (const IndexStep& s : m->steps) most = std::max(most, s.segments.size());
  return Val{static_cast<int64_t>(most)};
}
/// Whether the element type is among these of the contract's.
Val has_type(const EvalContext& ctx, Args a, std::vector<DType> ContractFacts::* types) {
  auto contract = get<std::string>(a[0]);
  auto type = get<DType>(a[1]);
  if (!contract || !type) return unknown("a contract and an element type");
  if (!ctx.target) return unknown("which kernels there are (no target)");
  auto it = ctx.target->contracts.find(*contract);
  if (it == ctx.target->contracts.end()) return Val{false};
  const std::vector<DType>& known = it->second.*types;
  return Val{std::find(known.begin(), known.end(), *type) != known.end()};
}
Val has_kernel(const EvalContext& ctx, Args a) { return has_type(ctx, a, &ContractFacts::types); }
Val has_library_kernel(const EvalContext& ctx, Args a) {
  return has_type(ctx, a, &ContractFacts::library_types);
}
Val accepts_strided(const EvalContext& ctx, Args a) {
  auto v = get<ValueId>(a[0]);
  if (!v || !*v) return unknown("a value");
  if (!ctx.accepts_strided) return unknown("a target");
  const Accept answer = ctx.accepts_strided(*v);
  return make_truth(answer.truth, answer.reason);
}
Val isa(const EvalContext& ctx, Args a) {
  auto name = get<std::string>(a[0]);
  if (!name) return unknown("the name of an instruction set");
  if (!ctx.target) return unknown("isa (no target)");
  const auto& have = ctx.target->isa;
  return Val{std::find(have.begin(), have.end(), *name) != have.end()};
}
Val join(const EvalContext& ctx, Args a) {
  const Val::List* l = list_of(a[0]);
  auto between = a.size() > 1 ? get<std::string>(a[1]) : nullptr;
  if (!l) return unknown("a list");
  std::string s;
  for (size_t k = 0; k < l->size(); ++k)
    s += (k ? (between ? *between : ", ") : "") + str((*l)[k], ctx.graph);
  return Val{s};
}

const Function kGraphFunctions[] = {
    {{"uses", "(x: value) -> int", "how many node inputs (and graph outputs) read the value"},
     uses},
    {{"users_all", "(x: value, ops: string) -> bool",
      "every reader is one of 'Conv|Relu|@activation', none a graph output"},
     users_all},
    {{"is_output", "(x: value) -> bool", "a graph output"}, is_output},
    {{"is_input", "(x: value) -> bool", "a graph input"}, is_input},
    {{"producer_op", "(x: value) -> string",
      "operator that makes the value; absent for inputs and constants"},
     producer_op},
    {{"depends", "(x: any, on: any) -> bool", "a path leads from `on` to x"}, depends},
    {{"independent", "(list: list) -> bool", "no path leads from one to another"}, independent},
    {{"meets_sibling", "(n: node, over: value) -> bool",
      "pointwise operators bring its result together with that of another node of its operator, "
      "which reads `over` and "
      "else constants, too: both would be one node beside what joins them"},
     meets_sibling},
    {{"present", "(x: any) -> bool", "the optional operand or node is there"},
     present,
     kMissingToo},
    {{"absent", "(x: any) -> bool", "the optional operand or node is not there"},
     absent,
     kMissingToo},
    {{"tag", "(name: string) -> bool", "the alternative with this tag was taken: tag('erf')"}, tag},
    {{"index_runs", "(n: node) -> int",
      "runs at one distance that the places make which a movement reads along an axis; not known "
      "where they cannot be said so"},
     index_runs},
    {{"has_kernel", "(contract: string, type: dtype) -> bool",
      "the target has kernels of this contract for the element type: has_kernel('pool', u8)"},
     has_kernel},
    {{"has_form", "(contract: string, form: string) -> bool",
      "the target's kernels of this contract take the form: has_form('pool', 'dilated')"},
     has_form},
    {{"has_library_kernel", "(contract: string, type: dtype) -> bool",
      "a library of the target has kernels of this contract for the element type: "
      "has_library_kernel('quantized', i8)"},
     has_library_kernel},
    {{"accepts_strided", "(x: value) -> bool",
      "all who read the value have kernels that read it as a slice of a larger tensor"},
     accepts_strided},
    {{"saved_bytes", "(nodes: any, more: any...) -> size",
      "memory traffic that grouping the nodes saves"},
     saved_bytes,
     kMissingToo},
    {{"isa", "(name: string) -> bool", "the CPU has the instruction set: isa('avx512_vnni')"}, isa},
    {{"join", "(list: list, between: string = comma) -> string",
      "the elements as text, for names and messages"},
     join},
};

}  // namespace

std::span<const Function> graph_functions() { return kGraphFunctions; }

}  // namespace ferrule
