// If, Loop and Scan: nested graphs run with the values they capture.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

Result<bool> truth(const Call& c, const Tensor& t) {
  if (t.dtype() != DType::boolean || t.numel() != 1)
    return c.bad("a condition of type {} and shape {}", name(t.dtype()), text(t.dims()));
  return t.at_i64(0) != 0;
}

Outputs if_else(const Call& c) {
  FERRULE_ASSIGN(const bool yes, truth(c, *c.input(0)));
  const Graph* branch = subgraph(c.n, yes ? "then_branch" : "else_branch");
  if (!branch) return c.bad("a branch is missing");
  return run_subgraph(c, *branch, {}, true);
}

/// Tensors of equal shape put one behind the other along a new axis.
Outputs stack(const Call& c, const std::vector<Tensor>& parts, int64_t axis, const Type& declared) {
  if (parts.empty()) {  // no iteration: the shape that the body declares
    Dims out{0};
    if (declared.shape) {
      for (const Dim& d : *declared.shape) out.push_back(d.value_or(0));
    }
    if (declared.dtype == DType::string) return one(Tensor(out, std::vector<std::string>{}));
    if (size_bits(declared.dtype) == 0) return c.bad("a scan output of unknown type");
    return one(Tensor::allocate(declared.dtype, out).first);
  }
  const Tensor& first = parts[0];
  if (!std::ranges::all_of(parts, &Tensor::is_tensor)) return c.bad("a scan output is no tensor");
  Dims out = first.dims();
  if (axis < 0) axis += std::ssize(out) + 1;
  if (axis < 0 || axis > std::ssize(out))
    return c.bad_attr("scan_output_axes", "{} is out of range", axis);
  out.insert(out.begin() + axis, std::ssize(parts));
  FERRULE_TRY(c.fits(first.dtype(), out));
  const int64_t inner = count(out, static_cast<size_t>(axis) + 1),
                outer = count(out, 0, static_cast<size_t>(axis));
  for (const Tensor& t : parts) {
    if (t.dims() != first.dims() || t.dtype() != first.dtype())
      return c.bad("iterations give {} and {}", text(first.dims()), text(t.dims()));
  }
  if (first.dtype() == DType::string) {
    std::vector<std::string> y;
    for (int64_t o = 0; o < outer; ++o) {
      for (const Tensor& t : parts)
        y.insert(y.end(), t.strings().begin() + o * inner, t.strings().begin() + (o + 1) * inner);
    }
    return one(Tensor(out, std::move(y)));
  }
  const auto run = static_cast<size_t>(inner * size_bits(first.dtype()) / 8);
  if (size_bits(first.dtype()) < 8) return c.unsupported_type(first);
  auto [y, p] = Tensor::allocate(first.dtype(), out);
  char* to = static_cast<char*>(p);
  for (int64_t o = 0; o < outer; ++o) {
    for (const Tensor& t : parts) {
      if (run)
        std::memcpy(to, static_cast<const char*>(t.data()) + static_cast<size_t>(o) * run, run);
      to += run;
    }
  }
  return one(y);
}

/// Bytes that scan outputs may hold before they are stacked.
Status grown(const Call& c, const std::vector<std::vector<Tensor>>& scans) {
  for (const auto& parts : scans) {
    if (parts.empty()) continue;
    Dims all = parts[0].dims();
    all.insert(all.begin(), std::ssize(parts));
    FERRULE_TRY(c.fits(parts[0].dtype(), all));
  }
  return {};
}

Outputs loop(const Call& c) {
  const Graph* body = subgraph(c.n, "body");
  if (!body) return c.bad("the body is missing");
  if (const Tensor* count = c.input(0); count && !is_int(count->dtype()))
    return c.bad("a count of type {}", name(count->dtype()));
  const int64_t most = c.input(0) ? c.input(0)->numel() == 1 ? c.input(0)->at_i64(0) : 0
                                  : std::numeric_limits<int64_t>::max();
  bool going = true;
  if (c.input(1)) {
    FERRULE_ASSIGN(going, truth(c, *c.input(1)));
  }
  std::vector<Tensor> state;
  for (size_t i = 2; i < c.in.size(); ++i) {
    if (!c.input(i)) return c.bad("input {} is missing", i);
    state.push_back(c.taken(i));
  }
  const size_t carried = state.size();
  const auto made = [&](size_t slot, Tensor t) {  // of the rank that the body declares
    return body->value(body->inputs()[slot]).type.rank() == 1 ? t.reshaped({1}) : t;
  };
  if (body->outputs().size() < 1 + carried || body->inputs().size() != 2 + carried) {
    return c.bad("a body with {} inputs and {} outputs for {} carried values",
                 body->inputs().size(), body->outputs().size(), carried);
  }
  std::vector<std::vector<Tensor>> scans(body->outputs().size() - 1 - carried);
  for (int64_t i = 0; i < most && going; ++i) {
    if (c.options.cancel && c.options.cancel->stopped())
      return error(Code::cancelled, c.place(), "time is up");
    if (i % 64 == 0) FERRULE_TRY(grown(c, scans));
    std::vector<Tensor> in{made(0, Tensor::of_i64({}, {i})),
                           made(1, Tensor::scalar(DType::boolean, going ? 1 : 0))};
    std::ranges::move(state, std::back_inserter(in));
    FERRULE_ASSIGN(auto out, run_subgraph(c, *body, std::move(in)));
    FERRULE_ASSIGN(going, truth(c, out[0]));
    for (size_t k = 0; k < carried; ++k) state[k] = std::move(out[1 + k]);
    for (size_t k = 0; k < scans.size(); ++k) scans[k].push_back(out[1 + carried + k]);
  }
  for (size_t k = 0; k < scans.size(); ++k) {
    FERRULE_ASSIGN(auto all,
                   stack(c, scans[k], 0, body->value(body->outputs()[1 + carried + k]).type));
    state.push_back(all[0]);
  }
  return state;
}

