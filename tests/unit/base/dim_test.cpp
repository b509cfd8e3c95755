#include "engine/base/dim.h"

#include <doctest/doctest.h>

#include <algorithm>

using namespace ferrule;

namespace {
Dim sym(const char* n) { return Dim::symbol(n); }
}  // namespace

TEST_CASE("dim: constants fold and sums are canonical") {
  Dim h = sym("H"), w = sym("W");
  CHECK((Dim(3) + Dim(4)).constant() == 7);
  CHECK(h + w == w + h);
  CHECK(h + w - h == w);
  CHECK((h - h).constant() == 0);
  CHECK(Dim(2) * h + h == Dim(3) * h);
  CHECK((h + Dim(1)) * (h - Dim(1)) == h * h - Dim(1));
  CHECK((h + Dim(1)).str() == "H+1");
  CHECK((Dim(2) * h * w - Dim(3)).str() == "2*H*W-3");
  CHECK((Dim(0) - h).str() == "-H");
  CHECK(h.hash() == sym("H").hash());
  CHECK_FALSE(h == w);
  CHECK_FALSE(sym("floordiv(H,2)") == floordiv(h, Dim(2)));
}

TEST_CASE("dim: floordiv takes out what divides") {
  Dim h = sym("H"), w = sym("W");
  CHECK(floordiv(Dim(7), Dim(2)).constant() == 3);
  CHECK(floordiv(Dim(-7), Dim(2)).constant() == -4);
  CHECK(floordiv(Dim(4) * h + Dim(5), Dim(4)) == h + Dim(1));
  CHECK(floordiv(Dim(4) * h + Dim(2), Dim(8)) == floordiv(Dim(2) * h + Dim(1), Dim(4)));
  CHECK(floordiv(floordiv(h, Dim(2)) + Dim(1), Dim(2)) == floordiv(h + Dim(2), Dim(4)));
  CHECK(floordiv(h * w, w) == h);
  CHECK(floordiv(Dim(6) * h * w, Dim(2) * w) == Dim(3) * h);
  CHECK(floordiv(h * w + w, h + Dim(1)) == w);
  CHECK(floordiv(h * w + w + Dim(0), w) == h + Dim(1));
  CHECK(floordiv(h + Dim(1), Dim(2)).str() == "floordiv(H+1,2)");
  CHECK_FALSE(floordiv(h, Dim(0)) == floordiv(h, Dim(0)));  // unknown equals only itself
}

TEST_CASE("dim: floordiv, max and substitution agree with integers") {
  Dim h = sym("H"), w = sym("W");
  const Dim exprs[] = {floordiv(Dim(3) * h + Dim(2) * w - Dim(5), Dim(4)),
                       floordiv(h * w + Dim(7) * h, w + Dim(1)),
                       floordiv(floordiv(h - Dim(3), Dim(2)) + w, Dim(3)),
                       max(h + Dim(2), Dim(2) * w) * Dim(3) - h,
                       max(max(h, w), h + Dim(1)),
                       (h + floordiv(w, Dim(2))) * (h - Dim(3))};
  auto fd = [](int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); };
  for (int64_t x = 0; x < 9; ++x)
    for (int64_t y = 0; y < 9; ++y) {
      const int64_t want[] = {fd(3 * x + 2 * y - 5, 4), fd(x * y + 7 * x, y + 1),
                              fd(fd(x - 3, 2) + y, 3),  std::max(x + 2, 2 * y) * 3 - x,
                              std::max({x, y, x + 1}),  (x + fd(y, 2)) * (x - 3)};
      for (size_t i = 0; i < std::size(want); ++i) {
        CAPTURE(exprs[i].str());
        CAPTURE(x);
        CAPTURE(y);
        CHECK(exprs[i].evaluate({{"H", x}, {"W", y}}) == want[i]);
        CHECK(exprs[i].substitute({{"H", x}, {"W", y}}).constant() == want[i]);
        CHECK(exprs[i].substitute({{"H", x}}).evaluate({{"W", y}}) == want[i]);
      }
    }
  CHECK(exprs[0].evaluate({{"H", 1}}) == std::nullopt);
}

