// Strict YAML for everything in rules/: a tree in which every node knows its line and column, read
// through yaml-cpp's event handler. Duplicate keys, tags, anchors, aliases, merge keys, second
// documents, tabs, byte order marks, NUL, invalid UTF-8, too deep and too big are errors. `Reader`
// collects the errors of a file (unknown keys, wrong kinds, whatever the caller finds), so that all
// are reported at once with place, excerpt, caret and hint. yaml.cpp is the only user of yaml-cpp.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/diagnostics.h"
#include "engine/base/dtype.h"
#include "engine/base/key_doc.h"
#include "engine/base/limits.h"

namespace ferrule::yaml {

/// A file's name and text, for places and excerpts.
struct Source {
  std::string name, text;
  std::string place(int line, int column) const;  ///< "name:line:column"
  /// The line and a caret below `column`, both 1-based; "" if there is no such line.
  std::string excerpt(int line, int column) const;
};

struct Node {
  enum class Kind : uint8_t { null, scalar, sequence, map } kind = Kind::null;
  std::string text;                            ///< scalars: the value
  bool quoted = false;                         ///< "…", '…', | or >: certainly a string
  std::vector<Node> items;                     ///< sequences
  std::vector<std::pair<Node, Node>> entries;  ///< maps, in the order of the file; keys are scalars
  bool verbatim = false;     ///< `text` stands in the file exactly so, on one line
  int line = 0, column = 0;  ///< 1-based, of the first character (of the quote, of the |)
  int block_line = 0;        ///< | blocks: line of the text's first line; 0 = not a | block
  int block_indent = 0;      ///< | blocks: columns that stand before the text's

  bool is_null() const { return kind == Kind::null; }
  bool is_scalar() const { return kind == Kind::scalar; }
  bool is_sequence() const { return kind == Kind::sequence; }
  bool is_map() const { return kind == Kind::map; }
  const Node* find(std::string_view key) const;  ///< value of `key` in a map, else null
  /// Line and column in the file of byte `offset` of `text` (0-based offset; exact for plain,
  /// simply quoted and | scalars, the node's own place otherwise).
  std::pair<int, int> position(size_t offset) const;
};
std::string_view name(Node::Kind k);  ///< "nothing", "a scalar", "a list", "a map"

struct Document {
  Node root;
  std::shared_ptr<const Source> source;
};
/// `last`: a key of the file that is not read where it is the last one at the left margin; "": all
/// is read. errors: file_not_found, limit_exceeded, yaml_syntax, yaml_forbidden; all that can be
/// found, in `more`.
Result<Document> read_file(const std::string& path, const Limits& limits,
                           std::string_view last = "");
Result<Document> read_text(std::string_view text, std::string name, const Limits& limits,
                           std::string_view last = "");

/// Takes a document apart and collects what is wrong with it. The getters return a default after
/// recording an error, so that reading goes on; ask status() at the end.
class Reader {
 public:
  explicit Reader(std::shared_ptr<const Source> source) : source_(std::move(source)) {}

  // --- recording
  void error(Code code, int line, int column, std::string message, std::string hint = "");
  void error(const Node& at, std::string message, std::string hint = "",
             Code code = Code::yaml_key) {
    error(code, at.line, at.column, std::move(message), std::move(hint));
  }
  void invalid(const Node& at, std::string message, std::string hint = "") {
    error(at, std::move(message), std::move(hint), Code::rule_invalid);
  }
  /// At byte `offset` of a scalar's text (places inside formulas, patterns, blocks).
  void error_in(const Node& at, size_t offset, std::string message, std::string hint, Code code);
  void add(Error e) {
    errors_.push_back(std::move(e));
  }  ///< an error made elsewhere, place included
  size_t count() const { return errors_.size(); }
  Status status() const;  ///< the first error with the others in `more`; or none
  const Source& source() const { return *source_; }

  // --- kinds
  bool expect(const Node& n, Node::Kind kind, std::string_view what);  ///< false: recorded
  /// Every key of `map` must be one of `allowed`; else an error with the nearest as suggestion.
  void keys(const Node& map, std::span<const std::string_view> allowed);
  void keys(const Node& map, std::initializer_list<std::string_view> allowed) {
    keys(map, std::span(allowed.begin(), allowed.size()));
  }
  void keys(const Node& map, std::span<const KeyDoc> allowed) { keys(map, key_names(allowed)); }
  /// Value of a key that must be there; null: recorded.
  const Node* required(const Node& map, std::string_view key);

  // --- scalars
  std::string string(const Node& n);  ///< any scalar
  std::string quoted(const Node& n,
                     std::string_view what);  ///< must be quoted or a block (expressions)
  bool boolean(const Node& n);                ///< true | false, unquoted
  int64_t integer(const Node& n);
  double number(const Node& n);                     ///< also inf, -inf, nan
  std::vector<std::string> strings(const Node& n);  ///< a list of scalars, or one scalar
  /// The element types of these names, which stand at `n`.
  std::vector<DType> dtypes(const Node& n, const std::vector<std::string>& names,
                            std::string_view known = "f32, f16, bf16, f64, i32, i64, bool, …");
  /// A scalar that is one of `allowed`.
  std::string one_of(const Node& n, std::span<const std::string_view> allowed);
  std::string one_of(const Node& n, std::initializer_list<std::string_view> allowed) {
    return one_of(n, std::span(allowed.begin(), allowed.size()));
  }

 private:
  std::shared_ptr<const Source> source_;
  std::vector<Error> errors_;
  size_t dropped_ = 0;  ///< errors beyond kMaxErrors, only counted
};
inline constexpr size_t kMaxErrors = 100;

/// "true" / "false", integer and number as Reader reads them, without recording.
std::optional<int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

/// Any text as a double-quoted scalar of one line.
std::string in_quotes(std::string_view text);

}  // namespace ferrule::yaml
