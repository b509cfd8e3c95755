// Attention (with grouped heads, key / value cache, causal, window and padding masks), whose steps
// are rounded as those of its function body are, and RotaryEmbedding, which is rounded once.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

using Row = std::vector<double>;
constexpr double kMinusInf = -std::numeric_limits<double>::infinity();

/// Heads of [batch, seq, heads * size] or [batch, heads, seq, size].
struct Heads {
  int64_t batch = 0, heads = 0, seq = 0, size = 0;
  Row v;  ///< [batch, heads, seq, size]
  const double* row(int64_t b, int64_t h, int64_t s) const {
    return v.data() + ((b * heads + h) * seq + s) * size;
  }
};

Result<Heads> heads_of(const Call& c, const Tensor& t, std::string_view attr) {
  if (!is_float(t.dtype())) return c.unsupported_type(t);
  const View<double> in(t);
  const Dims& d = t.dims();
  if (d.size() == 4) return Heads{d[0], d[1], d[2], d[3], Row(in.data(), in.data() + in.size())};
  if (d.size() != 3) return c.bad("{} has neither 3 nor 4 axes", text(d));
  const int64_t n = c.n.attrs.i(attr);
  if (n < 1 || d[2] % n != 0) return c.bad_attr(attr, "{} does not divide {}", n, d[2]);
  Heads h{d[0], n, d[1], d[2] / n, {}};
  const auto at = positions({h.batch, h.heads, h.seq, h.size}, {h.seq * d[2], h.size, d[2], 1});
  for (int64_t i : at) h.v.push_back(in[i]);
  return h;
}

/// The cache's steps in front of the new ones.
Result<Heads> with_past(const Call& c, Heads fresh, const Tensor* past) {
  if (!past) return fresh;
  FERRULE_ASSIGN(const Heads old, heads_of(c, *past, ""));
  if (old.batch != fresh.batch || old.heads != fresh.heads || old.size != fresh.size) {
    return c.bad("a cache {} for {} heads of {}", text(past->dims()), fresh.heads, fresh.size);
  }
  Heads all{fresh.batch, fresh.heads, old.seq + fresh.seq, fresh.size, {}};
  for (int64_t k = 0; k < fresh.batch * fresh.heads; ++k) {
    for (const Heads* part : {&old, static_cast<const Heads*>(&fresh)}) {
      const auto from = part->v.begin() + k * part->seq * part->size;
      all.v.insert(all.v.end(), from, from + part->seq * part->size);
    }
  }
  return all;
}

/// What is added to the score of query i and key j: 0, a mask's number, or minus infinity.
class Bias {
 public:
  static Result<Bias> make(const Call& c, const Heads& q, const Heads& k) {
    Bias m;
    m.causal_ = c.n.attrs.i("is_causal") != 0;
    m.left_ = c.n.attrs.i("left_window_size", -1);
    m.right_ = c.n.attrs.i("right_window_size", -1);
    m.kv_ = k.seq;
    m.offset_.assign(q.batch, c.input(4) ? c.input(4)->dims()[2] : 0);
    m.valid_.assign(q.batch, k.seq);
    if (const Tensor* t = c.input(6)) {
      if (!is_int(t->dtype()) || t->numel() != q.batch) {
        return c.bad("{} lengths for {} batches", t->numel(), q.batch);
      }
      m.valid_ = t->to_i64();
      for (size_t b = 0; b < m.valid_.size() && !c.input(4); ++b)
        m.offset_[b] = m.valid_[b] - q.seq;
    }
    if (const Tensor* t = c.input(3)) {
      m.mask_dims_ = t->dims();
      m.boolean_ = t->dtype() == DType::boolean;
      if (!m.boolean_ && !is_float(t->dtype())) return c.unsupported_type(*t);
      if (m.mask_dims_.empty()) return c.bad("a mask without axes");
      m.width_ = m.mask_dims_.back();  // a shorter mask leaves the rest out
      Dims full = m.mask_dims_;
      if (m.width_ < k.seq) full.back() = k.seq;
      const Dims all{q.batch, q.heads, q.seq, k.seq};
      if (full.size() > 4 || broadcast(full, all) != all) {
        return c.bad("a mask {} for scores {}", text(m.mask_dims_), text(all));
      }
      m.steps_ = broadcast_strides(m.mask_dims_, all);
      if (m.width_ == 1 && k.seq > 1) m.steps_.back() = 0;
      const View<double> numbers(*t);
      m.mask_ = Row(numbers.data(), numbers.data() + numbers.size());
    }
    return m;
  }

