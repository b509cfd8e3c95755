// MatMul and Gemm through cuBLASLt: an addend a column and one as large as the result inside, relu
// or gelu behind them. A batch of rows against one matrix is one product of all rows; batches that
// one step does not describe are several calls.
#include <algorithm>
#include <numeric>

#include "engine/base/diagnostics.h"
#include "engine/contract/broadcast.h"
#include "engine/contract/library_tail.h"
#include "runtime/cuda/cublaslt.h"
#include "runtime/cuda/cudnn_kernel.h"
#include "runtime/cuda/host_copy.h"
#include "runtime/cuda/libraries.h"
#include "runtime/gpu_steps.h"

namespace ferrule::cuda {
namespace {

/// Matrices under leading axes, as strides.
struct View {
  std::vector<int64_t> dims, strides;
  int64_t rows() const { return dims[dims.size() - 2]; }
  int64_t columns() const { return dims.back(); }
  int64_t row() const { return strides[strides.size() - 2]; }
  void add_outer(size_t rank) {
    while (dims.size() < rank) {
      strides.insert(strides.begin(), dims.empty() ? 1 : dims[0] * strides[0]);
      dims.insert(dims.begin(), 1);
    }
  }
};

/// An operand of the product: where it is, and which bytes of it.
struct Source {
  int slot = -1;
  Address constant = 0;
  bool present() const { return slot >= 0 || constant; }
};

class MatmulKernel final : public Kernel, public Tunable {
 public:
  MatmulKernel(std::unique_ptr<CublasltProduct> product, std::string problem)
      : product_(std::move(product)), problem_(std::move(problem)) {}
  /// Byte offsets of one call's operands.
  struct Part {
    int64_t a = 0, b = 0, c = 0, y = 0;
  };
  Source a, b, c, bias, y;
  std::vector<Part> parts;

  int64_t scratch_bytes() const override { return product_->workspace_bytes(); }
  Status bind(Binder& binder) override {
    auto at = [&](const Source& s) { return s.slot >= 0 ? binder.slot(s.slot) : s.constant; };
    calls_.clear();
    for (const Part& p : parts) {
      auto pointer = [&](const Source& s, int64_t offset) -> void* {
        return s.present() ? reinterpret_cast<void*>(at(s) + static_cast<Address>(offset))
                           : nullptr;
      };
      calls_.push_back(
          {pointer(a, p.a), pointer(b, p.b), pointer(c, p.c), pointer(bias, 0), pointer(y, p.y)});
    }
    workspace_ =
        product_->workspace_bytes() > 0 ? reinterpret_cast<void*>(binder.scratch()) : nullptr;
    return {};
  }
  Status enqueue(Stream stream) override {
    for (const ProductAddresses& at : calls_)
      FERRULE_TRY(counted(product_->execute(stream, at, workspace_)));
    return {};
  }
  bool of_library() const override { return true; }
  std::string text() const override {
    return calls_.size() > 1 ? fmt::format("cublaslt:{} x{}", chosen_, calls_.size())
                             : "cublaslt:" + chosen_;
  }

  std::string problem() const override { return problem_; }
  std::vector<std::string> candidates() const override { return product_->plans(); }
  std::string chosen() const override { return chosen_; }
  Applicable<> choose(std::string_view candidate) override {
    FERRULE_TRY(product_->choose(candidate));
    chosen_ = candidate;
    return {};
  }

 private:
  std::unique_ptr<CublasltProduct> product_;
  std::string problem_, chosen_ = "0";
  std::vector<ProductAddresses> calls_;
  void* workspace_ = nullptr;
};

auto refuse(const KernelCall& call, std::string why) {
  return not_applicable(escape(call.layer), call.node->op.text(), why);
}

Result<Source> source(Context& context, const Operand& o) {
  if (!o.constant) return Source{o.slot, 0};
  FERRULE_ASSIGN(Address at, context.constants.plain(*o.constant));
  return Source{-1, at};
}

struct Builder {
  Context& context;
  const KernelCall& call;
  Product p{};
  View a{}, b{}, y{};
  Source c{}, bias{};
  std::optional<View> addend{};
  MatmulKernel::Part offsets{};  ///< of the operands in memory that is aligned

  void operands() {
    const Operand &oa = call.inputs[0], &ob = call.inputs[1], &oy = call.outputs[0];
    a = {oa.dims, oa.plain_strides()};
    b = {ob.dims, ob.plain_strides()};
    y = {oy.dims, oy.plain_strides()};
    if (a.dims.size() == 1) {
      a.add_outer(2);
      y.dims.insert(y.dims.end() - (ob.rank() > 1 && !y.dims.empty() ? 1 : 0), 1);
      y.strides.insert(y.strides.end() - (ob.rank() > 1 && !y.strides.empty() ? 1 : 0),
                       ob.rank() > 1 ? y.dims.back() : 1);
    }
    if (b.dims.size() == 1) {
      b.dims.push_back(1);
      b.strides = {1, 1};
      y.dims.push_back(1);
      y.strides.push_back(1);
    }
    p.dtype = oy.dtype;
    p.tf32 = allows_tf32(*call.node);
    offsets = {oa.offset, ob.offset, 0, oy.offset};
  }

