// bench: how long a run takes, where the time goes, what start-up and memory cost.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>

#include "codegen/cpu/jit.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {
namespace {

using Clock = std::chrono::steady_clock;

/// Resident memory of this process in bytes, now (VmRSS; RssAnon: backed by no file) or at its
/// highest (VmHWM).
int64_t resident(const char* key) {
  std::ifstream status("/proc/self/status");
  std::string line;
  while (std::getline(status, line))
    if (line.starts_with(key)) return std::stoll(line.substr(line.find(':') + 1)) * 1024;
  return 0;
}

struct Latency {
  double min = 0, median = 0, p90 = 0, p99 = 0;
  size_t runs = 0;
  double device =
      0;  ///< median of what the kernels alone took; 0 where the device has no memory of its own
};

Latency summarise(std::vector<double> ms) {
  std::sort(ms.begin(), ms.end());
  auto at = [&](double q) {
    return ms[std::min(ms.size() - 1, static_cast<size_t>(q * static_cast<double>(ms.size())))];
  };
  return {ms.front(), at(0.5), at(0.9), at(0.99), ms.size(), 0};
}

struct Buffers {
  std::vector<Tensor> keep;
  std::vector<const void*> in;
  std::vector<void*> out;
};

Result<Buffers> buffers(const Plan& plan, const Tensors& inputs) {
  Buffers b;
  const Graph& g = plan.graph;
  for (ValueId v : g.inputs()) b.in.push_back(inputs.at(g.value(v).name).data());
  for (ValueId v : g.outputs()) {
    auto dims = constant_shape(g.value(v).type.shape.value_or(Shape{Dim::unknown()}));
    if (!dims)
      return error(Code::bad_shape, "bench",
                   fmt::format("the shape of output {} is not known", escape(g.value(v).name)));
    auto [t, bytes] = Tensor::allocate(g.value(v).type.dtype, *dims);
    b.out.push_back(bytes);
    b.keep.push_back(std::move(t));
  }
  return b;
}

Result<Latency> measure(Executable& exe, const Buffers& b, double seconds) {
  // Warm-up: until two runs in a row are within 10 %, at most a fifth of the time.
  auto once = [&]() -> Result<double> {
    auto start = Clock::now();
    FERRULE_TRY(exe.run(b.in, b.out));
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  };
  auto begin = Clock::now();
  auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  FERRULE_ASSIGN(double last, once());
  while (spent() < seconds / 5) {
    FERRULE_ASSIGN(double now, once());
    if (std::abs(now - last) < 0.1 * last && spent() > seconds / 20) break;
    last = now;
  }
  begin = Clock::now();
  std::vector<double> ms, device;
  do {
    FERRULE_ASSIGN(double t, once());
    ms.push_back(t);
    device.push_back(exe.device_ms());
  } while (spent() < seconds);
  Latency l = summarise(std::move(ms));
  l.device = summarise(std::move(device)).median;
  return l;
}

Result<Profiler> profile(Executable& exe, const Buffers& b, size_t layers, int runs) {
  Profiler p(layers);
  for (int k = 0; k < runs; ++k) FERRULE_TRY(exe.run(b.in, b.out, &p));
  return p;
}

nlohmann::json layer_times(const Plan& plan, const Profiler& p) {
  nlohmann::json out = nlohmann::json::array();
  for (size_t k = 0; k < plan.layers.size(); ++k)
    if (const Profiler::Row& r = p.layers()[k]; r.runs && r.launches)
      out.push_back(
          {{"layer", escape(plan.layers[k].name, 4096)},
           {"contract", plan.layers[k].contract},
           {"kernels", plan.layers[k].kernels},
           {"mean_us", static_cast<double>(r.nanoseconds) / 1e3 / static_cast<double>(r.runs)},
           {"min_us", static_cast<double>(r.fastest) / 1e3}});
  return out;
}

void print_layers(const Plan& plan, const Profiler& p) {
  std::vector<size_t> order(plan.layers.size());
  for (size_t k = 0; k < order.size(); ++k) order[k] = k;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return p.layers()[a].nanoseconds > p.layers()[b].nanoseconds;
  });
  std::cout << fmt::format("\n{:>10} {:>10}  {:<11} layer\n", "mean us", "min us", "contract");
  for (size_t k : order) {
    const Profiler::Row& r = p.layers()[k];
    if (!r.runs || !r.launches) continue;
    std::cout << fmt::format("{:>10.1f} {:>10.1f}  {:<11} {}\n",
                             static_cast<double>(r.nanoseconds) / 1e3 / static_cast<double>(r.runs),
                             static_cast<double>(r.fastest) / 1e3, plan.layers[k].contract,
                             escape(plan.layers[k].name, 120));
  }
}

