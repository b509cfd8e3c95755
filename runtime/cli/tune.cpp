// tune: measures every implementation of every launch that has several, and writes down the fastest
// ones.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <thread>

#include "engine/base/join.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/tensors.h"
#include "runtime/tuning.h"

namespace ferrule::cli {
namespace {

// Below this the usual implementation stays: noise is no reason to change.
constexpr double kWorthIt = 0.97;

struct Choice {
  Measured measured;
  std::string layer, use;
  double us(const std::string& name) const {
    for (const auto& [n, t] : measured.microseconds)
      if (n == name) return t;
    return 0;
  }
};

Choice choice_of(const Measured& m, const Plan& plan) {
  Choice c{m, plan.layers[m.layer].name, m.usual};
  const double usual = c.us(m.usual);
  auto best = std::min_element(m.microseconds.begin(), m.microseconds.end(),
                               [](auto& a, auto& b) { return a.second < b.second; });
  if (best->second < usual * kWorthIt) c.use = best->first;
  return c;
}

/// One entry a problem: the same problem several times counts with its fastest times.
std::vector<Measured> merge(std::vector<Measured> rows) {
  std::map<std::string, size_t> seen;
  std::vector<Measured> out;
  for (Measured& m : rows) {
    auto [it, fresh] = seen.emplace(m.problem, out.size());
    if (fresh) {
      out.push_back(std::move(m));
      continue;
    }
    auto& times = out[it->second].microseconds;
    for (size_t k = 0; k < times.size() && k < m.microseconds.size(); ++k)
      times[k].second = std::min(times[k].second, m.microseconds[k].second);
  }
  return out;
}

void print_table(const std::vector<Choice>& choices) {
  double usual = 0, tuned = 0;
  std::cout << fmt::format("{:<12} {:<12} {:<44} layer\n", "chosen", "usual", "us");
  for (const Choice& c : choices) {
    std::string times;
    for (const auto& [name, us] : c.measured.microseconds)
      times += fmt::format("{}{} {:.1f}", times.empty() ? "" : "  ", name, us);
    std::cout << fmt::format("{:<12} {:<12} {:<44} {}\n", c.use,
                             c.use == c.measured.usual ? "=" : c.measured.usual, times,
                             escape(c.layer, 100));
    usual += c.us(c.measured.usual);
    tuned += c.us(c.use);
  }
  std::cout << fmt::format("{}: {:.1f} us by the built-in rules, {:.1f} us as chosen\n",
                           counted(choices.size(), "problem"), usual, tuned);
}

nlohmann::json json_of(const std::vector<Choice>& choices) {
  nlohmann::json all = nlohmann::json::array();
  for (const Choice& c : choices) {
    nlohmann::json times = nlohmann::json::object();
    for (const auto& [name, us] : c.measured.microseconds) times[name] = us;
    all.push_back({{"layer", escape(c.layer, 4096)},
                   {"problem", c.measured.problem},
                   {"chosen", c.use},
                   {"usual", c.measured.usual},
                   {"us", times}});
  }
  return {{"schema_version", kSchemaVersion}, {"launches", all}};
}

Status write(const Tuning& t, const std::string& path, bool force) {
  const int fd =
      open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | (force ? O_TRUNC : O_EXCL), 0644);
  if (fd < 0 && errno == EEXIST) return error(Code::file_exists, "tune", escape(path));
  const std::string text = to_text(t);
  const bool written =
      fd >= 0 && ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  if (const int problem = errno; (fd >= 0 && close(fd) != 0) || !written)
    return error(Code::file_not_written, "tune", escape(path), std::strerror(problem));
  return {};
}

Result<Exit> body(const Common& common, const InputOptions& input, const std::string& out,
                  double seconds) {
  FERRULE_TRY(free_place("tune", out, common.force));
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  options.all_candidates = true;
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  std::vector<std::string> notes = session.notes();
  FERRULE_ASSIGN(Tensors inputs, gather_inputs(session.inputs(), input, options.engine.shapes,
                                               notes, accepted_by(session)));
  Shapes shapes;
  for (const auto& [n, t] : inputs) shapes[n] = t.dims();
  for (const std::string& n : notes) talk("note: " + n);
  FERRULE_ASSIGN(Compiled * p, session.compile(shapes));
  FERRULE_ASSIGN(auto ordered, session.arrange(inputs));
  FERRULE_ASSIGN(auto results, p->run(ordered));
  std::vector<const void*> in;
  std::vector<void*> to;
  for (const Tensor& t : ordered) in.push_back(t.data());
  for (const Tensor& t : results) to.push_back(const_cast<void*>(t.data()));
  std::vector<Measured> measured;
  {
    const Progress progress(fmt::format("measuring, about {:g} s", seconds));
    FERRULE_ASSIGN(measured, p->executable().measure(in, to, seconds));
  }
  std::vector<Choice> choices;
  for (const Measured& m : merge(std::move(measured))) choices.push_back(choice_of(m, p->plan()));
  if (common.json)
    print_json(json_of(choices));
  else
    print_table(choices);
  if (out.empty()) return Exit::ok;
  const int threads =
      common.threads ? common.threads : static_cast<int>(std::thread::hardware_concurrency());
  Tuning t{session.machine(), session.knowledge().target.name, threads, {}};
  for (const Choice& c : choices) {
    Tuning::Entry e{c.use, {}};
    for (const auto& [name, us] : c.measured.microseconds) e.microseconds[name] = us;
    t.problems.emplace(c.measured.problem, std::move(e));
  }
  FERRULE_TRY(write(t, out, common.force));
  return Exit::ok;
}

}  // namespace

void add_tune(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand(
      "tune", "measure the implementations of every launch; write the fastest into a tuning file");
  add_common(*c, common, true);
  auto input = std::make_shared<InputOptions>();
  auto seconds = std::make_shared<double>(5.0);
  auto out = std::make_shared<std::string>();
  add_inputs(*c, *input);
  c->add_option("-o,--output", *out,
                "the tuning file to write, for --tuning; without it only the table is printed");
  c->add_option("--seconds", *seconds, "how long to measure")->check(CLI::Range(0.01, 3600.0));
  c->footer(
      "Examples:\n  ferrule tune model.onnx --shapes x:1x3x192x256 --json\n  ferrule tune "
      "model.onnx -o tuning.yaml --threads 2\n  ferrule run model.onnx "
      "--tuning tuning.yaml --threads 2 --seed 1");
  set_body(*c, common, exit, [=](const Common& o) { return body(o, *input, *out, *seconds); });
}

}  // namespace ferrule::cli
