// The parsed, checked model as a Graph. Calls of the model's own functions are replaced by their
// bodies here: names are bound through scopes, so nothing of the parsed model is copied or renamed.
// Node::attrs still have the model's own opset (Node::since_opset); normalize.h changes that.
#include <onnx/defs/schema.h>

#include <algorithm>
#include <functional>
#include <unordered_map>
#include <unordered_set>

#include "engine/graph/operator_name.h"
#include "engine/onnx/import.h"
#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;
using AttributeMap = std::map<std::string, onnx::AttributeProto*, std::less<>>;

/// A place in the model, put into words only when a message needs it.
using Where = std::function<std::string()>;

/// Names visible at one place: of a graph, of a function's body, or of a nested graph in either.
struct Scope {
  Graph* graph = nullptr;
  Scope* outer = nullptr;  ///< enclosing scope of a nested graph
  const Opsets* opsets = nullptr;
  const AttributeMap* arguments = nullptr;  ///< inside a function: its attributes at this call
  std::string prefix;                       ///< of names, inside a function
  std::vector<std::string> origins;         ///< inside a function: the calls that led here
  /// By names that lie in the parsed model.
  std::unordered_map<std::string_view, ValueId> names;
  std::unordered_map<std::string_view, Type> declared;
};

class Converter {
 public:
  Converter(Model& m, const Functions& functions, ExternalRoots& roots,
            const ImportOptions& options, const Limits& limits, Imported& out)
      : model_(m),
        functions_(functions),
        roots_(roots),
        options_(options),
        limits_(limits),
        out_(out) {}

  Status run(const Opsets& opsets) {
    Scope scope;
    scope.graph = &out_.graph;
    scope.opsets = &opsets;
    return graph(*model_.mutable_graph(), scope, true);
  }

 private:
  Status graph(onnx::GraphProto& g, Scope& scope, bool top) {
    Graph& out = *scope.graph;
    out.name = g.name();
    reserve(g, scope);
    std::unordered_set<std::string_view> overridden;
    for (auto& t : *g.mutable_initializer()) overridden.insert(t.name());
    for (auto& t : *g.mutable_sparse_initializer()) overridden.insert(t.values().name());
    std::vector<std::string> shared;
    for (const auto& i : g.input()) {
      bool also = overridden.count(i.name());
      if (also) shared.push_back(i.name());
      if (also && !(top && options_.overridable)) continue;
      FERRULE_ASSIGN(Type type, to_type(i.type(), i.name(), limits_, "input " + quote(i.name())));
      scope.names[i.name()] = out.add_input(i.name(), std::move(type));
    }
    for (auto& t : *g.mutable_initializer()) {
      FERRULE_ASSIGN(Tensor value, tensor(t, "initializer " + quote(t.name())));
      add_initializer(scope, t.name(), std::move(value));
    }
    for (auto& t : *g.mutable_sparse_initializer()) {
      const std::string& name = t.values().name();
      FERRULE_ASSIGN(Tensor value, to_tensor(t, "initializer " + quote(name), roots_, limits_));
      add_initializer(scope, name, std::move(value));
    }
    if (top && !shared.empty()) note_shared(shared);
    for (const auto& v : g.value_info()) declare(scope, v);
    for (const auto& v : g.output()) declare(scope, v);
    FERRULE_TRY(nodes(*g.mutable_node(), scope));
    for (const auto& o : g.output()) {
      FERRULE_ASSIGN(ValueId v,
                     look_up(scope, o.name(), [&] { return "output " + quote(o.name()); }));
      // Each output is a value of its own, so that it can keep its name.
      if (out.value(v).is_output) v = copy(scope, v, o.name() + "_out");
      out.add_output(v);
    }
    return {};
  }

  static void reserve(const onnx::GraphProto& g, Scope& scope) {
    size_t values = static_cast<size_t>(g.input_size() + g.initializer_size());
    for (const auto& n : g.node()) values += static_cast<size_t>(n.output_size());
    scope.graph->reserve(static_cast<size_t>(g.node_size()), values);
    scope.names.reserve(values);
    scope.declared.reserve(g.value_info_size() + g.output_size());
  }

  /// Every call of a function shares its constants.
  Result<Tensor> tensor(onnx::TensorProto& t, const std::string& where) {
    if (auto it = tensors_.find(&t); it != tensors_.end()) return it->second;
    FERRULE_ASSIGN(Tensor value, to_tensor(t, where, roots_, limits_));
    tensors_.emplace(&t, value);
    return value;
  }

  void add_initializer(Scope& scope, const std::string& name, Tensor value) {
    if (auto it = scope.names.find(name); it != scope.names.end()) {
      out_.defaults[name] = std::move(value);  // an overridable input
      return;
    }
    scope.names[name] = scope.graph->add_constant(name, std::move(value));
  }

