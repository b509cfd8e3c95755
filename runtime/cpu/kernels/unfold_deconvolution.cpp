// Deconvolution whose windows do not overlap (kernel = stride, no pads): every input pixel gives a
// block of output pixels of its own, so it is a product [pixels, in] x [in, block * out] whose rows
// are then put side by side. One parallel region: a thread multiplies a tile of image rows into its
// own scratch (the tail goes with the product) and moves the tile to its place while it is in the
// cache.
#include <algorithm>
#include <atomic>

#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"
#include "runtime/cpu/tail_operand.h"
#include "runtime/parallel.h"
#include "runtime/scoped_threads.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

struct Shape2 {
  int64_t rows, width, in, out, kernel_h, kernel_w;  ///< rows: of all images
  int64_t columns() const { return kernel_h * kernel_w * out; }
};

/// Rows of a tile: a divisor of all rows whose results fit beside the operands in the L2 cache, and
/// that leaves some tiles for every thread.
int64_t tile_rows(const Shape2& s) {
  int64_t best = 1;
  for (int64_t r = 1; r <= s.rows; ++r)
    if (s.rows % r == 0 && r * s.width * s.columns() <= 32768 && (s.rows / r >= 8 || r == 1))
      best = r;
  return best;
}

class UnfoldedDeconvolution final : public Kernel {
 public:
  UnfoldedDeconvolution(Context& context, const KernelCall& call, const Shape2& s)
      : library_(context.library),
        s_(s),
        tile_(tile_rows(s)),
        x_slot_(call.inputs[0].slot),
        y_slot_(call.outputs[0].slot) {
    if (call.inputs[0].constant) x_ = call.inputs[0].constant->data();
  }

