// An ONNX file, bytes or text as a Graph: parsed with limits, checked (structure by us, schemas by
// onnx's checker), functions counted before they are inlined, weights taken over without a copy
// where the file stores raw bytes, then normalised (normalize.h), inferred and verified. The only
// way into ferrule; the file is taken to be hostile.
#pragma once
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"
#include "engine/onnx/contents.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

struct ImportOptions {
  const Limits* limits = nullptr;  ///< default limits when null
  bool overridable = false;        ///< initializers that are also graph inputs stay inputs
  bool normalize = true;  ///< false: stop after conversion, for looking at the model as it is
  /// What operators mean; null: ONNX's alone. Operators beyond ONNX's that formulas describe are
  /// accepted as they stand.
  const Semantics* ops = nullptr;
  /// Asked for `ops` once a file is read, before its operators are looked at: they may be loaded
  /// meanwhile.
  std::function<const Semantics*()> file_read;
  bool contents = false;     ///< also say what stands in the file
  bool own_origins = false;  ///< a node out of a function stands for itself, not for the call
  int64_t text_opset = 21;   ///< import_text: opset of ai.onnx where the text has no header
};

/// What a model file says of itself; all may be empty.
struct ModelInfo {
  std::string producer, graph, domain, description;  ///< producer: "pytorch 2.1"
  std::string producer_name, graph_description;
  int64_t version = 0, ir_version = 0;
  std::map<std::string, std::string> metadata;
};

struct Imported {
  Graph graph;
  std::vector<std::string> notes;     ///< what a user should know ("3 initializers are …")
  std::map<std::string, int> opsets;  ///< domain -> version, as the model says
  std::map<std::string, std::string>
      constants;  ///< nodes that only hold a constant: name -> its value's name
  std::map<std::string, Tensor> defaults;  ///< overridable inputs and their values
  ModelInfo info;
  bool external_data = false;  ///< some weights lie in files of their own
  FileContents contents;       ///< where it was asked for
};

/// errors: file_not_found, not_onnx, model_invalid, graph_cycle, dangling_input, duplicate_value,
/// bad_attribute, bad_shape, bad_type, external_data, unknown_operator, opset_unsupported,
/// limit_exceeded.
Result<Imported> import_file(const std::string& path, const ImportOptions& options = {});
/// `directory`: where external data may lie; empty: nowhere.
Result<Imported> import_bytes(std::string_view bytes, const ImportOptions& options = {},
                              const std::string& directory = "");
/// ONNX's text syntax: a whole model, or just a graph ("g (float[N] x) => (float[N] y) { y =
/// Relu(x) }").
Result<Imported> import_text(std::string_view text, const ImportOptions& options = {});

}  // namespace ferrule
