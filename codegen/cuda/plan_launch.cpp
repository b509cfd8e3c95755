#include "codegen/cuda/plan_launch.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <optional>

#include "codegen/cuda/attention.h"
#include "codegen/cuda/copy.h"
#include "codegen/cuda/pointwise.h"
#include "codegen/cuda/pool.h"
#include "codegen/cuda/region_pieces.h"
#include "codegen/cuda/resize.h"
#include "codegen/cuda/rows.h"
#include "codegen/cuda/shape.h"
#include "codegen/cuda/text.h"
#include "codegen/cuda/topk.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/region_pieces.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

/// Below it whole lines come out of a strided copy as well, its neighbours being in the cache.
constexpr int64_t kLeastTurned = 8;

std::vector<void*> pointers_of(std::span<const uint64_t> addresses, size_t count) {
  std::vector<void*> out(count);
  for (size_t k = 0; k < count; ++k) out[k] = reinterpret_cast<void*>(addresses[k]);
  return out;
}
bool reads_all(const Launch& l) {
  return l.work != Work::attention && l.work != Work::softmax_topk && l.work != Work::resize &&
         l.work != Work::gather && !l.rows && !(l.region && l.region->pieced);
}
bool empty(const CudaOperand& o) { return std::ranges::find(o.dims, 0) != o.dims.end(); }

class Planner {
 public:
  Planner(const Launch& launch, std::span<const CudaOperand> operands, std::string_view entry,
          std::string_view comment, bool aligned, int cores, std::string_view wanted)
      : launch_(launch),
        operands_(operands),
        entry_(entry),
        comment_(comment),
        aligned_(aligned),
        cores_(cores),
        wanted_(wanted) {}

  using Make = Applicable<> (Planner::*)();
  /// What makes the launch's kernel; null: there is none, or it is a library's.
  static Make maker(const Launch& l) {
    switch (l.work) {
      case Work::attention:
        return &Planner::attention;
      case Work::softmax_topk:
        return &Planner::selection;
      case Work::max_pool:
      case Work::average_pool:
        return &Planner::pool;
      case Work::resize:
        return &Planner::resize;
      case Work::norm:
        return &Planner::normalization;
      case Work::gather:
        if (!l.region && l.kind == Launch::Kind::copy) return &Planner::gather;
        break;
      case Work::transpose:
      case Work::reorder:
        if (!l.region && l.kind == Launch::Kind::copy) return &Planner::permuted;
        break;
      case Work::convolution:
      case Work::deconvolution:
      case Work::product:
      case Work::affine_product:
      case Work::global_max_pool:
      case Work::global_average_pool:
      case Work::window_chain:
      case Work::lstm:
      case Work::gru:
      case Work::rnn:
      case Work::own:
      case Work::other:
        break;
    }
    return l.rows ? &Planner::rows : l.region ? &Planner::region : nullptr;
  }

  Applicable<CudaLaunch> run() {
    FERRULE_ASSERT(operands_.size() == launch_.inputs.size() + launch_.outputs.size(),
                   "operands of a CUDA launch");
    out_.entry = entry_;
    FERRULE_TRY(make());
    const std::vector<uint64_t> none(operands_.size() + 2);
    if (const size_t bytes = out_.arguments(none).size(); bytes > kMostCudaArguments)
      return refuse(fmt::format("{} bytes of arguments", bytes));
    if (out_.blocks > std::numeric_limits<int32_t>::max())
      return refuse(fmt::format("{} blocks", out_.blocks));
    if (out_.shapes.empty()) record({});
    return std::move(out_);
  }

 private:
  void record(const CudaShapes& shapes) {
    out_.shape = shapes.taken.text();
    for (const CudaShape& s : shapes.all) out_.shapes.push_back(s.text());
  }
  /// A kernel whose threads have an element or a pack each.
  template <class Kernel, class Geometry>
  void spread(Kernel& kernel, const Geometry& geometry) {
    const CudaShapes shapes = element_shapes(geometry.packs(kernel), 0, cores_, wanted_);
    record(shapes);
    kernel.threads = out_.threads_x = shapes.taken.threads;
    out_.blocks =
        empty(output()) ? 0 : (geometry.packs(kernel) + kernel.threads - 1) / kernel.threads;
  }
  tl::unexpected<NotApplicable> refuse(std::string why) const {
    return not_applicable("", escape(launch_.called), "no GPU kernel: " + std::move(why));
  }
  const CudaOperand& output(size_t k = 0) const { return operands_[launch_.inputs.size() + k]; }

