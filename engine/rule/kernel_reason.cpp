#include "engine/rule/kernel_reason.h"

#include "engine/base/yaml.h"

namespace ferrule {

std::string may_raise_kernels(const Rule& r) {
  const auto doc = yaml::read_text(r.text, r.file, Limits{});
  const yaml::Node* reason = doc ? doc->root.find("may_raise_kernels") : nullptr;
  return reason ? reason->text : "";
}

}  // namespace ferrule
