// The zip container (zip64 sizes accepted) and the .npy header, written out by hand: both are
// small, and every offset read from a file is checked against its size. zlib inflates what is
// compressed and makes the checksums.
#include "engine/graph/npz.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "engine/base/output_file.h"
#include "engine/base/utf8.h"

namespace ferrule {
namespace {

using Bytes = std::string_view;

tl::unexpected<Error> bad(const std::string& place, std::string_view what) {
  return error(Code::bad_npz, escape(place), what);
}

template <class T>
T read_le(Bytes b, size_t at) {  // the caller has checked the range; the machine is little-endian
  T v;
  std::memcpy(&v, b.data() + at, sizeof(T));
  return v;
}
template <class T>
void append_le(std::string& out, T v) {
  out.append(reinterpret_cast<const char*>(&v), sizeof(T));
}

uint32_t checksum(Bytes bytes) {
  return static_cast<uint32_t>(
      crc32_z(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}

Result<std::string> read_file(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return error(Code::file_not_found, "", escape(path), std::strerror(errno));
  struct stat st{};
  std::string out;
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return error(Code::file_not_found, "", escape(path), "not a regular file");
  }
  // The size is asked once; a file that grows or shrinks meanwhile is cut or refused by the parser.
  out.resize(st.st_size);
  size_t got = 0;
  while (got < out.size()) {
    const ssize_t n = read(fd, out.data() + got, out.size() - got);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    got += static_cast<size_t>(n);
  }
  close(fd);
  out.resize(got);
  return out;
}

// --- .npy

struct Header {
  std::string descr;
  bool fortran = false;
  std::vector<int64_t> shape;
};

void skip_spaces(Bytes& s) {
  while (!s.empty() && (s[0] == ' ' || s[0] == '\n' || s[0] == '\t')) s.remove_prefix(1);
}
bool take(Bytes& s, char c) {
  skip_spaces(s);
  if (s.empty() || s[0] != c) return false;
  s.remove_prefix(1);
  return true;
}
std::optional<std::string> take_quoted(Bytes& s) {
  skip_spaces(s);
  if (s.empty() || (s[0] != '\'' && s[0] != '"')) return std::nullopt;
  const size_t end = s.find(s[0], 1);
  if (end == Bytes::npos) return std::nullopt;
  std::string out(s.substr(1, end - 1));
  s.remove_prefix(end + 1);
  return out;
}
std::optional<std::vector<int64_t>> take_shape(Bytes& s) {
  std::vector<int64_t> dims;
  if (!take(s, '(')) return std::nullopt;
  while (!take(s, ')')) {
    skip_spaces(s);
    int64_t d = 0;
    size_t digits = 0;
    while (digits < s.size() && s[digits] >= '0' && s[digits] <= '9') {
      if (digits > 17) return std::nullopt;
      d = d * 10 + (s[digits++] - '0');
    }
    if (digits == 0 || dims.size() >= 64) return std::nullopt;
    s.remove_prefix(digits);
    dims.push_back(d);
    if (!take(s, ',') && (skip_spaces(s), s.empty() || s[0] != ')')) return std::nullopt;
  }
  return dims;
}

/// The Python dict literal that numpy writes: {'descr': '<f4', 'fortran_order': False, 'shape': (1,
/// 2), }
std::optional<Header> parse_header(Bytes s) {
  Header h;
  if (!take(s, '{')) return std::nullopt;
  while (!take(s, '}')) {
    const auto key = take_quoted(s);
    if (!key || !take(s, ':')) return std::nullopt;
    skip_spaces(s);
    if (*key == "descr") {
      auto v = take_quoted(s);
      if (!v) return std::nullopt;
      h.descr = *v;
    } else if (*key == "fortran_order") {
      h.fortran = s.starts_with("True");
      if (!h.fortran && !s.starts_with("False")) return std::nullopt;
      s.remove_prefix(h.fortran ? 4 : 5);
    } else if (*key == "shape") {
      auto v = take_shape(s);
      if (!v) return std::nullopt;
      h.shape = *v;
    } else {
      return std::nullopt;
    }
    if (!take(s, ',') && (skip_spaces(s), s.empty() || s[0] != '}')) return std::nullopt;
  }
  return h;
}

struct NumpyType {
  std::string_view descr;
  DType dtype;
};
constexpr NumpyType kTypes[] = {
    {"|b1", DType::boolean},   {"|i1", DType::i8},          {"|u1", DType::u8},
    {"<i2", DType::i16},       {"<u2", DType::u16},         {"<i4", DType::i32},
    {"<u4", DType::u32},       {"<i8", DType::i64},         {"<u8", DType::u64},
    {"<f2", DType::f16},       {"<f4", DType::f32},         {"<f8", DType::f64},
    {"<c8", DType::complex64}, {"<c16", DType::complex128}, {"<V2", DType::bf16},
    {"|V2", DType::bf16},
};

void append_utf8(std::string& out, uint32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 63));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
    out += static_cast<char>(0x80 | (c & 63));
  } else {
    out += static_cast<char>(0xf0 | ((c >> 18) & 7));
    out += static_cast<char>(0x80 | ((c >> 12) & 63));
    out += static_cast<char>(0x80 | ((c >> 6) & 63));
    out += static_cast<char>(0x80 | (c & 63));
  }
}

