// What the text of a rule says about the graphs worth trying: numbers, lists and operators that its
// conditions name, and the attributes and constants of its author's cases. A condition that asks
// for sqrt 2 is never met by chance.
#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "engine/proof/proof.h"

namespace ferrule {

/// Of a tensor that has one long axis alone, at most.
inline constexpr int64_t kMostElements = 140000;

struct Hints {
  std::vector<double> numbers;
  std::vector<int64_t> sizes;          ///< about those of the numbers that may bound one
  std::vector<int64_t> long_sizes;     ///< that not all element types of the pattern hold
  std::vector<int64_t> longest_sizes;  ///< so long that a graph has room for one alone
  bool converts = false;               ///< an operator makes numbers of another type than it reads
  std::vector<std::vector<int64_t>> lists;
  std::vector<std::string> operators;  ///< named by conditions: producers and readers
  std::set<std::string, std::less<>>
      asked;  ///< attributes that the pattern gives a name or a condition asks for
  std::vector<std::string> readers;  ///< named by conditions as those of a value
  bool surroundings = false;  ///< conditions ask who reads a value, or whether it is the graph's
  std::map<std::string, std::vector<Attr>, std::less<>>
      attributes;                 ///< by name, what the cases say
  std::vector<Tensor> constants;  ///< of the cases
  bool open_attributes = false;   ///< an operator of the pattern takes any
  size_t modes = 1;  ///< combinations of the modes that one operator of the pattern leaves open
};
/// `cases`: the graphs of the rule's tests.
Hints hints_of(const Rule& rule, const std::vector<const Graph*>& cases, const Semantics& ops);

/// What an attribute of type string may say.
const std::vector<std::string>& words_of(std::string_view op, std::string_view attribute);
/// What an attribute of type integer may say where ONNX lists it, flags and kinds; empty: any
/// number.
const std::vector<int64_t>& numbers_of(std::string_view op, std::string_view attribute);

}  // namespace ferrule