  /// The rows of all matrices of a against the only matrix b: one matrix.
  void collapse() {
    const bool one =
        std::all_of(b.dims.begin(), b.dims.end() - 2, [](int64_t d) { return d == 1; });
    auto even = [](const View& v) {
      for (size_t k = 0; k + 2 < v.dims.size(); ++k)
        if (v.dims[k] > 1 && v.strides[k] != v.dims[k + 1] * v.strides[k + 1]) return false;
      return true;
    };
    if (!one || p.a.transposed || a.dims.size() < 3 || !even(a) || !even(y) ||
        (addend && !even(*addend)))
      return;
    auto flat = [](View& v) {
      int64_t rows = 1;
      for (size_t k = 0; k + 1 < v.dims.size(); ++k) rows *= v.dims[k];
      v = {{rows, v.columns()}, {v.row(), v.strides.back()}};
    };
    flat(a);
    flat(y);
    if (addend) flat(*addend);
    b = {{b.rows(), b.columns()}, {b.row(), b.strides.back()}};
  }

  Applicable<> add(const Operand& o, float factor) {
    const std::vector<int64_t> dims = call.outputs[0].dims;
    const Broadcast spread = broadcast_of(o.dims, dims, static_cast<int>(dims.size()) - 1);
    if (spread == Broadcast::channel && factor == 1 && !bias.present() && o.offset % 16 == 0) {
      FERRULE_ASSIGN(bias, source(context, o));
      p.has_bias = true;
      return {};
    }
    if (c.present()) return refuse(call, "two addends as large as the result");
    p.adds = true;
    p.beta = factor;
    if (spread == Broadcast::full) {
      FERRULE_ASSIGN(c, source(context, o));
      offsets.c = o.offset;
      addend = View{o.dims, o.plain_strides()};
      return {};
    }
    if (!o.constant || !o.dense())
      return refuse(call, "an addend that cuBLASLt cannot spread over the result");
    return spread_constant(o, dims);
  }

  /// Constants are spread when they are uploaded.
  Applicable<> spread_constant(const Operand& o, const std::vector<int64_t>& dims) {
    std::vector<int64_t> step(dims.size(), 0);
    const std::vector<int64_t> own = strides_of(o.dims, Layout::plain);
    for (size_t k = 0; k < o.dims.size(); ++k)
      if (o.dims[k] != 1) step[dims.size() - o.dims.size() + k] = own[k];
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    const int64_t size = size_bits(o.dtype) / 8;
    auto fill = [&](void* to) {
      copy_strided(dims, step, o.constant->data(), strides_of(dims, Layout::plain), to, size);
    };
    FERRULE_ASSIGN(Address where, context.constants.derive(
                                      *o.constant, fmt::format("spread {}", fmt::join(dims, "x")),
                                      n * size, fill));
    c = {-1, where};
    addend = View{dims, strides_of(dims, Layout::plain)};
    return {};
  }

  Applicable<> tail() {
    for (const PostOp& op : call.post_ops) {
      if (op.operand >= 0 && (op.alg == "add" || op.kind == PostOp::Kind::sum) &&
          p.activation == Product::Activation::none) {
        FERRULE_TRY(add(call.inputs[static_cast<size_t>(op.operand)], 1));
      } else if (op.alg == "relu" && p.activation == Product::Activation::none) {
        p.activation = Product::Activation::relu;
      } else if (op.alg == "gelu_tanh" && p.activation == Product::Activation::none) {
        p.activation = Product::Activation::gelu_tanh;
      } else {
        return refuse(call, "the tail's " + op.alg);
      }
    }
    return {};
  }

