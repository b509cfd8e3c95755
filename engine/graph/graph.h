// The graph everything works on: values (SSA) and nodes in tables addressed by ids, nested graphs
// with explicit captures, and groups as nodes that keep the originals as their body. Only the
// members below change it, and they keep producers, uses and captures right; verify.h checks the
// rest. A reference to a node or value holds as long as the graph does, whatever is added; one that
// was removed is `dead`. Its lists may change under whoever walks them: list.h. After normalisation
// every operator has the shape of its newest ONNX version (onnx/normalize.h), so nothing beyond the
// importer knows an opset.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <variant>
#include <vector>

#include "engine/base/boxed.h"
#include "engine/base/dim.h"
#include "engine/base/dtype.h"
#include "engine/base/ids.h"
#include "engine/base/result.h"
#include "engine/graph/list.h"
#include "engine/graph/made_constants.h"
#include "engine/graph/names.h"
#include "engine/graph/operator.h"
#include "engine/graph/table.h"
#include "engine/graph/tensor.h"

namespace ferrule {

class Graph;
struct Roles;  // engine/contract/roles.h

using Attr = std::variant<int64_t, double, std::string, std::vector<int64_t>, std::vector<double>,
                          std::vector<std::string>, Tensor>;
bool same_attr(const Attr& a, const Attr& b);
std::string str(const Attr& a);

/// Attributes, sorted by name (deterministic), with typed look-ups. Copies share them until one is
/// changed: graphs and bodies are copied often.
class Attrs {
 public:
  using Items = std::map<std::string, Attr, std::less<>>;
  const Attr* find(std::string_view name) const;
  void set(std::string name, Attr value) { own()[std::move(name)] = std::move(value); }
  void erase(std::string_view name);
  int64_t i(std::string_view name, int64_t otherwise = 0) const;
  double f(std::string_view name, double otherwise = 0) const;
  std::string s(std::string_view name, std::string otherwise = "") const;
  std::vector<int64_t> ints(std::string_view name) const;  ///< empty when absent
  const Items& items() const { return items_ ? *items_ : none(); }
  bool empty() const { return !items_ || items_->empty(); }
  friend bool operator==(const Attrs& a, const Attrs& b);

 private:
  static const Items& none();
  Items& own();  ///< this object's alone
  std::shared_ptr<Items> items_;
};

/// What is known of a value before it is computed.
struct Type {
  DType dtype = DType::undefined;
  std::optional<Shape> shape;  ///< nullopt: not even the rank is known
  bool known() const { return dtype != DType::undefined && shape.has_value(); }
  int rank() const { return shape ? static_cast<int>(shape->size()) : -1; }
};
std::string str(const Type& t);  ///< "f32[1,C,H,W]"

/// One place where a value is read: input `slot` of `node`, or (slot = kCapture) captured by one of
/// the node's nested graphs.
struct Use {
  static constexpr int kCapture = -1;
  NodeId node;
  int slot = 0;
  friend auto operator<=>(const Use&, const Use&) = default;
};

struct Value {
  std::string name;  ///< unique in its graph; the ONNX name where there is one
  Type type;
  NodeId producer;  ///< none: graph input, constant, or captured from outside
  int producer_slot = 0;
  Boxed<Tensor>
      constant;  ///< set: this value is that constant (initializer, Constant node, folded)
  List<Use> uses;
  bool is_input = false;   ///< a graph input
  bool is_output = false;  ///< a graph output (of this graph)
  ValueId outer;           ///< nested graphs: the captured value in the enclosing graph
  /// Known integer contents of a small shape-like tensor as dims (row-major), from inference.
  Boxed<std::vector<Dim>> contents;
  bool dead = false;
};

struct Node {
  Operator op;         ///< "Conv", or "group.conv" for a fired group
  std::string domain;  ///< "" for ai.onnx; "ferrule" for groups
  std::string name;  ///< unique label for messages; the ONNX node name, or made from op and output
  List<ValueId> inputs;   ///< none = optional input left out; trailing ones are trimmed
  List<ValueId> outputs;  ///< none = output not wanted; trailing ones are trimmed
  Attrs attrs;            ///< all attributes of the newest version, defaults filled
  /// Nested graphs by attribute name ("then_branch", "body").
  std::vector<std::pair<std::string, std::unique_ptr<Graph>>> subgraphs;
  /// Groups only: the original nodes; its inputs / outputs correspond to this node's, in order.
  std::shared_ptr<const Graph> body;
  std::shared_ptr<const Roles> roles;  ///< groups whose contract has roles: what they are
  std::string rule;           ///< id of the rule that made this node; empty if the model did
  List<std::string> origins;  ///< ONNX names of the nodes it stands for (itself at import)
  int since_opset = 0;        ///< the model's opset for its domain, for messages only
  int order = 0;              ///< position in a topological order as of the last sort()
  bool dead = false;
};

/// A node with the operator and the attributes of another, and nothing else of it.
Node of_operator(const Node& n);
/// An Identity.
Node identity(ValueId from, ValueId to);
/// What the inputs and outputs of a group's body are in the graph around it.
std::map<ValueId, ValueId> around_body(const Node& group);
/// The nested graph of that attribute; null: there is none.
const Graph* subgraph(const Node& n, std::string_view attribute);

class Graph {
 public:
  Graph() = default;
  Graph(Graph&&) = default;
  Graph& operator=(Graph&&) = default;
  std::unique_ptr<Graph> clone()
      const;  ///< deep copy with the same ids; of dead entries little more than that