  double at(int64_t b, int64_t h, int64_t i, int64_t j) const {
    const int64_t place = i + offset_[b];
    if (causal_ && j > place) return kMinusInf;
    if (left_ >= 0 && place - j > left_) return kMinusInf;
    if (right_ >= 0 && j - place > right_) return kMinusInf;
    if (j >= valid_[b]) return kMinusInf;
    if (mask_.empty()) return 0;
    if (j >= width_) return kMinusInf;
    const double v = mask_[b * steps_[0] + h * steps_[1] + i * steps_[2] + j * steps_[3]];
    return boolean_ ? (v != 0 ? 0 : kMinusInf) : v;
  }

 private:
  bool causal_ = false, boolean_ = false;
  int64_t left_ = -1, right_ = -1, kv_ = 0, width_ = 0;
  Dims offset_, valid_, mask_dims_, steps_;
  Row mask_;
};

Outputs attention(const Call& c) {
  const Tensor& query = *c.input(0);
  const bool flat = query.rank() == 3;
  for (size_t i : {1, 2})
    if (c.input(i)->rank() != query.rank())
      return c.bad("operands {} and {}: the heads lie in an axis of their own in both or in none",
                   text(query.dims()), text(c.input(i)->dims()));
  FERRULE_ASSIGN(const Heads q, heads_of(c, query, "q_num_heads"));
  FERRULE_ASSIGN(Heads fresh_k, heads_of(c, *c.input(1), "kv_num_heads"));
  FERRULE_ASSIGN(Heads fresh_v, heads_of(c, *c.input(2), "kv_num_heads"));
  for (size_t i : {4, 5}) {
    if (c.input(i) && c.input(i)->rank() != 4) return c.bad("a cache {}", text(c.input(i)->dims()));
  }
  if (!c.input(4) != !c.input(5)) return c.bad("past keys and past values belong together");
  FERRULE_ASSIGN(const Heads k, with_past(c, std::move(fresh_k), c.input(4)));
  FERRULE_ASSIGN(const Heads v, with_past(c, std::move(fresh_v), c.input(5)));
  if (k.batch != q.batch || v.batch != q.batch || k.size != q.size || k.heads != v.heads ||
      k.seq != v.seq || k.heads < 1 || q.heads % k.heads != 0) {
    return c.bad("queries of {} heads and {}, keys of {} and {}, values of {}", q.heads, q.size,
                 k.heads, k.size, v.heads);
  }
  FERRULE_ASSIGN(const Bias bias, Bias::make(c, q, k));
  const Dims score_dims{q.batch, q.heads, q.seq, k.seq};
  FERRULE_TRY(c.fits(DType::f64, score_dims));
  const double scale = c.n.attrs.f("scale", 0) != 0 ? c.n.attrs.f("scale")
                                                    : 1 / std::sqrt(static_cast<double>(q.size));
  const double cap = c.n.attrs.f("softcap", 0);
  const int64_t mode = c.n.attrs.i("qk_matmul_output_mode", 0), group = q.heads / k.heads;
  Row y, scores, row(static_cast<size_t>(k.seq));
  auto round = [&](Row& r) {
    const Tensor t = store(query.dtype(), {std::ssize(r)}, r);
    const View<double> in(t);
    r.assign(in.data(), in.data() + in.size());
  };
  for (int64_t b = 0; b < q.batch; ++b) {
    for (int64_t h = 0; h < q.heads; ++h) {
      for (int64_t i = 0; i < q.seq; ++i) {
        bool open = false;  // some key may be attended
        double sum = 0;
        for (int64_t j = 0; j < k.seq; ++j) {
          double& s = row[j] = 0;
          for (int64_t e = 0; e < q.size; ++e) s += q.row(b, h, i)[e] * k.row(b, h / group, j)[e];
        }
        round(row);
        for (double& s : row) s *= scale;
        round(row);
        for (double& s : row) s = cap > 0 ? cap * std::tanh(s / cap) : s;
        round(row);
        Row shown = row;
        for (int64_t j = 0; j < k.seq; ++j) {
          const double add = bias.at(b, h, i, j);
          row[j] += add;
          open |= add != kMinusInf;
        }
        round(row);
        if (mode == 2) shown = row;
        const double most = row.empty() ? 0 : *std::ranges::max_element(row);
        for (double& p : row) sum += p = open ? std::exp(p - most) : 0;
        for (double& p : row) p = open ? p / sum : 0;
        round(row);
        const Row& seen = mode == 3 ? row : shown;
        scores.insert(scores.end(), seen.begin(), seen.end());
        for (int64_t e = 0; e < v.size; ++e) {
          double out = 0;
          for (int64_t j = 0; j < k.seq; ++j) out += row[j] * v.row(b, h / group, j)[e];
          y.push_back(out);
        }
      }
    }
  }
  Dims dims{q.batch, q.heads, q.seq, v.size};
  if (flat) {
    Row z;
    for (int64_t i : positions({q.batch, q.seq, q.heads, v.size},
                               {q.heads * q.seq * v.size, v.size, q.seq * v.size, 1})) {
      z.push_back(y[i]);
    }
    y = std::move(z);
    dims = {q.batch, q.seq, q.heads * v.size};
  }
  auto out = one(store(query.dtype(), dims, y));
  out->push_back(store(c.input(1)->dtype(), {k.batch, k.heads, k.seq, k.size}, k.v));
  out->push_back(store(c.input(2)->dtype(), {v.batch, v.heads, v.seq, v.size}, v.v));
  out->push_back(store(query.dtype(), score_dims, scores));
  return out;
}

