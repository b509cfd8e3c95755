#include "runtime/memory_plan.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

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
  static Key key(size_t layer, ValueId v) {
    return {v.index >= kTemporary ? layer + 1 : 0, v.index};
  }

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
    return v.index >= kTemporary ? out_.temporaries[layer][v.index - kTemporary]
                                 : out_.by_value[v.index];
  }

  void assign(size_t layer, ValueId v, int slot, int step) {
    slot_ref(layer, v) = slot;
    for (int at : {slot, root(slot)}) {
      Slot& s = out_.slots[static_cast<size_t>(at)];
      s.last = std::max({s.last, step, last_use(layer, v, step)});
    }
  }

  /// The slot that a slice is a part of, or the slot itself.
  int root(int slot) const {
    const Slot& s = out_.slots[static_cast<size_t>(slot)];
    return s.kind == Slot::Kind::slice ? s.index : slot;
  }

  bool is_slice(ValueId v) const { return v.index < kTemporary && plan_.slices.contains(v); }

  /// A value that is a part of another: the memory of the whole begins to live with its first part.
  Status slice(ValueId v, int step) {
    const auto at = strided_view(plan_, v);
    if (!at)
      return error(Code::size_unknown, "",
                   escape(plan_.graph.value(v).name) + " is a slice of unknown size");
    if (out_.by_value[at->root.index] < 0) {
      FERRULE_TRY(touch_whole(at->root, step));
    }
    Slot s;
    s.kind = Slot::Kind::slice;
    s.index = root(out_.by_value[at->root.index]);
    s.offset = at->offset * size_bits(plan_.graph.value(v).type.dtype) / 8;
    // The whole may itself lie inside something by being a view of it.
    if (int of = out_.by_value[at->root.index]; of != s.index)
      s.offset += out_.slots[static_cast<size_t>(of)].offset;
    FERRULE_ASSIGN(s.bytes, bytes(0, v));
    add(s, v, step);
    return {};
  }

  Status touch_whole(ValueId v, int step) {
    Slot s;
    FERRULE_ASSIGN(s.bytes, bytes(0, v));
    add(s, v, step);
    return {};
  }
  void add(Slot s, ValueId v, int step) {
    s.first = s.last = step;
    out_.slots.push_back(s);
    assign(0, v, static_cast<int>(out_.slots.size()) - 1, step);
  }

  /// Inputs that are constants or come from nowhere known get their slot when first read.
  Status touch(size_t layer, ValueId v) {
    if (!v || v.index >= kTemporary || out_.by_value[v.index] >= 0) return {};
    if (plan_.graph.constant(v))
      return external(v, Slot::Kind::constant, static_cast<int>(v.index));
    return error(Code::dangling_input, plan_.layers[layer].name, escape(plan_.graph.value(v).name));
  }

  Status launch(size_t layer, const Launch& l, int step) {
    for (ValueId v : l.inputs) FERRULE_TRY(touch(layer, v));
    if (l.kind == Launch::Kind::view) {
      for (ValueId v : l.outputs) {
        if (!v || (v.index < kTemporary && out_.by_value[v.index] >= 0))
          continue;  // its parts have made it
        if (is_slice(v))
          FERRULE_TRY(slice(v, step));
        else
          assign(layer, v, slot_ref(layer, l.inputs[0]), step);
      }
      return {};
    }
    std::vector<std::pair<int, int>> pairs;
    if (in_place_) pairs = in_place_(layer, l);
    for (size_t k = 0; k < l.outputs.size(); ++k)
      if (l.outputs[k]) FERRULE_TRY(place_output(layer, l, static_cast<int>(k), step, pairs));
    return {};
  }

  Status place_output(size_t layer, const Launch& l, int k, int step,
                      const std::vector<std::pair<int, int>>& pairs) {
    const ValueId v = l.outputs[static_cast<size_t>(k)];
    if (is_slice(v)) return slice(v, step);
    if (const int made = slot_ref(layer, v); made >= 0)
      return assign(layer, v, made, step), Status{};  // by its parts
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

  /// The operand's memory is ours, dies here, has the size, and no other operand of the launch or
  /// output already placed lies in it (another operand may if it, too, is read element for
  /// element).
  bool may_overwrite(size_t layer, const Launch& l, int input, int output, int step, int64_t size,
                     const std::vector<std::pair<int, int>>& pairs) {
    const ValueId v = l.inputs[static_cast<size_t>(input)];
    if (!v) return false;
    const int slot = slot_ref(layer, v);
    const Slot& s = out_.slots[static_cast<size_t>(slot)];
    if (s.kind != Slot::Kind::arena || s.last > step || s.bytes != size) return false;
    for (int k = 0; k < static_cast<int>(l.inputs.size()); ++k) {
      const ValueId other = l.inputs[static_cast<size_t>(k)];
      if (k == input || !other || root(slot_ref(layer, other)) != slot) continue;
      if (slot_ref(layer, other) != slot) return false;  // a part of it, read elsewhere
      if (std::find(pairs.begin(), pairs.end(), std::pair(k, output)) == pairs.end()) return false;
    }
    for (int k = 0; k < output; ++k)
      if (ValueId other = l.outputs[static_cast<size_t>(k)];
          other && root(slot_ref(layer, other)) == slot)
        return false;
    return true;
  }

  Status outputs() {
    const Graph& g = plan_.graph;
    for (size_t k = 0; k < g.outputs().size(); ++k) {
      const ValueId v = g.outputs()[k];
      FERRULE_TRY(touch(0, v));
      const int slot = out_.by_value[v.index];
      Slot& s = out_.slots[static_cast<size_t>(slot)];
      // A part without elements is no slice of the whole, whose memory it has all the same.
      FERRULE_ASSIGN(const int64_t size, bytes(0, v));
      if (s.kind == Slot::Kind::arena && s.bytes == size) {
        s.kind = Slot::Kind::output;
        s.index = static_cast<int>(k);
      } else {
        out_.copies.push_back({slot, static_cast<int>(k), size});
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

Result<std::vector<int64_t>> dims_of(const Plan& plan, const Lowered& lowered, size_t layer,
                                     ValueId v) {
  const Type& t = type_of(plan, lowered, layer, v);
  if (t.shape)
    if (auto dims = constant_shape(*t.shape)) return *dims;
  const std::string what =
      v.index >= kTemporary ? plan.layers[layer].name : plan.graph.value(v).name;
  return error(Code::size_unknown,
               layer < plan.layers.size() ? escape(plan.layers[layer].name) : "",
               fmt::format("the size of {} is {}", escape(what), str(t)));
}

Result<Storage> plan_storage(const Plan& plan, const Lowered& lowered, const InPlace& in_place) {
  return StoragePlanner(plan, lowered, in_place).run();
}

namespace {

/// An arena's free bytes.
class Gaps {
 public:
  int64_t top() const { return top_; }

  /// The smallest gap that is large enough, at its start; else what lies free at the top, and more.
  int64_t take(int64_t bytes) {
    auto fit = by_size_.lower_bound({bytes, 0});
    if (fit == by_size_.end()) {
      int64_t at = top_;
      if (!by_offset_.empty() && by_offset_.rbegin()->first + by_offset_.rbegin()->second == top_)
        at = by_offset_.rbegin()->first, erase(at);
      top_ = at + bytes;
      return at;
    }
    const auto [size, at] = *fit;
    erase(at);
    if (size > bytes) insert(at + bytes, size - bytes);
    return at;
  }

  void give_back(int64_t at, int64_t bytes) {
    auto behind = by_offset_.lower_bound(at);
    if (behind != by_offset_.end() && behind->first == at + bytes) {
      const auto [start, size] = *behind;
      erase(start);
      bytes += size;
    }
    auto before = by_offset_.lower_bound(at);
    if (before != by_offset_.begin() &&
        std::prev(before)->first + std::prev(before)->second == at) {
      const auto [start, size] = *std::prev(before);
      erase(start);
      at = start, bytes += size;
    }
    insert(at, bytes);
  }

 private:
  void insert(int64_t at, int64_t bytes) { by_offset_[at] = bytes, by_size_.emplace(bytes, at); }
  void erase(int64_t at) {
    auto it = by_offset_.find(at);
    by_size_.erase({it->second, at});
    by_offset_.erase(it);
  }
  std::map<int64_t, int64_t> by_offset_;
  std::set<std::pair<int64_t, int64_t>> by_size_;  // (bytes, offset)
  int64_t top_ = 0;
};

/// Offsets for slots with given lives. A try is one order in which they are put down.
class Placement {
 public:
  explicit Placement(std::vector<Slot*> slots, int steps)
      : slots_(std::move(slots)), alive_(static_cast<size_t>(steps) + 1, 0) {
    for (const Slot* s : slots_) {
      alive_[static_cast<size_t>(s->first)] += aligned(s->bytes);
      alive_[static_cast<size_t>(s->last) + 1] -= aligned(s->bytes);
    }
    std::partial_sum(alive_.begin(), alive_.end(), alive_.begin());
    least_ = *std::max_element(alive_.begin(), alive_.end());
    offset_.resize(slots_.size());
  }

  void run() {
    if (slots_.size() > kMany)
      by_time();
    else
      search();
    for (size_t k = 0; k < slots_.size(); ++k) slots_[k]->offset = best_offset_[k];
  }

  int64_t least() const { return least_; }
  int64_t bytes() const { return best_; }

 private:
  static constexpr size_t kMany = 4096;     // slots; an order takes time in the square of them
  static constexpr int64_t kWork = 400000;  // pairs of slots looked at: about a millisecond

  /// As they come, each into the smallest gap that takes it.
  void by_time() {
    std::vector<size_t> order(slots_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::ranges::stable_sort(order, {}, [&](size_t k) { return slots_[k]->first; });
    std::set<std::pair<int, size_t>> alive;  // by their last step
    Gaps gaps;
    for (size_t k : order) {
      for (auto at = alive.begin(); at != alive.end() && at->first < slots_[k]->first;
           at = alive.erase(at))
        gaps.give_back(offset_[at->second], aligned(slots_[at->second]->bytes));
      offset_[k] = gaps.take(aligned(slots_[k]->bytes));
      alive.emplace(slots_[k]->last, k);
    }
    best_ = gaps.top();
    best_offset_ = offset_;
  }

  void search() {
    for (const Slot* s : slots_) crowd_.push_back(crowd(*s));
    using Key = std::function<bool(size_t, size_t)>;
    auto bytes = [&](size_t k) { return slots_[k]->bytes; };
    auto life = [&](size_t k) { return int64_t{slots_[k]->last} - slots_[k]->first + 1; };
    const Key keys[] = {
        [&](size_t a, size_t b) { return bytes(a) > bytes(b); },
        [&](size_t a, size_t b) {
          return std::pair(crowd_[a], bytes(a)) > std::pair(crowd_[b], bytes(b));
        },
        [&](size_t a, size_t b) {
          return std::pair(crowd_[a], life(a)) > std::pair(crowd_[b], life(b));
        },
        [&](size_t a, size_t b) { return bytes(a) * life(a) > bytes(b) * life(b); },
        [&](size_t a, size_t b) {
          return std::pair(life(a), bytes(a)) > std::pair(life(b), bytes(b));
        },
        [&](size_t a, size_t b) { return slots_[a]->first < slots_[b]->first; },
    };
    std::vector<size_t> order(slots_.size());
    for (const Key& key : keys) {
      std::iota(order.begin(), order.end(), size_t{0});
      std::stable_sort(order.begin(), order.end(), key);
      if (attempt(order)) break;
    }
    for (int k = tries(); k > 0 && best_ > least_; --k) {
      order = best_order_;
      promote(order, k);
      attempt(order);
    }
  }

  /// The most bytes that live at any step of the slot's life.
  int64_t crowd(const Slot& s) const {
    return *std::max_element(alive_.begin() + s.first, alive_.begin() + s.last + 1);
  }

  int tries() const {
    const auto n = static_cast<int64_t>(slots_.size());
    return n ? static_cast<int>(std::min<int64_t>(500, kWork / (n * n / 4 + n))) : 0;
  }

  /// Whether the order reached the least possible.
  bool attempt(const std::vector<size_t>& order) {
    int64_t top = 0;
    std::vector<size_t> placed;  // by offset
    for (size_t k : order) {
      const Slot& s = *slots_[k];
      const int64_t size = aligned(s.bytes);
      int64_t at = 0;
      for (size_t p : placed) {
        const Slot& other = *slots_[p];
        if (other.last < s.first || s.last < other.first) continue;
        if (at + size <= offset_[p]) break;
        at = std::max(at, offset_[p] + aligned(other.bytes));
      }
      offset_[k] = at;
      top = std::max(top, at + size);
      placed.insert(std::upper_bound(placed.begin(), placed.end(), k,
                                     [&](size_t a, size_t b) { return offset_[a] < offset_[b]; }),
                    k);
    }
    if (best_offset_.empty() || top < best_) {
      best_ = top;
      best_offset_ = offset_;
      best_order_ = order;
    }
    return best_ == least_;
  }

  /// A slot that ends at the top goes before some of those that it lay upon; `seed` varies which
  /// and how far.
  void promote(std::vector<size_t>& order, int seed) {
    random_ =
        random_ * 6364136223846793005u + static_cast<uint64_t>(seed) * 1442695040888963407u + 1;
    std::vector<size_t> tops;  // positions in the order
    for (size_t k = 0; k < order.size(); ++k)
      if (best_offset_[order[k]] + aligned(slots_[order[k]]->bytes) > least_) tops.push_back(k);
    if (tops.empty()) return;
    const size_t from = tops[(random_ >> 33) % tops.size()];
    if (from == 0) return;
    const size_t to = (random_ >> 13) % 3 == 0 ? 0 : (random_ >> 40) % from;
    std::rotate(order.begin() + static_cast<long>(to), order.begin() + static_cast<long>(from),
                order.begin() + static_cast<long>(from) + 1);
  }

  std::vector<Slot*> slots_;
  std::vector<int64_t> alive_;  // bytes, by step; the last step is nobody's
  std::vector<int64_t> crowd_, offset_, best_offset_;
  std::vector<size_t> best_order_;
  int64_t least_ = 0, best_ = 0;
  uint64_t random_ = 1;
};

}  // namespace

void place(Storage& storage, const std::vector<int64_t>& scratch) {
  storage.scratch.assign(scratch.size(), {});
  std::vector<Slot*> slots;
  for (Slot& s : storage.slots) {
    if (s.kind != Slot::Kind::arena) continue;
    s.offset = 0;
    if (s.bytes > 0) slots.push_back(&s);
  }
  int steps = std::max(storage.steps, static_cast<int>(scratch.size()));
  for (size_t k = 0; k < scratch.size(); ++k) {
    Slot& s = storage.scratch[k];
    s.bytes = scratch[k];
    s.first = s.last = static_cast<int>(k);
    s.offset = 0;
    if (s.bytes > 0) slots.push_back(&s);
  }
  for (const Slot* s : slots) steps = std::max(steps, s->last + 1);
  Placement placement(std::move(slots), steps);
  placement.run();
  storage.arena_bytes = placement.bytes();
  storage.least_bytes = placement.least();
}

}  // namespace ferrule
