// The stub of cuDNN: operation graphs as descriptors hold them. cudnn.cpp is the library's
// interface, cudnn_tensors.cpp reads and writes tensors, cudnn_operations.cpp checks and computes
// operations.
#pragma once
#include <cudnn.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/gpu/stub/library_work.h"

namespace ferrule::stub::cudnn {

struct Descriptor;
using DescriptorPtr = std::shared_ptr<Descriptor>;
struct Attribute {
  cudnnBackendAttributeType_t type{};
  int64_t count = 0;
  std::vector<char> bytes;
  std::vector<DescriptorPtr> children;
};
struct Descriptor {
  cudnnBackendDescriptorType_t type{};
  bool finalized = false;
  std::map<int, Attribute> attributes;
  template <class T>
  std::vector<T> values(int name) const {
    auto it = attributes.find(name);
    if (it == attributes.end()) return {};
    std::vector<T> v(it->second.bytes.size() / sizeof(T));
    std::memcpy(v.data(), it->second.bytes.data(), v.size() * sizeof(T));
    return v;
  }
  template <class T>
  T value(int name, T otherwise) const {
    auto v = values<T>(name);
    return v.empty() ? otherwise : v[0];
  }
  DescriptorPtr child(int name) const {
    auto it = attributes.find(name);
    return it == attributes.end() || it->second.children.empty() ? nullptr : it->second.children[0];
  }
  std::vector<DescriptorPtr> all(int name) const {
    auto it = attributes.find(name);
    return it == attributes.end() ? std::vector<DescriptorPtr>{} : it->second.children;
  }
};

struct Tensor {
  int64_t uid = 0, alignment = 1;
  Number number = Number::f32;
  std::vector<int64_t> dims, strides;
  bool is_virtual = false;
  std::vector<char> constant;
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    return n;
  }
  int64_t span() const {
    int64_t last = 0;
    for (size_t k = 0; k < dims.size(); ++k) last += (dims[k] - 1) * strides[k];
    return (last + 1) * size_of(number);
  }
};

/// What is wrong with the descriptor; "" where nothing is.
std::string read_tensor(const Descriptor& d, Tensor& t);
Tensor tensor_of(const DescriptorPtr& d);

using Values = std::vector<float>;  ///< dense, in the order of dims
struct Run {
  std::map<int64_t, void*> addresses;
  std::map<int64_t, Values> values;
  bool tf32 = false;
};

/// f(position, offset) for every element in row-major order.
void each(const std::vector<int64_t>& dims, const std::vector<int64_t>& strides,
          const std::function<void(int64_t, int64_t)>& f);
const Values& read(Run& run, const Tensor& t);
void write(Run& run, const Tensor& t, Values v);

/// What an operation reads and writes; what is wrong with it.
struct Operation {
  std::vector<Tensor> in;
  Tensor out;
  std::string problem;
};
Operation inspect(const Descriptor& d);
/// What is wrong with the graph; "" where nothing is.
std::string check_graph(const Descriptor& graph);
void run_operation(const Descriptor& d, Run& run);

}  // namespace ferrule::stub::cudnn
