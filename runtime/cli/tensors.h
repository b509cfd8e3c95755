// Inputs and outputs of the commands that run a model: files, random values, comparison.
#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "engine/graph/tensor.h"
#include "runtime/cli/cli.h"
#include "runtime/session.h"

namespace ferrule::cli {

using Tensors = std::map<std::string, Tensor>;

struct InputOptions {
  std::string npz;                  ///< --inputs in.npz
  std::vector<std::string> single;  ///< --input name=file.npy
  std::optional<uint64_t>
      seed;  ///< for inputs that nothing gives; 0 when neither file nor seed is given
};

/// Adds --inputs, --input, --seed.
void add_inputs(CLI::App& command, InputOptions& options);

/// A tensor for every input: from the files, else random (floats in [-1, 1), integers 0 or 1) with
/// the shape of --shapes, else the declared one, symbolic sizes taken as 1 and said so in `notes`.
/// Where files are given, what they lack is random only if --seed is given, too. errors:
/// unknown_input, input_mismatch, bad_npz, missing_input.
Result<Tensors> gather_inputs(const std::vector<Port>& wanted, const InputOptions& options,
                              const std::map<std::string, std::vector<int64_t>>& shapes,
                              std::vector<std::string>& notes);

}  // namespace ferrule::cli
