#include "runtime/cuda/executable.h"

#include <algorithm>
#include <iterator>

#include "codegen/cuda/plan_launch.h"
#include "engine/base/diagnostics.h"
#include "runtime/cuda/kernels/several.h"
#include "runtime/in_place.h"

namespace ferrule::cuda {
namespace {

constexpr unsigned kNonBlocking = 1;

int64_t align_up(int64_t n) {
  return (n + kScratchAlignment - 1) / kScratchAlignment * kScratchAlignment;
}

}  // namespace

Address CudaExecutable::SlotBinder::slot(int slot) {
  auto at = e_.address(slot);
  if (at) return *at;
  if (problem) problem = fail(at.error());
  return 0;
}

Address CudaExecutable::SlotBinder::scratch() {
  const int64_t offset = e_.storage_.scratch[static_cast<size_t>(step_)].offset;
  return e_.arena_.address() + static_cast<Address>(align_up(std::max<int64_t>(0, offset)));
}

Applicable<std::unique_ptr<Executable>> CudaExecutable::make(const PrepareContext& context,
                                                             Device& device, ConstantPool& pool) {
  std::unique_ptr<CudaExecutable> e(new CudaExecutable(context, device, pool));
  FERRULE_TRY(e->build(context));
  return e;
}

/// The driver's calls may fail here as anywhere; what they would have freed ends with the process.
CudaExecutable::~CudaExecutable() {
  const Entered entered(device_);
  if (entered.status && stream_) (void)device_.wait(stream_, "the end of a run");
  if (!entered.status || device_.lost()) {
    forget();
    return;
  }
  const Driver& api = device_.api();
  for (Segment& s : segments_)
    if (s.graph) (void)api.cuGraphExecDestroy(s.graph);
  for (Event e : events_) (void)api.cuEventDestroy(e);
  for (Event e : {started_, stopped_})
    if (e) (void)api.cuEventDestroy(e);
  steps_.clear();
  libraries_.close();
  if (stream_) (void)api.cuStreamDestroy(stream_);
}

/// Behind the driver's end (a session that is static) and in a process that was forked, NVIDIA's
/// libraries may crash when they are to give something back.
void CudaExecutable::forget() {
  static auto* mutex = new std::mutex();
  static auto* kept = new std::vector<std::vector<Step>>();
  const std::lock_guard lock(*mutex);
  kept->push_back(std::move(steps_));
  libraries_.forget();
}

Applicable<> CudaExecutable::build(const PrepareContext& context) {
  FERRULE_TRY(device_.check(device_.api().cuStreamCreate(&stream_, kNonBlocking), "cuStreamCreate",
                            "backend cuda"));
  for (Event* e : {&started_, &stopped_})
    FERRULE_TRY(device_.check(device_.api().cuEventCreate(e, 0), "cuEventCreate", "backend cuda"));
  // Library kernels may not write over what they add: cuDNN does not promise to read an element
  // before it writes it.
  auto pairs = [this](size_t layer, const Launch& l) {
    return generated_in_place(plan_, lowered_, layer, l);
  };
  FERRULE_ASSIGN(storage_, plan_storage(plan_, lowered_, pairs));
  Context kernels = this->context(context.cache);
  const std::vector<CodePtr> compiled = compile(kernels);
  std::vector<int64_t> scratch(static_cast<size_t>(storage_.steps), 0);
  FERRULE_TRY(make_steps(kernels, scratch));
  FERRULE_TRY(allocate(context.limits, std::move(scratch)));
  FERRULE_TRY(bind());
  cut();
  return {};
}

Context CudaExecutable::context(DiskCache* cache) {
  const PrepareContext& p = prepared_;
  return {device_, libraries_, constants_, &p.ops,  &p.target,      &p.limits,
          cache,   p.tuning,   &p.log,     cancel_, lowered_.strict};
}

/// All generated kernels at once. What cannot be planned shows up when its kernel is made.
std::vector<CodePtr> CudaExecutable::compile(Context& context) {
  std::vector<const CudaLaunch*> launches;
  for (size_t layer = 0; layer < lowered_.layers.size(); ++layer)
    for (const Launch& l : lowered_.layers[layer].launches) {
      if (!cuda_generated(l)) continue;
      auto call = call_of(plan_, lowered_, storage_, layer, l);
      if (!call) continue;
      if (choose_gpu_attention(l, *call, *context.target, context.strict).library) continue;
      if (auto planned = plan_generated(context, l, *call))
        launches.push_back(&planned_.emplace(&l, std::move(*planned)).first->second.launch);
    }
  return compile_generated(context, launches);
}

Applicable<> CudaExecutable::make_steps(Context& context, std::vector<int64_t>& scratch) {
  int step = 0;
  for (size_t layer = 0; layer < lowered_.layers.size(); ++layer) {
    const size_t begin = steps_.size();
    FERRULE_TRY(make_layer(context, layer, step));
    step += static_cast<int>(lowered_.layers[layer].launches.size());
    layers_.push_back({begin, steps_.size()});
    for (size_t k = begin; k < steps_.size(); ++k) {
      const int64_t bytes = steps_[k].kernel->scratch_bytes();
      // place() aligns to 64 bytes.
      if (bytes > 0) scratch[static_cast<size_t>(steps_[k].step)] = bytes + kScratchAlignment;
    }
  }
  return {};
}

Applicable<> CudaExecutable::make_layer(Context& context, size_t layer, int first_step) {
  auto make = [&](const Launch& l, const KernelCall& call) {
    return make_kernel(context, layer, l, call);
  };
  auto interpret = [&](const KernelCall& call, const Refusal& why) {
    if (*context.log)
      (*context.log)(LogLevel::warning,
                     fmt::format("{}: {}; the host interprets it", escape(plan_.layers[layer].name),
                                 why.reason()));
    return make_interpreted(context, call);
  };
  FERRULE_ASSIGN(auto steps, gpu_layer<KernelPtr>(plan_, lowered_, storage_, layer, first_step,
                                                  make, interpret));
  std::ranges::move(steps, std::back_inserter(steps_));
  return {};
}

Applicable<KernelPtr> CudaExecutable::make_kernel(Context& context, size_t layer, const Launch& l,
                                                  const KernelCall& call) {
  if (const auto attention = choose_gpu_attention(l, call, *context.target, context.strict).library)
    return make_attention(context, l, call, *attention);
  if (auto planned = planned_.extract(&l))
    return make_planned(context, l, call, std::move(planned.mapped()));
  if (cuda_generated(l)) return make_generated(context, l, call);
  if (l.kind == Launch::Kind::interpret) return make_interpreted(context, call);
  if (l.kind == Launch::Kind::library && library_factory(l.work))
    return make_library(context, layer, l, call);
  return not_applicable(escape(call.layer), escape(l.called), "no kernel");
}

/// The library's kernel; where it refuses the tail, its kernel without one and a generated kernel
/// behind it; where it has none at all, generated kernels alone. A library that is not there is an
/// error: without it the model is slow, and it can be had.
Applicable<KernelPtr> CudaExecutable::make_library(Context& context, size_t layer, const Launch& l,
                                                   const KernelCall& call) {
  const Factory library = library_factory(l.work);
  auto warn = [&](const Refusal& why, std::string_view instead) {
    if (prepared_.log)
      prepared_.log(LogLevel::warning,
                    fmt::format("{}: {}; {}", escape(call.layer), why.reason(), instead));
  };
  auto refused = [&](const Applicable<KernelPtr>& made) {
    return !made && (!made.error().error() || made.error().error()->code == Code::library_failed) &&
           !device_.lost();
  };
  auto made = library(context, call);
  if (!refused(made)) return made;
  if (l.tail) {
    KernelCall bare = call;
    bare.post_ops = {};
    bare.inputs.resize(std::min(bare.inputs.size(), bare.node->inputs.size()));
    if (auto anchor = library(context, bare)) {
      warn(made.error(), "a generated kernel computes its tail");
      return with_tail(context, layer, l, std::move(*anchor));
    }
  }
  auto plain = without_library(context, layer, l, call);
  if (!plain) return made;
  warn(made.error(), "a generated kernel runs it, which is slow");
  return plain;
}

Applicable<KernelPtr> CudaExecutable::with_tail(Context& context, size_t layer, const Launch& l,
                                                KernelPtr kernel) {
  if (!l.tail) return kernel;
  FERRULE_ASSIGN(const KernelCall call, call_of(plan_, lowered_, storage_, layer, *l.tail));
  std::vector<KernelPtr> both;
  both.push_back(std::move(kernel));
  FERRULE_ASSIGN(KernelPtr tail, make_generated(context, *l.tail, call));
  both.push_back(std::move(tail));
  return std::make_unique<Several>(std::move(both));
}

Applicable<KernelPtr> CudaExecutable::without_library(Context& context, size_t layer,
                                                      const Launch& l, const KernelCall& call) {
  if (l.work == Work::attention) return make_generated(context, l, call);
  FERRULE_ASSIGN(KernelPtr anchor, make_direct(context, l, call));
  return with_tail(context, layer, l, std::move(anchor));
}

/// A library's call that fails when it is made to run, from now on without the library.
Status CudaExecutable::replace(Step& step, const Error& why) {
  if (!step.kernel->of_library()) return fail(why);
  int first = 0;
  for (size_t layer = 0; layer < lowered_.layers.size(); ++layer) {
    const auto& launches = lowered_.layers[layer].launches;
    const int at = step.step - first;
    first += static_cast<int>(launches.size());
    if (step.step >= first) continue;
    const Launch& l = launches[static_cast<size_t>(at)];
    Context kernels = context(nullptr);
    auto call = call_of(plan_, lowered_, storage_, layer, l);
    if (!call) break;
    auto made = without_library(kernels, layer, l, *call);
    if (!made) break;
    if (prepared_.log)
      prepared_.log(LogLevel::warning,
                    fmt::format("{}: {}; a generated kernel runs it", why.place, why.message));
    step.kernel = std::move(*made);
    return rebind(step, 0);
  }
  return fail(why);
}

Status CudaExecutable::allocate(const Limits& limits, std::vector<int64_t> scratch) {
  place(storage_, scratch);
  if (limits.memory_bytes && storage_.arena_bytes > limits.memory_bytes)
    return error(Code::out_of_memory, "memory plan", "the run", storage_.arena_bytes,
                 limits.memory_bytes);
  FERRULE_ASSIGN(arena_, Buffer::make(device_, storage_.arena_bytes, "memory plan"));
  return place_ports();
}

/// Inputs, then outputs; a result that is somebody else's memory is copied from there.
Status CudaExecutable::place_ports() {
  int64_t end = 0;
  for (auto [values, ports] :
       {std::pair{&plan_.graph.inputs(), &inputs_}, {&plan_.graph.outputs(), &outputs_}})
    for (ValueId v : *values) {
      FERRULE_ASSIGN(const auto dims, dims_of(plan_, lowered_, plan_.layers.size(), v));
      const DType dtype = plan_.graph.value(v).type.dtype;
      if (dtype == DType::string)
        return error(Code::unsupported_type, escape(plan_.graph.value(v).name), "a string operand");
      const int64_t bytes = size_bytes(dtype, product(Shape(dims.begin(), dims.end())).value_or(0));
      ports->push_back({end, bytes, 0});
      end += align_up(std::max<int64_t>(bytes, 1));
    }
  FERRULE_ASSIGN(ports_, Buffer::make(device_, end, "the model's inputs and outputs"));
  FERRULE_ASSIGN(staging_, Pinned::make(device_, end, "the model's inputs and outputs"));
  for (Port& p : outputs_) p.source = ports_.address() + static_cast<Address>(p.offset);
  for (const Storage::Copy& c : storage_.copies) {
    FERRULE_ASSIGN(outputs_[static_cast<size_t>(c.to_output)].source, address(c.from_slot));
  }
  return {};
}

Result<Address> CudaExecutable::address(int slot) {
  const Slot& s = storage_.slots[static_cast<size_t>(slot)];
  auto at = [](Address base, int64_t offset) { return base + static_cast<Address>(offset); };
  switch (s.kind) {
    case Slot::Kind::arena:
      return at(arena_.address(), s.offset);
    case Slot::Kind::input:
      return at(ports_.address(), inputs_[static_cast<size_t>(s.index)].offset);
    case Slot::Kind::output:
      return at(ports_.address(), outputs_[static_cast<size_t>(s.index)].offset);
    case Slot::Kind::constant:
      return constants_.plain(*plan_.graph.constant(ValueId{static_cast<uint32_t>(s.index)}));
    case Slot::Kind::slice:
      break;
  }
  FERRULE_ASSIGN(const Address whole, address(s.index));
  return at(whole, s.offset);
}

Status CudaExecutable::bind() {
  for (Step& s : steps_) {
    FERRULE_TRY(rebind(s, 0));
  }
  return {};
}

void CudaExecutable::cut() {
  std::vector<bool> capturable;
  for (const Step& s : steps_) capturable.push_back(s.kernel->capturable());
  for (const GpuSegment& s : cut_graphs(capturable)) segments_.push_back({s, nullptr});
}

std::string CudaExecutable::text() const {
  std::string out =
      fmt::format("arena {} bytes, constants {} bytes\n", storage_.arena_bytes, constants_.bytes());
  for (size_t layer = 0; layer < layers_.size(); ++layer)
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k)
      out += fmt::format("{}: {}\n", escape(plan_.layers[layer].name), steps_[k].kernel->text());
  for (const Segment& s : segments_)
    if (s.capturable)
      out += fmt::format("CUDA graph of {} kernels{}\n", s.end - s.begin,
                         not_captured_.empty() ? "" : ", not captured: " + not_captured_);
  return out;
}

}  // namespace ferrule::cuda
