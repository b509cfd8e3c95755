// A kernel that knows no slices, over copies of its operands in scratch: each slice is copied
// before the run or after it. Plans avoid it (contracts say which kernels take slices); it is there
// for the kernels that refuse all the same.
#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/cpu/library.h"

namespace ferrule::cpu {
namespace {

class Dense final : public Kernel {
 public:
  /// Slots of the inner call that are copies: kFirst + number of the copy.
  static constexpr int kFirst = 1 << 28;

  explicit Dense(const KernelCall& call) : inner_(call) {
    for (Operand& o : inner_.inputs) stage(o, true);
    for (Operand& o : inner_.outputs) stage(o, false);
  }

  Applicable<> make(Context& context, Factory factory) {
    FERRULE_ASSIGN(kernel_, make_library_kernel(context, inner_, factory));
    return {};
  }

  int64_t scratch_bytes() const override { return bytes_ + kernel_->scratch_bytes(); }

  void bind(Binder& binder) override {
    auto* base = static_cast<char*>(binder.scratch());
    for (Copied& c : copies_) {
      c.dense = base + c.offset;
      if (c.input)
        binder.cell(c.slot, const_cast<const void**>(&c.apart));
      else
        binder.cell(c.slot, &c.apart);
    }
    Redirected redirected(*this, binder, base + bytes_);
    kernel_->bind(redirected);
  }

  Status run() override {
    for (const Copied& c : copies_)
      if (c.input) c.copy.run(c.apart, c.dense);
    FERRULE_TRY(kernel_->run());
    for (const Copied& c : copies_)
      if (!c.input) c.copy.run(c.dense, c.apart);
    return {};
  }

  std::string text() const override { return "copied+" + kernel_->text(); }

 private:
  struct Copied {
    int slot;
    bool input;
    int64_t offset;
    StridedCopy copy;
    void* apart = nullptr;
    void* dense = nullptr;
  };

  void stage(Operand& o, bool input) {
    if (o.dense() || o.slot < 0) return;
    const std::vector<int64_t> own = strides_of(o.dims, o.layout);
    const int size = size_bits(o.dtype) / 8;
    copies_.push_back({o.slot, input, bytes_,
                       input ? StridedCopy(o.dims, o.apart, own, size)
                             : StridedCopy(o.dims, own, o.apart, size)});
    bytes_ += (o.bytes() + 63) / 64 * 64;
    o.apart.clear();
    o.slot = kFirst + static_cast<int>(copies_.size()) - 1;
  }

  class Redirected final : public Binder {
   public:
    Redirected(Dense& dense, Binder& outer, void* scratch)
        : dense_(dense), outer_(outer), scratch_(scratch) {}
    void cell(int slot, const void** where) override {
      if (void* p = copied(slot))
        *where = p;
      else
        outer_.cell(slot, where);
    }
    void cell(int slot, void** where) override {
      if (void* p = copied(slot))
        *where = p;
      else
        outer_.cell(slot, where);
    }
    void memory(int slot, dnnl_memory* m) override {
      if (void* p = copied(slot))
        dnnl_memory_set_data_handle(m, p);
      else
        outer_.memory(slot, m);
    }
    void* scratch() override { return scratch_; }

   private:
    void* copied(int slot) const {
      return slot >= kFirst ? dense_.copies_[static_cast<size_t>(slot - kFirst)].dense : nullptr;
    }
    Dense& dense_;
    Binder& outer_;
    void* scratch_;
  };

  KernelCall inner_;
  std::vector<Copied> copies_;
  int64_t bytes_ = 0;
  KernelPtr kernel_;
};

}  // namespace

Applicable<KernelPtr> make_sliced(Context& context, const KernelCall& call, Factory factory,
                                  bool taken) {
  if (taken) {
    auto made = factory(context, call);
    if (made || !made.error().not_applicable()) return made;
  }
  // The library adds where its result lies: not beside a copy of it.
  if (call.sum_input >= 0)
    return not_applicable(escape(call.layer), "this tail", "the operand it adds is a slice");
  auto dense = std::make_unique<Dense>(call);
  FERRULE_TRY(dense->make(context, factory));
  return dense;
}

}  // namespace ferrule::cpu
