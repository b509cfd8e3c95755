// Operators that rules/ops write in other ones become functions of the model that calls them: one
// for each form of call (its attributes, and which inputs it has), told apart by their overload.
#include <onnx/defs/parser.h>

#include <set>
#include <unordered_map>

#include "engine/onnx/internal.h"
#include "engine/semantics/function_text.h"
#include "engine/semantics/semantics.h"

namespace ferrule::onnx_io {
namespace {

using Nodes = google::protobuf::RepeatedPtrField<onnx::NodeProto>;

class FunctionWriter {
 public:
  FunctionWriter(Model& m, const Semantics& ops, const Limits& limits)
      : m_(m), ops_(ops), limits_(limits) {
    for (const auto& f : m.functions()) own_.emplace(canonical_domain(f.domain()), f.name());
    const auto& g = m.graph();
    for (const auto* list : {&g.input(), &g.value_info(), &g.output()})
      for (const auto& v : *list)
        if (v.type().tensor_type().has_shape())
          ranks_[v.name()] = v.type().tensor_type().shape().dim_size();
    for (const auto& t : g.initializer()) ranks_[t.name()] = t.dims_size();
  }

  Status run() {
    FERRULE_TRY(nodes(*m_.mutable_graph()->mutable_node()));
    // The list grows: functions call others. Elements stay where they are.
    for (int k = 0; k < m_.functions_size(); ++k)
      FERRULE_TRY(nodes(*m_.mutable_functions(k)->mutable_node()));
    return {};
  }

 private:
  Status nodes(Nodes& list) {
    for (onnx::NodeProto& n : list) {
      FERRULE_TRY(node(n));
      for (auto& a : *n.mutable_attribute()) {
        if (a.has_g()) FERRULE_TRY(nodes(*a.mutable_g()->mutable_node()));
        for (auto& g : *a.mutable_graphs()) FERRULE_TRY(nodes(*g.mutable_node()));
      }
    }
    return {};
  }

  /// What most exporters write between a mask's input and where it is read.
  void keep_rank(const onnx::NodeProto& n) {
    const bool keeps = n.op_type() == "Cast" || n.op_type() == "Identity";
    if (!keeps || n.input_size() != 1 || n.output_size() != 1) return;
    if (const auto rank = ranks_.find(n.input(0)); rank != ranks_.end())
      ranks_.try_emplace(n.output(0), rank->second);
  }

  Status node(onnx::NodeProto& n) {
    keep_rank(n);
    const std::string domain = canonical_domain(n.domain());
    const FunctionText* f = ops_.function(domain, n.op_type());
    if (!f || !n.overload().empty() || own_.contains({domain, n.op_type()})) return {};
    FunctionCall call;
    for (const std::string& input : n.input()) {
      call.present.push_back(!input.empty());
      const auto rank = ranks_.find(input);
      call.ranks.push_back(rank == ranks_.end() ? -1 : rank->second);
    }
    for (const std::string& output : n.output()) call.wanted.push_back(!output.empty());
    for (const auto& a : n.attribute())
      if (auto value = to_attr(a)) call.attrs[a.name()] = std::move(*value);
    FERRULE_ASSIGN(std::string text, text_of(*f, call, place(n)));
    auto [it, fresh] = written_.try_emplace(text, std::to_string(written_.size()));
    n.set_overload(it->second);
    if (fresh) FERRULE_TRY(add(*f, text, it->second));
    return {};
  }

  Status add(const FunctionText& f, const std::string& text, const std::string& overload) {
    if (m_.functions_size() >= limits_.functions)
      return error(Code::limit_exceeded, "model", "the number of functions (functions)",
                   m_.functions_size() + 1, limits_.functions);
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
  std::set<std::pair<std::string, std::string>> own_;  ///< the model's own functions
  std::unordered_map<std::string, int> ranks_;  ///< of the main graph's values that are known
  std::unordered_map<std::string, std::string> written_;  ///< text -> overload
};

}  // namespace

Status write_functions(Model& m, const Semantics& ops, const Limits& limits) {
  return ops.functions().empty() ? Status{} : FunctionWriter(m, ops, limits).run();
}

}  // namespace ferrule::onnx_io
