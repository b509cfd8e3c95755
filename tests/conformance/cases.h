// ONNX's own backend tests: each a folder with a model and data sets, the inputs and outputs of
// which are stored. What is claimed must pass; what is not known must say so cleanly, and stands
// with its reason in skipped.tsv, which may only shrink. FERRULE_ONNX_TESTS names the folder
// (node/, simple/, …); without it the tests are skipped (the script `run` beside this file sets
// it). FERRULE_ONNX_TESTS_ONLY: a substring of the names; FERRULE_ONNX_TESTS_PART=K/N: every Nth
// case from the Kth (0 to N - 1).
#pragma once
#include <fnmatch.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/match/facts.h"
#include "engine/onnx/import.h"
#include "tests/conformance/tensor_proto.h"
#include "tests/support/paths.h"

namespace ferrule::conformance {

namespace fs = std::filesystem;

struct Outcome {
  enum Kind : uint8_t { passed, failed, skipped } kind;
  std::string text{};
};

inline Outcome from_error(const Error& e) {
  if (e.code == Code::size_unknown) return {Outcome::skipped, "a size that only a run knows"};
  const bool unsupported = exit_code(e.code) == Exit::unsupported;
  return {unsupported ? Outcome::skipped : Outcome::failed,
          fmt::format("{}: {}: {}", code_name(e.code), e.place, e.message)};
}

/// The folders that hold a model, in name order.
inline std::vector<fs::path> folders() {
  const char* only = std::getenv("FERRULE_ONNX_TESTS_ONLY");
  std::vector<fs::path> found;
  for (const char* group : {"node", "simple", "pytorch-operator", "pytorch-converted"}) {
    std::error_code none;
    for (const auto& e :
         fs::directory_iterator(fs::path(std::getenv("FERRULE_ONNX_TESTS")) / group, none))
      if (fs::exists(e.path() / "model.onnx") &&
          (!only || e.path().filename().string().find(only) != std::string::npos))
        found.push_back(e.path());
  }
  std::sort(found.begin(), found.end());
  size_t part = 0, parts = 1;
  if (const char* text = std::getenv("FERRULE_ONNX_TESTS_PART"))
    if (std::sscanf(text, "%zu/%zu", &part, &parts) != 2 || part >= parts) parts = 1, part = 0;
  std::vector<fs::path> chosen;
  for (size_t k = part; k < found.size(); k += parts) chosen.push_back(found[k]);
  return chosen;
}

/// Lines "BACKEND<tab>REASON<tab>NAMES" (`both` for either backend; REASON: how the skip's text
/// begins; NAMES: globs).
class SkipList {
 public:
  SkipList(const std::string& path, const std::string& backend) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const size_t first = line.find('\t'), second = line.find('\t', first + 1);
      if (line.starts_with('#') || second == line.npos) continue;
      if (const std::string of = line.substr(0, first); of != backend && of != "both") continue;
      std::istringstream names(line.substr(second + 1));
      for (std::string name; names >> name;)
        lines_.push_back({name, line.substr(first + 1, second - first - 1)});
    }
  }
  /// The outcome as it counts: a skip that is not listed fails, and so does a listed case that
  /// passes. What is known to be refused wrongly is listed, too, and is a skip.
  Outcome judge(const std::string& name, Outcome o) {
    Line* line = find(name, o.text);
    if (line) line->used = true;
    if (o.kind == Outcome::failed && line && o.text.starts_with(line->reason))
      return {Outcome::skipped, o.text};
    if (o.kind == Outcome::skipped && (!line || !o.text.starts_with(line->reason)))
      return {Outcome::failed, (line ? "skipped for another reason than is listed: "
                                     : "a skip that is not listed: ") +
                                   o.text};
    if (o.kind == Outcome::passed && line)
      return {Outcome::failed, "passes: take it off the list (" + line->reason + ")"};
    return o;
  }
  std::vector<std::string> unused() const {
    std::vector<std::string> out;
    for (const Line& l : lines_)
      if (!l.used) out.push_back(l.name);
    return out;
  }

 private:
  struct Line {
    std::string name, reason;
    bool used = false;
  };
  /// The line of the case; of several, the one with this reason.
  Line* find(const std::string& name, const std::string& reason) {
    Line* found = nullptr;
    for (Line& l : lines_)
      if (fnmatch(l.name.c_str(), name.c_str(), 0) == 0 && (!found || reason.starts_with(l.reason)))
        found = &l;
    return found;
  }
  std::vector<Line> lines_;
};