  Applicable<> make() {
    const Make make_it = maker(launch_);
    if (!make_it) return refuse("its parameters are known only when it runs, or it is a library's");
    if (reads_all(launch_))
      for (const CudaOperand& o : operands_)
        if (o.dtype == DType::undefined) return refuse("an operand is absent");
    return (this->*make_it)();
  }

  Applicable<> region() { return launch_.region->pieced ? pieces() : pointwise(); }

  Applicable<> rows() {
    std::vector<RowLayout> layouts;
    for (const CudaOperand& o : operands_) layouts.push_back({o.dims, o.strides});
    FERRULE_ASSIGN(CudaRowPlan plan,
                   plan_cuda_rows(*launch_.rows, layouts, aligned_, cores_, wanted_));
    FERRULE_ASSIGN(out_.source, cuda_row_source(plan.kernel, entry_, comment_));
    out_.kind = "rows";
    record(plan.shapes);
    out_.blocks = plan.geometry.blocks(plan.kernel);
    std::tie(out_.threads_x, out_.threads_y) = CudaRowGeometry::block(plan.kernel);
    out_.scratch_bytes = plan.geometry.scratch_bytes(plan.kernel);
    out_.passes = plan.kernel.passes;
    out_.arguments = [n = operands_.size(), plan = std::move(plan)](std::span<const uint64_t> at) {
      const int pass = plan.kernel.passes > 1 ? static_cast<int>(at[n + 1]) : 0;
      return cuda_row_arguments(plan.kernel, plan.geometry,
                                pointers_of(at, n + (plan.kernel.sliced ? 1 : 0)), pass);
    };
    return {};
  }

  Applicable<> attention() {
    const Attention a = attention_of(*launch_.roles);
    std::vector<size_t> at{a.q.slot, a.k.slot, a.v.slot, launch_.inputs.size() + a.y.slot};
    if (a.mask) at.push_back(a.mask->slot);
    if (a.keep) at.push_back(a.keep->slot);
    std::vector<RowLayout> layouts;
    for (size_t k : at) {
      if (k >= operands_.size() || operands_[k].dtype == DType::undefined)
        return refuse("an operand is absent");
      layouts.push_back({operands_[k].dims, operands_[k].strides});
    }
    AttentionLayouts l{layouts[0],
                       layouts[1],
                       layouts[2],
                       layouts[3],
                       a.mask ? &layouts[4] : nullptr,
                       a.keep ? &layouts.back() : nullptr};
    const auto cap = launch_.formulas.find("cap");
    FERRULE_ASSIGN(
        CudaAttentionPlan plan,
        plan_cuda_attention(a, output().dtype, l, aligned_,
                            cap == launch_.formulas.end() ? nullptr : &cap->second, wanted_));
    out_.source = cuda_attention_source(plan.kernel, entry_, comment_);
    out_.kind = "attention";
    record(plan.shapes);
    out_.blocks = empty(output()) ? 0 : plan.geometry.blocks(plan.kernel);
    out_.threads_x = plan.kernel.threads();
    out_.arguments = [plan = std::move(plan),
                      at = std::move(at)](std::span<const uint64_t> addresses) {
      std::vector<void*> pointers;
      for (size_t k : at) pointers.push_back(reinterpret_cast<void*>(addresses[k]));
      return cuda_attention_arguments(plan.kernel, plan.geometry, pointers);
    };
    return {};
  }

  RowLayout layout(size_t operand) const {
    return {operands_[operand].dims, operands_[operand].strides};
  }

