// What ONNX's newest operator schemas say of attributes, without showing protobuf: used where nodes are
// matched (attributes that a pattern does not name) and made (attributes that a rule leaves out).
#pragma once
#include <optional>
#include <string_view>

#include "engine/graph/graph.h"

namespace ferrule {

/// The default of an attribute; nullopt: none, or no such operator.
std::optional<Attr> schema_default(std::string_view domain, std::string_view op, std::string_view attribute);
/// Sets the attributes that are missing and have a default.
void fill_schema_defaults(Node& n);

}  // namespace ferrule
