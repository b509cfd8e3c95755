#include "engine/onnx/infer_onnx.h"

#include <onnx/defs/schema.h>
#include <onnx/defs/shape_inference.h>

#include <unordered_map>

#include "engine/graph/operator_name.h"
#include "engine/onnx/internal.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

constexpr int64_t kMaxData = 1 << 20;  // bytes of a constant that inference may want to look at

/// Dims as onnx's named dimensions and back: equal dims get equal names.
class DimNames {
 public:
  void encode(const Dim& d, onnx::TensorShapeProto::Dimension& out) {
    if (auto v = d.constant()) {
      out.set_dim_value(*v);
      return;
    }
    size_t i = 0;
    while (i < dims_.size() && !(dims_[i] == d)) ++i;
    if (i == dims_.size()) dims_.push_back(d);
    out.set_dim_param("ferrule_" + std::to_string(i));
  }
  Dim decode(const onnx::TensorShapeProto::Dimension& d) {
    if (d.has_dim_value()) return d.dim_value() >= 0 ? Dim(d.dim_value()) : Dim::unknown();
    if (!d.has_dim_param()) return Dim::unknown();
    if (d.dim_param().rfind("ferrule_", 0) == 0) {
      size_t i = std::strtoul(d.dim_param().c_str() + 8, nullptr, 10);
      if (i < dims_.size()) return dims_[i];
    }
    return fresh_.try_emplace(d.dim_param(), Dim::unknown()).first->second;
  }
  void encode(const Type& t, onnx::TypeProto& out) {
    if (t.dtype == DType::sequence) out.mutable_sequence_type();
    if (t.dtype == DType::optional) out.mutable_optional_type();
    if (t.dtype == DType::map) out.mutable_map_type();
    if (!is_tensor(t.dtype)) return;
    auto* tensor = out.mutable_tensor_type();
    tensor->set_elem_type(static_cast<int>(t.dtype));
    if (!t.shape) return;
    auto* shape = tensor->mutable_shape();
    for (const Dim& d : *t.shape) encode(d, *shape->add_dim());
  }
  Type decode(const onnx::TypeProto& t) {
    Type out;
    if (!t.has_tensor_type()) return Type{onnx_io::no_tensor(t), {}};
    int code = t.tensor_type().elem_type();
    if (onnx_io::is_element_type(code)) out.dtype = static_cast<DType>(code);
    if (!t.tensor_type().has_shape()) return out;
    Shape shape;
    for (const auto& d : t.tensor_type().shape().dim()) shape.push_back(decode(d));
    out.shape = std::move(shape);
    return out;
  }

 private:
  std::vector<Dim> dims_;
  std::unordered_map<std::string, Dim> fresh_;
};

/// A failure of ours on its way through onnx's code.
struct Carried {
  Error error;
};

/// A nested graph as onnx's inference of If, Loop and Scan sees it.
class Nested final : public onnx::GraphInferencer {
 public:
  Nested(const Semantics& ops, Graph& g, DimNames& names, bool loop)
      : ops_(ops), g_(g), names_(names), loop_(loop) {}
  std::vector<const onnx::TypeProto*> doInferencing(
      const std::vector<const onnx::TypeProto*>& inputs,
      const std::vector<const onnx::TensorProto*>&) override {
    for (size_t i = 0; i < inputs.size() && i < g_.inputs().size(); ++i) {
      if (!inputs[i]) continue;
      Type t = names_.decode(*inputs[i]);
      const Type& declared = g_.value(g_.inputs()[i]).type;
      if (t.dtype == DType::undefined) t.dtype = declared.dtype;
      if (!t.shape) t.shape = declared.shape;
      // What the loop makes, its number of turns and whether it goes on, has the rank that the body
      // declares: some exporters write [1].
      if (loop_ && i < 2 && declared.rank() == 1) t.shape = Shape{Dim(1)};
      g_.set_type(g_.inputs()[i], std::move(t));
    }
    std::vector<std::pair<ValueId, Type>> before;
    for (ValueId v : g_.values()) before.emplace_back(v, g_.value(v).type);
    if (auto status = infer_nested(ops_, g_); !status) throw Carried{std::move(status).error()};
    if (loop_ && loosen_state()) {
      for (auto& [v, type] : before)
        if (!contains(g_.inputs(), v)) g_.set_type(v, std::move(type));
      if (auto status = infer_nested(ops_, g_); !status) throw Carried{std::move(status).error()};
    }
    types_.clear();
    types_.resize(g_.outputs().size());
    std::vector<const onnx::TypeProto*> out;
    for (size_t i = 0; i < types_.size(); ++i) {
      const Type& t = g_.value(g_.outputs()[i]).type;
      if (t.dtype != DType::undefined) names_.encode(t, types_[i]);
      out.push_back(&types_[i]);
    }
    return out;
  }

