// Names and shapes go to NVIDIA's C++ headers here and nowhere else: they take half a minute to
// compile. Nothing of cuDNN or the CUDA runtime is linked. The headers throw where a symbol is
// missing; no exception leaves this file.
#include "runtime/cuda/cudnn_graph.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

#include "engine/base/diagnostics.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/open_library.h"

#ifdef FERRULE_HAVE_CUDNN
#define NV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING
#include <cudnn_frontend.h>

namespace cudnn_frontend {
void* cudnn_dlhandle = nullptr;
}
#endif

namespace ferrule::cuda {

std::string cudnn_device(const Target& target) {
  const int version = static_cast<int>(std::lround(target.cc * 100));
  const int reserved = version >= 800 ? 1024 : 0;  // of a block's shared memory, by CUDA
  return fmt::format(
      R"({{"maxGridSize": [2147483647, 65535, 65535], "maxBlockSize": [1024, 1024, 64], "regsPerBlock": 65536, )"
      R"("multiProcessorCount": {}, "smClockRateKHz": 1500000, "memClockRateKHz": 1500000, "l2CacheSize": {}, "warpSize": 32, )"
      R"("maxSharedMemoryPerBlock": 49152, "maxSharedMemoryPerBlockOptin": {}, "reservedSharedMemoryPerBlock": {}, )"
      R"("maxRegistersPerSM": 65536, "pciDeviceId": 0, "maxCtasPerSM": {}, "maxThreadsPerBlock": 1024, "maxThreadsPerSM": {}, )"
      R"("isTccDriver": 0, "supportCoopLaunch": 1, "driverVer": 13000, "deviceVer": {}, "deviceName": "{}", "cudaDeviceId": 0, )"
      R"("totalGlobalMem": 17179869184}})",
      target.cores, target.l2_bytes, target.shared_bytes_per_core - reserved, reserved,
      target.blocks_per_core, target.threads_per_core, version, target.name);
}

#ifndef FERRULE_HAVE_CUDNN

namespace {
auto not_built() {
  return error(Code::library_missing, "", "cuDNN",
               "ferrule was built where cudnn.h was not found; build it where CUDA's and cuDNN's "
               "headers are");
}
}  // namespace
Result<std::string> cudnn_version() { return not_built(); }
Result<cudnnContext*> create_cudnn(std::string_view) { return not_built(); }
void destroy_cudnn(cudnnContext*) {}
Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(cudnnContext*, const CudnnWork&, int,
                                                         std::string_view) {
  return not_built();
}
Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(const std::string&, const CudnnWork&, int,
                                                         std::string_view) {
  return not_built();
}

#else

namespace fe = cudnn_frontend;

namespace {

constexpr int64_t kMostWorkspace = int64_t{1} << 30;
constexpr size_t kMaskVersion = 91000;

/// All that there are have one name; one for a newer CUDA than the driver's loads and then fails.
Status fits_driver(void* library) {
  const auto& driver = Driver::get();
  const auto made_for = reinterpret_cast<size_t (*)()>(dlsym(library, "cudnnGetCudartVersion"));
  if (!driver || !made_for) return {};
  const auto version = static_cast<int>(made_for());
  if (version / 1000 <= driver->version / 1000) return {};
  return error(
      Code::library_missing, "",
      fmt::format("cuDNN for the driver's CUDA {}", version_text(driver->version)),
      fmt::format("libcudnn.so.9 is for CUDA {}; pip install nvidia-cudnn-cu{}, or install "
                  "a newer driver",
                  version_text(version), driver->version / 1000));
}

/// cuDNN, opened once a process.
Status open_cudnn() {
  static const Result<void*> library = []() -> Result<void*> {
    FERRULE_ASSIGN(
        void* opened,
        open_nvidia_library(
            "cuDNN", {"libcudnn.so.9"},
            "pip install nvidia-cudnn-cu13 (or -cu12), or put its lib folder on LD_LIBRARY_PATH"));
    FERRULE_TRY(fits_driver(opened));
    fe::cudnn_dlhandle = opened;
    return opened;
  }();
  return library ? Status{} : fail(library.error());
}

std::string layer_of(std::string_view layer) { return escape(layer); }

std::string status_text(cudnnStatus_t status) {
  const char* text = fe::detail::get_error_string(status);
  char more[512] = "";
  fe::detail::get_last_error_string(more, sizeof more);
  return fmt::format("{} ({}){}{}", text ? text : "", static_cast<int>(status), *more ? ": " : "",
                     more);
}

/// The first line of what cuDNN's headers say: the rest repeats every engine.
std::string first_line(std::string text) {
  text.resize(std::min(text.find('\n'), text.size()));
  return text;
}

/// Runs `body`, which gives a cudnn_frontend::error_t or throws.
template <class Body>
Applicable<> guard(std::string_view layer, std::string_view what, Body&& body) {
  std::string why;
  try {
    fe::error_t e = body();
    if (e.is_good()) return {};
    why = first_line(e.get_message());
    if (e.get_code() == fe::error_code_t::GRAPH_NOT_SUPPORTED ||
        e.get_code() == fe::error_code_t::HEURISTIC_QUERY_FAILED ||
        e.get_code() == fe::error_code_t::GRAPH_EXECUTION_PLAN_CREATION_FAILED)
      return not_applicable(layer_of(layer), what, "cuDNN has no engine: " + why);
  } catch (const std::exception& e) {
    why = e.what();
  }
  return error(Code::library_failed, layer_of(layer), fmt::format("cuDNN {}", what), why);
}

std::optional<fe::DataType_t> data_type(DType t) {
  switch (t) {
    case DType::f32:
      return fe::DataType_t::FLOAT;
    case DType::f16:
      return fe::DataType_t::HALF;
    case DType::bf16:
      return fe::DataType_t::BFLOAT16;
    case DType::i8:
      return fe::DataType_t::INT8;
    case DType::u8:
      return fe::DataType_t::UINT8;
    default:
      return std::nullopt;
  }
}

using TensorPtr = std::shared_ptr<fe::graph::Tensor_attributes>;
using Mode = fe::PointwiseMode_t;

/// The headers' graph, with the plans that it keeps to itself.
class OpenGraph : public fe::graph::Graph {
 public:
  fe::graph::Execution_plan_list& all_plans() { return plans; }
  bool uses(int64_t uid) const { return variant_pack_uids.contains(uid); }
  /// A tensor that wants an address: of the caller's, or added by the headers.
  std::optional<int64_t> other_than(const std::vector<int64_t>& given) const {
    for (const int64_t uid : variant_pack_uids)
      if (std::ranges::find(given, uid) == given.end()) return uid;
    return std::nullopt;
  }
};

class Graph final : public CudnnGraph {
 public:
  Graph(cudnnContext* handle, std::shared_ptr<fe::DeviceProperties> device, std::string layer)
      : handle_(handle), device_(std::move(device)), layer_(std::move(layer)) {}
  ~Graph() override {
    for (auto& [key, d] : packs_) fe::detail::destroy_descriptor(d);
  }

