// cuBLASLt's products on plain loops: layouts and epilogues as they are set, checked when the
// product is asked for.
#include <cublasLt.h>
#include <dlfcn.h>

#include <atomic>
#include <cmath>
#include <cstring>
#include <string_view>
#include <utility>
#include <vector>

#include "tests/gpu/stub/library_work.h"

#define API extern "C" __attribute__((visibility("default")))
#define FAULT(name) \
  if (int code = ordered_failure(name)) return static_cast<cublasStatus_t>(code)

namespace {

using namespace ferrule::stub;

struct Layout {
  cudaDataType type;
  int64_t rows, columns, ld, step = 0;
  int32_t count = 1, order = CUBLASLT_ORDER_COL;
};
struct Desc {
  cublasComputeType_t compute;
  int32_t trans_a = CUBLAS_OP_N, trans_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  int32_t bias_type = -1;
};

/// What all addresses are multiples of, as the preference promises it: A, B, C, D; then the bias,
/// as the pointer's value has it. Unset: 256, as the library's documentation has it.
struct Preference {
  uint32_t alignment[5] = {256, 256, 256, 256, 256};
  uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
};
uint32_t alignment_of(const void* p) {
  const auto at = reinterpret_cast<uintptr_t>(p) | 256;
  return static_cast<uint32_t>(at & (~at + 1));
}
/// Adds up two halves of the depth, rounded to the result's type.
constexpr uint64_t kInOutputType = 2;
constexpr uint64_t kRefused = 99;

Number number_of(cudaDataType t) {
  return t == CUDA_R_16F ? Number::f16 : t == CUDA_R_16BF ? Number::bf16 : Number::f32;
}
bool has_bias(cublasLtEpilogue_t e) { return (e & CUBLASLT_EPILOGUE_BIAS) != 0; }

std::string check(const Desc& d, const Layout& a, const Layout& b, const Layout& c,
                  const Layout& y) {
  const int64_t m = d.trans_a ? a.columns : a.rows, k = d.trans_a ? a.rows : a.columns;
  const int64_t kb = d.trans_b ? b.columns : b.rows, n = d.trans_b ? b.rows : b.columns;
  if (k != kb || y.rows != m || y.columns != n || c.rows != m || c.columns != n)
    return "matrices that do not fit";
  for (const Layout* l : {&a, &b, &c, &y}) {
    if (l->type != CUDA_R_32F && l->type != CUDA_R_16F && l->type != CUDA_R_16BF)
      return "a type that the stub does not know";
    if (l->ld < l->rows) return "a leading dimension below the rows";
    if (l->count != y.count || l->step < 0) return "batches of different counts";
    if (l->type != y.type) return "matrices of different types";
  }
  if (y.count > 1 && y.step < y.ld * (y.columns - 1) + y.rows) return "results that overlap";
  return {};
}

float rounded(Number n, float x) {
  uint32_t memory = 0;
  store(n, &memory, 0, x);
  return load(n, &memory, 0);
}

int64_t span(const Layout& l) {
  return ((l.count - 1) * l.step + (l.columns - 1) * l.ld + l.rows) * size_of(number_of(l.type));
}

struct Job {
  Desc d;
  Layout a, b, c, y;
  const void *pa, *pb, *pc;
  void* py;
  float alpha, beta;
  bool halves;  ///< kInOutputType
  void run() const;
};

void Job::run() const {
  const int64_t m = y.rows, n = y.columns, depth = d.trans_a ? a.rows : a.columns;
  const bool tf32 = d.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  auto unpack = [&](const Layout& l, const void* p, int64_t batch,
                    bool transposed) {  // [depth][m or n], as the loops read it
    std::vector<float> v(static_cast<size_t>(l.rows * l.columns));
    const int64_t rows = transposed ? l.columns : l.rows, columns = transposed ? l.rows : l.columns;
    for (int64_t j = 0; j < columns; ++j)
      for (int64_t i = 0; i < rows; ++i) {
        const float f =
            load(number_of(l.type), p, batch * l.step + (transposed ? i * l.ld + j : j * l.ld + i));
        v[static_cast<size_t>(j * rows + i)] = tf32 ? to_tf32(f) : f;
      }
    return v;
  };
  for (int64_t batch = 0; batch < y.count; ++batch) {
    const auto left = unpack(a, pa, batch, d.trans_a != 0),
               right = unpack(b, pb, batch, d.trans_b != 0);
    std::vector<float> column(static_cast<size_t>(m));
    for (int64_t j = 0; j < n; ++j) {
      std::fill(column.begin(), column.end(), 0.0f);
      std::vector<float> first;
      for (int64_t k = 0; k < depth; ++k) {
        if (halves && k == depth / 2)
          first = std::exchange(column, std::vector<float>(column.size()));
        const float f = right[static_cast<size_t>(j * depth + k)];
        const float* l = left.data() + k * m;
        for (int64_t i = 0; i < m; ++i) column[static_cast<size_t>(i)] += l[i] * f;
      }
      if (halves)
        for (size_t i = 0; i < column.size(); ++i)
          column[i] = rounded(number_of(y.type), column[i]) +
                      rounded(number_of(y.type), first.empty() ? 0 : first[i]);
      for (int64_t i = 0; i < m; ++i) {
        float x = alpha * column[static_cast<size_t>(i)];
        if (beta != 0) x += beta * load(number_of(c.type), pc, batch * c.step + j * c.ld + i);
        if (has_bias(d.epilogue)) x += load(number_of(y.type), d.bias, i);
        if (d.epilogue & CUBLASLT_EPILOGUE_RELU) x = x > 0 ? x : 0;
        if (d.epilogue & CUBLASLT_EPILOGUE_GELU)
          x = 0.5f * x * (1 + std::tanh(0.7978845608f * (x + 0.044715f * x * x * x)));
        store(number_of(y.type), py, batch * y.step + j * y.ld + i, x);
      }
    }
  }
}

cublasStatus_t wrong(const std::string& what) {
  wrong_use("cuBLASLt: " + what);
  return CUBLAS_STATUS_INVALID_VALUE;
}
template <class T>
T& of(void* p) {
  return *reinterpret_cast<T*>(p);
}
template <class T>
const T& of(const void* p) {
  return *reinterpret_cast<const T*>(p);
}
template <class T>
void take(T& to, const void* from, size_t bytes) {
  if (bytes == sizeof(T))
    std::memcpy(&to, from, bytes);
  else
    wrong_use("cuBLASLt: an attribute of another size");
}

}  // namespace

