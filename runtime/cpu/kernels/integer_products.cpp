// Products and convolutions of 8-bit integers, with zero points and, where the operator asks for
// it, back to 8 bits: ConvInteger, MatMulInteger, QLinearConv and QLinearMatMul. Sums are exact, in
// 32 bits, and scaled in f64 as the interpreter does it. oneDNN makes the sums where the processor
// multiplies bytes without saturating on the way; else, and where the second operand is computed,
// 16-bit products do. Here: what is taken, and which of the two makes it.
#include <algorithm>

#include "runtime/cpu/kernels/integer_sums.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kMostDepth = 32768;  ///< so many products of 8-bit numbers fit into 32 bits
constexpr IntegerSlots kInteger{0, 1, 2, 3}, kQLinear{0, 3, 2, 5, 1, 4, 6, 7, 8};

bool eight_bits(DType t) { return t == DType::u8 || t == DType::i8; }

class IntegerTaker {
 public:
  IntegerTaker(Context& context, const KernelCall& call, const IntegerSlots& slots)
      : context_(context), call_(call), slots_(slots) {}

  Applicable<KernelPtr> convolution() const {
    FERRULE_TRY(operands());
    const Operand &x = in(slots_.x), &w = in(slots_.w), &y = call_.outputs[0];
    if (x.rank() < 3 || x.rank() > 5 || w.rank() != x.rank() || !w.lies(Layout::plain))
      return refuse("images of another rank, or filters in another layout");
    if (!channels_last(y)) return refuse("another layout");
    SumShape s;
    s.kernel = {w.dims.begin() + 2, w.dims.end()};
    FERRULE_ASSIGN(Window window, window_of(call_, x.dims, y.dims, s.kernel));
    s.images = x.dims[0];
    s.groups = std::max<int64_t>(1, call_.node->attrs.i("group", 1));
    s.channels = w.dims[1];
    s.filters = w.dims[0] / s.groups;
    if (s.channels * s.groups != x.dims[1] || s.filters * s.groups != w.dims[0])
      return refuse("groups that do not divide the channels");
    s.in = {x.dims.begin() + 2, x.dims.end()};
    s.out = {y.dims.begin() + 2, y.dims.end()};
    s.steps = window.strides, s.dilations = window.dilations;
    s.before = window.pads_begin, s.after = window.pads_end;
    s.x_apart = x.strides(), s.w_apart = strides_of(w.dims, Layout::plain);
    FERRULE_TRY(per_filter(s));
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) return refuse("zero points of rows");
    const bool cut = std::ranges::any_of(s.before, [](int64_t p) { return p < 0; });
    const bool library = has_bytes() && w.constant && x.slot >= 0 && channels_last(x) && !cut;
    if (library)
      if (auto made = bytes(s)) return made;
    return make_integer_words(call_, std::move(s), slots_, IntegerBatch{{{0, 0}}});
  }

  Applicable<KernelPtr> product() const {
    FERRULE_TRY(operands());
    const Operand &a = in(slots_.x), &b = in(slots_.w), &y = call_.outputs[0];
    if (a.rank() < 2 || b.rank() < 2) return refuse("a vector");
    for (const Operand* o : {&a, &b, &y})
      if (!o->lies(Layout::plain)) return refuse("another layout");
    const auto last = [](const Operand& o, int k) {
      return o.dims[o.dims.size() - static_cast<size_t>(k)];
    };
    SumShape s;
    s.channels = last(a, 1), s.filters = last(b, 1);
    s.w_apart = {1, s.filters};
    s.x_apart = {s.channels, 1};
    FERRULE_TRY(per_filter(s));
    const bool one = b.numel() == s.channels * s.filters;
    s.images = one ? a.numel() / s.channels : last(a, 2);
    IntegerBatch batch{{{0, 0}}};
    if (!one) batch.offsets = matrices(y, a, b);
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) {
      if (in(slots_.x_zero).numel() != s.images || in(slots_.x_zero).rank() != 1 || a.rank() != 2)
        return refuse("zero points of another form");
      batch.row_zeros = true;
    }
    if (has_bytes() && one && !batch.row_zeros && b.constant && a.slot >= 0)
      if (auto made = bytes(s)) return made;
    return make_integer_words(call_, std::move(s), slots_, std::move(batch));
  }

 private:
  bool has(int slot) const {
    return slot >= 0 && call_.own_input(static_cast<size_t>(slot)) != nullptr;
  }
  const Operand& in(int slot) const { return call_.inputs[static_cast<size_t>(slot)]; }
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(call_.layer), call_.node->op.text(), why);
  }
  /// Bytes are multiplied and summed in 32 bits; older instructions saturate in 16.
  bool has_bytes() const {
    constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_vnni);
    return (!context_.target || context_.target->has_isa("avx512f")) &&
           (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  }
  Applicable<KernelPtr> bytes(const SumShape& s) const {
    return guard(call_, "integer product", [&]() -> Applicable<KernelPtr> {
      KernelPtr kernel = make_integer_bytes(context_, call_, s, slots_);
      if (kernel->text().find("ref") != std::string::npos) return refuse("the library's reference");
      return kernel;
    });
  }

  Applicable<> operands() const {
    if (!call_.dense() || !call_.post_ops.empty()) return refuse("slices or a tail");
    for (int k : {slots_.x, slots_.w})
      if (!eight_bits(in(k).dtype) || in(k).numel() == 0) return refuse("no integers of 8 bits");
    if (call_.outputs[0].numel() == 0) return refuse("an empty result");
    for (int k : {slots_.x_zero, slots_.w_zero, slots_.y_zero})
      if (has(k) && !eight_bits(in(k).dtype)) return refuse("zero points of another type");
    for (int k : {slots_.x_scale, slots_.w_scale, slots_.y_scale})
      if (has(k) && in(k).dtype != DType::f32 && in(k).dtype != DType::f16 &&
          in(k).dtype != DType::bf16)
        return refuse("scales of another type");
    for (int k : {slots_.x_scale, slots_.y_scale, slots_.y_zero})
      if (has(k) && in(k).numel() != 1) return refuse("scales of rows");
    if (!slots_.quantizes()) return {};
    if (has(slots_.x_zero) && in(slots_.x_zero).numel() != 1) return refuse("zero points of rows");
    return {};
  }
  /// What there is one of for each filter.
  Applicable<> per_filter(const SumShape& s) const {
    if (s.depth() > kMostDepth) return refuse("sums that do not fit into 32 bits");
    for (int k : {slots_.w_zero, slots_.w_scale, slots_.bias})
      if (has(k) && in(k).numel() != 1 && (in(k).numel() != s.all_filters() || in(k).rank() != 1))
        return refuse("scales or zero points of another form");
    if (has(slots_.bias) &&
        (in(slots_.bias).dtype != DType::i32 || in(slots_.bias).numel() != s.all_filters()))
      return refuse("a bias of another form");
    return {};
  }
  /// Where the matrices of a product of several lie.
  static std::vector<std::array<int64_t, 2>> matrices(const Operand& y, const Operand& a,
                                                      const Operand& b) {
    std::vector<std::array<int64_t, 2>> all;
    const auto step = [](const Operand& o) { return strides_of(o.dims, Layout::plain); };
    const auto of_a = step(a), of_b = step(b);
    const size_t outer = y.dims.size() - 2;
    int64_t count = 1;
    for (size_t k = 0; k < outer; ++k) count *= y.dims[k];
    const auto along = [&](const Operand& o, const std::vector<int64_t>& apart, size_t k,
                           int64_t i) -> int64_t {
      const size_t missing = y.dims.size() - o.dims.size();
      return k < missing || o.dims[k - missing] == 1 ? 0 : i * apart[k - missing];
    };
    for (int64_t n = 0; n < count; ++n) {
      std::array<int64_t, 2> at{};
      int64_t rest = n;
      for (size_t k = outer; k-- > 0; rest /= y.dims[k]) {
        at[0] += along(a, of_a, k, rest % y.dims[k]);
        at[1] += along(b, of_b, k, rest % y.dims[k]);
      }
      all.push_back(at);
    }
    return all;
  }

  Context& context_;
  const KernelCall& call_;
  const IntegerSlots& slots_;
};

}  // namespace

Applicable<KernelPtr> make_conv_integer(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kInteger).convolution();
}
Applicable<KernelPtr> make_qlinear_conv(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kQLinear).convolution();
}
Applicable<KernelPtr> make_matmul_integer(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kInteger).product();
}
Applicable<KernelPtr> make_qlinear_matmul(Context& context, const KernelCall& call) {
  return IntegerTaker(context, call, kQLinear).product();
}

}  // namespace ferrule::cpu
