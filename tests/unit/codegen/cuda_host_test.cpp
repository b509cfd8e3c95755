// The arithmetic and the indexing of generated CUDA source, without a GPU: the text is compiled for
// the host and compared with the reference evaluation, for every operator, element type and form of
// access.
#include <doctest/doctest.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <numeric>
#include <utility>

#include "codegen/cuda/pointwise.h"
#include "engine/base/diagnostics.h"
#include "engine/base/minifloat.h"
#include "engine/base/tolerance.h"
#include "engine/rule/load.h"
#include "engine/semantics/polynomials.h"
#include "engine/semantics/program_builder.h"
#include "tests/support/paths.h"
#include "tests/unit/codegen/host_kernels.h"
#include "tests/unit/codegen/operator_cases.h"

using namespace ferrule;
using namespace ferrule::test;

namespace {

constexpr unsigned kThreads = 256;

/// Memory that ends at a page which faults, at most 15 bytes before.
class Guarded {
 public:
  explicit Guarded(size_t bytes, size_t misaligned = 0) {
    constexpr size_t kPage = 4096;
    size_t rounded = (bytes + misaligned + 15) / 16 * 16;
    size_ = (rounded + kPage - 1) / kPage * kPage + kPage;
    memory_ = static_cast<uint8_t*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    REQUIRE(memory_ != MAP_FAILED);
    REQUIRE(mprotect(memory_ + size_ - kPage, kPage, PROT_NONE) == 0);
    data_ = memory_ + size_ - kPage - rounded + misaligned;
  }
  Guarded(Guarded&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), data_(other.data_), size_(other.size_) {}
  ~Guarded() {
    if (memory_) munmap(memory_, size_);
  }
  uint8_t* data() const { return data_; }

