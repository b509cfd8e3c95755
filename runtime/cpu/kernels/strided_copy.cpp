#include "runtime/cpu/kernels/strided_copy.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Elements of any size up to 16 bytes are moved as one of these.
struct Wide {
  uint64_t low, high;
};

constexpr int64_t kTile = 32;

}  // namespace

StridedCopy::StridedCopy(std::vector<int64_t> dims, std::vector<int64_t> source, std::vector<int64_t> target,
                         int element_bytes, int64_t source_offset, int64_t target_offset)
    : element_(element_bytes), source_offset_(source_offset), target_offset_(target_offset) {
  for (int64_t d : dims)
    if (d == 0) return;
  // Outermost first in the target's memory, so that it is written in order.
  std::vector<size_t> order;
  for (size_t k = 0; k < dims.size(); ++k)
    if (dims[k] != 1) order.push_back(k);
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return target[a] > target[b]; });
  for (size_t k : order) {
    const bool joins = !dims_.empty() && source_.back() == source[k] * dims[k] && target_.back() == target[k] * dims[k];
    if (joins) {
      dims_.back() *= dims[k];
      source_.back() = source[k];
      target_.back() = target[k];
      continue;
    }
    dims_.push_back(dims[k]);
    source_.push_back(source[k]);
    target_.push_back(target[k]);
  }
  auto take = [&](size_t at, int64_t& count, int64_t& s, int64_t& t) {
    count = dims_[at], s = source_[at], t = target_[at];
    auto erase = [&](std::vector<int64_t>& v) { v.erase(v.begin() + static_cast<int64_t>(at)); };
    erase(dims_), erase(source_), erase(target_);
  };
  kind_ = Kind::rows;
  source_step_ = target_step_ = 1;
  if (!dims_.empty()) {
    take(dims_.size() - 1, count_, source_step_, target_step_);
    kind_ = source_step_ == 1 && target_step_ == 1 ? Kind::rows
            : source_step_ == 0 && target_step_ == 1 ? Kind::fill
                                                     : Kind::elements;
    const auto dense = std::find(source_.begin(), source_.end(), 1);
    if (kind_ == Kind::elements && dense != source_.end()) {
      take(static_cast<size_t>(dense - source_.begin()), count2_, source_step2_, target_step2_);
      kind_ = Kind::tiles;
    }
  }
  for (int64_t d : dims_) outer_ *= d;
}

const char* StridedCopy::text() const {
  static const char* const kNames[] = {"nothing", "rows", "fill", "tiles", "elements"};
  return kNames[static_cast<int>(kind_)];
}

template <class T>
void StridedCopy::inner(const T* source, T* target) const {
  switch (kind_) {
    case Kind::rows: std::memcpy(target, source, static_cast<size_t>(count_) * sizeof(T)); break;
    case Kind::fill: std::fill_n(target, count_, *source); break;
    case Kind::elements:
      for (int64_t k = 0; k < count_; ++k) target[k * target_step_] = source[k * source_step_];
      break;
    case Kind::tiles:  // axis 1 is dense in the target, axis 2 in the source
      for (int64_t j = 0; j < count2_; j += kTile)
        for (int64_t i = 0; i < count_; i += kTile) {
          const int64_t rows = std::min(kTile, count2_ - j), columns = std::min(kTile, count_ - i);
          for (int64_t r = j; r < j + rows; ++r) {
            const T* s = source + r + i * source_step_;
            T* t = target + r * target_step2_ + i * target_step_;
            for (int64_t c = 0; c < columns; ++c) t[c * target_step_] = s[c * source_step_];
          }
        }
      break;
    case Kind::nothing: break;
  }
}

template <class T>
void StridedCopy::run_as(const T* source, T* target) const {
  source += source_offset_;
  target += target_offset_;
  const int64_t work = count_ * count2_, grain = std::max<int64_t>(1, 16384 / work);
  if (outer_ == 1 && work > 32768 && kind_ != Kind::tiles) {  // one long row: split it
    parallel_for(count_, 16384, [&](int64_t begin, int64_t end) {
      StridedCopy part = *this;  // no outer axes: nothing is allocated
      part.count_ = end - begin;
      part.inner(source + begin * source_step_, target + begin * target_step_);
    });
    return;
  }
  if (outer_ == 1 && work > 32768) {  // one transposed matrix: split its rows
    parallel_for(count2_, std::max<int64_t>(kTile, 16384 / count_), [&](int64_t begin, int64_t end) {
      StridedCopy part = *this;
      part.count2_ = end - begin;
      part.inner(source + begin * source_step2_, target + begin * target_step2_);
    });
    return;
  }
  parallel_for(outer_, grain, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      int64_t rest = k, s = 0, t = 0;
      for (size_t axis = dims_.size(); axis-- > 0;) {
        const int64_t i = rest % dims_[axis];
        rest /= dims_[axis];
        s += i * source_[axis];
        t += i * target_[axis];
      }
      inner(source + s, target + t);
    }
  });
}

void StridedCopy::run(const void* source, void* target) const {
  if (kind_ == Kind::nothing) return;
  switch (element_) {
    case 1: return run_as(static_cast<const uint8_t*>(source), static_cast<uint8_t*>(target));
    case 2: return run_as(static_cast<const uint16_t*>(source), static_cast<uint16_t*>(target));
    case 4: return run_as(static_cast<const uint32_t*>(source), static_cast<uint32_t*>(target));
    case 8: return run_as(static_cast<const uint64_t*>(source), static_cast<uint64_t*>(target));
    case 16: return run_as(static_cast<const Wide*>(source), static_cast<Wide*>(target));
    default: std::abort();  // the factory refuses other sizes
  }
}

}  // namespace ferrule::cpu
