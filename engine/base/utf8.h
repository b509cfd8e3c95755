// UTF-8, as messages, rule files and .npy files need it.
#pragma once
#include <cstdint>
#include <string_view>

namespace ferrule {

/// Length of the well-formed sequence at the start of `s`, which is not empty, 0 if there is none;
/// its code point.
size_t decode_utf8(std::string_view s, uint32_t& point);

}  // namespace ferrule
