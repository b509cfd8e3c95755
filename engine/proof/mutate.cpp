// The mutations a proof tries on a rule's cases, alone and in pairs. Each changes one thing
// everywhere it belongs, so that a good share of the results are valid graphs; the others are
// sorted out by inference.
#include <algorithm>
#include <cmath>
#include <set>

#include "engine/base/diagnostics.h"
#include "engine/onnx/schema.h"
#include "engine/proof/edit.h"
#include "engine/proof/hints.h"
#include "engine/proof/values.h"
#include "engine/rewrite/replacement.h"

namespace ferrule {
namespace {

/// Wraps at the limits, which stand for "to the end".
int64_t more(int64_t x, int64_t by) {
  return static_cast<int64_t>(static_cast<uint64_t>(x) + static_cast<uint64_t>(by));
}

Tensor repeated(const Tensor& t, const std::vector<int64_t>& dims) {
  auto [out, bytes] = Tensor::allocate(t.dtype(), dims);
  int64_t size = size_bytes(t.dtype(), 1), n = t.numel();
  if (size_bits(t.dtype()) % 8) return t;
  for (int64_t i = 0; i < out.numel(); ++i)
    if (n > 0)
      std::copy_n(static_cast<const char*>(t.data()) + (i * 5 % n) * size, size,
                  static_cast<char*>(bytes) + i * size);
  return out;
}

class Mutator {
 public:
  Mutator(const Graph& g, const MutationScope& scope) : g_(g), scope_(scope) {}

  std::vector<Mutation> run() {
    of_operator_ = true;
    operators();
    attributes();
    absent_lists();
    absent_words();
    padding();
    spatial_axis();
    groups();
    directions();
    blocks();
    further_operands();
    absent_operands();
    operators_between();
    orders();
    of_operator_ = false;
    element_types();
    sizes();
    ranks();
    constants();
    shared_constants();
    ends_of_type();
    numbers_of_others();
    backwards();
    operands();
    return std::move(out_);
  }

 private:
  template <class F>
  void add(std::string text, F&& change) {
    out_.push_back({std::move(text), std::forward<F>(change), of_operator_});
  }
  std::vector<ValueId> inputs() const { return g_.inputs(); }
  std::vector<ValueId> tensors() const { return g_.constants(); }
  const std::string& name(ValueId v) const { return g_.value(v).name; }
  const std::string& op_of(NodeId n) const { return g_.node(n).op.text(); }

  /// Operators that the pattern takes in the same place.
  void operators() {
    for (NodeId n : g_.order())
      for (const std::set<std::string>& set : scope_.siblings) {
        if (!set.contains(op_of(n))) continue;
        for (const std::string& op : set)
          if (op != op_of(n)) {
            add(fmt::format("{} becomes {}", op_of(n), op),
                [=](Graph& g) { g.set_operator(n, Operator(op), g.node(n).attrs); });
            out_.back().exchanged = n;
          }
      }
  }

  /// Operators that the pattern may pass over, in front of each operand.
  void operators_between() {
    for (NodeId n : g_.order())
      for (size_t slot = 0; slot < g_.node(n).inputs.size(); ++slot) {
        const ValueId v = g_.input(n, slot);
        const DType t = v && g_.value(v).type.known() ? g_.value(v).type.dtype : DType::undefined;
        if (!is_float(t) && !is_int(t)) continue;
        for (const bool two : {false, true})
          for (const std::string& op : two ? scope_.optional_binary : scope_.optional_unary)
            add(fmt::format("{} in front of operand {} of {}", op, slot, op_of(n)),
                [=](Graph& g) { put_between(g, n, slot, op, two); });
      }
  }
  static void put_between(Graph& g, NodeId n, size_t slot, const std::string& op, bool two) {
    const ValueId v = g.input(n, slot);
    if (!v) return;
    Node made;
    made.op = op, made.name = g.fresh_name(op), made.inputs = {v};
    if (two)
      made.inputs.push_back(
          g.add_constant(g.fresh_name("k"), filled(g.value(v).type.dtype, {}, {3})));
    made.outputs = {g.add_value(g.fresh_name("t"), g.value(v).type)};
    const ValueId y = made.outputs[0];
    g.add_node(std::move(made));
    g.set_input(n, slot, y);
  }

  void orders() {
    for (NodeId n : g_.order())
      for (size_t i = 1; i < g_.node(n).inputs.size(); ++i) {
        ValueId a = g_.input(n, i - 1), b = g_.input(n, i);
        if (!a || !b || a == b) continue;
        add(fmt::format("operands {} and {} of {} exchanged", i - 1, i, op_of(n)), [=](Graph& g) {
          g.set_input(n, i - 1, b);
          g.set_input(n, i, a);
        });
      }
  }

  /// All floats at once become another type.
  void element_types() {
    std::set<DType> have;
    for (ValueId v : inputs()) have.insert(g_.value(v).type.dtype);
    std::vector<DType> to = scope_.types;
    for (DType t :
         {DType::f64, DType::f16, DType::bf16, DType::i32, DType::i64, DType::u8, DType::f8e4m3fn})
      if (!contains(to, t)) to.push_back(t);
    for (DType from : have) {
      if (!is_float(from) && from != DType::i32) continue;
      for (DType t : to)
        if (t != from)
          add(fmt::format("{} becomes {}", ferrule::name(from), ferrule::name(t)),
              [=](Graph& g) { retype(g, from, t); });
    }
  }