Outputs rotary_embedding(const Call& c) {
  const Tensor &x = *c.input(0), &cosines = *c.input(1), &sines = *c.input(2);
  const Tensor* ids = c.input(3);
  FERRULE_ASSIGN(const Heads h, heads_of(c, x, "num_heads"));
  const int64_t given = c.n.attrs.i("rotary_embedding_dim", 0), dim = given ? given : h.size,
                half = dim / 2;
  if (dim < 0 || dim > h.size || dim % 2 != 0)
    return c.bad_attr("rotary_embedding_dim", "{} of {}", dim, h.size);
  const Dims wanted{h.batch, h.seq, half};
  if (ids ? (cosines.rank() != 2 || cosines.dims()[1] != half) : cosines.dims() != wanted) {
    return c.bad("caches {} for {}", text(cosines.dims()), text(wanted));
  }
  if (sines.dims() != cosines.dims())
    return c.bad("caches {} and {}", text(cosines.dims()), text(sines.dims()));
  if (ids && (!is_int(ids->dtype()) || ids->numel() != h.batch * h.seq)) {
    return c.bad("{} positions for {} steps", ids->numel(), h.batch * h.seq);
  }
  const bool interleaved = c.n.attrs.i("interleaved") != 0;
  const View<double> in(x), cs(cosines), sn(sines);
  Row y(in.data(), in.data() + in.size());
  const Dims steps = x.rank() == 4 ? Dims{h.heads * h.seq * h.size, h.seq * h.size, h.size}
                                   : Dims{h.seq * h.heads * h.size, h.size, h.heads * h.size};
  for (int64_t b = 0; b < h.batch; ++b) {
    for (int64_t s = 0; s < h.seq; ++s) {
      const int64_t line = ids ? ids->at_i64(b * h.seq + s) : b * h.seq + s;
      if (ids && (line < 0 || line >= cosines.dims()[0]))
        return c.bad("position {} is out of range", line);
      for (int64_t n = 0; n < h.heads; ++n) {
        const int64_t at = b * steps[0] + n * steps[1] + s * steps[2];
        for (int64_t i = 0; i < half; ++i) {
          const int64_t p = at + (interleaved ? 2 * i : i),
                        r = at + (interleaved ? 2 * i + 1 : i + half);
          const double co = cs[line * half + i], si = sn[line * half + i];
          y[p] = co * in[p] - si * in[r];
          y[r] = si * in[p] + co * in[r];
        }
      }
    }
  }
  return one(store(x.dtype(), x.dims(), y));
}

}  // namespace

std::vector<Entry> attention_table() {
  return {{"Attention", attention, 3}, {"RotaryEmbedding", rotary_embedding, 3}};
}

}  // namespace ferrule::interp
