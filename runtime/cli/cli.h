// What the commands share: global options, where the rules are, output helpers. One file a command;
// each has one function that adds itself to the parser.
#pragma once
#include <CLI/CLI.hpp>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/onnx/import.h"
#include "engine/pipeline.h"
#include "runtime/answers/explain.h"
#include "runtime/session.h"

namespace ferrule::cli {

/// Options every command takes.
struct Common {
  std::vector<std::string> rules;  ///< --rules
  std::vector<std::string> disable, enable, overrides, limits, shapes, ignore_profit,
      allow_unproven;
  std::map<std::string, std::vector<int64_t>> input_shapes;  ///< of the inputs given as files
  std::map<std::string, std::vector<std::optional<int64_t>>>
      partly_open;  ///< input shapes of which some sizes stay as the model has them
  std::string backend = "auto", target, profile = "ferrule", tuning, apply;
  std::string cache = user_cache_folder();
  int threads = 0;     ///< 0: all cores
  double timeout = 0;  ///< seconds; 0: none
  bool json = false, force = false, no_fold = false, overridable = false, strict = false,
       fast_math = false, no_cache = false, require_device = false, no_interpreter = false;
  std::string model;  ///< of the command that takes one
};

/// A command's body: returns the exit code, or an error that main prints.
using Command = std::function<Result<Exit>(const Common&)>;

/// What was printed may still wait: a full disk or a closed pipe is found here.
Status flush_output();
/// Adds the options every command takes; `model`: also the positional MODEL.
void add_common(CLI::App& command, Common& common, bool model);
/// --override, for the commands without a model where it means something.
void add_override(CLI::App& command, Common& common);
/// --timeout, for the commands that run a model.
void add_timeout(CLI::App& command, Common& common);
/// Runs the body when the command is chosen; its error is printed, its exit code kept in `exit`.
void set_body(CLI::App& command, Common& common, int& exit, Command body);

/// The engine's options out of the command line. errors: usage (malformed --shapes, --limit).
Result<EngineOptions> engine_options(const Common& common);
/// The same for commands that work on rules: unproven ones are what they are for.
Result<EngineOptions> rule_options(const Common& common);
/// The same for a Session: backend, threads, lower_options.
Result<SessionOptions> session_options(const Common& common);
/// What library epilogues may do.
LowerOptions lower_options(const Common& common);
/// "x:1x3x224x224" or "x:1,3,224,224", and several: "a:1x16,b:1x16". `most`: a size may be a range,
/// "x:1..8x3", whose end is written there. errors: usage.
using NamedShapes = std::vector<std::pair<std::string, std::vector<int64_t>>>;
Result<NamedShapes> parse_shapes(const std::string& text, NamedShapes* most = nullptr);
/// "x:1x3", as --shapes has it.
std::string shapes_text(const std::string& name, const std::vector<int64_t>& dims);
/// Puts the largest sizes in the place of ranges in --shapes, for commands that ask one plan, and
/// returns them, "x:8x3"; empty: there is no range.
Result<std::string> take_largest(Common& common);

/// A model and what plans it.
struct Loaded {
  EngineOptions options;
  std::shared_ptr<const Knowledge> knowledge;
  Imported model;
};
/// `contents`: also what stands in the file.
Result<Loaded> load_model(const Common& common, bool contents = false);
/// Its second half: the model file alone.
Result<Imported> import_model(const Common& common, const EngineOptions& options,
                              const Knowledge& knowledge, bool contents = false);

/// In memory of its own: what is lowered points into the plan.
Result<std::unique_ptr<Explained>> explain_model(const Common& common, bool near_misses);

void print_json(const nlohmann::json& j);
/// On the terminal; `json`: also as an object with the member "error", where no JSON was printed
/// yet.
void report(const Error& e, bool json);
/// That nothing lies at `path` which --force does not allow to replace; asked before the work, not
/// after it. An empty path is none. errors: file_exists, about `what`.
Status free_place(std::string_view what, const std::string& path, bool force);
/// Prints `text` to stderr, once.
void talk(const std::string& text);
/// "cuda (NVIDIA H200, sm_90)", or "cpu".
std::string ran_on(const Compiled& compiled);
/// Names of the layers that have no kernel.
std::vector<std::string> interpreted_layers(Compiled& compiled);

/// explain --stage memory: the arena over the steps, in memory.cpp.
Result<Exit> explain_memory(const Common& common);
/// explain --stage launches: what the null backend records, in memory.cpp.
Result<Exit> explain_launches(const Common& common);

void add_explain(CLI::App& app, Common& common, int& exit);
void add_why(CLI::App& app, Common& common, int& exit);
void add_missed(CLI::App& app, Common& common, int& exit);
void add_run(CLI::App& app, Common& common, int& exit);
void add_bench(CLI::App& app, Common& common, int& exit);
void add_verify(CLI::App& app, Common& common, int& exit);
void add_compile(CLI::App& app, Common& common, int& exit);
void add_rules(CLI::App& app, Common& common, int& exit);
/// That no rule is called so, with the nearest name.
tl::unexpected<Error> unknown_rule(const char* place, const std::string& id, const RuleSet& rules);
/// `rules test` and `rules coverage`, in rules_test.cpp.
void add_rules_test(CLI::App& rules, Common& common, int& exit);
void add_fuse(CLI::App& app, Common& common, int& exit);
void add_ablate(CLI::App& app, Common& common, int& exit);
void add_reduce(CLI::App& app, Common& common, int& exit);
void add_cache(CLI::App& app, Common& common, int& exit);
void add_tune(CLI::App& app, Common& common, int& exit);
void add_doctor(CLI::App& app, Common& common, int& exit);
/// completion, man and help; behind all other commands.
void add_completion(CLI::App& app, Common& common, int& exit);

}  // namespace ferrule::cli