 private:
  /// What a turn makes of another size than the body declares is a state whose size changes, and
  /// holds for the first turn alone. Whether there is one.
  bool loosen_state() {
    bool any = false;
    for (size_t i = 2; i < g_.inputs().size() && i - 1 < g_.outputs().size(); ++i) {
      Type t = g_.value(g_.inputs()[i]).type;
      const auto& next = g_.value(g_.outputs()[i - 1]).type.shape;
      if (!t.shape || !next) continue;
      if (t.shape->size() != next->size()) {
        t.shape.reset();
      } else {
        bool same = true;
        for (size_t k = 0; k < next->size(); ++k)
          if (!((*t.shape)[k] == (*next)[k])) (*t.shape)[k] = Dim::unknown(), same = false;
        if (same) continue;
      }
      g_.set_type(g_.inputs()[i], std::move(t));
      any = true;
    }
    return any;
  }

  const Semantics& ops_;
  Graph& g_;
  DimNames& names_;
  bool loop_;
  std::vector<onnx::TypeProto> types_;
};

class Context final : public onnx::InferenceContext {
 public:
  Context(const Semantics& ops, const Graph& g, const Node& n)
      : g_(g), n_(n), outputs_(n.outputs.size()) {
    // onnx counts on the first two inputs of a loop, which may be left out.
    inputs_.resize(std::max<size_t>(n.inputs.size(), is_loop(n) ? 2 : 0));
    data_.resize(n.inputs.size());
    symbolic_.resize(n.inputs.size());
    for (size_t i = 0; i < n.inputs.size(); ++i) {
      if (!n.inputs[i]) continue;
      const Type& t = g.value(n.inputs[i]).type;
      if (t.dtype == DType::undefined) continue;
      inputs_[i].emplace();
      names_.encode(t, *inputs_[i]);
    }
    for (const auto& [key, value] : n.attrs.items())
      attributes_[key] = onnx_io::to_proto(key, value);
    for (const auto& [key, sub] : n.subgraphs)
      nested_.emplace(key, Nested(ops, *sub, names_, is_loop(n)));
  }

  const onnx::AttributeProto* getAttribute(const std::string& name) const override {
    auto it = attributes_.find(name);
    return it == attributes_.end() ? nullptr : &it->second;
  }
  size_t getNumInputs() const override { return inputs_.size(); }
  const onnx::TypeProto* getInputType(size_t i) const override {
    return i < inputs_.size() && inputs_[i] ? &*inputs_[i] : nullptr;
  }
  bool hasInput(size_t i) const override { return i < n_.inputs.size() && bool(n_.inputs[i]); }
  const onnx::TensorProto* getInputData(size_t i) const override {
    const Tensor* t = i < n_.inputs.size() ? g_.constant(n_.inputs[i]) : nullptr;
    if (!t || t->bytes() > kMaxData) return nullptr;
    if (!data_[i]) data_[i] = onnx_io::to_proto(*t);
    return &*data_[i];
  }
  size_t getNumOutputs() const override { return outputs_.size(); }
  onnx::TypeProto* getOutputType(size_t i) override {
    return i < outputs_.size() ? &outputs_[i] : nullptr;
  }
  onnx::GraphInferencer* getGraphAttributeInferencer(const std::string& name) override {
    auto it = nested_.find(name);
    if (it == nested_.end()) throw std::runtime_error("it has no nested graph " + name);
    return &it->second;
  }
  const onnx::SparseTensorProto* getInputSparseData(size_t) const override { return nullptr; }
  const onnx::TensorShapeProto* getSymbolicInput(size_t i) const override {
    if (i >= n_.inputs.size()) return nullptr;
    auto contents = contents_of(g_, n_.inputs[i]);
    if (!contents) return nullptr;
    symbolic_[i].emplace();
    for (const Dim& d : *contents) names_.encode(d, *symbolic_[i]->add_dim());
    return &*symbolic_[i];
  }

