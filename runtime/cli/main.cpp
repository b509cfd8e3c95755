// ferrule: the program. Every command is a file of its own beside this one.
#include <cstdio>

#include "runtime/cli/cli.h"

int main(int argc, char** argv) {
  using namespace ferrule::cli;
  CLI::App app{"ferrule: fuses the layers of ONNX models by rules that are YAML files, and runs them.", "ferrule"};
  app.set_version_flag("--version", "ferrule " FERRULE_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  Common common;
  int exit = 0;
  add_explain(app, common, exit);
  add_run(app, common, exit);
  add_bench(app, common, exit);
  add_verify(app, common, exit);
  add_compile(app, common, exit);
  add_rules(app, common, exit);
  add_doctor(app, common, exit);
  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    return app.exit(e);
  } catch (const CLI::CallForVersion& e) {
    return app.exit(e);
  } catch (const CLI::CallForAllHelp& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    app.exit(e);
    return static_cast<int>(ferrule::Exit::usage);
  }
  return exit;
}
