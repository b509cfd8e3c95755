// ai.onnx.ml: trees, linear models, and what stands before and behind them.
#include <map>
#include <numbers>

#include "engine/interpreter/learned.h"

namespace ferrule::interp {
namespace {

using Strings = std::vector<std::string>;

std::vector<double> reals(const Call& c, std::string_view name) {
  const Attr* a = c.n.attrs.find(name);
  if (!a) return {};
  if (const auto* t = std::get_if<Tensor>(a))
    return is_float(t->dtype()) ? t->to_f64() : std::vector<double>{};
  const auto* v = std::get_if<std::vector<double>>(a);
  return v ? *v : std::vector<double>{};
}
Strings strings(const Call& c, std::string_view name) {
  const Attr* a = c.n.attrs.find(name);
  const auto* v = a ? std::get_if<Strings>(a) : nullptr;
  return v ? *v : Strings{};
}

/// Rows of numbers: a matrix, or a vector as one row.
using Rows = std::pair<int64_t, int64_t>;
Result<Rows> rows_of(const Call& c) {
  const Tensor& x = *c.input(0);
  if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
  if (x.rank() != 1 && x.rank() != 2) return c.bad("its input is {}, no matrix", text(x.dims()));
  return Rows{x.rank() == 2 ? x.dims()[0] : 1, x.dims().back()};
}

// --- what prepares features

/// Keys or values of a LabelEncoder: one of several attributes.
Result<std::optional<Tensor>> label_list(const Call& c, std::string_view kind) {
  const auto key = [&](const char* suffix) { return fmt::format("{}_{}", kind, suffix); };
  if (const Attr* a = c.n.attrs.find(key("tensor")))
    if (const auto* t = std::get_if<Tensor>(a)) return *t;
  if (const Strings s = strings(c, key("strings")); !s.empty()) return Tensor({std::ssize(s)}, s);
  if (const Dims i = c.n.attrs.ints(key("int64s")); !i.empty())
    return Tensor::of_i64({std::ssize(i)}, i);
  if (const auto f = reals(c, key("floats")); !f.empty())
    return Tensor::of_f32({std::ssize(f)}, std::vector<float>(f.begin(), f.end()));
  return std::optional<Tensor>();
}

Result<Tensor> label_default(const Call& c, DType type) {
  if (const Attr* a = c.n.attrs.find("default_tensor"))
    if (const auto* t = std::get_if<Tensor>(a); t && t->numel() == 1 && t->dtype() == type)
      return *t;
  if (type == DType::string)
    return Tensor(Dims{}, Strings{c.n.attrs.s("default_string", "_Unused")});
  if (is_float(type)) return Tensor::scalar(type, c.n.attrs.f("default_float", -0.0));
  return Tensor::scalar(type, static_cast<double>(c.n.attrs.i("default_int64", -1)));
}

Outputs label_encoder(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const auto keys, label_list(c, "keys"));
  FERRULE_ASSIGN(const auto values, label_list(c, "values"));
  if (!keys || !values || keys->numel() != values->numel())
    return c.bad("keys and values of different numbers");
  if ((keys->dtype() == DType::string) != (x.dtype() == DType::string))
    return c.unsupported_type(x);
  FERRULE_ASSIGN(const Tensor otherwise, label_default(c, values->dtype()));
  std::vector<int64_t> from(static_cast<size_t>(x.numel()), -1);
  if (x.dtype() == DType::string) {
    std::map<std::string, int64_t> at;
    for (int64_t k = 0; k < keys->numel(); ++k) at[keys->strings()[k]] = k;
    for (size_t i = 0; i < from.size(); ++i)
      if (auto it = at.find(x.strings()[i]); it != at.end()) from[i] = it->second;
  } else {
    if (!is_float(x.dtype()) && !is_integral(x.dtype())) return c.unsupported_type(x);
    std::map<double, int64_t> at;  // NaN is a key like another
    std::optional<int64_t> nan;
    for (int64_t k = 0; k < keys->numel(); ++k)
      if (const double v = keys->at_f64(k); std::isnan(v))
        nan = k;
      else
        at[v] = k;
    for (size_t i = 0; i < from.size(); ++i) {
      const double v = x.at_f64(static_cast<int64_t>(i));
      if (std::isnan(v))
        from[i] = nan.value_or(-1);
      else if (auto it = at.find(v); it != at.end())
        from[i] = it->second;
    }
  }
  return one(take(*values, x.dims(), from, &otherwise));
}

Outputs binarizer(const Call& c) {
  const Tensor& x = *c.input(0);
  const double threshold = c.n.attrs.f("threshold", 0);
  return with_number(c, x, [&]<class C>() -> Outputs {
    const View<C> v(x);
    std::vector<C> y(static_cast<size_t>(v.size()));
    for (int64_t i = 0; i < v.size(); ++i) y[i] = static_cast<double>(v[i]) > threshold;
    return one(store(x.dtype(), x.dims(), y));
  });
}

Outputs array_feature_extractor(const Call& c) {
  const Tensor &x = *c.input(0), &at = *c.input(1);
  if (!is_int(at.dtype())) return c.unsupported_type(at);
  if (x.rank() < 1 || at.numel() < 1) return c.bad("{} by {}", text(x.dims()), text(at.dims()));
  Dims out = x.dims();
  const int64_t width = out.back(), rows = count(out, 0, out.size() - 1);
  out.back() = at.numel();
  if (x.rank() == 1) out = {1, at.numel()};
  FERRULE_TRY(c.fits(x.dtype(), out));
  std::vector<int64_t> from;
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i : at.to_i64()) {
      if (i < 0 || i >= width) return c.bad("index {} of {} elements", i, width);
      from.push_back(r * width + i);
    }
  return one(take(x, out, from));
}

