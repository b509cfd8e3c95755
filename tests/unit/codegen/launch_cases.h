// Launches on GPUs as cases of a test: a graph that is one launch, its operands in random layouts
// and some as parts of something larger, run as CUDA C++ on the host against the interpreter,
// nothing written beside the results.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>

#include "codegen/cuda/nvrtc.h"
#include "codegen/cuda/plan_launch.h"
#include "engine/base/tolerance.h"
#include "engine/contract/region_pieces.h"
#include "engine/graph/compare.h"
#include "engine/interpreter/interpreter.h"
#include "engine/semantics/nodes_to_programs.h"
#include "tests/unit/codegen/host_kernels.h"
#include "tests/unit/codegen/placed.h"
#include "tests/unit/codegen/row_cases.h"
#include "tests/unit/codegen/work_of_node.h"

namespace ferrule::test {

/// A graph that is one launch.
struct LaunchCase {
  Graph graph;
  Launch launch;
  std::vector<Placed> places;  ///< of the launch's inputs, then its outputs
  std::vector<Tensor> inputs;  ///< of the graph
  bool exact = false;          ///< elements are only moved, or whole numbers computed
  bool aligned = true;
  CudaLaunch planned;                                 ///< by the built-in choice
  std::vector<std::pair<CudaLaunch, size_t>> shapes;  ///< those that are run, with their kernels
};

/// Launches made by the one way that compile and the backend take, run on the host against the
/// interpreter.
class LaunchCases {
 public:
  /// `races`: each launch so many times, its blocks racing (host_threads.h); 0: once, they do not.
  explicit LaunchCases(unsigned seed, int races = 0)
      : rng(seed), races_(races), kernels_(races > 0) {}
  std::mt19937 rng;
  int cores = 132;
  /// Runs every shape of a launch; else the built-in one.
  bool every_shape = std::getenv("FERRULE_TEST_FULL") != nullptr;
  /// What kernels are to have wrong: a part of their text, and what stands there instead.
  std::pair<std::string, std::string> mutation;

  /// The graph, and the launch made of it: its operands in random layouts, some as parts of
  /// something larger.
  LaunchCase& add(Graph graph, std::vector<Tensor> inputs,
                  const std::function<void(const Graph&, Launch&)>& lower) {
    LaunchCase& c = cases_.emplace_back();
    c.graph = std::move(graph);
    c.inputs = std::move(inputs);
    c.launch.graph = &c.graph;
    lower(c.graph, c.launch);
    c.aligned = rng() % 4 != 0;
    for (const auto* list : {&c.launch.inputs, &c.launch.outputs})
      for (ValueId v : *list) {
        if (!v) {  // left out
          c.places.emplace_back();
          continue;
        }
        const Type& type = c.graph.value(v).type;
        Placed p{type.dtype, *constant_shape(*type.shape), {}};
        const bool last = p.dims.size() >= 3 && p.dims.size() <= 5 && rng() % 2;
        Dims room = p.dims;
        if (!room.empty() && rng() % 4 == 0)
          room[rng() % room.size()] += 1 + static_cast<int64_t>(rng() % 16);
        p.strides = strides_of(room, last ? Layout::channels_last : Layout::plain);
        c.places.push_back(std::move(p));
      }
    std::vector<CudaOperand> operands;
    for (const Placed& p : c.places) operands.push_back({p.type, p.dims, p.strides});
    auto plan = [&](const std::string& shape) {
      auto planned = plan_cuda_launch(c.launch, operands, "kernel", "rule test", c.aligned, cores,
                                      [&](const std::string&) { return shape; });
      REQUIRE_MESSAGE(planned.has_value(), (planned ? "" : planned.error().reason()));
      return std::move(*planned);
    };
    c.planned = plan("");
    for (const std::string& shape : c.planned.shapes) {
      c.shapes.emplace_back(plan(shape), 0);
      CudaLaunch& l = c.shapes.back().first;
      CHECK(l.shape == shape);
      CHECK(l.problem == c.planned.problem);
      CHECK(l.threads_x * l.threads_y <= 1024);
      c.shapes.back().second = kernels_.add(mutated(l.source), "kernel");
      shapes.insert(l.kind + " " + shape);
      if (!every_shape) break;
    }
    ++kinds[c.planned.kind];
    return c;
  }

  void run() {
    const std::string problem = kernels_.compile();
    REQUIRE_MESSAGE(problem.empty(), problem);
    for (LaunchCase& c : cases_) check(c);
  }
  /// What is wrong with the kernels, as a launch says or as the results are; "" where nothing is.
  std::string wrong() {
    wrong_.emplace();
    run();
    return *wrong_;
  }
  std::map<std::string, int> kinds;
  std::set<std::string> shapes;  ///< with their kinds
  const LaunchCase& last() const { return cases_.back(); }
  const std::deque<LaunchCase>& all() const { return cases_; }

 private:
  void check(LaunchCase& c) {
    CAPTURE(c.planned.kind);
    CAPTURE(c.planned.source.substr(0, c.planned.source.find("typedef")));
    if (c.launch.region && c.launch.region->pieced) CAPTURE(pieces_text(*c.launch.region));
    InterpreterOptions options;
    options.ops = &operators();
    auto want = interpret(c.graph, c.inputs, options);
    REQUIRE_MESSAGE(want.has_value(), (want ? "" : render(want.error())));
    for (const auto& [planned, id] : c.shapes) {
      CAPTURE(planned.shape);
      scratch_.assign(static_cast<size_t>(planned.scratch_bytes) / 8 + 2, 0);
      // What it leaves in its scratch is fit for the next run.
      for (int k = races_ ? races_ : planned.scratch_bytes ? 2 : 1; k > 0; --k) {
        launch(c, planned, id);
        if (races_) check(c, *want);
      }
      if (!races_) check(c, *want);
    }
  }

