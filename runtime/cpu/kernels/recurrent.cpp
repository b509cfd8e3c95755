// LSTM, GRU and RNN as one parallel region. The work is cut into parts that share nothing while
// they walk: directions, then rows of the batch; where there are fewer than threads, units of the
// state, and then all threads wait for each other once a step. A part makes the product of its
// input for many steps at once; in a step, the product with the state and one generated kernel for
// the rest of the cell. Rows whose sequences end are left behind: the batch is walked by length.
#include <algorithm>
#include <limits>
#include <numeric>

#include "codegen/program/recurrence.h"
#include "engine/base/diagnostics.h"
#include "runtime/cpu/kernels/product.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

/// Of the operators' inputs and outputs.
constexpr size_t kInput = 0, kWeights = 1, kRecurrence = 2, kBias = 3, kLengths = 4, kState = 5,
                 kMemory = 6, kPeepholes = 7;

struct Sizes {
  int64_t steps = 0, batch = 0, input = 0, hidden = 0, gates = 0, directions = 0;
};

/// Weights [directions, gates * hidden, k] for the products of each direction and slice of the
/// state: the gates of a slice side by side, in the blocks that product.h wants.
struct Packing {
  struct Gates {
    int64_t first = 0, count = 0;
  };
  Sizes sizes;
  int64_t k = 0;
  int lanes = 0;
  std::vector<int64_t> slices;  ///< where each begins, and the end
  std::vector<Gates> products;  ///< one after the other

  int64_t slice(size_t s) const { return slices[s + 1] - slices[s]; }
  int64_t floats(size_t s, const Gates& g) const { return up(g.count * slice(s), lanes) * k; }
  int64_t offset(int64_t direction, size_t slice_of, size_t product) const {
    int64_t at = 0;
    for (int64_t d = 0; d <= direction; ++d)
      for (size_t s = 0; s + 1 < slices.size(); ++s)
        for (size_t p = 0; p < products.size(); ++p) {
          if (d == direction && s == slice_of && p == product) return at;
          at += floats(s, products[p]);
        }
    return at;
  }
  int64_t floats() const { return offset(sizes.directions, 0, 0); }

  /// visit(weight of the model, packed weight) for the weights of a direction and slice.
  template <class Visit>
  void each(int64_t direction, size_t s, Visit&& visit) const {
    for (size_t p = 0; p < products.size(); ++p) {
      const int64_t columns = products[p].count * slice(s), base = offset(direction, s, p);
      const std::vector<int64_t> blocks = channel_blocks(parts(columns, lanes));
      for (size_t b = 0; b + 1 < blocks.size(); ++b) {
        const int64_t first = blocks[b] * lanes, width = (blocks[b + 1] - blocks[b]) * lanes;
        for (int64_t c = first; c < std::min(first + width, columns); ++c) {
          const int64_t gate = products[p].first + c / slice(s),
                        row = (direction * sizes.gates + gate) * sizes.hidden + slices[s] +
                              c % slice(s);
          for (int64_t i = 0; i < k; ++i)
            visit(row * k + i, base + first * k + i * width + c - first);
        }
      }
    }
  }
  void pack(int64_t direction, size_t s, const float* from, float* to) const {
    for (size_t p = 0; p < products.size(); ++p)
      std::fill_n(to + offset(direction, s, p), floats(s, products[p]), 0.0f);
    each(direction, s, [&](int64_t w, int64_t at) { to[at] = from[w]; });
  }
  template <class Do>
  void each_unit(Do&& f) const {
    for (int64_t d = 0; d < sizes.directions; ++d)
      for (size_t s = 0; s + 1 < slices.size(); ++s) f(d, s);
  }
};

/// Packed once if they are constant, else in each run.
struct Weights {
  Packing packing;
  Packed constant;
  const void* from = nullptr;  ///< of the model, where they are computed
  int64_t scratch = -1;
  const float* of(float* base, int64_t direction, size_t slice, size_t product) const {
    const float* u = scratch < 0 ? static_cast<const float*>(constant.data) : base + scratch;
    return u + packing.offset(direction, slice, product);
  }
};

class Recurrent final : public Kernel {
 public:
  Recurrent(Recurrence r, const Sizes& sizes, const product::Functions& functions)
      : r_(std::move(r)), s_(sizes), f_(functions) {}

