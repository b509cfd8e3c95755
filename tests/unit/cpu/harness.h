// Runs one CPU kernel on its own: operands are random tensors in logical order, laid out as the
// test says, and the result comes back in logical order, to be compared with a plain loop.
#pragma once
#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <random>

#include "engine/graph/compare.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"
#include "tests/unit/codegen/kernel_case.h"
#include "tests/unit/codegen/shipped_operators.h"
#include "tests/unit/codegen/work_of_node.h"

namespace ferrule::cpu::test {

using ferrule::test::Dims;
using ferrule::test::numel;
using ferrule::test::operators;

constexpr float kInf = std::numeric_limits<float>::infinity(),
                kNan = std::numeric_limits<float>::quiet_NaN();

/// The CPU targets whose instructions are here, as far as kernels look at them.
inline std::vector<Target> targets() {
  std::vector<Target> all(1);
  all[0].name = "cpu-avx2";
  if (__builtin_cpu_supports("avx512f")) {
    all.push_back({});
    all[1].name = "cpu-avx512";
    all[1].isa = {"avx512f"};
  }
  return all;
}

/// The widest of them.
inline const Target& host() {
  static const Target target = targets().back();
  return target;
}

inline Tensor random_tensor(const Dims& dims, unsigned seed, float low = -1, float high = 1) {
  std::mt19937 engine(seed);
  std::uniform_real_distribution<float> d(low, high);
  std::vector<float> v(static_cast<size_t>(numel(dims)));
  for (float& x : v) x = d(engine);
  return Tensor::of_f32(dims, v);
}

/// Every index of `dims` in row-major order.
inline void each_index(const Dims& dims, const std::function<void(const Dims&, int64_t)>& f) {
  Dims i(dims.size(), 0);
  const int64_t n = numel(dims);
  for (int64_t k = 0; k < n; ++k) {
    f(i, k);
    for (size_t a = dims.size(); a-- > 0;) {
      if (++i[a] < dims[a]) break;
      i[a] = 0;
    }
  }
}

class Harness : public Binder, public ferrule::test::WithTail {
 public:
  Node node;
  Graph graph;
  PackCache packs;
  Library library{&packs};
  Limits limits;

  explicit Harness(std::string op) {
    node.op = std::move(op);
    call.layer = "test";
  }

  void input(const Tensor& t, Layout layout = Layout::plain) {
    Operand o{t.dtype(), t.dims(), layout, static_cast<int>(buffers_.size()), nullptr};
    buffers_.push_back(laid_out(o, t));
    call.inputs.push_back(o);
    node.inputs.push_back(graph.add_input(graph.fresh_name("x"), type_of(t.dtype(), t.dims())));
  }
  void constant(const Tensor& t) {
    constants_.push_back(std::make_unique<Tensor>(t));
    call.inputs.push_back({t.dtype(), t.dims(), Layout::plain, -1, constants_.back().get()});
    node.inputs.push_back(graph.add_constant(graph.fresh_name("c"), t));
  }
  void absent() {
    call.inputs.push_back({});
    node.inputs.push_back({});
  }
  /// An operand of a post-op, behind the node's own inputs.
  int operand(const Tensor& t, Layout layout = Layout::plain) {
    input(t, layout);
    node.inputs.pop_back();
    return static_cast<int>(call.inputs.size()) - 1;
  }
  void output(DType dtype, const Dims& dims, Layout layout = Layout::plain, int shares = -1) {
    Operand o{dtype, dims, layout, static_cast<int>(buffers_.size()), nullptr};
    if (shares >= 0) {
      o.slot = call.inputs[static_cast<size_t>(shares)].slot;
      call.sum_input = shares;
    } else {
      buffers_.push_back(std::vector<char>(static_cast<size_t>(o.bytes()) + 64, 0x7f));
    }
    call.outputs.push_back(o);
    node.outputs.push_back(graph.add_value(graph.fresh_name("y"), type_of(dtype, dims)));
  }

  Applicable<KernelPtr> make(Factory f) {
    call.node = &node;
    call.work = ferrule::test::work_of_node(node);
    call.graph = &graph;
    call.post_ops = post_ops;
    Context context{library, ops, target, &limits};
    context.strict = strict;
    auto kernel = f(context, call);
    if (!kernel) return kernel;
    bind(**kernel);
    return kernel;
  }
  void bind(Kernel& kernel) {
    scratch_.resize(static_cast<size_t>(kernel.scratch_bytes()) + 64);
    kernel.bind(*this);
  }