  void check(LaunchCase& c, const std::vector<Tensor>& want) {
    if (wrong_) {
      const Tensor got = c.places[c.launch.inputs.size()].take();
      const Difference d = compare(got, want[0], model_tolerance(got.dtype()));
      if (!d.ok && wrong_->empty()) *wrong_ = d.text;
      return;
    }
    for (size_t k = 0; k < c.launch.outputs.size(); ++k) {
      const auto at =
          std::ranges::find(c.graph.outputs(), c.launch.outputs[k]) - c.graph.outputs().begin();
      const Tensor &expected = want[static_cast<size_t>(at)],
                   got = c.places[c.launch.inputs.size() + k].take();
      CHECK(c.places[c.launch.inputs.size() + k].touched() == 0);
      if (c.exact) {
        CHECK_MESSAGE(got.identical(expected), compare(got, expected, {}).text);
      } else {
        const Difference d = compare(got, expected, model_tolerance(got.dtype()));
        CHECK_MESSAGE(d.ok, d.text);
      }
    }
  }

  void launch(LaunchCase& c, const CudaLaunch& planned, size_t id) {
    std::vector<uint64_t> addresses;
    for (size_t k = 0; k < c.places.size(); ++k) {
      if (c.places[k].type == DType::undefined) {
        addresses.push_back(0);
        continue;
      }
      c.places[k].allocate(c.aligned);
      addresses.push_back(reinterpret_cast<uint64_t>(c.places[k].data()));
      if (k >= c.launch.inputs.size()) continue;
      const ValueId v = c.launch.inputs[k];
      const auto at = std::ranges::find(c.graph.inputs(), v) - c.graph.inputs().begin();
      c.places[k].put(c.graph.constant(v) ? *c.graph.constant(v)
                                          : c.inputs[static_cast<size_t>(at)]);
    }
    addresses.insert(addresses.end(), {reinterpret_cast<uint64_t>(scratch_.data()), 0});
    for (int pass = 0; pass < planned.passes && planned.blocks; ++pass) {
      addresses.back() = static_cast<uint64_t>(pass);
      const std::string wrong = kernels_.launch(
          id, planned.arguments(addresses), {static_cast<unsigned>(planned.blocks), 1, 1},
          {static_cast<unsigned>(planned.threads_x), static_cast<unsigned>(planned.threads_y), 1});
      if (wrong_ && wrong_->empty()) *wrong_ = wrong;
      if (!wrong_) REQUIRE_MESSAGE(wrong.empty(), wrong);
    }
    if (planned.complaint) CHECK(planned.complaint(scratch()) == "");
  }
  std::string mutated(std::string source) const {
    const auto& [from, to] = mutation;
    if (from.empty()) return source;
    const size_t at = source.find(from);
    REQUIRE(at != std::string::npos);
    return source.replace(at, from.size(), to);
  }
  std::span<const char> scratch() const {
    return {reinterpret_cast<const char*>(scratch_.data()), scratch_.size() * 8};
  }

  const int races_;
  std::optional<std::string> wrong_;
  std::deque<LaunchCase> cases_;
  HostKernels kernels_;
  std::vector<uint64_t> scratch_;
};

/// The graph's only node as a library call.
inline void call_of_node(const Graph& g, Launch& l) {
  l.kind = Launch::Kind::library;
  l.node = g.order()[0];
  l.work = work_of_node(g.node(l.node));
  l.inputs = g.node(l.node).inputs, l.outputs = g.node(l.node).outputs;
}

/// All nodes as one kernel over elements.
inline void one_region(const Graph& g, Launch& l) {
  auto region = lower_region(operators(), g, g.order(), std::vector(g.outputs()));
  REQUIRE_MESSAGE(region.has_value(), (region ? "" : region.error().reason()));
  l.kind = Launch::Kind::generated;
  l.inputs = region->inputs, l.outputs = region->outputs;
  l.region = std::move(*region);
}

/// All nodes as one kernel over rows.
inline void one_row_region(const Graph& g, Launch& l) {
  auto region = lower_rows(operators(), g, g.order(), std::vector(g.outputs()));
  REQUIRE_MESSAGE(region.has_value(), (region ? "" : region.error().reason()));
  l.kind = Launch::Kind::generated;
  for (const RowOperand& o : region->inputs) l.inputs.push_back(o.value);
  for (const RowOperand& o : region->outputs) l.outputs.push_back(o.value);
  l.rows = std::make_shared<const RowRegion>(std::move(*region));
}

/// The first node, which moves elements.
inline void copy_of_node(const Graph& g, Launch& l) {
  call_of_node(g, l);
  l.kind = Launch::Kind::copy;
  if (contract_of(g.node(l.node), operators()) == "view") l.work = Work::reorder;  // its elements
}

/// Each launch compiled for the oldest and the newest devices there are compilers for, without a
/// spill or a stack.
inline void check_compiles(const LaunchCases& cases) {
  if (const auto info = nvrtc_info(); !info) {
    MESSAGE("skipped, NVRTC is not there: " << info.error().message);
    return;
  }
  for (const LaunchCase& c : cases.all())
    for (const char* target : {"sm_75", "sm_80", "sm_90", "sm_100", "sm_120"}) {
      const CudaLaunch& l = c.planned;
      auto cubin = compile_cuda(l.source, "kernel", target);
      REQUIRE_MESSAGE(cubin.has_value(), (cubin ? "" : render(cubin.error())));
      CHECK_MESSAGE(cubin->spill_bytes == 0, target);
      CHECK_MESSAGE(cubin->stack_bytes == 0, target);
    }
}

}  // namespace ferrule::test
