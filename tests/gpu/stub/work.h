// Work of the stub driver: modules that the stub NVRTC compiled, streams that do their work when
// somebody waits for it (as late as a device could, so that memory that went or was read too early
// is seen), captures, graphs, events.
#pragma once
#include <chrono>
#include <memory>
#include <set>

#include "tests/gpu/stub/state.h"
#include "tests/unit/codegen/host_threads.h"

struct CUfunc_st {
  std::string name;
  ferrule::test::HostKernel kernel = {};
  size_t argument_bytes = 0;
};
struct CUmod_st {
  void* library = nullptr;
  int file = -1;  ///< that it was opened from
  CUfunc_st function;
};
struct CUevent_st {
  bool recorded = false;
  std::chrono::steady_clock::time_point at;
};

namespace ferrule::stub {

/// One piece of work; gives the code that ends the context, or 0.
struct Work {
  std::string text;
  std::function<int()> run;
};

}  // namespace ferrule::stub

struct CUgraph_st {
  std::vector<ferrule::stub::Work> work;
};
struct CUgraphExec_st {
  std::vector<ferrule::stub::Work> work;
};
struct CUstream_st {
  std::vector<ferrule::stub::Work> queue;
  bool capturing = false, invalidated = false;
  std::vector<ferrule::stub::Work> captured;
};

namespace ferrule::stub {

/// Opens an image of the stub NVRTC.  Returns its module, or null with the driver's code, and what
/// is wrong where no driver could be given that.
std::unique_ptr<CUmod_st> open_image(const void* image, std::string& wrong, int& code);
/// All blocks of one launch; what went wrong, or "".
std::string run_kernel(const CUfunc_st& function, const std::string& arguments,
                       ferrule::test::Dim3 grid, ferrule::test::Dim3 block);

/// Puts it on the stream, or into the capture.
void put(CUstream_st* stream, Work work);
/// Does all that is on the stream.
int drain(CUstream_st* stream);
/// The stream of a null handle.
CUstream_st* real(CUstream_st* stream);
/// Whether any stream is being captured; what is not allowed then ends the capture.
bool spoils_capture(const char* what);

/// Handles that are alive, by kind.
template <class T>
std::set<T*>& alive() {
  static auto* all = new std::set<T*>();
  return *all;
}
template <class T>
bool check(T* handle, const char* what) {
  if (alive<T>().contains(handle)) return true;
  state().wrong(std::string(what) + " of something that is not there");
  return false;
}

}  // namespace ferrule::stub
