// A Graph as a standard ONNX file. Groups become their bodies, or functions of the model that keep
// the grouping visible. The opset is the oldest from 21 on that can express every node, or the one
// that is asked for. Files are written beside their target and renamed, so that nothing
// half-written is ever seen.
#pragma once
#include <string>

#include "engine/graph/graph.h"
#include "engine/onnx/contents.h"

namespace ferrule {

struct ExportOptions {
  bool functions = false;  ///< groups as model-local functions of domain "ferrule"; else inlined
  bool force = false;      ///< an existing file may be replaced
  /// Weights beyond this many bytes in all go to PATH.data (protobuf's own bound is 2 GiB).
  int64_t inline_bytes = int64_t{2000} << 20;
  int opset = 0;  ///< of ai.onnx, from kOldestExport on; 0: see above
};

inline constexpr int kOldestExport = 13;  ///< before, operators had other meanings

/// `contents`: what stands in the file.
/// errors: file_exists, file_not_written, unsupported_operator, unsupported_type; usage, of an
/// opset that there is not or that cannot express a node, which is named.
Status export_file(const Graph& g, const std::string& path, const ExportOptions& options = {},
                   FileContents* contents = nullptr);
/// What would stand in the file.
Result<FileContents> export_contents(const Graph& g, const ExportOptions& options = {});
/// The same as bytes; all weights inside. errors: unsupported_operator, unsupported_type,
/// limit_exceeded.
Result<std::string> export_bytes(const Graph& g, const ExportOptions& options = {});

}  // namespace ferrule
