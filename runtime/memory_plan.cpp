#include "runtime/memory_plan.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

constexpr int64_t kAlignment = 64;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

/// Walks the launches in order and decides who shares memory with whom.
class StoragePlanner {
 public:
  StoragePlanner(const Plan& plan, const Lowered& lowered, const InPlace& in_place)
      : plan_(plan), lowered_(lowered), in_place_(in_place) {}

  Result<Storage> run() {
    const Graph& g = plan_.graph;
    out_.by_value.assign(g.value_slots(), -1);
    out_.temporaries.resize(lowered_.layers.size());
    for (size_t k = 0; k < lowered_.layers.size(); ++k)
      out_.temporaries[k].assign(lowered_.layers[k].temporaries.size(), -1);
    find_last_uses();
    for (size_t k = 0; k < g.inputs().size(); ++k)
      FERRULE_TRY(external(g.inputs()[k], Slot::Kind::input, static_cast<int>(k)));
    int step = 0;
    for (size_t layer = 0; layer < lowered_.layers.size(); ++layer)
      for (const Launch& l : lowered_.layers[layer].launches) FERRULE_TRY(launch(layer, l, step++));
    out_.steps = step;
    FERRULE_TRY(outputs());
    return std::move(out_);
  }

 private:
  using Key = std::pair<size_t, uint32_t>;  // temporaries are told apart by layer
  static Key key(size_t layer, ValueId v) { return {v.index >= kTemporary ? layer + 1 : 0, v.index}; }

  void find_last_uses() {
    int step = 0;
    for (size_t layer = 0; layer < lowered_.layers.size(); ++layer)
      for (const Launch& l : lowered_.layers[layer].launches) {
        for (ValueId v : l.inputs)
          if (v) last_use_[key(layer, v)] = step;
        ++step;
      }
    for (ValueId v : plan_.graph.outputs()) last_use_[key(0, v)] = step;
  }

  int last_use(size_t layer, ValueId v, int otherwise) const {
    auto it = last_use_.find(key(layer, v));
    return it == last_use_.end() ? otherwise : it->second;
  }

  Result<int64_t> bytes(size_t layer, ValueId v) const {
    FERRULE_ASSIGN(auto dims, dims_of(plan_, lowered_, layer, v));
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return size_bytes(type_of(plan_, lowered_, layer, v).dtype, n);
  }

  Status external(ValueId v, Slot::Kind kind, int index) {
    if (out_.by_value[v.index] >= 0) return {};
    Slot s;
    s.kind = kind;
    s.index = index;
    FERRULE_ASSIGN(s.bytes, bytes(0, v));
    out_.by_value[v.index] = static_cast<int>(out_.slots.size());
    out_.slots.push_back(s);
    return {};
  }

  int& slot_ref(size_t layer, ValueId v) {
    return v.index >= kTemporary ? out_.temporaries[layer][v.index - kTemporary] : out_.by_value[v.index];
  }

  void assign(size_t layer, ValueId v, int slot, int step) {
    slot_ref(layer, v) = slot;
    Slot& s = out_.slots[static_cast<size_t>(slot)];
    s.last = std::max({s.last, step, last_use(layer, v, step)});
  }

  /// Inputs that are constants or come from nowhere known get their slot when first read.
  Status touch(size_t layer, ValueId v) {
    if (!v || v.index >= kTemporary || out_.by_value[v.index] >= 0) return {};
    if (plan_.graph.constant(v)) return external(v, Slot::Kind::constant, static_cast<int>(v.index));
    return error(Code::dangling_input, plan_.layers[layer].name, escape(plan_.graph.value(v).name));
  }

  Status launch(size_t layer, const Launch& l, int step) {
    for (ValueId v : l.inputs) FERRULE_TRY(touch(layer, v));
    if (l.kind == Launch::Kind::view) {
      if (l.outputs.empty() || !l.outputs[0]) return {};
      assign(layer, l.outputs[0], slot_ref(layer, l.inputs[0]), step);
      return {};
    }
    std::vector<std::pair<int, int>> pairs;
    if (in_place_) pairs = in_place_(layer, l);
    for (size_t k = 0; k < l.outputs.size(); ++k)
      if (l.outputs[k]) FERRULE_TRY(place_output(layer, l, static_cast<int>(k), step, pairs));
    return {};
  }

  Status place_output(size_t layer, const Launch& l, int k, int step, const std::vector<std::pair<int, int>>& pairs) {
    const ValueId v = l.outputs[static_cast<size_t>(k)];
    FERRULE_ASSIGN(int64_t size, bytes(layer, v));
    for (auto [input, output] : pairs) {
      if (output != k || !may_overwrite(layer, l, input, k, step, size, pairs)) continue;
      assign(layer, v, slot_ref(layer, l.inputs[static_cast<size_t>(input)]), step);
      return {};
    }
    Slot s;
    s.bytes = size;
    s.first = s.last = step;
    out_.slots.push_back(s);
    assign(layer, v, static_cast<int>(out_.slots.size()) - 1, step);
    return {};
  }

