// Convolution and deconvolution of 1 to 3 spatial dimensions: channels-last images, weights in
// oneDNN's own layout (packed when the kernel is made, computed ones at each run), bias inside, the
// tail as post-ops.
#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>

#include "runtime/cpu/library.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

bool has_bias(const KernelCall& call) { return call.own_input(kB) != nullptr; }

/// In bf16 the library multiplies channels by twos. Of an odd number it takes the last with what
/// lies behind the pixel, times 0: an infinity or NaN there, of another pixel or of no one's
/// memory, would make the sum NaN. Depthwise kernels do not.
bool reads_behind_pixels(const KernelCall& call, bool transposed) {
  const int64_t groups = call.node->attrs.i("group", 1);
  const auto& w = call.inputs[kW].dims;
  const int64_t in = transposed ? w[0] / groups : w[1], out = transposed ? w[1] : w[0] / groups;
  return call.inputs[kX].dtype == DType::bf16 && in % 2 == 1 && (in > 1 || out > 1);
}

Applicable<> check_convolution(const KernelCall& call, bool transposed) {
  const DType type = call.inputs[kX].dtype;
  if (!computes(type) || reads_behind_pixels(call, transposed))
    return not_applicable(escape(call.layer), call.node->op.text(), name(type));
  return {};
}

memory::desc vector_desc(const Operand& o) {
  return memory::desc({o.numel()}, *data_type(o.dtype), memory::format_tag::a);
}

/// Weights as [groups,] out, in, kernel… whatever order the model keeps them in.
struct Weights {
  memory::desc plain, any;
  Weights turned() const {  ///< height and width exchanged
    std::vector<int> order(plain.get_ndims());
    std::iota(order.begin(), order.end(), 0);
    std::swap(order.end()[-1], order.end()[-2]);
    memory::dims dims = any.get_dims();
    std::swap(dims.end()[-1], dims.end()[-2]);
    return {plain.permute_axes(order),
            memory::desc(dims, any.get_data_type(), memory::format_tag::any)};
  }
};
Weights weights_of(const Operand& w, int64_t groups, bool transposed) {
  const std::vector<int64_t> apart = w.strides();
  const int64_t first = w.dims[0] / groups, second = w.dims[1];
  std::vector<int64_t> dims, strides;
  if (groups > 1) {
    dims.push_back(groups);
    strides.push_back(first * apart[0]);
  }
  dims.insert(dims.end(), {transposed ? second : first, transposed ? first : second});
  strides.insert(strides.end(), {apart[transposed ? 1 : 0], apart[transposed ? 0 : 1]});
  dims.insert(dims.end(), w.dims.begin() + 2, w.dims.end());
  strides.insert(strides.end(), apart.begin() + 2, apart.end());
  return {memory::desc(dims, *data_type(w.dtype), strides),
          memory::desc(dims, *data_type(w.dtype), memory::format_tag::any)};
}

template <class Primitive, class Desc>
KernelPtr assemble(Context& context, const KernelCall& call, const Desc& desc,
                   const Weights& weights, const Epilogue& epilogue) {
  auto kernel = std::make_unique<Prepared>(context, Primitive(desc), desc.impl_info_str());
  kernel->operand(DNNL_ARG_SRC, desc.src_desc(), call.inputs[kX]);
  const Operand& weight = call.inputs[kW];
  if (weight.constant)
    kernel->constant(DNNL_ARG_WEIGHTS, desc.weights_desc(),
                     context.library.pack(*weight.constant, weights.plain, desc.weights_desc()));
  else
    kernel->repacked(DNNL_ARG_WEIGHTS, weights.plain, desc.weights_desc(), weight.slot);
  if (has_bias(call)) kernel->operand(DNNL_ARG_BIAS, desc.bias_desc(), call.inputs[kB]);
  kernel->argument(DNNL_ARG_DST, desc.dst_desc(), call.outputs[0].slot);
  bind_epilogue(*kernel, call, epilogue);
  kernel->scratchpad(desc.scratchpad_desc());
  return kernel;
}

/// Tails of the library's products of unfolded images and of its deconvolutions by backward passes
/// are plain C++, too.
bool tail_is_plain(std::string_view kernel) {
  return std::ranges::any_of(std::array{"any", "gemm", "ref"},
                             [&](const char* of) { return kernel.find(of) != kernel.npos; });
}

std::vector<int64_t> window_dims(const Operand& w) { return {w.dims.begin() + 2, w.dims.end()}; }

/// Images and windows one element wide. The library's code steps along the last axis, so it gets
/// them as rows: channels-last memory is the same.
bool is_column(const Operand& x, const Operand& y, const Operand& weight, const Window& w) {
  return x.dims.size() == 4 && x.dims[3] == 1 && y.dims[3] == 1 && weight.dims[3] == 1 &&
         w.pads_begin[1] == 0 && w.pads_end[1] == 0 && !x.constant;
}
memory::desc row_desc(const Operand& column) {
  memory::dims dims = column.dims;
  std::swap(dims[2], dims[3]);
  return memory::desc(dims, *data_type(column.dtype), memory::format_tag::nhwc);
}

}  // namespace

