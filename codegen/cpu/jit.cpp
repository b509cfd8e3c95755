#include "codegen/cpu/jit.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>

#include <xxhash.h>

#include <atomic>
#include <future>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>
#include <utility>

#include "codegen/cpu/llvm.h"
#include "engine/base/diagnostics.h"
#include "engine/target/target.h"

namespace ferrule {
namespace {

using KernelPtr = std::shared_ptr<const CompiledKernel>;

tl::unexpected<Error> failed(llvm::Error e) {
  return error(Code::codegen_failed, "", llvm::toString(std::move(e)));
}

/// errors: target_not_here.
Status runs_here(const CpuIsa& isa) {
  const CpuFeatures has = cpu_features();
  if (!has.avx2) return error(Code::target_not_here, "", isa.target, "AVX2, FMA or F16C");
  if (isa.vector_bytes == 64 && !has.avx512)
    return error(Code::target_not_here, "", isa.target, "AVX-512 F, BW, DQ or VL");
  return {};
}

/// The function's name in its object file: one for each key, so that an object can be linked in any
/// process.
std::string symbol_of(const std::string& identity) {
  XXH128_hash_t h = XXH3_128bits(identity.data(), identity.size());
  return fmt::format("ferrule_{:016x}{:016x}", h.high64, h.low64);
}

}  // namespace

struct CpuJit::Impl {
  struct Entry {
    std::string identity;
    CompiledKernel kernel;
    llvm::orc::ResourceTrackerSP code;
    std::promise<Status> built;
    std::shared_future<Status> status{built.get_future()};

    ~Entry() { unload(); }
    void unload() {
      if (const auto loaded = std::exchange(code, nullptr))
        if (auto e = loaded->remove()) llvm::consumeError(std::move(e));
    }
  };
  using Entries = std::list<std::shared_ptr<Entry>>;

  std::mutex mutex;
  Entries entries;  ///< the one that was asked for last is at the end
  std::unordered_map<std::string_view, Entries::iterator> by_identity;
  size_t most = 1024;
  std::unique_ptr<llvm::orc::LLJIT> jit;
  std::string broken;  ///< why there is no jit
  std::atomic<int64_t> count{0}, serial{0};

  Impl() {
    LLVMInitializeX86TargetInfo();
    LLVMInitializeX86Target();
    LLVMInitializeX86TargetMC();
    LLVMInitializeX86AsmPrinter();
    if (auto made = llvm::orc::LLJITBuilder().create())
      jit = std::move(*made);
    else
      broken = llvm::toString(made.takeError());
    if (!jit) return;
    llvm::orc::SymbolMap symbols;
    for (const SupportSymbol& s : support_symbols())
      symbols[jit->mangleAndIntern(s.name)] = {
          llvm::orc::ExecutorAddr::fromPtr(s.address),
          llvm::JITSymbolFlags::Exported | llvm::JITSymbolFlags::Callable};
    if (auto e = jit->getMainJITDylib().define(llvm::orc::absoluteSymbols(std::move(symbols))))
      broken = llvm::toString(std::move(e));
  }

  /// The entry, and whether the caller is to build it. Others may hold it from here on alone, so
  /// that one that the list alone holds stays so while the mutex is held.
  std::pair<std::shared_ptr<Entry>, bool> find(std::string identity) {
    const std::lock_guard lock(mutex);
    if (auto it = by_identity.find(identity); it != by_identity.end()) {
      entries.splice(entries.end(), entries, it->second);
      return {*it->second, false};
    }
    auto entry = std::make_shared<Entry>();
    entry->identity = std::move(identity);
    entries.push_back(entry);
    by_identity[entry->identity] = std::prev(entries.end());
    unload_idle();
    return {entry, true};
  }

  /// With the mutex held.
  void unload_idle() {
    for (auto it = entries.begin(); entries.size() > most && it != entries.end();)
      it = it->use_count() > 1 ? std::next(it) : remove(it);
  }
  Entries::iterator remove(Entries::iterator it) {
    by_identity.erase((*it)->identity);
    return entries.erase(it);
  }
  /// What could not be built may be asked for again: memory may be there then. Its symbol is free
  /// at once, whoever still waits for the entry.
  void forget(Entry& entry) {
    const std::lock_guard lock(mutex);
    entry.unload();
    if (auto it = by_identity.find(entry.identity); it != by_identity.end()) remove(it->second);
  }

  /// Whoever waits for the entry is told what went wrong in any case.
  Status build(const KernelKey& key, Entry& entry, std::string_view name, DiskCache* cache) {
    try {
      return build_or_throw(key, entry, name, cache);
    } catch (const std::bad_alloc&) {
      return error(Code::out_of_memory, "", "a kernel's code", "more", "no more");
    }
  }

  Status build_or_throw(const KernelKey& key, Entry& entry, std::string_view name,
                        DiskCache* cache) {
    if (!broken.empty()) return error(Code::codegen_failed, "", broken);
    FERRULE_ASSIGN(CpuIsa isa, cpu_isa(key.target));
    FERRULE_TRY(runs_here(isa));
    const std::string symbol = symbol_of(entry.identity);
    auto object = cache ? cache->get(entry.identity) : std::nullopt;
    if (!object) {
      FERRULE_ASSIGN(object, compile_cpu(key, symbol, CodeForm::object));
      ++count;
      if (cache) cache->put(entry.identity, *object);
    }
    entry.kernel.symbol = fmt::format("ferrule_{}_{}", to_identifier(name), serial++);
    entry.code = jit->getMainJITDylib().createResourceTracker();
    if (auto e =
            jit->addObjectFile(entry.code, llvm::MemoryBuffer::getMemBufferCopy(*object, symbol)))
      return failed(std::move(e));
    auto address = jit->lookup(symbol);
    if (!address) return failed(address.takeError());
    entry.kernel.fn = address->toPtr<KernelFn>();
    return {};
  }
};

CpuJit::CpuJit() : impl_(new Impl) {}

CpuJit& CpuJit::instance() {
  static CpuJit* jit = new CpuJit;
  return *jit;
}

int64_t CpuJit::compiled() const { return impl_->count; }

void CpuJit::keep_at_most(size_t kernels) {
  const std::lock_guard lock(impl_->mutex);
  impl_->most = kernels;
  impl_->unload_idle();
}

Result<KernelPtr> CpuJit::compile(const KernelKey& key, std::string_view name, DiskCache* cache) {
  const auto [entry, mine] = impl_->find(identity(key));
  if (mine) {
    const Status status = impl_->build(key, *entry, name, cache);
    if (!status) impl_->forget(*entry);
    entry->built.set_value(status);
  }
  FERRULE_TRY(entry->status.get());
  return KernelPtr(entry, &entry->kernel);
}

CpuJit::Compiled CpuJit::compile_many(std::span<const Request> requests, int threads,
                                      DiskCache* cache) {
  Compiled results(requests.size());
  std::atomic<size_t> next{0};
  auto work = [&] {
    for (size_t k; (k = next++) < requests.size();)
      results[k] = compile(requests[k].key, requests[k].name, cache);
  };
  std::vector<std::thread> helpers;
  for (int k = 1; k < threads && static_cast<size_t>(k) < requests.size(); ++k)
    helpers.emplace_back(work);
  work();
  for (std::thread& t : helpers) t.join();
  return results;
}

}  // namespace ferrule
