#include "engine/rule/yaml_text.h"

#include <algorithm>

namespace ferrule {

Place place_of(const yaml::Reader& r, const yaml::Node& scalar) {
  auto [line, column] = scalar.position(0);
  return Place{r.source().name, line, column};
}

void add_error(yaml::Reader& r, Error e) {
  // The excerpt shows the file's line, not the parser's piece of it.
  size_t second = e.place.rfind(':'), first = second == 0 || second == e.place.npos
                                                  ? e.place.npos
                                                  : e.place.rfind(':', second - 1);
  if (first != e.place.npos) {
    auto line =
        yaml::parse_integer(std::string_view(e.place).substr(first + 1, second - first - 1));
    auto column = yaml::parse_integer(std::string_view(e.place).substr(second + 1));
    size_t carets =
        e.excerpt.size() - std::min(e.excerpt.find_last_not_of('^') + 1, e.excerpt.size());
    if (line && column) {
      std::string shown = r.source().excerpt(static_cast<int>(*line), static_cast<int>(*column));
      if (!shown.empty()) e.excerpt = shown + std::string(carets > 1 ? carets - 1 : 0, '^');
    }
  }
  r.add(std::move(e));
}

}  // namespace ferrule
