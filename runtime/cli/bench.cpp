// bench: how long a run takes, where the time goes, what start-up and memory cost; and two models,
// or one under two sets of rules, run by turns.
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <iostream>

#include "codegen/cpu/jit.h"
#include "engine/base/join.h"
#include "runtime/cli/progress.h"
#include "runtime/cli/tensors.h"
#include "runtime/cli/terminal.h"

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

/// Of a median, with 95 % certainty: the order statistics that enclose it whatever the
/// distribution.
struct Interval {
  double low = 0, high = 0;
};

struct Latency {
  double min = 0, median = 0, p90 = 0, p95 = 0, p99 = 0;
  Interval sure;  ///< of the median
  size_t runs = 0;
  double device =
      0;  ///< median of what the kernels alone took; 0 where the device has no memory of its own
  std::string unstable;  ///< why the median is not to be trusted; empty: it is
};

constexpr double kStable = 0.03;  // of the median: what its interval may be wide, and halves differ

double at_quantile(const std::vector<double>& sorted, double q) {
  return sorted[std::min(sorted.size() - 1,
                         static_cast<size_t>(q * static_cast<double>(sorted.size())))];
}

double median_of(std::vector<double> values) {
  std::ranges::sort(values);
  return at_quantile(values, 0.5);
}

Interval interval_of(const std::vector<double>& sorted) {
  const auto n = static_cast<double>(sorted.size());
  const double reach = 1.96 * std::sqrt(n) / 2;
  const auto low = static_cast<size_t>(std::max(0.0, std::floor(n / 2 - reach)));
  const auto high = static_cast<size_t>(std::ceil(n / 2 + reach));
  return {sorted[low], sorted[std::min(high, sorted.size() - 1)]};
}

/// `ms`: in the order of the runs.
Latency summarise(const std::vector<double>& ms) {
  std::vector<double> sorted = ms;
  std::ranges::sort(sorted);
  Latency l{sorted.front(),
            at_quantile(sorted, 0.5),
            at_quantile(sorted, 0.9),
            at_quantile(sorted, 0.95),
            at_quantile(sorted, 0.99),
            interval_of(sorted),
            sorted.size(),
            0,
            ""};
  const size_t half = ms.size() / 2;
  const double first = half ? median_of({ms.begin(), ms.begin() + static_cast<long>(half)}) : 0,
               second = half ? median_of({ms.begin() + static_cast<long>(half), ms.end()}) : 0;
  constexpr size_t kFew = 10;
  if (ms.size() < kFew)
    l.unstable = fmt::format("only {}; --seconds gives it more time", counted(ms.size(), "run"));
  else if (l.sure.high - l.sure.low > 2 * kStable * l.median)
    l.unstable = fmt::format("the median is known to {:.0f} % only",
                             50 * (l.sure.high - l.sure.low) / l.median);
  else if (std::abs(second - first) > kStable * l.median)
    l.unstable =
        fmt::format("the second half of the runs was {:.0f} % {} than the first",
                    100 * std::abs(second - first) / first, second > first ? "slower" : "faster");
  return l;
}

struct Buffers {
  std::vector<Tensor> keep;
  std::vector<const void*> in;
  std::vector<void*> out;
  /// Where only a run knows the size of a result: it is made anew each time.
  bool sized = true;
  std::vector<Tensor> tensors;
};

Status run_on(Executable& exe, const Buffers& b, RunObserver* observer = nullptr) {
  if (b.sized) return exe.run(b.in, b.out, observer);
  FERRULE_ASSIGN([[maybe_unused]] auto results, exe.run_tensors(b.tensors, observer));
  return {};
}