  Applicable<> build(Context& context, const KernelCall& call) {
    split();
    operands(call);
    FERRULE_TRY(weights(context, call, kWeights, s_.input, {{0, s_.gates}}, w_));
    std::vector<Packing::Gates> recurrent{{0, s_.gates}};
    if (r_.resets_state()) recurrent = {{0, 2}, {2, 1}};
    FERRULE_TRY(weights(context, call, kRecurrence, s_.hidden, std::move(recurrent), u_));
    for (int64_t d = 0; d < s_.directions; ++d) {
      const CellPrograms programs = cell_programs(r_, d, inputs_[kPeepholes].present());
      FERRULE_ASSIGN(auto step, compiled(context, call, programs.step));
      cells_.push_back(std::move(step));
      if (!programs.reset) continue;
      FERRULE_ASSIGN(auto reset, compiled(context, call, *programs.reset));
      resets_.push_back(std::move(reset));
    }
    lengths_.resize(static_cast<size_t>(s_.batch));
    order_.resize(static_cast<size_t>(s_.batch));
    active_.resize(static_cast<size_t>(s_.steps));
    layer_ = call.layer;
    plan_scratch();
    return {};
  }

  int64_t scratch_bytes() const override { return floats_ * int64_t{sizeof(float)}; }

  void bind(Binder& binder) override {
    for (auto& [slot, cell] : cells_to_bind_) binder.cell(slot, cell);
    for (size_t k = 0; k < std::size(outputs_); ++k)
      if (output_slots_[k] >= 0) binder.cell(output_slots_[k], &outputs_[k]);
    scratch_ = static_cast<float*>(binder.scratch());
  }

  std::string text() const override {
    return fmt::format("{}:{}:{}", name(), f_.lanes == 16 ? "avx512" : "avx2", parts_.size()) +
           (sliced() ? " slices" : "");
  }

  Status run() override {
    FERRULE_TRY(read_lengths());
    const int64_t team = std::min<int64_t>(threads_, std::ssize(parts_));
    on_team(team, [&](int me, int members) { work(me, members); });
    return {};
  }

 private:
  /// What a thread walks through at a time: some rows of the batch in one direction, some units of
  /// the state.
  struct Part {
    int64_t direction, begin, end;
    size_t slice;
    int64_t inputs, products, gathered, memory;  ///< in scratch
    int64_t rows() const { return end - begin; }
  };

  struct Input {
    int slot = -1;
    const void* data = nullptr;
    bool there = false;
    bool present() const { return there; }
    const float* floats() const { return static_cast<const float*>(data); }
  };

  std::string_view name() const {
    return r_.work == Work::lstm ? "lstm" : r_.work == Work::gru ? "gru" : "rnn";
  }
  bool sliced() const { return slices_.size() > 2; }

  // --- make

  /// Threads are worth about this many operations each, and slices of the state this many a step.
  static constexpr double kFlops = 1 << 18, kStepFlops = 1 << 18;
  static constexpr int64_t kRows = 8;       ///< of a batch, that a product works on together
  static constexpr int64_t kAhead = 65536;  ///< floats of input products made at a time, about

  void split() {
    const double step = 2.0 * static_cast<double>(s_.directions * s_.batch * s_.gates * s_.hidden) *
                        static_cast<double>(s_.input + s_.hidden);
    threads_ = std::clamp<int64_t>(
        static_cast<int64_t>(step * static_cast<double>(s_.steps) / kFlops), 1, threads());
    const int64_t wanted = cpu::parts(threads_, s_.directions);
    int64_t chunks = 1, slices = 1;
    if (wanted > 1 && s_.batch >= kRows * wanted)
      chunks = wanted;
    else if (wanted > 1 && step > kStepFlops)
      slices = std::min(wanted, cpu::parts(s_.hidden, 2 * f_.lanes));
    for (int64_t k = 0; k <= slices; ++k)
      slices_.push_back(std::min(s_.hidden, up(s_.hidden * k / slices, f_.lanes)));
    for (int64_t c = 0; c < chunks; ++c)
      for (int64_t d = 0; d < s_.directions; ++d)
        for (int64_t k = 0; k < slices; ++k)
          parts_.push_back({d, s_.batch * c / chunks, s_.batch * (c + 1) / chunks,
                            static_cast<size_t>(k), 0, 0, 0, 0});
    most_rows_ = cpu::parts(s_.batch, chunks);
    const int64_t widest = s_.gates * (slices_[1] - slices_[0]);
    ahead_ = std::clamp<int64_t>(std::max<int64_t>(64, kAhead / std::max<int64_t>(1, widest)) /
                                     std::max<int64_t>(1, most_rows_),
                                 1, std::max<int64_t>(1, s_.steps));
  }

