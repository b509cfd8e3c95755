// fuzz KIND --rules DIR [options]: random graphs of a kind, each judged in a configuration that its seed draws, too.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "runtime/registry.h"
#include "tests/fuzz/judge.h"
#include "tests/fuzz/tails.h"
#include "tests/fuzz/workers.h"

namespace ferrule::fuzz {
namespace {

using Kind = Case (*)(Draw&, const ImportOptions&, std::map<std::string, int>& refused);
const std::map<std::string, Kind> kKinds{{"tails", draw_tail}};

struct Options {
  std::string kind, rules, keep, target;
  std::optional<uint64_t> seed, count;
  double seconds = 0;
  int workers = 2, threads = 0, shown = 20;
  std::optional<bool> strict;
  bool verbose = false;
};

/// A graph and how it is run, from its seed and what the command line fixes.
struct Drawn {
  Case graph;
  Configuration configuration;
  std::map<std::string, int> refused;
};
Drawn draw(const Options& o, const Judge& judge, uint64_t seed) {
  Draw from(seed);
  Drawn d;
  d.configuration = judge.draw(from);
  if (!o.target.empty()) d.configuration.target = o.target;
  if (o.threads) d.configuration.threads = o.threads;
  if (o.strict) d.configuration.strict = *o.strict;
  d.graph = kKinds.at(o.kind)(from, judge.import(), d.refused);
  return d;
}

/// What a child says of a graph: lines that begin with a letter for what they are (see Report), apart.
constexpr char kApart = '\x1e';
std::string one(const Options& o, const Judge& judge, uint64_t seed) {
  const Drawn d = draw(o, judge, seed);
  const Verdict v = judge.judge(d.graph, d.configuration);
  const bool failed = v.kind == Verdict::failed;
  std::string text = fmt::format("{}seed {}, {}: {}\n", "pfs"[v.kind], seed, d.configuration.text(), v.text);
  if (failed || o.verbose) text += d.graph.text + judge.explain(d.graph, d.configuration);
  for (const std::string& w : v.warnings) text += kApart + ("w" + w);
  for (const auto& [why, n] : d.refused) text += kApart + ("r" + why);
  if (v.says_nothing) text += kApart + std::string("n");
  if (v.arbitrated) text += kApart + std::string("a");
  return text;
}

class Report {
 public:
  explicit Report(const Options& options) : options_(options) {}

  void take(const std::string& text) {
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find(kApart, at), text.size());
      const std::string what = text.substr(at + 1, end - at - 1);
      switch (text[at]) {
        case 'p': ++passed_; if (options_.verbose) std::printf("%s\n", what.c_str()); break;
        case 's': ++skipped_; std::printf("skipped, %s", what.c_str()); break;
        case 'f': fail(what); break;
        case 'w': ++warnings_[what]; break;
        case 'r': ++refused_[what]; break;
        case 'n': ++nothing_; break;
        case 'a': ++arbitrated_; break;
      }
      at = end + 1;
    }
  }
  void fail(const std::string& text) {
    ++failed_;
    std::printf("FAILED %s\n", (failed_ <= options_.shown ? text : text.substr(0, text.find('\n'))).c_str());
    std::fflush(stdout);
  }
  int finish() const {
    std::printf("%d graphs; f64 settled %d; %d results could not have told right from wrong\n", passed_ + failed_ + skipped_, arbitrated_, nothing_);
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
    for (size_t k = 0; k < std::min(most, sorted.size()); ++k) std::printf("  %5d x %s\n", sorted[k].first, sorted[k].second.c_str());
  }

  const Options& options_;
  int passed_ = 0, failed_ = 0, skipped_ = 0, nothing_ = 0, arbitrated_ = 0;
  Counts warnings_, refused_;
};

int run(const Options& o) {
  auto judge = Judge::load(o.rules);
  if (!judge) {
    std::printf("%s\n0 passed, 1 failed\n", render(judge.error()).c_str());
    return 1;
  }
  Work work;
  work.first = o.seed.value_or(1);
  work.count = o.count.value_or(o.seconds > 0 ? UINT64_MAX / 2 : o.seed ? 1 : 1000);
  work.seconds = o.seconds;
  work.workers = o.workers;
  if (!o.keep.empty()) {
    for (uint64_t n = work.first; n < work.first + work.count; ++n) {
      const Drawn d = draw(o, *judge, n);
      if (auto status = judge->keep(d.graph, fmt::format("{}/{}", o.keep, n)); !status) std::printf("%s\n", render(status.error()).c_str());
    }
    return 0;
  }
  (void)find_backend("cpu");  // opened once, for all children
  Report report(o);
  in_children(work, [&](uint64_t n) { return one(o, *judge, n); }, [&](uint64_t, const std::string& text) { report.take(text); },
              [&](uint64_t n, const std::string& how) {
                const Drawn d = draw(o, *judge, n);
                report.fail(fmt::format("seed {}, {}: {}\n{}", n, d.configuration.text(), how, d.graph.text));
              });
  return report.finish();
}

}  // namespace
}  // namespace ferrule::fuzz

int main(int argc, char** argv) {
  ferrule::fuzz::Options o;
  CLI::App app{"Random graphs, fused on the CPU against the interpreter"};
  app.add_option("KIND", o.kind, "tails: a convolution, product, pool or norm with one to three steps behind it")
      ->required()->check(CLI::IsMember({"tails"}));
  app.add_option("--rules", o.rules, "the rules folder")->required();
  app.add_option("--seed", o.seed, "the first graph's seed; alone: only that graph");
  app.add_option("--count", o.count, "how many graphs (1000)");
  app.add_option("--seconds", o.seconds, "as many graphs as are begun in that time");
  app.add_option("--workers", o.workers, "processes")->check(CLI::Range(1, 64));
  app.add_option("--target", o.target, "instead of what the seed draws: cpu-avx2, cpu-avx512");
  app.add_option("--threads", o.threads, "the same");
  app.add_option("--strict", o.strict, "the same: true, false");
  app.add_option("--shown", o.shown, "failures that are printed with their graphs");
  app.add_option("--keep", o.keep, "runs nothing, writes the models and their inputs into this folder");
  app.add_flag("--verbose", o.verbose, "prints every graph, and what was drawn and is not valid");
  CLI11_PARSE(app, argc, argv);
  return ferrule::fuzz::run(o);
}