  Applicable<> selection() {
    const SoftmaxTopK s = softmax_topk_of(*launch_.roles);
    if (operands_[s.x].dtype == DType::undefined) return refuse("an operand is absent");
    std::vector<size_t> at{s.x};
    std::optional<RowLayout> results[2];
    for (const std::optional<size_t>& y : {s.values, s.indices}) {
      at.push_back(y ? launch_.inputs.size() + *y : operands_.size());
      if (y) results[at.size() - 2] = layout(at.back());
    }
    FERRULE_ASSIGN(CudaTopKPlan plan, plan_cuda_topk(s, operands_[at[0]].dtype, layout(at[0]),
                                                     results[0] ? &*results[0] : nullptr,
                                                     results[1] ? &*results[1] : nullptr, wanted_));
    out_.source = cuda_topk_source(plan.kernel, entry_, comment_);
    out_.kind = "selection";
    record(plan.shapes);
    out_.blocks = plan.geometry.blocks();
    out_.threads_x = plan.kernel.threads;
    out_.arguments = [plan = std::move(plan), at = std::move(at),
                      n = operands_.size()](std::span<const uint64_t> a) {
      auto p = [&](size_t k) { return k < n ? reinterpret_cast<void*>(a[k]) : nullptr; };
      return cuda_topk_arguments(plan.kernel, plan.geometry, p(at[0]), p(at[1]), p(at[2]));
    };
    return {};
  }

  Applicable<> pool() {
    FERRULE_ASSIGN(CudaPoolPlan plan,
                   plan_cuda_pool(launch_.graph->node(launch_.node), operands_[0].dtype, layout(0),
                                  layout(launch_.inputs.size()), aligned_));
    spread(plan.kernel, plan.geometry);
    out_.source = cuda_pool_source(plan.kernel, entry_, comment_);
    out_.kind = "pool";
    out_.arguments = [plan = std::move(plan),
                      y = launch_.inputs.size()](std::span<const uint64_t> a) {
      return cuda_pool_arguments(plan.kernel, plan.geometry, reinterpret_cast<const void*>(a[0]),
                                 reinterpret_cast<void*>(a[y]));
    };
    return {};
  }

  Applicable<> resize() {
    const Node& n = launch_.graph->node(launch_.node);
    const CudaOperand &x = operands_[0], &y = output();
    if (empty(y)) return nothing("resize");
    const Tensor* scales = n.inputs.size() > 2 ? launch_.graph->constant(n.inputs[2]) : nullptr;
    std::vector<ResizeAxis> axes;
    for (size_t k = 0; k < x.dims.size() && k < y.dims.size(); ++k) {
      axes.push_back(
          {x.dims[k], y.dims[k], static_cast<double>(y.dims[k]) / static_cast<double>(x.dims[k])});
      if (scales && scales->numel() == static_cast<int64_t>(x.dims.size()))
        axes.back().scale = scales->at_f64(static_cast<int64_t>(k));
    }
    FERRULE_ASSIGN(CudaResizePlan plan,
                   plan_cuda_resize(Resampling::of(n.attrs), axes, x.dtype, layout(0),
                                    layout(launch_.inputs.size()), aligned_));
    spread(plan.kernel, plan.geometry);
    out_.source = cuda_resize_source(plan.kernel, entry_, comment_);
    out_.kind = "resize";
    out_.arguments = [plan = std::move(plan),
                      at = launch_.inputs.size()](std::span<const uint64_t> a) {
      return cuda_resize_arguments(plan.kernel, plan.geometry, reinterpret_cast<const void*>(a[0]),
                                   reinterpret_cast<void*>(a[at]));
    };
    return {};
  }

  /// As elements: parameters that move along the channels only.
  Applicable<> normalization() {
    const CudaOperand& x = operands_[0];
    if (launch_.inputs.size() != 5 || x.dims != output().dims) return refuse("its operands");
    if (x.dtype != DType::f32 && x.dtype != DType::f16 && x.dtype != DType::bf16)
      return error(Code::unsupported_type, "CUDA kernel", name(x.dtype));
    std::vector<std::vector<int64_t>> strides{x.strides};
    for (size_t k = 1; k < 5; ++k) {
      const CudaOperand& p = operands_[k];
      const int64_t channels = x.dims.size() > 1 ? x.dims[1] : 1;
      if (p.dims != std::vector<int64_t>{channels}) return refuse("its parameters' sizes");
      strides.emplace_back(x.dims.size(), 0);
      if (x.dims.size() > 1) strides.back()[1] = p.strides[0];
    }
    strides.push_back(output().strides);
    return elementwise(batch_normalization(), x.dims, strides, "pointwise");
  }

