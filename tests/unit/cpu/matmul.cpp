// MatMul and Gemm against plain loops: ranks, broadcast batches, constant right operands,
// transposes, tails.
#include "tests/unit/cpu/harness.h"

namespace ferrule::cpu::test {
namespace {

/// numpy.matmul in double.
std::vector<double> naive(const Tensor& a, const Tensor& b, const Dims& y, bool a_row,
                          bool b_column) {
  Dims ad = a.dims(), bd = b.dims(), yd = y;
  if (a_row) ad.insert(ad.begin(), 1), yd.insert(yd.end() - (b_column ? 0 : 1), 1);
  if (b_column) bd.push_back(1), yd.push_back(1);
  const size_t rank = yd.size();
  while (ad.size() < rank) ad.insert(ad.begin(), 1);
  while (bd.size() < rank) bd.insert(bd.begin(), 1);
  const Dims as = strides_of(ad, Layout::plain), bs = strides_of(bd, Layout::plain);
  const int64_t depth = ad[rank - 1];
  std::vector<double> out(static_cast<size_t>(numel(yd)), 0.0);
  each_index(yd, [&](const Dims& i, int64_t k) {
    int64_t at = 0, bt = 0;
    for (size_t d = 0; d + 2 < rank; ++d) {
      at += ad[d] == 1 ? 0 : i[d] * as[d];
      bt += bd[d] == 1 ? 0 : i[d] * bs[d];
    }
    at += i[rank - 2] * as[rank - 2];
    bt += i[rank - 1] * bs[rank - 1];
    for (int64_t j = 0; j < depth; ++j)
      out[static_cast<size_t>(k)] +=
          a.at_f64(at + j * as[rank - 1]) * b.at_f64(bt + j * bs[rank - 2]);
  });
  return out;
}

}  // namespace

TEST_CASE("MatMul of every rank, constant or not") {
  struct Case {
    Dims a, b, y;
  };
  for (const Case& c : std::vector<Case>{
           {{5, 7}, {7, 9}, {5, 9}},
           {{2, 3, 5, 7}, {7, 9}, {2, 3, 5, 9}},
           {{2, 3, 5, 7}, {2, 3, 7, 9}, {2, 3, 5, 9}},
           {{2, 1, 5, 7}, {1, 3, 7, 9}, {2, 3, 5, 9}},
           {{5, 7}, {4, 7, 9}, {4, 5, 9}},
           {{7}, {7, 9}, {9}},
           {{5, 7}, {7}, {5}},
           {{7}, {7}, {}},
           {{7}, {4, 7, 9}, {4, 9}},
           {{4, 5, 7}, {7}, {4, 5}},
           {{1, 64}, {64, 1000}, {1, 1000}},
       })
    for (bool constant : {false, true}) {
      CAPTURE(c.a.size());
      CAPTURE(c.b.size());
      CAPTURE(constant);
      const Tensor a = random_tensor(c.a, 1), b = random_tensor(c.b, 2);
      Harness h("MatMul");
      h.input(a);
      constant ? h.constant(b) : h.input(b);
      h.output(DType::f32, c.y);
      check_close(h.run(make_matmul), naive(a, b, c.y, c.a.size() == 1, c.b.size() == 1));
    }
}

TEST_CASE("MatMul tails: bias along the last axis, full residual, scalar, activation") {
  const Tensor a = random_tensor({2, 4, 8}, 1), b = random_tensor({8, 6}, 2),
               bias = random_tensor({6}, 3);
  const Tensor residual = random_tensor({2, 4, 6}, 4), one = random_tensor({}, 5);
  auto want = naive(a, b, {2, 4, 6}, false, false);
  Harness h("MatMul");
  h.input(a);
  h.constant(b);
  h.constant(bias);
  h.node.inputs.pop_back();
  h.binary("add", 2);
  h.binary("add", h.operand(residual));
  h.binary("mul", h.operand(one));
  h.eltwise("relu");
  h.output(DType::f32, {2, 4, 6});
  for (size_t k = 0; k < want.size(); ++k) {
    const auto i = static_cast<int64_t>(k);
    want[k] = std::max(0.0, (want[k] + bias.at_f64(i % 6) + residual.at_f64(i)) * one.at_f64(0));
  }
  check_close(h.run(make_matmul), want);
}

TEST_CASE("Gemm: transposes, alpha, beta, every shape of C") {
  for (bool ta : {false, true})
    for (bool tb : {false, true})
      for (int round = 0; round < 12; ++round) {
        const Dims cd =
            std::vector<Dims>{{}, {1}, {6}, {1, 6}, {4, 1}, {4, 6}}[static_cast<size_t>(round % 6)];
        const double beta = round < 6 ? 2 : 1;
        CAPTURE(beta);
        CAPTURE(ta);
        CAPTURE(tb);
        CAPTURE(cd.size());
        const Tensor a = random_tensor(ta ? Dims{5, 4} : Dims{4, 5}, 1),
                     b = random_tensor(tb ? Dims{6, 5} : Dims{5, 6}, 2);
        const Tensor c = random_tensor(cd, 3);
        Harness h("Gemm");
        h.node.attrs.set("transA", int64_t{ta});
        h.node.attrs.set("transB", int64_t{tb});
        h.node.attrs.set("alpha", 0.5);
        h.node.attrs.set("beta", beta);
        h.input(a);
        h.constant(b);
        h.constant(c);
        h.output(DType::f32, {4, 6});
        std::vector<double> want;
        for (int64_t i = 0; i < 4; ++i)
          for (int64_t j = 0; j < 6; ++j) {
            double s = 0;
            for (int64_t k = 0; k < 5; ++k)
              s += a.at_f64(ta ? k * 4 + i : i * 5 + k) * b.at_f64(tb ? j * 5 + k : k * 6 + j);
            int64_t at = 0;
            if (cd.size() == 1) at = cd[0] == 1 ? 0 : j;
            if (cd.size() == 2) at = (cd[0] == 1 ? 0 : i) * cd[1] + (cd[1] == 1 ? 0 : j);
            want.push_back(0.5 * s + beta * c.at_f64(at));
          }
        check_close(h.run(make_gemm), want);
        if (beta == 1) CHECK_MESSAGE(h.text.find("ref") == h.text.npos, h.text);
      }
}

TEST_CASE("Gemm of a constant left operand, transposed or not, square or not") {
  for (bool ta : {false, true})
    for (int64_t m : {4, 5}) {
      CAPTURE(ta);
      CAPTURE(m);
      const Tensor a = random_tensor(ta ? Dims{5, m} : Dims{m, 5}, 1), b = random_tensor({6, 5}, 2);
      Harness h("Gemm");
      h.node.attrs.set("transA", int64_t{ta});
      h.node.attrs.set("transB", int64_t{1});
      h.constant(a);
      h.input(b);
      h.output(DType::f32, {m, 6});
      std::vector<double> want;
      for (int64_t i = 0; i < m; ++i)
        for (int64_t j = 0; j < 6; ++j) {
          double s = 0;
          for (int64_t k = 0; k < 5; ++k)
            s += a.at_f64(ta ? k * m + i : i * 5 + k) * b.at_f64(j * 5 + k);
          want.push_back(s);
        }
      check_close(h.run(make_gemm), want);
    }
}

TEST_CASE("Gemm with operands that are all computed") {
  const Tensor a = random_tensor({4, 5}, 1), b = random_tensor({6, 5}, 2);
  for (int round = 0; round < 4; ++round) {
    const double beta = round % 2 ? 3 : 1;
    const bool by_row = round > 1;  // one number for each row
    const Tensor c = random_tensor(by_row ? Dims{4, 1} : Dims{6}, 3);
    CAPTURE(round);
    Harness h("Gemm");
    h.node.attrs.set("transB", int64_t{1});
    h.node.attrs.set("alpha", 0.25);
    h.node.attrs.set("beta", beta);
    h.input(a);
    h.input(b);
    h.input(c);
    h.output(DType::f32, {4, 6});
    h.eltwise("relu");
    std::vector<double> want;
    for (int64_t i = 0; i < 4; ++i)
      for (int64_t j = 0; j < 6; ++j) {
        double s = 0;
        for (int64_t k = 0; k < 5; ++k) s += a.at_f64(i * 5 + k) * b.at_f64(j * 5 + k);
        want.push_back(std::max(0.0, 0.25 * s + beta * c.at_f64(by_row ? i : j)));
      }
    check_close(h.run(make_gemm), want);
    CHECK_MESSAGE(h.text.find("ref") == h.text.npos, h.text);
  }
}

}  // namespace ferrule::cpu::test
