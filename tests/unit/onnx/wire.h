// Protobuf by hand, for models that no serialiser would write: a message is a string, fields are
// appended.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace wire {

inline std::string varint(uint64_t v) {
  std::string out;
  for (; v >= 0x80; v >>= 7) out += static_cast<char>(v | 0x80);
  return out + static_cast<char>(v);
}
/// Field `number` with an integer.
inline std::string num(int number, int64_t v) {
  return varint(static_cast<uint64_t>(number) << 3) + varint(static_cast<uint64_t>(v));
}
/// Field `number` with bytes, a string or a message.
inline std::string str(int number, std::string_view s) {
  return varint((static_cast<uint64_t>(number) << 3) | 2) + varint(s.size()) + std::string(s);
}

// onnx.proto's field numbers.
inline std::string opset(int64_t version, std::string_view domain = "") {
  return str(8, str(1, domain) + num(2, version));
}
inline std::string type(int elem, std::initializer_list<int64_t> dims) {
  std::string shape;
  for (int64_t d : dims) shape += str(1, num(1, d));
  return str(1, num(1, elem) + str(2, shape));
}
inline std::string value(std::string_view name, int elem, std::initializer_list<int64_t> dims) {
  return str(1, name) + str(2, type(elem, dims));
}
inline std::string node(std::string_view op, std::initializer_list<std::string_view> in,
                        std::initializer_list<std::string_view> out, std::string_view more = "",
                        std::string_view name = "", std::string_view domain = "") {
  std::string n;
  for (auto i : in) n += str(1, i);
  for (auto o : out) n += str(2, o);
  return n + str(3, name) + str(4, op) + std::string(more) + str(7, domain);
}
inline std::string tensor(std::string_view name, int elem, std::initializer_list<int64_t> dims,
                          std::string_view more) {
  std::string t;
  for (int64_t d : dims) t += num(1, d);
  return t + num(2, elem) + str(8, name) + std::string(more);
}
inline std::string raw(std::string_view bytes) { return str(9, bytes); }
inline std::string attr_int(std::string_view name, int64_t v) {
  return str(5, str(1, name) + num(3, v) + num(20, 2));
}
inline std::string attr_graph(std::string_view name, std::string_view g) {
  return str(5, str(1, name) + str(6, g) + num(20, 5));
}
/// A model of one graph; `graph`: nodes as str(1, …), initializers str(5, …), inputs str(11, …),
/// outputs str(12, …).
inline std::string model(std::string_view graph, std::string_view more = "", int64_t ir = 8,
                         int64_t version = 13) {
  return num(1, ir) + opset(version) + str(7, std::string(graph) + str(2, "g")) + std::string(more);
}
inline std::string in(std::string_view v) { return str(11, v); }
inline std::string out(std::string_view v) { return str(12, v); }

}  // namespace wire