 private:
  uint8_t* memory_ = nullptr;
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

/// A form of access: what the operands of one operator have for strides, and what the planner makes
/// of it.
struct AccessForm {
  std::string name;
  std::vector<int64_t> dims;
  std::vector<int64_t> even, odd;  ///< of the operator's inputs 0, 2, … and 1, 3, …
  std::vector<int64_t> output;
  CudaAccess first;     ///< of input 0
  bool packed = false;  ///< several elements a thread
  bool wide = false;    ///< 64-bit indices
};
const std::vector<AccessForm> kAccessForms = {
    {"linear, packed", {331}, {1}, {1}, {1}, CudaAccess::linear, true},
    {"linear, single", {331}, {1}, {1}, {1}, CudaAccess::linear},
    {"uniform", {333}, {0}, {1}, {1}, CudaAccess::uniform, true},
    {"rows, packed", {3, 5, 16}, {0, 24, 1}, {80, 16, 1}, {80, 16, 1}, CudaAccess::rows, true},
    {"rows, single", {3, 5, 13}, {0, 24, 1}, {0, 13, 1}, {65, 13, 1}, CudaAccess::rows},
    {"row_uniform", {9, 32}, {3, 0}, {0, 0}, {32, 1}, CudaAccess::row_uniform, true},
    {"strided", {5, 7, 9}, {1, 5, 35}, {0, 9, 1}, {63, 9, 1}, CudaAccess::strided},
    {"strided output", {12, 20}, {20, 1}, {1, 0}, {64, 3}, CudaAccess::linear},
    {"wide, rows", {8, 3, 16}, {0, 16, 1}, {1, 0, 0}, {48, 16, 1}, CudaAccess::rows, true, true},
    {"wide, strided",
     {4, 5, 7},
     {1, 4, 20},
     {0, 0, 0},
     {35, 7, 1},
     CudaAccess::strided,
     false,
     true},
};

/// Pointers to multiples of 16 bytes; else to multiples of an element's size.
bool is_aligned(const AccessForm& f) {
  return f.packed || f.first != CudaAccess::linear || f.output.back() != 1;
}

/// Several operators as one program: their inputs and outputs one after another.
Program joined(std::span<const OperatorCase* const> cases) {
  ProgramBuilder b;
  for (const OperatorCase* c : cases) {
    std::vector<uint32_t> to, input;
    for (DType t : c->program.inputs) input.push_back(b.input(t));
    for (Inst in : c->program.insts) {
      if (in.op == Prim::load) {
        to.push_back(input[in.index]);
        continue;
      }
      for (int a = 0; a < info(in.op).arity; ++a)
        in.args[static_cast<size_t>(a)] = to[in.args[static_cast<size_t>(a)]];
      to.push_back(b.append(in));
    }
    for (uint32_t o : c->program.outputs) b.output(to[o]);
  }
  return b.take();
}

/// A kernel to be run on random operands, and what it is to be compared with.
struct Job {
  std::vector<const OperatorCase*> cases;  ///< one output each
  const AccessForm* form = nullptr;
  Program program, expanded;
  std::vector<std::vector<int64_t>> strides;
  CudaPlan plan;
  size_t id = 0;
};

Job make_job(HostKernels& kernels, std::vector<const OperatorCase*> cases, const AccessForm& form) {
  Job job{std::move(cases), &form, {}, {}, {}, {}, 0};
  job.program = job.expanded = joined(job.cases);
  expand_transcendentals(job.expanded);
  for (const OperatorCase* c : job.cases)
    for (size_t slot = 0; slot < c->program.inputs.size(); ++slot)
      job.strides.push_back(slot % 2 ? form.odd : form.even);
  job.strides.resize(job.strides.size() + job.program.outputs.size(), form.output);
  auto plan = plan_cuda(job.program, form.dims, job.strides, is_aligned(form));
  REQUIRE_MESSAGE(plan.has_value(), (plan ? "" : plan.error().reason()));
  job.plan = std::move(*plan);
  CAPTURE(form.name);
  CHECK(job.plan.kernel.access[0] == form.first);
  CHECK((job.plan.kernel.vector > 1) == form.packed);
  if (form.wide) job.plan.kernel.wide_index = true;
  auto source = cuda_source(job.plan.kernel, "kernel", "rule test");
  REQUIRE_MESSAGE(source.has_value(), (source ? "" : render(source.error())));
  job.id = kernels.add(std::move(*source), "kernel");
  return job;
}

bool identical(DType t, const Scalar& got, const Scalar& want) {
  if (!is_float(t)) return got.i == want.i;
  return (std::isnan(got.f) && std::isnan(want.f)) ||
         (got.f == want.f && std::signbit(got.f) == std::signbit(want.f));
}
bool within(DType t, const Scalar& got, const Scalar& want) {
  if (!is_float(t) || !std::isfinite(want.f) || !std::isfinite(got.f))
    return identical(t, got, want);
  Tolerance allowed = model_tolerance(t);
  double size = std::fabs(want.f);
  return std::fabs(got.f - want.f) <=
         allowed.relative * size + allowed.absolute * std::max(1.0, size);
}

/// Writes the `extent` elements of an input.
using Fill = std::function<void(DType type, int64_t extent, void* to)>;
Fill random_fill(Rng& rng) {
  return [&rng](DType t, int64_t extent, void* to) {
    std::vector<uint8_t> bytes = random_bytes(t, extent, rng);
    std::memcpy(to, bytes.data(), bytes.size());
  };
}

/// The operands of a job in memory.
class Run {
 public:
  Run(const Job& job, const Fill& fill) : job_(job), inputs_(job.program.inputs.size()) {
    bool apart = !is_aligned(*job.form);
    for (size_t k = 0; k < job.strides.size(); ++k) {
      auto bytes = static_cast<size_t>(size_bytes(type(k), 1));
      int64_t extent = 1;
      for (size_t d = 0; d < dims().size(); ++d) extent += (dims()[d] - 1) * job.strides[k][d];
      memory_.emplace_back(static_cast<size_t>(extent) * bytes, apart ? bytes : 0);
      bytes_.push_back(static_cast<size_t>(extent) * bytes);
      pointers_.push_back(memory_.back().data());
      if (k < inputs_)
        fill(type(k), extent, pointers_[k]);
      else
        std::memset(pointers_[k], kUntouched, bytes_[k]);
    }
  }

