// Few rows times weights of 4 or 8 bits that have a scale for each block of rows (MatMulNBits of
// language models, one token at a time). The time is that of reading the weights, so they are kept
// in 4 or 8 bits, 16 columns side by side, and become floats in registers: those of 4 bits by a
// table that lies in one of them. The sum of a block is scaled once.
#include <immintrin.h>

#include <algorithm>
#include <cstring>

#include "engine/base/diagnostics.h"
#include "engine/contract/roles.h"
#include "engine/semantics/block_eval.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kBlockColumns = 16;     ///< that lie side by side
constexpr int64_t kBlockStep = 8;         ///< rows of weights of 4 bits in a word of 32
constexpr int kBlockRows = 8;             ///< of x that are multiplied at once
constexpr int64_t kBlockGrain = 1 << 19;  ///< bytes of weights that are worth a thread

/// How the weights lie: groups of 16 columns; in each, block by block: 16 scales and 16 zero points
/// (f32), then the numbers: those of 4 bits as a word of 8 rows for each column, those of 8 bits as
/// 16 bytes for each row. Rows behind the last of a block meet zeros of x.
struct BlockPacking {
  int64_t k = 0, n = 0, block = 1;
  int bits = 8;
  bool one_zero = false;  ///< all zero points are `zero`
  float zero = 0;
  int64_t blocks() const { return parts(k, block); }
  int64_t groups() const { return parts(n, kBlockColumns); }
  int64_t rows() const { return up(std::min(block, k), kBlockStep); }  ///< of a block
  int64_t block_bytes() const { return kBlockColumns * (8 + rows() * bits / 8); }
  int64_t group_bytes() const { return blocks() * block_bytes(); }
  int64_t x_row() const { return blocks() * rows(); }
};

/// A group of columns times a few rows of x, which lie x_row() apart: y[row][column].
using BlockMultiply = void (*)(const BlockPacking&, const uint8_t* group, const float* x, float* y);

/// Several chains of sums where there are few rows: each addition waits for the one before.
constexpr int block_chains(int rows) { return rows == 1 ? 4 : rows <= 3 ? 2 : 1; }

