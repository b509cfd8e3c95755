#include "engine/base/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/utf8.h"

namespace ferrule::yaml {
namespace {

/// What no rule file may contain, whatever it means in YAML. At most one finding of a kind, the
/// first.
void check_bytes(Reader& out, std::string_view text) {
  std::set<int> seen;
  int line = 1;
  size_t start = 0;
  auto forbid = [&](int kind, size_t at, std::string what, std::string hint) {
    if (seen.insert(kind).second)
      out.error(Code::yaml_forbidden, line, static_cast<int>(at - start) + 1, std::move(what),
                std::move(hint));
  };
  if (text.substr(0, 3) == "\xef\xbb\xbf")
    forbid(0, 0, "a byte order mark", "save the file as UTF-8 without one");
  for (size_t i = 0; i < text.size();) {
    auto b = static_cast<unsigned char>(text[i]);
    uint32_t point = 0;
    size_t n = decode_utf8(text.substr(i), point);
    if (b == '\n') {
      ++line;
      start = i + 1;
    } else if (b == '\t') {
      forbid(1, i, "a tab", "use spaces");
    } else if (b == 0) {
      forbid(2, i, "a NUL byte", "save the file as UTF-8 text");
    } else if (n == 0) {
      forbid(3, i, fmt::format("the byte 0x{:02x}, which is not valid UTF-8,", b),
             "save the file as UTF-8");
    } else if ((b < 0x20 && !(b == '\r' && i + 1 < text.size() && text[i + 1] == '\n')) ||
               b == 0x7f) {
      forbid(4, i, fmt::format("the control character 0x{:02x}", b), "remove it");
    } else if (b == '%' && i == start) {
      forbid(5, i, "a directive", "remove the line");
    }
    i += n ? n : 1;
  }
}

struct TooDeep {};

/// Builds the tree; what YAML allows and we do not is recorded on the way.
class Builder final : public YAML::EventHandler {
 public:
  Builder(Reader& out, int64_t depth) : out_(out), text_(out.source().text), depth_(depth) {}

  Node root;
  int documents = 0;

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents > 1)
      out_.error(Code::yaml_forbidden, mark.line + 1, mark.column + 1, "a second document",
                 "put it into a file of its own");
  }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    attach(make(Node::Kind::null, mark, "", anchor));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    forbid(mark, "an alias (*)", "write the value out");
    attach(make(Node::Kind::null, mark, "", 0));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    Node n = make(Node::Kind::scalar, mark, tag, anchor);
    n.text = value;
    describe_scalar(n, static_cast<size_t>(mark.pos));
    attach(std::move(n));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    push(make(Node::Kind::sequence, mark, tag, anchor));
  }
  void OnSequenceEnd() override { pop(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    push(make(Node::Kind::map, mark, tag, anchor));
  }
  void OnMapEnd() override { pop(); }

 private:
  struct Frame {
    Node node;
    std::optional<Node> key;
    std::set<std::string> keys;
  };

  void forbid(const YAML::Mark& mark, std::string what, std::string hint) {
    out_.error(Code::yaml_forbidden, mark.line + 1, mark.column + 1, std::move(what),
               std::move(hint));
  }
  char at(size_t pos) const { return pos < text_.size() ? text_[pos] : '\0'; }

  Node make(Node::Kind kind, const YAML::Mark& mark, const std::string& tag,
            YAML::anchor_t anchor) {
    if (anchor != 0) forbid(mark, "an anchor (&)", "write the value out where it is needed");
    bool tagged =
        at(static_cast<size_t>(mark.pos)) == '!' || (tag != "" && tag != "?" && tag != "!");
    if (tagged) forbid(mark, "a tag (!)", "remove it");
    Node n;
    n.kind = kind;
    n.line = mark.line + 1;
    n.column = mark.column + 1;
    return n;
  }

  /// Quoting, and where the text of a block stands, from the source itself: events do not say.
  void describe_scalar(Node& n, size_t pos) {
    char c = at(pos);
    size_t skip = c == '"' || c == '\'' ? 1 : 0;
    n.quoted = skip || c == '|' || c == '>';
    n.verbatim = text_.compare(pos + skip, n.text.size(), n.text) == 0 &&
                 n.text.find('\n') == std::string::npos;
    if (c != '|') return;
    size_t end = std::min(text_.find('\n', pos), text_.size());
    if (text_.substr(pos, end - pos).find_first_of("123456789") <
        text_.substr(pos, end - pos).find('#'))
      out_.error(Code::yaml_forbidden, n.line, n.column, "an indentation number behind |",
                 "indent the block's first line like the others");
    n.block_line = n.line + 1;
    for (size_t i = end + 1; i < text_.size();
         i = text_.find('\n', i) + 1) {  // the first line with text
      size_t first = text_.find_first_not_of(' ', i);
      if (first == std::string::npos) break;
      if (text_[first] != '\n' && text_[first] != '\r') {
        n.block_indent = static_cast<int>(first - i);
        break;
      }
      if (text_.find('\n', i) == std::string::npos) break;
    }
  }

  void push(Node n) {
    if (std::ssize(stack_) >= depth_) {
      out_.add(ferrule::error(Code::limit_exceeded, out_.source().place(n.line, n.column),
                              "nesting", "deeper", fmt::format("{} (yaml_depth)", depth_))
                   .value());
      throw TooDeep{};
    }
    stack_.push_back({std::move(n), {}, {}});
  }
  void pop() {
    Node n = std::move(stack_.back().node);
    stack_.pop_back();
    attach(std::move(n));
  }
  void attach(Node n) {
    if (stack_.empty()) {
      if (documents <= 1) root = std::move(n);
      return;
    }
    Frame& f = stack_.back();
    if (f.node.is_sequence()) {
      f.node.items.push_back(std::move(n));
    } else if (!f.key) {
      check_key(f, n);
      f.key = std::move(n);
    } else {
      f.node.entries.emplace_back(std::move(*f.key), std::move(n));
      f.key.reset();
    }
  }
  void check_key(Frame& f, const Node& key) {
    if (!key.is_scalar())
      out_.error(Code::yaml_forbidden, key.line, key.column,
                 fmt::format("{} as a key", name(key.kind)), "a key is a word");
    else if (key.text == "<<" && !key.quoted)
      out_.error(Code::yaml_forbidden, key.line, key.column, "a merge key (<<)",
                 "write the entries out");
    else if (!f.keys.insert(key.text).second)
      out_.error(key, fmt::format("key \"{}\" is given twice", escape(key.text)),
                 "remove one of them");
  }

  Reader& out_;
  const std::string& text_;
  int64_t depth_;
  std::vector<Frame> stack_;
};