  /// A size, wherever it stands in inputs and constants, becomes another; one axis of one input
  /// alone.
  void sizes() {
    std::set<int64_t> have;
    for (ValueId v : inputs())
      if (g_.value(v).type.shape)
        for (const Dim& d : *g_.value(v).type.shape)
          if (d.is_constant()) have.insert(d.value_or(0));
    for (int64_t from : have)
      for (int64_t to : {int64_t{0}, int64_t{1}, int64_t{3}, from + 1})
        if (to != from)
          add(fmt::format("size {} becomes {}", from, to),
              [=](Graph& g) { ferrule::resize(g, from, to); });
    for (ValueId v : inputs()) {
      if (!g_.value(v).type.shape) continue;
      for (size_t i = 0; i < g_.value(v).type.shape->size(); ++i)
        for (int64_t to : {0, 1, 2, 5}) {
          Shape s = *g_.value(v).type.shape;
          if (s[i] == Dim(to)) continue;
          s[i] = Dim(to);
          add(fmt::format("{} becomes {}", name(v), str(s)),
              [=](Graph& g) { g.set_type(v, Type{g.value(v).type.dtype, s}); });
        }
    }
    for (ValueId v : tensors())
      for (int axis = 0; axis < g_.constant(v)->rank(); ++axis)
        for (int64_t to : {1, 2, 3, 4})
          if (g_.constant(v)->dims()[axis] != to)
            add(fmt::format("axis {} of {} becomes {}", axis, name(v), to), [=](Graph& g) {
              std::vector<int64_t> dims = g.constant(v)->dims();
              if (axis >= g.constant(v)->rank()) return;
              dims[axis] = to;
              g.set_constant(v, repeated(*g.constant(v), dims));
            });
  }
  void ranks() {
    for (ValueId v : inputs()) {
      if (!g_.value(v).type.shape) continue;
      add(fmt::format("{} has no known rank", name(v)),
          [=](Graph& g) { g.set_type(v, Type{g.value(v).type.dtype, std::nullopt}); });
      for (size_t i = 0; i < g_.value(v).type.shape->size(); ++i)
        add(fmt::format("axis {} of {} has no known size", i, name(v)), [=](Graph& g) {
          if (g.value(v).type.rank() <= static_cast<int>(i)) return;
          Shape s = *g.value(v).type.shape;
          s[i] = Dim::symbol("n_" + std::to_string(i));
          g.set_type(v, Type{g.value(v).type.dtype, s});
        });
      Shape s = *g_.value(v).type.shape;
      Shape more = s, front = s, less = s;
      more.emplace_back(2);
      front.insert(front.begin(), Dim(1));
      if (!less.empty()) less.pop_back();
      // More axes than any other has: what is counted from the front is another one then.
      size_t highest = s.size();
      for (ValueId w : inputs())
        if (const auto& t = g_.value(w).type.shape) highest = std::max(highest, t->size());
      Shape above = s;
      above.insert(above.begin(), highest + 1 - s.size(), Dim(1));
      above[0] = Dim(2);
      for (const Shape& to : {more, front, above, less})
        if (to.size() != s.size())
          add(fmt::format("{} becomes {}", name(v), str(to)),
              [=](Graph& g) { g.set_type(v, Type{g.value(v).type.dtype, to}); });
    }
    // What siblings read beside what they share: vectors, or batches.
    std::vector<ValueId> matrices;
    for (ValueId v : tensors())
      if (g_.constant(v)->rank() == 2) matrices.push_back(v);
    for (const bool batches : {false, true})
      if (matrices.size() > 1)
        add(fmt::format("all matrices become {}", batches ? "batches of 2" : "vectors"),
            [=](Graph& g) {
              for (ValueId v : matrices) {
                std::vector<int64_t> dims = g.constant(v)->dims();
                if (batches)
                  dims.insert(dims.begin(), 2);
                else
                  dims.resize(1);
                g.set_constant(v, repeated(*g.constant(v), dims));
              }
            });
    // Places and axes that siblings read: as a row, as a column.
    for (const bool column : {false, true})
      add(fmt::format("all lists of integers become {}", column ? "columns" : "rows"),
          [=](Graph& g) {
            for (ValueId v : g.constants())
              if (const Tensor& t = *g.constant(v); t.rank() == 1 && is_int(t.dtype()))
                g.set_constant(v, t.reshaped(column ? std::vector{t.numel(), int64_t{1}}
                                                    : std::vector{int64_t{1}, t.numel()}));
          });
    for (ValueId v : tensors()) {
      if (g_.constant(v)->numel() > 8) continue;
      std::vector<int64_t> up = g_.constant(v)->dims();
      up.insert(up.begin(), 1);
      std::vector<int64_t> back = g_.constant(v)->dims();
      back.push_back(1);
      for (const auto& dims : {up, back})
        add(fmt::format("{} gets rank {}", name(v), dims.size()),
            [=](Graph& g) { reshape(g, v, dims); });
      if (g_.constant(v)->rank() > 1)
        add(fmt::format("{} is flattened", name(v)),
            [=](Graph& g) { reshape(g, v, {g.constant(v)->numel()}); });
      if (g_.constant(v)->numel() == 1 && g_.constant(v)->rank() > 0)
        add(fmt::format("{} gets rank 0", name(v)), [=](Graph& g) { reshape(g, v, {}); });
    }
  }

