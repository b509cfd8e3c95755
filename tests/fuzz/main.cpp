// fuzz KIND --rules DIR [options]: random graphs of a kind, each judged in a configuration that its
// seed draws, too. fuzz model FILE --inputs NPZ [configuration]: one that is there; ends with 0
// where it fails (what `ferrule reduce` asks).
#include <CLI/CLI.hpp>
#include <cstdio>
#include <fstream>
#include <sstream>

#include "engine/graph/npz.h"
#include "runtime/registry.h"
#include "tests/fuzz/graphs.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/known.h"
#include "tests/fuzz/tails.h"
#include "tests/fuzz/workers.h"

namespace ferrule::fuzz {
namespace {

struct Options {
  std::string kind, keep, model, inputs;
  std::vector<std::string> models;
  JudgeOptions judge;
  std::string backend, target;
  std::optional<uint64_t> seed, count;
  double seconds = 0;
  int workers = 2, threads = 0, shown = 20;
  std::optional<bool> strict;
  bool fast_math = false, functions = false, verbose = false;
};
const std::map<std::string, uint64_t> kOrdinarily{
    {"tails", 1000}, {"graphs", 300}, {"known", 300}, {"model", 1}};

/// A graph and how it is run, from its seed and what the command line fixes.
struct Drawn {
  Case graph;
  Configuration configuration;
  std::map<std::string, int> refused;
};

class Fuzz {
 public:
  Fuzz(const Options& options, Judge judge) : o_(options), judge_(std::move(judge)) {
    if (o_.kind == "known") known_ = known_models(judge_.knowledge().rules, o_.models);
  }

  Drawn draw(uint64_t seed) const {
    Draw from(seed);
    Drawn d;
    d.configuration = judge_.draw(from);
    Configuration& c = d.configuration;
    const std::string backend = o_.judge.program.empty() ? o_.backend : "cpu";
    if (!backend.empty() && backend != c.backend) {
      if ((backend == "cuda") != (c.backend == "cuda"))
        c.target = backend == "cuda" ? "sm_90" : "cpu-avx2";
      c.backend = backend;
    }
    if (!o_.target.empty()) c.target = o_.target;
    if (o_.threads) c.threads = o_.threads;
    if (o_.strict) c.strict = *o_.strict;
    if (o_.fast_math) c.fast_math = true;
    if (o_.functions) c.functions = true;
    if (c.backend != "export") c.functions = false;
    if (!o_.judge.program.empty()) c.fast_math = false;  // an option that not every build has
    if (o_.kind == "tails")
      d.graph = draw_tail(from, judge_.language(), d.refused);
    else if (o_.kind == "known")
      d.graph = draw_known(from, judge_.language(), known_, d.refused);
    else
      d.graph = draw_graph(from, judge_.language(), d.refused);
    return d;
  }

  /// What a child says of a graph: lines that begin with a letter for what they are (see Report),
  /// apart.
  static constexpr char kApart = '\x1e';
  std::string one(uint64_t seed) const {
    const Drawn d = draw(seed);
    const Verdict v = judge_.judge(d.graph, d.configuration);
    const bool failed = v.kind == Verdict::failed;
    std::string text = fmt::format("{}", "pfs"[v.kind]);
    if (v.kind != Verdict::skipped)
      text += fmt::format("seed {}, {}: ", seed, d.configuration.text());
    text += v.text;
    if (failed || o_.verbose)
      text += "\n" + d.graph.text + judge_.explain(d.graph, d.configuration);
    text += kApart + ("b" + d.configuration.backend +
                      (d.configuration.fast_math ? ", --fast-math"
                       : d.configuration.strict  ? ", --strict"
                                                 : ""));
    for (const std::string& w : v.warnings) text += kApart + ("w" + w);
    for (const auto& [why, n] : d.refused) text += kApart + ("r" + why);
    if (!v.aside.empty()) text += kApart + ("x" + v.aside);
    if (v.says_nothing) text += kApart + std::string("n");
    if (v.arbitrated) text += kApart + std::string("a");
    return text;
  }

