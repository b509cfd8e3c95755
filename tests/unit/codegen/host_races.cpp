#include "tests/unit/codegen/host_races.h"

#include <algorithm>

#include "engine/base/diagnostics.h"

namespace ferrule::test {
namespace {

void add(Races::Known& to, const Races::Known& from) {
  for (const auto& [block, seen] : from) {
    Races::Seen& own = to[block];
    own.barriers = std::max(own.barriers, seen.barriers);
    for (const auto& [thread, fences] : seen.fences)
      own.fences[thread] = std::max(own.fences[thread], fences);
  }
}

}  // namespace

void Races::barrier(Block& b) {
  for (const Block::Thread& t : b.threads) add(b.known, t.known);
  ++b.barriers;
}

void Races::fence(Block& b, uint32_t thread) {
  Block::Thread& t = b.threads[thread];
  add(t.known, t.met);
  ++t.fences;
  t.told = b.known;
  add(t.told, t.known);
  add(t.told, {{b.number, {b.barriers, {{thread, t.fences}}}}});
}

void Races::begin_atomic(Block& b, uint32_t thread, uintptr_t at, size_t bytes) {
  atomics_.lock();
  Block::Thread& t = b.threads[thread];
  Known& word = words_[at];
  add(t.met, word);
  add(word, t.told);
  access(b, thread, at, bytes, true, true);
}

bool Races::ordered(const Access& before, const Block& b, uint32_t thread) {
  if (before.block == b.number) return before.thread == thread || before.barriers < b.barriers;
  auto in = [&](const Known& known) {
    const auto seen = known.find(before.block);
    if (seen == known.end()) return false;
    if (before.barriers < seen->second.barriers) return true;
    const auto own = seen->second.fences.find(before.thread);
    return own != seen->second.fences.end() && before.fences < own->second;
  };
  return in(b.known) || in(b.threads[thread].known);
}

void Races::access(const Block& b, uint32_t thread, uintptr_t at, size_t bytes, bool writes,
                   bool atomic) {
  const Access now{b.number, thread, b.barriers, b.threads[thread].fences, true, atomic};
  auto race = [&](const Access& before) {
    return before.there && !(before.atomic && atomic) && !ordered(before, b, thread);
  };
  for (const uintptr_t end = at + bytes; at < end;) {
    const uintptr_t page = at / kPage;
    Shard& shard = shards_[page % shards_.size()];
    const std::lock_guard lock(shard.mutex);
    auto& bytes_of = shard.pages[page];
    if (!bytes_of) bytes_of = std::make_unique<std::array<Byte, kPage>>();
    for (; at < end && at / kPage == page; ++at) {
      Byte& byte = (*bytes_of)[at % kPage];
      if (race(byte.write)) report(byte.write, "stored", now, writes ? "stores" : "reads");
      if (!writes) {
        byte.read[(b.number ^ thread) & 1] = now;
        continue;
      }
      for (const Access& read : byte.read)
        if (race(read)) report(read, "read", now, "stores");
      byte = {now, {}};
    }
  }
}

void Races::report(const Access& before, const char* did, const Access& now, const char* does) {
  const std::lock_guard lock(report_);
  if (found_.empty())
    found_ = fmt::format("a race: thread {} of block {} {} what thread {} of block {} {}",
                         now.thread, now.block, does, before.thread, before.block, did);
}

}  // namespace ferrule::test
