#include "codegen/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <link.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <map>
#include <span>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

constexpr std::string_view kFolder = "kernels";
constexpr std::string_view kSwept =
    "swept";  ///< its time is that of the last sweep, by any process
constexpr std::string_view kPart = ".part";
constexpr int64_t kMaxEntry = int64_t{1} << 28;
constexpr int64_t kYoungSeconds = 5, kPartSeconds = 3600, kTouchSeconds = 3600, kSweepSeconds = 600;

// --- the format

struct Header {
  char magic[8];
  uint32_t format, header_bytes;
  char build[64];  ///< zero-padded
  uint64_t key_bytes, payload_bytes;
  uint64_t checksum[2];  ///< of the header with zeros here, the key and the payload
};
static_assert(sizeof(Header) == 112);
constexpr char kMagic[8] = {'f', 'e', 'r', 'r', 'u', 'l', 'e', '\x1a'};
constexpr uint32_t kFormat = 1;

/// The build ID that the linker gave the program or library this code is in, in hexadecimal.
std::string linked_build() {
  struct Search {
    uintptr_t address;
    std::string id;
  } search{reinterpret_cast<uintptr_t>(&linked_build), {}};
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* context) {
        auto& s = *static_cast<Search*>(context);
        bool ours = false;
        for (const auto& p : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          const uintptr_t begin = info->dlpi_addr + p.p_vaddr;
          ours =
              ours || (p.p_type == PT_LOAD && s.address >= begin && s.address - begin < p.p_memsz);
        }
        if (!ours) return 0;
        for (const auto& p : std::span(info->dlpi_phdr, info->dlpi_phnum)) {
          if (p.p_type != PT_NOTE) continue;
          const auto* at = reinterpret_cast<const char*>(info->dlpi_addr + p.p_vaddr);
          for (const char* end = at + p.p_memsz; at + sizeof(ElfW(Nhdr)) <= end;) {
            const auto* note = reinterpret_cast<const ElfW(Nhdr)*>(at);
            const char* name = at + sizeof *note;
            const char* bytes = name + (note->n_namesz + 3) / 4 * 4;
            if (note->n_type == NT_GNU_BUILD_ID && note->n_namesz == 4 &&
                !std::memcmp(name, "GNU", 4))
              for (unsigned k = 0; k < note->n_descsz && k < 20; ++k)
                s.id += fmt::format("{:02x}", static_cast<unsigned char>(bytes[k]));
            at = bytes + (note->n_descsz + 3) / 4 * 4;
          }
        }
        return 1;
      },
      &search);
  return search.id;
}

/// What wrote an entry. "" when it cannot be told apart from other builds: nothing is kept then.
const std::string& build() {
  static const std::string text = [] {
    std::string id = linked_build();
    return id.empty() ? id
                      : fmt::format("{} {}", FERRULE_VERSION, id).substr(0, sizeof Header::build);
  }();
  return text;
}

XXH128_hash_t checksum(Header header, std::string_view key, std::string_view payload) {
  header.checksum[0] = header.checksum[1] = 0;
  XXH3_state_t* state = XXH3_createState();
  XXH3_128bits_reset(state);
  XXH3_128bits_update(state, &header, sizeof header);
  XXH3_128bits_update(state, key.data(), key.size());
  XXH3_128bits_update(state, payload.data(), payload.size());
  XXH128_hash_t h = XXH3_128bits_digest(state);
  XXH3_freeState(state);
  return h;
}

Header header_of(std::string_view key, std::string_view payload) {
  Header h{};
  std::memcpy(h.magic, kMagic, sizeof h.magic);
  h.format = kFormat;
  h.header_bytes = sizeof h;
  std::memcpy(h.build, build().data(), build().size());
  h.key_bytes = key.size();
  h.payload_bytes = payload.size();
  XXH128_hash_t sum = checksum(h, key, payload);
  h.checksum[0] = sum.low64;
  h.checksum[1] = sum.high64;
  return h;
}

enum class Verdict : uint8_t { good, foreign, damaged };
struct Parsed {
  Verdict verdict = Verdict::damaged;
  std::string_view key, payload;
};