/// (x - offset) * scale, by column or all alike.
Outputs scaler(const Call& c) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  const auto offset = reals(c, "offset"), scale = reals(c, "scale");
  for (const auto* v : {&offset, &scale})
    if (!v->empty() && v->size() != 1 && std::ssize(*v) != width)
      return c.bad("{} parameters for {} columns", v->size(), width);
  const auto of = [](const std::vector<double>& v, int64_t i, double none) {
    return v.empty() ? none : v.size() == 1 ? v[0] : v[static_cast<size_t>(i)];
  };
  const View<double> v(*c.input(0));
  std::vector<float> y;
  for (int64_t i = 0; i < v.size(); ++i)
    y.push_back(static_cast<float>((v[i] - of(offset, i % width, 0)) * of(scale, i % width, 1)));
  return one(store(DType::f32, c.input(0)->dims(), y));
}

Outputs normalizer(const Call& c) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  const std::string norm = c.n.attrs.s("norm", "MAX");
  if (norm != "MAX" && norm != "L1" && norm != "L2")
    return c.bad_attr("norm", "\"{}\" is neither MAX nor L1 nor L2", escape(norm));
  const View<double> v(*c.input(0));
  std::vector<float> y(static_cast<size_t>(v.size()));
  for (int64_t r = 0; r < rows; ++r) {
    double sum = norm == "MAX" && width > 0 ? v[r * width] : 0;  // the largest, whatever its sign
    for (int64_t i = r * width; i < (r + 1) * width; ++i)
      sum = norm == "MAX" ? std::max(sum, v[i])
                          : sum + (norm == "L1" ? std::fabs(v[i]) : v[i] * v[i]);
    if (norm == "L2") sum = std::sqrt(sum);
    for (int64_t i = r * width; i < (r + 1) * width; ++i)
      y[i] = static_cast<float>(sum == 0 ? v[i] : v[i] / sum);
  }
  return one(store(DType::f32, c.input(0)->dims(), y));
}