/// Where the key `last` begins if no other key follows it, else the end.
size_t end_before(std::string_view text, std::string_view last) {
  const size_t at = last.empty() ? text.npos : text.find(fmt::format("\n{}:\n", last));
  if (at == text.npos) return text.size();
  for (size_t line = text.find('\n', at + 1); line + 1 < text.size();
       line = text.find('\n', line + 1))
    if (!contains(std::string_view(" \n#"), text[line + 1])) return text.size();
  return at + 1;
}

/// "line 3: …" of yaml-cpp without its place, which we give ourselves.
void parse(Reader& out, Builder& builder, size_t end) {
  try {
    std::istringstream in(out.source().text.substr(0, end));
    YAML::Parser parser(in);
    while (builder.documents < 2 && parser.HandleNextDocument(builder)) {
    }
  } catch (const YAML::Exception& e) {
    int line = e.mark.is_null() ? 1 : e.mark.line + 1,
        column = e.mark.is_null() ? 1 : e.mark.column + 1;
    out.error(Code::yaml_syntax, line, column, "not YAML: " + escape(e.msg),
              e.msg == "unknown token" ? "put the text into \"quotes\"" : "");
  } catch (const TooDeep&) {
  }
}

}  // namespace

Result<Document> read_text(std::string_view text, std::string name, const Limits& limits,
                           std::string_view last) {
  if (std::ssize(text) > limits.yaml_bytes)
    return ferrule::error(Code::limit_exceeded, name, "size of the file", text.size(),
                          fmt::format("{} (yaml_bytes)", limits.yaml_bytes));
  auto source = std::make_shared<const Source>(Source{std::move(name), std::string(text)});
  Reader out(source);
  check_bytes(out, source->text);
  Document doc;
  doc.source = source;
  // Bytes that yaml-cpp would transcode or choke on must not reach it: its positions would be off.
  if (text.find('\0') == std::string_view::npos && text.substr(0, 3) != "\xef\xbb\xbf" &&
      text.substr(0, 2) != "\xff\xfe" && text.substr(0, 2) != "\xfe\xff") {
    Builder builder(out, limits.yaml_depth);
    parse(out, builder, end_before(text, last));
    doc.root = std::move(builder.root);
  }
  FERRULE_TRY(out.status());
  return doc;
}

Result<Document> read_file(const std::string& path, const Limits& limits, std::string_view last) {
  // Reading a pipe without a writer, or a device, would not end.
  std::error_code ec;
  auto status = std::filesystem::status(path, ec);
  if (status.type() != std::filesystem::file_type::not_found &&
      !std::filesystem::is_regular_file(status))
    return ferrule::error(Code::file_not_found, "", escape(path),
                          ec ? ec.message() : std::string("it is no regular file"));
  std::ifstream in(path, std::ios::binary);
  if (!in)
    return ferrule::error(Code::file_not_found, "", escape(path), std::string("no such file"));
  std::string text;
  // One byte more than allowed is enough to know; rule files are small, so the buffer starts small.
  size_t most = static_cast<size_t>(limits.yaml_bytes) + 1, have = 0;
  while (in && have < most) {
    text.resize(std::min(most, have + (have ? have : 16384)));
    in.read(text.data() + have, static_cast<std::streamsize>(text.size() - have));
    if (in.bad() || (in.gcount() == 0 && !in.eof()))
      return ferrule::error(Code::file_not_found, "", escape(path),
                            std::string("it cannot be read"));
    have += static_cast<size_t>(in.gcount());
  }
  text.resize(have);
  return read_text(text, path, limits, last);
}

std::string in_quotes(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    const auto code = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\')
      out += '\\', out += c;
    else if (c == '\n')
      out += "\\n";
    else if (code < 0x20 || code == 0x7f)
      out += fmt::format("\\x{:02x}", code);
    else
      out += c;
  }
  return out + '"';
}

}  // namespace ferrule::yaml
