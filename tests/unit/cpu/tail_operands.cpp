// One operand behind every kernel that takes a tail, in every shape that broadcasts to the result:
// each rank, constant or computed, in both layouts, in the result's memory. A kernel computes what
// the broadcast says or refuses; what plans give it, it takes.
#include "runtime/cpu/tail_operand.h"

#include <optional>

#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

/// A kernel on its own: its operator, operands and result.
struct TailCase {
  std::string op;
  Factory make;
  Dims x, w, y;
  int64_t group = 1, stride = 1, pad = 0;
  bool image = true;     ///< channels-last in and out; else plain matrices
  bool plain_x = false;  ///< the image is read plain
  bool library = true;   ///< whether it takes all that plans give it; else some other kernel does
  bool constant_w = true;
  int channel() const { return image ? 1 : w.size() > 1 ? static_cast<int>(y.size()) - 1 : -1; }
};

enum class Kind { constant, plain, last, in_place };

Layout layout_of(const TailCase& a) { return a.image ? Layout::channels_last : Layout::plain; }

void set_up(Harness& h, const TailCase& a) {
  if (a.image) {
    h.node.attrs.set("group", a.group);
    h.node.attrs.set("strides", Dims(a.y.size() - 2, a.stride));
    h.node.attrs.set("pads", Dims(2 * (a.y.size() - 2), a.pad));
  }
  h.input(random_tensor(a.x, 1), a.plain_x ? Layout::plain : layout_of(a));
  const Tensor w = random_tensor(a.w, 2);
  a.constant_w ? h.constant(w) : h.input(w);
}

/// numpy's rule, element by element.
std::vector<double> added(const Tensor& base, const Tensor& operand) {
  const Dims y = base.dims(), d = operand.dims(), strides = strides_of(d, Layout::plain);
  const size_t missing = y.size() - d.size();
  std::vector<double> out;
  each_index(y, [&](const Dims& i, int64_t k) {
    int64_t at = 0;
    for (size_t a = 0; a < d.size(); ++a) at += d[a] == 1 ? 0 : i[a + missing] * strides[a];
    out.push_back(base.at_f64(k) + operand.at_f64(at));
  });
  return out;
}

/// The result with the operand, or nothing where the kernel refuses.
std::optional<Tensor> with_operand(const TailCase& a, const Tensor& operand, Kind kind,
                                   const Target& target) {
  Harness h(a.op);
  h.target = &target;
  set_up(h, a);
  int slot = static_cast<int>(h.call.inputs.size());
  if (kind == Kind::constant) {
    h.constant(operand);
    h.node.inputs.pop_back();
  } else {
    slot = h.operand(operand, kind == Kind::plain ? Layout::plain : layout_of(a));
  }
  h.binary("add", slot);
  h.output(DType::f32, a.y, layout_of(a), kind == Kind::in_place ? slot : -1);
  auto kernel = h.make(a.make);
  if (!kernel) {
    CHECK(kernel.error().not_applicable());
    return std::nullopt;
  }
  REQUIRE((*kernel)->run().has_value());
  return h.result();
}

/// Every shape of at most `y`'s rank whose axes are y's or 1.
std::vector<Dims> shapes_against(const Dims& y) {
  std::vector<Dims> out;
  for (size_t rank = 0; rank <= y.size(); ++rank)
    for (size_t kept = 0; kept < size_t{1} << rank; ++kept) {
      Dims d(rank, 1);
      for (size_t a = 0; a < rank; ++a)
        if (kept >> a & 1) d[a] = y[y.size() - rank + a];
      if (std::find(out.begin(), out.end(), d) == out.end()) out.push_back(d);
    }
  return out;
}

/// What plans let the library's kernels have: engine/contract/anchored.cpp.
bool planned(const TailCase& a, const Dims& d, Kind kind) {
  const Broadcast spread = ferrule::broadcast_of(d, a.y, a.channel());
  if (spread != Broadcast::full) return spread != Broadcast::other;
  return !a.image || kind == Kind::constant || (kind == Kind::last && d.size() == a.y.size());
}

/// How many operands the kernel took.
int check_operands(const TailCase& a, const Target& target) {
  Harness alone(a.op);
  alone.target = &target;
  set_up(alone, a);
  alone.output(DType::f32, a.y, layout_of(a));
  auto kernel = alone.make(a.make);
  REQUIRE_MESSAGE(kernel.has_value(), (kernel ? "" : kernel.error().reason()));
  REQUIRE((*kernel)->run().has_value());
  const Tensor base = alone.result();
  int taken = 0;
  for (const Dims& d : shapes_against(a.y))
    for (Kind kind : {Kind::constant, Kind::plain, Kind::last, Kind::in_place}) {
      if (kind == Kind::in_place && d != a.y) continue;
      CAPTURE(str(Type{DType::f32, Shape(d.begin(), d.end())}));
      CAPTURE(static_cast<int>(kind));
      const Tensor operand = random_tensor(d, 3);
      const auto got = with_operand(a, operand, kind, target);
      if (got)
        check_close(*got, added(base, operand)), ++taken;
      else
        CHECK_FALSE((a.library && planned(a, d, kind)));
    }
  return taken;
}

