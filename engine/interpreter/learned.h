// What the learned models of ai.onnx.ml share: the names of classes, and what becomes of scores.
#pragma once
#include <array>

#include "engine/interpreter/internal.h"

namespace ferrule::interp {

/// A row of scores in place.  errors: bad_attribute (no such transform).
Status post_transform(const Call& c, std::string_view how, std::span<double> row);
/// The same of targets: a single one is only transformed by probit, as in ONNX Runtime.
Status transform_targets(const Call& c, std::string_view how, std::span<double> row);
/// The scores of two classes, of which the second has `score`: that of the first is 1 - score
/// (`complement`) or -score. Only logistic transforms them, as in ONNX Runtime.
/// errors: unsupported_operator (probit).
Result<std::array<double, 2>> two_scores(const Call& c, std::string_view how, double score,
                                         bool complement);

/// The classes' names: strings, or integers.
struct Labels {
  std::vector<std::string> words;
  Dims numbers;
  size_t size() const { return words.empty() ? numbers.size() : words.size(); }
};
/// Attributes classlabels_strings and `numbers`.
Labels labels_of(const Call& c, std::string_view numbers);
/// A name for each index.  errors: bad_shape (more classes than names).
Result<Tensor> named(const Call& c, const Labels& labels, const std::vector<int64_t>& chosen);

}  // namespace ferrule::interp
