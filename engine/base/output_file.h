// Files that appear whole or not at all.
#pragma once
#include <string>

#include "engine/base/diagnostics.h"

namespace ferrule {

/// Whether a file that is to be replaced is one: no device, pipe or folder.  errors:
/// file_not_written.
Status replaceable(const std::string& path);

/// A file written under another name beside `path`, renamed when complete, removed when not.
/// errors: file_not_written.
class OutputFile {
 public:
  explicit OutputFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".XXXXXX") {}
  ~OutputFile();
  Status open();
  Status write(const void* data, size_t n);
  /// `force`: an existing file is replaced; otherwise even one that appeared meanwhile stays.
  /// errors: file_exists.
  Status commit(bool force);

 private:
  Status failed() const;
  std::string path_, temporary_;
  int fd_ = -1;
  bool open_ = false;
};

}  // namespace ferrule