  void operands(const KernelCall& call) {
    for (size_t k = 0; k < std::size(inputs_); ++k) {
      const Operand* o = call.own_input(k);
      if (!o) continue;
      inputs_[k] = {o->slot, o->constant ? o->constant->data() : nullptr, true};
      if (o->slot >= 0) cells_to_bind_.emplace_back(o->slot, &inputs_[k].data);
    }
    for (size_t k = 0; k < std::size(outputs_) && k < call.outputs.size(); ++k)
      output_slots_[k] = call.outputs[k].slot;
  }

  Applicable<> weights(Context& context, const KernelCall& call, size_t slot, int64_t k,
                       std::vector<Packing::Gates> products, Weights& out) {
    out.packing = {s_, k, f_.lanes, slices_, std::move(products)};
    const Tensor* t = call.inputs[slot].constant;
    if (!t) return {};
    const Packing& p = out.packing;
    const std::string recipe =
        fmt::format("{}:{}:{}:{}", name(), f_.lanes, p.products.size(), fmt::join(slices_, ","));
    out.constant = context.library.derive(*t, recipe, p.floats() * 4, [&](void* to) {
      p.each_unit([&](int64_t d, size_t s) {
        p.pack(d, s, t->as<float>().data(), static_cast<float*>(to));
      });
    });
    context.library.turns_back(*t, out.constant, [p](const void* from, void* to) {
      p.each_unit([&](int64_t d, size_t s) {
        p.each(d, s, [&](int64_t w, int64_t at) {
          static_cast<float*>(to)[w] = static_cast<const float*>(from)[at];
        });
      });
    });
    return {};
  }

  static Applicable<std::shared_ptr<const CompiledKernel>> compiled(Context& context,
                                                                    const KernelCall& call,
                                                                    const Program& p) {
    FERRULE_ASSIGN(auto code, CpuJit::instance().compile(cell_key(context, p), call.layer));
    return code;
  }

 public:
  static KernelKey cell_key(const Context& context, Program p) {
    const size_t operands = p.inputs.size() + p.outputs.size();
    return {std::move(p), std::vector(operands, InnerStride::contiguous), context.target->name};
  }

 private:
  void plan_scratch() {
    auto take = [&](int64_t floats) {
      const int64_t at = floats_;
      floats_ += up(floats, 16);
      return at;
    };
    for (Weights* w : {&w_, &u_})
      if (!w->constant.data) w->scratch = take(w->packing.floats());
    const int64_t units = s_.directions * s_.batch * s_.hidden;
    for (int64_t& h : states_) h = take(units);
    if (r_.resets_state()) reset_ = take(units);
    bias_ = take(2 * s_.directions * s_.gates * s_.hidden);
    for (Part& p : parts_) {
      const int64_t units_of = slices_[p.slice + 1] - slices_[p.slice], n = s_.gates * units_of;
      p.inputs = take(ahead_ * p.rows() * n);
      p.products = take(p.rows() * n);
      if (r_.work == Work::lstm) p.memory = take(p.rows() * units_of);
      if (inputs_[kLengths].present()) p.gathered = take(ahead_ * p.rows() * s_.input);
    }
  }

  // --- run

