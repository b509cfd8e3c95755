// What the values of a graph are, as far as it can be known: from constants alone, from inference,
// and, where inputs are given, from a run of the interpreter. What is cut out of a model is
// replaced by these.
#pragma once
#include <map>
#include <string>

#include "engine/interpreter/interpreter.h"

namespace ferrule::reduce {

constexpr int64_t kShapeLike = 64;  ///< elements of a constant that may hold sizes, axes or indices

using Tensors = std::map<std::string, Tensor>;

class Values {
 public:
  /// `inputs`: by name; empty: none are known. `options.cancel` may stop the run, which leaves
  /// values unknown.
  Values(const Graph& g, const Tensors& inputs, const InterpreterOptions& options);
  /// Made of constants alone, or a small integer: what shapes and indices are. Null: neither, or
  /// not known.
  const Tensor* fixed(const Graph& g, ValueId v) const;
  /// As the model computes it; null: not known.
  const Tensor* computed(const std::string& name) const;

 private:
  void from_constants(const Graph& g, const InterpreterOptions& options);
  void from_contents(const Graph& g);
  void from_run(const Graph& g, const Tensors& inputs, const InterpreterOptions& options);
  Tensors fixed_, computed_;
};

/// A tensor of the type where nothing better is known: floats in [-1, 1), integers 0 or 1, open
/// sizes 1; the same for the same name. nullopt: it has no such type.
std::optional<Tensor> stand_in(const Type& type, const std::string& name);

}  // namespace ferrule::reduce