  Applicable<> make(const CudnnWork& work, int sm) {
    const auto* problem = std::get_if<CudnnProblem>(&work);
    const DType dtype = std::visit([](const auto& w) { return w.y.dtype; }, work);
    const auto type = data_type(dtype);
    if (!type) return not_applicable(layer_of(layer_), "cuDNN", name(dtype));
    graph_.set_sm_version(sm);
    graph_.set_io_data_type(*type)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (device_) graph_.set_device_properties(device_);
    FERRULE_TRY(guard(layer_, "operation graph", [&] {
      if (auto e = std::visit([this](const auto& w) { return add(w); }, work); e.is_bad()) return e;
      if (auto e = graph_.validate(); e.is_bad()) return e;
      if (auto e = device_ ? graph_.build_operation_graph() : graph_.build_operation_graph(handle_);
          e.is_bad())
        return e;
      return graph_.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::FALLBACK});
    }));
    return guard(layer_, "heuristics", [&] {
      graph_.deselect_workspace_greater_than(kMostWorkspace);
      keep_precise(problem && problem->x.dtype == DType::f32, problem && problem->tf32);
      return usable_.empty() ? fe::error_t{fe::error_code_t::GRAPH_NOT_SUPPORTED,
                                           "all engines round more than is allowed"}
                             : fe::error_t{};
    });
  }

