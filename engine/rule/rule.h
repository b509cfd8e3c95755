// A rule as plain structs: exactly what its YAML file says, parsed and checked, no
// behaviour. load.h fills it, print (rule -> YAML) inverts it, match/ rewrite / group read it.
#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/limits.h"
#include "engine/rule/bindings.h"
#include "engine/rule/expr.h"
#include "engine/rule/pattern.h"

namespace ferrule {

struct Contract;  // contract.h

enum class RuleKind { rewrite, absorb, window, region, merge, place };
inline constexpr std::string_view kRuleKinds[] = {"rewrite", "absorb", "window",
                                                  "region",  "merge",  "place"};
std::string_view name(RuleKind k);

/// Class of a condition.
enum class ConditionClass { sound, kernel, profit };
std::string_view name(ConditionClass c);

struct Match;
/// Whether a match is one that a condition asks about. A match's nodes may be those found so far:
/// tails and regions ask for each candidate.
using ConditionScope = std::function<bool(const Graph&, const Match&)>;

/// The classes of `numerics`, from the strongest promise on, as the proof's Numerics has them.
inline constexpr std::string_view kNumerics[] = {"exact", "signed_zero", "reassociating",
                                                 "approximate", "reduced"};

struct Condition {
  std::string id;
  ConditionClass cls = ConditionClass::sound;
  std::shared_ptr<const Expr> expr;  ///< none: that the rule's contract takes the group
  bool asks_contract = false;        ///< expr.h
  std::string text;                  ///< the expression as written
  std::string why;                   ///< with {expr} holes
  std::string hint;
  Place place;
  std::string
      from;  ///< of conditions added by an override file or a list of instances: "override.yaml:4"
  std::shared_ptr<const ConditionScope>
      scope;  ///< of added ones: the matches they concern; null: all
};
/// Id of the added condition by which a rule is off for some matches. Nothing overrides it.
inline constexpr std::string_view kOff = "off";

/// `params: {max_ops: 64}`: a number or word that conditions, names and the limits of tails and
/// regions refer to, and override files set.
struct Param {
  std::string name;
  Val value;         ///< a truth value, a number or a string
  std::string text;  ///< as written
  bool quoted = false;
  /// Other values for some matches, the last that concerns a match counts.
  std::vector<std::pair<std::shared_ptr<const ConditionScope>, Val>> scoped;
};

/// What a region or a tail may be made of.
struct RegionSpec {
  std::vector<std::string> ops, classes;  ///< of: "@pointwise", "{Add|Relu}"
  /// around: "@row": the region holds at least one of these, and all of them reduce the same axes;
  /// the others join it before and behind. Empty: any node of `of` may start a region.
  std::vector<std::string> around_ops, around_classes;
  /// keeps: "@pointwise": one of these that feeds the row operators joins them although its result
  /// is read elsewhere, too; the kernel then writes it as a further result.
  std::vector<std::string> kept_ops, kept_classes;
  std::map<std::string, std::string>
      named;  ///< limits written as the name of a parameter: max_ops -> name
  int max_ops = 64;
  int max_inputs = 16;
  int min_ops = 1;
  bool multi_output = true;  ///< tails: false
  /// Asked for each candidate before it joins; names: `node` (the candidate), `operands` (the
  /// values it reads from outside the group), `anchor` (the node).
  std::vector<Condition> where;
  Place place;
};

/// An expression, and how the file writes it.
struct WrittenExpr {
  ExprPtr expr;
  std::string text;
  explicit operator bool() const { return expr != nullptr; }
};

/// `merge:`, what siblings share and have in common, and how they become one.
struct MergeSpec {
  std::string over;               ///< a value, or a list of values, of the pattern
  std::vector<WrittenExpr> keys;  ///< must be equal
  int min = 2, max = 64;
  WrittenExpr axis;  ///< of the results, along which they are joined; none: side by side
  std::map<size_t, WrittenExpr> weights;  ///< input of the anchor -> the axis that follows `axis`
  std::set<size_t> fill;  ///< inputs of the anchor that are zero where they are left out
};

/// "q2[..., D, Q]": a value of the pattern.
struct RoleValue {
  std::string value;
  /// Its axes under the contract's names, "..." for a run, "1" for an axis of one element that the
  /// role does not have, "1..." for any number of them at the end; empty: in the contract's order,
  /// as many of the last ones as it has.
  std::vector<std::string> axes;
};

/// `roles: {q: "q2[..., D, Q]", scale: "value(c)"}`: one role of the rule's contract.
struct RoleSpec {
  std::string role;
  std::vector<RoleValue> values;  ///< a tensor: the first of these that is there
  std::string from, to;           ///< a formula: "t -> a"
  WrittenExpr number;
  std::string text;  ///< as written
};

/// `place: {parts: "slices(whole, axis)"}`.
struct PlaceSpec {
  std::string parts, whole, axis;
};

/// `fires` or `holds`: ONNX text, optionally changed by edits of an earlier firing case.
struct RuleTest {
  std::string name;
  std::string model;  ///< ONNX text; empty: a firing case, changed by `edits`
  std::string of;     ///< name of that firing case; empty: the first one
  /// Closed edit verbs: leak, output, input, set, const, rewire, shape, dtype, drop; arguments as
  /// JSON text.
  std::vector<std::pair<std::string, std::string>> edits;
  bool fires = true;
  std::string declined_by;  ///< holds: a condition id, or a guarantee D1 … D10, or "structure"
  std::string target;       ///< target to judge kernel conditions on; empty = default
  std::string profile;      ///< whose limits hold; empty = default
  std::string expect;       ///< fires: ONNX text after, or empty
  Place place;
};

struct Rule {
  int version = 1;  ///< of the language
  std::string id, doc;
  std::vector<std::string> source;
  RuleKind kind = RuleKind::rewrite;
  std::string phase;
  bool enabled = true;
  bool experimental = false;
  bool once = false;  ///< may grow the graph; fires once per root
  /// Why a plan with it may launch more kernels than one without; empty: it must not.
  std::string may_raise_kernels;
  std::string numerics = "exact";  ///< one of kNumerics
  bool waits() const {
    return experimental || numerics == "approximate" || numerics == "reduced";
  }  ///< for --enable
  std::vector<std::string> before, after;
  std::vector<DType> types;  ///< element types of the root's first result; empty = any
  Pattern match;             ///< region rules: empty
  std::vector<Param> parameters;
  std::vector<Condition> where;
  std::vector<std::pair<std::string, std::shared_ptr<const Expr>>> let;
  std::vector<std::string> shared;  ///< inner values that may have other users (they are kept)
  Pattern rewrite;                  ///< kind rewrite
  std::string contract;             ///< absorb, window, region, merge: the group's contract
  std::vector<RoleSpec> roles;      ///< window: what the contract's roles are in the pattern
  std::shared_ptr<const Contract> kernel;  ///< the contract's file, where the rule gives its roles
  std::string anchor;                      ///< absorb: label of the anchor
  RegionSpec region;                       ///< region: what grows;  absorb: the tail
  MergeSpec merge;
  PlaceSpec place;
  std::string name;  ///< name template: "{conv} + {tail}"
  std::vector<RuleTest> tests;
  std::string file;  ///< as opened
  std::string pack;  ///< the rules directory it came from
  std::string text;  ///< the file's text, for `rules show` and excerpts
  std::string off;   ///< off by an override file: its words, "r off: why (file:line)"
  std::shared_ptr<const Rule> written;  ///< as loaded, where an override file changed it
};

struct Body;   // engine/group/body.h
struct Roles;  // engine/contract/roles.h

/// Where a rule's pattern was found.
struct Match {
  const Rule* rule = nullptr;
  NodeId root;
  Bindings bindings;
  std::vector<NodeId> nodes;     ///< the matched nodes, topological order
  std::vector<ValueId> outputs;  ///< the values of Pattern::outputs
  Let let;
  std::shared_ptr<const Body> body =
      nullptr;  ///< of `nodes` as a group, where a condition asked for it
  std::shared_ptr<const Roles> roles = nullptr;  ///< of the group's contract, where it has a file
};

struct Phase {
  std::string id;
  std::string log;  ///< "After vertical fusions: {layers} layers"
  bool fixpoint = true;
  Place place;
  std::vector<RuleKind> kinds = {};  ///< of the rules that work in it; empty: all
};

/// Everything loaded from the rules directories, in firing order.
struct RuleSet {
  std::vector<Phase> phases;  ///< rules/pipeline.yaml
  /// Phase by phase, `before` / `after` applied, else by path. Rules that are off stay in the list
  /// with `enabled` false, so that they can be shown: whoever fires rules skips them.
  std::vector<std::shared_ptr<const Rule>> rules;
  std::vector<std::string> warnings;   ///< globs that match no rule
  std::vector<std::string> contracts;  ///< names of those that there are
  const Rule* find(std::string_view id) const;
};

}  // namespace ferrule