  std::string name;

  // --- reading
  const Node& node(NodeId id) const { return nodes_[id.index]; }
  const Value& value(ValueId id) const { return values_[id.index]; }
  size_t node_slots() const { return nodes_.size(); }  ///< table sizes, dead entries included
  size_t value_slots() const { return values_.size(); }
  size_t live_nodes() const { return live_; }
  const List<ValueId>& inputs() const { return inputs_; }
  const List<ValueId>& outputs() const { return outputs_; }
  /// Live nodes in the order of the last sort(), then insertion.
  std::vector<NodeId> order() const;
  std::vector<ValueId> values() const;              ///< live ones
  std::vector<ValueId> constants() const;           ///< of these, the constants
  ValueId find_value(std::string_view name) const;  ///< none if absent
  NodeId find_node(std::string_view name) const;
  const Node* producer(ValueId v) const {
    return v && values_[v.index].producer ? &nodes_[values_[v.index].producer.index] : nullptr;
  }
  const Tensor* constant(ValueId v) const {
    return v && values_[v.index].constant ? &*values_[v.index].constant : nullptr;
  }
  ValueId input(NodeId n, size_t slot) const {
    const auto& in = nodes_[n.index].inputs;
    return slot < in.size() ? in[slot] : ValueId{};
  }
  ValueId output(NodeId n, size_t slot = 0) const {
    const auto& out = nodes_[n.index].outputs;
    return slot < out.size() ? out[slot] : ValueId{};
  }

  /// What this graph and its later copies share of the constants that are made for them; null:
  /// nothing.
  MadeConstants* made_constants() const { return made_constants_.get(); }