  void launch(const HostKernels& kernels) {
    const CudaPlan& plan = job_.plan;
    INFO(job_.cases[0]->label << " and others, " << job_.form->name);  // shown if it crashes
    auto blocks =
        static_cast<unsigned>((plan.geometry.packs(plan.kernel) + kThreads - 1) / kThreads);
    std::string arguments = cuda_arguments(plan.kernel, plan.geometry, pointers_);
    std::string wrong = kernels.launch(job_.id, arguments, {blocks}, {kThreads});
    REQUIRE_MESSAGE(wrong.empty(), wrong);
  }

  /// Every element against the reference, and that nothing else was written. The text holds the
  /// functions that have polynomials as those: exactly their result, which is near the function's.
  void check() {
    bool polynomials = job_.program.insts != job_.expanded.insts;
    std::vector<Scalar> in(inputs_), exact(job_.cases.size()), near(job_.cases.size()), scratch;
    std::vector<std::vector<uint8_t>> written;
    for (size_t k = inputs_; k < pointers_.size(); ++k) written.emplace_back(bytes_[k]);
    int64_t elements =
        std::accumulate(dims().begin(), dims().end(), int64_t{1}, std::multiplies<>());
    for (int64_t i = 0; i < elements; ++i) {
      for (size_t k = 0; k < inputs_; ++k) in[k] = read(type(k), pointers_[k], offset(k, i));
      evaluate(job_.expanded, in.data(), exact.data(), scratch);
      if (polynomials) evaluate(job_.program, in.data(), near.data(), scratch);
      for (size_t k = 0; k < exact.size(); ++k) {
        DType t = type(inputs_ + k);
        Scalar got = read(t, pointers_[inputs_ + k], offset(inputs_ + k, i));
        auto bytes = size_bytes(t, 1);
        std::memset(written[k].data() + offset(inputs_ + k, i) * bytes, 1,
                    static_cast<size_t>(bytes));
        if (!identical(t, got, exact[k])) return fail(k, i, in, got, exact[k]);
        if (polynomials && !within(t, got, near[k])) return fail(k, i, in, got, near[k]);
      }
    }
    for (size_t k = 0; k < written.size(); ++k)
      for (size_t b = 0; b < written[k].size(); ++b)
        if (!written[k][b] && static_cast<uint8_t*>(pointers_[inputs_ + k])[b] != kUntouched) {
          FAIL_CHECK(job_.cases[k]->label << ", " << job_.form->name << ": byte " << b
                                          << " beside its output is written");
          return;
        }
  }

 private:
  static constexpr uint8_t kUntouched = 0xcd;
  const std::vector<int64_t>& dims() const { return job_.form->dims; }
  DType type(size_t k) const {
    return k < inputs_ ? job_.program.inputs[k] : job_.program.output_type(k - inputs_);
  }
  int64_t offset(size_t k, int64_t element) const {
    int64_t at = 0;
    for (size_t d = dims().size(); d-- > 0; element /= dims()[d])
      at += element % dims()[d] * job_.strides[k][d];
    return at;
  }
  void fail(size_t which, int64_t element, const std::vector<Scalar>& in, const Scalar& got,
            const Scalar& want) {
    size_t first = 0;
    for (size_t k = 0; k < which; ++k) first += job_.cases[k]->program.inputs.size();
    std::string args;
    const Program& p = job_.cases[which]->program;
    for (size_t k = 0; k < p.inputs.size(); ++k) args += " " + describe(p.inputs[k], in[first + k]);
    FAIL_CHECK(job_.cases[which]->label << ", " << job_.form->name << ", element " << element << ":"
                                        << args << " -> " << describe(type(inputs_ + which), got)
                                        << ", wanted " << describe(type(inputs_ + which), want)
                                        << "\n"
                                        << to_text(p));
  }

