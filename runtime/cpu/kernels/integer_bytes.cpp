// Sums of products of 8-bit integers by oneDNN, where the processor multiplies bytes without
// saturating on the way.
#include <cstring>

#include "runtime/cpu/kernels/integer_sums.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int kLanes = 16;  ///< loops of a known length become vectors

/// sums -= factor · of, element by element.
__attribute__((target_clones("avx512f", "avx2", "default"))) void subtract(
    int32_t* __restrict sums, const int32_t* __restrict of, int32_t factor, int64_t n) {
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int i = 0; i < kLanes; ++i) sums[k + i] -= factor * of[k + i];
  for (; k < n; ++k) sums[k] -= factor * of[k];
}

/// oneDNN's sums. Filters of u8 are moved into i8, and zero points that are left cost one filter of
/// ones more a group: sum (x - zx)(w - zw) = sum (x - zx) w - zw sum (x - zx).
class Bytes final : public Integers {
 public:
  Bytes(Context& context, const KernelCall& call, SumShape shape, const IntegerSlots& slots)
      : Integers(call, std::move(shape), slots), library_(context.library) {
    moved_ = in(slots_.w).dtype == DType::u8 ? 128 : 0;
    extra_ = needs_extra();
    const int64_t filters = shape_.all_filters();
    per_group_ = shape_.filters + (extra_ ? 1 : 0);
    direct_ = !extra_ && !slots_.quantizes();
    if (extra_) {
      zeros_of_w_.resize(static_cast<size_t>(filters));
      if (!has(slots_.w_zero) || in(slots_.w_zero).constant) read_zeros_of_w();
    }
    if (shape_.in.empty()) {
      columns_.resize(static_cast<size_t>(filters));
      make_product();
    } else {
      make_convolution();
    }
  }

  std::string text() const override { return text_; }
  int64_t scratch_bytes() const override { return sums_bytes() + library_scratch_; }
  void bind(Binder& binder) override {
    Integers::bind(binder);
    auto* scratch = static_cast<char*>(binder.scratch());
    binder.memory(in(slots_.x).slot, source_.get());
    if (direct_)
      binder.memory(out_.slot, sums_.get());
    else
      sums_.set_data_handle(scratch);
    if (library_scratch_) scratchpad_.set_data_handle(scratch + sums_bytes());
    where_ = reinterpret_cast<int32_t*>(scratch);
  }