  std::vector<std::string> plans() const override {
    std::vector<std::string> out;
    for (int64_t k : usable_)
      if (std::string n = plan_name(k); std::find(out.begin(), out.end(), n) == out.end())
        out.push_back(std::move(n));
    return out;
  }

  Applicable<> build(std::string_view wanted) override {
    std::string why = "no plan of that name";
    for (int64_t k : usable_) {
      if (!wanted.empty() && plan_name(k) != wanted) continue;
      auto built = guard(layer_, "plan", [&] { return graph_.build_plan_at_index(k); });
      if (!built) {
        why = built.error().reason();
        continue;
      }
      chosen_ = k;
      return guard(layer_, "workspace",
                   [&] { return graph_.get_workspace_size_plan_at_index(k, workspace_); });
    }
    return not_applicable(layer_of(layer_), "cuDNN", "no plan can be built: " + why);
  }

  std::string plan() const override { return chosen_ < 0 ? "" : plan_name(chosen_); }
  int64_t workspace_bytes() const override { return workspace_; }

  Status execute(CUstream_st* stream, const CudnnAddresses& addresses, void* workspace) override {
    try {
      FERRULE_ASSIGN(const cudnnBackendDescriptor_t packed, pack(addresses, workspace));
      if (auto s = fe::detail::set_stream(handle_, reinterpret_cast<cudaStream_t>(stream));
          s != CUDNN_STATUS_SUCCESS)
        return failed("cudnnSetStream", s);
      auto plan = graph_.all_plans().execution_plans[static_cast<size_t>(chosen_)];
      if (auto s = fe::detail::execute(handle_, plan->get_raw_desc(), packed);
          s != CUDNN_STATUS_SUCCESS)
        return failed("cudnnBackendExecute", s);
      return {};
    } catch (const std::exception& e) {
      return error(Code::library_failed, layer_of(layer_), "cuDNN execution", e.what());
    }
  }

 private:
  Status failed(std::string_view what, cudnnStatus_t status) const {
    return error(Code::library_failed, layer_of(layer_), std::string(what), status_text(status));
  }

  std::string plan_name(int64_t k) const {
    std::string n;
    (void)graph_.get_plan_name_at_index(k, n);
    return n;
  }

