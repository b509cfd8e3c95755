// The model's structure, before anything walks it freely: opsets, functions (counted before they
// are expanded), names, operators, nesting and order of nodes, each with its own message.
#include <onnx/common/constants.h>
#include <onnx/defs/schema.h>

#include <algorithm>
#include <limits>
#include <map>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "engine/graph/operator_name.h"
#include "engine/onnx/import.h"
#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using Attributes = google::protobuf::RepeatedPtrField<onnx::AttributeProto>;

constexpr int64_t kFirstOpset = 7;

uint64_t add(uint64_t a, uint64_t b) {
  uint64_t r;
  return __builtin_add_overflow(a, b, &r) ? std::numeric_limits<uint64_t>::max() : r;
}

template <class F>
Status each_graph(const onnx::NodeProto& n, F&& f) {
  for (const auto& a : n.attribute()) {
    if (a.has_g()) FERRULE_TRY(f(a.g()));
    for (const auto& g : a.graphs()) FERRULE_TRY(f(g));
  }
  return {};
}

/// Nodes after inlining, saturating; each function is counted once however often it is called.
class FunctionCounter {
 public:
  FunctionCounter(const Functions& functions, const Limits& limits)
      : functions_(functions), limits_(limits) {}

  Result<uint64_t> count(const Nodes& nodes, int calls, int nesting) {
    uint64_t total = 0;
    for (const onnx::NodeProto& n : nodes) {
      // Slots count too: a function's body may be one node with a hundred thousand outputs.
      total = add(total, 1 + static_cast<uint64_t>(n.input_size() + n.output_size()) / 16);
      FERRULE_TRY(each_graph(n, [&](const onnx::GraphProto& g) -> Status {
        if (nesting + 1 > limits_.subgraph_depth)
          return error(Code::limit_exceeded, place(n),
                       "the depth of nested graphs (subgraph_depth)", nesting + 1,
                       limits_.subgraph_depth);
        FERRULE_ASSIGN(uint64_t inner, count(g.node(), calls, nesting + 1));
        total = add(total, inner);
        return {};
      }));
      auto f = functions_.find(key_of(n));
      if (f == functions_.end()) continue;
      FERRULE_ASSIGN(uint64_t body, function(f->second, n, calls + 1));
      total = add(total, body);
    }
    return total;
  }

 private:
  Result<uint64_t> function(const onnx::FunctionProto* f, const onnx::NodeProto& caller,
                            int calls) {
    auto [it, fresh] = sizes_.try_emplace(f, Entry{});
    if (!fresh) {
      if (it->second.open)
        return error(Code::model_invalid, place(caller),
                     "function " + quote(full_name(f->domain(), f->name())) + " calls itself");
      // A known function still has to fit below this caller.
      if (calls + it->second.depth > limits_.call_depth)
        return too_deep(caller, calls + it->second.depth);
      deepest_ = std::max(deepest_, calls + it->second.depth);
      return it->second.size;
    }
    if (calls > limits_.call_depth) return too_deep(caller, calls);
    it->second.open = true;
    int before = std::exchange(deepest_, calls);
    FERRULE_ASSIGN(uint64_t size, count(f->node(), calls, 0));
    Entry& e = sizes_[f];
    e = {size, deepest_ - calls, false};
    deepest_ = std::max(before, deepest_);
    return size;
  }

  tl::unexpected<Error> too_deep(const onnx::NodeProto& caller, int calls) const {
    return error(Code::limit_exceeded, place(caller), "the depth of function calls (call_depth)",
                 calls, limits_.call_depth);
  }

  struct Entry {
    uint64_t size = 0;
    int depth = 0;  // of calls below it
    bool open = false;
  };
  const Functions& functions_;
  const Limits& limits_;
  std::unordered_map<const onnx::FunctionProto*, Entry> sizes_;
  int deepest_ = 0;
};

/// Names of one graph and, for nested ones, of those around it.
struct Names {
  std::unordered_map<std::string_view, int>
      defined;  // name -> producing node, -1: input or initializer
  const Names* outer = nullptr;
  bool has(std::string_view name) const {
    for (const Names* n = this; n; n = n->outer)
      if (n->defined.count(name)) return true;
    return false;
  }
};

class Walker {
 public:
  Walker(const Functions& functions, const Semantics& ops, std::vector<std::string>& notes)
      : functions_(functions), ops_(ops), notes_(notes) {}

  /// errors: unknown_operator, each operator once, with its first node, in `more`.
  Status all_known() { return unknown_.status(); }

