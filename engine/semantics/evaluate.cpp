// From nodes to programs and values: lower_node, lower_region, evaluate_node, and what a pointwise node's
// result is (type and broadcast shape).
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <map>
#include <thread>

#include "engine/semantics/block_eval.h"
#include "engine/semantics/evaluate.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/program_builder.h"
#include "engine/semantics/region_programs.h"
#include "engine/semantics/infer.h"

namespace ferrule {
namespace {

std::string place_of(const Node& n) {
  return fmt::format("node \"{}\" ({})", escape(n.name), escape(n.op));
}

Result<const OpFormula*> formula_of(const OpTable& ops, const Node& n) {
  const OpFormula* f = ops.find(n);
  if (!f || !f->pointwise()) return error(Code::unsupported_operator, place_of(n), escape(n.op), "it has no formula");
  if (n.inputs.size() > f->inputs.size() && !is_variadic(f->inputs.back()))
    return error(Code::formula_invalid, place_of(n),
                 fmt::format("{} has {} inputs, its formula {}", f->op, n.inputs.size(), f->inputs.size()), "");
  return f;
}

/// An element type that formulas work on.
bool computable(DType t) { return t == DType::boolean || is_int(t) || is_float(t); }

std::string operand_name(const OpFormula& f, size_t slot) {
  size_t k = std::min(slot, f.inputs.size() - 1);
  std::string name(input_name(f.inputs[k]));
  return is_variadic(f.inputs[k]) ? name + std::to_string(slot - k) : name;
}

}  // namespace

std::string LoweringInput::place() const { return node ? place_of(*node) : formula->place; }

Result<LoweringInput> lowering_input(const OpFormula& f, const Node& n, std::span<const DType> types, bool f64) {
  LoweringInput in;
  in.formula = &f;
  in.attrs = &n.attrs;
  in.f64 = f64;
  in.node = &n;
  for (DType t : types) {
    if (t != DType::undefined && !computable(t))
      return error(Code::unsupported_type, in.place(), fmt::format("element type {}", name(t)));
    in.operands.push_back({f64 && is_float(t) ? DType::f64 : t, {}});
  }
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    bool there = k < in.operands.size() && in.operands[k].present();
    if (!there && !is_optional(f.inputs[k]))
      return error(Code::formula_invalid, in.place(), fmt::format("input {} is missing", input_name(f.inputs[k])), "");
  }
  FERRULE_ASSIGN(in.result, formula_result_type(f, n, types));
  if (f64 && is_float(in.result)) in.result = DType::f64;
  if (!computable(in.result))
    return error(Code::unsupported_type, in.place(), fmt::format("element type {}", name(in.result)));
  in.compute = compute_type(in.operands[0].type);
  return in;
}

namespace {

/// A program over all operands that the formula reads as data.
Result<LoweredNode> lower_typed(const OpFormula& f, const Node& n, std::span<const DType> types, bool f64,
                                const std::function<const Tensor*(size_t)>& constant) {
  FERRULE_ASSIGN(LoweringInput in, lowering_input(f, n, types, f64));
  LoweredNode out;
  ProgramBuilder b;
  for (size_t k = 0; k < in.operands.size(); ++k) {
    LoweringOperand& o = in.operands[k];
    if (!o.present() || !f.reads(k)) continue;
    const Tensor* t = constant ? constant(k) : nullptr;
    uint32_t id = t && t->numel() == 1 ? immediate(b, *t) : b.input(o.type, operand_name(f, k));
    if (!t || t->numel() != 1) out.input_slots.push_back(k);
    o.get = [id] { return id; };
  }
  FERRULE_ASSIGN(uint32_t result, lower_formula(in, b));
  b.output(result);
  out.program = b.take();
  return out;
}

}  // namespace

uint32_t immediate(ProgramBuilder& b, const Tensor& t) {
  DType type = compute_type(t.dtype());
  return is_float(type) ? b.constant(type, t.at_f64(0), 0) : b.constant(type, 0, t.at_i64(0));
}

