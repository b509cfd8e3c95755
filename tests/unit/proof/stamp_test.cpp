// Stamps: the shipped ones are up to date; wrong rules are refused at load, good ones proved once.
#include "engine/proof/stamp.h"

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "engine/pipeline.h"
#include "tests/support/paths.h"
#include "tests/unit/engine/kit.h"

using namespace kit;
namespace fs = std::filesystem;

namespace {

/// A rules folder and a cache folder of the test's own; the environment is as before afterwards.
struct Sandbox {
  Sandbox() {
    std::string pattern = (fs::temp_directory_path() / "ferrule-stamp-XXXXXX").string();
    REQUIRE(mkdtemp(pattern.data()));
    root = pattern;
    fs::create_directories(root / "rules");
    if (const char* old = getenv("FERRULE_CACHE")) before = old;
    setenv("FERRULE_CACHE", (root / "cache").c_str(), 1);
  }
  ~Sandbox() {
    before ? setenv("FERRULE_CACHE", before->c_str(), 1) : unsetenv("FERRULE_CACHE");
    fs::remove_all(root);
  }
  Sandbox(const Sandbox&) = delete;

  void add(const std::string& match, const std::string& factor, bool cases = true) const {
    std::ofstream(root / "rules" / "mine.yaml")
        << "ferrule: 1\nid: mine\nkind: rewrite\ndoc: A rule of a test.\nsource: [test]\nphase: "
           "canonicalize\nnumerics: exact\n"
        << "match: |\n  " << match << "\nrewrite: |\n  y = x\n"
        << (cases ? std::string("tests:\n  fires:\n    - |\n      g (float[2,3] i) => (float[2,3] "
                                "o) <float k = {") +
                        factor + "}> { t = Mul(i, k) o = Abs(t) }\n"
                  : "");
  }
  EngineOptions options(bool allow = false) const {
    EngineOptions o;
    o.rule_dirs = {rules_dir(), (root / "rules").string()};
    o.target = "cpu-avx2";
    if (allow) o.allow_unproven = {"min*"};
    return o;
  }
  size_t cached() const {
    std::error_code ec;
    fs::directory_iterator it(root / "cache" / "proofs", ec);
    return ec ? 0 : static_cast<size_t>(std::distance(it, {}));
  }
  fs::path root;
  std::optional<std::string> before;
};

std::string refusal(const EngineOptions& o) {
  auto k = load_knowledge(o);
  if (k) return "";
  CHECK(k.error().code == Code::rule_unproven);
  return render(k.error());
}

}  // namespace

TEST_CASE("rules/proved.txt is up to date (ferrule rules test --stamp)") {
  std::array<std::string, 1> dirs{rules_dir()};
  RuleSet set = must(load_rules(dirs, ops(), {}, limits()));
  std::ifstream file(rules_dir() + "/proved.txt");
  std::string text(std::istreambuf_iterator<char>(file), {});
  CHECK(text == stamps_text(set, ops(), rules_dir(), proved_semantics(rules_dir()),
                            hash_of_files(rules_dir())));
  CHECK(read_stamps(dirs).size() > 20);
}

TEST_CASE(
    "a folder proved as its files stand: its tests are not read, one changed byte and they are") {
  Sandbox box;
  fs::remove_all(box.root / "rules");
  fs::copy(rules_dir(), box.root / "rules", fs::copy_options::recursive);
  EngineOptions o = box.options();
  o.rule_dirs = {(box.root / "rules").string()};
  o.rule_tests = false;
  auto tests = [&] {
    size_t count = 0;
    const auto k = must(load_knowledge(o));
    for (const auto& r : k->rules.rules) count += r->tests.size();
    return count;
  };
  CHECK(tests() == 0);
  o.rule_tests = true;
  CHECK(tests() > 100);
  o.rule_tests = false;
  const fs::path one = box.root / "rules/rewrites/cast_noop.yaml";
  std::ofstream(one, std::ios::app) << "# changed\n";
  CHECK(tests() > 100);
  CHECK(refusal(o) == "");
  fs::remove(one);
  fs::create_symlink("nowhere", one);
  CHECK(hash_of_files(o.rule_dirs[0]).empty());
}

