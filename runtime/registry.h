// Backends by name: those built in (reference, null) and those in libraries of their own, opened on
// demand. A backend that is asked for and not there is an error that says what is missing, never a
// silent change.
#pragma once
#include <string>
#include <vector>

#include "runtime/backend.h"

namespace ferrule {

/// "cpu", "cuda", "reference", "null" or "auto" (the first that is available, of cpu, reference).
/// Opened once a process. errors: usage (no such backend; lists them), library_missing, those of
/// Backend::available.
Result<Backend*> find_backend(std::string_view name);
/// errors: usage, where there is no backend of this name (lists them).
Status check_backend(std::string_view name);
/// As find_backend, without asking whether it can run here.
Result<Backend*> open_backend(std::string_view name);

/// Who runs a plan, and which target it is made for.
struct BackendChoice {
  Backend* backend = nullptr;
  std::string target;
  std::string warning;  ///< one line where another backend runs than was hoped for; empty: not
};
/// `name`: as above, but "auto" is cuda where a GPU is there and `target` is empty or a GPU's, else
/// cpu, else reference. An empty target is the device's own, the nearest of `known` if it has none
/// of its name; it stays empty, and becomes empty where the CPU stands in for a GPU, for plans for
/// the host. `require_device`: no other than a GPU will do.  errors: usage, those of find_backend.
Result<BackendChoice> choose_backend(std::string_view name, const std::string& target,
                                     bool require_device, const std::vector<std::string>& known);

/// For doctor: every backend and what its availability check says.
struct BackendState {
  std::string name;
  Status status;
};
std::vector<BackendState> backend_states();

}  // namespace ferrule