Result<DType> formula_result_type(const OpFormula& f, const Node& n, std::span<const DType> inputs) {
  std::string_view s = f.out_type;
  size_t slot = 0;
  if (s.starts_with("attr:")) {
    const Attr* a = n.attrs.find(s.substr(5));
    if (!a) {
      auto d = f.attrs.find(std::string(s.substr(5)));
      a = d == f.attrs.end() ? nullptr : &d->second;
    }
    auto i = a ? std::get_if<int64_t>(a) : nullptr;
    if (!i || *i < 1) return error(Code::bad_attribute, place_of(n), s.substr(5), "no known element type");
    if (*i > static_cast<int64_t>(DType::f4e2m1))
      return error(Code::unsupported_type, place_of(n), fmt::format("element type {}", *i));
    return static_cast<DType>(*i);
  }
  if (s.starts_with("in:")) slot = static_cast<size_t>(*yaml::parse_integer(s.substr(3)));
  else if (!s.empty()) return *parse_dtype(s);
  return slot < inputs.size() ? inputs[slot] : DType::undefined;
}

Result<LoweredNode> lower_node(const OpTable& ops, const Graph& g, const Node& n, bool immediates) {
  FERRULE_ASSIGN(const OpFormula* f, formula_of(ops, n));
  std::vector<DType> types;
  for (ValueId v : n.inputs) types.push_back(v ? g.value(v).type.dtype : DType::undefined);
  auto constant = [&](size_t k) { return g.constant(n.inputs[k]); };
  return lower_typed(*f, n, types, false,
                     immediates ? std::function<const Tensor*(size_t)>(constant) : nullptr);
}

Result<uint32_t> lower_in_region(const OpTable& ops, const Graph& g, const Node& n, ProgramBuilder& out,
                                 const std::function<uint32_t(size_t, ValueId)>& value) {
  FERRULE_ASSIGN(const OpFormula* f, formula_of(ops, n));
  std::vector<DType> types;
  for (ValueId v : n.inputs) types.push_back(v ? g.value(v).type.dtype : DType::undefined);
  FERRULE_ASSIGN(LoweringInput in, lowering_input(*f, n, types, false));
  for (size_t k = 0; k < n.inputs.size(); ++k)
    in.operands[k].get = [&value, k, v = n.inputs[k]] { return value(k, v); };
  in.round_result = false;
  return lower_formula(in, out);
}

namespace {

Result<LoweredRegion> lower_fresh(const OpTable& ops, const Graph& g, std::span<const NodeId> nodes,
                                  std::span<const ValueId> outputs) {
  LoweredRegion region;
  ProgramBuilder b;
  std::map<ValueId, uint32_t> known;  // interior values stay in the compute type: rounded once, at the end
  auto value = [&](ValueId v) {
    if (auto it = known.find(v); it != known.end()) return it->second;
    uint32_t id = 0;
    if (const Tensor* t = g.constant(v); t && t->numel() == 1) {
      id = immediate(b, *t);
    } else {
      id = b.input(g.value(v).type.dtype, fmt::format("in{}", region.inputs.size()));
      region.inputs.push_back(v);
    }
    return known.emplace(v, id).first->second;
  };
  for (NodeId id : nodes) {
    FERRULE_ASSIGN(uint32_t result,
                   lower_in_region(ops, g, g.node(id), b, [&value](size_t, ValueId v) { return value(v); }));
    known[g.output(id)] = result;
  }
  for (ValueId v : outputs) {
    auto it = known.find(v);
    if (it == known.end())
      return error(Code::formula_invalid, fmt::format("value \"{}\"", escape(g.value(v).name)),
                   std::string("an output of a region that no node of it makes"), "");
    b.output(b.cast(it->second, g.value(v).type.dtype));
    region.outputs.push_back(v);
  }
  region.program = b.take();
  return region;
}

}  // namespace

