#include "engine/rule/load.h"

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <map>
#include <queue>
#include <set>
#include <thread>

#include "engine/base/rule_version.h"
#include "engine/rule/contract.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/text.h"
#include "engine/target/target.h"

namespace ferrule {
namespace {

namespace fs = std::filesystem;

/// All errors of many files; reported at once.
class Errors {
 public:
  void add(Error e) { append(all_, std::move(e)); }
  void add(Status s) {
    if (!s) add(std::move(s).error());
  }
  bool empty() const { return all_.empty(); }
  Status take() { return as_status(std::move(all_)); }

 private:
  std::vector<Error> all_;
};

/// Rule files of a directory, by path: everything but the pipeline, blocks, operators, contracts
/// and targets.
std::vector<std::string> rule_files(const std::string& dir) {
  std::vector<std::string> files;
  std::error_code ec;
  for (auto it =
           fs::recursive_directory_iterator(dir, fs::directory_options::skip_permission_denied, ec);
       !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    std::string name = it->path().filename().string();
    std::error_code unreadable;  // one broken link is no reason to leave the others out
    if (it.depth() == 0 && it->is_directory(unreadable) &&
        (name == "ops" || name == "targets" || name == "contracts")) {
      it.disable_recursion_pending();
      continue;
    }
    bool reserved = it.depth() == 0 && (name == "pipeline.yaml" || name == "blocks.yaml");
    if (!name.starts_with('.') && !reserved && it->path().extension() == ".yaml" &&
        !it->is_directory(unreadable))
      files.push_back(it->path().string());
  }
  std::ranges::sort(files);
  return files;
}

/// phases: [{id, kinds, log, fixpoint}]
std::vector<Phase> read_pipeline(const yaml::Document& doc, yaml::Reader& r) {
  std::vector<Phase> phases;
  const yaml::Node& root = doc.root;
  if (!r.expect(root, yaml::Node::Kind::map, "a pipeline")) return phases;
  r.keys(root, {"ferrule", "phases"});
  check_version(r, root);
  const yaml::Node* list = r.required(root, "phases");
  if (!list || !r.expect(*list, yaml::Node::Kind::sequence, "the phases")) return phases;
  for (const yaml::Node& n : list->items) {
    if (!r.expect(n, yaml::Node::Kind::map, "a phase")) continue;
    r.keys(n, {"id", "doc", "kinds", "log", "fixpoint"});
    Phase p;
    p.place = Place{doc.source->name, n.line, n.column};
    if (const yaml::Node* id = r.required(n, "id")) p.id = r.string(*id);
    if (const yaml::Node* kinds = n.find("kinds"))
      for (const std::string& k : r.strings(*kinds)) {
        const auto at = std::ranges::find(kRuleKinds, k);
        if (at == std::end(kRuleKinds))
          r.invalid(*kinds, fmt::format("there is no kind {}", escape(k)),
                    fmt::format("{}", fmt::join(kRuleKinds, ", ")));
        else
          p.kinds.push_back(static_cast<RuleKind>(at - std::begin(kRuleKinds)));
      }
    if (const yaml::Node* log = n.find("log")) p.log = r.string(*log);
    if (const yaml::Node* f = n.find("fixpoint")) p.fixpoint = r.boolean(*f);
    for (const Phase& other : phases)
      if (other.id == p.id) r.invalid(n, fmt::format("phase {} is listed twice", escape(p.id)));
    phases.push_back(std::move(p));
  }
  return phases;
}

std::vector<std::string> names_of_contracts(const Semantics& ops) {
  return ops.contracts() ? ops.contracts()->names() : std::vector<std::string>{};
}

/// An error at a key of a file, which is a line of its own in block style.
Error at_key(const std::string& file, const std::string& content, std::string_view key,
             std::string message, std::string hint) {
  Error e = make_error_v(Code::rule_invalid, file, fmt::make_format_args(message, hint));
  std::string wanted = fmt::format("\n{}:", key), text = "\n" + content;
  if (size_t at = text.find(wanted); at != std::string::npos) {
    const int line = 1 + static_cast<int>(std::count(text.begin(), text.begin() + at, '\n'));
    e.place += fmt::format(":{}:1", line);
    e.excerpt = yaml::Source{file, content}.excerpt(line, 1);
  }
  return e;
}

/// The shortest way from k back to it along `next`, k first; empty: there is none.
std::vector<size_t> cycle_of(size_t k, const std::vector<std::vector<size_t>>& next) {
  std::map<size_t, size_t> from;
  std::vector<size_t> work = {k};
  for (size_t i = 0; i < work.size() && !from.contains(k); ++i)
    for (size_t n : next[work[i]])
      if (from.emplace(n, work[i]).second) work.push_back(n);
  if (!from.contains(k)) return {};
  std::vector<size_t> cycle = {k};
  for (size_t at = from.at(k); at != k; at = from.at(at)) cycle.insert(cycle.begin() + 1, at);
  return cycle;
}

/// Contracts that are stages of each other in a circle; the first of a circle tells of it.
void check_stages(const std::vector<std::shared_ptr<const Contract>>& contracts, Errors& errors) {
  std::vector<std::vector<size_t>> stages(contracts.size());
  for (size_t k = 0; k < contracts.size(); ++k)
    for (const StageSpec& s : contracts[k]->stages)
      for (const std::string& name : s.contracts)
        if (const auto at = std::ranges::find(contracts, name, [](const auto& c) { return c->id; });
            at != contracts.end() && *at != contracts[k])  // a stage of itself is told of already
          stages[k].push_back(static_cast<size_t>(at - contracts.begin()));
  std::set<size_t> told;
  for (size_t k = 0; k < contracts.size(); ++k) {
    const std::vector<size_t> circle = cycle_of(k, stages);
    if (circle.empty() || told.contains(k)) continue;
    std::string ids;
    for (size_t at : circle) told.insert(at), ids += contracts[at]->id + " -> ";
    const Contract& c = *contracts[k];
    errors.add(at_key(c.file, c.text, "stages", "contracts are stages of each other: " + ids + c.id,
                      "name the contracts of its parts"));
  }
}

/// Operators that there are not, among those that a contract stands for or means.
void check_operators(const Contract& c, const Semantics& ops, Errors& errors) {
  auto check = [&](const std::string& op, const Place& at) {
    auto wrong = contains(c.formulas, op) ? std::nullopt : unknown_operator(ops, op);
    if (!wrong) return;
    Error e = make_error_v(Code::rule_invalid, str(at),
                           fmt::make_format_args(wrong->first, wrong->second));
    e.excerpt = yaml::Source{c.file, c.text}.excerpt(at.line, at.column);
    errors.add(std::move(e));
  };
  for (const SingleNode& line : c.stands_for)
    for (const std::string& op : line.ops) check(op, line.place);
  for (const PatternLine& l : c.means.lines)
    each_expr(*l.expr, [&](const PatternExpr& e) {
      for (const std::string& op : e.ops) check(op, e.place);
    });
}

class Loader {
 public:
  Loader(const Semantics& ops, const Limits& limits, RuleTests tests)
      : ops_(ops), limits_(limits), tests_(tests) {
    set_.contracts = names_of_contracts(ops);
  }

