// One cuDNN operation graph: a convolution or a transposed one (its data gradient), with what its
// epilogue does to the result, or an attention, as plain facts. It can be made for a device that is
// not there, from the device's properties alone; then it says which engines there are and never
// runs. cudnn_graph.cpp is the only file that includes NVIDIA's headers.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "engine/base/applicable.h"
#include "engine/base/dtype.h"
#include "engine/contract/epilogue.h"
#include "engine/target/target.h"

struct cudnnContext;
struct CUstream_st;

namespace ferrule::cuda {

struct CudnnTensor {
  DType dtype = DType::undefined;
  std::vector<int64_t> dims, strides;  ///< elements; of images, two to three spatial dims
  bool present() const { return dtype != DType::undefined; }
};

struct CudnnProblem {
  enum class Kind : uint8_t { convolution, deconvolution } kind = Kind::convolution;
  CudnnTensor x, w, y;  ///< w: of a deconvolution as the model has it: in, out / groups, …
  CudnnTensor bias;     ///< one value a channel, added before the tail
  std::vector<int64_t> strides, dilations, pads_begin, pads_end;  ///< dilations: 1 is dense
  std::vector<PostOp> tail;           ///< operand k of a step is operands[k]
  std::vector<CudnnTensor> operands;  ///< dims that broadcast over y's, as many
  bool tf32 = false;                  ///< f32 may be rounded to tf32 inside
};

/// y = softmax(scale * q k^T + mask) v: all [batch, heads, rows, columns]; k and v may have one
/// head for all.
struct CudnnAttention {
  CudnnTensor q, k, v, y;
  CudnnTensor mask;  ///< absent, or with axes of one element
  float scale = 1;
};
using CudnnWork = std::variant<CudnnProblem, CudnnAttention>;

/// Names of the tensors, for addresses: operand k is kOperand + k.
enum : int64_t {
  kX = 1,
  kW = 2,
  kY = 3,
  kBias = 4,
  kQuery = 5,
  kKey = 6,
  kValue = 7,
  kMask = 8,
  kOperand = 16
};
using CudnnAddresses = std::vector<std::pair<int64_t, void*>>;

/// cuDNN's description of a device of that target, from the target's facts and what all devices of
/// its generation have.
std::string cudnn_device(const Target& target);

class CudnnGraph {
 public:
  virtual ~CudnnGraph() = default;
  /// Plans that heuristics gave for it, best first, those that round more than the work allows left
  /// out.
  virtual std::vector<std::string> plans() const = 0;
  /// Builds the first plan that can be built, or the one of that name. Not applicable; errors:
  /// library_failed.
  virtual Applicable<> build(std::string_view name = {}) = 0;
  virtual std::string plan() const = 0;         ///< the one that was built
  virtual int64_t workspace_bytes() const = 0;  ///< of the one that was built
  /// errors: library_failed.
  virtual Status execute(CUstream_st* stream, const CudnnAddresses& addresses, void* workspace) = 0;
};

/// Not applicable (cuDNN has no engine); errors: library_missing, library_failed.
Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(cudnnContext* handle,
                                                         const CudnnWork& work, int sm,
                                                         std::string_view layer);
/// For a device that is not there.
Applicable<std::unique_ptr<CudnnGraph>> make_cudnn_graph(const std::string& device,
                                                         const CudnnWork& work, int sm,
                                                         std::string_view layer);

Result<cudnnContext*> create_cudnn(std::string_view layer);
void destroy_cudnn(cudnnContext* handle);

/// What there is, for doctor: "9.19.0"; the error says what is missing.
Result<std::string> cudnn_version();

}  // namespace ferrule::cuda
