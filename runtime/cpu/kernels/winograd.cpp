// Winograd convolution F(m x m, 3 x 3) for m = 2 and 4: a tile of m x m results costs (m + 2)^2
// products a pair of channels instead of 9 m^2, which is 2.25 or 4 times fewer. The work goes in
// blocks of tiles whose transformed inputs and products stay in a core's cache, and the tail is
// applied where the results are written.
#include <algorithm>
#include <cmath>
#include <mutex>

#include "runtime/cpu/kernels/vector_tail.h"
#include "runtime/cpu/kernels/vector_work.h"
#include "runtime/cpu/kernels/winograd_weights.h"
#include "runtime/parallel.h"
#include "runtime/sliding_window.h"

namespace ferrule::cpu {
namespace {

using namespace winograd;

auto refuse(const KernelCall& call, std::string_view why) {
  return not_applicable(escape(call.layer), "Winograd", why);
}

// --- what it takes
// ----------------------------------------------------------------------------------

Applicable<Shape> shape_of(const KernelCall& call, int tile) {
  const Operand &x = call.inputs[kX], &w = call.inputs[kW], &y = call.outputs[0];
  if (!w.constant || w.dtype != DType::f32)
    return refuse(call, "the weights are not constant numbers of type f32");
  if (!is_image(x) || !is_image(y)) return refuse(call, "not channels-last images of type f32");
  if (w.dims[2] != 3 || w.dims[3] != 3 || call.node->attrs.i("group", 1) != 1)
    return refuse(call, "not 3x3, or groups");
  FERRULE_ASSIGN(Window window, window_of(call, x.dims, y.dims, {3, 3}));
  for (size_t k = 0; k < 2; ++k)
    if (window.strides[k] != 1 || window.dilations[k] != 0)
      return refuse(call, "strides or dilations");
  Shape s;
  s.tile = tile;
  s.images = x.dims[0], s.c = x.dims[1], s.h = x.dims[2], s.w = x.dims[3];
  s.k = y.dims[1], s.oh = y.dims[2], s.ow = y.dims[3];
  s.pad_top = window.pads_begin[0], s.pad_left = window.pads_begin[1];
  s.tiles_h = parts(s.oh, tile), s.tiles_w = parts(s.ow, tile);
  s.x_pixel = x.pixel(), s.y_pixel = y.pixel();
  if (s.x_pixel < 0 || s.y_pixel < 0) return refuse(call, "pixels that do not lie at one distance");
  if (s.rows() == 0 || s.k == 0 || s.c == 0) return refuse(call, "an empty image");
  return s;
}

const Functions* functions(const Context& context, int tile) {
  const VectorIsa isa = vector_isa(context);
  if (isa == VectorIsa::none) return nullptr;
  return (isa == VectorIsa::avx512 ? kAvx512 : kAvx2) + (tile == 4);
}

// --- the kernel
// -------------------------------------------------------------------------------------

/// How the work is cut. Sums do not depend on it, so results are the same for any number of
/// threads.
struct Schedule {
  bool by_channels = false;  ///< threads share V and split output channels, rather than rows
  int64_t groups = 0;        ///< of all rows
  int64_t block_groups = 0;  ///< of a block
  int threads = 1;
};

/// The model's weights during one run; they are written again if they were given back. From when
/// they are asked for until the run ends they are held: another thread may be making a plan that
/// would give them back.
class OwnWeights {
 public:
  explicit OwnWeights(const Tensor& weights) : weights_(weights) {}
  OwnWeights(const OwnWeights&) = delete;
  ~OwnWeights() {
    if (held_) weights_.residence()->let_go();
  }
  static const float* of(void* self) { return static_cast<OwnWeights*>(self)->data(); }

 private:
  const float* data() {
    std::call_once(asked_, [&] {
      held_ = weights_.residence() != nullptr;
      if (held_) weights_.residence()->hold();
    });
    return weights_.as<float>().data();
  }
  const Tensor& weights_;
  std::once_flag asked_;
  bool held_ = false;
};

class Winograd final : public Kernel {
 public:
  Winograd(const Shape& s, const Functions& f, const Schedule& schedule)
      : s_(s),
        f_(f),
        schedule_(schedule),
        zeros_(static_cast<size_t>(up(s.c, f.lanes)), 0.0f),
        vectors_(parts(s.k, f.lanes)),
        blocks_(channel_blocks(vectors_)) {}

