// The table of what changed between opset 7 and the newest, operator by operator. A row runs on
// nodes whose schema is of a version in its range; rows of one operator run in order.
#include "engine/onnx/normalize.h"

#include <onnx/defs/schema.h>

#include <algorithm>
#include <numeric>

#include "engine/graph/copy.h"
#include "engine/graph/operator_name.h"
#include "engine/onnx/internal.h"
#include "engine/onnx/schema.h"
#include "engine/semantics/einsum.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

using onnx_io::quote;

/// A node being normalised. `op` and `attrs` are written back when the rows are done.
struct Ctx {
  Graph& g;
  const Semantics& ops;
  NodeId id;
  std::string op;
  Attrs attrs;
  bool gone = false;  ///< replaced by other nodes

  const Node& n() const { return g.node(id); }
  std::string where() const {
    return fmt::format("node {} ({}, opset {})", quote(n().name), escape(n().op, 60),
                       n().since_opset);
  }
  ValueId input(size_t i) const { return g.input(id, i); }
  const Type& type(size_t i) const {
    static const Type kNone;
    return input(i) ? g.value(input(i)).type : kNone;
  }
  const Tensor* constant(size_t i) const { return g.constant(input(i)); }
  ValueId add(const char* what, Tensor t) {
    return g.add_constant(g.fresh_name(n().name + "_" + what), std::move(t));
  }
  /// Attribute `name`, a list of integers, becomes input `slot`.
  void ints_to_input(const char* name, size_t slot) {
    const Attr* a = attrs.find(name);
    if (!a) return;
    std::vector<int64_t> v = attrs.ints(name);
    ValueId c = add(name, Tensor::of_i64({std::ssize(v)}, v));
    g.set_input(id, slot, c);
    attrs.erase(name);
  }
  /// Attribute `name`, a number, becomes input `slot`: a scalar of `dtype`.
  void number_to_input(const char* name, size_t slot, DType dtype) {
    if (!attrs.find(name)) return;
    ValueId c =
        add(name, Tensor::scalar(dtype == DType::undefined ? DType::f32 : dtype, attrs.f(name)));
    g.set_input(id, slot, c);
    attrs.erase(name);
  }
  Status unsupported(const std::string& why) const {
    return error(Code::unsupported_operator, where(), quote(n().op.text()), why);
  }
  /// Is output `i` read by a node, or the graph's?
  bool read(size_t i) const {
    const ValueId v = i < n().outputs.size() ? n().outputs[i] : ValueId{};
    return v && (!g.value(v).uses.empty() || g.value(v).is_output);
  }
  /// A node that takes over a part of this one's work, not yet in the graph: it makes `result`, or
  /// a new value.
  Node part(const char* op_name, std::vector<ValueId> in, const char* name, ValueId result = {}) {
    Node made;
    made.op = operator_named(op_name);
    made.name = g.fresh_name(n().name + "_" + name);
    made.inputs = std::move(in);
    const ValueId first = g.output(id);
    const std::string& base = first ? g.value(first).name : n().name;
    made.outputs = {result ? result : g.add_value(g.fresh_name(base + "_" + name))};
    made.since_opset = n().since_opset;
    made.origins = n().origins;
    made.order = n().order;
    return made;
  }
  Result<NodeId> added(Node n) {
    const NodeId made = g.add_node(std::move(n));
    FERRULE_TRY(infer(ops, g, made));
    return made;
  }
  /// `parts` come into the graph, and their last one makes output `i` from now on.
  Status replace(size_t i, std::vector<Node> parts) {
    g.detach_output(id, i);
    for (Node& made : parts) FERRULE_TRY(added(std::move(made)));
    if (n().outputs.empty()) g.remove_node(id), gone = true;
    return {};
  }
};

Status axes_to_input(Ctx& c) {
  c.ints_to_input("axes", 1);
  return {};
}

