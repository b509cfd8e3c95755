// Answers of `why` and `missed` as JSON, which has everything: for the command line, whose text
// (runtime/cli/why_text.h) is what a person reads, and the C interface.
#pragma once
#include "engine/why/why.h"
#include "runtime/answers/explain.h"

namespace ferrule {

inline constexpr int kTries = 8;           ///< how often the model is fused again for one answer
inline constexpr int kTriesOfMissed = 12;  ///< and for one list

/// The model on its way through the pipeline. `imported`: with ImportOptions::own_origins.
Result<why::Observed> observe(Imported imported, std::shared_ptr<const Knowledge> knowledge,
                              EngineOptions options, const LowerOptions& lowering);
/// Where a rule alone is asked about: the node at which it came furthest, else one of those it
/// took.
Result<std::string> nearest_node(const why::Observed& o, why::Inquiry& inquiry,
                                 const std::string& rule);
/// What a rule made wherever it fired: names of nodes and layers, each once.
std::vector<std::string> made_by(const why::Observed& o, const std::string& rule);

nlohmann::json to_json(const why::Observed& o, const why::NodeAnswer& a);
nlohmann::json to_json(const why::Observed& o, const why::PairAnswer& a);
nlohmann::json to_json(const why::Missed& all, const std::string& assumed);
nlohmann::json to_json(const why::Observed& o, const why::Outcome& f);
nlohmann::json to_json(const why::Considered& c);
nlohmann::json to_json(const std::vector<why::Unlock>& all);
/// Escaped names, as a JSON list.
nlohmann::json names_json(const std::vector<std::string>& names);

}  // namespace ferrule
