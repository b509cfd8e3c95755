// Products and convolutions of 8-bit integers against the interpreter, element by element: signs,
// zero points, groups, windows, scales of rows; through the library, and in 16 bits.
#include "engine/interpreter/interpreter.h"
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor bytes(DType t, const Dims& dims, std::mt19937& rng, bool extremes = true) {
  auto [out, p] = Tensor::allocate(t, dims);
  for (int64_t k = 0; k < out.numel(); ++k)
    static_cast<uint8_t*>(p)[k] =
        static_cast<uint8_t>(extremes && rng() % 3 == 0 ? (rng() % 2 ? 0x7f : 0x80) : rng());
  return out;
}
Tensor scales(const Dims& dims, std::mt19937& rng, bool special) {
  std::vector<float> v(static_cast<size_t>(numel(dims)));
  for (float& e : v) e = std::uniform_real_distribution<float>(0.001f, 0.9f)(rng);
  if (special) v[0] = v.size() > 2 ? kNan : -0.25f;
  if (special && v.size() > 3) v[1] = kInf, v[2] = 0;
  return Tensor::of_f32(dims, v);
}
Tensor words(const Dims& dims, std::mt19937& rng) {
  std::vector<int32_t> v(static_cast<size_t>(numel(dims)));
  for (int32_t& e : v) e = static_cast<int32_t>(rng() % 4001) - 2000;
  return Tensor::of<int32_t>(DType::i32, dims, v);
}

struct Case {
  std::string op, contract;
  std::map<std::string, Attr> attributes;
  std::vector<std::optional<Tensor>> operands;
  std::vector<bool> constant;
  std::set<size_t> images;  ///< operands that lie channels-last
  bool image = false;       ///< and the result
};

int depthwise = 0;  // cases in which all channels of a pixel were read side by side

/// `kernel`: what its name may be; empty: any.
void check_case(const Case& c, const Target& target, std::string_view kernel) {
  CAPTURE(c.op);
  Harness h(c.op);
  h.target = &target;
  for (const auto& [name, value] : c.attributes) h.node.attrs.set(name, value);
  std::vector<const Tensor*> operands;
  for (size_t k = 0; k < c.operands.size(); ++k) {
    operands.push_back(c.operands[k] ? &*c.operands[k] : nullptr);
    if (!c.operands[k])
      h.absent();
    else if (c.constant[k])
      h.constant(*c.operands[k]);
    else
      h.input(*c.operands[k], c.images.contains(k) ? Layout::channels_last : Layout::plain);
  }
  auto want = interpret_node(h.graph, h.node, operands, {});
  REQUIRE_MESSAGE(want.has_value(), (want ? "" : want.error().message));
  const Tensor& y = want->front();
  h.output(y.dtype(), y.dims(), c.image ? Layout::channels_last : Layout::plain);
  const Tensor got = h.run(own_factory(c.contract));
  const Difference d = compare(got, y, {});
  CHECK_MESSAGE(d.ok, fmt::format("{}: {}", h.text, d.text));
  CAPTURE(h.text);
  if (!kernel.empty()) CHECK(h.text.starts_with("words") == (kernel == "words"));
  depthwise += h.text == "words:depthwise";
}

bool multiplies_bytes() {
  return __builtin_cpu_supports("avx512vnni") && host().has_isa("avx512f");
}

/// In 16 bits everywhere, and by the library where its instructions are here.
void check_both(const Case& c, bool library) {
  static const Target plain = targets().front();
  check_case(c, plain, "words");
  if (multiplies_bytes()) check_case(c, host(), library ? "library" : "words");
}

}  // namespace

