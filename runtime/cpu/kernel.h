// One launch of the CPU backend, in three steps: make (from dims and layouts: primitive created,
// weights packed), bind (addresses put where the kernel wants them), run (no decisions, no
// allocation). Kernels know operands by dims, layout and slot; they know neither the plan nor the
// memory planner.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/cpu/jit.h"
#include "codegen/program/layers_to_launches.h"
#include "engine/base/applicable.h"
#include "engine/base/limits.h"
#include "engine/graph/graph.h"
#include "engine/plan/plan.h"
#include "engine/target/target.h"
#include "runtime/backend.h"
#include "runtime/kernel_call.h"
#include "runtime/tuning.h"

struct dnnl_memory;

namespace ferrule {
class RowSplits;
}

namespace ferrule::cpu {

constexpr int kX = 0, kW = 1,
              kB = 2;              ///< operands of convolutions and products: image, weights, bias
constexpr int64_t kGrain = 65536;  ///< bytes of a copy that are worth a thread

/// Tells kernels where slots are. Cells of graph inputs and outputs are written again at each run.
class Binder {
 public:
  virtual ~Binder() = default;
  virtual void cell(int slot, const void** where) = 0;
  virtual void cell(int slot, void** where) = 0;
  virtual void memory(int slot, dnnl_memory* memory) = 0;
  virtual void* scratch() = 0;  ///< of the launch being bound, scratch_bytes() long
};

class Kernel {
 public:
  virtual ~Kernel() = default;
  virtual int64_t scratch_bytes() const { return 0; }
  virtual void bind(Binder& binder) = 0;
  virtual Status run() = 0;
  /// Which implementation it is ("brgconv_1x1:avx512_core"); for text() and profiles.
  virtual std::string text() const { return {}; }
  /// Whether the interpreter does some of it.
  virtual bool interprets() const { return false; }
};
using KernelPtr = std::unique_ptr<Kernel>;

struct Library;  // library.h: oneDNN's engine and stream, packed constants

struct Context {
  Library& library;
  const Semantics* ops = nullptr;
  const Target* target = nullptr;
  const Limits* limits = nullptr;
  bool strict = false;  ///< no kernel that computes another formula (Winograd)
  const Tuning* tuning = nullptr;
  const LogCallback* log = nullptr;
  const Cancel* cancel = nullptr;
  DiskCache* cache = nullptr;
  RowSplits* splits = nullptr;  ///< of the plan that is being prepared
};

/// Not applicable when the library has no such kernel (it is interpreted then); errors:
/// library_failed.
using Factory = Applicable<KernelPtr> (*)(Context&, const KernelCall&);
/// Machine code of a role's formula: one vector of f32, in place or not.
Applicable<CpuJit::Request> formula_request(Context&, const Graph& formula,
                                            const std::string& layer);
/// The factory of a library's work; null if there is none.
Factory library_factory(Work work);
/// The same of Work::own.
Factory own_factory(std::string_view contract);

/// Whether the factory takes operands that are slices (or refuses those that it cannot).
bool takes_slices(Work work);
/// For calls with slices: the factory's kernel if `taken` and it does not refuse, else one over
/// copies in scratch.
Applicable<KernelPtr> make_sliced(Context&, const KernelCall&, Factory, bool taken);

/// A library kernel; where the library does not compute in the operands' type (f16, bf16), the f32
/// kernel over operands widened in scratch. errors: those of the factory.
Applicable<KernelPtr> make_library_kernel(Context&, const KernelCall&, Factory);

Applicable<KernelPtr> make_convolution(Context&, const KernelCall&);
/// F(tile x tile, 3 x 3) for tile 2 or 4; not applicable where it does not apply (winograd.cpp).
Applicable<KernelPtr> make_winograd(Context&, const KernelCall&, int tile);
/// The tile with which Winograd is faster than the library's convolution; 0 if with none.
int winograd_tile(const Context&, const KernelCall&);
/// One filter a channel, or groups of 2 or 4 with as many filters; not applicable for all others
/// and for tails that registers cannot take.
Applicable<KernelPtr> make_depthwise(Context&, const KernelCall&);
/// Up to 8 filters of a channels-last image; not applicable for all others.
Applicable<KernelPtr> make_few_filters(Context&, const KernelCall&);
/// Whether it is faster than the library's convolution.
bool few_filters_pay(const Context&, const KernelCall&);
/// Few planes in the plain layout; not applicable for all others.
Applicable<KernelPtr> make_first(Context&, const KernelCall&);
/// Another factory's kernel behind a copy of input 0 (f32) in channels-last order.
Applicable<KernelPtr> make_reordered(Context&, const KernelCall&, Factory factory);
/// A 1x1 convolution as our product; not applicable for all others, and for tails that registers
/// cannot take.
Applicable<KernelPtr> make_product(Context&, const KernelCall&);
/// A 1x1 convolution as the library's product; not applicable for all others.
Applicable<KernelPtr> make_matmul_1x1(Context&, const KernelCall&);
Applicable<KernelPtr> make_deconvolution(Context&, const KernelCall&);
/// Windows that do not overlap; not applicable for all others.
Applicable<KernelPtr> make_unfolded_deconvolution(Context&, const KernelCall&);
/// Windows that overlap, added up after a product; not applicable for computed filters, groups of
/// several channels, residuals, and results that fill the memory.
Applicable<KernelPtr> make_folded_deconvolution(Context&, const KernelCall&);
/// Whether it is faster than the library's deconvolution.
bool folding_pays(const KernelCall&);
Applicable<KernelPtr> make_matmul(Context&, const KernelCall&);
Applicable<KernelPtr> make_gemm(Context&, const KernelCall&);
/// MatMul, or Gemm (`affine`), in f64; not applicable with a tail.
Applicable<KernelPtr> make_product_f64(Context&, const KernelCall&, bool affine);
Applicable<KernelPtr> make_pool(Context&, const KernelCall&);
Applicable<KernelPtr> make_global_pool(Context&, const KernelCall&);
/// Two windows, one over the other's result, strip by strip.
Applicable<KernelPtr> make_window_chain(Context&, const KernelCall&);
Applicable<KernelPtr> make_softmax_topk(Context&, const KernelCall&);
/// LSTM, GRU and RNN, with all their attributes.
Applicable<KernelPtr> make_recurrent(Context&, const KernelCall&);
/// The machine code that make_recurrent will ask for; none for other works.
Applicable<std::vector<CpuJit::Request>> recurrent_requests(Context&, const KernelCall&);
Applicable<KernelPtr> make_resize(Context&, const KernelCall&);
Applicable<KernelPtr> make_norm(Context&, const KernelCall&);
Applicable<KernelPtr> make_copy(Context&, const KernelCall&);
Applicable<KernelPtr> make_gather(Context&, const KernelCall&);
Applicable<KernelPtr> make_pointwise(Context&, const KernelCall&);
/// Regions in pieces; make_pointwise hands them on.
Applicable<KernelPtr> make_pieces(Context&, const KernelCall&);
Applicable<std::vector<CpuJit::Request>> pieces_requests(Context&, const KernelCall&);
/// The machine code that make_pointwise will ask for, so that all of it can be compiled at once.
Applicable<std::vector<CpuJit::Request>> pointwise_requests(Context&, const KernelCall&);
/// Row operators with their pointwise neighbours.
Applicable<KernelPtr> make_rows(Context&, const KernelCall&);
Applicable<std::vector<CpuJit::Request>> row_requests(Context&, const KernelCall&);
Applicable<KernelPtr> make_interpreted(Context&, const KernelCall&);

}  // namespace ferrule::cpu
