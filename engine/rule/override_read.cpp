// Override files as text: the reader and the schema, from one table of keys.
#include <nlohmann/json.hpp>

#include "engine/base/rule_version.h"
#include "engine/rule/load_rule.h"
#include "engine/rule/override.h"

namespace ferrule {
namespace {

constexpr std::string_view kSwitch = R"({"anyOf":[{"const":true},{"$ref":"#/$defs/scope"}]})";

constexpr KeyDoc kScopeKeys[] = {
    {"nodes", kTexts, "globs over node names; a match with one such node is meant"},
    {"dtype", kTexts, "element types of the match's first result"},
    {"device", kTexts, "cpu, gpu, or globs over targets: \"sm_*\""},
    {"reason", kText, "shown by explain"},
};
constexpr KeyDoc kEntryKeys[] = {
    {"rule", kText, "glob over rule ids"},
    {"contract", kText, "or over contracts: all rules that make groups of them"},
    {"nodes", kTexts, kScopeKeys[0].doc},
    {"dtype", kTexts, kScopeKeys[1].doc},
    {"device", kTexts, kScopeKeys[2].doc},
    {"reason", kText, kScopeKeys[3].doc},
    {"off", kSwitch, "true, or where the rule is off: {nodes: [\"/layer1/*\"], reason: …}"},
    {"on", kSwitch, "true, or where the rule is on"},
    {"set", R"({"type":"object","additionalProperties":{"type":["number","boolean","string"]}})",
     "parameters of the rule: {params.max_ops: 8}"},
    {"where+", R"({"type":"array","items":{"$ref":"#/$defs/condition"}})",
     "conditions asked beside the rule's own"},
};

class FileReader {
 public:
  FileReader(yaml::Reader& r, const yaml::Document& doc) : r_(r), doc_(doc) {}

  void run(std::vector<Override>& out) {
    if (!r_.expect(doc_.root, yaml::Node::Kind::map, "an override file")) return;
    r_.keys(doc_.root, {"ferrule", "override"});
    check_version(r_, doc_.root);
    const yaml::Node* list = r_.required(doc_.root, "override");
    if (!list || !r_.expect(*list, yaml::Node::Kind::sequence, "a list of entries")) return;
    for (const yaml::Node& n : list->items) entry(n, out);
  }

 private:
  void entry(const yaml::Node& n, std::vector<Override>& out) {
    if (!r_.expect(n, yaml::Node::Kind::map, "an entry")) return;
    const size_t before = r_.count();
    r_.keys(n, kEntryKeys);
    const bool known = r_.count() == before;
    Override e;
    e.source = doc_.source;
    e.contract = n.find("contract") != nullptr;
    if (e.contract && n.find("rule"))
      r_.invalid(n, "an entry is of rules or of a contract, not both");
    if (const yaml::Node* at = r_.required(n, e.contract ? "contract" : "rule"))
      e.rule = r_.string(*at), e.key = *at;
    scope(n, e);
    for (const char* key : {"off", "on"})
      if (const yaml::Node* s = n.find(key)) switched(*s, key, e);
    if (const yaml::Node* s = n.find("set")) settings(*s, e);
    if (const yaml::Node* w = n.find("where+");
        w && r_.expect(*w, yaml::Node::Kind::sequence, "a list of conditions"))
      for (const yaml::Node& c : w->items)
        if (auto condition = read_condition(r_, c, true))
          e.where.emplace_back(std::move(*condition), c);
    if (known && !e.on && !n.find("set") && !n.find("where+"))
      r_.invalid(n, "an entry that changes nothing", "give off, on, set or where+");
    out.push_back(std::move(e));
  }

  void scope(const yaml::Node& n, Override& e) {
    auto texts = [&](const char* key, std::vector<std::string>& to) {
      const yaml::Node* v = n.find(key);
      if (!v) return;
      if (!to.empty()) r_.invalid(*v, fmt::format("{} is given twice", key));
      to = r_.strings(*v);
      if (to.empty())
        r_.invalid(*v, fmt::format("{} is empty, so the entry would concern nothing", key),
                   "leave it out");
    };
    texts("nodes", e.nodes);
    texts("device", e.devices);
    std::vector<std::string> types;
    texts("dtype", types);
    if (const yaml::Node* v = n.find("dtype")) e.types = r_.dtypes(*v, types);
    if (const yaml::Node* v = n.find("reason")) e.reason = r_.string(*v);
  }

  void switched(const yaml::Node& n, const std::string& key, Override& e) {
    if (e.on) r_.invalid(n, "an entry is on or off, not both", "write two entries");
    e.on = key == "on";
    if (n.is_map()) {
      r_.keys(n, kScopeKeys);
      return scope(n, e);
    }
    if (!n.is_scalar() || n.text != "true" || n.quoted)
      r_.invalid(n, fmt::format("{}: true, or where: {{nodes: […], reason: …}}", key),
                 n.is_scalar() && n.text == "false"
                     ? fmt::format("write {}: true", *e.on ? "off" : "on")
                     : "");
  }

  void settings(const yaml::Node& n, Override& e) {
    if (!r_.expect(n, yaml::Node::Kind::map, "parameters")) return;
    for (const auto& [key, value] : n.entries) {
      if (!key.text.starts_with("params.") || key.text.size() == 7)
        r_.invalid(key, fmt::format("\"{}\" is no parameter", escape(key.text)),
                   fmt::format("write params.{}", escape(key.text)));
      else if (r_.expect(value, yaml::Node::Kind::scalar, "the value of a parameter"))
        e.set.push_back({key.text.substr(7), key, value});
    }
    if (n.entries.empty()) r_.invalid(n, "set without parameters");
  }

  yaml::Reader& r_;
  const yaml::Document& doc_;
};

using Json = nlohmann::ordered_json;

}  // namespace

std::vector<Override> load_overrides(std::span<const std::string> files, const Limits& limits,
                                     std::vector<Error>& errors) {
  std::vector<Override> out;
  for (const std::string& file : files) {
    auto doc = yaml::read_file(file, limits);
    if (!doc) {
      append(errors, std::move(doc).error());
      continue;
    }
    yaml::Reader r(doc->source);
    FileReader(r, *doc).run(out);
    if (auto s = r.status(); !s) append(errors, std::move(s).error());
  }
  return out;
}

std::string override_schema() {
  std::vector<KeyDoc> condition(condition_keys().begin(), condition_keys().end());
  condition.insert(condition.begin() + 1, when_key());
  Json c = object_schema(condition, {"id"});
  c["oneOf"] = {{{"required", {"when"}}},
                {{"required", {"sound"}}},
                {{"required", {"kernel"}}},
                {{"required", {"profit"}}}};
  Json entry = object_schema(kEntryKeys, {});
  Json schema = {{"$schema", "https://json-schema.org/draft/2020-12/schema"},
                 {"title", "ferrule override file"},
                 {"description",
                  "Generated by `ferrule rules schema --override`; explained in rules/README.md."},
                 {"type", "object"},
                 {"additionalProperties", false},
                 {"required", {"ferrule", "override"}},
                 {"properties",
                  {{"ferrule", {{"enum", {1, 2}}}},
                   {"override", {{"type", "array"}, {"items", std::move(entry)}}}}}};
  schema["$defs"] = {{"scope", object_schema(kScopeKeys, {})}, {"condition", std::move(c)}};
  return schema.dump(2) + "\n";
}

}  // namespace ferrule
