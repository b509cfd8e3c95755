// Every operator that moves elements, in both layouts and several element sizes, and the strided
// copy itself.
#include <numeric>

#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

Tensor numbered(const Dims& d) {
  std::vector<float> v(static_cast<size_t>(numel(d)));
  std::iota(v.begin(), v.end(), 0.0f);
  return Tensor::of_f32(d, v);
}

}  // namespace

TEST_CASE("strided copies of every shape against element by element") {
  std::mt19937 random(7);
  auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int round = 0; round < 200; ++round) {
    const int rank = pick(1, 4);
    Dims dims, order;
    for (int k = 0; k < rank; ++k)
      dims.push_back(pick(1, round % 10 == 0 ? 40 : 9)), order.push_back(k);
    std::shuffle(order.begin(), order.end(), random);
    Dims source(static_cast<size_t>(rank)), target = strides_of(dims, Layout::plain);
    int64_t step = pick(1, 2);
    for (int64_t k : order) {
      source[static_cast<size_t>(k)] = step;
      step *= dims[static_cast<size_t>(k)] + pick(0, 1);
    }
    if (pick(0, 3) == 0) source[0] = 0;
    int64_t offset = 0;
    if (pick(0, 3) == 0) {  // backwards along one axis
      const auto axis = static_cast<size_t>(pick(0, rank - 1));
      offset = (dims[axis] - 1) * source[axis];
      source[axis] = -source[axis];
    }
    std::vector<uint16_t> from(static_cast<size_t>(step) + 64),
        to(static_cast<size_t>(numel(dims)), 0xffff), want(to);
    std::iota(from.begin(), from.end(), uint16_t{0});
    each_index(dims, [&](const Dims& i, int64_t k) {
      int64_t at = offset;
      for (size_t a = 0; a < i.size(); ++a) at += i[a] * source[a];
      want[static_cast<size_t>(k)] = from[static_cast<size_t>(at)];
    });
    StridedCopy(dims, source, target, 2, offset).run(from.data(), to.data());
    CHECK(to == want);
  }
}

TEST_CASE("large copies are split and still whole") {
  const Tensor x = numbered({3, 200, 300});
  Harness h("Transpose");
  h.node.attrs.set("perm", Dims{0, 2, 1});
  h.input(x);
  h.output(DType::f32, {3, 300, 200});
  const Tensor y = h.run(make_copy);
  bool same = true;
  each_index(y.dims(), [&](const Dims& i, int64_t k) {
    same = same && y.as<float>()[static_cast<size_t>(k)] ==
                       static_cast<float>((i[0] * 200 + i[2]) * 300 + i[1]);
  });
  CHECK(same);
}

TEST_CASE("reorder between the layouts, there and back") {
  for (Dims d : std::vector<Dims>{{2, 3, 5, 7},
                                  {1, 64, 9, 9},
                                  {1, 3, 37, 51},
                                  {1, 2, 37, 51},
                                  {1, 4, 200, 200},
                                  {2, 5, 3},
                                  {1, 3, 4, 5, 6}}) {
    const Tensor x = numbered(d);
    for (bool to_last : {true, false}) {
      Harness h("Reorder");
      h.input(x, to_last ? Layout::plain : Layout::channels_last);
      h.output(DType::f32, d, to_last ? Layout::channels_last : Layout::plain);
      CHECK(h.run(make_copy).identical(x));
    }
  }
}

TEST_CASE("Slice: steps, negative starts and steps, clamped ends") {
  const Tensor x = numbered({4, 6, 5});
  Harness h("Slice");
  h.input(x);
  h.constant(Tensor::of_i64({2}, {-1, 1}));
  h.constant(Tensor::of_i64({2}, {-100, 1000}));
  h.constant(Tensor::of_i64({2}, {0, -2}));
  h.constant(Tensor::of_i64({2}, {-2, 3}));
  h.output(DType::f32, {2, 2, 5});
  const Tensor y = h.run(make_copy);
  std::vector<double> want;
  for (int64_t a : {3, 1})
    for (int64_t b : {1, 4})
      for (int64_t c = 0; c < 5; ++c) want.push_back(static_cast<double>((a * 6 + b) * 5 + c));
  check_close(y, want, {});
}

