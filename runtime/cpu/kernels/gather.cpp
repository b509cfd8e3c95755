// Gather with indices that are computed, or too irregular for pieces: for every index one strided
// copy of the slab it names, indices split over threads.
#include <algorithm>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

class Gather final : public Kernel {
 public:
  Gather(const KernelCall& call, size_t axis)
      : layer_(escape(call.layer)), axis_(static_cast<int64_t>(axis)) {
    const Operand &x = call.inputs[0], &index = call.inputs[1], &y = call.outputs[0];
    element_ = size_bits(x.dtype) / 8;
    const std::vector<int64_t> from = x.strides(), to = y.strides(), own = index.strides();
    // The slab: all axes of x but the gathered one; the result has the indices' axes in its place.
    std::vector<int64_t> dims, source, target;
    for (size_t k = 0; k < x.dims.size(); ++k) {
      if (k == axis) continue;
      dims.push_back(x.dims[k]);
      source.push_back(from[k]);
      target.push_back(to[k < axis ? k : k + index.dims.size() - 1]);
    }
    slab_ = StridedCopy(dims, source, target, element_);
    size_ = x.dims[axis];
    step_ = from[axis];
    count_ = index.numel();
    wide_ = index.dtype == DType::i64;
    for (size_t k = 0; k < index.dims.size(); ++k) {
      index_dims_.push_back(index.dims[k]);
      index_strides_.push_back(own[k]);
      target_strides_.push_back(to[axis + k]);
    }
    for (const Operand& o : call.inputs) {
      pointers_.push_back(o.constant ? const_cast<void*>(o.constant->data()) : nullptr);
      slots_.push_back(o.slot);
    }
    pointers_.push_back(nullptr);
    slots_.push_back(y.slot);
  }

  void bind(Binder& binder) override {
    for (size_t k = 0; k < slots_.size(); ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &pointers_[k]);
  }
  std::string text() const override { return std::string("gather:") + slab_.text(); }

  Status run() override {
    for (int64_t k = 0; k < count_; ++k)
      if (const int64_t i = place(k).first; i < -size_ || i >= size_)
        return error(
            Code::bad_shape, layer_,
            fmt::format("index {} is out of range for axis {} of size {}", i, axis_, size_));
    if (slab_.units() == 0) return count_kernel(), Status{};
    parallel_for(
        count_, std::max<int64_t>(1, kGrain / slab_.bytes()), [&](int64_t begin, int64_t end) {
          for (int64_t k = begin; k < end; ++k) {
            const auto [i, target] = place(k);
            slab_.run(
                static_cast<const char*>(pointers_[0]) + (i < 0 ? i + size_ : i) * step_ * element_,
                static_cast<char*>(pointers_.back()) + target * element_, 0, slab_.units());
          }
        });
    return {};
  }

 private:
  /// The k-th index, and where its slab begins in the result.
  std::pair<int64_t, int64_t> place(int64_t k) const {
    int64_t at = 0, target = 0;
    for (size_t d = index_dims_.size(); d-- > 0; k /= index_dims_[d]) {
      at += k % index_dims_[d] * index_strides_[d];
      target += k % index_dims_[d] * target_strides_[d];
    }
    if (wide_) return {static_cast<const int64_t*>(pointers_[1])[at], target};
    return {static_cast<const int32_t*>(pointers_[1])[at], target};
  }

  std::string layer_;
  int64_t axis_;
  int element_ = 1;
  StridedCopy slab_;
  int64_t size_ = 0, step_ = 0, count_ = 0;
  bool wide_ = true;
  std::vector<int64_t> index_dims_, index_strides_, target_strides_;
  std::vector<void*> pointers_;
  std::vector<int> slots_;
};

}  // namespace

Applicable<KernelPtr> make_gather(Context&, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  const Operand &x = call.inputs.at(0), &index = call.inputs.at(1);
  const int bits = size_bits(x.dtype);
  if (bits < 8 || bits % 8 || bits > 128 || (bits & (bits - 1))) return refuse(name(x.dtype));
  if (index.dtype != DType::i64 && index.dtype != DType::i32) return refuse("the indices' type");
  const int64_t axis = call.node->attrs.i("axis");
  if (axis < -x.rank() || axis >= x.rank()) return refuse("the axis");
  return std::make_unique<Gather>(call, static_cast<size_t>(axis < 0 ? axis + x.rank() : axis));
}

}  // namespace ferrule::cpu
