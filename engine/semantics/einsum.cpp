#include "engine/semantics/einsum.h"

#include <algorithm>
#include <cctype>

#include "engine/base/contains.h"
#include "engine/base/join.h"

namespace ferrule {

tl::expected<EinsumEquation, std::string> EinsumEquation::of(std::string_view given) {
  std::string text(given);
  std::erase(text, ' ');
  for (size_t at; (at = text.find("...")) != std::string::npos;) text.replace(at, 3, ".");
  const size_t arrow = text.find("->");
  const std::string left = text.substr(0, arrow);
  EinsumEquation e;
  for (char ch : left)
    if (ch == ',')
      e.terms.emplace_back();
    else
      e.terms.back() += ch;
  if (arrow != std::string::npos) {
    e.out = text.substr(arrow + 2);
  } else {
    if (left.find('.') != std::string::npos) e.out = ".";
    for (char ch : left)
      if (ch != ',' && ch != '.' && std::ranges::count(left, ch) == 1) e.out += ch;
    std::ranges::sort(e.out);  // "." is less than any letter
  }
  for (const std::string& t : e.terms) {
    if (!std::ranges::all_of(t + e.out,
                             [](unsigned char ch) { return ch == '.' || std::isalpha(ch); }))
      return tl::unexpected(std::string("unexpected character"));
    if (std::ranges::count(t, '.') > 1)
      return tl::unexpected(std::string("two ellipses in one term"));
  }
  for (char ch : e.out) {
    const bool known = std::ranges::any_of(e.terms, [&](const auto& t) { return contains(t, ch); });
    if (ch != '.' && (!known || std::ranges::count(e.out, ch) > 1))
      return tl::unexpected(fmt::format("label {} of the result is not known or not unique", ch));
  }
  return e;
}

}  // namespace ferrule
