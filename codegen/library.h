// The epilogue table as codegen's users know it; it lives in engine/epilogue, because contracts ask it, too.
#pragma once
#include "engine/epilogue.h"
