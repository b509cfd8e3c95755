// What CudaExecutable does during a run.
#include <cstring>
#include <utility>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/executable.h"
#include "runtime/cuda/host_copy.h"

namespace ferrule::cuda {
namespace {

constexpr const char* kPlace = "run";
constexpr int kThreadLocal =
    1;  // capturing keeps only this thread from what a capture does not allow

}  // namespace

Status CudaExecutable::run(std::span<const void* const> inputs, std::span<void* const> outputs,
                           RunObserver* observer) {
  Entered entered(device_);
  FERRULE_TRY(std::move(entered.status));
  // A run that failed or was cancelled may have left its faults behind: they are none of this
  // one's.
  if (!complete_) (void)finish();
  complete_ = false;
  launches_ = 0;
  auto work = [&]() -> Status {
    FERRULE_TRY(copy_in(inputs));
    FERRULE_TRY(
        device_.check(device_.api().cuEventRecord(started_, stream_), "cuEventRecord", kPlace));
    FERRULE_TRY(observer ? run_layers(*observer) : run_segments());
    FERRULE_TRY(
        device_.check(device_.api().cuEventRecord(stopped_, stream_), "cuEventRecord", kPlace));
    return copy_out(outputs);
  };
  Status status = work();
  if (status || device_.lost()) return status;
  // Nothing may still be using memory when the caller has the error; a library may have met a
  // device that is lost first.
  Status idle = device_.wait(stream_, kPlace);
  return device_.lost() ? idle : status;
}

double CudaExecutable::device_ms() {
  float ms = 0;
  const Entered entered(device_);
  if (!complete_ || !entered.status || device_.api().cuEventElapsedTime(&ms, started_, stopped_))
    return 0;
  return double{ms};
}

Status CudaExecutable::copy_in(std::span<const void* const> inputs) {
  const Driver& api = device_.api();
  for (size_t k = 0; k < inputs_.size(); ++k) {
    const Port& p = inputs_[k];
    if (p.bytes == 0) continue;
    const auto size = static_cast<size_t>(p.bytes);
    std::memcpy(staging_.data() + p.offset, inputs[k], size);
    const int code = api.cuMemcpyHtoDAsync(ports_.address() + static_cast<Address>(p.offset),
                                           staging_.data() + p.offset, size, stream_);
    FERRULE_TRY(device_.check(code, "cuMemcpyHtoDAsync of the inputs", kPlace));
  }
  return {};
}

Status CudaExecutable::copy_out(std::span<void* const> outputs) {
  const Driver& api = device_.api();
  for (const Port& p : outputs_) {
    if (p.bytes == 0) continue;
    const int code = api.cuMemcpyDtoHAsync(staging_.data() + p.offset, p.source,
                                           static_cast<size_t>(p.bytes), stream_);
    FERRULE_TRY(device_.check(code, "cuMemcpyDtoHAsync of the outputs", kPlace));
  }
  FERRULE_TRY(device_.wait(stream_, kPlace));
  FERRULE_TRY(finish());
  for (size_t k = 0; k < outputs_.size(); ++k)
    if (outputs_[k].bytes)
      std::memcpy(outputs[k], staging_.data() + outputs_[k].offset,
                  static_cast<size_t>(outputs_[k].bytes));
  ran_ = complete_ = true;
  return {};
}

/// What is on the stream already runs to its end.
Status CudaExecutable::go_on() const {
  if (!cancel_ || !cancel_->stopped()) return {};
  return error(Code::cancelled, kPlace, "time is up");
}

Status CudaExecutable::enqueue(size_t begin, size_t end, bool captured) {
  for (size_t k = begin; k < end; ++k) {
    if (!captured) FERRULE_TRY(go_on());
    Step& step = steps_[k];
    int64_t before = step.kernel->launched();
    Status status = step.kernel->enqueue(stream_);
    if (!status && status.error().code == Code::library_failed && !captured && !device_.lost()) {
      FERRULE_TRY(replace(step, status.error()));
      before = 0;
      status = step.kernel->enqueue(stream_);
    }
    FERRULE_TRY(std::move(status));
    launches_ += step.kernel->launched() - before;
  }
  return {};
}

Status CudaExecutable::finish() {
  Status first;
  for (Step& s : steps_)
    if (Status status = s.kernel->finish(); !status && first) first = std::move(status);
  return first;
}

Status CudaExecutable::run_segments() {
  // Libraries load their code at the first launch, which cannot be captured.
  if (ran_ && !captured_) FERRULE_TRY(capture());
  for (Segment& s : segments_) {
    if (!s.graph) {
      FERRULE_TRY(enqueue(s.begin, s.end));
      continue;
    }
    FERRULE_TRY(go_on());
    FERRULE_TRY(
        device_.check(device_.api().cuGraphLaunch(s.graph, stream_), "cuGraphLaunch", kPlace));
    launches_ += s.kernels;
  }
  return {};
}

/// Once a plan. Whatever goes wrong, a library that allocates or waits for one, leaves the whole
/// plan to plain launches for good, with one warning; text() says so, too.
Status CudaExecutable::capture() {
  captured_ = true;
  const int64_t launches = launches_;
  Status status;
  for (Segment& s : segments_)
    if (status && s.capturable) status = capture(s);
  launches_ = launches;
  if (status || device_.lost()) return status;
  for (Segment& s : segments_)
    if (s.graph) (void)device_.api().cuGraphExecDestroy(std::exchange(s.graph, nullptr));
  not_captured_ = status.error().message;
  if (prepared_.log)
    prepared_.log(LogLevel::warning,
                  fmt::format("no CUDA graph, kernels are launched one by one: {}: {}",
                              status.error().place, not_captured_));
  return {};
}

Status CudaExecutable::capture(Segment& segment) {
  const Driver& api = device_.api();
  FERRULE_TRY(device_.check(api.cuStreamBeginCapture(stream_, kThreadLocal), "cuStreamBeginCapture",
                            kPlace));
  const int64_t before = launches_;
  Status status = enqueue(segment.begin, segment.end, true);
  segment.kernels = launches_ - before;
  CUgraph_st* graph = nullptr;
  const int code = api.cuStreamEndCapture(stream_, &graph);
  // What a library said comes first: it is why the capture ended badly.
  if (Status ended = device_.check(code, "cuStreamEndCapture", kPlace); status)
    status = std::move(ended);
  if (status)
    status = device_.check(api.cuGraphInstantiateWithFlags(&segment.graph, graph, 0),
                           "cuGraphInstantiateWithFlags", kPlace);
  if (!status) segment.graph = nullptr;
  if (graph && !device_.lost()) (void)api.cuGraphDestroy(graph);
  return status;
}

/// One layer after the other by plain launches, for who wants times or results.
Status CudaExecutable::run_layers(RunObserver& observer) {
  const Driver& api = device_.api();
  while (events_.size() <= layers_.size()) {
    Event e = nullptr;
    FERRULE_TRY(device_.check(api.cuEventCreate(&e, 0), "cuEventCreate", kPlace));
    events_.push_back(e);
  }
  FERRULE_TRY(device_.check(api.cuEventRecord(events_[0], stream_), "cuEventRecord", kPlace));
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    const std::string name = escape(plan_.layers[layer].name);
    FERRULE_TRY(enqueue(layers_[layer].begin, layers_[layer].end));
    FERRULE_TRY(
        device_.check(api.cuEventRecord(events_[layer + 1], stream_), "cuEventRecord", name));
    // A wait between two layers would count in the second's time; it names the layer that breaks
    // the device.
    if (!observer.wants_results()) continue;
    FERRULE_TRY(device_.wait(stream_, name));
    FERRULE_TRY(report_results(layer, observer));
  }
  FERRULE_TRY(device_.wait(stream_, kPlace));
  return report_times(observer);
}

