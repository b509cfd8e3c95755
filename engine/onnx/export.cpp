#include "engine/onnx/export.h"

#include <onnx/defs/schema.h>
#include <onnx/shape_inference/implementation.h>
#include <sys/stat.h>

#include <algorithm>
#include <unordered_set>

#include "engine/base/file_pages.h"
#include "engine/base/output_file.h"
#include "engine/graph/operator_name.h"
#include "engine/onnx/internal.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

using onnx_io::quote;

constexpr int kFirstOpset = 21;
constexpr int64_t kSmall = 1024;  // bytes of a weight that always stays in the model

/// What rules note on ONNX's operators for kernels to read (rules/precision); ONNX has no word for
/// it, and need not.
bool ours(std::string_view attribute) { return attribute == "precision"; }

/// The input that was an attribute in the older version, such as the axes of reductions, as that
/// attribute. nullopt: it was none, or is computed.
std::optional<std::pair<std::string, Attr>> old_attribute(const Graph& g, const Node& n,
                                                          size_t slot, const onnx::OpSchema& old,
                                                          const onnx::OpSchema& newest) {
  if (slot >= newest.inputs().size()) return std::nullopt;
  const std::string& name = newest.inputs()[slot].GetName();
  const auto it = old.attributes().find(name);
  const Tensor* t = g.constant(n.inputs[slot]);
  if (it == old.attributes().end() || it->second.type != onnx::AttributeProto::INTS || !t ||
      t->dtype() != DType::i64 || t->numel() == 0)
    return std::nullopt;
  std::vector<int64_t> list;
  for (int64_t k = 0; k < t->numel(); ++k) list.push_back(t->at_i64(k));
  return std::pair{name, Attr(std::move(list))};
}

/// Windows that are not dilated, which older versions had no word for.
bool undilated(std::string_view name, const onnx::AttributeProto& a) {
  return name == "dilations" && std::ranges::all_of(a.ints(), [](int64_t d) { return d == 1; });
}

/// Whether `n` can be written under this version of its schema: what the schema does not know has
/// to be a default of the newest one.
bool fits(const Graph& g, const Node& n, const onnx::OpSchema& old, const onnx::OpSchema& newest) {
  if (old.Deprecated()) return false;
  for (auto k = static_cast<size_t>(old.max_input()); k < n.inputs.size(); ++k)
    if (n.inputs[k] && !old_attribute(g, n, k, old, newest)) return false;
  for (const auto& [name, value] : n.attrs.items()) {
    if (old.attributes().count(name) || (ours(name) && !newest.attributes().count(name))) continue;
    auto it = newest.attributes().find(name);
    if (it == newest.attributes().end()) return false;
    onnx::AttributeProto a = onnx_io::to_proto(name, value);
    if (undilated(name, a)) continue;
    const auto& d = it->second.default_value;
    if (d.type() != a.type() || d.i() != a.i() || d.f() != a.f() || d.s() != a.s() ||
        a.type() >= onnx::AttributeProto::TENSOR)
      return false;
  }
  return true;
}

/// Whether ONNX's inference before version 22 gives a pool other sizes than it has: it counts the
/// windows that begin behind the data, too.
bool outgrows_old_inference(const Graph& g, const Node& n) {
  const std::string auto_pad = n.attrs.s("auto_pad", "NOTSET");
  if (n.attrs.i("ceil_mode", 0) == 0 || auto_pad.starts_with("SAME")) return false;
  const auto &x = g.value(n.inputs[0]).type.shape, &y = g.value(n.outputs[0]).type.shape;
  const std::vector<int64_t> kernel = n.attrs.ints("kernel_shape");
  const size_t rank = kernel.size();
  if (!x || !y || x->size() != rank + 2 || y->size() != rank + 2) return false;
  const auto strides = n.attrs.ints("strides"), dilations = n.attrs.ints("dilations"),
             pads = auto_pad == "VALID" ? std::vector<int64_t>{} : n.attrs.ints("pads");
  auto at = [](const std::vector<int64_t>& list, size_t k, int64_t otherwise) {
    return k < list.size() ? list[k] : otherwise;
  };
  for (size_t k = 0; k < rank; ++k) {
    const int64_t reach = (kernel[k] - 1) * at(dilations, k, 1) + 1,
                  padded = at(pads, k, 0) + at(pads, rank + k, 0);
    const auto counted =
        ceildiv((*x)[k + 2] + Dim(padded - reach), Dim(at(strides, k, 1))).constant();
    const auto is = (*y)[k + 2].constant();
    if (counted && is && *counted + 1 != *is) return true;
  }
  return false;
}