TEST_CASE("Concat and Split along every axis in both layouts") {
  for (Layout layout : {Layout::plain, Layout::channels_last})
    for (int64_t axis : {0, 1, 2, 3, -1}) {
      const auto a = static_cast<size_t>(axis < 0 ? axis + 4 : axis);
      Dims first{2, 3, 4, 5}, second = first, all = first;
      second[a] += 2;
      all[a] = first[a] + second[a];
      const Tensor x = random_tensor(first, 1), y = random_tensor(second, 2);
      Harness join("Concat");
      join.node.attrs.set("axis", axis);
      join.input(x, layout);
      join.input(y, layout);
      join.output(DType::f32, all, layout);
      const Tensor z = join.run(make_copy);
      Harness cut("Split");
      cut.node.attrs.set("axis", axis);
      cut.input(z, layout);
      cut.constant(Tensor::of_i64({2}, {first[a], second[a]}));
      cut.output(DType::f32, first, layout);
      cut.output(DType::f32, second, layout);
      CHECK(cut.run(make_copy, 0).identical(x));
      CHECK(cut.result(1).identical(y));
      if (a != 1) continue;
      CHECK(z.at_f64(3 * 20) == y.at_f64(0));  // behind the first operand's channels
    }
}

TEST_CASE("Pad: values, negative pads, axes, layouts") {
  const Tensor x = numbered({1, 2, 3, 4});
  for (Layout layout : {Layout::plain, Layout::channels_last}) {
    Harness h("Pad");
    h.input(x, layout);
    h.constant(Tensor::of_i64({4}, {1, -1, 2, 0}));
    h.constant(Tensor::of_f32({}, {9}));
    h.constant(Tensor::of_i64({2}, {2, -1}));
    h.output(DType::f32, {1, 2, 6, 3}, layout);
    std::vector<double> want;
    each_index({1, 2, 6, 3}, [&](const Dims& i, int64_t) {
      const int64_t r = i[2] - 1, c = i[3] + 1;
      want.push_back(r < 0 || r >= 3 ? 9 : static_cast<double>((i[1] * 3 + r) * 4 + c));
    });
    check_close(h.run(make_copy), want, {});
  }
}

TEST_CASE("Expand repeats, from lower ranks too") {
  Harness h("Expand");
  h.input(numbered({3, 1}));
  h.constant(Tensor::of_i64({3}, {2, 3, 4}));
  h.output(DType::f32, {2, 3, 4});
  std::vector<double> want;
  each_index({2, 3, 4}, [&](const Dims& i, int64_t) { want.push_back(static_cast<double>(i[1])); });
  check_close(h.run(make_copy), want, {});
}

TEST_CASE("elements of 1, 2 and 8 bytes") {
  for (DType t : {DType::u8, DType::f16, DType::i64}) {
    auto [x, p] = Tensor::allocate(t, {3, 5});
    for (int64_t k = 0; k < x.bytes(); ++k) static_cast<uint8_t*>(p)[k] = static_cast<uint8_t>(k);
    Harness h("Transpose");
    h.input(x);
    h.output(t, {5, 3});
    const Tensor y = h.run(make_copy);
    const auto size = static_cast<size_t>(size_bits(t) / 8);
    CHECK(std::memcmp(static_cast<const char*>(y.data()) + size,
                      static_cast<const char*>(x.data()) + 5 * size, size) == 0);
  }
}

TEST_CASE("pixels of three bytes become planes") {
  for (const int64_t width : {1, 5, 15, 16, 17, 47, 48, 100, 6000})
    for (const int64_t rows : {1, 3}) {
      auto [x, p] = Tensor::allocate(DType::u8, {2, rows, width, 3});
      auto* from = static_cast<uint8_t*>(p);
      for (int64_t k = 0; k < x.numel(); ++k) from[k] = static_cast<uint8_t>(k * 7 + k / 251);
      Harness h("Transpose");
      h.node.attrs.set("perm", std::vector<int64_t>{0, 3, 1, 2});
      h.input(x);
      h.output(DType::u8, {2, 3, rows, width});
      const Tensor y = h.run(make_copy);
      const auto* to = static_cast<const uint8_t*>(y.data());
      int64_t wrong = 0;
      each_index({2, 3, rows, width}, [&](const Dims& i, int64_t k) {
        wrong += to[k] != from[((i[0] * rows + i[2]) * width + i[3]) * 3 + i[1]];
      });
      CHECK(wrong == 0);
    }
}

}  // namespace ferrule::cpu::test
