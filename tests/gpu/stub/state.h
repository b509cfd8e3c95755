// What the functions of the stub driver share: which call fails on purpose, what memory there is,
// and the complaints about wrong use. A test orders failures and limits by environment variables:
//
//   FERRULE_STUB_FAIL     "cuMemAlloc_v2:3=2,*:20=700,kernel:5=719": the third cuMemAlloc_v2 says
//   2, the 20th call of any
//                         function 700, the fifth kernel that runs ends the context with 719, seen
//                         at the next wait
//   FERRULE_STUB_LOG      a file that launches, copies and graphs are written to, addresses as
//   allocation + offset FERRULE_STUB_NULL     kernels are not run (and by the stub NVRTC not
//   compiled) FERRULE_STUB_CC, _MEMORY, _DRIVER, _DEVICES   90, bytes, 13000, 1 FERRULE_STUB_CALLS
//   a file that gets the number of calls at the end
//   FERRULE_STUB_ALIVE    how many streams, graphs, captured graphs, modules, pinned allocations,
//   pairs of events and handles of libraries may be alive at a time, of each kind
//   FERRULE_STUB_CALLER   the thread that starts the driver has another device's context current
//
// Wrong use (addresses outside an allocation, memory used after it was freed, a capture that is not
// allowed, memory that is never freed) is written to stderr as "stub: wrong use: …"; no run may
// print that.
#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace ferrule::stub {

enum : int {
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kNoDevice = 100,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kNoBinary = 209,
  kNotFound = 500,
  kCaptureUnsupported = 900,
  kCaptureInvalidated = 901
};

std::string setting(const char* name, const std::string& otherwise);

struct Allocation {
  int number = 0;
  uint64_t base = 0, bytes = 0;
  void* mapping = nullptr;
  uint64_t mapped = 0;
  bool freed = false, host = false;
};

/// Pages that nobody but a kernel and a copy may touch, with pages around them that nobody may.
/// Freed ones stay so.
class Memory {
 public:
  uint64_t allocate(uint64_t bytes, bool host);
  /// false: no allocation begins there.
  bool release(uint64_t base, bool host);
  /// The allocation that holds all of these bytes, null if there is none (or it was freed).
  const Allocation* find(uint64_t at, uint64_t bytes) const;
  /// For as long as a device would work.
  void open(bool readable);
  uint64_t used() const { return used_; }
  size_t pinned() const;                ///< allocations that are alive
  std::string text(uint64_t at) const;  ///< "m3+0x40", or the number
  void report_leaks() const;

 private:
  std::map<uint64_t, Allocation> allocations_;
  uint64_t used_ = 0;
  int count_ = 0;
};

struct State {
  std::recursive_mutex mutex;
  Memory memory;
  int lost = 0;  ///< the code that ended the context
  bool null = false;
  std::map<std::string, int> calls;
  int all_calls = 0;
  int process = 0;  ///< that called first: a driver does not work in its children
  std::map<std::string, std::map<int, int>> failures;  ///< function, number of the call -> code

  State();
  /// What the call must say at once; 0: it may go on.
  int enter(const char* function);
  void wrong(const std::string& what);
  void log(const std::string& line);
  /// Complains where more are alive than FERRULE_STUB_ALIVE says.
  void check_alive(const char* what, size_t alive);
};
State& state();

/// Holds the stub for one call of a function.
struct StubCall {
  explicit StubCall(const char* function, bool needs_context = true);
  std::lock_guard<std::recursive_mutex> lock;
  int code;
};

}  // namespace ferrule::stub
