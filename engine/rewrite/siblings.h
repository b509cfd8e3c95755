// Whether siblings, which a merge rule joins, are one computation with other constants: the same
// operators with the same attributes, wired alike, that read nothing computed but the shared
// operand. Joining the constants is byte moving, so the joined computation gives bit for bit what
// the siblings gave.
#pragma once
#include "engine/match/match_rule.h"

namespace ferrule {

/// A sibling as a computation: its own node, or the nodes of its group.
class Sibling {
 public:
  Sibling(const Graph& outer, NodeId id) : outer_(&outer), id_(id) {
    const Node& n = outer.node(id);
    nodes_ = n.body ? n.body->order() : std::vector<NodeId>{id};
  }
  NodeId id() const { return id_; }
  const Graph& graph() const { return outer_->node(id_).body ? *outer_->node(id_).body : *outer_; }
  const std::vector<NodeId>& nodes() const { return nodes_; }
  /// A value of graph() as the outer graph knows it; none for inner ones.
  ValueId outside(ValueId v) const;
  /// Which of nodes() makes the value; -1: none of them.
  int maker(ValueId v) const;
  ValueId result() const { return outer_->output(id_); }

 private:
  const Graph* outer_;
  NodeId id_;
  std::vector<NodeId> nodes_;
};

/// How constants are joined: along `axis` of the results (not negative), and the anchor's weights
/// along theirs.
struct Joining {
  ValueId over;
  size_t axis = 0, rank = 0;
  std::map<size_t, size_t> weights;
  std::set<size_t> fill;
};
/// "" if b can stand beside a; else what is in the way.
std::string unlike(const Graph& g, const Sibling& a, const Sibling& b, const Joining& how);

/// The constant for input `slot` of the `node`-th node, joined over all siblings (none: left out by
/// all). `sizes`: of the results along the axis.
std::optional<Tensor> joined_constant(const Graph& g, const std::vector<Sibling>& all, size_t node,
                                      size_t slot, const Joining& how,
                                      const std::vector<int64_t>& sizes);

}  // namespace ferrule
