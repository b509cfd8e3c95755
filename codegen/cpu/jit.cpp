#include "codegen/cpu/jit.h"

#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/Support/MemoryBuffer.h>
#include <llvm/Support/TargetSelect.h>

#include <xxhash.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <unordered_map>

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
  std::mutex mutex;
  std::unordered_map<std::string, std::shared_future<Result<KernelPtr>>> kernels;
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

  Result<KernelPtr> build(const KernelKey& key, const std::string& identity, std::string_view name,
                          DiskCache* cache) {
    if (!broken.empty()) return error(Code::codegen_failed, "", broken);
    FERRULE_ASSIGN(CpuIsa isa, cpu_isa(key.target));
    FERRULE_TRY(runs_here(isa));
    const std::string symbol = symbol_of(identity);
    auto object = cache ? cache->get(identity) : std::nullopt;
    if (!object) {
      FERRULE_ASSIGN(object, compile_cpu(key, symbol, CodeForm::object));
      ++count;
      if (cache) cache->put(identity, *object);
    }
    auto kernel = std::make_shared<CompiledKernel>();
    kernel->symbol = fmt::format("ferrule_{}_{}", to_identifier(name), serial++);
    if (auto e = jit->addObjectFile(llvm::MemoryBuffer::getMemBufferCopy(*object, symbol)))
      return failed(std::move(e));
    auto address = jit->lookup(symbol);
    if (!address) return failed(address.takeError());
    kernel->fn = address->toPtr<KernelFn>();
    return KernelPtr(std::move(kernel));
  }
};

CpuJit::CpuJit() : impl_(new Impl) {}

CpuJit& CpuJit::instance() {
  static CpuJit* jit = new CpuJit;
  return *jit;
}

int64_t CpuJit::compiled() const { return impl_->count; }

Result<KernelPtr> CpuJit::compile(const KernelKey& key, std::string_view name, DiskCache* cache) {
  const std::string id = identity(key);
  std::promise<Result<KernelPtr>> mine;
  std::shared_future<Result<KernelPtr>> theirs;
  {
    std::lock_guard lock(impl_->mutex);
    auto [it, fresh] = impl_->kernels.try_emplace(id);
    if (fresh)
      it->second = mine.get_future().share();
    else
      theirs = it->second;
  }
  if (theirs.valid()) return theirs.get();
  Result<KernelPtr> result = impl_->build(key, id, name, cache);
  mine.set_value(result);
  return result;
}

std::vector<Result<KernelPtr>> CpuJit::compile_many(std::span<const Request> requests, int threads,
                                                    DiskCache* cache) {
  std::vector<Result<KernelPtr>> results(requests.size());
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
