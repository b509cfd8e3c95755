#include "runtime/turns.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include <fmt/ranges.h>

#include "engine/base/diagnostics.h"

namespace ferrule {
namespace {

std::string place(const Node& n) { return fmt::format("node \"{}\"", escape(n.name)); }

bool whole_bytes(DType t) {
  return (is_float(t) || is_int(t) || t == DType::boolean) && size_bits(t) >= 8;
}

/// What the turns make for one scan output, one behind the other.
class Stack {
 public:
  Status push(const Node& n, const Tensor& t, int64_t most_bytes) {
    if (!t.is_tensor() || !whole_bytes(t.dtype()))
      return error(Code::unsupported_type, place(n), "a scan output of another type");
    if (count_ == 0) {
      like_ = t;
    } else if (t.dims() != like_.dims() || t.dtype() != like_.dtype()) {
      return error(Code::bad_shape, place(n),
                   fmt::format("iterations give [{}] and [{}]", fmt::join(like_.dims(), ","),
                               fmt::join(t.dims(), ",")));
    }
    const auto at = bytes_.size(), more = static_cast<size_t>(t.bytes());
    if (at + more > static_cast<size_t>(most_bytes))
      return error(Code::limit_exceeded, place(n), "a scan output",
                   fmt::format("{} bytes", at + more), fmt::format("{} bytes", most_bytes));
    bytes_.resize(at + more);
    if (more) std::memcpy(bytes_.data() + at, t.data(), more);
    ++count_;
    return {};
  }
  Tensor tensor() const {
    std::vector<int64_t> dims = like_.dims();
    dims.insert(dims.begin(), count_);
    auto [t, to] = Tensor::unwritten(like_.dtype(), std::move(dims));
    if (!bytes_.empty()) std::memcpy(to, bytes_.data(), bytes_.size());
    return t;
  }

 private:
  Tensor like_;
  std::vector<char> bytes_;
  int64_t count_ = 0;
};

}  // namespace

bool turns_in_tensors(const Graph& g, const Node& n) {
  const Graph* body = subgraph(n, "body");
  if (!body || n.inputs.size() < 2 || body->inputs().size() != n.inputs.size() ||
      body->outputs().size() + 1 < n.inputs.size())
    return false;
  std::vector<ValueId> read = captures(n);
  for (size_t k = 2; k < n.inputs.size(); ++k) {
    if (!n.inputs[k]) return false;
    read.push_back(n.inputs[k]);
  }
  const auto holds = [](const Graph& of) {
    return [&of](ValueId v) { return whole_bytes(of.value(v).type.dtype); };
  };
  return std::ranges::all_of(read, holds(g)) && std::ranges::all_of(body->outputs(), holds(*body));
}

Result<std::optional<std::vector<Tensor>>> turn_by_turn(const Node& n,
                                                        std::span<const Tensor* const> operands,
                                                        const Limits& limits, const Cancel* cancel,
                                                        const TurnBody& body) {
  const Tensor *count = operands[0], *start = operands[1];
  const Graph& of = *subgraph(n, "body");
  if (count && (!is_int(count->dtype()) || count->numel() != 1)) return std::nullopt;
  if (start && (start->dtype() != DType::boolean || start->numel() != 1)) return std::nullopt;
  const int64_t most = count ? count->at_i64(0) : std::numeric_limits<int64_t>::max();
  bool going = !start || start->at_i64(0) != 0;
  if (most <= 0 || !going) return std::nullopt;

  const auto dims = [&](size_t slot) {  // of the rank that the body declares
    return std::vector<int64_t>(of.value(of.inputs()[slot]).type.rank() == 1 ? 1 : 0, 1);
  };
  // A turn that is made was let in by a condition that holds.
  const Tensor holds = Tensor::scalar(DType::boolean, 1, dims(1));
  const size_t carried = operands.size() - 2;
  const int64_t most_bytes =
      limits.memory_bytes > 0 ? limits.memory_bytes : int64_t{8} << 30;  // the interpreter's
  std::vector<Tensor> state;
  for (size_t k = 0; k < carried; ++k) state.push_back(*operands[2 + k]);
  std::vector<Stack> stacks(of.outputs().size() - 1 - carried);
  for (int64_t i = 0; i < most && going; ++i) {
    if (cancel && cancel->stopped()) return error(Code::cancelled, place(n), "time is up");
    std::vector<Tensor> given;
    given.push_back(Tensor::of_i64(dims(0), {i}));
    given.push_back(holds);
    std::ranges::move(state, std::back_inserter(given));
    auto made = body(std::move(given));
    if (!made && made.error().code == Code::cancelled)  // named by what the model has
      return error(Code::cancelled, place(n), "time is up");
    if (!made) return fail(std::move(made).error());
    const Tensor& again = (*made)[0];
    if (again.dtype() != DType::boolean || again.numel() != 1)
      return error(Code::bad_shape, place(n),
                   fmt::format("a condition of type {} and shape [{}]", name(again.dtype()),
                               fmt::join(again.dims(), ",")));
    going = again.at_i64(0) != 0;
    for (size_t k = 0; k < stacks.size(); ++k)
      FERRULE_TRY(stacks[k].push(n, (*made)[1 + carried + k], most_bytes));
    state.assign(std::make_move_iterator(made->begin() + 1),
                 std::make_move_iterator(made->begin() + 1 + static_cast<long>(carried)));
  }
  for (const Stack& s : stacks) state.push_back(s.tensor());
  return state;
}

}  // namespace ferrule
