#include "engine/target/target.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "engine/base/join.h"
#include "engine/base/rule_version.h"
#include "engine/base/suggest.h"
#include "engine/base/yaml.h"

namespace ferrule {
namespace {

namespace fs = std::filesystem;

constexpr int kMaxLike = 8;

constexpr std::string_view kNumber = R"({"type":"number"})";
constexpr KeyDoc kTargetKeys[] = {
    {"ferrule", R"({"enum":[1,2]})", "version of the language; the first key"},
    {"doc", kText, "what machine it is"},
    {"like", kText,
     "a target whose facts hold where the file says nothing; its own name: that of the folders "
     "before"},
    {"device", R"({"enum":["cpu","gpu"]})", "what conditions and override files call it"},
    {"cc", kNumber, "GPUs: compute capability"},
    {"isa", kTexts, "instruction sets: avx2, avx512f, …"},
    {"vector_bytes", kCount, "width of a SIMD register"},
    {"alignment", kCount,
     "bytes at whose multiples every operand and result of its libraries' kernels begins"},
    {"l2_bytes", kCount, "of the L2 cache"},
    {"cores", kCount, "cores, or multiprocessors"},
    {"threads_per_core", kCount, "GPUs: threads that a multiprocessor holds"},
    {"blocks_per_core", kCount, "GPUs: blocks that it holds"},
    {"shared_bytes_per_core", kCount, "GPUs: its shared memory"},
    {"notices_nan", kBool,
     "runs in which a library's call may have hidden a NaN are done again: results do not differ"},
    {"contracts",
     R"({"type":"object","additionalProperties":{"anyOf":[{"const":"none"},{"$ref":"#/$defs/contract_facts"}]}})",
     "what each kernel contract can do; none: there are no such kernels"},
};
constexpr KeyDoc kContractKeys[] = {
    {"types", kTexts, "element types of the anchor's data operands"},
    {"library", R"({"enum":["onednn","cudnn","cublaslt"]})",
     "whose call runs the anchor with its tail"},
    {"library_types", kTexts, "generated kernels: types in which a library has some of the forms"},
    {"epilogues", kTexts, "steps of a tail that the library's call takes"},
    {"exact_epilogues", kTexts, "the same behind f32 whose factors are not rounded to tf32"},
    {"max_epilogue_ops", kCount, "most operators of a tail"},
    {"max_operands", kCount, "most tensors that a tail reads beside the result"},
    {"generated_tail", kBool, "any scalar program may follow"},
    {"strided", kTexts, "slices read and written in place: any, rows, 1x1, 3x3, depthwise"},
    {"forms", kTexts,
     "forms that not every target's kernels take: pool: dilated, wide_pads, indices, "
     "integers, any_layout; resize: cubic, antialias, any_axis, any_layout; conv, deconv, norm: "
     "computed; of stages: staged"},
    {"most_plain_channels", kCount, "f32 images of up to so many channels are read as they lie"},
    {"least_channels_last", kCount, "images of fewer channels are written plain"},
    {"images_as_rows", kBool, "whole images are pooled by kernels over rows"},
};

/// pool: windows with gaps, some that lie in the pads alone, positions of maxima, maxima of i8 and
/// u8 (without them among the types: rules leave poolings in float), and plain images as well as
/// channels-last ones; resize: of batch and channels,
/// too, and plain images; conv, deconv and norm: filters, factors and addends that the model
/// computes.
const std::map<std::string_view, std::vector<std::string_view>> kForms = {
    {"conv", {"computed"}},
    {"deconv", {"computed"}},
    {"norm", {"computed"}},
    {"pool", {"dilated", "wide_pads", "indices", "integers", "any_layout"}},
    {"resize", {"cubic", "antialias", "any_axis", "any_layout"}},
};
/// Contracts of stages: executed as these, whole results between them, else in strips that stay in
/// the L2 cache.
const std::vector<std::string_view> kFormsOfStages = {"staged"};
constexpr std::string_view kLibraries[] = {"onednn", "cudnn", "cublaslt"};  // as Library has them
/// What their calls compute.
const std::vector<std::string_view> kOfLibraries = {"conv", "deconv", "gemm"};
constexpr int64_t kMostChannels = 1 << 20;

/// The file of that name in the last of the directories that has one, whose files replace those of
/// earlier ones; `before`: how many come before it.
std::string path_of(std::span<const std::string> dirs, std::string_view folder,
                    std::string_view name, size_t* before = nullptr) {
  std::error_code ec;
  for (size_t k = dirs.size(); k-- > 0;) {
    fs::path p = fs::path(dirs[k]) / folder / (std::string(name) + ".yaml");
    if (!fs::is_regular_file(p, ec)) continue;
    if (before) *before = k;
    return p.string();
  }
  return {};
}

bool has_stages(std::span<const std::string> dirs, std::string_view contract) {
  const auto doc = yaml::read_file(path_of(dirs, "contracts", contract), Limits{});
  return doc && doc->root.find("stages");
}

/// Names of the YAML files in a folder of each.
std::vector<std::string> files_in(std::span<const std::string> dirs, std::string_view folder) {
  std::set<std::string> names;
  std::error_code ec;
  for (const std::string& d : dirs)
    for (const auto& entry : fs::directory_iterator(fs::path(d) / folder, ec))
      if (entry.path().extension() == ".yaml") names.insert(entry.path().stem().string());
  return {names.begin(), names.end()};
}

std::vector<DType> types(yaml::Reader& r, const yaml::Node& n) {
  return r.dtypes(n, r.strings(n), "f32, f16, bf16, f64, i8, u8, i32, i64, bool, …");
}

int count(yaml::Reader& r, const yaml::Node& n, int64_t most) {
  int64_t i = r.integer(n);
  if (i >= 0 && i <= most) return static_cast<int>(i);
  r.error(n, fmt::format("{} is not between 0 and {}", i, most));
  return 0;
}

std::vector<std::string> forms(yaml::Reader& r, const yaml::Node& n, std::string_view contract,
                               std::span<const std::string> dirs) {
  const auto named = kForms.find(contract);
  const auto known = named != kForms.end()        ? named->second
                     : has_stages(dirs, contract) ? kFormsOfStages
                                                  : std::vector<std::string_view>();
  std::vector<std::string> out = r.strings(n);
  for (const std::string& form : out)
    if (!contains(known, form))
      r.error(n, fmt::format("{} has no form \"{}\"", contract, escape(form)),
              known.empty() ? "leave it out" : fmt::format("{}", fmt::join(known, ", ")));
  return out;
}

Library library(yaml::Reader& r, const yaml::Node& n) {
  const auto at = std::ranges::find(kLibraries, r.one_of(n, kLibraries));
  return at == std::end(kLibraries) ? Library::other
                                    : static_cast<Library>(at - std::begin(kLibraries) + 1);
}

/// Only what the file says changes; the rest stays as `like` had it.
void read_contract(yaml::Reader& r, const yaml::Node& n, std::string_view name,
                   std::span<const std::string> dirs, ContractFacts& c) {
  if (!r.expect(n, yaml::Node::Kind::map, "facts of a contract")) return;
  r.keys(n, kContractKeys);
  if (const yaml::Node* v = n.find("types")) c.types = types(r, *v);
  if (const yaml::Node* v = n.find("library")) {
    c.library = library(r, *v);
    if (!contains(kOfLibraries, name))
      r.error(*v, fmt::format("no library has calls for {}", name),
              fmt::format("leave it out; libraries have {}", fmt::join(kOfLibraries, ", ")));
  }
  if (const yaml::Node* v = n.find("library_types")) c.library_types = types(r, *v);
  if (const yaml::Node* v = n.find("epilogues")) c.epilogues = r.strings(*v);
  if (const yaml::Node* v = n.find("exact_epilogues")) c.exact_epilogues = r.strings(*v);
  if (const yaml::Node* v = n.find("strided")) c.strided = r.strings(*v);
  if (const yaml::Node* v = n.find("max_epilogue_ops")) c.max_epilogue_ops = count(r, *v, 1000);
  if (const yaml::Node* v = n.find("max_operands")) c.max_operands = count(r, *v, 1000);
  if (const yaml::Node* v = n.find("generated_tail")) c.generated_tail = r.boolean(*v);
  if (const yaml::Node* v = n.find("forms")) c.forms = forms(r, *v, name, dirs);
  if (const yaml::Node* v = n.find("most_plain_channels"))
    c.most_plain_channels = count(r, *v, kMostChannels);
  if (const yaml::Node* v = n.find("least_channels_last"))
    c.least_channels_last = count(r, *v, kMostChannels);
  if (const yaml::Node* v = n.find("images_as_rows")) c.images_as_rows = r.boolean(*v);
}

void read_facts(yaml::Reader& r, const yaml::Node& root, Target& t,
                std::span<const std::string> dirs) {
  if (const yaml::Node* v = root.find("device")) t.device = r.one_of(*v, {"cpu", "gpu"});
  if (const yaml::Node* v = root.find("cc")) t.cc = r.number(*v);
  if (const yaml::Node* v = root.find("isa")) t.isa = r.strings(*v);
  if (const yaml::Node* v = root.find("vector_bytes")) t.vector_bytes = count(r, *v, 4096);
  if (const yaml::Node* v = root.find("alignment")) t.alignment = count(r, *v, 4096);
  if (const yaml::Node* v = root.find("l2_bytes")) t.l2_bytes = r.integer(*v);
  if (const yaml::Node* v = root.find("cores")) t.cores = count(r, *v, 1 << 20);
  if (const yaml::Node* v = root.find("threads_per_core"))
    t.threads_per_core = count(r, *v, 1 << 20);
  if (const yaml::Node* v = root.find("blocks_per_core")) t.blocks_per_core = count(r, *v, 1 << 20);
  if (const yaml::Node* v = root.find("shared_bytes_per_core"))
    t.shared_bytes_per_core = count(r, *v, 1 << 30);
  if (const yaml::Node* v = root.find("notices_nan")) t.notices_nan = r.boolean(*v);
  const yaml::Node* contracts = root.find("contracts");
  if (!contracts || !r.expect(*contracts, yaml::Node::Kind::map, "contracts")) return;
  const std::vector<std::string> known = contract_names(dirs);
  for (const auto& [key, value] : contracts->entries) {
    if (!contains(known, key.text))
      r.invalid(key, fmt::format("there is no contract {}", escape(key.text)),
                did_you_mean(key.text, known));
    if (value.is_scalar() && value.text == "none")
      t.contracts.erase(key.text);
    else
      read_contract(r, value, key.text, dirs, t.contracts[key.text]);
  }
}

/// `all`: where contracts are; `dirs`: those of them in which the target is looked for.
Result<Target> load(std::span<const std::string> all, std::span<const std::string> dirs,
                    std::string_view name, int depth) {
  size_t before = 0;
  std::string path = path_of(dirs, "targets", name, &before);
  if (path.empty() || name.find('/') != name.npos)
    return error(Code::unknown_target, "", escape(name), joined(target_names(dirs)));
  FERRULE_ASSIGN(yaml::Document doc, yaml::read_file(path, Limits{}));
  yaml::Reader r(doc.source);
  Target t;
  if (r.expect(doc.root, yaml::Node::Kind::map, "a target")) {
    r.keys(doc.root, kTargetKeys);
    check_version(r, doc.root);
    if (const yaml::Node* like = doc.root.find("like")) {
      if (depth >= kMaxLike) r.invalid(*like, "targets that are like each other in a circle");
      FERRULE_TRY(r.status());
      const bool own = like->text == name;  // the one that this file replaces
      auto base = load(all, own ? dirs.first(before) : all, like->text, depth + 1);
      if (!base && base.error().place.empty())  // there is none
        base.error().place = fmt::format("{}:{}:{}", path, like->line, like->column);
      FERRULE_ASSIGN(t, std::move(base));
    } else {
      r.required(doc.root, "device");
      r.required(doc.root, "contracts");
    }
    read_facts(r, doc.root, t, all);
  }
  FERRULE_TRY(r.status());
  t.name = name;
  return t;
}

}  // namespace

bool Target::has_isa(std::string_view want) const { return contains(isa, want); }

const ContractFacts& Target::facts_of(std::string_view contract) const {
  static const ContractFacts kNone;
  const auto it = contracts.find(std::string(contract));
  return it == contracts.end() ? kNone : it->second;
}

bool ContractFacts::takes(std::string_view form) const { return contains(forms, form); }

std::span<const KeyDoc> target_keys() { return kTargetKeys; }
std::span<const KeyDoc> contract_fact_keys() { return kContractKeys; }

std::vector<std::string> target_names(std::span<const std::string> rule_dirs) {
  return files_in(rule_dirs, "targets");
}
std::vector<std::string> contract_names(std::span<const std::string> rule_dirs) {
  return files_in(rule_dirs, "contracts");
}

Result<Target> load_target(std::span<const std::string> rule_dirs, std::string_view name) {
  return load(rule_dirs, rule_dirs, name, 0);
}

Status use_profile(Target& target, std::string_view profile) {
  if (!contains(kProfiles, profile))
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