  Status run() override {
    const OneKernel one;
    begin();
    zero_of_x_ = integer(slots_.x_zero, 0);
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), library_.stream.get(),
                               static_cast<int>(arguments_.size()), arguments_.data());
    if (status != dnnl_success)
      return error(Code::library_failed, text_, "oneDNN",
                   fmt::format("status {}", static_cast<int>(status)));
    if (extra_ && has(slots_.w_zero) && !in(slots_.w_zero).constant) read_zeros_of_w();
    const bool moves = !columns_.empty() && zero_of_x_;
    if (direct_ && !moves) return {};
    const int64_t each = shape_.groups * per_group_, filters = shape_.filters;
    parallel_for(shape_.pixels(), 1 + kGrain / (each + 1), [&](int64_t begin, int64_t end) {
      if (!extra_ && !moves)
        return finish(where_ + begin * each, begin * each, 0, (end - begin) * each);
      for (int64_t p = begin; p < end; ++p) {
        int32_t* sums = (direct_ ? static_cast<int32_t*>(result_) : where_) + p * each;
        if (moves) subtract(sums, columns_.data(), zero_of_x_, filters);
        if (!extra_) {
          finish(sums, p * each, 0, shape_.all_filters());
          continue;
        }
        for (int64_t g = 0; g < shape_.groups; ++g, sums += per_group_) {
          const int32_t all = sums[filters] - (moves ? zero_of_x_ * whole_depth() : 0);
          subtract(sums, zeros_of_w_.data() + g * filters, all, filters);
          finish(sums, (p * shape_.groups + g) * filters, g * filters, filters);
        }
      }
    });
    return {};
  }

 private:
  void read_zeros_of_w() {
    for (size_t m = 0; m < zeros_of_w_.size(); ++m)
      zeros_of_w_[m] = integer(slots_.w_zero, static_cast<int64_t>(m)) - moved_;
  }
  int32_t whole_depth() const { return static_cast<int32_t>(shape_.depth()); }
  int64_t sums_bytes() const {
    return direct_ ? 0 : (shape_.pixels() * shape_.groups * per_group_ * 4 + 63) / 64 * 64;
  }
  bool needs_extra() const {
    if (!has(slots_.w_zero)) return moved_ != 0;
    const Operand& zero = in(slots_.w_zero);
    if (!zero.constant) return true;
    for (int64_t k = 0; k < zero.numel(); ++k)
      if (integer(slots_.w_zero, k) != moved_) return true;
    return false;
  }

  /// Filters as i8, dense: groups, filters, channels, taps.
  std::vector<int8_t> filters_as_bytes() {
    const Operand& w = in(slots_.w);
    std::vector<int8_t> all;
    all.reserve(static_cast<size_t>(shape_.groups * per_group_ * shape_.depth()));
    for (int64_t m = 0; m < shape_.all_filters(); ++m) {
      for (int64_t c = 0; c < shape_.channels; ++c)
        each_tap(shape_, shape_.w_apart, [&](const auto&, int64_t tap) {
          const int v = integer_at(w.dtype, data(slots_.w),
                                   m * shape_.w_apart[0] + c * shape_.w_apart[1] + tap);
          all.push_back(static_cast<int8_t>(v - moved_));
        });
      if (extra_ && (m + 1) % shape_.filters == 0)
        all.insert(all.end(), static_cast<size_t>(shape_.depth()), int8_t{1});
    }
    return all;
  }

  void make_product() {
    using enum memory::data_type;
    const int64_t depth = shape_.depth(), rows = shape_.images;
    const memory::desc x({rows, depth}, *data_type(in(slots_.x).dtype),
                         memory::dims{shape_.x_apart[0], 1});
    const memory::desc any({depth, per_group_}, s8, memory::format_tag::any);
    const memory::desc sums({rows, per_group_}, s32, memory::dims{per_group_, 1});
    const dnnl::matmul::primitive_desc desc(library_.engine, x, any, sums, attributes());
    // Filters lie one behind the other: columns of the product's second operand.
    const memory::desc plain({depth, per_group_}, s8, memory::dims{1, depth});
    const Packed filters = weights(plain, desc.weights_desc());
    sum_columns();
    assemble(desc, dnnl::matmul(desc), x, filters);
  }
  void sum_columns() {
    const Operand& w = in(slots_.w);
    for (size_t m = 0; m < columns_.size(); ++m)
      for (int64_t c = 0; c < shape_.channels; ++c)
        columns_[m] +=
            integer_at(w.dtype, data(slots_.w),
                       static_cast<int64_t>(m) * shape_.w_apart[0] + c * shape_.w_apart[1]) -
            moved_;
  }

  void make_convolution() {
    using enum memory::data_type;
    const auto with = [&](std::vector<int64_t> first, const std::vector<int64_t>& rest) {
      first.insert(first.end(), rest.begin(), rest.end());
      return first;
    };
    const memory::desc x = image_desc(in(slots_.x));
    std::vector<int64_t> dims = with({per_group_, shape_.channels}, shape_.kernel);
    if (shape_.groups > 1) dims.insert(dims.begin(), shape_.groups);
    Operand y = out_;
    y.dtype = DType::i32, y.layout = Layout::channels_last;
    y.dims = with({shape_.images, shape_.groups * per_group_}, shape_.out);
    dnnl::primitive_attr attr = attributes();
    const bool moves =
        has(slots_.x_zero) && !(in(slots_.x_zero).constant && !integer(slots_.x_zero, 0));
    if (moves) attr.set_zero_points_mask(DNNL_ARG_SRC, 0);
    const dnnl::convolution_forward::primitive_desc desc(
        library_.engine, dnnl::prop_kind::forward_inference, dnnl::algorithm::convolution_direct, x,
        memory::desc(dims, s8, memory::format_tag::any), image_desc(y), shape_.steps,
        shape_.dilations, shape_.before, shape_.after, attr);
    const memory::desc plain(dims, s8, strides_of(dims, Layout::plain));
    assemble(desc, dnnl::convolution_forward(desc), x, weights(plain, desc.weights_desc()));
    if (!moves) return;
    zero_memory_ =
        memory(memory::desc({1}, s32, memory::format_tag::a), library_.engine, &zero_of_x_);
    arguments_.push_back({DNNL_ARG_ATTR_ZERO_POINTS | DNNL_ARG_SRC, zero_memory_.get()});
  }

  static dnnl::primitive_attr attributes() {
    dnnl::primitive_attr attr;
    attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    return attr;
  }

  Packed weights(const memory::desc& plain, const memory::desc& packed) {
    const std::string recipe = fmt::format(
        "bytes {} {} {} {} {} {} {}", extra_, in(slots_.x).dtype == DType::u8, packed.get_size(),
        fmt::join(plain.get_strides(), ","), fmt::join(packed.get_strides(), ","),
        fmt::join(packed.get_inner_blks(), ","), fmt::join(packed.get_inner_idxs(), ","));
    const auto bytes = static_cast<int64_t>(packed.get_size());
    return library_.derive(*in(slots_.w).constant, recipe, bytes, [&](void* to) {
      std::vector<int8_t> all = filters_as_bytes();
      std::memset(to, 0, static_cast<size_t>(bytes));
      memory source(plain, library_.engine, all.data()), target(packed, library_.engine, to);
      dnnl::reorder(source, target).execute(library_.stream, source, target);
      library_.stream.wait();
    });
  }

  template <class Desc>
  void assemble(const Desc& desc, dnnl::primitive primitive, const memory::desc& x,
                const Packed& filters) {
    primitive_ = std::move(primitive);
    text_ = desc.impl_info_str();
    packed_ = filters;
    source_ = memory(x, library_.engine, nullptr);
    weights_ = memory(desc.weights_desc(), library_.engine, const_cast<void*>(packed_.data));
    sums_ = memory(desc.dst_desc(), library_.engine, nullptr);
    arguments_ = {{DNNL_ARG_SRC, source_.get()},
                  {DNNL_ARG_WEIGHTS, weights_.get()},
                  {DNNL_ARG_DST, sums_.get()}};
    library_scratch_ = static_cast<int64_t>(desc.scratchpad_desc().get_size());
    if (!library_scratch_) return;
    scratchpad_ = memory(desc.scratchpad_desc(), library_.engine, nullptr);
    arguments_.push_back({DNNL_ARG_SCRATCHPAD, scratchpad_.get()});
  }

  Library& library_;
  int moved_ = 0;        ///< what the filters are less than the model's
  bool extra_ = false;   ///< a filter of ones behind each group's
  bool direct_ = false;  ///< sums are the result
  int64_t per_group_ = 0, library_scratch_ = 0;
  std::vector<int32_t> columns_;     ///< of products: sums of filters, for the zero point of x
  std::vector<int32_t> zeros_of_w_;  ///< less moved_; of the filters with an extra one
  int32_t zero_of_x_ = 0;
  dnnl::primitive primitive_;
  std::string text_;
  Packed packed_;
  memory source_, weights_, sums_, zero_memory_, scratchpad_;
  std::vector<dnnl_exec_arg_t> arguments_;
  int32_t* where_ = nullptr;
};

}  // namespace

KernelPtr make_integer_bytes(Context& context, const KernelCall& call, SumShape shape,
                             const IntegerSlots& slots) {
  return std::make_unique<Bytes>(context, call, std::move(shape), slots);
}

}  // namespace ferrule::cpu
