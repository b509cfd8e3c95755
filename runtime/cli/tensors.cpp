#include "runtime/cli/tensors.h"

#include <algorithm>
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

/// `below`: integers are in [0, below).
Result<Tensor> random_tensor(DType t, const std::vector<int64_t>& dims, uint64_t below,
                             uint64_t seed, const std::string& name) {
  if (!is_float(t) && !is_int(t) && t != DType::boolean)
    return error(Code::missing_input, "input", escape(name), ferrule::name(t));
  FERRULE_TRY(check_bytes(t, dims, "input " + escape(name), 0));
  auto [tensor, bytes] = Tensor::allocate(t, dims);
  Random random(seed);
  for (int64_t k = 0; k < tensor.numel(); ++k) {
    const double value =
        is_float(t) ? random.unit() * 2 - 1 : static_cast<double>(random.next() % below);
    Tensor::put(t, bytes, k, value);
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
  FERRULE_TRY(tensor_input(info));
  if (info.type.dtype == DType::optional) return {};
  bool fits = t.dtype() == info.type.dtype &&
              (!info.type.shape || static_cast<int>(info.type.shape->size()) == t.rank());
  if (fits && info.type.shape)
    for (size_t k = 0; k < t.dims().size(); ++k)
      if (auto c = (*info.type.shape)[k].constant(); c && *c != t.dims()[k]) fits = false;
  if (fits) return {};
  std::string got = fmt::format("{}[{}]", name(t.dtype()), fmt::join(t.dims(), ","));
  return error(Code::input_mismatch, "--inputs", escape(info.name), got, str(info.type));
}

/// The sizes of the inputs that nothing gives.
class Sizes {
 public:
  explicit Sizes(const std::vector<Port>& wanted) {
    for (const Port& p : wanted)
      if (p.type.shape && p.type.shape->size() > 1) leading_.insert(p.type.shape->front().str());
  }

  /// What a tensor that is there, or --shapes, says of named sizes.
  void learn(const Port& p, const std::vector<int64_t>& dims) {
    if (!p.type.shape || p.type.shape->size() != dims.size()) return;
    for (size_t k = 0; k < dims.size(); ++k)
      if (const Dim& d = (*p.type.shape)[k]; !d.is_constant()) known_.emplace(d.str(), dims[k]);
  }

  /// Dims of `p` where named sizes that nothing gives are `size`, those of first axes (batches) 1.
  std::vector<int64_t> of(const Port& p, int64_t size) const {
    std::vector<int64_t> dims;
    for (const Dim& d : *p.type.shape) dims.push_back(one(d, size));
    return dims;
  }
  int64_t one(const Dim& d, int64_t size) const {
    if (auto it = known_.find(d.str()); it != known_.end()) return it->second;
    return d.evaluate(known_).value_or(leading_.contains(d.str()) ? 1 : size);
  }
  bool open(const Port& p) const {
    return std::ranges::any_of(*p.type.shape, [&](const Dim& d) {
      return !d.evaluate(known_) && !known_.contains(d.str());
    });
  }
  /// "N = 1, H = 32" of those that are open.
  std::string text(const Port& p, int64_t size) const {
    std::string out;
    std::set<std::string> said;
    for (const Dim& d : *p.type.shape)
      if (!d.evaluate(known_) && !known_.contains(d.str()) && said.insert(d.str()).second)
        out += fmt::format("{}{} = {}", out.empty() ? "" : ", ", escape(d.str()), one(d, size));
    return out;
  }

 private:
  std::set<std::string> leading_;  ///< first axes: batches
  std::map<std::string, int64_t> known_;
};

// Of sizes that nothing gives; most models that refuse the first have windows that it is too small
// for.
constexpr int64_t kSizes[] = {1, 2, 8, 32, 64, 224, 512};

}  // namespace

void add_inputs(CLI::App& command, InputOptions& options) {
  command
      .add_option("--inputs", options.files,
                  "input tensors: FILE.npz with all of them by name, NAME:FILE.npy and more behind "
                  "commas, or FILE.json, a request of the Open Inference Protocol")
      ->type_name("FILES");
  command.add_option("--input", options.single, "one input: NAME=FILE.npy")
      ->type_name("NAME=FILE.npy");
  command.add_option("--seed", options.seed,
                     "seed of the random inputs that stand in for missing ones");
}