  /// A change before this one may have left another number of elements: then nothing happens.
  static void reshape(Graph& g, ValueId v, const std::vector<int64_t>& dims) {
    int64_t n = 1;
    for (int64_t d : dims) n *= d;
    if (g.constant(v)->numel() == n) g.set_constant(v, g.constant(v)->reshaped(dims));
  }

  template <class F>
  static Tensor mapped(const Tensor& t, F&& f) {
    std::vector<double> values = t.to_f64();
    for (size_t i = 0; i < values.size(); ++i) values[i] = f(values[i], static_cast<int64_t>(i));
    return filled(t.dtype(), t.dims(), values);
  }

  void constants() {
    for (ValueId v : tensors()) {
      const Tensor& t = *g_.constant(v);
      if (t.dtype() == DType::string || size_bits(t.dtype()) % 8 || t.numel() == 0) continue;
      auto change = [&](const char* how, auto&& f) {
        add(fmt::format("{} {}", name(v), how),
            [=](Graph& g) { g.set_constant(v, mapped(*g.constant(v), f)); });
      };
      if (!is_float(t.dtype())) {
        for (int64_t k = 0; k < std::min<int64_t>(t.numel(), 10); ++k) {
          for (double by : {1.0, -1.0})
            change(by > 0 ? "has an element one more" : "has an element one less",
                   [=](double x, int64_t i) { return i == k ? x + by : x; });
          change("has an element negated", [=](double x, int64_t i) { return i == k ? -x : x; });
        }
        change("becomes 0", [](double, int64_t) { return 0.0; });
        change("becomes -1", [](double, int64_t) { return -1.0; });
        if (t.dtype() != DType::boolean && t.numel() == 1) {
          const double most = largest(t.dtype());
          change("becomes the least number whose square wraps",
                 [=](double, int64_t) { return std::floor(std::sqrt(most)) + 1; });
          change("becomes a number that wraps three times",
                 [=](double, int64_t) { return std::floor(most / 3) + 1; });
        }
        integers(v);
        continue;
      }
      change("is doubled and moved",
             [](double x, int64_t i) { return 2 * x + 0.25 * static_cast<double>(i % 3); });
      change("becomes 0", [](double, int64_t) { return 0.0; });
      change("becomes 1", [](double, int64_t) { return 1.0; });
      if (t.numel() == 1) {
        change("becomes 2", [](double, int64_t) { return 2.0; });
        change("becomes a half", [](double, int64_t) { return 0.5; });
      }
      if (!scope_.near)
        change("changes a little", [](double x, int64_t) { return x * (1 + 1e-4) + 1e-5; });
      change("changes sign", [](double x, int64_t) { return -x; });
      change("varies", [](double x, int64_t i) { return x + 0.5 * static_cast<double>(i); });
      if (t.numel() > 1)
        change("becomes zeros of both signs", [](double, int64_t i) { return i % 2 ? -0.0 : 0.0; });
      change("becomes infinite", [](double, int64_t) { return INFINITY; });
      change("becomes large", [](double, int64_t) { return 1e12; });
      // f64 has no wider type to judge it by.
      if (t.dtype() != DType::f64)
        change("becomes the greatest number of its type",
               [most = float_limits(t.dtype()).greatest()](double, int64_t) { return most; });
    }
  }

  /// A constant that several nodes read becomes another one for one of them.
  void shared_constants() {
    for (ValueId v : tensors()) {
      const Tensor& t = *g_.constant(v);
      const std::vector<Use> uses = g_.value(v).uses;
      if (uses.size() < 2 || t.dtype() == DType::string || size_bits(t.dtype()) % 8 ||
          t.numel() == 0)
        continue;
      const bool real = is_float(t.dtype());
      for (const Use& u : uses)
        for (int how = 0; how < (real ? 1 : 3); ++how)
          if (u.slot >= 0)
            add(fmt::format("{} is another one for \"{}\"", name(v), g_.node(u.node).name),
                [=](Graph& g) {
                  const Tensor other = mapped(*g.constant(v), [=](double x, int64_t) {
                    return real ? 1.5 * x + 0.25 : how == 0 ? x + 1 : how == 1 ? x - 1 : -1 - x;
                  });
                  const ValueId mine = g.add_constant(g.fresh_name(g.value(v).name), other);
                  g.set_input(u.node, static_cast<size_t>(u.slot), mine);
                });
    }
  }

