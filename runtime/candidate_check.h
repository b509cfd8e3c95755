// Checks for reduce (engine/reduce) that are programs: each candidate is written to a file and a
// process of its own asked about it, so that a crash or a hang is an answer like any other. A
// process that has run kernels may use them, too: nothing is forked that goes on running here.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "engine/reduce/reduce.h"

namespace ferrule {

/// How a process ended.
struct ProcessResult {
  int status = 0;        ///< 128 + N: killed by signal N, as shells say it
  bool stopped = false;  ///< it was, when its time was over
  std::string error;     ///< the code in the first "error[code]" on its stderr: rule_broken
  std::string text;      ///< the end of its stderr
  /// Whether two processes ended in the same way: what differs in nothing else shows the same
  /// failure.
  bool same(const ProcessResult& o) const {
    return status == o.status && stopped == o.stopped && error == o.error;
  }
};
std::string str(const ProcessResult& o);  ///< "exit status 70 (rule_broken)", "killed by signal
                                          ///< 11", "stopped when its time was over"

/// Runs a program and its arguments, or with `shell` a command line, in a process group of its own,
/// stdout thrown away. errors: library_failed, where no process can be made.
Result<ProcessResult> run_process(const std::vector<std::string>& arguments, double seconds);

struct ProgramCheck {
  std::vector<std::string>
      arguments;        ///< "{}" in them: the candidate's file; "{inputs}": its inputs, as .npz
  double seconds = 20;  ///< for each candidate
  /// The exit status that says that the failure is still there; none: the way in which the model
  /// itself ends, which must not be 0.
  std::optional<int> status;
};
/// errors (of the check): file_not_written; usage, where the model itself ends with 0 and `status`
/// is none.
reduce::Check program_check(ProgramCheck check);

/// `program verify --oracle` with these options: fused against the interpreter, with its
/// tolerances, or a crash or a hang.
ProgramCheck verify_check(const std::string& program, const std::vector<std::string>& options,
                          double seconds);

}  // namespace ferrule