Result<LoweredRegion> lower_region(const OpTable& ops, const Graph& g, std::span<const NodeId> nodes,
                                   std::span<const ValueId> outputs) {
  RegionPrograms* programs = ops.programs();
  RegionKey key = programs ? region_key(ops, g, nodes, outputs) : RegionKey{};
  if (key.text.empty()) return lower_fresh(ops, g, nodes, outputs);
  if (auto known = programs->find(key)) {
    LoweredRegion region;
    region.program = known->program;
    for (uint32_t k : known->inputs) region.inputs.push_back(key.values[k]);
    region.outputs.assign(outputs.begin(), outputs.end());
    return region;
  }
  auto region = lower_fresh(ops, g, nodes, outputs);
  if (region) programs->add(std::move(key), *region);
  return region;
}

namespace {

/// Dims with every input's strides, adjacent dims merged where all inputs allow it. Innermost first.
struct Walk {
  std::vector<int64_t> dims;
  std::vector<std::vector<int64_t>> strides;  ///< [input][dim], in elements
};

Walk make_walk(const std::vector<int64_t>& out, std::span<const Tensor* const> inputs) {
  Walk w;
  w.strides.resize(inputs.size());
  std::vector<int64_t> run(inputs.size(), 1);
  for (size_t d = 0; d < out.size(); ++d) {
    int64_t n = out[out.size() - 1 - d];
    std::vector<int64_t> s(inputs.size());
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto& dims = inputs[k]->dims();
      int64_t m = d < dims.size() ? dims[dims.size() - 1 - d] : 1;
      s[k] = m == 1 ? 0 : run[k];
      run[k] *= m;
    }
    if (n == 1) continue;
    bool merge = !w.dims.empty();
    for (size_t k = 0; k < inputs.size() && merge; ++k)
      merge = s[k] == (w.strides[k].back() == 0 ? 0 : w.strides[k].back() * w.dims.back());
    if (merge) {
      w.dims.back() *= n;
      continue;
    }
    w.dims.push_back(n);
    for (size_t k = 0; k < inputs.size(); ++k) w.strides[k].push_back(s[k]);
  }
  if (w.dims.empty()) {
    w.dims.push_back(1);
    for (auto& s : w.strides) s.push_back(0);
  }
  return w;
}

void repeat(void* block, DType physical, int from, int n) {
  auto size = static_cast<size_t>(size_bits(physical) / 8);
  auto p = static_cast<std::byte*>(block) + static_cast<size_t>(from) * size;
  for (int done = 1; done < n; done *= 2)
    std::memcpy(p + static_cast<size_t>(done) * size, p, static_cast<size_t>(std::min(done, n - done)) * size);
}

/// Elements start … start + n of the output's order, from one input.
void gather(const Walk& w, size_t k, const Tensor& t, DType physical, int64_t start, int n, void* block) {
  auto size = static_cast<size_t>(size_bits(physical) / 8);
  const auto& strides = w.strides[k];
  for (int done = 0; done < n;) {
    int64_t rest = start + done, offset = 0;
    int64_t inner = rest % w.dims[0];
    for (size_t d = 0; d < w.dims.size(); ++d) {
      offset += rest % w.dims[d] * strides[d];
      rest /= w.dims[d];
    }
    int run = static_cast<int>(std::min<int64_t>(n - done, w.dims[0] - inner));
    auto at = static_cast<std::byte*>(block) + static_cast<size_t>(done) * size;
    unpack(t.dtype(), physical, t.data(), offset, strides[0] ? run : 1, at);
    if (!strides[0]) repeat(block, physical, done, run);
    done += run;
  }
}

