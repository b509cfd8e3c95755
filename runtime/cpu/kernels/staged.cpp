// Library kernels over tensors stored as f16 or bf16. Where the library has no arithmetic on the
// stored type, the launch widens its operands into scratch, runs the f32 kernel there and rounds
// the results once: still one launch, with sums in f32 as everywhere. Constants are widened when
// the kernel is made.
#include <immintrin.h>

#include <map>

#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kStagedGrain = 16384;

bool is_narrow(DType t) { return t == DType::f16 || t == DType::bf16; }

int64_t aligned(int64_t bytes) { return (bytes + 63) / 64 * 64; }

__attribute__((target("avx2,f16c"))) void widen_f16(const uint16_t* x, float* y, int64_t n) {
  int64_t k = 0;
  for (; k + 8 <= n; k += 8)
    _mm256_storeu_ps(y + k,
                     _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + k))));
  for (; k < n; ++k) y[k] = _cvtsh_ss(x[k]);
}

__attribute__((target("avx2,f16c"))) void narrow_f16(const float* x, uint16_t* y, int64_t n) {
  constexpr int kNearest = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  int64_t k = 0;
  for (; k + 8 <= n; k += 8)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + k),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + k), kNearest));
  for (; k < n; ++k) y[k] = static_cast<uint16_t>(_cvtss_sh(x[k], kNearest));
}

__attribute__((target_clones("avx512f", "avx2", "default"))) void widen_bf16(const uint16_t* x,
                                                                             uint32_t* y,
                                                                             int64_t n) {
  for (int64_t k = 0; k < n; ++k) y[k] = static_cast<uint32_t>(x[k]) << 16;
}

/// To nearest even; NaN stays one, whatever its upper half says.
__attribute__((target_clones("avx512f", "avx2", "default"))) void narrow_bf16(const uint32_t* x,
                                                                              uint16_t* y,
                                                                              int64_t n) {
  for (int64_t k = 0; k < n; ++k) {
    const uint32_t v = x[k], rounded = v + 0x7fff + (v >> 16 & 1);
    const bool nan = (v & 0x7fffffff) > 0x7f800000;
    y[k] = static_cast<uint16_t>((nan ? v | 0x400000 : rounded) >> 16);
  }
}

void widen(DType from, const void* x, void* y, int64_t n) {
  const auto* source = static_cast<const uint16_t*>(x);
  parallel_for(n, kStagedGrain, [&](int64_t begin, int64_t end) {
    if (from == DType::f16)
      widen_f16(source + begin, static_cast<float*>(y) + begin, end - begin);
    else
      widen_bf16(source + begin, static_cast<uint32_t*>(y) + begin, end - begin);
  });
}

void narrow(DType to, const void* x, void* y, int64_t n) {
  auto* target = static_cast<uint16_t*>(y);
  parallel_for(n, kStagedGrain, [&](int64_t begin, int64_t end) {
    if (to == DType::f16)
      narrow_f16(static_cast<const float*>(x) + begin, target + begin, end - begin);
    else
      narrow_bf16(static_cast<const uint32_t*>(x) + begin, target + begin, end - begin);
  });
}

/// A constant and the same in f32. The first keeps its address from being used for other bytes.
using Widened = std::pair<Tensor, Tensor>;

/// Widened once for all executables that are alive, so that they share what is packed from it.
std::shared_ptr<const Widened> widened(const Tensor& t) {
  static std::mutex mutex;
  static std::map<const void*, std::weak_ptr<const Widened>> known;
  std::lock_guard lock(mutex);
  if (const auto it = known.find(t.address()); it != known.end())
    if (auto found = it->second.lock();
        found && found->first.dtype() == t.dtype() && found->first.dims() == t.dims())
      return found;
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  auto [wide, data] = Tensor::allocate(DType::f32, t.dims());
  widen(t.dtype(), t.data(), data, t.numel());
  auto made = std::make_shared<const Widened>(t, std::move(wide));
  known[t.address()] = made;
  return made;
}

class Staged final : public Kernel {
 public:
  /// The call over f32: slots are numbers of operands, inputs first. An input that shares the
  /// result's memory shares its stage.
  explicit Staged(const KernelCall& call) : wide_(call) {
    const size_t inputs = call.inputs.size();
    for (size_t k = 0; k < inputs + call.outputs.size(); ++k) {
      Operand& o = k < inputs ? wide_.inputs[k] : wide_.outputs[k - inputs];
      Stage s{o.slot, o.dtype, o.numel(), k < inputs, k, -1, nullptr};
      if (o.present() && is_narrow(o.dtype)) {
        stored_ = o.dtype;
        o.dtype = DType::f32;
        if (o.constant)
          o.constant = &constants_.emplace_back(widened(*o.constant))->second;
        else
          s.offset = bytes_, bytes_ += aligned(s.numel * 4);
      }
      if (o.slot >= 0) o.slot = static_cast<int>(k);
      stages_.push_back(s);
    }
    if (call.sum_input < 0) return;
    Stage& shared = stages_[static_cast<size_t>(call.sum_input)];
    shared.offset = stages_[inputs].offset;
    wide_.inputs[static_cast<size_t>(call.sum_input)].slot = static_cast<int>(inputs);
  }

