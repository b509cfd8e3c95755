#include "engine/contract/library_tail.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "engine/base/diagnostics.h"
#include "engine/contract/broadcast.h"

namespace ferrule {

using answer::no, answer::yes;

namespace {

std::vector<int64_t> dims_of(const LibraryTail& t, ValueId v) {
  const Type& type = t.graph->value(v).type;
  const auto dims = type.shape ? constant_shape(*type.shape) : std::nullopt;
  return dims.value_or(std::vector<int64_t>{});
}

ValueId operand(const LibraryTail& t, const PostOp& step) {
  return t.inputs[static_cast<size_t>(step.operand)];
}
bool adds(const PostOp& step) {
  return step.operand >= 0 && (step.alg == "add" || step.kind == PostOp::Kind::sum);
}

bool same_shape(const LibraryTail& t, ValueId a, ValueId b) {
  const auto &x = t.graph->value(a).type.shape, &y = t.graph->value(b).type.shape;
  return x && y && *x == *y;
}

/// One channel a group, in bf16: cuDNN compiles no engine for that, though it does for f16 and
/// tf32.
bool ready_made_only(const LibraryTail& t, ValueId y) {
  const Node& a = t.graph->node(t.anchor);
  const auto w = dims_of(t, a.inputs[1]);
  return t.graph->value(y).type.dtype == DType::bf16 && a.attrs.i("group", 1) > 1 && w.size() > 1 &&
         w[1] == 1;
}

/// cuDNN: any chain where engines are compiled for the graph; else the ready-made addend, bias,
/// rectifier.
Accept window(const LibraryTail& t, ValueId y, bool exact) {
  const bool ready_made = ready_made_only(t, y);
  if (!exact && t.channels_last && !ready_made) return yes();
  const std::string why = exact        ? "cuDNN's f32 without tf32"
                          : ready_made ? "cuDNN's bf16 of one channel a group"
                                       : "cuDNN on plain images";
  size_t next = 0;
  if (adds(t.steps[0]) && t.contract == "conv" && same_shape(t, operand(t, t.steps[0]), y)) ++next;
  if (next < t.steps.size() && t.steps[next].alg == "relu") ++next;
  if (next == t.steps.size()) return yes();
  return no(fmt::format("{} takes an addend as large as the result, then relu", why));
}

/// cuBLASLt: addends of two kinds, then one activation.
Accept product(const LibraryTail& t, ValueId y) {
  const Node& a = t.graph->node(t.anchor);
  bool column = false, full = false;
  const auto shape = [&](ValueId v) { return t.graph->value(v).type.shape.value_or(Shape{}); };
  const Shape dims = shape(y);
  if (dims.empty()) return no("the product's rank is not known");
  const auto spread = [&](ValueId addend) {
    return broadcast_of(shape(addend), dims, static_cast<int>(dims.size()) - 1);
  };
  for (size_t k = 0; k < 2; ++k)
    if (t.graph->value(a.inputs[k]).type.rank() < 2)
      return no("cuBLASLt multiplies matrices, an operand is a vector");
  if (a.inputs.size() > 2 && a.inputs[2]) {
    const bool one_a_column = spread(a.inputs[2]) == Broadcast::channel;
    (one_a_column ? column : full) = true;
  }
  size_t next = 0;
  for (; next < t.steps.size() && adds(t.steps[next]); ++next) {
    const Broadcast how = spread(operand(t, t.steps[next]));
    bool& taken = how == Broadcast::channel ? column : full;
    if (how == Broadcast::other || how == Broadcast::one || taken)
      return no("cuBLASLt adds one value a column and one matrix");
    taken = true;
  }
  if (next < t.steps.size() && (t.steps[next].alg == "relu" || t.steps[next].alg == "gelu_tanh"))
    ++next;
  if (next == t.steps.size()) return yes();
  return no("cuBLASLt takes addends, then relu or gelu");
}

}  // namespace

bool allows_tf32(const Node& n) { return n.attrs.s("precision", "") == "tf32"; }

std::string_view too_rough(const Target& target, std::string_view contract, const PostOp& step) {
  const bool rough =
      target.facts_of(contract).library == Library::onednn && step.alg == "soft_relu";
  return rough ? "oneDNN's softplus is off by 2e-6 and below 0 for some numbers" : "";
}

Deviation::Nan nan_in(const Target& target, std::string_view contract, const PostOp& step) {
  // cuDNN's rectifier is asked for CUDNN_PROPAGATE_NAN (cudnn-frontend sets the attribute); nothing
  // is said of its minimum and maximum, nor of cuBLASLt's x := max(x, 0).
  const bool kept = target.facts_of(contract).library == Library::cudnn &&
                    (step.alg == "relu" || step.alg == "exp");
  return kept ? Deviation::Nan::kept : step.deviation.nan;
}

std::string_view infinity_in(const Target& target, std::string_view contract, const PostOp& step,
                             DType type) {
  // cudnn-frontend bounds cuDNN's rectifier by the largest number of f32, which rounds to infinity
  // in a shorter type.
  const bool bounded = target.facts_of(contract).library == Library::cudnn && type == DType::f32 &&
                       (step.alg == "relu" || step.alg == "leaky_relu");
  return bounded ? "infinity may become the largest number" : "";
}

std::string_view zero_in(const Target& target, std::string_view contract,
                         std::span<const PostOp> steps) {
  // oneDNN's deconvolutions by backward passes store no -0, though their steps make it.
  if (target.facts_of(contract).library != Library::onednn || contract != "deconv" || steps.empty())
    return "";
  constexpr std::array<std::string_view, 7> kNeverNegative{
      "relu", "abs", "square", "exp", "logistic", "soft_relu", "hardsigmoid"};
  const PostOp& last = steps.back();
  const bool never = std::ranges::find(kNeverNegative, last.alg) != kNeverNegative.end() ||
                     (last.alg == "clip" && last.alpha >= 0 && !std::signbit(last.alpha));
  return never ? "" : "-0 becomes 0";
}

Accept library_takes(const LibraryTail& t) {
  const ContractFacts& facts = t.target->facts_of(t.contract);
  for (const PostOp& step : t.steps)
    if (const auto why = too_rough(*t.target, t.contract, step); !why.empty())
      return no(std::string(why));
  if (t.steps.empty() || (facts.library != Library::cudnn && facts.library != Library::cublaslt))
    return yes();
  const Node& a = t.graph->node(t.anchor);
  const ValueId y = a.outputs[0];
  const bool exact = t.graph->value(y).type.dtype == DType::f32 && !allows_tf32(a);
  const auto& known = exact ? facts.exact_epilogues : facts.epilogues;
  for (const PostOp& step : t.steps)
    if (std::find(known.begin(), known.end(), step.alg) == known.end())
      return no(fmt::format("{}'s library calls{} have no {}", t.target->name,
                            exact ? " in f32 without tf32" : "", step.alg));
  return facts.library == Library::cublaslt ? product(t, y) : window(t, y, exact);
}

}  // namespace ferrule