/// Graph nodes with groups opened, nested graphs too.
template <class F>
void each_node(const Graph& g, F&& f) {
  for (NodeId id : g.order()) {
    const Node& n = g.node(id);
    if (n.body)
      each_node(*n.body, f);
    else
      f(g, n);
    for (const auto& [key, sub] : n.subgraphs) each_node(*sub, f);
  }
}

constexpr int kWindowsBehind = 22;  ///< the first opset that does not count them

int newest_opset() {
  return onnx::OpSchemaRegistry::DomainToVersionRange::Instance().Map().at("").second;
}

/// The oldest opset of ai.onnx that all nodes fit, and whose inference gives their sizes.
int choose_opset(const Graph& g) {
  using Registry = onnx::OpSchemaRegistry;
  const int last = newest_opset();
  int opset = kFirstOpset;
  each_node(g, [&](const Graph& in, const Node& n) {
    const auto* newest = n.domain.empty() ? Registry::Schema(operator_name(n.op), "") : nullptr;
    if (!newest) return;
    if (outgrows_old_inference(in, n)) opset = std::max(opset, std::min(kWindowsBehind, last));
    for (; opset < last; ++opset) {
      const auto* old = Registry::Schema(operator_name(n.op), opset, "");
      if (old && fits(in, n, *old, *newest)) break;
    }
  });
  return opset;
}

/// Where large weights go when they are not to stand in the model: one after the other, straight
/// from where they are.
class DataFile {
 public:
  DataFile(std::string path, std::string name) : out_(std::move(path)), name_(std::move(name)) {}
  Status open() { return out_.open(); }
  Status commit(bool force) { return out_.commit(force); }

  static bool takes(const Tensor& t) { return t.dtype() != DType::string && t.bytes() >= kSmall; }

  Result<onnx::TensorProto> add(const Tensor& t) {
    static constexpr char kZeros[64] = {};
    const size_t gap = static_cast<size_t>(-at_ & 63);
    FERRULE_TRY(out_.write(kZeros, gap));
    at_ += static_cast<int64_t>(gap);
    FERRULE_TRY(write(t));
    onnx::TensorProto p;
    p.set_data_type(static_cast<int>(t.dtype()));
    for (int64_t d : t.dims()) p.add_dims(d);
    p.set_data_location(onnx::TensorProto::EXTERNAL);
    auto entry = [&](const char* key, std::string value) {
      auto* e = p.add_external_data();
      e->set_key(key);
      e->set_value(std::move(value));
    };
    entry("location", name_);
    entry("offset", std::to_string(at_));
    entry("length", std::to_string(t.bytes()));
    at_ += t.bytes();
    return p;
  }

 private:
  /// Piece by piece, so that weights of a mapped file never are in memory as a whole.
  Status write(const Tensor& t) {
    constexpr size_t kPiece = size_t{16} << 20;
    const auto* from = static_cast<const char*>(t.data());
    const auto bytes = static_cast<size_t>(t.bytes());
    for (size_t done = 0; done < bytes; done += kPiece) {
      const size_t n = std::min(kPiece, bytes - done);
      FERRULE_TRY(out_.write(from + done, n));
      let_go_file_pages(from + done, n);
    }
    return {};
  }

  OutputFile out_;
  std::string name_;  ///< beside the model
  int64_t at_ = 0;
};

/// "tensor(float)", as schemas name types; null of what no schema names.
const std::string* schema_type(DType t) {
  static const std::map<DType, std::string> kNames = {{DType::f32, "float"},
                                                      {DType::f64, "double"},
                                                      {DType::f16, "float16"},
                                                      {DType::bf16, "bfloat16"},
                                                      {DType::i8, "int8"},
                                                      {DType::i16, "int16"},
                                                      {DType::i32, "int32"},
                                                      {DType::i64, "int64"},
                                                      {DType::u8, "uint8"},
                                                      {DType::u16, "uint16"},
                                                      {DType::u32, "uint32"},
                                                      {DType::u64, "uint64"},
                                                      {DType::boolean, "bool"},
                                                      {DType::string, "string"},
                                                      {DType::complex64, "complex64"},
                                                      {DType::complex128, "complex128"}};
  auto it = kNames.find(t);
  return it == kNames.end() ? nullptr
                            : onnx::Utils::DataTypeUtils::ToType("tensor(" + it->second + ")");
}

