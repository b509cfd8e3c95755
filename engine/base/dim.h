// A dimension as a canonical expression: constants, symbols, + * floordiv max. Two dims are
// *provably* equal when their canonical forms are; a fresh unknown equals only itself. Computed by
// us for every operator that changes shapes, so that two equal convolutions on symbolic H, W have
// equal outputs.
#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace ferrule {

/// Three-valued truth (Kleene).
enum class Truth : uint8_t { no, yes, unknown };

class Dim {
 public:
  Dim(int64_t value = 0) : constant_(value) {}  // NOLINT: constants convert on purpose
  static Dim symbol(std::string name);          ///< a named size, >= 0
  static Dim unknown();                         ///< a fresh size that equals only itself

  bool is_constant() const { return !poly_; }
  std::optional<int64_t> constant() const {
    return poly_ ? std::nullopt : std::optional(constant_);
  }
  /// The constant, or `otherwise`.
  int64_t value_or(int64_t otherwise) const { return poly_ ? otherwise : constant_; }

  friend Dim operator+(const Dim& a, const Dim& b);
  friend Dim operator-(const Dim& a, const Dim& b);
  friend Dim operator*(const Dim& a, const Dim& b);
  friend Dim floordiv(const Dim& a, const Dim& b);
  friend Dim max(const Dim& a, const Dim& b);
  /// Structural equality of the canonical forms: "provably equal".
  friend bool operator==(const Dim& a, const Dim& b);

  /// yes / no if decidable for all symbol values (symbols are >= 0), else unknown.
  friend Truth equal(const Dim& a, const Dim& b);
  /// a >= b, decided by bounds of the terms.
  friend Truth at_least(const Dim& a, const Dim& b);

  /// The value with symbols replaced; nullopt while one is missing.
  std::optional<int64_t> evaluate(const std::map<std::string, int64_t>& symbols) const;
  /// With the given symbols replaced by constants, re-canonicalised.
  Dim substitute(const std::map<std::string, int64_t>& symbols) const;
  std::string str() const;  ///< "N", "floordiv(H+1,2)", "?3" for unknowns
  size_t hash() const;

  struct Poly;  // sum of integer coefficients times sorted products of atoms; defined in dim.cpp

 private:
  int64_t constant_ = 0;
  std::shared_ptr<const Poly> poly_;  // null: a constant
  friend struct DimAccess;
};

/// ceil(a / b), b a positive constant or expression.
inline Dim ceildiv(const Dim& a, const Dim& b) { return floordiv(a + b - Dim(1), b); }

/// A shape; its rank is known. Unknown rank is std::nullopt of std::optional<Shape>.
using Shape = std::vector<Dim>;

Dim product(const Shape& s);                                         ///< number of elements
std::optional<std::vector<int64_t>> constant_shape(const Shape& s);  ///< all dims constant
std::string str(const Shape& s);                                     ///< "[1,C,floordiv(H,2)]"
/// NumPy broadcasting of two shapes; nullopt if provably impossible. Where one dim is symbolic and
/// the other a constant other than 1, the constant is taken (a model that runs can mean nothing
/// else).
std::optional<Shape> broadcast(const Shape& a, const Shape& b);

}  // namespace ferrule
