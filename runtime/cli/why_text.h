// Answers of `why` and `missed` as text, what a person reads: the summary first, then the nearest
// rules with what stood in the way.
#pragma once
#include "runtime/answers/why.h"
#include "runtime/cli/cli.h"

namespace ferrule::cli {

/// The steps that touched the node.
void print_steps(const why::Observed& o, const why::Outcome& f);
/// The nearest `most` rules in full, the others by name.
void print_considered(const std::vector<why::Considered>& all, size_t most, bool verbose);
/// Behind `before`, the further ones below it.
void print_unlocks(const std::vector<why::Unlock>& all, const std::string& before);
std::string unlock_text(const why::Unlock& u);
/// The reason that leads and what would change it, behind `label`.
void print_lead(const std::vector<why::Considered>& all, const std::string& otherwise,
                const char* label);
std::string bytes_text(int64_t bytes);

/// The model on its way through the pipeline, for the commands that ask about it. Of sizes in a
/// range, the largest; text says so in its first line.
struct AskedModel {
  why::Observed observed;
  std::string largest;  ///< as --shapes wants them; empty: no size was a range
};
Result<AskedModel> observe_model(const Common& common);
/// What the JSON of each begins with.
nlohmann::json header(const AskedModel& model);

}  // namespace ferrule::cli
