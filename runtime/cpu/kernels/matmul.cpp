// MatMul and Gemm through oneDNN's matmul. Constant right operands are packed (alpha goes into
// them, beta into a constant C); a batch of rows against one matrix is one product of all rows.
#include <algorithm>

#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"
#include "runtime/cpu/tail_operand.h"

namespace ferrule::cpu {
namespace {

/// An operand under the dims and strides that the product reads it by.
struct View {
  std::vector<int64_t> dims, strides;
  memory::desc desc(DType t) const { return memory::desc(dims, *data_type(t), strides); }
  memory::desc any(DType t) const {
    return memory::desc(dims, *data_type(t), memory::format_tag::any);
  }
};

View view_of(const Operand& o) { return {o.dims, o.plain_strides()}; }

View flat(int64_t rows, int64_t columns, int64_t row) { return {{rows, columns}, {row, 1}}; }

void add_outer(View& v, size_t rank) {
  while (v.dims.size() < rank) {
    const int64_t step = v.dims.empty() ? 1 : v.dims[0] * v.strides[0];
    v.dims.insert(v.dims.begin(), 1);
    v.strides.insert(v.strides.begin(), std::max<int64_t>(step, 1));
  }
}

struct Product {
  View a, b, y;
  float scale_b = 1;         ///< multiplied into packed b
  std::optional<View> bias;  ///< added by the library before the post-ops
  float scale_bias = 1;
  int channel = -1;  ///< the result's axis of columns; -1 where it has none
  std::vector<Leading>
      leading;         ///< what Gemm does to the product when the constants cannot take it
  int bias_input = 2;  ///< of the call, a constant
};

/// The same with a first constant that is added to each column as the library's bias.
std::optional<Product> with_bias(const KernelCall& call, const Product& p) {
  if (p.bias || !p.leading.empty() || p.channel < 0 || call.post_ops.empty()) return std::nullopt;
  const PostOp& first = call.post_ops.front();
  const bool adds = first.kind == PostOp::Kind::sum || first.alg == "add";
  if (!adds || first.operand < 0 || first.operand == call.sum_input) return std::nullopt;
  const Operand &o = call.inputs[static_cast<size_t>(first.operand)], &y = call.outputs[0];
  if (!o.constant || o.dtype != y.dtype || broadcast_of(o, y, p.channel) != Broadcast::channel)
    return std::nullopt;
  Product out = p;
  out.bias_input = first.operand;
  out.bias.emplace();
  out.bias->dims.assign(p.y.dims.size(), 1);
  out.bias->dims.back() = p.y.dims.back();
  out.bias->strides = strides_of(out.bias->dims, Layout::plain);
  return out;
}

Applicable<KernelPtr> build(Context& context, const KernelCall& call, const Product& p) {
  const memory::desc dense(p.y.dims, *data_type(call.outputs[0].dtype),
                           strides_of(p.y.dims, Layout::plain));
  const EpilogueShape shape{dense, p.channel, static_cast<int>(p.y.dims.size()) - 1};
  FERRULE_ASSIGN(Epilogue epilogue, make_epilogue(call, shape, p.leading));
  return guard(call, "matmul", [&]() -> Applicable<KernelPtr> {
    const Operand& b = call.inputs[1];
    const DType t = b.dtype;
    memory::desc bias = p.bias ? p.bias->desc(t) : memory::desc();
    auto described = [&](const memory::desc& weights) {
      return dnnl::matmul::primitive_desc(context.library.engine, p.a.desc(t), weights, bias,
                                          p.y.desc(t), epilogue.attr);
    };
    const bool packs = b.constant && !context.library.runs_once;
    dnnl::matmul::primitive_desc desc = described(packs ? p.b.any(t) : p.b.desc(t));
    std::string text = desc.impl_info_str();
    if (b.constant && !packs && text.find("ref") != text.npos)
      desc = described(p.b.any(t)), text = desc.impl_info_str();
    if (has_logistic(call) && text.find("ref") != text.npos)
      return make_without_logistic(call, [&](const KernelCall& c) { return build(context, c, p); });
    // Without AVX-512 a sum has to be the first post-op, or the whole product runs in reference
    // code.
    if (text.find("ref") != text.npos)
      if (const auto biased = with_bias(call, p)) {
        KernelCall rest = call;
        rest.post_ops = rest.post_ops.subspan(1);
        return build(context, rest, *biased);
      }
    auto kernel = std::make_unique<Prepared>(context, dnnl::matmul(desc), text);
    // A constant as the product reads it, which is not as it lies where transA is set.
    if (const Operand& a = call.inputs[0]; a.constant)
      kernel->constant(DNNL_ARG_SRC, desc.src_desc(),
                       context.library.pack(*a.constant, p.a.desc(a.dtype), desc.src_desc()));
    else
      kernel->argument(DNNL_ARG_SRC, desc.src_desc(), a.slot);
    if (b.constant)
      kernel->constant(
          DNNL_ARG_WEIGHTS, desc.weights_desc(),
          context.library.pack(*b.constant, p.b.desc(t), desc.weights_desc(), p.scale_b));
    else
      kernel->argument(DNNL_ARG_WEIGHTS, desc.weights_desc(), b.slot);
    if (p.bias)
      kernel->constant(
          DNNL_ARG_BIAS, bias,
          context.library.pack(*call.inputs[static_cast<size_t>(p.bias_input)].constant, bias, bias,
                               p.scale_bias));
    kernel->argument(DNNL_ARG_DST, desc.dst_desc(), call.outputs[0].slot);
    bind_epilogue(*kernel, call, epilogue);
    kernel->scratchpad(desc.scratchpad_desc());
    return kernel;
  });
}

Applicable<> check_matmul(const KernelCall& call) {
  for (size_t k = 0; k < 2; ++k) {
    if (!computes(call.inputs[k].dtype))
      return not_applicable(escape(call.layer), call.node->op.text(), name(call.inputs[k].dtype));
    if (!call.inputs[k].lies(Layout::plain))
      return not_applicable(escape(call.layer), call.node->op.text(),
                            "an operand is channels-last");
  }
  for (const auto* operands : {&call.inputs, &call.outputs})
    for (const Operand& o : *operands) {
      const bool ends = &o == &call.inputs[0] || &o == &call.outputs[0];
      if (!o.dense() && (!ends || o.rank() < 2 || call.inputs[1].rank() < 2 || o.row() < 0))
        return not_applicable(escape(call.layer), call.node->op.text(),
                              "a slice whose rows do not lie at one distance");
    }
  if (call.outputs[0].numel() == 0 || call.inputs[0].numel() == 0)
    return not_applicable(escape(call.layer), call.node->op.text(), "an empty operand");
  return {};
}

bool is_single(const std::vector<int64_t>& dims, size_t count) {
  return std::all_of(dims.begin(), dims.begin() + static_cast<int64_t>(count),
                     [](int64_t d) { return d == 1; });
}

/// An addend of one number a row: with it the library runs its reference code (64 x 128 x 256: 110
/// ms instead of 0.05).
bool is_column(const Operand& c, const Operand& y) {
  return c.present() && c.rank() == 2 && c.dims[0] > 1 && c.dims[1] == 1 && y.dims[1] > 1;
}

/// A kernel with a constant that it reads.
class WithConstant final : public Kernel {
 public:
  WithConstant(std::unique_ptr<Tensor> constant, KernelPtr kernel)
      : constant_(std::move(constant)), kernel_(std::move(kernel)) {}
  int64_t scratch_bytes() const override { return kernel_->scratch_bytes(); }
  void bind(Binder& binder) override { kernel_->bind(binder); }
  Status run() override { return kernel_->run(); }
  std::string text() const override { return kernel_->text(); }

