// The first key of a file in a rules folder: the version of the language that it is written in.
#pragma once
#include "engine/base/yaml.h"

namespace ferrule {

/// Records an error unless `root` says `ferrule: 1` or `ferrule: 2`; both are read alike.
inline void check_version(yaml::Reader& r, const yaml::Node& root) {
  const yaml::Node* v = r.required(root, "ferrule");
  if (!v) return;
  const bool known = v->text == "1" || v->text == "2";
  if (known && v->quoted)
    r.invalid(*v, "the version of the rule language is a number, not a text",
              fmt::format("write ferrule: {}, without quotes", v->text));
  else if (!known)
    r.invalid(*v,
              fmt::format("version {} of the rule language; this program reads versions 1 and 2",
                          escape(v->text)),
              "write ferrule: 2");
}

}  // namespace ferrule
