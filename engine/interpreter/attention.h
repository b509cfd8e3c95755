// The table of interpreter_attention.cpp, for interpreter.cpp.
#pragma once
#include "engine/interpreter/internal.h"

namespace ferrule::interp {

std::span<const Entry> attention_table();

}  // namespace ferrule::interp