  /// The rows of the batch by length, the longest first.
  Status read_lengths() {
    std::iota(order_.begin(), order_.end(), 0);
    std::ranges::fill(lengths_, s_.steps);
    ragged_ = false, longest_ = s_.steps;
    const auto* given = static_cast<const int32_t*>(inputs_[kLengths].data);
    if (!given) return {};
    longest_ = 0;
    for (size_t b = 0; b < lengths_.size(); ++b) {
      if (given[b] < 0 || given[b] > s_.steps)
        return error(Code::bad_shape, escape(layer_),
                     fmt::format("a sequence length of {} in {} steps", given[b], s_.steps));
      lengths_[b] = given[b];
      ragged_ |= given[b] != s_.steps;
      longest_ = std::max<int64_t>(longest_, given[b]);
    }
    if (!ragged_) return {};
    std::ranges::sort(order_, [&](int64_t a, int64_t b) {
      return std::pair(-lengths_[static_cast<size_t>(a)], a) <
             std::pair(-lengths_[static_cast<size_t>(b)], b);
    });
    for (int64_t i = 0, n = s_.batch; i < s_.steps; ++i) {
      while (n > 0 && length(n - 1) <= i) --n;
      active_[static_cast<size_t>(i)] = n;
    }
    return {};
  }
  int64_t row(int64_t r) const { return order_[static_cast<size_t>(r)]; }
  int64_t length(int64_t r) const { return lengths_[static_cast<size_t>(row(r))]; }
  /// Rows of the part whose sequences are longer than `i`.
  int64_t active(const Part& p, int64_t i) const {
    return ragged_ ? std::clamp<int64_t>(active_[static_cast<size_t>(i)] - p.begin, 0, p.rows())
                   : p.rows();
  }

  void work(int me, int members) {
    prepare(me, members);
    if (members > 1) team_barrier();
    const auto mine = [&](auto&& f) {
      for (size_t k = static_cast<size_t>(me); k < parts_.size(); k += static_cast<size_t>(members))
        f(parts_[k]);
    };
    mine([&](Part& p) { begin(p); });
    if (!sliced())
      return mine([&](Part& p) {
        for (int64_t i = 0; i < longest_; i += ahead_) {
          const int64_t end = std::min(i + ahead_, longest_);
          make_inputs(p, i, end);
          for (int64_t k = i; k < end; ++k) {
            if (r_.resets_state()) reset(p, i, end, k);
            step(p, i, end, k);
          }
        }
        finish(p);
      });
    const auto wait = [&] {
      if (members > 1) team_barrier();
    };
    wait();
    for (int64_t i = 0; i < longest_; i += ahead_) {
      const int64_t end = std::min(i + ahead_, longest_);
      mine([&](Part& p) { make_inputs(p, i, end); });
      for (int64_t k = i; k < end; ++k) {
        if (r_.resets_state()) {
          mine([&](Part& p) { reset(p, i, end, k); });
          wait();
        }
        mine([&](Part& p) { step(p, i, end, k); });
        wait();
      }
    }
    mine([&](Part& p) { finish(p); });
  }

  /// Weights that are computed, and the sums of biases, for all parts.
  void prepare(int me, int members) {
    int64_t unit = 0;
    w_.packing.each_unit([&](int64_t d, size_t s) {
      if (unit++ % members != me) return;
      for (auto [weights, slot] : {std::pair(&w_, kWeights), std::pair(&u_, kRecurrence)})
        if (weights->scratch >= 0)
          weights->packing.pack(d, s, inputs_[slot].floats(), scratch_ + weights->scratch);
      add_biases(d, s);
    });
  }

  float* bias(int64_t d, size_t s, bool recurrent) const {
    return scratch_ + bias_ + ((recurrent ? s_.directions : 0) + d) * s_.gates * s_.hidden +
           s_.gates * slices_[s];
  }
  /// gru: what the reset gate multiplies keeps its own.
  void add_biases(int64_t d, size_t s) {
    const float* b = inputs_[kBias].floats();
    const int64_t units = slices_[s + 1] - slices_[s];
    for (int64_t g = 0; g < s_.gates; ++g)
      for (int64_t j = 0; j < units; ++j) {
        const bool apart = r_.work == Work::gru && r_.linear_before_reset && g == 2;
        const int64_t from = (d * 2 * s_.gates + g) * s_.hidden + slices_[s] + j;
        const float own = b ? b[from] : 0, other = b ? b[from + s_.gates * s_.hidden] : 0;
        bias(d, s, false)[g * units + j] = apart ? own : own + other;
        bias(d, s, true)[g * units + j] = apart ? other : 0;
      }
  }

  /// The state of which step it is, [direction][row][unit].
  float* state(int64_t i, int64_t d) const {
    return scratch_ + states_[i % 2] + d * s_.batch * s_.hidden;
  }
  /// Where row `b` of a graph's state lies.
  int64_t outside(int64_t d, int64_t b) const {
    return (r_.batch_first ? b * s_.directions + d : d * s_.batch + b) * s_.hidden;
  }