TEST_CASE("a wrong rewrite is refused, with a counter-example, and runs when asked to") {
  Sandbox box;
  box.add("y = Mul(x, 2)", "2.0");
  std::string said = refusal(box.options());
  for (const char* part : {"rewrite mine is not proved", "mine.yaml", "--allow-unproven mine",
                           "fires 1", "Mul (i, k)"})
    CHECK_MESSAGE(said.find(part) != std::string::npos, said);
  CHECK(box.cached() == 0);
  auto allowed = load_knowledge(box.options(true));
  REQUIRE(allowed.has_value());
  CHECK((*allowed)->unproved == std::set<std::string>{"mine"});
  CHECK(box.cached() == 0);
  // What is off is not proved.
  EngineOptions off = box.options();
  off.selection.disable = {"mine"};
  CHECK(refusal(off) == "");
  // Right in its case, wrong for another factor.
  box.add("y = Mul(x, c!)", "1.0");
  CHECK(refusal(box.options()).find("it changes results: ") != std::string::npos);
  // Nothing to prove it by.
  box.add("y = Mul(x, 1)", "1.0", false);
  CHECK(refusal(box.options()).find("needs tests") != std::string::npos);
}

TEST_CASE("a good rewrite is proved once; a change asks for a new proof") {
  Sandbox box;
  box.add("y = Mul(x, 1)", "1.0");
  CHECK(refusal(box.options()) == "");
  REQUIRE(box.cached() == 1);
  // The second load proves nothing: with a budget that no proof fits in, the stamp alone lets it
  // pass.
  RuleSet set = must(load_rules(box.options().rule_dirs, ops(), {}, limits()));
  ProofContext context;
  context.ops = &ops();
  context.target = &target();
  context.limits = &limits();
  context.rule_dirs = box.options().rule_dirs;
  context.cache = box.options().cache;
  context.seconds = 0;
  std::vector<std::string> notes;
  std::set<std::string> unproved;
  CHECK(require_proofs(set, context, notes, unproved).has_value());
  fs::remove_all(box.root / "cache");
  Status late = require_proofs(set, context, notes, unproved);
  REQUIRE_FALSE(late.has_value());
  CHECK(late.error().message.find("not decided within 0 s") != std::string::npos);
  // A folder's own proved.txt does as well, until the rule changes.
  must(write_stamps(set, ops(), (box.root / "rules").string(), true, true));
  CHECK(proved_semantics((box.root / "rules").string()) == engine_semantics());
  CHECK(require_proofs(set, context, notes, unproved).has_value());
  box.add("y = Mul(1, x)", "1.0");
  CHECK_FALSE(require_proofs(must(load_rules(box.options().rule_dirs, ops(), {}, limits())),
                             context, notes, unproved)
                  .has_value());
}

TEST_CASE("a cache that cannot be written, or is not there, is no error") {
  Sandbox box;
  box.add("y = Mul(x, 1)", "1.0");
  std::ofstream(box.root / "cache") << "a file where the folder should be";
  CHECK(refusal(box.options()) == "");
  CHECK(refusal(box.options()) == "");
}

TEST_CASE(
    "a stamp is of what the rule does, not of its words, and of the operators and classes that it "
    "names") {
  Sandbox box;
  fs::create_directories(box.root / "rules" / "ops");
  std::ofstream(box.root / "rules" / "ops" / "mine.yaml")
      << "ferrule: 1\nops:\n  - {op: Mul, in: [a, b], types: [numeric], class: [commutative], "
         "expr: \"b * a\", replaces: true}\n"
         "  - {op: Twice, domain: my.ops, in: [x], types: [float], expr: \"x + x\"}\n";
  const Semantics changed = must(Semantics::load(box.options().rule_dirs));
  auto mul = rule("mul", rewrite_text("exact", "y = Mul(x, 1)", "y = x")),
       unary = rule("unary", rewrite_text("exact", "t = Neg(Neg(x))\n[u] y = @unary<...>(t)",
                                          "y = u<...u>(x)")),
       abs = rule("abs", rewrite_text("exact", "y = Abs(Abs(x))", "y = Abs(x)"));
  CHECK(proof_stamp(*mul, ops()) != proof_stamp(*mul, changed));
  CHECK(proof_stamp(*unary, ops()) != proof_stamp(*unary, changed));
  CHECK(proof_stamp(*abs, ops()) == proof_stamp(*abs, changed));
  Rule said = *abs;
  said.doc = "The second of two Abs is removed.", said.source = {"here"};
  CHECK(proof_stamp(said, ops()) == proof_stamp(*abs, ops()));
  Rule off = *abs;
  off.enabled = false;  // as rules are that wait for --enable: they are stamped so
  CHECK(proof_stamp(off, ops()) == proof_stamp(*abs, ops()));
}
