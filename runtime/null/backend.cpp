#include "runtime/null/backend.h"

#include <cstring>
#include <optional>

#include "engine/base/diagnostics.h"
#include "runtime/memory_plan.h"
#include "runtime/null/gpu_record.h"

namespace ferrule {
namespace {

class NullExecutable final : public Executable {
 public:
  explicit NullExecutable(const PrepareContext& c, std::optional<GpuRecord> gpu)
      : Executable(c.plan), lowered_(c.lowered), gpu_(std::move(gpu)) {}

  Status run(std::span<const void* const>, std::span<void* const> outputs,
             RunObserver* observer) override {
    launches_ = 0;
    for (size_t layer = 0; layer < lowered_.layers.size(); ++layer) {
      const int count = lowered_.layers[layer].kernels();
      launches_ += count;
      if (observer) observer->layer_done(layer, count, 0);
    }
    const auto& ids = plan_.graph.outputs();
    for (size_t k = 0; k < ids.size(); ++k) {
      const Type& t = plan_.graph.value(ids[k]).type;
      FERRULE_ASSIGN(auto dims, dims_of(plan_, lowered_, plan_.layers.size(), ids[k]));
      std::memset(outputs[k], 0,
                  static_cast<size_t>(size_bytes(t.dtype, product(*t.shape).value_or(0))));
    }
    return {};
  }
  int64_t launches() const override { return launches_; }
  int64_t arena_bytes() const override { return gpu_ ? gpu_->storage.arena_bytes : 0; }
  const Storage* storage() const override { return gpu_ ? &gpu_->storage : nullptr; }

  std::string text() const override {
    if (gpu_) return gpu_->text;
    std::string out;
    for (size_t layer = 0; layer < lowered_.layers.size(); ++layer) {
      out += escape(plan_.layers[layer].name) + "\n";
      for (const Launch& l : lowered_.layers[layer].launches) out += launch_text(layer, l);
    }
    return out;
  }

 private:
  std::string value_text(size_t layer, ValueId v) const {
    if (!v) return "-";
    std::string label = v.index >= kTemporary ? fmt::format("t{}", v.index - kTemporary)
                                              : escape(plan_.graph.value(v).name);
    std::string text = label + ": " + str(type_of(plan_, lowered_, layer, v));
    if (layout_of(plan_, lowered_, layer, v) == Layout::channels_last) text += " channels_last";
    return text;
  }

  std::string launch_text(size_t layer, const Launch& l) const {
    static const char* const kKinds[] = {"library", "generated", "copy", "interpret", "view"};
    std::string out = fmt::format("  {} {}(", kKinds[static_cast<int>(l.kind)], escape(l.called));
    for (size_t k = 0; k < l.inputs.size(); ++k)
      out += (k ? ", " : "") + value_text(layer, l.inputs[k]);
    out += ") -> ";
    for (size_t k = 0; k < l.outputs.size(); ++k)
      out += (k ? ", " : "") + value_text(layer, l.outputs[k]);
    if (!l.post_ops.empty()) out += fmt::format("  post-ops {}", l.post_ops.size());
    return out + "\n";
  }

  const Lowered& lowered_;
  std::optional<GpuRecord> gpu_;
  int64_t launches_ = 0;
};

class NullBackend final : public Backend {
 public:
  std::string_view name() const override { return "null"; }
  Applicable<std::unique_ptr<Executable>> prepare(const PrepareContext& context) override {
    std::optional<GpuRecord> gpu;
    if (context.target.device == "gpu") {
      FERRULE_ASSIGN(gpu, record_gpu(context));
    }
    return std::make_unique<NullExecutable>(context, std::move(gpu));
  }
};

}  // namespace

std::unique_ptr<Backend> make_null_backend() { return std::make_unique<NullBackend>(); }

}  // namespace ferrule