TEST_CASE("integer products: as the interpreter, whatever the signs and zero points") {
  std::mt19937 rng(7);
  for (const DType ta : {DType::u8, DType::i8})
    for (const DType tb : {DType::u8, DType::i8})
      for (const auto& [a, b] : {std::pair<Dims, Dims>{{3, 5}, {5, 4}},
                                 {{1, 64}, {64, 33}},
                                 {{2, 3, 17}, {17, 8}},
                                 {{17, 100}, {100, 1}},
                                 {{2, 1, 3, 9}, {4, 9, 5}}})
        for (const int zeros : {0, 1, 2, 3})
          for (const bool constant : {true, false}) {
            CAPTURE(zeros);
            CAPTURE(constant);
            Case c{"MatMulInteger", "matmul_integer", {}, {}, {}, {}};
            c.operands = {bytes(ta, a, rng), bytes(tb, b, rng), {}, {}};
            c.constant = {false, constant, false, zeros != 3};
            const bool rows = zeros == 3 && a.size() == 2;
            if (zeros) c.operands[2] = bytes(ta, rows ? Dims{a[0]} : Dims{}, rng);
            if (zeros > 1) c.operands[3] = bytes(tb, b.size() == 2 ? Dims{b[1]} : Dims{1}, rng);
            const bool row_zeros = rows && a[0] > 1;
            check_both(c, constant && b.size() == 2 && !row_zeros);
            if (b.size() != 2 || zeros == 3) continue;
            Case q{"QLinearMatMul", "qlinear_matmul", {}, {}, {}, {}};
            q.operands = {c.operands[0],
                          scales({}, rng, false),
                          bytes(ta, {}, rng),
                          c.operands[1],
                          scales({}, rng, false),
                          bytes(tb, {1}, rng),
                          scales({}, rng, zeros == 2),
                          bytes(zeros == 1 ? DType::i8 : DType::u8, {}, rng)};
            q.operands[6] = Tensor::of_f32({}, {zeros == 2 ? -300.0f : 700.0f});
            q.constant = {false, true, true, constant, zeros != 1, true, true, true};
            check_both(q, constant);
          }
}

TEST_CASE("integer convolutions: as the interpreter, whatever the window") {
  struct Window {
    Dims x, w;
    int64_t group;
    Dims strides, dilations, pads;
  };
  const std::vector<Window> windows{
      {{1, 3, 7, 6}, {5, 3, 3, 3}, 1, {2, 1}, {1, 1}, {1, 0, 1, 2}},
      {{2, 8, 5, 5}, {8, 1, 3, 3}, 8, {1, 1}, {1, 2}, {2, 2, 2, 2}},
      {{1, 37, 5, 4}, {37, 1, 3, 2}, 37, {2, 1}, {1, 1}, {0, 1, 1, 0}},
      {{1, 6, 4, 9}, {4, 3, 1, 2}, 2, {1, 3}, {1, 1}, {0, 1, 0, 0}},
      {{1, 16, 4, 4}, {32, 16, 1, 1}, 1, {1, 1}, {1, 1}, {0, 0, 0, 0}},
      {{1, 4, 11}, {6, 2, 5}, 2, {2}, {2}, {3, 4}},
      {{1, 2, 3, 4, 3}, {3, 2, 2, 2, 2}, 1, {1, 2, 1}, {1, 1, 1}, {1, 0, 1, 0, 1, 1}},
      {{1, 200, 3, 3}, {7, 200, 3, 3}, 1, {1, 1}, {1, 1}, {1, 1, 1, 1}}};
  std::mt19937 rng(11);
  for (const Window& v : windows)
    for (const DType tx : {DType::u8, DType::i8})
      for (const DType tw : {DType::u8, DType::i8})
        for (const int zeros : {0, 1, 2, 3})
          for (const bool constant : {true, false}) {
            CAPTURE(zeros);
            CAPTURE(constant);
            const Dims each{v.w[0]};
            const std::map<std::string, Attr> attributes{{"group", Attr(v.group)},
                                                         {"strides", Attr(v.strides)},
                                                         {"dilations", Attr(v.dilations)},
                                                         {"pads", Attr(v.pads)}};
            Case c{"ConvInteger", "conv_integer", attributes, {}, {}, {0}, true};
            c.operands = {bytes(tx, v.x, rng), bytes(tw, v.w, rng), {}, {}};
            c.constant = {false, constant, zeros == 1, zeros != 3};
            if (zeros) c.operands[2] = bytes(tx, {}, rng);
            if (zeros > 1) c.operands[3] = bytes(tw, zeros == 2 ? each : Dims{1}, rng);
            if (zeros == 0) c.images.clear();  // a plain image is what 16 bits read, too
            check_both(c, constant && zeros != 0);
            Case q{"QLinearConv", "qlinear_conv", attributes, {}, {}, {0}, true};
            q.operands = {c.operands[0],
                          scales({}, rng, false),
                          bytes(tx, {1}, rng),
                          c.operands[1],
                          scales(zeros == 2 ? each : Dims{}, rng, zeros == 2),
                          bytes(tw, zeros > 1 ? each : Dims{}, rng),
                          Tensor::of_f32({}, {zeros == 1 ? 40.0f : 3000.0f}),
                          bytes(zeros == 1 ? DType::i8 : DType::u8, {}, rng),
                          {}};
            if (zeros != 3) q.operands[8] = words(each, rng);
            q.constant = {false,      zeros != 3, true, constant,  true,
                          zeros != 1, true,       true, zeros != 2};
            check_both(q, constant);
          }
  CHECK(depthwise > 20);
}

}  // namespace ferrule::cpu::test
