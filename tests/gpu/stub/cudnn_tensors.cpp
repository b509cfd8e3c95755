#include <algorithm>

#include "tests/gpu/stub/cudnn_graph.h"

namespace ferrule::stub::cudnn {

std::string read_tensor(const Descriptor& d, Tensor& t) {
  t.uid = d.value<int64_t>(CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
  t.dims = d.values<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS);
  t.strides = d.values<int64_t>(CUDNN_ATTR_TENSOR_STRIDES);
  t.alignment = d.value<int64_t>(CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 1);
  t.is_virtual = d.value<char>(CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) != 0;
  const auto type = d.value<int>(CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_DATA_FLOAT);
  if (type == CUDNN_DATA_FLOAT)
    t.number = Number::f32;
  else if (type == CUDNN_DATA_HALF)
    t.number = Number::f16;
  else if (type == CUDNN_DATA_BFLOAT16)
    t.number = Number::bf16;
  else
    return "a tensor of type " + std::to_string(type);
  if (t.dims.empty() || t.dims.size() != t.strides.size())
    return "a tensor with another number of strides than dims";
  for (size_t k = 0; k < t.dims.size(); ++k)
    if (t.dims[k] < 1 || t.strides[k] < 1) return "a tensor with a dim or stride below 1";
  // Distinct elements in distinct places: ordered by stride, each axis must step over the one
  // before.
  std::vector<size_t> order;
  for (size_t k = 0; k < t.dims.size(); ++k)
    if (t.dims[k] > 1) order.push_back(k);
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return t.strides[a] < t.strides[b]; });
  for (size_t k = 1; k < order.size(); ++k)
    if (t.strides[order[k]] < t.strides[order[k - 1]] * t.dims[order[k - 1]])
      return "a tensor whose elements overlap";
  return {};
}

void each(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
          const std::function<void(int64_t, int64_t)>& f) {
  std::vector<int64_t> at(dims.size(), 0);
  int64_t n = 1, offset = 0;
  for (int64_t d : dims) n *= d;
  for (int64_t k = 0; k < n; ++k) {
    f(k, offset);
    for (size_t a = dims.size(); a-- > 0;) {
      offset += strides[a];
      if (++at[a] < dims[a]) break;
      offset -= strides[a] * dims[a];
      at[a] = 0;
    }
  }
}

Tensor tensor_of(const DescriptorPtr& d) {
  Tensor t;
  if (d) read_tensor(*d, t);
  return t;
}

const Values& read(Run& run, const Tensor& t) {
  auto [it, fresh] = run.values.try_emplace(t.uid);
  if (fresh) {
    it->second.resize(static_cast<size_t>(t.numel()));
    const void* base = run.addresses.at(t.uid);
    each(t.dims, t.strides, [&](int64_t k, int64_t o) {
      it->second[static_cast<size_t>(k)] = load(t.number, base, o);
    });
  }
  return it->second;
}

void write(Run& run, const Tensor& t, Values v) {
  for (float& x : v) {  // what lies between operations has a type as well
    if (t.number == Number::f32) break;
    uint16_t rounded = 0;
    store(t.number, &rounded, 0, x);
    x = load(t.number, &rounded, 0);
  }
  if (!t.is_virtual) {
    void* base = run.addresses.at(t.uid);
    each(t.dims, t.strides,
         [&](int64_t k, int64_t o) { store(t.number, base, o, v[static_cast<size_t>(k)]); });
  }
  run.values[t.uid] = std::move(v);
}

}  // namespace ferrule::stub::cudnn
