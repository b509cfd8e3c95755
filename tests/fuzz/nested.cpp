#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {
namespace {

std::string declared(const Value& v) { return type_text(v.dtype, v.dims) + " " + v.name; }

/// Steps behind `from`, which may read all that the scene has (captures). `as`: dims of the result;
/// nullopt: any.
Made steps(Builder& b, const Scene& scene, const Value& from, const std::optional<Dims>& as) {
  Scene inner{scene.anchor, scene.values};
  inner.values.push_back(from);
  for (int64_t n = b.draw.between(1, 3), tries = 0; n > 0 && tries < 8; ++tries) {
    const size_t lines = b.lines(), values = inner.values.size();
    if (!draw_step(b, inner)) continue;
    if (as && inner.values.back().dims != *as) {
      b.take(lines);
      inner.values.resize(values);
      continue;
    }
    --n;
  }
  Value r = inner.values.back();
  if (r.name == from.name || r.dtype != from.dtype) {
    Made same = b.node("Identity", {from});
    if (same) same->exact = from.exact;
    return same;
  }
  return r;
}

std::string graph(const std::string& name, const std::vector<std::string>& ins,
                  const std::vector<std::string>& outs, const std::vector<std::string>& lines) {
  return fmt::format("{} ({}) => ({}) {{ {} }}", name, fmt::join(ins, ", "), fmt::join(outs, ", "),
                     fmt::join(lines, " "));
}

Value condition(Builder& b) {
  return b.draw.chance(70) ? b.input(DType::boolean, {}, Mood::exact)
                           : b.constant(DType::boolean, {}, Mood::exact);
}

Made branches(Builder& b, const Scene& scene, const Value& v) {
  const size_t before = b.lines();
  Made yes = steps(b, scene, v, std::nullopt);
  if (!yes) return yes;
  const auto then = b.take(before);
  Made no;
  if (yes->dims == v.dims)
    no = steps(b, scene, v, v.dims);
  else
    no = b.node("Neg", {b.constant(yes->dtype, yes->dims, yes->exact ? Mood::exact : b.finite())});
  if (!no) return no;
  const auto otherwise = b.take(before);
  auto r = b.nodes("If", {condition(b)},
                   "then_branch = " + graph(b.fresh("g"), {}, {declared(*yes)}, then) +
                       ", else_branch = " + graph(b.fresh("g"), {}, {declared(*no)}, otherwise),
                   {yes->dtype}, {yes->dims});
  if (!r) return std::nullopt;
  (*r)[0].exact = yes->exact && no->exact;
  return (*r)[0];
}

/// A value that a nested graph is given, while its nodes are drawn: the line that makes it is
/// thrown away.
Made stand_in(Builder& b, const Value& like) { return b.node("Identity", {like}); }

Made loop(Builder& b, const Scene& scene, const Value& v) {
  Draw& d = b.draw;
  const size_t before = b.lines();
  Made state = stand_in(b, v);
  if (!state) return state;
  state->exact = v.exact && d.chance(30);
  Made next = steps(b, scene, *state, v.dims);
  if (!next) return next;
  auto lines = b.take(before);
  lines.erase(lines.begin());
  const std::string i = b.fresh("v"), c = b.fresh("v"), again = b.fresh("v");
  lines.push_back(again + " = Identity (" + c + ")");
  const std::string body = graph(b.fresh("g"), {"int64 " + i, "bool " + c, declared(*state)},
                                 {"bool " + again, declared(*next)}, lines);
  const int64_t count = d.of({0, 1, 2, 3});
  const Value trips = d.chance(60) ? b.literal_of(DType::i64, {}, static_cast<double>(count))
                                   : b.input(DType::i64, {}, Mood::positive);
  auto r = b.nodes("Loop", {trips, d.chance(50) ? Value{} : b.literal_of(DType::boolean, {}, 1), v},
                   "body = " + body, {v.dtype}, {v.dims});
  if (!r) return std::nullopt;
  Value all = (*r)[0];
  all.exact = next->exact && v.exact;
  if (!b.says_nothing(all)) b.output(all);
  return d.chance(2) ? Made(all)
                     : v;  // what reads it has no sizes before a run, as ONNX infers them
}

Made scan(Builder& b, const Scene& scene, const Value& v) {
  if (v.rank() < 1 || v.dims[0] < 1 || v.dims[0] > 6) return std::nullopt;
  const Dims slice(v.dims.begin() + 1, v.dims.end());
  const Value first = b.draw.chance(50) ? b.constant(v.dtype, slice, b.finite())
                                        : b.input(v.dtype, slice, b.finite());
  const size_t before = b.lines();
  Made state = stand_in(b, first), x = stand_in(b, first);
  if (!state || !x) return std::nullopt;
  Made sum = b.node(b.draw.of(std::vector<std::string>{"Add", "Sub", "Max"}), {*state, *x});
  if (!sum) return sum;
  sum->exact = false;
  Made y = steps(b, scene, *sum, slice);
  Made kept = b.node("Identity", {*sum});
  if (!y || !kept) return std::nullopt;
  auto lines = b.take(before);
  lines.erase(lines.begin(), lines.begin() + 2);
  const std::string body =
      graph(b.fresh("g"), {declared(*state), declared(*x)}, {declared(*kept), declared(*y)}, lines);
  auto r = b.nodes("Scan", {first, v}, "body = " + body + ", num_scan_inputs = 1",
                   {v.dtype, v.dtype}, {slice, v.dims});
  if (!r) return std::nullopt;
  for (Value& each : *r) each.exact = each.positive = false;
  return (*r)[1];
}

}  // namespace

Made draw_nested(Builder& b, const Scene& scene, const Value& v) {
  if (v.numel() > 4096) return std::nullopt;
  const size_t before = b.lines();
  const int64_t kind = b.draw.below(4);
  Made r = kind < 2 ? branches(b, scene, v) : kind == 2 ? loop(b, scene, v) : scan(b, scene, v);
  if (!r) b.take(before);
  return r;
}

}  // namespace ferrule::fuzz