template <int kBits, bool kOneZero, int kRows>
__attribute__((target("avx512f"))) void multiply_avx512(const BlockPacking& p, const uint8_t* at,
                                                        const float* x, float* y) {
  constexpr __mmask16 kAll = 0xffff;  // GCC 12 warns of the forms without a mask
  __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  if (kOneZero) table = _mm512_sub_ps(table, _mm512_set1_ps(p.zero));
  const int64_t rows = p.rows(), blocks = p.blocks(), apart = p.x_row();
  constexpr int kChains = block_chains(kRows);
  __m512 sums[kRows];
  for (int m = 0; m < kRows; ++m) sums[m] = _mm512_setzero_ps();
  for (int64_t b = 0; b < blocks; ++b, x += rows) {
    const __m512 scale = _mm512_loadu_ps(reinterpret_cast<const float*>(at));
    const __m512 zero = _mm512_loadu_ps(reinterpret_cast<const float*>(at) + kBlockColumns);
    at += kBlockColumns * 8;
    __m512 part[kRows][kChains];
    for (int m = 0; m < kRows; ++m)
      for (int c = 0; c < kChains; ++c) part[m][c] = _mm512_setzero_ps();
    for (int64_t k = 0; k < rows; k += kBlockStep) {
      __m512i words = _mm512_setzero_si512();
#pragma GCC unroll 8
      for (int j = 0; j < kBlockStep; ++j) {
        __m512 w;
        if constexpr (kBits == 4) {
          // The table is looked up by the low 4 bits: a load from the next byte is a shift by 8.
          words =
              j % 2 == 0 ? _mm512_loadu_si512(at + j / 2) : _mm512_maskz_srli_epi32(kAll, words, 4);
          w = _mm512_maskz_permutexvar_ps(kAll, words, table);
          if (j == kBlockStep - 1) at += kBlockColumns * 4;
        } else {
          w = _mm512_maskz_cvtepi32_ps(
              kAll, _mm512_maskz_cvtepu8_epi32(
                        kAll, _mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
          at += kBlockColumns;
        }
        if (kBits == 8 || !kOneZero) w = _mm512_sub_ps(w, zero);
#pragma GCC unroll 8
        for (int m = 0; m < kRows; ++m)
          part[m][j % kChains] =
              _mm512_fmadd_ps(_mm512_set1_ps(x[m * apart + k + j]), w, part[m][j % kChains]);
      }
    }
    for (int m = 0; m < kRows; ++m) {
      for (int c = 1; c < kChains; ++c) part[m][0] = _mm512_add_ps(part[m][0], part[m][c]);
      sums[m] = _mm512_fmadd_ps(part[m][0], scale, sums[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) _mm512_storeu_ps(y + m * kBlockColumns, sums[m]);
}

/// The same in two halves of 8 columns.
template <int kBits, bool kOneZero, int kRows>
__attribute__((target("avx2,fma"))) void multiply_avx2(const BlockPacking& p, const uint8_t* group,
                                                       const float* x0, float* y) {
  const __m256i mask = _mm256_set1_epi32(15);
  const int64_t rows = p.rows(), blocks = p.blocks(), apart = p.x_row();
  constexpr int kChains = block_chains(kRows);
  for (int64_t half = 0; half < kBlockColumns; half += 8) {
    const uint8_t* at = group;
    const float* x = x0;
    __m256 sums[kRows];
    for (int m = 0; m < kRows; ++m) sums[m] = _mm256_setzero_ps();
    for (int64_t b = 0; b < blocks; ++b, x += rows) {
      const __m256 scale = _mm256_loadu_ps(reinterpret_cast<const float*>(at) + half);
      const __m256 zero =
          _mm256_loadu_ps(reinterpret_cast<const float*>(at) + kBlockColumns + half);
      at += kBlockColumns * 8;
      __m256 part[kRows][kChains];
      for (int m = 0; m < kRows; ++m)
        for (int c = 0; c < kChains; ++c) part[m][c] = _mm256_setzero_ps();
      for (int64_t k = 0; k < rows; k += kBlockStep) {
        __m256i words = mask;
        if constexpr (kBits == 4) {
          words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at + half * 4));
          at += kBlockColumns * 4;
        }
#pragma GCC unroll 8
        for (int j = 0; j < kBlockStep; ++j) {
          __m256i i;
          if constexpr (kBits == 4) {
            i = _mm256_and_si256(_mm256_srli_epi32(words, 4 * j), mask);
          } else {
            i = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at + half)));
            at += kBlockColumns;
          }
          const __m256 w = _mm256_sub_ps(_mm256_cvtepi32_ps(i), zero);
#pragma GCC unroll 4
          for (int m = 0; m < kRows; ++m)
            part[m][j % kChains] =
                _mm256_fmadd_ps(_mm256_set1_ps(x[m * apart + k + j]), w, part[m][j % kChains]);
        }
      }
      for (int m = 0; m < kRows; ++m) {
        for (int c = 1; c < kChains; ++c) part[m][0] = _mm256_add_ps(part[m][0], part[m][c]);
        sums[m] = _mm256_fmadd_ps(part[m][0], scale, sums[m]);
      }
    }
    for (int m = 0; m < kRows; ++m) _mm256_storeu_ps(y + m * kBlockColumns + half, sums[m]);
  }
}

/// By number of rows, from 1.
struct BlockFunctions {
  BlockMultiply by_rows[kBlockRows];
  int most = 0;
};
template <int kBits, bool kOneZero>
BlockFunctions block_functions(VectorIsa isa) {
  if (isa == VectorIsa::avx512)
    return {{multiply_avx512<kBits, kOneZero, 1>, multiply_avx512<kBits, kOneZero, 2>,
             multiply_avx512<kBits, kOneZero, 3>, multiply_avx512<kBits, kOneZero, 4>,
             multiply_avx512<kBits, kOneZero, 5>, multiply_avx512<kBits, kOneZero, 6>,
             multiply_avx512<kBits, kOneZero, 7>, multiply_avx512<kBits, kOneZero, 8>},
            8};
  return {{multiply_avx2<kBits, kOneZero, 1>, multiply_avx2<kBits, kOneZero, 2>,
           multiply_avx2<kBits, kOneZero, 3>, multiply_avx2<kBits, kOneZero, 4>},
          4};
}
BlockFunctions block_functions(const BlockPacking& p, VectorIsa isa) {
  if (p.bits == 4)
    return p.one_zero ? block_functions<4, true>(isa) : block_functions<4, false>(isa);
  return block_functions<8, false>(isa);
}

