// Compiled code kept on disk between processes: put(key, payload), get(key). An entry is a file
// whose header holds the build of ferrule that wrote it, the whole key and a checksum over all of
// it; one that differs in any byte is refused, never used. Readers take no lock and writers never
// wait: an entry is written beside its place and renamed into it. Whoever can write here can make
// the program run his code, so folders that others may write to, and files of other users, are
// refused. Nothing here fails: where the folder is missing, full or read-only, get finds nothing
// and put keeps nothing. Not fsync'ed: that takes 4 ms a kernel, as much as compiling it, and what
// a power failure leaves half written is refused like any damage.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ferrule {

class DiskCache {
 public:
  /// The cache in `root`/kernels; one object a folder and process. The folder is made when
  /// something is put. `limit_bytes`: the least recently used entries go when there is more; of the
  /// first caller. Null for "".
  static std::shared_ptr<DiskCache> open(const std::string& root, int64_t limit_bytes);

  /// The payload put last under this key by this build of ferrule.
  std::optional<std::string> get(std::string_view key);
  void put(std::string_view key, std::string_view payload);

  struct Counts {
    int64_t hits = 0, misses = 0;
    int64_t refused = 0;  ///< of the misses: entries that were there but damaged or not ours
    int64_t written = 0;
  };
  Counts counts() const;
  /// Why the cache is not used, in one line; "" the second time, and when it is.
  std::string complaint();

  // --- ferrule cache
  struct Contents {
    int64_t entries = 0, bytes = 0;
    int64_t foreign = 0;               ///< of the entries: of other builds of ferrule
    int64_t parts = 0;                 ///< unfinished files, of writers that run or were killed
    std::vector<std::string> damaged;  ///< file names
  };
  /// `verify`: reads every entry whole. Without it `foreign` and `damaged` stay empty.
  Contents contents(bool verify);
  /// Removes entries and what writers left; nothing that is not the cache's. How many files.
  int64_t clear();
  /// Removes one entry by file name.
  bool remove(const std::string& name);
  const std::string& folder() const { return folder_; }

  DiskCache(const DiskCache&) = delete;
  ~DiskCache();

 private:
  struct Folder;
  DiskCache(std::string root, int64_t limit_bytes);
  std::shared_ptr<const Folder> look(bool make);
  int write_entry(int folder, const std::string& name, std::string_view key,
                  std::string_view payload);
  void complain(std::string why);
  void sweep(int folder);

  const std::string root_, folder_;
  const int64_t limit_bytes_;
  std::mutex mutex_;  ///< of the following, never held while a file is read or written
  std::shared_ptr<const Folder> open_;
  std::string complaint_;
  bool complained_ = false;
  int64_t until_sweep_ = 0;  ///< bytes to write before the folder's size is looked at again
  std::atomic<int64_t> hits_{0}, misses_{0}, refused_{0}, written_{0}, serial_{0};
};

}  // namespace ferrule
