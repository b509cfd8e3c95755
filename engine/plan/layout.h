// Memory layouts of values.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace ferrule {

/// Memory layouts: a closed set, never a library's opaque format.
enum class Layout : uint8_t { plain, channels_last };  ///< channels_last: N spatial… C
std::string_view name(Layout l);

/// Row-major strides in elements of a value of these dims in this layout.
std::vector<int64_t> strides_of(const std::vector<int64_t>& dims, Layout layout);
/// Whether the two layouts of these dims are the same memory: one channel, or nothing but channels.
bool same_memory(const std::vector<int64_t>& dims);

}  // namespace ferrule