  /// Axes, pads, starts and the like, here and in every constant that says the same: another order,
  /// one more, counted from the other end.
  void integers(ValueId v) {
    const Tensor& t = *g_.constant(v);
    if (t.rank() > 1 || t.numel() > 16 || !is_int(t.dtype())) return;
    std::vector<int64_t> was = t.to_i64();
    auto change = [&](const char* how, std::vector<int64_t> to) {
      auto dims = t.dims();
      if (!dims.empty()) dims[0] = std::ssize(to);
      Tensor made = converted(Tensor::of_i64(dims, to), t.dtype());
      add(fmt::format("{} {}", name(v), how),
          [=](Graph& g) { g.set_constant(v, converted(made, g.constant(v)->dtype())); });
      add(fmt::format("{} and its equals: {}", name(v), how), [=, now = t](Graph& g) {
        for (ValueId w : g.constants())
          if (g.constant(w)->dtype() == now.dtype() && g.constant(w)->dims() == now.dims() &&
              g.constant(w)->to_i64() == was)
            g.set_constant(w, made);
      });
    };
    std::vector<int64_t> to = was;
    if (to.size() > 1) {
      std::ranges::reverse(to);
      change("is reversed", to);
      change("loses an element", {was.begin(), was.end() - 1});
    }
    for (int64_t& x : to = was) x = ~x;
    change("counts from the other end", to);
    for (int64_t& x : to = was) x = more(x, 1);
    change("is one more", to);
    for (int64_t& x : to = was) x = more(x, -1);
    change("is one less", to);
    if (t.rank() != 1 || was.empty()) return;
    for (size_t a = 0; a < was.size() && was.size() <= 6; ++a)
      for (size_t b = a + 1; b < was.size(); ++b)
        if (was[a] != was[b]) {
          std::swap((to = was)[a], to[b]);
          change("has two elements exchanged", to);
        }
    for (size_t a = 0; a < was.size() && was.size() <= 4; ++a)
      for (size_t b = 0; b < was.size(); ++b)
        if (a != b && was[a] > 0 && was[b] > 0 && was[a] % 2 == 0) {
          (to = was)[a] /= 2, to[b] *= 2;
          change("has a factor moved", to);
        }
    for (int64_t last : {int64_t{0}, more(was.back(), 1), more(was.front(), -1)}) {
      to = was;
      to.push_back(last);
      change("gets an element", to);
    }
  }

  /// Starts, ends and steps that stand for "as far as it goes", one list or two at once: what is
  /// computed of them wraps around.
  void ends_of_type() {
    std::vector<ValueId> lists;
    for (ValueId v : tensors())
      if (const Tensor& t = *g_.constant(v); t.rank() <= 1 && t.numel() > 0 && t.numel() <= 16 &&
                                             (t.dtype() == DType::i64 || t.dtype() == DType::i32))
        lists.push_back(v);
    for (size_t a = 0; a < lists.size(); ++a)
      for (size_t b = a; b < lists.size(); ++b)
        for (const bool least : {false, true})
          add(fmt::format("{} and {} become the {} numbers of their types", name(lists[a]),
                          name(lists[b]), least ? "least" : "greatest"),
              [=, v = lists[a], w = lists[b]](Graph& g) {
                for (ValueId list : {v, w}) {
                  const Tensor& t = *g.constant(list);
                  const double most = largest(t.dtype()) + 1;  // saturates
                  g.set_constant(list, filled(t.dtype(), t.dims(), {least ? -most : most}));
                }
              });
  }

  /// All short lists of integers at once: starts, ends and steps that go backwards.
  void backwards() {
    add("all lists of integers count from the other end", [](Graph& g) {
      for (ValueId v : g.constants()) {
        const Tensor& t = *g.constant(v);
        if (t.rank() != 1 || t.numel() > 16 || !is_int(t.dtype())) continue;
        std::vector<int64_t> list = t.to_i64();
        for (int64_t& x : list) x = ~x;
        g.set_constant(v, converted(Tensor::of_i64(t.dims(), list), t.dtype()));
      }
    });
  }

  /// A number becomes another constant's, or lies beside it: bounds cross, parameters meet.
  void numbers_of_others() {
    auto single = [&](ValueId v) {
      const Tensor& t = *g_.constant(v);
      return t.numel() == 1 && t.dtype() != DType::string && size_bits(t.dtype()) % 8 == 0;
    };
    for (ValueId v : tensors())
      for (ValueId w : tensors())
        if (v != w && single(v) && single(w) && g_.constant(v)->dtype() == g_.constant(w)->dtype())
          for (double by : {-1.0, 0.0, 1.0})
            add(fmt::format("{} becomes {} {:+}", name(v), name(w), by), [=](Graph& g) {
              double to = g.constant(w)->at_f64(0) + by;
              g.set_constant(v, mapped(*g.constant(v), [=](double, int64_t) { return to; }));
            });
  }

  /// By a node behind `n`: what a pattern binds to one name is changed together.
  bool said_again(NodeId n, const std::string& key, const Attr& value) const {
    const std::vector<NodeId> all = g_.order();
    return std::any_of(std::ranges::find(all, n) + 1, all.end(), [&](NodeId m) {
      const Attr* a = g_.node(m).attrs.find(key);
      return a && same_attr(*a, value);
    });
  }

