#include "engine/target/target.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/yaml.h"
#include "engine/target/contract_names.h"

namespace ferrule {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLike = 8;

std::string path_of(std::span<const std::string> dirs, std::string_view name) {
  std::error_code ec;
  // Later directories replace targets of earlier ones.
  for (size_t k = dirs.size(); k-- > 0;) {
    fs::path p = fs::path(dirs[k]) / "targets" / (std::string(name) + ".yaml");
    if (fs::is_regular_file(p, ec)) return p.string();
  }
  return {};
}

std::vector<DType> types(yaml::Reader& r, const yaml::Node& n) {
  std::vector<DType> out;
  for (const std::string& s : r.strings(n)) {
    auto t = parse_dtype(s);
    if (t && ferrule::name(*t) == s)
      out.push_back(*t);
    else
      r.error(n, fmt::format("\"{}\" is no element type", escape(s)),
              "f32, f16, bf16, f64, i8, u8, i32, i64, bool, …");
  }
  return out;
}

int count(yaml::Reader& r, const yaml::Node& n, int64_t most) {
  int64_t i = r.integer(n);
  if (i >= 0 && i <= most) return static_cast<int>(i);
  r.error(n, fmt::format("{} is not between 0 and {}", i, most));
  return 0;
}

/// Only what the file says changes; the rest stays as `like` had it.
void read_contract(yaml::Reader& r, const yaml::Node& n, ContractFacts& c) {
  if (!r.expect(n, yaml::Node::Kind::map, "facts of a contract")) return;
  r.keys(n, {"types", "library_types", "epilogues", "exact_epilogues", "max_epilogue_ops",
             "max_operands", "generated_tail", "strided"});
  if (const yaml::Node* v = n.find("types")) c.types = types(r, *v);
  if (const yaml::Node* v = n.find("library_types")) c.library_types = types(r, *v);
  if (const yaml::Node* v = n.find("epilogues")) c.epilogues = r.strings(*v);
  if (const yaml::Node* v = n.find("exact_epilogues")) c.exact_epilogues = r.strings(*v);
  if (const yaml::Node* v = n.find("strided")) c.strided = r.strings(*v);
  if (const yaml::Node* v = n.find("max_epilogue_ops")) c.max_epilogue_ops = count(r, *v, 1000);
  if (const yaml::Node* v = n.find("max_operands")) c.max_operands = count(r, *v, 1000);
  if (const yaml::Node* v = n.find("generated_tail")) c.generated_tail = r.boolean(*v);
}

void read_facts(yaml::Reader& r, const yaml::Node& root, Target& t) {
  if (const yaml::Node* v = root.find("device")) t.device = r.one_of(*v, {"cpu", "gpu"});
  if (const yaml::Node* v = root.find("cc")) t.cc = r.number(*v);
  if (const yaml::Node* v = root.find("isa")) t.isa = r.strings(*v);
  if (const yaml::Node* v = root.find("vector_bytes")) t.vector_bytes = count(r, *v, 4096);
  if (const yaml::Node* v = root.find("alignment")) t.alignment = count(r, *v, 4096);
  if (const yaml::Node* v = root.find("l2_bytes")) t.l2_bytes = r.integer(*v);
  if (const yaml::Node* v = root.find("cores")) t.cores = count(r, *v, 1 << 20);
  const yaml::Node* contracts = root.find("contracts");
  if (!contracts || !r.expect(*contracts, yaml::Node::Kind::map, "contracts")) return;
  for (const auto& [key, value] : contracts->entries) {
    if (!is_contract(key.text)) {
      const auto names = contract_names();
      const std::string near =
          yaml::nearest(key.text, std::vector<std::string_view>(names.begin(), names.end()));
      r.error(key, fmt::format("there is no contract {}", escape(key.text)),
              near.empty() ? "" : fmt::format("did you mean \"{}\"?", near), Code::rule_invalid);
    }
    if (value.is_scalar() && value.text == "none")
      t.contracts.erase(key.text);
    else
      read_contract(r, value, t.contracts[key.text]);
  }
}

Result<Target> load(std::span<const std::string> dirs, std::string_view name, int depth) {
  std::string path = path_of(dirs, name);
  std::string known;
  for (const std::string& n : target_names(dirs)) known += (known.empty() ? "" : ", ") + n;
  if (path.empty() || name.find('/') != name.npos)
    return error(Code::unknown_target, "", escape(name), known);
  FERRULE_ASSIGN(yaml::Document doc, yaml::read_file(path, Limits{}));
  yaml::Reader r(doc.source);
  Target t;
  if (r.expect(doc.root, yaml::Node::Kind::map, "a target")) {
    r.keys(doc.root, {"ferrule", "doc", "like", "device", "cc", "isa", "vector_bytes", "alignment",
                      "l2_bytes", "cores", "contracts"});
    r.required(doc.root, "ferrule");
    if (const yaml::Node* like = doc.root.find("like")) {
      if (depth >= kMaxLike)
        r.error(*like, "targets that are like each other in a circle", "", Code::rule_invalid);
      FERRULE_TRY(r.status());
      FERRULE_ASSIGN(t, load(dirs, like->text, depth + 1));
    } else {
      r.required(doc.root, "device");
      r.required(doc.root, "contracts");
    }
    read_facts(r, doc.root, t);
  }
  FERRULE_TRY(r.status());
  t.name = name;
  return t;
}

}  // namespace

bool Target::has_isa(std::string_view want) const {
  return std::find(isa.begin(), isa.end(), want) != isa.end();
}

std::vector<std::string> target_names(std::span<const std::string> rule_dirs) {
  std::set<std::string> names;
  std::error_code ec;
  for (const std::string& d : rule_dirs)
    for (const auto& entry : fs::directory_iterator(fs::path(d) / "targets", ec))
      if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
  return {names.begin(), names.end()};
}

Result<Target> load_target(std::span<const std::string> rule_dirs, std::string_view name) {
  return load(rule_dirs, name, 0);
}

Status use_profile(Target& target, std::string_view profile) {
  if (std::find(std::begin(kProfiles), std::end(kProfiles), profile) == std::end(kProfiles))
    return error(Code::usage, "--profile",
                 fmt::format("there is no profile {}; there are {}", escape(profile),
                             fmt::join(kProfiles, ", ")));
  target.profile = profile;
  return {};
}

CpuFeatures cpu_features() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  return {__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c"),
          __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")};
#else
  return {};
#endif
}

Result<std::string> host_target(CpuFeatures features) {
  if (features.avx512) return "cpu-avx512";
  if (features.avx2) return "cpu-avx2";
  return error(Code::machine_unsupported, "");
}

}  // namespace ferrule
