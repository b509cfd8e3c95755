// Whether results that differ more than their type's tolerance are as right as they can be: a plan
// that computes in f16 or bf16 may be as far from f64 as the interpreter in the same types, times
// kReducedFactor (tolerance.h).
#pragma once
#include "engine/graph/compare.h"
#include "runtime/cli/tensors.h"

namespace ferrule::cli {

/// The shortest type of a value anywhere in the plan, bf16 before f16; nothing: none is so short.
std::optional<DType> short_type(const Plan& plan);

/// How far results are from those of f64, as parts of the largest element.
struct Off {
  double rms = 0, largest = 0;
  int64_t wrong = 0;  ///< of integers and booleans: how many differ
};
Off off_by(const Tensor& got, const Tensor& exact);
/// Whether results in a short type are no further off than the interpreter's explain.
bool no_further(const Off& ours, const Off& interpreters);

/// Results that differ by more than their type allows become ok (`d`) where they are no further
/// from f64 than `other`, which is `whose`: "the interpreter in the same types". What there is to
/// say of both; nothing where their sizes differ.
std::optional<std::string> arbitrated(Difference& d, const Tensor& got, const Tensor& other,
                                      const Tensor& exact, std::string_view whose);

/// The model without rules, every float in f64. errors: those of import and of the interpreter.
Result<Tensors> exact_results(const std::string& model, const EngineOptions& options,
                              const Tensors& inputs, const Cancel* cancel);

/// "equal", "within tolerance", "MISTRUSTED" or "DIFFERS".
std::string_view verdict_of(const Difference& d);
/// A line of a report: the verdict, in colour, then what it is of and why.
std::string verdict_line(std::string_view verdict, const std::string& of, const std::string& text);
/// The line behind an output's name: how far off it is of how far it may be, and what is wrong.
std::string explained(const Difference& d);

}  // namespace ferrule::cli