  /// Addresses in the form that cuDNN executes; numbers lie in our own memory. Kept: each of the
  /// layers that share the graph comes with its own again and again.
  Result<cudnnBackendDescriptor_t> pack(const CudnnAddresses& addresses, void* workspace) {
    const std::pair key{addresses, workspace};
    if (auto it = packs_.find(key); it != packs_.end()) return it->second;
    std::vector<int64_t> uids;
    std::vector<void*> pointers;
    for (const auto& [uid, p] : addresses)
      if (graph_.uses(uid)) uids.push_back(uid), pointers.push_back(p);
    for (size_t k = 0; k < numbers_.size(); ++k) {
      uids.push_back(kFirstNumber + static_cast<int64_t>(k));
      pointers.push_back(&numbers_[k].value);
    }
    if (const auto uid = graph_.other_than(uids))
      return error(Code::library_failed, layer_of(layer_), "cuDNN's variant pack",
                   fmt::format("nobody has an address for tensor {}", *uid));
    cudnnBackendDescriptor_t d = nullptr;
    if (auto s = fe::detail::create_descriptor(CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, &d);
        s != CUDNN_STATUS_SUCCESS)
      return fail(failed("a variant pack", s).error());
    packs_[key] = d;
    const auto count = static_cast<int64_t>(uids.size());
    auto set = [&](cudnnBackendAttributeName_t attribute, cudnnBackendAttributeType_t type,
                   int64_t n,
                   void* data) { return fe::detail::set_attribute(d, attribute, type, n, data); };
    auto s =
        set(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers.data());
    if (s == CUDNN_STATUS_SUCCESS)
      s = set(CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, uids.data());
    if (s == CUDNN_STATUS_SUCCESS)
      s = set(CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    if (s == CUDNN_STATUS_SUCCESS) s = fe::detail::finalize(d);
    if (s == CUDNN_STATUS_SUCCESS) return d;
    fe::detail::destroy_descriptor(d);
    packs_.erase(key);
    return fail(failed("a variant pack", s).error());
  }

  void keep_precise(bool whole, bool tf32) {
    const auto& notes = graph_.all_plans().numeric_notes;
    auto has = [&](size_t k, fe::NumericalNote_t n) {
      return std::find(notes[k].begin(), notes[k].end(), n) != notes[k].end();
    };
    for (size_t k = 0; k < notes.size(); ++k) {
      if (has(k, fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION)) continue;
      if (whole && has(k, fe::NumericalNote_t::DOWN_CONVERT_INPUTS)) continue;
      if (whole && !tf32 && has(k, fe::NumericalNote_t::TENSOR_CORE)) continue;
      // The tolerance of the README is that of Winograd's 4x4 tiles, not of larger ones or of
      // transforms.
      if (has(k, fe::NumericalNote_t::WINOGRAD_TILE_13x13)) continue;
      usable_.push_back(static_cast<int64_t>(k));
    }
  }

  TensorPtr tensor(int64_t uid, const CudnnTensor& t) {
    return graph_.tensor(fe::graph::Tensor_attributes()
                             .set_uid(uid)
                             .set_dim(t.dims)
                             .set_stride(t.strides)
                             .set_data_type(*data_type(t.dtype)));
  }

  /// A number that the kernel reads when it is launched.
  TensorPtr number(float value) {
    numbers_.push_back({value});
    auto t = graph_.tensor(value);
    t->set_uid(kFirstNumber + static_cast<int64_t>(numbers_.size()) - 1);
    return t;
  }

  TensorPtr unary(const TensorPtr& x, fe::graph::Pointwise_attributes a) {
    return graph_.pointwise(x, a);
  }
  TensorPtr unary(const TensorPtr& x, Mode m) {
    return unary(x, fe::graph::Pointwise_attributes().set_mode(m));
  }
  TensorPtr binary(Mode m, const TensorPtr& x, const TensorPtr& y) {
    return graph_.pointwise(x, y, fe::graph::Pointwise_attributes().set_mode(m));
  }
  TensorPtr scaled(TensorPtr x, float alpha, float beta) {
    if (alpha != 1) x = binary(Mode::MUL, x, number(alpha));
    return beta != 0 ? binary(Mode::ADD, x, number(beta)) : x;
  }
  /// Bounds as minimum and maximum: cuDNN has more engines for them than for a rectifier with two
  /// bounds.
  TensorPtr clipped(TensorPtr x, float low, float high) {
    if (low == 0)
      x = unary(x, Mode::RELU_FWD);
    else if (std::isfinite(low))
      x = binary(Mode::MAX, x, number(low));
    return std::isfinite(high) ? binary(Mode::MIN, x, number(high)) : x;
  }

  TensorPtr step(const TensorPtr& x, const PostOp& op, const CudnnProblem& p) {
    const auto attributes = [](Mode m) { return fe::graph::Pointwise_attributes().set_mode(m); };
    if (op.operand >= 0) {
      const TensorPtr y =
          tensor(kOperand + op.operand, p.operands[static_cast<size_t>(op.operand)]);
      if (op.alg == "add" || op.kind == PostOp::Kind::sum) return binary(Mode::ADD, x, y);
      if (op.alg == "sub") return binary(Mode::SUB, x, y);
      if (op.alg == "mul") return binary(Mode::MUL, x, y);
      if (op.alg == "div") return binary(Mode::DIV, x, y);
      if (op.alg == "max") return binary(Mode::MAX, x, y);
      if (op.alg == "min") return binary(Mode::MIN, x, y);
    }
    if (op.alg == "relu") return unary(x, Mode::RELU_FWD);
    if (op.alg == "leaky_relu")
      return unary(x, attributes(Mode::RELU_FWD).set_relu_lower_clip_slope(op.alpha));
    if (op.alg == "clip") return clipped(x, op.alpha, op.beta);
    if (op.alg == "elu") return unary(x, attributes(Mode::ELU_FWD).set_elu_alpha(op.alpha));
    if (op.alg == "logistic") return unary(x, Mode::SIGMOID_FWD);
    if (op.alg == "tanh") return unary(x, Mode::TANH_FWD);
    if (op.alg == "swish") return unary(x, attributes(Mode::SWISH_FWD).set_swish_beta(op.alpha));
    if (op.alg == "hardsigmoid") return clipped(scaled(x, op.alpha, op.beta), 0, 1);
    if (op.alg == "hardswish")
      return binary(Mode::MUL, clipped(scaled(x, op.alpha, op.beta), 0, 1), x);
    if (op.alg == "soft_relu")
      return unary(x, attributes(Mode::SOFTPLUS_FWD).set_softplus_beta(op.alpha));
    if (op.alg == "mish")
      return binary(
          Mode::MUL,
          unary(unary(x, attributes(Mode::SOFTPLUS_FWD).set_softplus_beta(1)), Mode::TANH_FWD), x);
    if (op.alg == "gelu_tanh") return unary(x, Mode::GELU_APPROX_TANH_FWD);
    if (op.alg == "abs") return unary(x, Mode::ABS);
    if (op.alg == "sqrt") return unary(x, Mode::SQRT);
    if (op.alg == "exp") return unary(x, Mode::EXP);
    if (op.alg == "log") return unary(x, Mode::LOG);
    if (op.alg == "square") return binary(Mode::MUL, x, x);
    if (op.alg == "pow") return scaled(binary(Mode::POW, x, number(op.beta)), op.alpha, 0);
    if (op.alg == "linear") return scaled(x, op.alpha, op.beta);
    throw std::runtime_error(fmt::format("the tail's {} is none of cuDNN's", op.alg));
  }

  TensorPtr anchor(const CudnnProblem& p) {
    const TensorPtr x = tensor(kX, p.x);
    using Kind = CudnnProblem::Kind;
    if (p.kind == Kind::convolution)
      return graph_.conv_fprop(x, tensor(kW, p.w),
                               fe::graph::Conv_fprop_attributes()
                                   .set_pre_padding(p.pads_begin)
                                   .set_post_padding(p.pads_end)
                                   .set_stride(p.strides)
                                   .set_dilation(p.dilations));
    return graph_.conv_dgrad(x, tensor(kW, p.w),
                             fe::graph::Conv_dgrad_attributes()
                                 .set_pre_padding(p.pads_begin)
                                 .set_post_padding(p.pads_end)
                                 .set_stride(p.strides)
                                 .set_dilation(p.dilations));
  }

  fe::error_t add(const CudnnProblem& p) {
    TensorPtr y = anchor(p);
    if (p.bias.present() || !p.tail.empty()) y->set_dim(p.y.dims);
    size_t next = 0;
    // The ready-made engines know one order: an addend as large as the result, then the bias, then
    // the rectifier.
    if (p.bias.present() && !p.tail.empty() && p.tail[0].operand >= 0 && p.tail[0].alg == "add" &&
        p.operands[static_cast<size_t>(p.tail[0].operand)].dims == p.y.dims)
      y = step(y, p.tail[next++], p);
    if (p.bias.present()) y = binary(Mode::ADD, y, tensor(kBias, p.bias));
    for (; next < p.tail.size(); ++next) y = step(y, p.tail[next], p);
    result(y, p.y);
    return {};
  }

  /// The headers spell it as products and a softmax, which every release that knows masks knows.
  fe::error_t add(const CudnnAttention& a) {
    if (a.mask.present() && fe::detail::get_backend_version() < kMaskVersion)
      return {fe::error_code_t::GRAPH_NOT_SUPPORTED,
              "before version 9.10, minus infinity in a mask may come out as NaN"};
    auto options = fe::graph::SDPA_attributes()
                       .set_name("attention")
                       .set_generate_stats(false)
                       .set_implementation(fe::AttentionImplementation_t::COMPOSITE);
    if (a.scale != 1) options.set_attn_scale(number(a.scale));
    if (a.mask.present()) options.set_bias(tensor(kMask, a.mask));
    result(graph_.sdpa(tensor(kQuery, a.q), tensor(kKey, a.k), tensor(kValue, a.v), options)[0],
           a.y);
    return {};
  }

  void result(const TensorPtr& y, const CudnnTensor& t) {
    y->set_output(true)
        .set_uid(kY)
        .set_data_type(*data_type(t.dtype))
        .set_dim(t.dims)
        .set_stride(t.strides);
  }

  /// Aligned as cuDNN is told of all tensors.
  struct alignas(16) Number {
    float value = 0;
  };
  static constexpr int64_t kFirstNumber = 1000;
  cudnnContext* handle_;
  std::shared_ptr<fe::DeviceProperties> device_;
  std::string layer_;
  OpenGraph graph_;
  std::deque<Number> numbers_;
  std::vector<int64_t> usable_;
  int64_t chosen_ = -1, workspace_ = 0;
  std::map<std::pair<CudnnAddresses, void*>, cudnnBackendDescriptor_t> packs_;
};

}  // namespace

