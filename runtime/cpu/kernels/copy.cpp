// Transpose, Slice, Split, Concat, Pad, Expand and Reorder as strided copies between operands,
// layouts included: each becomes a list of parts worked out once. What codegen lowers to a few
// pieces comes to pieces.cpp instead; this is for reorders, more pieces than those, and element
// types that generated code does not know.
#include <algorithm>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

struct Part {
  size_t input = 0, output = 0;
  StridedCopy copy;
};

class Copy final : public Kernel {
 public:
  explicit Copy(const KernelCall& call) {
    for (const Operand& o : call.inputs) {
      inputs_.push_back(o.constant ? o.constant->data() : nullptr);
      input_slots_.push_back(o.slot);
    }
    for (const Operand& o : call.outputs) output_slots_.push_back(o.slot);
    outputs_.resize(call.outputs.size());
  }
  void add(Part p) { parts_.push_back(std::move(p)); }
  /// Fills output 0 with this element first (Pad).
  void fill(StridedCopy copy, std::vector<char> element) {
    fill_ = std::move(copy);
    element_ = std::move(element);
  }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < inputs_.size(); ++k)
      if (input_slots_[k] >= 0) binder.cell(input_slots_[k], &inputs_[k]);
    for (size_t k = 0; k < outputs_.size(); ++k)
      if (output_slots_[k] >= 0) binder.cell(output_slots_[k], &outputs_[k]);
  }
  Status run() override {
    const OneKernel one;  // all parts of one result
    if (!element_.empty()) fill_.run(element_.data(), outputs_[0]);
    for (const Part& p : parts_) p.copy.run(inputs_[p.input], outputs_[p.output]);
    return {};
  }
  std::string text() const override {
    return std::string("copy:") + (parts_.empty() ? "nothing" : parts_[0].copy.text());
  }

 private:
  std::vector<const void*> inputs_;
  std::vector<void*> outputs_;
  std::vector<int> input_slots_, output_slots_;
  std::vector<Part> parts_;
  StridedCopy fill_;
  std::vector<char> element_;
};

int element_bytes(const Operand& o) { return size_bits(o.dtype) / 8; }

int64_t normal_axis(int64_t axis, int rank) { return axis < 0 ? axis + rank : axis; }

Result<std::vector<int64_t>> constant_ints(const KernelCall& call, size_t slot,
                                           std::vector<int64_t> otherwise) {
  if (slot >= call.inputs.size() || !call.inputs[slot].present()) return otherwise;
  if (!call.inputs[slot].constant)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op,
                 fmt::format("input {} is not constant", slot));
  return call.inputs[slot].constant->to_i64();
}

/// A part of input 0 (or `input`) that starts at `offset` and steps by `strides`, into all of
/// output `output`.
Part whole_output(const KernelCall& call, size_t input, size_t output, std::vector<int64_t> strides,
                  int64_t offset) {
  const Operand& y = call.outputs[output];
  return {input, output,
          StridedCopy(y.dims, std::move(strides), y.strides(), element_bytes(y), offset, 0)};
}

Status transpose(const KernelCall& call, Copy& out) {
  const Operand& x = call.inputs[0];
  auto perm = call.node->attrs.ints("perm");
  if (perm.empty())
    for (int k = x.rank(); k-- > 0;) perm.push_back(k);
  std::vector<int64_t> from = x.strides(), strides;
  for (int64_t axis : perm) strides.push_back(from[static_cast<size_t>(axis)]);
  out.add(whole_output(call, 0, 0, strides, 0));
  return {};
}

Status slice(const KernelCall& call, Copy& out) {
  const Operand& x = call.inputs[0];
  std::vector<int64_t> strides = x.strides();
  FERRULE_ASSIGN(auto starts, constant_ints(call, 1, {}));
  std::vector<int64_t> all;
  for (size_t k = 0; k < starts.size(); ++k) all.push_back(static_cast<int64_t>(k));
  FERRULE_ASSIGN(auto axes, constant_ints(call, 3, all));
  FERRULE_ASSIGN(auto steps, constant_ints(call, 4, std::vector<int64_t>(starts.size(), 1)));
  int64_t offset = 0;
  for (size_t k = 0; k < starts.size(); ++k) {
    const auto axis = static_cast<size_t>(normal_axis(axes[k], x.rank()));
    const int64_t size = x.dims[axis];
    int64_t start = starts[k] < 0 ? starts[k] + size : starts[k];
    start = std::clamp<int64_t>(start, 0, steps[k] < 0 ? size - 1 : size);
    offset += start * strides[axis];
    strides[axis] *= steps[k];
  }
  out.add(whole_output(call, 0, 0, strides, offset));
  return {};
}

