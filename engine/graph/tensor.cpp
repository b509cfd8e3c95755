#include "engine/graph/tensor.h"

#include <sys/mman.h>
#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <new>

#include "engine/base/minifloat.h"
#include "engine/base/native_type.h"

namespace ferrule {
namespace {

template <class T>
T load(const void* data, int64_t i) {
  T v;  // constants from a file need not be aligned
  std::memcpy(&v, static_cast<const char*>(data) + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return v;
}

/// Calls `f` with element `i` in its C type (small floats as float).
template <class F>
auto visit_element(DType t, const void* data, int64_t i, F&& f) {
  if (t == DType::boolean) return f(static_cast<uint8_t>(load<uint8_t>(data, i) != 0));
  if (is_native(t)) return with_native(t, [&]<class T>(T) { return f(load<T>(data, i)); });
  if (t == DType::f16) return f(f16_to_float(load<uint16_t>(data, i)));
  if (t == DType::bf16) return f(bf16_to_float(load<uint16_t>(data, i)));
  if (is_int(t)) {
    const int bits = size_bits(t);
    return f(static_cast<int8_t>(narrowed(packed(data, i, bits), bits, is_signed_int(t))));
  }
  if (t == DType::f4e2m1) return f(decode_mini(t, packed(data, i, 4)));
  if (is_mini(t)) return f(decode_mini(t, load<uint8_t>(data, i)));
  bug("Tensor element of a type without a number", __FILE__, __LINE__);
}

int64_t padded(int64_t bytes) { return (bytes + 63) / 64 * 64; }

constexpr size_t kMapped = size_t{512} << 10;  ///< from so many bytes on a block is mapped

/// Mapped blocks that were given back and may serve again, the newest first: making pages takes the
/// system several times as long as clearing them.
class SpareBlocks {
 public:
  SpareBlocks() { blocks_.reserve(kMost / kMapped + 1); }  // so that keep() cannot fail
  /// Of just so many bytes, holding anything; null: there is none.
  void* take(size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto found = std::ranges::find(blocks_, bytes, &Block::bytes);
    if (found == blocks_.end()) return nullptr;
    void* p = found->p;
    blocks_.erase(found);
    return p;
  }
  void keep(void* p, size_t bytes) {
    if (bytes > kMost) {
      ::munmap(p, bytes);
      return;
    }
    const std::lock_guard lock(mutex_);
    blocks_.insert(blocks_.begin(), {p, bytes});
    size_t all = 0;
    for (const Block& b : blocks_) all += b.bytes;
    for (; all > kMost; all -= blocks_.back().bytes, blocks_.pop_back())
      ::munmap(blocks_.back().p, blocks_.back().bytes);
  }

 private:
  static constexpr size_t kMost = size_t{16} << 20;  ///< bytes that are kept
  struct Block {
    void* p;
    size_t bytes;
  };
  std::mutex mutex_;
  std::vector<Block> blocks_;
};
SpareBlocks& spare_blocks() {
  static auto* const all = new SpareBlocks;  // tensors may outlive what is destroyed at the end
  return *all;
}

/// Memory, zeroed or holding anything, with room to begin at a multiple of 64 bytes; null if there
/// is none. Large blocks come as zero pages, and are touched only when they are filled: in huge
/// pages as far as these are whole (a fault for each small page costs more than filling it), the
/// rest behind them at once.
std::shared_ptr<void> block(size_t size, bool zeroed) {
  constexpr size_t kHuge = size_t{2} << 20, kPage = 4096;
#if defined(__SANITIZE_ADDRESS__)
  constexpr bool kMaps = false;  // it does not watch the borders of mapped memory
#else
  constexpr bool kMaps = true;
#endif
  if (kMaps && size >= kMapped) {
    const size_t bytes = (size + kPage - 1) / kPage * kPage,
                 slack = bytes >= kHuge ? kHuge - kPage : 0;
    auto give_back = [bytes](void* q) { spare_blocks().keep(q, bytes); };
    if (void* spare = spare_blocks().take(bytes))
      return {zeroed ? std::memset(spare, 0, bytes) : spare, give_back};
    void* p =
        ::mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return nullptr;
    char* at = static_cast<char*>(p);
    if (slack) {
      const size_t head = (kHuge - reinterpret_cast<uintptr_t>(p) % kHuge) % kHuge;
      if (head) ::munmap(p, head);
      at += head;
      if (slack > head) ::munmap(at + bytes, slack - head);
    }
    const size_t whole = bytes / kHuge * kHuge;
    // Both only make it faster: without them pages are read one by one.
    if (whole) ::madvise(at, whole, MADV_HUGEPAGE);
    if (bytes > whole) ::madvise(at + whole, bytes - whole, MADV_POPULATE_WRITE);
    return {at, give_back};
  }
  return {zeroed ? std::calloc(1, size + 63) : std::malloc(size + 63), std::free};
}

/// Of elements, and of what is behind them up to a multiple of 64 bytes: that is zeroed in any
/// case, as is a last byte that elements of a few bits may fill in part.
std::pair<std::shared_ptr<void>, void*> room(DType dtype, const std::vector<int64_t>& dims,
                                             bool zeroed) {
  int64_t n = !contains(dims, 0) ? 1 : 0;  // without elements whatever the other sizes are
  for (int64_t d : dims)
    FERRULE_ASSERT(d >= 0 && !__builtin_mul_overflow(n, d, &n) && n < (int64_t{1} << 56),
                   "Tensor::allocate: size out of range");
  const int64_t bytes = size_bytes(dtype, n);
  const size_t size = static_cast<size_t>(std::max<int64_t>(64, padded(bytes)));
  std::shared_ptr<void> owner = block(size, zeroed);
  if (!owner)
    throw std::bad_alloc();  // as vectors do: limits let the size pass, and the system has no more
  size_t space = size + 63;
  void* p = owner.get();
  std::align(64, size, p, space);  // at once where it was mapped
  const size_t whole = static_cast<size_t>(std::max<int64_t>(bytes - 1, 0));
  if (!zeroed) std::memset(static_cast<char*>(p) + whole, 0, size - whole);
  return {std::move(owner), p};
}

}  // namespace

Tensor Tensor::sequence(std::vector<Tensor> elements) {
  return {DType::sequence, std::move(elements)};
}
Tensor Tensor::map(Tensor keys, Tensor values) {
  return {DType::map, {std::move(keys), std::move(values)}};
}
Tensor Tensor::absent() { return {DType::optional, {}}; }

std::pair<Tensor, void*> Tensor::allocate(DType dtype, std::vector<int64_t> dims) {
  auto [owner, p] = room(dtype, dims, true);
  return {over(dtype, std::move(dims), std::move(owner), p), p};
}

std::pair<Tensor, void*> Tensor::unwritten(DType dtype, std::vector<int64_t> dims) {
  auto [owner, p] = room(dtype, dims, false);
  return {over(dtype, std::move(dims), std::move(owner), p), p};
}

Tensor Tensor::over(DType dtype, std::vector<int64_t> dims, std::shared_ptr<void> owner,
                    void* bytes) {
  constexpr int64_t kWorthIt = 64 << 10;  // below, a system call and a lock cost more
  Tensor t(dtype, std::move(dims), std::move(owner), bytes);
  if (t.bytes() >= kWorthIt) t.residence_ = std::make_shared<Residence>(bytes, t.bytes());
  return t;
}

Tensor Tensor::scalar(DType dtype, double value, std::vector<int64_t> dims) {
  auto [t, p] = allocate(dtype, std::move(dims));
  FERRULE_ASSERT(t.numel() == 1, "Tensor::scalar of more than one element");
  put(dtype, p, 0, value);
  return t;
}

Tensor Tensor::of_ints(DType dtype, std::vector<int64_t> dims, std::span<const int64_t> values) {
  auto [t, p] = allocate(dtype, std::move(dims));
  FERRULE_ASSERT(std::ssize(values) == t.numel(), "Tensor::of_ints: wrong number of values");
  with_native(dtype, [&, p = p]<class T>(T) {
    std::ranges::transform(values, static_cast<T*>(p), [](int64_t v) { return static_cast<T>(v); });
  });
  return t;
}

void Tensor::put(DType t, void* bytes, int64_t i, double v) {
  auto put = [&](auto x) {
    std::memcpy(static_cast<char*>(bytes) + i * static_cast<int64_t>(sizeof x), &x, sizeof x);
  };
  if (t == DType::boolean) return put(static_cast<uint8_t>(v != 0));
  if (is_native(t))
    return with_native(t, [&]<class T>(T) {
      if constexpr (std::is_integral_v<T>)
        put(saturated<T>(v));
      else
        put(static_cast<T>(v));
    });
  if (t == DType::f16) return put(float_to_f16(round_to_odd(v)));
  if (t == DType::bf16) return put(float_to_bf16(round_to_odd(v)));
  if (is_int(t)) {
    const int bits = size_bits(t), below = is_signed_int(t) ? 1 << (bits - 1) : 0;
    return set_packed(bytes, i, bits,
                      std::clamp<int>(saturated<int8_t>(v), -below, (1 << bits) - 1 - below));
  }
  if (t == DType::f4e2m1) return set_packed(bytes, i, 4, encode_mini(t, v, false));
  if (is_mini(t)) return put(encode_mini(t, v, false));
  bug("Tensor::put of a type without a number", __FILE__, __LINE__);
}

double Tensor::at_f64(int64_t i) const {
  return visit_element(dtype_, data(), i, [](auto v) { return static_cast<double>(v); });
}

int64_t Tensor::at_i64(int64_t i) const {
  return visit_element(dtype_, data(), i, [](auto v) {
    if constexpr (std::is_floating_point_v<decltype(v)>)
      return saturated<int64_t>(v);
    else
      return static_cast<int64_t>(v);
  });
}

bool Tensor::beyond_i64(int64_t i) const { return dtype_ == DType::u64 && at_i64(i) < 0; }

std::string Tensor::integer_text(int64_t i) const {
  return dtype_ == DType::u64 ? std::to_string(static_cast<uint64_t>(at_i64(i)))
                              : std::to_string(at_i64(i));
}

std::vector<int64_t> Tensor::to_i64() const {
  std::vector<int64_t> out(numel());
  for (size_t i = 0; i < out.size(); ++i) out[i] = at_i64(i);
  return out;
}

std::vector<double> Tensor::to_f64() const {
  std::vector<double> out(numel());
  for (size_t i = 0; i < out.size(); ++i) out[i] = at_f64(i);
  return out;
}

Tensor Tensor::reshaped(std::vector<int64_t> dims) const {
  Tensor t = *this;
  t.dims_ = std::move(dims);
  FERRULE_ASSERT(t.numel() == numel(), "Tensor::reshaped: another number of elements");
  return t;
}

bool Tensor::identical(const Tensor& other) const {
  if (dtype_ != other.dtype_ || dims_ != other.dims_) return false;
  if (dtype_ == DType::string) return *strings_ == *other.strings_;
  if (!is_tensor())
    return std::ranges::equal(*elements_, *other.elements_,
                              [](const Tensor& a, const Tensor& b) { return a.identical(b); });
  if (data_ == other.data_) return true;
  return bytes() == 0 || std::memcmp(data(), other.data(), static_cast<size_t>(bytes())) == 0;
}

size_t Tensor::hash() const {
  size_t seed = static_cast<size_t>(dtype_);
  seed = XXH3_64bits_withSeed(dims_.data(), dims_.size() * sizeof(int64_t), seed);
  if (dtype_ == DType::string) {
    for (const std::string& s : *strings_) seed = XXH3_64bits_withSeed(s.data(), s.size(), seed);
    return seed;
  }
  if (!is_tensor()) {
    for (const Tensor& t : *elements_) seed = seed * 31 + t.hash();
    return seed;
  }
  return XXH3_64bits_withSeed(data(), static_cast<size_t>(bytes()), seed);
}

std::optional<Tensor> WeakTensor::lock() const {
  Tensor t = tensor_;
  t.owner_ = owner_.lock();
  if (!t.owner_) return std::nullopt;
  t.residence_ = residence_.lock();
  return t;
}

}  // namespace ferrule
