#include "runtime/answers/json_stream.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

namespace ferrule {
namespace {

constexpr size_t kBuffer = 1 << 16;

std::string dumped(const nlohmann::json& value) {
  return value.dump(2, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void JsonStream::flush() {
  out_.write(buffer_.data(), static_cast<std::streamsize>(buffer_.size()));
  buffer_.clear();
}

void JsonStream::line() {
  if (buffer_.size() > kBuffer) flush();
  buffer_ += '\n';
  buffer_.append(2 * depth_, ' ');
}

void JsonStream::place() {
  if (std::exchange(after_key_, false) || depth_ == 0) return;
  if (!std::exchange(first_, false)) buffer_ += ',';
  line();
}

void JsonStream::begin(char bracket) {
  place();
  buffer_ += bracket;
  ++depth_;
  first_ = true;
}

void JsonStream::end(char bracket) {
  --depth_;
  if (!std::exchange(first_, false)) line();
  buffer_ += bracket;
  if (depth_ == 0) buffer_ += '\n';
}

void JsonStream::quote(std::string_view value) {
  const bool plain = std::ranges::all_of(
      value, [](char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
  if (!plain) {
    buffer_ += dumped(value);
    return;
  }
  buffer_ += '"';
  buffer_ += value;
  buffer_ += '"';
}

void JsonStream::key(std::string_view name) {
  place();
  quote(name);
  buffer_ += ": ";
  after_key_ = true;
}

void JsonStream::text(std::string_view value) {
  place();
  quote(value);
}

void JsonStream::number(int64_t value) {
  place();
  buffer_ += std::to_string(value);
}

void JsonStream::null() {
  place();
  buffer_ += "null";
}

void JsonStream::tree(const nlohmann::json& value) {
  place();
  for (char c : dumped(value)) {
    buffer_ += c;
    if (c == '\n') buffer_.append(2 * depth_, ' ');  // in texts it is written \n
  }
}

}  // namespace ferrule
