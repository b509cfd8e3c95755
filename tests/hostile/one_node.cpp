// Small models, many in a process (one_node.py makes them): each is planned for a CPU and for a
// GPU, and run on the CPU and in the interpreter, with random inputs of random sizes where it
// leaves them open. They run in a child; when one of them ends it, the next child goes on behind
// it.
#include <doctest/doctest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <random>

#include "codegen/annotate_plan.h"
#include "engine/base/diagnostics.h"
#include "engine/onnx/import.h"
#include "engine/plan/plan.h"
#include "runtime/session.h"
#include "tests/support/paths.h"

namespace ferrule {
namespace {

#ifdef __SANITIZE_ADDRESS__
constexpr bool kSanitized = true;  // it computes longer and reserves terabytes of address space
#else
constexpr bool kSanitized = false;
#endif
constexpr int kSeconds = kSanitized ? 60 : 10;  // of computing, for one model, all four ways
constexpr unsigned kWait = 300;                 // and of the clock, should it wait for ever
constexpr rlim_t kAddressSpace = kSanitized ? RLIM_INFINITY : rlim_t{8} << 30;  // of a child
constexpr int kChildren = 2;

/// How far models came; all processes add to it.
struct Counts {
  std::atomic<size_t> imported, planned, reference, cpu;
};

struct Model {
  std::string name, bytes;
};

std::vector<Model> read_models(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<Model> out;
  uint32_t sizes[2];
  while (file.read(reinterpret_cast<char*>(sizes), sizeof sizes)) {
    Model m{std::string(sizes[0], ' '), std::string(sizes[1], ' ')};
    file.read(m.name.data(), sizes[0]);
    file.read(m.bytes.data(), sizes[1]);
    out.push_back(std::move(m));
  }
  return out;
}

/// What the children share: options, and knowledge for each target.
struct Bench {
  EngineOptions engine;
  std::shared_ptr<const Knowledge> cpu, gpu;
  Counts* counts = nullptr;
};

Bench make_bench() {
  Bench b;
  b.engine.rule_dirs = {rules_dir()};
  b.engine.cache.clear();
  b.engine.allow_unproven = {"*"};  // rules are not what is tried here
  b.engine.limits.memory_bytes = int64_t{1} << 30;
  EngineOptions gpu = b.engine;
  gpu.target = "sm_90";
  auto g = load_knowledge(gpu);
  if (!g) FAIL(render(g.error()));
  auto c = load_knowledge(b.engine);  // the last one: inference asks it
  if (!c) FAIL(render(c.error()));
  b.gpu = *g, b.cpu = *c;
  void* shared =
      mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  REQUIRE(shared != MAP_FAILED);
  b.counts = new (shared) Counts{};
  return b;
}

ImportOptions import_options(const Bench& b) {
  ImportOptions o;
  o.limits = &b.engine.limits;
  o.ops = &b.cpu->ops;
  return o;
}

std::map<std::string, Tensor> random_inputs(const std::vector<Port>& ports, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::map<std::string, Tensor> out;
  for (const Port& p : ports) {
    if (p.type.dtype == DType::undefined) continue;
    std::vector<int64_t> dims;
    if (p.type.shape)
      for (const Dim& d : *p.type.shape)
        dims.push_back(d.value_or(static_cast<int64_t>(random() % 5)));
    else
      for (size_t k = random() % 5; k-- > 0;) dims.push_back(static_cast<int64_t>(random() % 4));
    if (!check_bytes(p.type.dtype, dims, p.name, int64_t{1} << 24)) continue;
    int64_t count = 1;
    for (int64_t d : dims) count *= d;
    if (p.type.dtype == DType::string) {
      out.emplace(p.name,
                  Tensor(dims, std::vector<std::string>(static_cast<size_t>(count), "a,b")));
      continue;
    }
    auto [tensor, bytes] = Tensor::allocate(p.type.dtype, dims);
    const auto width = static_cast<size_t>(size_bits(p.type.dtype)) / 8;
    const bool number =
        is_float(p.type.dtype) || is_int(p.type.dtype) || p.type.dtype == DType::boolean;
    for (int64_t k = 0; k < count && width && number; ++k) {
      const double value = is_float(p.type.dtype) ? static_cast<double>(random() % 1000) / 250 - 2
                                                  : static_cast<double>(random() % 4);
      const Tensor one = Tensor::scalar(
          p.type.dtype, p.type.dtype == DType::boolean ? static_cast<double>(random() % 2) : value);
      std::memcpy(static_cast<char*>(bytes) + static_cast<size_t>(k) * width, one.data(), width);
    }
    out.emplace(p.name, tensor);
  }
  return out;
}

/// A refusal is an answer, unless it says that the fault is ours.
void judge(const Error& e) {
  if (exit_code(e.code) != Exit::bug) return;
  std::fprintf(stderr, "%s\n", render(e).c_str());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(Exit::bug));
}

void plan(const Graph& g, const Knowledge& k, const EngineOptions& options,
          std::atomic<size_t>& done) {
  auto fused = fuse(std::move(*g.clone()), k, options);
  if (!fused) return judge(fused.error());
  auto plan = make_plan(std::move(fused->graph), k.target, k.ops);
  if (!plan) return judge(plan.error());
  auto lowered = lower(*plan, k.ops, k.target, {});
  if (!lowered) judge(lowered.error());
  done += bool(lowered);
}

void run(const Graph& g, const Bench& b, const std::string& backend, uint64_t seed,
         std::atomic<size_t>& done) {
  SessionOptions options;
  options.engine = b.engine;
  options.backend = backend;
  options.threads = 1;
  auto session = Session::from_graph(std::move(*g.clone()), b.cpu, options);
  if (!session) return judge(session.error());
  auto results = session->run(random_inputs(session->inputs(), seed));
  if (!results) judge(results.error());
  done += bool(results);
}

void try_model(const Model& m, const Bench& b, uint64_t seed) {
  auto imported = import_bytes(m.bytes, import_options(b));
  if (!imported) return judge(imported.error());
  ++b.counts->imported;
  plan(imported->graph, *b.cpu, b.engine, b.counts->planned);
  plan(imported->graph, *b.gpu, b.engine, b.counts->planned);
  run(imported->graph, b, "reference", seed, b.counts->reference);
  run(imported->graph, b, "cpu", seed, b.counts->cpu);
}

/// The child: writes the number of each model before it tries it.
[[noreturn]] void try_models(const std::vector<Model>& models, const Bench& b, size_t from,
                             int report, int errors) {
  dup2(errors, STDERR_FILENO);
  const rlimit space{kAddressSpace, kAddressSpace}, none{0, 0};
  setrlimit(RLIMIT_AS, &space);
  setrlimit(RLIMIT_CORE, &none);
  for (size_t k = from; k < models.size(); k += kChildren) {
    if (write(report, &k, sizeof k) != sizeof k || ftruncate(errors, 0) != 0 ||
        lseek(errors, 0, SEEK_SET) != 0)
      std::_Exit(1);
    const itimerval limit{{}, {kSeconds, 0}};
    setitimer(ITIMER_PROF, &limit, nullptr);
    alarm(kWait);
    try_model(models[k], b, k);
  }
  std::_Exit(0);
}

std::string how(int status) {
  if (WIFSIGNALED(status))
    return WTERMSIG(status) == SIGALRM || WTERMSIG(status) == SIGPROF
               ? "does not end"
               : fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("exit status {}", WEXITSTATUS(status));
}

/// One of kChildren rows of children, each over every so manieth model.  Returns what failed.
std::vector<std::string> try_all(const std::vector<Model>& models, const Bench& b, size_t first) {
  std::vector<std::string> failures;
  std::FILE* errors = std::tmpfile();
  REQUIRE(errors);
  for (size_t next = first; next < models.size();) {
    int ends[2];
    REQUIRE(pipe(ends) == 0);
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) try_models(models, b, next, ends[1], fileno(errors));
    close(ends[1]);
    size_t at = next;
    while (read(ends[0], &at, sizeof at) == sizeof at) {
    }
    close(ends[0]);
    int status = 0;
    waitpid(child, &status, 0);
    if (status == 0) break;
    std::string said(2000, ' ');
    std::rewind(errors);
    said.resize(std::fread(said.data(), 1, said.size(), errors));
    failures.push_back(
        fmt::format("{}: {}; {}", models[at].name, how(status), said.substr(0, said.find('\n'))));
    next = at + kChildren;
  }
  std::fclose(errors);
  return failures;
}