Result<Tensors> read_inputs(const InputOptions& options) {
  Tensors inputs;
  auto read = [&](const char* place, const std::string& text) -> Status {
    // Names may have colons ("image:0"), but hardly an "=".
    const size_t end = std::min(text.find('='), text.rfind(':'));
    if (end == std::string::npos || end == 0)
      return error(Code::usage, place, escape(text) + " is not NAME=FILE.npy");
    FERRULE_ASSIGN(inputs[text.substr(0, end)], read_npy(text.substr(end + 1)));
    return {};
  };
  if (options.files.ends_with(".npy")) {
    for (size_t at = 0; at < options.files.size();) {
      const size_t comma = std::min(options.files.find(',', at), options.files.size());
      FERRULE_TRY(read("--inputs", options.files.substr(at, comma - at)));
      at = comma + 1;
    }
  } else if (options.files.ends_with(".json")) {
    FERRULE_ASSIGN(inputs, read_json_inputs(options.files));
  } else if (!options.files.empty()) {
    FERRULE_ASSIGN(inputs, read_npz(options.files));
  }
  for (const std::string& text : options.single) FERRULE_TRY(read("--input", text));
  return inputs;
}

Tensors only_tensors(const Tensors& all, std::vector<std::string>* left_out) {
  Tensors out;
  for (const auto& [name, t] : all)
    if (t.is_tensor())
      out.emplace(name, t);
    else if (left_out)
      left_out->push_back(fmt::format("{} is of type {}, which no .npz file holds: left out",
                                      escape(name), ferrule::name(t.dtype())));
  return out;
}

Accepts accepted_by(Session& session) {
  return [&session](const Shapes& shapes) -> Status {
    FERRULE_TRY(session.compile(shapes));
    return {};
  };
}

Result<Tensors> gather_inputs(const std::vector<Port>& wanted, const InputOptions& options,
                              const std::map<std::string, std::vector<int64_t>>& shapes,
                              std::vector<std::string>& notes, const Accepts& accepts) {
  FERRULE_ASSIGN(Tensors inputs, read_inputs(options));
  std::set<std::string_view> known;
  for (const Port& p : wanted) known.insert(p.name);
  for (const auto& [n, t] : inputs)
    if (!known.contains(n)) return error(Code::unknown_input, "--inputs", escape(n), names(wanted));
  for (const auto& [n, dims] : shapes)
    if (!known.contains(n)) return error(Code::unknown_input, "--shapes", escape(n), names(wanted));

  const bool files = !options.files.empty() || !options.single.empty();
  Sizes sizes(wanted);
  std::vector<const Port*> missing;
  for (const Port& p : wanted) {
    auto given = inputs.find(p.name);
    auto shape = shapes.find(p.name);
    if (given != inputs.end()) {
      FERRULE_TRY(check_input(p, given->second));
      sizes.learn(p, given->second.dims());
    } else if (p.type.dtype == DType::optional) {
      inputs[p.name] = Tensor::absent();
    } else if (files && !options.seed) {
      FERRULE_TRY(tensor_input(p));
      return error(Code::missing_input, "--inputs", escape(p.name), str(p.type));
    } else {
      FERRULE_TRY(tensor_input(p));
      missing.push_back(&p);
      if (shape != shapes.end())
        sizes.learn(p, shape->second);
      else if (!p.type.shape)
        return error(Code::missing_input, "run", escape(p.name), str(p.type));
    }
  }
  auto dims_of = [&](const Port& p, int64_t size) {
    auto shape = shapes.find(p.name);
    return shape == shapes.end() ? sizes.of(p, size) : shape->second;
  };
  const bool open = std::ranges::any_of(
      missing, [&](const Port* p) { return !shapes.contains(p->name) && sizes.open(*p); });
  int64_t size = kSizes[0];
  for (int64_t tried : kSizes) {
    if (!open || !accepts) break;
    Shapes all;
    for (const auto& [n, t] : inputs) all[n] = t.dims();
    for (const Port* p : missing) all[p->name] = dims_of(*p, tried);
    const Status s = accepts(all);
    if (!s && s.error().code != Code::bad_shape && s.error().code != Code::input_mismatch) break;
    if (s) {
      size = tried;
      break;
    }
  }
  Shapes drawn;
  for (const Port* p : missing) {
    if (!shapes.contains(p->name) && sizes.open(*p))
      notes.push_back(fmt::format("{} is {}: {} is used; --shapes sets other sizes",
                                  escape(p->name), str(p->type), sizes.text(*p, size)));
    drawn[p->name] = dims_of(*p, size);
  }
  for (const Port* p : missing) sizes.learn(*p, drawn[p->name]);
  uint64_t seed = options.seed.value_or(0) * 1000003;
  for (const Port& p : wanted) {
    ++seed;
    auto dims = drawn.find(p.name);
    if (dims == drawn.end()) continue;
    const int64_t below = p.below ? std::max<int64_t>(1, sizes.one(*p.below, size)) : 2;
    FERRULE_ASSIGN(Tensor t, random_tensor(p.type.dtype, dims->second, static_cast<uint64_t>(below),
                                           seed, p.name));
    FERRULE_TRY(check_input(p, t));
    inputs[p.name] = std::move(t);
    if (files) notes.push_back(escape(p.name) + " is not given: random");
  }
  return inputs;
}

}  // namespace ferrule::cli
