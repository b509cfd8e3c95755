#include "runtime/cli/tensors.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "engine/graph/npz.h"

namespace ferrule::cli {
namespace {

/// splitmix64: small, and the same everywhere.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t next() {
    uint64_t z = state_ += 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

Result<Tensor> random_tensor(DType t, const std::vector<int64_t>& dims, uint64_t seed,
                             const std::string& name) {
  if (!is_float(t) && !is_int(t) && t != DType::boolean)
    return error(Code::missing_input, "input", escape(name), ferrule::name(t));
  FERRULE_TRY(check_bytes(t, dims, "input " + escape(name), 0));
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  Random random(seed);
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    double value = is_float(t) ? random.unit() * 2 - 1 : static_cast<double>(random.next() & 1);
    Tensor one = Tensor::scalar(t, value);
    std::memcpy(static_cast<char*>(bytes) + k * size_bits(t) / 8, one.data(),
                static_cast<size_t>(size_bits(t)) / 8);
  }
  return tensor;
}

std::string names(const std::vector<Port>& wanted) {
  std::string text;
  for (const Port& i : wanted) text += (text.empty() ? "" : ", ") + escape(i.name);
  return text;
}

/// errors: input_mismatch where the tensor contradicts the declared type.
Status check_input(const Port& info, const Tensor& t) {
  bool fits = t.dtype() == info.type.dtype &&
              (!info.type.shape || static_cast<int>(info.type.shape->size()) == t.rank());
  if (fits && info.type.shape)
    for (size_t k = 0; k < t.dims().size(); ++k)
      if (auto c = (*info.type.shape)[k].constant(); c && *c != t.dims()[k]) fits = false;
  if (fits) return {};
  std::string got = fmt::format("{}[{}]", name(t.dtype()), fmt::join(t.dims(), ","));
  return error(Code::input_mismatch, "--inputs", escape(info.name), got, str(info.type));
}

}  // namespace

void add_inputs(CLI::App& command, InputOptions& options) {
  command.add_option("--inputs", options.npz, "input tensors by name")->type_name("FILE.npz");
  command.add_option("--input", options.single, "one input: NAME=FILE.npy")
      ->type_name("NAME=FILE.npy");
  command.add_option("--seed", options.seed,
                     "seed of the random inputs that stand in for missing ones");
}

Result<std::map<std::string, Tensor>> gather_inputs(
    const std::vector<Port>& wanted, const InputOptions& options,
    const std::map<std::string, std::vector<int64_t>>& shapes, std::vector<std::string>& notes) {
  std::map<std::string, Tensor> given;
  if (!options.npz.empty()) {
    FERRULE_ASSIGN(given, read_npz(options.npz));
  }
  for (const std::string& text : options.single) {
    size_t equals = text.find('=');
    if (equals == std::string::npos)
      return error(Code::usage, "--input", escape(text) + " is not NAME=FILE.npy");
    FERRULE_ASSIGN(Tensor t, read_npy(text.substr(equals + 1)));
    given[text.substr(0, equals)] = std::move(t);
  }
  std::set<std::string_view> known;
  for (const Port& p : wanted) known.insert(p.name);
  for (const auto& [n, t] : given)
    if (!known.contains(n)) return error(Code::unknown_input, "--inputs", escape(n), names(wanted));
  std::map<std::string, Tensor> inputs;
  const bool complete = (!options.npz.empty() || !options.single.empty()) && !options.seed;
  uint64_t seed = options.seed.value_or(0) * 1000003;
  for (const Port& info : wanted) {
    ++seed;
    if (auto it = given.find(info.name); it != given.end()) {
      FERRULE_TRY(check_input(info, it->second));
      inputs[info.name] = it->second;
      given.erase(it);
      continue;
    }
    if (complete) return error(Code::missing_input, "--inputs", escape(info.name), str(info.type));
    std::vector<int64_t> dims;
    if (auto s = shapes.find(info.name); s != shapes.end()) {
      dims = s->second;
    } else {
      if (!info.type.shape)
        return error(Code::missing_input, "run", escape(info.name), str(info.type));
      for (const Dim& d : *info.type.shape) dims.push_back(d.value_or(1));
      if (!constant_shape(*info.type.shape))
        notes.push_back(
            fmt::format("{} is {}: unknown sizes are taken as 1; give them with --shapes",
                        escape(info.name), str(info.type)));
    }
    FERRULE_ASSIGN(Tensor t, random_tensor(info.type.dtype, dims, seed, info.name));
    FERRULE_TRY(check_input(info, t));
    inputs[info.name] = std::move(t);
    if (!options.npz.empty() || !options.single.empty())
      notes.push_back(escape(info.name) + " is not given: random");
  }
  for (const auto& [n, dims] : shapes)
    if (!inputs.contains(n))
      return error(Code::unknown_input, "--shapes", escape(n), names(wanted));
  return inputs;
}

}  // namespace ferrule::cli
