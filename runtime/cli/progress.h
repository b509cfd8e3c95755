// A bar on stderr for what takes more than a second, on terminals only; it is wiped when its object
// goes.
#pragma once
#include <atomic>
#include <chrono>
#include <string>
#include <thread>

namespace ferrule::cli {

class Progress {
 public:
  /// `ticking`: a thread of its own draws it, for work that cannot say how far it is or that goes
  /// on in one call; else each advance() does.
  explicit Progress(std::string label, bool ticking = true);
  Progress(const Progress&) = delete;
  ~Progress();
  /// How much of it is done, 0 to 1; without it only the time is shown. From any thread.
  void advance(double part);

 private:
  void draw();
  const std::string label_;
  const bool shown_;
  const std::chrono::steady_clock::time_point begin_;
  std::chrono::steady_clock::time_point next_;
  std::atomic<double> part_{-1};
  std::atomic<bool> done_{false};
  bool drawn_ = false;
  std::thread ticker_;
};

}  // namespace ferrule::cli