  void begin(Part& p) {
    const int64_t from = slices_[p.slice], units = slices_[p.slice + 1] - from;
    for (int64_t r = p.begin; r < p.end; ++r) {
      copy_or_zero(inputs_[kState], outside(p.direction, row(r)) + from, units,
                   state(0, p.direction) + r * s_.hidden + from);
      if (r_.work == Work::lstm)
        copy_or_zero(inputs_[kMemory], outside(p.direction, row(r)) + from, units,
                     scratch_ + p.memory + (r - p.begin) * units);
    }
  }
  static void copy_or_zero(const Input& x, int64_t at, int64_t n, float* to) {
    if (x.present())
      std::copy_n(x.floats() + at, n, to);
    else
      std::fill_n(to, n, 0.0f);
  }

  /// y[rows, columns] = x[rows, k] u + bias.
  void multiply(const float* x, int64_t x_row, int64_t rows, int64_t k, const float* u,
                const float* added, int64_t columns, float* y, int64_t y_row) const {
    if (rows == 0 || columns == 0) return;
    product::Shape s;
    s.c = k, s.k = columns, s.x_pixel = x_row, s.y_pixel = y_row;
    product::Tensors t;
    t.x = x, t.u = u, t.bias = added, t.y = y;
    t.low = -std::numeric_limits<float>::infinity(), t.high = -t.low;
    f_.run(s, t, 0, rows, 0, cpu::parts(columns, f_.lanes));
  }

  int64_t time(const Part& p, int64_t i, int64_t r) const {
    return r_.walks_back(p.direction) ? (ragged_ ? length(r) : s_.steps) - 1 - i : i;
  }
  const float* input(int64_t t, int64_t b) const {
    return inputs_[kInput].floats() +
           (r_.batch_first ? b * s_.steps + t : t * s_.batch + b) * s_.input;
  }

  /// The products of steps [from, to) with the input, in the order in which step() wants them.
  void make_inputs(const Part& p, int64_t from, int64_t to) {
    const int64_t n = s_.gates * (slices_[p.slice + 1] - slices_[p.slice]);
    const float* u = w_.of(scratch_, p.direction, p.slice, 0);
    const float* added = bias(p.direction, p.slice, false);
    float* y = scratch_ + p.inputs;
    if (ragged_) {
      float* x = scratch_ + p.gathered;
      int64_t rows = 0;
      for (int64_t i = from; i < to; ++i)
        for (int64_t r = p.begin; r < p.begin + active(p, i); ++r, ++rows)
          std::copy_n(input(time(p, i, r), row(r)), s_.input, x + rows * s_.input);
      return multiply(x, s_.input, rows, s_.input, u, added, n, y, n);
    }
    const int64_t first = r_.walks_back(p.direction) ? s_.steps - to : from;
    if (p.rows() == (r_.batch_first ? 1 : s_.batch))  // all that follows each other
      return multiply(input(first, p.begin), s_.input, (to - from) * p.rows(), s_.input, u, added,
                      n, y, n);
    const int64_t apart = r_.batch_first ? s_.steps * s_.input : s_.input;
    for (int64_t t = first; t < first + to - from; ++t, y += p.rows() * n)
      multiply(input(t, p.begin), apart, p.rows(), s_.input, u, added, n, y, n);
  }
  /// Those of step `i` of [from, to).
  float* inputs_of(const Part& p, int64_t from, int64_t to, int64_t i) const {
    int64_t rows = 0;
    if (ragged_)
      for (int64_t k = from; k < i; ++k) rows += active(p, k);
    else
      rows = (r_.walks_back(p.direction) ? to - 1 - i : i - from) * p.rows();
    return scratch_ + p.inputs + rows * s_.gates * (slices_[p.slice + 1] - slices_[p.slice]);
  }

  /// A call of a cell over rows and units; at most 14 operands, of an LSTM with peepholes.
  struct CellCall {
    void* operands[14] = {};
    int64_t apart[14] = {}, along[14] = {};
    size_t count = 0;
    /// `row`: floats from a row to the next.
    void add(const float* p, int64_t row) {
      operands[count] = const_cast<float*>(p);
      apart[count++] = row * int64_t{sizeof(float)};
    }
    void run(const CompiledKernel& code, int64_t rows, int64_t units) const {
      const int64_t n[] = {rows, units};
      code.fn(operands, n, apart, along);
    }
  };