  void attributes() {
    for (NodeId n : g_.order())
      for (const auto& [key, value] : g_.node(n).attrs.items()) {
        auto set = [&](Attr to) {
          add(fmt::format("{}.{} becomes {}", op_of(n), key, str(to)),
              [=, key = key](Graph& g) { g.set_attr(n, key, to); });
          if (said_again(n, key, value))
            add(fmt::format("every {} of {} becomes {}", key, str(value), str(to)),
                [=, key = key, was = value](Graph& g) {
                  for (NodeId m : g.order())
                    if (const Attr* a = g.node(m).attrs.find(key); a && same_attr(*a, was))
                      g.set_attr(m, key, to);
                });
        };
        if (auto* word = std::get_if<std::string>(&value)) {
          for (const std::string& to : words_of(op_of(n), key))
            if (to != *word) set(to);
        } else if (auto* i = std::get_if<int64_t>(&value); i && key == "to") {
          for (DType t : {DType::f32, DType::f64, DType::f16, DType::i32, DType::i64, DType::i8,
                          DType::u8, DType::boolean, DType::i4})
            if (static_cast<int64_t>(t) != *i) set(static_cast<int64_t>(t));
        } else if (const auto& listed = numbers_of(op_of(n), key); i && !listed.empty()) {
          for (int64_t to : listed)
            if (to != *i) set(to);
        } else if (i) {
          const ValueId first = g_.input(n, 0);
          const int rank = first ? std::max(g_.value(first).type.rank(), 0)
                                 : 0;  // an axis, counted from the other end
          for (int64_t to : std::set<int64_t>{*i + 1, *i - 1, 0, *i < 0 ? *i + rank : *i - rank})
            if (to != *i) set(to);
        } else if (auto* d = std::get_if<double>(&value)) {
          set(*d * 1.5 + 0.25);
          set(-*d - 0.5);
          if (*d != 0) set(0.0);
        } else if (auto* l = std::get_if<std::vector<int64_t>>(&value)) {
          for (size_t k = 0; k < l->size() && k < 8; ++k)
            for (int64_t by : {1, -1}) {
              std::vector<int64_t> to = *l;
              to[k] += by;
              set(to);
            }
          if (l->size() > 1) {
            std::vector<int64_t> to = *l;
            for (int64_t& x : to) ++x;
            set(to);
            for (size_t k = 1; k < l->size() && k < 8; ++k) {
              std::swap((to = *l)[k - 1], to[k]);
              set(to);
            }
            std::ranges::rotate(to = *l, to.begin() + 1);
            set(to);
          }
        }
      }
  }

  /// Lists that no attribute says, as the sizes of what the node makes, or beside those.
  void absent_lists() {
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      const ValueId y = g_.output(n);
      const auto dims =
          y && g_.value(y).type.shape ? constant_shape(*g_.value(y).type.shape) : std::nullopt;
      if (!schema || !dims || dims->empty()) continue;
      for (const AttributeSchema& a : schema->attributes) {
        if (a.kind != AttributeSchema::Kind::integers || !g_.node(n).attrs.ints(a.name).empty())
          continue;
        for (const size_t from : {size_t{0}, size_t{2}})
          for (const int64_t by : {0, -1, 1}) {
            if (from >= dims->size()) continue;
            std::vector<int64_t> to(dims->begin() + static_cast<int64_t>(from), dims->end());
            for (int64_t& d : to) d += by;
            add(fmt::format("{}.{} becomes {}", op_of(n), a.name, str(Attr(to))),
                [=, key = a.name](Graph& g) { g.set_attr(n, key, to); });
          }
      }
    }
  }

  /// Lists of words that no attribute says, of as many as may be wanted.
  void absent_words() {
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      for (size_t k = 0; schema && k < schema->attributes.size(); ++k) {
        const AttributeSchema& a = schema->attributes[k];
        const std::vector<std::string>& words = words_of(op_of(n), a.name);
        if (a.kind != AttributeSchema::Kind::texts || words.empty() ||
            g_.node(n).attrs.find(a.name))
          continue;
        for (const size_t count : {1, 2, 3, 4, 6})
          for (const size_t apart : {0, 1}) {
            std::vector<std::string> to;
            for (size_t i = 0; i < count; ++i) to.push_back(words[i * apart % words.size()]);
            add(fmt::format("{}.{} becomes {}", op_of(n), a.name, str(Attr(to))),
                [=, key = a.name](Graph& g) { g.set_attr(n, key, to); });
          }
      }
    }
  }