/// What stands for a missing value becomes another one, by column or everywhere the same.
Outputs imputer(const Call& c) {
  const Tensor& x = *c.input(0);
  const bool real = is_float(x.dtype());
  if (!real && !is_int(x.dtype())) return c.unsupported_type(x);
  if (x.rank() < 1) return c.bad("its input is one number");
  const auto instead = reals(c, "imputed_value_floats");
  const Dims whole = c.n.attrs.ints("imputed_value_int64s");
  const auto size = real ? std::ssize(instead) : std::ssize(whole);
  if (size == 0)
    return c.bad_attr(real ? "imputed_value_floats" : "imputed_value_int64s",
                      "nothing for the missing values of {}", name(x.dtype()));
  const int64_t width = x.rank() == 1 ? x.dims()[0] : x.dims()[1];
  const auto at = [&](int64_t i) { return static_cast<size_t>(size == width ? i % width : 0); };
  if (!real) {
    const View<int64_t> v(x);
    const int64_t missing = c.n.attrs.i("replaced_value_int64", 0);
    Dims y;
    for (int64_t i = 0; i < v.size(); ++i) y.push_back(v[i] == missing ? whole[at(i)] : v[i]);
    return one(store(x.dtype(), x.dims(), y));
  }
  const View<double> v(x);
  const double missing = c.n.attrs.f("replaced_value_float", 0);
  std::vector<double> y;
  for (int64_t i = 0; i < v.size(); ++i)
    y.push_back(v[i] == missing || (std::isnan(v[i]) && std::isnan(missing)) ? instead[at(i)]
                                                                             : v[i]);
  return one(store(x.dtype(), x.dims(), y));
}

/// Ones at the places of categories along a new last axis.
Outputs one_hot_encoder(const Call& c) {
  const Tensor& x = *c.input(0);
  const Strings words = strings(c, "cats_strings");
  const Dims numbers = c.n.attrs.ints("cats_int64s");
  const bool texts = x.dtype() == DType::string;
  if (!texts && !is_float(x.dtype()) && !is_int(x.dtype())) return c.unsupported_type(x);
  if (texts ? words.empty() : numbers.empty()) return c.bad("no categories for its elements");
  std::map<std::string, int64_t> word_at;
  std::map<int64_t, int64_t> number_at;
  for (size_t k = 0; k < words.size(); ++k) word_at[words[k]] = static_cast<int64_t>(k);
  for (size_t k = 0; k < numbers.size(); ++k) number_at[numbers[k]] = static_cast<int64_t>(k);
  const int64_t width = texts ? std::ssize(words) : std::ssize(numbers);
  Dims out = x.dims();
  out.push_back(width);
  FERRULE_TRY(c.fits(DType::f32, out));
  const bool zeros = c.n.attrs.i("zeros", 1) != 0;
  std::vector<float> y(static_cast<size_t>(count(out)));
  for (int64_t i = 0; i < x.numel(); ++i) {
    int64_t place = -1;
    if (texts) {
      if (auto it = word_at.find(x.strings()[i]); it != word_at.end()) place = it->second;
    } else if (auto it = number_at.find(x.at_i64(i)); it != number_at.end()) {
      place = it->second;
    }
    if (place >= 0)
      y[static_cast<size_t>(i * width + place)] = 1;
    else if (!zeros)
      return c.bad("element {} is none of the categories", i);
  }
  return one(store(DType::f32, out, y));
}

/// The columns of all inputs beside each other; inputdimensions says how many each one has.
Outputs feature_vectorizer(const Call& c) {
  const Dims widths = c.n.attrs.ints("inputdimensions");
  if (widths.size() != c.in.size())
    return c.bad_attr("inputdimensions", "{} of them for {} inputs", widths.size(), c.in.size());
  int64_t rows = -1, total = 0;
  for (size_t k = 0; k < widths.size(); ++k) {
    const Tensor* x = c.input(k);
    if (!x || (!is_float(x->dtype()) && !is_int(x->dtype())) || x->rank() < 1)
      return c.bad("input {} is no matrix of numbers", k);
    const int64_t own = x->rank() == 1 ? 1 : x->dims()[0];
    if (rows >= 0 && rows != own) return c.bad("inputs of {} and {} rows", rows, own);
    if (widths[k] < 0 || __builtin_add_overflow(total, widths[k], &total))
      return c.bad_attr("inputdimensions", "{}", widths[k]);
    rows = own;
  }
  FERRULE_TRY(c.fits(DType::f32, {rows, total}));
  std::vector<float> y(static_cast<size_t>(rows * total));
  int64_t begin = 0;
  for (size_t k = 0; k < widths.size(); begin += widths[k++]) {
    const View<double> v(*c.input(k));
    const int64_t own = rows ? v.size() / rows : 0;
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < std::min(own, widths[k]); ++i)
        y[static_cast<size_t>(r * total + begin + i)] = static_cast<float>(v[r * own + i]);
  }
  return one(store(DType::f32, {rows, total}, y));
}