  void directory(const std::string& dir) {
    packs_.push_back(dir);
    std::error_code ec;
    if (!fs::is_directory(dir, ec)) {
      errors_.add(
          error(Code::file_not_found, "--rules", escape(dir), std::string("not a directory"))
              .value());
      return;
    }
    fs::path root(dir);
    if (fs::exists(root / "pipeline.yaml", ec)) pipeline((root / "pipeline.yaml").string());
    if (fs::exists(root / "blocks.yaml", ec)) blocks((root / "blocks.yaml").string());
    std::vector<std::string> files = rule_files(dir);
    if (static_cast<int64_t>(files.size() + rules_.size()) > limits_.rules)
      return errors_.add(error(Code::limit_exceeded, escape(dir),
                               std::string("the number of rules"), files.size() + rules_.size(),
                               fmt::format("{} (rules)", limits_.rules))
                             .value());
    std::map<std::string, std::string> ids;  // of this pack
    for (Loaded& l : read_all(files)) add(std::move(l), dir, ids);
  }

  Result<RuleSet> finish(const RuleSelection& selection) {
    if (set_.phases.empty() && errors_.empty())
      errors_.add(error(Code::file_not_found, "", std::string("pipeline.yaml"),
                        std::string("no rules directory has one"))
                      .value());
    check_phases();
    if (errors_.empty()) give_contracts();
    if (errors_.empty()) order();
    if (errors_.empty()) select(selection);
    FERRULE_TRY(errors_.take());
    for (auto& r : rules_) set_.rules.push_back(std::move(r));
    return std::move(set_);
  }

 private:
  void pipeline(const std::string& path) {
    auto doc = yaml::read_file(path, limits_);
    if (!doc) return errors_.add(std::move(doc).error());
    yaml::Reader r(doc->source);
    set_.phases = read_pipeline(*doc, r);
    errors_.add(r.status());
  }

