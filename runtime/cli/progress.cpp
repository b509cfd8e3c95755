#include "runtime/cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "runtime/cli/terminal.h"

namespace ferrule::cli {
namespace {

constexpr std::chrono::seconds kSilent{1};
constexpr std::chrono::milliseconds kBetween{200};

}  // namespace

Progress::Progress(std::string label, bool ticking)
    : label_(std::move(label)),
      shown_(on_terminal(STDERR_FILENO)),
      begin_(std::chrono::steady_clock::now()),
      next_(begin_ + kSilent) {
  if (!shown_ || !ticking) return;
  try {
    ticker_ = std::thread([this] {
      while (!done_) {
        std::this_thread::sleep_for(kBetween / 4);
        if (std::chrono::steady_clock::now() >= next_ && !done_) draw();
      }
    });
  } catch (const std::system_error&) {  // no thread can be had: no bar
  }
}

Progress::~Progress() {
  done_ = true;
  if (ticker_.joinable()) ticker_.join();
  if (drawn_) std::fprintf(stderr, "\r\033[K");
}

void Progress::advance(double part) {
  part_ = std::clamp(part, 0.0, 1.0);
  if (shown_ && !ticker_.joinable() && std::chrono::steady_clock::now() >= next_) draw();
}

void Progress::draw() {
  constexpr size_t kBar = 24;
  const auto now = std::chrono::steady_clock::now();
  next_ = now + kBetween;
  const double seconds = std::chrono::duration<double>(now - begin_).count(), part = part_;
  std::string bar;
  if (part >= 0) {
    const auto full = static_cast<size_t>(part * kBar);
    bar = fmt::format("[{}{}] {:3.0f} % ", std::string(full, '#'), std::string(kBar - full, ' '),
                      100 * part);
  }
  std::string text = fmt::format("{}{:.0f} s {}", bar, seconds, label_);
  constexpr size_t kUsual = 80;
  const size_t width = width_of(STDERR_FILENO);
  text.resize(std::min(text.size(), (width ? width : kUsual) - 1));
  std::fprintf(stderr, "\r%s\033[K", text.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

}  // namespace ferrule::cli