  /// The innermost batch axes as steps of one call, the others as calls.
  Applicable<std::vector<MatmulKernel::Part>> batches() {
    const size_t rank = std::max({a.dims.size(), b.dims.size(), y.dims.size()});
    for (View* v : {&a, &b, &y}) v->add_outer(rank);
    if (addend) addend->add_outer(rank);
    std::vector<View*> views{&a, &b, &y};
    if (addend) views.push_back(&*addend);
    std::vector<Product::Matrix*> matrices{&p.a, &p.b, &p.y, &p.c};
    auto step = [&](const View& v, size_t axis) { return v.dims[axis] == 1 ? 0 : v.strides[axis]; };
    const size_t outer = rank - 2;
    size_t first = outer;  // axes from here on are one batch
    while (first > 0) {
      const size_t axis = first - 1;
      const bool fits = first == outer || p.count == 1 || y.dims[axis] == 1 ||
                        std::all_of(views.begin(), views.end(), [&](View* v) {
                          const auto k = static_cast<size_t>(
                              std::find(views.begin(), views.end(), v) - views.begin());
                          return step(*v, axis) == matrices[k]->step * p.count;
                        });
      if (!fits) break;
      if (p.count == 1)
        for (size_t k = 0; k < views.size(); ++k) matrices[k]->step = step(*views[k], axis);
      p.count *= y.dims[axis];
      first = axis;
    }
    std::vector<MatmulKernel::Part> parts;
    const int64_t size = size_bits(p.dtype) / 8;
    std::vector<int64_t> at(first, 0);
    int64_t calls = 1;
    for (size_t k = 0; k < first; ++k) calls *= y.dims[k];
    if (calls > 64)
      return refuse(call, fmt::format("{} products that no single step describes", calls));
    for (int64_t n = 0; n < calls; ++n) {
      auto offset = [&](const View& v) {
        int64_t o = 0;
        for (size_t k = 0; k < first; ++k) o += at[k] * step(v, k);
        return o * size;
      };
      parts.push_back({offset(a), offset(b), addend ? offset(*addend) : 0, offset(y)});
      for (size_t k = first; k-- > 0 && ++at[k] == y.dims[k];) at[k] = 0;
    }
    return parts;
  }

  /// Of all calls: fast algorithms read 16 bytes at once.
  void align(const std::vector<MatmulKernel::Part>& parts) {
    using Part = MatmulKernel::Part;
    for (auto [matrix, where] :
         {std::pair{&p.a, &Part::a}, {&p.b, &Part::b}, {&p.c, &Part::c}, {&p.y, &Part::y}})
      for (const Part& part : parts)
        matrix->alignment = static_cast<uint32_t>(
            std::gcd(int64_t{matrix->alignment}, offsets.*where + part.*where));
  }

  Applicable<KernelPtr> build() {
    operands();
    const Node& n = *call.node;
    p.a.transposed = n.attrs.i("transA") != 0;
    p.b.transposed = n.attrs.i("transB") != 0;
    p.alpha = static_cast<float>(n.attrs.f("alpha", 1));
    if (const Operand* own = call.own_input(2))
      FERRULE_TRY(add(*own, static_cast<float>(n.attrs.f("beta", 1))));
    FERRULE_TRY(tail());
    collapse();
    FERRULE_ASSIGN(auto parts, batches());
    align(parts);
    p.rows = y.rows();
    p.columns = y.columns();
    p.depth = p.a.transposed ? a.rows() : a.columns();
    auto leading = [](const View& v) {
      return v.rows() == 1 ? std::max(v.row(), v.columns()) : v.row();
    };
    p.a.row = leading(a);
    p.b.row = leading(b);
    p.y.row = leading(y);
    if (addend) p.c.row = leading(*addend);
    FERRULE_ASSIGN(cublasLtContext * handle, context.libraries.cublaslt(call.layer));
    FERRULE_ASSIGN(auto product, make_cublaslt_product(handle, p, call.layer));
    auto kernel = std::make_unique<MatmulKernel>(std::move(product), text());
    FERRULE_ASSIGN(kernel->a, source(context, call.inputs[0]));
    FERRULE_ASSIGN(kernel->b, source(context, call.inputs[1]));
    kernel->c = c;
    kernel->bias = bias;
    kernel->y = {call.outputs[0].slot, 0};
    kernel->parts = std::move(parts);
    const Tuning::Entry* measured =
        context.tuning ? context.tuning->find(kernel->problem()) : nullptr;
    if (measured)
      (void)kernel->choose(measured->use);  // of another library's version: its own choice stays
    return kernel;
  }

  std::string text() const {
    auto matrix = [](const Product::Matrix& m) {
      return fmt::format("{}.{}{}{}", m.row, m.step, m.transposed ? "t" : "",
                         m.alignment == 16 ? "" : fmt::format("/{}", m.alignment));
    };
    return fmt::format("cublaslt {} {}x{}x{}x{} a={} b={} y={}{}{}{}{}", name(p.dtype), p.count,
                       p.rows, p.columns, p.depth, matrix(p.a), matrix(p.b), matrix(p.y),
                       p.adds ? " c=" + matrix(p.c) : "", p.has_bias ? " bias" : "",
                       p.activation == Product::Activation::none   ? ""
                       : p.activation == Product::Activation::relu ? " relu"
                                                                   : " gelu",
                       p.tf32 ? " tf32" : "");
  }
};

}  // namespace

Applicable<KernelPtr> make_matmul(Context& context, const KernelCall& call) {
  FERRULE_TRY(check_gpu_product(call));
  Builder b{context, call};
  return b.build();
}

}  // namespace ferrule::cuda