/// Strings to integers, or back.
Outputs category_mapper(const Call& c) {
  const Tensor& x = *c.input(0);
  const Strings words = strings(c, "cats_strings");
  const Dims numbers = c.n.attrs.ints("cats_int64s");
  if (words.size() != numbers.size())
    return c.bad("{} strings for {} integers", words.size(), numbers.size());
  if (x.dtype() != DType::string && x.dtype() != DType::i64) return c.unsupported_type(x);
  std::vector<int64_t> from(static_cast<size_t>(x.numel()), -1);
  if (x.dtype() == DType::string) {
    std::map<std::string, int64_t> at;
    for (size_t k = 0; k < words.size(); ++k) at[words[k]] = static_cast<int64_t>(k);
    for (size_t i = 0; i < from.size(); ++i)
      if (auto it = at.find(x.strings()[i]); it != at.end()) from[i] = it->second;
    const Tensor otherwise =
        Tensor::scalar(DType::i64, static_cast<double>(c.n.attrs.i("default_int64", -1)));
    return one(take(Tensor::of_i64({std::ssize(numbers)}, numbers), x.dims(), from, &otherwise));
  }
  std::map<int64_t, int64_t> at;
  for (size_t k = 0; k < numbers.size(); ++k) at[numbers[k]] = static_cast<int64_t>(k);
  for (size_t i = 0; i < from.size(); ++i)
    if (auto it = at.find(x.at_i64(static_cast<int64_t>(i))); it != at.end()) from[i] = it->second;
  const Tensor otherwise(Dims{}, Strings{c.n.attrs.s("default_string", "_Unused")});
  return one(take(Tensor({std::ssize(words)}, words), x.dims(), from, &otherwise));
}

/// A map from labels to values for each row.
Outputs zip_map(const Call& c) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  if (c.input(0)->dtype() != DType::f32) return c.unsupported_type(*c.input(0));
  const Strings words = strings(c, "classlabels_strings");
  const Dims numbers = c.n.attrs.ints("classlabels_int64s");
  const Tensor keys = words.empty() ? Tensor::of_i64({std::ssize(numbers)}, numbers)
                                    : Tensor({std::ssize(words)}, words);
  if (keys.numel() != width) return c.bad("{} labels for {} columns", keys.numel(), width);
  FERRULE_TRY(c.fits(DType::f64, {rows, sizeof(Tensor)}));
  std::vector<Tensor> out;
  for (int64_t r = 0; r < rows; ++r)
    out.push_back(
        Tensor::map(keys, take(*c.input(0), {width}, positions({width}, {1}, r * width))));
  return one(Tensor::sequence(std::move(out)));
}

// --- scores

double logistic(double v) {
  const double e = 1 / (1 + std::exp(-std::fabs(v)));
  return v < 0 ? 1 - e : e;
}
double probit(double v) {
  const double x = 2 * v - 1, product = (1 - x) * (1 + x);
  if (product == 0) return 0;
  const double log = std::log(product), a = 2 / (std::numbers::pi * 0.147) + log / 2,
               root = std::sqrt(std::sqrt(a * a - log / 0.147) - a);
  return std::numbers::sqrt2 * (x < 0 ? -root : root);
}

struct Scores {
  int64_t rows = 0, classes = 0;
  std::vector<double> of;
  std::span<double> row(int64_t r) { return std::span(of).subspan(r * classes, classes); }
};

