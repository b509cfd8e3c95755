// What the harnesses of one library kernel share, on CPUs and on GPUs: sizes of tensors, and
// writing down the kernel's tail.
#pragma once
#include <cstdint>
#include <vector>

#include "engine/contract/epilogue.h"

namespace ferrule::test {

using Dims = std::vector<int64_t>;

inline int64_t numel(const Dims& d) {
  int64_t n = 1;
  for (int64_t x : d) n *= x;
  return n;
}

struct WithTail {
  std::vector<PostOp> post_ops;

  void eltwise(std::string alg, float alpha = 0, float beta = 0) {
    PostOp op;
    op.alg = std::move(alg);
    op.alpha = alpha;
    op.beta = beta;
    post_ops.push_back(op);
  }
  void binary(std::string alg, int operand) {
    PostOp op;
    op.kind = PostOp::Kind::binary;
    op.alg = std::move(alg);
    op.operand = operand;
    post_ops.push_back(op);
  }
};

}  // namespace ferrule::test
