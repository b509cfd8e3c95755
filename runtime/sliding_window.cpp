#include "runtime/sliding_window.h"

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

std::vector<int64_t> attribute(const Node& n, std::string_view name, size_t count,
                               int64_t otherwise) {
  auto v = n.attrs.ints(name);
  v.resize(count, otherwise);
  return v;
}

Status check(const KernelCall& call, const Window& w) {
  for (size_t k = 0; k < w.kernel.size(); ++k)
    if (w.kernel[k] < 1 || w.strides[k] < 1 || w.dilations[k] < 0)
      return error(Code::bad_attribute, escape(call.layer), "kernel_shape, strides, dilations",
                   "a value is below 1");
  return {};
}

/// Kernel, strides and dilations; the pads are still to be found.
Result<Window> steps_of(const KernelCall& call, std::vector<int64_t> kernel) {
  const size_t rank = kernel.size();
  Window w;
  w.kernel = std::move(kernel);
  w.strides = attribute(*call.node, "strides", rank, 1);
  w.dilations = attribute(*call.node, "dilations", rank, 1);
  for (int64_t& d : w.dilations) --d;
  FERRULE_TRY(check(call, w));
  return w;
}

}  // namespace

Result<Window> window_of(const KernelCall& call, const std::vector<int64_t>& in,
                         const std::vector<int64_t>& out, std::vector<int64_t> kernel) {
  const Node& n = *call.node;
  const size_t rank = kernel.size();
  FERRULE_ASSIGN(Window w, steps_of(call, std::move(kernel)));
  const auto pads = attribute(n, "pads", 2 * rank, 0);
  const std::string automatic = n.attrs.s("auto_pad", "NOTSET");
  for (size_t k = 0; k < rank; ++k) {
    const int64_t reach = (w.kernel[k] - 1) * (w.dilations[k] + 1) + 1;
    int64_t begin = pads[k], asked = pads[rank + k];
    if (automatic == "SAME_UPPER" || automatic == "SAME_LOWER") {
      const int64_t total =
          std::max<int64_t>(0, (out[k + 2] - 1) * w.strides[k] + reach - in[k + 2]);
      begin = automatic == "SAME_LOWER" ? total - total / 2 : total / 2;
      asked = total - begin;
    } else if (automatic == "VALID") {
      begin = asked = 0;
    }
    w.pads_begin.push_back(begin);
    w.asked_end.push_back(asked);
    const int64_t room = in[k + 2] + begin + asked -
                         reach;  // below 0: a window larger than the padded image (ceil_mode)
    const bool fits = room >= 0 && room / w.strides[k] + 1 == out[k + 2];
    w.pads_end.push_back(fits ? asked
                              : (out[k + 2] - 1) * w.strides[k] + reach - in[k + 2] - begin);
  }
  return w;
}

Result<Window> transposed_window_of(const KernelCall& call, const std::vector<int64_t>& in,
                                    const std::vector<int64_t>& out, std::vector<int64_t> kernel) {
  const Node& n = *call.node;
  const size_t rank = kernel.size();
  FERRULE_ASSIGN(Window w, steps_of(call, std::move(kernel)));
  const auto pads = attribute(n, "pads", 2 * rank, 0),
             extra = attribute(n, "output_padding", rank, 0);
  const std::string automatic = n.attrs.s("auto_pad", "NOTSET");
  const bool computed = automatic != "NOTSET" || !n.attrs.ints("output_shape").empty();
  for (size_t k = 0; k < rank; ++k) {
    const int64_t reach = (w.kernel[k] - 1) * (w.dilations[k] + 1) + 1;
    const int64_t full = (in[k + 2] - 1) * w.strides[k] + reach;
    int64_t begin = pads[k];
    if (computed) {  // the standard splits what is cut off; the odd one goes behind, or in front
                     // for SAME_UPPER
      const int64_t total = std::max<int64_t>(0, full + extra[k] - out[k + 2]);
      begin = automatic == "SAME_UPPER" ? total / 2 : total - total / 2;
    }
    w.pads_begin.push_back(begin);
    w.asked_end.push_back(full - begin - out[k + 2]);
    w.pads_end.push_back(full - begin - out[k + 2]);
  }
  return w;
}

}  // namespace ferrule