Applicable<KernelPtr> make_convolution(Context& context, const KernelCall& call) {
  FERRULE_TRY(check_convolution(call, false));
  if (!call.dense())
    return not_applicable(escape(call.layer), call.node->op.text(),
                          "a slice: the library would run its reference code");
  const Operand &x = call.inputs[kX], &y = call.outputs[0], &weight = call.inputs[kW];
  // The library's code for plain images is its reference.
  if (!channels_last(x) && !x.constant) return make_reordered(context, call, make_convolution);
  FERRULE_ASSIGN(Window w, window_of(call, x.dims, y.dims, window_dims(weight)));
  return guard(call, "convolution", [&]() -> Applicable<KernelPtr> {
    Weights weights = weights_of(weight, call.node->attrs.i("group", 1), false);
    memory::desc from = image_desc(x), to = image_desc(y);
    auto epilogue = make_epilogue(call, {to});
    if (is_column(x, y, weight, w))
      if (auto row = make_epilogue(call, {row_desc(y)})) {
        epilogue = std::move(row);
        from = row_desc(x);
        to = row_desc(y);
        weights = weights.turned();
        for (auto* along : {&w.strides, &w.dilations, &w.pads_begin, &w.pads_end})
          std::swap((*along)[0], (*along)[1]);
      }
    FERRULE_TRY(epilogue);
    memory::desc bias = has_bias(call) ? vector_desc(call.inputs[kB]) : memory::desc();
    dnnl::convolution_forward::primitive_desc desc(
        context.library.engine, dnnl::prop_kind::forward_inference,
        dnnl::algorithm::convolution_direct, from, weights.any, bias, to, w.strides, w.dilations,
        w.pads_begin, w.pads_end, epilogue->attr);
    if (has_logistic(call) && tail_is_plain(desc.impl_info_str()))
      return make_without_logistic(
          call, [&](const KernelCall& c) { return make_convolution(context, c); });
    return assemble<dnnl::convolution_forward>(context, call, desc, weights, *epilogue);
  });
}

namespace {

/// oneDNN 3.2 adds the bias once for every part of a sum, and applies the tail to each, where
/// strides are above 1 and the weights of some filters fill half of the L2 cache: which sizes that
/// are is for its code to say, so zeros are tried.
bool repeats_bias(const dnnl::engine& engine,
                  const dnnl::deconvolution_forward::primitive_desc& d) {
  constexpr size_t kSmallWeights = 256 << 10;
  if (std::string_view(d.impl_info_str()).find("strided") == std::string_view::npos) return false;
  if (d.weights_desc().get_size() <= kSmallWeights) return false;
  auto type = [](const memory::desc& desc) { return desc.get_data_type(); };
  if (type(d.dst_desc()) != type(d.bias_desc())) return true;
  const bool wide = type(d.dst_desc()) == memory::data_type::f32;
  const uint32_t one = wide ? 0x3f800000 : 0x3f803f80;  // two of bf16
  const size_t bytes = d.dst_desc().get_size();
  std::vector<uint32_t> result(bytes / 4 + 1);
  std::vector<uint32_t> bias(d.bias_desc().get_size() / 4 + 1, one);
  const std::vector<char> zeros(std::max(d.src_desc().get_size(), d.weights_desc().get_size()));
  auto at = [&](const memory::desc& desc, const void* data) {
    return memory(desc, engine, const_cast<void*>(data));
  };
  dnnl::stream stream(engine);
  dnnl::deconvolution_forward(d).execute(stream,
                                         {{DNNL_ARG_SRC, at(d.src_desc(), zeros.data())},
                                          {DNNL_ARG_WEIGHTS, at(d.weights_desc(), zeros.data())},
                                          {DNNL_ARG_BIAS, at(d.bias_desc(), bias.data())},
                                          {DNNL_ARG_DST, at(d.dst_desc(), result.data())}});
  stream.wait();
  const size_t size = wide ? 4 : 2;
  const auto* got = reinterpret_cast<const char*>(result.data());
  for (size_t k = 0; k < bytes; k += size)
    if (std::memcmp(got + k, &one, size) != 0) return true;
  return false;
}

}  // namespace

Applicable<KernelPtr> make_deconvolution(Context& context, const KernelCall& call) {
  FERRULE_TRY(check_convolution(call, true));
  if (auto unfolded = make_unfolded_deconvolution(context, call)) return unfolded;
  if (folding_pays(call))
    if (auto folded = make_folded_deconvolution(context, call)) return folded;
  const Operand &x = call.inputs[kX], &y = call.outputs[0], &weight = call.inputs[kW];
  FERRULE_ASSIGN(Window w, transposed_window_of(call, x.dims, y.dims, window_dims(weight)));
  FERRULE_ASSIGN(Epilogue epilogue, make_epilogue(call, {image_desc(y)}));
  return guard(call, "deconvolution", [&]() -> Applicable<KernelPtr> {
    Weights weights = weights_of(weight, call.node->attrs.i("group", 1), true);
    using Desc = dnnl::deconvolution_forward::primitive_desc;
    auto described = [&](const memory::desc& bias, const dnnl::primitive_attr& attr) {
      return Desc(context.library.engine, dnnl::prop_kind::forward_inference,
                  dnnl::algorithm::deconvolution_direct, image_desc(x), weights.any, bias,
                  image_desc(y), w.strides, w.dilations, w.pads_begin, w.pads_end, attr);
    };
    Desc desc =
        described(has_bias(call) ? vector_desc(call.inputs[kB]) : memory::desc(), epilogue.attr);
    const memory::desc bias({y.dims[1]}, *data_type(x.dtype), memory::format_tag::a);
    if ((has_bias(call) || !call.post_ops.empty()) &&
        repeats_bias(context.library.engine, described(bias, {}))) {
      if (auto folded = make_folded_deconvolution(context, call)) return folded;
      while (std::string_view(desc.impl_info_str()).starts_with("brg") && desc.next_impl()) {
      }
    }
    if (has_logistic(call) && tail_is_plain(desc.impl_info_str()))
      return make_without_logistic(
          call, [&](const KernelCall& c) { return make_deconvolution(context, c); });
    return assemble<dnnl::deconvolution_forward>(context, call, desc, weights, epilogue);
  });
}

}  // namespace ferrule::cpu
