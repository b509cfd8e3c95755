// Regions in pieces (engine/contract/region_pieces.h) as one CUDA kernel: each block works on one
// piece. Pieces that have the same program, accesses and width of a vector share their code; where
// a piece lies and how large it is stands in the argument block, or, where that would be too large
// for one, in a table inside the source.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/cuda/pointwise.h"
#include "codegen/cuda/shape.h"
#include "engine/base/applicable.h"
#include "engine/semantics/nodes_to_programs.h"
#include "engine/semantics/semantics.h"

namespace ferrule {

/// A kernel's parameters may have so many bytes on every target and driver.
inline constexpr size_t kMostCudaArguments = 4096;

struct CudaPieces {
  struct Form {
    uint32_t program = 0;  ///< of the region's
    CudaKernel kernel;
  };
  struct Piece {
    size_t form = 0;
    CudaGeometry geometry;
    std::vector<uint32_t> operands;  ///< of the launch: inputs, then outputs
    std::vector<int64_t> offsets;    ///< elements
    int64_t first_block = 0;
  };
  std::vector<Form> forms;
  std::vector<Piece> pieces;  ///< never empty
  size_t operands = 0;        ///< of the launch
  int64_t blocks = 0;
  bool wide_index = false;       ///< 64-bit index arithmetic
  bool table_in_source = false;  ///< else in the argument block
  CudaShapes shapes;
};

/// `strides`: of the launch's inputs, then its outputs, in elements. `aligned`: pointers are
/// multiples of 16 bytes. `cores`, `wanted`: as element_shapes has them. Not applicable (no pieces;
/// too many axes or operands); errors: unsupported_type.
Applicable<CudaPieces> plan_cuda_pieces(const LoweredRegion& region,
                                        std::span<const std::vector<int64_t>> strides, bool aligned,
                                        int cores = 0, std::string_view wanted = {});

/// CUDA C++ with one kernel `entry` (an identifier). `comment`: rule and nodes, from the model;
/// escaped here. errors: formula_invalid.
Result<std::string> cuda_pieces_source(const CudaPieces& plan, std::string_view entry,
                                       std::string_view comment);

/// The kernel's one parameter, as the source declares it.
std::string cuda_pieces_arguments(const CudaPieces& plan, std::span<void* const> pointers);

}  // namespace ferrule