/// Integers that a later version does not take any more: computed in f64, and made integers again.
Status integers_as_f64(Ctx& c) {
  const DType type = c.type(0).dtype;
  if (!is_int(type)) return {};
  const ValueId result = c.g.output(c.id);
  auto cast = [&](ValueId v, DType to, const char* name, ValueId y = {}) {
    Node made = c.part("Cast", {v}, name, y);
    made.attrs.set("to", static_cast<int64_t>(to));
    return made;
  };
  Node before = cast(c.input(0), DType::f64, "f64");
  Node inner = c.part(c.op.c_str(), c.n().inputs, "real");
  inner.inputs[0] = before.outputs[0];
  inner.attrs = c.attrs;
  Node behind = cast(inner.outputs[0], type, "integer", result);
  std::vector<Node> parts;
  for (Node* n : {&before, &inner, &behind}) parts.push_back(std::move(*n));
  return c.replace(0, std::move(parts));
}

Status split(Ctx& c) {
  c.ints_to_input("split", 1);
  if (!c.input(1) && !c.attrs.find("num_outputs"))
    c.attrs.set("num_outputs", std::ssize(c.n().outputs));
  return {};
}

Status slice(Ctx& c) {
  c.ints_to_input("starts", 1);
  c.ints_to_input("ends", 2);
  c.ints_to_input("axes", 3);
  return {};
}

Status pad(Ctx& c) {
  c.ints_to_input("pads", 1);
  if (c.attrs.s("mode", "constant") == "constant") c.number_to_input("value", 2, c.type(0).dtype);
  c.attrs.erase("value");
  return {};
}

Status clip(Ctx& c) {
  c.number_to_input("min", 1, c.type(0).dtype);
  c.number_to_input("max", 2, c.type(0).dtype);
  return {};
}

Status top_k(Ctx& c) {
  ValueId k = c.add("k", Tensor::of_i64({1}, {c.attrs.i("k")}));
  c.g.set_input(c.id, 1, k);
  c.attrs.erase("k");
  return {};
}

Status dropout(Ctx& c) {
  c.number_to_input("ratio", 1, DType::f32);
  return {};
}

/// Until opset 9 the mask has the data's type: ones, as nothing is dropped.
Status dropout_mask(Ctx& c) {
  if (!c.read(1)) return {};
  const DType type = c.type(0).dtype;
  if (type == DType::undefined)
    return c.unsupported("its mask is read, and the type of its data is not known");
  std::vector<Node> parts;
  parts.push_back(c.part("Shape", {c.input(0)}, "shape"));
  parts[0].attrs.set("start", int64_t{0});
  parts.push_back(c.part("ConstantOfShape", {parts[0].outputs[0]}, "mask", c.n().outputs[1]));
  parts[1].attrs.set("value", Tensor::scalar(type, 1, {1}));
  return c.replace(1, std::move(parts));
}

Status dft(Ctx& c) {
  ValueId axis = c.add("axis", Tensor::of_i64({}, {c.attrs.i("axis", 1)}));
  c.g.set_input(c.id, 2, axis);
  c.attrs.erase("axis");
  return {};
}

/// A signal [batch, length], which TorchScript's exporter writes, is one of [batch, length, 1].
Status stft(Ctx& c) {
  if (!c.type(0).shape || c.type(0).shape->size() != 2) return {};
  const ValueId axis = c.add("axis", Tensor::of_i64({1}, {2}));
  FERRULE_ASSIGN(const NodeId whole, c.added(c.part("Unsqueeze", {c.input(0), axis}, "signal")));
  c.g.set_input(c.id, 0, c.g.output(whole));
  return {};
}

Status batch_norm(Ctx& c) {
  if (c.attrs.i("spatial", 1) != 1)
    return c.unsupported("spatial = 0 was dropped from ONNX with opset 9");
  c.attrs.erase("spatial");
  for (size_t i = 1; i < c.n().outputs.size(); ++i)
    if (c.read(i)) return c.unsupported("its statistics are read, so it is in training mode");
  return {};
}