Result<Buffers> buffers(const Plan& plan, const Tensors& inputs) {
  Buffers b;
  const Graph& g = plan.graph;
  for (ValueId v : g.inputs()) {
    b.tensors.push_back(inputs.at(g.value(v).name));
    b.in.push_back(b.tensors.back().data());
    b.sized = b.sized && is_tensor(g.value(v).type.dtype);
  }
  for (ValueId v : g.outputs()) {
    auto dims = constant_shape(g.value(v).type.shape.value_or(Shape{Dim::unknown()}));
    if (!dims || size_bits(g.value(v).type.dtype) == 0) b.sized = false;
    if (!b.sized) return b;
    auto [t, bytes] = Tensor::allocate(g.value(v).type.dtype, *dims);
    b.out.push_back(bytes);
    b.keep.push_back(std::move(t));
  }
  return b;
}

Result<double> timed(Executable& exe, const Buffers& b) {
  const auto start = Clock::now();
  FERRULE_TRY(run_on(exe, b));
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

/// Until two runs in a row are within 10 %, at most so long.
Status warm_up(Executable& exe, const Buffers& b, double seconds) {
  const auto begin = Clock::now();
  auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  FERRULE_ASSIGN(double last, timed(exe, b));
  while (spent() < seconds) {
    FERRULE_ASSIGN(double now, timed(exe, b));
    if (std::abs(now - last) < 0.1 * last && spent() > seconds / 4) break;
    last = now;
  }
  return {};
}

/// Runs each of them by turns, as long as they are given; times by executable. Who is first changes
/// from round to round.
Result<std::vector<std::vector<double>>> by_turns(
    const std::vector<std::pair<Executable*, const Buffers*>>& all, double seconds,
    std::vector<double>* device) {
  Progress progress("measuring", false);  // a thread of its own would be measured, too
  std::vector<std::vector<double>> ms(all.size());
  const auto begin = Clock::now();
  auto spent = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  for (size_t round = 0; ms.back().empty() || spent() < seconds; ++round) {
    for (size_t k = 0; k < all.size(); ++k) {
      const size_t which = round % 2 ? all.size() - 1 - k : k;
      FERRULE_ASSIGN(double t, timed(*all[which].first, *all[which].second));
      ms[which].push_back(t);
      if (device) device->push_back(all[which].first->device_ms());
    }
    progress.advance(spent() / seconds);
  }
  return ms;
}

Result<Latency> measure(Executable& exe, const Buffers& b, double seconds) {
  FERRULE_TRY(warm_up(exe, b, seconds / 5));
  std::vector<double> device;
  FERRULE_ASSIGN(auto ms, by_turns({{&exe, &b}}, seconds, &device));
  Latency l = summarise(ms[0]);
  l.device = median_of(std::move(device));
  return l;
}

Result<Profiler> profile(Executable& exe, const Buffers& b, size_t layers, int runs) {
  Profiler p(layers);
  for (int k = 0; k < runs; ++k) FERRULE_TRY(run_on(exe, b, &p));
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
    FERRULE_ASSIGN(const NamedShapes named, parse_shapes(text));
    for (const auto& [name, dims] : named) shapes[name] = dims;
    const int64_t before = CpuJit::instance().compiled();
    FERRULE_ASSIGN(Compiled * p, session.compile(shapes));
    out.push_back({text, p->timings().plan_ms, p->timings().compile_ms,
                   CpuJit::instance().compiled() - before});
  }
  return out;
}

struct BenchOptions {
  std::string other;  ///< what the model is compared with; empty: nothing
  InputOptions input;
  double seconds = 2;
  bool layers = false, markdown = false;
  std::vector<std::string> then;
};

// --- two by turns