/// Whether the schema takes inputs of the node's types.
bool takes_types(const Graph& g, const Node& n, const onnx::OpSchema& schema) {
  const auto& formal = schema.inputs();
  for (size_t k = 0; k < n.inputs.size() && !formal.empty(); ++k) {
    if (!n.inputs[k]) continue;
    const DType t = g.value(n.inputs[k]).type.dtype;
    if (t == DType::undefined) continue;
    const std::string* name = schema_type(t);
    if (!name || !formal[std::min(k, formal.size() - 1)].GetTypes().contains(name)) return false;
  }
  return true;
}

/// The opset that is asked for, if it can express every node.
Result<int> asked_opset(const Graph& g, int opset) {
  using Registry = onnx::OpSchemaRegistry;
  const int last = newest_opset();
  if (opset < kOldestExport || opset > last)
    return error(Code::usage, "--opset",
                 fmt::format("{} is none of {} to {}", opset, kOldestExport, last));
  std::optional<Error> wrong;
  each_node(g, [&](const Graph& in, const Node& n) {
    if (wrong || !n.domain.empty()) return;
    const auto* newest = Registry::Schema(operator_name(n.op), "");
    if (!newest) return;
    auto can = [&](int at) {
      const auto* schema = Registry::Schema(operator_name(n.op), at, "");
      return schema && fits(in, n, *schema, *newest) && takes_types(in, n, *schema) &&
             (at >= kWindowsBehind || !outgrows_old_inference(in, n));
    };
    if (can(opset)) return;
    int first = opset;
    while (first <= last && !can(first)) ++first;
    wrong = error(Code::usage, "--opset",
                  fmt::format("opset {} cannot express node {} ({}){}", opset, quote(n.name),
                              operator_name(n.op),
                              first <= last ? fmt::format(", opset {} can", first) : ""))
                .value();
    wrong->hint = n.rule.empty()
                      ? "leave --opset out, or pass a newer one"
                      : fmt::format("--disable {} leaves the nodes that it replaced", n.rule);
  });
  if (wrong) return fail(std::move(*wrong));
  return opset;
}

/// That of the opset's time, from 8 (functions need it) to 10 (all that is written).
int ir_version_of(int opset) { return opset >= 21 ? 10 : opset >= 19 ? 9 : 8; }

using ValueNames = std::map<ValueId, std::string>;

class Exporter {
 public:
  Exporter(const ExportOptions& options, int opset, DataFile* data = nullptr)
      : options_(options), data_(data), opset_(opset) {}
  /// With the opset that is asked for, or chosen. errors: usage.
  static Result<Exporter> make(const Graph& g, const ExportOptions& options,
                               DataFile* data = nullptr) {
    if (!options.opset) return Exporter(options, choose_opset(g), data);
    FERRULE_ASSIGN(const int opset, asked_opset(g, options.opset));
    return Exporter(options, opset, data);
  }
  /// Of weights only their names are kept.
  Exporter& without_weights() {
    weights_ = false;
    return *this;
  }

  Result<std::unique_ptr<onnx::ModelProto>> run(const Graph& g) {
    auto m = std::make_unique<onnx::ModelProto>();
    model_ = m.get();
    m->set_ir_version(ir_version_of(opset_));
    m->set_producer_name("ferrule");
    m->set_producer_version(FERRULE_VERSION);
    FERRULE_TRY(graph(g, *m->mutable_graph(), nullptr));
    if (m->graph().name().empty()) m->mutable_graph()->set_name("graph");
    domains_[""] = opset_;
    for (const auto& [domain, version] : domains_) {
      auto* o = m->add_opset_import();
      o->set_domain(domain);
      o->set_version(version);
    }
    return m;
  }