/// Upsample, and Resize of opset 10, are Resize with asymmetric coordinates.
Status upsample(Ctx& c) {
  ValueId scales = c.input(1);
  if (const Attr* a = c.attrs.find("scales")) {
    const auto* v = std::get_if<std::vector<double>>(a);
    std::vector<float> f(v ? v->begin() : std::vector<double>::const_iterator{},
                         v ? v->end() : std::vector<double>::const_iterator{});
    scales = c.add("scales", Tensor::of<float>(DType::f32, {std::ssize(f)}, f));
    c.attrs.erase("scales");
  }
  c.g.set_input(c.id, 1, ValueId{});
  c.g.set_input(c.id, 2, scales);
  if (c.attrs.s("mode") == "bilinear") c.attrs.set("mode", std::string("linear"));
  c.attrs.set("coordinate_transformation_mode", std::string("asymmetric"));
  // As ONNX's tests of opset 10 and ONNX Runtime have it: what becomes smaller takes the next
  // pixel.
  bool smaller = false, larger = false;
  if (const Tensor* t = scales ? c.g.constant(scales) : nullptr; t && is_float(t->dtype()))
    for (const double s : t->to_f64()) smaller |= s < 1, larger |= s > 1;
  if (smaller && larger && c.attrs.s("mode", "nearest") == "nearest")
    return c.unsupported("one axis becomes smaller and another one larger; write two of them");
  c.attrs.set("nearest_mode", std::string(smaller ? "ceil" : "floor"));
  c.op = "Resize";
  return {};
}

/// Opset 11 and 12 had no optional inputs here: empty tensors stood for them.
Status resize(Ctx& c) {
  for (size_t i : {3, 2, 1})
    if (const Tensor* t = c.constant(i); t && t->numel() == 0) c.g.set_input(c.id, i, ValueId{});
  // The region is read in one mode only.
  if (c.attrs.s("coordinate_transformation_mode") != "tf_crop_and_resize" && c.input(1))
    c.g.set_input(c.id, 1, ValueId{});
  return {};
}

Status roi_align(Ctx& c) {
  c.attrs.set("coordinate_transformation_mode", std::string("output_half_pixel"));
  return {};
}

Status grid_sample(Ctx& c) {
  std::string mode = c.attrs.s("mode", "bilinear");
  c.attrs.set("mode", std::string(mode == "bicubic"    ? "cubic"
                                  : mode == "bilinear" ? "linear"
                                                       : mode));
  return {};
}

/// The term again as an equation has it.
std::string einsum_term(std::string term) {
  if (const size_t at = term.find('.'); at != term.npos) term.replace(at, 1, "...");
  return term;
}

/// The result's term is written out. As ONNX Runtime does, and ONNX leaves open, what only one
/// operand has is summed first, and operands are taken two by two, from the first on. What is wrong
/// with an equation is said by inference.
Status einsum(Ctx& c) {
  const std::string text = c.attrs.s("equation");
  const auto e = EinsumEquation::of(text);
  if (!e) return {};
  if (text.find("->") == text.npos) c.attrs.set("equation", text + "->" + einsum_term(e->out));
  std::vector<ValueId> operands = c.n().inputs;
  std::vector<std::string> terms = e->terms;
  if (operands.size() < 2 || operands.size() != terms.size()) return {};
  std::vector<Node> parts;
  auto add = [&](std::vector<ValueId> in, const std::string& left, const std::string& to,
                 const char* name, ValueId result) {
    Node part = c.part("Einsum", std::move(in), name, result);
    part.attrs.set("equation", left + "->" + einsum_term(to));
    parts.push_back(std::move(part));
    return parts.back().outputs[0];
  };
  auto needed = [&](char label, size_t but) {
    if (label == '.' || contains(e->out, label)) return true;
    for (size_t i = 0; i < terms.size(); ++i)
      if (i != but && contains(terms[i], label)) return true;
    return false;
  };
  for (size_t k = 0; k < terms.size(); ++k) {
    std::string left;
    for (char label : terms[k])
      if (needed(label, k)) left += label;
    if (left == terms[k]) continue;
    operands[k] = add({operands[k]}, einsum_term(terms[k]), left, "sum", {});
    terms[k] = left;
  }
  if (parts.empty() && operands.size() == 2) return {};
  for (size_t k = 1; k < operands.size(); ++k) {
    const bool last = k + 1 == operands.size();
    std::string later = e->out, made;
    for (size_t i = k + 1; i < operands.size(); ++i) later += terms[i];
    for (char label : terms[0] + terms[k])
      if ((label == '.' || contains(later, label)) && !contains(made, label)) made += label;
    if (last) made = e->out;
    operands[0] =
        add({operands[0], operands[k]}, einsum_term(terms[0]) + "," + einsum_term(terms[k]), made,
            "pair", last ? c.g.output(c.id) : ValueId{});
    terms[0] = made;
  }
  return c.replace(0, std::move(parts));
}

