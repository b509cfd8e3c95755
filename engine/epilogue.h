#pragma once
#include "codegen/library.h"
