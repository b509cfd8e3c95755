#include "runtime/cuda/cublaslt.h"

#include "engine/base/diagnostics.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/open_library.h"

#ifdef FERRULE_HAVE_CUBLASLT
#include <cublasLt.h>
#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <charconv>
#endif

namespace ferrule::cuda {

#ifndef FERRULE_HAVE_CUBLASLT

namespace {
auto not_built() {
  return error(
      Code::library_missing, "", "cuBLASLt",
      "ferrule was built where cublasLt.h was not found; build it where CUDA's headers are");
}
}  // namespace
Result<std::string> cublaslt_version() { return not_built(); }
Result<cublasLtContext*> create_cublaslt(std::string_view) { return not_built(); }
void destroy_cublaslt(cublasLtContext*) {}
Applicable<std::unique_ptr<CublasltProduct>> make_cublaslt_product(cublasLtContext*, const Product&,
                                                                   std::string_view) {
  return not_built();
}

#else

namespace {

constexpr size_t kWorkspace = size_t{32} << 20;  // what NVIDIA advises for Hopper
constexpr int kMostPlans = 8;
// From the pointer's value, heuristics take how all biases are aligned: null would be anything.
constexpr uintptr_t kBiasAlignment = 16;

#define FERRULE_CUBLASLT(X)   \
  X(Create)                   \
  X(Destroy)                  \
  X(GetVersion)               \
  X(GetStatusString)          \
  X(Matmul)                   \
  X(MatmulAlgoGetHeuristic)   \
  X(MatmulDescCreate)         \
  X(MatmulDescDestroy)        \
  X(MatmulDescSetAttribute)   \
  X(MatrixLayoutCreate)       \
  X(MatrixLayoutDestroy)      \
  X(MatrixLayoutSetAttribute) \
  X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)

struct Api {
#define X(name) decltype(&cublasLt##name) name = nullptr;
  FERRULE_CUBLASLT(X)
#undef X
};

const Result<Api>& api() {
  static const Result<Api> loaded = []() -> Result<Api> {
    // One for a newer CUDA than the driver's loads and then fails.
    const auto& driver = Driver::get();
    const bool old = driver && driver->version < 13000;
    const std::string what =
        old ? fmt::format("cuBLASLt for the driver's CUDA {}", version_text(driver->version))
            : "cuBLASLt";
    const std::string remedy =
        fmt::format("pip install {}, or put CUDA's lib folder on LD_LIBRARY_PATH",
                    old ? "nvidia-cublas-cu12, or install a newer driver" : "nvidia-cublas");
    FERRULE_ASSIGN(
        void* library,
        old ? open_nvidia_library(what, {"libcublasLt.so.12"}, remedy)
            : open_nvidia_library(what, {"libcublasLt.so.13", "libcublasLt.so.12"}, remedy));
    Api a;
    std::string missing;
#define X(name)                                                                         \
  if (!(a.name = reinterpret_cast<decltype(a.name)>(dlsym(library, "cublasLt" #name)))) \
    missing = "cublasLt" #name;
    FERRULE_CUBLASLT(X)
#undef X
    if (!missing.empty())
      return error(Code::library_missing, "", "cuBLASLt", "it has no " + missing);
    return a;
  }();
  return loaded;
}

Status check(cublasStatus_t s, std::string_view layer, std::string_view what) {
  if (s == CUBLAS_STATUS_SUCCESS) return {};
  const char* text = (*api()).GetStatusString(s);
  return error(Code::library_failed, escape(std::string(layer)), std::string(what),
               fmt::format("{} ({})", text ? text : "", static_cast<int>(s)));
}

std::optional<cudaDataType_t> data_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    default:
      return std::nullopt;
  }
}

cublasLtEpilogue_t epilogue_of(const Product& p) {
  switch (p.activation) {
    case Product::Activation::relu:
      return p.has_bias ? CUBLASLT_EPILOGUE_RELU_BIAS : CUBLASLT_EPILOGUE_RELU;
    case Product::Activation::gelu_tanh:
      return p.has_bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
    case Product::Activation::none:
      break;
  }
  return p.has_bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
}

/// The library counts columns first: a row-major matrix is its transpose there, so it is asked for
/// y' = b' a'.
class Matmul final : public CublasltProduct {
 public:
  Matmul(const Api& api, cublasLtHandle_t handle, const Product& p, std::string layer)
      : api_(api), handle_(handle), p_(p), layer_(std::move(layer)) {}
  ~Matmul() override {
    for (auto* l : {&a_, &b_, &c_, &y_})
      if (*l) api_.MatrixLayoutDestroy(*l);
    if (desc_) api_.MatmulDescDestroy(desc_);
  }

  Applicable<> make() {
    const auto type = data_type(p_.dtype);
    if (!type) return not_applicable(escape(layer_), "cuBLASLt", name(p_.dtype));
    const auto compute =
        p_.dtype == DType::f32 && p_.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    FERRULE_TRY(check(api_.MatmulDescCreate(&desc_, compute, CUDA_R_32F), layer_,
                      "cublasLtMatmulDescCreate"));
    FERRULE_TRY(set(CUBLASLT_MATMUL_DESC_TRANSA, p_.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    FERRULE_TRY(set(CUBLASLT_MATMUL_DESC_TRANSB, p_.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N));
    FERRULE_TRY(set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_of(p_)));
    if (p_.has_bias) {
      FERRULE_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, *type));
      FERRULE_TRY(
          set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, reinterpret_cast<const void*>(kBiasAlignment)));
    }
    FERRULE_TRY(layout(b_, *type, p_.columns, p_.depth, p_.b));
    FERRULE_TRY(layout(a_, *type, p_.depth, p_.rows, p_.a));
    FERRULE_TRY(layout(y_, *type, p_.columns, p_.rows, p_.y));
    FERRULE_TRY(layout(c_, *type, p_.columns, p_.rows, p_.adds ? p_.c : p_.y));
    return find();
  }

  std::vector<std::string> plans() const override {
    std::vector<std::string> out;
    for (int k = 0; k < found_; ++k) out.push_back(std::to_string(k));
    return out;
  }
  Applicable<> choose(std::string_view name) override {
    int k = -1;
    std::from_chars(name.data(), name.data() + name.size(), k);
    if (k < 0 || k >= found_)
      return not_applicable(escape(layer_), "cuBLASLt", fmt::format("no plan {}", name));
    chosen_ = k;
    return {};
  }
  int64_t workspace_bytes() const override {
    return static_cast<int64_t>(results_[static_cast<size_t>(chosen_)].workspaceSize);
  }

  Status execute(CUstream_st* stream, const ProductAddresses& at, void* workspace) override {
    if (p_.has_bias && at.bias != bias_) {
      FERRULE_TRY(set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, at.bias));
      bias_ = at.bias;
    }
    const float beta = p_.adds ? p_.beta : 0;
    const auto& chosen = results_[static_cast<size_t>(chosen_)];
    return check(api_.Matmul(handle_, desc_, &p_.alpha, at.b, b_, at.a, a_, &beta,
                             p_.adds ? at.c : at.y, c_, at.y, y_, &chosen.algo, workspace,
                             chosen.workspaceSize, reinterpret_cast<cudaStream_t>(stream)),
                 layer_, "cublasLtMatmul");
  }

