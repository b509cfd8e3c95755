// Two operators that slide windows over an image as one parallel region: a convolution and its
// pooling, a depthwise and a 1x1 convolution. A thread walks down its share of the result strip by
// strip: it computes the rows that the strip's windows reach (keeping those it has from the strip
// before) into a buffer that stays in its L2 cache, then the strip itself. Both steps are the
// ordinary kernels for images of so many rows, on one thread.
#include "engine/contract/stages.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>

#include "engine/semantics/infer.h"
#include "engine/semantics/operator_kinds.h"
#include "runtime/cpu/implementations.h"
#include "runtime/cpu/library.h"
#include "runtime/parallel.h"
#include "runtime/scoped_threads.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

constexpr int64_t kCacheLine = 64;
constexpr int64_t kUsualCache = int64_t{1} << 20;
constexpr int64_t kThreadProducts = 524288;  // below this much a thread is not worth waking

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/// Operator, attributes and inputs; windows have no nested graphs.
Node plain(const Node& n) {
  Node c;
  c.op = n.op, c.domain = n.domain, c.name = n.name, c.inputs = n.inputs, c.attrs = n.attrs;
  return c;
}

/// One of the two operators, for whole images.
struct Stage {
  Node node;
  std::vector<Operand> inputs;  ///< the anchor's, then the post-ops'
  Operand output;
  std::vector<PostOp> post_ops;
  Window window;
  Work work = Work::convolution;
  int64_t row_bytes() const {
    return output.bytes() / std::max<int64_t>(1, output.dims[0] * output.dims[2]);
  }
  /// Whether rows of the operand go with rows of the result.
  bool follows(size_t input) const {
    return input >= node.inputs.size() && inputs[input].dims == output.dims &&
           !inputs[input].constant;
  }
};

/// Rows of the result, and what they need.
struct Strip {
  int64_t begin, end;        ///< rows of the result
  int64_t from, to;          ///< rows of the image that there are
  int64_t pad_top, pad_end;  ///< rows of padding around them
};

Strip strip_of(const Stage& s, int64_t begin, int64_t end) {
  const Window& w = s.window;
  const int64_t first = begin * w.strides[0] - w.pads_begin[0];
  const int64_t last =
      (end - 1) * w.strides[0] - w.pads_begin[0] + (w.kernel[0] - 1) * (w.dilations[0] + 1) + 1;
  const int64_t height = s.inputs[0].dims[2];
  return {begin,
          end,
          std::max<int64_t>(0, first),
          std::min(height, last),
          std::max<int64_t>(0, -first),
          std::max<int64_t>(0, last - height)};
}

/// A kernel for strips of one form, and the places where it keeps addresses.
struct Piece {
  struct Cell {
    void** where;
    dnnl_memory* memory;
  };
  Node node;
  KernelPtr kernel;
  std::vector<std::vector<Cell>> cells;  ///< by operand: inputs, then the result
  void set(size_t operand, void* p) const {
    for (const Cell& c : cells[operand]) {
      if (c.where)
        *c.where = p;
      else
        dnnl_memory_set_data_handle(c.memory, p);
    }
  }
};

class PieceBinder final : public Binder {
 public:
  PieceBinder(Piece& piece, void* scratch) : piece_(piece), scratch_(scratch) {}
  void cell(int slot, const void** where) override {
    add(slot, {const_cast<void**>(where), nullptr});
  }
  void cell(int slot, void** where) override { add(slot, {where, nullptr}); }
  void memory(int slot, dnnl_memory* m) override { add(slot, {nullptr, m}); }
  void* scratch() override { return scratch_; }

 private:
  void add(int slot, Piece::Cell c) { piece_.cells[static_cast<size_t>(slot)].push_back(c); }
  Piece& piece_;
  void* scratch_;
};

/// One call of a piece; offsets in bytes, by operand, from where the operand begins.
struct ChainStep {
  const Piece* piece = nullptr;
  size_t stage = 0;
  std::vector<int64_t> offsets;
  int64_t keep_from = 0, keep_bytes = 0;  ///< first, in the buffer: rows that move to its front
};

/// What one thread does, with the kernels it does it with.
struct Part {
  std::map<std::vector<int64_t>, Piece> pieces[2];  ///< by the form of the strip
  std::vector<ChainStep> steps;
  char* buffer = nullptr;
  Status status;
};

class Tiles final : public Kernel {
 public:
  Tiles(std::string text, std::string layer, std::array<Stage, 2> stages)
      : text_(std::move(text)), layer_(std::move(layer)), stages_(std::move(stages)) {}

