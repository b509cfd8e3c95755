// cuDNN's backend API for the operations that ferrule uses, on plain loops: descriptors are kept as
// they are set, checked when they are finalized, and a plan computes its operation graph. It finds
// what cuDNN would refuse (dims that do not fit, uids without an address, unaligned memory) and
// what no refusal would show (an engine that rounds more than was asked). Three engines: 0 and 1
// (with a workspace) compute in f32; 2, for f32 alone, rounds factors to tf32 and says so.
// FERRULE_STUB_PLANS: a file that gets a line for each plan that is built.
// FERRULE_STUB_ENGINES=none: there are none; single: for graphs of one operation alone.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "tests/gpu/stub/cudnn_graph.h"

#define API extern "C" __attribute__((visibility("default")))

namespace {

using namespace ferrule::stub;
using namespace ferrule::stub::cudnn;

struct Handle {
  DescriptorPtr d;
};
thread_local std::string last_error;

cudnnStatus_t refuse(cudnnStatus_t status, const std::string& why) {
  last_error = why;
  return status;
}
cudnnStatus_t wrong(const std::string& why) {
  wrong_use(why);
  return refuse(CUDNN_STATUS_BAD_PARAM, why);
}
#define FAULT(name)                     \
  if (int code = ordered_failure(name)) \
  return refuse(static_cast<cudnnStatus_t>(code), "ordered by the test")

size_t element_size(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
      return 8;
    case CUDNN_TYPE_BOOLEAN:
    case CUDNN_TYPE_CHAR:
      return 1;
    case CUDNN_TYPE_FRACTION:
      return sizeof(cudnnFraction_t);
    default:
      return 4;
  }
}

bool computes_f32(const Descriptor& graph) {
  const auto ops = graph.all(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  return !ops.empty() && inspect(*ops[0]).in[0].number == Number::f32;
}

DescriptorPtr config_of(const DescriptorPtr& graph, int64_t engine) {
  auto e = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, true, {}});
  e->attributes[CUDNN_ATTR_ENGINE_OPERATION_GRAPH] = {
      CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {graph}};
  Attribute index{CUDNN_TYPE_INT64, 1, std::vector<char>(8), {}};
  std::memcpy(index.bytes.data(), &engine, 8);
  e->attributes[CUDNN_ATTR_ENGINE_GLOBAL_INDEX] = index;
  auto c = std::make_shared<Descriptor>(Descriptor{CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, true, {}});
  c->attributes[CUDNN_ATTR_ENGINECFG_ENGINE] = {CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, {}, {e}};
  return c;
}

int64_t engine_of(const Descriptor& config) {
  const auto e = config.child(CUDNN_ATTR_ENGINECFG_ENGINE);
  return e ? e->value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) : 0;
}
int64_t workspace_of(int64_t engine) { return engine == 1 ? 4096 : 0; }

std::vector<DescriptorPtr> heuristic(const Descriptor& d) {
  const auto graph = d.child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
  if (!graph) return {};
  const char* order = std::getenv("FERRULE_STUB_ENGINES");
  const std::string engines = order ? order : "";
  if (engines == "none") return {};
  if (engines == "single" && graph->all(CUDNN_ATTR_OPERATIONGRAPH_OPS).size() > 1) return {};
  if (d.value<int>(CUDNN_ATTR_ENGINEHEUR_MODE, 0) == CUDNN_HEUR_MODE_FALLBACK)
    return {config_of(graph, 1)};
  std::vector<DescriptorPtr> out;
  if (computes_f32(*graph)) out.push_back(config_of(graph, 2));
  out.push_back(config_of(graph, 0));
  return out;
}