  /// Padding in front of an axis, or on both sides, and strides over it: the sizes stay as they
  /// are where there was one element, which the window then does not see.
  void padding() {
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      auto has = [&](std::string_view a) {
        return schema && std::ranges::find(schema->attributes, a, &AttributeSchema::name) !=
                             schema->attributes.end();
      };
      const ValueId x = g_.input(n, 0);
      if (!x || !has("pads") || !has("strides") || !g_.value(x).type.shape) continue;
      const size_t spatial = std::max<size_t>(g_.value(x).type.shape->size(), 2) - 2;
      for (size_t axis = 0; axis < spatial && axis < 3; ++axis)
        for (int64_t behind : {0, 1})
          add(fmt::format("{} pads axis {} {} and strides over it", op_of(n), axis,
                          behind ? "on both sides" : "in front"),
              [=](Graph& g) {
                std::vector<int64_t> pads = g.node(n).attrs.ints("pads"),
                                     strides = g.node(n).attrs.ints("strides");
                pads.resize(2 * spatial), strides.resize(spatial, 1);
                pads[axis] = 1, pads[axis + spatial] = behind, strides[axis] = 2 + behind;
                g.set_attr(n, "auto_pad", std::string("NOTSET"));
                g.set_attr(n, "pads", std::move(pads));
                g.set_attr(n, "strides", std::move(strides));
              });
    }
  }

  /// One more spatial axis of every image and every window, also with more padding in one place:
  /// which pads belong to one axis depends on how many there are.
  void spatial_axis() {
    if (std::ranges::none_of(
            g_.order(), [&](NodeId n) { return !g_.node(n).attrs.ints("kernel_shape").empty(); }))
      return;
    add("every window has one more axis", [](Graph& g) { more_axes(g, {}); });
    size_t pads = 0;
    for (NodeId n : g_.order()) pads = std::max(pads, g_.node(n).attrs.ints("pads").size());
    for (size_t k = 0; k < pads + 2 && pads > 0; ++k)
      add(fmt::format("every window has one more axis, and more padding at {}", k),
          [=](Graph& g) { more_axes(g, k); });
  }
  static void more_axes(Graph& g, std::optional<size_t> padded) {
    for (ValueId v : g.inputs()) {
      Type t = g.value(v).type;
      if (!t.shape || t.shape->size() < 3) continue;
      t.shape->emplace_back(4);
      g.set_type(v, std::move(t));
    }
    for (ValueId v : g.constants())
      if (const Tensor& t = *g.constant(v); t.rank() > 2) {
        std::vector<int64_t> dims = t.dims();
        dims.push_back(dims.back() == 1 ? 1 : 2);
        g.set_constant(v, repeated(t, dims));
      }
    for (NodeId n : g.order())
      for (const char* key : {"kernel_shape", "strides", "dilations", "pads"})
        if (std::vector<int64_t> list = g.node(n).attrs.ints(key); !list.empty()) {
          const bool pads = std::string_view(key) == "pads";
          const bool window = std::string_view(key) == "kernel_shape";
          if (pads) list.insert(list.begin() + std::ssize(list) / 2, 1);
          list.push_back(pads ? 0 : window && list.back() > 1 ? 2 : 1);
          if (pads && padded && *padded < list.size()) ++list[*padded];
          g.set_attr(n, key, std::move(list));
        }
  }

  static void set_dims(Graph& g, ValueId v, const std::vector<int64_t>& dims) {
    if (const Tensor* t = g.constant(v))
      g.set_constant(v, repeated(*t, dims));
    else
      g.set_type(v, Type{g.value(v).type.dtype, Shape(dims.begin(), dims.end())});
  }

  /// The filters of a convolution, which have its groups' channels along axis 1.
  static ValueId filters_of(const Graph& g, NodeId n) {
    const ValueId w = g.input(n, g.node(n).op.text().starts_with("QLinear") ? 3 : 1);
    const bool free = w && !g.value(w).producer && g.value(w).type.shape;
    return free && g.value(w).type.rank() > 2 && constant_shape(*g.value(w).type.shape) ? w
                                                                                        : ValueId{};
  }

  /// `to` groups in the place of one, each with as many filters (and addends) as there were: what
  /// is cut out of their results then has some of one group, too. 0: a group a channel.
  static void group(Graph& g, NodeId n, int64_t to) {
    const ValueId w = filters_of(g, n);
    if (!w) return;
    std::vector<int64_t> dims = *constant_shape(*g.value(w).type.shape);
    if (to == 0) to = dims[1];
    if (to < 2 || dims[1] % to) return;
    const int64_t was = dims[0];
    dims[0] *= to, dims[1] /= to;
    set_dims(g, w, dims);
    const ValueId b = g.input(n, 2);
    if (const Tensor* t = g.constant(b); t && t->dims() == std::vector{was})
      set_dims(g, b, {dims[0]});
    g.set_attr(n, "group", to);
  }

  /// All convolutions twice, side by side: channels of images, filters, addends and groups.
  static void double_groups(Graph& g, const std::vector<NodeId>& all) {
    for (ValueId v : g.inputs())
      if (Type t = g.value(v).type; t.shape && t.shape->size() > 2) {
        (*t.shape)[1] = (*t.shape)[1] * Dim(2);
        g.set_type(v, std::move(t));
      }
    std::set<ValueId> done;
    for (NodeId n : all) {
      const ValueId b = g.input(n, 2);
      for (ValueId v : {filters_of(g, n), g.constant(b) ? b : ValueId{}}) {
        if (!v || !done.insert(v).second || g.value(v).type.rank() == 0) continue;
        std::vector<int64_t> dims = *constant_shape(*g.value(v).type.shape);
        dims[0] *= 2;
        set_dims(g, v, dims);
      }
      g.set_attr(n, "group", 2 * g.node(n).attrs.i("group", 1));
    }
  }

  /// The results of these nodes, each behind an Abs, are all that the graph gives.
  static void give(Graph& g, const std::vector<NodeId>& nodes) {
    for (size_t k = 0; k < nodes.size(); ++k) {
      Node abs;
      abs.op = Operator("Abs");
      abs.name = g.fresh_name(fmt::format("given_{}", k));
      abs.inputs = {g.output(nodes[k])};
      abs.outputs = {g.add_value(abs.name, {g.value(g.output(nodes[k])).type.dtype, {}})};
      const ValueId result = abs.outputs[0];
      g.add_node(std::move(abs));
      if (k < g.outputs().size())
        g.set_output(k, result);
      else
        g.add_output(result);
    }
    g.remove_dead();
  }

  /// An attribute `group` alone fits no filters, and what reads the results would not fit them.
  void groups() {
    std::vector<NodeId> all, first, convolutions;
    for (NodeId n : g_.order()) {
      const Attr* a = g_.node(n).attrs.find("group");
      if (a && filters_of(g_, n)) convolutions.push_back(n);
      if ((a && !same_attr(*a, int64_t{1})) || !filters_of(g_, n)) continue;
      if (!g_.value(g_.input(n, 0)).producer) first.push_back(n);
      if (a) all.push_back(n);
    }
    if (!convolutions.empty())
      add("every convolution is there twice, side by side",
          [=](Graph& g) { double_groups(g, convolutions); });
    if (first.size() > 1 && first.size() >= g_.outputs().size())
      for (int64_t to : {2, 0}) {
        add(fmt::format("convolutions of an input {}, and nothing else is left",
                        to ? "get 2 groups" : "are depthwise"),
            [=](Graph& g) {
              for (NodeId n : first) group(g, n, to);
              give(g, first);
            });
        out_.back().last = true;
      }
    for (int64_t to : {2, 0}) {
      const std::string how = to ? "gets 2 groups" : "is depthwise";
      for (NodeId n : all)
        add(fmt::format("{} {}", op_of(n), how), [=](Graph& g) { group(g, n, to); });
      if (all.size() > 1)
        add("every convolution " + how, [=](Graph& g) {
          for (NodeId n : all) group(g, n, to);
        });
      if (!all.empty())
        add("every convolution " + how + ", of one filter each", [=](Graph& g) {
          for (NodeId n : all) {
            const ValueId w = filters_of(g, n);
            if (!w) continue;
            std::vector<int64_t> dims = *constant_shape(*g.value(w).type.shape);
            dims[0] = 1;
            set_dims(g, w, dims);
            if (const ValueId b = g.input(n, 2); g.constant(b)) set_dims(g, b, {1});
            group(g, n, to);
          }
        });
    }
  }

  /// Both directions instead of one: what holds weights and states has two of everything then.
  void directions() {
    const std::string both = "bidirectional";
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      const std::string now = g_.node(n).attrs.s("direction", "forward");
      if (!schema || now == both || !contains(words_of(op_of(n), "direction"), both) ||
          std::ranges::find(schema->attributes, "direction", &AttributeSchema::name) ==
              schema->attributes.end())
        continue;
      add(fmt::format("{} has both directions", op_of(n)), [=](Graph& g) {
        std::set<ValueId> done;
        for (size_t k = 1; k < g.node(n).inputs.size(); ++k) {
          const ValueId v = g.input(n, k);
          if (!v || g.value(v).producer || !g.value(v).type.shape || !done.insert(v).second)
            continue;
          auto dims = constant_shape(*g.value(v).type.shape);
          if (!dims || dims->size() < 2 || dims->front() != 1) continue;
          dims->front() = 2;
          set_dims(g, v, *dims);
        }
        g.set_attr(n, "direction", both);
      });
    }
  }

  /// A number for each block of an axis instead of one for all, or for each place along it.
  void blocks() {
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      const ValueId x = g_.input(n, 0);
      const auto dims =
          x && g_.value(x).type.shape ? constant_shape(*g_.value(x).type.shape) : std::nullopt;
      if (!schema || !dims ||
          std::ranges::find(schema->attributes, "block_size", &AttributeSchema::name) ==
              schema->attributes.end())
        continue;
      for (size_t axis = 0; axis < dims->size() && axis < 4; ++axis)
        for (const int64_t size : {2, 3}) {
          std::vector<int64_t> blocks = *dims;
          blocks[axis] = (blocks[axis] + size - 1) / size;
          add(fmt::format("{} has blocks of {} along axis {}", op_of(n), size, axis),
              [=](Graph& g) {
                for (size_t k = 1; k < g.node(n).inputs.size(); ++k)
                  if (const ValueId v = g.input(n, k); v && !g.value(v).producer)
                    set_dims(g, v, blocks);
                g.set_attr(n, "axis", static_cast<int64_t>(axis));
                g.set_attr(n, "block_size", size);
              });
        }
    }
  }

  /// Optional operands left out, and values in slots where another stood.
  void operands() {
    for (NodeId n : g_.order()) {
      for (size_t k = 1; k < g_.node(n).inputs.size(); ++k)
        if (g_.input(n, k))
          add(fmt::format("{} without operand {}", op_of(n), k),
              [=](Graph& g) { g.set_input(n, k, {}); });
      for (size_t k = 0; k < g_.node(n).inputs.size(); ++k)
        for (ValueId v : inputs())
          if (g_.input(n, k) && g_.input(n, k) != v)
            add(fmt::format("{} reads {} in slot {}", op_of(n), name(v), k),
                [=](Graph& g) { g.set_input(n, k, v); });
      for (size_t k = 0; k < g_.node(n).inputs.size(); ++k) {
        ValueId was = g_.input(n, k);
        if (!was || !g_.value(was).type.known()) continue;
        add(fmt::format("{} reads another tensor in slot {}", op_of(n), k), [=](Graph& g) {
          Type t = g.value(was).type;
          g.set_input(n, k, g.add_input(g.fresh_name("other"), std::move(t)));
        });
      }
    }
  }

  /// Operands behind the last: the same again, another tensor, a flag, a number.
  void further_operands() {
    for (NodeId n : g_.order()) {
      size_t have = g_.node(n).inputs.size();
      if (have == 0) continue;
      ValueId last = g_.input(n, have - 1);
      add(fmt::format("{} reads its last operand twice", op_of(n)),
          [=](Graph& g) { g.set_input(n, have, last); });
      if (last && g_.value(last).type.known())
        add(fmt::format("{} reads one more tensor", op_of(n)), [=](Graph& g) {
          Type t = g.value(last).type;
          g.set_input(n, have, g.add_input(g.fresh_name("more"), std::move(t)));
        });
      for (size_t slot : {have, have + 1})
        for (const Tensor& t : {Tensor::scalar(DType::boolean, 1), number_like(n)})
          add(fmt::format("{} gets {} as operand {}", op_of(n),
                          t.dtype() == DType::boolean ? "true" : "2", slot),
              [=](Graph& g) { g.set_input(n, slot, g.add_constant(g.fresh_name("more"), t)); });
    }
  }

  /// Optional operands that are left out, as lists that are as long as an axis of the first
  /// operand, or have a pair for each axis.
  void absent_operands() {
    for (NodeId n : g_.order()) {
      const OperatorSchema* schema = operator_schema(g_.node(n));
      const ValueId x = g_.input(n, 0);
      if (!schema || !x || !g_.value(x).type.shape) continue;
      std::set<int64_t> sizes;
      for (const Dim& d : *g_.value(x).type.shape)
        if (d.is_constant()) sizes.insert(d.value_or(0));
      const int64_t longest = sizes.empty() ? 1 : *sizes.rbegin();
      sizes.insert(2 * std::ssize(*g_.value(x).type.shape));
      for (size_t slot = 1; slot < schema->inputs.size(); ++slot) {
        const OperandSchema& o = schema->inputs[slot];
        if (!o.optional || o.types.empty() || g_.input(n, slot)) continue;
        DType t = o.types.front();
        for (size_t k = 0; k < g_.node(n).inputs.size() && k < schema->inputs.size(); ++k)
          if (g_.input(n, k) && schema->inputs[k].variable == o.variable)
            t = g_.value(g_.input(n, k)).type.dtype;
        if (size_bits(t) % 8) continue;
        for (int64_t size : sizes) {
          add(fmt::format("{} gets {} numbers as {}", op_of(n), size, o.name), [=](Graph& g) {
            g.set_input(n, slot, g.add_input(g.fresh_name("more"), {t, Shape{Dim(size)}}));
          });
          std::vector<double> counted;  // down from the longest axis
          for (int64_t k = 0; k < size && size <= 16; ++k)
            counted.push_back(std::max(1.0, static_cast<double>(longest - k)));
          if (!counted.empty())
            add(fmt::format("{} gets {} counted numbers as {}", op_of(n), size, o.name),
                [=](Graph& g) {
                  g.set_input(n, slot,
                              g.add_constant(g.fresh_name("more"), filled(t, {size}, counted)));
                });
        }
      }
    }
  }

  /// A 2 as the operator's last constant is written, else of its first operand's type.
  Tensor number_like(NodeId n) const {
    auto suits = [](DType t) { return is_float(t) || (is_int(t) && size_bits(t) % 8 == 0); };
    for (size_t k = g_.node(n).inputs.size(); k-- > 0;)
      if (ValueId v = g_.input(n, k))
        if (const Tensor* t = g_.constant(v); t && t->numel() == 1 && suits(t->dtype()))
          return Tensor::scalar(t->dtype(), 2, t->dims());
    const ValueId first = g_.input(n, 0);
    const DType element = first ? g_.value(first).type.dtype : DType::f32;
    return Tensor::scalar(suits(element) ? element : DType::f32, 2);
  }

  const Graph& g_;
  const MutationScope& scope_;
  bool of_operator_ = false;
  std::vector<Mutation> out_;
};

}  // namespace