/// try_all in a process of its own, which prints what it returns.
pid_t start(const std::vector<Model>& models, const Bench& b, size_t first, std::FILE* out) {
  const pid_t row = fork();
  if (row != 0) return row;
  for (const std::string& f : try_all(models, b, first)) std::fprintf(out, "%s\n", f.c_str());
  std::fclose(out);
  std::_Exit(0);
}

}  // namespace

TEST_CASE("models of one node" * doctest::skip(std::getenv("FERRULE_HOSTILE_MODELS") == nullptr)) {
  const std::vector<Model> models = read_models(std::getenv("FERRULE_HOSTILE_MODELS"));
  REQUIRE(!models.empty());
  const Bench bench = make_bench();
  size_t failed = 0;
  std::fflush(nullptr);
  std::vector<std::pair<pid_t, std::FILE*>> rows;
  for (size_t k = 0; k < kChildren; ++k) {
    std::FILE* out = std::tmpfile();
    rows.emplace_back(start(models, bench, k, out), out);
  }
  for (auto& [row, out] : rows) {
    int status = 0;
    waitpid(row, &status, 0);
    CHECK(status == 0);
    std::rewind(out);
    char line[4096];
    while (std::fgets(line, sizeof line, out)) std::printf("FAILED %s", line), ++failed;
    std::fclose(out);
  }
  const Counts& n = *bench.counts;
  std::printf(
      "%zu models: %zu imported, %zu plans for two targets, %zu ran in the interpreter, %zu on the "
      "CPU\n",
      models.size(), n.imported.load(), n.planned.load(), n.reference.load(), n.cpu.load());
  std::printf("%zu passed, %zu failed\n", models.size() - failed, failed);
  CHECK(failed == 0);
}

}  // namespace ferrule
