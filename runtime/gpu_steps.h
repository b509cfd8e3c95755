// What runs each launch on a GPU, decided without one: which library, which generated kernel on
// which grid, what the host interprets, where CUDA graphs are cut. The CUDA backend makes kernels
// of it; the null backend records it, on any machine. It knows no addresses and opens no library;
// what a library itself refuses is met where it is asked.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/library_attention.h"
#include "codegen/cuda/plan_launch.h"
#include "engine/base/applicable.h"
#include "engine/target/target.h"
#include "runtime/kernel_call.h"
#include "runtime/sliding_window.h"
#include "runtime/tuning.h"

namespace ferrule {

/// Whether a library computes the work of a call. Attentions are asked for one by one
/// (choose_gpu_attention). Norms and poolings are none: their time is that of the memory, which a
/// generated kernel reads once as a library's does, and it takes every form of theirs, and norms
/// their neighbours.
bool gpu_library(Work work);
/// Whether there is one, and it takes the call's form: what follows, by library. Not applicable;
/// errors: bad_attribute.
Applicable<> check_gpu_library(const Launch& launch, const KernelCall& call);
/// The window of a convolution or deconvolution as cuDNN has it.  errors: as check_gpu_library.
Applicable<Window> gpu_window(const KernelCall& call);
/// Not applicable.
Applicable<> check_gpu_product(const KernelCall& call);

/// What `tuning` (may be null) names for a problem; `wanted`: the same.
CudaShapeChoice tuned(const Tuning* tuning, std::string& wanted);
/// The generated launch for these operands, in the shape that `tuning` (may be null) names for its
/// problem. Constants lie plain. `note`: why an entry was ignored. errors: those of
/// plan_cuda_launch; not applicable for more blocks than a launch can have.
Applicable<CudaLaunch> plan_gpu_launch(const Launch& launch, const KernelCall& call,
                                       const Target& target, std::string_view entry,
                                       const Tuning* tuning, std::string* note = nullptr);

/// Whether cuDNN runs the launch: attentions only.
AttentionChoice choose_gpu_attention(const Launch& launch, const KernelCall& call,
                                     const Target& target, bool strict);

/// Whether the host's interpreter can run the call. Not applicable; errors: unsupported_type.
Applicable<> check_interpreted(const KernelCall& call);

/// A launch, or all of a layer's, as one kernel of type K.
template <class K>
struct GpuStep {
  K kernel;
  int step = 0;   ///< number among all launches, views included
  int count = 1;  ///< kernels that it stands for
};

/// The layer's launches in order, views left out. `make(launch, call)` gives an Applicable<K>;
/// where it has none, `interpret(call, why)` does: for that launch, or for the whole layer where
/// the launch is but a part of its node. errors: those of make and interpret that are not about a
/// missing kernel; size_unknown.
template <class K, class Make, class Interpret>
Applicable<std::vector<GpuStep<K>>> gpu_layer(const Plan& plan, const Lowered& lowered,
                                              const Storage& storage, size_t layer, int first_step,
                                              Make make, Interpret interpret) {
  std::vector<GpuStep<K>> out;
  const LoweredLayer& launches = lowered.layers[layer];
  int step = first_step - 1;
  for (const Launch& l : launches.launches) {
    ++step;
    if (l.kind == Launch::Kind::view) continue;
    FERRULE_ASSIGN(KernelCall call, call_of(plan, lowered, storage, layer, l));
    Applicable<K> made = make(l, call);
    if (made) {
      out.push_back({std::move(*made), step, l.passes});
      continue;
    }
    const Refusal& why = made.error();
    const NodeId node = plan.layers[layer].node;
    if ((why.error() && why.error()->code != Code::unsupported_type) || !node) return fail(why);
    // A tail, or what is no node, cannot be interpreted on its own.
    const bool whole =
        !l.node || !l.post_ops.empty() || l.region || l.rows || plan.graph.node(node).body;
    if (whole) {
      FERRULE_ASSIGN(call, node_call(plan, lowered, storage, layer));
    }
    FERRULE_ASSIGN(K interpreted, interpret(call, why));
    if (!whole) {
      out.push_back({std::move(interpreted), step, 1});
      continue;
    }
    // Behind the layer's last launch: what it reads is still there, what it writes is there by
    // then.
    out.clear();
    out.push_back({std::move(interpreted),
                   first_step + static_cast<int>(launches.launches.size()) - 1,
                   launches.kernels()});
    return out;
  }
  return out;
}

/// As many steps in a row as one CUDA graph can hold, or one that none can.
struct GpuSegment {
  size_t begin = 0, end = 0;
  bool capturable = true;
};
/// By step: whether it only puts work on the stream.
std::vector<GpuSegment> cut_graphs(const std::vector<bool>& capturable);

}  // namespace ferrule