template <int tile>
Applicable<KernelPtr> winograd(Context& context, const KernelCall& call) {
  return make_winograd(context, call, tile);
}

/// The convolutions whose result is `y`: sizes along which nothing tells a channel from a row.
std::vector<TailCase> convolutions(const Dims& y) {
  const int64_t n = y[0], c = y[1], h = y[2], w = y[3], step = h % 2 ? 1 : 2;
  const Dims x{n, 3, h, w};
  return {
      {"Conv", make_convolution, x, {c, 3, 3, 3}, y, 1, 1, 1},
      {"Conv", make_first, x, {c, 3, 3, 3}, y, 1, 1, 1, true, true, false},
      {"Conv", make_depthwise, y, {c, 1, 3, 3}, y, c, 1, 1, true, false, false},
      {"Conv", winograd<2>, x, {c, 3, 3, 3}, y, 1, 1, 1, true, false, false},
      {"Conv", winograd<4>, x, {c, 3, 3, 3}, y, 1, 1, 1, true, false, false},
      {"Conv", make_product, x, {c, 3, 1, 1}, y, 1, 1, 0, true, false, false},
      {"Conv", make_matmul_1x1, x, {c, 3, 1, 1}, y, 1, 1, 0, true, false, false},
      {"ConvTranspose", make_deconvolution, x, {3, c, 3, 3}, y, 1, 1, 1},
      {"ConvTranspose",
       make_deconvolution,
       {n, 3, h / step, w / step},
       {3, c, step, step},
       y,
       1,
       step,
       0},
  };
}

}  // namespace

TEST_CASE("an operand of any shape behind every convolution") {
  for (const Target& target : targets())
    for (const Dims& y : std::vector<Dims>{{1, 4, 4, 4},
                                           {4, 4, 4, 4},
                                           {2, 5, 4, 6},
                                           {1, 1, 4, 4},
                                           {1, 4, 1, 1},
                                           {2, 1, 1, 1},
                                           {1, 1, 1, 1}}) {
      size_t number = 0;
      for (const TailCase& a : convolutions(y)) {
        CAPTURE(target.name);
        CAPTURE(str(Type{DType::f32, Shape(y.begin(), y.end())}));
        CAPTURE(number++);
        CHECK(check_operands(a, target) >= 8);
      }
    }
}

TEST_CASE("an operand of any shape behind every product") {
  struct Sizes {
    const char* op;
    Dims a, b, y;
  };
  for (const Sizes& s : std::vector<Sizes>{
           {"MatMul", {4, 7}, {7, 4}, {4, 4}},
           {"MatMul", {4, 4, 7}, {7, 4}, {4, 4, 4}},
           {"MatMul", {1, 4, 7}, {7, 4}, {1, 4, 4}},
           {"MatMul", {4, 1, 7}, {7, 4}, {4, 1, 4}},
           {"MatMul", {4, 4, 7}, {4, 7, 4}, {4, 4, 4}},
           {"MatMul", {1, 4, 7}, {4, 7, 4}, {4, 4, 4}},
           {"MatMul", {2, 1, 4, 7}, {3, 7, 4}, {2, 3, 4, 4}},
           {"MatMul", {7}, {7, 4}, {4}},
           {"MatMul", {7}, {4, 7, 4}, {4, 4}},
           {"MatMul", {4, 7}, {7}, {4}},
           {"MatMul", {4, 4, 7}, {7}, {4, 4}},
           {"MatMul", {2, 4, 3, 7}, {7}, {2, 4, 3}},
           {"MatMul", {4, 1, 7}, {7}, {4, 1}},
           {"MatMul", {7}, {7}, {}},
           {"MatMul", {4, 7}, {7, 1}, {4, 1}},
           {"MatMul", {1, 7}, {7, 4}, {1, 4}},
           {"Gemm", {4, 7}, {7, 4}, {4, 4}},
           {"Gemm", {4, 7}, {7, 1}, {4, 1}},
           {"Gemm", {1, 7}, {7, 4}, {1, 4}},
       })
    for (bool constant : {true, false}) {
      CAPTURE(s.op);
      CAPTURE(str(Type{DType::f32, Shape(s.a.begin(), s.a.end())}));
      CAPTURE(str(Type{DType::f32, Shape(s.b.begin(), s.b.end())}));
      TailCase a{s.op, std::string(s.op) == "Gemm" ? make_gemm : make_matmul, s.a, s.b, s.y};
      a.image = false;
      a.constant_w = constant;
      CHECK(check_operands(a, targets()[0]) >= 4);
    }
}

TEST_CASE("an operand of any shape behind convolutions of lines and volumes") {
  for (const Dims& y : std::vector<Dims>{{1, 4, 4}, {2, 4, 4}, {1, 3, 2, 3, 4}}) {
    Dims x = y, w(y.size(), 1);
    x[1] = 3, w[0] = y[1], w[1] = 3;
    CHECK(check_operands({"Conv", make_convolution, x, w, y}, targets()[0]) >= 8);
    std::swap(w[0], w[1]);
    CHECK(check_operands({"ConvTranspose", make_deconvolution, x, w, y}, targets()[0]) >= 8);
  }
}

}  // namespace ferrule::cpu::test
