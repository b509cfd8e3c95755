#include "tests/gpu/stub/state.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>

namespace ferrule::stub {
namespace {

constexpr uint64_t kPage = 4096, kAlign = 256, kFilled = 64 << 20;

uint64_t round_up(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

/// Codes after which a context is of no use.
bool ends_context(int code) {
  return code == 4 || code == 214 || code == 220 || code == 226 || (code >= 700 && code <= 721) ||
         code == 810 || code == 911 || code == 999;
}

}  // namespace

thread_local void* current_context = nullptr;  ///< anybody's

std::string setting(const char* name, const std::string& otherwise) {
  const char* value = std::getenv(name);
  return value && *value ? value : otherwise;
}

uint64_t Memory::allocate(uint64_t bytes, bool host) {
  Allocation a;
  a.number = ++count_;
  a.bytes = bytes;
  a.host = host;
  a.mapped = round_up(round_up(bytes, kAlign), kPage) + 2 * kPage;
  a.mapping =
      mmap(nullptr, a.mapped, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (a.mapping == MAP_FAILED) std::abort();
  // It ends where the page that nobody may touch begins.
  a.base = reinterpret_cast<uint64_t>(a.mapping) + a.mapped - kPage - round_up(bytes, kAlign);
  char* pages = static_cast<char*>(a.mapping) + kPage;
  mprotect(pages, a.mapped - 2 * kPage, PROT_READ | PROT_WRITE);
  std::memset(pages, 0xff,
              std::min(a.mapped - 2 * kPage, kFilled));  // NaN to whom nobody gave a value
  if (!host) mprotect(pages, a.mapped - 2 * kPage, PROT_NONE), used_ += bytes;
  allocations_[a.base] = a;
  return a.base;
}

bool Memory::release(uint64_t base, bool host) {
  auto it = allocations_.find(base);
  if (it == allocations_.end() || it->second.freed || it->second.host != host) return false;
  it->second.freed = true;
  if (!host) used_ -= it->second.bytes;
  madvise(it->second.mapping, it->second.mapped, MADV_DONTNEED);
  mprotect(it->second.mapping, it->second.mapped, PROT_NONE);
  return true;
}

const Allocation* Memory::find(uint64_t at, uint64_t bytes) const {
  auto it = allocations_.upper_bound(at);
  if (it == allocations_.begin()) return nullptr;
  const Allocation& a = std::prev(it)->second;
  return !a.freed && at >= a.base && at + bytes <= a.base + a.bytes ? &a : nullptr;
}

void Memory::open(bool readable) {
  for (auto& [base, a] : allocations_)
    if (!a.host && !a.freed)
      mprotect(static_cast<char*>(a.mapping) + kPage, a.mapped - 2 * kPage,
               readable ? PROT_READ | PROT_WRITE : PROT_NONE);
}

size_t Memory::pinned() const {
  return static_cast<size_t>(std::ranges::count_if(
      allocations_, [](const auto& a) { return a.second.host && !a.second.freed; }));
}

std::string Memory::text(uint64_t at) const {
  if (const Allocation* a = find(at, 1))
    return fmt::format("{}{}+{:#x}", a->host ? "h" : "m", a->number, at - a->base);
  return fmt::format("{:#x}", at);
}

void Memory::report_leaks() const {
  for (const auto& [base, a] : allocations_)
    if (!a.freed)
      std::fprintf(stderr, "stub: wrong use: %llu bytes of %s memory (number %d) are never freed\n",
                   static_cast<unsigned long long>(a.bytes), a.host ? "pinned" : "device",
                   a.number);
}

State::State() {
  null = !setting("FERRULE_STUB_NULL", "").empty();
  std::istringstream orders(setting("FERRULE_STUB_FAIL", ""));
  for (std::string order; std::getline(orders, order, ',');) {
    const size_t colon = order.rfind(':'), equals = order.rfind('=');
    failures[order.substr(0, colon)][std::stoi(order.substr(colon + 1))] =
        std::stoi(order.substr(equals + 1));
  }
}

int State::enter(const char* function) {
  const int mine = ++calls[function];
  ++all_calls;
  if (!process) process = getpid();
  if (process != getpid()) return kNotInitialized;
  if (lost) return lost;
  int code = 0;
  for (auto [name, number] : {std::pair<const char*, int>{function, mine}, {"*", all_calls}})
    if (auto it = failures.find(name); it != failures.end())
      if (auto at = it->second.find(number); at != it->second.end()) code = at->second;
  if (ends_context(code)) lost = code;
  if (code) log(fmt::format("{} fails with {}", function, code));
  return code;
}

void State::wrong(const std::string& what) {
  std::fprintf(stderr, "stub: wrong use: %s\n", what.c_str());
}

void State::check_alive(const char* what, size_t alive) {
  const std::string most = setting("FERRULE_STUB_ALIVE", "");
  if (!most.empty() && alive > std::stoul(most)) wrong(fmt::format("{} {} are alive", alive, what));
}

void State::log(const std::string& line) {
  static const std::string path = setting("FERRULE_STUB_LOG", "");
  if (!path.empty()) std::ofstream(path, std::ios::app) << line << "\n";
}

State& state() {
  // Never destroyed: others may call from their own destructors.
  static State* s = [] {
    auto* made = new State();
    std::atexit([] {
      State& s = state();
      if (const std::string path = setting("FERRULE_STUB_CALLS", ""); !path.empty())
        std::ofstream(path) << s.all_calls << "\n";
      // Where calls failed, what should have been freed may not have been.
      if (s.failures.empty()) s.memory.report_leaks();
    });
    return made;
  }();
  return *s;
}

StubCall::StubCall(const char* function, bool needs_context)
    : lock(state().mutex), code(state().enter(function)) {
  if (code || !needs_context || current_context == &state()) return;
  state().wrong(fmt::format("{} without a current context", function));
  code = kInvalidContext;
}

}  // namespace ferrule::stub