  /// (x - mean) * (scale / sqrt(variance + epsilon)) + bias, in f32.
  Program batch_normalization() const {
    ProgramBuilder b;
    std::array<uint32_t, 5> in{};
    for (size_t k = 0; k < 5; ++k) in[k] = b.input(operands_[k].dtype);
    for (uint32_t& v : in) v = b.cast(v, DType::f32);
    const auto [x, scale, bias, mean, variance] = in;
    const DType f = DType::f32;
    const uint32_t epsilon =
        b.constant(f, launch_.graph->node(launch_.node).attrs.f("epsilon", 1e-5), 0);
    const uint32_t factor =
        b.op(Prim::div, f, {scale, b.op(Prim::sqrt, f, {b.op(Prim::add, f, {variance, epsilon})})});
    const uint32_t y =
        b.op(Prim::add, f, {b.op(Prim::mul, f, {b.op(Prim::sub, f, {x, mean}), factor}), bias});
    b.output(b.cast(y, output().dtype));
    return b.take();
  }

  Applicable<> pieces() {
    std::vector<std::vector<int64_t>> strides;
    for (const CudaOperand& o : operands_) strides.push_back(o.strides);
    const LoweredRegion& region = *launch_.region;
    if (region.pieces.empty()) return nothing("pieces");
    if (region.pieces.size() == 1) {
      FERRULE_ASSIGN(const bool done, turned_piece(region, strides));
      if (done) return {};
    }
    FERRULE_ASSIGN(CudaPieces plan, plan_cuda_pieces(region, strides, aligned_, cores_, wanted_));
    FERRULE_ASSIGN(out_.source, cuda_pieces_source(plan, entry_, comment_));
    out_.kind = "pieces";
    record(plan.shapes);
    out_.threads_x = plan.shapes.taken.threads;
    out_.blocks = plan.blocks;
    out_.arguments = [plan = std::move(plan)](std::span<const uint64_t> at) {
      return cuda_pieces_arguments(plan, pointers_of(at, plan.operands));
    };
    return {};
  }

  /// One piece that only moves elements.
  Applicable<bool> turned_piece(const LoweredRegion& region,
                                const std::vector<std::vector<int64_t>>& strides) {
    const RegionPiece& p = region.pieces[0];
    const Program& program = region.programs[p.program];
    if (program.outputs.size() != 1 || program.inputs.size() != 1 || copied_input(program, 0) != 0)
      return false;
    FERRULE_TRY(check_cuda_types(program));
    const size_t from = p.inputs[0].operand, to = region.inputs.size() + p.outputs[0].operand;
    return turned(p.dims, from, piece_strides(p.inputs[0], strides[from]), to,
                  piece_strides(p.outputs[0], strides[to]), program.inputs[0]);
  }

  /// Through shared memory, where that helps.
  bool turned(std::span<const int64_t> dims, size_t from, const PieceStrides& source, size_t to,
              const PieceStrides& result, DType type) {
    const int bytes = size_bits(type) / 8;
    auto plan = plan_cuda_transpose(dims, source.strides, result.strides, bytes, wanted_);
    if (!plan || std::min(plan->geometry.source.size, plan->geometry.result.size) < kLeastTurned)
      return false;
    out_.source = cuda_transpose_source(plan->kernel, entry_, comment_);
    out_.kind = "transpose";
    record(plan->shapes);
    out_.blocks = plan->geometry.blocks(plan->kernel);
    out_.threads_x = CudaTransposeKernel::kWarp, out_.threads_y = plan->kernel.rows;
    const auto begin = static_cast<uint64_t>(source.offset * bytes),
               end = static_cast<uint64_t>(result.offset * bytes);
    out_.arguments = [plan = std::move(*plan), from, to, begin, end](std::span<const uint64_t> at) {
      return cuda_transpose_arguments(plan.kernel, plan.geometry,
                                      reinterpret_cast<const void*>(at[from] + begin),
                                      reinterpret_cast<void*>(at[to] + end));
    };
    return true;
  }