  /// Makes, binds and runs; output `k` in logical order.
  Tensor run(Factory f, size_t k = 0) {
    auto kernel = make(f);
    REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
    text = (*kernel)->text();
    auto status = (*kernel)->run();
    REQUIRE(status.has_value());
    return result(k);
  }
  Tensor result(size_t k = 0) const {
    const Operand& o = call.outputs[k];
    auto [t, p] = Tensor::allocate(o.dtype, o.dims);
    StridedCopy(o.dims, o.strides(), strides_of(o.dims, Layout::plain), size_bits(o.dtype) / 8)
        .run(at(o.slot), p);
    return t;
  }

  void cell(int slot, const void** where) override { *where = at(slot); }
  void cell(int slot, void** where) override { *where = at(slot); }
  void memory(int slot, dnnl_memory* m) override { dnnl_memory_set_data_handle(m, at(slot)); }
  void* scratch() override { return scratch_.data(); }

  KernelCall call;
  const Semantics* ops = nullptr;
  const Target* target = nullptr;  ///< for kernels that are generated
  bool strict = false;
  std::string text;

 private:
  static Type type_of(DType dtype, const Dims& d) { return {dtype, Shape(d.begin(), d.end())}; }
  void* at(int slot) const { return const_cast<char*>(buffers_[static_cast<size_t>(slot)].data()); }
  /// Element by element, so that the harness does not lean on the copy kernel.
  static std::vector<char> laid_out(const Operand& o, const Tensor& t) {
    std::vector<char> out(static_cast<size_t>(o.bytes()) + 64);
    const Dims strides = o.strides();
    const auto size = static_cast<size_t>(size_bits(o.dtype) / 8);
    each_index(o.dims, [&](const Dims& i, int64_t k) {
      int64_t at = 0;
      for (size_t a = 0; a < i.size(); ++a) at += i[a] * strides[a];
      std::memcpy(out.data() + static_cast<size_t>(at) * size,
                  static_cast<const char*>(t.data()) + static_cast<size_t>(k) * size, size);
    });
    return out;
  }

  std::vector<std::vector<char>> buffers_;
  std::vector<std::unique_ptr<Tensor>> constants_;
  std::vector<char> scratch_;
};

/// Every element within the tolerance that the table has for sums in another order. `allowed`:
/// another row of it, or {} for elements that must be equal.
inline void check_close(const Tensor& got, const std::vector<double>& want,
                        Tolerance allowed = kReordered) {
  REQUIRE(got.numel() == static_cast<int64_t>(want.size()));
  allowed.norm = allowed.relative, allowed.least = model_tolerance(DType::f32).least;
  const Difference d =
      compare(got, Tensor::of_f32(got.dims(), {want.begin(), want.end()}), allowed);
  CHECK_MESSAGE(d.ok, d.text);
}

/// A convolution of images, summed directly in double. Products outside the image are not made (0
/// times infinity).
inline std::vector<double> direct_sum(const Tensor& x, const Tensor& w, const Tensor* bias,
                                      const Dims& y, const Dims& pads, const Dims& strides = {1, 1},
                                      const Dims& dilations = {1, 1}, int64_t groups = 1) {
  const Dims &in = x.dims(), &filter = w.dims();
  std::vector<double> out;
  each_index(y, [&](const Dims& i, int64_t) {
    double sum = bias ? bias->at_f64(i[1]) : 0;
    const int64_t first = i[1] / (y[1] / groups) * filter[1];  // channel of the group
    for (int64_t c = 0; c < filter[1]; ++c)
      for (int64_t r = 0; r < filter[2]; ++r)
        for (int64_t t = 0; t < filter[3]; ++t) {
          const int64_t h = i[2] * strides[0] - pads[0] + r * dilations[0],
                        v = i[3] * strides[1] - pads[1] + t * dilations[1];
          if (h < 0 || v < 0 || h >= in[2] || v >= in[3]) continue;
          sum += x.at_f64(((i[0] * in[1] + first + c) * in[2] + h) * in[3] + v) *
                 w.at_f64(((i[1] * filter[1] + c) * filter[2] + r) * filter[3] + t);
        }
    out.push_back(sum);
  });
  return out;
}

}  // namespace ferrule::cpu::test
