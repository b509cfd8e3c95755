#include "engine/reduce/values.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>

#include "engine/semantics/infer.h"

namespace ferrule::reduce {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 30;     // kept of a run
constexpr int64_t kMostElements = int64_t{1} << 28;  // of a tensor that stands in

bool shape_like(const Tensor& t) {
  return t.numel() <= kShapeLike && (is_int(t.dtype()) || t.dtype() == DType::boolean);
}

}  // namespace

Values::Values(const Graph& g, const Tensors& inputs, const InterpreterOptions& options) {
  from_constants(g, options);
  from_contents(g);
  if (!inputs.empty()) from_run(g, inputs, options);
}

const Tensor* Values::fixed(const Graph& g, ValueId v) const {
  auto it = fixed_.find(g.value(v).name);
  return it == fixed_.end() ? nullptr : &it->second;
}

const Tensor* Values::computed(const std::string& name) const {
  auto it = computed_.find(name);
  return it == computed_.end() ? nullptr : &it->second;
}

void Values::from_constants(const Graph& g, const InterpreterOptions& options) {
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    std::vector<const Tensor*> in;
    for (ValueId v : n.inputs) {
      const Tensor* t = !v ? nullptr : g.constant(v) ? g.constant(v) : fixed(g, v);
      if (v && !t) break;
      in.push_back(t);
    }
    if (in.empty() || in.size() != n.inputs.size() || !n.subgraphs.empty()) continue;
    auto out = interpret_node(g, n, in, options);
    if (!out) continue;
    for (size_t k = 0; k < n.outputs.size() && k < out->size(); ++k)
      if (n.outputs[k]) fixed_[g.value(n.outputs[k]).name] = (*out)[k];
  }
}

void Values::from_contents(const Graph& g) {
  for (NodeId id : g.order())
    for (ValueId v : g.node(id).outputs) {
      if (!v || fixed_.contains(g.value(v).name)) continue;
      const Type& t = g.value(v).type;
      const auto contents = contents_of(g, v);
      const auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
      if (!contents || !dims || (t.dtype != DType::i64 && t.dtype != DType::i32)) continue;
      const auto numbers = constant_shape(*contents);
      if (numbers && product(*t.shape).value_or(-1) == std::ssize(*numbers))
        fixed_[g.value(v).name] = Tensor::of_ints(t.dtype, *dims, *numbers);
    }
}

void Values::from_run(const Graph& g, const Tensors& inputs, const InterpreterOptions& options) {
  std::vector<Tensor> in;
  for (ValueId v : g.inputs()) {
    auto it = inputs.find(g.value(v).name);
    if (it == inputs.end()) return;
    in.push_back(it->second);
  }
  int64_t kept = 0;
  InterpreterOptions o = options;
  o.on_node = [&](const Graph& of, NodeId id, const std::vector<Tensor>& out) {
    if (&of != &g) return;  // of a nested graph
    const Node& n = g.node(id);
    for (size_t k = 0; k < n.outputs.size() && k < out.size(); ++k) {
      if (!n.outputs[k]) continue;
      const std::string& name = g.value(n.outputs[k]).name;
      if (shape_like(out[k])) fixed_.try_emplace(name, out[k]);
      if ((kept += out[k].bytes()) <= kMostBytes) computed_[name] = out[k];
    }
  };
  (void)interpret(g, in, o);  // what it came to before it failed is known all the same
}

std::optional<Tensor> stand_in(const Type& type, const std::string& name) {
  if (!type.shape || size_bits(type.dtype) < 8) return std::nullopt;
  std::vector<int64_t> dims;
  int64_t numel = 1;
  for (const Dim& d : *type.shape) {
    dims.push_back(std::max<int64_t>(0, d.value_or(1)));
    if (dims.back() > kMostElements || (numel *= dims.back()) > kMostElements) return std::nullopt;
  }
  auto [tensor, bytes] = Tensor::allocate(type.dtype, dims);
  uint64_t state = XXH3_64bits(name.data(), name.size());
  for (int64_t k = 0; k < numel; ++k) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    const double unit = static_cast<double>(state >> 11) * 0x1p-53;
    Tensor::put(type.dtype, bytes, k, is_float(type.dtype) ? unit * 2 - 1 : unit < 0.5 ? 0 : 1);
  }
  return tensor;
}

}  // namespace ferrule::reduce
