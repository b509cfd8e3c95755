// Scaled dot-product attention (rules/contracts/attention.yaml) as kernels see it, read from a
// group's roles; and what the target's library does of it. cuDNN's kernel or the generated one
// (codegen/cuda/library_attention.h, codegen/cuda/attention.h) runs it without ever writing the
// scores. It knows nothing of tiles or layouts.
#pragma once
#include "engine/base/accept.h"
#include "engine/contract/roles.h"
#include "engine/target/target.h"

namespace ferrule {

struct Attention {
  RoleTensor q;                    ///< [batch…, queries, size]
  RoleTensor k;                    ///< [batch…, size, keys]
  RoleTensor v;                    ///< [batch…, keys, width]
  RoleTensor y;                    ///< [batch…, queries, width]
  std::optional<RoleTensor> mask;  ///< added to the scores, broadcast
  std::optional<RoleTensor> keep;  ///< bool, broadcast: scores that count; the others are `fill`
  bool fill_added = false;         ///< or `fill` is added to them, and no `mask`
  bool added_last = false;         ///< `mask` is added behind `after` and `fill`
  bool inverted = false;           ///< `keep` says which do not count
  double scale = 1;                ///< of the product
  double after = 1;                ///< of the scores, `mask` added
  double v_scale = 1;              ///< of the values
  double fill = 0;
  bool zero_if_nan = false;     ///< rows of the softmax that are NaN (all keys masked) become 0
  bool zero_if_masked = false;  ///< where minus infinity is added for all keys
  bool zero_if_hidden = false;  ///< weights of scores that are `fill`
  const Graph* cap =
      nullptr;  ///< what becomes of a scaled score, in front of `mask`; null: nothing
  int rank() const { return static_cast<int>(y.axes.size()); }
};
Attention attention_of(const Roles& roles);

/// Whether the target's library (cuDNN) has attention of these types, sizes and steps; how operands
/// have to lie is codegen/cuda/library_attention's. `body`: the group's. The reason is
/// empty where the target has none in this type (`library_types`).
Accept library_attends(const Graph& body, const Attention& a, const Target& target);
/// How the library's kernel, if it has one, differs from the formula: where all keys of a query are
/// masked, or a value is NaN and the model makes zeros of scores that are. "" where it has none,
/// and where the mask is a constant that leaves each query a key.
std::string attention_deviation(const Graph& body, const Attention& a, const Target& target);

/// Sizes of a head (q and k, v) that a kernel keeps in shared memory (the contract asks for it).
inline constexpr int64_t kMostAttentionSize = 128;

/// Elements of 16 bytes, in which cuDNN reads heads; axes that it knows.
inline constexpr int64_t kLibraryPack = 8;
inline constexpr int kMostLibraryRank = 4;

}  // namespace ferrule