Result<std::string> cudnn_version() {
  FERRULE_TRY(open_cudnn());
  const size_t v = fe::detail::get_backend_version();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

Result<cudnnContext*> create_cudnn(std::string_view layer) {
  FERRULE_TRY(open_cudnn());
  cudnnHandle_t handle = nullptr;
  try {
    if (auto s = fe::detail::create_handle(&handle); s != CUDNN_STATUS_SUCCESS)
      return error(Code::library_failed, layer_of(layer), "cudnnCreate", status_text(s));
  } catch (const std::exception& e) {
    return error(Code::library_missing, layer_of(layer), "cuDNN", e.what());
  }
  return handle;
}

void destroy_cudnn(cudnnContext* handle) {
  try {
    fe::detail::destroy_handle(handle);
  } catch (const std::exception&) {  // a library that lost the function: nothing to give back to
  }
}

Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(cudnnContext* handle,
                                                         const CudnnWork& work, int sm,
                                                         std::string_view layer) {
  FERRULE_TRY(open_cudnn());
  auto g = std::make_unique<Graph>(handle, nullptr, std::string(layer));
  FERRULE_TRY(g->make(work, sm));
  return g;
}

Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(const std::string& device,
                                                         const CudnnWork& work, int sm,
                                                         std::string_view layer) {
  FERRULE_TRY(open_cudnn());
  auto properties = std::make_shared<fe::DeviceProperties>();
  FERRULE_TRY(guard(layer, "device properties", [&] {
    return properties->deserialize(std::vector<uint8_t>(device.begin(), device.end()));
  }));
  auto g = std::make_unique<Graph>(nullptr, std::move(properties), std::string(layer));
  FERRULE_TRY(g->make(work, sm));
  return g;
}

#endif

}  // namespace ferrule::cuda