  const Judge& judge() const { return judge_; }

 private:
  const Options& o_;
  Judge judge_;
  std::vector<Known> known_;
};

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void take(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(Fuzz::kApart, at), text.size());
      const std::string what = text.substr(at + 1, end - at - 1);
      switch (text[at]) {
        case 'p':
          ++passed_;
          if (options_.verbose) std::printf("%s\n", what.c_str());
          break;
        case 's':
          ++skipped_;
          ++skips_[what];
          break;
        case 'f':
          fail(what);
          break;
        case 'b':
          ++ran_[what];
          break;
        case 'w':
          ++warnings_[what.substr(what.find(": ") + 2)];
          break;
        case 'x':
          ++asides_[what];
          break;
        case 'r':
          ++refused_[what];
          break;
        case 'n':
          ++nothing_;
          break;
        case 'a':
          ++arbitrated_;
          break;
      }
      at = end + 1;
    }
  }
  void fail(const std::string& text) {
    ++failed_;
    std::printf("FAILED %s\n",
                (failed_ <= options_.shown ? text : text.substr(0, text.find('\n'))).c_str());
    std::fflush(stdout);
  }
  int finish() const {
    std::printf("%d graphs; f64 settled %d; %d results could not have told right from wrong\n",
                passed_ + failed_ + skipped_, arbitrated_, nothing_);
    list("ran", ran_, 20);
    list("skipped", skips_, 20);
    list("not asked, or not comparable", asides_, 10);
    list("warnings", warnings_, 10);
    if (options_.verbose) list("drawn and not valid", refused_, 60);
    std::printf("%d passed, %d failed", passed_, failed_);
    if (skipped_) std::printf(", %d skipped", skipped_);
    std::printf("\n");
    return failed_ || !passed_ ? 1 : 0;
  }

 private:
  using Counts = std::map<std::string, int>;
  static void list(const char* what, const Counts& counts, size_t most) {
    std::vector<std::pair<int, std::string>> sorted;
    for (const auto& [text, n] : counts) sorted.emplace_back(n, text);
    std::sort(sorted.rbegin(), sorted.rend());
    if (!sorted.empty()) std::printf("%s:\n", what);
    for (size_t k = 0; k < std::min(most, sorted.size()); ++k)
      std::printf("  %5d x %s\n", sorted[k].first, sorted[k].second.c_str());
  }

  const Options& options_;
  int passed_ = 0, failed_ = 0, skipped_ = 0, nothing_ = 0, arbitrated_ = 0;
  Counts ran_, skips_, asides_, warnings_, refused_;
};

