// What the stubs of cuDNN and cuBLASLt share: failures that a test orders (FERRULE_STUB_FAIL, as in
// state.h), complaints about wrong use, numbers of narrow types, and work that is put on a stream
// of the stub driver where that is loaded; else it is done at once, on host memory.
#pragma once
#include <cstdint>
#include <functional>
#include <string>

struct CUstream_st;

namespace ferrule::stub {

/// The code that the environment orders for this call of `function`, the first being 1; 0: none.
int ordered_failure(const char* function);
/// Says "stub: wrong use: …" on stderr.
void wrong_use(const std::string& what);
/// Handles of a library: complains where more are alive than FERRULE_STUB_ALIVE says (state.h).
void check_alive(const char* what, size_t alive);
/// Whether the bytes are memory of the device; true where there is no stub driver.
/// Complains where the driver has no current context for the calling thread.
void needs_context(const char* what);
/// Complains where the driver has ended, or its device is lost.
void needs_device(const char* what);
bool device_memory(const void* at, uint64_t bytes);
/// FERRULE_STUB_LIBRARY=allocates or waits: what a library may do in a call of its own, which a
/// stream that is being captured does not allow. Whether that went well.
bool own_business(CUstream_st* stream);
void put_work(CUstream_st* stream, const std::string& text, std::function<void()> work);

enum class Number : uint8_t { f32, f16, bf16 };
inline int size_of(Number n) { return n == Number::f32 ? 4 : 2; }
float load(Number n, const void* base, int64_t index);
void store(Number n, void* base, int64_t index, float value);
/// What a tensor core reads of an f32 where tf32 is allowed: 10 bits behind the point.
float to_tf32(float value);

}  // namespace ferrule::stub
