#include "engine/onnx/contents.h"

#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

class Counter {
 public:
  explicit Counter(FileContents& out) : out_(out) {}
  void function(const onnx::FunctionProto& f) { own_.emplace(f.domain(), f.name()); }
  template <class Nodes>
  void nodes(const Nodes& all) {
    for (const onnx::NodeProto& n : all) {
      if (!own_.contains({n.domain(), n.op_type()}))
        ++out_.operators[full_name(canonical_domain(n.domain()), n.op_type())];
      for (const onnx::AttributeProto& a : n.attribute()) {
        if (a.has_g()) graph(a.g());
        for (const onnx::GraphProto& g : a.graphs()) graph(g);
      }
    }
  }
  void graph(const onnx::GraphProto& g) {
    out_.value_infos += g.value_info_size();
    nodes(g.node());
  }

 private:
  FileContents& out_;
  std::set<std::pair<std::string, std::string>> own_;
};

}  // namespace

FileContents contents_of(const Model& m) {
  FileContents out;
  out.ir_version = m.ir_version();
  for (const auto& o : m.opset_import()) out.opsets[canonical_domain(o.domain())] = o.version();
  out.functions = m.functions_size();
  out.metadata = m.metadata_props_size();
  Counter counter(out);
  for (const onnx::FunctionProto& f : m.functions()) counter.function(f);
  counter.graph(m.graph());
  for (const onnx::FunctionProto& f : m.functions()) counter.nodes(f.node());
  return out;
}

}  // namespace ferrule::onnx_io
