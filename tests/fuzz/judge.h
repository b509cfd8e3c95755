// Whether the fused plan of a graph computes what the interpreter does on the unfused graph.
#pragma once
#include "runtime/ferrule.h"
#include "tests/fuzz/builder.h"

namespace ferrule::fuzz {

struct Configuration {
  std::string target;
  int threads = 1;
  bool strict = false;
  std::string text() const;
};

struct Verdict {
  enum Kind : uint8_t { passed, failed, skipped } kind = passed;
  std::string text;         ///< what differs, or why nothing was compared
  bool says_nothing = false;///< equal, but constant or mostly zeros: any kernel would have passed
  bool arbitrated = false;  ///< further apart than the tolerance, and f64 found for the plan
  std::vector<std::string> warnings{};  ///< of the session: layers that had to be interpreted
};

/// The shipped rules, loaded once for every target of this machine's processor.
class Judge {
 public:
  static Result<Judge> load(const std::string& rules);

  const ImportOptions& import() const { return import_; }
  Configuration draw(Draw& draw) const;
  Verdict judge(const Case& c, const Configuration& configuration) const;
  /// For a report: whether it is wrong without fusions, too, and the layers with their rules.
  std::string explain(const Case& c, const Configuration& configuration) const;
  /// DIR/NAME.onnx and .npz, for `ferrule run`.
  Status keep(const Case& c, const std::string& path) const;

 private:
  using Named = std::map<std::string, Tensor>;
  struct Ran {
    Named outputs;
    std::string layers;
    std::vector<std::string> warnings;
  };
  Result<Graph> graph(const Case& c) const;
  Result<Named> interpreted(const Graph& g, const Case& c, bool f64) const;
  Result<Ran> run(const Case& c, const Configuration& configuration, bool fused) const;
  void compare(const Named& got, const Named& want, const Case& c, Verdict& verdict) const;

  std::string rules_;
  std::map<std::string, std::shared_ptr<const Knowledge>> fused_, plain_;
  ImportOptions import_;
};

}  // namespace ferrule::fuzz
