// Smaller sizes. A size stands in many places of a model: axes of inputs and constants, elements of
// constants that hold shapes, attributes. Which of them go together the importer knows: a set of
// places is changed as one if inference takes the model so, and no smaller part of the set would
// do.
#include <algorithm>
#include <functional>

#include "engine/reduce/state.h"

namespace ferrule::reduce {
namespace {

constexpr int64_t kFactors[] = {8, 4, 2};

/// One number of the model.
struct Size {
  const Graph* graph = nullptr;
  ValueId value;  ///< an input or a constant …
  NodeId node;    ///< … or a node
  std::string attribute;
  bool element = false;  ///< of a constant; else an axis
  size_t at = 0;         ///< which axis, element, or number of the attribute
  int64_t size = 0;
  bool axis() const { return value && !element; }
};
using Sizes = std::vector<Size>;
using Change = std::function<int64_t(int64_t)>;

void of_constant(const Graph& g, ValueId v, const Tensor& t, Sizes& out) {
  for (size_t k = 0; k < t.dims().size(); ++k)
    out.push_back({&g, v, {}, "", false, k, t.dims()[k]});
  if ((t.dtype() != DType::i64 && t.dtype() != DType::i32) || t.numel() > kShapeLike) return;
  for (int64_t k = 0; k < t.numel(); ++k)
    out.push_back({&g, v, {}, "", true, static_cast<size_t>(k), t.at_i64(k)});
}

void of_node(const Graph& g, NodeId id, Sizes& out) {
  for (const auto& [name, a] : g.node(id).attrs.items()) {
    if (const auto* one = std::get_if<int64_t>(&a))
      out.push_back({&g, {}, id, name, false, 0, *one});
    if (const auto* all = std::get_if<std::vector<int64_t>>(&a))
      for (size_t k = 0; k < all->size(); ++k)
        out.push_back({&g, {}, id, name, false, k, (*all)[k]});
  }
}

Sizes sizes_of(const Graph& g) {
  Sizes out;
  for (ValueId v : g.inputs())
    if (const auto& shape = g.value(v).type.shape)
      for (size_t k = 0; k < shape->size(); ++k)
        if (auto c = (*shape)[k].constant()) out.push_back({&g, v, {}, "", false, k, *c});
  for (const Place& p : places(g)) {
    for (ValueId v : p.graph->constants()) of_constant(*p.graph, v, *p.graph->constant(v), out);
    for (NodeId id : p.graph->order()) of_node(*p.graph, id, out);
  }
  std::erase_if(out, [](const Size& s) { return s.size < 2; });
  return out;
}

/// The edit that gives these places their new sizes, and the inputs that go with it. nullopt: a
/// tensor cannot be cut.
struct Resized {
  Edit edit;
  Tensors inputs;
};
std::optional<Resized> resized(const State& s, const Sizes& sizes, const Change& to) {
  Resized out;
  std::map<std::pair<const Graph*, ValueId>, Sizes> tensors;
  for (const Size& x : sizes) {
    if (x.value) {
      tensors[{x.graph, x.value}].push_back(x);
      continue;
    }
    auto& slot = out.edit[x.graph].attrs[{x.node, x.attribute}];
    if (!slot) slot = *x.graph->node(x.node).attrs.find(x.attribute);
    if (auto* one = std::get_if<int64_t>(&*slot))
      *one = to(x.size);
    else
      std::get<std::vector<int64_t>>(*slot)[x.at] = to(x.size);
  }
  for (const auto& [at, all] : tensors) {
    const auto& [graph, v] = at;
    const Tensor* constant = graph->constant(v);
    if (constant) {
      std::vector<int64_t> dims = constant->dims(), numbers;
      if (std::ranges::any_of(all, &Size::element)) numbers = constant->to_i64();
      for (const Size& x : all) (x.element ? numbers : dims)[x.at] = to(x.size);
      Tensor t = *constant;
      if (!numbers.empty()) t = Tensor::of_ints(t.dtype(), t.dims(), numbers);
      auto cut = leading(t, dims);
      if (!cut) return std::nullopt;
      out.edit[graph].constants[v] = std::move(*cut);
      continue;
    }
    Type type = graph->value(v).type;
    for (const Size& x : all) (*type.shape)[x.at] = Dim(to(x.size));
    const std::string& name = graph->value(v).name;
    if (auto given = s.inputs().find(name); given != s.inputs().end()) {
      std::vector<int64_t> dims = given->second.dims();
      for (const Size& x : all) dims[x.at] = to(x.size);
      auto cut = leading(given->second, dims);
      if (!cut) return std::nullopt;
      out.inputs[name] = std::move(*cut);
    }
    out.edit[graph].types[v] = std::move(type);
  }
  return out;
}

bool valid(const State& s, const Sizes& sizes, const Change& to) {
  auto r = resized(s, sizes, to);
  return r && s.valid(r->edit);
}

State::Tried tried(State& s, const Sizes& sizes, const Change& to) {
  auto r = resized(s, sizes, to);
  return r ? s.tried(r->edit, r->inputs) : State::Tried::no_model;
}
bool attempt(State& s, const Sizes& sizes, const Change& to) {
  return tried(s, sizes, to) == State::Tried::smaller;
}

/// Parts of a valid set that are valid themselves, and no smaller; every place is in one at least.
std::vector<Sizes> tied(const State& s, const Sizes& all, const Change& to) {
  std::vector<Sizes> out;
  std::vector<bool> placed(all.size());
  for (size_t seed = 0; seed < all.size() && !s.over(); ++seed) {
    if (placed[seed]) continue;
    std::vector<size_t> kept;
    for (size_t k = 0; k < all.size(); ++k) kept.push_back(k);
    for (size_t size = all.size() / 2; size > 0; size /= 2)
      for (size_t end = kept.size(); end > 0;) {
        const size_t begin = end > size ? end - size : 0;
        Sizes rest;
        bool seeded = false;
        for (size_t k = 0; k < kept.size(); ++k)
          if (k < begin || k >= end) rest.push_back(all[kept[k]]), seeded |= kept[k] == seed;
        if (seeded && valid(s, rest, to)) kept.erase(kept.begin() + begin, kept.begin() + end);
        end = begin;
      }
    Sizes part;
    for (size_t k : kept) part.push_back(all[k]), placed[k] = true;
    out.push_back(std::move(part));
  }
  return out;
}

/// 1, 2, 3, 4, 6, 8, 12, 16, … below `size`.
std::vector<int64_t> smaller(int64_t size) {
  std::vector<int64_t> out;
  for (int64_t k = 1; k < size; k *= 2) {
    out.push_back(k);
    if (k > 1 && k + k / 2 < size) out.push_back(k + k / 2);
  }
  return out;
}

/// Gives all places of one size, or parts of them that go together, a smaller one.
bool shrink_size(State& s, const Sizes& all, int64_t size) {
  Sizes axes;
  for (const Size& x : all)
    if (x.axis()) axes.push_back(x);
  if (axes.empty()) return false;
  const std::vector<int64_t> to = smaller(size);
  const Sizes* whole = nullptr;
  int64_t trial = 0;
  for (const Sizes* set : {static_cast<const Sizes*>(&axes), &all}) {
    for (int64_t n : to) {
      if (s.over()) return false;
      const State::Tried t = tried(s, *set, [n](int64_t) { return n; });
      if (t == State::Tried::smaller) return true;
      if (t != State::Tried::no_model) whole = set, trial = n;
    }
    if (whole) break;
  }
  std::vector<Sizes> parts;
  if (whole)
    parts = tied(s, *whole, [trial](int64_t) { return trial; });
  else
    for (const Size& x : axes) parts.push_back({x});
  for (const Sizes& part : parts)
    for (int64_t n : to) {
      if (whole && part.size() == whole->size()) break;
      if (attempt(s, part, [n](int64_t) { return n; })) return true;
    }
  return false;
}

/// Sizes that are multiples of each other: parts that a Split or a Concat takes apart or puts
/// together.
bool shrink_factor(State& s, int64_t factor) {
  Sizes all = sizes_of(s.graph());
  std::erase_if(all, [&](const Size& x) { return x.size % factor != 0; });
  const Change change = [factor](int64_t n) { return n / factor; };
  if (std::ranges::none_of(all, &Size::axis)) return false;
  Sizes no_attributes = all;
  std::erase_if(no_attributes, [](const Size& x) { return !x.value; });
  for (const Sizes* set : {&all, &no_attributes}) {
    const State::Tried t = tried(s, *set, change);
    if (t == State::Tried::smaller) return true;
    if (t == State::Tried::no_model || s.over()) continue;
    return std::ranges::any_of(tied(s, *set, change),
                               [&](const Sizes& part) { return attempt(s, part, change); });
  }
  return false;
}

bool shrink_once(State& s) {
  std::map<int64_t, Sizes, std::greater<>> by_size;
  for (const Size& x : sizes_of(s.graph())) by_size[x.size].push_back(x);
  for (const auto& [size, all] : by_size)
    if (shrink_size(s, all, size)) return true;
  return std::ranges::any_of(kFactors, [&](int64_t f) { return shrink_factor(s, f); });
}

}  // namespace

void shrink(State& s) {
  while (!s.over() && shrink_once(s)) {
  }
}

}  // namespace ferrule::reduce