/// What another input shape costs: planned and prepared as a run with it would, by the same
/// session.
struct Then {
  std::string shapes;
  double plan_ms = 0, compile_ms = 0;
  int64_t kernels_compiled = 0;
};

Result<std::vector<Then>> compile_more(Session& session, Shapes shapes,
                                       const std::vector<std::string>& more) {
  std::vector<Then> out;
  for (const std::string& text : more) {
    FERRULE_ASSIGN(auto shape, parse_shape(text));
    shapes[shape.first] = shape.second;
    const int64_t before = CpuJit::instance().compiled();
    FERRULE_ASSIGN(Compiled * p, session.compile(shapes));
    out.push_back({text, p->timings().plan_ms, p->timings().compile_ms,
                   CpuJit::instance().compiled() - before});
  }
  return out;
}

Result<Exit> body(const Common& common, const InputOptions& input, double seconds, bool layers,
                  const std::vector<std::string>& more) {
  const int64_t before = resident("VmRSS"), anonymous_before = resident("RssAnon");
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  std::vector<std::string> notes = session.notes();
  FERRULE_ASSIGN(Tensors inputs,
                 gather_inputs(session.inputs(), input, options.engine.shapes, notes));
  Shapes shapes;
  for (const auto& [n, t] : inputs) shapes[n] = t.dims();
  FERRULE_ASSIGN(Compiled * p, session.compile(shapes));
  FERRULE_ASSIGN(Buffers b, buffers(p->plan(), inputs));
  FERRULE_ASSIGN(Latency l, measure(p->executable(), b, seconds));
  const int64_t growth = resident("VmHWM") - before,
                anonymous = resident("RssAnon") - anonymous_before;
  FERRULE_ASSIGN(std::vector<Then> then, compile_more(session, shapes, more));
  for (const std::string& n : notes) talk("note: " + n);
  int kernels = 0;
  for (const Layer& layer : p->plan().layers) kernels += layer.kernels;
  const std::vector<std::string> interpreted = interpreted_layers(*p);
  if (common.json) {
    nlohmann::json others = nlohmann::json::array();
    for (const Then& t : then)
      others.push_back({{"shapes", escape(t.shapes)},
                        {"plan_ms", t.plan_ms},
                        {"compile_ms", t.compile_ms},
                        {"kernels_compiled", t.kernels_compiled}});
    nlohmann::json times;
    if (layers) {
      FERRULE_ASSIGN(Profiler profiler, profile(p->executable(), b, p->plan().layers.size(), 20));
      times = layer_times(p->plan(), profiler);
    }
    print_json(
        {{"schema_version", kSchemaVersion},
         {"backend", p->backend()},
         {"device", p->device()},
         {"threads", common.threads},
         {"latency_ms", {{"min", l.min}, {"median", l.median}, {"p90", l.p90}, {"p99", l.p99}}},
         {"device_ms", l.device},
         {"layer_times", times},
         {"runs", l.runs},
         {"load_ms", p->timings().load_ms},
         {"plan_ms", p->timings().plan_ms},
         {"compile_ms", p->timings().compile_ms},
         {"cache_hits", p->timings().cache_hits},
         {"cache_misses", p->timings().cache_misses},
         {"peak_memory_bytes", growth},
         {"anonymous_memory_bytes", anonymous},
         {"arena_bytes", p->executable().arena_bytes()},
         {"packed_bytes", p->executable().packed_bytes()},
         {"given_back_bytes", Residence::given_back()},
         {"layers", p->plan().layers.size()},
         {"kernels", kernels},
         {"interpreted", interpreted},
         {"then", others}});
    return Exit::ok;
  }
  std::cout << fmt::format("{} on {}, {} layers, {} kernels\n", escape(common.model), ran_on(*p),
                           p->plan().layers.size(), kernels);
  std::cout << fmt::format(
      "latency  median {:.3f} ms  min {:.3f}  p90 {:.3f}  p99 {:.3f}  ({} runs)\n", l.median, l.min,
      l.p90, l.p99, l.runs);
  if (!interpreted.empty())
    std::cout << fmt::format("slow     interpreted, time them with --layers: {}\n",
                             fmt::join(interpreted, ", "));
  if (l.device > 0)
    std::cout << fmt::format(
        "device   median {:.3f} ms, without the copies of inputs and outputs\n", l.device);
  std::cout << fmt::format(
      "start-up load {:.1f} ms  plan {:.1f} ms  compile {:.1f} ms  cache {} hits, {} misses\n",
      p->timings().load_ms, p->timings().plan_ms, p->timings().compile_ms, p->timings().cache_hits,
      p->timings().cache_misses);
  std::cout << fmt::format(
      "memory   {:.1f} MiB growth, of it {:.1f} arena, {:.1f} packed weights; {:.1f} of the "
      "model's own given back\n",
      static_cast<double>(growth) / 1048576,
      static_cast<double>(p->executable().arena_bytes()) / 1048576,
      static_cast<double>(p->executable().packed_bytes()) / 1048576,
      static_cast<double>(Residence::given_back()) / 1048576);
  for (const Then& t : then)
    std::cout << fmt::format(
        "then     {}: plan {:.1f} ms, library primitives {:.1f} ms, {} kernels compiled\n",
        escape(t.shapes), t.plan_ms, t.compile_ms, t.kernels_compiled);
  if (layers) {
    FERRULE_ASSIGN(Profiler profiler, profile(p->executable(), b, p->plan().layers.size(), 20));
    print_layers(p->plan(), profiler);
  }
  return Exit::ok;
}

}  // namespace