Result<std::vector<int64_t>> broadcast_dims(const Node& n, std::span<const Tensor* const> inputs) {
  std::vector<int64_t> out;
  for (const Tensor* t : inputs) {
    const auto& dims = t->dims();
    if (dims.size() > out.size()) out.insert(out.begin(), dims.size() - out.size(), 1);
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t& o = out[out.size() - 1 - d];
      int64_t m = dims[dims.size() - 1 - d];
      if (o != m && o != 1 && m != 1)
        return error(Code::bad_shape, place_of(n),
                     fmt::format("the inputs' shapes do not broadcast: {} meets {}", o, m));
      if (o == 1) o = m;
    }
  }
  int64_t count = 1;
  for (int64_t d : out)
    if (__builtin_mul_overflow(count, d, &count) || count > int64_t{1} << 48)
      return error(Code::bad_shape, place_of(n), std::string("the broadcast result has too many elements"));
  return out;
}

/// body(begin, end) over [0, count), in parts of at least `least` elements and whole blocks, each on a thread of its
/// own as far as there are processors and threads.
void in_parts(int64_t count, int64_t least, const std::function<void(int64_t, int64_t)>& body) {
  static const int64_t processors = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
  const int64_t blocks = (count + kBlock - 1) / kBlock, parts = std::clamp<int64_t>(count / least, 1, processors);
  auto edge = [&](int64_t part) { return std::min(blocks * part / parts * kBlock, count); };
  std::vector<std::future<void>> others;
  for (int64_t part = 1; part < parts; ++part)  // where no thread is left, get() below does the part
    others.push_back(std::async(std::launch::async | std::launch::deferred, body, edge(part), edge(part + 1)));
  body(0, edge(1));
  for (std::future<void>& other : others) other.get();
}

/// Whether one of them is not 0 and less than `least`. Without a branch inside, so that it becomes vectors.
bool any_less(const double* x, int n, double least) {
  unsigned any = 0;
  for (int k = 0; k < n; ++k) any |= static_cast<unsigned>(std::abs(x[k]) < least) & static_cast<unsigned>(x[k] != 0);
  return any != 0;
}

/// `storage`: the result's type, for large constants by threads; undefined: that of the formula's result. `less`: as
/// evaluate_rounded, and only with `storage`.
Result<Tensor> evaluate(const OpTable& ops, const Node& n, std::span<const Tensor* const> inputs, bool f64, DType storage,
                        double least = 0, bool* less = nullptr) {
  FERRULE_ASSIGN(const OpFormula* f, formula_of(ops, n));
  std::vector<DType> types;
  for (const Tensor* t : inputs) types.push_back(t ? t->dtype() : DType::undefined);
  FERRULE_ASSIGN(LoweredNode lowered, lower_typed(*f, n, types, f64, nullptr));
  std::vector<const Tensor*> data;
  for (size_t slot : lowered.input_slots) data.push_back(inputs[slot]);
  FERRULE_ASSIGN(std::vector<int64_t> dims, broadcast_dims(n, data));

  const Program& p = lowered.program;
  const bool rounded = storage != DType::undefined;
  if (!rounded) storage = p.output_type(0);
  auto [result, bytes] = Tensor::allocate(storage, dims);
  const Walk walk = make_walk(dims, data);
  std::atomic<bool> found = false;
  auto elements = [&, bytes = bytes](int64_t begin, int64_t end) {
    BlockEvaluator run(p);
    std::vector<bool> fixed(data.size());  // one element: read once
    for (size_t k = 0; k < data.size(); ++k) {
      fixed[k] = data[k]->numel() == 1;
      if (fixed[k] && begin < end) gather(walk, k, *data[k], run.physical(p.inputs[k]), 0, kBlock, run.input(k));
    }
    DType out = run.physical(p.output_type(0));
    for (int64_t start = begin; start < end; start += kBlock) {
      int m = static_cast<int>(std::min<int64_t>(kBlock, end - start));
      for (size_t k = 0; k < data.size(); ++k)
        if (!fixed[k]) gather(walk, k, *data[k], run.physical(p.inputs[k]), start, m, run.input(k));
      run.run(m);
      if (less && out == DType::f64 && any_less(static_cast<const double*>(run.output(0)), m, least)) found = true;
      pack(storage, out, run.output(0), m, bytes, start);
    }
  };
  in_parts(result.numel(), rounded ? int64_t{kBlock} * 256 : INT64_MAX, elements);
  if (less) *less = found;
  return result;
}

}  // namespace