  Applicable<> build(Context& context) {
    ScopedThreads serial(1);  // the kernels were made for one thread
    const int64_t team =
        std::max<int64_t>(1, std::min<int64_t>(wanted_, rows() * stages_[1].output.dims[0]));
    const int64_t l2 =
        context.target && context.target->l2_bytes ? context.target->l2_bytes : kUsualCache;
    const int64_t images = stages_[1].output.dims[0],
                  ranges = std::min(rows(), (team + images - 1) / images);
    parts_ = std::vector<Part>(static_cast<size_t>(std::min(team, images * ranges)));
    const auto count = static_cast<int64_t>(parts_.size()), walks = images * ranges;
    for (int64_t p = 0; p < count; ++p)
      for (int64_t k = walks * p / count; k < walks * (p + 1) / count; ++k)
        FERRULE_TRY(walk(context, parts_[static_cast<size_t>(p)], k / ranges,
                         rows() * (k % ranges) / ranges, rows() * (k % ranges + 1) / ranges,
                         l2 / kBufferShare));
    return {};
  }
  void threads_wanted(int64_t n) { wanted_ = n; }

  int64_t scratch_bytes() const override {
    return static_cast<int64_t>(parts_.size()) * part_bytes() + kCacheLine;
  }

  void bind(Binder& binder) override {
    for (size_t s = 0; s < 2; ++s) {
      const Stage& stage = stages_[s];
      bases_[s].assign(stage.inputs.size() + 1, nullptr);
      for (size_t k = 0; k < stage.inputs.size(); ++k)
        if (stage.inputs[k].slot >= 0) binder.cell(stage.inputs[k].slot, &bases_[s][k]);
    }
    binder.cell(stages_[1].output.slot, &bases_[1].back());
    const auto scratch = reinterpret_cast<uintptr_t>(binder.scratch());
    char* at = reinterpret_cast<char*>(round_up(static_cast<int64_t>(scratch), kCacheLine));
    for (Part& part : parts_) {
      part.buffer = at;
      for (auto& pieces : part.pieces)
        for (auto& [form, piece] : pieces) {
          piece.cells.assign(piece.cells.size(), {});
          PieceBinder inner(piece, at + round_up(buffer_bytes_, kCacheLine));
          piece.kernel->bind(inner);
        }
      at += part_bytes();
    }
  }

  Status run() override {
    const auto count = static_cast<int64_t>(parts_.size());
    on_team(count, [&](int me, int team) {
      if (team > 1) return run_parts(me, team);
      ScopedThreads serial(1);  // the kernels were made for one thread
      run_parts(0, 1);
    });
    for (Part& part : parts_)
      if (!part.status) return part.status;
    return {};
  }

  std::string text() const override {
    const Part& part = parts_[0];
    return fmt::format("{}:{}+{}", text_, part.pieces[0].begin()->second.kernel->text(),
                       part.pieces[1].begin()->second.kernel->text());
  }

 private:
  static constexpr int64_t kTileRows = 4;
  static constexpr int64_t kBufferShare =
      4;  ///< of the L2 cache; weights and the image want the rest

  int64_t rows() const { return stages_[1].output.dims[2]; }
  int64_t part_bytes() const {
    return round_up(buffer_bytes_, kCacheLine) + round_up(scratch_bytes_, kCacheLine);
  }

  /// Strips of one image from the result's row `first` on to `last`.
  Applicable<> walk(Context& context, Part& part, int64_t image, int64_t first, int64_t last,
                    int64_t cache) {
    const Stage& front = stages_[0];
    const Window& w = stages_[1].window;
    const int64_t fit =
        std::max<int64_t>(1, (cache / front.row_bytes() - w.kernel[0]) / w.strides[0] + 1);
    // Even strips, of rows that whole tiles of Winograd's fill.
    const int64_t strips = (last - first + fit - 1) / fit,
                  unit = kTileRows / std::gcd(kTileRows, w.strides[0]);
    int64_t height = round_up((last - first + strips - 1) / strips, unit);
    if (height > fit) height = std::max<int64_t>(1, fit >= unit ? fit / unit * unit : fit);
    int64_t begin = 0, end = 0;  // rows that lie in the buffer
    for (int64_t row = first; row < last; row += height) {
      const Strip back = strip_of(stages_[1], row, std::min(last, row + height));
      if (back.to <= back.from) return refuse("a window lies in the padding alone");
      ChainStep fill, use;
      const int64_t kept = std::max<int64_t>(0, end - back.from);
      fill.keep_from = (back.from - begin) * front.row_bytes();
      fill.keep_bytes = kept * front.row_bytes();
      begin = back.from;
      end = back.to;
      buffer_bytes_ = std::max(buffer_bytes_, (end - begin) * front.row_bytes());
      if (begin + kept < end) {
        const Strip need = strip_of(front, begin + kept, end);
        if (need.to <= need.from) return refuse("a window lies in the padding alone");
        FERRULE_TRY(add(context, part, 0, need, fill));
        offsets(fill, need, image);
        fill.offsets.back() = kept * front.row_bytes();
      }
      part.steps.push_back(std::move(fill));
      FERRULE_TRY(add(context, part, 1, back, use));
      offsets(use, back, image);
      use.offsets[0] = 0;
      part.steps.push_back(std::move(use));
    }
    return {};
  }

