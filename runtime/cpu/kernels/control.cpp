// Scan, Loop and If as executables of their own: the nested graphs are planned, compiled and bound
// once, and a step is a run with other pointers. States go to and fro between two places, the first
// step reads where the operand lies and Scan's last one writes where the result does; slices of
// operands and results that lie in one piece are read and written in place, others are copied.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>

#include "engine/base/diagnostics.h"
#include "runtime/cpu/executable.h"
#include "runtime/cpu/kernels/strided_copy.h"
#include "runtime/parallel.h"

namespace ferrule::cpu {
namespace {

int64_t whole_lines(int64_t bytes) { return (bytes + 63) / 64 * 64; }

/// A nested graph that runs. What hides NaN is left out: the run around it looks at the same flags.
class NestedRun {
 public:
  static Applicable<std::unique_ptr<NestedRun>> make(Context& context, const KernelCall& call,
                                                     const NestedPlan& nested) {
    auto out = std::make_unique<NestedRun>();
    FERRULE_ASSIGN(out->lowered_, lower_layers(*nested.plan, *context.ops, *context.target,
                                               {.strict = context.strict, .keep_nan = true}));
    PrepareContext prepare{*nested.plan,
                           out->lowered_,
                           *context.ops,
                           *context.target,
                           *context.limits,
                           threads(),
                           context.log ? *context.log : LogCallback{},
                           context.cache,
                           context.tuning};
    prepare.cancel = context.cancel;
    FERRULE_ASSIGN(out->executable_, CpuExecutable::make(prepare, *context.library.packs));
    const Graph& g = nested.plan->graph;
    out->inputs.resize(g.inputs().size());
    out->outputs.resize(g.outputs().size());
    for (const auto& [values, bytes] :
         {std::pair(&g.outputs(), &out->bytes), std::pair(&g.inputs(), &out->input_bytes)})
      for (ValueId v : *values) {
        const Type& t = g.value(v).type;
        const auto dims = t.shape ? constant_shape(*t.shape) : std::nullopt;
        if (!dims) return not_applicable(escape(call.layer), nested.attribute, "an unknown size");
        const int64_t n =
            std::accumulate(dims->begin(), dims->end(), int64_t{1}, std::multiplies());
        bytes->push_back(size_bytes(t.dtype, n));
      }
    const std::vector<ValueId> all = captures(*call.node);
    for (ValueId v : nested.captured)
      out->captured_.push_back(call.node->inputs.size() +
                               static_cast<size_t>(std::ranges::find(all, v) - all.begin()));
    return out;
  }

  /// Where the call's inputs are.
  void capture(std::span<const void* const> all) {
    const size_t own = inputs.size() - captured_.size();
    for (size_t k = 0; k < captured_.size(); ++k) inputs[own + k] = all[captured_[k]];
  }
  Status run() { return executable_->run(inputs, outputs); }
  bool interprets() const { return !executable_->interpreted().empty(); }

  std::vector<const void*> inputs;
  std::vector<void*> outputs;
  std::vector<int64_t> bytes, input_bytes;  ///< bytes: of the outputs

 private:
  Lowered lowered_;
  std::unique_ptr<Executable> executable_;
  std::vector<size_t> captured_;  ///< inputs of the call
};

/// Step by step along an axis of an operand or a result.
struct Slices {
  int64_t steps = 0, step_bytes = 0;  ///< from a slice to the next
  bool back = false;
  StridedCopy copy;      ///< between the slice and a place of its own
  int64_t scratch = -1;  ///< that place; -1: a slice is one piece of memory
  int64_t offset(int64_t i) const { return (back ? steps - 1 - i : i) * step_bytes; }
};

/// What the three have in common: operands as dense tensors, and places in scratch.
class Control : public Kernel {
 public:
  explicit Control(const KernelCall& call) : call_(call), layer_(call.layer) {
    cells_.resize(call.inputs.size());
    given_.resize(call.inputs.size());
    results_.resize(call.outputs.size());
    for (const Operand& o : call.inputs) {
      staged_.push_back(!o.present() || o.constant || (o.lies(Layout::plain) && o.dense())
                            ? -1
                            : take(o.bytes()));
      if (o.constant) cells_[staged_.size() - 1] = o.constant->data();
    }
  }

