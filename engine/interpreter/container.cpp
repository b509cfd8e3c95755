// Sequences and optionals: lists of tensors, and what may hold nothing. Elements are shared, not
// copied. The operators here are the only ones that are given such values, beside If, Loop and
// Scan.
#include "engine/interpreter/internal.h"

namespace ferrule::interp {
namespace {

Result<const std::vector<Tensor>*> elements_of(const Call& c, size_t slot) {
  const Tensor* t = c.input(slot);
  if (!t || t->dtype() != DType::sequence) return c.bad("input {} is no sequence", slot);
  return &t->elements();
}

/// So many tensors, which hold so much together, may be held.
Status may_hold(const Call& c, int64_t elements, int64_t bytes) {
  int64_t own = 0;
  if (__builtin_mul_overflow(elements, static_cast<int64_t>(sizeof(Tensor)), &own) ||
      __builtin_add_overflow(own, bytes, &bytes))
    bytes = std::numeric_limits<int64_t>::max();
  return c.fits(DType::f64, {bytes / 8});
}

/// Tensors of one element type.
Outputs as_sequence(const Call& c, std::vector<Tensor> elements) {
  int64_t bytes = 0;
  for (const Tensor& t : elements) {
    if (!t.is_tensor() || t.dtype() != elements[0].dtype())
      return c.bad("a sequence of {} and {}", name(elements[0].dtype()), name(t.dtype()));
    if (__builtin_add_overflow(bytes, t.bytes(), &bytes))
      bytes = std::numeric_limits<int64_t>::max();
  }
  FERRULE_TRY(may_hold(c, std::ssize(elements), bytes));
  return one(Tensor::sequence(std::move(elements)));
}

/// A position in [-size, size) or, for insertion, [-size, size].
Result<size_t> place_in(const Call& c, size_t slot, size_t size, bool behind) {
  const Tensor& t = *c.input(slot);
  if (!is_int(t.dtype()) || t.numel() != 1)
    return c.bad("a position of type {} and shape {}", name(t.dtype()), text(t.dims()));
  const auto n = static_cast<int64_t>(size);
  const int64_t at = t.at_i64(0);
  if (at < -n || at > n - !behind) return c.bad("position {} of a sequence of {}", at, n);
  return static_cast<size_t>(at < 0 ? at + n : at);
}

Outputs construct_sequence(const Call& c) {
  FERRULE_TRY(c.need(c.in.size()));
  std::vector<Tensor> all;
  for (const Tensor* t : c.in) all.push_back(*t);
  return as_sequence(c, std::move(all));
}

Outputs empty_sequence(const Call&) { return one(Tensor::sequence({})); }

Outputs insert_element(const Call& c) {
  FERRULE_ASSIGN(const auto* all, elements_of(c, 0));
  size_t at = all->size();
  if (c.input(2)) {
    FERRULE_ASSIGN(at, place_in(c, 2, all->size(), true));
  }
  std::vector<Tensor> out = *all;
  out.insert(out.begin() + static_cast<long>(at), *c.input(1));
  return as_sequence(c, std::move(out));
}

Outputs erase_element(const Call& c) {
  FERRULE_ASSIGN(const auto* all, elements_of(c, 0));
  if (all->empty()) return c.bad("nothing can be taken from an empty sequence");
  size_t at = all->size() - 1;
  if (c.input(1)) {
    FERRULE_ASSIGN(at, place_in(c, 1, all->size(), false));
  }
  std::vector<Tensor> out = *all;
  out.erase(out.begin() + static_cast<long>(at));
  return as_sequence(c, std::move(out));
}

Outputs element_at(const Call& c) {
  FERRULE_ASSIGN(const auto* all, elements_of(c, 0));
  FERRULE_ASSIGN(const size_t at, place_in(c, 1, all->size(), false));
  return one((*all)[at]);
}

Outputs length_of(const Call& c) {
  FERRULE_ASSIGN(const auto* all, elements_of(c, 0));
  return one(Tensor::of_i64({}, {std::ssize(*all)}));
}

/// Elements [begin, begin + size) along the axis.
Tensor piece(const Tensor& t, int64_t axis, int64_t begin, int64_t size) {
  Dims d = t.dims();
  const Dims own = strides(d);
  d[static_cast<size_t>(axis)] = size;
  return take(t, d, positions(d, own, begin * own[static_cast<size_t>(axis)]));
}

Outputs split_to_sequence(const Call& c) {
  const Tensor& x = *c.input(0);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis", 0), x.rank()));
  const auto k = static_cast<size_t>(axis);
  const int64_t whole = x.dims()[k];
  const Tensor* given = c.input(1);
  Dims sizes;
  if (given && !is_int(given->dtype())) return c.unsupported_type(*given);
  if (given && given->rank() == 1) {
    sizes = given->to_i64();
  } else {
    if (given && given->numel() != 1) return c.bad("pieces of {} elements", text(given->dims()));
    const int64_t each = given ? given->at_i64(0) : 1;
    if (each < 1) return c.bad("pieces of {} elements", each);
    FERRULE_TRY(may_hold(c, whole / each, 0));
    for (int64_t at = 0; at < whole; at += each) sizes.push_back(std::min(each, whole - at));
  }
  int64_t at = 0;
  for (int64_t size : sizes)
    if (size < 0 || __builtin_add_overflow(at, size, &at))
      return c.bad("a piece of {} elements", size);
  if (at != whole) return c.bad("pieces of {} elements in all, of {}", at, whole);
  FERRULE_TRY(may_hold(c, std::ssize(sizes), x.bytes()));
  const bool drop = !given && c.n.attrs.i("keepdims", 1) == 0;
  std::vector<Tensor> out;
  at = 0;
  for (int64_t size : sizes) {
    Tensor t = piece(x, axis, at, size);
    if (drop) {
      Dims d = t.dims();
      d.erase(d.begin() + axis);
      t = t.reshaped(d);
    }
    out.push_back(std::move(t));
    at += size;
  }
  return as_sequence(c, std::move(out));
}

Outputs join_sequence(const Call& c) {
  FERRULE_ASSIGN(const auto* all, elements_of(c, 0));
  if (all->empty()) return c.bad("an empty sequence has no type");
  const bool stack = c.n.attrs.i("new_axis", 0) != 0;
  const Tensor& first = (*all)[0];
  if (!first.is_tensor() || (first.dtype() != DType::string && size_bits(first.dtype()) < 8))
    return c.unsupported_type(first);
  FERRULE_ASSIGN(const int64_t axis, c.axis(c.n.attrs.i("axis"), first.rank() + stack));
  const auto k = static_cast<size_t>(axis);
  std::vector<Tensor> parts;
  Dims out;
  for (Tensor t : *all) {
    Dims d = t.dims();
    if (t.dtype() != first.dtype() || std::ssize(d) != first.rank())
      return c.bad("its elements are {}{} and {}{}", name(first.dtype()), text(first.dims()),
                   name(t.dtype()), text(d));
    if (stack) {
      d.insert(d.begin() + axis, 1);
      t = t.reshaped(d);
    }
    if (out.empty()) {
      out = d;
    } else {
      Dims others = out;
      others[k] = d[k];
      if (others != d || __builtin_add_overflow(out[k], d[k], &out[k]))
        return c.bad("elements of {} and {} do not join", text(out), text(d));
    }
    parts.push_back(std::move(t));
  }
  FERRULE_TRY(c.fits(first.dtype(), out));
  // Element i of the result lies in its part's piece of each row.
  const int64_t outer = count(out, 0, k), inner = count(out, k + 1);
  std::vector<int64_t> from(static_cast<size_t>(count(out)));
  int64_t base = 0, column = 0;
  for (const Tensor& t : parts) {
    const int64_t run = t.dims()[k] * inner;
    for (int64_t o = 0; o < outer; ++o)
      for (int64_t i = 0; i < run; ++i)
        from[static_cast<size_t>(o * out[k] * inner + column + i)] = base + o * run + i;
    base += t.numel(), column += run;
  }
  return one(take(joined(parts), out, from));
}

Outputs map_sequence(const Call& c) {
  const Graph* body = subgraph(c.n, "body");
  if (!body) return c.bad("the body is missing");
  FERRULE_TRY(c.need(c.in.size()));
  FERRULE_ASSIGN(const auto* first, elements_of(c, 0));
  if (body->inputs().size() != c.in.size())
    return c.bad("a body with {} for {}", counted(body->inputs().size(), "input"), c.in.size());
  std::vector<std::vector<Tensor>> results(body->outputs().size());
  for (size_t i = 0; i < first->size(); ++i) {
    std::vector<Tensor> given;
    for (const Tensor* t : c.in) {
      if (t->dtype() != DType::sequence) {
        given.push_back(*t);
      } else if (t->elements().size() != first->size()) {
        return c.bad("sequences of {} and {} elements", first->size(), t->elements().size());
      } else {
        given.push_back(t->elements()[i]);
      }
    }
    FERRULE_ASSIGN(auto out, run_subgraph(c, *body, std::move(given)));
    for (size_t k = 0; k < results.size(); ++k) results[k].push_back(std::move(out[k]));
  }
  std::vector<Tensor> all;
  for (auto& elements : results) {
    FERRULE_ASSIGN(auto all_of_it, as_sequence(c, std::move(elements)));
    all.push_back(std::move(all_of_it[0]));
  }
  return all;
}

Outputs make_optional(const Call& c) { return one(c.input(0) ? *c.input(0) : Tensor::absent()); }

Outputs has_element(const Call& c) {
  const bool there = c.input(0) && c.input(0)->dtype() != DType::optional;
  return one(Tensor::scalar(DType::boolean, there));
}

Outputs get_element(const Call& c) {
  if (c.input(0)->dtype() == DType::optional) return c.bad("the optional has no value");
  return one(*c.input(0));
}

}  // namespace

std::vector<Entry> container_table() {
  return {
      {"ConcatFromSequence", join_sequence, 1, true},
      {"Optional", make_optional, 0, true},
      {"OptionalGetElement", get_element, 1, true},
      {"OptionalHasElement", has_element, 0, true},
      {"SequenceAt", element_at, 2, true},
      {"SequenceConstruct", construct_sequence, 1, true},
      {"SequenceEmpty", empty_sequence, 0, true},
      {"SequenceErase", erase_element, 1, true},
      {"SequenceInsert", insert_element, 2, true},
      {"SequenceLength", length_of, 1, true},
      {"SequenceMap", map_sequence, 1, true},
      {"SplitToSequence", split_to_sequence, 1},
  };
}

}  // namespace ferrule::interp
