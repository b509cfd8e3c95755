// Which layers were fused, by which rule, and what nearly fused: a model on its way to a plan, and
// the JSON of it, for the command line and the C interface.
#pragma once
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "codegen/annotate_plan.h"
#include "engine/onnx/import.h"
#include "engine/pipeline.h"
#include "runtime/answers/json_stream.h"

namespace ferrule {

inline constexpr int kSchemaVersion = 1;

/// Model -> fused graph -> plan -> launches, for those who run nothing.
struct Explained {
  std::shared_ptr<const Knowledge> knowledge;
  Fused fused;  ///< its graph has moved into the plan
  Plan plan;
  Lowered lowered;
  size_t model_nodes = 0;
  const std::string& profile() const { return knowledge->target.profile; }
};
/// In memory of its own: what is lowered points into the plan.
Result<std::unique_ptr<Explained>> explain(Imported imported,
                                           std::shared_ptr<const Knowledge> knowledge,
                                           const EngineOptions& options,
                                           const LowerOptions& lowering);
/// Members in the order of their names. `ranges`: of sizes in a range, else null.
void write_explained(const Explained& e, const nlohmann::json& ranges, JsonStream& out);

/// Why a layer's library call does not take its tail; empty: it does, or there is none.
std::string tail_apart(const LoweredLayer& layer);
/// "After vertical fusions: 29 layers" -> {name: "After vertical fusions", layers: 29}.
nlohmann::json phase_to_json(const std::string& line);
/// In how many places a rule would have fired, or a tail or region gone on, without the entry.
int declined(const Explained& e, const OverrideNote& note);
/// A role's operand, and the way in which its axes lie there.
std::string operand_text(const Graph& g, const Node& n, const RoleTensor& t);
/// The nodes of a role's formula, in order.
std::string formula_text(const Graph& f);
/// The sizes that the plan is for: "x:1x3x224x224", or which of them are open.
std::string sizes_text(const Explained& e);

}  // namespace ferrule