  void note_shared(const std::vector<std::string>& names) {
    std::string list;
    for (size_t i = 0; i < names.size() && i < 3; ++i) list += (i ? ", " : "") + quote(names[i]);
    if (names.size() > 3) list += ", …";
    out_.notes.push_back(fmt::format("{} initializer{} also graph inputs ({}): {}", names.size(),
                                     names.size() == 1 ? " is" : "s are", list,
                                     options_.overridable
                                         ? "they stay inputs, as --overridable says"
                                         : "taken as constants; --overridable keeps them inputs"));
  }

  /// Declared types are hints: what cannot be read of them is left out.
  void declare(Scope& scope, const onnx::ValueInfoProto& v) {
    auto type = to_type(v.type(), "", limits_, "");
    if (type) scope.declared.try_emplace(v.name(), std::move(*type));
  }

  ValueId copy(Scope& scope, ValueId from, const std::string& name) {
    Graph& g = *scope.graph;
    ValueId v = g.add_value(g.fresh_name(name), g.value(from).type);
    identity(g, from, v, {});
    return v;
  }
  static void identity(Graph& g, ValueId from, ValueId to, std::vector<std::string> origins) {
    Node n = ferrule::identity(from, to);
    n.since_opset = 28;
    n.origins = std::move(origins);
    g.add_node(std::move(n));
  }

  /// The value of a name, captured from enclosing graphs where needed.
  Result<ValueId> look_up(Scope& scope, const std::string& name, const Where& where) {
    if (auto it = scope.names.find(name); it != scope.names.end()) return it->second;
    if (!scope.outer) return error(Code::dangling_input, where(), quote(name));
    FERRULE_ASSIGN(ValueId outside, look_up(*scope.outer, name, where));
    if (!outside) return ValueId{};
    const Graph& around = *scope.outer->graph;
    ValueId v = scope.graph->add_capture(scope.graph->fresh_name(around.value(outside).name),
                                         around.value(outside).type, outside);
    scope.names[name] = v;
    return v;
  }

  /// All results first, so that the order of nodes does not matter to captures.
  Status nodes(Nodes& list, Scope& scope) {
    Graph& g = *scope.graph;
    std::unordered_map<std::string_view, int> times;
    times.reserve(list.size());
    for (auto& n : list) {
      ++times[n.name()];
      for (const std::string& o : n.output()) {
        if (o.empty() || scope.names.count(o))
          continue;  // a function's output: bound by its caller
        Type type;
        if (auto it = scope.declared.find(o); it != scope.declared.end()) type = it->second;
        scope.names[o] = g.add_value(g.fresh_name(scope.prefix + o), std::move(type));
      }
    }
    int index = 0;
    for (auto& n : list) {
      std::string name = n.name();
      if (name.empty() || times[name] > 1) {
        name = fmt::format("{}_{}", n.op_type(), index);
        for (int k = 1; times.count(name); ++k)
          name = fmt::format("{}_{}_{}", n.op_type(), index, k);
      }
      FERRULE_TRY(node(n, scope.prefix + name, scope));
      ++index;
    }
    return {};
  }

  Status node(onnx::NodeProto& n, const std::string& name, Scope& scope) {
    if (!functions_.empty())
      if (auto f = functions_.find(key_of(n)); f != functions_.end())
        return call(n, *const_cast<onnx::FunctionProto*>(f->second), name, scope);
    std::string domain = canonical_domain(n.domain());
    auto version = scope.opsets->find(domain);
    int64_t opset = version == scope.opsets->end() ? 1 : version->second;
    const Where where = [&] { return place(n, opset); };
    FERRULE_ASSIGN(auto attributes, arguments_of(n, scope, where));
    if (n.op_type() == "Constant" && domain.empty()) {
      if (!n.output().empty()) out_.constants.emplace(name, n.output(0));
      return constant(n, attributes, where, scope);
    }
    Node out;
    out.op = operator_named(n.op_type());
    out.domain = domain;
    out.name = scope.graph->find_node(name) ? scope.graph->fresh_name(name) : name;
    out.since_opset = static_cast<int>(opset);
    if (scope.origins.empty() || options_.own_origins)
      out.origins.push_back(name);
    else
      out.origins = scope.origins;
    out.inputs.reserve(n.input_size());
    out.outputs.reserve(n.output_size());
    FERRULE_TRY(check_variadic(n, opset, domain, where));
    for (const std::string& in : n.input()) {
      ValueId v;
      if (!in.empty()) {
        FERRULE_ASSIGN(v, look_up(scope, in, where));
      }
      out.inputs.push_back(v);
    }
    for (const std::string& o : n.output())
      out.outputs.push_back(o.empty() ? ValueId{} : scope.names.at(o));
    // What names a later result only has a first one all the same: everybody looks at a node's
    // first result.
    if (std::ranges::any_of(out.outputs, [](ValueId v) { return bool(v); }) && !out.outputs[0])
      out.outputs[0] = scope.graph->add_value(scope.graph->fresh_name(name + "_0"));
    for (auto& [key, a] : attributes) FERRULE_TRY(attribute(key, *a, where, scope, out));
    scope.graph->add_node(std::move(out));
    return {};
  }