 private:
  std::string fresh(const std::string& base) {
    std::string name = base.empty() ? "v" : base;
    for (int i = 1; !used_.insert(name).second; ++i) name = base + "_" + std::to_string(i);
    return name;
  }

  /// Names of all values of `g`: its own, made unique in the whole file, or those of what it
  /// captures.
  ValueNames name_values(const Graph& g, const ValueNames* outer) {
    ValueNames names;
    for (ValueId id : g.values()) {
      const Value& v = g.value(id);
      names[id] = v.outer && outer ? outer->at(v.outer) : fresh(v.name);
    }
    return names;
  }

  Status type(const Value& v, onnx::ValueInfoProto& out, bool needed) {
    if (v.type.dtype == DType::undefined || !is_tensor(v.type.dtype))
      return needed ? Status(error(Code::unsupported_type, "value " + quote(v.name),
                                   "an output without a tensor type"))
                    : Status{};
    auto* tensor = out.mutable_type()->mutable_tensor_type();
    tensor->set_elem_type(static_cast<int>(v.type.dtype));
    if (!v.type.shape) return {};
    auto* shape = tensor->mutable_shape();
    for (const Dim& d : *v.type.shape) {
      auto* dim = shape->add_dim();
      if (auto c = d.constant())
        dim->set_dim_value(*c);
      else if (std::string s = d.str(); s.find('?') == std::string::npos)
        dim->set_dim_param(s);
    }
    return {};
  }

  Status graph(const Graph& g, onnx::GraphProto& out, const ValueNames* outer) {
    out.set_name(g.name);
    ValueNames names = name_values(g, outer);
    for (ValueId v : g.inputs()) {
      auto* i = out.add_input();
      i->set_name(names[v]);
      FERRULE_TRY(type(g.value(v), *i, outer == nullptr));
    }
    const bool beside = data_ && !outer;
    FERRULE_TRY(constants(g, names, [&](const std::string& name, const Tensor& t) -> Status {
      onnx::TensorProto& p = *out.add_initializer();
      if (!weights_) {
      } else if (beside && DataFile::takes(t)) {
        FERRULE_ASSIGN(p, data_->add(t));
      } else {
        p = onnx_io::to_proto(t);
      }
      p.set_name(name);
      return {};
    }));
    for (NodeId n : g.order())
      FERRULE_TRY(node(g, g.node(n), names, [&] { return out.add_node(); }));
    for (ValueId v : g.outputs()) {
      auto* o = out.add_output();
      o->set_name(names[v]);
      FERRULE_TRY(type(g.value(v), *o, outer == nullptr));
    }
    return {};
  }

  template <class F>
  Status constants(const Graph& g, const ValueNames& names, F&& f) {
    for (ValueId v : g.constants())
      if (!stands_in_attributes(g, v)) FERRULE_TRY(f(names.at(v), *g.constant(v)));
    return {};
  }

  /// Whether all readers have it as an attribute in the opset that is written.
  bool stands_in_attributes(const Graph& g, ValueId v) const {
    const Value& value = g.value(v);
    return !value.uses.empty() && !value.is_output &&
           std::ranges::all_of(value.uses, [&](const Use& u) {
             const Node& n = g.node(u.node);
             if (u.slot == Use::kCapture) return false;
             if (n.body)
               return !options_.functions &&
                      stands_in_attributes(*n.body, n.body->inputs()[u.slot]);
             if (!n.domain.empty()) return false;
             const auto* schema = onnx::OpSchemaRegistry::Schema(operator_name(n.op), opset_, "");
             return schema && static_cast<int>(u.slot) >= schema->max_input();
           });
  }

