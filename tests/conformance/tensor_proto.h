// Reads one serialised onnx.TensorProto, SequenceProto or OptionalProto: how ONNX's backend tests
// store inputs and outputs. Written by hand from the wire format, so that the tests do not go
// through the importer that they test.
#pragma once
#include <cstring>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/tensor.h"

namespace ferrule::conformance {

inline std::optional<std::string> file_bytes(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

class Wire {
 public:
  explicit Wire(std::string_view bytes) : rest_(bytes) {}
  bool more() const { return !rest_.empty() && good; }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; shift < 64 && !rest_.empty(); shift += 7) {
      const auto b = static_cast<unsigned char>(rest_[0]);
      rest_.remove_prefix(1);
      v |= static_cast<uint64_t>(b & 127) << shift;
      if (b < 128) return v;
    }
    good = false;
    return 0;
  }
  std::string_view bytes(size_t n) {
    if (n > rest_.size()) {
      good = false;
      n = rest_.size();
    }
    const auto out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  bool good = true;

 private:
  std::string_view rest_;
};

/// A tensor; nullopt when the message is something else (a sequence, say) or damaged.
inline std::optional<Tensor> parse_tensor(std::string_view message) {
  Wire w(message);
  std::vector<int64_t> dims;
  std::vector<uint64_t> ints;
  std::vector<std::string> strings;
  std::string_view raw;
  std::string floats;  // float_data or double_data, as raw bytes
  bool has_raw = false;
  auto dtype = DType::undefined;
  while (w.more()) {
    const uint64_t key = w.varint();
    const auto field = key >> 3;
    switch (key & 7) {
      case 0: {
        const uint64_t v = w.varint();
        if (field == 1)
          dims.push_back(static_cast<int64_t>(v));
        else if (field == 2)
          dtype = static_cast<DType>(v);
        else
          ints.push_back(v);
        break;
      }
      case 1:
        floats += w.bytes(8);
        break;
      case 5:
        floats += w.bytes(4);
        break;
      case 2: {
        const auto body = w.bytes(w.varint());
        if (field == 3) return std::nullopt;  // the elements of a sequence
        if (field == 9)
          raw = body, has_raw = true;
        else if (field == 4 || field == 10)
          floats += body;
        else if (field == 6)
          strings.emplace_back(body);
        else if (field == 1 || field == 5 || field == 7 || field == 11) {
          Wire packed(body);
          while (packed.more()) ints.push_back(packed.varint());
          if (field == 1) {
            for (uint64_t v : ints) dims.push_back(static_cast<int64_t>(v));
            ints.clear();
          }
        }
        break;
      }
      default:
        return std::nullopt;
    }
  }
  if (!w.good || dtype == DType::undefined || dtype > kLastElementType) return std::nullopt;
  int64_t n = 1;
  for (int64_t d : dims) {
    if (d < 0 || d > (1 << 28) || (n *= d) > (1 << 28)) return std::nullopt;
  }
  if (dtype == DType::string) {
    if (static_cast<int64_t>(strings.size()) != n) return std::nullopt;
    return Tensor(dims, std::move(strings));
  }
  auto [t, p] = Tensor::allocate(dtype, dims);
  const auto bytes = static_cast<size_t>(t.bytes());
  if (!has_raw && !floats.empty()) raw = floats, has_raw = true;
  if (has_raw) {
    if (raw.size() < bytes) return std::nullopt;
    if (bytes) std::memcpy(p, raw.data(), bytes);
    return t;
  }
  const auto width = static_cast<size_t>(std::max(size_bits(dtype) / 8, 1));
  if (ints.size() * width < bytes) return std::nullopt;
  for (size_t i = 0; i * width < bytes; ++i)
    std::memcpy(static_cast<char*>(p) + i * width, &ints[i], width);
  return t;
}

/// f(field, wire type, body or "") for each field of a message; a number is skipped.
template <class F>
void each_message(std::string_view message, F&& f) {
  Wire w(message);
  while (w.more()) {
    const uint64_t key = w.varint();
    switch (key & 7) {
      case 0:
        w.varint();
        break;
      case 1:
        w.bytes(8);
        break;
      case 2:
        f(static_cast<int>(key >> 3), w.bytes(w.varint()));
        break;
      default:
        w.bytes(4);
    }
  }
}

/// What a TypeProto describes: "t", a tensor; "s", a sequence, and "o", an optional, of what
/// follows.
inline std::string kind_of(std::string_view type) {
  std::string out = "t";
  each_message(type, [&](int field, std::string_view body) {
    if (field != 4 && field != 9) return;
    out = field == 4 ? "s" : "o";
    std::string inner = "t";
    each_message(body, [&](int, std::string_view of) { inner = kind_of(of); });
    out += inner;
  });
  return out;
}

/// The kinds of a model's inputs or outputs, in order.
inline std::vector<std::string> kinds(std::string_view model, bool inputs) {
  std::vector<std::string> out;
  each_message(model, [&](int field, std::string_view graph) {
    if (field != 7) return;
    each_message(graph, [&](int part, std::string_view info) {
      if (part != (inputs ? 11 : 12)) return;
      out.emplace_back("t");
      each_message(info, [&](int of, std::string_view type) {
        if (of == 2) out.back() = kind_of(type);
      });
    });
  });
  return out;
}

/// A value of that kind; nullopt: damaged, or of a kind that is not known.
inline std::optional<Tensor> parse_value(std::string_view message, std::string_view kind) {
  if (kind == "t") return parse_tensor(message);
  std::vector<Tensor> elements;
  bool good = true;
  each_message(message, [&](int field, std::string_view body) {
    if (field != 3 && field != 5) return;
    const auto t = parse_value(body, kind.substr(1));
    good &= t.has_value();
    if (t) elements.push_back(*t);
  });
  if (!good) return std::nullopt;
  if (kind[0] == 's') return Tensor::sequence(std::move(elements));
  return elements.empty() ? Tensor::absent() : elements[0];
}

}  // namespace ferrule::conformance
