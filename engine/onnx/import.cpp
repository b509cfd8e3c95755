#include "engine/onnx/import.h"

#include "engine/graph/verify.h"
#include "engine/onnx/infer_onnx.h"
#include "engine/onnx/internal.h"
#include "engine/onnx/normalize.h"

namespace ferrule {
namespace {

ModelInfo info_of(const onnx::ModelProto& m) {
  ModelInfo out;
  out.producer = out.producer_name = m.producer_name();
  out.graph = m.graph().name(), out.graph_description = m.graph().doc_string();
  out.domain = m.domain(), out.description = m.doc_string();
  out.version = m.model_version(), out.ir_version = m.ir_version();
  if (!m.producer_version().empty()) out.producer += " " + m.producer_version();
  for (const auto& p : m.metadata_props()) out.metadata[p.key()] = p.value();
  return out;
}

using namespace onnx_io;

const Limits& limits_of(const ImportOptions& o) {
  static const Limits kDefaults;
  return o.limits ? *o.limits : kDefaults;
}

Result<Imported> finish(std::unique_ptr<Model> m, ExternalRoots roots, const ImportOptions& options,
                        const Semantics* given) {
  const Semantics& ops = given ? *given : onnx_semantics();
  const Limits& limits = limits_of(options);
  Imported out;
  FERRULE_ASSIGN(Opsets opsets, read_opsets(m->opset_import(), "model"));
  FERRULE_TRY(write_functions(*m, ops, limits));
  FERRULE_ASSIGN(Functions functions, read_functions(*m, limits));
  FERRULE_TRY(check_structure(*m, functions, ops, limits, out.notes));
  FERRULE_TRY(run_checker(*m, functions, ops));
  if (options.contents) out.contents = contents_of(*m);
  FERRULE_TRY(convert(*m, functions, opsets, roots, options, limits, out));
  out.external_data = !roots.mapped.empty();
  for (const auto& [domain, version] : opsets) out.opsets[domain] = static_cast<int>(version);
  out.info = info_of(*m);
  m.reset();
  FERRULE_TRY(out.graph.sort());
  if (!options.normalize) return out;
  FERRULE_TRY(normalize(out.graph, ops, &out.notes));
  FERRULE_TRY(check_types(out.graph));
  FERRULE_TRY(verify(out.graph));
  return out;
}

}  // namespace

Result<Imported> import_file(const std::string& path, const ImportOptions& options) {
  FERRULE_ASSIGN(auto model, read_file(path, limits_of(options)));
  const Semantics* ops = options.file_read ? options.file_read() : options.ops;
  return finish(std::move(model), roots_of(path), options, ops);
}

Result<Imported> import_bytes(std::string_view bytes, const ImportOptions& options,
                              const std::string& directory) {
  FERRULE_ASSIGN(auto model, parse_bytes(bytes, limits_of(options)));
  ExternalRoots roots;
  if (!directory.empty()) roots = roots_in(directory);
  return finish(std::move(model), std::move(roots), options, options.ops);
}

Result<Imported> import_text(std::string_view text, const ImportOptions& options) {
  FERRULE_ASSIGN(auto model, parse_text(text, options.text_opset));
  return finish(std::move(model), {}, options, options.ops);
}

}  // namespace ferrule