/// A copy under the name of an older one is one.
API size_t cublasLtGetVersion() {
  Dl_info own{};
  const bool older = dladdr(reinterpret_cast<void*>(&cublasLtGetVersion), &own) && own.dli_fname &&
                     std::string_view(own.dli_fname).ends_with(".so.12");
  return older ? 120400 : 130000;
}
API const char* cublasLtGetStatusString(cublasStatus_t s) {
  return s == CUBLAS_STATUS_SUCCESS         ? "CUBLAS_STATUS_SUCCESS"
         : s == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : s == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                            : "CUBLAS_STATUS_EXECUTION_FAILED";
}
static std::atomic<size_t> handles = 0;
API cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  needs_context("cublasLtCreate");
  FAULT("cublasLtCreate");
  *handle = reinterpret_cast<cublasLtHandle_t>(new char);
  check_alive("handles of cuBLASLt", ++handles);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  needs_context("cublasLtDestroy");
  needs_device("cublasLtDestroy");
  delete reinterpret_cast<char*>(handle);
  --handles;
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t compute,
                                            cudaDataType_t) {
  FAULT("cublasLtMatmulDescCreate");
  *d = reinterpret_cast<cublasLtMatmulDesc_t>(new Desc{compute});
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  delete &of<Desc>(d);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t desc,
                                                  cublasLtMatmulDescAttributes_t a, const void* v,
                                                  size_t bytes) {
  Desc& d = of<Desc>(desc);
  switch (a) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      take(d.trans_a, v, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      take(d.trans_b, v, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      take(d.epilogue, v, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
      take(d.bias, v, bytes);
      break;
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
      take(d.bias_type, v, bytes);
      break;
    default:
      return wrong("an attribute of the product that the stub does not know");
  }
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                              uint64_t rows, uint64_t columns, int64_t ld) {
  *l = reinterpret_cast<cublasLtMatrixLayout_t>(
      new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld});
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  delete &of<Layout>(l);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                    cublasLtMatrixLayoutAttribute_t a,
                                                    const void* v, size_t bytes) {
  Layout& l = of<Layout>(layout);
  if (a == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT)
    take(l.count, v, bytes);
  else if (a == CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET)
    take(l.step, v, bytes);
  else
    return wrong("an attribute of a matrix that the stub does not know");
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) {
  *p = reinterpret_cast<cublasLtMatmulPreference_t>(new Preference);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  delete &of<Preference>(p);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                        cublasLtMatmulPreferenceAttributes_t a,
                                                        const void* v, size_t bytes) {
  for (auto [name, k] : {std::pair{CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, 0},
                         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, 1},
                         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, 2},
                         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, 3}})
    if (a == name) take(of<Preference>(p).alignment[k], v, bytes);
  if (a == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) take(of<Preference>(p).reductions, v, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
    cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t y, cublasLtMatmulPreference_t p, int wanted,
    cublasLtMatmulHeuristicResult_t results[], int* found) {
  needs_context("cublasLtMatmulAlgoGetHeuristic");
  FAULT("cublasLtMatmulAlgoGetHeuristic");
  if (std::string why =
          check(of<Desc>(d), of<Layout>(a), of<Layout>(b), of<Layout>(c), of<Layout>(y));
      !why.empty())
    return wrong(why);
  Preference promised = of<Preference>(p);
  promised.alignment[4] = alignment_of(of<Desc>(d).bias);
  // One that cannot be had, as the library may list it, then what is allowed, the least exact
  // first.
  std::vector<uint64_t> algorithms{kRefused};
  const bool shorter = of<Layout>(y).type != CUDA_R_32F;
  if (shorter && (promised.reductions & CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE))
    algorithms.push_back(kInOutputType);
  algorithms.insert(algorithms.end(), {0, 1});
  *found = std::min(wanted, static_cast<int>(algorithms.size()));
  for (int k = 0; k < *found; ++k) {
    const uint64_t algorithm = algorithms[static_cast<size_t>(k)];
    results[k] = {};
    results[k].algo.data[0] = algorithm;
    static_assert(sizeof promised <= sizeof results[k].algo - 8);
    std::memcpy(&results[k].algo.data[1], &promised, sizeof promised);
    results[k].workspaceSize = algorithm == 1 ? 4096 : 0;
    results[k].state = algorithm == kRefused ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
API cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t desc, const void* alpha,
                                  const void* a, cublasLtMatrixLayout_t la, const void* b,
                                  cublasLtMatrixLayout_t lb, const void* beta, const void* c,
                                  cublasLtMatrixLayout_t lc, void* y, cublasLtMatrixLayout_t ly,
                                  const cublasLtMatmulAlgo_t* algo, void* workspace, size_t bytes,
                                  cudaStream_t stream) {
  needs_context("cublasLtMatmul");
  FAULT("cublasLtMatmul");
  Job job{of<Desc>(desc),
          of<Layout>(la),
          of<Layout>(lb),
          of<Layout>(lc),
          of<Layout>(ly),
          a,
          b,
          c,
          y,
          *static_cast<const float*>(alpha),
          *static_cast<const float*>(beta),
          algo && algo->data[0] == kInOutputType};
  if (std::string why = check(job.d, job.a, job.b, job.c, job.y); !why.empty()) return wrong(why);
  if (algo && algo->data[0] == 1 && (!workspace || bytes < 4096))
    return wrong("an algorithm without its workspace");
  if (has_bias(job.d.epilogue) &&
      (!job.d.bias || !device_memory(job.d.bias, static_cast<uint64_t>(
                                                     job.y.rows * size_of(number_of(job.y.type))))))
    return wrong("a bias that is no memory of the device");
  const std::pair<const void*, const Layout*> all[] = {
      {a, &job.a}, {b, &job.b}, {y, &job.y}, {job.beta != 0 ? c : y, &job.c}};
  for (const auto& [p, l] : all)
    if (!p || !device_memory(p, static_cast<uint64_t>(span(*l))))
      return wrong("a matrix that is no memory of the device");
  if (!algo) return wrong("no algorithm");
  if (algo->data[0] == kRefused) return wrong("an algorithm that the heuristic did not find");
  Preference promised;
  std::memcpy(static_cast<void*>(&promised), &algo->data[1], sizeof promised);
  const void* const bias = has_bias(job.d.epilogue) ? job.d.bias : nullptr;
  const void* const all_of[] = {a, b, job.beta != 0 ? c : y, y, bias};
  for (size_t k = 0; k < 5; ++k)
    if (reinterpret_cast<uintptr_t>(all_of[k]) % promised.alignment[k])
      return wrong(k < 4 ? "a matrix that is not aligned as the algorithm was promised"
                         : "a bias that is not aligned as the heuristic was told");
  if (!own_business(reinterpret_cast<CUstream_st*>(stream))) return CUBLAS_STATUS_EXECUTION_FAILED;
  put_work(reinterpret_cast<CUstream_st*>(stream),
           "cublasLt algorithm " + std::to_string(algo ? algo->data[0] : 0), [job] { job.run(); });
  return CUBLAS_STATUS_SUCCESS;
}
