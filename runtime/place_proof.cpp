#include "runtime/place_proof.h"

#include <algorithm>
#include <numeric>

#include "engine/proof/edit.h"
#include "engine/semantics/infer.h"
#include "runtime/memory_plan.h"

namespace ferrule {
namespace {

/// Where each element of a value lies from the beginning of the memory it is a part of, in
/// elements.
std::vector<int64_t> places(const StridedView& at, const std::vector<int64_t>& dims) {
  std::vector<int64_t> out{at.offset};
  for (size_t axis = 0; axis < dims.size(); ++axis) {
    std::vector<int64_t> longer;
    for (const int64_t from : out)
      for (int64_t k = 0; k < dims[axis]; ++k) longer.push_back(from + k * at.strides[axis]);
    out = std::move(longer);
  }
  return out;
}

class PlaceCheck {
 public:
  PlaceCheck(const Plan& plan, const Storage& storage, const InterpreterOptions& options)
      : plan_(plan), storage_(storage), options_(options) {}

  /// Counts the group's parts; "" or what is wrong with them.
  std::string group(const Node& n, int& parts) {
    const bool writes = n.attrs.find(kSlicesWritten) != nullptr;
    const auto body = n.body->clone();
    const NodeId inside = body->order()[0];
    const ValueId whole = writes ? body->output(inside) : body->input(inside, 0);
    retype(*body, body->value(whole).type.dtype, DType::i64);
    if (!infer_again(*options_.ops, *body)) return "its body has no types";
    std::vector<Tensor> inputs;
    std::map<ValueId, int64_t> first;  // the number of an input's element 0
    int64_t next = 1;                  // 0 is what a Pad puts in
    for (size_t k = 0; k < body->inputs().size(); ++k) {
      const Tensor* constant = plan_.graph.constant(n.inputs[k]);
      const bool numbered = body->value(body->inputs()[k]).type.dtype == DType::i64;
      if (constant && constant->dtype() == DType::i64) {
        inputs.push_back(*constant);
      } else if (!numbered) {
        return "its body reads " + plan_.graph.value(n.inputs[k]).name;
      } else {
        first[n.inputs[k]] = next;
        const auto dims = dims_of(n.inputs[k]);
        std::vector<int64_t> numbers(static_cast<size_t>(count(dims)));
        std::iota(numbers.begin(), numbers.end(), next);
        next += static_cast<int64_t>(numbers.size());
        inputs.push_back(Tensor::of<int64_t>(DType::i64, dims, std::span<const int64_t>(numbers)));
      }
    }
    const auto results = interpret(*body, inputs, options_);
    if (!results) return render(results.error());
    const std::vector<NodeId> order = n.body->order();
    bool all = true;
    int64_t covered = 0;  // elements
    for (int64_t slot : n.attrs.ints(writes ? kSlicesWritten : kSlicesRead)) {
      const auto at = static_cast<size_t>(slot);
      const ValueId part =
          outer(n, *n.body, writes ? n.body->input(order[0], at) : n.body->output(order[0], at));
      if (!plan_.slices.contains(part)) {  // a reorder lies in between: it is copied after all
        all = false;
        continue;
      }
      ++parts;
      covered += count(dims_of(part));
      const ValueId in = writes ? n.outputs[0] : n.inputs[0];
      const Tensor& moved = (*results)[writes ? 0 : result_of(n, part)];
      if (std::string why = lies(part, in, writes, moved.as<int64_t>(), first[writes ? part : in]);
          !why.empty())
        return why;
    }
    // What parts leave of the whole, a Pad fills.
    all_placed_ = all && (!writes || covered == count(dims_of(n.outputs[0])));
    return {};
  }
  bool all_placed() const { return all_placed_; }