  /// The state that goes into the last gate's product.
  void reset(const Part& p, int64_t from, int64_t to, int64_t i) {
    const int64_t first = slices_[p.slice], units = slices_[p.slice + 1] - first,
                  n = s_.gates * units, rows = active(p, i);
    const float* h = state(i, p.direction) + p.begin * s_.hidden;
    float* products = scratch_ + p.products;
    multiply(h, s_.hidden, rows, s_.hidden, u_.of(scratch_, p.direction, p.slice, 0), nullptr,
             2 * units, products, n);
    CellCall cell;
    cell.add(inputs_of(p, from, to, i) + units, n);
    cell.add(products + units, n);
    cell.add(h + first, s_.hidden);
    cell.add(reset_state(p) + first, s_.hidden);
    cell.run(*resets_[static_cast<size_t>(p.direction)], rows, units);
  }
  float* reset_state(const Part& p) const {
    return scratch_ + reset_ + (p.direction * s_.batch + p.begin) * s_.hidden;
  }

  void step(const Part& p, int64_t from, int64_t to, int64_t i) {
    const int64_t first = slices_[p.slice], units = slices_[p.slice + 1] - first,
                  n = s_.gates * units, rows = active(p, i);
    const float* h = state(i, p.direction) + p.begin * s_.hidden;
    float* next = state(i + 1, p.direction) + p.begin * s_.hidden + first;
    float* products = scratch_ + p.products;
    if (r_.resets_state())
      multiply(reset_state(p), s_.hidden, rows, s_.hidden, u_.of(scratch_, p.direction, p.slice, 1),
               nullptr, units, products + 2 * units, n);
    else
      multiply(h, s_.hidden, rows, s_.hidden, u_.of(scratch_, p.direction, p.slice, 0),
               bias(p.direction, p.slice, true), n, products, n);
    const float* inputs = inputs_of(p, from, to, i);
    float* memory = scratch_ + p.memory;
    CellCall cell;
    for (int64_t g = 0; g < s_.gates; ++g) {
      cell.add(inputs + g * units, n);
      cell.add(products + g * units, n);
    }
    if (r_.work == Work::gru) cell.add(h + first, s_.hidden);
    if (r_.work == Work::lstm) cell.add(memory, units);
    if (inputs_[kPeepholes].present())
      for (int64_t k = 0; k < 3; ++k)
        cell.add(inputs_[kPeepholes].floats() + (p.direction * 3 + k) * s_.hidden + first, 0);
    if (r_.work == Work::lstm) cell.add(memory, units);
    cell.add(next, s_.hidden);
    cell.run(*cells_[static_cast<size_t>(p.direction)], rows, units);
    if (!outputs_[0]) return;
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(next + r * s_.hidden, units,
                  output(p.direction, time(p, i, p.begin + r), row(p.begin + r)) + first);
  }
  float* output(int64_t d, int64_t t, int64_t b) const {
    const int64_t at = r_.batch_first ? (b * s_.steps + t) * s_.directions + d
                                      : (t * s_.directions + d) * s_.batch + b;
    return static_cast<float*>(outputs_[0]) + at * s_.hidden;
  }

  /// The last states, and zeros behind the ends of sequences.
  void finish(const Part& p) {
    const int64_t first = slices_[p.slice], units = slices_[p.slice + 1] - first;
    for (int64_t r = p.begin; r < p.end; ++r) {
      if (outputs_[0])
        for (int64_t t = length(r); t < s_.steps; ++t)
          std::fill_n(output(p.direction, t, row(r)) + first, units, 0.0f);
      const int64_t at = outside(p.direction, row(r)) + first;
      if (outputs_[1])
        std::copy_n(state(length(r), p.direction) + r * s_.hidden + first, units,
                    static_cast<float*>(outputs_[1]) + at);
      if (outputs_[2])
        std::copy_n(scratch_ + p.memory + (r - p.begin) * units, units,
                    static_cast<float*>(outputs_[2]) + at);
    }
  }

