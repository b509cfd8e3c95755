// What was done to the graph, step by step, so that explain can list it and why can say "would have
// matched before step 14" or "lost to … at …". Written by rewrite, group, merge and place;
// read-only after.
#pragma once
#include <map>
#include <string>
#include <vector>

namespace ferrule {

struct Step {
  std::string phase;
  std::string rule;  ///< empty: built-in (constant folding, dead code)
  std::string kind;  ///< rewrite, absorb, region, window, merge, place, fold, dead, broken
  std::vector<std::string> before;  ///< names of the nodes that went or were grouped
  std::vector<std::string> after;   ///< names of the nodes that came
  std::string text;       ///< the log line, in TensorRT's words: "Fusing Conv_3 with Relu_4"
  std::string root = {};  ///< name of the node where the rule matched, one of `before`

  /// Whether a rule changed the graph: neither built in, nor undone because its result was refused.
  bool fired() const { return !rule.empty() && kind != "broken"; }
};

struct Journal {
  std::vector<Step> steps;
  std::vector<std::string> phases;  ///< "After vertical fusions: 29 layers", in order

  /// How often each rule fired.
  std::map<std::string, int> fired() const {
    std::map<std::string, int> out;
    for (const Step& s : steps)
      if (s.fired()) ++out[s.rule];
    return out;
  }
};

}  // namespace ferrule
