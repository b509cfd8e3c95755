#include "engine/base/utf8.h"

namespace ferrule {

size_t decode_utf8(std::string_view s, uint32_t& point) {
  auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
  unsigned char b = byte(0);
  if (b < 0x80) return point = b, 1;
  size_t n = b >= 0xf0 ? 4 : b >= 0xe0 ? 3 : 2;
  if (b < 0xc2 || b > 0xf4 || s.size() < n) return 0;
  point = b & (0xffu >> (n + 1));
  for (size_t i = 1; i < n; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    point = (point << 6) | (byte(i) & 0x3fu);
  }
  static constexpr uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  bool surrogate = point >= 0xd800 && point <= 0xdfff;
  return point < kLeast[n] || point > 0x10ffff || surrogate ? 0 : n;
}

}  // namespace ferrule