  /// The operand's memory is ours, dies here, has the size, and no other operand of the launch or output
  /// already placed lies in it (another operand may if it, too, is read element for element).
  bool may_overwrite(size_t layer, const Launch& l, int input, int output, int step, int64_t size,
                     const std::vector<std::pair<int, int>>& pairs) {
    const ValueId v = l.inputs[static_cast<size_t>(input)];
    if (!v) return false;
    const int slot = slot_ref(layer, v);
    const Slot& s = out_.slots[static_cast<size_t>(slot)];
    if (s.kind != Slot::Kind::arena || s.last > step || s.bytes != size) return false;
    for (int k = 0; k < static_cast<int>(l.inputs.size()); ++k) {
      const ValueId other = l.inputs[static_cast<size_t>(k)];
      if (k == input || !other || slot_ref(layer, other) != slot) continue;
      if (std::find(pairs.begin(), pairs.end(), std::pair(k, output)) == pairs.end()) return false;
    }
    for (int k = 0; k < output; ++k)
      if (ValueId other = l.outputs[static_cast<size_t>(k)]; other && slot_ref(layer, other) == slot) return false;
    return true;
  }

  Status outputs() {
    const Graph& g = plan_.graph;
    for (size_t k = 0; k < g.outputs().size(); ++k) {
      const ValueId v = g.outputs()[k];
      FERRULE_TRY(touch(0, v));
      const int slot = out_.by_value[v.index];
      Slot& s = out_.slots[static_cast<size_t>(slot)];
      if (s.kind == Slot::Kind::arena) {
        s.kind = Slot::Kind::output;
        s.index = static_cast<int>(k);
      } else {
        out_.copies.push_back({slot, static_cast<int>(k), s.bytes});
      }
    }
    return {};
  }

  const Plan& plan_;
  const Lowered& lowered_;
  const InPlace& in_place_;
  std::map<Key, int> last_use_;
  Storage out_;
};

}  // namespace

const Type& type_of(const Plan& plan, const Lowered& lowered, size_t layer, ValueId v) {
  if (v.index >= kTemporary) return lowered.layers[layer].temporaries[v.index - kTemporary].type;
  return plan.graph.value(v).type;
}

Layout layout_of(const Plan& plan, const Lowered& lowered, size_t layer, ValueId v) {
  if (v.index >= kTemporary) return lowered.layers[layer].temporaries[v.index - kTemporary].layout;
  return plan.layout(v);
}

Result<std::vector<int64_t>> dims_of(const Plan& plan, const Lowered& lowered, size_t layer, ValueId v) {
  const Type& t = type_of(plan, lowered, layer, v);
  if (t.shape)
    if (auto dims = constant_shape(*t.shape)) return *dims;
  const std::string what = v.index >= kTemporary ? plan.layers[layer].name : plan.graph.value(v).name;
  const std::string text = fmt::format("the size of {} is {}, it must be known before a run", escape(what), str(t));
  return error(Code::bad_shape, layer < plan.layers.size() ? escape(plan.layers[layer].name) : "", text);
}

Result<Storage> plan_storage(const Plan& plan, const Lowered& lowered, const InPlace& in_place) {
  return StoragePlanner(plan, lowered, in_place).run();
}

std::vector<int64_t> place(Storage& storage, const std::vector<int64_t>& scratch) {
  struct Item {
    int64_t bytes;
    int first, last;
    int64_t* offset;
  };
  std::vector<int64_t> scratch_offsets(scratch.size(), 0);
  std::vector<Item> items;
  for (Slot& s : storage.slots)
    if (s.kind == Slot::Kind::arena) items.push_back({aligned(s.bytes), s.first, s.last, &s.offset});
  for (size_t k = 0; k < scratch.size(); ++k)
    if (scratch[k] > 0)
      items.push_back({aligned(scratch[k]), static_cast<int>(k), static_cast<int>(k), &scratch_offsets[k]});
  std::stable_sort(items.begin(), items.end(), [](const Item& a, const Item& b) { return a.bytes > b.bytes; });
  std::vector<const Item*> placed;  // by offset
  for (const Item& item : items) {
    int64_t at = 0;
    for (const Item* p : placed) {
      if (p->last < item.first || item.last < p->first) continue;
      if (at + item.bytes <= *p->offset) break;
      at = std::max(at, *p->offset + p->bytes);
    }
    *item.offset = at;
    storage.arena_bytes = std::max(storage.arena_bytes, at + item.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), &item,
                                   [](const Item* a, const Item* b) { return *a->offset < *b->offset; }),
                  &item);
  }
  return scratch_offsets;
}

}  // namespace ferrule
