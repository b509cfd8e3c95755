// Runs one library kernel on the stubs of cuDNN and cuBLASLt, on host memory, against the
// interpreter in double.
#pragma once
#include <dlfcn.h>
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "engine/base/diagnostics.h"
#include "engine/base/tolerance.h"
#include "engine/interpreter/interpreter.h"
#include "runtime/cuda/kernel.h"
#include "runtime/cuda/libraries.h"
#include "tests/support/paths.h"
#include "tests/unit/codegen/kernel_case.h"
#include "tests/unit/codegen/post_op_meaning.h"
#include "tests/unit/codegen/shipped_operators.h"
#include "tests/unit/codegen/work_of_node.h"

namespace ferrule::cuda::test {

using ferrule::test::Dims;
using ferrule::test::numel;

/// The stubs under their real names, so that opening a library by name finds them; false where they
/// are not built.
inline bool stubs() {
  static const bool there = [] {
    bool all = true;
    for (const char* file : {"libcudnn.so.9", "libcublasLt.so.13"})
      all = dlopen((build_dir() + "/stub/" + file).c_str(), RTLD_NOW | RTLD_GLOBAL) && all;
    return all;
  }();
  return there;
}

/// Whether this build has neither the libraries' calls nor stubs of them, for want of their
/// headers; a test that returns then has been skipped, and this has said so.
inline bool left_out() {
#ifdef FERRULE_LIBRARY_STUBS
  return false;
#else
  MESSAGE("skipped, built without the headers of cuDNN or cuBLASLt");
  return true;
#endif
}

/// Constants are where they are.
class HostConstants final : public Constants {
 public:
  Result<Address> plain(const Tensor& t) override { return reinterpret_cast<Address>(t.data()); }
  Result<Address> derive(const Tensor&, std::string_view, int64_t bytes,
                         const std::function<void(void*)>& fill) override {
    kept_.push_back(std::make_unique<std::vector<std::max_align_t>>(
        static_cast<size_t>(bytes) / sizeof(std::max_align_t) + 1));
    fill(kept_.back()->data());
    return reinterpret_cast<Address>(kept_.back()->data());
  }

 private:
  std::vector<std::unique_ptr<std::vector<std::max_align_t>>> kept_;
};

inline Device& no_device() {
  static char storage;  // never looked at: the stubs know one device
  return reinterpret_cast<Device&>(storage);
}

class Harness final : public Binder, public ferrule::test::WithTail {
 public:
  explicit Harness(std::string op, DType dtype = DType::f32) : dtype_(dtype) {
    node.op = std::move(op);
    call.layer = "layer \"test\"";
    target.name = "sm_90";
    target.device = "gpu";
    target.cc = 9.0;
  }
  Node node;
  KernelCall call;
  Target target;
  const Tuning* tuning = nullptr;

  Tensor random(const Dims& dims) {
    std::uniform_real_distribution<double> d(-1, 1);
    Tensor f = Tensor::of_f32(dims, [&] {
      std::vector<float> v(static_cast<size_t>(numel(dims)));
      for (float& x : v) x = static_cast<float>(d(engine_));
      return v;
    }());
    return dtype_ == DType::f32 ? f : cast(f, dtype_);
  }
  void input(const Dims& dims, Layout layout = Layout::plain) {
    add(random(dims), layout);
    node.inputs.push_back(ValueId{static_cast<uint32_t>(node.inputs.size())});
  }
  void input(Tensor value) { add(std::move(value), Layout::plain); }
  void constant(const Dims& dims) {
    values_.push_back(std::make_unique<Tensor>(random(dims)));
    call.inputs.push_back({dtype_, dims, Layout::plain, -1, values_.back().get()});
    node.inputs.push_back(ValueId{static_cast<uint32_t>(node.inputs.size())});
  }
  int operand(const Dims& dims, Layout layout = Layout::plain) {
    add(random(dims), layout);
    return static_cast<int>(call.inputs.size()) - 1;
  }

  /// What the interpreter and the tail's formulas give, in double; also sets the output's dims.
  std::vector<double> expected(Layout layout) {
    Graph g;
    InterpreterOptions options;
    options.ops = &ferrule::test::operators();
    options.limits = &limits_;
    options.f64 = true;
    std::vector<const Tensor*> in;
    for (size_t k = 0; k < node.inputs.size(); ++k)
      in.push_back(call.inputs[k].present() ? values_of_[k] : nullptr);
    auto got = interpret_node(g, node, in, options);
    REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
    std::vector<double> out = result((*got)[0], layout);
    for (const PostOp& op : post_ops) apply(op, (*got)[0].dims(), out);
    return out;
  }

  /// The same for a whole graph, whose inputs are the call's.
  std::vector<double> expected(const Graph& g, std::span<const Tensor> inputs) {
    InterpreterOptions options;
    options.ops = &ferrule::test::operators();
    options.limits = &limits_;
    options.f64 = true;
    auto got = interpret(g, inputs, options);
    REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
    return result((*got)[0], Layout::plain);
  }

  Applicable<KernelPtr> make() { return make(library_factory(ferrule::test::work_of_node(node))); }
  template <class Make>
  Applicable<KernelPtr> make(Make&& of) {
    REQUIRE(stubs());
    call.node = &node;
    call.work = ferrule::test::work_of_node(node);
    call.post_ops = post_ops;
    Context context{no_device(), libraries, constants, nullptr, &target, &limits_};
    context.tuning = tuning;
    return of(context, call);
  }

