// What the files of this folder share: the importer's passes over the parsed model, in order.
// Nothing outside this folder includes it, or protobuf.
#pragma once
#include <onnx/onnx_pb.h>

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/base/join.h"
#include "engine/base/limits.h"
#include "engine/graph/graph.h"

namespace onnx {
class OpSchema;
}

namespace ferrule {
class Semantics;       // semantics/semantics.h
struct FileContents;   // contents.h
struct ImportOptions;  // import.h
struct Imported;
}  // namespace ferrule

namespace ferrule::onnx_io {

using Model = onnx::ModelProto;

/// `node "Conv_3" (Conv, opset 13)`; `opset` 0: left out.
std::string place(const onnx::NodeProto& n, int64_t opset = 0);
std::string quote(std::string_view name);
/// Operator with its domain, as messages name it: "com.microsoft.Gelu".
std::string full_name(std::string_view domain, std::string_view op);
/// ai.onnx has two spellings.
inline std::string canonical_domain(const std::string& d) { return d == "ai.onnx" ? "" : d; }

// --- read.cpp: bytes to ModelProto
Result<std::unique_ptr<Model>> read_file(const std::string& path, const Limits& limits);
Result<std::unique_ptr<Model>> parse_bytes(std::string_view bytes, const Limits& limits);
Result<std::unique_ptr<Model>> parse_text(std::string_view text, int64_t opset);

// --- contents.cpp
FileContents contents_of(const Model& m);

// --- functions.cpp
/// Gives the model the functions that `ops` writes the operators of its nodes in.
/// errors: formula_invalid, bad_attribute, unsupported_operator, limit_exceeded.
Status write_functions(Model& m, const Semantics& ops, const Limits& limits);

// --- check_structure.cpp: what must hold before anything walks the model freely
using Opsets = std::map<std::string, int64_t>;
Result<Opsets> read_opsets(
    const google::protobuf::RepeatedPtrField<onnx::OperatorSetIdProto>& imports,
    const std::string& where);
/// Functions by (domain, name, overload).
using FunctionKey = std::tuple<std::string, std::string, std::string>;
using Functions = std::map<FunctionKey, const onnx::FunctionProto*>;
Result<Functions> read_functions(const Model& m, const Limits& limits);
FunctionKey key_of(const onnx::NodeProto& n);
/// The schema that holds at this opset; null if there is none.
const onnx::OpSchema* schema_of(const std::string& op, int64_t opset, const std::string& domain);
/// Names, operators, order, nesting; sorts node lists that are out of order (and says so in
/// `notes`).
Status check_structure(Model& m, const Functions& functions, const Semantics& ops,
                       const Limits& limits, std::vector<std::string>& notes);
/// errors: bad_type, an input of an element type that its operator does not take, or two that
/// are to have one and do not. Nothing is said of types that are not known.
Status check_types(const Graph& g);
/// onnx's own checker, without its exceptions and its look at external files.
Status run_checker(Model& m, const Functions& functions, const Semantics& ops);

// --- tensors.cpp
/// Where external data may lie: the model's folder, and that of the file its path finally points
/// to.
struct ExternalRoots {
  std::vector<std::string> directories;  ///< real paths, the first one is where locations start
  std::map<std::string, std::pair<std::shared_ptr<const void>, int64_t>> mapped;  ///< by real path
};
ExternalRoots roots_of(const std::string& model_path);
ExternalRoots roots_in(const std::string& directory);
/// `t` gives up its bytes where it holds them raw.
Result<Tensor> to_tensor(onnx::TensorProto& t, const std::string& where, ExternalRoots& roots,
                         const Limits& limits);
Result<Tensor> to_tensor(const onnx::SparseTensorProto& t, const std::string& where,
                         ExternalRoots& roots, const Limits& limits);

// --- protos.cpp
onnx::TensorProto to_proto(const Tensor& t);
onnx::AttributeProto to_proto(const std::string& name, const Attr& value);

// --- convert.cpp
Status convert(Model& m, const Functions& functions, const Opsets& opsets, ExternalRoots& roots,
               const ImportOptions& options, const Limits& limits, Imported& out);
/// Whether tensors may have the element type of that number.
inline bool is_element_type(int64_t code) {
  return code > 0 && code <= static_cast<int64_t>(kLastElementType);
}
/// Of what is no tensor: what it is instead; sparse tensors are nothing that is known.
DType no_tensor(const onnx::TypeProto& t);
Result<Type> to_type(const onnx::TypeProto& t, const std::string& unnamed, const Limits& limits,
                     const std::string& where);

/// A plain value; nothing for tensors, graphs and types.
std::optional<Attr> to_attr(const onnx::AttributeProto& a);

}  // namespace ferrule::onnx_io