Status split(const KernelCall& call, Copy& out) {
  const Operand& x = call.inputs[0];
  const std::vector<int64_t> strides = x.strides();
  const auto axis = static_cast<size_t>(normal_axis(call.node->attrs.i("axis"), x.rank()));
  FERRULE_ASSIGN(auto sizes, constant_ints(call, 1, {}));
  int64_t at = 0;
  for (size_t k = 0; k < call.outputs.size(); ++k) {
    const Operand& y = call.outputs[k];
    if (y.present()) out.add(whole_output(call, 0, k, strides, at * strides[axis]));
    if (k < sizes.size())
      at += sizes[k];
    else if (y.present())
      at += y.dims[axis];
    else
      return error(Code::unsupported_operator, escape(call.layer), "Split",
                   "an output without a known size");
  }
  return {};
}

Status concat(const KernelCall& call, Copy& out) {
  const Operand& y = call.outputs[0];
  const std::vector<int64_t> strides = y.strides();
  const auto axis = static_cast<size_t>(normal_axis(call.node->attrs.i("axis"), y.rank()));
  int64_t at = 0;
  for (size_t k = 0; k < call.inputs.size(); ++k) {
    const Operand& x = call.inputs[k];
    if (!x.present()) continue;
    out.add(
        {k, 0, StridedCopy(x.dims, x.strides(), strides, element_bytes(y), 0, at * strides[axis])});
    at += x.dims[axis];
  }
  return {};
}

Status pad(const KernelCall& call, Copy& out) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  if (call.node->attrs.s("mode", "constant") != "constant")
    return error(Code::unsupported_operator, escape(call.layer), "Pad",
                 "mode " + escape(call.node->attrs.s("mode")));
  FERRULE_ASSIGN(auto pads, constant_ints(call, 1, {}));
  std::vector<int64_t> all;
  for (int k = 0; k < x.rank(); ++k) all.push_back(k);
  FERRULE_ASSIGN(auto axes, constant_ints(call, 3, all));
  std::vector<char> element(static_cast<size_t>(element_bytes(y)), 0);
  if (call.inputs.size() > 2 && call.inputs[2].present()) {
    if (!call.inputs[2].constant)
      return error(Code::unsupported_operator, escape(call.layer), "Pad",
                   "the value is not constant");
    std::memcpy(element.data(), call.inputs[2].constant->data(), element.size());
  }
  const std::vector<int64_t> from = x.strides(), to = y.strides();
  std::vector<int64_t> dims = x.dims;
  int64_t source = 0, target = 0;
  for (size_t k = 0; k < axes.size(); ++k) {
    const auto axis = static_cast<size_t>(normal_axis(axes[k], x.rank()));
    const int64_t begin = pads[k], end = pads[k + axes.size()];  // negative ones cut off
    source += std::max<int64_t>(0, -begin) * from[axis];
    target += std::max<int64_t>(0, begin) * to[axis];
    dims[axis] += std::min<int64_t>(0, begin) + std::min<int64_t>(0, end);
    dims[axis] = std::max<int64_t>(dims[axis], 0);
  }
  out.fill(StridedCopy(y.dims, std::vector<int64_t>(y.dims.size(), 0), to, element_bytes(y)),
           std::move(element));
  out.add({0, 0, StridedCopy(dims, from, to, element_bytes(y), source, target)});
  return {};
}

Status expand(const KernelCall& call, Copy& out) {
  const Operand &x = call.inputs[0], &y = call.outputs[0];
  const std::vector<int64_t> from = x.strides();
  std::vector<int64_t> strides(y.dims.size(), 0);
  const size_t extra = y.dims.size() - x.dims.size();
  for (size_t k = 0; k < x.dims.size(); ++k)
    if (x.dims[k] != 1) strides[k + extra] = from[k];
  out.add(whole_output(call, 0, 0, strides, 0));
  return {};
}

Status reorder(const KernelCall& call, Copy& out) {
  out.add(whole_output(call, 0, 0, call.inputs[0].strides(), 0));
  return {};
}

}  // namespace

Result<KernelPtr> make_copy(Context& context, const KernelCall& call) {
  static const std::map<std::string_view, Status (*)(const KernelCall&, Copy&)> kOperators = {
      {"Transpose", transpose}, {"Slice", slice},      {"Split", split},
      {"Concat", concat},       {"Pad", pad},          {"Expand", expand},
      {"Reorder", reorder},     {"Identity", reorder},
  };
  if (call.node->op == "Gather") return make_gather(context, call);
  auto it = kOperators.find(call.node->op);
  if (it == kOperators.end())
    return error(Code::unsupported_operator, escape(call.layer), escape(call.node->op),
                 "it is not a copy");
  const int bits = size_bits(call.inputs[0].dtype);
  if (bits % 8 || (bits != 8 && bits != 16 && bits != 32 && bits != 64 && bits != 128))
    return error(Code::unsupported_operator, escape(call.layer), call.node->op,
                 name(call.inputs[0].dtype));
  auto kernel = std::make_unique<Copy>(call);
  FERRULE_TRY(it->second(call, *kernel));
  return kernel;
}

}  // namespace ferrule::cpu