  void blocks(const std::string& path) {
    auto doc = yaml::read_file(path, limits_);
    if (!doc) return errors_.add(std::move(doc).error());
    yaml::Reader r(doc->source);
    if (r.expect(doc->root, yaml::Node::Kind::map, "blocks")) {
      r.keys(doc->root, {"ferrule", "blocks"});
      check_version(r, doc->root);
      if (const yaml::Node* b = doc->root.find("blocks")) read_blocks(r, *b, blocks_);
    }
    errors_.add(r.status());
  }

  /// Among the classes of numerics, 0 for the strongest.
  static ptrdiff_t strength(std::string_view numerics) {
    return std::ranges::find(kNumerics, numerics) - std::begin(kNumerics);
  }

  void give_contracts() {
    const Contracts* contracts = ops_.contracts();
    for (auto& rule : rules_) {
      const auto contract = contracts ? contracts->find(rule->contract) : nullptr;
      if (contract && strength(rule->numerics) < strength(contract->numerics))
        errors_.add(
            at_rule(*rule, "numerics",
                    fmt::format("numerics: {} promises more than the kernels of {} keep: {}",
                                rule->numerics, contract->id, contract->numerics),
                    "write numerics: " + contract->numerics));
      if (!contract && rule->roles.empty()) continue;
      auto [message, hint] =
          contract ? check_roles(*rule, *contract)
                   : std::pair<std::string, std::string>(
                         fmt::format("{} is no contract of roles", rule->contract), "");
      if (!rule->roles.empty()) rule->kernel = contract;
      if (contract && !contract->replaces.empty() && !message.empty())
        hint += fmt::format("{}{} replaces {}", hint.empty() ? "" : "; ", contract->file,
                            contract->replaces);
      if (!message.empty())
        errors_.add(at_rule(*rule, rule->roles.empty() ? "contract" : "roles", message, hint));
    }
  }

  struct Loaded {
    std::shared_ptr<Rule> rule;  ///< null: not even YAML
    Status status;
  };

  Loaded read(const std::string& file) const {
    auto doc = yaml::read_file(file, limits_, tests_ == RuleTests::read ? "" : "tests");
    if (!doc) return {nullptr, fail(std::move(doc).error())};
    yaml::Reader r(doc->source);
    auto rule = std::make_shared<Rule>(read_rule(r, *doc, blocks_, ops_, set_.contracts));
    return {std::move(rule), r.status()};
  }

  /// Files are read independently of each other, and YAML takes most of the time: on several
  /// threads.
  std::vector<Loaded> read_all(const std::vector<std::string>& files) const {
    std::vector<Loaded> out(files.size());
    std::atomic<size_t> next{0};
    auto work = [&] {
      for (size_t k; (k = next.fetch_add(1)) < files.size();) out[k] = read(files[k]);
    };
    constexpr size_t kFilesPerThread = 8;
    size_t wanted =
        std::min<size_t>({files.size() / kFilesPerThread, std::thread::hardware_concurrency(), 8});
    std::vector<std::jthread> helpers;
    for (size_t k = 1; k < wanted; ++k) helpers.emplace_back(work);
    work();
    helpers.clear();  // joins
    return out;
  }

  void add(Loaded l, const std::string& pack, std::map<std::string, std::string>& ids) {
    const bool whole = l.status.has_value();
    errors_.add(std::move(l.status));
    std::shared_ptr<Rule> rule = std::move(l.rule);
    if (!rule) return;
    if (!whole) broken_.insert(rule.get());
    rule->pack = pack;
    if (auto [it, fresh] = ids.emplace(rule->id, rule->file); !fresh)
      errors_.add(at_rule(
          *rule, "id", fmt::format("rule {} is in {}, too", escape(rule->id), escape(it->second)),
          "give the file another name"));
    // A later pack replaces the rule of that name where it stands.
    for (auto& old : rules_)
      if (old->id == rule->id && old->pack != pack) {
        old = std::move(rule);
        return;
      }
    rules_.push_back(std::move(rule));
  }

  static Error at_rule(const Rule& r, std::string_view key, std::string message, std::string hint) {
    return at_key(r.file, r.text, key, std::move(message), std::move(hint));
  }

  void check_phases() {
    std::vector<std::string> known;
    for (const Phase& p : set_.phases) known.push_back(p.id);
    if (known.empty()) return;
    for (const auto& r : rules_) {
      if (r->phase.empty()) continue;
      if (!contains(known, r->phase)) {
        errors_.add(at_rule(*r, "phase", fmt::format("there is no phase {}", escape(r->phase)),
                            near_or_all(r->phase, known)));
        continue;
      }
      auto takes = [&](const Phase& p) { return p.kinds.empty() || contains(p.kinds, r->kind); };
      if (takes(set_.phases[phase_index(*r)]) || broken_.contains(r.get())) continue;
      std::vector<std::string> allowed;
      for (const Phase& p : set_.phases)
        if (takes(p)) allowed.push_back(p.id);
      errors_.add(at_rule(
          *r, "phase", fmt::format("phase {} takes no rules of kind {}", r->phase, name(r->kind)),
          fmt::format("phases of this kind: {}", fmt::join(allowed, ", "))));
    }
  }

