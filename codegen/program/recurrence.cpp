#include "codegen/program/recurrence.h"

#include <algorithm>

#include "engine/base/contains.h"
#include "engine/semantics/program_builder.h"

namespace ferrule {
namespace {

constexpr DType kType = DType::f32;

constexpr std::string_view kActivations[] = {
    "affine",  "elu",      "hardsigmoid", "leakyrelu", "relu",           "scaledtanh",
    "sigmoid", "softplus", "softsign",    "tanh",      "thresholdedrelu"};

class CellBuilder {
 public:
  CellBuilder(const Recurrence& r, int64_t direction) : r_(r) {
    const size_t own = r.activations.size() / static_cast<size_t>(r.directions);
    first_ = r.activations.begin() + static_cast<std::ptrdiff_t>(own) * direction;
  }

  CellPrograms run(bool peepholes) {
    CellPrograms out;
    if (r_.resets_state()) {
      const uint32_t gate = sum(), state = b_.input(kType);
      b_.output(mul(apply(0, gate), state));
      out.reset = b_.take();
      b_ = {};
    }
    if (r_.work == Work::lstm)
      lstm(peepholes);
    else if (r_.work == Work::gru)
      gru();
    else
      b_.output(apply(0, sum()));
    out.step = b_.take();
    return out;
  }

 private:
  void lstm(bool peepholes) {
    uint32_t gate[4];
    for (uint32_t& g : gate) g = sum();
    const uint32_t before = b_.input(kType);
    uint32_t peephole[3] = {};
    for (uint32_t& p : peephole)
      if (peepholes) p = b_.input(kType);
    auto looks = [&](size_t k, uint32_t memory) {
      return peepholes ? add(gate[k], mul(peephole[k], memory)) : gate[k];
    };
    const uint32_t in = apply(0, looks(0, before)),
                   forget = r_.coupled ? sub(number(1), in) : apply(0, looks(2, before)),
                   memory = add(mul(forget, before), mul(in, apply(1, gate[3])));
    b_.output(memory);
    b_.output(mul(apply(0, looks(1, memory)), activated(first_[2], memory)));
  }

  void gru() {
    const uint32_t z = apply(0, sum()), rx = b_.input(kType), rh = b_.input(kType),
                   x = b_.input(kType), h = b_.input(kType), before = b_.input(kType);
    const uint32_t recurrent = r_.linear_before_reset ? mul(apply(0, add(rx, rh)), h) : h,
                   fresh = apply(1, add(x, recurrent));
    b_.output(add(mul(sub(number(1), z), fresh), mul(z, before)));
  }

  /// A gate's two products.
  uint32_t sum() {
    const uint32_t x = b_.input(kType);
    return add(x, b_.input(kType));
  }
  uint32_t apply(size_t function, uint32_t x) {
    if (r_.clip > 0) x = within(x, -r_.clip, r_.clip);
    return activated(first_[static_cast<std::ptrdiff_t>(function)], x);
  }

  uint32_t activated(const RnnActivation& f, uint32_t x) {
    auto a = [&](double otherwise) { return number(f.alpha.value_or(otherwise)); };
    auto b = [&](double otherwise) { return number(f.beta.value_or(otherwise)); };
    auto negative = [&] { return b_.op(Prim::lt, DType::boolean, {x, number(0)}); };
    if (f.name == "sigmoid") return unary(Prim::sigmoid, x);
    if (f.name == "tanh") return unary(Prim::tanh, x);
    if (f.name == "relu") return choose(negative(), number(0), x);
    if (f.name == "affine") return add(mul(a(1), x), b(0));
    if (f.name == "leakyrelu") return choose(negative(), mul(a(0.01), x), x);
    if (f.name == "thresholdedrelu")
      return choose(b_.op(Prim::gt, DType::boolean, {x, a(1)}), x, number(0));
    if (f.name == "scaledtanh") return mul(a(1), unary(Prim::tanh, mul(b(1), x)));
    if (f.name == "hardsigmoid") return within(add(mul(a(0.2), x), b(0.5)), 0, 1);
    if (f.name == "elu") return choose(negative(), mul(a(1), unary(Prim::expm1, x)), x);
    const uint32_t size = unary(Prim::abs, x);
    if (f.name == "softsign") return b_.op(Prim::div, kType, {x, add(number(1), size)});
    return add(b_.op(Prim::max, kType, {x, number(0)}),  // softplus
               unary(Prim::log1p, unary(Prim::exp, unary(Prim::neg, size))));
  }

