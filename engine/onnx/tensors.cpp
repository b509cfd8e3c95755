// Constants of the model: raw bytes are taken over without a copy, typed fields converted, external
// data mapped read-only from beside the model and nowhere else (reliability: no absolute path, no
// "..", no link that leaves the folder; the file that was opened is the one that is judged).
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <climits>
#include <cstdlib>
#include <cstring>

#include "engine/base/file_pages.h"
#include "engine/onnx/internal.h"

namespace ferrule::onnx_io {
namespace {

std::string directory_of(const std::string& path) {
  size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string real_path(const std::string& path) {
  char* p = ::realpath(path.c_str(), nullptr);
  std::string out = p ? p : "";
  std::free(p);
  return out;
}

struct Location {
  std::string path;
  std::optional<int64_t> offset, length;
};

Result<Location> location_of(const onnx::TensorProto& t, const std::string& where) {
  auto bad = [&](const std::string& file, const std::string& what) {
    return error(Code::external_data, where, quote(file), what);
  };
  Location out;
  std::set<std::string> seen;
  for (const auto& e : t.external_data()) {
    if (!seen.insert(e.key()).second)
      return bad(out.path, "the key " + quote(e.key()) + " is given twice");
    if (e.key() == "location") out.path = e.value();
    if (e.key() != "offset" && e.key() != "length") continue;
    int64_t v = 0;
    const char* end = e.value().data() + e.value().size();
    auto [stop, status] = std::from_chars(e.value().data(), end, v);
    if (status != std::errc() || stop != end || v < 0)
      return bad(out.path, e.key() + " is " + quote(e.value()) + ", not a number from 0 on");
    (e.key() == "offset" ? out.offset : out.length) = v;
  }
  const std::string& p = out.path;
  if (p.empty()) return bad(p, "it names no file");
  if (p.size() > PATH_MAX || p.find('\0') != std::string::npos) return bad(p, "it is no file name");
  if (p[0] == '/') return bad(p, "an absolute path is not allowed");
  for (size_t at = 0; at <= p.size();) {
    size_t slash = std::min(p.find('/', at), p.size());
    if (p.substr(at, slash - at) == "..") return bad(p, "\"..\" is not allowed");
    at = slash + 1;
  }
  return out;
}

/// The file behind `location`, mapped; its size. Nothing is mapped twice.
Result<std::pair<std::shared_ptr<const void>, int64_t>> map_file(const std::string& location,
                                                                 const std::string& where,
                                                                 ExternalRoots& roots) {
  auto bad = [&](const std::string& what) {
    return error(Code::external_data, where, quote(location), what);
  };
  if (roots.directories.empty())
    return bad("a model that is not a file has no folder for external data");
  std::string path = roots.directories[0] + "/" + location;
  int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return bad(std::strerror(errno));
  struct Close {
    int fd;
    ~Close() { ::close(fd); }
  } close{fd};
  // What was opened, whatever the path is by now.
  char real[PATH_MAX + 1] = {};
  ssize_t n = ::readlink(fmt::format("/proc/self/fd/{}", fd).c_str(), real, PATH_MAX);
  std::string opened = n > 0 ? std::string(real, static_cast<size_t>(n)) : real_path(path);
  bool inside = std::ranges::any_of(roots.directories, [&](const std::string& d) {
    return d == "/" || opened.compare(0, d.size() + 1, d + "/") == 0;
  });
  if (!inside) return bad("it leads out of the model's folder");
  if (auto it = roots.mapped.find(opened); it != roots.mapped.end()) return it->second;
  struct stat st;
  if (::fstat(fd, &st) != 0) return bad(std::strerror(errno));
  if (!S_ISREG(st.st_mode)) return bad("it is not a regular file");
  std::pair<std::shared_ptr<const void>, int64_t> out{
      std::shared_ptr<const void>(std::make_shared<char>(), nullptr), st.st_size};
  if (st.st_size > 0) {
    out.first = map_file_pages(fd, static_cast<size_t>(st.st_size));
    if (!out.first) return bad(std::strerror(errno));
  }
  roots.mapped[opened] = out;
  return out;
}

bool aligned(DType type, const void* p) {
  size_t unit = static_cast<size_t>(std::max(1, std::min(size_bits(type), 64) / 8));
  return reinterpret_cast<uintptr_t>(p) % unit == 0;
}

/// Bytes that must be aligned for their type are copied if they are not.
Tensor view(DType type, std::vector<int64_t> dims, std::shared_ptr<const void> owner,
            const void* p) {
  if (aligned(type, p)) return Tensor(type, std::move(dims), std::move(owner), p);
  auto [t, out] = Tensor::allocate(type, std::move(dims));
  if (t.bytes()) std::memcpy(out, p, static_cast<size_t>(t.bytes()));
  return t;
}

Result<Tensor> external(const onnx::TensorProto& t, DType type, const std::vector<int64_t>& dims,
                        int64_t bytes, const std::string& where, ExternalRoots& roots) {
  FERRULE_ASSIGN(Location l, location_of(t, where));
  FERRULE_ASSIGN(auto file, map_file(l.path, where, roots));
  int64_t offset = l.offset.value_or(0);
  auto bad = [&](const std::string& what) {
    return error(Code::external_data, where, quote(l.path), what);
  };
  if (l.length && *l.length != bytes)
    return bad(
        fmt::format("its length is {}, the tensor has {}", counted(*l.length, "byte"), bytes));
  int64_t end;
  if (__builtin_add_overflow(offset, bytes, &end) || end > file.second)
    return bad(fmt::format("bytes {} to {} are wanted, the file has {}", offset,
                           static_cast<uint64_t>(offset) + static_cast<uint64_t>(bytes),
                           file.second));
  return view(type, dims, file.first, static_cast<const char*>(file.first.get()) + offset);
}

/// One of the typed fields, narrowed to the element's width.
template <class T, class Field>
Result<Tensor> typed(const Field& field, DType type, const std::vector<int64_t>& dims, int64_t n,
                     const std::string& where) {
  if (field.size() != n)
    return error(Code::model_invalid, where,
                 fmt::format("it has {}, its dims want {}", counted(field.size(), "value"), n));
  auto [t, out] = Tensor::allocate(type, dims);
  T* p = static_cast<T*>(out);
  for (int i = 0; i < field.size(); ++i) p[i] = static_cast<T>(field.Get(i));
  return t;
}

Result<Tensor> from_fields(const onnx::TensorProto& t, DType type, const std::vector<int64_t>& dims,
                           int64_t n, const std::string& where) {
  const auto& i32 = t.int32_data();
  switch (type) {
    case DType::f32:
      return typed<float>(t.float_data(), type, dims, n, where);
    case DType::f64:
      return typed<double>(t.double_data(), type, dims, n, where);
    case DType::i64:
      return typed<int64_t>(t.int64_data(), type, dims, n, where);
    case DType::u64:
      return typed<uint64_t>(t.uint64_data(), type, dims, n, where);
    case DType::u32:
      return typed<uint32_t>(t.uint64_data(), type, dims, n, where);
    case DType::i32:
      return typed<int32_t>(i32, type, dims, n, where);
    case DType::complex64:
      return typed<float>(t.float_data(), type, dims, 2 * n, where);
    case DType::complex128:
      return typed<double>(t.double_data(), type, dims, 2 * n, where);
    default:
      break;
  }
  if (size_bits(type) == 16) return typed<uint16_t>(i32, type, dims, n, where);
  if (size_bits(type) == 8) return typed<uint8_t>(i32, type, dims, n, where);
  return typed<uint8_t>(i32, type, dims, size_bytes(type, n), where);  // packed: a byte an entry
}

}  // namespace

ExternalRoots roots_of(const std::string& model_path) {
  ExternalRoots out;
  std::string beside = real_path(directory_of(model_path));
  if (!beside.empty()) out.directories.push_back(beside);
  // A model that is itself a link, as in the Hugging Face cache: its data lies beside the real
  // file.
  std::string target = directory_of(real_path(model_path));
  if (!target.empty() && target != "." && target != beside) out.directories.push_back(target);
  return out;
}

ExternalRoots roots_in(const std::string& directory) {
  ExternalRoots out;
  if (std::string real = real_path(directory); !real.empty()) out.directories.push_back(real);
  return out;
}

Result<Tensor> to_tensor(onnx::TensorProto& t, const std::string& where, ExternalRoots& roots,
                         const Limits& limits) {
  auto bad = [&](const std::string& what) { return error(Code::model_invalid, where, what); };
  if (t.dims_size() > limits.rank)
    return error(Code::limit_exceeded, where, "the rank (rank)", t.dims_size(), limits.rank);
  std::vector<int64_t> dims(t.dims().begin(), t.dims().end());
  int64_t n = 1, bits = 0;
  bool empty = contains(dims, 0);
  for (int64_t d : dims) {
    if (d < 0) return bad(fmt::format("a dimension is {}", d));
    if (!empty && __builtin_mul_overflow(n, d, &n)) return bad("its dims multiply beyond 2^63");
  }
  if (empty) n = 0;
  int code = t.data_type();
  if (!is_element_type(code))
    return error(Code::unsupported_type, where, fmt::format("element type {}", code));
  DType type = static_cast<DType>(code);
  if (t.has_segment()) return error(Code::unsupported_type, where, "a segmented tensor");
  if (type == DType::string) {
    if (t.string_data_size() != n)
      return bad(fmt::format("it has {} strings, its dims want {}", t.string_data_size(), n));
    return Tensor(dims, {t.string_data().begin(), t.string_data().end()});
  }
  if (__builtin_mul_overflow(n, int64_t{size_bits(type)}, &bits))
    return bad("it has more than 2^63 bits");
  int64_t bytes = size_bytes(type, n);
  if (t.data_location() == onnx::TensorProto::EXTERNAL)
    return external(t, type, dims, bytes, where, roots);
  if (!t.has_raw_data() || (t.raw_data().empty() && n == 0))
    return from_fields(t, type, dims, n, where);
  if (std::ssize(t.raw_data()) != bytes)
    return bad(fmt::format("it has {}, its type and dims want {}",
                           counted(t.raw_data().size(), "byte"), bytes));
  if (t.raw_data().size() < 64) {  // too small to be worth keeping a string for
    auto [out, p] = Tensor::allocate(type, dims);
    std::memcpy(p, t.raw_data().data(), t.raw_data().size());
    return out;
  }
  std::shared_ptr<std::string> owner(t.release_raw_data());
  if (!aligned(type, owner->data())) return view(type, std::move(dims), owner, owner->data());
  void* p = owner->data();
  return Tensor::over(type, std::move(dims), std::move(owner), p);
}

Result<Tensor> to_tensor(const onnx::SparseTensorProto& s, const std::string& where,
                         ExternalRoots& roots, const Limits& limits) {
  auto bad = [&](const std::string& what) { return error(Code::model_invalid, where, what); };
  onnx::TensorProto values_proto = s.values(), indices_proto = s.indices();
  FERRULE_ASSIGN(Tensor values, to_tensor(values_proto, where + ", values", roots, limits));
  FERRULE_ASSIGN(Tensor indices, to_tensor(indices_proto, where + ", indices", roots, limits));
  std::vector<int64_t> dims(s.dims().begin(), s.dims().end());
  int64_t n = 1;
  for (int64_t d : dims)
    if (d < 0 || __builtin_mul_overflow(n, d, &n)) return bad("its dims are out of range");
  int64_t unit = size_bits(values.dtype()) / 8, bytes;
  if (unit == 0)
    return error(Code::unsupported_type, where, "a sparse tensor of this element type");
  if (__builtin_mul_overflow(n, unit, &bytes) || bytes > limits.fold_tensor_bytes)
    return error(Code::limit_exceeded, where, "the size of a sparse tensor (fold_tensor_bytes)", n,
                 limits.fold_tensor_bytes);
  int64_t count = values.numel(), rank = std::ssize(dims);
  bool linear = indices.rank() == 1;
  if (indices.dtype() != DType::i64 || indices.numel() != (linear ? count : count * rank))
    return bad("its indices do not fit its values");
  auto [out, p] = Tensor::allocate(values.dtype(), dims);
  for (int64_t i = 0; i < count; ++i) {
    int64_t at = 0;
    for (int64_t k = 0; k < (linear ? 1 : rank); ++k) {
      int64_t index = indices.at_i64(linear ? i : i * rank + k);
      int64_t bound = linear ? n : dims[k];
      if (index < 0 || index >= bound) return bad(fmt::format("index {} is out of range", index));
      at = at * (linear ? 1 : bound) + index;
    }
    std::memcpy(static_cast<char*>(p) + at * unit,
                static_cast<const char*>(values.data()) + i * unit, static_cast<size_t>(unit));
  }
  return out;
}

}  // namespace ferrule::onnx_io
