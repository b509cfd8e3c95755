// Library epilogues live in engine/epilogue.h: kernel conditions ask for them while planning.
#pragma once
#include "engine/epilogue.h"
