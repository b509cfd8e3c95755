// Regions of several pieces (engine/contract/region_pieces.h) as one kernel: pieces that only move
// elements are strided copies, the others generated code; one parallel loop runs all of them, split
// by the bytes they write and what they compute.
#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "codegen/cpu/loop_nest.h"
#include "engine/base/diagnostics.h"
#include "engine/contract/region_pieces.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/nodes_to_programs.h"
#include "runtime/cpu/kernel.h"
#include "runtime/cpu/kernels/staged_loop.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// A piece with everything but addresses.
struct Part {
  std::vector<size_t> operands;   ///< of the call: inputs, then outputs
  std::vector<int64_t> offsets;   ///< bytes
  int64_t units = 0, weight = 0;  ///< weight: in bytes moved, computing counted in
  // Either elements are only moved …
  std::optional<StridedCopy> copy;  ///< operands: source (none: `element`), target
  std::vector<char> element;
  // … or a program runs, inputs that lie across memory moved into tiles first.
  std::optional<LoopNest> nest;
  std::optional<StagedLoop> staged;
  const std::vector<InnerStride>& inner() const { return staged ? staged->inner() : nest->inner(); }
  std::shared_ptr<const CompiledKernel> code;
};

int bytes_of(const Operand& o) { return size_bits(o.dtype) / 8; }

/// The one value that a program without inputs gives.
std::vector<char> constant_of(const Program& p, size_t output) {
  std::vector<Scalar> results(p.outputs.size()), scratch;
  evaluate(p, nullptr, results.data(), scratch);
  const DType t = p.output_type(output);
  std::vector<char> bytes(static_cast<size_t>(size_bits(t) / 8));
  const Scalar& s = results[output];
  if (is_float(t))
    std::memcpy(bytes.data(), Tensor::scalar(t, s.f).data(), bytes.size());
  else
    std::memcpy(bytes.data(), &s.i, bytes.size());
  return bytes;
}

class PartMaker {
 public:
  explicit PartMaker(const KernelCall& call) : call_(call), region_(*call.region) {
    for (const Operand& o : call.inputs) strides_.push_back(o.strides());
    for (const Operand& o : call.outputs) strides_.push_back(o.strides());
  }

  Applicable<std::vector<Part>> run() {
    for (const Operand& o : call_.outputs)
      if (size_bits(o.dtype) < 8)
        return not_applicable(escape(call_.layer), "this region", name(o.dtype));
    std::vector<Part> parts;
    for (const RegionPiece& p : region_.pieces) {
      const Program& program = region_.programs[p.program];
      bool computes = false;
      for (size_t k = 0; k < p.outputs.size(); ++k)
        computes |= !program.inputs.empty() && copied_input(program, k) < 0;
      if (computes) {
        FERRULE_ASSIGN(Part part, computed(p, program));
        parts.push_back(std::move(part));
        continue;
      }
      for (size_t k = 0; k < p.outputs.size(); ++k) parts.push_back(moved(p, program, k));
    }
    return parts;
  }

 private:
  size_t operand(const PieceOperand& o, bool output) const {
    return o.operand + (output ? call_.inputs.size() : 0);
  }
  const Operand& of(size_t k) const {
    return k < call_.inputs.size() ? call_.inputs[k] : call_.outputs[k - call_.inputs.size()];
  }
  PieceStrides place(const PieceOperand& o, bool output) const {
    return piece_strides(o, strides_[operand(o, output)]);
  }

  Part moved(const RegionPiece& p, const Program& program, size_t output) const {
    Part part;
    const PieceOperand& y = p.outputs[output];
    const PieceStrides to = place(y, true);
    const int size = bytes_of(of(operand(y, true)));
    const int from = copied_input(program, output);
    PieceStrides source{0, std::vector<int64_t>(p.dims.size(), 0)};
    if (from >= 0) {
      source = place(p.inputs[static_cast<size_t>(from)], false);
      part.operands.push_back(operand(p.inputs[static_cast<size_t>(from)], false));
    } else {
      part.element = constant_of(program, output);
    }
    part.operands.push_back(operand(y, true));
    part.copy.emplace(p.dims, source.strides, to.strides, size, source.offset, to.offset);
    part.units = part.copy->units();
    part.weight = part.copy->bytes();
    return part;
  }

