// Scalar programs as CUDA C++, for every kind of generated CUDA kernel. Source never holds text of
// a model but in one escaped comment.
#pragma once
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/semantics/scalar.h"

namespace ferrule {

/// Above it a kernel counts in 64 bits. A margin, because the last block's threads count beyond the
/// end.
inline constexpr int64_t kMostNarrowIndex = std::numeric_limits<int32_t>::max() - 65536;

/// The type of an element in memory.
std::string_view cuda_storage(DType t);
/// In registers: as in memory, but bool.
std::string_view cuda_value(DType t);

/// A constant as an expression.
std::string cuda_literal(DType t, const Scalar& value);

/// A device function `name`(x0, x1, …, y…&) for one element: the program's inputs as values, then
/// its outputs, numbered on from the inputs. Transcendental functions are expected to be expanded.
std::string cuda_function(const Program& p, std::string_view name);

/// What a source begins with: rule and nodes and what it was made from as comments, the prelude,
/// the type Index. `listing`: of programs without names of a model.
std::string cuda_head(std::string_view comment, std::string_view listing, bool wide_index);

/// A kernel's one parameter: pointers first, then numbers of the type Index, as its struct
/// Arguments declares them.
class CudaArguments {
 public:
  explicit CudaArguments(bool wide_index) : wide_(wide_index) {}
  void pointer(const void* p);
  void index(int64_t v);
  std::string take();  ///< padded to 8 bytes

 private:
  bool wide_;
  std::string out_;
};

/// errors: unsupported_type.
Status check_cuda_types(const Program& p);

}  // namespace ferrule
