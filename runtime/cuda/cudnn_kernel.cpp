#include "runtime/cuda/cudnn_kernel.h"

#include <algorithm>
#include <cmath>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/host_copy.h"
#include "runtime/cuda/libraries.h"

namespace ferrule::cuda {
namespace {

constexpr int64_t kAlignment = 16;

/// Puts a spatial dim of one in front of a single one: cuDNN counts at least two.
void widen(CudnnTensor& t, size_t images) {
  if (t.dims.size() != images) return;
  t.dims.insert(t.dims.begin() + 2, 1);
  t.strides.insert(t.strides.begin() + 2, t.strides[2] * std::max<int64_t>(t.dims[3], 1));
}

/// cuDNN reads an operand as large as the result by the result's strides, whatever its own are.
bool lies_like(const CudnnTensor& t, const CudnnTensor& y) {
  for (size_t k = 0; k < y.dims.size(); ++k)
    if (y.dims[k] > 1 && t.strides[k] != y.strides[k]) return false;
  return true;
}

std::string dims(const CudnnTensor& t) {
  return fmt::format("{}:{}:{}", name(t.dtype), fmt::join(t.dims, "x"), fmt::join(t.strides, "."));
}

std::string text_of(const CudnnAttention& a) {
  std::string out = fmt::format("cudnn attention q={} k={} v={} y={}", dims(a.q), dims(a.k),
                                dims(a.v), dims(a.y));
  if (a.mask.present()) out += " mask=" + dims(a.mask);
  return out + (a.scale != 1 ? " scaled" : "");
}

std::string text_of(const CudnnProblem& p) {
  std::string out =
      fmt::format("cudnn {} x={} y={}", static_cast<int>(p.kind), dims(p.x), dims(p.y));
  if (p.w.present()) out += " w=" + dims(p.w);
  out += fmt::format(" strides={} dilations={} pads={}:{}", fmt::join(p.strides, "x"),
                     fmt::join(p.dilations, "x"), fmt::join(p.pads_begin, "x"),
                     fmt::join(p.pads_end, "x"));
  if (p.bias.present()) out += " bias";
  for (const PostOp& op : p.tail) out += fmt::format(" {}({},{})", op.alg, op.alpha, op.beta);
  for (const CudnnTensor& t : p.operands) out += " " + dims(t);
  if (p.tf32) out += " tf32";
  return out;
}

class CudnnKernel final : public Kernel, public Tunable {
 public:
  CudnnKernel(std::shared_ptr<CudnnGraph> graph, std::string problem,
              std::vector<CudnnOperand> operands)
      : graph_(std::move(graph)), problem_(std::move(problem)), operands_(std::move(operands)) {}

  int64_t scratch_bytes() const override { return graph_->workspace_bytes(); }
  Status bind(Binder& binder) override {
    addresses_.clear();
    for (const CudnnOperand& o : operands_)
      addresses_.emplace_back(
          o.uid, reinterpret_cast<void*>(o.slot >= 0 ? binder.slot(o.slot) : o.constant));
    workspace_ =
        graph_->workspace_bytes() > 0 ? reinterpret_cast<void*>(binder.scratch()) : nullptr;
    return {};
  }
  Status enqueue(Stream stream) override {
    return counted(graph_->execute(stream, addresses_, workspace_));
  }
  bool of_library() const override { return true; }
  std::string text() const override { return "cudnn:" + graph_->plan(); }

  std::string problem() const override { return problem_; }
  std::vector<std::string> candidates() const override { return graph_->plans(); }
  std::string chosen() const override { return graph_->plan(); }
  Applicable<> choose(std::string_view candidate) override { return graph_->build(candidate); }