/// Status 0 while it fails.
int run_model(const Options& o, const Judge& judge) {
  std::ifstream file(o.model, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  auto inputs = o.inputs.empty() ? Result<Named>(Named{}) : read_npz(o.inputs);
  if (!file || !inputs) {
    std::printf("cannot read %s, or its inputs\n", o.model.c_str());
    return 2;
  }
  const Case c{"", bytes.str(), *inputs};
  const Configuration configuration{o.backend.empty() ? "cpu" : o.backend,
                                    o.target,
                                    std::max(1, o.threads),
                                    o.strict.value_or(false),
                                    o.fast_math,
                                    o.functions};
  const Verdict v = judge.judge(c, configuration);
  std::printf("%s %s\n",
              v.kind == Verdict::failed    ? "FAILED"
              : v.kind == Verdict::skipped ? "skipped"
                                           : "passed",
              v.text.c_str());
  return v.kind == Verdict::failed ? 0 : 1;
}

int keep(const Options& o, const Fuzz& fuzz, const Work& work) {
  for (uint64_t n = work.first; n < work.first + work.count; ++n) {
    const Drawn d = fuzz.draw(n);
    if (auto status = fuzz.judge().keep(d.graph, fmt::format("{}/{}", o.keep, n)); !status)
      std::printf("%s\n", render(status.error()).c_str());
    else
      std::printf("%s\n", d.configuration.text().c_str());
  }
  return 0;
}

int run(Options o) {
  o.judge.scratch = std::make_shared<ScratchFolder>();
  auto judge = Judge::load(o.judge);
  if (!judge) {
    std::printf("%s\n0 passed, 1 failed\n", render(judge.error()).c_str());
    return 1;
  }
  if (o.kind == "model") return run_model(o, *judge);
  const Fuzz fuzz(o, std::move(*judge));
  Work work;
  work.first = o.seed.value_or(1);
  work.count = o.count.value_or(o.seconds > 0 ? UINT64_MAX / 2
                                : o.seed      ? 1
                                              : kOrdinarily.at(o.kind));
  work.seconds = o.seconds;
  work.workers = o.workers;
  if (!o.keep.empty()) return keep(o, fuzz, work);
  (void)find_backend("cpu");  // opened once, for all children
  Report report(o);
  in_children(
      work, [&](uint64_t n) { return fuzz.one(n); },
      [&](uint64_t, const std::string& text) { report.take(text); },
      [&](uint64_t n, const std::string& how) {
        const Drawn d = fuzz.draw(n);
        report.fail(
            fmt::format("seed {}, {}: {}\n{}", n, d.configuration.text(), how, d.graph.text));
      });
  return report.finish();
}

}  // namespace
}  // namespace ferrule::fuzz

int main(int argc, char** argv) {
  ferrule::fuzz::Options o;
  CLI::App app{"Random graphs, fused, against the interpreter"};
  app.add_option("KIND", o.kind,
                 "tails: a convolution, product, pool or norm with one to three steps behind it; "
                 "graphs: 3 to 40 nodes of all kinds; "
                 "known: the cases of the rules, and models, with small changes; model: one file")
      ->required()
      ->check(CLI::IsMember({"tails", "graphs", "known", "model"}));
  app.add_option("FILE", o.model, "model: the file");
  app.add_option("--inputs", o.inputs, "model: its inputs (.npz)");
  app.add_option("--models", o.models, "known: folders with small .onnx files, besides the cases");
  app.add_option("--rules", o.judge.rules, "the rules folder")->required();
  app.add_flag("--allow-unproven", o.judge.allow_unproven,
               "rewrites without a stamp run; else they are proved first");
  app.add_option("--python", o.judge.python, "a Python with ONNX Runtime, for what is exported");
  app.add_option("--program", o.judge.program,
                 "another build's ferrule, which is to run the plans");
  app.add_option("--seed", o.seed, "the first graph's seed; alone: only that graph");
  app.add_option("--count", o.count, "how many graphs (1000 tails, 300 of the others)");
  app.add_option("--seconds", o.seconds, "as many graphs as are begun in that time");
  app.add_option("--workers", o.workers, "processes")->check(CLI::Range(1, 64));
  app.add_option("--backend", o.backend,
                 "instead of what the seed draws: cpu, cuda (the stubs), export")
      ->check(CLI::IsMember({"cpu", "cuda", "export"}));
  app.add_option("--target", o.target, "the same: cpu-avx2, cpu-avx512, sm_90 (cuda)");
  app.add_option("--threads", o.threads, "the same");
  app.add_flag("--strict,!--lax", o.strict, "the same");
  app.add_flag("--fast-math", o.fast_math, "the same");
  app.add_flag("--functions", o.functions, "the same: exported groups are functions");
  app.add_option("--shown", o.shown, "failures that are printed with their graphs");
  app.add_option("--keep", o.keep,
                 "runs nothing, writes the models and their inputs into this folder, and prints "
                 "how they are run");
  app.add_flag("--verbose", o.verbose, "prints every graph, and what was drawn and is not valid");
  CLI11_PARSE(app, argc, argv);
  return ferrule::fuzz::run(o);
}