/// A constant matrix of integers and how a role's axes lie in it.
struct BlockMatrix {
  const Tensor* tensor = nullptr;
  int64_t rows = 0, columns = 0, row = 0, column = 0;

  int64_t at(int64_t r, int64_t c) const { return r * row + c * column; }
  /// Integers shifted to start at 0.
  int raw(int64_t r, int64_t c) const {
    const int64_t i = at(r, c);
    const auto* bytes = static_cast<const uint8_t*>(tensor->data());
    const DType t = tensor->dtype();
    if (t == DType::u8) return bytes[i];
    if (t == DType::i8) return static_cast<int8_t>(bytes[i]) + 128;
    const int nibble = bytes[i / 2] >> (i % 2 * 4) & 15;
    return t == DType::u4 ? nibble : nibble ^ 8;
  }
};
/// What raw() adds.
int block_shift(DType t) { return t == DType::i8 ? 128 : t == DType::i4 ? 8 : 0; }

class BlockProduct final : public Kernel {
 public:
  BlockProduct(const Operand& x, const Operand& y, const BlockPacking& p, const BlockFunctions& f)
      : p_(p),
        f_(f),
        x_slot_(x.slot),
        y_slot_(y.slot),
        type_(x.dtype),
        rows_(x.numel() / p.k),
        copied_(x.dtype != DType::f32 || p.x_row() != p.k) {
    if (x.constant) x_ = x.constant->data();
  }

  void weights(Packed packed, std::vector<Tensor> kept, std::vector<Packed> found,
               std::vector<float> bias) {
    packed_ = std::move(packed), kept_ = std::move(kept), found_ = std::move(found);
    bias_ = std::move(bias);
  }
  int64_t scratch_bytes() const override { return copied_ ? rows_ * p_.x_row() * 4 : 0; }
  void bind(Binder& binder) override {
    if (x_slot_ >= 0) binder.cell(x_slot_, &x_);
    binder.cell(y_slot_, &y_);
    scratch_ = static_cast<float*>(binder.scratch());
  }
  std::string text() const override {
    return fmt::format("block_product:{}x{}", p_.bits, f_.most == kBlockRows ? "avx512" : "avx2");
  }

  Status run() override {
    const auto* x = static_cast<const float*>(x_);
    if (copied_) {
      for (int64_t r = 0; r < rows_; ++r)
        for (int64_t b = 0; b < p_.blocks(); ++b) {
          const int64_t count = std::min(p_.block, p_.k - b * p_.block);
          float* to = scratch_ + r * p_.x_row() + b * p_.rows();
          unpack(type_, DType::f32, x_, r * p_.k + b * p_.block, static_cast<int>(count), to);
          std::fill(to + count, to + p_.rows(), 0.0f);
        }
      x = scratch_;
    }
    parallel_for(p_.groups(), 1 + kBlockGrain / p_.group_bytes(), [&](int64_t begin, int64_t end) {
      float sums[kBlockRows * kBlockColumns];
      for (int64_t g = begin; g < end; ++g)
        for (int64_t r = 0; r < rows_; r += f_.most) {
          const auto count = static_cast<int>(std::min<int64_t>(f_.most, rows_ - r));
          f_.by_rows[count - 1](p_,
                                static_cast<const uint8_t*>(packed_.data) + g * p_.group_bytes(),
                                x + r * p_.x_row(), sums);
          store(sums, r, count, g * kBlockColumns);
        }
    });
    return {};
  }