  const Job& job_;
  size_t inputs_;
  std::vector<Guarded> memory_;
  std::vector<size_t> bytes_;
  std::vector<void*> pointers_;
};

const Semantics& table() {
  static const Semantics ops = [] {
    std::vector<std::string> dirs{rules_dir()};
    return *load_semantics(dirs);
  }();
  return ops;
}

std::vector<OperatorCase> primitive_cases() {
  std::vector<OperatorCase> out;
  for (int k = 0; k < static_cast<int>(Prim::load); ++k)
    for (DType t : kComputeTypes) {
      Program p = one(static_cast<Prim>(k), t);
      if (p.outputs.empty()) continue;
      std::string id(info(static_cast<Prim>(k)).id);
      out.push_back({fmt::format("{} {}", id, name(t)), id, t, false, std::move(p)});
    }
  return out;
}

/// Chains of primitives over mixed types.
std::vector<OperatorCase> random_cases(Rng& rng) {
  std::vector<OperatorCase> out;
  for (int k = 0; k < 60; ++k) {
    Program p = random_program(rng);
    p.outputs.resize(1);
    simplify(p);
    if (p.insts[p.outputs[0]].op != Prim::constant)
      out.push_back({fmt::format("random program {}", k), "", p.inputs[0], false, std::move(p)});
  }
  return out;
}

/// Cases as kernels of several operators each: plain ones in four forms in turn, so that an
/// operator's types meet all of them (with FERRULE_TEST_FULL in every form), the others in one
/// after the other.
std::vector<Job> make_jobs(HostKernels& kernels, const std::vector<OperatorCase>& cases) {
  constexpr size_t kOperators = 8;
  std::map<std::pair<const AccessForm*, DType>, std::vector<const OperatorCase*>> open;
  std::vector<Job> jobs;
  auto put = [&](const OperatorCase& c, const AccessForm& form) {
    auto& list = open[{&form, c.type}];
    list.push_back(&c);
    if (list.size() == kOperators) jobs.push_back(make_job(kernels, std::exchange(list, {}), form));
  };
  const bool full = std::getenv("FERRULE_TEST_FULL");
  size_t turn = 0;
  for (const OperatorCase& c : cases) {
    ++turn;
    if (!c.plain)
      put(c, kAccessForms[turn % kAccessForms.size()]);
    else
      for (size_t k = 0; k < kAccessForms.size(); ++k)
        if (full || (k + turn) % 5 < 2) put(c, kAccessForms[k]);
  }
  for (auto& [key, list] : open)
    if (!list.empty()) jobs.push_back(make_job(kernels, std::move(list), *key.first));
  return jobs;
}

void compile_and_check(HostKernels& kernels, const std::vector<Job>& jobs, const Fill& fill) {
  std::string wrong = kernels.compile();
  REQUIRE_MESSAGE(wrong.empty(), wrong);
  for (const Job& job : jobs) {
    Run run(job, fill);
    run.launch(kernels);
    run.check();
  }
}

/// All codes of types of up to 16 bits; of others special values, and numbers at and beside the
/// middle between two neighbours of a narrower float type.
void fill_codes(DType t, int64_t n, void* to, Rng& rng) {
  std::vector<uint8_t> random = random_bytes(t, n, rng);
  std::memcpy(to, random.data(), random.size());
  for (int64_t k = 0; k < n; ++k) {
    if (size_bits(t) == 8 && t != DType::boolean)
      static_cast<uint8_t*>(to)[k] = static_cast<uint8_t>(k);
    if (size_bits(t) == 16) static_cast<uint16_t*>(to)[k] = static_cast<uint16_t>(k);
    if ((t != DType::f32 && t != DType::f64) || k % 4 == 0) continue;
    // The exponent is one that narrow types have; the fraction ends early, with a one at any of its
    // places.
    int bits = 1 + static_cast<int>(rng() % 12);
    double fraction = std::ldexp(static_cast<double>(rng() % (1u << bits)), -bits);
    double x = std::ldexp(1 + fraction, static_cast<int>(rng() % 48) - 30);
    if (rng() % 2) x = -x;
    double towards = k % 4 == 1 ? HUGE_VAL : k % 4 == 2 ? -HUGE_VAL : x;
    if (t == DType::f64)
      static_cast<double*>(to)[k] = std::nextafter(x, towards);
    else
      static_cast<float*>(to)[k] =
          std::nextafter(static_cast<float>(x), static_cast<float>(towards));
  }
}

}  // namespace

TEST_CASE(
    "every operator, element type and form of access: generated CUDA source equals the reference") {
  if (HostKernels::missing()) return;
  HostKernels kernels;
  Rng rng(1);
  std::vector<OperatorCase> cases = operator_cases(table());
  std::set<std::string> covered;
  for (const OperatorCase& c : cases) covered.insert(c.op);
  for (const auto& [key, f] : table().all())
    CHECK_MESSAGE((!f.pointwise() || covered.count(f.op)), key);
  for (OperatorCase& c : primitive_cases()) cases.push_back(std::move(c));
  for (OperatorCase& c : random_cases(rng)) cases.push_back(std::move(c));
  std::vector<Job> jobs = make_jobs(kernels, cases);
  compile_and_check(kernels, jobs, random_fill(rng));
}

TEST_CASE(
    "every cast on the host: all codes of narrow types, and numbers between those of narrower "
    "ones") {
  if (HostKernels::missing()) return;
  HostKernels kernels;
  const AccessForm all_codes{"all codes", {65536}, {1}, {1}, {1}, CudaAccess::linear, true};
  const AccessForm many{"many numbers", {16384}, {1}, {1}, {1}, CudaAccess::linear, true};
  std::vector<OperatorCase> cases;
  for (DType from : kStorageTypes)
    for (DType to : kStorageTypes)
      for (bool wrap : {false, true}) {
        if (wrap && !is_mini(to)) continue;
        ProgramBuilder b;
        uint32_t x = b.input(from);
        b.output(from == to ? x : wrap ? b.cast_wrapping(x, to) : b.cast(x, to));
        std::string label =
            fmt::format("{} to {}{}", name(from), name(to), wrap ? ", wrapping" : "");
        cases.push_back({std::move(label), "", from, false, b.take()});
      }
  std::vector<Job> jobs;
  for (size_t k = 0; k < cases.size();
       k += 4) {  // one type each: there are 21 casts from every type
    std::map<DType, std::vector<const OperatorCase*>> by_type;
    for (size_t j = k; j < std::min(k + 4, cases.size()); ++j)
      by_type[cases[j].type].push_back(&cases[j]);
    for (auto& [t, list] : by_type)
      jobs.push_back(make_job(kernels, list, size_bits(t) <= 16 ? all_codes : many));
  }
  Rng rng(2);
  compile_and_check(kernels, jobs,
                    [&](DType t, int64_t extent, void* to) { fill_codes(t, extent, to, rng); });
}

TEST_CASE("an operand beyond 2^31 elements is reached on the host") {
  if (HostKernels::missing()) return;
  HostKernels kernels;
  const int64_t far = (int64_t{1} << 31) + 4096;
  const AccessForm form{"far rows", {2, 40}, {far, 1}, {40, 1}, {40, 1}, CudaAccess::rows, true};
  ProgramBuilder b;
  uint32_t x = b.input(DType::u8);
  b.output(b.op(Prim::add, DType::u8, {x, b.input(DType::u8)}));
  OperatorCase add{"Add u8", "Add", DType::u8, false, b.take()};
  std::vector<Job> jobs{make_job(kernels, {&add}, form)};
  CHECK(jobs[0].plan.kernel.wide_index);
  Rng rng(3);
  // Only the two rows are memory that is touched.
  compile_and_check(kernels, jobs, [&](DType t, int64_t extent, void* to) {
    std::vector<uint8_t> bytes = random_bytes(t, 80, rng);
    std::memcpy(to, bytes.data(), 40);
    std::memcpy(static_cast<uint8_t*>(to) + extent - 40, bytes.data() + 40, 40);
  });
}