/// The parts of an entry's file. `foreign`: whole, but by another build or in another format.
Parsed parse(std::string_view file) {
  Parsed p;
  Header h;
  if (file.size() < sizeof h) return p;
  std::memcpy(&h, file.data(), sizeof h);
  if (std::memcmp(h.magic, kMagic, sizeof h.magic) != 0) return p;
  if (h.format != kFormat) {
    p.verdict = Verdict::foreign;
    return p;
  }
  const uint64_t rest = file.size() - sizeof h;
  if (h.header_bytes != sizeof h || h.key_bytes > rest || h.payload_bytes != rest - h.key_bytes)
    return p;
  p.key = file.substr(sizeof h, h.key_bytes);
  p.payload = file.substr(sizeof h + h.key_bytes);
  XXH128_hash_t sum = checksum(h, p.key, p.payload);
  if (sum.low64 != h.checksum[0] || sum.high64 != h.checksum[1]) return p;
  const bool ours =
      std::string_view(h.build, sizeof h.build).substr(0, build().size()) == build() &&
      (build().size() == sizeof h.build || h.build[build().size()] == 0);
  p.verdict = ours ? Verdict::good : Verdict::foreign;
  return p;
}

std::string file_name(std::string_view key) {
  std::string all = build() + '\0';
  all += key;
  XXH128_hash_t h = XXH3_128bits(all.data(), all.size());
  return fmt::format("{:016x}{:016x}", h.high64, h.low64);
}

bool is_entry(std::string_view name) {
  return name.size() == 32 && name.find_first_not_of("0123456789abcdef") == name.npos;
}
bool is_part(std::string_view name) {
  return name.size() > 32 + kPart.size() && is_entry(name.substr(0, 32)) && name.ends_with(kPart);
}

// --- files

}  // namespace

/// Closes what it holds.
struct CacheFile {
  int fd = -1;
  explicit CacheFile(int f) : fd(f) {}
  CacheFile(const CacheFile&) = delete;
  ~CacheFile() {
    if (fd >= 0) ::close(fd);
  }
};

