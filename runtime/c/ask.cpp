// Questions about a model, which need not be able to run: explain, why, missed.
#include <sstream>

#include "runtime/answers/why.h"
#include "runtime/c/internal.h"
#include "runtime/registry.h"
#include "runtime/shared_knowledge.h"

using namespace ferrule;
using namespace ferrule::c;
using json = nlohmann::json;

namespace {

using Q = ferrule_question;

/// A model, and what plans it.
struct Asked {
  std::shared_ptr<const Knowledge> knowledge;
  EngineOptions options;
  LowerOptions lowering;
  Imported model;
};

Result<Asked> load(const Q* q, bool own_origins) {
  Asked a;
  FERRULE_ASSIGN(SessionOptions session, options_of(member(q, &Q::options)));
  a.options = std::move(session.engine);
  a.lowering = {.strict = session.strict, .fast_math = session.fast_math};
  if (a.options.target.empty()) {
    FERRULE_ASSIGN(BackendChoice choice, choose_backend(session.backend, "", session.require_device,
                                                        target_names(a.options.rule_dirs)));
    a.options.target = std::move(choice.target);
  }
  FERRULE_ASSIGN(a.options.shapes, shapes_of(member(q, &Q::shapes), member(q, &Q::shape_count)));
  FERRULE_ASSIGN(a.knowledge, shared_knowledge(a.options));
  ImportOptions import;
  import.limits = &a.options.limits;
  import.overridable = a.options.overridable;
  import.own_origins = own_origins;
  import.ops = &a.knowledge->ops;
  if (const char* path = member(q, &Q::path)) {
    FERRULE_ASSIGN(a.model, import_file(path, import));
    return a;
  }
  const void* bytes = member(q, &Q::model);
  if (!bytes) return misuse("question", "it has neither a path nor a model");
  FERRULE_ASSIGN(a.model,
                 import_bytes({static_cast<const char*>(bytes), member(q, &Q::bytes)}, import));
  return a;
}

Result<std::string> explained(const Q* q) {
  FERRULE_ASSIGN(Asked a, load(q, false));
  a.options.near_misses = true;
  FERRULE_ASSIGN(const auto e, explain(std::move(a.model), a.knowledge, a.options, a.lowering));
  std::ostringstream out;
  {
    JsonStream stream(out);
    write_explained(*e, nullptr, stream);
  }
  return out.str();
}

std::string dumped(json j, const why::Observed& o) {
  j["schema_version"] = kSchemaVersion;
  j["target"] = o.plan.target;
  return j.dump(2, ' ', false, json::error_handler_t::replace);
}

Result<std::string> asked_why(const Q* q) {
  const std::string other = text(member(q, &Q::other)), rule = text(member(q, &Q::rule));
  std::string node = text(member(q, &Q::node));
  if (node.empty() && (rule.empty() || !other.empty()))
    return misuse("question", "why asks about a node, two, or a rule");
  FERRULE_ASSIGN(Asked a, load(q, true));
  FERRULE_ASSIGN(const why::Observed o, observe(std::move(a.model), std::move(a.knowledge),
                                                std::move(a.options), a.lowering));
  why::Inquiry inquiry(o);
  if (!other.empty()) {
    FERRULE_ASSIGN(const why::PairAnswer answer, inquiry.pair(node, other, rule, kTries));
    return dumped({{"pair", to_json(o, answer)}}, o);
  }
  const bool alone = node.empty();
  if (alone) {
    auto nearest = nearest_node(o, inquiry, rule);
    const std::vector<std::string> made = made_by(o, rule);
    if (!nearest && !made.empty())  // it took none of the model's own nodes
      return dumped({{"nodes", json::array()}, {"fired", names_json(made)}}, o);
    FERRULE_ASSIGN(node, std::move(nearest));
  }
  FERRULE_ASSIGN(const why::NodeAnswer answer, inquiry.node(node, rule, kTries));
  json j{{"nodes", json::array({to_json(o, answer)})}};
  if (alone) j["fired"] = names_json(made_by(o, rule));
  return dumped(std::move(j), o);
}

Result<std::string> missed(const Q* q) {
  constexpr int32_t kTop = 20;
  const int32_t top = member(q, &Q::top);
  if (top < 0) return misuse("question", fmt::format("top is {}", top));
  FERRULE_ASSIGN(Asked a, load(q, true));
  FERRULE_ASSIGN(const why::Observed o, observe(std::move(a.model), std::move(a.knowledge),
                                                std::move(a.options), a.lowering));
  why::Inquiry inquiry(o);
  const why::Missed all = inquiry.missed(static_cast<size_t>(top ? top : kTop), kTriesOfMissed);
  return dumped(to_json(all, inquiry.assumed()), o);
}

}  // namespace

ferrule_status* ferrule_ask(int32_t about, const ferrule_question* q, char** text_out) {
  if (text_out) *text_out = nullptr;
  return guarded("question", [&]() -> Status {
    FERRULE_TRY(given({{"question", q}, {"json", text_out}}));
    FERRULE_TRY(known(*q, "question"));
    std::string answer;
    if (about == FERRULE_EXPLAIN) {
      FERRULE_ASSIGN(answer, explained(q));
    } else if (about == FERRULE_WHY) {
      FERRULE_ASSIGN(answer, asked_why(q));
    } else if (about == FERRULE_MISSED) {
      FERRULE_ASSIGN(answer, missed(q));
    } else {
      return misuse("about", fmt::format("{} is none of ferrule_about", about));
    }
    *text_out = handed_out(answer);
    return {};
  });
}