  /// One of any number of operands (Concat's, Sum's) cannot be left out; onnx's checker lets it
  /// pass.
  static Status check_variadic(const onnx::NodeProto& n, int64_t opset, const std::string& domain,
                               const Where& where) {
    if (std::ranges::none_of(n.input(), [](const std::string& in) { return in.empty(); }))
      return {};
    const auto* schema = schema_of(n.op_type(), static_cast<int>(opset), domain);
    if (!schema || schema->inputs().empty() ||
        schema->inputs().back().GetOption() != onnx::OpSchema::Variadic)
      return {};
    for (int k = static_cast<int>(schema->inputs().size()) - 1; k < n.input_size(); ++k)
      if (n.input(k).empty())
        return error(Code::model_invalid, where(),
                     fmt::format("input {} is left out, it may not be", k));
    return {};
  }

  /// The node's attributes, references to the enclosing function's attributes resolved.
  Result<AttributeMap> arguments_of(onnx::NodeProto& n, const Scope& scope, const Where& where) {
    AttributeMap out;
    for (auto& a : *n.mutable_attribute()) {
      onnx::AttributeProto* value = &a;
      if (!a.ref_attr_name().empty()) {
        if (!scope.arguments)
          return error(Code::bad_attribute, where(), quote(a.name()),
                       "it refers to an attribute outside a function");
        auto it = scope.arguments->find(a.ref_attr_name());
        if (it == scope.arguments->end()) continue;  // not given at the call: left out here too
        value = it->second;
      }
      if (!out.try_emplace(a.name(), value).second)
        return error(Code::bad_attribute, where(), quote(a.name()), "it is given twice");
    }
    return out;
  }

  Status call(onnx::NodeProto& n, onnx::FunctionProto& f, const std::string& name, Scope& scope) {
    const Where where = [&] { return place(n); };
    if (n.input_size() > f.input_size() || n.output_size() > f.output_size())
      return error(
          Code::model_invalid, where(),
          fmt::format("it has {} and {}, its function {} and {}", counted(n.input_size(), "input"),
                      counted(n.output_size(), "output"), f.input_size(), f.output_size()));
    FERRULE_ASSIGN(Opsets opsets, read_opsets(f.opset_import(), "function " + quote(f.name())));
    FERRULE_ASSIGN(AttributeMap arguments, arguments_of(n, scope, where));
    for (auto& a : *f.mutable_attribute_proto()) arguments.try_emplace(a.name(), &a);
    Scope inner;
    inner.graph = scope.graph;
    inner.opsets = &opsets;
    inner.arguments = &arguments;
    inner.prefix = name + "/";
    inner.origins = scope.origins.empty() ? std::vector<std::string>{name} : scope.origins;
    for (int i = 0; i < f.input_size(); ++i) {
      ValueId v;
      if (i < n.input_size() && !n.input(i).empty()) {
        FERRULE_ASSIGN(v, look_up(scope, n.input(i), where));
      }
      inner.names[f.input(i)] = v;
    }
    std::vector<std::pair<std::string, ValueId>> passed;  // outputs that are inputs
    for (int i = 0; i < n.output_size(); ++i) {
      if (n.output(i).empty()) continue;
      ValueId v = scope.names.at(n.output(i));
      if (!inner.names.try_emplace(f.output(i), v).second) passed.emplace_back(f.output(i), v);
    }
    FERRULE_TRY(nodes(*f.mutable_node(), inner));
    for (auto& [formal, v] : passed) {
      ValueId from = inner.names.at(formal);
      if (!from) return error(Code::dangling_input, where(), quote(formal));
      identity(*scope.graph, from, v, inner.origins);
    }
    return {};
  }

