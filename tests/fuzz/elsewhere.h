// Other programs that run models: ONNX Runtime in a Python process beside this one, and another
// build's `ferrule`.
#pragma once
#include <sys/types.h>

#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "engine/graph/tensor.h"

namespace ferrule::fuzz {

using Named = std::map<std::string, Tensor>;

/// A folder for files of this process and its children, removed with the object in the process that
/// made it.
class ScratchFolder {
 public:
  ScratchFolder();
  ~ScratchFolder();
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  /// A file of the calling process.
  std::string file(const std::string& name) const;

 private:
  std::string path_;
  pid_t owner_;
};
using Scratch = std::shared_ptr<ScratchFolder>;

/// Started when it is first asked, in each process that asks (elsewhere.py), and again where it
/// died.
class OnnxRuntime {
 public:
  OnnxRuntime(std::string python, std::string script, Scratch scratch)
      : python_(std::move(python)), script_(std::move(script)), scratch_(std::move(scratch)) {}
  ~OnnxRuntime() { stop(); }
  OnnxRuntime(const OnnxRuntime&) = delete;
  OnnxRuntime& operator=(const OnnxRuntime&) = delete;
  /// The model's results, with all of its own fusion off. errors: its own words.
  Result<Named> run(const std::string& model, const Named& inputs);

 private:
  bool start();
  void stop();
  std::string python_, script_;
  Scratch scratch_;
  pid_t child_ = -1;
  FILE *to_ = nullptr, *from_ = nullptr;
};

/// A command's stderr and how it ended: `status` as a shell has it.
struct Ended {
  int status = 0;
  std::string errors;
};
Ended run_command(const std::string& command);

}  // namespace ferrule::fuzz
