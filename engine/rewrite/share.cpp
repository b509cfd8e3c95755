#include "engine/rewrite/share.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <unordered_map>

#include "engine/base/diagnostics.h"
#include "engine/match/facts.h"

namespace ferrule {
namespace {

uint64_t mix(uint64_t h, uint64_t x) {
  h ^= x + 0x9e3779b97f4a7c15 + (h << 6) + (h >> 2);
  return h * 0xff51afd7ed558ccd;
}

/// Not 0.
uint64_t sample_of_bytes(const Tensor& t) {
  uint64_t h = 0;
  constexpr int64_t kSamples = 16;
  const int64_t bytes = t.bytes(), step = std::max<int64_t>(bytes / kSamples, 1);
  const auto* p = static_cast<const unsigned char*>(t.data());
  for (int64_t at = 0; at < bytes; at += step) {
    uint64_t word = 0;
    std::memcpy(&word, p + at, static_cast<size_t>(std::min<int64_t>(8, bytes - at)));
    h = mix(h, word);
  }
  return h | 1;
}

/// Of the type, the sizes and a sample of the bytes: equal tensors have the same, most others
/// another. Bytes that kernels have given back are not asked for again.
uint64_t sample(const Tensor& t) {
  uint64_t h = static_cast<uint64_t>(t.dtype());
  for (int64_t d : t.dims()) h = mix(h, static_cast<uint64_t>(d));
  if (!t.residence()) return mix(h, sample_of_bytes(t));
  std::atomic<uint64_t>& known = t.residence()->sample;
  if (!known) known = sample_of_bytes(t);
  return mix(h, known);
}

class Sharing {
 public:
  explicit Sharing(const PassContext& ctx) : ctx_(ctx), g_(ctx.graph) {}

  Result<int> run() {
    FERRULE_TRY(g_.sort());
    constants();
    for (NodeId n : g_.order()) {
      FERRULE_TRY(ctx_.in_time("sharing"));
      visit(n);
    }
    if (gone_) g_.remove_dead();
    return gone_;
  }

 private:
  /// By content, as far as the hash keeps the candidates few.
  void constants() {
    std::unordered_map<uint64_t, std::vector<ValueId>> seen;
    same_.resize(g_.value_slots());
    size_t slots = 64;
    while (slots < 2 * g_.node_slots()) slots *= 2;
    table_.resize(slots);
    for (uint32_t i = 0; i < g_.value_slots(); ++i) {
      const ValueId v{i};
      same_[i] = v;
      const Value& value = g_.value(v);
      if (value.dead || !value.constant || value.is_input ||
          value.constant->dtype() == DType::string)
        continue;
      auto& bucket = seen[sample(*value.constant)];
      auto it = std::ranges::find_if(
          bucket, [&](ValueId o) { return g_.constant(o)->identical(*value.constant); });
      if (it == bucket.end()) {
        constexpr size_t kCandidates = 64;
        if (bucket.size() < kCandidates) bucket.push_back(v);
        continue;
      }
      same_[i] = *it;
      if (value.constant->numel() == 1 && !value.is_output)
        g_.replace_uses(v, *it);
      else
        g_.set_constant(v, *g_.constant(*it));  // the bytes are one copy's
    }
  }

  bool eligible(const Node& n) const {
    return n.subgraphs.empty() && !n.body && !n.inputs.empty() && n.op != identity_operator() &&
           deterministic(n);
  }
  ValueId same(ValueId v) const { return v && v.index < same_.size() ? same_[v.index] : v; }

  uint64_t hash_of(const Node& n) const {
    uint64_t h = std::hash<std::string_view>()(n.op.text());
    for (ValueId v : n.inputs) h = mix(h, v ? same(v).index : ~0u);
    for (const auto& [_, value] : n.attrs.items()) {
      if (auto* i = std::get_if<int64_t>(&value))
        h = mix(h, static_cast<uint64_t>(*i));
      else if (auto* d = std::get_if<double>(&value))
        h = mix(h, std::hash<double>()(*d));
      else if (auto* l = std::get_if<std::vector<int64_t>>(&value))
        for (int64_t x : *l) h = mix(h, static_cast<uint64_t>(x));
    }
    return h;
  }
  bool equal(const Node& a, const Node& b) const {
    if (a.op != b.op || a.domain != b.domain || a.inputs.size() != b.inputs.size()) return false;
    for (size_t k = 0; k < a.inputs.size(); ++k)
      if (same(a.inputs[k]) != same(b.inputs[k])) return false;
    return a.attrs == b.attrs;
  }

  /// Open addressing; which nodes may be shared at all is asked only of those that are equal.
  void visit(NodeId id) {
    const size_t mask = table_.size() - 1;
    size_t at = hash_of(g_.node(id)) & mask;
    for (; table_[at]; at = (at + 1) & mask) {
      const Node &other = g_.node(table_[at]), &node = g_.node(id);
      if (!equal(other, node)) continue;
      if (eligible(node)) replace(id, table_[at]);
      return;  // the first one stands for all: a chain of those that have to stay would be walked
               // again and again
    }
    table_[at] = id;
  }

  /// Not where both are graph outputs: each would need a node for its name.
  void replace(NodeId gone, NodeId stays) {
    const std::vector<ValueId> from = g_.node(gone).outputs, to = g_.node(stays).outputs;
    for (size_t k = 0; k < from.size(); ++k) {
      if (!from[k]) continue;
      if (k >= to.size() || !to[k] || (g_.value(from[k]).is_output && g_.value(to[k]).is_output))
        return;
    }
    const std::string names[] = {g_.node(gone).name, g_.node(stays).name};
    for (size_t k = 0; k < from.size(); ++k)
      if (from[k]) g_.replace_uses(from[k], to[k]);
    g_.remove_node(gone);
    ++gone_;
    ctx_.journal.steps.push_back(
        {"fold",
         "",
         "share",
         {names[0]},
         {names[1]},
         fmt::format("Sharing {} with {}", escape(names[0]), escape(names[1]))});
  }

  const PassContext& ctx_;
  Graph& g_;
  std::vector<ValueId> same_;  // by value: the first constant with these contents, else itself
  std::vector<NodeId> table_;  // by hash; none: free
  int gone_ = 0;
};

}  // namespace

Result<int> share_common(const PassContext& ctx) { return Sharing(ctx).run(); }

}  // namespace ferrule
