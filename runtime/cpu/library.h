// oneDNN as the kernels see it: one engine a process, one stream an executable, constants packed
// once and shared, and Prepared: a primitive whose arguments are set up so that running it is one C
// call. Exceptions of oneDNN's C++ API end in guard().
#pragma once
#include <dnnl.hpp>
#include <functional>
#include <mutex>
#include <unordered_map>

#include "engine/base/applicable.h"
#include "runtime/cpu/kernel.h"

namespace ferrule::cpu {

using dnnl::memory;

/// 64-byte aligned memory; from 2 MiB on, on huge pages where the system gives them.
std::shared_ptr<void> allocate(int64_t bytes);

/// Keeps the library to the target's instruction set. It can only be told before it made its first
/// primitive, and for the whole process: false when it was too late, and then it uses what the
/// processor has.
bool limit_library(const Target& target);

/// A constant in the layout that a primitive asked for. Who has it keeps no pointer to the source,
/// which may be given back.
struct Packed {
  std::shared_ptr<const void> owner;
  const void* data = nullptr;
  int64_t bytes = 0;             ///< of its own memory; 0 when the model's memory serves
  std::shared_ptr<void> buffer;  ///< its own memory alone: `owner` keeps the source, too
};

/// Constants in the library's layouts, shared by all executables that want the same of the same
/// bytes.
class PackCache {
 public:
  /// `tensor` read as `from` (its dims and strides), times `scale`, in layout `to`.
  Packed pack(const dnnl::engine& engine, dnnl::stream& stream, const Tensor& tensor,
              const memory::desc& from, const memory::desc& to, float scale);
  /// `bytes` bytes that `fill` writes from the tensor, shared under `recipe`. Throws
  /// std::bad_alloc.
  Packed derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                const std::function<void(void*)>& fill);
  /// Constants that it remembers; of those that are gone no more than of the others, or 64.
  size_t entries() const {
    const std::lock_guard lock(mutex_);
    return entries_.size();
  }

 private:
  struct Entry {
    memory::desc from, to;
    float scale;
    std::string recipe;  ///< derive's; empty for the library's layouts
    std::weak_ptr<const void>
        owner;  ///< also keeps the source, so that its address is not used for other bytes
    std::weak_ptr<void> buffer;
    Packed packed;  ///< without owner and buffer
  };
  mutable std::mutex mutex_;
  std::multimap<const void*, Entry> entries_;
  size_t most_ = 64;  ///< entries, until those whose constants are gone are looked for
  void add(const Tensor& tensor, Entry entry);
  /// The entry of `tensor` for which `same` holds, if it is still alive.
  template <class Same>
  std::optional<Packed> find(const Tensor& tensor, Same&& same);
};

struct Library {
  dnnl::engine engine;
  dnnl::stream stream;
  PackCache* packs = nullptr;
  int64_t packed_bytes = 0;
  bool runs_once = false;  ///< PrepareContext::runs_once
  /// Constants, by address, that lie packed in an order which can be turned back, since somebody
  /// last cleared this.
  std::unordered_map<const void*, Residence::Restore> reversible;
  Library(PackCache* cache);
  Packed pack(const Tensor& tensor, const memory::desc& from, const memory::desc& to,
              float scale = 1);
  Packed derive(const Tensor& tensor, std::string_view recipe, int64_t bytes,
                const std::function<void(void*)>& fill);
  /// `back`(derived, tensor's bytes) writes the tensor again, bit by bit, from what derive() made
  /// of it.
  void turns_back(const Tensor& tensor, const Packed& derived,
                  std::function<void(const void*, void*)> back);
};

/// Runs `body`, which gives an Applicable and may throw dnnl::error. `what`: the primitive, for the
/// message.
template <class Body>
auto guard(const KernelCall& call, std::string_view what, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented)
      return not_applicable(escape(call.layer), what, "oneDNN has no implementation");
    return error(Code::library_failed, escape(call.layer), fmt::format("oneDNN {}", what),
                 e.what());
  }
}

