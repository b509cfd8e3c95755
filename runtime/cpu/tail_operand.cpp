#include "runtime/cpu/tail_operand.h"

namespace ferrule::cpu {

Broadcast broadcast_of(const Operand& o, const Operand& y, int channel) {
  return ferrule::broadcast_of(o.dims, y.dims, channel);
}

bool lies_like(const Operand& o, const Operand& y) {
  const std::vector<int64_t> own = o.strides(), wanted = strides_of(y.dims, y.layout);
  const size_t missing = y.dims.size() - o.dims.size();
  for (size_t k = 0; k < own.size(); ++k)
    if (o.dims[k] > 1 && own[k] != wanted[k + missing]) return false;
  return true;
}

}  // namespace ferrule::cpu
