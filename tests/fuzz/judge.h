// Whether the fused plan of a graph computes what the interpreter does on the unfused graph.
#pragma once
#include "engine/interpreter/interpreter.h"
#include "runtime/session.h"
#include "tests/fuzz/builder.h"
#include "tests/fuzz/elsewhere.h"

namespace ferrule::fuzz {

struct Configuration {
  /// cpu; cuda (on the stub libraries of tests/gpu/stub); export: what `ferrule fuse` writes, by
  /// the interpreter and by ONNX Runtime.
  std::string backend = "cpu";
  std::string target;
  int threads = 1;
  bool strict = false, fast_math = false;
  bool functions = false;    ///< export: groups as functions
  std::string text() const;  ///< as options, of this program and of `ferrule run`
};

struct Verdict {
  enum Kind : uint8_t { passed, failed, skipped } kind = passed;
  std::string text{};   ///< what differs, or why nothing was compared
  std::string aside{};  ///< what could not be asked, besides
  bool says_nothing =
      false;  ///< equal, but some result is one that a wrong kernel could have made (values.h)
  bool arbitrated = false;  ///< further apart than the tolerance, and f64 found for the plan
  std::vector<std::string> warnings{};  ///< of the session: layers that had to be interpreted
};

struct JudgeOptions {
  std::string rules;            ///< the folder
  bool allow_unproven = false;  ///< rewrites without a stamp run; else loading them proves them
  Scratch scratch{};            ///< for models that other programs read
  std::string python;           ///< with ONNX Runtime; empty: not there
  std::string program;  ///< a `ferrule` that runs the plans in the place of this build's library;
                        ///< empty: none
};

/// The shipped rules, loaded once for every target of this machine's processor, and for a GPU where
/// its stubs are.
class Judge {
 public:
  static Result<Judge> load(const JudgeOptions& options);

  const Language& language() const { return language_; }
  /// Rules as loaded: their cases are models, too.
  const Knowledge& knowledge() const { return *fused_.begin()->second; }
  Configuration draw(Draw& draw) const;
  Verdict judge(const Case& c, const Configuration& configuration) const;
  /// For a report: whether it is wrong without fusions, too, and the layers with their rules.
  std::string explain(const Case& c, const Configuration& configuration) const;
  /// DIR/NAME.onnx and .npz, for `ferrule run`.
  Status keep(const Case& c, const std::string& path) const;

 private:
  struct Ran {
    Named outputs;
    std::string layers;
    std::vector<std::string> warnings;
    std::string model;  ///< what was exported
  };
  Result<Graph> graph(const Case& c) const;
  Result<Named> interpreted(const Graph& g, const Case& c, InterpreterOptions options) const;
  /// `noise`: every result, and every step of a formula, is off as rounding may put it (noise.h).
  Result<Named> interpreted(const Graph& g, const Case& c, bool f64, Draw* noise = nullptr) const;
  /// In f64, where a result within the tolerance of its type's end is infinite, and a step of a
  /// formula is one of the type that kernels compute it in (noise.h).
  Result<Named> overflowing(const Graph& g, const Case& c) const;
  bool makes_nan(const Case& c) const;
  bool leaves_integers_open(const Graph& g, const Case& c) const;
  std::vector<Named> moved(const Graph& g, const Case& c) const;
  Result<Ran> run(const Case& c, const Configuration& configuration, bool fused) const;
  Result<Ran> exported(const Case& c, const Configuration& configuration) const;
  Result<Ran> by_program(const Case& c, const Configuration& configuration) const;
  void compare(const Named& got, const Named& want, const Case& c, Verdict& verdict) const;
  bool leaves_range(const Case& c, const Configuration& configuration, const Named& got,
                    const Named& want) const;
  void in_onnx_runtime(const Case& c, const std::string& model, const Named& want,
                       Verdict& verdict) const;

  JudgeOptions options_;
  std::map<std::string, std::shared_ptr<const Knowledge>> fused_, plain_;
  Language language_;
  std::shared_ptr<OnnxRuntime> onnx_runtime_;
};

}  // namespace ferrule::fuzz