/// Whether the tail takes the logistic function from the library. Its reference code is plain C++,
/// where that function makes 0 of NaN and raises no flag (nan_watch.h); so are some of its other
/// kernels' tails.
bool has_logistic(const KernelCall& call);
/// What `make` makes of the same call with logistic(x) as exp(-log(1 + exp(-x))), which keeps NaN.
Applicable<KernelPtr> make_without_logistic(
    KernelCall call, const std::function<Applicable<KernelPtr>(const KernelCall&)>& make);

std::optional<memory::data_type> data_type(DType t);
/// Whether the library computes on operands stored so on this machine: f32, and bf16 where there
/// are instructions for it. Sums are f32 in both.
bool computes(DType t);
/// The operand as it lies in memory, under its logical dims.
memory::desc desc_of(const Operand& o);
/// The same with rank `rank` (leading ones added); for broadcasting operands.
memory::desc desc_of(const Operand& o, int rank);
/// Dims of the operand in any layout; oneDNN chooses.
memory::desc any_desc(const Operand& o);
/// An image (N, C, spatial…) as channels-last wherever its memory can be read that way.
memory::desc image_desc(const Operand& o);

/// Whether the operand's memory can be read so.
bool channels_last(const Operand& o);

/// A primitive and its arguments in execution order.
class Prepared final : public Kernel {
 public:
  Prepared(Context& context, dnnl::primitive primitive, std::string text);
  void argument(int id, const memory::desc& desc, int slot);
  void constant(int id, const memory::desc& desc, Packed packed);
  /// Slot or constant, as the operand is.
  void operand(int id, const memory::desc& desc, const Operand& o);
  /// An operand that lies as `from` and is copied as `to` wants it in front of each run.
  void repacked(int id, const memory::desc& from, const memory::desc& to, int slot);
  void scratchpad(const memory::desc& desc);

  int64_t scratch_bytes() const override { return scratch_bytes_; }
  void bind(Binder& binder) override;
  Status run() override;
  std::string text() const override { return text_; }

 private:
  Library& library_;
  dnnl::primitive primitive_;
  std::string text_;
  std::vector<dnnl_exec_arg_t> arguments_;
  std::vector<memory> memories_;
  std::vector<std::pair<int, size_t>> slots_;  ///< slot, index of its memory
  std::vector<Packed> packed_;
  std::vector<std::pair<const void*, size_t>> let_go_;  ///< what a single run needs no more
  struct Repacked {
    dnnl::reorder reorder;
    size_t from, to;  ///< memories
  };
  std::vector<Repacked> repacked_;
  std::vector<std::pair<size_t, int64_t>> scratch_;  ///< index of a memory, where in scratch
  int64_t scratch_bytes_ = 0;
  size_t in_scratch(const memory::desc& desc);
  Status failed(int status) const;
};

/// How the primitive sees its destination, and so the operands of post-ops.
struct EpilogueShape {
  memory::desc full;  ///< an operand of the result's size: the destination, if it were dense
  int channel =
      1;  ///< axis of the call's result along which an operand may have one value each; -1: none
  int destination = 1;  ///< that axis of the primitive's destination
};

/// A step in front of the call's post-ops: a factor, or an addend that is no bias to the library.
struct Leading {
  float factor = 1;
  int input = -1;
  memory::desc desc;
};

/// A call's post-ops as attributes; user scratchpad.
struct Epilogue {
  struct Entry {
    int position, input;  ///< of the post-op; of the call
    memory::desc desc;
  };
  dnnl::primitive_attr attr;
  std::vector<Entry> operands;
};
/// Not applicable.
Applicable<Epilogue> make_epilogue(const KernelCall& call, const EpilogueShape& shape,
                                   std::span<const Leading> leading = {});
void bind_epilogue(Prepared& kernel, const KernelCall& call, const Epilogue& epilogue);

}  // namespace ferrule::cpu