Status scatter(Ctx& c) {
  c.op = "ScatterElements";
  return {};
}

/// Which steps of Scan count, as its last scanned operand [B,T]: those below the lengths [B].
Result<ValueId> counted_steps(Ctx& c, ValueId x, ValueId lengths) {
  const auto add = [&](Node n) -> Result<ValueId> {
    FERRULE_ASSIGN(const NodeId id, c.added(std::move(n)));
    return c.g.output(id);
  };
  const ValueId axis_0 = c.add("axis_0", Tensor::of_i64({1}, {0})),
                axis_1 = c.add("axis_1", Tensor::of_i64({1}, {1}));
  Node shape = c.part("Shape", {x}, "steps");
  shape.attrs.set("start", int64_t{1});
  shape.attrs.set("end", int64_t{2});
  FERRULE_ASSIGN(const ValueId steps, add(std::move(shape)));
  FERRULE_ASSIGN(const ValueId number, add(c.part("Squeeze", {steps, axis_0}, "number")));
  FERRULE_ASSIGN(const ValueId all, add(c.part("Range",
                                               {c.add("zero", Tensor::of_i64({}, {0})), number,
                                                c.add("one", Tensor::of_i64({}, {1}))},
                                               "all")));
  FERRULE_ASSIGN(const ValueId ends, add(c.part("Unsqueeze", {lengths, axis_1}, "ends")));
  return add(c.part("Less", {all, ends}, "counted"));
}

/// A step that does not count leaves the states as they are and gives zeros.
Status pass_over(const Semantics& ops, Graph& body, size_t states) {
  const ValueId counts = body.add_input(body.fresh_name("counts"), Type{DType::boolean, Shape{}});
  for (size_t k = 0; k < body.outputs().size(); ++k) {
    const ValueId made = body.outputs()[k];
    const Type type = body.value(made).type;
    const ValueId otherwise = k < states
                                  ? body.inputs()[k]
                                  : body.add_constant(body.fresh_name("nothing"),
                                                      type.dtype == DType::string
                                                          ? Tensor({}, std::vector<std::string>{""})
                                                          : Tensor::scalar(type.dtype, 0));
    Node where;
    where.op = operator_named("Where");
    where.inputs = {counts, made, otherwise};
    where.outputs = {body.add_value(body.fresh_name(body.value(made).name))};
    const ValueId chosen = where.outputs[0];
    FERRULE_TRY(infer(ops, body, body.add_node(std::move(where))));
    body.set_output(k, chosen);
  }
  return {};
}

