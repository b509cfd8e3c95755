#include "codegen/program/kernel_nodes.h"

#include <algorithm>
#include <map>

namespace ferrule {
namespace {

/// By node of the layer's body: the number of its kernel. A call of a library takes, beside its
/// anchor, what no other kernel computes of what is computed from it.
class Assignment {
 public:
  explicit Assignment(const Graph& body) : body_(body) {}

  void add(const Launch& l, size_t kernel) {
    if (l.node) of_[l.node] = kernel;
    if (l.region)
      for (ValueId v : l.region->outputs) generated(v, l.region->inputs, kernel);
  }

  std::vector<std::vector<std::string>> names(size_t kernels) {
    std::vector<std::vector<std::string>> out(kernels);
    for (NodeId n : body_.order()) {
      if (!of_.contains(n)) inherit(n);
      if (auto at = of_.find(n); at != of_.end())
        out[at->second].insert(out[at->second].end(), body_.node(n).origins.begin(),
                               body_.node(n).origins.end());
    }
    return out;
  }

 private:
  /// What makes `v`, back to what the kernel reads.
  void generated(ValueId v, const std::vector<ValueId>& inputs, size_t kernel) {
    const NodeId n = v ? body_.value(v).producer : NodeId{};
    if (!n || std::ranges::find(inputs, v) != inputs.end() || of_.contains(n)) return;
    of_[n] = kernel;
    for (ValueId x : body_.node(n).inputs) generated(x, inputs, kernel);
  }

  void inherit(NodeId n) {
    for (ValueId v : body_.node(n).inputs)
      if (const NodeId p = v ? body_.value(v).producer : NodeId{}; p && of_.contains(p))
        of_[n] = of_[p];
  }

  const Graph& body_;
  std::map<NodeId, size_t> of_;
};

}  // namespace

std::vector<std::vector<std::string>> kernel_nodes(const LoweredLayer& layer) {
  std::vector<const Launch*> kernels;
  for (const Launch& l : layer.launches)
    if (l.kind != Launch::Kind::view) kernels.push_back(&l);
  if (kernels.size() < 2) return {};
  Assignment nodes(*kernels[0]->graph);
  for (size_t k = 0; k < kernels.size(); ++k) {
    if (kernels[k]->graph != kernels[0]->graph) return {};
    nodes.add(*kernels[k], k);
  }
  return nodes.names(kernels.size());
}

}  // namespace ferrule