  /// `free`: receives the names that are read and not defined inside.
  Status graph(onnx::GraphProto& g, const Opsets& opsets, const Names* outer,
               std::unordered_set<std::string_view>& free) {
    Names names;
    names.outer = outer;
    std::string where = "graph " + quote(g.name());
    for (const auto& i : g.input()) FERRULE_TRY(define(names, i.name(), -1, where));
    std::unordered_set<std::string_view> initializers;
    auto initializer = [&](const std::string& name) -> Status {
      if (name.empty()) return error(Code::model_invalid, where, "an initializer has no name");
      if (!initializers.insert(name).second)
        return error(Code::duplicate_value, where, quote(name));
      names.defined.try_emplace(name, -1);  // may also be an input: its default
      return {};
    };
    for (const auto& t : g.initializer()) FERRULE_TRY(initializer(t.name()));
    for (const auto& t : g.sparse_initializer()) FERRULE_TRY(initializer(t.values().name()));
    FERRULE_TRY(nodes(*g.mutable_node(), opsets, names, where, free));
    for (const auto& o : g.output()) {
      if (names.defined.count(o.name())) continue;
      if (!outer || !outer->has(o.name()))
        return error(Code::dangling_input, where + ", output", quote(o.name()));
      free.insert(o.name());
    }
    return {};
  }

  Status function(onnx::FunctionProto& f, const Opsets& opsets) {
    Names names;
    std::string where = "function " + quote(full_name(f.domain(), f.name()));
    for (const auto& i : f.input()) FERRULE_TRY(define(names, i, -1, where));
    std::unordered_set<std::string_view> free;
    FERRULE_TRY(nodes(*f.mutable_node(), opsets, names, where, free));
    for (const auto& o : f.output())
      if (!names.defined.count(o)) return error(Code::dangling_input, where + ", output", quote(o));
    return {};
  }

 private:
  static Status define(Names& names, const std::string& name, int node, const std::string& where) {
    if (name.empty()) return error(Code::model_invalid, where, "an input has no name");
    if (!names.defined.try_emplace(name, node).second)
      return error(Code::duplicate_value, where, quote(name));
    return {};
  }

  Status nodes(Nodes& list, const Opsets& opsets, Names& names, const std::string& where,
               std::unordered_set<std::string_view>& free) {
    int repeated = 0;
    names.defined.reserve(names.defined.size() + static_cast<size_t>(list.size()));
    for (int i = 0; i < list.size(); ++i) {
      bool repeats = false;
      for (const std::string& o : list[i].output()) {
        if (o.empty()) continue;
        auto [it, fresh] = names.defined.try_emplace(o, i);
        if (fresh) continue;
        repeats = it->second >= 0 && constants(list[it->second], list[i]);
        if (!repeats) return error(Code::duplicate_value, place(list[i]), quote(o));
        list[it->second].mutable_attribute()->Swap(list[i].mutable_attribute());
      }
      if (repeats)
        ++repeated;
      else if (repeated)
        list.SwapElements(i, i - repeated),
            move_definitions(names, list[i - repeated], i - repeated);
    }
    if (repeated) {
      list.DeleteSubrange(list.size() - repeated, repeated);
      notes_.push_back(
          fmt::format("{}: {} Constant node{} a value that another one defines; the later one "
                      "counts, as in ONNX Runtime",
                      where, repeated, repeated == 1 ? " defines" : "s define"));
    }
    bool sorted = true;
    std::vector<std::pair<int, int>> edges;  // producer, reader
    edges.reserve(list.size());
    for (int i = 0; i < list.size(); ++i) {
      onnx::NodeProto& n = list[i];
      FERRULE_TRY(known(n, opsets, where));
      std::unordered_set<std::string_view> nested;
      for (auto& a : *n.mutable_attribute()) {
        if (a.has_g()) FERRULE_TRY(graph(*a.mutable_g(), opsets, &names, nested));
        for (auto& g : *a.mutable_graphs()) FERRULE_TRY(graph(g, opsets, &names, nested));
      }
      auto read = [&](std::string_view name) -> Status {
        auto it = names.defined.find(name);
        if (it == names.defined.end()) {
          if (!names.has(name)) return error(Code::dangling_input, place(n), quote(name));
          free.insert(name);
        } else if (it->second >= 0) {
          sorted &= it->second < i;
          edges.emplace_back(it->second, i);
        }
        return {};
      };
      for (const std::string& in : n.input())
        if (!in.empty()) FERRULE_TRY(read(in));
      for (std::string_view name : nested) FERRULE_TRY(read(name));
    }
    if (sorted) return {};
    std::vector<std::vector<int>> after(list.size());  // producer -> readers
    std::vector<int> waiting(after.size(), 0);
    for (auto [producer, reader] : edges) {
      after[producer].push_back(reader);
      ++waiting[reader];
    }
    return sort(list, after, waiting, where);
  }