  Applicable<> nothing(std::string kind) {
    out_.kind = std::move(kind);
    out_.blocks = 0;
    out_.source = cuda_head(comment_, "nothing", false) +
                  fmt::format("extern \"C\" __global__ void {}(const u64 a) {{}}\n", entry_);
    out_.arguments = [](std::span<const uint64_t>) { return std::string(8, '\0'); };
    return {};
  }

  /// Operands broadcast as ONNX does; the results all have one size.
  Applicable<> pointwise() {
    const std::vector<int64_t>& dims = output().dims;
    std::vector<std::vector<int64_t>> strides;
    for (size_t k = 0; k < operands_.size(); ++k) {
      const CudaOperand& o = operands_[k];
      if (k >= launch_.inputs.size() && o.dims != dims) return refuse("results of several sizes");
      if (o.dims.size() > dims.size()) return refuse("an operand has more axes than the result");
      std::vector<int64_t> own(dims.size(), 0);
      const size_t extra = dims.size() - o.dims.size();
      for (size_t d = 0; d < o.dims.size(); ++d)
        if (o.dims[d] == dims[d + extra])
          own[d + extra] = o.strides[d];
        else if (o.dims[d] != 1)
          return refuse("operands that do not broadcast");
      strides.push_back(std::move(own));
    }
    return elementwise(launch_.region->program, dims, strides, "pointwise");
  }

  Applicable<> elementwise(const Program& program, std::span<const int64_t> dims,
                           std::span<const std::vector<int64_t>> strides, std::string kind) {
    FERRULE_ASSIGN(CudaPlan plan, plan_cuda(program, dims, strides, aligned_));
    const CudaShapes shapes =
        element_shapes(plan.geometry.packs(plan.kernel), pack_bytes(plan.kernel), cores_, wanted_);
    record(shapes);
    plan.kernel.threads = out_.threads_x = shapes.taken.threads;
    plan.kernel.packs = shapes.taken.each;
    FERRULE_ASSIGN(out_.source, cuda_source(plan.kernel, entry_, comment_));
    out_.kind = std::move(kind);
    out_.blocks = empty(output()) ? 0 : plan.geometry.blocks(plan.kernel);
    out_.arguments = [plan = std::move(plan), n = operands_.size()](std::span<const uint64_t> at) {
      return cuda_arguments(plan.kernel, plan.geometry, pointers_of(at, n));
    };
    return {};
  }

  /// Another order of axes, or another layout.
  Applicable<> permuted() {
    const CudaOperand &x = operands_[0], &y = output();
    ProgramBuilder b;
    b.output(b.input(x.dtype));
    const Program same = b.take();
    FERRULE_TRY(check_cuda_types(same));
    std::vector<int64_t> order(y.dims.size());
    std::iota(order.begin(), order.end(), int64_t{0});
    if (launch_.work == Work::transpose) {
      std::ranges::reverse(order);
      if (const auto perm = launch_.graph->node(launch_.node).attrs.ints("perm"); !perm.empty())
        order = perm;
    }
    if (order.size() != x.strides.size()) return refuse("the order of axes");
    PieceStrides source{0, {}};
    for (int64_t axis : order) source.strides.push_back(x.strides[static_cast<size_t>(axis)]);
    if (!empty(y) && turned(y.dims, 0, source, launch_.inputs.size(), {0, y.strides}, x.dtype))
      return {};
    const std::vector<std::vector<int64_t>> strides{source.strides, y.strides};
    if (operands_.size() != 2) return refuse("operands beside the one that is moved");
    return elementwise(same, y.dims, strides, "copy");
  }

