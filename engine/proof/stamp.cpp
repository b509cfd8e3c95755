#include "engine/proof/stamp.h"

#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "engine/base/diagnostics.h"
#include "engine/proof/agree.h"
#include "engine/proof/cpu_clock.h"
#include "engine/rule/contract.h"
#include "engine/rule/load.h"
#include "engine/rule/provable.h"
#include "engine/rule/text.h"
#include "engine/semantics/definition.h"

namespace ferrule {
namespace {

namespace fs = std::filesystem;

/// Raised when the prover tries more than it did: what it let pass before must then be proved
/// again.
constexpr std::string_view kProver = "7";
/// Distinct instances after which a proof that its time cuts short is one: on a slow machine a rule
/// that is right still loads.
constexpr int kEnough = 60;
constexpr uintmax_t kMaxStampFile = 4 << 20;
/// Bytes of a folder's rules beyond which each is looked at by itself.
constexpr uintmax_t kMaxFiles = 64 << 20;
constexpr std::string_view kHeader =
    "# Rewrites that are proved, by a hash of the rule and ferrule's version. Made by `ferrule "
    "rules test "
    "--stamp`;\n# a rule that is not in here, or was changed since, is proved when it is first "
    "loaded.\n";
constexpr std::string_view kEngine = "# All of them by the engine ";
constexpr std::string_view kFiles = "# All rules of the files with the hash ";

std::string line_of(const Rule& rule, const Semantics& ops) {
  return rule.id + " " + proof_stamp(rule, ops);
}

/// The definitions of the operators that the text names, or whose class it does.
std::string operators_of(std::string_view text, const Semantics& ops) {
  std::set<std::string_view> names, classes;
  for (size_t at = 0; at < text.size();) {
    size_t end = at;
    while (end < text.size() &&
           (std::isalnum(static_cast<unsigned char>(text[end])) || text[end] == '_'))
      ++end;
    if (end > at)
      (at > 0 && text[at - 1] == '@' ? classes : names).insert(text.substr(at, end - at));
    at = end + 1;
  }
  std::string out;
  for (const auto& [_, f] : ops.all())
    if (names.contains(f.op) ||
        std::ranges::any_of(f.classes, [&](const std::string& c) { return classes.contains(c); }))
      out += definition(f);
  return out;
}

/// The rule without its words for readers, and on: a message that is put better needs no proof.
Rule wordless(Rule r) {
  r.enabled = true;
  r.doc.clear(), r.source.clear();
  for (auto* where : {&r.where, &r.region.where})
    for (Condition& c : *where) c.why.clear(), c.hint.clear();
  return r;
}

/// A contract's file without them: comments, the lines of doc and source, and what stands quoted
/// behind `why:` and `hint:`; and without `numerics`, which is compared when rules are loaded.
std::string wordless(std::string_view text) {
  std::string out;
  for (size_t from = 0; from < text.size();) {
    const size_t to = std::min(text.find('\n', from), text.size());
    const std::string_view line = text.substr(from, to - from);
    from = to + 1;
    const size_t begin = std::min(line.find_first_not_of(' '), line.size());
    const std::string_view words = line.substr(begin);
    if (words.starts_with('#') || words.starts_with("doc:") || words.starts_with("source:") ||
        words.starts_with("numerics:"))
      continue;
    std::string kept(line);
    for (std::string_view key : {"why: \"", "hint: \""})
      for (size_t at = 0; (at = kept.find(key, at)) != std::string::npos; at += key.size()) {
        size_t end = at + key.size();
        while (end < kept.size() && kept[end] != '"') end += kept[end] == '\\' ? 2 : 1;
        kept.erase(at + key.size(), std::min(end, kept.size()) - at - key.size());
      }
    out += kept + "\n";
  }
  return out;
}

/// Through a file beside it, so that no reader ever sees half of it. "" or why not.
std::string write_whole(const fs::path& path, std::string_view text) {
  fs::path part = path;
  part += fmt::format(".{}.part", getpid());
  errno = 0;
  std::ofstream file(part, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  std::error_code ec;
  if (file) {
    fs::rename(part, path, ec);
    if (!ec) return "";
  }
  std::string why = ec ? ec.message() : std::strerror(errno ? errno : EIO);
  fs::remove(part, ec);
  return why;
}

/// A stamp that cannot be kept costs the next load a proof, nothing else.
void keep_stamp(const std::string& cache, const std::string& stamp) {
  if (cache.empty()) return;
  std::error_code ec;
  fs::create_directories(cache, ec);
  if (!ec) write_whole(fs::path(cache) / stamp, "");
}

/// Cases and differences as one line of a message.
std::string one_line(std::string text) {
  while (text.ends_with('\n')) text.pop_back();
  for (size_t at = 0; (at = text.find('\n', at)) != std::string::npos; ++at)
    text.replace(at, 1, "; ");
  return escape(text, 1000);
}

struct Verdict {
  std::string why;  ///< "" when it is proved, else what is wrong or missing
  std::string example;
};

/// The promise that would have been kept.
std::string weaker(const Rule& rule, const RewriteProof& p) {
  return p.needed == Numerics::none || p.needed <= numerics_of(rule)
             ? ""
             : fmt::format(" (numerics: {} is too strong, {} holds)", rule.numerics,
                           name(p.needed));
}

Verdict prove(const Rule& rule, ProofContext ctx, std::vector<std::string>& notes) {
  const double begin = thread_seconds(), allowed = ctx.seconds;
  const RuleTestReport tests = run_rule_tests(rule, ctx);
  ctx.seconds -= thread_seconds() - begin;
  const RewriteProof p = prove_rewrite(rule, ctx);
  for (const CaseResult& c : tests.cases)
    if (!c.passed)
      return {one_line(fmt::format("its case {} (line {}) fails: {}{}", c.name, c.place.line,
                                   c.text, weaker(rule, p))),
              p.example};
  if (!p.wrong.empty())
    return {one_line("it changes results: " + p.wrong.front() + weaker(rule, p)), p.example};
  if (!p.in_time && p.instances < kEnough)
    return {fmt::format("not decided within {} s of computing, {} graphs were tried (rules test "
                        "--seconds takes longer)",
                        allowed, p.graphs),
            ""};
  if (rule.tests.empty()) return {"no case shows it firing: it needs tests: {fires: …}", ""};
  if (p.compared == 0) return {"the interpreter cannot run any graph on which it fires", ""};
  for (const ConditionProof& c : p.conditions)
    if (c.state == ConditionProof::State::open)
      notes.push_back(
          fmt::format("rule {}: nothing shows that its sound condition {} is needed ({})", rule.id,
                      c.id, one_line(c.how)));
  return {};
}

std::string hash(std::string_view text) {
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

/// What stands behind `key` in a line before the stamps; "" if none begins so.
std::string header_line(const std::string& dir, std::string_view key) {
  std::ifstream file(fs::path(dir) / kStampFile);
  for (std::string line; std::getline(file, line) && line.starts_with('#');)
    if (line.starts_with(key)) return line.substr(key.size());
  return "";
}

}  // namespace

std::string proof_stamp(const Rule& rule, const Semantics& ops) {
  // As loaded, not as written: its patterns may use blocks of another file.
  std::string loaded = print_rule(wordless(rule));
  if (rule.kernel) loaded += wordless(rule.kernel->text);
  const std::string all = fmt::format("{}\n{}\n{}{}{}", kProver, FERRULE_VERSION, loaded, '\0',
                                      operators_of(loaded, ops));
  return hash(all);
}

std::string_view engine_semantics() { return FERRULE_SEMANTICS; }

std::string proved_semantics(const std::string& dir) { return header_line(dir, kEngine); }

std::string hash_of_files(const std::string& dir) {
  std::set<fs::path> files;
  std::error_code ec;
  for (auto it = fs::recursive_directory_iterator(dir, ec);
       !ec && it != fs::recursive_directory_iterator(); it.increment(ec)) {
    if (it.depth() == 0 && it->path().filename() == "targets") it.disable_recursion_pending();
    if (it->path().extension() == ".yaml") files.insert(it->path());
  }
  if (ec) return "";
  std::string all = fmt::format("{}\n{}\n", kProver, FERRULE_VERSION);
  for (const fs::path& path : files) {
    const auto size = fs::is_regular_file(path, ec) ? fs::file_size(path, ec) : kMaxFiles;
    if (ec || all.size() + size >= kMaxFiles) return "";
    std::ifstream file(path, std::ios::binary);
    all += path.lexically_relative(dir).string() + '\0';
    const size_t begin = all.size();
    all.resize(begin + size);
    if (!file.read(all.data() + begin, static_cast<std::streamsize>(size))) return "";
    all += '\0';
  }
  return hash(all);
}

bool proved_as_they_stand(const std::string& dir) {
  const std::string proved = header_line(dir, kFiles);
  return !proved.empty() && proved == hash_of_files(dir);
}

std::set<std::string> read_stamps(std::span<const std::string> dirs) {
  std::set<std::string> stamps;
  for (const std::string& dir : dirs) {
    fs::path path = fs::path(dir) / kStampFile;
    std::error_code ec;
    if (!fs::is_regular_file(path, ec) || fs::file_size(path, ec) > kMaxStampFile || ec) continue;
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      if (line.ends_with('\r')) line.pop_back();
      if (!line.empty() && line[0] != '#') stamps.insert(line);
    }
  }
  return stamps;
}

bool stamped(const Rule& rule, const Semantics& ops, const std::set<std::string>& stamps) {
  return stamps.contains(line_of(rule, ops));
}

std::string stamps_text(const RuleSet& rules, const Semantics& ops, std::string_view pack,
                        std::string_view semantics, std::string_view files) {
  std::set<std::string> lines;
  for (const auto& r : rules.rules)
    if (provable(*r) && r->pack == pack) lines.insert(line_of(*r, ops));
  auto line = [](std::string_view key, std::string_view what) {
    return what.empty() ? "" : fmt::format("{}{}\n", key, what);
  };
  return lines.empty() ? ""
                       : fmt::format("{}{}{}{}\n", kHeader, line(kEngine, semantics),
                                     line(kFiles, files), fmt::join(lines, "\n"));
}

Status write_stamps(const RuleSet& rules, const Semantics& ops, const std::string& dir, bool all,
                    bool whole) {
  std::string text =
      stamps_text(rules, ops, dir, all ? std::string(engine_semantics()) : proved_semantics(dir),
                  whole ? hash_of_files(dir) : "");
  fs::path path = fs::path(dir) / kStampFile;
  std::ifstream old(path, std::ios::binary);
  if (old && std::string(std::istreambuf_iterator<char>(old), {}) == text) return {};
  if (text.empty()) return {};
  std::string why = write_whole(path, text);
  if (!why.empty())
    return error(Code::file_not_written, "rules test --stamp", escape(path.string()), why);
  return {};
}

Status require_proofs(const RuleSet& rules, const ProofContext& ctx,
                      std::vector<std::string>& notes, std::set<std::string>& unproved) {
  std::set<std::string> stamps = read_stamps(ctx.rule_dirs);
  const std::string cache = ctx.cache.empty() ? "" : ctx.cache + "/proofs";
  std::vector<Error> all;
  for (const auto& r : rules.rules) {
    if (!r->enabled || !provable(*r) || stamped(*r, *ctx.ops, stamps)) continue;
    const std::string stamp = fmt::format("{}-{}", proof_stamp(*r, *ctx.ops), engine_semantics());
    std::error_code ec;
    if (!cache.empty() && fs::exists(fs::path(cache) / stamp, ec)) continue;
    if (std::ranges::any_of(ctx.allowed,
                            [&](const std::string& glob) { return glob_match(glob, r->id); })) {
      unproved.insert(r->id);
      continue;
    }
    Verdict v = prove(*r, ctx, notes);
    if (v.why.empty()) {
      keep_stamp(cache, stamp);
      continue;
    }
    Error e = error(Code::rule_unproven, r->file, r->id, v.why).value();
    e.message = fmt::format("{} {} is not proved: {}", name(r->kind), r->id, v.why);
    e.excerpt = std::move(v.example);
    e.hint = fmt::format("--allow-unproven {} runs it all the same", r->id);
    all.push_back(std::move(e));
  }
  return as_status(std::move(all));
}

}  // namespace ferrule