  /// Some tools leave two Constant nodes of one name behind, and ONNX Runtime takes such models.
  static bool constants(const onnx::NodeProto& a, const onnx::NodeProto& b) {
    auto plain = [](const onnx::NodeProto& n) {
      return n.op_type() == "Constant" && n.domain().empty() && n.output_size() == 1;
    };
    return plain(a) && plain(b);
  }
  static void move_definitions(Names& names, const onnx::NodeProto& n, int to) {
    for (const std::string& o : n.output())
      if (!o.empty()) names.defined[o] = to;
  }

  Status known(const onnx::NodeProto& n, const Opsets& opsets, const std::string& where) {
    if (n.op_type().empty())
      return error(Code::model_invalid, where, "node " + quote(n.name()) + " has no operator");
    if (!functions_.empty() && functions_.count(key_of(n))) return {};
    std::string domain = canonical_domain(n.domain());
    auto opset = opsets.find(domain);
    if (opset == opsets.end() && domain.empty())
      return error(Code::model_invalid, place(n), "the model has no opset of ai.onnx");
    int64_t version = opset == opsets.end() ? 1 : opset->second;
    if (schema_of(n.op_type(), version, domain)) return {};
    if (ops_.find(domain, operator_named(n.op_type()).text())) return {};
    // All of them are named at once: who adds one wants to know how many there are.
    const std::string name = full_name(domain, n.op_type());
    unknown_.add(fmt::format("{} {}", name, version),
                 [&] { return error(Code::unknown_operator, place(n), name, version).value(); });
    return {};
  }

  Status sort(Nodes& list, const std::vector<std::vector<int>>& after, std::vector<int>& waiting,
              const std::string& where) {
    std::priority_queue<int, std::vector<int>, std::greater<>> ready;
    for (size_t i = 0; i < waiting.size(); ++i)
      if (waiting[i] == 0) ready.push(static_cast<int>(i));
    std::vector<int> order;
    while (!ready.empty()) {
      int i = ready.top();
      ready.pop();
      order.push_back(i);
      for (int next : after[i])
        if (--waiting[next] == 0) ready.push(next);
    }
    if (order.size() < waiting.size()) return cycle(list, after, waiting, where);
    std::vector<onnx::NodeProto*> taken(order.size());
    list.ExtractSubrange(0, list.size(), taken.data());
    for (int i : order) list.AddAllocated(taken[i]);
    notes_.push_back(where + ": its nodes were not in topological order; they were sorted");
    return {};
  }

  /// Some cycle among the nodes still waiting: walking back from one of them must repeat.
  static Status cycle(const Nodes& list, const std::vector<std::vector<int>>& after,
                      const std::vector<int>& waiting, const std::string& where) {
    std::vector<int> before(waiting.size(), -1);
    int at = -1;
    for (size_t i = 0; i < after.size(); ++i)
      if (waiting[i] > 0)
        for (int next : after[i])
          if (waiting[next] > 0) before[at = next] = static_cast<int>(i);
    std::vector<int> path;
    std::vector<bool> seen(waiting.size(), false);
    for (; at >= 0 && !seen[at]; at = before[at]) {
      seen[at] = true;
      path.push_back(at);
    }
    auto start = std::ranges::find(path, at);
    std::string text;
    size_t shown = 0;
    for (auto it = path.end(); it != start && shown < 8; ++shown)
      text += (shown ? " -> " : "") + place(list[*--it]);
    if (static_cast<size_t>(path.end() - start) > shown) text += " -> …";
    return error(Code::graph_cycle, where, text);
  }

  ErrorOfEach unknown_;
  const Functions& functions_;
  const Semantics& ops_;
  std::vector<std::string>& notes_;
};

}  // namespace

std::string quote(std::string_view name) { return "\"" + escape(name, 100) + "\""; }

std::string full_name(std::string_view domain, std::string_view op) {
  return (domain.empty() ? "" : escape(domain, 60) + ".") + escape(op, 60);
}

std::string place(const onnx::NodeProto& n, int64_t opset) {
  std::string what = full_name(canonical_domain(n.domain()), n.op_type());
  if (opset) what += fmt::format(", opset {}", opset);
  if (!n.name().empty()) return fmt::format("node {} ({})", quote(n.name()), what);
  std::string out = n.output_size() ? quote(n.output(0)) : "nothing";
  return fmt::format("node that makes {} ({})", out, what);
}