void add_bench(CLI::App& app, Common& common, int& exit) {
  auto* c = app.add_subcommand("bench", "time a model: latency, start-up, memory, layer by layer");
  add_common(*c, common, true);
  add_timeout(*c, common);
  auto input = std::make_shared<InputOptions>();
  auto seconds = std::make_shared<double>(2.0);
  auto layers = std::make_shared<bool>(false);
  auto then = std::make_shared<std::vector<std::string>>();
  add_inputs(*c, *input);
  c->add_option("--then", *then,
                "afterwards, what another input shape costs: name:1x3x320x320 (repeatable)")
      ->type_name("SHAPE");
  c->add_option("--seconds", *seconds, "how long to measure")->check(CLI::Range(0.01, 3600.0));
  c->add_flag("--layers", *layers, "time each layer, slowest first");
  c->footer(
      "Examples:\n  ferrule bench model.onnx --threads 2\n  ferrule bench model.onnx --disable '*' "
      "--seconds 5 --json\n"
      "  ferrule bench model.onnx --shapes x:1x3x192x256 --layers\n"
      "  ferrule bench model.onnx --shapes x:1x3x480x736 --then x:1x3x320x320");
  set_body(*c, common, exit,
           [=](const Common& o) { return body(o, *input, *seconds, *layers, *then); });
}

}  // namespace ferrule::cli