TEST_CASE("dim: equal convolutions on symbolic sizes have equal outputs") {
  auto conv = [](const Dim& in) { return floordiv(in + Dim(2) - Dim(3), Dim(2)) + Dim(1); };
  CHECK(conv(sym("H")) == conv(sym("H")));
  CHECK_FALSE(conv(sym("H")) == conv(sym("W")));
  CHECK(equal(conv(sym("H")), conv(sym("W"))) == Truth::unknown);
  CHECK_FALSE(Dim::unknown() == Dim::unknown());
  Dim u = Dim::unknown();
  CHECK(conv(u) == conv(u));
}

TEST_CASE("dim: comparisons by bounds") {
  Dim n = sym("N");
  CHECK(equal(n, n + Dim(1)) == Truth::no);
  CHECK(equal(n, Dim(4)) == Truth::unknown);
  CHECK(equal(n, Dim(-1)) == Truth::no);
  CHECK(at_least(n + Dim(3), Dim(3)) == Truth::yes);
  CHECK(at_least(Dim(2), n + Dim(3)) == Truth::no);
  CHECK(at_least(n, Dim(1)) == Truth::unknown);
  CHECK(max(n, Dim(0)) == n);
  CHECK(max(n, Dim(-5)) == n);
  CHECK(max(Dim(3), n) == max(n, Dim(3)));
  CHECK(at_least(max(n, Dim(3)), Dim(2)) == Truth::yes);
  CHECK(at_least(floordiv(n, Dim(2)), Dim(0)) == Truth::yes);
}

TEST_CASE("dim: overflow and endless growth become unknowns, not wrong numbers") {
  Dim big(int64_t{1} << 32);
  CHECK_FALSE((big * big).is_constant());
  CHECK_FALSE((Dim(INT64_MAX) + Dim(1)).is_constant());
  CHECK_FALSE(floordiv(Dim(INT64_MIN), Dim(-1)).is_constant());
  CHECK(product({big, big, Dim(0)}).constant() == 0);
  Dim x = sym("A") + sym("B") + sym("C");
  for (int i = 0; i < 100; ++i) x = x * x + sym("D");
  CHECK(x == x);
  CHECK(sym("N").evaluate({{"N", INT64_MAX}}) == INT64_MAX);
  CHECK((sym("N") * Dim(4)).evaluate({{"N", INT64_MAX}}) == INT64_MAX);
}

TEST_CASE("dim: broadcasting") {
  Dim n = sym("N"), m = sym("M");
  CHECK(broadcast({n, Dim(1), Dim(3)}, {Dim(4), Dim(1)}) == Shape{n, Dim(4), Dim(3)});
  CHECK(broadcast({Dim(2)}, {Dim(3)}) == std::nullopt);
  CHECK(broadcast({n}, {Dim(3)}) == Shape{Dim(3)});
  CHECK(broadcast({n}, {Dim(1)}) == Shape{n});
  CHECK(broadcast({n}, {m}) == broadcast({m}, {n}));
  // Nothing beside one element is nothing: no maximum.
  const Dim k = sym("K"), nmk = broadcast(*broadcast({n}, {m}), {k})->at(0);
  CHECK(nmk.str() == "broadcast(K,M,N)");
  CHECK(broadcast({nmk}, {m}) == Shape{nmk});
  for (int64_t size : {0, 1, 2, 3})
    for (const auto& [a, b, c] :
         {std::tuple{size, 1, 1}, {1, static_cast<int>(size), 1}, {1, 1, static_cast<int>(size)}}) {
      CHECK(nmk.evaluate({{"N", a}, {"M", b}, {"K", c}}) == size);
      CHECK(nmk.substitute({{"N", a}, {"M", b}, {"K", c}}).constant() == size);
      CHECK(nmk.substitute({{"M", b}}).evaluate({{"N", a}, {"K", c}}) == size);
    }
  CHECK(at_least(nmk, Dim(0)) == Truth::yes);
  CHECK(at_least(nmk, n) == Truth::unknown);
  CHECK(broadcast({n + Dim(2)}, {m}) == Shape{n + Dim(2)});
  CHECK(broadcast({n + Dim(1)}, {n})->at(0).evaluate({{"N", 0}}) == 0);
  CHECK(broadcast({}, {n, m}) == Shape{n, m});
  CHECK(str(Shape{Dim(1), n}) == "[1,N]");
  CHECK(constant_shape({Dim(1), Dim(2)}) == std::vector<int64_t>{1, 2});
  CHECK(constant_shape({Dim(1), n}) == std::nullopt);
}
