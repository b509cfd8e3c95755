#include "engine/base/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ferrule {

Status replaceable(const std::string& path) {
  struct stat is;
  if (::stat(path.c_str(), &is) == 0 && !S_ISREG(is.st_mode))
    return error(Code::file_not_written, "", escape(path), "it is not a regular file");
  return {};
}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (open_) ::unlink(temporary_.c_str());
}

Status OutputFile::open() {
  fd_ = ::mkostemp(temporary_.data(), O_CLOEXEC);
  if (fd_ < 0) return failed();
  open_ = true;
  mode_t mask = ::umask(0);
  ::umask(mask);
  ::fchmod(fd_, 0666 & ~mask);
  return {};
}

Status OutputFile::write(const void* data, size_t n) {
  const char* p = static_cast<const char*>(data);
  while (n > 0) {
    ssize_t done = ::write(fd_, p, std::min<size_t>(n, 1 << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return failed();
    p += done;
    n -= static_cast<size_t>(done);
  }
  return {};
}

Status OutputFile::commit(bool force) {
  if (::fsync(fd_) != 0) return failed();
  if (force) {
    FERRULE_TRY(replaceable(path_));
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) return failed();
    open_ = false;
    return {};
  }
  if (::link(temporary_.c_str(), path_.c_str()) != 0)
    return errno == EEXIST ? Status(error(Code::file_exists, "", escape(path_))) : failed();
  return {};
}

Status OutputFile::failed() const {
  return error(Code::file_not_written, "", escape(path_), std::strerror(errno));
}

}  // namespace ferrule
