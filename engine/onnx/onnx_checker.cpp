// onnx's own checker: schemas, attributes, tensors' bookkeeping. Its exceptions end here. Tensors
// with external data are put aside meanwhile, because it opens their files by rules other than
// ours.
#include <onnx/checker.h>

#include <algorithm>

#include "engine/graph/operator_name.h"
#include "engine/onnx/import.h"
#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

/// Onnx's operators, and one schema that accepts anything for those that are known otherwise.
class Registry final : public onnx::ISchemaRegistry {
 public:
  Registry(const Functions& functions, const Semantics& ops) : functions_(functions), ops_(ops) {
    anything_.SetName("anything").SetDomain("").SinceVersion(1).AllowUncheckedAttributes();
    auto variadic = onnx::OpSchema::Variadic;
    anything_.Input(0, "x", "", "T", variadic, false, 0)
        .Output(0, "y", "", "U", variadic, false, 0);
    anything_.TypeConstraint("T", onnx::OpSchema::all_tensor_types_ir13(), "")
        .TypeConstraint("U", onnx::OpSchema::all_tensor_types_ir13(), "");
    anything_.Finalize();
  }
  const onnx::OpSchema* GetSchema(const std::string& op, const int version,
                                  const std::string& domain) const override {
    if (const auto* s = schema_of(op, version, canonical_domain(domain))) return s;
    std::string d = canonical_domain(domain);
    bool known = ops_.find(d, operator_named(op).text()) != nullptr;
    auto it = functions_.lower_bound({d, op, ""});
    known = known ||
            (it != functions_.end() && std::get<0>(it->first) == d && std::get<1>(it->first) == op);
    return known ? &anything_ : nullptr;
  }

 private:
  const Functions& functions_;
  const Semantics& ops_;
  onnx::OpSchema anything_;
};

void collect(onnx::TensorProto& t, std::vector<onnx::TensorProto*>& out) {
  if (t.data_location() == onnx::TensorProto::EXTERNAL) out.push_back(&t);
}

void collect(onnx::GraphProto& g, std::vector<onnx::TensorProto*>& out);

template <class Nodes>
void collect_nodes(Nodes& nodes, std::vector<onnx::TensorProto*>& out) {
  for (auto& n : nodes)
    for (auto& a : *n.mutable_attribute()) {
      if (a.has_t()) collect(*a.mutable_t(), out);
      if (a.has_g()) collect(*a.mutable_g(), out);
      for (auto& g : *a.mutable_graphs()) collect(g, out);
    }
}

void collect(onnx::GraphProto& g, std::vector<onnx::TensorProto*>& out) {
  for (auto& t : *g.mutable_initializer()) collect(t, out);
  collect_nodes(*g.mutable_node(), out);
}

/// Swaps external tensors with empty ones of the same name, and back when it goes.
class PutAside {
 public:
  explicit PutAside(Model& m) {
    collect(*m.mutable_graph(), tensors_);
    for (auto& f : *m.mutable_functions()) collect_nodes(*f.mutable_node(), tensors_);
    for (auto* t : tensors_) {
      onnx::TensorProto empty;
      empty.set_name(t->name());
      empty.set_data_type(t->data_type());
      empty.add_dims(0);
      aside_.push_back(std::move(empty));
      t->Swap(&aside_.back());
    }
  }
  ~PutAside() {
    for (size_t i = 0; i < tensors_.size(); ++i) tensors_[i]->Swap(&aside_[i]);
  }

 private:
  std::vector<onnx::TensorProto*> tensors_;
  std::vector<onnx::TensorProto> aside_;
};

/// Graph inputs and outputs without a shape, and graphs without a name, are common and harmless,
/// but not to the checker: they get one while it looks.
class Complete {
 public:
  explicit Complete(Model& m) { graph(*m.mutable_graph()); }
  ~Complete() {
    for (auto* t : shapeless_) t->clear_shape();
    for (auto* g : nameless_) g->clear_name();
  }

 private:
  void graph(onnx::GraphProto& g) {
    if (g.name().empty()) {
      g.set_name("graph");
      nameless_.push_back(&g);
    }
    for (auto& v : *g.mutable_input()) value(v);
    for (auto& v : *g.mutable_output()) value(v);
  }
  void value(onnx::ValueInfoProto& v) {
    if (!v.has_type() || !v.type().has_tensor_type() || v.type().tensor_type().has_shape()) return;
    shapeless_.push_back(v.mutable_type()->mutable_tensor_type());
    shapeless_.back()->mutable_shape();
  }
  std::vector<onnx::TypeProto::Tensor*> shapeless_;
  std::vector<onnx::GraphProto*> nameless_;
};

std::string one_line(std::string text) {
  std::string out;
  for (char c : text) {
    if (c != '\n')
      out += c;
    else if (!out.empty() && out.back() != ' ')
      out += ' ';
  }
  while (!out.empty() && (out.back() == ' ' || out.back() == '.')) out.pop_back();
  return escape(out, 600);
}

/// Domains other than ONNX's that a model uses and does not import count as version 1, as ONNX
/// Runtime takes them.
void import_used(const onnx::GraphProto& g, std::unordered_map<std::string, int>& imports) {
  for (const auto& n : g.node()) {
    if (!n.domain().starts_with("ai.onnx")) imports.try_emplace(canonical_domain(n.domain()), 1);
    for (const auto& a : n.attribute())
      if (a.has_g()) import_used(a.g(), imports);
  }
}

}  // namespace

Status run_checker(Model& m, const Functions& functions, const Semantics& ops) {
  PutAside aside(m);
  Complete complete(m);
  Registry registry(functions, ops);
  onnx::checker::CheckerContext context;
  context.set_schema_registry(&registry);
  // Before IR 4 initializers had to be inputs; that rule protects nothing here.
  context.set_ir_version(static_cast<int>(std::max<int64_t>(4, m.ir_version())));
  std::unordered_map<std::string, int> imports;
  for (const auto& o : m.opset_import())
    imports[canonical_domain(o.domain())] = static_cast<int>(o.version());
  if (auto it = imports.find(""); it != imports.end()) {
    imports["ai.onnx"] = it->second;
    import_used(m.graph(), imports);
  }
  context.set_opset_imports(imports);
  try {
    onnx::checker::LexicalScopeContext scope;
    onnx::checker::check_graph(m.graph(), context, scope);
    if (m.functions_size() > 0) {
      context.set_skip_opset_compatibility_check(
          true);  // inlined nodes keep their function's opset
      onnx::checker::check_model_local_functions(m, context, scope);
    }
  } catch (const std::exception& e) {
    return error(Code::model_invalid, "model", one_line(e.what()));
  }
  return {};
}

}  // namespace ferrule::onnx_io
