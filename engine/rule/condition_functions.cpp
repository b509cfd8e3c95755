#include "engine/rule/condition_functions.h"

#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/target/target.h"

namespace ferrule {
namespace {

struct Word {
  std::string_view name;
  std::string_view doc;
};
// Broadcast kinds and device kinds are strings; true, false, inf, nan and element types are values.
constexpr Word kKinds[] = {
    {"none", "bcast: the same shape"},
    {"scalar", "bcast: one element"},
    {"row", "bcast: varies along the last axis only"},
    {"channel", "bcast: varies along axis 1 only"},
    {"batch", "bcast: like the result but with batch size 1"},
    {"general", "bcast: any other broadcast to the result's shape"},
    {"impossible", "bcast: not a broadcast to the result's shape"},
    {"cpu", "device"},
    {"gpu", "device"},
    {"ferrule", "profile"},
    {"tensorrt", "profile"},
};

struct Fact {
  std::string_view name, doc;
  Val (*read)(const Target& t);
};
constexpr Fact kFacts[] = {
    {"device", "cpu or gpu", [](const Target& t) { return Val{t.device}; }},
    {"profile", "whose limits hold: ferrule, or tensorrt with --profile tensorrt",
     [](const Target& t) { return Val{t.profile}; }},
    {"target", "the target's name", [](const Target& t) { return Val{t.name}; }},
    {"cc", "compute capability, 0 on a CPU", [](const Target& t) { return Val{t.cc}; }},
    {"l2_bytes", "size of the L2 cache", [](const Target& t) { return Val{t.l2_bytes}; }},
    {"cores", "cores or multiprocessors", [](const Target& t) { return Val{int64_t{t.cores}}; }},
    {"vector_bytes", "width of a SIMD register",
     [](const Target& t) { return Val{int64_t{t.vector_bytes}}; }},
};

/// Reads arity and parameter kinds off "(x: value, rtol: number = 0.001) -> bool".
void read_signature(Function& f) {
  std::string_view s = f.entry.signature;
  size_t close = s.find(") ->");
  FERRULE_ASSERT(s.starts_with('(') && close != s.npos, "a vocabulary signature is malformed");
  s = s.substr(1, close - 1);
  while (!s.empty()) {
    size_t comma = std::min(s.find(','), s.size());
    std::string_view parameter = s.substr(0, comma);
    size_t colon = parameter.find(": ");
    FERRULE_ASSERT(colon != parameter.npos, "a vocabulary parameter has no kind");
    std::string_view kind = parameter.substr(colon + 2);
    bool repeated = kind.ends_with("...");
    bool optional = kind.find(" = ") != kind.npos;
    kind = kind.substr(0, kind.find_first_of(" ."));
    f.wanted.push_back(kind);
    f.max_args = repeated ? 1000 : f.max_args + 1;
    if (!optional && !repeated) ++f.min_args;
    s.remove_prefix(std::min(comma + 2, s.size()));
  }
}

std::vector<Function> build() {
  std::vector<Function> all;
  for (auto table : {shape_functions(), constant_functions(), node_functions(), graph_functions(),
                     layout_functions()})
    for (const Function& f : table) read_signature(all.emplace_back(f));
  return all;
}

}  // namespace

const std::vector<Function>& functions() {
  static const std::vector<Function> all = build();
  return all;
}

const Function* find_function(std::string_view name) {
  static const auto index = [] {
    std::unordered_map<std::string_view, const Function*> m;
    for (const Function& f : functions())
      FERRULE_ASSERT(m.emplace(f.entry.name, &f).second, "a vocabulary function is listed twice");
    return m;
  }();
  auto it = index.find(name);
  return it == index.end() ? nullptr : it->second;
}

const std::vector<VocabularyEntry>& vocabulary() {
  static const std::vector<VocabularyEntry> entries = [] {
    std::vector<VocabularyEntry> v;
    for (const Function& f : functions()) v.push_back(f.entry);
    for (const Fact& f : kFacts) v.push_back({f.name, "", f.doc});
    for (const Word& w : kKinds) v.push_back({w.name, "", w.doc});
    return v;
  }();
  return entries;
}

std::optional<Val> word(std::string_view name) {
  if (name == "true") return Val{true};
  if (name == "false") return Val{false};
  if (name == "inf") return Val{HUGE_VAL};
  if (name == "nan") return Val{std::nan("")};
  for (const Word& w : kKinds)
    if (w.name == name) return Val{std::string(name)};
  if (auto t = parse_dtype(name); t && ferrule::name(*t) == name) return Val{*t};
  return std::nullopt;
}

bool is_fact(std::string_view name) {
  return std::ranges::any_of(kFacts, [&](const Fact& f) { return f.name == name; });
}

Val fact(std::string_view name, const EvalContext& ctx) {
  for (const Fact& f : kFacts)
    if (f.name == name)
      return ctx.target ? f.read(*ctx.target) : unknown(fmt::format("{} (no target)", name));
  return unknown(std::string(name));
}

std::vector<std::string> word_names() {
  std::vector<std::string> all = {"true", "false", "inf", "nan"};
  for (const Word& w : kKinds) all.emplace_back(w.name);
  for (const Fact& f : kFacts) all.emplace_back(f.name);
  return all;
}

// --- values
// ------------------------------------------------------------------------------------------

Val make_dim(const Dim& d) {
  if (auto c = d.constant()) return Val{*c};
  return Val{d};
}

Val make_truth(Truth t, std::string_view fact) {
  if (t == Truth::unknown) return unknown(std::string(fact));
  return Val{t == Truth::yes};
}

Val ints(const std::vector<int64_t>& v) {
  Val::List l;
  for (int64_t i : v) l.push_back(Val{i});
  return make_list(std::move(l));
}

Val from_attr(const Attr& a) {
  if (auto l = std::get_if<std::vector<int64_t>>(&a)) return ints(*l);
  Val::List out;
  if (auto l = std::get_if<std::vector<double>>(&a)) {
    for (double d : *l) out.push_back(Val{d});
    return make_list(std::move(out));
  }
  if (auto l = std::get_if<std::vector<std::string>>(&a)) {
    for (const std::string& s : *l) out.push_back(Val{s});
    return make_list(std::move(out));
  }
  if (auto i = std::get_if<int64_t>(&a)) return Val{*i};
  if (auto d = std::get_if<double>(&a)) return Val{*d};
  if (auto s = std::get_if<std::string>(&a)) return Val{*s};
  return Val{std::get<Tensor>(a)};
}

std::optional<Dim> as_dim(const Val& v) {
  if (auto i = get<int64_t>(v)) return Dim(*i);
  if (auto d = get<Dim>(v)) return *d;
  return std::nullopt;
}

std::optional<double> as_number(const Val& v) {
  if (auto i = get<int64_t>(v)) return static_cast<double>(*i);
  if (auto d = get<double>(v)) return *d;
  return std::nullopt;
}

std::optional<std::vector<int64_t>> as_ints(const Val& v) {
  const Val::List* l = list_of(v);
  if (!l) return std::nullopt;
  std::vector<int64_t> out;
  for (const Val& item : *l) {
    auto i = get<int64_t>(item);
    if (!i) return std::nullopt;
    out.push_back(*i);
  }
  return out;
}

std::string quoted(const EvalContext& ctx, ValueId v) {
  return v ? '"' + escape(ctx.graph.value(v).name, 80) + '"' : "?";
}

}  // namespace ferrule