/// Code points of UTF-8 text; a byte that is not UTF-8 stands for itself.
std::u32string code_points(std::string_view s) {
  std::u32string out;
  while (!s.empty()) {
    uint32_t point = static_cast<unsigned char>(s[0]);
    const size_t n = decode_utf8(s, point);
    out += static_cast<char32_t>(n ? point : static_cast<unsigned char>(s[0]));
    s.remove_prefix(std::max<size_t>(n, 1));
  }
  return out;
}

/// Row-major position of the i-th element of a column-major array.
template <class F>
void for_each_fortran(const std::vector<int64_t>& dims, F&& f) {
  int64_t n = 1;
  for (int64_t d : dims) n *= d;
  for (int64_t i = 0; i < n; ++i) {
    int64_t rest = i, to = 0, stride = n;
    for (size_t k = 0; k < dims.size(); ++k) {
      stride /= dims[k];
      to += (rest % dims[k]) * stride;
      rest /= dims[k];
    }
    f(i, to);
  }
}

/// Elements of the array if they fit `available` bytes at `item` bytes each.
std::optional<int64_t> count_elements(const std::vector<int64_t>& dims, size_t item,
                                      size_t available) {
  int64_t n = 1;
  bool empty = contains(dims, 0);
  for (int64_t d : dims) {
    if (__builtin_mul_overflow(n, d, &n)) {
      if (!empty) return std::nullopt;
      n = 0;
    }
  }
  if (empty) n = 0;
  int64_t bytes = 0;
  if (__builtin_mul_overflow(n, static_cast<int64_t>(item), &bytes)) return std::nullopt;
  return static_cast<size_t>(bytes) <= available ? std::optional(n) : std::nullopt;
}

Result<Tensor> parse_strings(const Header& h, Bytes data, const std::string& place) {
  const bool unicode = h.descr[1] == 'U', swapped = h.descr[0] == '>';
  size_t width = 0;
  for (char c : h.descr.substr(2)) {
    if (c < '0' || c > '9' || width > (1u << 24)) return bad(place, "unknown element type");
    width = width * 10 + static_cast<size_t>(c - '0');
  }
  const size_t item = unicode ? width * 4 : width;
  const auto n = count_elements(h.shape, std::max<size_t>(item, 1), item ? data.size() : 1 << 20);
  if (!n) return bad(place, "the data is shorter than its shape");
  std::vector<std::string> values(*n);
  auto one = [&](int64_t from) {
    std::string out;
    const Bytes b = data.substr(from * item, item);
    if (!unicode) return std::string(b.substr(0, b.find_last_not_of('\0') + 1));
    for (size_t k = 0; k < width; ++k) {
      const auto c = read_le<uint32_t>(b, k * 4);
      if (c) append_utf8(out, swapped ? __builtin_bswap32(c) : c);
    }
    return out;
  };
  if (h.fortran) {
    for_each_fortran(h.shape, [&](int64_t i, int64_t to) { values[to] = one(i); });
  } else {
    for (int64_t i = 0; i < *n; ++i) values[i] = one(i);
  }
  return Tensor(h.shape, std::move(values));
}