/// The case's model, if all that it asks for is known.
inline tl::expected<Graph, Outcome> import_case(const fs::path& folder, const Semantics& ops) {
  ImportOptions options;
  options.ops = &ops;
  auto model = import_file((folder / "model.onnx").string(), options);
  if (!model) return tl::unexpected(from_error(model.error()));
  std::set<std::string> unknown;
  const std::function<void(const Graph&)> look = [&](const Graph& g) {
    for (NodeId id : g.order()) {
      if (!interpretable(g.node(id), ops)) unknown.insert(g.node(id).op.text());
      for (const auto& [key, body] : g.node(id).subgraphs) look(*body);
    }
  };
  look(model->graph);
  if (!unknown.empty())
    return tl::unexpected(Outcome{
        Outcome::skipped, fmt::format("unsupported_operator: {}", fmt::join(unknown, ", "))});
  return std::move(model->graph);
}

/// Runs one data set's inputs, in the graph's order.
using Run = std::function<Result<std::vector<Tensor>>(std::vector<Tensor>)>;

/// What may differ from stored results, by element type.
using Allowed = std::function<Tolerance(DType)>;

/// Whether the model draws random numbers: of its results, type and size are as they are stored.
inline bool draws(const Graph& g) {
  return !std::ranges::all_of(g.order(), [&](NodeId id) { return deterministic(g.node(id)); });
}

/// All data sets of one case, compared with what is stored.
inline Outcome run_data(const fs::path& folder, size_t inputs, bool random, const Run& run,
                        const Allowed& allowed) {
  const auto model = file_bytes((folder / "model.onnx").string()).value_or("");
  const std::map<std::string, std::vector<std::string>> kinds_of{{"input", kinds(model, true)},
                                                                 {"output", kinds(model, false)}};
  for (int set = 0;; ++set) {
    const fs::path data = folder / ("test_data_set_" + std::to_string(set));
    if (!fs::exists(data))
      return set ? Outcome{Outcome::passed} : Outcome{Outcome::skipped, "no data"};
    auto read = [&](const char* kind, size_t k) -> std::optional<Tensor> {
      const auto bytes = file_bytes((data / fmt::format("{}_{}.pb", kind, k)).string());
      const auto& all = kinds_of.at(kind);
      return bytes && k < all.size() ? parse_value(*bytes, all[k]) : std::nullopt;
    };
    std::vector<Tensor> given;
    for (size_t k = 0; k < inputs; ++k) {
      const auto t = read("input", k);
      if (!t) return {Outcome::failed, fmt::format("input {} cannot be read", k)};
      given.push_back(*t);
    }
    const auto got = run(std::move(given));
    if (!got) return from_error(got.error());
    for (size_t k = 0; k < got->size(); ++k) {
      const auto want = read("output", k);
      if (!want) return {Outcome::failed, fmt::format("output {} cannot be read", k)};
      if (random) {
        if ((*got)[k].dtype() != want->dtype() || (*got)[k].dims() != want->dims())
          return {Outcome::failed, fmt::format("output {} has another type or size", k)};
        continue;
      }
      if (const Difference d = compare((*got)[k], *want, allowed(element_type(*want))); !d.ok)
        return {Outcome::failed, fmt::format("output {}: {}", k, d.text)};
    }
  }
}

/// Every case through `run_case`; prints what failed, what was skipped and the sum.  Returns how
/// many passed and failed.
inline std::pair<int, int> run_all(
    const std::string& backend, const Allowed& allowed,
    const std::function<Outcome(const fs::path&, const Allowed&)>& run_case) {
  SkipList skips(source_dir() + "/tests/conformance/skipped.tsv", backend);
  int counts[3] = {};
  for (const fs::path& folder : folders()) {
    std::fflush(stdout);  // what was found so far is seen even if the next case ends the process
    const std::string name = folder.filename();
    const Outcome o = skips.judge(name, run_case(folder, allowed));
    ++counts[o.kind];
    if (o.kind == Outcome::failed)
      std::printf("FAILED %s %s: %s\n", backend.c_str(), name.c_str(), o.text.c_str());
    if (o.kind == Outcome::skipped)
      std::printf("skipped %s %s: %s\n", backend.c_str(), name.c_str(), o.text.c_str());
  }
  if (!std::getenv("FERRULE_ONNX_TESTS_ONLY") && !std::getenv("FERRULE_ONNX_TESTS_PART"))
    for (const std::string& name : skips.unused())
      ++counts[Outcome::failed], std::printf("FAILED %s %s: listed as skipped, and no such case\n",
                                             backend.c_str(), name.c_str());
  std::printf("%d passed, %d failed, %d skipped\n", counts[0], counts[1], counts[2]);
  return {counts[0], counts[1]};
}

}  // namespace ferrule::conformance
