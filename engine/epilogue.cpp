#include "codegen/library.cpp"
