#include "tests/fuzz/elsewhere.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/base/diagnostics.h"
#include "engine/graph/npz.h"

namespace ferrule::fuzz {
namespace {

Status write_file(const std::string& path, const std::string& bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << bytes;
  file.close();
  return file ? Status{} : error(Code::file_not_written, "fuzz", path, "no room");
}

}  // namespace

ScratchFolder::ScratchFolder() : owner_(getpid()) {
  std::string folder = (std::filesystem::temp_directory_path() / "ferrule-fuzz-XXXXXX").string();
  if (!mkdtemp(folder.data())) std::abort();
  path_ = folder;
}

ScratchFolder::~ScratchFolder() {
  std::error_code ec;
  if (getpid() == owner_) std::filesystem::remove_all(path_, ec);
}

std::string ScratchFolder::file(const std::string& name) const {
  return fmt::format("{}/{}.{}", path_, getpid(), name);
}

bool OnnxRuntime::start() {
  int in[2], out[2];
  if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) return false;
  signal(SIGPIPE, SIG_IGN);
  child_ = fork();
  if (child_ == 0) {
    dup2(in[0], 0), dup2(out[1], 1);
    unsetenv("LD_LIBRARY_PATH");  // the stubs are not for it
    execl(python_.c_str(), python_.c_str(), "-W", "ignore", script_.c_str(), nullptr);
    _exit(127);
  }
  close(in[0]), close(out[1]);
  to_ = fdopen(in[1], "w"), from_ = fdopen(out[0], "r");
  return child_ > 0 && to_ && from_;
}

void OnnxRuntime::stop() {
  if (to_) fclose(to_);
  if (from_) fclose(from_);
  if (child_ > 0) waitpid(child_, nullptr, 0);
  to_ = from_ = nullptr, child_ = -1;
}

Result<Named> OnnxRuntime::run(const std::string& model, const Named& inputs) {
  auto says = [](const std::string& text) { return error(Code::usage, "ONNX Runtime", text); };
  if (child_ < 0 && !start()) return says("it does not start");
  const std::string file = scratch_->file("onnx"), in = scratch_->file("in.npz"),
                    out = scratch_->file("out.npz");
  FERRULE_TRY(write_file(file, model));
  FERRULE_TRY(write_npz(in, inputs, true));
  fmt::print(to_, "{}\t{}\t{}\n", file, in, out);
  std::string line;
  if (fflush(to_) == 0)
    for (int c; (c = fgetc(from_)) != EOF && c != '\n';) line += static_cast<char>(c);
  if (line.empty()) {
    stop();
    return says("the process ended");
  }
  if (line != "ok") return says(line);
  return read_npz(out);
}

Ended run_command(const std::string& command) {
  Ended ended;
  FILE* pipe = popen((command + " 2>&1 >/dev/null").c_str(), "r");
  if (!pipe) return {127, "no pipe"};
  char bytes[4096];
  for (size_t n; (n = fread(bytes, 1, sizeof bytes, pipe)) > 0;) ended.errors.append(bytes, n);
  const int status = pclose(pipe);
  ended.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  return ended;
}

}  // namespace ferrule::fuzz