  uint32_t number(double v) { return b_.constant(kType, v, 0); }
  uint32_t unary(Prim p, uint32_t x) { return b_.op(p, kType, {x}); }
  uint32_t add(uint32_t x, uint32_t y) { return b_.op(Prim::add, kType, {x, y}); }
  uint32_t sub(uint32_t x, uint32_t y) { return b_.op(Prim::sub, kType, {x, y}); }
  uint32_t mul(uint32_t x, uint32_t y) { return b_.op(Prim::mul, kType, {x, y}); }
  uint32_t choose(uint32_t c, uint32_t x, uint32_t y) {
    return b_.op(Prim::select, kType, {c, x, y});
  }
  /// NaN stays NaN.
  uint32_t within(uint32_t x, double low, double high) {
    return b_.op(Prim::max, kType, {number(low), b_.op(Prim::min, kType, {number(high), x})});
  }

  const Recurrence& r_;
  std::vector<RnnActivation>::const_iterator first_;
  ProgramBuilder b_;
};

template <class T>
std::vector<T> list(const Node& n, std::string_view name) {
  const Attr* a = n.attrs.find(name);
  const auto* v = a ? std::get_if<std::vector<T>>(a) : nullptr;
  return v ? *v : std::vector<T>{};
}

}  // namespace

Applicable<Recurrence> recurrence_of(Work work, const Node& n, const std::string& layer) {
  auto refuse = [&](std::string why) { return not_applicable(escape(layer), n.op.text(), why); };
  Recurrence r;
  r.work = work;
  std::vector<std::string> names{"tanh"};
  if (work == Work::lstm) names = {"sigmoid", "tanh", "tanh"};
  if (work == Work::gru) names = {"sigmoid", "tanh"};
  r.gates = work == Work::lstm ? 4 : work == Work::gru ? 3 : 1;
  const size_t functions = names.size();
  const std::string direction = n.attrs.s("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    return refuse("direction " + escape(direction));
  r.reverse = direction == "reverse";
  r.directions = direction == "bidirectional" ? 2 : 1;
  r.batch_first = n.attrs.i("layout") != 0;
  r.linear_before_reset = n.attrs.i("linear_before_reset") != 0;
  r.coupled = n.attrs.i("input_forget") != 0;
  r.clip = n.attrs.f("clip", 0);
  if (r.directions == 2) {
    const std::vector<std::string> once = names;
    names.insert(names.end(), once.begin(), once.end());
  }
  if (const auto own = list<std::string>(n, "activations"); !own.empty()) names = own;
  const size_t wanted = functions * static_cast<size_t>(r.directions);
  if (names.size() < wanted)
    return refuse(fmt::format("{} activations of {}", names.size(), wanted));
  const auto alpha = list<double>(n, "activation_alpha"), beta = list<double>(n, "activation_beta");
  names.resize(wanted);
  r.activations = rnn_activations(names, alpha, beta);
  for (size_t k = 0; k < wanted; ++k)
    if (!contains(kActivations, r.activations[k].name))
      return refuse("activation " + escape(names[k]));
  return r;
}

CellPrograms cell_programs(const Recurrence& r, int64_t direction, bool peepholes) {
  return CellBuilder(r, direction).run(peepholes);
}

}  // namespace ferrule
