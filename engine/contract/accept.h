// What a contract says of a group: whether there is a kernel for it, and why not.
#pragma once
#include <string>
#include <utility>

#include "engine/base/dim.h"

namespace ferrule {

struct Accept {
  Truth truth = Truth::no;
  std::string reason;  ///< why not, or which fact is missing
};

namespace answer {
inline Accept yes() { return {Truth::yes, {}}; }
inline Accept no(std::string reason) { return {Truth::no, std::move(reason)}; }
inline Accept unknown(std::string fact) { return {Truth::unknown, std::move(fact)}; }
}  // namespace answer

}  // namespace ferrule
