#include "engine/contract/attention.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

/// What is added to a score to mask its key is minus infinity, or the lowest number of half
/// precision, or of a wider type.
constexpr double kMasked = -65504;

class AttentionReader {
 public:
  AttentionReader(const Graph& g, std::span<const NodeId> nodes) : g_(g), nodes_(nodes) {}

  Applicable<Attention> run() {
    for (NodeId n : nodes_)
      if (is(n, "Softmax")) softmax_ = n;
    if (!softmax_) return refuse("it has no softmax");
    FERRULE_TRY(scores());
    FERRULE_TRY(weights());
    if (used_ != nodes_.size()) return refuse("it has nodes that are no part of an attention");
    FERRULE_TRY(conversions());
    return std::move(a_);
  }

 private:
  bool is(NodeId n, std::string_view op) const {
    return g_.node(n).domain.empty() && g_.node(n).op == op;
  }
  bool inside(NodeId n) const { return std::ranges::find(nodes_, n) != nodes_.end(); }
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    const NodeId at = softmax_ ? softmax_ : nodes_.back();
    return not_applicable(escape(g_.node(at).name), "attention", why);
  }
  /// The node of the group that makes `v` and is a `op`; none otherwise. It counts as read.
  NodeId made_by(ValueId v, std::string_view op) {
    const NodeId n = g_.value(v).producer;
    if (!n || !inside(n) || !is(n, op)) return {};
    ++used_;
    return n;
  }
  /// The node of the group that alone reads `v`, if it is a `op`.
  NodeId read_by(ValueId v, std::string_view op) {
    NodeId found;
    for (const Use& u : g_.value(v).uses)
      if (u.slot != Use::kCapture && inside(u.node) && is(u.node, op)) found = u.node;
    if (found) ++used_;
    return found;
  }

  /// Behind conversions that the group makes.
  ValueId converted(ValueId v) {
    while (NodeId n = made_by(v, "Cast")) {
      converted_.push_back(g_.value(g_.output(n)).type.dtype);
      v = g_.input(n, 0);
    }
    return v;
  }
  /// Kernels compute in f32 and round to the operands' type: what is rounded to another would come
  /// out too precise.
  Applicable<> conversions() const {
    const DType own = g_.value(a_.q.value).type.dtype;
    for (DType to : converted_)
      if (to != DType::f32 && to != own)
        return refuse(fmt::format("a conversion to {} inside it", name(to)));
    return {};
  }

  /// A factor of one element.
  Applicable<> scale(NodeId n, size_t slot, bool divide) {
    const Tensor* c = g_.constant(g_.input(n, slot));
    if (!c || c->numel() != 1) return refuse("the scale is no constant of one element");
    const double factor = c->at_f64(0);
    a_.scale = divide ? a_.scale / factor : a_.scale * factor;
    return {};
  }

  /// From the softmax back to q and k.
  Applicable<> scores() {
    const Node& softmax = g_.node(softmax_);
    ++used_;
    ValueId at = softmax.inputs[0];
    const Type& type = g_.value(at).type;
    const int64_t axis = softmax.attrs.i("axis", -1);
    if (!type.shape) return refuse("the rank of the scores is not known");
    rank_ = type.rank();
    if (rank_ < 2 || (axis != -1 && axis != rank_ - 1))
      return refuse("the softmax is not over the keys");
    NodeId product;
    at = converted(at);
    if (NodeId n = made_by(at, "Add")) {
      const bool second = made(g_.input(n, 1));
      at = converted(g_.input(n, second ? 1 : 0));
      a_.mask = g_.input(n, second ? 0 : 1);
    }
    while (!(product = made_by(at, "MatMul"))) {
      const NodeId mul = made_by(at, "Mul"), div = mul ? NodeId{} : made_by(at, "Div");
      if (!mul && !div) return refuse("the scores are no product, scaled and masked");
      const size_t constant = mul && g_.constant(g_.input(mul, 0)) ? 0 : 1;
      FERRULE_TRY(scale(mul ? mul : div, constant, !mul));
      at = g_.input(mul ? mul : div, 1 - constant);
    }
    FERRULE_ASSIGN(a_.q, operand(g_.input(product, 0)));
    FERRULE_ASSIGN(a_.k, operand(g_.input(product, 1)));
    return {};
  }

  /// Whether a node of the group makes it.
  bool made(ValueId v) const { return g_.value(v).producer && inside(g_.value(v).producer); }

  /// From the softmax on to the result.
  Applicable<> weights() {
    ValueId at = g_.node(softmax_).outputs[0];
    if (NodeId isnan = read_by(at, "IsNaN")) {
      const NodeId where = read_by(g_.output(isnan), "Where");
      const Tensor* zero = where ? g_.constant(g_.input(where, 1)) : nullptr;
      if (!where || g_.input(where, 2) != at || !zero || zero->numel() != 1 || zero->at_f64(0) != 0)
        return refuse("only NaN may be replaced, and only by 0");
      a_.zero_if_nan = true;
      at = g_.output(where);
    }
    if (NodeId cast = read_by(at, "Cast")) {
      at = g_.output(cast);
      converted_.push_back(g_.value(at).type.dtype);
    }
    const NodeId product = read_by(at, "MatMul");
    if (!product || g_.input(product, 0) != at)
      return refuse("no product with the values follows the softmax");
    FERRULE_ASSIGN(a_.v, operand(g_.input(product, 1)));
    at = g_.output(product);
    a_.y = {at, identity()};
    if (NodeId transpose = read_by(at, "Transpose")) {
      // Axis j of the result is axis perm[j] of the product.
      const std::vector<int64_t> perm = g_.node(transpose).attrs.ints("perm");
      a_.y.value = g_.output(transpose);
      for (size_t j = 0; j < perm.size(); ++j)
        a_.y.axes[static_cast<size_t>(perm[j])] = static_cast<int>(j);
    }
    return {};
  }

  std::vector<int> identity() const {
    std::vector<int> out(static_cast<size_t>(rank_));
    std::iota(out.begin(), out.end(), 0);
    return out;
  }

  /// Behind a Transpose, if one of the group makes it.
  Applicable<AttentionOperand> operand(ValueId v) {
    const Type& t = g_.value(v).type;
    if (!t.shape || t.rank() != rank_)
      return refuse("its operands have not as many axes as the scores");
    AttentionOperand o{v, identity()};
    if (NodeId transpose = made_by(v, "Transpose")) {
      o.value = g_.input(transpose, 0);
      const std::vector<int64_t> perm = g_.node(transpose).attrs.ints("perm");
      for (size_t j = 0; j < perm.size(); ++j) o.axes[j] = static_cast<int>(perm[j]);
    }
    return o;
  }

  const Graph& g_;
  std::span<const NodeId> nodes_;
  NodeId softmax_;
  int rank_ = 0;
  size_t used_ = 0;
  std::vector<DType> converted_;
  Attention a_;
};

}  // namespace