  tl::unexpected<NotApplicable> refuse(std::string_view why) const {
    return not_applicable(escape(layer_), text_, why);
  }

  /// Where the strip's operands begin.
  void offsets(ChainStep& step, const Strip& strip, int64_t image) const {
    const Stage& s = stages_[step.stage];
    step.offsets.assign(s.inputs.size() + 1, 0);
    auto at = [&](const Operand& o, int64_t row) {
      const std::vector<int64_t> strides = o.strides();
      return (image * strides[0] + row * strides[2]) * size_bytes(o.dtype, 1);
    };
    step.offsets[0] = at(s.inputs[0], strip.from);
    for (size_t k = 1; k < s.inputs.size(); ++k)
      if (s.follows(k)) step.offsets[k] = at(s.inputs[k], strip.begin);
    step.offsets.back() = at(s.output, strip.begin);
  }

  /// Finds or makes the part's kernel for strips of this form.
  Applicable<> add(Context& context, Part& part, size_t stage, const Strip& strip,
                   ChainStep& step) {
    const Stage& s = stages_[stage];
    step.stage = stage;
    auto [it, fresh] = part.pieces[stage].try_emplace(
        {strip.end - strip.begin, strip.to - strip.from, strip.pad_top, strip.pad_end});
    Piece& piece = it->second;
    step.piece = &piece;
    if (!fresh) return {};
    piece.node = plain(s.node);
    piece.node.attrs.set("auto_pad", std::string("NOTSET"));
    const int64_t asked = std::min(
        strip.pad_end, std::max<int64_t>(0, s.window.asked_end[0]));  // averages count no more
    piece.node.attrs.set("pads", std::vector<int64_t>{strip.pad_top, s.window.pads_begin[1], asked,
                                                      s.window.asked_end[1]});
    piece.cells.resize(s.inputs.size() + 1);
    KernelCall call;
    call.layer = layer_;
    call.node = &piece.node;
    call.inputs = s.inputs;
    call.outputs = {s.output};
    call.post_ops = s.post_ops;
    Operand& x = call.inputs[0];
    if (x.layout == Layout::plain) x.plane = x.dims[2] * x.dims[3];
    x.dims[0] = 1;
    x.dims[2] = strip.to - strip.from;
    for (size_t k = 0; k < call.inputs.size(); ++k) {
      Operand& o = call.inputs[k];
      if (s.follows(k)) o.dims[0] = 1, o.dims[2] = strip.end - strip.begin;
      if (o.present() && !o.constant) o.slot = static_cast<int>(k);
    }
    call.outputs[0].dims[0] = 1;
    call.outputs[0].dims[2] = strip.end - strip.begin;
    call.outputs[0].slot = static_cast<int>(call.inputs.size());
    call.work = s.work;
    const Factory make = s.work == Work::convolution ? make_chosen : make_pool;
    FERRULE_ASSIGN(piece.kernel, make(context, call));
    scratch_bytes_ = std::max(scratch_bytes_, piece.kernel->scratch_bytes());
    return {};
  }

  void run_parts(int me, int team) {
    for (size_t p = static_cast<size_t>(me); p < parts_.size(); p += static_cast<size_t>(team)) {
      parts_[p].status = {};
      for (const ChainStep& step : parts_[p].steps)
        if (parts_[p].status = run_step(parts_[p], step); !parts_[p].status) [[unlikely]]
          return;
    }
  }

  Status run_step(const Part& part, const ChainStep& step) const {
    if (step.keep_bytes && step.keep_from)
      std::memmove(part.buffer, part.buffer + step.keep_from, static_cast<size_t>(step.keep_bytes));
    if (!step.piece) return {};
    const std::vector<void*>& bases = bases_[step.stage];
    for (size_t k = 0; k < bases.size(); ++k) {
      const bool inside = step.stage == 0 ? k + 1 == bases.size() : k == 0;
      char* base = inside ? part.buffer : static_cast<char*>(bases[k]);
      step.piece->set(k, base + step.offsets[k]);
    }
    return step.piece->kernel->run();
  }