  Inferred result() {
    Inferred out;
    for (const auto& t : outputs_) out.types.push_back(names_.decode(t));
    out.contents.resize(out.types.size());
    // Some of onnx's functions count with the size of an unknown dimension, which reads as 0.
    if (sizes_unknown())
      for (Type& t : out.types)
        for (size_t k = 0; t.shape && k < t.shape->size(); ++k)
          if ((*t.shape)[k] == Dim(0)) (*t.shape)[k] = Dim::unknown();
    return out;
  }
  /// Whether something is missing that would excuse a failure.
  bool incomplete() const {
    for (size_t i = 0; i < n_.inputs.size(); ++i)
      if (n_.inputs[i] && !g_.value(n_.inputs[i]).type.known()) return true;
    return false;
  }

 private:
  /// Of some input, and none has a size of 0.
  bool sizes_unknown() const {
    bool unknown = false;
    for (ValueId v : n_.inputs)
      if (const auto& shape = v ? g_.value(v).type.shape : std::nullopt)
        for (const Dim& d : *shape) {
          if (d == Dim(0)) return false;
          unknown |= !d.constant();
        }
    return unknown;
  }

  const Graph& g_;
  const Node& n_;
  mutable DimNames names_;
  std::vector<std::optional<onnx::TypeProto>> inputs_;
  mutable std::vector<std::optional<onnx::TensorProto>> data_;
  mutable std::vector<std::optional<onnx::TensorShapeProto>> symbolic_;
  std::vector<onnx::TypeProto> outputs_;
  std::unordered_map<std::string, onnx::AttributeProto> attributes_;
  std::unordered_map<std::string, Nested> nested_;
};

std::string where(const Node& n) {
  return fmt::format("node {} ({})", onnx_io::quote(n.name),
                     onnx_io::full_name(n.domain, n.op.text()));
}

constexpr std::string_view kLearned = "ai.onnx.ml";

/// The result of those of ai.onnx.ml that have one and whose schemas have no inference.
Type learned_type(const Graph& g, const Node& n) {
  const Type& x = g.value(n.inputs[0]).type;
  const auto& op = n.op.text();
  if (op == "Imputer") return x;
  if (op == "Scaler" || op == "Normalizer") return {DType::f32, x.shape};
  int64_t columns = 0;
  if (op == "LinearRegressor") columns = n.attrs.i("targets", 1);
  if (op == "SVMRegressor") columns = 1;
  if (op == "FeatureVectorizer")
    for (int64_t width : n.attrs.ints("inputdimensions"))
      if (width < 0 || __builtin_add_overflow(columns, width, &columns)) return {};
  if (columns < 1 || !x.shape) return columns < 1 ? Type{} : Type{DType::f32, {}};
  return {DType::f32, Shape{x.rank() == 1 ? Dim(1) : (*x.shape)[0], Dim(columns)}};
}

}  // namespace

Result<Inferred> infer_by_schema(const Semantics& ops, const Graph& g, const Node& n) {
  const onnx::OpSchema* schema = onnx::OpSchemaRegistry::Schema(operator_name(n.op), n.domain);
  if (!schema)
    return error(Code::unknown_operator, where(n), onnx_io::full_name(n.domain, n.op.text()),
                 n.since_opset);
  // The last version of an operator that another replaced has no inference; the one before has.
  if (schema->Deprecated())
    if (const auto* before = onnx::OpSchemaRegistry::Schema(operator_name(n.op),
                                                            schema->SinceVersion() - 1, n.domain))
      schema = before;
  std::string failure;
  try {
    Context context(ops, g, n);
    if (n.domain == kLearned) {
      // Its inference counts on the type of the first input.
      if (n.inputs.empty() || !n.inputs[0] || !context.getInputType(0)) return context.result();
      if (!schema->has_type_and_shape_inference_function()) {
        Inferred out = context.result();
        if (out.types.size() == 1) out.types[0] = learned_type(g, n);
        return out;
      }
    }
    try {
      schema->GetTypeAndShapeInferenceFunction()(context);
    } catch (const Carried& c) {
      return fail(c.error);
    } catch (const std::exception& e) {
      // With inputs of unknown type this is no contradiction yet.
      if (!context.incomplete()) return error(Code::bad_shape, where(n), escape(e.what(), 400));
    }
    return context.result();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  return error(Code::bad_shape, where(n), escape(failure, 400));
}

const Semantics& onnx_semantics() {
  static const Semantics kOnnx(infer_by_schema);
  return kOnnx;
}

}  // namespace ferrule