/// Products of rows and coefficients, and intercepts.
Result<Scores> linear(const Call& c, int64_t targets) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  const auto factors = reals(c, "coefficients"), added = reals(c, "intercepts");
  if (targets == 0) targets = width ? std::ssize(factors) / width : 0;
  if (targets < 1 || width < 1 || std::ssize(factors) / targets != width ||
      std::ssize(factors) % targets)
    return c.bad_attr("coefficients", "{} of them for {} columns", factors.size(), width);
  if (!added.empty() && std::ssize(added) != targets)
    return c.bad_attr("intercepts", "{} of them for {} results", added.size(), targets);
  FERRULE_TRY(c.fits(DType::f64, {rows, targets}));
  const View<double> x(*c.input(0));
  Scores s{rows, targets, {}};
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t t = 0; t < targets; ++t) {
      double sum = added.empty() ? 0 : added[static_cast<size_t>(t)];
      for (int64_t i = 0; i < width; ++i)
        sum += x[r * width + i] * factors[static_cast<size_t>(t * width + i)];
      s.of.push_back(sum);
    }
  return s;
}

Outputs linear_regressor(const Call& c) {
  FERRULE_ASSIGN(Scores s, linear(c, c.n.attrs.i("targets", 1)));
  const std::string how = c.n.attrs.s("post_transform", "NONE");
  for (int64_t r = 0; r < s.rows; ++r) FERRULE_TRY(transform_targets(c, how, s.row(r)));
  return one(store(DType::f32, {s.rows, s.classes}, s.of));
}

/// Labels, and the scores that they were chosen by.
Outputs labelled(const Call& c, const Scores& s, const Labels& labels,
                 const std::vector<int64_t>& best) {
  FERRULE_ASSIGN(Tensor names, named(c, labels, best));
  std::vector<Tensor> out{std::move(names)};
  out.push_back(store(DType::f32, {s.rows, s.classes}, s.of));
  return out;
}

std::vector<int64_t> best_of(Scores& s) {
  std::vector<int64_t> best;
  for (int64_t r = 0; r < s.rows; ++r)
    best.push_back(std::ranges::max_element(s.row(r)) - s.row(r).begin());
  return best;
}

Outputs linear_classifier(const Call& c) {
  const Labels labels = labels_of(c, "classlabels_ints");
  FERRULE_ASSIGN(Scores s, linear(c, 0));
  const std::string how = c.n.attrs.s("post_transform", "NONE");
  if (s.classes == 1) {
    if (labels.size() != 2) return c.unsupported("one score and not two labels");
    Scores two{s.rows, 2, {}};
    std::vector<int64_t> chosen;
    for (double score : s.of) {
      FERRULE_ASSIGN(const auto both, two_scores(c, how, score, true));
      two.of.insert(two.of.end(), both.begin(), both.end());
      chosen.push_back(score > 0);
    }
    return labelled(c, two, labels, chosen);
  }
  const auto chosen = best_of(s);
  for (int64_t r = 0; r < s.rows; ++r) FERRULE_TRY(post_transform(c, how, s.row(r)));
  return labelled(c, s, labels, chosen);
}

// --- support vectors

/// What a row and a support vector have in common.
class Likeness {
 public:
  static Result<Likeness> make(const Call& c, bool plain) {
    static const std::map<std::string_view, Kind> kKinds = {{"LINEAR", Kind::linear},
                                                            {"POLY", Kind::poly},
                                                            {"RBF", Kind::rbf},
                                                            {"SIGMOID", Kind::sigmoid}};
    const std::string word = c.n.attrs.s("kernel_type", "LINEAR");
    const auto kind = kKinds.find(word);
    if (kind == kKinds.end()) return c.bad_attr("kernel_type", "\"{}\" is none", escape(word));
    const auto params = reals(c, "kernel_params");
    if (!params.empty() && params.size() != 3)
      return c.bad_attr("kernel_params", "{} of 3", params.size());
    Likeness l;
    if (!plain) l.kind_ = kind->second;
    if (!params.empty()) l.gamma_ = params[0], l.added_ = params[1], l.degree_ = params[2];
    return l;
  }
  double of(const double* x, const double* vector, int64_t n) const {
    double sum = 0;
    for (int64_t i = 0; i < n; ++i)
      sum += kind_ == Kind::rbf ? (x[i] - vector[i]) * (x[i] - vector[i]) : x[i] * vector[i];
    switch (kind_) {
      case Kind::poly:
        return std::pow(gamma_ * sum + added_, degree_);
      case Kind::rbf:
        return std::exp(-gamma_ * sum);
      case Kind::sigmoid:
        return std::tanh(gamma_ * sum + added_);
      default:
        return sum;
    }
  }

