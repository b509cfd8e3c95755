// Regular expressions in RE2's syntax, as RegexFullMatch wants them. All alternatives are followed
// side by side, so that time is the product of the lengths of pattern and text, whatever the
// pattern says. Not supported: classes by Unicode property (\p{Greek}), single bytes (\C).
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <tl/expected.hpp>

namespace ferrule::interp {

class Regex {
 public:
  /// Code points, as ranges.
  using Set = std::vector<std::pair<uint32_t, uint32_t>>;
  enum class Assertion : uint8_t { text_begin, text_end, line_begin, line_end, word, no_word };
  struct Step {
    enum class Kind : uint8_t { set, fork, jump, assertion, match } kind;
    uint32_t next = 0, other = 0;  ///< of a fork: both ways
    Assertion assertion{};
    size_t set = 0;
  };

  /// errors: what is wrong with the pattern.
  static tl::expected<Regex, std::string> compile(std::string_view pattern);
  /// Whether the whole text matches. `stopped` is asked now and then; then it is false.
  bool matches(std::string_view text, const std::function<bool()>& stopped = {}) const;

 private:
  std::vector<Step> steps_;
  std::vector<Set> sets_;
};

/// The code point at `at`, which moves behind it; 0x110000 for a byte that is no UTF-8.
uint32_t next_code(std::string_view text, size_t& at);
inline constexpr uint32_t kNoCode = 0x110000;

}  // namespace ferrule::interp
