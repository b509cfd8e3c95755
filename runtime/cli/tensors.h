// Inputs and outputs of the commands that run a model: files, random values, comparison.
#pragma once
#include <functional>
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
  std::string files;                ///< --inputs in.npz, in.json, or x:x.npy,y:y.npy
  std::vector<std::string> single;  ///< --input name=file.npy
  std::optional<uint64_t>
      seed;  ///< for inputs that nothing gives; 0 when neither file nor seed is given
};

/// Adds --inputs, --input, --seed.
void add_inputs(CLI::App& command, InputOptions& options);

/// A request of the Open Inference Protocol. errors: file_not_found, usage.
Result<Tensors> read_json_inputs(const std::string& path);
/// What the files hold. errors: usage, bad_npz, file_not_found.
Result<Tensors> read_inputs(const InputOptions& options);
/// Without sequences and absent optionals, which no file holds; `left_out` gets a note for each.
Tensors only_tensors(const Tensors& all, std::vector<std::string>* left_out = nullptr);

/// Whether a model can be planned for these shapes; asked of sizes that nobody gave.
using Accepts = std::function<Status(const Shapes&)>;
Accepts accepted_by(Session& session);

/// A tensor for every input: from the files, else random: floats in [-1, 1), indices below the size
/// that they index, other integers 0 or 1. Their shape is that of --shapes, else the declared one;
/// a named size is that of the other inputs that have it, else the smallest of a few that `accepts`
/// (1 where it is empty), and said so in `notes`. Where files are given, what they lack is random
/// only if --seed is given, too. errors: unknown_input, input_mismatch, bad_npz, missing_input.
Result<Tensors> gather_inputs(const std::vector<Port>& wanted, const InputOptions& options,
                              const std::map<std::string, std::vector<int64_t>>& shapes,
                              std::vector<std::string>& notes, const Accepts& accepts = {});

}  // namespace ferrule::cli