/// Slice `i` along the axis, without that axis.
Tensor slice_of(const Tensor& t, int64_t axis, int64_t i) {
  Dims d = t.dims(), own = strides(d);
  const int64_t offset = i * own[axis];
  d.erase(d.begin() + axis), own.erase(own.begin() + axis);
  return take(t, d, positions(d, own, offset));
}

Outputs scan(const Call& c) {
  const Graph* body = subgraph(c.n, "body");
  if (!body) return c.bad("the body is missing");
  FERRULE_TRY(c.need(c.in.size()));
  const int64_t scanned = c.n.attrs.i("num_scan_inputs");
  const auto inputs = std::ssize(c.in);
  if (scanned < 1 || scanned > inputs)
    return c.bad_attr("num_scan_inputs", "{} of {} inputs", scanned, inputs);
  const auto carried = static_cast<size_t>(inputs - scanned);
  if (body->outputs().size() < carried || body->inputs().size() != c.in.size())
    return c.bad("a body with {} inputs and {} outputs", body->inputs().size(),
                 body->outputs().size());
  const size_t outs = body->outputs().size() - carried, ins = static_cast<size_t>(scanned);
  FERRULE_ASSIGN(const Dims in_axes, list_attr(c, "scan_input_axes", ins, 0, -64));
  FERRULE_ASSIGN(const Dims out_axes, list_attr(c, "scan_output_axes", outs, 0, -64));
  FERRULE_ASSIGN(const Dims in_back, list_attr(c, "scan_input_directions", ins, 0, 0));
  FERRULE_ASSIGN(const Dims out_back, list_attr(c, "scan_output_directions", outs, 0, 0));
  std::vector<Tensor> state;
  for (size_t k = 0; k < carried; ++k) state.push_back(*c.input(k));
  Dims axes;
  int64_t length = -1;
  for (size_t k = 0; k < ins; ++k) {
    const Tensor& t = *c.input(carried + k);
    if (!t.is_tensor()) return c.bad("scanned input {} is of type {}", k, name(t.dtype()));
    FERRULE_ASSIGN(const int64_t a, c.axis(in_axes[k], t.rank(), "scan_input_axes"));
    axes.push_back(a);
    if (length >= 0 && t.dims()[a] != length) return c.bad("scanned inputs differ in length");
    length = t.dims()[a];
  }
  std::vector<std::vector<Tensor>> scans(outs);
  for (int64_t i = 0; i < length; ++i) {
    if (i % 64 == 0) FERRULE_TRY(grown(c, scans));
    std::vector<Tensor> in = std::move(state);
    for (size_t k = 0; k < ins; ++k)
      in.push_back(slice_of(*c.input(carried + k), axes[k], in_back[k] ? length - 1 - i : i));
    FERRULE_ASSIGN(auto out, run_subgraph(c, *body, std::move(in)));
    state.assign(out.begin(), out.begin() + static_cast<long>(carried));
    for (size_t k = 0; k < outs; ++k) scans[k].push_back(out[carried + k]);
  }
  for (size_t k = 0; k < outs; ++k) {
    if (out_back[k]) std::reverse(scans[k].begin(), scans[k].end());
    FERRULE_ASSIGN(auto all,
                   stack(c, scans[k], out_axes[k], body->value(body->outputs()[carried + k]).type));
    state.push_back(all[0]);
  }
  return state;
}

}  // namespace

std::vector<Entry> control_table() {
  return {{"If", if_else, 1, true}, {"Loop", loop, 0, true}, {"Scan", scan, 0, true}};
}

}  // namespace ferrule::interp
