// What a contract says of a group: whether there is a kernel for it, and why not.
#pragma once
#include <string>
#include <utility>

#include "engine/base/dim.h"

namespace ferrule {

struct Accept {
  Truth truth = Truth::no;
  std::string reason;   ///< why not, or which fact is missing
  std::string id = {};  ///< of what is asked: "conv.rank"
};

namespace answer {
inline Accept yes() { return {Truth::yes, {}}; }
inline Accept no(std::string reason, std::string id = {}) {
  return {Truth::no, std::move(reason), std::move(id)};
}
inline Accept unknown(std::string fact, std::string id = {}) {
  return {Truth::unknown, std::move(fact), std::move(id)};
}
}  // namespace answer

}  // namespace ferrule