  int64_t scratch_bytes() const override { return scratch_bytes_; }
  void bind(Binder& binder) override {
    for (size_t k = 0; k < cells_.size(); ++k)
      if (call_.inputs[k].slot >= 0) binder.cell(call_.inputs[k].slot, &cells_[k]);
    for (size_t k = 0; k < results_.size(); ++k)
      if (call_.outputs[k].slot >= 0) binder.cell(call_.outputs[k].slot, &results_[k]);
    scratch_ = static_cast<char*>(binder.scratch());
  }
  Status run() override {
    const OneKernel one;
    for (size_t k = 0; k < cells_.size(); ++k) {
      given_[k] = cells_[k];
      if (staged_[k] < 0) continue;
      const Operand& o = call_.inputs[k];
      StridedCopy(o.dims, o.strides(), strides_of(o.dims, Layout::plain), size_bits(o.dtype) / 8)
          .run(cells_[k], place(staged_[k]));
      given_[k] = place(staged_[k]);
    }
    Status status = steps();
    if (!status && status.error().code == Code::cancelled)  // named by what the model has
      return error(Code::cancelled, "node \"" + escape(layer_) + "\"", "time is up");
    return status;
  }

 protected:
  virtual Status steps() = 0;

  int64_t take(int64_t bytes) {
    const int64_t at = scratch_bytes_;
    scratch_bytes_ += whole_lines(bytes);
    return at;
  }
  char* place(int64_t at) const { return scratch_ + at; }

  /// Along `axis` of `o`, which lies plain.
  Slices slices(const Operand& o, int64_t axis, bool back, bool result) {
    const auto a = static_cast<size_t>(axis);
    const int element = size_bits(o.dtype) / 8;
    std::vector<int64_t> dims = o.dims, apart = strides_of(o.dims, Layout::plain);
    Slices s{o.dims[a], apart[a] * element, back, {}, -1};
    const bool whole =
        std::all_of(dims.begin(), dims.begin() + axis, [](int64_t d) { return d == 1; });
    dims.erase(dims.begin() + axis), apart.erase(apart.begin() + axis);
    if (whole) return s;
    const std::vector<int64_t> dense = strides_of(dims, Layout::plain);
    s.copy = result ? StridedCopy(dims, dense, apart, element)
                    : StridedCopy(dims, apart, dense, element);
    s.scratch = take(s.copy.bytes());
    return s;
  }
  const void* read(const Slices& s, const void* from, int64_t i) const {
    const char* p = static_cast<const char*>(from) + s.offset(i);
    if (s.scratch < 0) return p;
    s.copy.run(p, place(s.scratch));
    return place(s.scratch);
  }
  /// Where slice `i` is to be written, and what is done then.
  void* to_write(const Slices& s, void* to, int64_t i) const {
    return s.scratch < 0 ? static_cast<char*>(to) + s.offset(i) : place(s.scratch);
  }
  void written(const Slices& s, void* to, int64_t i) const {
    if (s.scratch >= 0 && to) s.copy.run(place(s.scratch), static_cast<char*>(to) + s.offset(i));
  }

  const Operand& input(size_t k) const { return call_.inputs[k]; }
  /// A result that somebody reads; null: nobody does.
  const Operand* output(size_t k) const {
    return k < call_.outputs.size() && call_.outputs[k].slot >= 0 ? &call_.outputs[k] : nullptr;
  }
  void* result(size_t k) const { return k < results_.size() ? results_[k] : nullptr; }

  /// What the model declares of the node's results need not be what its graphs make. Such a node
  /// is interpreted, which says so.
  tl::unexpected<NotApplicable> declared() const {
    return not_applicable(escape(layer_), call_.node->op.text(),
                          "its sizes are not those of its graphs");
  }
  /// `o` (null: nobody reads it) has `bytes`, or a step along `axis` of it has.
  static bool fits(const Operand* o, int64_t bytes) { return !o || o->bytes() == bytes; }
  static bool fits(const Operand* o, int64_t bytes, int64_t axis) {
    return !o || o->bytes() == bytes * o->dims[static_cast<size_t>(axis)];
  }

  struct State {
    int64_t bytes = 0;
    int64_t places[2] = {};
  };
  State state(int64_t bytes) { return {bytes, {take(bytes), take(bytes)}}; }

  KernelCall call_;
  std::string layer_;
  std::vector<const void*> given_;  ///< the operands of this run, dense

 private:
  std::vector<const void*> cells_;
  std::vector<void*> results_;
  std::vector<int64_t> staged_;  ///< -1: dense where it lies
  char* scratch_ = nullptr;
  int64_t scratch_bytes_ = 0;
};

class ScanKernel final : public Control {
 public:
  using Control::Control;