  Applicable<> build(Context& context, const KernelCall& call) {
    x_ = add(call.inputs[kX]);
    if (const Operand* b = call.own_input(kB)) bias_ = add(*b);
    FERRULE_TRY(tail_.build(call, "Winograd"));
    y_slot_ = call.outputs[0].slot;
    weights_ = *call.inputs[kW].constant;
    u_ = transformed_weights(context.library, weights_, s_, f_.lanes);
    return {};
  }

  int64_t scratch_bytes() const override {
    return (v_floats() * (schedule_.by_channels ? 1 : schedule_.threads) +
            m_floats() * schedule_.threads) *
           4;
  }

  void bind(Binder& binder) override {
    for (Cell& c : cells_)
      if (c.slot >= 0) binder.cell(c.slot, &c.data);
    tail_.bind(binder);
    binder.cell(y_slot_, &y_);
    scratch_ = static_cast<float*>(binder.scratch());
  }

  std::string text() const override {
    return fmt::format("winograd_{0}x{0}:{1}{2}", s_.tile, f_.lanes == 16 ? "avx512" : "avx2",
                       schedule_.by_channels ? ":channels" : "");
  }

  Status run() override {
    const std::vector<Step>& steps = tail_.steps();
    OwnWeights weights(weights_);
    Tensors t{data(x_),
              zeros_.data(),
              static_cast<const float*>(u_.data),
              &weights,
              OwnWeights::of,
              nullptr,
              steps.data(),
              static_cast<int>(steps.size()),
              static_cast<float*>(y_)};
    if (bias_ >= 0) t.bias = data(bias_);
    if (schedule_.by_channels)
      run_channels(t);
    else
      run_rows(t);
    return {};
  }

 private:
  struct Cell {
    int slot;
    const void* data;
  };
  int add(const Operand& o) {
    cells_.push_back({o.slot, o.constant ? o.constant->data() : nullptr});
    return static_cast<int>(cells_.size()) - 1;
  }
  const float* data(int cell) const {
    return static_cast<const float*>(cells_[static_cast<size_t>(cell)].data);
  }

  int64_t capacity() const { return schedule_.block_groups * f_.rows; }
  // A line more, so that the elements of a tile do not fall into the same set of the cache.
  int64_t v_stride() const { return capacity() * up(s_.c, f_.lanes) + 16; }
  int64_t m_stride() const {
    return capacity() * std::min<int64_t>(kBlockVectors, vectors_) * f_.lanes + 16;
  }
  int64_t v_floats() const { return v_stride() * s_.elements(); }
  int64_t m_floats() const { return m_stride() * s_.elements(); }

  void run_rows(const Tensors& t) {
    parallel_for(schedule_.groups, 1, [&](int64_t begin, int64_t end) {
      float* scratch = scratch_ + (v_floats() + m_floats()) * parallel_thread();
      const int64_t blocks = parts(end - begin, schedule_.block_groups);
      for (int64_t k = 0; k < blocks; ++k) {
        const int64_t from = begin + (end - begin) * k / blocks,
                      to = begin + (end - begin) * (k + 1) / blocks;
        const int64_t first = from * f_.rows, last = std::min(to * f_.rows, s_.rows());
        Block b{scratch, first, last - first, capacity(), v_stride()};
        f_.input(s_, t, b, 0, b.rows);
        products(t, b, scratch + v_floats(), 0, static_cast<int64_t>(blocks_.size()) - 1);
      }
    });
  }

  void run_channels(const Tensors& t) {
    const OneKernel one;  // the transformed image stays in the cache
    Block b{scratch_, 0, s_.rows(), capacity(), v_stride()};
    parallel_for(s_.rows(), 4, [&](int64_t begin, int64_t end) { f_.input(s_, t, b, begin, end); });
    parallel_for(static_cast<int64_t>(blocks_.size()) - 1, 1, [&](int64_t begin, int64_t end) {
      products(t, b, scratch_ + v_floats() + m_floats() * parallel_thread(), begin, end);
    });
  }