  size_t phase_index(const Rule& r) const {
    for (size_t k = 0; k < set_.phases.size(); ++k)
      if (set_.phases[k].id == r.phase) return k;
    return 0;
  }

  /// Phases in their order; within one, `before` and `after`, else as loaded (pack, then path).
  void order() {
    std::ranges::stable_sort(rules_,
                             [&](auto& a, auto& b) { return phase_index(*a) < phase_index(*b); });
    std::map<std::string, size_t, std::less<>> index;
    std::vector<std::string> ids;
    for (size_t k = 0; k < rules_.size(); ++k)
      index[rules_[k]->id] = k, ids.push_back(rules_[k]->id);
    std::vector<std::vector<size_t>> after(rules_.size());
    std::vector<int> waits(rules_.size());
    for (size_t k = 0; k < rules_.size(); ++k) {
      const Rule& r = *rules_[k];
      auto edge = [&](const std::string& other, bool first) {
        auto it = index.find(other);
        if (it == index.end())
          return errors_.add(at_rule(
              r, first ? "before" : "after",
              fmt::format("{}: there is no rule {}", first ? "before" : "after", escape(other)),
              did_you_mean(other, ids)));
        if (rules_[it->second]->phase != r.phase)
          return errors_.add(at_rule(
              r, first ? "before" : "after",
              fmt::format("{}: rule {} is in phase {}, this one in {}", first ? "before" : "after",
                          other, rules_[it->second]->phase, r.phase),
              "order matters within a phase only"));
        size_t from = first ? k : it->second, to = first ? it->second : k;
        after[from].push_back(to);
        ++waits[to];
      };
      for (const std::string& o : r.before) edge(o, true);
      for (const std::string& o : r.after) edge(o, false);
    }
    if (errors_.empty()) topological(after, waits);
  }

  void topological(const std::vector<std::vector<size_t>>& after, std::vector<int>& waits) {
    std::priority_queue<size_t, std::vector<size_t>, std::greater<>> ready;
    for (size_t k = 0; k < waits.size(); ++k)
      if (waits[k] == 0) ready.push(k);
    std::vector<std::shared_ptr<Rule>> sorted;
    while (!ready.empty()) {
      size_t k = ready.top();
      ready.pop();
      sorted.push_back(rules_[k]);
      for (size_t n : after[k])
        if (--waits[n] == 0) ready.push(n);
    }
    if (sorted.size() == rules_.size()) {
      // Edges stay within phases, so a sort by phase keeps them.
      std::ranges::stable_sort(sorted,
                               [&](auto& a, auto& b) { return phase_index(*a) < phase_index(*b); });
      rules_ = std::move(sorted);
      return;
    }
    // Of those that are left some merely come behind a cycle. The rules of the last folder are
    // their reader's own: the error stands there where one of them is in a cycle.
    std::vector<size_t> left;
    for (size_t k = 0; k < waits.size(); ++k)
      if (waits[k] > 0) left.push_back(k);
    std::ranges::stable_sort(left, std::greater<>{},
                             [&](size_t k) { return pack_index(rules_[k]->pack); });
    for (size_t k : left)
      if (const std::vector<size_t> cycle = cycle_of(k, after); !cycle.empty())
        return report(cycle);
  }
  void report(const std::vector<size_t>& cycle) {
    const Rule& r = *rules_[cycle[0]];
    if (cycle.size() == 1)
      return errors_.add(at_rule(r, contains(r.before, r.id) ? "before" : "after",
                                 fmt::format("rule {} is to come {} itself", r.id,
                                             contains(r.before, r.id) ? "before" : "after"),
                                 "leave it out"));
    const bool first = contains(r.before, rules_[cycle[1]]->id);
    std::string ids;
    for (size_t k : cycle) ids += (ids.empty() ? "" : ", ") + rules_[k]->id;
    errors_.add(at_rule(r, first ? "before" : "after", "before and after form a cycle among " + ids,
                        "remove one of them"));
  }
  size_t pack_index(const std::string& pack) const {
    return static_cast<size_t>(std::ranges::find(packs_, pack) - packs_.begin());
  }

