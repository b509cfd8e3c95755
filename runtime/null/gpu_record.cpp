#include "runtime/null/gpu_record.h"

#include "runtime/gpu_steps.h"
#include "runtime/in_place.h"

namespace ferrule {
namespace {

constexpr const char* kEntry = "ferrule_kernel";

class Recorder {
 public:
  explicit Recorder(const PrepareContext& c) : c_(c) {}

  Applicable<GpuRecord> run() {
    auto pairs = [this](size_t layer, const Launch& l) {
      return generated_in_place(c_.plan, c_.lowered, layer, l);
    };
    FERRULE_ASSIGN(storage_, plan_storage(c_.plan, c_.lowered, pairs));
    // Scratch of generated kernels is not of the arena: it lasts from run to run.
    place(storage_, std::vector<int64_t>(static_cast<size_t>(storage_.steps), 0));
    text_ = fmt::format("arena {} bytes and the libraries' workspace\n", storage_.arena_bytes);
    int step = 0;
    for (size_t layer = 0; layer < c_.lowered.layers.size(); ++layer) {
      FERRULE_TRY(record(layer, step));
      step += static_cast<int>(c_.lowered.layers[layer].launches.size());
    }
    for (const Storage::Copy& copy : storage_.copies)
      text_ += fmt::format("output {} is read from {}\n", copy.to_output, lies(copy.from_slot));
    graphs();
    return GpuRecord{std::move(storage_), std::move(text_)};
  }

 private:
  struct Line {
    std::string text;
    bool capturable = true;
  };

  Applicable<> record(size_t layer, int step) {
    auto make = [&](const Launch& l, const KernelCall& call) { return line(l, call); };
    auto interpret = [&](const KernelCall& call, const Refusal& why) {
      return on_the_host(call, why.reason());
    };
    FERRULE_ASSIGN(const auto lines,
                   gpu_layer<Line>(c_.plan, c_.lowered, storage_, layer, step, make, interpret));
    text_ += escape(c_.plan.layers[layer].name) + "\n";
    for (const auto& l : lines) {
      text_ += fmt::format("  {} {}\n", capturable_.size(), l.kernel.text);
      capturable_.push_back(l.kernel.capturable);
    }
    return {};
  }

  Applicable<Line> line(const Launch& l, const KernelCall& call) const {
    const AttentionChoice attention = choose_gpu_attention(l, call, c_.target, c_.lowered.strict);
    if (attention.library) return Line{fmt::format("cudnn attention {}", operands(call))};
    if (cuda_generated(l)) return generated(l, call, attention.why);
    if (l.kind == Launch::Kind::interpret) return on_the_host(call, "");
    if (auto taken = check_gpu_library(l, call); !taken) {
      if (taken.error().error() || !gpu_library(l.work)) return fail(taken.error());
      return Line{fmt::format("direct {}{} {}, not a library's: {}", escape(l.called), tail(l),
                              operands(call), taken.error().reason())};
    }
    return Line{fmt::format("{} {}{} {}", is_product(l.work) ? "cublaslt" : "cudnn",
                            escape(l.called), tail(l), operands(call))};
  }

  /// `why`: it is not a library's.
  Applicable<Line> generated(const Launch& l, const KernelCall& call,
                             const std::string& why) const {
    FERRULE_ASSIGN(const CudaLaunch planned,
                   plan_gpu_launch(l, call, c_.target, kEntry, c_.tuning));
    const std::vector<uint64_t> none(call.inputs.size() + call.outputs.size() + 2);
    std::string text =
        fmt::format("{} {} <<<{}, {}x{}>>> {}, {} bytes of arguments", planned.kind, planned.shape,
                    planned.blocks, planned.threads_x, planned.threads_y, operands(call),
                    planned.arguments(none).size());
    if (planned.passes > 1) text += fmt::format(", {} times", planned.passes);
    if (planned.scratch_bytes)
      text += fmt::format(", {} of scratch{}", planned.scratch_bytes,
                          planned.complaint ? " of the host's" : "");
    if (!why.empty()) text += ", not cuDNN's: " + why;
    return Line{text};
  }

  /// Waits for the device: no graph holds it.
  Applicable<Line> on_the_host(const KernelCall& call, const std::string& why) const {
    FERRULE_TRY(check_interpreted(call));
    return Line{fmt::format("interpret {} {}{}", escape(call.node->op), operands(call),
                            why.empty() ? "" : ": " + why),
                false};
  }

  /// What runs inside the library's call; `#`: an operand of it.
  std::string tail(const Launch& l) const {
    std::string out;
    for (const PostOp& op : l.post_ops)
      out += fmt::format("{}{}{}", out.empty() ? "" : ", ", op.alg,
                         op.operand < 0 ? "" : fmt::format(" #{}", op.operand));
    return out.empty() ? "" : " [" + out + "]";
  }

  std::string operands(const KernelCall& call) const {
    auto list = [&](const std::vector<Operand>& all) {
      std::string out;
      for (const Operand& o : all) out += (out.empty() ? "" : ", ") + operand(o);
      return out;
    };
    return fmt::format("({}) -> {}", list(call.inputs), list(call.outputs));
  }

  std::string operand(const Operand& o) const {
    if (!o.present()) return "-";
    std::string out = fmt::format("{}[{}]", name(o.dtype), fmt::join(o.dims, ","));
    if (o.layout == Layout::channels_last && !o.constant) out += " channels_last";
    if (!o.dense()) out += fmt::format(" every {}", fmt::join(o.apart, "."));
    return out + " " + (o.constant ? "constant" : lies(o.slot));
  }

  std::string lies(int slot, int64_t inside = 0) const {
    if (slot < 0) return "nowhere";
    const Slot& s = storage_.slots[static_cast<size_t>(slot)];
    const std::string behind = inside ? fmt::format("+{}", inside) : "";
    switch (s.kind) {
      case Slot::Kind::arena:
        return fmt::format("arena+{}", s.offset + inside);
      case Slot::Kind::input:
        return fmt::format("input {}{}", s.index, behind);
      case Slot::Kind::output:
        return fmt::format("output {}{}", s.index, behind);
      case Slot::Kind::constant:
        return "constant" + behind;
      case Slot::Kind::slice:
        break;
    }
    return lies(s.index, inside + s.offset);
  }

  void graphs() {
    for (const GpuSegment& s : cut_graphs(capturable_)) {
      const std::string which = s.end - s.begin == 1
                                    ? fmt::format("launch {}", s.begin)
                                    : fmt::format("launches {} to {}", s.begin, s.end - 1);
      text_ += (s.capturable ? "CUDA graph of " : "host: ") + which + "\n";
    }
  }

  const PrepareContext& c_;
  Storage storage_;
  std::string text_;
  std::vector<bool> capturable_;
};

}  // namespace

Applicable<GpuRecord> record_gpu(const PrepareContext& context) { return Recorder(context).run(); }

}  // namespace ferrule
