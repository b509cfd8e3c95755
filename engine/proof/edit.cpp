#include "engine/proof/edit.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/base/diagnostics.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

using nlohmann::json;

class Editor {
 public:
  Editor(Graph& g, const Bindings& bound, const std::string& place)
      : g_(g), bound_(bound), place_(place) {}

  Status apply(const std::string& verb, const std::string& argument) {
    json a = json::parse(argument, nullptr, false);
    if (a.is_discarded())
      return bad("the argument of {} cannot be read: {}", verb, escape(argument));
    if (verb == "leak" || verb == "output" || verb == "input") {
      if (!a.is_string()) return bad("{} wants the name of a value", verb);
      FERRULE_ASSIGN(ValueId v, value(a.get<std::string>()));
      return verb == "leak" ? leak(v) : verb == "output" ? output(v) : input(v);
    }
    if (verb == "drop") {
      if (a.is_string()) a = json::array({a});
      for (const json& n : a) FERRULE_TRY(drop(n.get<std::string>()));
      return {};
    }
    if (!a.is_object()) return bad("{} wants a map", verb);
    if (verb == "rewire") return rewire(a);
    for (const auto& [name, what] : a.items()) {
      if (verb == "set")
        FERRULE_TRY(set(name, what));
      else if (verb == "const")
        FERRULE_TRY(constant(name, what));
      else if (verb == "shape")
        FERRULE_TRY(shape(name, what));
      else if (verb == "dtype")
        FERRULE_TRY(dtype(name, what));
      else
        return bad("there is no edit {}", escape(verb));
    }
    return {};
  }

 private:
  template <class... Args>
  tl::unexpected<Error> bad(fmt::format_string<Args...> text, Args&&... args) const {
    return error(Code::rule_invalid, place_, fmt::format(text, std::forward<Args>(args)...),
                 std::string());
  }

  Result<ValueId> value(const std::string& name) const {
    if (auto it = bound_.values.find(name); it != bound_.values.end() && it->second)
      return it->second;
    if (ValueId v = g_.find_value(name)) return v;
    return bad("there is no value {} in the case", escape(name));
  }
  Result<NodeId> node(const std::string& name) const {
    if (auto it = bound_.nodes.find(name); it != bound_.nodes.end() && it->second)
      return it->second;
    if (NodeId n = g_.find_node(name)) return n;
    if (auto v = value(name); v && g_.value(*v).producer) return g_.value(*v).producer;
    return bad("there is no node {} in the case", escape(name));
  }

  Status leak(ValueId v) {
    ValueId out = g_.add_value(g_.fresh_name("leaked"), g_.value(v).type);
    g_.add_node(identity(v, out));
    g_.add_output(out);
    return {};
  }
  Status output(ValueId v) {
    if (!g_.value(v).is_output) g_.add_output(v);
    return {};
  }
  Status input(ValueId v) {
    if (!g_.constant(v)) return bad("{} is no constant", escape(g_.value(v).name));
    std::string name = g_.value(v).name;
    g_.rename(v, g_.fresh_name(name + "_const"));
    ValueId in = g_.add_input(name, g_.value(v).type);
    g_.replace_uses(v, in);
    return {};
  }
  Status drop(const std::string& name) {
    FERRULE_ASSIGN(ValueId v, value(name));
    std::vector<Use> uses = g_.value(v).uses;
    for (const Use& u : uses)
      if (u.slot != Use::kCapture) g_.set_input(u.node, static_cast<size_t>(u.slot), {});
    return {};
  }

  Status set(const std::string& path, const json& what) {
    size_t dot = path.rfind('.');
    if (dot == path.npos) return bad("{} is not node.attribute", escape(path));
    FERRULE_ASSIGN(NodeId n, node(path.substr(0, dot)));
    std::string name = path.substr(dot + 1);
    const Attr* before = g_.node(n).attrs.find(name);
    bool real = before && (std::holds_alternative<double>(*before) ||
                           std::holds_alternative<std::vector<double>>(*before));
    if (what.is_boolean())
      g_.set_attr(n, name, int64_t{what.get<bool>()});
    else if (what.is_number_integer() && !real)
      g_.set_attr(n, name, what.get<int64_t>());
    else if (what.is_number())
      g_.set_attr(n, name, what.get<double>());
    else if (what.is_string())
      g_.set_attr(n, name, what.get<std::string>());
    else if (what.is_array() &&
             std::ranges::all_of(what, [](const json& x) { return x.is_number_integer(); }) &&
             !real)
      g_.set_attr(n, name, what.get<std::vector<int64_t>>());
    else if (what.is_array() &&
             std::ranges::all_of(what, [](const json& x) { return x.is_number(); }))
      g_.set_attr(n, name, what.get<std::vector<double>>());
    else
      return bad("{} cannot be an attribute", what.dump());
    return {};
  }

  static std::optional<double> number(const json& x) {
    if (x.is_number()) return x.get<double>();
    if (x == "inf") return INFINITY;
    if (x == "-inf") return -INFINITY;
    if (x == "nan") return NAN;
    return std::nullopt;
  }

