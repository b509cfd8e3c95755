// What planning costs: random graphs of windows and movements, and the limits of its loops.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>

#include "engine/group/window.h"
#include "engine/plan/choose_layouts.h"
#include "engine/plan/plan.h"
#include "tests/unit/engine/shipped.h"

using namespace kit;

namespace {

/// Convolutions, pools, sums, concatenations, splits and slices of images of 8x8 pixels, each value
/// read by any number of later nodes.
class RandomImages {
 public:
  explicit RandomImages(uint64_t seed) : seed_(seed) {}

  std::string text() {
    images_.push_back({"x", 8});
    const int64_t nodes = 5 + draw(56);
    for (int64_t k = 0; k < nodes; ++k) add();
    const Image last = images_.back();  // result_of_eight may add to them
    return fmt::format(
        "g (float[1,8,8,8] x) => (float[1,{},8,8] {}{}) <{}> {{\n{}}}", last.channels, last.name,
        draw(3) ? "" : fmt::format(", float[1,8,8,8] {}", result_of_eight()), constants_, body_);
  }

 private:
  struct Image {
    std::string name;
    int64_t channels;
  };

  int64_t draw(int64_t below) {
    seed_ = seed_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<int64_t>((seed_ >> 33) % static_cast<uint64_t>(below));
  }
  Image any() { return images_[static_cast<size_t>(draw(static_cast<int64_t>(images_.size())))]; }
  void line(const Image& made, std::string text) {
    body_ += fmt::format("  {} = {}\n", made.name, text);
    images_.push_back(made);
  }
  Image fresh(int64_t channels) { return {fmt::format("v{}", next_++), channels}; }
  std::string numbers(const std::vector<int64_t>& all) {
    std::string name = fmt::format("c{}", next_++);
    constants_ += fmt::format("{}int64[{}] {} = {{{}}}", constants_.empty() ? "" : ", ", all.size(),
                              name, fmt::join(all, ", "));
    return name;
  }
  std::string result_of_eight() {
    const Image y = fresh(8);
    convolution(y, images_.back(), 1);
    images_.pop_back();
    return y.name;
  }
  void convolution(const Image& y, const Image& x, int64_t window) {
    const std::string weights = fmt::format("w{}", next_++);
    body_ += fmt::format("  {} = ConstantOfShape<value = float[1] {{0.5}}>({})\n", weights,
                         numbers({y.channels, x.channels, window, window}));
    const int64_t pad = window / 2;
    line(y, fmt::format("Conv<pads = [{0}, {0}, {0}, {0}]>({1}, {2})", pad, x.name, weights));
  }

  void add() {
    const Image x = any();
    switch (draw(8)) {
      case 0:
      case 1:
        return convolution(fresh(4 * (1 + draw(4))), x, draw(2) ? 3 : 1);
      case 2:
        return line(fresh(x.channels), fmt::format("Relu({})", x.name));
      case 3:
        return line(fresh(x.channels),
                    fmt::format("{}<kernel_shape = [3, 3], pads = [1, 1, 1, 1]>({})",
                                draw(2) ? "MaxPool" : "AveragePool", x.name));
      case 4: {
        const Image z = any();
        if (z.channels == x.channels && z.name != x.name)
          return line(fresh(x.channels), fmt::format("Add({}, {})", x.name, z.name));
        [[fallthrough]];
      }
      case 5: {
        const Image y = any(), z = any();
        if (x.channels + y.channels + z.channels > 96) return;
        return line(fresh(x.channels + y.channels + z.channels),
                    fmt::format("Concat<axis = 1>({}, {}, {})", x.name, y.name, z.name));
      }
      case 6: {
        if (x.channels % 2) return;
        const Image a = fresh(x.channels / 2), b = fresh(x.channels / 2);
        images_.push_back(a);
        return line(b, fmt::format("Split<axis = 1, num_outputs = 2>({})", x.name), a.name);
      }
      default: {
        const int64_t from = draw(x.channels), to = from + 1 + draw(x.channels - from);
        return line(fresh(to - from), fmt::format("Slice({}, {}, {}, {})", x.name, numbers({from}),
                                                  numbers({to}), numbers({1})));
      }
    }
  }
  void line(const Image& made, const std::string& text, const std::string& first) {
    body_ += fmt::format("  {}, {} = {}\n", first, made.name, text);
    images_.push_back(made);
  }

