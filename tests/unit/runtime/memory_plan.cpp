// Who shares memory with whom, and that no two values which live at the same time overlap in the
// arena.
#include "tests/unit/runtime/build.h"

#include <random>

namespace ferrule::test {
namespace {

constexpr auto kRun = Launch::Kind::generated;
constexpr auto kView = Launch::Kind::view;

void check_no_overlap(const Storage& s) {
  for (size_t a = 0; a < s.slots.size(); ++a)
    for (size_t b = a + 1; b < s.slots.size(); ++b) {
      const Slot &x = s.slots[a], &y = s.slots[b];
      if (x.kind != Slot::Kind::arena || y.kind != Slot::Kind::arena || !x.bytes || !y.bytes)
        continue;
      if (x.last < y.first || y.last < x.first) continue;
      const bool apart = x.offset + x.bytes <= y.offset || y.offset + y.bytes <= x.offset;
      CHECK(apart);
    }
}

}  // namespace

TEST_CASE("a chain in place needs one piece of memory and writes its end into the output") {
  PlanBuilder b;
  ValueId x = b.input("x", {4, 100});
  ValueId p = b.layer("p", kRun, {x}, {4, 100}), q = b.layer("q", kRun, {p}, {4, 100}),
          r = b.layer("r", kRun, {q}, {4, 100});
  b.plan.graph.add_output(r);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, always);
  REQUIRE(s.has_value());
  CHECK(s->slot(p, 0) == s->slot(q, 1));
  CHECK(s->slot(q, 1) == s->slot(r, 2));
  CHECK(s->slot(x, 0) != s->slot(p, 0));  // the caller's input is never overwritten
  CHECK(s->slots[static_cast<size_t>(s->slot(r, 2))].kind == Slot::Kind::output);
  place(*s, {});
  CHECK(s->arena_bytes == 0);
}

TEST_CASE("an operand that is read again is not overwritten, in either order") {
  PlanBuilder b;
  ValueId x = b.input("x", {256});
  ValueId p = b.layer("p", kRun, {x}, {256}), q = b.layer("q", kRun, {p}, {256}),
          r = b.layer("r", kRun, {p, q}, {256});
  ValueId t = b.layer("t", kRun, {r}, {256});
  b.plan.graph.add_output(t);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, always);
  REQUIRE(s.has_value());
  CHECK(s->slot(q, 1) != s->slot(p, 0));
  CHECK(s->slot(r, 2) == s->slot(p, 0));
}

TEST_CASE("views are their operand's memory, and it lives as long as they do") {
  PlanBuilder b;
  ValueId x = b.input("x", {2, 50});
  ValueId p = b.layer("p", kRun, {x}, {2, 50}), v = b.layer("v", kView, {p}, {100});
  ValueId q = b.layer("q", kRun, {x}, {100}), r = b.layer("r", kRun, {v, q}, {100});
  b.plan.graph.add_output(r);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, never);
  REQUIRE(s.has_value());
  CHECK(s->slot(v, 1) == s->slot(p, 0));
  place(*s, {});
  check_no_overlap(*s);
  CHECK(s->arena_bytes == 2 * 448);  // 400 bytes, in steps of 64
}

TEST_CASE("outputs that are somebody else's memory are copied") {
  PlanBuilder b;
  ValueId x = b.input("x", {2, 3}), c = b.constant("c", {2, 3});
  ValueId v = b.layer("v", kView, {x}, {6}), p = b.layer("p", kRun, {x}, {6}),
          w = b.layer("w", kView, {p}, {2, 3});
  b.plan.graph.add_output(v);
  b.plan.graph.add_output(c);
  b.plan.graph.add_output(p);
  b.plan.graph.add_output(w);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, never);
  REQUIRE(s.has_value());
  REQUIRE(s->copies.size() == 3);
  CHECK(s->copies[0].to_output == 0);
  CHECK(s->copies[1].to_output == 1);
  CHECK(s->copies[2].to_output == 3);
  CHECK(s->copies[2].from_slot == s->slot(p, 1));
}

TEST_CASE("an output's memory is not taken over by a later layer") {
  PlanBuilder b;
  ValueId x = b.input("x", {8});
  ValueId p = b.layer("p", kRun, {x}, {8}), q = b.layer("q", kRun, {p}, {8});
  b.plan.graph.add_output(p);
  b.plan.graph.add_output(q);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, always);
  REQUIRE(s.has_value());
  CHECK(s->slot(p, 0) != s->slot(q, 1));
}

TEST_CASE("temporaries of two layers are different, and a size that is not known is an error") {
  PlanBuilder b;
  ValueId x = b.input("x", {16});
  ValueId p = b.layer("p", kRun, {x}, {16}), q = b.layer("q", kRun, {p}, {16});
  const ValueId temporary{kTemporary};
  for (size_t k = 0; k < 2; ++k) {
    b.lowered.layers[k].temporaries.push_back({PlanBuilder::type({64}), Layout::plain});
    Launch second = b.lowered.layers[k].launches[0];
    b.lowered.layers[k].launches[0].outputs = {temporary};
    second.inputs = {temporary};
    b.lowered.layers[k].launches.push_back(second);
  }
  b.plan.graph.add_output(q);
  b.finish();
  auto s = plan_storage(b.plan, b.lowered, never);
  REQUIRE(s.has_value());
  CHECK(s->slot(temporary, 0) != s->slot(temporary, 1));
  place(*s, {});
  check_no_overlap(*s);
  b.plan.graph.set_type(p, {DType::f32, Shape{Dim::unknown()}});
  auto bad = plan_storage(b.plan, b.lowered, never);
  REQUIRE_FALSE(bad.has_value());
  CHECK(bad.error().code == Code::size_unknown);
  CHECK(bad.error().message.find("p") != std::string::npos);
}