 private:
  enum class Kind : uint8_t { linear, poly, rbf, sigmoid } kind_ = Kind::linear;
  double gamma_ = 0, added_ = 0, degree_ = 0;
};

Outputs svm_regressor(const Call& c) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  const int64_t supports = c.n.attrs.i("n_supports", 0);
  const auto vectors = reals(c, "support_vectors"), factors = reals(c, "coefficients"),
             rho = reals(c, "rho");
  FERRULE_ASSIGN(const Likeness like, Likeness::make(c, supports <= 0));
  if (rho.empty()) return c.bad_attr("rho", "it is missing");
  // Without support vectors, the coefficients are one vector.
  const int64_t count = supports > 0 ? supports : 1;
  const auto& used = supports > 0 ? vectors : factors;
  if (std::ssize(used) != count * width || (supports > 0 && std::ssize(factors) != supports))
    return c.bad("{} numbers and {} coefficients for {} columns", used.size(), factors.size(),
                 width);
  if (c.n.attrs.s("post_transform", "NONE") != "NONE")
    return c.unsupported("it transforms its results");
  const View<double> x(*c.input(0));
  std::vector<double> y;
  for (int64_t r = 0; r < rows; ++r) {
    double sum = rho[0];
    for (int64_t k = 0; k < count; ++k)
      sum += (supports > 0 ? factors[static_cast<size_t>(k)] : 1) *
             like.of(x.data() + r * width, used.data() + k * width, width);
    y.push_back(c.n.attrs.i("one_class", 0) == 0 ? sum : sum > 0 ? 1 : -1);
  }
  return one(store(DType::f32, {rows, 1}, y));
}

/// Probabilities of classes from those of each pair, r[i, j] that of i against j: Wu, Lin and Weng
/// 2004, Probability estimates for multi-class classification by pairwise coupling (their second
/// method). Q p is minimal; each turn sets one p to its best and all to a sum of 1 again.
std::vector<double> coupled(int64_t classes, const std::vector<double>& r) {
  const auto at = [&](int64_t i, int64_t j) { return static_cast<size_t>(i * classes + j); };
  std::vector<double> q(r.size()), product(static_cast<size_t>(classes)),
      p(static_cast<size_t>(classes), 1.0 / static_cast<double>(classes));
  for (int64_t i = 0; i < classes; ++i)
    for (int64_t j = 0; j < classes; ++j) {
      if (i == j) continue;
      q[at(i, i)] += r[at(j, i)] * r[at(j, i)];
      q[at(i, j)] = -r[at(j, i)] * r[at(i, j)];
    }
  const double enough = 0.005 / static_cast<double>(classes);
  for (int turn = 0; turn < 100; ++turn) {
    double whole = 0, error = 0;
    for (int64_t i = 0; i < classes; ++i) {
      product[i] = 0;
      for (int64_t j = 0; j < classes; ++j) product[i] += q[at(i, j)] * p[j];
      whole += p[i] * product[i];
    }
    for (double v : product) error = std::max(error, std::fabs(v - whole));
    if (error < enough) break;
    for (int64_t i = 0; i < classes; ++i) {
      const double step = (whole - product[i]) / q[at(i, i)], sum = 1 + step;
      p[i] += step;
      whole = (whole + step * (step * q[at(i, i)] + 2 * product[i])) / sum / sum;
      for (int64_t j = 0; j < classes; ++j) {
        product[j] = (product[j] + step * q[at(i, j)]) / sum;
        p[j] /= sum;
      }
    }
  }
  return p;
}

