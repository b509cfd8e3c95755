#include "runtime/cpu/implementations.h"

#include <array>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

// --- rules of thumb, measured on Zen 5 with one and two threads (`ferrule tune` on the CNNs of
// tests/models) ---

/// Ours is faster by 2 to 10 per cent where many channels become few, and as much slower the other
/// way round. Along a line it is up to 6 per cent slower where all blocks of filters are whole, and
/// up to 18 where not; but it rounds a quarter as much: normalizations behind large sums of one
/// sign need that.
bool product_pays(const Context& context, const KernelCall& call) {
  const auto &x = call.inputs[0].dims, &w = call.inputs[1].dims, &y = call.outputs[0].dims;
  int64_t taps = 1;
  for (size_t k = 2; k < w.size(); ++k) taps *= w[k];
  if (taps == 1) return y[1] <= x[1];
  const product::Functions* f = product_functions(context);
  return f && taps * x[1] >= 128 && parts(y[1], f->lanes) % kBlockVectors == 0;
}

/// The library's 1x1 convolution and its product differ by a few per cent either way.
bool never(const Context&, const KernelCall&) { return false; }

template <int tile>
Applicable<KernelPtr> make_winograd_of(Context& context, const KernelCall& call) {
  return make_winograd(context, call, tile);
}
template <int tile>
bool winograd_pays(const Context& context, const KernelCall& call) {
  return winograd_tile(context, call) == tile;
}

constexpr auto kConvolutions = std::to_array<Implementation>({
    {"few_filters", make_few_filters, few_filters_pay, true},
    {"first", make_first, nullptr, true},
    {"depthwise", make_depthwise, nullptr, true},
    {"winograd_2x2", make_winograd_of<2>, winograd_pays<2>, true},
    {"winograd_4x4", make_winograd_of<4>, winograd_pays<4>, true},
    {"product", make_product, product_pays, true},
    {"matmul_1x1", make_matmul_1x1, never, true},
    {"onednn", make_convolution},
});

// --- problems as text
// -------------------------------------------------------------------------------------

std::string dims_text(const std::vector<int64_t>& dims) {
  std::string out;
  for (int64_t d : dims) out += (out.empty() ? "" : "x") + std::to_string(d);
  return out.empty() ? "scalar" : out;
}

std::string operand_text(const Operand& o) {
  if (!o.present()) return "-";
  std::string out = fmt::format("{}[{}]", name(o.dtype), dims_text(o.dims));
  if (o.rank() >= 3 && o.layout == Layout::channels_last) out += ":last";
  if (!o.dense()) out += ":slice";
  return o.constant ? out + ":const" : out;
}

std::string tail_text(const KernelCall& call) {
  std::string out;
  for (const PostOp& op : call.post_ops) {
    out += out.empty() ? " tail=" : ",";
    out += op.kind == PostOp::Kind::sum ? "sum" : op.alg;
    if (op.operand < 0) continue;
    out += op.operand == call.sum_input
               ? "(in place)"
               : "(" + operand_text(call.inputs[static_cast<size_t>(op.operand)]) + ")";
  }
  return out;
}

}  // namespace

std::span<const Implementation> implementations(Work work) {
  if (work == Work::convolution) return kConvolutions;
  return {};
}

std::string problem_text(const Context& context, const KernelCall& call, int threads) {
  std::string out = call.node->op.text();
  for (size_t k = 0; k < call.node->inputs.size() && k < call.inputs.size(); ++k)
    out += " " + operand_text(call.inputs[k]);
  for (const Operand& o : call.outputs) out += " -> " + operand_text(o);
  for (const char* key : {"strides", "pads", "dilations"})
    if (auto v = call.node->attrs.ints(key); !v.empty())
      out += fmt::format(" {}={}", key, dims_text(v));
  if (auto pad = call.node->attrs.s("auto_pad", "NOTSET"); pad != "NOTSET")
    out += " auto_pad=" + pad;
  if (auto group = call.node->attrs.i("group", 1); group != 1)
    out += fmt::format(" group={}", group);
  return out + tail_text(call) +
         fmt::format(" threads={} {}", threads, context.target ? context.target->name : "");
}

Applicable<Chosen> choose(Context& context, const KernelCall& call, int threads,
                          std::string* note) {
  const auto all = implementations(call.work);
  auto attempt = [&](const Implementation& c) -> Applicable<Chosen> {
    FERRULE_ASSIGN(KernelPtr kernel, c.make(context, call));
    return Chosen{std::move(kernel), c.name};
  };
  if (context.tuning && all.size() > 1) {
    if (const Tuning::Entry* entry = context.tuning->find(problem_text(context, call, threads))) {
      for (const Implementation& c : all) {
        if (c.name != entry->use || !suits(c, call)) continue;
        auto made = attempt(c);
        if (made || !made.error().not_applicable()) return made;
      }
      if (note) *note = unknown_choice(entry->use);
    }
  }
  // Slices go to whoever takes them: the library's convolution does not.
  for (const bool usual : {true, false}) {
    if (!usual && call.dense()) break;
    for (const Implementation& c : all) {
      if (!suits(c, call) || (usual && c.usual && !c.usual(context, call))) continue;
      auto made = attempt(c);
      if (made || !made.error().not_applicable() || &c == &all.back()) return made;
    }
  }
  return not_applicable(escape(call.layer), escape(call.node->op), "no kernel");
}

Applicable<KernelPtr> make_chosen(Context& context, const KernelCall& call) {
  std::string note;
  FERRULE_ASSIGN(Chosen chosen, choose(context, call, ferrule::threads(), &note));
  if (context.log && *context.log && !note.empty())
    (*context.log)(LogLevel::warning, fmt::format("{}: {}", escape(call.layer), note));
  return std::move(chosen.kernel);
}

}  // namespace ferrule::cpu