/// Scan of opset 8 has a batch axis in front, and may be told how many steps count: one Scan over
/// the batch, around one of today's.
Status scan_8(Ctx& c) {
  const Graph* old = subgraph(c.n(), "body");
  const int64_t scanned = c.attrs.i("num_scan_inputs");
  const auto operands = std::ssize(c.n().inputs) - 1;
  if (!old || scanned < 1 || scanned > operands || std::ssize(old->inputs()) != operands ||
      std::ssize(old->outputs()) < operands - scanned)
    return c.unsupported("its body does not fit its inputs");
  const auto states = static_cast<size_t>(operands - scanned);
  std::vector<ValueId> in(c.n().inputs.begin() + 1, c.n().inputs.end());
  if (contains(in, ValueId{})) return c.unsupported("an input is missing");
  std::vector<int64_t> back = c.attrs.ints("directions");
  back.resize(static_cast<size_t>(scanned));
  std::unique_ptr<Graph> body = old->clone();
  if (const ValueId lengths = c.input(0)) {
    for (size_t k = 0; k < back.size(); ++k) {
      if (!back[k]) continue;
      Node reverse = c.part("ReverseSequence", {in[states + k], lengths}, "reversed");
      reverse.attrs.set("batch_axis", int64_t{0});
      reverse.attrs.set("time_axis", int64_t{1});
      in[states + k] = reverse.outputs[0];
      FERRULE_TRY(c.added(std::move(reverse)));
      back[k] = 0;
    }
    FERRULE_ASSIGN(const ValueId counted, counted_steps(c, in[states], lengths));
    in.push_back(counted);
    back.push_back(0);
    for (ValueId v : body->outputs())
      if (const DType t = body->value(v).type.dtype; t != DType::string && size_bits(t) == 0)
        return c.unsupported("a result of its body has no known type");
    FERRULE_TRY(pass_over(c.ops, *body, states));
  }

  auto batch = std::make_unique<Graph>();
  batch->name = body->name + "_batch";
  Node inner;
  inner.op = operator_named("Scan");
  inner.name = c.n().name;
  inner.origins = c.n().origins;
  inner.since_opset = c.n().since_opset;
  for (ValueId v : in) {
    Type type = c.g.value(v).type;
    if (type.shape && !type.shape->empty()) type.shape->erase(type.shape->begin());
    inner.inputs.push_back(
        batch->add_input(batch->fresh_name(c.g.value(v).name + "_of_one"), std::move(type)));
  }
  std::map<ValueId, ValueId> captured;
  each_capture(*body, [&](ValueId, const Value& v) {
    if (!captured.contains(v.outer))
      captured[v.outer] = batch->add_capture(batch->fresh_name(v.name), v.type, v.outer);
  });
  body = copied(*body, captured);
  for (ValueId v : body->outputs())
    inner.outputs.push_back(batch->add_value(batch->fresh_name(body->value(v).name + "_of_one")));
  inner.attrs.set("num_scan_inputs", std::ssize(back));
  inner.attrs.set("scan_input_directions", back);
  inner.subgraphs.emplace_back("body", std::move(body));
  const std::vector<ValueId> results = inner.outputs;
  FERRULE_TRY(infer(c.ops, *batch, batch->add_node(std::move(inner))));
  for (ValueId v : results) batch->add_output(v);

  Node outer;
  outer.op = operator_named("Scan");
  outer.name = c.g.fresh_name(c.n().name + "_batch");
  outer.origins = c.n().origins;
  outer.since_opset = c.n().since_opset;
  outer.order = c.n().order;
  outer.attrs.set("num_scan_inputs", std::ssize(in));
  outer.inputs = in;
  outer.subgraphs.emplace_back("body", std::move(batch));
  outer.outputs = c.n().outputs;
  for (size_t k = 0; k < outer.outputs.size(); ++k)
    if (outer.outputs[k]) c.g.detach_output(c.id, k);
  FERRULE_TRY(c.added(std::move(outer)));
  c.g.remove_node(c.id);
  c.gone = true;
  return {};
}

/// Softmax before opset 13 works on the input as a matrix, split before `axis`.
Status softmax(Ctx& c) {
  int64_t axis = c.attrs.i("axis", 1);
  const std::optional<Shape> shape = c.type(0).shape;  // a copy: values are added below
  if (shape) {
    int64_t rank = std::ssize(*shape);
    if (axis < -rank || axis >= std::max<int64_t>(rank, 1))
      return error(Code::bad_attribute, c.where(), "axis",
                   fmt::format("{} is out of range for rank {}", axis, rank));
    if (axis < 0) axis += rank;
    std::vector<int64_t> wide;  // trailing axes that may be other than 1
    for (int64_t i = axis; i < rank; ++i)
      if (!((*shape)[i] == Dim(1))) wide.push_back(i);
    if (wide.size() <= 1) {
      c.attrs.set("axis", wide.empty() ? axis : wide[0]);
      return {};
    }
  }
  const ValueId x = c.input(0);
  Node flatten = c.part("Flatten", {x}, "flat");
  flatten.attrs.set("axis", axis);
  Node soft = c.part(c.op.c_str(), {flatten.outputs[0]}, "rows");
  soft.attrs.set("axis", int64_t{-1});
  std::vector<Node> parts;
  ValueId target;
  auto dims = shape ? constant_shape(*shape) : std::nullopt;
  if (dims) {
    target = c.add("shape", Tensor::of_i64({std::ssize(*dims)}, *dims));
  } else {
    parts.push_back(c.part("Shape", {x}, "shape"));
    parts.back().attrs.set("start", int64_t{0});
    target = parts.back().outputs[0];
  }
  Node reshape = c.part("Reshape", {soft.outputs[0], target}, "back", c.n().outputs[0]);
  // A size of 0 is one, not "as before", which would be the matrix's.
  const bool may_be_empty = !dims || std::ranges::find(*dims, 0) != dims->end();
  reshape.attrs.set("allowzero", int64_t{may_be_empty});
  parts.push_back(std::move(flatten));
  parts.push_back(std::move(soft));
  parts.push_back(std::move(reshape));
  return c.replace(0, std::move(parts));
}