  Applicable<Part> computed(const RegionPiece& p, const Program& program) const {
    Part part;
    std::vector<std::vector<int64_t>> strides;
    std::vector<int> sizes;
    auto add = [&](const PieceOperand& o, bool output) {
      PieceStrides s = place(o, output);
      const size_t k = operand(o, output);
      part.operands.push_back(k);
      sizes.push_back(bytes_of(of(k)));
      part.offsets.push_back(s.offset * sizes.back());
      for (size_t d = 0; !output && d < p.dims.size(); ++d)
        if (p.dims[d] == 1) s.strides[d] = 0;
      strides.push_back(std::move(s.strides));
    };
    for (const PieceOperand& o : p.inputs) add(o, false);
    for (const PieceOperand& o : p.outputs) add(o, true);
    part.staged = StagedLoop::make(p.dims, strides, sizes, p.outputs.size());
    if (!part.staged) {
      FERRULE_ASSIGN(part.nest, LoopNest::make(p.dims, strides, sizes, p.outputs.size()));
    }
    part.units = part.staged ? part.staged->size() : part.nest->size();
    part.weight =
        (part.staged ? part.staged->elements() : part.nest->elements()) * (4 + program.cost() / 2);
    return part;
  }

  const KernelCall& call_;
  const LoweredRegion& region_;
  std::vector<std::vector<int64_t>> strides_;
};

class Pieces final : public Kernel {
 public:
  Pieces(const KernelCall& call, std::vector<Part> parts) : parts_(std::move(parts)) {
    for (const auto* operands : {&call.inputs, &call.outputs})
      for (const Operand& o : *operands) {
        slots_.push_back(o.slot);
        pointers_.push_back(o.constant ? const_cast<void*>(o.constant->data()) : nullptr);
      }
    for (const Part& p : parts_) total_ += p.weight;
  }

  void bind(Binder& binder) override {
    for (size_t k = 0; k < slots_.size(); ++k)
      if (slots_[k] >= 0) binder.cell(slots_[k], &pointers_[k]);
  }

  /// Each thread takes the same share of every part, a turn at a time: parts that write by turns to
  /// the same memory (a concatenation of channels) meet in one thread's cache.
  Status run() override {
    parallel_for(total_, kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t at = begin, next; at < end; at = next) {
        next = std::min(end, at + kTurn);
        for (const Part& p : parts_) {
          const int64_t first = units(p, at), last = units(p, next);
          if (first < last) run_part(p, first, last);
        }
      }
    });
    return {};
  }

  std::string text() const override {
    size_t copies = 0;
    std::string kinds;
    for (const Part& p : parts_) {
      if (!p.copy) continue;
      ++copies;
      if (std::string kind = p.copy->text(); kinds.find(kind) == std::string::npos)
        kinds += (kinds.empty() ? "" : ",") + kind;
    }
    if (copies == parts_.size()) return "copy:" + (kinds.empty() ? "nothing" : kinds);
    return fmt::format("generated:{} pieces", parts_.size()) +
           (copies ? fmt::format(", {} copied ({})", copies, kinds) : "");
  }

 private:
  static constexpr int64_t kTurn = int64_t{1} << 16;  ///< of the weight: a few times the L1 cache
  int64_t units(const Part& p, int64_t weight) const {
    return static_cast<int64_t>(static_cast<__int128>(p.units) * weight / total_);
  }

  void run_part(const Part& p, int64_t begin, int64_t end) const {
    if (p.copy) {
      const void* source = p.element.empty() ? pointers_[p.operands[0]] : p.element.data();
      return p.copy->run(source, pointers_[p.operands.back()], begin, end);
    }
    std::array<void*, LoopNest::kMaxOperands> at;
    for (size_t k = 0; k < p.operands.size(); ++k)
      at[k] = static_cast<char*>(pointers_[p.operands[k]]) + p.offsets[k];
    if (p.staged)
      p.staged->run(p.code->fn, at.data(), begin, end);
    else
      p.nest->run(p.code->fn, at.data(), begin, end);
  }

  std::vector<Part> parts_;
  int64_t total_ = 0;
  std::vector<int> slots_;
  std::vector<void*> pointers_;
};

/// The code that the parts need, in their order.
std::vector<CpuJit::Request> requests_of(const Context& context, const KernelCall& call,
                                         const std::vector<Part>& parts) {
  std::vector<CpuJit::Request> requests;
  size_t part = 0;
  for (const RegionPiece& p : call.region->pieces) {
    const bool copies = parts[part].copy.has_value();
    if (!copies)
      requests.push_back(
          {{call.region->programs[p.program], parts[part].inner(), context.target->name, false},
           call.layer});
    part += copies ? p.outputs.size() : 1;
  }
  return requests;
}

}  // namespace

Applicable<std::vector<CpuJit::Request>> pieces_requests(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(auto parts, PartMaker(call).run());
  return requests_of(context, call, parts);
}

Applicable<KernelPtr> make_pieces(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(auto parts, PartMaker(call).run());
  auto requests = requests_of(context, call, parts);
  size_t next = 0;
  for (Part& p : parts) {
    if (p.copy) continue;
    FERRULE_ASSIGN(p.code, CpuJit::instance().compile(requests[next].key, requests[next].name));
    ++next;
  }
  return std::make_unique<Pieces>(call, std::move(parts));
}

}  // namespace ferrule::cpu
