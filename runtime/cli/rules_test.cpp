// rules test, rules coverage: the tests inside rules, proofs of rewrites, and of groups (what the
// backend computes for a fired group against its body in the interpreter).
#include <fnmatch.h>

#include <atomic>
#include <functional>
#include <iostream>
#include <numeric>
#include <thread>

#include "engine/base/join.h"
#include "engine/proof/agree.h"
#include "engine/proof/cpu_clock.h"
#include "engine/proof/stamp.h"
#include "engine/rule/contract.h"
#include "engine/rule/provable.h"
#include "runtime/cli/cli.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/snapshots.h"
#include "runtime/group_proof.h"

namespace ferrule::cli {
namespace {

using nlohmann::json;

/// Distinct instances that a shipped rewrite is proved by, unless there are no more.
constexpr int kInstances = 200;
/// Of computing, for one shipped rule; where rewrites come up by turns; for one of the user's, as
/// when it is loaded.
constexpr double kSeconds = 10, kFullSeconds = 40, kRotatingSeconds = 3, kUsersSeconds = 5;
/// Of that, for the proof of a rule that is run, too.
constexpr double kProving = 0.6;
/// Graphs beside its cases that a group is run on, on each target: when it is asked for, and each
/// time.
constexpr int kGroupGraphs = 60, kFewGroupGraphs = 6;

struct Tested {
  const Rule* rule = nullptr;
  RuleTestReport tests;
  bool shipped =
      false;  ///< it lies in the first folder; else it is a user's, in one that adds to it
  bool proved = false;  ///< now; else its stamp vouches for it
  RewriteProof rewrite;
  double left = 0;  ///< of its time, for running it
  GroupProof group;
  std::vector<std::string> snapshot;  ///< what differs from it
  /// How many instances the time allows depends on the machine: said, and no failure.
  bool few() const { return proved && rewrite.instances < kInstances && !rewrite.exhausted; }
  bool undecided() const { return proved && (!rewrite.in_time || rewrite.compared == 0); }
  /// A group that nothing here runs is not shown to be right.
  bool not_run() const {
    return rule->kind != RuleKind::rewrite && group.instances == 0 && group.holds() &&
           rewrite.wrong.empty() && tests.passed() && !open();
  }
  /// A condition that nothing needs is a mistake of a shipped rule; a user's is right as it stands,
  /// and loading warns.
  bool open() const { return shipped && rewrite.wrong.empty() && !rewrite.holds(); }
  /// No graph shows a rewrite firing: loading refuses it, too.
  bool not_shown() const { return proved && rewrite.compared == 0; }
  /// A rewrite of the user's without a case is refused by loading, however right it is.
  bool no_case() const {
    return !shipped && provable(*rule) &&
           std::ranges::none_of(rule->tests, [](const RuleTest& c) { return c.fires; });
  }
  bool right() const {
    return tests.passed() && rewrite.wrong.empty() && !open() && group.holds() && !not_shown() &&
           !no_case() && snapshot.empty();
  }
  bool ok() const { return right() && !not_run(); }
};

struct Totals {
  int fires = 0, holds = 0, failed = 0, killed = 0, implied = 0, open = 0, uncovered = 0;
  int rewrites = 0, proved = 0, graphs = 0, compared = 0, instances = 0, exhausted = 0, few = 0;
  std::vector<std::string> undecided;
  int groups = 0, group_graphs = 0, refused = 0, computed = 0;
};

bool selected(const Rule& r, const std::vector<std::string>& globs) {
  if (globs.empty()) return true;
  for (const std::string& g : globs)
    if (fnmatch(g.c_str(), r.id.c_str(), 0) == 0) return true;
  return false;
}

/// Which rewrites are proved again: those without a stamp, and every tenth of the others. Which
/// tenth follows from the rules and the engine: another one whenever they change, the same where
/// nothing has changed.
class Chosen {
 public:
  Chosen(const ProofContext& context, bool all)
      : ops_(*context.ops),
        stamps_(read_stamps(context.rule_dirs)),
        all_(all),
        turn_(place(
            std::accumulate(stamps_.begin(), stamps_.end(), std::string(engine_semantics())))) {}
  bool operator()(const Rule& r) const {
    return provable(r) && (all_ || !stamped(r, ops_, stamps_) || place(r.id) % 10 == turn_ % 10);
  }