  uint64_t seed_;
  int next_ = 0;
  std::vector<Image> images_;
  std::string body_, constants_;
};

const Knowledge& knowledge_of(const char* target) {
  static std::map<std::string, std::shared_ptr<const Knowledge>> all;
  auto& k = all[target];
  if (!k) {
    EngineOptions o;
    o.rule_dirs = {rules_dir()};
    o.target = target;
    k = must(load_knowledge(o));
  }
  return *k;
}

}  // namespace

TEST_CASE("planning takes work in proportion to the graph: a thousand random ones") {
  for (const char* target : {"cpu-avx512", "sm_90"})
    for (uint64_t seed = 0; seed < 500; ++seed) {
      const std::string text = RandomImages(seed * 2 + (target[0] == 's')).text();
      CAPTURE(target);
      CAPTURE(text);
      Graph g = graph(text);
      EngineOptions o;
      o.limits.match_steps_model = 200 * static_cast<int64_t>(g.live_nodes() + 8);
      o.limits.groups_per_node = 2;
      o.limits.rewrites_per_node = 2;
      const Knowledge& k = knowledge_of(target);
      Fused f = must(fuse(std::move(g), k, o));
      const size_t nodes = f.graph.live_nodes();
      Plan plan = must(make_plan(std::move(f.graph), k.target, k.ops));
      must(verify(plan.graph));
      CHECK(plan.layers.size() <= 2 * nodes + 1);
    }
}

TEST_CASE("layouts are asked without changing the graph, and a plan is what they say") {
  Graph g = graph(RandomImages(7).text());
  must(g.sort());
  const std::string before = to_text(g);
  const Knowledge& k = knowledge_of("cpu-avx512");
  const Layouts asked = layouts_of(g, k.target, k.ops);
  CHECK(to_text(g) == before);
  const size_t nodes = g.live_nodes();
  const Plan plan = must(make_plan(std::move(*g.clone()), k.target, k.ops));
  CHECK(plan.layers.size() == nodes + asked.reorders.size());
  for (size_t v = 0; v < asked.of.size(); ++v) CHECK(plan.layouts[v] == asked.of[v]);
}

TEST_CASE("a part that is also copied into the other layout is written into its place") {
  const Knowledge& k = knowledge_of("cpu-avx2");
  Fused f = must(
      fuse(graph("g (float[1,8,9,9] x, float[1,8,9,9] y) => (float[1,8,7,7] z, float[1,8,9,9] a) "
                 "<int64[4] s = {8, 8, 1, 1}, int64[4] t = {8, 16, 3, 3}> {\n"
                 "w = ConstantOfShape(s)\n u = ConstantOfShape(t)\n"
                 "c = Conv(x, w)\n a = Relu(c)\n d = Conv(y, w)\n b = Sigmoid(d)\n"
                 "j = Concat<axis = 1>(a, b)\n z = Conv(j, u) }"),
           k, {}));
  const Plan plan = must(make_plan(std::move(f.graph), k.target, k.ops));
  CHECK(plan.slices.size() == 2);
  CHECK(std::ranges::count_if(plan.layers, [](const Layer& l) { return bool(l.reorder_from); }) ==
        4);  // x, y, and both results
}

