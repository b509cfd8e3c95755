#include "engine/graph/text.h"

#include <algorithm>
#include <cctype>

namespace ferrule {
namespace {

/// A name as ONNX text writes it: plain where it is an identifier, else in quotes.
std::string ident(const std::string& s) {
  auto plain = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  bool simple = !s.empty() && !std::isdigit(static_cast<unsigned char>(s[0])) &&
                std::ranges::all_of(s, plain);
  if (simple) return s;
  std::string out = "\"";
  for (char c : escape(s)) out += c == '"' || c == '\\' ? std::string{'\\', c} : std::string{c};
  return out + "\"";
}

std::string typed(const Value& v) {
  std::string out(onnx_name(v.type.dtype));
  if (!v.type.shape) return out + " " + ident(v.name);
  if (!v.type.shape->empty()) out += escape(str(*v.type.shape));
  return out + " " + ident(v.name);
}

std::string elements(const Tensor& t, int64_t most) {
  if (t.numel() > most || t.dtype() == DType::complex64 || t.dtype() == DType::complex128)
    return "{...}";
  std::string whole = str(Attr(t));  // "f32[2] {1.0, 2.0}"
  size_t brace = whole.rfind(" {");
  return brace == std::string::npos ? "{...}" : whole.substr(brace + 1);
}

class Writer {
 public:
  Writer(const TextOptions& options) : options_(options) {}

  void graph(const Graph& g, int depth, const std::string& title) {
    std::string pad(static_cast<size_t>(depth) * 2, ' ');
    out_ += pad + title + " (" + list(g, g.inputs()) + ") => (" + list(g, g.outputs()) + ")\n";
    constants(g, pad);
    out_ += pad + "{\n";
    for (NodeId n : g.order()) node(g, n, depth + 1);
    out_ += pad + "}\n";
  }

  void node(const Graph& g, NodeId id, int depth) {
    const Node& n = g.node(id);
    std::string pad(static_cast<size_t>(depth) * 2, ' ');
    out_ += pad + line(g, n);
    if (options_.types) {
      std::string types;
      for (ValueId v : n.outputs)
        if (v) types += (types.empty() ? "" : ", ") + str(g.value(v).type);
      if (!types.empty()) out_ += "  # " + types;
    }
    out_ += "\n";
    if (!options_.bodies) return;
    for (const auto& [key, sub] : n.subgraphs)
      graph(*sub, depth + 1, key + " = " + ident(sub->name));
    if (n.body) graph(*n.body, depth + 1, "body");
  }

  static std::string line(const Graph& g, const Node& n) {
    std::string out = "[" + ident(n.name) + "] ";
    for (size_t i = 0; i < n.outputs.size(); ++i) out += (i ? ", " : "") + slot(g, n.outputs[i]);
    out += " = " + (n.domain.empty() || n.body ? "" : escape(n.domain) + ".") + escape(n.op);
    std::string attrs;
    for (const auto& [key, value] : n.attrs.items())
      attrs += (attrs.empty() ? "" : ", ") + escape(key) + " = " + str(value);
    if (!attrs.empty()) out += " <" + attrs + ">";
    out += " (";
    for (size_t i = 0; i < n.inputs.size(); ++i) out += (i ? ", " : "") + slot(g, n.inputs[i]);
    return out + ")";
  }

  std::string take() { return std::move(out_); }

 private:
  static std::string slot(const Graph& g, ValueId v) { return v ? ident(g.value(v).name) : "\"\""; }

  std::string list(const Graph& g, const std::vector<ValueId>& ids) const {
    std::string out;
    for (ValueId v : ids)
      out +=
          (out.empty() ? "" : ", ") + (options_.types ? typed(g.value(v)) : ident(g.value(v).name));
    return out;
  }

  void constants(const Graph& g, const std::string& pad) {
    std::string out;
    for (ValueId id : g.values()) {
      const Value& v = g.value(id);
      if (v.constant) {
        out += out.empty() ? "<" : ",\n" + pad + "   ";
        out += typed(v) + " = " + elements(*v.constant, options_.max_elements);
      } else if (v.outer && options_.types) {
        out += out.empty() ? "<" : ",\n" + pad + "   ";
        out += typed(v) + " = captured";
      }
    }
    if (!out.empty()) out_ += pad + "  " + out + ">\n";
  }

  TextOptions options_;
  std::string out_;
};

}  // namespace

std::string to_text(const Graph& g, const TextOptions& options) {
  Writer w(options);
  w.graph(g, 0, g.name.empty() ? "graph" : ident(g.name));
  return w.take();
}

}  // namespace ferrule