  Applicable<> make(Context& context, Factory factory) {
    FERRULE_ASSIGN(kernel_, factory(context, wide_));
    return {};
  }

  int64_t scratch_bytes() const override { return bytes_ + kernel_->scratch_bytes(); }

  void bind(Binder& binder) override {
    auto* base = static_cast<char*>(binder.scratch());
    for (Stage& s : stages_) {
      if (s.offset < 0) continue;
      s.wide = base + s.offset;
      if (s.input)
        binder.cell(s.slot, const_cast<const void**>(&s.narrow));
      else
        binder.cell(s.slot, &s.narrow);
    }
    InnerBinder inner(*this, binder, base + bytes_);
    kernel_->bind(inner);
  }

  Status run() override {
    const OneKernel one;  // the library has none of this type
    for (const Stage& s : stages_)
      if (s.offset >= 0 && s.input) widen(s.dtype, s.narrow, s.wide, s.numel);
    FERRULE_TRY(kernel_->run());
    for (const Stage& s : stages_)
      if (s.offset >= 0 && !s.input) narrow(s.dtype, s.wide, s.narrow, s.numel);
    return {};
  }

  std::string text() const override {
    return fmt::format("{}_staged:{}", name(stored_), kernel_->text());
  }

 private:
  struct Stage {
    int slot;     ///< of the caller
    DType dtype;  ///< as stored
    int64_t numel;
    bool input;
    size_t operand;
    int64_t offset = -1;  ///< into scratch; -1: passed on as it is
    void* narrow = nullptr;
    void* wide = nullptr;
  };

  /// Gives the f32 kernel its stages, and the caller's memory for operands of other types.
  class InnerBinder final : public Binder {
   public:
    InnerBinder(Staged& staged, Binder& outer, void* scratch)
        : staged_(staged), outer_(outer), scratch_(scratch) {}
    void cell(int slot, const void** where) override {
      if (void* p = staged(slot))
        *where = p;
      else
        outer_.cell(at(slot).slot, where);
    }
    void cell(int slot, void** where) override {
      if (void* p = staged(slot))
        *where = p;
      else
        outer_.cell(at(slot).slot, where);
    }
    void memory(int slot, dnnl_memory* memory) override {
      if (void* p = staged(slot))
        dnnl_memory_set_data_handle(memory, p);
      else
        outer_.memory(at(slot).slot, memory);
    }
    void* scratch() override { return scratch_; }

   private:
    const Stage& at(int slot) const { return staged_.stages_[static_cast<size_t>(slot)]; }
    void* staged(int slot) const { return at(slot).offset >= 0 ? at(slot).wide : nullptr; }
    Staged& staged_;
    Binder& outer_;
    void* scratch_;
  };

  KernelCall wide_;
  DType stored_ = DType::undefined;
  std::vector<Stage> stages_;
  std::vector<std::shared_ptr<const Widened>> constants_;
  int64_t bytes_ = 0;
  KernelPtr kernel_;
};

bool has_narrow(const KernelCall& call) {
  auto narrow = [](const Operand& o) { return o.present() && is_narrow(o.dtype); };
  return std::any_of(call.inputs.begin(), call.inputs.end(), narrow) ||
         std::any_of(call.outputs.begin(), call.outputs.end(), narrow);
}

}  // namespace

bool computes(DType t) {
  if (t != DType::bf16) return t == DType::f32;
  constexpr auto kNeeded = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool native =
      (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & kNeeded) == kNeeded;
  return native;
}

Applicable<KernelPtr> make_library_kernel(Context& context, const KernelCall& call,
                                          Factory factory) {
  Applicable<KernelPtr> native = factory(context, call);
  if (!has_narrow(call)) return native;
  // The library's reference code is far slower than staging.
  if (native && (*native)->text().find("ref") == std::string::npos) return native;
  if (!native && !native.error().not_applicable()) return native;
  auto staged = std::make_unique<Staged>(call);
  FERRULE_TRY(staged->make(context, factory));
  return staged;
}

}  // namespace ferrule::cpu
