// Attributes: look-ups that tolerate an integer where a float is meant (rule texts do not tell 1
// from 1.0), comparison, and text.
#include <algorithm>
#include <cmath>

#include "engine/base/join.h"
#include "engine/graph/graph.h"

namespace ferrule {
namespace {

std::string quoted(const std::string& s) {
  std::string out = "\"";
  for (char c : escape(s, 1000)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

/// Shortest text that reads back as the same float, always with a point or exponent.
std::string number(double v) {
  std::string s = static_cast<double>(static_cast<float>(v)) == v
                      ? fmt::format("{}", static_cast<float>(v))
                      : fmt::format("{}", v);
  bool plain = s.find_first_not_of("-0123456789") == std::string::npos;
  return plain ? s + ".0" : s;
}

template <class T, class F>
std::string list(const std::vector<T>& items, F&& f) {
  return "[" + joined(items, f) + "]";
}

std::string text(const Tensor& t) {
  std::string type = str(Type{t.dtype(), Shape(t.dims().begin(), t.dims().end())});
  bool complex = t.dtype() == DType::complex64 || t.dtype() == DType::complex128;
  if (t.numel() > 8 || complex) return type + " {...}";
  std::string items;
  for (int64_t i = 0; i < t.numel(); ++i) {
    if (i) items += ", ";
    if (t.dtype() == DType::string)
      items += quoted(t.strings()[i]);
    else if (is_float(t.dtype()))
      items += number(t.at_f64(i));
    else
      items += t.integer_text(i);
  }
  return type + " {" + items + "}";
}

/// ONNX stores floating point attributes as f32, so that is how two of them compare; NaN equals
/// NaN.
bool same_number(double a, double b) {
  auto x = static_cast<float>(a), y = static_cast<float>(b);
  return x == y || (std::isnan(x) && std::isnan(y));
}

std::optional<double> as_number(const Attr& a) {
  if (auto* i = std::get_if<int64_t>(&a)) return static_cast<double>(*i);
  if (auto* d = std::get_if<double>(&a)) return *d;
  return std::nullopt;
}

/// A numeric list as doubles; an empty list has no element type.
std::optional<std::vector<double>> as_numbers(const Attr& a) {
  if (auto* i = std::get_if<std::vector<int64_t>>(&a))
    return std::vector<double>(i->begin(), i->end());
  if (auto* d = std::get_if<std::vector<double>>(&a)) return *d;
  if (auto* s = std::get_if<std::vector<std::string>>(&a); s && s->empty())
    return std::vector<double>{};
  return std::nullopt;
}

}  // namespace

bool operator==(const Attrs& a, const Attrs& b) {
  return std::ranges::equal(a.items(), b.items(), [](const auto& x, const auto& y) {
    return x.first == y.first && same_attr(x.second, y.second);
  });
}

bool same_attr(const Attr& a, const Attr& b) {
  if (auto* i = std::get_if<int64_t>(&a); i && std::holds_alternative<int64_t>(b))
    return *i == std::get<int64_t>(b);
  if (auto x = as_number(a), y = as_number(b); x && y) return same_number(*x, *y);
  if (auto* s = std::get_if<std::string>(&a); s && std::holds_alternative<std::string>(b))
    return *s == std::get<std::string>(b);
  if (auto* t = std::get_if<Tensor>(&a); t && std::holds_alternative<Tensor>(b))
    return t->identical(std::get<Tensor>(b));
  using Ints = std::vector<int64_t>;
  if (auto* v = std::get_if<Ints>(&a); v && std::holds_alternative<Ints>(b))
    return *v == std::get<Ints>(b);
  if (auto x = as_numbers(a), y = as_numbers(b); x && y)
    return std::ranges::equal(*x, *y, same_number);
  using Strings = std::vector<std::string>;
  auto* v = std::get_if<Strings>(&a);
  return v && std::holds_alternative<Strings>(b) && *v == std::get<Strings>(b);
}

std::string str(const Attr& a) {
  struct Visitor {
    std::string operator()(int64_t v) const { return std::to_string(v); }
    std::string operator()(double v) const { return number(v); }
    std::string operator()(const std::string& v) const { return quoted(v); }
    std::string operator()(const std::vector<int64_t>& v) const {
      return list(v, [](int64_t i) { return std::to_string(i); });
    }
    std::string operator()(const std::vector<double>& v) const { return list(v, number); }
    std::string operator()(const std::vector<std::string>& v) const { return list(v, quoted); }
    std::string operator()(const Tensor& t) const { return text(t); }
  };
  return std::visit(Visitor{}, a);
}

std::string str(const Type& t) {
  if (!is_tensor(t.dtype)) return std::string(name(t.dtype));
  return std::string(name(t.dtype)) + (t.shape ? escape(str(*t.shape)) : "[...]");
}

const Attrs::Items& Attrs::none() {
  static const Items empty;
  return empty;
}

Attrs::Items& Attrs::own() {
  if (!items_)
    items_ = std::make_shared<Items>();
  else if (items_.use_count() > 1)
    items_ = std::make_shared<Items>(*items_);
  return *items_;
}

const Attr* Attrs::find(std::string_view name) const {
  if (!items_) return nullptr;
  auto it = items_->find(name);
  return it == items_->end() ? nullptr : &it->second;
}

void Attrs::erase(std::string_view name) {
  if (find(name)) own().erase(own().find(name));
}

int64_t Attrs::i(std::string_view name, int64_t otherwise) const {
  const Attr* a = find(name);
  if (auto* i = a ? std::get_if<int64_t>(a) : nullptr) return *i;
  if (auto* d = a ? std::get_if<double>(a) : nullptr; d && std::fabs(*d) < 0x1p62)
    return static_cast<int64_t>(*d);
  return otherwise;
}

double Attrs::f(std::string_view name, double otherwise) const {
  const Attr* a = find(name);
  return a ? as_number(*a).value_or(otherwise) : otherwise;
}

std::string Attrs::s(std::string_view name, std::string otherwise) const {
  const Attr* a = find(name);
  const auto* s = a ? std::get_if<std::string>(a) : nullptr;
  return s ? *s : otherwise;
}

std::vector<int64_t> Attrs::ints(std::string_view name) const {
  const Attr* a = find(name);
  const auto* v = a ? std::get_if<std::vector<int64_t>>(a) : nullptr;
  return v ? *v : std::vector<int64_t>{};
}

}  // namespace ferrule