/// Each two classes have a score, which is a vote for one of them; prob_a and prob_b make these
/// scores probabilities. Without support vectors, each class has coefficients.
Outputs svm_classifier(const Call& c) {
  FERRULE_ASSIGN(const Rows size, rows_of(c));
  const auto [rows, width] = size;
  const Labels labels = labels_of(c, "classlabels_ints");
  const auto classes = static_cast<int64_t>(labels.size());
  const Dims per_class = c.n.attrs.ints("vectors_per_class");
  const auto vectors = reals(c, "support_vectors"), factors = reals(c, "coefficients"),
             rho = reals(c, "rho"), slope = reals(c, "prob_a"), shift = reals(c, "prob_b");
  const std::string how = c.n.attrs.s("post_transform", "NONE");
  // No class has more vectors than there are numbers, so that sums do not wrap.
  const auto most = std::ssize(vectors);
  if (std::ranges::any_of(per_class, [&](int64_t n) { return n < 0 || n > most; }))
    return c.bad_attr("vectors_per_class", "{} with {} numbers", text(per_class), most);
  const int64_t supports = std::accumulate(per_class.begin(), per_class.end(), int64_t{0}),
                pairs = classes * (classes - 1) / 2;
  const bool linear = supports <= 0;
  FERRULE_ASSIGN(const Likeness like, Likeness::make(c, linear));
  const auto least = [](const std::vector<double>& v, int64_t n) { return std::ssize(v) >= n; };
  if (classes < 1 || rho.empty() || (linear && std::ssize(factors) != classes * width))
    return c.bad("{} coefficients for {} classes and {} columns", factors.size(), classes, width);
  if (!linear &&
      (classes < 2 || std::ssize(per_class) != classes || std::ssize(vectors) != supports * width ||
       !least(factors, (classes - 1) * supports) || !least(rho, pairs) ||
       slope.size() != shift.size() || (!slope.empty() && !least(slope, pairs))))
    return c.bad("its lists of support vectors do not fit {} classes and {} columns", classes,
                 width);
  const bool likely = !linear && !slope.empty();
  const bool positive = std::ranges::all_of(factors, [](double v) { return v >= 0; });
  const int64_t wide = linear || likely || classes == 2 ? classes : pairs;
  FERRULE_TRY(c.fits(DType::f64, {rows, wide}));
  const View<double> x(*c.input(0));
  std::vector<int64_t> best;
  Scores s{rows, wide, {}};
  for (int64_t r = 0; r < rows; ++r) {
    if (c.options.cancel && c.options.cancel->stopped())
      return error(Code::cancelled, c.place(), "time is up");
    const double* row = x.data() + r * width;
    std::vector<double> scores;
    if (linear) {
      for (int64_t k = 0; k < classes; ++k)
        scores.push_back(like.of(row, factors.data() + k * width, width) + rho[0]);
      best.push_back(std::ranges::max_element(scores) - scores.begin());
      if (classes == 2 && scores[best.back()] > (positive ? 0.5 : 0)) best.back() = 1;
      FERRULE_TRY(post_transform(c, how, scores));
      s.of.insert(s.of.end(), scores.begin(), scores.end());
      continue;
    }
    std::vector<double> alike, votes(static_cast<size_t>(classes));
    for (int64_t k = 0; k < supports; ++k)
      alike.push_back(like.of(row, vectors.data() + k * width, width));
    int64_t begin_i = 0;
    for (int64_t i = 0; i < classes; begin_i += per_class[i++]) {
      int64_t begin_j = begin_i + per_class[i];
      for (int64_t j = i + 1; j < classes; begin_j += per_class[j++]) {
        double sum = rho[scores.size()];
        for (int64_t m = begin_i; m < begin_i + per_class[i]; ++m)
          sum += factors[(j - 1) * supports + m] * alike[m];
        for (int64_t m = begin_j; m < begin_j + per_class[j]; ++m)
          sum += factors[i * supports + m] * alike[m];
        scores.push_back(sum);
        ++votes[sum > 0 ? i : j];
      }
    }
    best.push_back(std::ranges::max_element(votes) - votes.begin());
    if (likely) {
      std::vector<double> against(static_cast<size_t>(classes * classes));
      size_t pair = 0;
      for (int64_t i = 0; i < classes; ++i)
        for (int64_t j = i + 1; j < classes; ++j, ++pair) {
          const double p =
              std::clamp(1 - logistic(scores[pair] * slope[pair] + shift[pair]), 1e-7, 1 - 1e-7);
          against[i * classes + j] = p, against[j * classes + i] = 1 - p;
        }
      scores = coupled(classes, against);
    }
    if (classes == 2 && !likely) {
      FERRULE_ASSIGN(const auto both, two_scores(c, how, scores[0], how != "NONE"));
      scores.assign(both.begin(), both.end());
    } else {
      FERRULE_TRY(post_transform(c, how, scores));
    }
    s.of.insert(s.of.end(), scores.begin(), scores.end());
  }
  return labelled(c, s, labels, best);
}

}  // namespace