Status CudaExecutable::report_times(RunObserver& observer) {
  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    float ms = 0;
    FERRULE_TRY(
        device_.check(device_.api().cuEventElapsedTime(&ms, events_[layer], events_[layer + 1]),
                      "cuEventElapsedTime", kPlace));
    int count = 0;
    for (size_t k = layers_[layer].begin; k < layers_[layer].end; ++k) count += steps_[k].count;
    observer.layer_done(layer, count, static_cast<int64_t>(double{ms} * 1e6));
  }
  return {};
}

Status CudaExecutable::report_results(size_t layer, RunObserver& observer) {
  if (!plan_.layers[layer].node) return {};
  std::vector<ValueId> values;
  std::vector<Tensor> tensors;
  for (ValueId v : plan_.graph.node(plan_.layers[layer].node).outputs) {
    if (!v || storage_.slot(v, layer) < 0) continue;
    FERRULE_ASSIGN(const Operand o, operand_of(plan_, lowered_, storage_, layer, v));
    FERRULE_ASSIGN(const Address at, address(storage_.slot(v, layer)));
    const int64_t element = size_bits(o.dtype) / 8;
    auto [t, p] = Tensor::allocate(o.dtype, o.dims);
    if (o.lies(Layout::plain) &&
        o.dense()) {  // elements smaller than a byte do; a copy knows bytes
      FERRULE_TRY(device_.download(p, at, t.bytes(), stream_, kPlace));
      values.push_back(v);
      tensors.push_back(t);
      continue;
    }
    std::vector<char> raw(static_cast<size_t>(extent(o.dims, o.strides()) * element));
    FERRULE_TRY(
        device_.download(raw.data(), at, static_cast<int64_t>(raw.size()), stream_, kPlace));
    copy_strided(o.dims, o.strides(), raw.data(), strides_of(o.dims, Layout::plain), p, element);
    values.push_back(v);
    tensors.push_back(t);
  }
  observer.layer_results(layer, values, tensors);
  return {};
}

}  // namespace ferrule::cuda
