#include "engine/reduce/edit.h"

#include <cstring>
#include <functional>

namespace ferrule::reduce {
namespace {

const GraphEdit kNone;

class Builder {
 public:
  explicit Builder(const Edit& edit) : edit_(edit) {
    for (const auto& [_, e] : edit) retypes_ |= e.retypes();
  }

  std::optional<Graph> outermost(const Graph& from) {
    Graph to;
    to.name = from.name;
    Scope s = scope(from, to);
    const std::vector<ValueId>& outputs = s.edit.outputs ? *s.edit.outputs : from.outputs();
    const Needed needed = needs(s, outputs);
    for (ValueId v : from.inputs())
      if (needed.values.contains(v)) value(s, v);
    nodes(s, needed);
    for (ValueId o : outputs)
      if (ValueId v = value(s, o); v && to.value(v).producer && !to.value(v).is_output)
        to.add_output(v);
    if (broken_ || to.outputs().empty()) return std::nullopt;
    to.remove_dead();
    return to;
  }

 private:
  /// A graph on its way into another one.
  struct Scope {
    const Graph& from;
    Graph& to;
    const GraphEdit& edit;
    std::function<ValueId(ValueId)>
        outer;  ///< captured value of `from` -> value around it, in the new graphs
    bool nested = false, inlined = false;  ///< inlined: `to` is the graph around
    std::map<ValueId, ValueId> made;
  };
  struct Needed {
    std::set<ValueId> values;
    std::set<NodeId> nodes;
  };

  Scope scope(const Graph& from, Graph& to) const {
    auto it = edit_.find(&from);
    return {from, to, it == edit_.end() ? kNone : it->second, {}, false, false, {}};
  }

  static ValueId resolved(const Scope& s, ValueId v) {
    for (auto it = s.edit.aliases.find(v); it != s.edit.aliases.end(); it = s.edit.aliases.find(v))
      v = it->second;
    return v;
  }

  /// What the outputs need of `s.from`, captures of nested graphs included.
  static Needed needs(const Scope& s, const std::vector<ValueId>& outputs) {
    Needed out;
    std::vector<ValueId> work(outputs.begin(), outputs.end());
    while (!work.empty()) {
      const ValueId v = work.back() ? resolved(s, work.back()) : ValueId{};
      work.pop_back();
      if (!v || !out.values.insert(v).second || s.edit.constants.contains(v)) continue;
      const NodeId p = s.from.value(v).producer;
      if (!p || s.edit.cut.contains(p) || !out.nodes.insert(p).second) continue;
      const Node& n = s.from.node(p);
      for (size_t k = 0; k < n.inputs.size(); ++k)
        if (!s.edit.no_input.contains({p, k}) && !s.edit.fewer_inputs.contains({p, k}))
          work.push_back(n.inputs[k]);
      for (ValueId c : captures(n)) work.push_back(c);
    }
    return out;
  }

  Type type(const Type& t) const { return retypes_ ? Type{t.dtype, std::nullopt} : t; }

  /// A name for something that moves out of a nested graph.
  std::string name(const Scope& s, const std::string& old) const {
    std::string out = old;
    for (int k = 1; s.inlined && (s.to.find_value(out) || reserved_->find_value(out)); ++k)
      out = old + "_" + std::to_string(k);
    return out;
  }

  /// The value of the new graph that stands for `v`, made where it has no producer.
  ValueId value(Scope& s, ValueId v) {
    if (!v) return {};
    v = resolved(s, v);
    if (auto it = s.made.find(v); it != s.made.end()) return it->second;
    const Value& old = s.from.value(v);
    ValueId out;
    if (auto it = s.edit.constants.find(v); it != s.edit.constants.end()) {
      out = s.to.add_constant(name(s, old.name), it->second);
    } else if (old.constant) {
      out = s.to.add_constant(name(s, old.name), *old.constant);
    } else if (old.outer) {
      const ValueId o = s.outer(old.outer);
      out = s.inlined || !o ? o : s.to.add_capture(old.name, type(old.type), o);
    } else if (!s.nested && (old.is_input || s.edit.cut.contains(old.producer))) {
      auto it = s.edit.types.find(v);
      out = s.to.add_input(old.name, it == s.edit.types.end() ? old.type : it->second);
    }
    if (!out) broken_ = true;
    s.made[v] = out;
    return out;
  }

  void nodes(Scope& s, const Needed& needed) {
    for (NodeId id : s.from.order()) {
      if (!needed.nodes.contains(id) || broken_) continue;
      auto it = s.edit.inlined.find(id);
      if (it == s.edit.inlined.end())
        node(s, id);
      else
        inlined(s, id, *s.from.node(id).subgraphs[it->second].second);
    }
  }

