// cuDNN and cuBLASLt as the kernels see them: opened at their first use, one handle of each, every
// failure an error with the layer's name. No header of NVIDIA's is needed to include this; what
// calls them is in cudnn_graph.cpp and cublaslt.cpp, which say library_missing where they were
// built without the headers.
#pragma once
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "engine/base/result.h"

struct cudnnContext;
struct cublasLtContext;

namespace ferrule::cuda {

class CudnnGraph;
class Device;

class Libraries {
 public:
  Libraries() = default;
  /// The device's context is the calling thread's whenever a handle is asked for.
  explicit Libraries(Device&) {}
  Libraries(const Libraries&) = delete;
  Libraries& operator=(const Libraries&) = delete;
  ~Libraries() { close(); }
  /// Gives the handles back; the device's context is the calling thread's.
  void close();
  /// Nothing is given back, for good.
  void forget();
  /// errors: library_missing, library_failed.
  Result<cudnnContext*> cudnn(std::string_view layer);
  Result<cublasLtContext*> cublaslt(std::string_view layer);
  /// Built graphs by all that they depend on: equal layers have one, which takes cuDNN up to half a
  /// second to build.
  std::map<std::string, std::shared_ptr<CudnnGraph>> graphs;

 private:
  std::mutex mutex_;
  cudnnContext* cudnn_ = nullptr;
  cublasLtContext* cublaslt_ = nullptr;
};

}  // namespace ferrule::cuda
