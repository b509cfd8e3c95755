// Bytes to a parsed model. A model file must be a regular file of bounded size; it is read through
// protobuf's own file stream, so nothing is mapped that could shrink, and memory holds one copy.
#include <fcntl.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/io/zero_copy_stream_impl.h>
#include <onnx/defs/parser.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

namespace pb = google::protobuf;

struct Descriptor {
  int fd = -1;
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
};

/// What the first bytes look like, for files given by mistake.
const char* looks_like(std::string_view head) {
  auto starts = [&](std::string_view magic) { return head.substr(0, magic.size()) == magic; };
  if (starts("\x1f\x8b")) return "it is a gzip file; unpack it first";
  if (starts("PK\x03\x04")) return "it is a zip file (.npz, .pt); unpack or export it first";
  if (starts("\x89HDF")) return "it is an HDF5 file (Keras); export it with tf2onnx";
  if (head.size() >= 8 && head.substr(4, 4) == "TFL3") return "it is a TensorFlow Lite file";
  if (starts("ORTM") || (head.size() >= 8 && head.substr(4, 4) == "ORTM"))
    return "it is in ONNX Runtime's own .ort format";
  if (starts("version https://git-lfs")) return "it is a Git LFS pointer; run git lfs pull";
  if (starts("<") || starts("{")) return "it is a text file";
  return nullptr;
}

Result<std::unique_ptr<Model>> parse(pb::io::ZeroCopyInputStream& stream, std::string_view head,
                                     const std::string& where) {
  if (const char* hint = looks_like(head)) return error(Code::not_onnx, where, hint);
  auto model = std::make_unique<Model>();
  pb::io::CodedInputStream coded(&stream);  // its default recursion limit is 100
  bool parsed = model->ParseFromCodedStream(&coded) && coded.ConsumedEntireMessage();
  if (!parsed)
    return error(
        Code::not_onnx, where,
        "its bytes are not a protobuf model: the file may be truncated or damaged, or nest "
        "graphs more than about 30 deep, which protobuf does not read");
  if (!model->has_graph() && model->ir_version() == 0 && model->opset_import_size() == 0)
    return error(Code::not_onnx, where, "it holds no graph and no header");
  return model;
}

}  // namespace

Result<std::unique_ptr<Model>> read_file(const std::string& path, const Limits& limits) {
  std::string where = escape(path);
  auto failed = [&](const char* what) { return error(Code::file_not_found, "", where, what); };
  if (path.find('\0') != std::string::npos) return failed("the path holds a NUL byte");
  Descriptor file{::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (file.fd < 0) return failed(std::strerror(errno));
  struct stat st;
  if (::fstat(file.fd, &st) != 0) return failed(std::strerror(errno));
  if (S_ISDIR(st.st_mode)) return failed("it is a directory");
  if (!S_ISREG(st.st_mode)) return failed("it is not a regular file");
  if (st.st_size == 0) return error(Code::not_onnx, where, "the file is empty");
  if (st.st_size > limits.file_bytes)
    return error(Code::limit_exceeded, where, "the size of the file (file_bytes)",
                 static_cast<int64_t>(st.st_size), limits.file_bytes);
  char head[32] = {};
  ssize_t got = ::pread(file.fd, head, sizeof head, 0);
  if (got < 0) return failed(std::strerror(errno));
  pb::io::FileInputStream stream(file.fd, 1 << 20);
  return parse(stream, {head, static_cast<size_t>(got)}, where);
}

Result<std::unique_ptr<Model>> parse_bytes(std::string_view bytes, const Limits& limits) {
  if (bytes.empty()) return error(Code::not_onnx, "", "there are no bytes");
  if (std::ssize(bytes) > std::min<int64_t>(limits.file_bytes, INT32_MAX))
    return error(Code::limit_exceeded, "", "the size of the model (file_bytes)", bytes.size(),
                 limits.file_bytes);
  pb::io::ArrayInputStream stream(bytes.data(), static_cast<int>(bytes.size()));
  return parse(stream, bytes.substr(0, 32), "");
}

Result<std::unique_ptr<Model>> parse_text(std::string_view text, int64_t opset) {
  auto model = std::make_unique<Model>();
  // A model's text starts with its header in angle brackets, a graph's with its name.
  size_t start = 0;
  while (start < text.size()) {
    if (std::isspace(static_cast<unsigned char>(text[start])))
      ++start;
    else if (text[start] == '#')
      start = std::min(text.find('\n', start), text.size());
    else
      break;
  }
  bool whole = start < text.size() && text[start] == '<';
  std::string failure;
  try {
    auto status = whole ? onnx::OnnxParser::Parse(*model, text)
                        : onnx::OnnxParser::Parse(*model->mutable_graph(), text);
    if (!status.IsOK()) failure = status.ErrorMessage();
  } catch (const std::exception& e) {
    failure = e.what();
  }
  if (!failure.empty()) return error(Code::not_onnx, "text", escape(failure, 500));
  if (!model->has_ir_version()) model->set_ir_version(10);
  bool main_domain = false;
  for (const auto& o : model->opset_import()) main_domain |= canonical_domain(o.domain()).empty();
  if (!main_domain) {
    auto* o = model->add_opset_import();
    o->set_version(opset);
  }
  // Text names its domains in the nodes; those without a version get version 1.
  std::set<std::string> known;
  for (const auto& o : model->opset_import()) known.insert(canonical_domain(o.domain()));
  auto add = [&](const std::string& domain) {
    if (!known.insert(canonical_domain(domain)).second) return;
    auto* o = model->add_opset_import();
    o->set_domain(domain);
    o->set_version(1);
  };
  for (const auto& n : model->graph().node()) add(n.domain());
  for (const auto& f : model->functions()) add(f.domain());
  return model;
}

}  // namespace ferrule::onnx_io