cudnnStatus_t give(cudnnBackendAttributeType_t type, const void* data, int64_t have, int64_t wanted,
                   int64_t* count, void* out) {
  if (count) *count = have;
  if (out) std::memcpy(out, data, static_cast<size_t>(std::min(have, wanted)) * element_size(type));
  return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t give(const std::vector<DescriptorPtr>& all, int64_t wanted, int64_t* count,
                   void* out) {
  if (count) *count = static_cast<int64_t>(all.size());
  auto** handles = static_cast<Handle**>(out);
  for (int64_t k = 0; handles && k < std::min<int64_t>(wanted, static_cast<int64_t>(all.size()));
       ++k)
    handles[k]->d = all[static_cast<size_t>(k)];
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

struct cudnnContext {
  cudaStream_t stream = nullptr;
};

API size_t cudnnGetVersion() { return 91900; }
/// FERRULE_STUB_CUDART: the CUDA that it is for.
API size_t cudnnGetCudartVersion() {
  const char* version = std::getenv("FERRULE_STUB_CUDART");
  return version ? std::strtoul(version, nullptr, 10) : 12000;
}
API const char* cudnnGetErrorString(cudnnStatus_t s) {
  switch (static_cast<int>(s) / 1000) {
    case 0:
      return s == CUDNN_STATUS_SUCCESS ? "CUDNN_STATUS_SUCCESS" : "CUDNN_STATUS_NOT_INITIALIZED";
    case 2:
      return "CUDNN_STATUS_BAD_PARAM";
    case 3:
      return "CUDNN_STATUS_NOT_SUPPORTED";
    case 4:
      return "CUDNN_STATUS_INTERNAL_ERROR";
    default:
      return "CUDNN_STATUS_EXECUTION_FAILED";
  }
}
API void cudnnGetLastErrorString(char* message, size_t size) {
  if (!size) return;
  std::strncpy(message, last_error.c_str(), size - 1);
  message[size - 1] = 0;
}
static std::atomic<size_t> handles = 0;
API cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  needs_context("cudnnCreate");
  FAULT("cudnnCreate");
  *handle = new cudnnContext();
  check_alive("handles of cuDNN", ++handles);
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  needs_context("cudnnDestroy");
  needs_device("cudnnDestroy");
  delete handle;
  --handles;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  FAULT("cudnnSetStream");
  handle->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = handle->stream;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type,
                                               cudnnBackendDescriptor_t* d) {
  FAULT("cudnnBackendCreateDescriptor");
  *d = new Handle{std::make_shared<Descriptor>(Descriptor{type, false, {}})};
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t d) {
  delete static_cast<Handle*>(d);
  return CUDNN_STATUS_SUCCESS;
}
API cudnnStatus_t cudnnBackendInitialize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

API cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t d,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t count,
                                           const void* data) {
  FAULT("cudnnBackendSetAttribute");
  Descriptor& to = *static_cast<Handle*>(d)->d;
  if (to.finalized) return wrong("an attribute set after the descriptor was finalized");
  Attribute a{type, count, {}, {}};
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    for (int64_t k = 0; k < count; ++k) {
      const auto* child = static_cast<Handle* const*>(data)[k];
      if (!child || !child->d->finalized) return wrong("a descriptor that is not finalized");
      a.children.push_back(child->d);
    }
  } else {
    a.bytes.assign(
        static_cast<const char*>(data),
        static_cast<const char*>(data) + static_cast<size_t>(count) * element_size(type));
  }
  to.attributes[name] = std::move(a);
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t d,
                                           cudnnBackendAttributeName_t name,
                                           cudnnBackendAttributeType_t type, int64_t wanted,
                                           int64_t* count, void* out) {
  FAULT("cudnnBackendGetAttribute");
  const Descriptor& from = *static_cast<Handle*>(d)->d;
  switch (static_cast<int>(name)) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
      return give(heuristic(from), wanted, count, out);
    case CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT: {
      const int64_t n = 3;
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: {
      const cudnnBackendNumericalNote_t note = CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
      return give(type, &note, from.value<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0) == 2, wanted,
                  count, out);
    }
    case CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE:
    case CUDNN_ATTR_ENGINE_KNOB_INFO:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
      if (count) *count = 0;
      return CUDNN_STATUS_SUCCESS;
    case CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE: {
      const int64_t n = workspace_of(engine_of(from));
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED: {
      const int32_t n = 0;
      return give(type, &n, 1, wanted, count, out);
    }
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: {
      const int64_t n =
          workspace_of(engine_of(*from.child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)));
      return give(type, &n, 1, wanted, count, out);
    }
    default:
      break;
  }
  auto it = from.attributes.find(name);
  if (it == from.attributes.end()) {
    if (count) *count = 0;
    return CUDNN_STATUS_SUCCESS;
  }
  if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR) return give(it->second.children, wanted, count, out);
  return give(type, it->second.bytes.data(), it->second.count, wanted, count, out);
}

API cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t d) {
  FAULT("cudnnBackendFinalize");
  Descriptor& it = *static_cast<Handle*>(d)->d;
  std::string problem;
  if (it.type == CUDNN_BACKEND_TENSOR_DESCRIPTOR) {
    Tensor t;
    problem = read_tensor(it, t);
  }
  if (it.type == CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR) problem = check_graph(it);
  if (!problem.empty()) return wrong(problem);
  if (it.type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR) {
    needs_context("a plan of cuDNN");
    if (const char* path = std::getenv("FERRULE_STUB_PLANS"))
      std::ofstream(path, std::ios::app) << "plan\n";
  }
  it.finalized = true;
  return CUDNN_STATUS_SUCCESS;
}

API cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                      cudnnBackendDescriptor_t pack) {
  needs_context("cudnnBackendExecute");
  FAULT("cudnnBackendExecute");
  const DescriptorPtr p = static_cast<Handle*>(plan)->d, v = static_cast<Handle*>(pack)->d;
  if (!p->finalized || !v->finalized) return wrong("a plan or variant pack that is not finalized");
  const auto config = p->child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const int64_t engine = engine_of(*config);
  const auto graph =
      config->child(CUDNN_ATTR_ENGINECFG_ENGINE)->child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
  Run run;
  run.tf32 = engine == 2;
  const auto uids = v->values<int64_t>(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
  const auto pointers = v->values<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
  if (uids.size() != pointers.size())
    return wrong("a variant pack with another number of uids than addresses");
  for (size_t k = 0; k < uids.size(); ++k) run.addresses[uids[k]] = pointers[k];
  void* workspace = v->value<void*>(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, nullptr);
  if (workspace_of(engine) > 0 &&
      (!workspace || !device_memory(workspace, static_cast<uint64_t>(workspace_of(engine)))))
    return wrong("a plan without its workspace");
  for (const auto& op : graph->all(CUDNN_ATTR_OPERATIONGRAPH_OPS)) {
    Operation o = inspect(*op);
    o.in.push_back(o.out);
    for (const Tensor& t : o.in) {
      if (t.is_virtual) continue;
      auto at = run.addresses.find(t.uid);
      if (at == run.addresses.end() || !at->second)
        return wrong("uid " + std::to_string(t.uid) + " has no address");
      if (reinterpret_cast<uintptr_t>(at->second) % static_cast<uintptr_t>(t.alignment))
        return wrong("uid " + std::to_string(t.uid) + " is not aligned");
      if (t.uid < 1000 && !device_memory(at->second, static_cast<uint64_t>(t.span())))
        return wrong("uid " + std::to_string(t.uid) + " is no memory of the device");
      if (t.uid >= 1000)
        run.values[t.uid] = {
            load(t.number, at->second, 0)};  // numbers are read when the work is put
    }
  }
  if (!own_business(reinterpret_cast<CUstream_st*>(handle->stream)))
    return refuse(CUDNN_STATUS_EXECUTION_FAILED, "its own work is not allowed");
  put_work(reinterpret_cast<CUstream_st*>(handle->stream), "cudnn engine " + std::to_string(engine),
           [graph, run, workspace, engine]() mutable {
             if (workspace) std::memset(workspace, 0x5a, static_cast<size_t>(workspace_of(engine)));
             Run now = run;
             for (const auto& op : graph->all(CUDNN_ATTR_OPERATIONGRAPH_OPS))
               run_operation(*op, now);
           });
  return CUDNN_STATUS_SUCCESS;
}