TEST_CASE("the loops of planning end at limits with names") {
  const std::string two =
      "g (float[4] x) => (float[4] y, float[4] z) { a = Exp(x) y = Neg(a) b = Log(x) z = Abs(b) }";
  EngineOptions o;
  o.limits.groups_per_node = 0;
  const auto grouped = fuse(graph(two), knowledge(), o);
  REQUIRE(!grouped);
  CHECK(grouped.error().code == Code::rule_loop);
  CHECK(render(grouped.error()).find("groups_per_node=0") != std::string::npos);

  o = {};
  o.limits.match_steps_model = 0;
  const auto matched = fuse(graph("g (float[4,4] x) => (float[4,4] y) "
                                  "{ a = MatMul(x, x) b = Relu(a) c = MatMul(b, x) y = Relu(c) }"),
                            knowledge(), o);
  REQUIRE(!matched);
  CHECK(matched.error().code == Code::limit_exceeded);
  CHECK(render(matched.error()).find("match_steps_model") != std::string::npos);

  const std::string twice =
      "g (float[2,3] x) => (float[2,3] y) { a = Transpose(x) b = Transpose(a) y = Exp(b) }";
  o = {};
  o.limits.phase_rounds = 0;
  CHECK(ops_of(must(fuse(graph(twice), knowledge(), {})).graph).find("Transpose") ==
        std::string::npos);
  CHECK(ops_of(must(fuse(graph(twice), knowledge(), o)).graph).find("Transpose") !=
        std::string::npos);
}

TEST_CASE("a rule that makes a group of the same group again is not fired for ever") {
  std::string own = (std::filesystem::temp_directory_path() / "ferrule-again-XXXXXX").string();
  REQUIRE(mkdtemp(own.data()));
  std::ofstream(own + "/again.yaml") << R"yaml(ferrule: 2
id: again
kind: window
doc: The group as it is.
source: [test]
phase: windows
after: [softmax_topk]
numerics: reassociating
match: |
  v, i = group.softmax_topk<...>(x, k)
outputs: [v, i]
contract: softmax_topk
roles: {x: x, values: v, indices: i, k: "value(k)"}
)yaml";
  EngineOptions o;
  o.rule_dirs = {rules_dir(), own};
  o.target = "cpu-avx2";
  o.allow_unproven = {"again"};
  const auto k = must(load_knowledge(o));
  const Fused f = must(fuse(graph("g (float[2,7] x) => (float[2,3] v, int64[2,3] i) "
                                  "<int64[1] k = {3}> { p = Softmax(x) v, i = TopK(p, k) }"),
                            *k, o));
  CHECK(f.graph.live_nodes() == 1);
  const auto again = std::ranges::find(k->rules.rules, "again", &Rule::id);
  const Attempt once_more =
      match_window(**again, f.graph.order()[0], {f.graph, k->ops, o.limits, &k->target});
  REQUIRE(std::holds_alternative<Rejection>(once_more));
  CHECK(std::get<Rejection>(once_more).why.find("is a group already") != std::string::npos);
  std::filesystem::remove_all(own);
}

TEST_CASE("roles whose leading axes differ in size are no group") {
  std::string own = (std::filesystem::temp_directory_path() / "ferrule-runs-XXXXXX").string();
  REQUIRE(mkdtemp(own.data()));
  std::ofstream(own + "/any_axis.yaml") << R"yaml(ferrule: 2
id: any_axis
kind: window
doc: Takes a selection along any axis for one along the last.
source: [test]
phase: windows
before: [softmax_topk]
numerics: reassociating
match: |
  p = Softmax<...>(x)
  v, i = TopK<...>(p, k!)
outputs: [v, i]
contract: softmax_topk
roles: {x: x, values: v, indices: i, k: "value(k)"}
)yaml";
  EngineOptions o;
  o.rule_dirs = {rules_dir(), own};
  o.target = "cpu-avx2";
  o.allow_unproven = {"any_axis"};
  o.near_misses = true;
  const auto k = must(load_knowledge(o));
  const Fused f = must(fuse(graph("g (float[7,2] x) => (float[3,2] v, int64[3,2] i) "
                                  "<int64[1] k = {3}> { p = Softmax(x) v, i = TopK<axis=0>(p, k) "
                                  "}"),
                            *k, o));
  CHECK(f.graph.live_nodes() == 2);
  CHECK(std::ranges::any_of(f.near_misses, [](const Rejection& r) {
    return r.rule->id == "any_axis" && r.id == "softmax_topk.axes";
  }));
  std::filesystem::remove_all(own);
}