TEST_CASE("random lives never overlap, with scratch, and the arena is near the least possible") {
  std::mt19937 random(3);
  for (int round = 0; round < 50; ++round) {
    Storage s;
    s.steps = 40;
    for (int k = 0; k < 60; ++k) {
      Slot slot;
      slot.first = static_cast<int>(random() % 40);
      slot.last = std::min(39, slot.first + static_cast<int>(random() % 8));
      slot.bytes = static_cast<int64_t>(random() % 5000);
      s.slots.push_back(slot);
    }
    std::vector<int64_t> scratch(40, 0);
    for (int k = 0; k < 10; ++k) scratch[random() % 40] = static_cast<int64_t>(random() % 9000);
    place(s, scratch);
    check_no_overlap(s);
    int64_t least = 0;
    for (int step = 0; step < 40; ++step) {
      int64_t alive = (scratch[static_cast<size_t>(step)] + 63) / 64 * 64;
      for (const Slot& x : s.slots)
        if (x.first <= step && step <= x.last) alive += (x.bytes + 63) / 64 * 64;
      least = std::max(least, alive);
      for (const Slot& x : s.slots)
        if (x.bytes && scratch[static_cast<size_t>(step)] && x.first <= step && step <= x.last) {
          const int64_t from = s.scratch[static_cast<size_t>(step)].offset,
                        to = from + scratch[static_cast<size_t>(step)];
          CHECK((to <= x.offset || x.offset + x.bytes <= from));
        }
      CHECK(s.scratch[static_cast<size_t>(step)].offset % 64 == 0);
    }
    CHECK(s.least_bytes == least);
    CHECK(s.arena_bytes >= least);
    CHECK(s.arena_bytes <= least + least / 10);
  }
}

TEST_CASE("thousands of lives never overlap either, and take time in their number") {
  std::mt19937 random(5);
  Storage s;
  s.steps = 3000;
  for (int k = 0; k < 6000; ++k) {
    Slot slot;
    slot.first = static_cast<int>(random() % 3000);
    slot.last = std::min(2999, slot.first + static_cast<int>(random() % (k % 50 ? 8 : 1500)));
    slot.bytes = static_cast<int64_t>(random() % 5000);
    s.slots.push_back(slot);
  }
  place(s, {});
  check_no_overlap(s);
  CHECK(s.arena_bytes >= s.least_bytes);
  CHECK(s.arena_bytes <= s.least_bytes + s.least_bytes / 2);

  Storage sum;  // made one after the other, read together at the end
  sum.steps = 200'000;
  for (int k = 0; k < sum.steps; ++k) {
    Slot slot;
    slot.first = k;
    slot.last = sum.steps - 1;
    slot.bytes = 32;
    sum.slots.push_back(slot);
  }
  place(sum, {});
  CHECK(sum.arena_bytes == 64 * int64_t{sum.steps});
  CHECK(sum.arena_bytes == sum.least_bytes);
}

TEST_CASE(
    "parts of a value lie in it, and it lives from the first of them to the last reader of any") {
  PlanBuilder b;
  ValueId x = b.input("x", {2, 16});
  ValueId source = b.layer("source", kRun, {x}, {2, 16});
  ValueId first = b.layer("first", kRun, {source}, {2, 16}),
          between = b.layer("between", kRun, {first}, {2, 16});
  ValueId second = b.layer("second", kRun, {between}, {2, 8});
  ValueId inner = b.layer("inner", kView, {first, second}, {2, 24});
  ValueId third = b.layer("third", kRun, {inner}, {2, 8});
  ValueId whole = b.layer("whole", kView, {inner, third}, {2, 32});
  ValueId part = b.layer("part", kView, {whole}, {2, 4});
  ValueId late = b.layer("late", kRun, {whole}, {2, 32});
  ValueId end = b.layer("end", kRun, {late, first, part}, {2, 32});
  b.plan.graph.add_output(end);
  b.finish();
  b.plan.slices[first] = {inner, 1, 0, 1};
  b.plan.slices[second] = {inner, 1, 16, 1};
  b.plan.slices[inner] = {whole, 1, 8, 1};
  b.plan.slices[third] = {whole, 1, 0, 1};
  b.plan.slices[part] = {whole, 1, 5, 2};
  auto s = plan_storage(b.plan, b.lowered, always);
  REQUIRE(s.has_value());
  const int root = s->by_value[whole.index];
  const Slot& all = s->slots[static_cast<size_t>(root)];
  CHECK(all.kind == Slot::Kind::arena);
  CHECK(all.bytes == 2 * 32 * 4);
  CHECK(all.first == 1);
  CHECK(all.last == 9);  // `end` still reads a part
  const std::vector<std::pair<ValueId, int64_t>> parts = {
      {first, 8}, {second, 24}, {inner, 8}, {third, 0}, {part, 5}};
  for (const auto& p : parts) {
    const Slot& slice = s->slots[static_cast<size_t>(s->by_value[p.first.index])];
    CHECK(slice.kind == Slot::Kind::slice);
    CHECK(slice.index == root);
    CHECK(slice.offset == p.second * 4);
  }
  // Nothing is written over a part, or over the whole while a part is read.
  CHECK(s->by_value[between.index] != s->by_value[first.index]);
  CHECK(s->by_value[late.index] != root);
  place(*s, {});
  check_no_overlap(*s);
  const auto lies = strided_view(b.plan, part);
  REQUIRE(lies.has_value());
  CHECK(lies->strides == std::vector<int64_t>{32, 2});
  CHECK(!lies->dense);
}

}  // namespace ferrule::test
