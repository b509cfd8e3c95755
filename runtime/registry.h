// Backends by name: those built in (reference, null) and those in libraries of their own, opened on demand.
// A backend that is asked for and not there is an error that says what is missing, never a silent change.
#pragma once
#include <string>
#include <vector>

#include "runtime/backend.h"

namespace ferrule {

/// "cpu", "reference", "null" or "auto" (the first that is available, of cpu, reference). Opened once a process.
/// errors: usage (no such backend; lists them), library_missing.
Result<Backend*> find_backend(std::string_view name);

/// For doctor: every backend and what its availability check says.
struct BackendState {
  std::string name;
  Status status;
};
std::vector<BackendState> backend_states();

}  // namespace ferrule