  template <class Add>
  Status node(const Graph& g, const Node& n, ValueNames& names, Add&& add) {
    auto name_of = [&](ValueId v) { return v ? names.at(v) : std::string(); };
    std::optional<onnx::FunctionProto> f;
    if (n.body && options_.functions) {
      FERRULE_ASSIGN(f, function(n));
      if (!typed(g, n, *f)) f.reset();
    }
    if (n.body && !f) {
      std::vector<std::string> in, out;
      for (ValueId v : n.inputs) in.push_back(name_of(v));
      for (ValueId v : n.outputs) out.push_back(name_of(v));
      return inlined(*n.body, n.name, in, out, add);
    }
    onnx::NodeProto* p = add();
    for (ValueId v : n.inputs) p->add_input(name_of(v));
    for (ValueId v : n.outputs) p->add_output(name_of(v));
    p->set_name(n.name);
    if (n.body) {
      p->set_domain("ferrule");
      domains_["ferrule"] = 1;
      p->set_op_type(f->name());
      *model_->add_functions() = std::move(*f);
      return {};
    }
    p->set_op_type(operator_name(n.op));
    p->set_domain(n.domain);
    const auto* newest = onnx::OpSchemaRegistry::Schema(operator_name(n.op), n.domain);
    if (!n.domain.empty())
      domains_[n.domain] = newest ? newest->SinceVersion() : std::max(1, n.since_opset);
    const auto* schema =
        n.domain.empty() ? onnx::OpSchemaRegistry::Schema(operator_name(n.op), opset_, "") : newest;
    if (schema && newest && static_cast<int>(n.inputs.size()) > schema->max_input()) {
      for (auto k = static_cast<size_t>(schema->max_input()); k < n.inputs.size(); ++k)
        if (const auto a = n.inputs[k] ? old_attribute(g, n, k, *schema, *newest) : std::nullopt)
          *p->add_attribute() = onnx_io::to_proto(a->first, a->second);
      p->mutable_input()->DeleteSubrange(schema->max_input(),
                                         static_cast<int>(n.inputs.size()) - schema->max_input());
    }
    for (const auto& [key, value] : n.attrs.items())
      if (!schema || !newest || schema->attributes().count(key) ||
          (!newest->attributes().count(key) && !ours(key)))
        *p->add_attribute() = onnx_io::to_proto(key, value);
    for (const auto& [key, sub] : n.subgraphs) {
      auto* a = p->add_attribute();
      a->set_name(key);
      a->set_type(onnx::AttributeProto::GRAPH);
      FERRULE_TRY(graph(*sub, *a->mutable_g(), &names));
      if (a->g().name().empty()) a->mutable_g()->set_name(key);
    }
    return {};
  }

  /// A Constant node, where there are no initializers.
  template <class Add>
  void constant(const std::string& name, const Tensor& t, Add&& add) {
    onnx::NodeProto* p = add();
    p->set_op_type("Constant");
    p->add_output(name);
    auto* a = p->add_attribute();
    a->set_name("value");
    a->set_type(onnx::AttributeProto::TENSOR);
    if (weights_) *a->mutable_t() = onnx_io::to_proto(t);
  }

  /// The body's nodes in place of the group. `in` and `out`: names outside.
  template <class Add>
  Status inlined(const Graph& body, const std::string& group, const std::vector<std::string>& in,
                 const std::vector<std::string>& out, Add&& add) {
    ValueNames names;
    for (size_t i = 0; i < in.size() && i < body.inputs().size(); ++i)
      names[body.inputs()[i]] = in[i];
    std::vector<std::pair<std::string, std::string>>
        copies;  // an output that is an input, or twice an output
    for (size_t i = 0; i < out.size() && i < body.outputs().size(); ++i) {
      if (out[i].empty()) continue;
      auto [it, fresh_one] = names.try_emplace(body.outputs()[i], out[i]);
      if (!fresh_one) copies.emplace_back(it->second, out[i]);
    }
    for (ValueId v : body.values()) {
      if (names.contains(v)) continue;
      names[v] = fresh(group + "/" + body.value(v).name);
      if (const Tensor* t = body.constant(v); t && !stands_in_attributes(body, v))
        constant(names[v], *t, add);  // a weight that is an input comes from outside
    }
    for (NodeId n : body.order()) FERRULE_TRY(node(body, body.node(n), names, add));
    for (const auto& [from, to] : copies) {
      onnx::NodeProto* p = add();
      p->set_op_type("Identity");
      p->add_input(from);
      p->add_output(to);
    }
    return {};
  }

  /// Whether onnx's inference gets through it: ONNX Runtime loads no other functions. It does not
  /// where an operator's own body is typed for other elements (MeanVarianceNormalization in f16).
  bool typed(const Graph& g, const Node& n, const onnx::FunctionProto& f) {
    std::vector<onnx::TypeProto> in;
    for (ValueId v : n.inputs) {
      onnx::ValueInfoProto info;
      if (v) (void)type(g.value(v), info, false);
      in.push_back(info.type());
    }
    try {
      onnx::shape_inference::InferFunctionOutputTypes(f, in, {});
      return true;
    } catch (const std::exception&) {
      return false;
    }
  }