// --- defaults that the schemas leave to prose

void fill_ints(Ctx& c, const char* name, size_t count) {
  if (c.attrs.ints(name).empty())
    c.attrs.set(name, std::vector<int64_t>(count, *window_default(name)));
}

/// Strides, dilations and pads of convolutions and pooling, once the number of spatial axes is
/// known.
Status window(Ctx& c) {
  bool pool = c.op.find("Pool") != std::string::npos;
  std::vector<int64_t> kernel = c.attrs.ints("kernel_shape");
  if (kernel.empty() && c.type(1).shape && c.type(1).shape->size() > 2)
    if (auto k = constant_shape(Shape(c.type(1).shape->begin() + 2, c.type(1).shape->end()))) {
      kernel = *k;
      c.attrs.set("kernel_shape", kernel);
    }
  size_t n = kernel.size();
  if (n == 0 && c.type(0).shape && c.type(0).shape->size() > 2) n = c.type(0).shape->size() - 2;
  if (n == 0) return {};
  fill_ints(c, "strides", n);
  fill_ints(c, "dilations", n);
  if (c.attrs.s("auto_pad", "NOTSET") == "NOTSET" && c.attrs.ints("output_shape").empty())
    fill_ints(c, "pads", 2 * n);
  if (c.op == "ConvTranspose") fill_ints(c, "output_padding", n);
  if (!pool) c.attrs.set("group", c.attrs.i("group", 1));
  return {};
}

/// Which elements of an axis of `size` part `i` of a SplitToSequence has; none: no such part.
std::optional<std::pair<int64_t, int64_t>> split_part(const Tensor* split, int64_t size,
                                                      int64_t i) {
  const bool listed = split && split->rank() == 1;
  const std::vector<int64_t> sizes = listed ? split->to_i64() : std::vector<int64_t>{};
  const int64_t each = listed || !split ? 1 : split->at_i64(0);
  if (each < 1) return {};
  const int64_t parts = listed ? std::ssize(sizes) : size / each + (size % each != 0);
  if (i < 0) i += parts;
  if (i < 0 || i >= parts) return {};
  if (!listed) return std::pair{i * each, i * each + std::min(each, size - i * each)};
  int64_t left = size;
  for (const int64_t n : sizes) {
    if (n < 0 || n > left) return {};
    left -= n;
  }
  if (left != 0) return {};
  const int64_t begin = std::accumulate(sizes.begin(), sizes.begin() + i, int64_t{0});
  return std::pair{begin, begin + sizes[static_cast<size_t>(i)]};
}