  std::string text_, layer_;
  std::array<Stage, 2> stages_;
  std::vector<Part> parts_;
  std::array<std::vector<void*>, 2> bases_;
  int64_t wanted_ = 1, buffer_bytes_ = 0, scratch_bytes_ = 0;
};

/// A stage's operands, found among the group's.
Applicable<Stage> stage_of(const KernelCall& call, const GroupStage& t) {
  const Graph& g = *call.graph;
  auto refuse = [&](std::string_view why) {
    return not_applicable(escape(call.layer), "tiles", why);
  };
  Stage s;
  s.node = plain(g.node(t.node));
  s.work = work_of(pooling_of(s.node) ? "pool" : "conv", s.node);
  auto operand = [&](ValueId v) -> Operand {
    if (!v) return {};
    for (size_t k = 0; k < g.inputs().size() && k < call.inputs.size(); ++k)
      if (g.inputs()[k] == v) return call.inputs[k];
    if (const Tensor* c = g.constant(v)) return {c->dtype(), c->dims(), Layout::plain, -1, c};
    const Type& type = g.value(v).type;
    Operand between{type.dtype, {}, Layout::channels_last, -1, nullptr};
    if (type.shape)
      if (auto dims = constant_shape(*type.shape)) between.dims = *dims;
    return between;
  };
  for (ValueId v : s.node.inputs) s.inputs.push_back(operand(v));
  s.post_ops = t.post_ops;
  for (PostOp& op : s.post_ops) {
    if (op.operand < 0) continue;
    s.inputs.push_back(operand(t.operands[static_cast<size_t>(op.operand)]));
    op.operand = static_cast<int>(s.inputs.size()) - 1;
  }
  s.output = g.outputs()[0] == t.result ? call.outputs[0] : operand(t.result);
  if (s.inputs[0].rank() != 4 || s.output.rank() != 4)
    return refuse("sizes that are not known, or no image");
  if (s.inputs[0].dtype != DType::f32 || s.output.dtype != DType::f32)
    return refuse(name(s.inputs[0].dtype));
  if (s.inputs[0].constant || s.inputs[0].numel() == 0 || s.output.numel() == 0)
    return refuse("a constant or empty image");
  if (!channels_last(s.output)) return refuse("another layout");
  for (size_t k = s.node.inputs.size(); k < s.inputs.size(); ++k)
    if (s.follows(k) && !channels_last(s.inputs[k])) return refuse("another layout");
  KernelCall whole;
  whole.layer = call.layer;
  whole.node = &s.node;
  std::vector<int64_t> kernel = s.node.attrs.ints("kernel_shape");
  if (s.work == Work::convolution) kernel = {s.inputs[1].dims.begin() + 2, s.inputs[1].dims.end()};
  FERRULE_ASSIGN(s.window, window_of(whole, s.inputs[0].dims, s.output.dims, kernel));
  return s;
}

double products(const Stage& s) {
  const double y = static_cast<double>(s.output.numel());
  const double taps = s.work == Work::convolution
                          ? static_cast<double>(s.inputs[1].numel() / s.inputs[1].dims[0])
                          : static_cast<double>(s.window.kernel[0] * s.window.kernel[1]);
  return y * taps;
}

}  // namespace

Applicable<KernelPtr> make_window_chain(Context& context, const KernelCall& call) {
  FERRULE_ASSIGN(std::vector<GroupStage> chain,
                 read_stages(*call.graph, call.graph->order(), *context.ops));
  FERRULE_TRY(read_epilogues(*call.graph, chain, *context.ops));
  FERRULE_ASSIGN(Stage first, stage_of(call, chain[0]));
  FERRULE_ASSIGN(Stage second, stage_of(call, chain[1]));
  const auto useful = static_cast<int64_t>((products(first) + products(second)) /
                                           static_cast<double>(kThreadProducts));
  std::string text = second.work == Work::convolution ? "depthwise_pointwise" : "conv_pool";
  const int64_t wanted = std::clamp<int64_t>(useful, 1, threads());
  auto kernel = std::make_unique<Tiles>(std::move(text), call.layer,
                                        std::array<Stage, 2>{std::move(first), std::move(second)});
  kernel->threads_wanted(wanted);
  FERRULE_TRY(kernel->build(context));
  // Strips of other forms may have the weights in other orders, or in the model's own: they stay.
  context.library.reversible.clear();
  return kernel;
}

}  // namespace ferrule::cpu