  Applicable<> gather() {
    const CudaOperand &x = operands_[0], &index = operands_[1], &y = output();
    const int bits = size_bits(x.dtype);
    if (bits != 8 && bits != 16 && bits != 32 && bits != 64)
      return refuse(std::string(name(x.dtype)));
    if (index.dtype != DType::i64 && index.dtype != DType::i32) return refuse("the indices' type");
    const auto rank = static_cast<int64_t>(x.dims.size());
    int64_t axis = launch_.graph->node(launch_.node).attrs.i("axis");
    if (axis < -rank || axis >= rank || y.dims.size() + 1 != x.dims.size() + index.dims.size())
      return refuse("the axis");
    const auto at = static_cast<size_t>(axis < 0 ? axis + rank : axis);
    std::vector<int64_t> from(x.strides.begin(), x.strides.begin() + static_cast<int64_t>(at)),
        by(at, 0);
    from.resize(at + index.dims.size(), 0);
    by.insert(by.end(), index.strides.begin(), index.strides.end());
    from.insert(from.end(), x.strides.begin() + static_cast<int64_t>(at) + 1, x.strides.end());
    by.resize(from.size(), 0);
    CudaGatherPlan plan = plan_cuda_gather(y.dims, from, by, y.strides, x.dims[at], x.strides[at],
                                           bits / 8, size_bits(index.dtype) / 8, aligned_);
    spread(plan.kernel, plan.geometry);
    out_.source = cuda_gather_source(plan.kernel, entry_, comment_);
    out_.kind = "gather";
    out_.scratch_bytes = sizeof(CudaGatherFault);
    const size_t result = launch_.inputs.size(), scratch = operands_.size();
    out_.complaint = [size = x.dims[at], at](std::span<const char> bytes) {
      CudaGatherFault fault;
      std::memcpy(&fault, bytes.data(), std::min(sizeof fault, bytes.size()));
      return fault.set ? fmt::format("index {} is out of range for axis {} of size {}", fault.index,
                                     at, size)
                       : std::string();
    };
    out_.arguments = [plan = std::move(plan), result, scratch](std::span<const uint64_t> a) {
      auto p = [&](size_t k) { return reinterpret_cast<void*>(a[k]); };
      return cuda_gather_arguments(plan.kernel, plan.geometry, p(0), p(1), p(result), p(scratch));
    };
    return {};
  }

  const Launch& launch_;
  const std::span<const CudaOperand> operands_;
  const std::string entry_;
  const std::string_view comment_;
  const bool aligned_;
  const int cores_;
  const std::string_view wanted_;
  CudaLaunch out_;
};

uint64_t fnv(uint64_t hash, std::string_view text) {
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return hash;
}

/// Kind, the built-in shape's source and numbers by their hash, and where the operands lie.
std::string problem_of(const CudaLaunch& l, std::span<const CudaOperand> operands, bool aligned) {
  // But the first line, which is of the model, and the kernel's name.
  const std::string_view text = std::string_view(l.source).substr(l.source.find('\n') + 1);
  const size_t name = text.find(l.entry + "(", text.find("extern \"C\" __global__"));
  FERRULE_ASSERT(name != std::string_view::npos, "a kernel's name");
  const std::vector<uint64_t> none(operands.size() + 2);
  const uint64_t hash =
      fnv(fnv(fnv(0xcbf29ce484222325, text.substr(0, name)), text.substr(name + l.entry.size())),
          l.arguments(none));
  std::string out = fmt::format("generated {} {:016x}", l.kind, hash);
  for (const CudaOperand& o : operands)
    out += o.dtype == DType::undefined
               ? " -"
               : fmt::format(" {}:{}:{}", ferrule::name(o.dtype), fmt::join(o.dims, "x"),
                             fmt::join(o.strides, "."));
  return out + (aligned ? " aligned" : "");
}

}  // namespace

bool cuda_generated(const Launch& launch) { return Planner::maker(launch) != nullptr; }

Applicable<CudaLaunch> plan_cuda_launch(const Launch& launch, std::span<const CudaOperand> operands,
                                        std::string_view entry, std::string_view comment,
                                        bool aligned, int cores, const CudaShapeChoice& choice) {
  auto plan = [&](std::string_view wanted) {
    return Planner(launch, operands, entry, comment, aligned, cores, wanted).run();
  };
  FERRULE_ASSIGN(CudaLaunch usual, plan(""));
  usual.problem = problem_of(usual, operands, aligned);
  const std::string wanted = choice ? choice(usual.problem) : "";
  if (wanted == usual.shape || std::ranges::find(usual.shapes, wanted) == usual.shapes.end())
    return usual;
  FERRULE_ASSIGN(CudaLaunch other, plan(wanted));
  other.problem = std::move(usual.problem);
  return other;
}

}  // namespace ferrule