  // --- changing (the only mutators)
  void share_made_constants() { made_constants_ = std::make_shared<MadeConstants>(); }
  void reserve(size_t nodes, size_t values);  ///< room for that many in all
  ValueId add_input(std::string name, Type type);
  ValueId add_constant(std::string name, Tensor value);
  ValueId add_value(std::string name, Type type = {});  ///< still to be produced by a node
  ValueId add_capture(std::string name, Type type, ValueId outer);  ///< nested graphs only
  void add_output(ValueId v);
  void set_output(size_t k, ValueId v);  ///< output k becomes v
  /// Adds a node; producers, uses and captures (from its subgraphs' `outer`) are recorded. Outputs
  /// must have no producer yet. Empty name: one is made. Returns its id. shapes: not inferred here.
  NodeId add_node(Node node);
  void remove_node(NodeId n);  ///< its outputs must be unused
  /// The node's output `slot` is no longer made by it: another node, added next, makes the value.
  void detach_output(NodeId n, size_t slot);
  void set_input(NodeId n, size_t slot, ValueId v);
  void set_attr(NodeId n, std::string name, Attr value);
  /// Another spelling of the same computation (normalisation); the slots stay.
  void set_operator(NodeId n, Operator op, Attrs attrs) {
    nodes_[n.index].op = std::move(op);
    nodes_[n.index].attrs = std::move(attrs);
  }
  /// Another graph for a group, with as many inputs and outputs.
  void set_body(NodeId n, std::shared_ptr<const Graph> body) {
    nodes_[n.index].body = std::move(body);
  }
  void set_type(ValueId v, Type type) { values_[v.index].type = std::move(type); }
  void set_contents(ValueId v, Boxed<std::vector<Dim>> c) {
    values_[v.index].contents = std::move(c);
  }
  void set_constant(ValueId v, Tensor t);  ///< v becomes a constant; its producer loses the output
  /// Every use of `from` (captures and graph outputs included) becomes one of `to`. A graph output
  /// keeps its name: `to` takes over `from`'s name when `from` was a graph output and `to` was not.
  /// Where both are graph outputs, or `to` is a graph input / constant, an Identity is inserted
  /// instead.
  void replace_uses(ValueId from, ValueId to);
  void rename(ValueId v, std::string name);
  /// Removes nodes nobody needs and constants nobody reads. Returns how many nodes went.
  int remove_dead();
  /// Topological order into Node::order, stable with respect to the present one.
  /// errors: graph_cycle, naming the nodes.
  Status sort();
  std::string fresh_name(std::string_view base) const;  ///< a value / node name not yet used

  /// Where the value is read outside nodes: as graph output.
  bool escapes(ValueId v) const { return values_[v.index].is_output; }

 private:
  void add_use(ValueId v, Use u);
  void drop_use(ValueId v, Use u);
  void replace_output(ValueId from, ValueId to);
  void kill_value(ValueId v);
  std::string cycle_text(const std::vector<uint32_t>& waiting) const;
  bool taken(std::string_view name) const { return find_value(name) || find_node(name); }
  struct NameHash {
    using is_transparent = void;
    size_t operator()(std::string_view s) const { return std::hash<std::string_view>()(s); }
  };
  Table<Node> nodes_;
  Table<Value> values_;
  List<ValueId> inputs_, outputs_;
  NameIndex value_names_, node_names_;
  /// Of fresh_name, so that a million of one base stay linear.
  mutable std::unordered_map<std::string, int, NameHash, std::equal_to<>> next_suffix_;
  /// Values with many uses: (node, slot) -> position in Value::uses.
  std::unordered_map<uint32_t, std::unordered_map<uint64_t, uint32_t>> many_uses_;
  /// With many graph outputs: value -> its slots in outputs_. Empty: to be made when it is asked
  /// for.
  std::unordered_multimap<uint32_t, uint32_t> output_slots_;
  std::shared_ptr<MadeConstants> made_constants_;
  size_t live_ = 0;
  /// The order of the last sort(), which knew the slots below sorted_slots_; nodes have gone and
  /// come since.
  std::vector<NodeId> sorted_;
  size_t sorted_slots_ = 0;
  /// Whether since then nodes have gone; whether new edges may say otherwise; whether a node has
  /// nested graphs, whose captures are edges that nobody tells of.
  bool thinned_ = false, rewired_ = true, nested_ = false;
};

/// f(id, value) for each value of the nested graph that is captured; value.outer is the one
/// outside.
template <class F>
void each_capture(const Graph& nested, F&& f) {
  for (uint32_t i = 0; i < nested.value_slots(); ++i)
    if (const Value& v = nested.value(ValueId{i}); !v.dead && v.outer) f(ValueId{i}, v);
}
/// The values outside that the nested graphs of `n` capture, each once, in the order of their ids.
std::vector<ValueId> captures(const Node& n);

}  // namespace ferrule