  /// The group as a function of the model.
  Result<onnx::FunctionProto> function(const Node& n) {
    // Names of functions are identifiers, which many tools ask for; the call has the layer's name.
    const std::string name = fmt::format("{}_{}", n.op.contract(), functions_++);
    onnx::FunctionProto f;
    f.set_name(name);
    f.set_domain("ferrule");
    f.set_doc_string(n.name + (n.rule.empty() ? "" : ", made by rule " + n.rule));
    std::vector<std::string> in, out;
    for (size_t i = 0; i < n.inputs.size(); ++i) in.push_back(fresh("in_" + std::to_string(i)));
    for (size_t i = 0; i < n.outputs.size(); ++i) out.push_back(fresh("out_" + std::to_string(i)));
    for (const auto& s : in) f.add_input(s);
    for (const auto& s : out) f.add_output(s);
    FERRULE_TRY(inlined(*n.body, name, in, out, [&] { return f.add_node(); }));
    auto* main = f.add_opset_import();
    main->set_version(opset_);
    for (const auto& [domain, version] : domains_) {
      if (domain.empty()) continue;
      auto* o = f.add_opset_import();
      o->set_domain(domain);
      o->set_version(version);
    }
    return f;
  }

  ExportOptions options_;
  bool weights_ = true;
  DataFile* data_;  ///< null: all weights stand in the model
  int opset_;
  onnx::ModelProto* model_ = nullptr;
  std::map<std::string, int> domains_;
  std::unordered_set<std::string> used_;
  int functions_ = 0;
};

int64_t weight_bytes(const Graph& g) {
  int64_t total = 0;
  for (ValueId v : g.constants()) total += g.constant(v)->bytes();
  return total;
}

}  // namespace

Result<std::string> export_bytes(const Graph& g, const ExportOptions& options) {
  FERRULE_ASSIGN(Exporter exporter, Exporter::make(g, options));
  FERRULE_ASSIGN(auto m, exporter.run(g));
  if (m->ByteSizeLong() > INT32_MAX)
    return error(Code::limit_exceeded, "", "the size of the model in bytes", m->ByteSizeLong(),
                 INT32_MAX);
  return m->SerializeAsString();
}

Result<FileContents> export_contents(const Graph& g, const ExportOptions& options) {
  FERRULE_ASSIGN(Exporter exporter, Exporter::make(g, options));
  FERRULE_ASSIGN(auto m, exporter.without_weights().run(g));
  return onnx_io::contents_of(*m);
}

Status export_file(const Graph& g, const std::string& path, const ExportOptions& options,
                   FileContents* contents) {
  auto exists = [&](const std::string& p) {
    struct stat st;
    return ::lstat(p.c_str(), &st) == 0;
  };
  bool beside = weight_bytes(g) > options.inline_bytes;
  std::string data_path = path + ".data";
  for (const std::string& p : {path, data_path})
    if (!options.force && exists(p) && (p == path || beside))
      return error(Code::file_exists, "", escape(p));
  const size_t slash = data_path.rfind('/');
  DataFile data(data_path, slash == std::string::npos ? data_path : data_path.substr(slash + 1));
  if (beside) FERRULE_TRY(data.open());
  FERRULE_ASSIGN(Exporter exporter, Exporter::make(g, options, beside ? &data : nullptr));
  FERRULE_ASSIGN(auto m, exporter.run(g));
  if (contents) *contents = onnx_io::contents_of(*m);
  if (beside) FERRULE_TRY(data.commit(options.force));
  if (m->ByteSizeLong() > INT32_MAX)
    return error(Code::limit_exceeded, "", "the size of the model in bytes", m->ByteSizeLong(),
                 INT32_MAX);
  std::string bytes = m->SerializeAsString();
  OutputFile out(path);
  FERRULE_TRY(out.open());
  FERRULE_TRY(out.write(bytes.data(), bytes.size()));
  return out.commit(options.force);
}

}  // namespace ferrule