/// A part of a SplitToSequence is a Slice, where all is known: torch.split and torch.chunk of
/// TorchScript's exporter. No rule can say so, as the shapes of a sequence's elements are not
/// known.
Status sequence_at(Ctx& c) {
  const NodeId maker = c.g.value(c.input(0)).producer;
  const Tensor* at = c.constant(1);
  if (!maker || !at || at->numel() != 1) return {};
  const Node& m = c.g.node(maker);
  if (!m.domain.empty() || operator_name(m.op) != "SplitToSequence") return {};
  const ValueId x = m.inputs[0], sizes = m.inputs.size() > 1 ? m.inputs[1] : ValueId{};
  const Tensor* split = sizes ? c.g.constant(sizes) : nullptr;
  const auto& shape = c.g.value(x).type.shape;
  if ((sizes && !split) || !shape) return {};
  const int64_t rank = std::ssize(*shape), axis = m.attrs.i("axis", 0);
  if (axis < -rank || axis >= rank) return {};
  const auto size = (*shape)[static_cast<size_t>(axis < 0 ? axis + rank : axis)].constant();
  if (!size) return {};
  const auto part = split_part(split, *size, at->at_i64(0));
  if (!part) return {};
  const bool whole = split || m.attrs.i("keepdims", 1) != 0;
  using list = std::vector<int64_t>;
  const auto number = [&](const char* what, list dims, int64_t v) {
    return c.add(what, Tensor::of_i64(std::move(dims), {v}));
  };
  std::vector<ValueId> operands{x, number("begin", whole ? list{1} : list{}, part->first)};
  if (whole) {
    operands.push_back(number("end", {1}, part->second));
    operands.push_back(number("axis", {1}, axis));
  }
  Node made = c.part(whole ? "Slice" : "Gather", std::move(operands), "part", c.n().outputs[0]);
  if (!whole) made.attrs.set("axis", axis);
  std::vector<Node> parts;
  parts.push_back(std::move(made));
  return c.replace(0, std::move(parts));
}

Status constant_of_shape(Ctx& c) {
  if (!c.attrs.find("value")) c.attrs.set("value", Tensor::of_f32({1}, {0}));
  return {};
}

Status transpose(Ctx& c) {
  if (c.attrs.find("perm") || !c.type(0).shape) return {};
  std::vector<int64_t> perm(c.type(0).shape->size());
  std::iota(perm.rbegin(), perm.rend(), 0);
  c.attrs.set("perm", perm);
  return {};
}

/// `op` (or what it begins with), schema versions first to last, what to do.
struct Row {
  std::string_view op;
  int first, last;
  Status (*apply)(Ctx&);
  bool is(std::string_view name) const {
    return op.ends_with('*') ? name.starts_with(op.substr(0, op.size() - 1)) : op == name;
  }
};

constexpr int kAny = 1 << 30;
constexpr Row kRows[] = {
    {"Squeeze", 1, 12, axes_to_input},
    {"Unsqueeze", 1, 12, axes_to_input},
    {"Reduce*", 1, 17, axes_to_input},
    {"ReduceLogSum", 1, 27, integers_as_f64},
    {"ReduceLogSumExp", 1, 27, integers_as_f64},
    {"Erf", 9, 12, integers_as_f64},
    {"Split", 1, 17, split},
    {"Slice", 1, 9, slice},
    {"Pad", 1, 10, pad},
    {"Clip", 1, 10, clip},
    {"TopK", 1, 9, top_k},
    {"Dropout", 1, 9, dropout_mask},
    {"Dropout", 1, 11, dropout},
    {"DFT", 17, 19, dft},
    {"STFT", 17, kAny, stft},
    {"BatchNormalization", 1, 13, batch_norm},
    {"Upsample", 1, 9, upsample},
    {"Resize", 10, 10, upsample},
    {"Resize", 11, kAny, resize},
    {"RoiAlign", 10, 15, roi_align},
    {"GridSample", 16, 19, grid_sample},
    {"Einsum", 12, kAny, einsum},
    {"Scatter", 9, 10, scatter},
    {"Scan", 8, 8, scan_8},
    {"Softmax", 1, 12, softmax},
    {"LogSoftmax", 1, 12, softmax},
    {"Hardmax", 1, 12, softmax},
    {"Conv", 1, kAny, window},
    {"ConvInteger", 1, kAny, window},
    {"QLinearConv", 1, kAny, window},
    {"ConvTranspose", 1, kAny, window},
    {"MaxPool", 1, kAny, window},
    {"AveragePool", 1, kAny, window},
    {"LpPool", 1, kAny, window},
    {"SequenceAt", 11, kAny, sequence_at},
    {"ConstantOfShape", 1, kAny, constant_of_shape},
    {"Transpose", 1, kAny, transpose},
};

