// Why a plan with a rule may launch more kernels than one without it: the key `may_raise_kernels`
// of the rule's file. It is read when it is asked for, by `ferrule ablate` and the printer; no
// planning asks.
#pragma once
#include <string>

#include "engine/rule/rule.h"

namespace ferrule {

/// Empty: the file has no such key, and the rule must not raise the number.
std::string may_raise_kernels(const Rule& r);

}  // namespace ferrule