 private:
  void store(float* sums, int64_t row, int count, int64_t column) const {
    const int64_t columns = std::min(kBlockColumns, p_.n - column);
    for (int m = 0; m < count; ++m, sums += kBlockColumns) {
      if (!bias_.empty())
        for (int64_t c = 0; c < columns; ++c) sums[c] += bias_[static_cast<size_t>(column + c)];
      pack(type_, DType::f32, sums, static_cast<int>(columns), y_, (row + m) * p_.n + column);
    }
  }

  BlockPacking p_;
  BlockFunctions f_;
  int x_slot_, y_slot_;
  DType type_;
  int64_t rows_;
  bool copied_;
  Packed packed_;
  std::vector<Tensor> kept_;   ///< scales and zero points, by whose addresses packed_ is shared
  std::vector<Packed> found_;  ///< ranges, kept for the next plan's kernel
  std::vector<float> bias_;
  const void* x_ = nullptr;
  void* y_ = nullptr;
  float* scratch_ = nullptr;
};

class BlockTaker {
 public:
  BlockTaker(Context& context, const KernelCall& call) : context_(context), call_(call) {}

  Applicable<KernelPtr> product() const {
    const Operand& x = call_.inputs[call_.roles->tensor("x")->slot];
    const Operand& y = call_.outputs[call_.roles->tensor("y")->slot];
    const VectorIsa isa = vector_isa(context_);
    if (isa == VectorIsa::none) return refuse("a processor without AVX2");
    if (compute_type(x.dtype) != DType::f32 || y.dtype != x.dtype) return refuse(name(x.dtype));
    if (!x.lies(Layout::plain) || !y.lies(Layout::plain) || !call_.dense() || x.rank() < 2)
      return refuse("another layout");
    FERRULE_ASSIGN(const BlockMatrix q, matrix("q"));
    FERRULE_ASSIGN(const BlockMatrix scale, matrix("scale"));
    BlockPacking p;
    p.k = q.rows, p.n = q.columns, p.block = static_cast<int64_t>(call_.roles->number("block"));
    if (p.block < 1 || x.numel() == 0 || y.numel() == 0 || x.dims.back() != p.k ||
        y.dims.back() != p.n || scale.rows != p.blocks() || scale.columns != p.n)
      return refuse("sizes that do not fit");
    const DType t = q.tensor->dtype();
    if (t != DType::u8 && t != DType::i8 && t != DType::u4 && t != DType::i4)
      return refuse(name(t));
    std::optional<BlockMatrix> zero;
    if (call_.roles->tensor("zero")) {
      FERRULE_ASSIGN(zero, matrix("zero"));
      if (zero->tensor->dtype() != t || zero->rows != scale.rows || zero->columns != p.n)
        return refuse("zero points of another type or size");
    }
    std::vector<float> bias;
    if (const RoleTensor* b = call_.roles->tensor("bias")) {
      const Tensor* values = call_.inputs[b->slot].constant;
      if (!values || values->numel() != p.n || b->axes[0].size() != 1)
        return refuse("a bias of another form");
      for (int64_t c = 0; c < p.n; ++c) bias.push_back(static_cast<float>(values->at_f64(c)));
    }
    std::vector<Packed> found;
    const int base = numbers(q, p, found);
    zeros(zero, block_shift(t) - base, p, found);
    auto kernel = std::make_unique<BlockProduct>(x, y, p, block_functions(p, isa));
    const std::string recipe =
        fmt::format("block_product:{}:{}:{}:{}:{}", p.block, q.row, scale.row,
                    scale.tensor->address(), zero ? zero->tensor->address() : nullptr);
    Packed packed = context_.library.derive(*q.tensor, recipe, p.groups() * p.group_bytes() + 3,
                                            [&](void* to) { fill(q, scale, zero, base, p, to); });
    std::vector<Tensor> kept{*scale.tensor};
    if (zero) kept.push_back(*zero->tensor);
    kernel->weights(std::move(packed), std::move(kept), std::move(found), std::move(bias));
    return kernel;
  }

