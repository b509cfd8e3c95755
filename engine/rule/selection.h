// The fusions of one model as a file: one line an instance (rule, root, nodes), made by `fuse
// --plan`, edited by hand, applied by --apply. Applying switches off everything that no line names:
// rules without a line go off, the others get a condition (rule.h). An instance is known by its
// rule and the names of its nodes, which one and the same model always gives again; the file holds
// a hash of the model's graph and is refused for another.
#pragma once
#include <map>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/graph/graph.h"
#include "engine/graph/journal.h"
#include "engine/rule/rule.h"

namespace ferrule {

struct Instances {
  struct Line {
    std::string rule, root;
    std::vector<std::string> nodes;
    int line = 0;  ///< in the file
  };
  std::string file, model, target;
  std::vector<Line> lines;
};

/// 32 hexadecimal digits over nodes, names, attributes, types and small constants; weights may be
/// trained further.
std::string graph_hash(const Graph& g);
/// What the journal says was done, each instance once. `hash`: graph_hash of the model as imported.
Instances instances_of(const Journal& journal, std::string hash, std::string target);
/// As YAML, one line an instance; read_instances inverts it.
std::string to_text(const Instances& list, std::string_view model_file);
/// errors: yaml_*, rule_invalid (no file of this kind or version), all at once.
Result<Instances> read_instances(const std::string& path, const Limits& limits);

/// Restricts the rules to the instances. errors: rule_unknown with the line.
Status apply_instances(RuleSet& rules, const Instances& list);
/// For asking what one fusion is worth: the rule, but that it does not make this instance.
std::shared_ptr<const Rule> without_instance(const Rule& rule, const Instances::Line& line);
/// errors: other_model.
Status check_model(const Instances& list, const Graph& imported);
/// A line for every instance that the journal does not have.
std::vector<std::string> unmatched(const Instances& list, const RuleSet& rules,
                                   const Journal& journal);

}  // namespace ferrule