Applicable<Attention> read_attention(const Graph& g, std::span<const NodeId> nodes) {
  return AttentionReader(g, nodes).run();
}

Accept library_attends(const Graph& g, const Attention& a, const Target& target) {
  const auto facts = target.contracts.find("attention");
  if (facts == target.contracts.end()) return {Truth::no, {}};
  const auto& types = facts->second.library_types;
  if (std::ranges::find(types, g.value(a.q.value).type.dtype) == types.end())
    return {Truth::no, {}};
  if (a.rank() > kMostLibraryRank) return {Truth::no, "more than two batch axes"};
  // The largest score of a row is found before it is scaled.
  if (!(a.scale > 0) || !std::isfinite(static_cast<float>(a.scale)))
    return {Truth::no, "a scale that is not positive"};
  for (const AttentionOperand* o : {&a.q, &a.v}) {
    const auto size =
        (*g.value(o->value).type.shape)[static_cast<size_t>(o->axes.back())].constant();
    if (!size) return {Truth::unknown, "the size of a head"};
    if (*size % kLibraryPack)
      return {Truth::no,
              fmt::format("a head of {} elements, no multiple of {}", *size, kLibraryPack)};
  }
  return {Truth::yes, {}};
}

std::string attention_deviation(const Graph& g, const Attention& a, const Target& target) {
  if (library_attends(g, a, target).truth == Truth::no) return {};
  if (a.zero_if_nan) return "results that are NaN become 0, also where a value is";
  if (!a.mask) return {};
  const std::string all = "queries whose keys are all masked are 0, not NaN";
  const Tensor* mask = g.constant(a.mask);
  if (!mask || mask->dims().empty() || mask->dims().back() < 1) return all;
  const int64_t keys = mask->dims().back();
  for (int64_t row = 0; row < mask->numel(); row += keys) {
    bool seen = false;
    for (int64_t k = 0; k < keys && !seen; ++k) seen = mask->at_f64(row + k) > kMasked;
    if (!seen) return all;
  }
  return {};
}

Accept accepts_attention(const Graph& g, std::span<const NodeId> nodes, const Target& target) {
  const auto facts = target.contracts.find("attention");
  if (facts == target.contracts.end())
    return {Truth::no, target.name + " has no attention kernels"};
  const auto a = read_attention(g, nodes);
  if (!a) return {Truth::no, a.error().reason()};
  const Type& q = g.value(a->q.value).type;
  if (q.dtype == DType::undefined) return {Truth::unknown, "element type"};
  if (std::ranges::find(facts->second.types, q.dtype) == facts->second.types.end())
    return {Truth::no,
            fmt::format("{} has no attention kernel for {}", target.name, name(q.dtype))};
  for (const AttentionOperand* o : {&a->k, &a->v, &a->y})
    if (g.value(o->value).type.dtype != q.dtype)
      return {Truth::no, "its operands have several element types"};
  if (a->mask && g.value(a->mask).type.dtype != q.dtype)
    return {Truth::no, "the mask has another element type"};
  if (a->mask && (!g.value(a->mask).type.shape || g.value(a->mask).type.rank() > a->rank()))
    return {Truth::no, "the mask has more axes than the scores"};
  for (const AttentionOperand* o : {&a->q, &a->v}) {
    const Dim size = (*g.value(o->value).type.shape)[static_cast<size_t>(o->axes.back())];
    if (!size.constant())
      return {Truth::unknown,
              fmt::format("the size of a head of {}", escape(g.value(o->value).name))};
    if (*size.constant() > kMostAttentionSize || *size.constant() < 1)
      return {Truth::no, fmt::format("a head of {} elements; kernels keep up to {}",
                                     *size.constant(), kMostAttentionSize)};
  }
  return {Truth::yes, {}};
}

}  // namespace ferrule