 private:
  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(call_.layer), "block_product", why);
  }

  Applicable<BlockMatrix> matrix(std::string_view role) const {
    const RoleTensor& r = *call_.roles->tensor(role);
    const Operand& o = call_.inputs[r.slot];
    if (!o.constant) return refuse("weights that are computed");
    const RoleStrides l = role_strides(r, o.dims, strides_of(o.dims, Layout::plain));
    return BlockMatrix{o.constant, l.dims[0], l.dims[1], l.strides[0], l.strides[1]};
  }

  /// The smallest and the largest number (raw()), looked for once for all plans with this matrix.
  std::pair<int, int> range(const BlockMatrix& m, std::vector<Packed>& found) const {
    const auto look = [&](void* to) {
      int low = 255, high = 0;
      for (int64_t r = 0; r < m.rows; ++r)
        for (int64_t c = 0; c < m.columns; ++c) {
          const int v = m.raw(r, c);
          low = std::min(low, v), high = std::max(high, v);
        }
      new (to) std::pair<int, int>(low, high);
    };
    found.push_back(context_.library.derive(*m.tensor, "block_product_range",
                                            sizeof(std::pair<int, int>), look));
    return *static_cast<const std::pair<int, int>*>(found.back().data);
  }

  /// The number that the packed ones count from: that of the smallest one if they fit into 4 bits.
  int numbers(const BlockMatrix& q, BlockPacking& p, std::vector<Packed>& found) const {
    if (size_bits(q.tensor->dtype()) == 4) return p.bits = 4, 0;
    const auto [low, high] = range(q, found);
    p.bits = high - low < 16 ? 4 : 8;
    return p.bits == 4 ? low : 0;
  }

  /// Whether there is one zero point alone; `shift` is added to each.
  void zeros(const std::optional<BlockMatrix>& zero, int shift, BlockPacking& p,
             std::vector<Packed>& found) const {
    p.one_zero = true;
    p.zero = static_cast<float>(shift);
    if (!zero) return;
    const auto [low, high] = range(*zero, found);
    p.one_zero = low == high;
    p.zero = static_cast<float>(zero->raw(0, 0) - block_shift(zero->tensor->dtype()) + shift);
  }

  static void fill(const BlockMatrix& q, const BlockMatrix& scale,
                   const std::optional<BlockMatrix>& zero, int base, const BlockPacking& p,
                   void* to) {
    std::memset(to, 0, static_cast<size_t>(p.groups() * p.group_bytes()));
    parallel_for(p.groups(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t g = begin; g < end; ++g)
        for (int64_t b = 0; b < p.blocks(); ++b) {
          uint8_t* at = static_cast<uint8_t*>(to) + g * p.group_bytes() + b * p.block_bytes();
          auto* factors = reinterpret_cast<float*>(at);
          uint8_t* numbers = at + kBlockColumns * 8;
          const int64_t count = std::min(p.block, p.k - b * p.block);
          for (int64_t c = 0; c < std::min(kBlockColumns, p.n - g * kBlockColumns); ++c) {
            const int64_t column = g * kBlockColumns + c;
            factors[c] = static_cast<float>(scale.tensor->at_f64(scale.at(b, column)));
            factors[kBlockColumns + c] =
                zero ? static_cast<float>(zero->raw(b, column) - base) : p.zero;
            for (int64_t k = 0; k < count; ++k) {
              const auto v = static_cast<unsigned>(q.raw(b * p.block + k, column) - base);
              if (p.bits == 8)
                numbers[k * kBlockColumns + c] = static_cast<uint8_t>(v);
              else
                numbers[(k / kBlockStep * kBlockColumns + c) * 4 + k % kBlockStep / 2] |=
                    static_cast<uint8_t>(v << (k % 2 * 4));
            }
          }
        }
    });
  }

  Context& context_;
  const KernelCall& call_;
};

}  // namespace

Applicable<KernelPtr> make_block_product(Context& context, const KernelCall& call) {
  return BlockTaker(context, call).product();
}

}  // namespace ferrule::cpu
