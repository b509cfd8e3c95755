// The arithmetic of a Winograd convolution (3x3, stride 1) on one thread, as winograd.cpp calls it:
// input tiles are transformed into V, products with the transformed weights U give M, and M is
// transformed into the result with bias and tail. There is one set of functions per instruction
// set, compiled for that set in a file of its own (vectors_*.cpp); these files must include nothing
// but such headers and intrinsics, because an inline function compiled there could be the one that
// the linker keeps for everybody.
//
// V[e][chunk of channels][group of rows][vector of channels][row][lane], M[e][row][channels of a
// pass], U[block of output channels][e][channel][lane]: e counts the elements of a transformed
// tile, a row is a tile.
#pragma once
#include <stdint.h>

#include "runtime/cpu/kernels/vector_step.h"

namespace ferrule::cpu::winograd {

/// Input channels that are summed in one register before the sum joins the others: it bounds the
/// rounding error.
inline constexpr int64_t kChunk = 32;
/// Points of F(4x4, 3x3): 0, +-a, +-b and infinity. Simple enough to be exact, and of small error:
/// with +-1 and
/// +-2 the error is more than twice as large.
inline constexpr float kPointA = 0.625f, kPointB = 1.5f;

/// One convolution: channels-last images, `tile` x `tile` results a tile. Rows (tiles) are numbered
/// over all images.
struct Shape {
  int tile = 2;
  int64_t images = 0, h = 0, w = 0, c = 0;
  int64_t oh = 0, ow = 0, k = 0;
  int64_t x_pixel = 0,
          y_pixel = 0;  ///< floats from a pixel to the next: c and k, or more in slices
  int64_t pad_top = 0, pad_left = 0;
  int64_t tiles_h = 0, tiles_w = 0;
  int64_t rows() const { return images * tiles_h * tiles_w; }
  int elements() const { return (tile + 2) * (tile + 2); }
};

/// Rows that are in V at the same time, and where.
struct Block {
  float* v = nullptr;
  int64_t first = 0, rows = 0;  ///< of all rows
  int64_t capacity = 0;         ///< rows that V has room for, a multiple of Functions::rows
  int64_t v_stride = 0;         ///< floats from one element to the next
};

/// Output channels that are worked on together: vectors [begin, end) of lanes, with their products.
struct Pass {
  float* m = nullptr;
  int64_t begin = 0, end = 0;
  int64_t m_stride = 0;  ///< floats from one element to the next; rows are (end - begin) vectors
};

/// What is read and written; set when the kernel is bound.
struct Tensors {
  const float* x = nullptr;
  const float* zeros = nullptr;  ///< Shape::c zeros, read outside the image
  const float* u = nullptr;
  void* own = nullptr;
  /// As in the model: [output channel][input channel][3][3].
  const float* (*weights)(void* own) = nullptr;
  const float* bias = nullptr;  ///< may be null
  const Step* steps = nullptr;
  int count = 0;  ///< of the steps
  float* y = nullptr;
};

struct Functions {
  int lanes = 0;  ///< floats of a vector
  int rows = 0;   ///< rows of a group
  /// Rows [from, to) of the block.
  void (*input)(const Shape& s, const Tensors& t, const Block& b, int64_t from, int64_t to);
  /// All rows of the block times the pass's columns of U.
  void (*product)(const Shape& s, const Tensors& t, const Block& b, const Pass& p);
  /// Results that are not finite are computed again by the direct sum: an infinity or NaN in the
  /// image must not spread over the tile, and a sum must overflow no sooner than it does without
  /// Winograd.
  void (*output)(const Shape& s, const Tensors& t, const Block& b, const Pass& p);
};

/// For Shape::tile 2 and 4. Data: a function that gave them would itself be compiled for the
/// instruction set, and run where there is none.
extern const Functions kAvx2[2], kAvx512[2];

}  // namespace ferrule::cpu::winograd