  Applicable<> build(Context& context, const KernelCall& call) {
    const int64_t m = tile_ * s_.width, n = s_.columns();
    const auto f32 = memory::data_type::f32;
    // [in, out, h, w] -> [in, h, w, out]; vectors once a pixel of the block.
    auto [weights, w] = Tensor::allocate(DType::f32, {s_.in, n});
    const int64_t block = s_.kernel_h * s_.kernel_w;
    StridedCopy({s_.in, block, s_.out}, {s_.out * block, 1, block}, {n, s_.out, 1}, 4)
        .run(call.inputs[1].constant->data(), w);
    FERRULE_ASSIGN(Epilogue epilogue, repeated_epilogue(context, call, block));
    return guard(call, "matmul", [&]() -> Applicable<> {
      const ScopedThreads one(1);  // each product is one thread's
      const bool biased = call.node->inputs.size() > 2 && call.inputs[2].present();
      memory::desc a({m, s_.in}, f32, memory::format_tag::ab),
          b({s_.in, n}, f32, memory::format_tag::any);
      memory::desc bias =
          biased ? memory::desc({1, n}, f32, memory::format_tag::ab) : memory::desc();
      memory::desc c({m, n}, f32, memory::format_tag::ab),
          plain({s_.in, n}, f32, memory::format_tag::ab);
      dnnl::matmul::primitive_desc desc(library_.engine, a, b, bias, c, epilogue.attr);
      primitive_ = dnnl::matmul(desc);
      text_ = std::string("unfold:") + desc.impl_info_str();
      constants_.push_back(library_.pack(weights, plain, desc.weights_desc()));
      scratchpad_ = static_cast<int64_t>(desc.scratchpad_desc().get_size());
      for (int t = 0; t < one.before(); ++t) {
        Worker& worker = workers_.emplace_back();
        auto add = [&](int id, const memory::desc& d, const void* data) {
          worker.memories.emplace_back(d, library_.engine, const_cast<void*>(data));
          worker.arguments.push_back({id, worker.memories.back().get()});
        };
        add(DNNL_ARG_SRC, a, nullptr);
        add(DNNL_ARG_DST, c, nullptr);
        if (scratchpad_) add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc(), nullptr);
        add(DNNL_ARG_WEIGHTS, desc.weights_desc(), constants_[0].data);
        if (biased) add(DNNL_ARG_BIAS, bias, repeat(call.inputs[2], block));
        for (const Epilogue::Entry& e : epilogue.operands)
          add(DNNL_ARG_ATTR_MULTIPLE_POST_OP(e.position) | DNNL_ARG_SRC_1, e.desc,
              repeat(call.inputs[static_cast<size_t>(e.input)], block));
      }
      return {};
    });
  }

  int64_t scratch_bytes() const override {
    return static_cast<int64_t>(workers_.size()) * worker_bytes();
  }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    char* at = static_cast<char*>(binder.scratch());
    for (Worker& w : workers_) {
      w.result = reinterpret_cast<float*>(at);
      dnnl_memory_set_data_handle(w.memories[1].get(), at);
      if (scratchpad_) dnnl_memory_set_data_handle(w.memories[2].get(), at + result_bytes());
      at += worker_bytes();
    }
  }
  std::string text() const override { return text_; }

  Status run() override {
    std::atomic<int> failed{0};
    parallel_for(s_.rows / tile_, 1, [&](int64_t begin, int64_t end) {
      Worker& worker = workers_[static_cast<size_t>(parallel_thread())];
      for (int64_t k = begin; k < end; ++k)
        if (int status = tile(worker, k * tile_)) failed = status;
    });
    if (failed)
      return error(Code::library_failed, text_, "oneDNN", fmt::format("status {}", failed.load()));
    return {};
  }

 private:
  struct Worker {
    std::vector<memory> memories;  ///< source, result, scratchpad if any, constants
    std::vector<dnnl_exec_arg_t> arguments;
    float* result = nullptr;
  };

  static int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }
  int64_t result_bytes() const { return aligned(tile_ * s_.width * s_.columns() * 4); }
  int64_t worker_bytes() const { return result_bytes() + aligned(scratchpad_); }

  /// A value, or one a channel, as a row of the product sees it: kept by the kernel.
  const void* repeat(const Operand& o, int64_t block) {
    auto [t, p] = Tensor::allocate(DType::f32, {s_.columns()});
    auto source = o.constant->as<float>();
    for (int64_t k = 0; k < block * s_.out; ++k)
      static_cast<float*>(p)[k] = source[source.size() == 1 ? 0 : static_cast<size_t>(k % s_.out)];
    repeated_.push_back(t);
    return p;
  }

  /// The call's post-ops with operands repeated; refuses those that are not constant channels.
  Applicable<Epilogue> repeated_epilogue(Context&, const KernelCall& call, int64_t) const {
    KernelCall repeated = call;
    for (size_t k = call.node->inputs.size(); k < repeated.inputs.size(); ++k) {
      Operand& o = repeated.inputs[k];
      const Broadcast spread = broadcast_of(o, call.outputs[0]);
      if (!o.constant || (spread != Broadcast::channel && spread != Broadcast::one))
        return not_applicable(escape(call.layer), "this tail",
                              "an operand is not one value a channel");
      o.dims = {1, s_.columns()};
    }
    const std::vector<int64_t> rows{tile_ * s_.width, s_.columns()};
    repeated.outputs[0] = {DType::f32, rows};
    return make_epilogue(repeated,
                         {memory::desc(rows, memory::data_type::f32, memory::format_tag::ab)});
  }

  int tile(Worker& w, int64_t row) const {
    const float* x = static_cast<const float*>(x_) + row * s_.width * s_.in;
    dnnl_memory_set_data_handle(w.memories[0].get(), const_cast<float*>(x));
    const int status =
        dnnl_primitive_execute(primitive_.get(), library_.stream.get(),
                               static_cast<int>(w.arguments.size()), w.arguments.data());
    if (status) return status;
    const int64_t run = s_.kernel_w * s_.out, line = s_.width * run;
    for (int64_t r = 0; r < tile_; ++r)
      for (int64_t i = 0; i < s_.kernel_h; ++i) {
        const float* from = w.result + r * s_.width * s_.columns() + i * run;
        float* to = static_cast<float*>(y_) + ((row + r) * s_.kernel_h + i) * line;
        for (int64_t p = 0; p < s_.width; ++p, from += s_.columns(), to += run)
          for (int64_t k = 0; k < run; ++k) to[k] = from[k];
      }
    return 0;
  }

  Library& library_;
  Shape2 s_;
  int64_t tile_;
  int x_slot_, y_slot_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  dnnl::primitive primitive_;
  std::string text_;
  std::vector<Packed> constants_;
  std::vector<Tensor> repeated_;
  std::vector<Worker> workers_;
  int64_t scratchpad_ = 0;
};

}  // namespace

Applicable<KernelPtr> make_unfolded_deconvolution(Context& context, const KernelCall& call) {
  auto refuse = [&] {
    return not_applicable(escape(call.layer), call.node->op.text(),
                          "its windows overlap or are cut");
  };
  const Operand &x = call.inputs[0], &y = call.outputs[0], &w = call.inputs[1];
  if (x.rank() != 4 || !w.constant || x.dtype != DType::f32 || call.node->attrs.i("group", 1) != 1)
    return refuse();
  if (!x.lies(Layout::channels_last) || !y.lies(Layout::channels_last)) return refuse();
  if (call.sum_input >= 0 ||
      (call.inputs.size() > 2 && call.inputs[2].present() && !call.inputs[2].constant))
    return refuse();
  // What is cut in front may come back behind (output_padding): the sizes alone do not tell.
  FERRULE_ASSIGN(const Window window,
                 transposed_window_of(call, x.dims, y.dims, {w.dims.begin() + 2, w.dims.end()}));
  for (size_t k = 0; k < 2; ++k)
    if (window.strides[k] != window.kernel[k] || window.dilations[k] != 0 ||
        window.pads_begin[k] != 0 || window.pads_end[k] != 0)
      return refuse();
  const Shape2 s{x.dims[0] * x.dims[2], x.dims[3], x.dims[1], y.dims[1], w.dims[2], w.dims[3]};
  auto kernel = std::make_unique<UnfoldedDeconvolution>(context, call, s);
  FERRULE_TRY(kernel->build(context, call));
  return kernel;
}

}  // namespace ferrule::cpu