Result<Tensor> parse_npy(Bytes b, const std::string& place) {
  if (b.size() < 10 || b.substr(0, 6) != "\x93NUMPY")
    return bad(place, "no \\x93NUMPY at its start");
  const bool wide = b[6] >= 2;
  if (b[6] < 1 || b[6] > 3 || (wide && b.size() < 12)) return bad(place, "unknown .npy version");
  const size_t start = wide ? 12 : 10;
  const size_t length = wide ? read_le<uint32_t>(b, 8) : read_le<uint16_t>(b, 8);
  if (length > b.size() - start) return bad(place, "its header is cut off");
  const auto h = parse_header(b.substr(start, length));
  if (!h) return bad(place, "its header is not what numpy writes");
  const Bytes data = b.substr(start + length);
  if (h->descr.size() > 2 && (h->descr[1] == 'U' || h->descr[1] == 'S')) {
    return parse_strings(*h, data, place);
  }
  const bool swapped = h->descr.starts_with('>');
  const std::string descr = swapped ? "<" + h->descr.substr(1) : h->descr;
  const auto type =
      std::ranges::find_if(kTypes, [&](const NumpyType& t) { return t.descr == descr; });
  if (type == std::end(kTypes)) {
    return bad(place, fmt::format("element type '{}' is not supported", escape(h->descr)));
  }
  const auto item = static_cast<size_t>(size_bits(type->dtype) / 8);
  const auto n = count_elements(h->shape, item, data.size());
  if (!n) return bad(place, "the data is shorter than its shape");
  auto [tensor, to] = Tensor::allocate(type->dtype, h->shape);
  char* out = static_cast<char*>(to);
  if (h->fortran) {
    for_each_fortran(h->shape, [&](int64_t i, int64_t at) {
      std::memcpy(out + static_cast<size_t>(at) * item, data.data() + static_cast<size_t>(i) * item,
                  item);
    });
  } else if (*n > 0) {
    std::memcpy(out, data.data(), static_cast<size_t>(*n) * item);
  }
  if (type->dtype == DType::boolean) {
    for (int64_t i = 0; i < *n; ++i) out[i] = out[i] != 0;
  }
  const size_t number = descr[1] == 'c' ? item / 2 : item;  // a complex number is two
  if (swapped)
    for (int64_t at = 0; at < *n * static_cast<int64_t>(item); at += static_cast<int64_t>(number))
      std::reverse(out + at, out + at + number);
  return tensor;
}

std::string npy_bytes(const Tensor& t) {
  std::string descr, data;
  if (t.dtype() == DType::string) {
    std::vector<std::u32string> texts;
    size_t width = 1;
    for (const auto& s : t.strings()) {
      texts.push_back(code_points(s));
      width = std::max(width, texts.back().size());
    }
    descr = fmt::format("<U{}", width);
    for (auto& s : texts) {
      s.resize(width, U'\0');
      data.append(reinterpret_cast<const char*>(s.data()), width * 4);
    }
  } else if (size_bits(t.dtype()) < 8) {
    descr = is_unsigned_int(t.dtype()) ? "|u1" : is_int(t.dtype()) ? "|i1" : "<f4";
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (is_int(t.dtype()))
        data += static_cast<char>(t.at_i64(i));
      else
        append_le(data, static_cast<float>(t.at_f64(i)));
    }
  } else {
    const auto type =
        std::ranges::find_if(kTypes, [&](const NumpyType& k) { return k.dtype == t.dtype(); });
    descr = type != std::end(kTypes) ? std::string(type->descr) : "|V1";  // 8-bit floats
    data.assign(static_cast<const char*>(t.data()), static_cast<size_t>(t.bytes()));
  }
  std::string shape;
  for (int64_t d : t.dims()) shape += fmt::format("{}, ", d);
  if (t.rank() > 1)
    shape.resize(shape.size() - 2);
  else if (t.rank() == 1)
    shape.pop_back();
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}), }}", descr, shape);
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  std::string out("\x93NUMPY\x01\x00", 8);
  append_le(out, static_cast<uint16_t>(header.size()));
  return out + header + data;
}

// --- .npz

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50,
                   kEnd64 = 0x06064b50;

struct Member {
  std::string name;
  uint64_t offset, packed, size;
  uint32_t crc;
  bool deflated;
};

constexpr uint64_t kMostDeflated = 1032;  ///< bytes that one byte of deflated data can become

