#include "engine/graph/open_sizes.h"

#include <algorithm>
#include <array>

#include "engine/base/diagnostics.h"
#include "engine/base/join.h"

namespace ferrule {
namespace {

/// An input and which of its sizes are open; no axes: not even their number is known.
struct Open {
  ValueId input;
  std::vector<int> axes;
};

bool word_in(std::string_view text, std::string_view word) {
  auto inside = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  for (size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    const size_t end = at + word.size();
    if ((at == 0 || !inside(text[at - 1])) && (end == text.size() || !inside(text[end])))
      return true;
  }
  return false;
}

std::vector<Open> open_inputs(const Graph& g, std::string_view fact) {
  std::vector<Open> all, named;
  for (ValueId v : g.inputs()) {
    const Value& value = g.value(v);
    if (value.constant || !is_tensor(value.type.dtype)) continue;
    Open whole{v, {}}, part{v, {}};
    if (value.type.shape)
      for (int k = 0; k < value.type.rank(); ++k) {
        const Dim& d = (*value.type.shape)[static_cast<size_t>(k)];
        if (d.is_constant()) continue;
        whole.axes.push_back(k);
        if (word_in(fact, d.str())) part.axes.push_back(k);
      }
    if (!whole.axes.empty() || !value.type.shape) all.push_back(std::move(whole));
    if (!part.axes.empty()) named.push_back(std::move(part));
  }
  return named.empty() ? all : named;
}

constexpr std::array<std::string_view, 4> kImage = {"batch", "channels", "height", "width"};

/// Whether the symbol is a word that a person chose.
bool chosen(const std::string& symbol) {
  return !symbol.empty() && symbol.size() <= 24 &&
         !std::isdigit(static_cast<unsigned char>(symbol[0])) &&
         std::ranges::all_of(symbol, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) || c == '_';
         });
}

std::string axis_words(const Type& t, int axis) {
  const std::string symbol = (*t.shape)[static_cast<size_t>(axis)].str();
  if (t.rank() == 4) return std::string(kImage[static_cast<size_t>(axis)]);
  return chosen(symbol) ? symbol : fmt::format("axis {}", axis);
}

}  // namespace

std::string open_sizes(const Graph& g, std::string_view fact) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // sizes -> inputs
  for (const Open& o : open_inputs(g, fact)) {
    const Value& value = g.value(o.input);
    std::vector<std::string> sizes;
    for (int axis : o.axes) sizes.push_back(axis_words(value.type, axis));
    const std::string text = sizes.empty() ? "the rank" : joined(sizes, {}, ", ", " and ");
    auto same = std::ranges::find(groups, text, [](const auto& x) { return x.first; });
    if (same == groups.end()) same = groups.insert(groups.end(), {text, {}});
    same->second.push_back(escape(value.name));
  }
  std::vector<std::string> parts;
  for (const auto& [sizes, inputs] : groups)
    parts.push_back(fmt::format("{} of {}", sizes, joined(inputs, {}, ", ", " and ")));
  return joined(parts, {}, ", ", " and ");
}

int64_t likely_size(int rank, int axis) {
  return axis == 0 ? 1 : rank == 4 && axis >= 2 ? 224 : 128;
}

std::string likely_sizes(const Value& input, std::map<std::string, int64_t>& symbols) {
  std::string dims;
  for (int k = 0; k < input.type.rank(); ++k) {
    const Dim& d = (*input.type.shape)[static_cast<size_t>(k)];
    int64_t size = d.value_or(likely_size(input.type.rank(), k));
    if (!d.is_constant()) size = symbols.try_emplace(d.str(), size).first->second;
    dims += fmt::format("{}{}", k ? "x" : "", size);
  }
  return fmt::format("{}:{}", escape(input.name), dims);
}

std::string shapes_flag(const Graph& g, std::string_view fact) {
  std::string out;
  std::map<std::string, int64_t> symbols;  // one size wherever the model says so
  for (const Open& o : open_inputs(g, fact)) {
    const Value& value = g.value(o.input);
    if (!value.type.shape) continue;
    out += fmt::format("{}--shapes {}", out.empty() ? "" : " ", likely_sizes(value, symbols));
  }
  return out;
}

std::string undecided(const Graph& g, std::string_view fact) {
  const std::string sizes = open_sizes(g, fact), flag = shapes_flag(g, fact);
  if (sizes.empty())
    return fmt::format("undecided before a run: {}", fact.empty() ? "its sizes" : fact);
  constexpr size_t kShort = 60;  // letters; flags for many inputs would hide the reason
  return fmt::format("it depends on {}, which the model leaves open{}", sizes,
                     flag.empty()            ? ""
                     : flag.size() <= kShort ? fmt::format("; pass {}, say", flag)
                                             : "; --shapes sets them");
}

}  // namespace ferrule