/// Defaults of the newest schema; attributes that it does not know go.
void fill_defaults(Ctx& c, const onnx::OpSchema& newest) {
  for (const auto& [name, a] : newest.attributes())
    if (!c.attrs.find(name))
      if (auto value = onnx_io::to_attr(a.default_value)) c.attrs.set(name, *value);
  std::vector<std::string> old;
  for (const auto& [name, value] : c.attrs.items())
    if (!newest.attributes().count(name)) old.push_back(name);
  for (const std::string& name : old) c.attrs.erase(name);
}

/// Many models declare stale shapes; what follows from the inputs counts, and the user is told.
Status infer_declared(Graph& g, NodeId id, const Semantics& ops, std::vector<std::string>* notes) {
  // A number that a model declares of what only a run tells is taken at its word. That it has the
  // name of another size is not: exporters and optimizers give one name to what differs.
  for (ValueId v : g.node(id).outputs)
    if (v && g.value(v).type.shape) {
      Type t = g.value(v).type;
      for (Dim& d : *t.shape)
        if (!d.is_constant()) d = Dim::unknown();
      g.set_type(v, std::move(t));
    }
  Status first = infer(ops, g, id);
  if (first || !notes || first.error().code != Code::bad_shape) return first;
  std::vector<Type> declared;
  for (ValueId v : g.node(id).outputs) {
    declared.push_back(v ? g.value(v).type : Type{});
    if (v) g.set_type(v, Type{g.value(v).type.dtype, std::nullopt});
  }
  if (!infer(ops, g, id)) return first;
  for (size_t i = 0; i < declared.size(); ++i)
    if (ValueId v = g.node(id).outputs[i]; v && str(g.value(v).type) != str(declared[i]))
      notes->push_back(
          fmt::format("{} is declared {} but computes to {}; the declaration is ignored",
                      quote(g.value(v).name), str(declared[i]), str(g.value(v).type)));
  return {};
}

/// Results that the operator need not give and nobody reads: exporters name all of them.
void drop_unread(Graph& g, NodeId id) {
  if (g.node(id).outputs.size() < 2) return;
  const OperatorSchema* schema = operator_schema(g.node(id));
  for (size_t k = schema ? g.node(id).outputs.size() : 0; k-- > 0;) {
    const ValueId v = g.output(id, k);
    if (v && k < schema->outputs.size() && schema->outputs[k].optional && g.value(v).uses.empty() &&
        !g.escapes(v))
      g.detach_output(id, k);
  }
}

Status normalize_graph(Graph& g, bool nested, const Semantics& ops,
                       std::vector<std::string>* notes);

Status normalize_node(Graph& g, NodeId id, bool nested, const Semantics& ops,
                      std::vector<std::string>* notes) {
  const Node& n = g.node(id);
  bind_captures(g, n);
  for (const auto& [key, sub] : n.subgraphs) FERRULE_TRY(normalize_graph(*sub, true, ops, notes));
  Ctx c{g, ops, id, operator_name(n.op), n.attrs};
  const auto* schema = onnx_io::schema_of(c.op, n.since_opset, n.domain);
  int version = schema ? schema->SinceVersion() : 0;
  for (const Row& row : kRows)
    if (n.domain.empty() && row.is(c.op) && row.first <= version && version <= row.last) {
      FERRULE_TRY(row.apply(c));
      if (c.gone) return {};
    }
  if (const auto* newest = onnx::OpSchemaRegistry::Schema(c.op, n.domain))
    fill_defaults(c, *newest);
  g.set_operator(id, operator_named(c.op), std::move(c.attrs));
  drop_unread(g, id);
  Status status = infer_declared(g, id, ops, notes);
  // What would fail in a branch may never run (infer_nested).
  if (!status && nested && notes && status.error().code == Code::bad_shape) {
    notes->push_back("would fail if it ran: " + status.error().place + ": " +
                     status.error().message);
    return {};
  }
  return status;
}

Status normalize_graph(Graph& g, bool nested, const Semantics& ops,
                       std::vector<std::string>* notes) {
  FERRULE_TRY(g.sort());
  for (NodeId n : g.order()) FERRULE_TRY(normalize_node(g, n, nested, ops, notes));
  return g.sort();
}

}  // namespace

Status normalize(Graph& g, const Semantics& ops, std::vector<std::string>* notes) {
  return normalize_graph(g, false, ops, notes);
}

}  // namespace ferrule
