// Operators on texts (UTF-8), and the counts of their n-grams.
#include <locale.h>
#include <stdlib.h>
#include <wctype.h>

#include <map>
#include <set>

#include "engine/graph/operator_name.h"
#include "engine/interpreter/internal.h"
#include "engine/interpreter/regex.h"

namespace ferrule::interp {
namespace {

using Texts = std::vector<std::string>;

Outputs string_concat(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(1);
  if (a.dtype() != DType::string) return c.unsupported_type(a);
  if (b.dtype() != DType::string) return c.unsupported_type(b);
  const auto dims = broadcast(a.dims(), b.dims());
  if (!dims) return c.bad("{} and {} do not broadcast", text(a.dims()), text(b.dims()));
  FERRULE_TRY(c.fits(DType::u64, *dims));
  const auto from_a = positions(*dims, broadcast_strides(a.dims(), *dims)),
             from_b = positions(*dims, broadcast_strides(b.dims(), *dims));
  int64_t bytes = 0;
  for (size_t i = 0; i < from_a.size(); ++i)
    bytes += std::ssize(a.strings()[from_a[i]]) + std::ssize(b.strings()[from_b[i]]);
  FERRULE_TRY(c.fits(DType::u8, {bytes}));
  Texts out(from_a.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = a.strings()[from_a[i]] + b.strings()[from_b[i]];
  return one(Tensor(*dims, std::move(out)));
}

Outputs equal_texts(const Call& c) {
  const Tensor &a = *c.input(0), &b = *c.input(1);
  if (a.dtype() != DType::string) return c.unsupported_type(a);
  if (b.dtype() != DType::string) return c.unsupported_type(b);
  const auto dims = broadcast(a.dims(), b.dims());
  if (!dims) return c.bad("{} and {} do not broadcast", text(a.dims()), text(b.dims()));
  FERRULE_TRY(c.fits(DType::boolean, *dims));
  const auto from_a = positions(*dims, broadcast_strides(a.dims(), *dims)),
             from_b = positions(*dims, broadcast_strides(b.dims(), *dims));
  std::vector<int64_t> out(from_a.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = a.strings()[from_a[i]] == b.strings()[from_b[i]];
  return one(store(DType::boolean, *dims, out));
}

Outputs where_texts(const Call& c) {
  const Tensor &which = *c.input(0), &a = *c.input(1), &b = *c.input(2);
  if (which.dtype() != DType::boolean) return c.unsupported_type(which);
  if (a.dtype() != DType::string) return c.unsupported_type(a);
  if (b.dtype() != DType::string) return c.unsupported_type(b);
  auto dims = broadcast(a.dims(), b.dims());
  if (dims) dims = broadcast(*dims, which.dims());
  if (!dims)
    return c.bad("{}, {} and {} do not broadcast", text(which.dims()), text(a.dims()),
                 text(b.dims()));
  FERRULE_TRY(c.fits(DType::u64, *dims));
  const auto from_a = positions(*dims, broadcast_strides(a.dims(), *dims)),
             from_b = positions(*dims, broadcast_strides(b.dims(), *dims)),
             from = positions(*dims, broadcast_strides(which.dims(), *dims));
  Texts out(from.size());
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = which.at_i64(from[i]) ? a.strings()[from_a[i]] : b.strings()[from_b[i]];
  return one(Tensor(*dims, std::move(out)));
}

/// Numbers as ONNX Runtime writes them: floats with 8 significant digits.
Outputs to_texts(const Call& c, const Tensor& x) {
  FERRULE_TRY(c.fits(DType::u64, x.dims()));
  Texts out;
  for (int64_t i = 0; i < x.numel(); ++i) {
    if (!is_float(x.dtype())) {
      out.push_back(x.dtype() == DType::u64 ? std::to_string(static_cast<uint64_t>(x.at_i64(i)))
                                            : std::to_string(x.at_i64(i)));
      continue;
    }
    const double d = x.at_f64(i);
    if (std::isnan(d))
      out.emplace_back("NaN");
    else if (std::isinf(d))
      out.emplace_back(d < 0 ? "-INF" : "INF");
    else
      out.push_back(fmt::format("{:.8g}", d));
  }
  return one(Tensor(x.dims(), std::move(out)));
}

/// The number that the text begins with.
Outputs from_texts(const Call& c, const Tensor& x, DType to) {
  static const locale_t kPlain = newlocale(LC_ALL_MASK, "C", nullptr);
  const bool real = is_float(to);
  if (!real && !is_int(to) && to != DType::boolean) return c.unsupported_type(x);
  FERRULE_TRY(c.fits(DType::f64, x.dims()));
  std::vector<double> floats;
  std::vector<int64_t> whole;
  for (const std::string& s : x.strings()) {
    const char* begin = s.c_str();
    char* end = nullptr;
    errno = 0;
    if (real)
      floats.push_back(strtod_l(begin, &end, kPlain));
    else if (is_unsigned_int(to))
      whole.push_back(static_cast<int64_t>(std::strtoull(begin, &end, 10)));
    else
      whole.push_back(std::strtoll(begin, &end, 10));
    if (end == begin || (!real && errno == ERANGE))
      return c.bad("\"{}\" is no number of {}", escape(s), name(to));
    if (to == DType::boolean) whole.back() = whole.back() != 0;
  }
  return one(real ? store(to, x.dims(), floats) : store(to, x.dims(), whole));
}

}  // namespace

bool has_texts(const Call& c) {
  return (c.n.op == "Cast" && c.n.attrs.i("to") == static_cast<int64_t>(DType::string)) ||
         std::ranges::any_of(c.in,
                             [](const Tensor* t) { return t && t->dtype() == DType::string; });
}

Outputs pointwise_texts(const Call& c) {
  const std::string& op = c.n.op.text();
  FERRULE_TRY(c.need(op == "Where" ? 3 : op == "Cast" || op == "Identity" ? 1 : 2));
  if (op == "Equal") return equal_texts(c);
  if (op == "Where") return where_texts(c);
  if (op == "Identity") return one(*c.in[0]);
  if (op == "Cast" || op == "CastLike") {
    const DType to = op == "Cast" ? static_cast<DType>(c.n.attrs.i("to")) : c.input(1)->dtype();
    const Tensor& x = *c.in[0];
    if (to == x.dtype()) return one(x);
    return to == DType::string ? to_texts(c, x) : from_texts(c, x, to);
  }
  for (const Tensor* t : c.in)
    if (t && t->dtype() == DType::string) return c.unsupported_type(*t);
  return c.unsupported_type(*c.in[0]);
}

namespace {

constexpr std::string_view kSpace = " \t\n\r\f\v";

/// At most `most` times; by runs of white space where there is no delimiter, as Python splits.
Texts pieces_of(std::string_view s, std::string_view delimiter, int64_t most) {
  Texts out;
  if (delimiter.empty()) {
    for (size_t at = s.find_first_not_of(kSpace); at != s.npos;) {
      const size_t end = std::ssize(out) == most ? s.npos : s.find_first_of(kSpace, at);
      out.emplace_back(s.substr(at, end == s.npos ? s.npos : end - at));
      at = end == s.npos ? s.npos : s.find_first_not_of(kSpace, end);
    }
    return out;
  }
  for (;;) {
    const size_t end = std::ssize(out) == most ? s.npos : s.find(delimiter);
    out.emplace_back(s.substr(0, end));
    if (end == s.npos) return out;
    s.remove_prefix(end + delimiter.size());
  }
}

Outputs string_split(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.dtype() != DType::string) return c.unsupported_type(x);
  const std::string delimiter = c.n.attrs.s("delimiter", "");
  const int64_t given = c.n.attrs.i("maxsplit", -1);
  const int64_t most = given < 0 ? std::numeric_limits<int64_t>::max() : given;
  std::vector<Texts> split;
  std::vector<int64_t> counts;
  int64_t widest = 0;
  for (const std::string& s : x.strings()) {
    split.push_back(pieces_of(s, delimiter, most));
    counts.push_back(std::ssize(split.back()));
    widest = std::max(widest, counts.back());
  }
  Dims dims = x.dims();
  dims.push_back(widest);
  FERRULE_TRY(c.fits(DType::u64, dims));
  Texts all;
  for (Texts& t : split) {
    t.resize(static_cast<size_t>(widest));
    std::ranges::move(t, std::back_inserter(all));
  }
  auto out = one(Tensor(dims, std::move(all)));
  if (c.wants(1)) out->push_back(store(DType::i64, x.dims(), counts));
  return out;
}

/// Upper or lower case by Unicode's tables; bytes that are no UTF-8 stay as they are.
std::string cased(const std::string& s, bool upper) {
  static const locale_t kUnicode = newlocale(LC_CTYPE_MASK, "C.UTF-8", nullptr);
  std::string out;
  for (size_t at = 0; at < s.size();) {
    const size_t from = at;
    uint32_t code = next_code(s, at);
    if (code == kNoCode) {
      out += s[from];
      continue;
    }
    const auto w = static_cast<wint_t>(code);
    if (kUnicode) code = upper ? towupper_l(w, kUnicode) : towlower_l(w, kUnicode);
    if (code < 0x80) {
      out += static_cast<char>(code);
    } else {
      const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
      out += static_cast<char>((0xf00 >> more & 0xff) | code >> (6 * more));
      for (int k = more; k-- > 0;) out += static_cast<char>(0x80 | (code >> (6 * k) & 63));
    }
  }
  return out;
}

Outputs string_normalizer(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.dtype() != DType::string) return c.unsupported_type(x);
  const bool matrix = x.rank() == 2;
  if (x.rank() != 1 && !(matrix && x.dims()[0] == 1))
    return c.bad("its input is {}, neither [C] nor [1,C]", text(x.dims()));
  const std::string action = c.n.attrs.s("case_change_action", "NONE");
  if (action != "NONE" && action != "LOWER" && action != "UPPER")
    return c.bad_attr("case_change_action", "\"{}\" is neither NONE nor LOWER nor UPPER",
                      escape(action));
  const bool exact = c.n.attrs.i("is_case_sensitive", 0) != 0;
  std::set<std::string> stop;
  if (const Attr* a = c.n.attrs.find("stopwords"))
    if (const auto* words = std::get_if<Texts>(a))
      for (const std::string& w : *words) stop.insert(exact ? w : cased(w, false));
  Texts out;
  for (const std::string& s : x.strings()) {
    if (stop.contains(exact ? s : cased(s, false))) continue;
    out.push_back(action == "NONE" ? s : cased(s, action == "UPPER"));
  }
  if (out.empty()) out.emplace_back();
  const int64_t n = std::ssize(out);
  return one(Tensor(matrix ? Dims{1, n} : Dims{n}, std::move(out)));
}

Outputs regex_full_match(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.dtype() != DType::string) return c.unsupported_type(x);
  FERRULE_TRY(c.fits(DType::boolean, x.dims()));
  const std::string pattern = c.n.attrs.s("pattern");
  const auto regex = Regex::compile(pattern);
  if (!regex) return c.bad_attr("pattern", "\"{}\": {}", escape(pattern), regex.error());
  const auto stopped = [&] { return c.options.cancel && c.options.cancel->stopped(); };
  std::vector<int64_t> out;
  for (const std::string& s : x.strings()) out.push_back(regex->matches(s, stopped));
  if (stopped()) return error(Code::cancelled, c.place(), "time is up");
  return one(store(DType::boolean, x.dims(), out));
}

// --- n-grams

/// The n-grams of the pool, each with the element that counts it.
template <class T>
struct Grams {
  std::map<std::vector<T>, size_t> of;  ///< -> position in ngram_indexes
  std::set<int64_t> lengths;
};

struct GramCounts {
  int64_t shortest = 0, longest = 0, skips = 0;
  Dims counts, indexes;
};

template <class T>
Result<Grams<T>> pool_of(const Call& c, const GramCounts& g, const std::vector<T>& pool) {
  Grams<T> out;
  size_t number = 0;
  for (size_t k = 0; k < g.counts.size(); ++k) {
    const int64_t length = static_cast<int64_t>(k) + 1, from = g.counts[k],
                  to = k + 1 < g.counts.size() ? g.counts[k + 1] : std::ssize(pool);
    if (from < 0 || from > to || to > std::ssize(pool) || (to - from) % length)
      return c.bad_attr("ngram_counts", "{} does not divide a pool of {}", text(g.counts),
                        pool.size());
    for (int64_t at = from; at < to; at += length, ++number) {
      if (number >= g.indexes.size())
        return c.bad_attr("ngram_indexes", "{} entries are too few", g.indexes.size());
      if (length < g.shortest || length > g.longest) continue;
      out.of.emplace(std::vector<T>(pool.begin() + at, pool.begin() + at + length), number);
      out.lengths.insert(length);
    }
  }
  return out;
}

/// How often each n-gram stands in a row; single items are not skipped.
template <class T>
Status count_grams(const Call& c, const GramCounts& g, const Grams<T>& grams,
                   std::span<const T> row, std::vector<int64_t>& found) {
  const int64_t n = std::ssize(row);
  std::vector<T> gram;
  for (int64_t length : grams.lengths)
    for (int64_t skip = 0; skip <= (length == 1 ? 0 : std::min(g.skips, n)); ++skip) {
      if (c.options.cancel && c.options.cancel->stopped())
        return error(Code::cancelled, c.place(), "time is up");
      for (int64_t at = 0; at + (length - 1) * (skip + 1) < n; ++at) {
        gram.clear();
        for (int64_t k = 0; k < length; ++k) gram.push_back(row[at + k * (skip + 1)]);
        if (const auto it = grams.of.find(gram); it != grams.of.end()) ++found[it->second];
      }
    }
  return {};
}

template <class T>
Outputs vectorize(const Call& c, const GramCounts& g, const std::vector<T>& items,
                  const std::vector<T>& pool) {
  const Dims& d = c.input(0)->dims();
  const int64_t rows = d.size() == 2 ? d[0] : 1, width = d.empty() ? 1 : d.back();
  int64_t last = -1;
  for (int64_t i : g.indexes) last = std::max(last, i);
  Dims out = d.size() == 2 ? Dims{rows, last + 1} : Dims{last + 1};
  FERRULE_TRY(c.fits(DType::f32, out));
  FERRULE_ASSIGN(const Grams<T> grams, pool_of(c, g, pool));
  const std::string mode = c.n.attrs.s("mode");
  if (mode != "TF" && mode != "IDF" && mode != "TFIDF")
    return c.bad_attr("mode", "\"{}\" is neither TF nor IDF nor TFIDF", escape(mode));
  std::vector<double> weights;
  if (const Attr* a = c.n.attrs.find("weights"))
    if (const auto* w = std::get_if<std::vector<double>>(a)) weights = *w;
  if (!weights.empty() && weights.size() != g.indexes.size())
    return c.bad_attr("weights", "{} entries for {} n-grams", weights.size(), g.indexes.size());
  std::vector<float> y(static_cast<size_t>(count(out)));
  for (int64_t r = 0; r < rows; ++r) {
    std::vector<int64_t> found(g.indexes.size());
    FERRULE_TRY(count_grams<T>(c, g, grams, std::span(items).subspan(r * width, width), found));
    for (size_t k = 0; k < found.size(); ++k) {
      if (!found[k]) continue;
      const double weight = mode == "TF" || weights.empty() ? 1 : weights[k];
      const double times = mode == "IDF" ? 1 : static_cast<double>(found[k]);
      y[r * (last + 1) + g.indexes[k]] += static_cast<float>(times * weight);
    }
  }
  return one(store(DType::f32, out, y));
}

Outputs tfidf_vectorizer(const Call& c) {
  const Tensor& x = *c.input(0);
  if (x.rank() > 2) return c.bad("its input is {}, neither [C] nor [N,C]", text(x.dims()));
  GramCounts g{c.n.attrs.i("min_gram_length"), c.n.attrs.i("max_gram_length"),
               c.n.attrs.i("max_skip_count"), c.n.attrs.ints("ngram_counts"),
               c.n.attrs.ints("ngram_indexes")};
  if (g.shortest < 1 || g.longest < g.shortest)
    return c.bad_attr("max_gram_length", "n-grams of {} to {} items", g.shortest, g.longest);
  if (g.skips < 0) return c.bad_attr("max_skip_count", "{} is negative", g.skips);
  for (int64_t i : g.indexes)
    if (i < 0) return c.bad_attr("ngram_indexes", "{} is negative", i);
  if (x.dtype() == DType::string) {
    const Attr* a = c.n.attrs.find("pool_strings");
    const auto* pool = a ? std::get_if<Texts>(a) : nullptr;
    return vectorize<std::string>(c, g, x.strings(), pool ? *pool : Texts{});
  }
  if (!is_int(x.dtype())) return c.unsupported_type(x);
  return vectorize<int64_t>(c, g, x.to_i64(), c.n.attrs.ints("pool_int64s"));
}

}  // namespace

std::vector<Entry> text_table() {
  return {
      {"RegexFullMatch", regex_full_match, 1},    {"StringConcat", string_concat, 2},
      {"StringNormalizer", string_normalizer, 1}, {"StringSplit", string_split, 1},
      {"TfIdfVectorizer", tfidf_vectorizer, 1},
  };
}

}  // namespace ferrule::interp