/// The same command line with `other` in it: a model, a rules folder, an override file, a list of
/// `fuse --plan`, a tuning file, or "none", which is no rule at all. errors: file_not_found, usage.
Result<Common> other_side(const Common& common, const std::string& other) {
  Common c = common;
  if (other == "none") {
    c.disable.push_back("*");
    c.enable.clear(), c.overrides.clear(), c.apply.clear();
    return c;
  }
  struct stat st{};
  if (::stat(other.c_str(), &st) != 0)
    return error(Code::file_not_found, "bench", escape(other), std::strerror(errno));
  if (S_ISDIR(st.st_mode)) {
    c.rules.push_back(other);
    return c;
  }
  if (!other.ends_with(".yaml") && !other.ends_with(".yml")) {
    c.model = other;
    return c;
  }
  std::ifstream file(other);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("instances:")) return c.apply = other, c;
    if (line.starts_with("tuning:")) return c.tuning = other, c;
    if (line.starts_with("override:")) return c.overrides.push_back(other), c;
  }
  return error(Code::usage, "bench",
               fmt::format("{} is no override file, no list of `fuse --plan` and no tuning file",
                           escape(other)));
}

struct Side {
  std::string name;
  std::optional<Session> session;
  Compiled* compiled = nullptr;
  Tensors inputs;
  Buffers buffers;
  Latency latency;
};

Status prepare(const Common& common, const BenchOptions& o, Side& side) {
  FERRULE_ASSIGN(const SessionOptions options, session_options(common));
  {
    const Progress progress("loading " + escape(common.model));
    FERRULE_ASSIGN(side.session, Session::load(common.model, options));
  }
  std::vector<std::string> notes = side.session->notes();
  FERRULE_ASSIGN(side.inputs, gather_inputs(side.session->inputs(), o.input, options.engine.shapes,
                                            notes, accepted_by(*side.session)));
  Shapes shapes;
  for (const auto& [n, t] : side.inputs) shapes[n] = t.dims();
  {
    const Progress progress("compiling " + escape(common.model));
    FERRULE_ASSIGN(side.compiled, side.session->compile(shapes));
  }
  FERRULE_ASSIGN(side.buffers, buffers(side.compiled->plan(), side.inputs));
  for (const std::string& n : notes) talk("note: " + n);
  return {};
}

nlohmann::json json_of(const Latency& l) {
  return {{"min", l.min},
          {"median", l.median},
          {"p90", l.p90},
          {"p95", l.p95},
          {"p99", l.p99},
          {"median_low", l.sure.low},
          {"median_high", l.sure.high}};
}

int digits_of(const Latency& l) { return l.median < 0.01 ? 6 : 3; }  ///< of a millisecond

std::string text_of(const Latency& l, size_t indent) {
  const int digits = digits_of(l);
  return fmt::format(
      "median {:.{}f} ms (95 %: {:.{}f} to {:.{}f}, {} runs)\n{}min {:.{}f}  p90 {:.{}f}  "
      "p95 {:.{}f}  p99 {:.{}f}",
      l.median, digits, l.sure.low, digits, l.sure.high, digits, l.runs, std::string(indent, ' '),
      l.min, digits, l.p90, digits, l.p95, digits, l.p99, digits);
}

/// For a pull request or a page: the head of a table, and a row of it.
constexpr std::string_view kMarkdownHead =
    "| what | on | layers | median ms | 95 % | p95 | p99 | runs |\n"
    "|---|---|---|---|---|---|---|---|\n";

std::string markdown_row(std::string_view what, const Compiled& compiled, const Latency& l) {
  std::string name = escape(what);
  for (size_t at = 0; (at = name.find('|', at)) != name.npos; at += 2) name.insert(at, "\\");
  const int digits = digits_of(l);
  return fmt::format("| {} | {} | {} | {:.{}f}{} | {:.{}f} to {:.{}f} | {:.{}f} | {:.{}f} | {} |\n",
                     name, ran_on(compiled), compiled.plan().layers.size(), l.median, digits,
                     l.unstable.empty() ? "" : " (unstable)", l.sure.low, digits, l.sure.high,
                     digits, l.p95, digits, l.p99, digits, l.runs);
}

