#include "engine/semantics/definition.h"

#include <fmt/ranges.h>

#include "engine/semantics/formula.h"

namespace ferrule {

std::string definition(const OpFormula& f) {
  std::string out =
      fmt::format("{} {} in {} out {} row {} channel {} class {} required {} types", f.domain, f.op,
                  fmt::join(f.inputs, ","), f.out_type, f.row, fmt::join(f.channel, ","),
                  fmt::join(f.classes, ","), fmt::join(f.required, ","));
  for (DType t : f.types) out += fmt::format(" {}", name(t));
  for (const auto& [key, value] : f.attrs) out += fmt::format(" {}={}", key, str(value));
  for (const auto& [key, e] : f.let) out += fmt::format("\n{} = {}", key, to_text(*e));
  return out + fmt::format("\n{}\n", to_text(*f.expr));
}

Result<Semantics> load_first_definitions(std::span<const std::string> rule_dirs,
                                         Semantics::BySchema by_schema) {
  std::vector<std::string> dirs(rule_dirs.begin(), rule_dirs.end());
  // Whose folder comes earliest is read last.
  if (dirs.size() > 1) dirs.insert(dirs.end(), rule_dirs.rbegin() + 1, rule_dirs.rend());
  return Semantics::load(dirs, by_schema);
}

Result<std::vector<std::string>> replaced_operators(std::span<const std::string> rule_dirs,
                                                    const Semantics& ops) {
  std::vector<std::string> out;
  if (rule_dirs.size() < 2) return out;
  FERRULE_ASSIGN(const Semantics first, load_first_definitions(rule_dirs));
  for (const auto& [key, f] : ops.all())
    if (const OpFormula* old = first.find(f.domain, f.op); old && old->place != f.place)
      out.push_back(fmt::format("operator {} is what {} says, not what {} does", escape(key),
                                escape(f.place), escape(old->place)));
  return out;
}

}  // namespace ferrule
