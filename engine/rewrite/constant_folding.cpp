// Constant folding and dead code: not rules. A node whose operands are all constants is run once,
// by the interpreter, in its own types; small integer results that inference knows become
// constants, too.
#include <algorithm>
#include <deque>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/interpreter/interpreter.h"
#include "engine/match/facts.h"
#include "engine/rewrite/branches.h"
#include "engine/rewrite/rewrite.h"
#include "engine/semantics/infer.h"
#include "engine/semantics/movement.h"
#include "engine/semantics/operator_kinds.h"

namespace ferrule {
namespace {

class Folder {
 public:
  Folder(const PassContext& ctx, bool packed) : ctx_(ctx), g_(ctx.graph), packed_(packed) {}

  /// A branch taken may fold, and decide the next.
  Result<int> run() {
    for (;;) {
      FERRULE_TRY(sweep());
      FERRULE_ASSIGN(int inlined, inline_branches(ctx_.ops, g_));
      if (!inlined) break;
      folded_ += inlined;
      step("dead", {}, fmt::format("Deciding {} branches", inlined));
    }
    int dead = g_.remove_dead();
    if (dead > folded_) step("dead", {}, fmt::format("Removing {} dead layers", dead - folded_));
    return folded_;
  }

 private:
  Status sweep() {
    FERRULE_TRY(g_.sort());
    for (NodeId n : g_.order()) {
      FERRULE_TRY(ctx_.in_time("folding"));
      if (g_.node(n).dead ||
          (escapes(n) && (g_.node(n).outputs.size() > 1 || g_.node(n).op == identity_operator())))
        continue;
      refine(n);
      if (!known_contents(n)) FERRULE_TRY(fold(n));
    }
    return {};
  }

  /// Graph outputs keep a node that makes them: one that passes the constant on.
  bool escapes(NodeId n) const {
    for (ValueId v : g_.node(n).outputs)
      if (v && g_.value(v).is_output) return true;
    return false;
  }

  /// A folded operand may be what inference was missing, and so may what it then says of a result.
  void refine(NodeId n) {
    bool constant = false, news = false;
    for (ValueId v : g_.node(n).inputs) {
      constant |= v && g_.constant(v);
      news |= v && news_.contains(v);
    }
    if (!constant && !news) return;
    const bool missing = std::ranges::any_of(g_.node(n).outputs, [&](ValueId v) {
      if (!v) return false;
      const Type& type = g_.value(v).type;
      return (constant && !type.known()) || (news && (!type.shape || !constant_shape(*type.shape)));
    });
    if (!missing) return;
    const std::vector<ValueId> outputs = g_.node(n).outputs;
    std::vector<Type> before;
    for (ValueId v : outputs) before.push_back(v ? g_.value(v).type : Type{});
    (void)infer(ctx_.ops, g_, n);
    for (size_t k = 0; k < outputs.size(); ++k)
      if (outputs[k] && g_.value(outputs[k]).type.shape != before[k].shape)
        news_.insert(outputs[k]);
  }

  void step(const char* kind, std::vector<std::string> before, std::string text) {
    ctx_.journal.steps.push_back({"fold", "", kind, std::move(before), {}, std::move(text)});
  }

  void make_constant(NodeId n, size_t slot, Tensor t) {
    const ValueId v = g_.output(n, slot);
    news_.insert(v);
    if (!g_.value(v).is_output) return g_.set_constant(v, std::move(t));
    const std::string name = g_.fresh_name(g_.value(v).name + "_constant");
    Node copy = identity(g_.add_constant(name, std::move(t)), v);
    copy.name = g_.node(n).name, copy.origins = g_.node(n).origins, copy.order = g_.node(n).order;
    g_.detach_output(n, slot);
    g_.remove_node(n);
    g_.add_node(std::move(copy));
  }

  void done(NodeId n, const std::string& name) {
    ++folded_;
    step("fold", {name}, "Folding " + escape(name));
    if (!g_.node(n).dead && g_.node(n).outputs.empty()) g_.remove_node(n);
  }

  bool within(int64_t bytes) const {
    return bytes <= ctx_.limits.fold_tensor_bytes && bytes_ + bytes <= ctx_.limits.fold_model_bytes;
  }