 private:
  std::vector<int64_t> dims_of(ValueId v) const {
    const Type& t = plan_.graph.value(v).type;
    return t.shape ? constant_shape(*t.shape).value_or(std::vector<int64_t>{})
                   : std::vector<int64_t>{};
  }
  static int64_t count(const std::vector<int64_t>& dims) {
    return std::accumulate(dims.begin(), dims.end(), int64_t{1}, std::multiplies<>());
  }
  static size_t result_of(const Node& n, ValueId v) {
    return static_cast<size_t>(std::ranges::find(n.outputs, v) - n.outputs.begin());
  }
  static ValueId outer(const Node& n, const Graph& body, ValueId v) {
    for (size_t k = 0; k < body.inputs().size(); ++k)
      if (body.inputs()[k] == v) return n.inputs[k];
    for (size_t k = 0; k < body.outputs().size(); ++k)
      if (body.outputs()[k] == v) return n.outputs[k];
    return {};
  }
  /// The piece of memory that a value is, or is in, and how many bytes from its beginning.
  std::pair<int, int64_t> memory(ValueId v) const {
    const int slot = storage_.by_value[v.index];
    const Slot& s = storage_.slots[static_cast<size_t>(slot)];
    return s.kind == Slot::Kind::slice ? std::pair(s.index, s.offset) : std::pair(slot, int64_t{0});
  }

  /// `moved`: the number of each element of what the movement makes; `first`: of element 0 of what
  /// it reads.
  std::string lies(ValueId part, ValueId whole, bool writes, std::span<const int64_t> moved,
                   int64_t first) const {
    const std::string name = escape(plan_.graph.value(part).name);
    const auto small = strided_view(plan_, part), large = strided_view(plan_, whole);
    if (!small || !large || small->root != large->root)
      return name + " is no part of " + escape(plan_.graph.value(whole).name);
    const std::vector<int64_t> from = places(*small, dims_of(part)),
                               to = places(*large, dims_of(whole));
    const std::vector<int64_t>&made = writes ? to : from, &read = writes ? from : to;
    const auto elements = static_cast<int64_t>(read.size());
    size_t found = 0;
    for (size_t k = 0; k < moved.size(); ++k) {
      const int64_t number = moved[k] - first;
      if (number < 0 || number >= elements) continue;  // of another part
      ++found;
      if (made[k] != read[static_cast<size_t>(number)])
        return fmt::format("element {} of {} lies at {}, the movement puts it at {}",
                           writes ? number : static_cast<int64_t>(k), name,
                           writes ? read[static_cast<size_t>(number)] : made[k],
                           writes ? made[k] : read[static_cast<size_t>(number)]);
    }
    if (found != from.size())
      return fmt::format("{} of {} elements of {} are moved", found, from.size(), name);
    const auto [own, offset] = memory(part);
    const auto [other, begin] = memory(whole);
    const int64_t bytes = size_bits(plan_.graph.value(part).type.dtype) / 8;
    if (from.empty() || (own == other && offset - begin == (small->offset - large->offset) * bytes))
      return {};
    return fmt::format("the memory of {} lies {} bytes into piece {}, that of the whole {} into {}",
                       name, offset, own, begin, other);
  }

  const Plan& plan_;
  const Storage& storage_;
  const InterpreterOptions& options_;
  bool all_placed_ = false;
};

}  // namespace

Placed check_places(const Plan& plan, const Lowered& lowered, const std::string& rule,
                    const InterpreterOptions& options) {
  Placed out;
  const auto storage = plan_storage(
      plan, lowered, [](size_t, const Launch&) { return std::vector<std::pair<int, int>>(); });
  if (!storage) return {0, render(storage.error())};
  PlaceCheck check(plan, *storage, options);
  for (size_t k = 0; k < plan.layers.size(); ++k) {
    if (plan.layers[k].rule != rule || !plan.layers[k].node) continue;
    const Node& n = plan.graph.node(plan.layers[k].node);
    if (!n.body || n.body->order().size() != 1) continue;
    out.wrong = check.group(n, out.parts);
    if (out.wrong.empty() && check.all_placed() && n.attrs.find(kNothingToMove) &&
        lowered.layers[k].kernels() != 0)
      out.wrong = "nothing is left to move, and it is launched";
    if (!out.wrong.empty()) {
      out.wrong = escape(n.name) + ": " + out.wrong;
      break;
    }
  }
  return out;
}

}  // namespace ferrule
