// What operators mean: one value, made when rules are loaded and handed down to whatever infers,
// interprets, matches or lowers. It holds the operators as formulas, read from rules/ops/*.yaml:
// one entry is an operator on every backend, fusable everywhere. nodes_to_programs.h turns a node
// of such an operator, or a region of them, into a scalar program. Entries with `row:` (reductions)
// have no scalar program of their own: row.h lowers them, alone or with their pointwise neighbours.
#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/base/result.h"
#include "engine/semantics/function_text.h"
#include "engine/semantics/op_formula.h"

namespace ferrule {

/// Elements up to which contents are followed: shapes, axes, sizes.
inline constexpr int64_t kMaxContents = 256;

struct Inferred {
  std::vector<Type> types;
  std::vector<std::optional<std::vector<Dim>>>
      contents;  ///< known integer contents of outputs where there are any
};
/// Known integer contents of a value: of a small constant, or as inference found them.
std::optional<std::vector<Dim>> contents_of(const Graph& g, ValueId v);

class RegionPrograms;  // region_programs.h
class Contracts;       // engine/rule/contract.h

class Semantics {
 public:
  /// Inference of operators that neither a formula describes nor infer.h computes.
  using BySchema = Result<Inferred> (*)(const Semantics&, const Graph&, const Node&);
  explicit Semantics(BySchema by_schema = nullptr) : by_schema_(by_schema) {}
  /// Reads every *.yaml in `dir`/ops of each rules directory, later ones replacing entries of
  /// earlier ones. errors: yaml_*, formula_invalid with place, caret and hint; all problems at
  /// once.
  static Result<Semantics> load(std::span<const std::string> rule_dirs,
                                BySchema by_schema = nullptr);
  const OpFormula* find(std::string_view domain, std::string_view op) const;
  const OpFormula* find(const Node& n) const { return find(n.domain, n.op.text()); }
  /// The operator as other ones; null: it is not written so.
  const FunctionText* function(std::string_view domain, std::string_view op) const;
  const std::map<std::string, FunctionText, std::less<>>& functions() const { return *functions_; }
  bool pointwise(const Node& n) const {
    const OpFormula* f = find(n);
    return f && f->pointwise();
  }
  /// Members of an op class ("@activation" is class "activation"; "@pointwise" is every formula
  /// without row).
  bool in_class(const Node& n, std::string_view cls) const;
  std::vector<std::string> class_names() const;
  const std::map<std::string, OpFormula, std::less<>>& all() const {
    return *ops_;
  }  ///< key "domain::op" or "op"
  /// errors: unknown_operator, those of BySchema.
  Result<Inferred> infer_by_schema(const Graph& g, const Node& n) const;
  /// Regions of these operators that were lowered before; null: none are kept.
  RegionPrograms* programs() const { return programs_.get(); }
  /// What kernels compute, and of which operators: load_semantics (engine/rule/load.h) gives them;
  /// null: none are known.
  const Contracts* contracts() const { return contracts_.get(); }
  void give(std::shared_ptr<const Contracts> contracts) { contracts_ = std::move(contracts); }

 private:
  BySchema by_schema_;
  using Map = std::map<std::string, OpFormula, std::less<>>;
  std::shared_ptr<const Map> ops_ =
      std::make_shared<const Map>();  ///< copies of the table share it
  std::shared_ptr<const std::map<std::string, FunctionText, std::less<>>> functions_ =
      std::make_shared<const std::map<std::string, FunctionText, std::less<>>>();
  std::unordered_multimap<std::string_view, const OpFormula*>
      by_op_;  ///< of ops_, for find(): asked for every node
  std::shared_ptr<RegionPrograms> programs_;
  std::shared_ptr<const Contracts> contracts_;
};

}  // namespace ferrule