  Status constant(onnx::NodeProto& n, const AttributeMap& attributes, const Where& where,
                  Scope& scope) {
    if (attributes.size() != 1 || n.output_size() != 1 || n.output(0).empty() ||
        n.input_size() != 0)
      return error(Code::model_invalid, where(), "it wants one value attribute and one output");
    auto& [key, a] = *attributes.begin();
    Tensor t;
    if (key == "value" && a->has_t()) {
      FERRULE_ASSIGN(t, tensor(*a->mutable_t(), where()));
    } else if (key == "sparse_value" && a->has_sparse_tensor()) {
      FERRULE_ASSIGN(t, to_tensor(a->sparse_tensor(), where(), roots_, limits_));
    } else if (key == "value_float") {
      t = Tensor::of<float>(DType::f32, {}, std::vector<float>{a->f()});
    } else if (key == "value_floats") {
      t = Tensor::of<float>(DType::f32, {a->floats_size()},
                            std::vector<float>(a->floats().begin(), a->floats().end()));
    } else if (key == "value_int") {
      t = Tensor::of_i64({}, {a->i()});
    } else if (key == "value_ints") {
      t = Tensor::of_i64({a->ints_size()}, {a->ints().begin(), a->ints().end()});
    } else if (key == "value_string") {
      t = Tensor({}, std::vector<std::string>{a->s()});
    } else if (key == "value_strings") {
      t = Tensor({a->strings_size()}, {a->strings().begin(), a->strings().end()});
    } else {
      return error(Code::bad_attribute, where(), quote(key), "it is no value of a Constant");
    }
    scope.graph->set_constant(scope.names.at(n.output(0)), std::move(t));
    return {};
  }

  Status attribute(const std::string& key, onnx::AttributeProto& a, const Where& where,
                   Scope& scope, Node& out) {
    using P = onnx::AttributeProto;
    if (auto plain = to_attr(a)) {
      out.attrs.set(key, std::move(*plain));
      return {};
    }
    switch (a.type()) {
      case P::TENSOR: {
        FERRULE_ASSIGN(Tensor t, tensor(*a.mutable_t(), where() + ", attribute " + quote(key)));
        out.attrs.set(key, std::move(t));
        return {};
      }
      case P::TYPE_PROTO:  // as text, to look at; nothing computes with it
        out.attrs.set(key, a.tp().ShortDebugString());
        return {};
      case P::GRAPH:
        return nested(key, *a.mutable_g(), scope, out);
      default:
        return error(
            Code::unsupported_type, where(),
            fmt::format("attribute {} of kind {}", quote(key), static_cast<int>(a.type())));
    }
  }

  Status nested(const std::string& key, onnx::GraphProto& g, Scope& scope, Node& out) {
    auto sub = std::make_unique<Graph>();
    Scope inner;
    inner.graph = sub.get();
    inner.outer = &scope;
    inner.opsets = scope.opsets;
    inner.arguments = scope.arguments;
    inner.prefix = scope.prefix;
    inner.origins = scope.origins;
    FERRULE_TRY(graph(g, inner, false));
    out.subgraphs.emplace_back(key, std::move(sub));
    return {};
  }

  Model& model_;
  const Functions& functions_;
  ExternalRoots& roots_;
  const ImportOptions& options_;
  const Limits& limits_;
  Imported& out_;
  std::unordered_map<const onnx::TensorProto*, Tensor> tensors_;
};

}  // namespace

DType no_tensor(const onnx::TypeProto& t) {
  return t.has_sequence_type()   ? DType::sequence
         : t.has_optional_type() ? DType::optional
         : t.has_map_type()      ? DType::map
                                 : DType::undefined;
}

Result<Type> to_type(const onnx::TypeProto& t, const std::string& unnamed, const Limits& limits,
                     const std::string& where) {
  if (!t.has_tensor_type()) return Type{no_tensor(t), {}};
  const auto& tensor = t.tensor_type();
  int code = tensor.elem_type();
  if (code != 0 && !is_element_type(code))
    return error(Code::unsupported_type, where, fmt::format("element type {}", code));
  Type out;
  out.dtype = static_cast<DType>(code);
  if (!tensor.has_shape()) return out;
  if (tensor.shape().dim_size() > limits.rank)
    return error(Code::limit_exceeded, where, "the rank (rank)", tensor.shape().dim_size(),
                 limits.rank);
  Shape shape;
  for (const auto& d : tensor.shape().dim()) {
    // Some exporters write -1 for "any".
    if (d.has_dim_value() && d.dim_value() >= 0)
      shape.push_back(d.dim_value());
    else if (d.has_dim_value() && d.dim_value() < -1)
      return error(Code::bad_shape, where, fmt::format("a dimension is {}", d.dim_value()));
    else if (d.has_dim_param() && !d.dim_param().empty() && d.dim_param() != "?")  // Paddle: any
      shape.push_back(Dim::symbol(d.dim_param()));
    else if (!unnamed.empty())  // a name of its own, so that a run can give it a size
      shape.push_back(Dim::symbol(fmt::format("{}.{}", unnamed, shape.size())));
    else
      shape.push_back(Dim::unknown());
  }
  out.shape = std::move(shape);
  return out;
}

Status convert(Model& m, const Functions& functions, const Opsets& opsets, ExternalRoots& roots,
               const ImportOptions& options, const Limits& limits, Imported& out) {
  return Converter(m, functions, roots, options, limits, out).run(opsets);
}

}  // namespace ferrule::onnx_io