Result<Tensor> evaluate_node(const OpTable& ops, const Graph&, const Node& n,
                             std::span<const Tensor* const> inputs, bool f64) {
  return evaluate(ops, n, inputs, f64, DType::undefined);
}

Result<Tensor> evaluate_rounded(const OpTable& ops, const Node& n, std::span<const Tensor* const> inputs,
                                DType storage, double least, bool* less) {
  return evaluate(ops, n, inputs, true, storage, least, less);
}

Result<Type> infer_pointwise(const OpTable& ops, const Graph& g, const Node& n) {
  FERRULE_ASSIGN(const OpFormula* f, formula_of(ops, n));
  std::vector<DType> types;
  Type out;
  out.shape = Shape{};
  for (size_t k = 0; k < n.inputs.size(); ++k) {
    types.push_back(n.inputs[k] ? g.value(n.inputs[k]).type.dtype : DType::undefined);
    if (!n.inputs[k] || !f->reads(k) || !out.shape) continue;
    const Type& t = g.value(n.inputs[k]).type;
    if (!t.shape) {
      out.shape.reset();
      continue;
    }
    std::optional<Shape> both = broadcast(*out.shape, *t.shape);
    if (!both)
      return error(Code::bad_shape, place_of(n),
                   fmt::format("the inputs' shapes do not broadcast: {} meets {}", str(*out.shape), str(*t.shape)));
    out.shape = std::move(both);
  }
  FERRULE_ASSIGN(out.dtype, formula_result_type(*f, n, types));
  return out;
}

void install_pointwise_inference(const OpTable* ops) {
  set_infer_pointwise([ops](const Graph& g, const Node& n) -> std::optional<Result<Inferred>> {
    if (!ops->pointwise(n)) return std::nullopt;
    auto type = infer_pointwise(*ops, g, n);
    if (!type) return fail(std::move(type).error());
    return Inferred{{std::move(*type)}, {std::nullopt}};
  });
}

// --- the check at load

namespace {

/// The operator on inputs of type `t`, those optional inputs present whose bit is set.
Status check_one(const OpFormula& f, DType t, unsigned present) {
  LoweringInput in;
  in.formula = &f;
  Node n;
  for (const std::string& a : f.required) n.attrs.set(a, Attr{static_cast<int64_t>(t)});
  in.attrs = &n.attrs;
  ProgramBuilder b;
  unsigned bit = 0;
  std::vector<DType> types;
  for (size_t k = 0; k < f.inputs.size(); ++k) {
    bool there = !is_optional(f.inputs[k]) || (present >> bit++ & 1);
    types.push_back(there ? t : DType::undefined);
    uint32_t id = there ? b.input(t) : 0;
    in.operands.push_back({types.back(), [id] { return id; }});
    if (is_variadic(f.inputs[k])) in.operands.push_back(in.operands.back()), types.push_back(t);
  }
  FERRULE_ASSIGN(in.result, formula_result_type(f, n, types));
  in.compute = compute_type(t);
  if (!f.pointwise()) in.fold = [&b](Builtin, uint32_t v) { return b.input(b.type(v)); };
  FERRULE_ASSIGN(uint32_t result, lower_formula(in, b));
  (void)result;
  return {};
}

}  // namespace

Status check_types(const OpFormula& f) {
  auto optional = static_cast<unsigned>(std::count_if(f.inputs.begin(), f.inputs.end(),
                                                      [](const std::string& in) { return is_optional(in); }));
  for (DType t : f.types)
    for (unsigned present = 0; present < (1u << std::min(optional, 4u)); ++present)
      if (auto ok = check_one(f, t, present); !ok) {
        Error e = std::move(ok).error();
        e.message += fmt::format(", with inputs of type {}", name(t));
        return fail(std::move(e));
      }
  return {};
}

}  // namespace ferrule