  void select(const RuleSelection& s) {
    std::vector<std::string> ids;
    for (const auto& r : rules_) ids.push_back(r->id);
    // Rules that change results noticeably, or are not finished, are asked for by name.
    for (auto& r : rules_)
      if (r->waits()) r->enabled = false;
    auto apply = [&](const std::string& glob, bool on) {
      bool any = false;
      for (auto& r : rules_)
        if (glob_match(glob, r->id)) r->enabled = on, any = true;
      if (any || glob == "*" || glob_match(glob, kSharing)) return;
      if (is_glob(glob)) {
        set_.warnings.push_back(
            fmt::format("{} {}: no rule matches", on ? "--enable" : "--disable", escape(glob)));
        return;
      }
      Error e = error(Code::rule_unknown, on ? "--enable" : "--disable", escape(glob)).value();
      if (std::string hint = did_you_mean(glob, ids); !hint.empty()) e.hint = hint;
      errors_.add(std::move(e));
    };
    for (const std::string& g : s.disable) apply(g, false);
    for (const std::string& g : s.enable) apply(g, true);
  }

  const Semantics& ops_;
  const Limits& limits_;
  const RuleTests tests_;
  Errors errors_;
  RuleSet set_;
  Blocks blocks_;
  std::vector<std::string> packs_;
  std::set<const Rule*> broken_;  // whose files have errors: their kind need not be what is said
  std::vector<std::shared_ptr<Rule>> rules_;
};

}  // namespace

std::string_view name(RuleKind k) { return kRuleKinds[static_cast<size_t>(k)]; }

std::string_view name(ConditionClass c) {
  static constexpr std::string_view kNames[] = {"sound", "kernel", "profit"};
  return kNames[static_cast<size_t>(c)];
}

const Rule* RuleSet::find(std::string_view id) const {
  for (const auto& r : rules)
    if (r->id == id) return r.get();
  return nullptr;
}

std::optional<bool> RuleSelection::about(std::string_view id) const {
  auto any = [&](const std::vector<std::string>& globs) {
    return std::ranges::any_of(globs, [&](const std::string& g) { return glob_match(g, id); });
  };
  if (any(enable)) return true;
  if (any(disable)) return false;
  return std::nullopt;
}

Result<Semantics> load_semantics(std::span<const std::string> dirs, Semantics::BySchema by_schema,
                                 const Limits& limits) {
  Errors errors;
  std::vector<std::shared_ptr<const Contract>> contracts;
  for (const std::string& dir : dirs)
    for (const std::string& file : rule_files((fs::path(dir) / "contracts").string())) {
      auto doc = yaml::read_file(file, limits);
      if (!doc) {
        errors.add(std::move(doc).error());
        continue;
      }
      yaml::Reader r(doc->source);
      auto c = std::make_shared<Contract>(read_contract(r, *doc, contract_names(dirs)));
      errors.add(r.status());
      if (auto old = std::ranges::find(contracts, c->id, [](const auto& o) { return o->id; });
          old != contracts.end())
        c->replaces = (*old)->file, contracts.erase(old);
      contracts.push_back(std::move(c));
    }
  std::map<std::string_view, std::string_view> taken;
  for (const auto& c : contracts)
    for (const SingleNode& line : c->stands_for)
      for (const std::string& op : line.ops)
        if (auto [it, fresh] = taken.emplace(op, c->id); !fresh)
          errors.add(error(Code::rule_invalid, str(line.place),
                           fmt::format("{} is a single node of {} already", op, it->second),
                           std::string("an operator belongs to one contract"))
                         .value());
  check_stages(contracts, errors);
  auto ops = Semantics::load(dirs, by_schema);
  if (!ops) errors.add(std::move(ops).error());
  if (ops)
    for (const auto& c : contracts) check_operators(*c, *ops, errors);
  FERRULE_TRY(errors.take());
  ops->give(std::make_shared<const Contracts>(std::move(contracts)));
  return ops;
}

Result<RuleSet> load_rules(std::span<const std::string> dirs, const Semantics& ops,
                           const RuleSelection& selection, const Limits& limits, RuleTests tests) {
  Loader loader(ops, limits, tests);
  for (const std::string& d : dirs) loader.directory(d);
  return loader.finish(selection);
}

Result<Rule> load_rule_text(std::string_view text, std::string file, const Semantics& ops,
                            const Limits& limits) {
  FERRULE_ASSIGN(yaml::Document doc, yaml::read_text(text, std::move(file), limits));
  yaml::Reader r(doc.source);
  Rule rule = read_rule(r, doc, {}, ops, names_of_contracts(ops));
  FERRULE_TRY(r.status());
  return rule;
}

}  // namespace ferrule
