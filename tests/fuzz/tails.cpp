#include "tests/fuzz/tails.h"

#include "tests/fuzz/parts.h"

namespace ferrule::fuzz {

Case draw_tail(Draw& draw, const Language& language, std::map<std::string, int>& refused) {
  Builder b(draw, language);
  b.mood = static_cast<Mood>(draw.of({0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3, 3, 3, 3}));
  b.dtype = static_cast<DType>(draw.of({1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 10, 10, 11, 6}));
  b.square = draw.chance(30);
  b.side = draw.between(2, 6);
  b.empty = draw.chance(3);
  Scene scene{draw_anchor(b), {}};
  scene.values.push_back(scene.anchor.result);
  for (int64_t steps = draw.between(1, 3); steps > 0; --steps)
    for (int tries = 0; tries < 8 && !draw_step(b, scene); ++tries) {
    }
  const Value last = scene.values.back();
  b.output(last);
  if (draw.chance(20)) b.output(scene.anchor.result);
  if (draw.chance(10)) b.output(draw.of(scene.values));
  if (draw.chance(10))  // a second reader of the anchor's result, or of what is behind it
    if (auto reader = b.node(is_float(b.dtype) ? "Sigmoid" : "Neg", {draw.of(scene.values)}))
      b.output(*reader);
  if (draw.chance(15)) b.open_sizes();
  for (const auto& [why, n] : b.refused) refused[why] += n;
  return b.finish();
}

}  // namespace ferrule::fuzz
