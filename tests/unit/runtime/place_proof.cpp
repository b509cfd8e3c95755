// Parts that a place rule says lie in another value: where they do, and where a plan says they lie
// elsewhere, or over each other.
#include "runtime/place_proof.h"

#include "codegen/annotate_plan.h"
#include "engine/plan/place.h"
#include "tests/unit/engine/kit.h"

using namespace kit;

namespace {

struct Places {
  Plan plan;
  Places(const std::string& text, const std::string& body) {
    Graph g = graph(text);
    RuleSet set;
    set.phases.push_back({"place", "", true, {}});
    set.rules.push_back(rule("t", "kind: place\nphase: place\n" + body));
    Journal journal;
    for (const char* c : {"pointwise", "copy"}) target().contracts[c].strided = {"any"};
    must(place_phase(pass_context(g, set, journal), "place"));
    target().contracts["pointwise"].strided.clear(), target().contracts.erase("copy");
    plan = must(make_plan(std::move(g), target(), ops()));
  }
  Placed check() {
    const Lowered lowered = must(lower(plan, ops(), target(), {}));
    InterpreterOptions options;
    options.ops = &ops();
    return check_places(plan, lowered, "t", options);
  }
  SliceOf& slice(const char* part) { return plan.slices.at(plan.graph.find_value(part)); }
};

const std::string kJoin = "match: \"y = Concat<axis=$a>(xs...)\"\nplace: {xs: \"slices(y, a)\"}\n";
const std::string kTake =
    "match: \"ys... = Split<axis=$a, ...>(x, rest...)\"\nplace: {ys: \"slices(x, a)\"}\n";

}  // namespace

TEST_CASE("parts that are written or read in place lie where the movement puts them") {
  Places joined(R"(agraph (float[2,3] x) => (float[2,9] y) {
    a = Relu(x)
    b = Abs(x)
    c = Concat<axis=1>(a, b)
    d = Neg(x)
    y = Concat<axis=1>(c, d)
  })",
                kJoin);
  CHECK(joined.check().wrong == "");
  CHECK(joined.check().parts == 4);
  joined.slice("b").start = 0;  // over a
  CHECK(joined.check().wrong.find("element 0 of b lies at") != std::string::npos);
  joined.slice("b").start = 3;
  joined.slice("d").start = 5;  // one column early
  CHECK(joined.check().wrong.find("of d lies at") != std::string::npos);
  joined.plan.slices.clear();  // copied after all
  CHECK(joined.check().parts == 0);

  Places taken(R"(agraph (float[6,4] x) => (float[2,4] y, float[4,4] z) <int64[2] s = {2, 4}> {
    w = Relu(x)
    a, b = Split<axis=0>(w, s)
    y = Neg(a)
    z = Abs(b)
  })",
               kTake);
  CHECK(taken.check().wrong == "");
  CHECK(taken.check().parts == 2);
  taken.slice("b").start = 1;
  CHECK(taken.check().wrong.find("of b lies at") != std::string::npos);
}