  Recurrence r_;
  Sizes s_;
  const product::Functions& f_;
  std::string layer_;
  int64_t threads_ = 1, most_rows_ = 0;
  int64_t ahead_ = 1;  ///< steps whose input products are made at once
  std::vector<int64_t> slices_;
  std::vector<Part> parts_;
  Weights w_, u_;
  std::vector<std::shared_ptr<const CompiledKernel>> cells_, resets_;  ///< by direction
  Input inputs_[8];
  std::vector<std::pair<int, const void**>> cells_to_bind_;
  int output_slots_[3] = {-1, -1, -1};
  void* outputs_[3] = {};  ///< null: nobody reads it
  float* scratch_ = nullptr;
  int64_t floats_ = 0, states_[2] = {}, reset_ = 0, bias_ = 0;  ///< of scratch
  // Of a run.
  bool ragged_ = false;
  int64_t longest_ = 0;
  std::vector<int64_t> lengths_, order_;  ///< of the batch's rows; these, sorted
  std::vector<int64_t> active_;           ///< rows in each step
};

/// Sizes, where all operands have them and f32; else why not.
Applicable<Sizes> sizes_of(const Recurrence& r, const KernelCall& call) {
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), call.node->op.text(), why);
  };
  using Dims = std::vector<int64_t>;
  const Operand *x = call.own_input(kInput), *w = call.own_input(kWeights),
                *u = call.own_input(kRecurrence);
  if (!x || !w || !u || x->rank() != 3 || w->rank() != 3 || u->rank() != 3)
    return refuse("operands that are missing or of another rank");
  Sizes s;
  s.steps = x->dims[r.batch_first ? 1 : 0], s.batch = x->dims[r.batch_first ? 0 : 1];
  s.input = x->dims[2], s.hidden = u->dims[2];
  s.gates = r.gates, s.directions = r.directions;
  if (s.hidden == 0) return refuse("a state of no units");
  if (call.node->attrs.find("hidden_size") && call.node->attrs.i("hidden_size") != s.hidden)
    return refuse("a hidden_size that is not the weights'");
  const int64_t rows = s.gates * s.hidden;
  const Dims state =
      r.batch_first ? Dims{s.batch, s.directions, s.hidden} : Dims{s.directions, s.batch, s.hidden};
  const Dims wanted[] = {x->dims,
                         {s.directions, rows, s.input},
                         {s.directions, rows, s.hidden},
                         {s.directions, 2 * rows},
                         {s.batch},
                         state,
                         state,
                         {s.directions, 3 * s.hidden}};
  for (size_t k = 0; k < std::size(wanted); ++k) {
    const Operand* o = call.own_input(k);
    if (!o) continue;
    if (o->dims != wanted[k] || o->dtype != (k == kLengths ? DType::i32 : DType::f32))
      return refuse(fmt::format("input {} of another size or type", k));
    if (!o->lies(Layout::plain)) return refuse("another layout");
  }
  return s;
}

bool recurrent(const KernelCall& call) {
  return call.work == Work::lstm || call.work == Work::gru || call.work == Work::rnn;
}

}  // namespace

Applicable<std::vector<CpuJit::Request>> recurrent_requests(Context& context,
                                                            const KernelCall& call) {
  std::vector<CpuJit::Request> requests;
  if (!recurrent(call)) return requests;
  FERRULE_ASSIGN(const Recurrence r, recurrence_of(call.work, *call.node, call.layer));
  for (int64_t d = 0; d < r.directions; ++d) {
    CellPrograms programs = cell_programs(r, d, call.own_input(kPeepholes) != nullptr);
    for (auto* p : {programs.reset ? &*programs.reset : nullptr, &programs.step})
      if (p) requests.push_back({Recurrent::cell_key(context, std::move(*p)), call.layer});
  }
  return requests;
}

Applicable<KernelPtr> make_recurrent(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(Recurrence r, recurrence_of(call.work, *call.node, call.layer));
  FERRULE_ASSIGN(const Sizes sizes, sizes_of(r, call));
  const product::Functions* f = product_functions(context);
  if (!f)
    return not_applicable(escape(call.layer), call.node->op.text(),
                          "neither AVX-512 nor AVX2 here");
  auto kernel = std::make_unique<Recurrent>(std::move(r), sizes, *f);
  FERRULE_TRY(kernel->build(context, call));
  return kernel;
}

}  // namespace ferrule::cpu
