// Just enough of protobuf's wire format to read ONNX's node tests without the importer (and its
// onnx): models of one node, and tensors. Test code: malformed input makes wrong answers, not safe
// ones.
#pragma once
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/graph/graph.h"

namespace wire {

struct Field {
  int number = 0, type = -1;
  uint64_t value = 0;      ///< varints and fixed
  std::string_view bytes;  ///< length-delimited
};

class FieldReader {
 public:
  explicit FieldReader(std::string_view data) : p_(data.data()), end_(data.data() + data.size()) {}
  bool next(Field& f) {
    if (p_ >= end_) return false;
    uint64_t key = varint();
    f = {static_cast<int>(key >> 3), static_cast<int>(key & 7), 0, {}};
    if (f.type == 0)
      f.value = varint();
    else if (f.type == 2) {
      size_t n = varint();
      f.bytes = {p_, n};
      p_ += n;
    } else {
      size_t n = f.type == 1 ? 8 : 4;
      std::memcpy(&f.value, p_, n);
      p_ += n;
    }
    return true;
  }
  bool more() const { return p_ < end_; }
  uint64_t varint() {
    uint64_t v = 0;
    for (int shift = 0; p_ < end_; shift += 7) {
      auto b = static_cast<uint8_t>(*p_++);
      v |= uint64_t{b & 0x7fu} << shift;
      if (!(b & 0x80)) break;
    }
    return v;
  }

 private:
  const char *p_, *end_;
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

/// Packed or single varints.
inline void append_ints(const Field& f, std::vector<int64_t>& out) {
  if (f.type == 0) return out.push_back(static_cast<int64_t>(f.value));
  for (FieldReader r(f.bytes); r.more();) out.push_back(static_cast<int64_t>(r.varint()));
}

inline ferrule::Tensor tensor(std::string_view data) {
  using ferrule::DType;
  std::vector<int64_t> dims, ints;
  DType type = DType::undefined;
  std::string_view raw, packed;
  Field f;
  for (FieldReader r(data); r.next(f);) {
    if (f.number == 1)
      append_ints(f, dims);
    else if (f.number == 2)
      type = static_cast<DType>(f.value);
    else if (f.number == 9)
      raw = f.bytes;
    else if (f.number == 4 || f.number == 10)
      packed = f.bytes;
    else if (f.number == 5 || f.number == 7 || f.number == 11)
      append_ints(f, ints);
  }
  auto [t, to] = ferrule::Tensor::allocate(type, dims);
  auto bytes = static_cast<size_t>(t.bytes());
  if (!packed.empty()) raw = packed;
  if (!raw.empty() || ints.empty()) {
    std::copy_n(raw.data(), std::min(bytes, raw.size()), static_cast<char*>(to));
  } else {
    size_t width = size_bits(type) == 4 ? 1 : static_cast<size_t>(size_bits(type) / 8);
    for (size_t i = 0; i < ints.size() && (i + 1) * width <= bytes; ++i)
      std::memcpy(static_cast<char*>(to) + i * width, &ints[i], width);
  }
  return t;
}

struct Model {
  ferrule::Node node;               ///< the only node; ids are not set
  std::vector<std::string> inputs;  ///< the node's
  std::vector<std::string> graph_inputs;
  size_t nodes = 0;
  bool tensors = true;  ///< no sequence or optional among the graph's inputs
};

inline void attribute(std::string_view data, ferrule::Attrs& out) {
  std::string name;
  ferrule::Attr value = int64_t{0};
  std::vector<int64_t> ints;
  int type = 0;
  Field f;
  for (FieldReader r(data); r.next(f);) {
    if (f.number == 1)
      name = f.bytes;
    else if (f.number == 2) {
      float v = 0;
      std::memcpy(&v, &f.value, 4);
      value = double{v};
    } else if (f.number == 3)
      value = static_cast<int64_t>(f.value);
    else if (f.number == 4)
      value = std::string(f.bytes);
    else if (f.number == 8)
      append_ints(f, ints);
    else if (f.number == 20)
      type = static_cast<int>(f.value);
  }
  if (type == 7) value = ints;
  out.set(name, value);
}

inline Model model(std::string_view data) {
  Model m;
  Field f, g, n;
  for (FieldReader r(data); r.next(f);) {
    if (f.number != 7) continue;
    for (FieldReader rg(f.bytes); rg.next(g);) {
      if (g.number == 11) {
        for (FieldReader ri(g.bytes); ri.next(n);) {
          if (n.number == 1) m.graph_inputs.emplace_back(n.bytes);
          Field t;
          if (n.number == 2 && FieldReader(n.bytes).next(t)) m.tensors &= t.number == 1;
        }
      } else if (g.number == 1 && ++m.nodes == 1) {
        for (FieldReader rn(g.bytes); rn.next(n);) {
          if (n.number == 1)
            m.inputs.emplace_back(n.bytes);
          else if (n.number == 4)
            m.node.op = std::string(n.bytes);
          else if (n.number == 5)
            attribute(n.bytes, m.node.attrs);
          else if (n.number == 7)
            m.node.domain = n.bytes;
        }
      }
    }
  }
  return m;
}

}  // namespace wire