std::vector<Mutation> mutations(const Graph& g, const MutationScope& scope) {
  return Mutator(g, scope).run();
}

void resize(Graph& g, int64_t from, int64_t to) {
  auto changed = [&](const Dim& d) { return from < 0 ? !d.is_constant() : d == Dim(from); };
  for (ValueId v : g.inputs()) {
    if (!g.value(v).type.shape) continue;
    Shape s = *g.value(v).type.shape;
    std::ranges::replace_if(s, changed, Dim(to));
    g.set_type(v, Type{g.value(v).type.dtype, s});
  }
  for (ValueId v : g.constants()) {
    std::vector<int64_t> dims = g.constant(v)->dims();
    const bool hit = contains(dims, from);
    std::ranges::replace(dims, from, to);
    if (hit) g.set_constant(v, repeated(*g.constant(v), dims));
  }
}

void retype(Graph& g, DType from, DType to) {
  if (from == DType::string || to == DType::string) return;  // no number becomes a text
  for (ValueId v : g.inputs())
    if (g.value(v).type.dtype == from) g.set_type(v, Type{to, g.value(v).type.shape});
  for (ValueId v : g.constants())
    if (g.constant(v)->dtype() == from) g.set_constant(v, converted(*g.constant(v), to));
}

}  // namespace ferrule
