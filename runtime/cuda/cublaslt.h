// One cuBLASLt product of row-major matrices, batched, with what its epilogue does, as plain facts.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/base/dtype.h"

struct cublasLtContext;
struct CUstream_st;

namespace ferrule::cuda {

/// y = act(alpha * a b + beta * c + bias), rows x columns, c and y alike; `count` of them, one
/// every `step` elements.
struct Product {
  enum class Activation : uint8_t { none, relu, gelu_tanh };
  struct Matrix {
    int64_t row = 0;   ///< elements from a row to the next (transposed: from a column)
    int64_t step = 0;  ///< from a matrix to the next; 0: the same one for all
    bool transposed = false;
    uint32_t alignment = 16;  ///< bytes that all its addresses are multiples of; at most 16
  };
  DType dtype = DType::f32;
  int64_t rows = 0, columns = 0, depth = 0, count = 1;
  Matrix a, b, y;
  Matrix c;
  bool adds = false;      ///< c is read
  bool has_bias = false;  ///< one value a column, added after c
  Activation activation = Activation::none;
  float alpha = 1, beta = 1;
  bool tf32 = false;  ///< f32 may be rounded to tf32 inside
};

struct ProductAddresses {
  const void *a = nullptr, *b = nullptr, *c = nullptr, *bias = nullptr;
  void* y = nullptr;
};

class CublasltProduct {
 public:
  virtual ~CublasltProduct() = default;
  /// What the heuristic gave, best first: "0", "1", …
  virtual std::vector<std::string> plans() const = 0;
  /// Not applicable (no such plan).
  virtual Applicable<> choose(std::string_view name) = 0;
  virtual int64_t workspace_bytes() const = 0;
  /// errors: library_failed.
  virtual Status execute(CUstream_st* stream, const ProductAddresses& at, void* workspace) = 0;
};

/// Not applicable; errors: library_missing, library_failed.
Applicable<std::unique_ptr<CublasltProduct>> make_cublaslt_product(cublasLtContext* handle,
                                                                   const Product& product,
                                                                   std::string_view layer);

Result<cublasLtContext*> create_cublaslt(std::string_view layer);
void destroy_cublaslt(cublasLtContext* handle);

/// What there is, for doctor: "13.1.0"; the error says what is missing.
Result<std::string> cublaslt_version();

}  // namespace ferrule::cuda
