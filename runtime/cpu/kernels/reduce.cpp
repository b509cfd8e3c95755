// Sum, mean, maximum and minimum over axes that are neighbours in memory: the tensor is [outer, reduced, inner]
// and walked once. Other axes are refused (and interpreted).
#include <algorithm>
#include <limits>

#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

enum class Kind : uint8_t { sum, mean, max, min };

/// The ONNX meaning of maximum and minimum: NaN wins.
inline float larger(float a, float b) { return b > a || b != b ? b : a; }
inline float smaller(float a, float b) { return b < a || b != b ? b : a; }

/// Independent partial results, so that additions overlap and errors do not pile up in one of them.
constexpr int64_t kLanes = 16;

template <class Op>
float fold_row(const float* x, int64_t n, float start, Op op) {
  float lanes[kLanes];
  std::fill_n(lanes, kLanes, start);
  int64_t k = 0;
  for (; k + kLanes <= n; k += kLanes)
    for (int64_t j = 0; j < kLanes; ++j) lanes[j] = op(lanes[j], x[k + j]);
  for (; k < n; ++k) lanes[k % kLanes] = op(lanes[k % kLanes], x[k]);
  for (int64_t half = kLanes / 2; half; half /= 2)
    for (int64_t j = 0; j < half; ++j) lanes[j] = op(lanes[j], lanes[j + half]);
  return lanes[0];
}

template <class Op>
void fold_columns(const float* x, float* y, int64_t rows, int64_t stride, int64_t count, float start, Op op) {
  std::fill_n(y, count, start);
  for (int64_t r = 0; r < rows; ++r, x += stride)
    for (int64_t k = 0; k < count; ++k) y[k] = op(y[k], x[k]);
}

class Reduce final : public Kernel {
 public:
  Reduce(Kind kind, int64_t outer, int64_t reduced, int64_t inner, const Operand& x, int y_slot)
      : kind_(kind), outer_(outer), reduced_(reduced), inner_(inner), x_slot_(x.slot), y_slot_(y_slot) {
    if (x.constant) x_ = x.constant->data();
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
  }
  std::string text() const override { return "reduce"; }
  Status run() override {
    switch (kind_) {
      case Kind::sum:
      case Kind::mean: walk(0.0f, [](float a, float b) { return a + b; }); break;
      case Kind::max: walk(-std::numeric_limits<float>::infinity(), larger); break;
      case Kind::min: walk(std::numeric_limits<float>::infinity(), smaller); break;
    }
    return {};
  }

 private:
  template <class Op>
  void walk(float start, Op op) const {
    constexpr int64_t kBlock = 256;
    const int64_t blocks = (inner_ + kBlock - 1) / kBlock;
    const int64_t grain = std::max<int64_t>(1, 32768 / std::max<int64_t>(1, reduced_ * std::min(inner_, kBlock)));
    parallel_for(outer_ * blocks, grain, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) {
        const int64_t o = k / blocks, i = k % blocks * kBlock, count = std::min(kBlock, inner_ - i);
        const float* x = static_cast<const float*>(x_) + o * reduced_ * inner_ + i;
        float* y = static_cast<float*>(y_) + o * inner_ + i;
        if (inner_ == 1) *y = fold_row(x, reduced_, start, op);
        else fold_columns(x, y, reduced_, inner_, count, start, op);
        if (kind_ != Kind::mean) continue;
        for (int64_t j = 0; j < count; ++j) y[j] /= static_cast<float>(reduced_);
      }
    });
  }

  Kind kind_;
  int64_t outer_, reduced_, inner_;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
};

/// Reduced axes from the second input (newest form) or the attribute; sorted, none negative.
Result<std::vector<int64_t>> axes_of(const Call& call) {
  const Operand& x = call.inputs[0];
  std::vector<int64_t> axes = call.node->attrs.ints("axes");
  if (call.inputs.size() > 1 && call.inputs[1].present()) {
    if (!call.inputs[1].constant)
      return error(Code::unsupported_operator, escape(call.layer), call.node->op, "the axes are not constant");
    axes = call.inputs[1].constant->to_i64();
  }
  for (int64_t& a : axes) {
    if (a < 0) a += x.rank();
    if (a < 0 || a >= x.rank()) return error(Code::bad_attribute, escape(call.layer), "axes", "no axis of the input");
  }
  if (axes.empty() && !call.node->attrs.i("noop_with_empty_axes"))
    for (int k = 0; k < x.rank(); ++k) axes.push_back(k);
  std::sort(axes.begin(), axes.end());
  axes.erase(std::unique(axes.begin(), axes.end()), axes.end());
  return axes;
}

}  // namespace

Result<KernelPtr> make_reduce(Context&, const Call& call) {
  const Operand& x = call.inputs[0];
  if (x.dtype != DType::f32)
    return error(Code::unsupported_operator, escape(call.layer), call.node->op, name(x.dtype));
  FERRULE_ASSIGN(auto axes, axes_of(call));
  // Axes in memory order; those of size 1 do not count.
  std::vector<size_t> order;
  for (size_t k = 0; k < x.dims.size(); ++k)
    if (!(x.layout == Layout::channels_last && k == 1)) order.push_back(k);
  if (x.layout == Layout::channels_last && x.rank() > 1) order.push_back(1);
  int64_t sizes[3] = {1, 1, 1};
  int stage = 0;
  for (size_t axis : order) {
    if (x.dims[axis] == 1) continue;
    const bool reduced = std::binary_search(axes.begin(), axes.end(), static_cast<int64_t>(axis));
    if (reduced && stage == 0) stage = 1;
    if (!reduced && stage == 1) stage = 2;
    if (reduced && stage == 2)
      return error(Code::unsupported_operator, escape(call.layer), call.node->op, "axes that are not neighbours");
    sizes[stage] *= x.dims[axis];
  }
  const std::string& op = call.node->op;
  const Kind kind = op == "ReduceSum" ? Kind::sum : op == "ReduceMean" ? Kind::mean : op == "ReduceMax" ? Kind::max : Kind::min;
  return std::make_unique<Reduce>(kind, sizes[0], sizes[1], sizes[2], x, call.outputs[0].slot);
}

}  // namespace ferrule::cpu
