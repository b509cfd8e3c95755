// JSON written while it is made, for lists as long as the model: as a tree they would take more
// memory than the plan. The layout is print_json's, two spaces a level; that the members of an
// object come in the order of their names, as they do in a tree, is the caller's business.
#pragma once
#include <nlohmann/json_fwd.hpp>
#include <ostream>
#include <string>
#include <string_view>

namespace ferrule {

class JsonStream {
 public:
  explicit JsonStream(std::ostream& out) : out_(out) {}
  ~JsonStream() { flush(); }
  JsonStream(const JsonStream&) = delete;
  JsonStream& operator=(const JsonStream&) = delete;

  void begin_object() { begin('{'); }
  void end_object() { end('}'); }
  void begin_array() { begin('['); }
  void end_array() { end(']'); }
  /// The name of the member whose value comes next.
  void key(std::string_view name);
  void text(std::string_view value);
  void number(int64_t value);
  void null();
  /// A value that was made as a tree.
  void tree(const nlohmann::json& value);
  void flush();

 private:
  void begin(char bracket);
  void end(char bracket);
  void place();  ///< the comma and the line of the next element
  void line();
  void quote(std::string_view value);

  std::ostream& out_;
  std::string buffer_;
  size_t depth_ = 0;
  bool first_ = true;  // nothing stands in the innermost list yet
  bool after_key_ = false;
};

}  // namespace ferrule
