// What a pattern bound: the names a rule's conditions, replacement and messages may use.
#pragma once
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "engine/graph/graph.h"

namespace ferrule {

struct Bindings {
  std::map<std::string, ValueId, std::less<>> values;  ///< none = an absent optional
  std::map<std::string, NodeId, std::less<>> nodes;    ///< labels; none = an absent optional node
  std::map<std::string, std::vector<ValueId>, std::less<>> value_lists;  ///< xs...
  std::map<std::string, std::vector<NodeId>, std::less<>> node_lists;    ///< tail, region
  std::map<std::string, Attr, std::less<>> attrs;                        ///< $a
  std::map<std::string, Dim, std::less<>> dims;                          ///< shape pattern symbols
  std::set<std::string, std::less<>> tags;                               ///< chosen alternatives
  /// Of a contract's meaning: graphs of one operand; null: the identity.
  std::map<std::string, std::shared_ptr<const Graph>, std::less<>> formulas;
};

}  // namespace ferrule