Result<Exit> compare_two(const Common& common, const BenchOptions& o) {
  if (o.layers || !o.then.empty())
    return error(Code::usage, "bench", std::string("--layers and --then are of one model"));
  FERRULE_ASSIGN(const Common second, other_side(common, o.other));
  Side a, b;
  a.name = common.model, b.name = o.other == "none" ? "without rules" : o.other;
  FERRULE_TRY(prepare(common, o, a));
  FERRULE_TRY(prepare(second, o, b));
  for (Side* s : {&a, &b})
    FERRULE_TRY(warm_up(s->compiled->executable(), s->buffers, o.seconds / 10));
  FERRULE_ASSIGN(const auto ms, by_turns({{&a.compiled->executable(), &a.buffers},
                                          {&b.compiled->executable(), &b.buffers}},
                                         o.seconds, nullptr));
  a.latency = summarise(ms[0]), b.latency = summarise(ms[1]);
  std::vector<double> ratios;  // of neighbours, which the machine's moods meet alike
  for (size_t k = 0; k < ms[0].size(); ++k) ratios.push_back(ms[1][k] / ms[0][k]);
  std::ranges::sort(ratios);
  const double ratio = at_quantile(ratios, 0.5);
  const Interval sure = interval_of(ratios);
  const bool shown = sure.low > 1 || sure.high < 1;
  if (common.json) {
    auto side = [](const Side& s) {
      return nlohmann::json{
          {"what", escape(s.name, 4096)},     {"backend", s.compiled->backend()},
          {"device", s.compiled->device()},   {"layers", s.compiled->plan().layers.size()},
          {"latency_ms", json_of(s.latency)}, {"unstable", s.latency.unstable}};
    };
    print_json({{"schema_version", kSchemaVersion},
                {"a", side(a)},
                {"b", side(b)},
                {"runs", ratios.size()},
                {"ratio", {{"median", ratio}, {"low", sure.low}, {"high", sure.high}}},
                {"differ", shown}});
    return Exit::ok;
  }
  char letter = 'A';
  if (o.markdown) std::cout << kMarkdownHead;
  for (const Side* s : {&a, &b}) {
    if (o.markdown) {
      std::cout << markdown_row(fmt::format("{}: {}", letter++, s->name), *s->compiled, s->latency);
      continue;
    }
    std::cout << fmt::format(
        "{}  {} on {}, {}\n   {}\n", letter++, escape(s->name), ran_on(*s->compiled),
        counted(s->compiled->plan().layers.size(), "layer"), text_of(s->latency, 3));
    if (!s->latency.unstable.empty()) std::cout << "   unstable: " << s->latency.unstable << "\n";
  }
  if (o.markdown) std::cout << "\n";
  std::cout << fmt::format(
      "B takes {:.3f} times as long as A (95 %: {:.3f} to {:.3f}, {} "
      "interleaved runs){}\n",
      ratio, sure.low, sure.high, ratios.size(), shown ? "" : ": no difference is shown");
  return Exit::ok;
}

