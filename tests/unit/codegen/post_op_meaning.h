// What the steps of a library's epilogue compute, written down apart from the table that finds
// them.
#pragma once
#include <algorithm>
#include <cmath>
#include <string_view>

#include <doctest/doctest.h>

#include "engine/contract/epilogue.h"

namespace ferrule {

/// What an algorithm of a library's epilogue computes, in words and in double precision.
struct Meaning {
  std::string_view alg, formula;
  double (*eval)(double x, double alpha, double beta, double operand);
};
inline double soft_plus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }
inline double hard_sigmoid(double x, double a, double b) {
  return std::min(std::max(a * x + b, 0.0), 1.0);
}
inline const Meaning kMeanings[] = {
    {"relu", "max(x, 0)", [](double x, double, double, double) { return x > 0 ? x : 0; }},
    {"leaky_relu", "x < 0 ? alpha * x : x",
     [](double x, double a, double, double) { return x < 0 ? a * x : x; }},
    {"clip", "min(max(x, alpha), beta)",
     [](double x, double a, double b, double) { return std::min(std::max(x, a), b); }},
    {"elu", "x < 0 ? alpha * (exp(x) - 1) : x",
     [](double x, double a, double, double) { return x < 0 ? a * std::expm1(x) : x; }},
    {"logistic", "1 / (1 + exp(-x))",
     [](double x, double, double, double) { return 1 / (1 + std::exp(-x)); }},
    {"tanh", "tanh(x)", [](double x, double, double, double) { return std::tanh(x); }},
    {"swish", "x / (1 + exp(-alpha * x))",
     [](double x, double a, double, double) { return x / (1 + std::exp(-a * x)); }},
    {"hardswish", "x * min(max(alpha * x + beta, 0), 1)",
     [](double x, double a, double b, double) { return x * hard_sigmoid(x, a, b); }},
    {"hardsigmoid", "min(max(alpha * x + beta, 0), 1)",
     [](double x, double a, double b, double) { return hard_sigmoid(x, a, b); }},
    {"soft_relu", "log(1 + exp(alpha * x)) / alpha",
     [](double x, double a, double, double) { return soft_plus(a * x) / a; }},
    {"mish", "x * tanh(log(1 + exp(x)))",
     [](double x, double, double, double) { return x * std::tanh(soft_plus(x)); }},
    {"gelu_tanh", "0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x^3)))",
     [](double x, double, double, double) {
       return 0.5 * x * (1 + std::tanh(0.79788456080286536 * (x + 0.044715 * x * x * x)));
     }},
    {"abs", "|x|", [](double x, double, double, double) { return std::fabs(x); }},
    {"sqrt", "sqrt(x)", [](double x, double, double, double) { return std::sqrt(x); }},
    {"square", "x * x", [](double x, double, double, double) { return x * x; }},
    {"exp", "exp(x)", [](double x, double, double, double) { return std::exp(x); }},
    {"log", "log(x)", [](double x, double, double, double) { return std::log(x); }},
    {"round", "x to the nearest integer, half to even",
     [](double x, double, double, double) { return std::nearbyint(x); }},
    {"pow", "alpha * x^beta",
     [](double x, double a, double b, double) { return a * std::pow(x, b); }},
    {"linear", "alpha * x + beta", [](double x, double a, double b, double) { return a * x + b; }},
    {"add", "x + y", [](double x, double, double, double y) { return x + y; }},
    {"sub", "x - y", [](double x, double, double, double y) { return x - y; }},
    {"mul", "x * y", [](double x, double, double, double y) { return x * y; }},
    {"div", "x / y", [](double x, double, double, double y) { return x / y; }},
    {"max", "max(x, y)", [](double x, double, double, double y) { return std::max(x, y); }},
    {"min", "min(x, y)", [](double x, double, double, double y) { return std::min(x, y); }},
};

/// What a step gives for x (and its operand's value).
inline double apply_post_op(const PostOp& op, double x, double operand) {
  for (const Meaning& m : kMeanings)
    if (m.alg == op.alg) return m.eval(x, op.alpha, op.beta, operand);
  FAIL("an algorithm without a meaning: " << op.alg);
  return 0;
}

}  // namespace ferrule
