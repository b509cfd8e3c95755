// ferrule: the program. Every command is a file of its own beside this one. What the parser refuses
// is reported like every other error: one line, with the nearest word that would have been
// understood.
#include <algorithm>

#include "engine/base/diagnostics.h"
#include "engine/base/suggest.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/terminal.h"

namespace ferrule::cli {
namespace {

/// The command that was chosen, as deep as the words were understood.
const CLI::App* chosen(const CLI::App* app) {
  while (!app->get_subcommands().empty()) app = app->get_subcommands().front();
  return app;
}

/// Options start with "-"; other words are commands.
std::vector<std::string> words(const CLI::App& app, bool options) {
  std::vector<std::string> all;
  if (options) {
    for (const CLI::Option* o : app.get_options())
      for (const std::string& n : o->get_lnames()) all.push_back("--" + n);
  }
  for (const CLI::App* s : app.get_subcommands([](const CLI::App*) { return true; }))
    if (s->get_name().empty()) {
      for (std::string& w : words(*s, options)) all.push_back(std::move(w));  // an option group
    } else if (!options) {
      all.push_back(s->get_name());
    }
  return all;
}

/// "ferrule rules list"
std::string path(const CLI::App* command) {
  return command->get_parent() ? path(command->get_parent()) + " " + command->get_name()
                               : "ferrule";
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& w : words) text += (text.empty() ? "" : ", ") + w;
  return text;
}

/// Another command that has the option: "ferrule why"; "": none.
std::string knower(const CLI::App& app, const std::string& option) {
  for (const CLI::App* s : app.get_subcommands([](const CLI::App*) { return true; })) {
    const auto known = words(*s, true);
    if (std::ranges::find(known, option) != known.end()) return path(s);
  }
  return "";
}

/// What to say about a word that no command or option took.
Error unexpected(const CLI::App& app, std::string word) {
  const CLI::App* command = chosen(&app);
  bool option = word.starts_with("-");
  word = word.substr(0, word.find('='));
  auto known = words(*command, option);
  Error e;
  e.code = Code::usage;
  e.place = path(command);
  bool commands = !option && !known.empty();
  e.message = fmt::format("{} {}",
                          option     ? "there is no option"
                          : commands ? "there is no command"
                                     : "one argument too many:",
                          escape(word));
  auto near =
      std::min_element(known.begin(), known.end(), [&](const std::string& a, const std::string& b) {
        return edit_distance(word.substr(0, 64), a) < edit_distance(word.substr(0, 64), b);
      });
  if (near != known.end() &&
      edit_distance(word.substr(0, 64), *near) <= std::max<size_t>(2, near->size() / 3))
    e.hint = "did you mean " + *near + "?";
  else if (std::string other = option ? knower(app, word) : ""; !other.empty())
    e.hint = fmt::format("{} has it: see {} --help", other, other);
  else if (commands)
    e.hint = "there are " + join(known);
  else
    e.hint = "see " + e.place + " --help";
  return e;
}

int refuse(const CLI::App& app, const CLI::ParseError& reason, bool json) {
  auto rest = app.remaining(true);
  std::erase(rest, "--");
  const CLI::App* command = chosen(&app);
  Error e;
  // A command that was misspelt is reported as missing; the word itself is what its user wants to
  // see.
  if (dynamic_cast<const CLI::ExtrasError*>(&reason) ||
      (dynamic_cast<const CLI::RequiredError*>(&reason) && !words(*command, false).empty())) {
    if (rest.empty()) {
      e.message = "a command is missing";
      e.hint = "there are " + join(words(*command, false));
    } else {
      e = unexpected(app, rest.front());
    }
  } else {
    e.message = escape(reason.what(), 400);
  }
  e.code = Code::usage;
  if (e.place.empty()) e.place = path(command);
  if (e.hint.empty()) e.hint = "see " + e.place + " --help";
  report(e, json);
  return static_cast<int>(ferrule::Exit::usage);
}

/// What help or the version prints.
int answer(const CLI::App& app, const CLI::Success& asked) {
  const FoldedOutput output;
  const int code = app.exit(asked);
  const Status written = flush_output();
  if (written) return code;
  talk(render(written.error()));
  return static_cast<int>(Exit::usage);
}

}  // namespace
}  // namespace ferrule::cli

int main(int argc, char** argv) {
  using namespace ferrule::cli;
  CLI::App app{
      "ferrule: fuses the layers of ONNX models by rules that are YAML files, and runs them.",
      "ferrule"};
  app.set_version_flag("--version", "ferrule " FERRULE_VERSION);
  app.require_subcommand(1);
  Common common;
  int exit = 0;
  add_explain(app, common, exit);
  add_why(app, common, exit);
  add_missed(app, common, exit);
  add_run(app, common, exit);
  add_bench(app, common, exit);
  add_verify(app, common, exit);
  add_tune(app, common, exit);
  add_fuse(app, common, exit);
  add_ablate(app, common, exit);
  add_reduce(app, common, exit);
  add_compile(app, common, exit);
  add_rules(app, common, exit);
  add_cache(app, common, exit);
  add_doctor(app, common, exit);
  add_completion(app, common, exit);
  // "help fuse" is "fuse --help". CLI11 takes the words from the last to the first.
  std::vector<std::string> given(argv + 1, argv + argc);
  if (!given.empty() && given.front() == "help") {
    given.erase(given.begin());
    const auto commands = words(app, false);
    if (given.empty() || std::ranges::find(commands, given.front()) != commands.end())
      given.push_back("--help");
  }
  std::ranges::reverse(given);
  try {
    app.parse(given);
  } catch (const CLI::Success& e) {  // --help, --version
    return answer(app, e);
  } catch (const CLI::ParseError& e) {
    return refuse(app, e, std::find(argv, argv + argc, std::string_view("--json")) != argv + argc);
  }
  return exit;
}
