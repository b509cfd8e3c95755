#include "engine/semantics/evaluate.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <future>
#include <thread>

#include "engine/base/diagnostics.h"
#include "engine/semantics/block_eval.h"
#include "engine/semantics/lower_formula.h"
#include "engine/semantics/meets.h"
#include "engine/semantics/nodes_to_programs.h"

namespace ferrule {
namespace {

/// Dims with every input's strides, adjacent dims merged where all inputs allow it. Innermost
/// first.
struct Walk {
  std::vector<int64_t> dims;
  std::vector<std::vector<int64_t>> strides;  ///< [input][dim], in elements
};

Walk make_walk(const std::vector<int64_t>& out, std::span<const Tensor* const> inputs) {
  Walk w;
  w.strides.resize(inputs.size());
  std::vector<int64_t> run(inputs.size(), 1);
  for (size_t d = 0; d < out.size(); ++d) {
    int64_t n = out[out.size() - 1 - d];
    std::vector<int64_t> s(inputs.size());
    for (size_t k = 0; k < inputs.size(); ++k) {
      const auto& dims = inputs[k]->dims();
      int64_t m = d < dims.size() ? dims[dims.size() - 1 - d] : 1;
      s[k] = m == 1 ? 0 : run[k];
      run[k] *= m;
    }
    if (n == 1) continue;
    bool merge = !w.dims.empty();
    for (size_t k = 0; k < inputs.size() && merge; ++k)
      merge = s[k] == (w.strides[k].back() == 0 ? 0 : w.strides[k].back() * w.dims.back());
    if (merge) {
      w.dims.back() *= n;
      continue;
    }
    w.dims.push_back(n);
    for (size_t k = 0; k < inputs.size(); ++k) w.strides[k].push_back(s[k]);
  }
  if (w.dims.empty()) {
    w.dims.push_back(1);
    for (auto& s : w.strides) s.push_back(0);
  }
  return w;
}

void repeat(void* block, DType physical, int from, int n) {
  auto size = static_cast<size_t>(size_bits(physical) / 8);
  auto p = static_cast<std::byte*>(block) + static_cast<size_t>(from) * size;
  for (int done = 1; done < n; done *= 2)
    std::memcpy(p + static_cast<size_t>(done) * size, p,
                static_cast<size_t>(std::min(done, n - done)) * size);
}

/// Elements start … start + n of the output's order, from one input.
void gather(const Walk& w, size_t k, const Tensor& t, DType physical, int64_t start, int n,
            void* block) {
  auto size = static_cast<size_t>(size_bits(physical) / 8);
  const auto& strides = w.strides[k];
  for (int done = 0; done < n;) {
    int64_t rest = start + done, offset = 0;
    int64_t inner = rest % w.dims[0];
    for (size_t d = 0; d < w.dims.size(); ++d) {
      offset += rest % w.dims[d] * strides[d];
      rest /= w.dims[d];
    }
    int run = static_cast<int>(std::min<int64_t>(n - done, w.dims[0] - inner));
    auto at = static_cast<std::byte*>(block) + static_cast<size_t>(done) * size;
    unpack(t.dtype(), physical, t.data(), offset, strides[0] ? run : 1, at);
    if (!strides[0]) repeat(block, physical, done, run);
    done += run;
  }
}

/// `slots`: of the node, one for each input.
Result<std::vector<int64_t>> broadcast_dims(const OpFormula& f, const Node& n,
                                            std::span<const Tensor* const> inputs,
                                            std::span<const size_t> slots) {
  std::vector<int64_t> out;
  for (size_t k = 0; k < inputs.size(); ++k) {
    const auto& dims = inputs[k]->dims();
    if (meets_first(f, slots[k]) == Meets::single) {
      if (inputs[k]->numel() == 1) continue;
      return error(Code::bad_shape, node_place(n),
                   fmt::format("input {} is {} where one element is wanted", slots[k],
                               str(Shape(dims.begin(), dims.end()))));
    }
    if (dims.size() > out.size()) out.insert(out.begin(), dims.size() - out.size(), 1);
    for (size_t d = 0; d < dims.size(); ++d) {
      int64_t& o = out[out.size() - 1 - d];
      int64_t m = dims[dims.size() - 1 - d];
      if (o != m && o != 1 && m != 1)
        return error(Code::bad_shape, node_place(n),
                     fmt::format("the inputs' shapes do not broadcast: {} meets {}", o, m));
      if (o == 1) o = m;
    }
  }
  for (size_t k = 0; k < inputs.size() && shaped_by_first(f); ++k)
    if (const auto& dims = inputs[k]->dims(); slots[k] == 0 && out != dims)
      return error(Code::bad_shape, node_place(n),
                   fmt::format("an input does not broadcast to the first, which is {}",
                               str(Shape(dims.begin(), dims.end()))));
  int64_t count = 1;
  for (int64_t d : out)
    if (__builtin_mul_overflow(count, d, &count) || count > int64_t{1} << 48)
      return error(Code::bad_shape, node_place(n),
                   std::string("the broadcast result has too many elements"));
  return out;
}

/// body(begin, end) over [0, count), in parts of at least `least` elements and whole blocks, each
/// on a thread of its own as far as there are processors and threads.
void in_parts(int64_t count, int64_t least, const std::function<void(int64_t, int64_t)>& body) {
  static const int64_t processors = std::clamp<int64_t>(std::thread::hardware_concurrency(), 1, 8);
  const int64_t blocks = (count + kBlock - 1) / kBlock,
                parts = std::clamp<int64_t>(count / least, 1, processors);
  auto edge = [&](int64_t part) { return std::min(blocks * part / parts * kBlock, count); };
  std::vector<std::future<void>> others;
  for (int64_t part = 1; part < parts;
       ++part)  // where no thread is left, get() below does the part
    others.push_back(
        std::async(std::launch::async | std::launch::deferred, body, edge(part), edge(part + 1)));
  body(0, edge(1));
  for (std::future<void>& other : others) other.get();
}

/// Whether one of them is not 0 and less than `least`. Without a branch inside, so that it becomes
/// vectors.
bool any_less(const double* x, int n, double least) {
  unsigned any = 0;
  for (int k = 0; k < n; ++k)
    any |= static_cast<unsigned>(std::abs(x[k]) < least) & static_cast<unsigned>(x[k] != 0);
  return any != 0;
}

}  // namespace

Tensor evaluate_program(const Program& p, size_t output, const std::vector<int64_t>& dims,
                        std::span<const Tensor* const> data, const Rounding* rounding) {
  const DType storage = rounding ? rounding->storage : p.output_type(output);
  auto [result, bytes] = Tensor::allocate(storage, dims);
  const Walk walk = make_walk(dims, data);
  std::atomic<bool> found = false;
  // What only another output of the program reads may have fewer elements than this one.
  std::vector<bool> loaded(data.size());
  for (const Inst& in : p.insts)
    if (in.op == Prim::load) loaded[in.index] = true;
  auto elements = [&, bytes = bytes](int64_t begin, int64_t end) {
    BlockEvaluator run(p);
    std::vector<bool> fixed(data.size());  // one element: read once
    for (size_t k = 0; k < data.size(); ++k) {
      fixed[k] = data[k]->numel() == 1;
      if (loaded[k] && fixed[k] && begin < end)
        gather(walk, k, *data[k], run.physical(p.inputs[k]), 0, kBlock, run.input(k));
    }
    DType out = run.physical(p.output_type(output));
    for (int64_t start = begin; start < end; start += kBlock) {
      int m = static_cast<int>(std::min<int64_t>(kBlock, end - start));
      for (size_t k = 0; k < data.size(); ++k)
        if (loaded[k] && !fixed[k])
          gather(walk, k, *data[k], run.physical(p.inputs[k]), start, m, run.input(k));
      run.run(m);
      if (rounding && out == DType::f64 &&
          any_less(static_cast<const double*>(run.output(output)), m, rounding->least))
        found = true;
      pack(storage, out, run.output(output), m, bytes, start);
    }
  };
  in_parts(result.numel(), rounding ? int64_t{kBlock} * 256 : INT64_MAX, elements);
  if (rounding && rounding->less) *rounding->less = found;
  return result;
}

namespace {

Result<Tensor> evaluate(const Semantics& ops, const Node& n, std::span<const Tensor* const> inputs,
                        bool f64, const Rounding* rounding,
                        const std::function<void(Program&)>& change) {
  FERRULE_ASSIGN(const OpFormula* f, required(pointwise_formula(ops, n)));
  std::vector<DType> types;
  for (const Tensor* t : inputs) types.push_back(t ? t->dtype() : DType::undefined);
  FERRULE_ASSIGN(LoweredNode lowered, lower_node(*f, n, types, f64));
  std::vector<const Tensor*> data;
  for (size_t slot : lowered.input_slots) data.push_back(inputs[slot]);
  FERRULE_ASSIGN(std::vector<int64_t> dims, broadcast_dims(*f, n, data, lowered.input_slots));
  if (change) change(lowered.program);
  return evaluate_program(lowered.program, 0, dims, data, rounding);
}

}  // namespace

Result<Tensor> evaluate_node(const Semantics& ops, const Node& n,
                             std::span<const Tensor* const> inputs, bool f64,
                             const std::function<void(Program&)>& change) {
  return evaluate(ops, n, inputs, f64, nullptr, change);
}

Result<Tensor> evaluate_rounded(const Semantics& ops, const Node& n,
                                std::span<const Tensor* const> inputs, const Rounding& rounding) {
  return evaluate(ops, n, inputs, true, &rounding, {});
}

}  // namespace ferrule