  Applicable<> build(Context& context) {
    const Node& n = *call_.node;
    FERRULE_ASSIGN(body_, NestedRun::make(context, call_, (*call_.nested)[0]));
    const auto scanned = static_cast<size_t>(n.attrs.i("num_scan_inputs"));
    const size_t carried = n.inputs.size() - scanned, made = body_->outputs.size() - carried;
    auto number = [&](const char* name, size_t k) {
      const std::vector<int64_t> all = n.attrs.ints(name);
      return k < all.size() ? all[k] : 0;
    };
    auto axis_of = [&](const char* name, size_t k, const Operand& o) {
      const int64_t axis = number(name, k);
      return axis < 0 ? axis + o.rank() : axis;
    };
    for (size_t k = 0; k < carried; ++k) {
      const int64_t bytes = body_->bytes[k];
      if (bytes != body_->input_bytes[k] || !fits(&input(k), bytes) || !fits(output(k), bytes))
        return declared();
      states_.push_back(state(bytes));
    }
    for (size_t k = 0; k < scanned; ++k) {
      const Operand& o = input(carried + k);
      const int64_t axis = axis_of("scan_input_axes", k, o);
      if (!fits(&o, body_->input_bytes[carried + k], axis)) return declared();
      read_.push_back(slices(o, axis, number("scan_input_directions", k) != 0, false));
    }
    for (size_t k = 0; k < made; ++k) {
      const Operand* o = output(carried + k);
      const int64_t axis = o ? axis_of("scan_output_axes", k, *o) : 0;
      if (o && (axis < 0 || axis >= o->rank()))
        return not_applicable(escape(layer_), n.op.text(), "an axis that is none");
      if (!fits(o, body_->bytes[carried + k], axis)) return declared();
      written_.push_back(o ? slices(*o, axis, number("scan_output_directions", k) != 0, true)
                           : Slices{0, 0, false, {}, take(body_->bytes[carried + k])});
    }
    return {};
  }

  std::string text() const override { return "scan"; }
  bool interprets() const override { return body_->interprets(); }

 private:
  Status steps() override {
    const int64_t n = read_[0].steps;
    const size_t carried = states_.size();
    body_->capture(given_);
    std::copy_n(given_.begin(), carried, body_->inputs.begin());
    for (int64_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < read_.size(); ++k)
        body_->inputs[carried + k] = read(read_[k], given_[carried + k], i);
      for (size_t k = 0; k < carried; ++k)
        body_->outputs[k] = i + 1 == n && result(k) ? result(k) : place(states_[k].places[i % 2]);
      for (size_t k = 0; k < written_.size(); ++k)
        body_->outputs[carried + k] = to_write(written_[k], result(carried + k), i);
      FERRULE_TRY(body_->run());
      for (size_t k = 0; k < written_.size(); ++k) written(written_[k], result(carried + k), i);
      std::copy_n(body_->outputs.begin(), carried, body_->inputs.begin());
    }
    for (size_t k = 0; n == 0 && k < carried; ++k)
      if (result(k)) std::memcpy(result(k), given_[k], static_cast<size_t>(states_[k].bytes));
    return {};
  }

  std::unique_ptr<NestedRun> body_;
  std::vector<State> states_;
  std::vector<Slices> read_, written_;
};

class LoopKernel final : public Control {
 public:
  using Control::Control;

  Applicable<> build(Context& context) {
    FERRULE_ASSIGN(body_, NestedRun::make(context, call_, (*call_.nested)[0]));
    const size_t own = call_.node->inputs.size(), carried = own > 2 ? own - 2 : 0;
    for (size_t k = 0; k < carried; ++k) {
      const int64_t bytes = body_->bytes[1 + k];
      if (bytes != body_->input_bytes[2 + k] || !fits(&input(2 + k), bytes) ||
          !fits(output(k), bytes))
        return declared();
      states_.push_back(state(bytes));
    }
    for (size_t k = carried; k + 1 < body_->outputs.size(); ++k) {
      const Operand* o = output(k);
      if (o && (o->rank() < 1 || !fits(o, body_->bytes[1 + k], 0))) return declared();
      written_.push_back(
          o ? slices(*o, 0, false, true)
            : Slices{std::numeric_limits<int64_t>::max(), 0, false, {}, take(body_->bytes[1 + k])});
    }
    for (int64_t& at : going_) at = take(1);
    for (size_t k = 0; k < 2; ++k)
      if (k < own && input(k).present() && input(k).numel() != 1)
        return not_applicable(escape(layer_), call_.node->op.text(), "a condition of several");
    return {};
  }

