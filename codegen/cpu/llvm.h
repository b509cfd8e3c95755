// Kernel -> LLVM IR -> object code, for a named target. Needs no device and not the machine that
// the code is for: `compile` and tests look at the text forms, cpu_jit links the object.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "codegen/cpu/kernel.h"

namespace ferrule {

enum class CodeForm : uint8_t { object, assembly, ir };

/// The kernel as a function `symbol` (an identifier).
/// errors: unknown_target, unsupported_type (strings, complex, 4-bit types), formula_invalid,
/// codegen_failed.
Result<std::string> compile_cpu(const KernelKey& key, std::string_view symbol, CodeForm form);
inline Result<std::string> assembly(const KernelKey& key) {
  return compile_cpu(key, "kernel", CodeForm::assembly);
}

/// Functions that generated code may call, by symbol: SLEEF's, and ours in llvm_support.cpp.
struct SupportSymbol {
  const char* name;
  void* address;
};
std::span<const SupportSymbol> support_symbols();

/// "Conv_3 + Relu_4" -> "Conv_3___Relu_4": letters, digits and underscores, at most 100.
std::string to_identifier(std::string_view name);

}  // namespace ferrule
