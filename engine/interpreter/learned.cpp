// ai.onnx.ml: trees, linear models, and what stands before and behind them.
#include <map>
#include <numbers>

#include "engine/interpreter/internal.h"

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
    double sum = 0;
    for (int64_t i = r * width; i < (r + 1) * width; ++i)
      sum = norm == "MAX" ? std::max(sum, std::fabs(v[i]))
                          : sum + (norm == "L1" ? std::fabs(v[i]) : v[i] * v[i]);
    if (norm == "L2") sum = std::sqrt(sum);
    for (int64_t i = r * width; i < (r + 1) * width; ++i)
      y[i] = static_cast<float>(sum == 0 ? v[i] : v[i] / sum);
  }
  return one(store(DType::f32, c.input(0)->dims(), y));
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

/// In place, over one row.
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

Tensor floats(const Call& c, const Scores& s) {
  const DType type =
      c.input(0)->dtype() == DType::f64 && c.n.outputs.size() == 1 ? DType::f64 : DType::f32;
  return store(type, {s.rows, s.classes}, s.of);
}

Outputs linear_regressor(const Call& c) {
  FERRULE_ASSIGN(Scores s, linear(c, c.n.attrs.i("targets", 1)));
  for (int64_t r = 0; r < s.rows; ++r)
    FERRULE_TRY(post_transform(c, c.n.attrs.s("post_transform", "NONE"), s.row(r)));
  return one(store(DType::f32, {s.rows, s.classes}, s.of));
}

/// The label of each row's largest score. `single`: one score says whether it is the second label.
Outputs labelled(const Call& c, Scores& s, const Strings& words, const Dims& numbers,
                 const std::vector<int64_t>& best) {
  const bool named = !words.empty();
  const size_t known = named ? words.size() : numbers.size();
  Strings texts;
  Dims ids;
  for (int64_t k : best) {
    if (static_cast<size_t>(k) >= known) return c.bad("{} labels for class {}", known, k);
    if (named)
      texts.push_back(words[k]);
    else
      ids.push_back(numbers[k]);
  }
  std::vector<Tensor> out;
  out.push_back(named ? Tensor({s.rows}, std::move(texts)) : Tensor::of_i64({s.rows}, ids));
  out.push_back(floats(c, s));
  return out;
}

std::vector<int64_t> best_of(Scores& s) {
  std::vector<int64_t> best;
  for (int64_t r = 0; r < s.rows; ++r)
    best.push_back(std::ranges::max_element(s.row(r)) - s.row(r).begin());
  return best;
}

/// One score a row becomes two, the first its opposite.
void both_sides(Scores& s, bool complement) {
  Scores two{s.rows, 2, {}};
  for (double v : s.of) two.of.insert(two.of.end(), {complement ? 1 - v : -v, v});
  s = std::move(two);
}

Outputs linear_classifier(const Call& c) {
  const Strings words = strings(c, "classlabels_strings");
  const Dims numbers = c.n.attrs.ints("classlabels_ints");
  FERRULE_ASSIGN(Scores s, linear(c, 0));
  const size_t classes = std::max(words.size(), numbers.size());
  if (s.classes == 1 && classes != 2) return c.unsupported("one score and not two labels");
  if (s.classes == 1) both_sides(s, false);
  for (int64_t r = 0; r < s.rows; ++r)
    FERRULE_TRY(post_transform(c, c.n.attrs.s("post_transform", "NONE"), s.row(r)));
  return labelled(c, s, words, numbers, best_of(s));
}

}  // namespace

std::vector<Entry> learned_table() {
  auto out = tree_table();
  out.insert(out.end(), {
                            {"ml.ArrayFeatureExtractor", array_feature_extractor, 2},
                            {"ml.Binarizer", binarizer, 1},
                            {"ml.LabelEncoder", label_encoder, 1},
                            {"ml.LinearClassifier", linear_classifier, 1},
                            {"ml.LinearRegressor", linear_regressor, 1},
                            {"ml.Normalizer", normalizer, 1},
                            {"ml.Scaler", scaler, 1},
                            {"ml.ZipMap", zip_map, 1},
                        });
  return out;
}

}  // namespace ferrule::interp