  void node(Scope& s, NodeId id) {
    const Node& old = s.from.node(id);
    Node n = of_operator(old);
    n.name = old.name, n.origins = old.origins;
    for (const auto& [at, to] : s.edit.attrs)
      if (at.first == id) {
        if (to)
          n.attrs.set(at.second, *to);
        else
          n.attrs.erase(at.second);
      }
    for (size_t k = 0; k < old.inputs.size(); ++k)
      if (!s.edit.fewer_inputs.contains({id, k}))
        n.inputs.push_back(s.edit.no_input.contains({id, k}) ? ValueId{} : value(s, old.inputs[k]));
    for (const auto& [attribute, sub] : old.subgraphs) {
      auto copy = std::make_unique<Graph>();
      nested(s, *sub, *copy);
      n.subgraphs.emplace_back(attribute, std::move(copy));
    }
    if (broken_) return;
    for (size_t k = 0; k < old.outputs.size(); ++k) {
      const ValueId v = old.outputs[k];
      const bool gone = !v || s.edit.no_output.contains({id, k}) || s.edit.aliases.contains(v) ||
                        s.edit.constants.contains(v);
      n.outputs.push_back(gone ? ValueId{} : made(s, v));
    }
    s.to.add_node(std::move(n));
  }

  ValueId made(Scope& s, ValueId v) {
    const Value& old = s.from.value(v);
    return s.made[v] = s.to.add_value(name(s, old.name), type(old.type));
  }

  /// A nested graph keeps its inputs and the number of its outputs; one that no node of its own
  /// makes is copied.
  void nested(Scope& around, const Graph& from, Graph& to) {
    to.name = from.name;
    Scope s = scope(from, to);
    s.nested = true;
    s.outer = [&](ValueId v) { return value(around, v); };
    for (ValueId v : from.inputs())
      s.made[v] = to.add_input(from.value(v).name, type(from.value(v).type));
    nodes(s, needs(s, from.outputs()));
    for (ValueId o : from.outputs()) {
      ValueId v = value(s, o);
      if (broken_) return;
      if (!to.value(v).producer || to.value(v).is_output) {
        const ValueId copy = to.add_value(to.fresh_name("result"), type(from.value(o).type));
        to.add_node(identity(v, copy));
        v = copy;
      }
      to.add_output(v);
    }
  }

  /// The nodes of a nested graph in the place of the node that runs it: of a branch, or of one
  /// iteration of a loop, whose body reads its number, its condition and what it carries, and makes
  /// a condition and what it carries.
  void inlined(Scope& around, NodeId id, const Graph& from) {
    const Node& n = around.from.node(id);
    reserved_ = &around.from;
    Scope s = scope(from, around.to);
    s.nested = s.inlined = true;
    s.outer = [&](ValueId v) { return value(around, v); };
    const size_t inputs = from.inputs().size(), first = inputs ? 1 : 0;
    if (inputs && (inputs < 2 || inputs != n.inputs.size())) return void(broken_ = true);
    for (size_t k = 0; k < inputs; ++k) {
      const Value& formal = from.value(from.inputs()[k]);
      if (k < 2)
        s.made[from.inputs()[k]] = around.to.add_constant(
            name(s, formal.name),
            Tensor::scalar(k ? DType::boolean : DType::i64, static_cast<double>(k)));
      else
        s.made[from.inputs()[k]] = value(around, n.inputs[k]);
    }
    nodes(s, needs(s, from.outputs()));
    for (size_t k = 0; k < n.outputs.size() && !broken_; ++k) {
      if (!n.outputs[k]) continue;
      if (k + first >= from.outputs().size() || (inputs && k + 2 >= inputs))
        return void(broken_ = true);
      around.made[n.outputs[k]] = value(s, from.outputs()[k + first]);
    }
  }

  const Edit& edit_;
  const Graph* reserved_ = nullptr;  ///< around an inlined graph: its names are taken
  bool retypes_ = false, broken_ = false;
};

}  // namespace

std::optional<Graph> rebuilt(const Graph& g, const Edit& edit) {
  return Builder(edit).outermost(g);
}

std::optional<Tensor> leading(const Tensor& t, const std::vector<int64_t>& dims) {
  if (dims == t.dims()) return t;
  const size_t size = static_cast<size_t>(size_bits(t.dtype())) / 8;
  if (t.dtype() == DType::string || size == 0 || dims.size() != t.dims().size())
    return std::nullopt;
  auto [out, bytes] = Tensor::allocate(t.dtype(), dims);
  const char* from = static_cast<const char*>(t.data());
  std::vector<int64_t> at(dims.size());
  for (int64_t k = 0; k < out.numel(); ++k) {
    int64_t source = 0;
    for (size_t d = 0; d < dims.size(); ++d) source = source * t.dims()[d] + at[d];
    std::memcpy(static_cast<char*>(bytes) + static_cast<size_t>(k) * size,
                from + static_cast<size_t>(source) * size, size);
    for (size_t d = dims.size(); d-- > 0;)
      if (++at[d] < dims[d])
        break;
      else
        at[d] = 0;
  }
  return out;
}

}  // namespace ferrule::reduce