Status post_transform(const Call& c, std::string_view how, std::span<double> row) {
  if (how == "NONE") return {};
  if (how == "LOGISTIC" || how == "PROBIT") {
    for (double& v : row) v = how == "PROBIT" ? probit(v) : logistic(v);
    return {};
  }
  if (how != "SOFTMAX" && how != "SOFTMAX_ZERO")
    return c.bad_attr("post_transform", "\"{}\" is none", escape(how));
  if (row.empty()) return {};
  const double top = *std::ranges::max_element(row);
  double sum = 0;
  for (double& v : row) {
    const bool zero = how == "SOFTMAX_ZERO" && std::fabs(v) <= 1e-7;
    v = zero ? v * std::exp(-top) : std::exp(v - top);
    sum += v;
  }
  for (double& v : row) v = sum == 0 ? 0.5 : v / sum;
  return {};
}

Status transform_targets(const Call& c, std::string_view how, std::span<double> row) {
  return row.size() == 1 && how != "PROBIT" ? Status{} : post_transform(c, how, row);
}

Result<std::array<double, 2>> two_scores(const Call& c, std::string_view how, double score,
                                         bool complement) {
  if (how == "PROBIT") return c.unsupported("it transforms a single score of two classes");
  if (how == "LOGISTIC") return std::array{logistic(-score), logistic(score)};
  return std::array{complement ? 1 - score : -score, score};
}

Labels labels_of(const Call& c, std::string_view numbers) {
  return {strings(c, "classlabels_strings"), c.n.attrs.ints(numbers)};
}

Result<Tensor> named(const Call& c, const Labels& labels, const std::vector<int64_t>& chosen) {
  const auto size = static_cast<int64_t>(labels.size());
  for (int64_t k : chosen)
    if (k < 0 || k >= size) return c.bad("{} labels for class {}", size, k);
  const Tensor names =
      labels.words.empty() ? Tensor::of_i64({size}, labels.numbers) : Tensor({size}, labels.words);
  return take(names, {std::ssize(chosen)}, chosen);
}

std::vector<Entry> learned_table() {
  auto out = tree_table();
  out.insert(out.end(), {
                            {"ml.ArrayFeatureExtractor", array_feature_extractor, 2},
                            {"ml.Binarizer", binarizer, 1},
                            {"ml.CategoryMapper", category_mapper, 1},
                            {"ml.FeatureVectorizer", feature_vectorizer, 1},
                            {"ml.Imputer", imputer, 1},
                            {"ml.LabelEncoder", label_encoder, 1},
                            {"ml.LinearClassifier", linear_classifier, 1},
                            {"ml.LinearRegressor", linear_regressor, 1},
                            {"ml.Normalizer", normalizer, 1},
                            {"ml.OneHotEncoder", one_hot_encoder, 1},
                            {"ml.SVMClassifier", svm_classifier, 1},
                            {"ml.SVMRegressor", svm_regressor, 1},
                            {"ml.Scaler", scaler, 1},
                            {"ml.ZipMap", zip_map, 1},
                        });
  return out;
}

}  // namespace ferrule::interp