 private:
  std::shared_ptr<CudnnGraph> graph_;
  std::string problem_;
  std::vector<CudnnOperand> operands_;
  CudnnAddresses addresses_;
  void* workspace_ = nullptr;
};

}  // namespace

CudnnTensor cudnn_tensor(const Operand& o, int rank) {
  CudnnTensor t{o.dtype, o.dims, o.strides()};
  while (static_cast<int>(t.dims.size()) < rank) {
    t.strides.insert(t.strides.begin(), t.dims.empty() ? 1 : t.dims[0] * t.strides[0]);
    t.dims.insert(t.dims.begin(), 1);
  }
  widen(t, 3);
  return t;
}

CudnnTensor cudnn_channel(const Operand& o, int rank) {
  CudnnTensor t{o.dtype, std::vector<int64_t>(static_cast<size_t>(rank), 1),
                std::vector<int64_t>(static_cast<size_t>(rank), o.numel())};
  t.dims[1] = o.numel();
  t.strides[1] = 1;
  widen(t, 3);
  return t;
}

void set_window(CudnnProblem& p, const Window& w) {
  const bool line = w.kernel.size() == 1;
  auto copy = [&](const std::vector<int64_t>& from, int64_t outer, int64_t more = 0) {
    std::vector<int64_t> to(from);
    for (int64_t& v : to) v += more;
    if (line) to.insert(to.begin(), outer);
    return to;
  };
  p.strides = copy(w.strides, 1);
  p.dilations = copy(w.dilations, 1, 1);
  p.pads_begin = copy(w.pads_begin, 0);
  p.pads_end = copy(w.pads_end, 0);
}

Result<CudnnOperand> cudnn_operand(Context& context, int64_t uid, const Operand& o) {
  if (!o.constant) return CudnnOperand{uid, o.slot, 0};
  if (o.layout == Layout::plain) {
    FERRULE_ASSIGN(Address at, context.constants.plain(*o.constant));
    return CudnnOperand{uid, -1, at};
  }
  FERRULE_ASSIGN(Address at,
                 context.constants.derive(
                     *o.constant, fmt::format("channels_last {}", fmt::join(o.dims, "x")),
                     o.bytes(), [&](void* to) {
                       copy_strided(o.dims, strides_of(o.dims, Layout::plain), o.constant->data(),
                                    o.strides(), to, size_bits(o.dtype) / 8);
                     }));
  return CudnnOperand{uid, -1, at};
}

Applicable<> add_tail(Context& context, const KernelCall& call, CudnnProblem& problem,
                      std::vector<CudnnOperand>& operands) {
  const Operand& y = call.outputs[0];
  for (PostOp op : call.post_ops) {
    if (op.operand >= 0) {
      Operand o = call.inputs[static_cast<size_t>(op.operand)];
      if (o.constant && o.numel() == y.numel()) {
        o.dims = y.dims;
        o.layout = y.layout;
      }
      CudnnTensor t = cudnn_tensor(o, y.rank());
      if (t.dims == problem.y.dims && !lies_like(t, problem.y))
        return not_applicable(escape(call.layer), "cuDNN",
                              "an operand of its tail lies otherwise than its result");
      op.operand = static_cast<int>(problem.operands.size());
      problem.operands.push_back(std::move(t));
      FERRULE_ASSIGN(CudnnOperand at, cudnn_operand(context, kOperand + op.operand, o));
      operands.push_back(at);
    }
    problem.tail.push_back(std::move(op));
  }
  return {};
}

Applicable<KernelPtr> make_cudnn_kernel(Context& context, const KernelCall& call,
                                        const CudnnWork& work, std::vector<CudnnOperand> operands) {
  // Which the headers tell cuDNN of every tensor.
  for (const auto* list : {&call.inputs, &call.outputs})
    for (const Operand& o : *list)
      if (o.present() && o.offset % kAlignment != 0)
        return not_applicable(
            escape(call.layer), "cuDNN",
            fmt::format("an operand that begins at {} bytes, which is no multiple "
                        "of {}",
                        o.offset, kAlignment));
  FERRULE_ASSIGN(cudnnContext * handle, context.libraries.cudnn(call.layer));
  const std::string text = std::visit([](const auto& w) { return text_of(w); }, work);
  const auto* attention = std::get_if<CudnnAttention>(&work);
  std::shared_ptr<CudnnGraph>& shared =
      context.libraries.graphs[text + fmt::format(" {}", attention ? attention->scale : 0)];
  if (!shared) {
    const int sm = static_cast<int>(std::lround(context.target->cc * 10));
    FERRULE_ASSIGN(auto graph, make_cudnn_graph(handle, work, sm, call.layer));
    const Tuning::Entry* measured = context.tuning ? context.tuning->find(text) : nullptr;
    if (!measured || !graph->build(measured->use)) FERRULE_TRY(graph->build());
    shared = std::move(graph);
  }
  return std::make_unique<CudnnKernel>(shared, text, std::move(operands));
}

}  // namespace ferrule::cuda