 private:
  static size_t place(std::string_view text) {
    return std::accumulate(text.begin(), text.end(), size_t{0},
                           [](size_t n, char c) { return n * 31 + static_cast<unsigned char>(c); });
  }
  const Semantics& ops_;
  std::set<std::string> stamps_;
  bool all_;
  size_t turn_;
};

/// Cases and proofs of rewrites, on all cores; groups run on the backend, which has threads of its
/// own, one after the other.
std::vector<Tested> test_rules(const std::vector<const Rule*>& rules, GroupProver& groups,
                               const ProofContext& context, const Chosen& chosen,
                               const std::function<double(const Tested&)>& seconds) {
  std::vector<Tested> all(rules.size());
  std::atomic<size_t> next{0}, done{0};
  Progress progress("testing " + counted(rules.size(), "rule"));
  const auto part = [&] {
    return static_cast<double>(done) / static_cast<double>(2 * rules.size());
  };
  auto work = [&] {
    for (size_t i; (i = next++) < rules.size();) {
      Tested& t = all[i];
      t.rule = rules[i];
      t.shipped = t.rule->pack == context.rule_dirs.front();
      const double end = thread_seconds() + seconds(t);
      t.tests = run_rule_tests(*t.rule, context);
      ProofContext own = context;
      own.seconds = (end - thread_seconds()) * (t.rule->kind == RuleKind::rewrite ? 1 : kProving);
      if ((t.proved = chosen(*t.rule))) t.rewrite = prove_rewrite(*t.rule, own);
      t.left = end - thread_seconds();
      ++done;
      progress.advance(part());
    }
  };
  std::vector<std::thread> helpers;
  for (unsigned n = 1; n < std::thread::hardware_concurrency(); ++n) helpers.emplace_back(work);
  work();
  for (std::thread& t : helpers) t.join();
  for (Tested& t : all) {
    ProofContext own = context;
    own.seconds = t.left;
    // What the nodes do not compute is nothing to ask a kernel for, which may even write elsewhere.
    if (t.rewrite.wrong.empty()) t.group = groups.prove(*t.rule, own);
    ++done;
    progress.advance(part());
  }
  return all;
}

/// Conditions that no case saw both ways. A profit or kernel condition may be undecidable here, so
/// `no` and `yes` are asked of every one, `unknown` of none.
std::vector<std::string> uncovered(const Tested& t) {
  std::vector<std::string> missing;
  for (const ConditionCount& c : t.tests.coverage.conditions) {
    if (!c.yes) missing.push_back(c.id + " never true");
    if (!c.no) missing.push_back(c.id + " never false");
  }
  for (const auto& [tag, hits] : t.tests.coverage.tags)
    if (!hits) missing.push_back("alternative " + tag + " never taken");
  return missing;
}

/// Each reason why graphs were not run, with the targets that it keeps away.
void print_absent(const std::vector<Tested>& all) {
  std::map<std::string, std::set<std::string>> targets;
  for (const Tested& t : all)
    for (const std::string& text : t.group.not_run) {
      const size_t colon = text.find(": ");
      targets[text.substr(colon + 2)].insert(text.substr(0, colon));
    }
  for (const auto& [why, of] : targets)
    std::cout << fmt::format("not run for {}: {}\n", fmt::join(of, ", "), why);
}

/// "" or what the time cut short, and how to go on.
std::string late(const Tested& t) {
  std::string text;
  if (t.undecided()) text = fmt::format("{} graphs were compared", t.rewrite.compared);
  if (!t.group.in_time)
    text += fmt::format("{}{} were run", text.empty() ? "" : ", ", t.group.instances);
  return text.empty() ? ""
                      : fmt::format("not decided in its time, {} (--seconds takes longer)", text);
}

void count(Totals& totals, const Tested& t) {
  for (const RuleTest& c : t.rule->tests) ++(c.fires ? totals.fires : totals.holds);
  for (const CaseResult& c : t.tests.cases) totals.failed += !c.passed;
  totals.failed += static_cast<int>(t.rewrite.wrong.size() + t.group.wrong.size());
  totals.rewrites += provable(*t.rule);
  const int by_kernels = t.group.instances - t.group.interpreted;
  totals.groups += by_kernels > 0, totals.group_graphs += by_kernels;
  for (const KernelCondition& c : t.group.conditions)
    totals.refused += c.refused, totals.computed += c.computed;
  totals.proved += t.proved;
  totals.graphs += t.rewrite.graphs, totals.compared += t.rewrite.compared,
      totals.instances += t.rewrite.instances;
  totals.exhausted += t.rewrite.exhausted, totals.few += t.few();
  if (!late(t).empty() && t.tests.passed()) totals.undecided.push_back(t.rule->id);
  for (const ConditionProof& c : t.rewrite.conditions) {
    totals.killed += c.state == ConditionProof::State::killed;
    totals.implied += c.state == ConditionProof::State::implied;
    totals.open += c.state == ConditionProof::State::open;
  }
}

void print_problems(const Tested& t) {
  for (const CaseResult& c : t.tests.cases)
    if (!c.passed)
      std::cout << fmt::format("FAILED {} {}: {} ({}:{})\n", t.rule->id, c.name, c.text,
                               c.place.file, c.place.line);
  for (const std::string& text : t.snapshot)
    std::cout << fmt::format("FAILED {}: {}\n", t.rule->id, text);
  constexpr size_t kShown = 3;
  for (size_t k = 0; k < std::min(kShown, t.rewrite.wrong.size()); ++k)
    std::cout << fmt::format("WRONG  {}: {}\n", t.rule->id, t.rewrite.wrong[k]);
  if (t.rewrite.wrong.size() > kShown)
    std::cout << fmt::format("WRONG  {}: and {} graphs more\n", t.rule->id,
                             t.rewrite.wrong.size() - kShown);
  if (t.rewrite.needed != Numerics::none && t.rewrite.needed > numerics_of(*t.rule))
    std::cout << fmt::format("WRONG  {}: numerics: {} is too strong, {} holds\n", t.rule->id,
                             t.rule->numerics, name(t.rewrite.needed));
  if (!t.rewrite.example.empty()) std::cout << t.rewrite.example;
  // Of a rule whose own cases fail, time and numbers say nothing.
  const bool proper =
      std::ranges::all_of(t.tests.cases, [](const CaseResult& c) { return c.passed; });
  if (const std::string why = late(t); proper && !why.empty())
    std::cout << fmt::format("LATE   {}: {}\n", t.rule->id, why);
  if (t.no_case())
    std::cout << fmt::format(
        "WRONG  {}: no case shows it firing: it needs tests: {{fires: …}}, else loading refuses "
        "it\n",
        t.rule->id);
  if (proper && t.few())
    std::cout << fmt::format("FEW    {}: {} distinct instances in the time it has\n", t.rule->id,
                             t.rewrite.instances);
  for (const std::string& w : t.group.wrong)
    std::cout << fmt::format("WRONG  {}: {}\n", t.rule->id, w);
  if (t.not_run())
    std::cout << fmt::format("skipped {}: no graph was run, {}\n", t.rule->id,
                             t.group.not_run.empty() ? "none of its cases is for this backend"
                                                     : "its targets are not there");
  if (t.group.instances && t.group.interpreted == t.group.instances)
    std::cout << fmt::format(
        "note: {}: no kernel of {} was run, there is none here: the interpreter ran its {} "
        "graphs\n",
        t.rule->id, t.rule->contract, t.group.instances);
  for (const ConditionProof& c : t.rewrite.conditions) {
    if (c.state == ConditionProof::State::open)
      std::cout << fmt::format(
          "{} {} {}: {}\n",
          t.shipped ? "OPEN  " : "note: nothing shows that it is needed:", t.rule->id, c.id, c.how);
    if (c.state == ConditionProof::State::implied)
      std::cout << fmt::format("note: {} {} never decides, remove it: {}\n", t.rule->id, c.id,
                               c.how);
  }
}

void print_totals(const Totals& t, int rules) {
  // What there is none of is not said.
  auto some = [](int n, std::string_view what) {
    return n ? fmt::format("; {}: {}", what, n) : std::string();
  };
  std::cout << fmt::format(
      "{}, {} where {}, {} where {} must not{}{}{}{}\n", counted(rules, "rule"),
      counted(t.fires, "case"), rules == 1 ? "it fires" : "they fire", t.holds,
      rules == 1 ? "it" : "they", some(t.killed, "conditions shown to be needed"),
      some(t.implied, "conditions that never decide"),
      some(t.open, "conditions that nothing shows to be needed"),
      some(t.uncovered, "what no case reaches"));
  if (t.rewrites)
    std::cout << fmt::format(
        "proofs: {} of {} now, {} by their stamps; {}, {} compared, {} of them "
        "distinct{}{}{}{}\n",
        t.proved, counted(t.rewrites, "rule"), t.rewrites - t.proved, counted(t.graphs, "graph"),
        t.compared, t.instances, some(t.exhausted, "rules with no more graphs to draw"),
        some(t.few, "rules with few distinct graphs"),
        some(static_cast<int>(t.undecided.size()), "rules not decided in their time"),
        t.undecided.empty()
            ? ""
            : fmt::format(", {} (--seconds takes longer)", fmt::join(t.undecided, ", ")));
  if (t.groups)
    std::cout << fmt::format(
        "kernels: {} run on {}{}\n", counted(t.groups, "group"), counted(t.group_graphs, "graph"),
        t.refused + t.computed
            ? fmt::format("; without a condition of class kernel, the contract refused {} more and "
                          "{} were computed rightly",
                          t.refused, t.computed)
            : "");
}

json row_of(const Tested& t) {
  json left_out = json::array();
  for (const KernelCondition& c : t.group.conditions)
    left_out.push_back({{"id", c.id}, {"refused", c.refused}, {"computed", c.computed}});
  json conditions = json::array(), proofs = json::array(), cases = json::array();
  for (const ConditionCount& c : t.tests.coverage.conditions)
    conditions.push_back({{"id", c.id},
                          {"class", name(c.cls)},
                          {"true", c.yes},
                          {"false", c.no},
                          {"unknown", c.unknown}});
  for (const ConditionProof& c : t.rewrite.conditions)
    proofs.push_back({{"id", c.id}, {"state", name(c.state)}, {"how", c.how}});
  for (const CaseResult& c : t.tests.cases)
    cases.push_back({{"name", c.name}, {"passed", c.passed}, {"text", c.text}});
  return {{"rule", t.rule->id},
          {"ok", t.ok()},
          {"cases", cases},
          {"snapshot", t.snapshot},
          {"hits", t.tests.coverage.hits},
          {"conditions", conditions},
          {"alternatives", t.tests.coverage.tags},
          {"optional", t.tests.coverage.optionals},
          {"mutants", proofs},
          {"proved", t.proved},
          {"undecided", late(t)},
          {"graphs", t.rewrite.graphs},
          {"fired", t.rewrite.fired},
          {"instances", t.rewrite.instances},
          {"exhausted", t.rewrite.exhausted},
          {"numerics", {{"claimed", t.rule->numerics}, {"needed", name(t.rewrite.needed)}}},
          {"example", t.rewrite.example},
          {"group_instances", t.group.instances},
          {"not_run", t.group.not_run},
          {"left_out", left_out},
          {"uncovered", uncovered(t)}};
}

void print_coverage(const Tested& t) {
  std::cout << fmt::format("{:<24} hits {:<4}", t.rule->id, t.tests.coverage.hits);
  for (const ConditionCount& c : t.tests.coverage.conditions)
    std::cout << fmt::format("  {} ({}) {}/{}/{}", c.id, name(c.cls), c.yes, c.no, c.unknown);
  for (const auto& [tag, hits] : t.tests.coverage.tags)
    std::cout << fmt::format("  #{} {}", tag, hits);
  for (const auto& [part, seen] : t.tests.coverage.optionals)
    std::cout << fmt::format("  {}? {}/{}", part, seen.first, seen.second);
  for (const ConditionProof& c : t.rewrite.conditions)
    std::cout << fmt::format("  {} {}", c.id, name(c.state));
  for (const std::string& u : uncovered(t)) std::cout << "  UNCOVERED " << u;
  std::cout << "\n";
}

/// By contract, how many of the rules' cases each of its conditions declines.
json contract_coverage(const Contracts& contracts, const std::vector<const Rule*>& rules) {
  json out = json::object();
  for (const auto& contract : contracts.all())
    for (const Condition& c : contract->conditions)
      for (const Rule* r : rules) {
        auto& n = out[contract->id].emplace(c.id, 0).first->get_ref<json::number_integer_t&>();
        n += std::ranges::count(r->tests, c.id, &RuleTest::declined_by);
      }
  return out;
}

struct Options {
  std::vector<std::string> globs;
  std::optional<double> seconds;
  std::optional<int> graphs;
  bool coverage = false, stamp = false, full = false, update = false;
};

/// Compares what the cases gave with the snapshots of the folders of --rules, or writes them.
/// Returns how many snapshots are of no rule.
Result<int> snapshots(const Common& common, const Options& asked, const Knowledge& k,
                      std::vector<Tested>& all) {
  if (asked.update && common.rules.empty())
    return error(Code::usage, "rules test",
                 "--update writes snapshots into the folders of --rules, and there are none");
  int left = 0, written = 0;
  for (const std::string& dir : common.rules) {
    if (!asked.update && !has_snapshots(dir)) continue;
    for (Tested& t : all) {
      if (t.rule->pack != dir) continue;
      if (!asked.update) {
        t.snapshot = snapshot_differences(*t.rule, t.tests, k.target.name);
      } else if (t.tests.passed()) {  // what is wrong is not kept
        FERRULE_ASSIGN(const bool another, write_snapshot(*t.rule, t.tests, k.target.name));
        written += another;
      }
    }
    for (const std::string& path : left_snapshots(dir, k.rules)) {
      if (asked.update)
        std::remove(path.c_str());
      else if (!common.json)
        std::cout << fmt::format("FAILED {}: no such rule (rules test -U removes it)\n", path);
      left += !asked.update;
    }
  }
  if (asked.update) talk(fmt::format("{} snapshots written", written));
  return left;
}

/// proved.txt of each folder of --rules, else of the shipped rules: the rules that were proved now,
/// and the others that have a stamp.
Status stamp(const Common& common, const EngineOptions& options, const Knowledge& k,
             const std::vector<Tested>& all) {
  const std::set<std::string> stamps = read_stamps(options.rule_dirs);
  RuleSet sure;
  for (const auto& r : k.rules.rules) {
    auto t = std::ranges::find(all, r.get(), &Tested::rule);
    const bool tried = t != all.end() && t->proved && !t->undecided();
    if ((t == all.end() || t->right()) && (tried || stamped(*r, k.ops, stamps)))
      sure.rules.push_back(r);
  }
  const bool whole = std::ranges::all_of(k.rules.rules, [&](const auto& r) {
    auto t = std::ranges::find(all, r.get(), &Tested::rule);
    return !provable(*r) || (t != all.end() && t->proved && t->right() && !t->undecided());
  });
  const bool complete =
      options.rule_dirs.size() == 1 && std::ranges::all_of(k.rules.rules, [&](const auto& r) {
        return !provable(*r) || contains(sure.rules, r);
      });
  for (const std::string& dir : common.rules.empty() ? options.rule_dirs : common.rules)
    FERRULE_TRY(write_stamps(sure, k.ops, dir, whole, complete));
  return {};
}

Result<Exit> body(const Common& common, const Options& asked) {
  const auto& [globs, seconds, graphs, coverage, stamping, full, update] = asked;
  FERRULE_ASSIGN(EngineOptions options, rule_options(common));
  FERRULE_ASSIGN(auto knowledge, load_knowledge(options));
  ProofContext context;
  context.ops = &knowledge->ops;
  context.target = &knowledge->target;
  context.limits = &options.limits;
  context.rule_dirs = options.rule_dirs;
  Totals totals;
  json rows = json::array();
  int rules = 0, good = 0, not_run = 0;
  std::vector<const Rule*> chosen;
  for (const auto& rule : knowledge->rules.rules)
    if (selected(*rule, globs) && (!update || std::ranges::count(common.rules, rule->pack)))
      chosen.push_back(rule.get());
  const Chosen proofs(context, full || !globs.empty());
  const bool by_turns = !full && !stamping && globs.empty();
  const auto seconds_of = [&](const Tested& t) {
    if (seconds || !t.shipped) return seconds.value_or(kUsersSeconds);
    if (full) return kFullSeconds;
    return by_turns && t.rule->kind == RuleKind::rewrite ? kRotatingSeconds : kSeconds;
  };
  GroupProver groups(options, common.backend,
                     graphs.value_or(full || !globs.empty() ? kGroupGraphs : kFewGroupGraphs));
  std::vector<Tested> all = test_rules(chosen, groups, context, proofs, seconds_of);
  FERRULE_ASSIGN(const int left, snapshots(common, asked, *knowledge, all));
  for (const Tested& t : all) {
    ++rules;
    count(totals, t);
    totals.uncovered += static_cast<int>(uncovered(t).size());
    good += t.ok();
    not_run += t.tests.passed() && t.not_run();
    if (common.json)
      rows.push_back(row_of(t));
    else
      print_problems(t);
    if (coverage && !common.json) print_coverage(t);
  }
  if (!rules) return unknown_rule("rules test", globs.empty() ? "*" : globs[0], knowledge->rules);
  bool ok = good + not_run == rules && left == 0 && (!coverage || totals.uncovered == 0);
  if (common.json) {
    print_json({{"schema_version", kSchemaVersion},
                {"ok", ok},
                {"undecided", totals.undecided},
                {"contracts", contract_coverage(*knowledge->ops.contracts(), chosen)},
                {"rules", rows}});
  } else {
    print_absent(all);
    const json declines =
        coverage ? contract_coverage(*knowledge->ops.contracts(), chosen) : json::object();
    for (const auto& [id, conditions] : declines.items()) {
      if (!globs.empty() && std::ranges::all_of(conditions, [](const json& n) { return n == 0; }))
        continue;  // of the rules that were asked for, none has a case of it
      std::cout << fmt::format("{:<24} declines {}\n", id, conditions.dump());
    }
    print_totals(totals, rules);
    if (const std::string by = proved_semantics(options.rule_dirs.front());
        !full && !by.empty() && by != engine_semantics())
      std::cout
          << "the stamps are of another engine: --full --stamp proves all rewrites with this one\n";
    std::cout << fmt::format("{} passed, {} failed{}\n", good,
                             rules - good - not_run + left + (coverage ? totals.uncovered : 0),
                             not_run ? fmt::format(", {} skipped", not_run) : "");
  }
  if (stamping) FERRULE_TRY(stamp(common, options, *knowledge, all));
  return ok ? Exit::ok : Exit::differs;
}

}  // namespace

void add_rules_test(CLI::App& rules, Common& common, int& exit) {
  for (bool coverage : {false, true}) {
    auto options = std::make_shared<Options>();
    options->coverage = coverage;
    auto* c = rules.add_subcommand(coverage ? "coverage" : "test",
                                   coverage ? "what the tests and proofs of each rule reached"
                                            : "the rules' own tests, and proofs by search");
    add_common(*c, common, false);
    c->footer(coverage ? "Examples:\n  ferrule rules coverage 'conv_*'\n"
                         "  ferrule rules coverage my_rule --rules my_rules\n"
                         "  ferrule rules coverage --json"
                       : "Examples:\n  ferrule rules test --rules my_rules 'my_*'\n"
                         "  ferrule rules test 'conv_*' --full\n"
                         "  ferrule rules test --rules my_rules -U\n"
                         "  ferrule rules test my_rule --rules my_rules --seconds 30 --json");
    c->add_option("RULES", options->globs, "globs over rule ids; all by default");
    c->add_option("--seconds", options->seconds,
                  "of computing for each rule: its proof, and the graphs that it is run on")
        ->check(CLI::Range(0.1, 3600.0));
    c->add_option("--graphs", options->graphs,
                  "that a group is run on beside its cases, for each target")
        ->check(CLI::Range(0, 100000));
    c->add_flag("--full", options->full,
                "prove all rewrites; else those without a stamp, and a tenth of the others, "
                "another one whenever rules or engine change");
    if (!coverage)
      c->add_flag("-U,--update", options->update,
                  "writes what the cases give to DIR/snapshots of each folder of --rules; later "
                  "runs compare with it");
    if (!coverage)
      c->add_flag(
          "--stamp", options->stamp,
          "writes those that are proved to proved.txt, so that loading does not prove them again");
    set_body(*c, common, exit, [options](const Common& o) { return body(o, *options); });
  }
}

}  // namespace ferrule::cli