  void products(const Tensors& t, const Block& b, float* m, int64_t begin, int64_t end) const {
    for (int64_t k = begin; k < end; ++k) {
      const Pass pass{m, blocks_[static_cast<size_t>(k)], blocks_[static_cast<size_t>(k) + 1],
                      m_stride()};
      f_.product(s_, t, b, pass);
      f_.output(s_, t, b, pass);
    }
  }

  Shape s_;
  const Functions& f_;
  Schedule schedule_;
  Packed u_;
  Tensor weights_;
  std::vector<float> zeros_;
  int64_t vectors_ = 0;
  std::vector<int64_t> blocks_;
  std::vector<Cell> cells_;
  VectorTail tail_;
  int x_ = -1, bias_ = -1, y_slot_ = -1;
  void* y_ = nullptr;
  float* scratch_ = nullptr;
};

Schedule schedule_of(const Shape& s, const Functions& f) {
  Schedule out;
  out.threads = threads();
  out.groups = parts(s.rows(), f.rows);
  // So many rows that weights are used often enough while they are in the first cache; more of the
  // small tiles.
  const int64_t most = (s.tile == 2 ? 96 : 48) / f.rows,
                blocks = parts(parts(s.k, f.lanes), kBlockVectors);
  // Rows are the better split (a thread's V stays in its own cache), unless threads would have
  // nothing to do.
  out.by_channels = out.groups <= most &&
                    imbalance(out.groups, out.threads) > 1.2 * imbalance(blocks, out.threads);
  out.block_groups = out.by_channels ? out.groups : std::min(most, parts(out.groups, out.threads));
  return out;
}

/// Costs in vector multiply-adds, of which a core does two a cycle, measured on a Zen 5. Threads
/// are left out, so that results do not depend on their number.
struct Costs {
  double transform_2 = 220,
         transform_4 = 560;                  ///< of one tile and vector of channels, there or back
  double waste = 1.1, library_waste = 1.05;  ///< over the arithmetic of the products
  double bytes = 4;  ///< of weights that come from memory in the time of one
};

double direct_cost(const Shape& s, int lanes, const Costs& c) {
  const double sums = static_cast<double>(s.images * s.oh * s.ow * parts(s.k, lanes)),
               weights = 9.0 * static_cast<double>(s.c * s.k) * 4;
  return 9 * sums * static_cast<double>(s.c) * c.library_waste + weights / c.bytes;
}

double winograd_cost(const Shape& s, int lanes, const Costs& c) {
  const auto in = static_cast<double>(parts(s.c, lanes)),
             out = static_cast<double>(parts(s.k, lanes));
  const double products = s.elements() * in * out * lanes, rows = static_cast<double>(s.rows());
  return rows * (products * c.waste + (in + out) * (s.tile == 2 ? c.transform_2 : c.transform_4)) +
         products * lanes * 4 / c.bytes;
}

}  // namespace

int winograd_tile(const Context& context, const KernelCall& call) {
  const Costs costs;
  int best = 0;
  double least = 0;
  for (int tile : {2, 4}) {
    const Functions* f = functions(context, tile);
    auto shape = shape_of(call, tile);
    if (!f || !shape) return 0;
    // A gain that is certain: the model is rough, and direct sums are the simpler thing.
    if (tile == 2) least = direct_cost(*shape, f->lanes, costs) / 1.1;
    const double cost = winograd_cost(*shape, f->lanes, costs);
    if (cost < least) best = tile, least = cost;
  }
  return best;
}

Applicable<KernelPtr> make_winograd(Context& context, const KernelCall& call, int tile) {
  if (context.strict)
    return refuse(call, "results are to be strict: it adds up other products than the formula");
  FERRULE_ASSIGN(Shape s, shape_of(call, tile));
  const Functions* f = functions(context, tile);
  if (!f) return refuse(call, "neither AVX-512 nor AVX2 here");
  auto kernel = std::make_unique<Winograd>(s, *f, schedule_of(s, *f));
  FERRULE_TRY(kernel->build(context, call));
  return kernel;
}

}  // namespace ferrule::cpu