  /// Shape arithmetic on partly known sizes: the elements are constants although the operands are
  /// not.
  bool known_contents(NodeId n) {
    if (g_.node(n).outputs.size() != 1) return false;
    ValueId v = g_.output(n);
    const Value& value = g_.value(v);
    if (!value.contents || !value.type.shape || !is_int(value.type.dtype)) return false;
    auto dims = constant_shape(*value.type.shape);
    if (!dims) return false;
    std::vector<int64_t> elements;
    for (const Dim& d : *value.contents) {
      if (!d.is_constant()) return false;
      elements.push_back(d.value_or(0));
    }
    if (product(*value.type.shape).value_or(-1) != std::ssize(elements) ||
        size_bits(value.type.dtype) < 8)
      return false;
    std::string name = g_.node(n).name;
    make_constant(n, 0, Tensor::of_ints(value.type.dtype, *dims, elements));
    done(n, name);
    return true;
  }

  /// Weights of a product that are scaled block by block: for few rows a kernel reads them as they
  /// are stored.
  bool waits(const Node& n) const {
    if (!dequantizes(n) || n.attrs.i("block_size", 0) < 1) return false;
    ValueId v = n.outputs[0];
    for (int k = 0; k < 2; ++k) {
      if (!v || g_.value(v).is_output || g_.value(v).uses.size() != 1) return false;
      const auto& use = g_.value(v).uses[0];
      const Node& reader = g_.node(use.node);
      if (const Weighted* w = weighted(reader))
        return !w->window && static_cast<size_t>(use.slot) == w->slot;
      if (!is_movement(reader)) return false;
      v = reader.outputs[0];
    }
    return false;
  }

  Status fold(NodeId id) {
    const Node& n = g_.node(id);
    if (!n.subgraphs.empty() || n.body || !deterministic(n)) return {};
    std::vector<const Tensor*> inputs;
    std::deque<Tensor> stand_ins;
    const OpFormula* formula = ctx_.ops.find(n);
    for (size_t slot = 0; slot < n.inputs.size(); ++slot) {
      const ValueId v = n.inputs[slot];
      const Tensor* constant = v && !g_.value(v).is_input ? g_.constant(v) : nullptr;
      if (v && !constant && formula && !formula->reads(slot)) {
        // Only its type is read (CastLike): any value of that type will do.
        const DType type = g_.value(v).type.dtype;
        if (!is_float(type) && !is_int(type) && type != DType::boolean) return {};
        constant = &stand_ins.emplace_back(Tensor::scalar(type, 0));
      }
      if (v && !constant) return {};
      inputs.push_back(constant);
    }
    if ((packed_ && waits(n)) || !interpretable(n, ctx_.ops)) return {};
    for (ValueId v : n.outputs) {
      if (!v || !g_.value(v).type.shape) continue;
      auto numel = product(*g_.value(v).type.shape).constant();
      if (numel && !within(size_bytes(g_.value(v).type.dtype, *numel))) return {};
    }
    InterpreterOptions options;
    options.ops = &ctx_.ops;
    options.limits = &ctx_.limits;
    options.cancel = ctx_.cancel;
    auto results = interpret_node(g_, n, inputs, options);
    if (!results) return {};  // it will say the same when the model runs
    int64_t bytes = 0;
    for (const Tensor& t : *results) {
      if (!t.is_tensor()) return {};  // no constant is a sequence
      bytes += t.bytes();
    }
    if (!within(bytes) || results->size() < n.outputs.size()) return {};
    bytes_ += bytes;
    std::string name = n.name;
    const size_t outputs = n.outputs.size();
    for (size_t k = 0; k < outputs; ++k)
      if (g_.output(id, k)) make_constant(id, k, (*results)[k]);
    done(id, name);
    return {};
  }

  const PassContext& ctx_;
  Graph& g_;
  bool packed_;
  int64_t bytes_ = 0;
  int folded_ = 0;
  std::set<ValueId> news_;  ///< values made constant, or of a type found out
};

}  // namespace

Result<int> fold_constants(const PassContext& ctx, bool packed) {
  return Folder(ctx, packed).run();
}

}  // namespace ferrule