  /// Makes, binds, runs, compares.
  void check(Layout layout = Layout::plain) {
    const std::vector<double> want = expected(layout);
    auto kernel = make();
    REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
    run(**kernel);
    compare(want);
  }
  void run(Kernel& kernel) {
    scratch_ = fresh(kernel.scratch_bytes());
    auto bound = kernel.bind(*this);
    REQUIRE_MESSAGE(bound.has_value(), (bound ? "" : render(bound.error())));
    auto ran = kernel.enqueue(nullptr);
    REQUIRE_MESSAGE(ran.has_value(), (ran ? "" : render(ran.error())));
  }
  void compare(const std::vector<double>& want) {
    const Operand& y = call.outputs[0];
    const Dims strides = y.strides();
    const Tolerance t = model_tolerance(dtype_);
    double largest = 1;
    for (double w : want) largest = std::max(largest, std::fabs(w));
    Tensor raw(dtype_, {static_cast<int64_t>(want.size())}, nullptr,
               buffers_[static_cast<size_t>(y.slot)].data());
    Dims at(y.dims.size(), 0);
    int wrong = 0;
    for (size_t k = 0; k < want.size(); ++k) {
      int64_t offset = 0;
      for (size_t a = 0; a < at.size(); ++a) offset += at[a] * strides[a];
      const double got = raw.at_f64(offset);
      if (!(std::fabs(got - want[k]) <= t.relative * std::fabs(want[k]) + t.absolute * largest) &&
          ++wrong < 4)
        CHECK_MESSAGE(false, k, ": ", got, " for ", want[k]);
      for (size_t a = at.size(); a-- > 0 && ++at[a] == y.dims[a];) at[a] = 0;
    }
    CHECK(wrong == 0);
  }

  Address slot(int slot) override {
    return reinterpret_cast<Address>(buffers_[static_cast<size_t>(slot)].data());
  }
  Address scratch() override { return reinterpret_cast<Address>(scratch_.data()); }
  Libraries libraries;
  HostConstants constants;

 private:
  /// The values of a result, which becomes the call's.
  std::vector<double> result(const Tensor& y, Layout layout) {
    std::vector<double> out;
    for (int64_t k = 0; k < y.numel(); ++k) out.push_back(y.at_f64(k));
    call.outputs = {{dtype_, y.dims(), layout, static_cast<int>(buffers_.size()), nullptr}};
    buffers_.push_back(fresh(call.outputs[0].bytes()));
    return out;
  }

  using Buffer = std::vector<char>;
  static Buffer fresh(int64_t bytes) { return Buffer(static_cast<size_t>(bytes) + 64, 0x7f); }

  static Tensor cast(const Tensor& t, DType to);
  void add(Tensor t, Layout layout) {
    values_.push_back(std::make_unique<Tensor>(std::move(t)));
    const Tensor& v = *values_.back();
    Operand o{dtype_, v.dims(), layout, static_cast<int>(buffers_.size()), nullptr};
    buffers_.push_back(fresh(o.bytes()));
    const Dims strides = o.strides();
    const auto size = static_cast<size_t>(size_bits(dtype_) / 8);
    Dims at(o.dims.size(), 0);
    for (int64_t k = 0; k < v.numel(); ++k) {
      int64_t offset = 0;
      for (size_t a = 0; a < at.size(); ++a) offset += at[a] * strides[a];
      std::memcpy(buffers_.back().data() + static_cast<size_t>(offset) * size,
                  static_cast<const char*>(v.data()) + static_cast<size_t>(k) * size, size);
      for (size_t a = at.size(); a-- > 0 && ++at[a] == o.dims[a];) at[a] = 0;
    }
    call.inputs.push_back(o);
  }

  void apply(const PostOp& op, const Dims& dims, std::vector<double>& out) {
    const Tensor* t = op.operand >= 0 ? values_of_[static_cast<size_t>(op.operand)] : nullptr;
    Dims at(dims.size(), 0);
    for (double& x : out) {
      double y = 0;
      if (t) {
        int64_t offset = 0;
        const Dims own = strides_of(t->dims(), Layout::plain);
        const size_t skip = dims.size() - own.size();
        for (size_t a = 0; a < own.size(); ++a)
          offset += t->dims()[a] == 1 ? 0 : at[a + skip] * own[a];
        y = t->at_f64(offset);
      }
      x = apply_post_op(op, x, y);
      for (size_t a = at.size(); a-- > 0 && ++at[a] == dims[a];) at[a] = 0;
    }
  }

  /// The tensors of call.inputs, in order.
  struct Values {
    const Harness* h;
    const Tensor* operator[](size_t k) const { return h->values_[k].get(); }
  } values_of_{this};

  DType dtype_;
  Limits limits_;
  std::mt19937 engine_{7};
  std::vector<std::unique_ptr<Tensor>> values_;
  std::vector<Buffer> buffers_;
  Buffer scratch_;
};

inline Tensor Harness::cast(const Tensor& t, DType to) {
  Node n;
  n.op = "Cast";
  n.attrs.set("to", Attr(int64_t{to == DType::f16 ? 10 : 16}));
  Graph g;
  static const Limits limits;
  InterpreterOptions options;
  options.ops = &ferrule::test::operators();
  options.limits = &limits;
  const Tensor* in[] = {&t};
  auto got = interpret_node(g, n, in, options);
  REQUIRE_MESSAGE(got.has_value(), (got ? "" : render(got.error())));
  REQUIRE((*got)[0].dtype() == to);
  return (*got)[0];
}

}  // namespace ferrule::cuda::test