  std::string text() const override { return "loop"; }
  bool interprets() const override { return body_->interprets(); }

 private:
  Status steps() override {
    const size_t carried = states_.size();
    // Inputs that are left out at the end are not there; captured values follow.
    const auto own = [&](size_t k) { return k < call_.node->inputs.size() ? given_[k] : nullptr; };
    const int64_t most =
        own(0) ? *static_cast<const int64_t*>(own(0)) : std::numeric_limits<int64_t>::max();
    const char yes = 1;
    const char* going = own(1) ? static_cast<const char*>(own(1)) : &yes;
    body_->capture(given_);
    for (size_t k = 0; k < carried; ++k) body_->inputs[2 + k] = given_[2 + k];
    int64_t i = 0;
    for (; i < most && *going; ++i) {
      body_->inputs[0] = &i;
      body_->inputs[1] = going;
      body_->outputs[0] = place(going_[i % 2]);
      for (size_t k = 0; k < carried; ++k) body_->outputs[1 + k] = place(states_[k].places[i % 2]);
      for (size_t k = 0; k < written_.size(); ++k) {
        if (i >= written_[k].steps) return stops(i + 1, written_[k].steps);
        body_->outputs[1 + carried + k] = to_write(written_[k], result(carried + k), i);
      }
      FERRULE_TRY(body_->run());
      going = place(going_[i % 2]);
      std::copy_n(body_->outputs.begin() + 1, carried, body_->inputs.begin() + 2);
    }
    for (size_t k = 0; k < written_.size(); ++k)
      if (result(carried + k) && i != written_[k].steps) return stops(i, written_[k].steps);
    for (size_t k = 0; k < carried; ++k)
      if (result(k))
        std::memcpy(result(k), body_->inputs[2 + k], static_cast<size_t>(states_[k].bytes));
    return {};
  }
  Status stops(int64_t turns, int64_t planned) const {
    return error(Code::bad_shape, escape(layer_),
                 fmt::format("{} turns, {} were planned", turns, planned));
  }

  std::unique_ptr<NestedRun> body_;
  std::vector<State> states_;
  std::vector<Slices> written_;
  int64_t going_[2] = {};  ///< whether the loop goes on
};

class BranchKernel final : public Control {
 public:
  using Control::Control;

  Applicable<> build(Context& context) {
    for (size_t b = 0; b < 2; ++b) {
      FERRULE_ASSIGN(branches_[b], NestedRun::make(context, call_, (*call_.nested)[b]));
      for (size_t k = 0; k < branches_[b]->outputs.size(); ++k) {
        if (!fits(output(k), branches_[b]->bytes[k])) return declared();
        if (unread_.size() <= k) unread_.push_back(-1);
        if (!output(k)) unread_[k] = take(branches_[b]->bytes[k]);
      }
    }
    if (input(0).numel() != 1)
      return not_applicable(escape(layer_), call_.node->op.text(), "a condition of several");
    return {};
  }

  std::string text() const override { return "branch"; }
  bool interprets() const override {
    return branches_[0]->interprets() || branches_[1]->interprets();
  }

 private:
  Status steps() override {
    NestedRun& taken = *branches_[*static_cast<const char*>(given_[0]) ? 0 : 1];
    taken.capture(given_);
    for (size_t k = 0; k < taken.outputs.size(); ++k)
      taken.outputs[k] = output(k) ? result(k) : place(unread_[k]);
    return taken.run();
  }

  std::unique_ptr<NestedRun> branches_[2];
  std::vector<int64_t> unread_;
};

template <class K>
Applicable<KernelPtr> built(Context& context, const KernelCall& call) {
  if (!call.nested)
    return not_applicable(escape(call.layer), call.node->op.text(), "its graphs are not planned");
  auto kernel = std::make_unique<K>(call);
  FERRULE_TRY(kernel->build(context));
  return kernel;
}

}  // namespace

Applicable<KernelPtr> make_scan(Context& context, const KernelCall& call) {
  return built<ScanKernel>(context, call);
}
Applicable<KernelPtr> make_loop(Context& context, const KernelCall& call) {
  return built<LoopKernel>(context, call);
}
Applicable<KernelPtr> make_branch(Context& context, const KernelCall& call) {
  return built<BranchKernel>(context, call);
}

}  // namespace ferrule::cpu
