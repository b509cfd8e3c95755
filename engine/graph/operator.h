// A node's operator. What operators mean stands in engine/semantics, engine/interpreter and
// engine/onnx, which read its name (operator_name.h), and engine/match compares it with what a rule
// names. Everybody else copies it, asks whether two are the same, and shows it to people.
#pragma once
#include <string>
#include <string_view>

#include "engine/base/diagnostics.h"

namespace ferrule {

class Operator {
 public:
  Operator() = default;
  /// As a model or a rule names it.
  explicit Operator(std::string written) : written_(std::move(written)) {}
  Operator& operator=(std::string written) {
    written_ = std::move(written);
    return *this;
  }
  friend bool operator==(const Operator&, const Operator&) = default;
  /// For people, and for the conditions of rules; tests/layering forbids that C++ compares it.
  const std::string& text() const { return written_; }
  /// Of a group's operator; else empty.
  std::string_view contract() const {
    constexpr std::string_view kGroup = "group.";
    const std::string_view text = written_;
    return text.starts_with(kGroup) ? text.substr(kGroup.size()) : "";
  }

 private:
  std::string written_;
};

inline std::string escape(const Operator& op, size_t max = 200) { return escape(op.text(), max); }

/// The operator that passes its input on: what Graph::replace_uses inserts where a name must be
/// kept.
Operator identity_operator();

}  // namespace ferrule
