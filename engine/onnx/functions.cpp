// Operators that rules/ops write in other ones, and those that ONNX itself defines so and no
// kernel computes, become functions of the model that calls them: one for each form of call (its
// attributes, and which inputs it has), told apart by their overload.
#include <onnx/defs/parser.h>
#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>

#include <algorithm>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "engine/onnx/internal.h"
#include "engine/semantics/function_text.h"
#include "engine/semantics/semantics.h"

namespace ferrule::onnx_io {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

/// Those that are taken as ONNX's schemas define them. (The interpreter knows RotaryEmbedding.)
constexpr std::string_view kByOnnx[] = {
    "BlackmanWindow",  "CausalConvWithState",     "HammingWindow",
    "HannWindow",      "LinearAttention",         "NegativeLogLikelihoodLoss",
    "RotaryEmbedding", "SoftmaxCrossEntropyLoss", "SwiGLU"};
/// The same of ai.onnx.preview; their bodies are written in ai.onnx.
constexpr std::string_view kByPreview[] = {"FlexAttention"};

class FunctionWriter {
 public:
  FunctionWriter(Model& m, const Semantics& ops, const Limits& limits)
      : m_(m), ops_(ops), limits_(limits) {
    names_.insert(std::begin(kByOnnx), std::end(kByOnnx));
    names_.insert(std::begin(kByPreview), std::end(kByPreview));
    for (const auto& [_, f] : ops.functions()) names_.insert(f.op);
  }

  Status run() {
    // Most models have none.
    const auto calls = [&](const auto& f) { return called(f.node()); };
    if (!called(m_.graph().node()) && std::ranges::none_of(m_.functions(), calls)) return {};
    note_types();
    for (const auto& f : m_.functions()) own_.emplace(canonical_domain(f.domain()), f.name());
    FERRULE_ASSIGN(Opsets opsets, read_opsets(m_.opset_import(), "model"));
    FERRULE_TRY(nodes(*m_.mutable_graph()->mutable_node(), opsets));
    // The list grows: functions call others. Elements stay where they are.
    for (int k = 0; k < m_.functions_size(); ++k) {
      onnx::FunctionProto& f = *m_.mutable_functions(k);
      FERRULE_ASSIGN(Opsets own, read_opsets(f.opset_import(), "function " + quote(f.name())));
      types_.clear();  // of the main graph's values, whose names it may use for others
      data_.clear();
      noted_.clear();
      FERRULE_TRY(nodes(*f.mutable_node(), own));
    }
    return {};
  }

 private:
  bool called(const Nodes& list) const {
    return std::ranges::any_of(list, [&](const onnx::NodeProto& n) {
      return names_.contains(n.op_type()) ||
             std::ranges::any_of(n.attribute(), [&](const onnx::AttributeProto& a) {
               return (a.has_g() && called(a.g().node())) ||
                      std::ranges::any_of(a.graphs(),
                                          [&](const auto& g) { return called(g.node()); });
             });
    });
  }

  void note_types() {
    const auto& g = m_.graph();
    for (const auto& t : g.initializer()) data_[t.name()] = &t;
    for (const auto& v : g.input()) data_.erase(v.name());  // a run may give other data
    for (const auto* list : {&g.input(), &g.value_info(), &g.output()})
      for (const auto& v : *list) types_[v.name()] = v.type();
    for (const auto& t : g.initializer()) note_tensor(t.name(), t);
  }
  void note_tensor(const std::string& name, const onnx::TensorProto& t) {
    auto* type = types_[name].mutable_tensor_type();
    type->set_elem_type(t.data_type());
    type->mutable_shape()->clear_dim();
    for (int64_t d : t.dims()) type->mutable_shape()->add_dim()->set_dim_value(d);
  }

  Status nodes(Nodes& list, const Opsets& opsets) {
    for (onnx::NodeProto& n : list) {
      FERRULE_TRY(node(n, opsets));
      for (auto& a : *n.mutable_attribute()) {
        if (a.has_g()) FERRULE_TRY(nested(*a.mutable_g()->mutable_node(), opsets));
        for (auto& g : *a.mutable_graphs()) FERRULE_TRY(nested(*g.mutable_node(), opsets));
      }
    }
    return {};
  }
  /// What was noted of its values ends with it: another branch may use their names for others.
  Status nested(Nodes& list, const Opsets& opsets) {
    const size_t before = noted_.size();
    Status done = nodes(list, opsets);
    for (; noted_.size() > before; noted_.pop_back()) {
      types_.erase(noted_.back());
      data_.erase(noted_.back());
    }
    return done;
  }