Result<Exit> body(const Common& common, const BenchOptions& o) {
  if (!o.other.empty()) return compare_two(common, o);
  const auto& [other, input, seconds, layers, markdown, more] = o;
  const int64_t before = resident("VmRSS"), anonymous_before = resident("RssAnon");
  FERRULE_ASSIGN(SessionOptions options, session_options(common));
  FERRULE_ASSIGN(Session session, Session::load(common.model, options));
  std::vector<std::string> notes = session.notes();
  FERRULE_ASSIGN(Tensors inputs, gather_inputs(session.inputs(), input, options.engine.shapes,
                                               notes, accepted_by(session)));
  Shapes shapes;
  for (const auto& [n, t] : inputs) shapes[n] = t.dims();
  FERRULE_ASSIGN(Compiled * p, session.compile(shapes));
  FERRULE_ASSIGN(Buffers b, buffers(p->plan(), inputs));
  for (const std::string& n : notes) talk("note: " + n);
  FERRULE_ASSIGN(Latency l, measure(p->executable(), b, seconds));
  const int64_t growth = resident("VmHWM") - before,
                anonymous = resident("RssAnon") - anonymous_before;
  FERRULE_ASSIGN(std::vector<Then> then, compile_more(session, shapes, more));
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
    print_json({{"schema_version", kSchemaVersion},
                {"backend", p->backend()},
                {"device", p->device()},
                {"threads", common.threads},
                {"latency_ms", json_of(l)},
                {"unstable", l.unstable},
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
                {"notes", notes},
                {"then", others}});
    return Exit::ok;
  }
  if (markdown) {
    std::cout << kMarkdownHead << markdown_row(common.model, *p, l);
    return Exit::ok;
  }
  std::cout << fmt::format("{} on {}, {}, {}\n", escape(common.model), ran_on(*p),
                           counted(p->plan().layers.size(), "layer"), counted(kernels, "kernel"));
  constexpr size_t kColumn = 9;
  std::cout << "latency  " << text_of(l, kColumn) << "\n";
  if (!l.unstable.empty()) std::cout << "unstable " << l.unstable << "\n";
  if (!interpreted.empty())
    std::cout << fmt::format("slow     interpreted, time them with --layers: {}\n",
                             fmt::join(interpreted, ", "));
  if (l.device > 0)
    std::cout << fmt::format(
        "device   median {:.3f} ms, without the copies of inputs and outputs\n", l.device);
  std::cout << fmt::format(
      "start-up load {:.1f} ms  plan {:.1f} ms  compile {:.1f} ms  cache {}, {} {}\n",
      p->timings().load_ms, p->timings().plan_ms, p->timings().compile_ms,
      counted(p->timings().cache_hits, "hit"), p->timings().cache_misses,
      p->timings().cache_misses == 1 ? "miss" : "misses");
  std::cout << fmt::format(
      "memory   {:.1f} MiB growth, of it {:.1f} arena, {:.1f} packed weights; {:.1f} of the "
      "model's weights released\n",
      static_cast<double>(growth) / 1048576,
      static_cast<double>(p->executable().arena_bytes()) / 1048576,
      static_cast<double>(p->executable().packed_bytes()) / 1048576,
      static_cast<double>(Residence::given_back()) / 1048576);
  for (const Then& t : then)
    std::cout << fmt::format(
        "then     {}: plan {:.1f} ms, library primitives {:.1f} ms, {} compiled\n",
        escape(t.shapes), t.plan_ms, t.compile_ms, counted(t.kernels_compiled, "kernel"));
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
  auto o = std::make_shared<BenchOptions>();
  c->add_option(
      "OTHER", o->other,
      "runs interleaved with the model: another model, or the same one with a rules folder, an "
      "override file, a list of fuse --plan, a tuning file or none (no rules)");
  add_timeout(*c, common);
  add_inputs(*c, o->input);
  c->add_option("--then", o->then,
                "also measure the cost of another input shape: name:1x3x320x320 (repeatable)")
      ->type_name("SHAPE");
  c->add_option("--seconds", o->seconds, "how long to measure")->check(CLI::Range(0.01, 3600.0));
  auto* layers = c->add_flag("--layers", o->layers, "time each layer, slowest first");
  c->add_flag("--markdown", o->markdown, "print the latencies as a Markdown table")
      ->excludes(layers)
      ->excludes(c->get_option("--json"));
  c->footer(
      "Examples:\n  ferrule bench model.onnx --threads 2\n  ferrule bench model.onnx none "
      "--seconds "
      "5\n  ferrule bench model.onnx other.onnx --json\n"
      "  ferrule bench model.onnx --shapes x:1x3x192x256 --layers\n"
      "  ferrule bench model.onnx --shapes x:1x3x480x736 --then x:1x3x320x320");
  set_body(*c, common, exit, [o](const Common& common) { return body(common, *o); });
}

}  // namespace ferrule::cli