namespace {

/// Root is trusted as it is everywhere else on the machine.
bool trusted(uid_t owner) { return owner == geteuid() || owner == 0; }

/// "" or why nothing in this folder can be trusted.
std::string distrust(const struct stat& st) {
  if (!S_ISDIR(st.st_mode)) return "it is not a folder";
  if (!trusted(st.st_uid)) return fmt::format("it belongs to user {}", st.st_uid);
  if (st.st_mode & S_IWOTH) return "everyone may write to it";
  return "";
}

bool trusted_file(const struct stat& st) {
  return S_ISREG(st.st_mode) && trusted(st.st_uid) && !(st.st_mode & (S_IWGRP | S_IWOTH));
}

int64_t now() { return static_cast<int64_t>(::time(nullptr)); }
/// Clocks go back: what seems to come from the future counts as old as its distance.
int64_t age(const struct stat& st) { return std::abs(now() - static_cast<int64_t>(st.st_mtime)); }

/// The folder and those above it, where missing, for this user only.
void make_folders(const std::string& path) {
  for (size_t at = 1; at <= path.size(); ++at)
    if (at == path.size() || path[at] == '/') ::mkdir(path.substr(0, at).c_str(), 0700);
}

std::optional<std::string> read_all(int fd, int64_t size) {
  std::string out(static_cast<size_t>(size), '\0');
  for (size_t done = 0; done < out.size();) {
    ssize_t n = ::read(fd, out.data() + done, out.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return std::nullopt;
    done += static_cast<size_t>(n);
  }
  return out;
}

/// A trusted file's bytes; nothing when it is missing (`there` false), of others, or of no possible
/// size.
std::optional<std::string> read_entry(int folder, const std::string& name, bool& there) {
  CacheFile file(::openat(folder, name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  there = file.fd >= 0 || errno == ELOOP || errno == EACCES;
  struct stat st;
  if (file.fd < 0 || ::fstat(file.fd, &st) != 0 || !trusted_file(st) || st.st_size > kMaxEntry)
    return std::nullopt;
  auto bytes = read_all(file.fd, st.st_size);
  // When it was last of use. Not each time: that would be a write for each read.
  if (bytes && age(st) > kTouchSeconds) ::futimens(file.fd, nullptr);
  return bytes;
}

/// A file size limit is an error here, not the signal that would end the process.
class NoSizeSignal {
 public:
  NoSizeSignal() {
    sigemptyset(&only_);
    sigaddset(&only_, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &only_, &before_);
  }
  ~NoSizeSignal() {
    if (hit_ && !sigismember(&before_, SIGXFSZ)) {
      timespec none{};
      sigtimedwait(&only_, nullptr, &none);
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  void hit() { hit_ = true; }

 private:
  sigset_t only_, before_;
  bool hit_ = false;
};

/// 0 or errno.
int write_all(int fd, std::initializer_list<std::string_view> pieces) {
  NoSizeSignal guard;
  for (std::string_view piece : pieces)
    while (!piece.empty()) {
      ssize_t n = ::write(fd, piece.data(), piece.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0 && errno == EFBIG) guard.hit();
      if (n <= 0) return n < 0 ? errno : EIO;
      piece.remove_prefix(static_cast<size_t>(n));
    }
  return 0;
}

/// Whether nobody will finish this file: its writer holds a lock on it, which ends with the writer.
/// Where there are no locks, or the writer hangs, its age decides. A young one may not be locked
/// yet.
bool abandoned(int folder, const char* name, const struct stat& st) {
  if (age(st) < kYoungSeconds) return false;
  if (age(st) > kPartSeconds) return true;
  CacheFile file(::openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  return file.fd >= 0 && ::flock(file.fd, LOCK_EX | LOCK_NB) == 0;
}

struct Listed {
  std::string name;
  struct stat st;
};
/// Entries and unfinished files of a folder.
std::vector<Listed> list(int folder) {
  std::vector<Listed> out;
  int fd = ::openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = fd < 0 ? nullptr : ::fdopendir(fd);
  if (!dir) {
    if (fd >= 0) ::close(fd);
    return out;
  }
  while (const dirent* d = ::readdir(dir)) {
    Listed l{d->d_name, {}};
    if (!is_entry(l.name) && !is_part(l.name)) continue;
    if (::fstatat(folder, d->d_name, &l.st, AT_SYMLINK_NOFOLLOW) == 0) out.push_back(std::move(l));
  }
  ::closedir(dir);
  return out;
}

}  // namespace

struct DiskCache::Folder : CacheFile {
  using CacheFile::CacheFile;
};

DiskCache::DiskCache(std::string root, int64_t limit_bytes)
    : root_(std::move(root)),
      folder_(root_ + "/" + std::string(kFolder)),
      limit_bytes_(limit_bytes) {}
DiskCache::~DiskCache() = default;

std::shared_ptr<DiskCache> DiskCache::open(const std::string& root, int64_t limit_bytes) {
  static std::mutex mutex;
  static auto* caches = new std::map<std::string, std::shared_ptr<DiskCache>>();
  if (root.empty() || build().empty()) return nullptr;
  std::error_code ec;
  std::string path = std::filesystem::absolute(root, ec).string();  // the working folder may change
  if (ec) return nullptr;
  std::lock_guard lock(mutex);
  auto& cache = (*caches)[path];
  if (!cache) cache.reset(new DiskCache(path, limit_bytes));
  return cache;
}

void DiskCache::complain(std::string why) {
  std::lock_guard lock(mutex_);
  if (complained_) return;
  complained_ = true;
  complaint_ = std::move(why);
}

std::string DiskCache::complaint() {
  std::lock_guard lock(mutex_);
  return std::exchange(complaint_, {});
}

DiskCache::Counts DiskCache::counts() const { return {hits_, misses_, refused_, written_}; }

/// The folder, if it is there (or can be made) and can be trusted now.
std::shared_ptr<const DiskCache::Folder> DiskCache::look(bool make) {
  std::shared_ptr<const Folder> folder;
  {
    std::lock_guard lock(mutex_);
    folder = open_;
  }
  struct stat st;
  if (!folder || ::fstat(folder->fd, &st) != 0 || st.st_nlink == 0) {
    if (make) make_folders(root_);
    CacheFile root(::open(root_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (root.fd < 0 || ::fstat(root.fd, &st) != 0) {
      if (make)
        complain(fmt::format("nothing can be kept in the cache {}: {}", escape(root_),
                             std::strerror(errno)));
      return nullptr;
    }
    if (std::string why = distrust(st); !why.empty()) {
      complain(fmt::format("the cache {} is not used: {}", escape(root_), why));
      return nullptr;
    }
    int made = 0;  // why it could not be
    if (make && ::mkdirat(root.fd, kFolder.data(), 0700) != 0 && errno != EEXIST) made = errno;
    int fd = ::openat(root.fd, kFolder.data(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
      if (make)
        complain(fmt::format("nothing can be kept in the cache {}: {}", escape(folder_),
                             std::strerror(made ? made : errno)));
      return nullptr;
    }
    folder = std::make_shared<const Folder>(fd);
    if (::fstat(fd, &st) != 0) return nullptr;
    std::lock_guard lock(mutex_);
    open_ = folder;
  }
  std::string why = distrust(st);
  if (why.empty()) return folder;
  complain(fmt::format("the cache {} is not used: {}", escape(folder_), why));
  return nullptr;
}

std::optional<std::string> DiskCache::get(std::string_view key) {
  bool there = false;
  if (auto folder = look(false)) {
    auto file = read_entry(folder->fd, file_name(key), there);
    Parsed p = file ? parse(*file) : Parsed{};
    if (p.verdict == Verdict::good && p.key == key) {
      ++hits_;
      return std::string(p.payload);
    }
  }
  ++misses_;
  refused_ += there;
  return std::nullopt;
}

void DiskCache::put(std::string_view key, std::string_view payload) {
  const auto bytes = static_cast<int64_t>(sizeof(Header) + key.size() + payload.size());
  if (bytes > std::min(kMaxEntry, limit_bytes_ / 4)) return;
  auto folder = look(true);
  if (!folder) return;
  if (int why = write_entry(folder->fd, file_name(key), key, payload)) {
    // Reading alone is a use of its own; a name that is taken or a folder that is gone will be
    // right next time.
    const bool silent =
        why == EROFS || why == EACCES || why == EPERM || why == ENOENT || why == EEXIST;
    if (!silent)
      complain(fmt::format("nothing can be kept in the cache {}: {}", escape(folder_),
                           std::strerror(why)));
    return;
  }
  ++written_;
  std::unique_lock lock(mutex_);
  until_sweep_ -= bytes;
  if (until_sweep_ >= 0) return;
  until_sweep_ = limit_bytes_ / 16;
  const bool first = written_ == 1;
  lock.unlock();
  struct stat st;
  if (first && ::fstatat(folder->fd, kSwept.data(), &st, AT_SYMLINK_NOFOLLOW) == 0 &&
      age(st) < kSweepSeconds)
    return;
  sweep(folder->fd);
}

/// 0 or errno.
int DiskCache::write_entry(int folder, const std::string& name, std::string_view key,
                           std::string_view payload) {
  uint64_t unique = static_cast<uint64_t>(serial_++);
  [[maybe_unused]] ssize_t n = ::getrandom(&unique, sizeof unique, GRND_NONBLOCK);
  const std::string part = fmt::format("{}.{}-{:x}{}", name, getpid(), unique, kPart);
  CacheFile file(
      ::openat(folder, part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.fd < 0) return errno;
  ::flock(file.fd, LOCK_EX | LOCK_NB);
  const Header header = header_of(key, payload);
  int problem =
      write_all(file.fd, {{reinterpret_cast<const char*>(&header), sizeof header}, key, payload});
  if (!problem && ::renameat(folder, part.c_str(), folder, name.c_str()) != 0) problem = errno;
  if (problem) ::unlinkat(folder, part.c_str(), 0);
  return problem;
}

/// What killed writers left, and the least recently used entries where there is too much.
void DiskCache::sweep(int folder) {
  CacheFile mark(
      ::openat(folder, kSwept.data(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (mark.fd >= 0) ::futimens(mark.fd, nullptr);
  std::vector<Listed> entries;
  int64_t bytes = 0;
  for (Listed& l : list(folder)) {
    if (is_part(l.name)) {
      if (abandoned(folder, l.name.c_str(), l.st)) ::unlinkat(folder, l.name.c_str(), 0);
      continue;
    }
    bytes += l.st.st_size;
    entries.push_back(std::move(l));
  }
  if (bytes <= limit_bytes_) return;
  std::ranges::sort(entries,
                    [](const Listed& a, const Listed& b) { return age(a.st) > age(b.st); });
  for (const Listed& l : entries) {
    if (bytes <= limit_bytes_ / 10 * 9) break;
    if (::unlinkat(folder, l.name.c_str(), 0) == 0) bytes -= l.st.st_size;
  }
}

DiskCache::Contents DiskCache::contents(bool verify) {
  Contents c;
  auto folder = look(false);
  if (!folder) return c;
  for (const Listed& l : list(folder->fd)) {
    if (is_part(l.name)) {
      ++c.parts;
      continue;
    }
    ++c.entries;
    c.bytes += l.st.st_size;
    if (!verify) continue;
    bool there = false;
    auto file = read_entry(folder->fd, l.name, there);
    if (!there) continue;
    Parsed p = file ? parse(*file) : Parsed{};
    // Under the name of another key it would never be found: as bad as damaged.
    if (p.verdict == Verdict::good && file_name(p.key) != l.name) p.verdict = Verdict::damaged;
    c.foreign += p.verdict == Verdict::foreign;
    if (p.verdict == Verdict::damaged) c.damaged.push_back(l.name);
  }
  return c;
}

int64_t DiskCache::clear() {
  auto folder = look(false);
  if (!folder) return 0;
  int64_t removed = 0;
  for (const Listed& l : list(folder->fd)) {
    if (is_part(l.name) && !abandoned(folder->fd, l.name.c_str(), l.st)) continue;
    removed += ::unlinkat(folder->fd, l.name.c_str(), 0) == 0;
  }
  ::unlinkat(folder->fd, kSwept.data(), 0);
  return removed;
}

bool DiskCache::remove(const std::string& name) {
  auto folder = look(false);
  return folder && is_entry(name) && ::unlinkat(folder->fd, name.c_str(), 0) == 0;
}

}  // namespace ferrule
