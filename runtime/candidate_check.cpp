#include "runtime/candidate_check.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <thread>

#include "engine/base/diagnostics.h"
#include "engine/graph/npz.h"

extern char** environ;

namespace ferrule {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
constexpr size_t kMostText = 2000;  // kept of a process's stderr

/// A folder that goes away with this object.
class Scratch {
 public:
  static Result<std::shared_ptr<Scratch>> make() {
    auto s = std::make_shared<Scratch>();
    std::error_code ec;
    std::string folder = (fs::temp_directory_path(ec) / "ferrule-reduce-XXXXXX").string();
    if (ec || !::mkdtemp(folder.data()))
      return error(Code::file_not_written, "reduce", escape(folder), std::strerror(errno));
    s->folder_ = folder;
    return s;
  }
  ~Scratch() {
    std::error_code ec;
    if (!folder_.empty()) fs::remove_all(folder_, ec);
  }
  std::string file(const char* name) const { return folder_ + "/" + name; }

 private:
  std::string folder_;
};

/// What comes through a pipe, read beside the wait for the process so that it never blocks on a
/// full one.
class Pipe {
 public:
  bool open() {
    return ::pipe2(ends_, O_CLOEXEC) == 0 && ::fcntl(ends_[0], F_SETFL, O_NONBLOCK) == 0;
  }
  ~Pipe() { close_writer(), ends_[0] >= 0 && ::close(ends_[0]); }
  int writer() const { return ends_[1]; }
  void close_writer() {
    if (ends_[1] >= 0) ::close(ends_[1]);
    ends_[1] = -1;
  }
  void read() {
    char buffer[4096];
    for (ssize_t n; (n = ::read(ends_[0], buffer, sizeof buffer)) > 0;) {
      if (first_.size() < kMostText) first_.append(buffer, static_cast<size_t>(n));
      last_.append(buffer, static_cast<size_t>(n));
      if (last_.size() > 2 * kMostText) last_.erase(0, last_.size() - kMostText);
    }
  }
  const std::string& first() const { return first_; }
  std::string last() const {
    return last_.substr(last_.size() - std::min(last_.size(), kMostText));
  }

 private:
  int ends_[2] = {-1, -1};
  std::string first_, last_;
};

std::string error_code(const std::string& text) {
  const size_t at = text.find("error["), end = text.find(']', at);
  return at == std::string::npos || end == std::string::npos ? ""
                                                             : text.substr(at + 6, end - at - 6);
}

void replace_all(std::string& text, const std::string& what, const std::string& with) {
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; at += with.size())
    text.replace(at, what.size(), with);
}

/// Waits for the process, at most so long; then ends all of its group.
ProcessResult awaited(pid_t pid, Pipe& pipe, double seconds) {
  ProcessResult out;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  auto nap = std::chrono::microseconds(200);
  int status = 0;
  for (;;) {
    const pid_t done = ::waitpid(pid, &status, WNOHANG);
    pipe.read();
    if (done == pid || (done < 0 && errno != EINTR)) break;
    if (Clock::now() >= end) {
      out.stopped = true;
      ::kill(-pid, SIGKILL);
      ::waitpid(pid, &status, 0);
      break;
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(nap * 2, std::chrono::microseconds(5000));
  }
  ::kill(-pid, SIGKILL);  // what it left behind
  pipe.read();
  out.status = out.stopped ? 0 : WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  out.error = error_code(pipe.first());
  out.text = pipe.last();
  return out;
}

}  // namespace

std::string str(const ProcessResult& o) {
  if (o.stopped) return "stopped when its time was over";
  if (o.status > 128) return fmt::format("killed by signal {}", o.status - 128);
  return fmt::format("exit status {}{}", o.status,
                     o.error.empty() ? "" : " (" + escape(o.error) + ")");
}

Result<ProcessResult> run_process(const std::vector<std::string>& arguments, double seconds) {
  Pipe pipe;
  if (!pipe.open())
    return error(Code::library_failed, "reduce", std::string("pipe"), std::strerror(errno));
  std::vector<char*> argv;
  for (const std::string& a : arguments) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  posix_spawn_file_actions_t files;
  posix_spawn_file_actions_init(&files);
  posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&files, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
  posix_spawn_file_actions_adddup2(&files, pipe.writer(), STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  posix_spawnattr_setpgroup(&attributes, 0);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, argv[0], &files, &attributes, argv.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&files);
  if (failed)
    return error(Code::library_failed, "reduce", escape(arguments[0]), std::strerror(failed));
  pipe.close_writer();
  return awaited(pid, pipe, seconds);
}

reduce::Check program_check(ProgramCheck check) {
  struct Kept {
    ProgramCheck check;
    std::shared_ptr<Scratch> scratch;
    std::optional<ProcessResult> failure;  ///< of the model itself
  };
  auto kept = std::make_shared<Kept>();
  kept->check = std::move(check);
  return [kept](const reduce::Candidate& c) -> Result<bool> {
    if (!kept->scratch) {
      FERRULE_ASSIGN(kept->scratch, Scratch::make());
    }
    const std::string model = kept->scratch->file("model.onnx"),
                      inputs = kept->scratch->file("inputs.npz");
    errno = 0;
    std::ofstream file(model, std::ios::binary | std::ios::trunc);
    file << c.bytes;
    file.close();
    if (!file)
      return error(Code::file_not_written, "reduce", escape(model),
                   std::strerror(errno ? errno : EIO));
    if (!c.inputs.empty()) FERRULE_TRY(write_npz(inputs, c.inputs, true));
    std::vector<std::string> arguments = kept->check.arguments;
    for (std::string& a : arguments)
      replace_all(a, "{}", model), replace_all(a, "{inputs}", inputs);
    FERRULE_ASSIGN(const ProcessResult o, run_process(arguments, kept->check.seconds));
    if (kept->check.status) return !o.stopped && o.status == *kept->check.status;
    if (kept->failure) return o.same(*kept->failure);
    if (o.status == 0 && !o.stopped) return false;
    kept->failure = o;
    return true;
  };
}

ProgramCheck verify_check(const std::string& program, const std::vector<std::string>& options,
                          double seconds) {
  ProgramCheck c;
  c.arguments = {program, "verify", "{}", "--inputs", "{inputs}", "--oracle"};
  c.arguments.insert(c.arguments.end(), options.begin(), options.end());
  c.seconds = seconds;
  return c;
}

}  // namespace ferrule