 private:
  std::unique_ptr<Tensor> constant_;
  KernelPtr kernel_;
};

/// The addend's columns written out to as many as the result has: a constant's now, others' in
/// scratch.
Applicable<KernelPtr> make_spread(Context& context, const KernelCall& call) {
  KernelCall spread = call;
  Operand& c = spread.inputs[2];
  c.dims = call.outputs[0].dims;
  c.apart = {call.inputs[2].strides()[0], 0};
  if (!c.constant) return make_sliced(context, spread, make_gemm, false);
  auto [all, bytes] = Tensor::allocate(c.dtype, c.dims);
  StridedCopy(c.dims, c.apart, strides_of(c.dims, Layout::plain), size_bits(c.dtype) / 8)
      .run(c.constant->data(), bytes);
  auto constant = std::make_unique<Tensor>(std::move(all));
  c.constant = constant.get();
  c.apart.clear();
  FERRULE_ASSIGN(KernelPtr kernel, make_gemm(context, spread));
  return std::make_unique<WithConstant>(std::move(constant), std::move(kernel));
}

}  // namespace

Applicable<KernelPtr> make_matmul(Context& context, const KernelCall& call) {
  if (call.inputs[0].dtype == DType::f64) return make_product_f64(context, call, false);
  FERRULE_TRY(check_matmul(call));
  const Operand &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  Product p{view_of(a), view_of(b), view_of(y), 1, {}, 1, b.rank() > 1 ? y.rank() - 1 : -1, {}};
  if (a.rank() == 1) add_outer(p.a, 2);
  if (b.rank() == 1) p.b = {{b.dims[0], 1}, {1, 1}};
  const int64_t columns = p.b.dims.back(), depth = p.a.dims.back();
  if (is_single(p.b.dims, p.b.dims.size() - 2)) {  // one matrix for all rows
    const int64_t rows = a.numel() / depth;
    p.a = flat(rows, depth, a.rank() == 1 ? depth : a.row());
    p.b = {{p.b.dims[p.b.dims.size() - 2], columns},
           {p.b.strides[p.b.strides.size() - 2], p.b.strides.back()}};
    p.y = flat(rows, columns, y.rank() == 0 || b.rank() == 1 ? columns : y.row());
    return build(context, call, p);
  }
  if (!a.dense() || !y.dense())
    return not_applicable(escape(call.layer), call.node->op.text(), "slices of several matrices");
  // Rank 1 operands have axes that y has not.
  const size_t rank = std::max(p.a.dims.size(), p.b.dims.size());
  add_outer(p.a, rank);
  add_outer(p.b, rank);
  std::vector<int64_t> dims = p.a.dims;
  for (size_t k = 0; k + 2 < rank; ++k) dims[k] = std::max(p.a.dims[k], p.b.dims[k]);
  dims[rank - 1] = columns;
  p.y = {dims, strides_of(dims, Layout::plain)};
  return build(context, call, p);
}

Applicable<KernelPtr> make_gemm(Context& context, const KernelCall& call) {
  if (call.inputs[0].dtype == DType::f64) return make_product_f64(context, call, true);
  FERRULE_TRY(check_matmul(call));
  if (const Operand* c = call.own_input(2);
      c && is_column(*c, call.outputs[0]) && call.sum_input < 0)  // what is added in place stays
    return make_spread(context, call);
  const Node& n = *call.node;
  const Operand &a = call.inputs[0], &b = call.inputs[1], &y = call.outputs[0];
  auto matrix = [](const Operand& o, bool transposed) {
    if (transposed) return View{{o.dims[1], o.dims[0]}, {1, o.row()}};
    return flat(o.dims[0], o.dims[1], o.row());
  };
  Product p{matrix(a, n.attrs.i("transA") != 0),
            matrix(b, n.attrs.i("transB") != 0),
            view_of(y),
            1,
            {},
            1,
            1,
            {}};
  const auto alpha = static_cast<float>(n.attrs.f("alpha", 1)),
             beta = static_cast<float>(n.attrs.f("beta", 1));
  if (y.dtype != DType::f32 &&
      (alpha != 1 || beta != 1))  // folded constants would be rounded a second time
    return not_applicable(escape(call.layer), n.op.text(), "factors of a narrow type");
  const bool adds = n.inputs.size() > 2 && call.inputs[2].present() && beta != 0;
  View addend;
  if (adds) {
    addend = view_of(call.inputs[2]);
    add_outer(addend, 2);
  }
  const bool folds_c = adds && call.inputs[2].constant;
  float factor = alpha;  // what the product must still be multiplied by
  if (b.constant) p.scale_b = alpha, factor = 1;
  // Biases of other shapes than one number a column run in the library's reference code.
  if (folds_c && factor == 1 &&
      ((addend.dims[0] == 1 && addend.dims[1] == p.y.dims[1]) || beta != 1)) {
    p.bias = addend;
    p.scale_bias = beta;
  } else if (adds) {  // (factor / beta * product + C) * beta
    if (factor / beta != 1) p.leading.push_back({factor / beta, -1, {}});
    p.leading.push_back({1, 2, addend.desc(call.inputs[2].dtype)});
    if (beta != 1) p.leading.push_back({beta, -1, {}});
  } else if (factor != 1) {
    p.leading.push_back({factor, -1, {}});
  }
  return build(context, call, p);
}

}  // namespace ferrule::cpu