  Status constant(const std::string& name, const json& what) {
    FERRULE_ASSIGN(ValueId v, value(name));
    const Tensor* t = g_.constant(v);
    if (!t) return bad("{} is no constant", escape(name));
    std::vector<double> values;
    json list = what.is_array() ? what : json::array({what});
    for (const json& x : list) {
      auto d = number(x);
      if (!d) return bad("{} is no number", x.dump());
      values.push_back(*d);
    }
    bool fits = !what.is_array() || std::ssize(values) == t->numel();
    std::vector<int64_t> dims = fits ? t->dims() : std::vector<int64_t>{std::ssize(values)};
    g_.set_constant(v, filled(t->dtype(), dims, values));
    return {};
  }

  Status shape(const std::string& name, const json& what) {
    FERRULE_ASSIGN(ValueId v, value(name));
    if (!what.is_array()) return bad("the shape of {} is no list", escape(name));
    Shape dims;
    std::vector<int64_t> sizes;
    for (const json& d : what) {
      if (d.is_number_integer())
        dims.emplace_back(d.get<int64_t>()), sizes.push_back(d.get<int64_t>());
      else if (d.is_string())
        dims.push_back(Dim::symbol(d.get<std::string>()));
      else
        return bad("{} is no size", d.dump());
    }
    if (const Tensor* t = g_.constant(v)) {
      if (sizes.size() != dims.size())
        return bad("the constant {} cannot have symbolic sizes", escape(name));
      if (t->dtype() == DType::string) return bad("{} is a list of texts", escape(name));
      std::vector<double> values = t->to_f64();
      if (values.empty()) values.push_back(1);
      g_.set_constant(v, filled(t->dtype(), sizes, values));
      return {};
    }
    if (!g_.value(v).is_input) return bad("{} is neither an input nor a constant", escape(name));
    g_.set_type(v, Type{g_.value(v).type.dtype, dims});
    return {};
  }

  Status dtype(const std::string& name, const json& what) {
    FERRULE_ASSIGN(ValueId v, value(name));
    auto t = what.is_string() ? parse_dtype(what.get<std::string>()) : std::nullopt;
    if (!t) return bad("{} is no element type", what.dump());
    const Tensor* c = g_.constant(v);
    if (c && (c->dtype() == DType::string) != (*t == DType::string))
      return bad("{} cannot become {}", escape(name), ferrule::name(*t));
    if (c && *t != DType::string)
      g_.set_constant(v, filled(*t, c->dims(), c->to_f64()));
    else if (c)
      return {};
    else if (g_.value(v).is_input)
      g_.set_type(v, Type{*t, g_.value(v).type.shape});
    else
      return bad("{} is neither an input nor a constant", escape(name));
    return {};
  }

  Status rewire(const json& a) {
    if (!a.contains("node") || !a.contains("slot") || !a.contains("to"))
      return bad("rewire wants node, slot and to");
    FERRULE_ASSIGN(NodeId n, node(a["node"].get<std::string>()));
    auto slot = a["slot"].get<size_t>();
    std::string to = a["to"].get<std::string>();
    ValueId was = g_.input(n, slot);
    if (auto v = value(to)) {
      g_.set_input(n, slot, *v);
    } else {
      if (!was) return bad("node {} has no input {}", a["node"].dump(), slot);
      Type t = g_.value(was).type;
      g_.set_input(n, slot, g_.add_input(to, std::move(t)));
    }
    return {};
  }

  Graph& g_;
  const Bindings& bound_;
  const std::string& place_;
};

}  // namespace

Tensor filled(DType t, const std::vector<int64_t>& dims, const std::vector<double>& values) {
  auto [out, bytes] = Tensor::allocate(t, dims);
  for (int64_t i = 0; i < out.numel() && !values.empty(); ++i)
    Tensor::put(t, bytes, i, values[static_cast<size_t>(i) % values.size()]);
  return out;
}

Status apply_edits(const Semantics& ops, Graph& g,
                   const std::vector<std::pair<std::string, std::string>>& edits,
                   const Bindings& bound, const std::string& place) {
  Editor editor(g, bound, place);
  for (const auto& [verb, argument] : edits) FERRULE_TRY(editor.apply(verb, argument));
  if (Status s = g.sort(); !s) return s;
  // An edit may make a graph that has no shapes any more; the rule must still decline it.
  (void)infer_again(ops, g);
  return {};
}

Status infer_again(const Semantics& ops, Graph& g) {
  FERRULE_TRY(g.sort());
  std::vector<std::pair<ValueId, Type>> before;
  for (ValueId v : g.values()) {
    if (!g.value(v).producer) continue;
    before.emplace_back(v, g.value(v).type);
    g.set_type(v, {});
    g.set_contents(v, std::nullopt);
  }
  Status s = infer_all(ops, g);
  for (auto& [v, t] : before) {
    const Type now = g.value(v).type;
    if (!s && !now.known()) g.set_type(v, t);
    // Of some operators nothing is inferred.
    if (s && now.dtype == DType::undefined) g.set_type(v, {t.dtype, now.shape});
  }
  return s;
}

}  // namespace ferrule