/// The member's bytes as they were before they were compressed.
Result<std::string> inflated(Bytes packed, uint64_t size, const std::string& place) {
  if (size / kMostDeflated > packed.size()) return bad(place, "its size cannot be right");
  std::string out(size, '\0');
  z_stream z{};
  if (inflateInit2(&z, -MAX_WBITS) != Z_OK) return bad(place, "zlib cannot be started");
  constexpr size_t kMost = size_t{1} << 30;  // zlib counts in 32 bits
  size_t read = 0, written = 0;
  int state = Z_OK;
  do {
    z.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(packed.data() + read));
    z.avail_in = static_cast<uInt>(std::min(kMost, packed.size() - read));
    z.next_out = reinterpret_cast<Bytef*>(out.data() + written);
    z.avail_out = static_cast<uInt>(std::min(kMost, out.size() - written));
    const uInt in = z.avail_in, room = z.avail_out;
    state = inflate(&z, Z_NO_FLUSH);
    read += in - z.avail_in, written += room - z.avail_out;
  } while (state == Z_OK);
  inflateEnd(&z);
  if (state != Z_STREAM_END || written != size) return bad(place, "its compressed data is damaged");
  return out;
}

/// 64-bit values of the zip64 extra field, in the order of the 32-bit fields that are all ones.
bool zip64(Bytes extra, uint64_t& size, uint64_t& packed, uint64_t& offset) {
  while (extra.size() >= 4) {
    const auto id = read_le<uint16_t>(extra, 0);
    const size_t length = read_le<uint16_t>(extra, 2);
    if (length > extra.size() - 4) return false;
    Bytes body = extra.substr(4, length);
    if (id == 1) {
      for (uint64_t* field : {&size, &packed, &offset}) {
        if (*field != 0xffffffffu) continue;
        if (body.size() < 8) return false;
        *field = read_le<uint64_t>(body, 0);
        body.remove_prefix(8);
      }
    }
    extra.remove_prefix(4 + length);
  }
  return true;
}

Result<std::vector<Member>> list_members(Bytes b, const std::string& place) {
  if (b.size() < 22) return bad(place, "too short for a zip file");
  size_t end = b.size() - 22;
  const size_t lowest = b.size() > 22 + 65535 ? b.size() - 22 - 65535 : 0;
  while (read_le<uint32_t>(b, end) != kEnd) {
    if (end == lowest) return bad(place, "no end of zip directory (truncated?)");
    --end;
  }
  uint64_t count = read_le<uint16_t>(b, end + 10), at = read_le<uint32_t>(b, end + 16);
  if ((count == 0xffff || at == 0xffffffffu) && end >= 20) {
    const auto end64 = read_le<uint64_t>(b, end - 20 + 8);
    if (end64 > b.size() || b.size() - end64 < 56 || read_le<uint32_t>(b, end64) != kEnd64) {
      return bad(place, "damaged zip64 directory");
    }
    count = read_le<uint64_t>(b, end64 + 32);
    at = read_le<uint64_t>(b, end64 + 48);
  }
  std::vector<Member> out;
  for (uint64_t k = 0; k < count; ++k) {
    if (at > b.size() || b.size() - at < 46 || read_le<uint32_t>(b, at) != kCentral) {
      return bad(place, "damaged zip directory");
    }
    const size_t name = read_le<uint16_t>(b, at + 28), extra = read_le<uint16_t>(b, at + 30);
    const size_t comment = read_le<uint16_t>(b, at + 32);
    if (name + extra + comment > b.size() - at - 46) return bad(place, "damaged zip directory");
    uint64_t packed = read_le<uint32_t>(b, at + 20), size = read_le<uint32_t>(b, at + 24);
    uint64_t offset = read_le<uint32_t>(b, at + 42);
    Member m{std::string(b.substr(at + 46, name)), 0, 0, 0, read_le<uint32_t>(b, at + 16), false};
    if (!zip64(b.substr(at + 46 + name, extra), size, packed, offset)) {
      return bad(place, "damaged zip64 field");
    }
    const auto method = read_le<uint16_t>(b, at + 10);
    m.deflated = method == Z_DEFLATED;
    if ((method != 0 && !m.deflated) || (!m.deflated && packed != size))
      return bad(place, fmt::format("member \"{}\" is compressed in a way that is not known",
                                    escape(m.name)));
    if (offset > b.size() || b.size() - offset < 30 || read_le<uint32_t>(b, offset) != kLocal) {
      return bad(place, fmt::format("member \"{}\" is damaged", escape(m.name)));
    }
    m.offset = offset + 30 + read_le<uint16_t>(b, offset + 26) + read_le<uint16_t>(b, offset + 28);
    m.packed = packed, m.size = size;
    if (m.offset > b.size() || m.packed > b.size() - m.offset) {
      return bad(place, fmt::format("member \"{}\" is cut off", escape(m.name)));
    }
    at += 46 + name + extra + comment;
    out.push_back(std::move(m));
  }
  return out;
}