namespace {

const onnx::OpSchema* registered(const std::string& op, int64_t opset, const std::string& domain) {
  using Registry = onnx::OpSchemaRegistry;
  if (const auto* s = Registry::Schema(op, static_cast<int>(opset), domain)) return s;
  // ONNX Runtime had it in ai.onnx before ONNX did, and its older tools wrote such models.
  if (domain.empty() && op == "LayerNormalization") return Registry::Schema(op, domain);
  return nullptr;
}

}  // namespace

/// A model has many nodes and few operators: what is found is remembered, by every thread for
/// itself.
const onnx::OpSchema* schema_of(const std::string& op, int64_t opset, const std::string& domain) {
  struct Found {
    int64_t opset;
    std::string domain;
    const onnx::OpSchema* schema;
  };
  thread_local std::unordered_map<std::string, std::vector<Found>> known;
  if (auto it = known.find(op); it != known.end())
    for (const Found& f : it->second)
      if (f.opset == opset && f.domain == domain) return f.schema;
  const onnx::OpSchema* schema = registered(op, opset, domain);
  if (schema) known[op].push_back({opset, domain, schema});
  return schema;
}

FunctionKey key_of(const onnx::NodeProto& n) {
  return {canonical_domain(n.domain()), n.op_type(), n.overload()};
}

Result<Opsets> read_opsets(
    const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports,
    const std::string& where) {
  Opsets out;
  const auto& ranges = onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map();
  for (const auto& o : imports) {
    std::string domain = canonical_domain(o.domain());
    auto [it, fresh] = out.try_emplace(domain, o.version());
    if (!fresh && it->second != o.version())
      return error(Code::model_invalid, where,
                   fmt::format("domain {} has two opsets, {} and {}", quote(o.domain()), it->second,
                               o.version()));
    auto range = ranges.find(domain);
    int64_t last = range == ranges.end() ? std::numeric_limits<int>::max() : range->second.second;
    int64_t first = domain.empty() ? kFirstOpset : 1;
    if (o.version() < first || o.version() > last)
      return error(Code::opset_unsupported, where, o.version(),
                   domain.empty() ? "ai.onnx" : escape(domain), first, last);
  }
  if (out.empty()) return error(Code::model_invalid, where, "it imports no opset");
  return out;
}

Result<Functions> read_functions(const Model& m, const Limits& limits) {
  if (m.functions_size() > limits.functions)
    return error(Code::limit_exceeded, "model", "the number of functions (functions)",
                 m.functions_size(), limits.functions);
  Functions out;
  for (const auto& f : m.functions()) {
    FunctionKey key{canonical_domain(f.domain()), f.name(), f.overload()};
    if (!out.try_emplace(key, &f).second)
      return error(Code::model_invalid, "model",
                   "function " + quote(full_name(f.domain(), f.name())) + " is defined twice");
  }
  FunctionCounter counter(out, limits);
  FERRULE_ASSIGN(uint64_t total, counter.count(m.graph().node(), 0, 0));
  if (total > static_cast<uint64_t>(limits.nodes))
    return error(Code::limit_exceeded, "model",
                 "the number of nodes after inlining functions (nodes)", total, limits.nodes);
  return out;
}

Status check_structure(Model& m, const Functions& functions, const Semantics& ops, const Limits&,
                       std::vector<std::string>& notes) {
  if (!m.has_graph()) return error(Code::model_invalid, "model", "it has no graph");
  if (m.ir_version() < 3 || m.ir_version() > onnx::Version::IR_VERSION)
    return error(Code::model_invalid, "model",
                 fmt::format("its ir_version is {}, known are 3 to {}", m.ir_version(),
                             static_cast<int>(onnx::Version::IR_VERSION)));
  Walker walker(functions, ops, notes);
  FERRULE_ASSIGN(Opsets opsets, read_opsets(m.opset_import(), "model"));
  std::unordered_set<std::string_view> free;
  FERRULE_TRY(walker.graph(*m.mutable_graph(), opsets, nullptr, free));
  for (auto& f : *m.mutable_functions()) {
    std::string where = "function " + quote(full_name(f.domain(), f.name()));
    FERRULE_ASSIGN(Opsets own, read_opsets(f.opset_import(), where));
    FERRULE_TRY(walker.function(f, own));
  }
  return walker.all_known();
}

}  // namespace ferrule::onnx_io
