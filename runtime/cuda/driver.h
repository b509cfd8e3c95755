// The CUDA driver API, opened at run time: the few functions used, declared here, so that no CUDA
// header is needed to build and nothing of CUDA to start. Calls give back the driver's codes;
// Driver::failed makes errors of ours of them. What a call needs (context, memory, module) is
// device.h's business.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/result.h"

struct CUctx_st;
struct CUevent_st;
struct CUfunc_st;
struct CUgraph_st;
struct CUgraphExec_st;
struct CUmod_st;
struct CUstream_st;

namespace ferrule::cuda {

using Address = uint64_t;  ///< in the device's memory
using Stream = CUstream_st*;
using Event = CUevent_st*;
using Function = CUfunc_st*;
using Module = CUmod_st*;
using GraphExec = CUgraphExec_st*;

/// Codes that are treated in a way of their own.
enum : int {
  kSuccess = 0,
  kOutOfMemory = 2,
  kNoDevice = 100,
};
/// Whether nothing more can be done with the context after that code.
bool device_is_lost(int code);

// name, version suffix of the symbol, parameters
#define FERRULE_CUDA_DRIVER(X)                                                               \
  X(cuInit, "", (unsigned))                                                                  \
  X(cuDriverGetVersion, "", (int*))                                                          \
  X(cuGetErrorName, "", (int, const char**))                                                 \
  X(cuGetErrorString, "", (int, const char**))                                               \
  X(cuDeviceGetCount, "", (int*))                                                            \
  X(cuDeviceGet, "", (int*, int))                                                            \
  X(cuDeviceGetName, "", (char*, int, int))                                                  \
  X(cuDeviceGetAttribute, "", (int*, int, int))                                              \
  X(cuDeviceTotalMem, "_v2", (size_t*, int))                                                 \
  X(cuDevicePrimaryCtxRetain, "", (CUctx_st**, int))                                         \
  X(cuCtxGetCurrent, "", (CUctx_st**))                                                       \
  X(cuCtxSetCurrent, "", (CUctx_st*))                                                        \
  X(cuMemGetInfo, "_v2", (size_t*, size_t*))                                                 \
  X(cuMemAlloc, "_v2", (Address*, size_t))                                                   \
  X(cuMemFree, "_v2", (Address))                                                             \
  X(cuMemHostAlloc, "", (void**, size_t, unsigned))                                          \
  X(cuMemFreeHost, "", (void*))                                                              \
  X(cuMemcpyHtoDAsync, "_v2", (Address, const void*, size_t, Stream))                        \
  X(cuMemcpyDtoHAsync, "_v2", (void*, Address, size_t, Stream))                              \
  X(cuMemsetD8Async, "", (Address, unsigned char, size_t, Stream))                           \
  X(cuModuleLoadData, "", (Module*, const void*))                                            \
  X(cuModuleUnload, "", (Module))                                                            \
  X(cuModuleGetFunction, "", (Function*, Module, const char*))                               \
  X(cuLaunchKernel, "",                                                                      \
    (Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, Stream, \
     void**, void**))                                                                        \
  X(cuStreamCreate, "", (Stream*, unsigned))                                                 \
  X(cuStreamDestroy, "_v2", (Stream))                                                        \
  X(cuStreamSynchronize, "", (Stream))                                                       \
  X(cuStreamBeginCapture, "_v2", (Stream, int))                                              \
  X(cuStreamEndCapture, "", (Stream, CUgraph_st**))                                          \
  X(cuGraphInstantiateWithFlags, "", (GraphExec*, CUgraph_st*, unsigned long long))          \
  X(cuGraphDestroy, "", (CUgraph_st*))                                                       \
  X(cuGraphLaunch, "", (GraphExec, Stream))                                                  \
  X(cuGraphExecDestroy, "", (GraphExec))                                                     \
  X(cuEventCreate, "", (Event*, unsigned))                                                   \
  X(cuEventRecord, "", (Event, Stream))                                                      \
  X(cuEventElapsedTime, "", (float*, Event, Event))                                          \
  X(cuEventDestroy, "_v2", (Event))

struct Driver {
#define FERRULE_CUDA_FUNCTION(name, suffix, parameters) int(*name) parameters = nullptr;
  FERRULE_CUDA_DRIVER(FERRULE_CUDA_FUNCTION)
#undef FERRULE_CUDA_FUNCTION
  int version = 0;  ///< the newest CUDA that it knows: 12040 is 12.4

  /// Opened and initialised once a process.  errors: library_missing, driver_old, no_device,
  /// library_failed.
  static const Result<Driver>& get();
  /// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  std::string text(int code) const;
};

/// "12.4" for 12040.
std::string version_text(int version);
/// CUDA's version at least; older ones lack functions that are needed.
inline constexpr int kLeastDriver = 12000;

}  // namespace ferrule::cuda