  /// Types of a node's results by ONNX's own inference, where they are not declared: functions ask
  /// for ranks. A node that it refuses is judged later.
  void note_results(const onnx::NodeProto& n, const Opsets& opsets) {
    if (n.op_type() == "Constant" && n.output_size() == 1) {
      for (const auto& a : n.attribute())
        if (a.name() == "value" && a.has_t()) {
          note_tensor(n.output(0), a.t());
          data_[n.output(0)] = &a.t();
          noted_.push_back(n.output(0));
        }
      return;
    }
    const auto known = [&](const std::string& name) { return name.empty() || rank_of(name) >= 0; };
    const auto opset = opsets.find(canonical_domain(n.domain()));
    if (std::ranges::all_of(n.output(), known) || opset == opsets.end() ||
        !std::ranges::all_of(n.input(), known) ||
        std::ranges::any_of(n.attribute(),
                            [](const auto& a) { return a.has_g() || a.graphs_size() > 0; }))
      return;
    const auto* schema = schema_of(n.op_type(), opset->second, opset->first);
    if (!schema || !schema->has_type_and_shape_inference_function()) return;
    try {
      onnx::NodeProto node = n;
      schema->Verify(node);
      std::unordered_map<std::string, onnx::TypeProto*> types;
      for (const std::string& input : n.input())
        if (!input.empty()) types[input] = &types_[input];
      onnx::shape_inference::InferenceContextImpl context(node, types, data_, {},
                                                          onnx::ShapeInferenceOptions());
      schema->GetTypeAndShapeInferenceFunction()(context);
      for (int k = 0; k < n.output_size(); ++k)
        if (!known(n.output(k))) {
          types_[n.output(k)] = *context.getOutputType(static_cast<size_t>(k));
          noted_.push_back(n.output(k));
        }
    } catch (const std::exception&) {
      return;
    }
  }
  /// Constants of a definition have the type of an operand: f32 where it is not known, which the
  /// inference of the body's nodes refuses if it is another.
  onnx::TypeProto type_of(const std::string& name) const {
    if (const auto type = types_.find(name); type != types_.end()) return type->second;
    onnx::TypeProto out;
    if (!name.empty()) out.mutable_tensor_type()->set_elem_type(onnx::TensorProto::FLOAT);
    return out;
  }
  int rank_of(const std::string& name) const {
    const auto type = types_.find(name);
    return type != types_.end() && type->second.tensor_type().has_shape()
               ? type->second.tensor_type().shape().dim_size()
               : -1;
  }

  DType element_type_of(const std::string& name) const {
    const auto type = types_.find(name);
    const int code = type == types_.end() ? 0 : type->second.tensor_type().elem_type();
    return code >= 0 && code <= static_cast<int>(kLastElementType) ? static_cast<DType>(code)
                                                                   : DType::undefined;
  }

  Status node(onnx::NodeProto& n, const Opsets& opsets) {
    note_results(n, opsets);
    if (!names_.contains(n.op_type())) return {};
    const std::string domain = canonical_domain(n.domain());
    if (!n.overload().empty() || own_.contains({domain, n.op_type()})) return {};
    const bool by_schema = (domain.empty() && contains(kByOnnx, n.op_type())) ||
                           (domain == "ai.onnx.preview" && contains(kByPreview, n.op_type()));
    const FunctionText* f = by_schema ? nullptr : ops_.function(domain, n.op_type());
    if (!by_schema && !f) return {};
    for (const auto& a : n.attribute())
      if (!a.ref_attr_name().empty())
        return error(Code::bad_attribute, place(n), quote(a.name()),
                     "one of the enclosing function, which is not supported for this operator");
    if (by_schema) return by_onnx(n, domain, opsets);
    FunctionCall call;
    for (const std::string& input : n.input()) {
      call.present.push_back(!input.empty());
      call.ranks.push_back(rank_of(input));
      call.types.push_back(element_type_of(input));
    }
    for (const std::string& output : n.output()) call.wanted.push_back(!output.empty());
    for (const auto& a : n.attribute())
      if (auto value = to_attr(a)) call.attrs[a.name()] = std::move(*value);
    FERRULE_ASSIGN(std::string text, text_of(*f, call, place(n)));
    auto [it, fresh] = written_.try_emplace(text, std::to_string(written_.size()));
    n.set_overload(it->second);
    if (fresh) FERRULE_TRY(add(*f, text, it->second));
    note_results_of_call(n);
    return {};
  }

  /// The same for an operator that a function has been written for: ONNX knows no more of it than
  /// its body says.
  void note_results_of_call(const onnx::NodeProto& n) {
    const auto unknown = [&](const std::string& name) {
      return !name.empty() && rank_of(name) < 0;
    };
    if (std::ranges::none_of(n.output(), unknown) || std::ranges::any_of(n.input(), unknown))
      return;
    const auto f = std::ranges::find_if(m_.functions(), [&](const onnx::FunctionProto& f) {
      return f.name() == n.op_type() &&
             canonical_domain(f.domain()) == canonical_domain(n.domain()) &&
             f.overload() == n.overload();
    });
    if (f == m_.functions().end()) return;
    std::vector<onnx::TypeProto> in;
    for (const std::string& input : n.input())
      in.push_back(input.empty() ? onnx::TypeProto() : type_of(input));
    try {
      const auto out = onnx::shape_inference::InferFunctionOutputTypes(*f, in, {});
      for (int k = 0; k < n.output_size() && k < static_cast<int>(out.size()); ++k)
        if (unknown(n.output(k))) {
          types_[n.output(k)] = out[static_cast<size_t>(k)];
          noted_.push_back(n.output(k));
        }
    } catch (const std::exception&) {
      return;
    }
  }