 private:
  template <class T>
  Status set(cublasLtMatmulDescAttributes_t attribute, const T& value) {
    return check(api_.MatmulDescSetAttribute(desc_, attribute, &value, sizeof value), layer_,
                 "cublasLtMatmulDescSetAttribute");
  }

  /// rows and columns as the library counts them, before it transposes.
  Status layout(cublasLtMatrixLayout_t& l, cudaDataType_t type, int64_t rows, int64_t columns,
                const Product::Matrix& m) {
    if (m.transposed) std::swap(rows, columns);
    FERRULE_TRY(check(api_.MatrixLayoutCreate(&l, type, static_cast<uint64_t>(rows),
                                              static_cast<uint64_t>(columns), m.row),
                      layer_, "cublasLtMatrixLayoutCreate"));
    const auto count = static_cast<int32_t>(p_.count);
    FERRULE_TRY(check(
        api_.MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
        layer_, "a batch"));
    return check(api_.MatrixLayoutSetAttribute(l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                               &m.step, sizeof m.step),
                 layer_, "a batch");
  }

  Applicable<> find() {
    cublasLtMatmulPreference_t preference = nullptr;
    FERRULE_TRY(
        check(api_.MatmulPreferenceCreate(&preference), layer_, "cublasLtMatmulPreferenceCreate"));
    auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      return check(api_.MatmulPreferenceSetAttribute(preference, attribute, &value, sizeof value),
                   layer_, "cublasLtMatmulPreferenceSetAttribute");
    };
    Status s = prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspace);
    // Sums of parts are not rounded to 16 bits before they are added up.
    constexpr uint32_t kReductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    if (s && p_.dtype != DType::f32)
      s = prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kReductions);
    // Rows are columns there: its first matrix is our second.
    for (auto [attribute, matrix] :
         {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &p_.b},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &p_.a},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p_.adds ? &p_.c : &p_.y},
          {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &p_.y}})
      if (s) s = prefer(attribute, matrix->alignment);
    cublasStatus_t code = CUBLAS_STATUS_SUCCESS;
    if (s)
      code = api_.MatmulAlgoGetHeuristic(handle_, desc_, b_, a_, c_, y_, preference, kMostPlans,
                                         results_.data(), &found_);
    api_.MatmulPreferenceDestroy(preference);
    FERRULE_TRY(std::move(s));
    found_ = static_cast<int>(
        std::remove_if(results_.begin(), results_.begin() + std::max(found_, 0),
                       [](const auto& r) { return r.state != CUBLAS_STATUS_SUCCESS; }) -
        results_.begin());
    if (code == CUBLAS_STATUS_NOT_SUPPORTED || (code == CUBLAS_STATUS_SUCCESS && found_ == 0))
      return not_applicable(escape(layer_), "this product", "cuBLASLt has no algorithm for it");
    FERRULE_TRY(check(code, layer_, "cublasLtMatmulAlgoGetHeuristic"));
    return {};
  }

  const Api& api_;
  cublasLtHandle_t handle_;
  Product p_;
  std::string layer_;
  cublasLtMatmulDesc_t desc_ = nullptr;
  cublasLtMatrixLayout_t a_ = nullptr, b_ = nullptr, c_ = nullptr, y_ = nullptr;
  std::array<cublasLtMatmulHeuristicResult_t, kMostPlans> results_{};
  int found_ = 0, chosen_ = 0;
  const void* bias_ = nullptr;
};

}  // namespace

Result<std::string> cublaslt_version() {
  if (!api()) return fail(api().error());
  const size_t v = (*api()).GetVersion();
  return fmt::format("{}.{}.{}", v / 10000, v / 100 % 100, v % 100);
}

Result<cublasLtContext*> create_cublaslt(std::string_view layer) {
  if (!api()) return fail(api().error());
  cublasLtHandle_t handle = nullptr;
  FERRULE_TRY(check((*api()).Create(&handle), layer, "cublasLtCreate"));
  return handle;
}

void destroy_cublaslt(cublasLtContext* handle) { (*api()).Destroy(handle); }

Applicable<std::unique_ptr<CublasltProduct>> make_cublaslt_product(cublasLtContext* handle,
                                                                   const Product& product,
                                                                   std::string_view layer) {
  if (!api()) return fail(api().error());
  auto m = std::make_unique<Matmul>(*api(), handle, product, std::string(layer));
  FERRULE_TRY(m->make());
  return m;
}

#endif

}  // namespace ferrule::cuda
