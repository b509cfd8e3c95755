#include "engine/base/diagnostics.h"

#include <array>
#include <cstdio>
#include <cstdlib>

#include "engine/base/utf8.h"

namespace ferrule {
namespace {

struct Row {
  std::string_view name;
  Exit exit;
  std::string_view text, hint;
};

constexpr auto kRows = std::to_array<Row>({
#define FERRULE_DIAGNOSTIC(id, exit, text, hint) {#id, Exit::exit, text, hint},
#include "engine/base/diagnostics.def"
#undef FERRULE_DIAGNOSTIC
});

const Row& row(Code c) {
  size_t i = static_cast<size_t>(c);
  FERRULE_ASSERT(i < kRows.size(), "Code out of range");
  return kRows[i];
}

/// Code points that are invisible or change the direction or layout of what surrounds them.
bool is_hidden(uint32_t p) {
  return p < 0x20 || (p >= 0x7f && p < 0xa0) || p == 0xad || p == 0x61c ||
         (p >= 0x200b && p <= 0x200f) || (p >= 0x2028 && p <= 0x202e) ||
         (p >= 0x2060 && p <= 0x206f) || p == 0xfeff || (p >= 0xfff0 && p <= 0xffff) ||
         (p >= 0xe0000 && p <= 0xe0fff);
}

std::string indented(std::string_view text) {
  std::string out = "\n  ";
  for (char c : text) {
    out += c;
    if (c == '\n') out += "  ";
  }
  return out;
}

}  // namespace

std::string_view code_name(Code c) { return row(c).name; }
Exit exit_code(Code c) { return row(c).exit; }

Error make_error_v(Code c, std::string place, fmt::format_args args) {
  const Row& r = row(c);
  Error e;
  e.code = c;
  e.place = std::move(place);
  // A row whose text has more fields than the caller passed must still give a message.
  try {
    e.message = fmt::vformat(r.text, args);
  } catch (const fmt::format_error&) {
    e.message = r.text;
  }
  // A hint of "{}" is filled by who makes the error; it is the last argument where there is a
  // second.
  if (r.hint == "{}") {
    if (auto last = args.get(1)) {
      try {
        e.hint = fmt::vformat("{1}", args);
      } catch (const fmt::format_error&) {
      }
    }
  } else {
    e.hint = r.hint;
  }
  return e;
}

void append(std::vector<Error>& all, Error e) {
  const std::vector<Error> more = std::exchange(e.more, {});
  all.push_back(std::move(e));
  all.insert(all.end(), more.begin(), more.end());
}

Status as_status(std::vector<Error> all) {
  std::vector<Error> flat;
  for (Error& e : all) append(flat, std::move(e));
  if (flat.empty()) return {};
  Error first = std::move(flat.front());
  first.more.assign(flat.begin() + 1, flat.end());
  return fail(std::move(first));
}

Status ErrorOfEach::status() {
  std::vector<Error> errors;
  for (auto& [_, counted] : all_) {
    Error& e = counted.first;
    if (counted.nodes > 1) e.message += fmt::format("; {} nodes, this is the first", counted.nodes);
    append(errors, std::move(e));
  }
  return as_status(std::move(errors));
}

std::string render(const Error& e) {
  std::string out;
  for (size_t k = 0; k <= e.more.size(); ++k) {
    const Error& one = k ? e.more[k - 1] : e;
    out += fmt::format("{}error[{}]: {}{}{}", k ? "\n" : "", code_name(one.code), one.place,
                       one.place.empty() ? "" : ": ", one.message);
    if (!one.excerpt.empty()) out += indented(one.excerpt);
    const bool again = k < e.more.size() && e.more[k].hint == one.hint;  // said behind the last
    if (!one.hint.empty() && !again) out += "\nhint: " + one.hint;
  }
  return out;
}

std::string escape(std::string_view text, size_t max) {
  size_t ascii = 0;  // nearly every name is nothing else
  while (ascii < text.size() && ascii < max && text[ascii] >= 0x20 && text[ascii] < 0x7f) ++ascii;
  std::string out(text.substr(0, ascii));
  text.remove_prefix(ascii);
  while (!text.empty()) {
    uint32_t point = 0;
    size_t n = decode_utf8(text, point);
    bool plain = n > 0 && !is_hidden(point);
    if (n == 0) n = 1;
    std::string piece;
    if (plain)
      piece = text.substr(0, n);
    else
      for (size_t i = 0; i < n; ++i)
        piece += fmt::format("\\x{:02X}", static_cast<unsigned char>(text[i]));
    if (out.size() + piece.size() > max) return out + "…";
    out += piece;
    text.remove_prefix(n);
  }
  return out;
}

void bug(std::string_view what, const char* file, int line) {
  std::fflush(stdout);
  std::fprintf(stderr, "ferrule: internal error at %s:%d: %.*s\n", file, line,
               static_cast<int>(what.size()), what.data());
  std::fflush(stderr);
  std::_Exit(static_cast<int>(Exit::bug));
}

}  // namespace ferrule