  /// What nodes of a body hand on from its call, as the call has it.
  static void resolve(Nodes& list, const onnx::NodeProto& call) {
    for (onnx::NodeProto& n : list)
      for (int k = n.attribute_size(); k-- > 0;) {
        onnx::AttributeProto& a = *n.mutable_attribute(k);
        if (a.has_g()) resolve(*a.mutable_g()->mutable_node(), call);
        for (auto& g : *a.mutable_graphs()) resolve(*g.mutable_node(), call);
        if (a.ref_attr_name().empty()) continue;
        const auto own = std::ranges::find(call.attribute(), a.ref_attr_name(),
                                           [](const auto& c) { return c.name(); });
        if (own == call.attribute().end()) {
          n.mutable_attribute()->DeleteSubrange(k, 1);
        } else {
          const std::string name = a.name();
          a = *own;
          a.set_name(name);
        }
      }
  }

  /// Where the definition hangs on types that are not known, the node stays: it is not supported.
  Status by_onnx(onnx::NodeProto& n, const std::string& domain, const Opsets& opsets) {
    const auto opset = opsets.find(""), own_opset = opsets.find(domain);
    if (opset == opsets.end() || own_opset == opsets.end()) return {};
    const auto* schema = schema_of(n.op_type(), own_opset->second, domain);
    if (!schema) return {};
    for (const auto& [name, a] : schema->attributes())
      if (a.default_value.type() != onnx::AttributeProto::UNDEFINED &&
          std::ranges::none_of(n.attribute(), [&](const auto& own) { return own.name() == name; }))
        *n.add_attribute() = a.default_value;
    onnx::FunctionProto f;
    try {
      if (schema->HasFunction()) {
        f = *schema->GetFunction(static_cast<int>(own_opset->second));
      } else {
        std::vector<onnx::TypeProto> types;
        for (const std::string& input : n.input()) types.push_back(type_of(input));
        if (!schema->BuildContextDependentFunction(onnx::FunctionBodyBuildContextImpl(n, types), f,
                                                   static_cast<int>(own_opset->second)))
          return {};
      }
    } catch (const std::exception&) {
      return {};
    }
    // Results at the end that the body leaves out where no call wants them.
    const auto makes = [&](const std::string& name) {
      return std::ranges::any_of(f.node(), [&](const onnx::NodeProto& node) {
        return std::ranges::find(node.output(), name) != node.output().end();
      });
    };
    while (f.output_size() > n.output_size() && !makes(f.output(f.output_size() - 1)))
      f.mutable_output()->RemoveLast();
    resolve(*f.mutable_node(), n);
    f.set_name(n.op_type());
    f.set_domain(domain);
    if (std::ranges::none_of(f.opset_import(), [](const auto& o) { return o.domain().empty(); }))
      f.add_opset_import()->set_version(opset->second);
    auto [it, fresh] = written_.try_emplace(f.SerializeAsString(), std::to_string(written_.size()));
    n.set_overload(it->second);
    if (!fresh) return {};
    FERRULE_TRY(room());
    f.set_overload(it->second);
    *m_.add_functions() = std::move(f);
    return {};
  }

  Status room() const {
    if (m_.functions_size() < limits_.functions) return {};
    return error(Code::limit_exceeded, "model", "the number of functions (functions)",
                 m_.functions_size() + 1, limits_.functions);
  }

  Status add(const FunctionText& f, const std::string& text, const std::string& overload) {
    FERRULE_TRY(room());
    onnx::FunctionProto* function = m_.add_functions();
    std::string failure;
    try {
      std::string header = "<domain: \"" + f.domain + "\", opset_import: [\"\": 23";
      for (const std::string& domain : std::set<std::string>{"com.microsoft", "ferrule", f.domain})
        if (!domain.empty()) header += ", \"" + domain + "\": 1";
      header += "]>\n";
      const auto status = onnx::OnnxParser::Parse(*function, (header + text).c_str());
      if (!status.IsOK()) failure = status.ErrorMessage();
    } catch (const std::exception& e) {
      failure = e.what();
    }
    if (!failure.empty())
      return error(Code::formula_invalid, f.place,
                   "function " + f.op + ": " + escape(failure, 500) + "\n" + text, "");
    function->set_overload(overload);
    return {};
  }

  Model& m_;
  const Semantics& ops_;
  const Limits& limits_;
  std::unordered_set<std::string_view> names_;              ///< of all operators that it writes
  std::set<std::pair<std::string, std::string>> own_;       ///< the model's own functions
  std::unordered_map<std::string, onnx::TypeProto> types_;  ///< of the main graph, where known
  std::unordered_map<std::string, const onnx::TensorProto*> data_;  ///< of its constants
  std::vector<std::string> noted_;  ///< names of values whose types were not declared
  std::unordered_map<std::string, std::string> written_;  ///< what it is written as -> overload
};

}  // namespace

Status write_functions(Model& m, const Semantics& ops, const Limits& limits) {
  if (!m.has_graph()) return {};  // check_structure says so
  return FunctionWriter(m, ops, limits).run();
}

}  // namespace ferrule::onnx_io
