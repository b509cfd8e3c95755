// Which numbers of activation_alpha and activation_beta the activations of an RNN, GRU or LSTM
// take: those that have such a number take the next one each, in the order of the activations, and
// the others none, as ONNX Runtime reads the standard.
#pragma once
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/contains.h"

namespace ferrule {

struct RnnActivation {
  std::string name;  ///< in lower case
  std::optional<double> alpha, beta;
};

inline std::vector<RnnActivation> rnn_activations(std::span<const std::string> names,
                                                  std::span<const double> alphas,
                                                  std::span<const double> betas) {
  static constexpr std::string_view kAlpha[] = {"affine",     "leakyrelu",   "thresholdedrelu",
                                                "scaledtanh", "hardsigmoid", "elu"};
  static constexpr std::string_view kBeta[] = {"affine", "scaledtanh", "hardsigmoid"};
  std::vector<RnnActivation> out;
  size_t alpha = 0, beta = 0;
  for (std::string name : names) {
    for (char& c : name)
      if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
    RnnActivation& a = out.emplace_back();
    if (contains(kAlpha, name) && alpha < alphas.size()) a.alpha = alphas[alpha++];
    if (contains(kBeta, name) && beta < betas.size()) a.beta = betas[beta++];
    a.name = std::move(name);
  }
  return out;
}

}  // namespace ferrule