Status write_file(const std::string& path, const std::string& bytes, bool force) {
  if (!force && access(path.c_str(), F_OK) == 0) return error(Code::file_exists, "", escape(path));
  OutputFile out(path);
  FERRULE_TRY(out.open());
  FERRULE_TRY(out.write(bytes.data(), bytes.size()));
  return out.commit(force);
}

}  // namespace

Result<Tensor> read_npy(const std::string& path) {
  FERRULE_ASSIGN(const std::string bytes, read_file(path));
  return parse_npy(bytes, path);
}

Result<std::map<std::string, Tensor>> read_npz(const std::string& path) {
  FERRULE_ASSIGN(const std::string bytes, read_file(path));
  std::map<std::string, Tensor> out;
  if (Bytes(bytes).starts_with("\x93NUMPY")) {
    FERRULE_ASSIGN(auto tensor, parse_npy(bytes, path));
    out.emplace("", std::move(tensor));
    return out;
  }
  FERRULE_ASSIGN(const auto members, list_members(bytes, path));
  for (const Member& m : members) {
    Bytes data = Bytes(bytes).substr(m.offset, m.packed);
    const std::string place = path + ":" + m.name;
    std::string whole;
    if (m.deflated) {
      FERRULE_ASSIGN(whole, inflated(data, m.size, place));
      data = whole;
    }
    if (checksum(data) != m.crc) return bad(place, "its checksum is wrong");
    FERRULE_ASSIGN(auto tensor, parse_npy(data, place));
    std::string key = m.name.ends_with(".npy") ? m.name.substr(0, m.name.size() - 4) : m.name;
    out.insert_or_assign(std::move(key), std::move(tensor));
  }
  return out;
}

Status write_npz(const std::string& path, const std::map<std::string, Tensor>& tensors,
                 bool force) {
  std::string file, directory;
  for (const auto& [key, tensor] : tensors) {
    const std::string data = npy_bytes(tensor), name = key + ".npy";
    if (name.size() > 0xffff || file.size() + data.size() > 0xfffffff0u) {
      return error(Code::file_not_written, "", escape(path),
                   "larger than 4 GiB or a name too long");
    }
    std::string fields;  // from "version needed" on, the same in both headers
    for (uint16_t v : {20, 0x800, 0, 0, 0x21})
      append_le(fields, v);  // UTF-8 names, stored, 1980-01-01
    append_le(fields, checksum(data));
    for (int k = 0; k < 2; ++k) append_le(fields, static_cast<uint32_t>(data.size()));
    append_le(fields, static_cast<uint16_t>(name.size()));
    append_le(fields, static_cast<uint16_t>(0));
    append_le(directory, kCentral);
    append_le(directory, static_cast<uint16_t>(20));
    directory += fields;
    directory.append(10, '\0');  // comment, disk, attributes
    append_le(directory, static_cast<uint32_t>(file.size()));
    directory += name;
    append_le(file, kLocal);
    file += fields + name + data;
  }
  if (tensors.size() >= 0xffff) {
    return error(Code::file_not_written, "", escape(path), "more than 65534 arrays");
  }
  const auto at = static_cast<uint32_t>(file.size());
  file += directory;
  append_le(file, kEnd);
  append_le(file, uint32_t{0});
  for (int k = 0; k < 2; ++k) append_le(file, static_cast<uint16_t>(tensors.size()));
  append_le(file, static_cast<uint32_t>(directory.size()));
  append_le(file, at);
  append_le(file, uint16_t{0});
  return write_file(path, file, force);
}

}  // namespace ferrule
